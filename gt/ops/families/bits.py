"""The hash behind all random numbers: 32 bits for a seed and a position, the same on every engine.

The seed (64 bits) and a block number are mixed into two 32-bit keys. The hash of a position is then a few
32-bit multiplications, shifts and xors, cheaper than torch's own generator:

    x = i * GOLDEN + key0;  x ^= x >> 16;  x = x * A + key1;  x ^= x >> 15;  x *= B;  x ^= x >> 16

Two keys, because with one the numbers of two seeds would be each other's, shifted.

On a CPU numpy does this for torch too: its integer loops are twice as fast, and pieces of CHUNK positions stay
in the cache. A CUDA kernel and jax take all positions at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

_GOLDEN, _A, _B = 0x9E3779B9, 0x7FEB352D, 0x846CA68B
_MASK32, _MASK64 = (1 << 32) - 1, (1 << 64) - 1
_INVERSE = pow(_GOLDEN, -1, 1 << 32)
BLOCK = 1 << 31  #: positions that share keys; int32 can count them
CHUNK = 1 << 15  #: positions that numpy works on at a time

#: Bits of a uniform number in [0, 1) that each type holds exactly.
_DIGITS = {"float32": 24, "float16": 11, "bfloat16": 8}

_RAMP = np.arange(CHUNK, dtype=np.uint32) * np.uint32(_GOLDEN)


def mix64(z: int) -> int:
    z = (z + 0x9E3779B97F4A7C15) & _MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK64
    return z ^ (z >> 31)


def keys(seed: int, stream: int, block: int) -> tuple[int, int]:
    """The two 32-bit keys of a block. A second stream gives more bits for the same positions."""
    z = mix64(mix64(mix64(seed & _MASK64) ^ stream) ^ block)
    return z & _MASK32, z >> 32


# -- 32 random bits per position, as int32 ----------------------------------------------------


def bits_numpy(n: int, seed: int, stream: int = 0, start: int = 0) -> Any:
    """The bits of `n` positions from `start` on."""
    block, offset = divmod(start, BLOCK)
    m = min(CHUNK, BLOCK - offset)
    if n > m:
        pieces = [bits_numpy(m, seed, stream, start)]
        start, end = start + m, start + n
        while start < end:
            m = min(CHUNK, BLOCK - start % BLOCK, end - start)
            pieces.append(bits_numpy(m, seed, stream, start))
            start += m
        return np.concatenate(pieces)
    key0, key1 = keys(seed, stream, block)
    x = _RAMP[:n] + np.uint32((offset * _GOLDEN + key0) & _MASK32)
    t = x >> np.uint32(16)
    x ^= t
    x *= np.uint32(_A)
    x += np.uint32(key1)
    x ^= np.right_shift(x, np.uint32(15), out=t)
    x *= np.uint32(_B)
    x ^= np.right_shift(x, np.uint32(16), out=t)
    return x.view(np.int32)


def _signed(k: int) -> int:
    return k - (1 << 32) if k >> 31 else k


def bits_torch(torch: Any, n: int, seed: int, device: str, stream: int = 0) -> Any:
    """The same, by torch's own kernels."""
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


def key_numbers(n: int, seed: int, streams: int = 1) -> tuple[int, ...]:
    """The keys of all blocks of n positions, as numbers that are passed to a graph.

    The first of each two is divided by GOLDEN: it is added to the position before that is multiplied, since a compiler
    that knows both factors may find that they overflow, which in C++ leaves the result open."""
    numbers: list[int] = []
    for stream in range(streams):
        for block in range(_blocks(n)):
            key0, key1 = keys(seed, stream, block)
            numbers += _signed(key0 * _INVERSE & _MASK32), _signed(key1)
    return tuple(numbers)


