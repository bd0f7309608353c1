"""Complex numbers: their parts, conjugates and angles. What is a view in torch is a view here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gt.client.functions import shapes
from gt.client.programs.tree import Kind
from gt.client.record.recorder import apply, unary
from gt.client.views.aliases import take
from gt.errors import DTypeError, ShapeError
from gt.ops import TABLE

if TYPE_CHECKING:
    from gt.client.tensor import Tensor

__all__ = [
    "adjoint", "angle", "complex", "conj", "conj_physical", "imag", "is_complex", "is_conj", "is_neg", "polar",
    "real", "resolve_conj", "resolve_neg", "view_as_complex", "view_as_real",
]  # fmt: skip
METHODS = [
    "adjoint", "angle", "conj", "conj_physical", "is_complex", "is_conj", "is_neg", "resolve_conj", "resolve_neg"
]  # fmt: skip
INPLACE = ["conj_physical"]

_ANGLE, _COMPLEX, _CONJ, _IMAG = (Kind(TABLE[n], {}) for n in ("angle", "complex", "conj", "imag"))
_REAL, _AS_COMPLEX, _AS_REAL = (Kind(TABLE[n], {}) for n in ("real", "view_as_complex", "view_as_real"))


def is_complex(input: Tensor) -> bool:
    """Whether the elements are complex numbers."""
    return input.dtype.is_complex


def is_conj(input: Tensor) -> bool:
    """False: a conjugate is computed, not remembered."""
    return False


def is_neg(input: Tensor) -> bool:
    """False: a negative is computed, not remembered."""
    return False


def resolve_conj(input: Tensor) -> Tensor:
    """The tensor itself; see is_conj."""
    return input


def resolve_neg(input: Tensor) -> Tensor:
    """The tensor itself; see is_neg."""
    return input


def conj(input: Tensor) -> Tensor:
    """The complex conjugate, as a view; of a real tensor, itself."""
    out: Tensor = take(_CONJ, input) if input.dtype.is_complex else input
    return out


def conj_physical(input: Tensor) -> Tensor:
    """The complex conjugate, in memory of its own; of a real tensor, itself."""
    return unary(_CONJ, input) if input.dtype.is_complex else input


def adjoint(input: Tensor) -> Tensor:
    """The last two dimensions exchanged, and conjugated."""
    if input.ndim == 1:
        raise ShapeError(f"adjoint: a matrix or a batch of them, not {input.shape}")
    return conj(shapes.transpose(input, -2, -1)) if input.ndim else conj(input)


def real(input: Tensor) -> Tensor:
    """The real part, as a view; of a real tensor, itself."""
    out: Tensor = take(_REAL, input) if input.dtype.is_complex else input
    return out


def imag(input: Tensor) -> Tensor:
    """The imaginary part, as a view."""
    if not input.dtype.is_complex:
        raise DTypeError(f"imag: a {input.dtype.name} tensor has no imaginary part")
    out: Tensor = take(_IMAG, input)
    return out


def angle(input: Tensor) -> Tensor:
    """The angle of complex numbers in radians; of real ones 0, or pi below zero."""
    return unary(_ANGLE, input)


def complex(real: Tensor, imag: Tensor) -> Tensor:
    """Complex numbers of their real and imaginary parts.

    >>> import gt
    >>> gt.complex(gt.tensor([1.0, 2.0]), gt.tensor([3.0, -4.0]))
    tensor([1.+3.j, 2.-4.j])
    """
    out: Tensor = apply(_COMPLEX, (real, imag))
    return out


def polar(abs: Tensor, angle: Tensor) -> Tensor:
    """Complex numbers of their absolute values and angles."""
    return TABLE["polar"](abs, angle)


def view_as_real(input: Tensor) -> Tensor:
    """Complex numbers as pairs in a last dimension of size 2, as a view."""
    out: Tensor = take(_AS_REAL, input)
    return out


def view_as_complex(input: Tensor) -> Tensor:
    """Pairs in a last dimension of size 2 as complex numbers, as a view."""
    out: Tensor = take(_AS_COMPLEX, input)
    return out


def _transposed(x: Any, op: str) -> Any:
    if x.ndim not in (0, 2):
        raise ShapeError(f"{op}: a matrix, not {x.shape}; use .mH for batches of them")
    return adjoint(x)


#: Attributes of a tensor, by name.
PROPERTIES: dict[str, Any] = {
    "real": property(real, lambda x, value: real(x).copy_(value)),
    "imag": property(imag, lambda x, value: imag(x).copy_(value)),
    "H": property(lambda x: _transposed(x, "H"), doc="A matrix transposed and conjugated."),
    "mH": property(adjoint),
}
