"""Meshes of workers and layouts of tensors, as users set them."""
