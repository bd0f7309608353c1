"""Discrete Fourier transforms: the namespace gt.fft."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gt.client.compat import arguments as _arguments
from gt.client.compat.arguments import called
from gt.client.compat.checks import one_of
from gt.client.compat.dims import different_dims, one_dim
from gt.client.compat.fallback import namespace
from gt.client.compat.outs import write_out as _write_out
from gt.client.functions import elementwise as ew
from gt.client.functions import shapes
from gt.client.functions.complexes import conj_physical
from gt.client.functions.creation import arange, finish, float_dtype, zeros
from gt.client.programs import kinds
from gt.client.record.recorder import unary
from gt.client.tensor import Tensor, default_dtype
from gt.errors import ArgumentError, DTypeError, ShapeError

__all__ = [
    "fft", "fft2", "fftfreq", "fftn", "fftshift", "hfft", "hfft2", "hfftn", "ifft", "ifft2", "ifftn", "ifftshift",
    "ihfft", "ihfft2", "ihfftn", "irfft", "irfft2", "irfftn", "rfft", "rfft2", "rfftfreq", "rfftn",
]  # fmt: skip


Dims = tuple[int, ...]


def _norm(op: str, norm: str | None, forward: bool) -> str:
    """The normalization of the op: the result is divided by nothing, n, or the square root of n."""
    names = {None: "none", "backward": "none", "ortho": "root", "forward": "n"}
    one_of(op, "norm", norm, *names)
    found = names[norm]
    return found if forward else {"none": "n", "n": "none"}.get(found, found)


def _complex(x: Any) -> Any:
    if not x.dtype.is_differentiable:
        x = ew.cast(x, default_dtype())
    return x if x.dtype.is_complex else ew.cast(x, x.dtype.to_complex())


def _real(op: str, x: Any) -> Any:
    if x.dtype.is_complex:
        raise DTypeError(f"{op}: expected a real tensor, got {x.dtype.name}; use fft")
    return x if x.dtype.is_differentiable else ew.cast(x, default_dtype())


def _axes(op: str, x: Any, s: Any, dim: Any) -> tuple[Dims, list[int | None]]:
    """The dimensions to transform, and the sizes to pad or trim them to (None: keep)."""
    if s is not None:
        s = [s] if hasattr(s, "__index__") else list(s)
    if dim is None:
        if s is not None and len(s) > x.ndim:
            raise ShapeError(f"{op}: got {len(s)} sizes for a tensor of {x.ndim} dimensions")
        dims = tuple(range(0 if s is None else x.ndim - len(s), x.ndim))
    else:
        dims = different_dims(op, [dim] if hasattr(dim, "__index__") else dim, x.ndim)
    if s is not None and len(s) != len(dims):
        raise ArgumentError(f"{op}: expected a size for each of {len(dims)} dimensions, got {len(s)}")
    sizes = [None if s is None or s[i] == -1 or s[i] is None else int(s[i]) for i in range(len(dims))]
    for d, n in zip(dims, sizes, strict=True):
        if (n is not None and n < 1) or (n is None and x.ndim and not x.shape[d]):
            points = x.shape[d] if n is None else n
            raise ShapeError(f"{op}: expected at least 1 point in dimension {d} of {x.shape}, got {points}")
    return dims, sizes


def _fitted(x: Any, dims: Dims, sizes: Sequence[int | None]) -> Any:
    """The tensor trimmed, or padded with zeros, to these sizes."""
    for d, n in zip(dims, sizes, strict=True):
        have = x.shape[d]
        if n is not None and n < have:
            x = shapes.split(x, [n, have - n], d)[0]
        elif n is not None and n > have:
            x = shapes.cat([x, zeros(*x.shape[:d], n - have, *x.shape[d + 1 :], dtype=x.dtype)], d)
    return x


def _forward(op: str, x: Any, s: Any, dim: Any, norm: str | None, forward: bool = True) -> Tensor:
    x = _complex(x)
    dims, sizes = _axes(op, x, s, dim)
    scale = _norm(op, norm, forward)
    x = _fitted(x, dims, sizes)
    return unary(kinds.fft_c2c[dims, scale, forward], x) if dims else x


def _inverse(op: str, x: Any, s: Any, dim: Any, norm: str | None) -> Tensor:
    return _forward(op, x, s, dim, norm, False)


def _r2c(op: str, x: Any, s: Any, dim: Any, norm: str | None) -> Tensor:
    x = _real(op, x)
    dims, sizes = _some_axes(op, x, s, dim)
    return unary(kinds.fft_r2c[dims, _norm(op, norm, True)], _fitted(x, dims, sizes))


def _some_axes(op: str, x: Any, s: Any, dim: Any) -> tuple[Dims, list[int | None]]:
    dims, sizes = _axes(op, x, s, dim)
    if not dims or not x.ndim:
        raise ShapeError(f"{op}: expected at least one dimension to transform, got shape {x.shape}")
    return dims, sizes


def _half(op: str, x: Any, s: Any, dim: Any) -> tuple[Any, Dims, int]:
    """The operand of a transform to real numbers, its dimensions, and the number of points of the last."""
    x = _complex(x)
    dims, sizes = _some_axes(op, x, s, dim)
    last = sizes[-1] if sizes[-1] is not None else 2 * (x.shape[dims[-1]] - 1)
    if last < 1:
        raise ShapeError(f"{op}: the result needs at least 1 point in dimension {dims[-1]} of {x.shape}; pass n or s")
    return _fitted(x, dims, [*sizes[:-1], last // 2 + 1]), dims, last


def _c2r(op: str, x: Any, s: Any, dim: Any, norm: str | None) -> Tensor:
    x, dims, n = _half(op, x, s, dim)
    return unary(kinds.fft_c2r[dims, _norm(op, norm, False), n], x)


def _hermitian(op: str, x: Any, s: Any, dim: Any, norm: str | None) -> Tensor:
    """The forward transform of a Hermitian signal given by one half; the result is real."""
    x, dims, n = _half(op, x, s, dim)
    scale = _norm(op, norm, True)
    if len(dims) > 1:
        x = unary(kinds.fft_c2c[dims[:-1], scale, True], x)
    return unary(kinds.fft_c2r[dims[-1:], scale, n], conj_physical(x))


def _to_hermitian(op: str, x: Any, s: Any, dim: Any, norm: str | None) -> Tensor:
    """The inverse of _hermitian."""
    x = _real(op, x)
    dims, sizes = _some_axes(op, x, s, dim)
    scale = _norm(op, norm, False)
    half = conj_physical(unary(kinds.fft_r2c[dims[-1:], scale], _fitted(x, dims, sizes)))
    return unary(kinds.fft_c2c[dims[:-1], scale, False], half) if len(dims) > 1 else half


# --- transforms ----------------------------------------------------------------------------------------


def _of_one_dim(name: str, transform: Callable[..., Tensor], doc: str) -> Callable[..., Tensor]:
    def function(input: Any, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
        return transform(f"fft.{name}", input, n, dim, norm)

    return called(function, name, doc)


def _of_dims(name: str, transform: Callable[..., Tensor], dims: Dims | None, doc: str) -> Callable[..., Tensor]:
    def function(input: Any, s: Any = None, dim: Any = dims, norm: str | None = None) -> Tensor:
        return transform(f"fft.{name}", input, s, dim, norm)

    return called(function, name, doc)


fft = _of_one_dim("fft", _forward, "The discrete Fourier transform along a dimension.")
ifft = _of_one_dim("ifft", _inverse, "The inverse discrete Fourier transform along a dimension.")
rfft = _of_one_dim("rfft", _r2c, "fft() of real input; returns the non-negative frequencies.")
irfft = _of_one_dim("irfft", _c2r, "The inverse of rfft(); n is the size of the result.")
hfft = _of_one_dim("hfft", _hermitian, "fft() of a Hermitian signal given by one half; n is the size of the result.")
ihfft = _of_one_dim("ihfft", _to_hermitian, "The inverse of hfft().")

fft2 = _of_dims("fft2", _forward, (-2, -1), "The discrete Fourier transform along two dimensions.")
ifft2 = _of_dims("ifft2", _inverse, (-2, -1), "The inverse of fft2().")
fftn = _of_dims("fftn", _forward, None, "The discrete Fourier transform along several dimensions, by default all.")
ifftn = _of_dims("ifftn", _inverse, None, "The inverse of fftn().")

_HALF = "of real input; returns the non-negative frequencies of the last dimension."
rfft2 = _of_dims("rfft2", _r2c, (-2, -1), f"fft2() {_HALF}")
irfft2 = _of_dims("irfft2", _c2r, (-2, -1), "The inverse of rfft2(); s are the sizes of the result.")
rfftn = _of_dims("rfftn", _r2c, None, f"fftn() {_HALF}")
irfftn = _of_dims("irfftn", _c2r, None, "The inverse of rfftn(); s are the sizes of the result.")

_HERMITIAN = "of a Hermitian signal given by one half; s are the sizes of the result."
hfft2 = _of_dims("hfft2", _hermitian, (-2, -1), f"fft2() {_HERMITIAN}")
ihfft2 = _of_dims("ihfft2", _to_hermitian, (-2, -1), "The inverse of hfft2().")
hfftn = _of_dims("hfftn", _hermitian, None, f"fftn() {_HERMITIAN}")
ihfftn = _of_dims("ihfftn", _to_hermitian, None, "The inverse of hfftn().")

# --- frequencies ---------------------------------------------------------------------------------------


def _shifted(op: str, x: Any, dim: Any, forward: bool) -> Tensor:
    dims = range(x.ndim) if dim is None else [dim] if hasattr(dim, "__index__") else dim
    for d in [one_dim(op, k, x.ndim) for k in dims]:
        n = x.shape[d] if x.ndim else 0
        first = n - n // 2 if forward else n // 2
        if 0 < first < n:
            a, b = shapes.split(x, [first, n - first], d)
            x = shapes.cat([b, a], d)
    return x


def fftshift(input: Any, dim: Any = None) -> Tensor:
    """Reorder the result of a transform so that frequency 0 is in the middle."""
    return _shifted("fft.fftshift", input, dim, True)


def ifftshift(input: Any, dim: Any = None) -> Tensor:
    """The inverse of fftshift()."""
    return _shifted("fft.ifftshift", input, dim, False)


def fftfreq(n: int, d: float = 1.0, *, dtype: Any = None, requires_grad: bool = False, **ignored: Any) -> Tensor:
    """The frequencies of the result of fft(), for samples at a distance of d."""
    counted = shapes.cat([arange(0, (n + 1) // 2), arange(-(n // 2), 0)])
    return finish(ew.mul(ew.cast(counted, float_dtype(dtype)), 1.0 / (n * d)), requires_grad)


def rfftfreq(n: int, d: float = 1.0, *, dtype: Any = None, requires_grad: bool = False, **ignored: Any) -> Tensor:
    """The frequencies of the result of rfft(), for samples at a distance of d."""
    return finish(ew.mul(arange(0, n // 2 + 1, dtype=float_dtype(dtype)), 1.0 / (n * d)), requires_grad)


_arguments.explain_all(globals(), _write_out)
__getattr__ = namespace("fft")
