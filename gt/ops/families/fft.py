"""Fourier transforms: complex to complex, real to half of a complex one, and back. The rest is composed of them.

`norm` says what the result is divided by: "none", "root" of the number of points, or "n", that number.
`dims` are the dimensions transformed; the half one is the last of them.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from gt import dtypes
from gt.errors import DTypeError, ShapeError
from gt.ops import rules
from gt.ops.record import Rng, Sample, Site, fill, op, ops
from gt.ops.sharding import beside
from gt.program import Spec, spec

_NORMS = ("none", "root", "n")  #: in torch's order
_FORWARD = {"none": "backward", "root": "ortho", "n": "forward"}  #: numpy's names, for a forward transform
_INVERSE = {"none": "forward", "root": "ortho", "n": "backward"}


def _check(name: str, x: Spec, dims: Any, norm: Any, complex: bool) -> tuple[int, ...]:
    rules.tensor(name, x)
    if x.dtype.is_complex is not complex or not x.dtype.is_differentiable:
        kind = "complex" if complex else "real floating"
        raise DTypeError(f"{name}: expected a {kind} dtype, got {x.dtype.name}")
    rules.choice(name, "norm", norm, _NORMS)
    checked = rules.dims(name, dims, x.ndim)
    if not checked:
        raise ShapeError(f"{name}: expected at least one dimension to transform")
    for d in checked:
        if not x.shape[d]:
            raise ShapeError(f"{name}: dimension {d} of shape {x.shape} must have size > 0")
    return checked


def _resized(shape: tuple[int, ...], d: int, n: int) -> tuple[int, ...]:
    return (*shape[:d], n, *shape[d + 1 :])


def _flops(x: Spec, *, dims: Any, n: int | None = None, **attrs: Any) -> int:
    """Of the usual algorithm: 5 m log2(m) for m complex points; half of it for real ones."""
    shape = x.shape if n is None else _resized(x.shape, dims[-1], n)
    points, real = math.prod(shape[d] for d in dims), n is not None or not x.dtype.is_complex
    return int((2.5 if real else 5) * math.prod(shape) * math.log2(max(points, 1)))


def _infer_c2c(x: Spec, *, dims: Any, norm: Any, forward: Any) -> Spec:
    _check("fft_c2c", x, dims, norm, complex=True)
    rules.flag("fft_c2c", "forward", forward)
    return x


def _infer_r2c(x: Spec, *, dims: Any, norm: Any) -> Spec:
    last = _check("fft_r2c", x, dims, norm, complex=False)[-1]
    return spec(_resized(x.shape, last, x.shape[last] // 2 + 1), x.dtype.to_complex())


def _infer_c2r(x: Spec, *, dims: Any, norm: Any, n: Any) -> Spec:
    last = _check("fft_c2r", x, dims, norm, complex=True)[-1]
    size = rules.size("fft_c2r", "n", n)
    if size < 1 or x.shape[last] != size // 2 + 1:
        raise ShapeError(f"fft_c2r: n={n} needs size {size // 2 + 1} in dimension {last}, got shape {x.shape}")
    return spec(_resized(x.shape, last, size), x.dtype.to_real())


# -- kernels: numpy and jax one dimension at a time, torch all at once ------------------------


def _c2c_array(xp: Any, x: Any, *, dims: Any, norm: str, forward: bool) -> Any:
    for d in dims:
        x = xp.fft.fft(x, axis=d, norm=_FORWARD[norm]) if forward else xp.fft.ifft(x, axis=d, norm=_INVERSE[norm])
    return x


def _r2c_array(xp: Any, x: Any, *, dims: Any, norm: str) -> Any:
    half = xp.fft.rfft(x, axis=dims[-1], norm=_FORWARD[norm])
    return _c2c_array(xp, half, dims=dims[:-1], norm=norm, forward=True)


def _c2r_array(xp: Any, x: Any, *, dims: Any, norm: str, n: int) -> Any:
    x = _c2c_array(xp, x, dims=dims[:-1], norm=norm, forward=False)
    return xp.fft.irfft(x, n, axis=dims[-1], norm=_INVERSE[norm])


def _torch(name: str, torch: Any, site: Site, *, dims: Any, norm: str, **last: Any) -> Any:
    x, y = site.specs[0], site.results[0]
    if not x.size:  # which torch refuses
        return lambda x: torch.empty(y.shape, dtype=getattr(torch, y.dtype.name), device=site.device)
    f, axes, code = getattr(torch.ops.aten, name).default, list(dims), _NORMS.index(norm)
    (argument,) = last.values() or (True,)  # `forward` or `n`; of real numbers: only one half
    if x.dtype in (dtypes.float16, dtypes.bfloat16):
        return lambda x: f(x.float(), axes, code, argument)
    return lambda x: f(x, axes, code, argument)


# -- gradients -------------------------------------------------------------------------------


def _r2c_dx(g: Any, y: Any, x: Any, *, dims: Any, norm: str) -> Any:
    last = dims[-1]
    missing = x.shape[last] - g.shape[last]
    if missing:
        g = ops.cat(g, fill(g, 0.0, _resized(g.shape, last, missing), g.dtype), dim=last)
    return ops.real(ops.fft_c2c(g, dims=tuple(dims), norm=norm, forward=False))


def _c2r_dx(g: Any, y: Any, x: Any, *, dims: Any, norm: str, n: int) -> Any:
    half = ops.fft_r2c(g, dims=tuple(dims), norm=norm)
    # The points in the middle stand for two each: themselves and their conjugates.
    last = dims[-1]
    twice = n - half.shape[last]
    if not twice:
        return half
    sizes = (1, twice, half.shape[last] - 1 - twice)
    weights = [fill(g, w, (k,), g.dtype) for w, k in zip((1.0, 2.0, 1.0), sizes, strict=True) if k]
    shape = tuple(half.shape[last] if d == last else 1 for d in range(half.ndim))
    return half * ops.reshape(ops.cat(*weights, dim=0), shape=shape)


# -- records ---------------------------------------------------------------------------------


def _complexes(rng: Rng, *size: int) -> Any:
    return rng.normal(size=size) + 1j * rng.normal(size=size)


def _c2c_samples(rng: Rng) -> list[Sample]:
    both = [(norm, forward) for norm in _NORMS for forward in (True, False)]
    made: list[Sample] = [
        ((_complexes(rng, 2, 5),), {"dims": (1,), "norm": norm, "forward": forward}) for norm, forward in both
    ]
    several = {"dims": (2, 0), "norm": "root", "forward": True}
    return [*made, ((_complexes(rng, 2, 3, 4),), several), ((_complexes(rng, 2, 0, 4),), several)]


def _r2c_samples(rng: Rng) -> list[Sample]:
    made: list[Sample] = [((rng.normal(size=(2, n)),), {"dims": (1,), "norm": norm}) for n in (4, 5) for norm in _NORMS]
    several = {"dims": (0, 2), "norm": "n"}
    return [*made, ((rng.normal(size=(2, 3, 4)),), several), ((np.zeros((2, 0, 4)),), several)]


def _c2r_samples(rng: Rng) -> list[Sample]:
    made: list[Sample] = []
    for n in (4, 5):
        for norm in _NORMS:
            half = np.fft.rfft(rng.normal(size=(2, n)))
            made.append(((half,), {"dims": (1,), "norm": norm, "n": n}))
    several = {"dims": (0, 2), "norm": "n", "n": 4}
    whole = np.fft.rfftn(rng.normal(size=(2, 3, 4)), axes=(0, 2))
    return [*made, ((whole,), several), ((np.zeros((2, 0, 3), complex),), several)]


_transform = partial(op, factors=beside("dims"), linear=((0,),), flops=_flops)

fft_c2c = _transform(
    "fft_c2c",
    "The Fourier transform of complex numbers, or its inverse.",
    infer=_infer_c2c,
    vjp=(lambda g, y, x, *, dims, norm, forward: ops.fft_c2c(g, dims=tuple(dims), norm=norm, forward=not forward),),
    kernels={"array": _c2c_array, "torch": partial(_torch, "_fft_c2c")},
    samples=_c2c_samples,
)
fft_r2c = _transform(
    "fft_r2c",
    "The Fourier transform of real numbers; only the half of the result that determines the other is returned.",
    infer=_infer_r2c,
    vjp=(_r2c_dx,),
    kernels={"array": _r2c_array, "torch": partial(_torch, "_fft_r2c")},
    samples=_r2c_samples,
)
fft_c2r = _transform(
    "fft_c2r",
    "The inverse of fft_r2c: n real numbers from half of their Fourier transform.",
    infer=_infer_c2r,
    vjp=(_c2r_dx,),
    kernels={"array": _c2r_array, "torch": partial(_torch, "_fft_c2r")},
    samples=_c2r_samples,
)
