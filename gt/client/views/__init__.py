"""Aliasing: views, in-place writes, strides."""
