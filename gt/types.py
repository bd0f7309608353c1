"""The names of torch.types, for annotations."""

from collections.abc import Sequence
from os import PathLike
from typing import Any, TypeAlias

from gt.client.tensor import Tensor
from gt.dtypes import DType
from gt.program import Size

__all__ = ["Device", "FileLike", "Number", "Storage"]

Number: TypeAlias = int | float | bool
Device: TypeAlias = str | int | None
FileLike: TypeAlias = str | PathLike[str] | Any
Storage: TypeAlias = Any
_TensorOrTensors: TypeAlias = Tensor | Sequence[Tensor]
_dtype = DType
_device: TypeAlias = Any
_size: TypeAlias = Size | list[int] | tuple[int, ...]
_int, _float, _bool, _complex = int, float, bool, complex
