"""Complex numbers: parts, conjugates and angles. What is a view in torch is a view here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.client.functions import shapes
from gt.client.programs import kinds
from gt.client.record.recorder import apply, unary
from gt.client.tensor import Tensor
from gt.client.views.aliases import take
from gt.errors import DTypeError, ShapeError
from gt.ops import TABLE

__all__ = [
    "adjoint", "angle", "complex", "conj", "conj_physical", "imag", "is_complex", "is_conj", "is_neg", "polar",
    "real", "resolve_conj", "resolve_neg", "view_as_complex", "view_as_real",
]  # fmt: skip
METHODS = [
    "adjoint", "angle", "conj", "conj_physical", "is_complex", "is_conj", "is_neg", "resolve_conj", "resolve_neg"
]  # fmt: skip
INPLACE = ["conj_physical"]


def is_complex(input: Tensor) -> bool:
    """Whether the dtype is complex."""
    return input.dtype.is_complex


def is_conj(input: Tensor) -> bool:
    """Always False: conj() and neg() compute their results, there are no conjugate and negative bits."""
    return False


def resolve_conj(input: Tensor) -> Tensor:
    """Return the tensor itself: there are no conjugate and negative bits."""
    return input


is_neg, resolve_neg = is_conj, resolve_conj


def conj(input: Tensor) -> Tensor:
    """The complex conjugate, as a view; a real tensor is returned as it is."""
    return take(kinds.conj, input) if input.dtype.is_complex else input


def conj_physical(input: Tensor) -> Tensor:
    """The complex conjugate, as a copy; a real tensor is returned as it is."""
    return unary(kinds.conj, input) if input.dtype.is_complex else input


def adjoint(input: Tensor) -> Tensor:
    """The conjugate transpose of the last two dimensions, as a view."""
    if input.ndim == 1:
        raise ShapeError(f"adjoint: expected a matrix or a batch of matrices, got shape {input.shape}")
    return conj(shapes.transpose(input, -2, -1)) if input.ndim else conj(input)


def real(input: Tensor) -> Tensor:
    """The real part, as a view; a real tensor is returned as it is."""
    return take(kinds.real, input) if input.dtype.is_complex else input


def imag(input: Tensor) -> Tensor:
    """The imaginary part, as a view."""
    if not input.dtype.is_complex:
        raise DTypeError(f"imag: expected a complex tensor, got {input.dtype.name}")
    return take(kinds.imag, input)


def angle(input: Tensor) -> Tensor:
    """The angle of each element in radians; for real elements 0, or pi where negative."""
    return unary(kinds.angle, input)


def complex(real: Tensor, imag: Tensor) -> Tensor:
    """A complex tensor with the given real and imaginary parts.

    >>> import gt
    >>> gt.complex(gt.tensor([1.0, 2.0]), gt.tensor([3.0, -4.0]))
    tensor([1.+3.j, 2.-4.j])
    """
    return apply(kinds.complex, (real, imag))


def polar(abs: Tensor, angle: Tensor) -> Tensor:
    """A complex tensor with the given absolute values and angles."""
    return TABLE["polar"](abs, angle)


def view_as_real(input: Tensor) -> Tensor:
    """A real view of a complex tensor: real and imaginary parts in a new last dimension of size 2."""
    return take(kinds.view_as_real, input)


def view_as_complex(input: Tensor) -> Tensor:
    """A complex view of a real tensor whose last dimension, of size 2, holds real and imaginary parts."""
    return take(kinds.view_as_complex, input)


def _transposed(x: Any, op: str) -> Any:
    if x.ndim not in (0, 2):
        raise ShapeError(f"{op}: expected a matrix, got shape {x.shape}; use .mH for batches of matrices")
    return adjoint(x)


def _settable(part: Callable[[Any], Any]) -> property:
    def write(x: Any, value: Any) -> None:
        part(x).copy_(value)

    return property(part, write)


#: Properties of a tensor, by name.
PROPERTIES: dict[str, Any] = {
    "real": _settable(real),
    "imag": _settable(imag),
    "H": property(lambda x: _transposed(x, "H"), doc="The conjugate transpose of a matrix."),
    "mH": property(adjoint),
}
