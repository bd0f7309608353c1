"""Ops that look elements up by index tensors, and their inverses.

Indices here are never negative (`wrap_index` turns them) and never out of range: `indices` tells the
worker what to check before a kernel sees them. On a GPU a bad index would kill the whole process.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gt import dtypes
from gt.errors import ArgumentError, ShapeError
from gt.ops import rules
from gt.ops.families import index_shards
from gt.ops.families.placing import add_at, put_at
from gt.ops.record import Autocast, Rng, Sample, Site, fill, op, ops
from gt.ops.sharding import linear_op, pointwise_op, spelled
from gt.program import Spec, spec

# -- index_select, index_add -----------------------------------------------------------------


def _infer_index_select(x: Spec, index: Spec, *, dim: Any) -> Spec:
    rules.tensor("index_select", x)
    rules.index("index_select", index)
    dim = rules.dim("index_select", dim, x.ndim)
    if index.ndim != 1:
        raise ShapeError(f"index_select: the index must have one dimension, got shape {index.shape}")
    return spec((*x.shape[:dim], index.shape[0], *x.shape[dim + 1 :]), x.dtype)


def _index_add_array(xp: Any, x: Any, index: Any, src: Any, *, dim: int) -> Any:
    return add_at(xp, x, (slice(None),) * dim + (index,), src)


def _select_samples(rng: Rng) -> list[tuple[Any, Any, int]]:
    return [
        (rng.normal(size=(3, 4)), rng.integers(0, 4, size=5), 1),
        (rng.normal(size=(3, 2, 2)), rng.integers(0, 3, size=2, dtype=np.int32), 0),
        (rng.normal(size=(3, 4)), np.zeros(0, np.int64), 0),
        (rng.normal(size=(3, 0)), np.array([0, 2, 2]), 0),
    ]


def _chosen(x: Any, index: Any, dim: int) -> tuple[int, ...]:
    return (*x.shape[:dim], len(index), *x.shape[dim + 1 :])


index_select = linear_op(
    "index_select",
    "The rows of x at `index`, along dim.",
    infer=_infer_index_select,
    factors=lambda x, index, *, dim: index_shards.rule("{whole}, i -> {rows}", x.ndim, dim),
    local=index_shards.select_local,
    vjp=(lambda g, y, x, index, *, dim: ops.index_select_dx(g, index, shape=x.shape, dim=dim),),
    kernels={
        "array": lambda xp, x, index, *, dim: xp.take(x, index, axis=dim),
        "torch": lambda torch, site, *, dim: lambda x, index: torch.index_select(x, dim, index),
    },
    indices=lambda x, index, *, dim: {1: (x.shape[dim], None)},
    keeps=(0,),
    samples=lambda rng: [((x, i), {"dim": d}) for x, i, d in _select_samples(rng)],
    flops=0,
)


def _check_add(name: str, shape: tuple[int, ...], index: Spec, src: Spec, dim: Any) -> None:
    rules.tensor(name, src)
    rules.index(name, index)
    dim = rules.dim(name, dim, len(shape))
    if index.ndim != 1 or src.shape != (*shape[:dim], index.shape[0], *shape[dim + 1 :]):
        raise ShapeError(f"{name}: src {src.shape} at an index {index.shape} does not fit into shape {shape}")


def _infer_index_add(x: Spec, index: Spec, src: Spec, *, dim: Any) -> Spec:
    rules.tensor("index_add", x)
    rules.same_dtype("index_add", x, src)
    _check_add("index_add", x.shape, index, src, dim)
    return x


index_add = op(
    "index_add",
    "x with the rows of src added at `index`, along dim.",
    infer=_infer_index_add,
    factors=lambda x, index, src, *, dim: index_shards.rule("{whole}, i, {rows} -> {whole}", x.ndim, dim),
    linear=((0, 2),),
    local=index_shards.index_add_local,
    vjp=(
        lambda g, y, x, index, src, *, dim: g,
        None,
        lambda g, y, x, index, src, *, dim: ops.index_select(g, index, dim=dim),
    ),
    kernels={
        "array": _index_add_array,
        "torch": lambda torch, site, *, dim: lambda x, index, src: torch.index_add(x, dim, index, src),
    },
    indices=lambda x, index, src, *, dim: {1: (x.shape[dim], None)},
    samples=lambda rng: [((x, i, rng.normal(size=_chosen(x, i, d))), {"dim": d}) for x, i, d in _select_samples(rng)],
    flops=lambda x, index, src, **attrs: src.size,
)


def _infer_index_select_dx(g: Spec, index: Spec, *, shape: Any, dim: Any) -> Spec:
    shape = rules.shape("index_select_dx", shape)
    _check_add("index_select_dx", shape, index, g, dim)
    return spec(shape, g.dtype)


index_select_dx = linear_op(
    "index_select_dx",
    "The gradient of index_select: the rows of g are added at `index`, along dim.",
    infer=_infer_index_select_dx,
    factors=lambda g, index, *, shape, dim: index_shards.rule("{rows}, i -> {whole}", len(shape), dim),
    local=index_shards.select_dx_local,
    vjp=(lambda u, z, g, index, *, shape, dim: ops.index_select(u, index, dim=dim),),
    kernels={
        "array": lambda xp, g, index, *, shape, dim: _index_add_array(
            xp, xp.zeros(tuple(shape), g.dtype), index, g, dim=dim
        ),
        "torch": lambda torch, site, *, shape, dim: lambda g, index: g.new_zeros(shape).index_add_(dim, index, g),
    },
    indices=lambda g, index, *, shape, dim: {1: (shape[dim], None)},
    samples=lambda rng: [
        ((rng.normal(size=_chosen(x, i, d)), i), {"shape": x.shape, "dim": d}) for x, i, d in _select_samples(rng)
    ],
    flops=lambda g, index, **attrs: g.size,
)

# -- advanced indexing -----------------------------------------------------------------------


def _indexed(name: str, shape: tuple[int, ...], indices: tuple[Spec, ...], dims: Any) -> tuple[int, ...]:
    """The shape of x[..., i, j, ...] with index tensors in `dims`.

    Their common shape stands where they stood, if they stood together, else in front.
    """
    dims = rules.dims(name, dims, len(shape))
    rules.index(name, *indices)
    if not indices or len(dims) != len(indices):
        raise ArgumentError(f"{name}: expected one index tensor for each of {len(dims)} dimensions, got {len(indices)}")
    if list(dims) != sorted(dims):
        raise ArgumentError(f"{name}: dims must be in ascending order, got {dims}")
    common = rules.broadcast(name, *(i.shape for i in indices))
    rest = tuple(n for d, n in enumerate(shape) if d not in dims)
    front = dims[0] if dims[-1] - dims[0] == len(dims) - 1 else 0
    return rest[:front] + common + rest[front:]


def _places(ndim: int, indices: tuple[Any, ...], dims: Any, rest: Any) -> list[Any]:
    """An index for every dimension: the tensors in `dims`, `rest` elsewhere."""
    places = [rest] * ndim
    for d, i in zip(dims, indices, strict=True):
        places[d] = i
    return places


def _index_torch(torch: Any, site: Site, *, dims: Any) -> Any:
    f, ndim, dims = torch.ops.aten.index.Tensor, site.specs[0].ndim, tuple(dims)
    return lambda x, *indices: f(x, _places(ndim, indices, dims, None))


def _index_samples(rng: Rng) -> list[tuple[Any, tuple[Any, ...], tuple[int, ...]]]:
    x = rng.normal(size=(3, 4, 5))

    def draw(n: int, *size: int) -> Any:
        return rng.permutation(n)[: max(int(np.prod(size)), 0)].reshape(size)

    return [
        (x, (draw(3, 2),), (0,)),
        (x, (draw(4, 2, 1), draw(5, 2)), (1, 2)),
        (x, (draw(3, 2), draw(5, 2).astype(np.int32)), (0, 2)),
        (x, (np.array(1), np.array(2)), (0, 1)),
        (x, (np.zeros(0, np.int64),), (1,)),
        (x, (draw(3, 3), draw(4, 3), draw(5, 3)), (0, 1, 2)),
        (rng.normal(size=(2, 3, 1, 4)), (draw(3, 2), draw(4, 2)), (1, 3)),  # apart: they land in front
    ]


index = linear_op(
    "index",
    "x indexed by integer tensors in the given dimensions, as in torch.",
    infer=lambda x, *indices, dims: spec(_indexed("index", rules.tensor("index", x).shape, indices, dims), x.dtype),
    factors=lambda x, *i, dims: index_shards.index_rule("{whole}, {indices} -> {there}", x.shape, i, dims),
    local=index_shards.index_local,
    vjp=(lambda g, y, x, *indices, dims: ops.index_dx(g, *indices, shape=x.shape, dims=dims),),
    kernels={
        "array": lambda xp, x, *indices, dims: x[tuple(_places(x.ndim, indices, dims, slice(None)))],
        "torch": _index_torch,
    },
    indices=lambda x, *indices, dims: {1 + k: (x.shape[d], None) for k, d in enumerate(dims)},
    keeps=(0,),
    samples=lambda rng: [((x, *indices), {"dims": d}) for x, indices, d in _index_samples(rng)],
    flops=0,
)


def _infer_index_dx(g: Spec, *indices: Spec, shape: Any, dims: Any) -> Spec:
    rules.tensor("index_dx", g)
    shape = rules.shape("index_dx", shape)
    if g.shape != _indexed("index_dx", shape, indices, dims):
        raise ShapeError(f"index_dx: gradient {g.shape} does not have the indexed shape")
    return spec(shape, g.dtype)


def _index_dx_torch(torch: Any, site: Site, *, shape: Any, dims: Any) -> Any:
    f, target, dims = torch.ops.aten.index_put_.default, tuple(shape), tuple(dims)
    ndim = len(target)
    return lambda g, *indices: f(g.new_zeros(target), _places(ndim, indices, dims, None), g, True)


def _index_put_array(xp: Any, x: Any, value: Any, *indices: Any, dims: Any, accumulate: bool) -> Any:
    place = tuple(_places(x.ndim, indices, dims, slice(None)))
    return add_at(xp, x, place, value) if accumulate else put_at(x, place, value)


index_dx = linear_op(
    "index_dx",
    "The gradient of index: g is added at the indexed positions.",
    infer=_infer_index_dx,
    factors=lambda g, *i, shape, dims: index_shards.index_rule("{there}, {indices} -> {whole}", shape, i, dims),
    local=index_shards.index_dx_local,
    vjp=(lambda u, z, g, *indices, shape, dims: ops.index(u, *indices, dims=dims),),
    kernels={
        "array": lambda xp, g, *indices, shape, dims: _index_put_array(
            xp, xp.zeros(tuple(shape), g.dtype), g, *indices, dims=dims, accumulate=True
        ),
        "torch": _index_dx_torch,
    },
    indices=lambda g, *indices, shape, dims: {1 + k: (shape[d], None) for k, d in enumerate(dims)},
    samples=lambda rng: [
        ((rng.normal(size=x[tuple(_places(x.ndim, i, d, slice(None)))].shape), *i), {"shape": x.shape, "dims": d})
        for x, i, d in _index_samples(rng)
    ],
    flops=lambda g, *indices, **attrs: g.size,
)


def _infer_index_put(x: Spec, value: Spec, *indices: Spec, dims: Any, accumulate: Any) -> Spec:
    rules.tensor("index_put", x)
    rules.either("index_put", x, value)
    if not value.weak:
        rules.same_dtype("index_put", x, value)
    rules.flag("index_put", "accumulate", accumulate)
    rules.expands("index_put", "a value", value.shape, _indexed("index_put", x.shape, indices, dims))
    return x


def _index_put_torch(torch: Any, site: Site, *, dims: Any, accumulate: bool) -> Any:
    f, ndim, dims = torch.ops.aten.index_put.default, site.specs[0].ndim, tuple(dims)
    if site.specs[1].weak:
        return lambda x, value, *indices: f(x, _places(ndim, indices, dims, None), x.new_full((), value), accumulate)
    return lambda x, value, *indices: f(x, _places(ndim, indices, dims, None), value, accumulate)


def _index_put_graph(torch: Any, site: Site, *, dims: Any, accumulate: bool) -> Any:
    f, ndim, dims = torch.ops.aten.index_put.default, site.specs[0].ndim, tuple(dims)
    return lambda x, value, *indices: f(x, _places(ndim, indices, dims, None), value.to(x.dtype), accumulate)


def _put_samples(rng: Rng) -> list[Sample]:
    cases: list[Sample] = []
    for x, i, d in _index_samples(rng):
        shape = x[tuple(_places(x.ndim, i, d, slice(None)))].shape
        cases.append(((x, rng.normal(size=shape), *i), {"dims": d, "accumulate": False}))
        cases.append(((x, rng.normal(size=shape[-1:]), *i), {"dims": d, "accumulate": True}))
    x, i, d = _index_samples(rng)[0]
    return [*cases, ((x, 1.5, *i), {"dims": d, "accumulate": False})]


index_put = op(
    "index_put",
    "x with `value` written or added at the positions given by integer tensors in the given dimensions.",
    infer=_infer_index_put,
    factors=index_shards.index_put_rule,
    linear=lambda x, value, *indices, accumulate, **attrs: ((0, 1),) if accumulate else (),
    vjp=(
        lambda g, y, x, value, *i, accumulate, **at: (
            g if accumulate else ops.index_put(g, fill(g, 0.0, (), g.dtype), *i, accumulate=False, **at)
        ),
        lambda g, y, x, value, *i, accumulate, **at: ops.index(g, *i, **at),
    ),
    kernels={"array": _index_put_array, "torch": _index_put_torch, "torch_graph": _index_put_graph},
    indices=lambda x, value, *indices, dims, accumulate: {2 + k: (x.shape[d], None) for k, d in enumerate(dims)},
    keeps=lambda x, value, *indices, dims, accumulate: () if accumulate else (0, 1),
    samples=_put_samples,
    autocast=Autocast(cuda="widest"),
    flops=0,
)


def _infer_select_at(x: Spec, index: Spec, *, dim: Any) -> Spec:
    rules.tensor("select_at", x)
    rules.index("select_at", index)
    dim = rules.dim("select_at", dim, x.ndim)
    if index.ndim:
        raise ShapeError(f"select_at: the index must have no dimensions, got shape {index.shape}")
    return spec(x.shape[:dim] + x.shape[dim + 1 :], x.dtype)


select_at = linear_op(
    "select_at",
    "The slice of x along dim at an index that is a tensor without dimensions; a view.",
    infer=_infer_select_at,
    factors=index_shards.select_at_rule,
    local=index_shards.picked_local,
    vjp=(lambda g, y, x, index, *, dim: ops.index_dx(g, index, shape=x.shape, dims=(dim,)),),
    kernels={
        "array": lambda xp, x, index, *, dim: xp.take(x, index, axis=dim),
        "torch": lambda torch, site, *, dim: lambda x, i: x.index_select(dim, i.reshape(1)).squeeze(dim),
    },
    indices=lambda x, index, *, dim: {1: (x.shape[dim], None)},
    keeps=(0,),
    put=lambda base, new, k, index, *, dim: ops.index_put(base, new, index, dims=(dim,), accumulate=False),
    samples=lambda rng: [
        ((rng.normal(size=(3, 4)), np.array(2)), {"dim": 0}),
        ((rng.normal(size=(3, 4, 2)), np.array(1, np.int32)), {"dim": 1}),
        ((rng.normal(size=3), np.array(0)), {"dim": 0}),
        ((np.zeros((3, 0)), np.array(0)), {"dim": 0}),
    ],
)

# -- positions: flatnonzero, one_hot, wrap_index ---------------------------------------------------------------------


def _infer_flatnonzero(x: Spec, *, n: Any) -> Spec:
    rules.tensor("flatnonzero", x)
    if rules.size("flatnonzero", "n", n) > x.size:
        raise ShapeError(f"flatnonzero: n must be from 0 to {x.size}, got {n}")
    return spec((n,), dtypes.int64)


def _flatnonzero_numpy(xp: Any, x: Any, *, n: int) -> Any:
    found = xp.flatnonzero(x)[:n]
    return xp.pad(found, (0, n - len(found)))


flatnonzero = op(
    "flatnonzero",
    "The indices of the n elements of the flattened x that are not zero.",
    infer=_infer_flatnonzero,
    ranges=lambda x, *, n: {0: x.size},
    vjp=None,
    # The client says how many there are, since a size must be known beforehand. Should that be wrong,
    # the result has the size it said, cut or filled up with zeros.
    kernels={
        "numpy": _flatnonzero_numpy,
        "jax": lambda xp, x, *, n: xp.flatnonzero(x, size=n, fill_value=0),
        "torch": lambda torch, site, *, n: lambda x: torch.nonzero_static(x.reshape(-1), size=n, fill_value=0)[:, 0],
    },
    samples=lambda rng: [
        ((np.array([[True, False], [True, True]]),), {"n": 3}),
        ((np.array([0.0, 1.5, 0.0, -2.0, np.nan]),), {"n": 3}),
        ((np.array([0, 5, 6]),), {"n": 1}),
        ((np.array([0, 5, 0]),), {"n": 2}),
        ((np.zeros((2, 0)),), {"n": 0}),
        ((np.array(True),), {"n": 1}),
    ],
)


def _one_hot_torch(torch: Any, site: Site, *, n: int) -> Any:
    shape, device, int64 = site.results[0].shape, site.device, torch.int64

    def kernel(index: Any) -> Any:
        return torch.zeros(shape, dtype=int64, device=device).scatter_(-1, index.long().unsqueeze(-1), 1)

    return kernel


one_hot = op(
    "one_hot",
    "1 at the index and 0 elsewhere, in a new last dimension of size n.",
    infer=lambda index, *, n: spec((*rules.index("one_hot", index).shape, rules.size("one_hot", "n", n)), dtypes.int64),
    factors=lambda index, *, n: spelled("* -> * v@", index.ndim, "v"),
    local=index_shards.one_hot_local,
    vjp=None,
    kernels={
        "array": lambda xp, index, *, n: (index[..., None] == xp.arange(n)).astype("int64"),
        "torch": _one_hot_torch,
    },
    indices=lambda index, *, n: {0: (n, None)},
    samples=lambda rng: [
        ((rng.integers(0, 4, size=(2, 3)),), {"n": 4}),
        ((np.array(1),), {"n": 3}),
        ((np.zeros((0, 2), np.int32),), {"n": 3}),
    ],
    flops=0,
)


def _infer_wrap(index: Spec, *, n: Any) -> Spec:
    rules.index("wrap_index", index)
    rules.size("wrap_index", "n", n)
    return index


wrap_index = pointwise_op(
    "wrap_index",
    "An index with n added where it is negative: -1 is the last element.",
    infer=_infer_wrap,
    keeps=(0,),  # what is not negative stays as it is
    vjp=None,
    kernels={
        "array": lambda xp, index, *, n: xp.where(index < 0, index + n, index),
        "torch": lambda torch, site, *, n: lambda index: torch.where(index < 0, index + n, index),
    },
    samples=lambda rng: [
        ((rng.integers(-4, 4, size=(2, 3)),), {"n": 4}),
        ((np.array(-1, np.int32),), {"n": 3}),
        ((np.zeros(0, np.int64),), {"n": 3}),
    ],
)
