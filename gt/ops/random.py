"""Random numbers from a hash of (seed, position).

Law 1: element i of a tensor depends on its seed and on i alone: the same numbers on every engine,
for any number of workers, in any layout.
Law 2: uniforms, integers and dropout masks are the same bits everywhere; normals to rounding.

The seed (64 bits) and a block number are mixed into two 32-bit keys, once, in Python. The hash of a
position is then a few 32-bit multiplications, shifts and xors, cheaper than torch's own generator:

    x = i * GOLDEN + key0;  x ^= x >> 16;  x = x * A + key1;  x ^= x >> 15;  x *= B;  x ^= x >> 16

Two keys, because with one the numbers of two seeds would be each other's, shifted. Normals come in
pairs (Box-Muller): positions 2k and 2k + 1 share their two uniforms.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gt import dtypes
from gt.errors import ArgumentError
from gt.ops import rules
from gt.ops.record import Op, Sample, Site, op, ops
from gt.program import Spec, spec

_GOLDEN, _A, _B = 0x9E3779B9, 0x7FEB352D, 0x846CA68B
_MASK32, _MASK64 = (1 << 32) - 1, (1 << 64) - 1
BLOCK = 1 << 31  #: positions that share keys; int32 can count them

#: Bits of a uniform number in [0, 1) that each type holds exactly.
_DIGITS = {"float32": 24, "float16": 11, "bfloat16": 8}


def _mix64(z: int) -> int:
    z = (z + 0x9E3779B97F4A7C15) & _MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK64
    return z ^ (z >> 31)


def keys(seed: int, stream: int, block: int) -> tuple[int, int]:
    """The two 32-bit keys of a block. A second stream gives more bits for the same positions."""
    z = _mix64(_mix64(_mix64(seed & _MASK64) ^ stream) ^ block)
    return z & _MASK32, z >> 32


# -- 32 random bits per position, as int32 ----------------------------------------------------


def bits_numpy(n: int, seed: int, stream: int = 0) -> Any:
    if n <= BLOCK:
        return _block_numpy(n, keys(seed, stream, 0))
    starts = range(0, n, BLOCK)
    return np.concatenate([_block_numpy(min(BLOCK, n - b), keys(seed, stream, b // BLOCK)) for b in starts])


def _block_numpy(n: int, key: tuple[int, int]) -> Any:
    x = np.arange(n, dtype=np.uint32)
    x *= np.uint32(_GOLDEN)
    x += np.uint32(key[0])
    x ^= x >> np.uint32(16)
    x *= np.uint32(_A)
    x += np.uint32(key[1])
    x ^= x >> np.uint32(15)
    x *= np.uint32(_B)
    x ^= x >> np.uint32(16)
    return x.view(np.int32)


def _signed(k: int) -> int:
    return k - (1 << 32) if k >> 31 else k


def bits_torch(torch: Any, n: int, seed: int, device: str, stream: int = 0) -> Any:
    if n <= BLOCK:
        return _block_torch(torch, n, keys(seed, stream, 0), device)
    result = torch.empty(n, dtype=torch.int32, device=device)
    for b in range(0, n, BLOCK):
        piece = result[b : b + BLOCK]
        piece.copy_(_block_torch(torch, piece.numel(), keys(seed, stream, b // BLOCK), device))
    return result


def _block_torch(torch: Any, n: int, key: tuple[int, int], device: str) -> Any:
    # int32 wraps as uint32 does; its shift to the right copies the sign, so that is masked away.
    x = torch.arange(n, dtype=torch.int32, device=device)
    x.mul_(_signed(_GOLDEN)).add_(_signed(key[0]))
    t = x >> 16
    x.bitwise_xor_(t.bitwise_and_(0xFFFF)).mul_(_A).add_(_signed(key[1]))
    torch.bitwise_right_shift(x, 15, out=t)
    x.bitwise_xor_(t.bitwise_and_(0x1FFFF)).mul_(_signed(_B))
    torch.bitwise_right_shift(x, 16, out=t)
    return x.bitwise_xor_(t.bitwise_and_(0xFFFF))


# -- uniforms in [-1/2, 1/2) -----------------------------------------------------------------


def _centered_numpy(n: int, seed: int, dtype: str) -> Any:
    high = bits_numpy(n, seed)
    if dtype != "float64":
        d = _DIGITS[dtype]
        return (high >> (32 - d)).astype(np.float32) * np.float32(2.0**-d)
    low = bits_numpy(n, seed, 1) >> 6 & 0x3FFFFFF
    return ((high >> 5).astype(np.float64) * 2.0**26 + low) * 2.0**-53


def _centered_torch(torch: Any, n: int, seed: int, dtype: str, device: str) -> Any:
    high = bits_torch(torch, n, seed, device)
    if dtype != "float64":
        d = _DIGITS[dtype]
        return high.bitwise_right_shift_(32 - d).to(torch.float32).mul_(2.0**-d)
    low = bits_torch(torch, n, seed, device, 1).bitwise_right_shift_(6).bitwise_and_(0x3FFFFFF)
    return high.bitwise_right_shift_(5).to(torch.float64).mul_(2.0**26).add_(low).mul_(2.0**-53)


# -- rand, randn -----------------------------------------------------------------------------


def _infer_floats(name: str) -> Any:
    def infer(seed: Spec, *, shape: Any, dtype: Any) -> Spec:
        rules.integer(name, seed)
        result = spec(rules.shape(name, shape), rules.dtype(name, dtype))
        rules.floating(name, result)
        return result

    return infer


def _rand_numpy(np_: Any, seed: int, *, shape: Any, dtype: str) -> Any:
    return (_centered_numpy(math.prod(shape), seed, dtype) + np.float32(0.5)).reshape(tuple(shape))


def _rand_torch(torch: Any, site: Site, *, shape: Any, dtype: str) -> Any:
    n, target, device, kind = math.prod(shape), tuple(shape), site.device, getattr(torch, dtype)

    def kernel(seed: int) -> Any:
        return _centered_torch(torch, n, seed, dtype, device).add_(0.5).to(kind).view(target)

    return kernel


def _wide(dtype: str) -> str:
    """Normals of narrow types are rounded from float32."""
    return "float64" if dtype == "float64" else "float32"


def _randn_numpy(np_: Any, seed: int, *, shape: Any, dtype: str) -> Any:
    n = math.prod(shape)
    u = _centered_numpy(n + n % 2, seed, _wide(dtype)).reshape(-1, 2)
    radius = np.sqrt(-2 * np.log(0.5 - u[:, 0]))
    angle = u[:, 1] * (2 * math.pi)
    pairs = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return pairs.reshape(-1)[:n].reshape(tuple(shape))


def _randn_torch(torch: Any, site: Site, *, shape: Any, dtype: str) -> Any:
    n, target, device = math.prod(shape), tuple(shape), site.device
    kind, wide = getattr(torch, dtype), _wide(dtype)

    def kernel(seed: int) -> Any:
        u = _centered_torch(torch, n + n % 2, seed, wide, device).view(-1, 2)
        radius = (0.5 - u[:, 0]).log_().mul_(-2).sqrt_()
        angle = u[:, 1] * (2 * math.pi)
        torch.mul(radius, angle.cos(), out=u[:, 0])
        torch.mul(radius, angle.sin_(), out=u[:, 1])
        flat = u.view(-1)
        return (flat if n % 2 == 0 else flat[:n].clone()).view(target).to(kind)

    return kernel


def _float_samples(rng: np.random.Generator) -> list[Sample]:
    return [
        ((7,), {"shape": (3, 5), "dtype": "float32"}),
        ((-(2**63),), {"shape": (4,), "dtype": "float64"}),
        ((2**63 - 1,), {"shape": (9,), "dtype": "bfloat16"}),
        ((1,), {"shape": (2, 2), "dtype": "float16"}),
        ((0,), {"shape": (), "dtype": "float32"}),
        ((0,), {"shape": (0, 3), "dtype": "float32"}),
    ]


rand = op(
    "rand",
    "Numbers in [0, 1), all equally likely.",
    infer=_infer_floats("rand"),
    vjp=None,
    kernels={"numpy": _rand_numpy, "torch": _rand_torch},
    samples=_float_samples,
)

randn = op(
    "randn",
    "Normally distributed numbers of mean 0 and variance 1.",
    infer=_infer_floats("randn"),
    vjp=None,
    kernels={"numpy": _randn_numpy, "torch": _randn_torch},
    samples=_float_samples,
)

# -- randint ---------------------------------------------------------------------------------


def _infer_randint(seed: Spec, low: Spec, high: Spec, *, shape: Any, dtype: Any) -> Spec:
    rules.integer("randint", seed, low, high)
    result = spec(rules.shape("randint", shape), rules.dtype("randint", dtype))
    rules.not_bool("randint", result.dtype, "compare, as in rand(n) < 0.5")
    return result


def _span(low: int, high: int) -> int:
    if not 0 < high - low < 1 << 63:
        raise ArgumentError(f"randint: there is no integer from {low} to below {high}")
    return high - low


def _randint_numpy(np_: Any, seed: int, low: int, high: int, *, shape: Any, dtype: str) -> Any:
    n, span = math.prod(shape), _span(low, high)
    x = bits_numpy(n, seed).astype(np.int64) & _MASK32
    if span < 1 << 31:
        x = x * span >> 32
    else:
        x = (((x & 0x7FFFFFFF) << 32) | (bits_numpy(n, seed, 1).astype(np.int64) & _MASK32)) % span
    return (x + low).astype(dtypes.BY_NAME[dtype].numpy).reshape(tuple(shape))


def _randint_torch(torch: Any, site: Site, *, shape: Any, dtype: str) -> Any:
    n, target, device, kind = math.prod(shape), tuple(shape), site.device, getattr(torch, dtype)

    def kernel(seed: int, low: int, high: int) -> Any:
        span = _span(low, high)
        x = bits_torch(torch, n, seed, device).to(torch.int64)
        if span < 1 << 31:
            x.bitwise_and_(_MASK32).mul_(span).bitwise_right_shift_(32)
        else:
            lower = bits_torch(torch, n, seed, device, 1).to(torch.int64).bitwise_and_(_MASK32)
            x.bitwise_and_(0x7FFFFFFF).bitwise_left_shift_(32).bitwise_or_(lower).remainder_(span)
        return x.add_(low).to(kind).view(target)

    return kernel


randint = op(
    "randint",
    "Integers from low to below high, all equally likely.",
    infer=_infer_randint,
    vjp=None,
    kernels={"numpy": _randint_numpy, "torch": _randint_torch},
    samples=lambda rng: [
        ((3, 0, 10), {"shape": (4, 5), "dtype": "int64"}),
        ((4, -5, 5), {"shape": (7,), "dtype": "int32"}),
        ((5, -(2**62), 2**62 - 1), {"shape": (7,), "dtype": "int64"}),
        ((6, 0, 2), {"shape": (), "dtype": "float32"}),
        ((7, 0, 2), {"shape": (0,), "dtype": "uint8"}),
    ],
)

# -- dropout ---------------------------------------------------------------------------------


def _infer_dropout(x: Spec, seed: Spec, *, p: Any) -> Spec:
    rules.tensor("dropout", x)
    rules.floating("dropout", x)
    rules.integer("dropout", seed)
    if type(p) not in (int, float) or not 0 <= p <= 1:
        raise ArgumentError(f"dropout: p={rules.shown(p)} is not a probability")
    return x


def _limit(p: float) -> int:
    """Positions whose bits, as int32, are below this are dropped."""
    return round(p * 2**32) - (1 << 31)


def _scale(p: float) -> float:
    return 1 / (1 - p) if p < 1 else 0.0


def _dropout_numpy(np_: Any, x: Any, seed: int, *, p: float) -> Any:
    keep = bits_numpy(x.size, seed).astype(np.int64) >= _limit(p)
    return x * keep.reshape(x.shape) * np.asarray(_scale(p), x.dtype)


def _dropout_torch(torch: Any, site: Site, *, p: float) -> Any:
    x = site.specs[0]
    n, shape, device, limit, scale = x.size, x.shape, site.device, _limit(p), _scale(p)
    if p == 1:  # the limit would not fit in 32 bits
        return lambda x, seed: x * 0

    def kernel(x: Any, seed: int) -> Any:
        keep = (bits_torch(torch, n, seed, device) >= limit).view(shape)
        return (x * keep).mul_(scale)

    return kernel


dropout: Op = op(
    "dropout",
    "x with each element zeroed with probability p, the others scaled by 1 / (1 - p).",
    infer=_infer_dropout,
    vjp=(lambda g, y, x, seed, *, p: ops.dropout(g, seed, p=p),),
    kernels={"numpy": _dropout_numpy, "torch": _dropout_torch},
    samples=lambda rng: [
        ((rng.normal(size=(4, 5)), 11), {"p": 0.3}),
        ((rng.normal(size=(4, 5)), 12), {"p": 0}),
        ((rng.normal(size=(4, 5)), 12), {"p": 1.0}),
        ((np.array(1.5), 13), {"p": 0.5}),
        ((np.zeros((0, 3)), 14), {"p": 0.5}),
    ],
)
