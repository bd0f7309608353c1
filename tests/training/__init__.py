"""Whole models, trained beside torch."""
