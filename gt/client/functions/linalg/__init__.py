"""Linear algebra: torch.linalg, and the matrix functions of the top level."""
