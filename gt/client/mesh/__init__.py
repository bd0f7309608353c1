"""Meshes and layouts, as users set them."""
