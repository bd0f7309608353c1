"""The names of torch.nn.parameter."""

from gt.client.tensor import Parameter
from gt.nn.module import Buffer

__all__ = ["Buffer", "Parameter"]
