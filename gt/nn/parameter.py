"""torch.nn.parameter's names."""

from gt.client.tensor import Parameter
from gt.nn.module import Buffer

__all__ = ["Buffer", "Parameter"]
