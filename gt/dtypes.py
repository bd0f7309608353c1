"""Element types and torch's rules for mixing them.

A dtype is one interned object; compare with `is` or `==`. Programs and messages carry its
name, numpy arrays its `numpy` type (bfloat16 comes from ml_dtypes).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

import ml_dtypes
import numpy as np

from gt.errors import DTypeError

__all__ = [
    "DType", "bfloat16", "complex64", "complex128", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
    "float8_e5m2fnuz", "float16", "float32", "float64", "int8", "int16", "int32", "int64", "promote_types", "uint8",
    "uint16", "uint32", "uint64",
]  # fmt: skip

if TYPE_CHECKING:
    import numpy.typing as npt

BOOL, INT, FLOAT, COMPLEX = 0, 1, 2, 3  #: The categories of torch's promotion, lowest first.


class DType:
    """An element type, such as `gt.float32`."""

    __slots__ = ("category", "itemsize", "name", "numpy", "short")

    def __init__(self, name: str, short: str, category: int, numpy: npt.DTypeLike) -> None:
        self.name = name
        self.short = short
        self.category = category
        self.numpy: np.dtype[Any] = np.dtype(numpy)
        self.itemsize: int = self.numpy.itemsize

    @property
    def is_floating_point(self) -> bool:
        return self.category == FLOAT

    @property
    def is_complex(self) -> bool:
        return self.category == COMPLEX

    @property
    def is_differentiable(self) -> bool:
        """Whether a tensor of this type can have a gradient."""
        return self.category >= FLOAT

    @property
    def is_signed(self) -> bool:
        return self.category >= INT and self.numpy.kind != "u"

    def to_complex(self) -> DType:
        """The complex type whose parts are of this type."""
        return complex128 if self.name in ("float64", "complex128") else complex64

    def to_real(self) -> DType:
        """The type of a complex number's parts."""
        return {"complex64": float32, "complex128": float64}.get(self.name, self)

    def __repr__(self) -> str:
        return f"gt.{self.name}"

    def __reduce__(self) -> tuple[Any, ...]:
        return dtype, (self.name,)


float64 = DType("float64", "f64", FLOAT, np.float64)
float32 = DType("float32", "f32", FLOAT, np.float32)
float16 = DType("float16", "f16", FLOAT, np.float16)
bfloat16 = DType("bfloat16", "bf16", FLOAT, ml_dtypes.bfloat16)
int64 = DType("int64", "i64", INT, np.int64)
int32 = DType("int32", "i32", INT, np.int32)
int16 = DType("int16", "i16", INT, np.int16)
int8 = DType("int8", "i8", INT, np.int8)
uint8 = DType("uint8", "u8", INT, np.uint8)
complex64 = DType("complex64", "c64", COMPLEX, np.complex64)
complex128 = DType("complex128", "c128", COMPLEX, np.complex128)
bool_ = DType("bool", "bool", BOOL, np.bool_)

ALL: tuple[DType, ...] = (
    float64, float32, float16, bfloat16, int64, int32, int16, int8, uint8, bool_, complex64, complex128
)  # fmt: skip

uint16 = DType("uint16", "u16", INT, np.uint16)
uint32 = DType("uint32", "u32", INT, np.uint32)
uint64 = DType("uint64", "u64", INT, np.uint64)
float8_e4m3fn = DType("float8_e4m3fn", "f8e4m3fn", FLOAT, ml_dtypes.float8_e4m3fn)
float8_e5m2 = DType("float8_e5m2", "f8e5m2", FLOAT, ml_dtypes.float8_e5m2)
float8_e4m3fnuz = DType("float8_e4m3fnuz", "f8e4m3fnuz", FLOAT, ml_dtypes.float8_e4m3fnuz)
float8_e5m2fnuz = DType("float8_e5m2fnuz", "f8e5m2fnuz", FLOAT, ml_dtypes.float8_e5m2fnuz)

#: Types that tensors are stored in and cast to and from. As in torch, few ops compute with them.
STORED: tuple[DType, ...] = (uint16, uint32, uint64, float8_e4m3fn, float8_e5m2, float8_e4m3fnuz, float8_e5m2fnuz)
BY_NAME: dict[str, DType] = {d.name: d for d in (*ALL, *STORED)}
_BY_NUMPY: dict[np.dtype[Any], DType] = {d.numpy: d for d in BY_NAME.values()}
_PYTHON: dict[type, DType] = {float: float64, int: int64, bool: bool_, complex: complex128}


def dtype(x: Any) -> DType:
    """The dtype meant by a dtype, its name, a numpy dtype or a Python type.

    >>> dtype("float32"), dtype(np.int64), dtype(bool)
    (gt.float32, gt.int64, gt.bool)
    """
    if isinstance(x, DType):
        return x
    if isinstance(x, type) and x in _PYTHON:
        return _PYTHON[x]
    text = str(x)
    name = text.rsplit(".", 1)[-1] if text.startswith(("torch.", "gt.")) else x
    if isinstance(name, str) and name in BY_NAME:
        return BY_NAME[name]
    try:
        return _BY_NUMPY[np.dtype(name)]
    except (KeyError, TypeError):
        names = ", ".join(BY_NAME)
        raise DTypeError(f"dtype {x!r} is not one of GT's: {names}") from None


_ORDER = (bool_, uint8, int8, int16, int32, int64, float16, bfloat16, float32, float64, complex64, complex128)
_RANK = {d: i for i, d in enumerate(_ORDER)}


def promote_types(a: DType, b: DType) -> DType:
    """The type that a tensor of `a` and a tensor of `b` are computed in.

    >>> promote_types(int64, float16), promote_types(float16, bfloat16), promote_types(uint8, int8)
    (gt.float16, gt.float32, gt.int16)
    """
    if a is b:
        return a
    if a in STORED or b in STORED:
        return _promote_stored(a, b)
    if {a, b} == {float16, bfloat16}:
        return float32
    if {a, b} == {uint8, int8}:
        return int16
    high, low = (a, b) if _RANK[a] > _RANK[b] else (b, a)
    return complex128 if high is complex64 and low is float64 else high


def _promote_stored(a: DType, b: DType) -> DType:
    """Unsigned integers mix with floating-point types; anything else needs a cast."""
    low, high = (a, b) if a.category <= b.category else (b, a)
    if low.category == INT and high.category == FLOAT and high not in STORED:
        return high
    raise DTypeError(f"{a.name} and {b.name} have no common type; cast one of them with .to(...)")


class Typed(Protocol):
    """What promotion looks at: see `gt.program.Spec`."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> DType: ...
    @property
    def weak(self) -> bool: ...


def promote(operands: Iterable[Typed]) -> DType:
    """The common type of the operands of one op, as torch finds it.

    Tensors with dimensions decide; tensors without, and then Python numbers, only raise the
    category (bool < int < float < complex), never the width.
    """
    tiers: list[DType | None] = [None, None, None]  # with dimensions, without, Python numbers
    for x in operands:
        tier = 2 if x.weak else 1 if not x.shape else 0
        have = tiers[tier]
        tiers[tier] = x.dtype if have is None else promote_types(have, x.dtype)
    result: DType | None = None
    for tier_type in tiers:
        if tier_type is not None and (result is None or tier_type.category > result.category):
            if result is not None and result.category == FLOAT:
                tier_type = result.to_complex()  # of the width that the tensors with dimensions have
            result = tier_type
    if result is None:
        raise DTypeError("an op without operands has no common type")
    return result
