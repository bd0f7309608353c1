"""The namespace gt.fft: torch.fft's functions. What GT lacks, torch runs on the worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gt import dtypes
from gt.client.compat import arguments as _arguments
from gt.client.compat.autocast import default_dtype
from gt.client.compat.dims import one_dim
from gt.client.functions import elementwise as ew
from gt.client.functions import shapes
from gt.client.functions.complexes import conj_physical
from gt.client.programs.tree import Kinds
from gt.client.record.recorder import unary
from gt.errors import ArgumentError, DimError, DTypeError, ShapeError
from gt.ops import TABLE

if TYPE_CHECKING:
    from gt.client.tensor import Tensor

__all__ = [
    "fft", "fft2", "fftfreq", "fftn", "fftshift", "hfft", "hfft2", "hfftn", "ifft", "ifft2", "ifftn", "ifftshift",
    "ihfft", "ihfft2", "ihfftn", "irfft", "irfft2", "irfftn", "rfft", "rfft2", "rfftfreq", "rfftn",
]  # fmt: skip

_C2C = Kinds(TABLE["fft_c2c"], "dims", "norm", "forward")
_R2C = Kinds(TABLE["fft_r2c"], "dims", "norm")
_C2R = Kinds(TABLE["fft_c2r"], "dims", "norm", "n")

Dims = tuple[int, ...]


def _norm(op: str, norm: str | None, forward: bool) -> str:
    """What the result is divided by."""
    names = {None: "none", "backward": "none", "ortho": "root", "forward": "n"}
    if norm not in names:
        raise ArgumentError(f"{op}: norm={norm!r} is not one of backward, ortho, forward")
    found = names[norm]
    return found if forward else {"none": "n", "n": "none"}.get(found, found)


def _complex(x: Any) -> Any:
    if not x.dtype.is_differentiable:
        x = ew.cast(x, default_dtype())
    return x if x.dtype.is_complex else ew.cast(x, x.dtype.to_complex())


def _real(op: str, x: Any) -> Any:
    if x.dtype.is_complex:
        raise DTypeError(f"{op}: takes real numbers, not {x.dtype.name}; use fft")
    return x if x.dtype.is_differentiable else ew.cast(x, default_dtype())


def _axes(op: str, x: Any, s: Any, dim: Any) -> tuple[Dims, list[int | None]]:
    """The dimensions to transform, and the sizes wanted there (None: as it is)."""
    if s is not None:
        s = [s] if hasattr(s, "__index__") else list(s)
    if dim is None:
        if s is not None and len(s) > x.ndim:
            raise ShapeError(f"{op}: {len(s)} sizes for a tensor of {x.ndim} dimensions")
        dims = tuple(range(0 if s is None else x.ndim - len(s), x.ndim))
    else:
        dims = tuple(one_dim(op, d, x.ndim) for d in ([dim] if hasattr(dim, "__index__") else dim))
    if len(set(dims)) != len(dims):
        raise DimError(f"{op}: dim={dim} names a dimension twice")
    if s is not None and len(s) != len(dims):
        raise ArgumentError(f"{op}: {len(s)} sizes for {len(dims)} dimensions")
    sizes = [None if s is None or s[i] == -1 or s[i] is None else int(s[i]) for i in range(len(dims))]
    for d, n in zip(dims, sizes, strict=True):
        if (n is not None and n < 1) or (n is None and x.ndim and not x.shape[d]):
            raise ShapeError(
                f"{op}: dimension {d} of {x.shape} has {x.shape[d] if n is None else n} points to transform"
            )
    return dims, sizes


def _fitted(x: Any, dims: Dims, sizes: Sequence[int | None]) -> Any:
    """Cut, or filled up with zeros, to these sizes."""
    from gt.client.functions.creation import zeros

    for d, n in zip(dims, sizes, strict=True):
        have = x.shape[d]
        if n is not None and n < have:
            x = shapes.split(x, [n, have - n], d)[0]
        elif n is not None and n > have:
            x = shapes.cat([x, zeros(*x.shape[:d], n - have, *x.shape[d + 1 :], dtype=x.dtype)], d)
    return x


def _c2c(op: str, x: Any, s: Any, dim: Any, norm: str | None, forward: bool) -> Tensor:
    x = _complex(x)
    dims, sizes = _axes(op, x, s, dim)
    scale = _norm(op, norm, forward)
    x = _fitted(x, dims, sizes)
    return unary(_C2C[dims, scale, forward], x) if dims else x


def _r2c(op: str, x: Any, s: Any, dim: Any, norm: str | None) -> Tensor:
    x = _real(op, x)
    dims, sizes = _some_axes(op, x, s, dim)
    return unary(_R2C[dims, _norm(op, norm, True)], _fitted(x, dims, sizes))


def _some_axes(op: str, x: Any, s: Any, dim: Any) -> tuple[Dims, list[int | None]]:
    dims, sizes = _axes(op, x, s, dim)
    if not dims or not x.ndim:
        raise ShapeError(f"{op}: a tensor of shape {x.shape} has no dimension to transform")
    return dims, sizes


def _half(op: str, x: Any, s: Any, dim: Any) -> tuple[Any, Dims, int]:
    """What a transform to real numbers takes: x fitted, the dimensions, and the points of the last."""
    x = _complex(x)
    dims, sizes = _some_axes(op, x, s, dim)
    last = sizes[-1] if sizes[-1] is not None else 2 * (x.shape[dims[-1]] - 1)
    if last < 1:
        raise ShapeError(f"{op}: dimension {dims[-1]} of {x.shape} has {last} points to transform; give n or s")
    return _fitted(x, dims, [*sizes[:-1], last // 2 + 1]), dims, last


def _c2r(op: str, x: Any, s: Any, dim: Any, norm: str | None) -> Tensor:
    x, dims, n = _half(op, x, s, dim)
    return unary(_C2R[dims, _norm(op, norm, False), n], x)


def _hermitian(op: str, x: Any, s: Any, dim: Any, norm: str | None) -> Tensor:
    """The forward transform of half of a Hermitian signal: real."""
    x, dims, n = _half(op, x, s, dim)
    scale = _norm(op, norm, True)
    if len(dims) > 1:
        x = unary(_C2C[dims[:-1], scale, True], x)
    return unary(_C2R[dims[-1:], scale, n], conj_physical(x))


def _to_hermitian(op: str, x: Any, s: Any, dim: Any, norm: str | None) -> Tensor:
    """The inverse of _hermitian."""
    x = _real(op, x)
    dims, sizes = _some_axes(op, x, s, dim)
    scale = _norm(op, norm, False)
    half = conj_physical(unary(_R2C[dims[-1:], scale], _fitted(x, dims, sizes)))
    return unary(_C2C[dims[:-1], scale, False], half) if len(dims) > 1 else half


# --- one dimension -------------------------------------------------------------------------------------


def fft(input: Any, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The Fourier transform along a dimension."""
    return _c2c("fft.fft", input, n, dim, norm, True)


