"""Looking elements up by index tensors, on shards.

A shard that has a part of the indexed dimension answers for the indices that fall into it and gives zeros for the
others; the sum over shards has every element once. Adding works the other way round: what belongs to other shards is
zero here.
"""

from __future__ import annotations

from typing import Any

from gt.ops import rules
from gt.ops.record import ops
from gt.ops.sharding import letters, masked, with_place, within
from gt.program import Spec


def rule(text: str, ndim: int, dim: int) -> str:
    """A rule of the factors of a tensor, the whole (v along dim), and of rows of it (i there)."""
    names = letters(ndim, "iv")
    return text.format(whole=with_place(names, dim, "v@"), rows=with_place(names, dim, "i"))


def _row(inside: Any, dim: int, ndim: int) -> Any:
    """A condition of one dimension, as it broadcasts along dim."""
    return ops.reshape(inside, shape=(*inside.shape, *(1,) * (ndim - dim - 1)))


def select_local(shard: Any, x: Any, index: Any, *, dim: int) -> Any:
    if not shard.split("v"):
        return shard.again(x, index, dim=dim)
    inside, place = within(index, shard.start("v"), shard.size("v"))
    return masked(_row(inside, dim, x.ndim), shard.again(x, place, dim=dim))


def _added_local(shard: Any, src: Any, index: Any, dim: int) -> tuple[Any, Any]:
    """Rows to add and where: rows of other shards become zeros."""
    if not shard.split("v"):
        return src, index
    inside, place = within(index, shard.start("v"), shard.size("v"))
    return masked(_row(inside, dim, src.ndim), src), place


def index_add_local(shard: Any, x: Any, index: Any, src: Any, *, dim: int) -> Any:
    src, index = _added_local(shard, src, index, dim)
    return shard.again(x, index, src, dim=dim)


def select_dx_local(shard: Any, g: Any, index: Any, *, shape: Any, dim: int) -> Any:
    return shard.again(*_added_local(shard, g, index, dim), shape=shard.results[0].shape, dim=dim)


def _index_names(shape: tuple[int, ...], indices: tuple[Any, ...], dims: Any) -> tuple[str, list[str], str, int]:
    """The factors of x, of each index, of the result; and how many dimensions of the result follow the indices'."""
    rest = [f"v{d}@" if d in dims else a for d, a in enumerate(letters(len(shape), "iv"))]
    common = rules.broadcast("index", *(i.shape for i in indices))
    names = [f"i{k}" if n != 1 else "1" for k, n in enumerate(common)]
    each = []
    for i in indices:
        mine = zip(names[len(common) - i.ndim :], i.shape, strict=True)
        each.append(" ".join("1" if n == 1 else a for a, n in mine))
    left = [a for d, a in enumerate(rest) if d not in dims]
    front = dims[0] if dims[-1] - dims[0] == len(dims) - 1 else 0
    return " ".join(rest), each, " ".join([*left[:front], *names, *left[front:]]), len(left) - front


def index_rule(text: str, shape: tuple[int, ...], indices: tuple[Spec, ...], dims: Any) -> str:
    """A rule of the factors of x, the whole, of the indices, and of what is there."""
    whole, each, there, _ = _index_names(shape, indices, dims)
    return text.format(whole=whole, indices=", ".join(each), there=there)


def _index_here(shard: Any, indices: tuple[Any, ...], dims: Any, after: int) -> tuple[Any, tuple[Any, ...]]:
    """Which elements this shard has (None: all), as it broadcasts against them; and their places in it."""
    mask, places = None, []
    for i, d in zip(indices, dims, strict=True):
        if shard.split(f"v{d}"):
            inside, i = within(i, shard.start(f"v{d}"), shard.size(f"v{d}"))
            mask = inside if mask is None else ops.logical_and(mask, inside)
        places.append(i)
    if mask is not None:
        mask = ops.reshape(mask, shape=(*mask.shape, *(1,) * after))
    return mask, tuple(places)


def index_local(shard: Any, x: Any, *indices: Any, dims: Any) -> Any:
    mask, places = _index_here(shard, indices, dims, _index_names(x.shape, indices, dims)[3])
    made = shard.again(x, *places, dims=dims)
    return made if mask is None else masked(mask, made)


def index_dx_local(shard: Any, g: Any, *indices: Any, shape: Any, dims: Any) -> Any:
    mask, places = _index_here(shard, indices, dims, _index_names(tuple(shape), indices, dims)[3])
    return shard.again(g if mask is None else masked(mask, g), *places, shape=shard.results[0].shape, dims=dims)


def index_put_rule(x: Spec, value: Spec, *indices: Spec, dims: Any, **attrs: Any) -> str:
    """Where it is indexed all is whole: a shard cannot leave out what other shards write."""
    whole, each, there, _ = _index_names(x.shape, indices, dims)
    places = there.replace("i", "!i").split()
    mine = zip(value.shape, places[len(places) - value.ndim :], strict=True)
    values = [whole.replace("v", "!v").replace("@", ""), " ".join("1" if n == 1 else a for n, a in mine)]
    return f"{', '.join([*values, *(i.replace('i', '!i') for i in each)])} -> {values[0]}"


def select_at_rule(x: Spec, index: Spec, *, dim: int) -> str:
    whole = rule("{whole}", x.ndim, dim)
    return f"{whole}, -> {' '.join(a for a in whole.split() if a != 'v@')}"


def picked_local(shard: Any, x: Any, index: Any, *, dim: int) -> Any:
    """Of an op that picks elements along dim, each by its own index: those of other shards become zeros."""
    if not shard.split("v"):
        return shard.again(x, index, dim=dim)
    inside, place = within(index, shard.start("v"), shard.size("v"))
    return masked(inside, shard.again(x, place, dim=dim))


def one_hot_local(shard: Any, index: Any, *, n: int) -> Any:
    classes = shard.apply(ops.arange, shard.start("v"), 1, n=shard.size("v"), dtype="int64")
    return ops.cast(ops.eq(ops.reshape(index, shape=(*index.shape, 1)), classes), dtype="int64")
