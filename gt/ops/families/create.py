"""Tensors out of nothing, and out of host bytes that travel with a call."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from gt import dtypes
from gt.errors import ArgumentError
from gt.ops import rules
from gt.ops.record import Site, op, ops
from gt.ops.sharding import created, same_shape
from gt.program import SCALARS, Spec, spec


def _infer_full(value: Spec, *, shape: Any, dtype: Any) -> Spec:
    rules.number("full", value)
    return spec(rules.shape("full", shape), rules.dtype("full", dtype))


def _full_graph(torch: Any, site: Site, *, shape: Any, dtype: str) -> Any:
    target, kind = tuple(shape), getattr(torch, dtype)
    return lambda value: value.to(kind).expand(target).clone(memory_format=torch.contiguous_format)


full = op(
    "full",
    "A tensor filled with one number.",
    infer=_infer_full,
    keeps=(0,),
    factors=created,
    local=same_shape,
    vjp=None,
    kernels={
        "array": lambda xp, value, *, shape, dtype: xp.full(tuple(shape), value, dtypes.BY_NAME[dtype].numpy),
        "torch": lambda torch, site, *, shape, dtype: partial(
            torch.full, tuple(shape), dtype=getattr(torch, dtype), device=site.device
        ),
        "torch_graph": _full_graph,
    },
    samples=lambda rng: [
        ((1.5,), {"shape": (2, 3), "dtype": "float32"}),
        ((2,), {"shape": (), "dtype": "int64"}),
        ((True,), {"shape": (0, 3), "dtype": "bool"}),
        ((0,), {"shape": (2,), "dtype": "bfloat16"}),
    ],
    flops=0,
)


def _infer_arange(start: Spec, step: Spec, *, n: Any, dtype: Any) -> Spec:
    rules.number("arange", start, step)
    result = spec((rules.size("arange", "n", n),), rules.dtype("arange", dtype))
    rules.not_bool("arange", result.dtype, "use full")
    return result


def _arange_array(xp: Any, start: Any, step: Any, *, n: int, dtype: str) -> Any:
    # In 64 bits: steps add up without error, whatever the result's type.
    wide = "int64" if isinstance(start, int) and isinstance(step, int) else "float64"
    return (start + step * xp.arange(n, dtype=wide)).astype(dtypes.BY_NAME[dtype].numpy)


def _arange_torch(torch: Any, site: Site, *, n: int, dtype: str) -> Any:
    kind, device = getattr(torch, dtype), site.device

    def kernel(start: Any, step: Any) -> Any:
        if start == 0 and step == 1:
            return torch.arange(n, dtype=kind, device=device)
        wide = torch.int64 if isinstance(start, int) and isinstance(step, int) else torch.float64
        return torch.arange(n, dtype=wide, device=device).mul_(step).add_(start).to(kind)

    return kernel


def _arange_graph(torch: Any, site: Site, *, n: int, dtype: str) -> Any:
    kind, device = getattr(torch, dtype), site.device
    wide = torch.float64 if any(s.dtype.is_floating_point for s in site.specs) else torch.int64

    def kernel(start: Any, step: Any) -> Any:
        return (torch.arange(n, dtype=wide, device=device) * step + start).to(kind)

    return kernel


def _arange_local(shard: Any, start: Any, step: Any, *, n: int, dtype: str) -> Any:
    wide = "float64" if any(s.dtype.is_floating_point for s in shard.specs) else "int64"
    places = shard.apply(ops.arange, shard.start("n"), 1, n=shard.size("n"), dtype=wide)
    return ops.cast(places * step + start, dtype=dtype)


def _end_of_arange(n: int, start: Any, step: Any) -> int:
    """What all of these numbers are below; -1 if one is negative, or they may be rounded."""
    if type(start) is not int or type(step) is not int:
        return -1
    last = start + step * (n - 1)
    return max(start, last) + 1 if min(start, last) >= 0 else -1


arange = op(
    "arange",
    "n numbers: start, start + step, start + 2 * step, ...",
    infer=_infer_arange,
    spans=lambda start, step, *, n, dtype: {0: partial(_end_of_arange, n)},
    factors=", -> n@",
    local=_arange_local,
    vjp=None,
    kernels={"array": _arange_array, "torch": _arange_torch, "torch_graph": _arange_graph},
    samples=lambda rng: [
        ((0, 1), {"n": 5, "dtype": "int64"}),
        ((2, -3), {"n": 4, "dtype": "int32"}),
        ((0.5, 0.1), {"n": 7, "dtype": "float32"}),
        ((0, 1), {"n": 0, "dtype": "float64"}),
    ],
    flops=0,
)


def _infer_data(data: Spec, *, shape: Any, dtype: Any) -> Spec:
    if data is not SCALARS["d"]:
        raise ArgumentError("data: expected bytes")
    return spec(rules.shape("data", shape), rules.dtype("data", dtype))


def _measured(data: bytes, shape: Any, dtype: str) -> bytes:
    wanted = math.prod(shape) * dtypes.BY_NAME[dtype].itemsize
    if len(data) != wanted:
        raise ArgumentError(f"data: {dtype} of shape {tuple(shape)} needs {wanted} bytes, got {len(data)}")
    return data


def _data_array(xp: Any, data: bytes, *, shape: Any, dtype: str) -> Any:
    flat = np.frombuffer(_measured(data, shape, dtype), dtypes.BY_NAME[dtype].numpy)
    return xp.array(flat.reshape(tuple(shape)))


def _data_jax(xp: Any, data: Any, *, shape: Any, dtype: str) -> Any:
    # The engine brings bytes as an array of them, whose values a compiled kernel need not know.
    return xp.asarray(_measured(data, shape, dtype)).view(dtypes.BY_NAME[dtype].numpy).reshape(tuple(shape))


def _data_torch(torch: Any, site: Site, *, shape: Any, dtype: str) -> Any:
    target, kind, device = tuple(shape), getattr(torch, dtype), site.device

    def kernel(data: bytes) -> Any:
        if not _measured(data, shape, dtype):
            return torch.empty(target, dtype=kind, device=device)
        # A bytearray: torch keeps the memory it is given, and wants to be able to write to it.
        return torch.frombuffer(bytearray(data), dtype=kind).view(target).to(device)

    return kernel


def _data_graph(torch: Any, site: Site, *, shape: Any, dtype: str) -> Any:
    target, kind = tuple(shape), getattr(torch, dtype)
    # A clone: the bytes are in memory that the next call overwrites.
    return lambda data: data.view(kind).view(target).clone()


def _bytes_of(x: Any) -> bytes:
    return bytes(np.ascontiguousarray(x).tobytes())


def _end_of_data(dtype: str, data: bytes) -> int:
    numbers = np.frombuffer(data, dtypes.BY_NAME[dtype].numpy)
    return int(numbers.max()) + 1 if numbers.min() >= 0 else -1


data = op(
    "data",
    "A small tensor of host data that is sent with the call.",
    infer=_infer_data,
    spans=lambda data, *, shape, dtype: {0: partial(_end_of_data, dtype)},
    vjp=None,
    kernels={"array": _data_array, "jax": _data_jax, "torch": _data_torch, "torch_graph": _data_graph},
    samples=lambda rng: [
        ((_bytes_of(rng.normal(size=(2, 3))),), {"shape": (2, 3), "dtype": "float64"}),
        ((_bytes_of(rng.normal(size=3).astype(dtypes.bfloat16.numpy)),), {"shape": (3,), "dtype": "bfloat16"}),
        ((_bytes_of(np.array(True)),), {"shape": (), "dtype": "bool"}),
        ((_bytes_of(np.array([[3], [0]])),), {"shape": (2, 1), "dtype": "int64"}),
        ((b"",), {"shape": (0, 2), "dtype": "int64"}),
    ],
    flops=0,
)
