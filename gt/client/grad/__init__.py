"""Gradients: backward, modes, custom functions, transforms, checkpoints."""