def _blocks(n: int) -> int:
    return -(-n // BLOCK) or 1


def key_kinds(n: int, streams: int = 1) -> str:
    return "i" * (2 * streams * _blocks(n))


def bits_graph(torch: Any, n: int, key: Sequence[Any], device: str, stream: int = 0) -> Any:
    """The same in a graph, by `key_numbers` that came as tensors: expressions that fuse into one kernel."""
    int32, count = torch.int32, 2 * _blocks(n)
    key = [k.to(int32) for k in key[stream * count : (stream + 1) * count]]

    def block(m: int, key0: Any, key1: Any) -> Any:
        x = (torch.arange(m, dtype=int32, device=device) + key0) * _signed(_GOLDEN)
        x = (x ^ ((x >> 16) & 0xFFFF)) * _A + key1
        x = (x ^ ((x >> 15) & 0x1FFFF)) * _signed(_B)
        return x ^ ((x >> 16) & 0xFFFF)

    if n <= BLOCK:
        return block(n, *key)
    return torch.cat([block(min(BLOCK, n - b * BLOCK), *key[2 * b : 2 * b + 2]) for b in range(count // 2)])


def bits_jax(xp: Any, n: int, seed: Any, stream: int = 0) -> Any:
    """The same, in jax. The seed may be an array: it is not known yet when a whole program is compiled."""
    u32, u64 = xp.uint32, xp.uint64
    if isinstance(seed, int):
        seed = (seed + (1 << 63) & _MASK64) - (1 << 63)

    def mix(z: Any) -> Any:
        z = z + u64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> u64(30))) * u64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> u64(27))) * u64(0x94D049BB133111EB)
        return z ^ (z >> u64(31))

    def block(b: int) -> Any:
        z = mix(mix(mix(xp.asarray(seed, "int64").astype("uint64")) ^ u64(stream)) ^ u64(b // BLOCK))
        x = xp.arange(min(BLOCK, n - b), dtype="uint32") * u32(_GOLDEN) + (z & u64(_MASK32)).astype("uint32")
        x = (x ^ (x >> u32(16))) * u32(_A) + (z >> u64(32)).astype("uint32")
        x = (x ^ (x >> u32(15))) * u32(_B)
        return (x ^ (x >> u32(16))).view("int32")

    return block(0) if n <= BLOCK else xp.concatenate([block(b) for b in range(0, n, BLOCK)])


# -- uniforms in [-1/2, 1/2) -----------------------------------------------------------------


def centered_numpy(n: int, seed: int, dtype: str, start: int = 0) -> Any:
    high = bits_numpy(n, seed, 0, start)
    if dtype != "float64":
        d = _DIGITS[dtype]
        high >>= np.int32(32 - d)
        u = high.astype(np.float32)
        u *= np.float32(2.0**-d)
        return u
    low = bits_numpy(n, seed, 1, start) >> np.int32(6) & np.int32(0x3FFFFFF)
    return ((high >> np.int32(5)).astype(np.float64) * 2.0**26 + low) * 2.0**-53


def centered_torch(torch: Any, n: int, seed: int, dtype: str, device: str) -> Any:
    high = bits_torch(torch, n, seed, device)
    if dtype != "float64":
        d = _DIGITS[dtype]
        return high.bitwise_right_shift_(32 - d).to(torch.float32).mul_(2.0**-d)
    low = bits_torch(torch, n, seed, device, 1).bitwise_right_shift_(6).bitwise_and_(0x3FFFFFF)
    return high.bitwise_right_shift_(5).to(torch.float64).mul_(2.0**26).add_(low).mul_(2.0**-53)


def centered_graph(torch: Any, n: int, key: Sequence[Any], dtype: str, device: str) -> Any:
    """By the keys of `uniform_streams`."""
    high = bits_graph(torch, n, key, device)
    if dtype != "float64":
        d = _DIGITS[dtype]
        return (high >> (32 - d)).to(torch.float32) * 2.0**-d
    low = (bits_graph(torch, n, key, device, 1) >> 6) & 0x3FFFFFF
    return ((high >> 5).to(torch.float64) * 2.0**26 + low) * 2.0**-53


def uniform_streams(dtype: str) -> int:
    """How many streams of bits a uniform number takes."""
    return 2 if dtype == "float64" else 1


def centered_jax(xp: Any, n: int, seed: Any, dtype: str) -> Any:
    high = bits_jax(xp, n, seed)
    if dtype != "float64":
        d = _DIGITS[dtype]
        return (high >> (32 - d)).astype("float32") * xp.float32(2.0**-d)
    low = bits_jax(xp, n, seed, 1) >> 6 & 0x3FFFFFF
    return ((high >> 5).astype("float64") * 2.0**26 + low) * 2.0**-53


# -- piece by piece --------------------------------------------------------------------------

#: (first position, how many) -> a numpy array
Draw = Callable[[int, int], Any]


def pieces_numpy(shape: Sequence[int], draw: Draw) -> Any:
    """All elements of a shape, drawn by pieces that stay in the cache."""
    n = math.prod(shape)
    if n <= CHUNK:
        return draw(0, n).reshape(tuple(shape))
    first = draw(0, CHUNK)
    result = np.empty(n, first.dtype)
    result[:CHUNK] = first
    for s in range(CHUNK, n, CHUNK):
        result[s : s + CHUNK] = draw(s, min(CHUNK, n - s))
    return result.reshape(tuple(shape))


def pieces_torch(torch: Any, n: int, dtype: Any, draw: Draw) -> Any:
    """The same, as a torch tensor on the CPU."""
    if n <= CHUNK:
        return torch.from_numpy(draw(0, n)).to(dtype)
    result = torch.empty(n, dtype=dtype)
    for s in range(0, n, CHUNK):
        m = min(CHUNK, n - s)
        result[s : s + m].copy_(torch.from_numpy(draw(s, m)))
    return result
