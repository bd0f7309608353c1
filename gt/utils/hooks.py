"""The names of torch.utils.hooks."""

from gt.client.tensor import RemovableHandle

__all__ = ["RemovableHandle"]
