"""The names of torch.autograd.variable."""

from gt.autograd import Variable

__all__ = ["Variable"]
