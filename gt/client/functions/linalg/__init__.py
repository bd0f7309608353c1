"""Linear algebra: the functions of torch.linalg (see gt/linalg.py) and the matrix functions of the top level."""