def ifft(input: Any, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The inverse Fourier transform along a dimension."""
    return _c2c("fft.ifft", input, n, dim, norm, False)


def rfft(input: Any, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The Fourier transform of real numbers: the half that determines the other."""
    return _r2c("fft.rfft", input, n, dim, norm)


def irfft(input: Any, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The inverse of rfft; n is the number of points of the result."""
    return _c2r("fft.irfft", input, n, dim, norm)


def hfft(input: Any, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The Fourier transform of a Hermitian signal given by its half; n is the number of points of the result."""
    return _hermitian("fft.hfft", input, n, dim, norm)


def ihfft(input: Any, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The inverse of hfft."""
    return _to_hermitian("fft.ihfft", input, n, dim, norm)


# --- several dimensions --------------------------------------------------------------------------------


def fftn(input: Any, s: Any = None, dim: Any = None, norm: str | None = None) -> Tensor:
    """The Fourier transform along dims; along all, if neither s nor dim is given."""
    return _c2c("fft.fftn", input, s, dim, norm, True)


def ifftn(input: Any, s: Any = None, dim: Any = None, norm: str | None = None) -> Tensor:
    """The inverse of fftn."""
    return _c2c("fft.ifftn", input, s, dim, norm, False)


def rfftn(input: Any, s: Any = None, dim: Any = None, norm: str | None = None) -> Tensor:
    """fftn of real numbers: the half, along the last of dims, that determines the other."""
    return _r2c("fft.rfftn", input, s, dim, norm)


def irfftn(input: Any, s: Any = None, dim: Any = None, norm: str | None = None) -> Tensor:
    """The inverse of rfftn; s are the sizes of the result."""
    return _c2r("fft.irfftn", input, s, dim, norm)


def hfftn(input: Any, s: Any = None, dim: Any = None, norm: str | None = None) -> Tensor:
    """fftn of a Hermitian signal given by its half; s are the sizes of the result."""
    return _hermitian("fft.hfftn", input, s, dim, norm)


def ihfftn(input: Any, s: Any = None, dim: Any = None, norm: str | None = None) -> Tensor:
    """The inverse of hfftn."""
    return _to_hermitian("fft.ihfftn", input, s, dim, norm)


def fft2(input: Any, s: Any = None, dim: Any = (-2, -1), norm: str | None = None) -> Tensor:
    """The Fourier transform along two dimensions."""
    return _c2c("fft.fft2", input, s, dim, norm, True)


def ifft2(input: Any, s: Any = None, dim: Any = (-2, -1), norm: str | None = None) -> Tensor:
    """The inverse of fft2."""
    return _c2c("fft.ifft2", input, s, dim, norm, False)


def rfft2(input: Any, s: Any = None, dim: Any = (-2, -1), norm: str | None = None) -> Tensor:
    """fft2 of real numbers: the half that determines the other."""
    return _r2c("fft.rfft2", input, s, dim, norm)


def irfft2(input: Any, s: Any = None, dim: Any = (-2, -1), norm: str | None = None) -> Tensor:
    """The inverse of rfft2; s are the sizes of the result."""
    return _c2r("fft.irfft2", input, s, dim, norm)


def hfft2(input: Any, s: Any = None, dim: Any = (-2, -1), norm: str | None = None) -> Tensor:
    """fft2 of a Hermitian signal given by its half; s are the sizes of the result."""
    return _hermitian("fft.hfft2", input, s, dim, norm)


def ihfft2(input: Any, s: Any = None, dim: Any = (-2, -1), norm: str | None = None) -> Tensor:
    """The inverse of hfft2."""
    return _to_hermitian("fft.ihfft2", input, s, dim, norm)


# --- frequencies ---------------------------------------------------------------------------------------


def _shifted(op: str, x: Any, dim: Any, forward: bool) -> Tensor:
    dims = range(x.ndim) if dim is None else [dim] if hasattr(dim, "__index__") else dim
    for d in [one_dim(op, k, x.ndim) for k in dims]:
        n = x.shape[d] if x.ndim else 0
        first = n - n // 2 if forward else n // 2
        if 0 < first < n:
            a, b = shapes.split(x, [first, n - first], d)
            x = shapes.cat([b, a], d)
    out: Tensor = x
    return out


def fftshift(input: Any, dim: Any = None) -> Tensor:
    """The order of a transform turned so that frequency 0 is in the middle."""
    return _shifted("fft.fftshift", input, dim, True)


def ifftshift(input: Any, dim: Any = None) -> Tensor:
    """The inverse of fftshift."""
    return _shifted("fft.ifftshift", input, dim, False)


def fftfreq(n: int, d: float = 1.0, *, dtype: Any = None, requires_grad: bool = False, **ignored: Any) -> Tensor:
    """The frequencies of fft's points, for samples at a distance of d."""
    from gt.client.functions.creation import arange

    kind = default_dtype() if dtype is None else dtypes.dtype(dtype)
    counted = shapes.cat([arange(0, (n + 1) // 2), arange(-(n // 2), 0)])
    made = ew.mul(ew.cast(counted, kind), 1.0 / (n * d))
    return made.requires_grad_() if requires_grad else made


def rfftfreq(n: int, d: float = 1.0, *, dtype: Any = None, requires_grad: bool = False, **ignored: Any) -> Tensor:
    """The frequencies of rfft's points, for samples at a distance of d."""
    from gt.client.functions.creation import arange

    kind = default_dtype() if dtype is None else dtypes.dtype(dtype)
    made = ew.mul(arange(0, n // 2 + 1, dtype=kind), 1.0 / (n * d))
    return made.requires_grad_() if requires_grad else made


_arguments.explain_all(globals())


def __getattr__(name: str) -> Any:
    from gt.client.compat.fallback import find

    found = None if name.startswith("_") else find(f"fft.{name}")
    if found is None:
        raise AttributeError(f"module 'gt.fft' has no attribute {name!r}")
    return found
