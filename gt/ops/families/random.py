"""Random numbers from a hash of (seed, position); the hash is in bits.py.

Law 1: element i of a tensor depends on its seed and on i alone: the same numbers on every engine,
for any number of workers, in any layout.
Law 2: uniforms, integers, permutations and dropout masks are the same bits everywhere; normals to rounding.

Normals come in pairs (Box-Muller): positions 2k and 2k + 1 share their two uniforms.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from gt import dtypes
from gt.errors import ArgumentError, DTypeError
from gt.ops import rules
from gt.ops.families import bits
from gt.ops.families.bits import bits_graph, bits_jax, bits_numpy, bits_torch
from gt.ops.record import Op, PreparedKernel, Rng, Sample, Site, fill, op, ops
from gt.ops.sharding import letters, linear_op
from gt.program import Spec, spec

_MASK32 = (1 << 32) - 1

# -- rand, randn -----------------------------------------------------------------------------


def _infer_floats(name: str, seed: Spec, *, shape: Any, dtype: Any) -> Spec:
    rules.integer(name, seed)
    result = spec(rules.shape(name, shape), rules.dtype(name, dtype))
    rules.floating(name, result)
    return result


def _uniform(n: int, seed: int, dtype: str, start: int = 0) -> Any:
    u = bits.centered_numpy(n, seed, dtype, start)
    u += np.float32(0.5)
    return u


def _rand_numpy(np_: Any, seed: int, *, shape: Any, dtype: str) -> Any:
    return bits.pieces_numpy(shape, lambda s, m: _uniform(m, seed, dtype, s))


def _rand_jax(xp: Any, seed: Any, *, shape: Any, dtype: str) -> Any:
    return (bits.centered_jax(xp, math.prod(shape), seed, dtype) + xp.float32(0.5)).reshape(tuple(shape))


def _rand_torch(torch: Any, site: Site, *, shape: Any, dtype: str) -> Any:
    n, target, device, kind = math.prod(shape), tuple(shape), site.device, getattr(torch, dtype)
    if device == "cpu":
        return lambda seed: bits.pieces_torch(torch, n, kind, lambda s, m: _uniform(m, seed, dtype, s)).view(target)
    return lambda seed: bits.centered_torch(torch, n, seed, dtype, device).add_(0.5).to(kind).view(target)


def _seeded(n: int, streams: int, kernel: Any) -> PreparedKernel:
    """A graph kernel of an op whose one number is a seed: the host makes keys of it."""
    return PreparedKernel(lambda seed: bits.key_numbers(n, seed, streams), bits.key_kinds(n, streams), kernel)


def _rand_graph(torch: Any, site: Site, *, shape: Any, dtype: str) -> PreparedKernel:
    n, target, device, kind = math.prod(shape), tuple(shape), site.device, getattr(torch, dtype)

    def kernel(*key: Any) -> Any:
        return (bits.centered_graph(torch, n, key, dtype, device) + 0.5).to(kind).view(target)

    return _seeded(n, bits.uniform_streams(dtype), kernel)


def _wide(dtype: str) -> str:
    """Normals of narrow types are rounded from float32."""
    return "float64" if dtype == "float64" else "float32"


def _normal(n: int, seed: int, dtype: str, start: int = 0) -> Any:
    u = bits.centered_numpy(n + n % 2, seed, _wide(dtype), start).reshape(-1, 2)  # start is even
    radius = np.log(0.5 - u[:, 0])
    radius *= -2
    np.sqrt(radius, out=radius)
    angle = u[:, 1] * u.dtype.type(2 * math.pi)
    np.multiply(radius, np.cos(angle), out=u[:, 0])
    np.multiply(radius, np.sin(angle, out=angle), out=u[:, 1])
    return u.reshape(-1)[:n]


def _randn_numpy(np_: Any, seed: int, *, shape: Any, dtype: str) -> Any:
    return bits.pieces_numpy(shape, lambda s, m: _normal(m, seed, dtype, s))


def _randn_jax(xp: Any, seed: Any, *, shape: Any, dtype: str) -> Any:
    n = math.prod(shape)
    u = bits.centered_jax(xp, n + n % 2, seed, _wide(dtype)).reshape(-1, 2)
    radius, angle = xp.sqrt(-2 * xp.log(0.5 - u[:, 0])), u[:, 1] * (2 * math.pi)
    return xp.stack([radius * xp.cos(angle), radius * xp.sin(angle)], axis=1).reshape(-1)[:n].reshape(tuple(shape))


def _randn_torch(torch: Any, site: Site, *, shape: Any, dtype: str) -> Any:
    n, target, device = math.prod(shape), tuple(shape), site.device
    kind, wide = getattr(torch, dtype), _wide(dtype)
    if device == "cpu":
        return lambda seed: bits.pieces_torch(torch, n, kind, lambda s, m: _normal(m, seed, dtype, s)).view(target)

    def kernel(seed: int) -> Any:
        u = bits.centered_torch(torch, n + n % 2, seed, wide, device).view(-1, 2)
        radius = (0.5 - u[:, 0]).log_().mul_(-2).sqrt_()
        angle = u[:, 1] * (2 * math.pi)
        torch.mul(radius, angle.cos(), out=u[:, 0])
        torch.mul(radius, angle.sin_(), out=u[:, 1])
        flat = u.view(-1)
        return (flat if n % 2 == 0 else flat[:n].clone()).view(target).to(kind)

    return kernel


def _randn_graph(torch: Any, site: Site, *, shape: Any, dtype: str) -> PreparedKernel:
    n, target, device = math.prod(shape), tuple(shape), site.device
    kind, wide, even = getattr(torch, dtype), _wide(dtype), math.prod(shape) + math.prod(shape) % 2

    def kernel(*key: Any) -> Any:
        u = bits.centered_graph(torch, even, key, wide, device).view(-1, 2)
        radius, angle = torch.sqrt(torch.log(0.5 - u[:, 0]) * -2), u[:, 1] * (2 * math.pi)
        pair = torch.stack([radius * torch.cos(angle), radius * torch.sin(angle)], 1)
        return pair.view(-1)[:n].to(kind).reshape(target)

    return _seeded(even, bits.uniform_streams(wide), kernel)


def _float_samples(rng: Rng) -> list[Sample]:
    return [
        ((7,), {"shape": (3, 5), "dtype": "float32"}),
        ((-(2**63),), {"shape": (4,), "dtype": "float64"}),
        ((2**63 - 1,), {"shape": (9,), "dtype": "bfloat16"}),
        ((1,), {"shape": (2, 2), "dtype": "float16"}),
        ((0,), {"shape": (), "dtype": "float32"}),
        ((0,), {"shape": (0, 3), "dtype": "float32"}),
    ]


# -- on shards -------------------------------------------------------------------------------


def _rule(*numbers: Spec, shape: Any, **attrs: Any) -> str:
    return f"{', ' * (len(numbers) - 1)} -> {' '.join(a + '@' for a in letters(len(shape)))}"


def _local(shard: Any, *numbers: Any, shape: Any, **attrs: Any) -> Any:
    return _part(shard, tuple(shape), lambda drawn: shard.again(*numbers, shape=drawn, **attrs))


def _part(shard: Any, shape: tuple[int, ...], draw: Any) -> Any:
    """A shard of what one worker would draw. A number depends on its place in the whole, so all that come before the
    last one are drawn too."""
    names = letters(len(shape))
    starts, sizes = [shard.start(a) for a in names], tuple(shard.size(a) for a in names)
    dims = tuple(range(len(shape)))
    drawn = draw((starts[0] + sizes[0], *shape[1:]))
    return ops.slice(drawn, *starts, dims=dims, lengths=sizes, steps=(1,) * len(dims), drop=())


_drawn = partial(op, factors=_rule, local=_local, vjp=None)

rand = _drawn(
    "rand",
    "Random numbers, uniform in [0, 1).",
    infer=partial(_infer_floats, "rand"),
    kernels={"numpy": _rand_numpy, "jax": _rand_jax, "torch": _rand_torch, "torch_graph": _rand_graph},
    samples=_float_samples,
)
randn = _drawn(
    "randn",
    "Random numbers from the normal distribution with mean 0 and variance 1.",
    infer=partial(_infer_floats, "randn"),
    kernels={"numpy": _randn_numpy, "jax": _randn_jax, "torch": _randn_torch, "torch_graph": _randn_graph},
    samples=_float_samples,
)

# -- randint, randperm -----------------------------------------------------------------------


def _infer_randint(seed: Spec, low: Spec, high: Spec, *, shape: Any, dtype: Any) -> Spec:
    rules.integer("randint", seed, low, high)
    result = spec(rules.shape("randint", shape), rules.dtype("randint", dtype))
    if result.dtype.is_complex:
        raise DTypeError(f"randint: expected an integer or floating-point dtype, got {result.dtype.name}")
    return result


def _span(low: int, high: int) -> int:
    if not 0 < high - low <= 1 << 64:
        raise ArgumentError(f"randint: low must be < high, got {low} and {high}")
    return high - low


def _integers(n: int, seed: int, low: int, high: int, start: int = 0) -> Any:
    span = _span(low, high)
    x = bits_numpy(n, seed, 0, start).astype(np.int64)
    if span < 1 << 31:
        x &= _MASK32
        x *= span
        x >>= 32
    else:
        lower = bits_numpy(n, seed, 1, start).astype(np.int64) & _MASK32
        if span >= 1 << 63:  # more than int64 counts: all 64 bits, which torch draws too
            return (x << 32) | lower
        x = (((x & 0x7FFFFFFF) << 32) | lower) % span
    x += low
    return x


def _randint_numpy(np_: Any, seed: int, low: int, high: int, *, shape: Any, dtype: str) -> Any:
    kind = dtypes.BY_NAME[dtype].numpy
    return bits.pieces_numpy(shape, lambda s, m: _integers(m, seed, low, high, s).astype(kind))


def _randint_jax(xp: Any, seed: Any, low: Any, high: Any, *, shape: Any, dtype: str) -> Any:
    n = math.prod(shape)
    high, low = xp.asarray(high, "int64"), xp.asarray(low, "int64")
    span = high - low  # wraps to a negative number where int64 cannot hold it
    x = bits_jax(xp, n, seed).astype("int64")
    lower = bits_jax(xp, n, seed, 1).astype("int64") & _MASK32
    narrow = (x & _MASK32) * span >> 32
    wide = xp.remainder(((x & 0x7FFFFFFF) << 32) | lower, xp.maximum(span, 1))
    drawn = xp.where(span < 0, (x << 32) | lower, xp.where(span < 1 << 31, narrow, wide) + low)
    return drawn.astype(dtypes.BY_NAME[dtype].numpy).reshape(tuple(shape))


def _randint_torch(torch: Any, site: Site, *, shape: Any, dtype: str) -> Any:
    n, target, device, kind = math.prod(shape), tuple(shape), site.device, getattr(torch, dtype)
    if device == "cpu":
        return lambda seed, low, high: bits.pieces_torch(
            torch, n, kind, lambda s, m: _integers(m, seed, low, high, s)
        ).view(target)

    def kernel(seed: int, low: int, high: int) -> Any:
        span = _span(low, high)
        x = bits_torch(torch, n, seed, device).to(torch.int64)
        if span < 1 << 31:
            x.bitwise_and_(_MASK32).mul_(span).bitwise_right_shift_(32)
        else:
            lower = bits_torch(torch, n, seed, device, 1).to(torch.int64).bitwise_and_(_MASK32)
            if span >= 1 << 63:
                return x.bitwise_left_shift_(32).bitwise_or_(lower).to(kind).view(target)
            x.bitwise_and_(0x7FFFFFFF).bitwise_left_shift_(32).bitwise_or_(lower).remainder_(span)
        return x.add_(low).to(kind).view(target)

    return kernel


def _randint_graph(torch: Any, site: Site, *, shape: Any, dtype: str) -> PreparedKernel:
    n, target, device, kind = math.prod(shape), tuple(shape), site.device, getattr(torch, dtype)

    def numbers(seed: int, low: int, high: int) -> tuple[int, ...]:
        span = _span(low, high)
        return (low, span if span < 1 << 63 else 0, *bits.key_numbers(n, seed, 2))

    def kernel(low: Any, span: Any, *key: Any) -> Any:
        x, lower = (bits_graph(torch, n, key, device, stream).to(torch.int64) for stream in (0, 1))
        lower = lower & _MASK32
        narrow = ((x & _MASK32) * span) >> 32
        wide = (((x & 0x7FFFFFFF) << 32) | lower) % torch.where(span == 0, 1, span)
        drawn = torch.where(span < 1 << 31, narrow, wide) + low
        return torch.where(span == 0, (x << 32) | lower, drawn).to(kind).view(target)  # 0: more than int64 counts

    return PreparedKernel(numbers, "ii" + bits.key_kinds(n, 2), kernel)


randint = _drawn(
    "randint",
    "Random integers, uniform in [low, high).",
    infer=_infer_randint,
    spans=lambda seed, low, high, **attrs: {0: lambda seed, low, high: high if 0 <= low < high else -1},
    kernels={
        "numpy": _randint_numpy,
        "jax": _randint_jax,
        "torch": _randint_torch,
        "torch_graph": _randint_graph,
        "numbers": lambda specs, **attrs: lambda seed, low, high: _span(low, high),
    },
    samples=lambda rng: [
        ((3, 0, 10), {"shape": (4, 5), "dtype": "int64"}),
        ((4, -5, 5), {"shape": (7,), "dtype": "int32"}),
        ((5, -(2**62), 2**62 - 1), {"shape": (7,), "dtype": "int64"}),
        ((5, -(2**63), 2**63 - 1), {"shape": (7,), "dtype": "int64"}),
        ((6, 0, 2), {"shape": (), "dtype": "float32"}),
        ((6, 0, 2), {"shape": (9,), "dtype": "bool"}),
        ((7, 0, 2), {"shape": (0,), "dtype": "uint8"}),
    ],
)


def _infer_randperm(seed: Spec, *, n: Any, dtype: Any) -> Spec:
    rules.integer("randperm", seed)
    result = spec((rules.size("randperm", "n", n),), rules.dtype("randperm", dtype))
    rules.not_bool("randperm", result.dtype, "use int64")
    return result


def _randperm_numpy(np_: Any, seed: int, *, n: int, dtype: str) -> Any:
    return np.argsort(_integers(n, seed, -(1 << 63), (1 << 63) - 1), kind="stable")


def _randperm_jax(xp: Any, seed: Any, *, n: int, dtype: str) -> Any:
    x = bits_jax(xp, n, seed).astype("int64") << 32 | (bits_jax(xp, n, seed, 1).astype("int64") & _MASK32)
    return xp.argsort(x, stable=True).astype(dtypes.BY_NAME[dtype].numpy)


def _randperm_torch(torch: Any, site: Site, *, n: int, dtype: str) -> Any:
    device, kind = site.device, getattr(torch, dtype)

    def kernel(seed: int) -> Any:
        x = bits_torch(torch, n, seed, device).to(torch.int64).bitwise_left_shift_(32)
        x.bitwise_or_(bits_torch(torch, n, seed, device, 1).to(torch.int64).bitwise_and_(_MASK32))
        return torch.argsort(x, stable=True).to(kind)

    return kernel


def _randperm_graph(torch: Any, site: Site, *, n: int, dtype: str) -> PreparedKernel:
    device, kind = site.device, getattr(torch, dtype)

    def kernel(*key: Any) -> Any:
        x, lower = (bits_graph(torch, n, key, device, stream).to(torch.int64) for stream in (0, 1))
        return torch.argsort((x << 32) | (lower & _MASK32), stable=True).to(kind)

    return _seeded(n, 2, kernel)


randperm = op(
    "randperm",
    "The integers from 0 to n - 1 in random order: the order that sorts n random keys of 64 bits.",
    infer=_infer_randperm,
    ranges=lambda seed, *, n, dtype: {0: n} if dtype in ("int64", "int32") else {},
    vjp=None,
    kernels={"numpy": _randperm_numpy, "jax": _randperm_jax, "torch": _randperm_torch, "torch_graph": _randperm_graph},
    samples=lambda rng: [
        ((3,), {"n": 10, "dtype": "int64"}),
        ((-4,), {"n": 7, "dtype": "int32"}),
        ((5,), {"n": 1, "dtype": "float32"}),
        ((5,), {"n": 0, "dtype": "int64"}),
    ],
)

# -- dropout ---------------------------------------------------------------------------------


def _infer_dropout(x: Spec, seed: Spec, *, p: Any) -> Spec:
    rules.floats("dropout", x)
    rules.integer("dropout", seed)
    if type(p) not in (int, float) or not 0 <= p <= 1:
        raise ArgumentError(f"dropout: p must be from 0 to 1, got {rules.shown(p)}")
    return x


def _limit(p: float) -> int:
    """Positions whose bits, as int32, are below this are dropped."""
    return round(p * 2**32) - (1 << 31)


def _scale(p: float) -> float:
    return 1 / (1 - p) if p < 1 else 0.0


def _dropout_numpy(np_: Any, x: Any, seed: int, *, p: float) -> Any:
    if _limit(p) > np.iinfo(np.int32).max:
        return x * 0
    keep = bits.pieces_numpy(x.shape, lambda s, m: bits_numpy(m, seed, 0, s) >= np.int32(_limit(p)))
    return x * keep * np.asarray(_scale(p), x.dtype)


def _dropout_jax(xp: Any, x: Any, seed: Any, *, p: float) -> Any:
    keep = bits_jax(xp, x.size, seed).astype("int64") >= _limit(p)
    return x * keep.reshape(x.shape) * xp.asarray(_scale(p), x.dtype)


def _dropout_torch(torch: Any, site: Site, *, p: float) -> Any:
    x = site.specs[0]
    n, shape, device, limit, scale = x.size, x.shape, site.device, _limit(p), _scale(p)
    if limit > np.iinfo(np.int32).max:
        return lambda x, seed: x * 0

    def kernel(x: Any, seed: int) -> Any:
        if device == "cpu":
            keep = bits.pieces_torch(torch, n, torch.bool, lambda s, m: bits_numpy(m, seed, 0, s) >= np.int32(limit))
        else:
            keep = bits_torch(torch, n, seed, device) >= limit
        return (x * keep.view(shape)).mul_(scale)

    return kernel


def _dropout_graph(torch: Any, site: Site, *, p: float) -> PreparedKernel:
    x = site.specs[0]
    n, shape, device, limit, scale = x.size, x.shape, site.device, _limit(p), _scale(p)
    if limit > np.iinfo(np.int32).max:
        return _seeded(n, 1, lambda x, *key: x * 0)
    return _seeded(n, 1, lambda x, *key: x * (bits_graph(torch, n, key, device) >= limit).view(shape) * scale)


def _dropout_rule(x: Spec, seed: Spec, *, p: float) -> str:
    places = " ".join(a + "@" for a in letters(x.ndim))
    return f"{places}, -> {places}"


def _dropout_local(shard: Any, x: Any, seed: Any, *, p: float) -> Any:
    def mask(shape: tuple[int, ...]) -> Any:
        return shard.again(fill(x, 1.0, shape, x.dtype), seed, p=p)

    return x * _part(shard, shard.specs[0].shape, mask)


dropout: Op = linear_op(
    "dropout",
    "x with each element set to zero with probability p, and the others scaled by 1 / (1 - p).",
    infer=_infer_dropout,
    factors=_dropout_rule,
    local=_dropout_local,
    vjp=(lambda g, y, x, seed, *, p: ops.dropout(g, seed, p=p),),
    kernels={"numpy": _dropout_numpy, "jax": _dropout_jax, "torch": _dropout_torch, "torch_graph": _dropout_graph},
    samples=lambda rng: [
        ((rng.normal(size=(4, 5)), 11), {"p": 0.3}),
        ((rng.normal(size=(4, 5)), 12), {"p": 0}),
        ((rng.normal(size=(4, 5)), 12), {"p": 1.0}),
        ((np.array(1.5), 13), {"p": 0.5}),
        ((np.zeros((0, 3)), 14), {"p": 0.5}),
    ],
)
