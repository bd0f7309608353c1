"""The names of torch.nn.parameter."""

from __future__ import annotations

from typing import Any

from gt.client.tensor import Parameter
from gt.errors import StateError
from gt.nn.module import Buffer

__all__ = ["Buffer", "Parameter", "UninitializedBuffer", "UninitializedParameter", "is_lazy"]


class UninitializedParameter(Parameter):
    """For `isinstance`, which is never true: a lazy module has no parameters before it is called."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise StateError(f"{type(self).__name__}: use a lazy module, such as gt.nn.LazyLinear")


class UninitializedBuffer(UninitializedParameter):
    """The same for buffers."""


def is_lazy(param: Any) -> bool:
    """Whether a parameter has no shape yet: none has."""
    return isinstance(param, UninitializedParameter)
