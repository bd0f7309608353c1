"""Complex numbers: their parts, their conjugates, and how they are made of real ones.

The gradient of a complex number z is, as in torch, that of its real part plus i times that of its
imaginary part. So a gradient is multiplied by the conjugate of a derivative: `conj` in record.py.

conj, real, imag, view_as_real and view_as_complex are views: `put` says what the base becomes.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from gt import dtypes
from gt.errors import ArgumentError, DTypeError, ShapeError
from gt.ops import rules
from gt.ops.record import FLOAT32_ON_CPU, Rng, Sample, Site, each_of, ops, zeros
from gt.ops.sharding import linear_op, pointwise_op, spelled
from gt.program import Spec, spec


def _needs_complex(name: str, x: Spec) -> Spec:
    if not rules.tensor(name, x).dtype.is_complex:
        raise DTypeError(f"{name}: expected a complex dtype, got {x.dtype.name}")
    return x


def _draw(rng: Rng, *size: int) -> Any:
    return rng.normal(size=size) + 1j * rng.normal(size=size)


def _samples(rng: Rng) -> list[Sample]:
    return each_of(_draw(rng, 3, 4), np.array(1.5 - 2j), _draw(rng, 2, 3).astype(np.complex64), _draw(rng, 0, 2))


# -- one complex operand ---------------------------------------------------------------------


conj = pointwise_op(
    "conj",
    "The complex conjugate.",
    infer=lambda x: _needs_complex("conj", x),
    linear=((0,),),
    vjp=(lambda g, y, x: ops.conj(g),),
    # Not torch.conj: that only marks its result, and marked tensors have no bytes.
    kernels={"array": lambda xp, x: xp.conj(x), "torch": lambda torch, site: torch.conj_physical},
    put=lambda base, new, k: ops.conj(new),
    samples=_samples,
)


def _infer_part(name: str, x: Spec) -> Spec:
    _needs_complex(name, x)
    return spec(x.shape, x.dtype.to_real())


real = pointwise_op(
    "real",
    "The real part of complex numbers.",
    infer=partial(_infer_part, "real"),
    linear=((0,),),
    vjp=(lambda g, y, x: ops.complex(g, zeros(g)),),
    kernels={"array": lambda xp, x: xp.real(x)},
    put=lambda base, new, k: ops.complex(new, ops.imag(base)),
    samples=_samples,
)

imag = pointwise_op(
    "imag",
    "The imaginary part of complex numbers.",
    infer=partial(_infer_part, "imag"),
    linear=((0,),),
    vjp=(lambda g, y, x: ops.complex(zeros(g), g),),
    kernels={"array": lambda xp, x: xp.imag(x)},
    put=lambda base, new, k: ops.complex(ops.real(base), new),
    samples=_samples,
)


def _angle_array(xp: Any, x: Any) -> Any:
    if x.dtype.kind == "c":
        return xp.angle(x)
    if x.dtype.kind in "biu":
        return xp.where(x < 0, np.pi, 0.0)
    return xp.where(xp.isnan(x), x, xp.where(x < 0, np.pi, 0.0))


def _angle_dx(g: Any, y: Any, x: Any) -> Any:
    if not x.dtype.is_complex:
        return zeros(g)
    a, b = ops.real(x), ops.imag(x)
    size = a * a + b * b
    scaled = ops.where(ops.eq(size, 0), 0.0, g / ops.where(ops.eq(size, 0), 1.0, size))
    return ops.complex(-(scaled * b), scaled * a)


def _angle_torch(torch: Any, site: Site) -> Any:
    x = site.specs[0].dtype
    if x not in (dtypes.float16, dtypes.bfloat16):
        return torch.angle
    narrow = getattr(torch, x.name)
    return lambda x: torch.angle(x.float()).to(narrow)  # CUDA has no angle of narrow floats


angle = pointwise_op(
    "angle",
    "The angle of complex numbers in radians; 0 or pi for real numbers.",
    infer=lambda x: spec(
        rules.tensor("angle", x).shape, x.dtype.to_real() if x.dtype.is_complex else rules.float_of(x)
    ),
    vjp=(_angle_dx,),
    kernels={"array": _angle_array, "torch": _angle_torch},
    samples=lambda rng: [
        *_samples(rng),
        *each_of(np.array([1.5, -2.0, 0.25, np.nan]), np.array([0, -2, 3]), np.array([True, False])),
    ],
)

# -- two real operands -----------------------------------------------------------------------


def _infer_complex(real: Spec, imag: Spec) -> Spec:
    rules.tensor("complex", real, imag)
    for x in (real, imag):
        if x.dtype not in (dtypes.float32, dtypes.float64):
            raise DTypeError(f"complex: expected parts of float32 or float64, got {x.dtype.name}; cast first")
    rules.same_dtype("complex", real, imag)
    return spec(rules.broadcast("complex", real.shape, imag.shape), real.dtype.to_complex())


def _complex_numpy(np_: Any, real: Any, imag: Any) -> Any:
    real, imag = np_.broadcast_arrays(real, imag)
    # Not real + 1j * imag, which makes nan of an infinite part.
    pairs = np_.stack([real, imag], axis=-1)
    return pairs.view(np_.complex64 if real.dtype == np.float32 else np_.complex128).reshape(real.shape)


def _complex_jax(jax: Any, real: Any, imag: Any) -> Any:
    return jax.lax.complex(*jax.numpy.broadcast_arrays(real, imag))


def _pairs(rng: Rng) -> list[Sample]:
    """In float32: narrower types have no complex one."""
    pairs = [(rng.normal(size=(3, 1)), rng.normal(size=4)), (1.5, np.inf), (rng.normal(size=2), rng.normal(size=2))]
    return [((np.asarray(a, np.float32), np.asarray(b, np.float32)), {}) for a, b in [*pairs, ([[]], [[]])]]


complex_ = pointwise_op(
    "complex",
    "Complex numbers, given their real and imaginary parts.",
    infer=_infer_complex,
    linear=((0, 1),),
    vjp=(lambda g, y, real, imag: ops.real(g), lambda g, y, real, imag: ops.imag(g)),
    kernels={"numpy": _complex_numpy, "jax_lib": _complex_jax},
    samples=_pairs,
    flops=0,
)

# -- complex numbers as pairs ----------------------------------------------------------------


view_as_real = linear_op(
    "view_as_real",
    "Complex numbers as pairs of real numbers, in a new last dimension of size 2.",
    infer=lambda x: spec((*_needs_complex("view_as_real", x).shape, 2), x.dtype.to_real()),
    factors=lambda x: spelled("* -> * ...", x.ndim),
    vjp=(lambda g, y, x: ops.view_as_complex(g),),
    kernels={"array": lambda xp, x: xp.stack([xp.real(x), xp.imag(x)], axis=-1)},
    put=lambda base, new, k: ops.view_as_complex(new),
    samples=_samples,
)


def _infer_view_as_complex(x: Spec) -> Spec:
    rules.tensor("view_as_complex", x)
    if x.dtype not in (dtypes.float32, dtypes.float64):
        raise DTypeError(f"view_as_complex: expected float32 or float64, got {x.dtype.name}; cast first")
    if not x.shape or x.shape[-1] != 2:
        raise ShapeError(f"view_as_complex: the last dimension must have size 2, got shape {x.shape}")
    return spec(x.shape[:-1], x.dtype.to_complex())


def _as_complex_torch(torch: Any, site: Site) -> Any:
    if not site.specs[0].size:  # whose strides may be anything
        return lambda x: torch.complex(x[..., 0], x[..., 1])

    def run(x: Any) -> Any:
        # torch wants the pairs side by side in memory, and no pair to begin at an odd place.
        x = x.contiguous()
        if x.storage_offset() % 2 or any(step % 2 for step in x.stride()[:-1]):
            x = x.clone(memory_format=torch.contiguous_format)
        return torch.view_as_complex(x)

    return run


view_as_complex = linear_op(
    "view_as_complex",
    "Pairs of real numbers, in a last dimension of size 2, as complex numbers.",
    infer=_infer_view_as_complex,
    factors=lambda x: spelled("* ... -> *", x.ndim - 1),
    vjp=(lambda g, y, x: ops.view_as_real(g),),
    kernels={
        "numpy": lambda np_, x: _complex_numpy(np_, x[..., 0], x[..., 1]),
        "jax_lib": lambda jax, x: _complex_jax(jax, x[..., 0], x[..., 1]),
        "torch": _as_complex_torch,
    },
    put=lambda base, new, k: ops.view_as_real(new),
    samples=lambda rng: each_of(
        rng.normal(size=(3, 2)).astype(np.float32), rng.normal(size=2).astype(np.float32), np.zeros((0, 2), np.float32)
    ),
    autocast=FLOAT32_ON_CPU,
)


def _infer_polar(abs: Spec, angle: Spec) -> Spec:
    try:
        return _infer_complex(abs, angle)
    except (DTypeError, ShapeError, ArgumentError) as e:
        raise type(e)(str(e).replace("complex:", "polar:", 1)) from None


polar = pointwise_op(
    "polar",
    "Complex numbers, given their absolute values and angles.",
    infer=_infer_polar,
    vjp=None,
    compose=lambda abs, angle: ops.complex(abs * ops.cos(angle), abs * ops.sin(angle)),
    samples=_pairs,
    autocast=FLOAT32_ON_CPU,
)
