"""A part of a tensor, and putting a part back.

Where a slice starts is a number passed with each call, so that `X[i:i+64]` with a moving i is one
program; its length and step are structure. A start is checked when the slice is taken.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gt.errors import ArgumentError, IndexOutOfRange, ShapeError
from gt.ops import rules
from gt.ops.families.placing import put_at
from gt.ops.record import PreparedKernel, Rng, Site, fill, op, ops
from gt.ops.sharding import letters, linear_op, masked, within
from gt.program import Spec, spec


class Cut:
    """The position of a slice in a tensor of `shape`: checked attributes, and what the kernels need."""

    __slots__ = ("dims", "drop", "full", "lengths", "limits", "result", "shape", "spans", "steps")

    def __init__(self, op: str, shape: Any, dims: Any, lengths: Any, steps: Any, drop: Any) -> None:
        self.shape: tuple[int, ...] = tuple(shape)
        self.dims = rules.dims(op, dims, len(self.shape))
        self.lengths = rules.ints(op, "lengths", lengths, len(self.dims))
        self.steps = rules.ints(op, "steps", steps, len(self.dims))
        self.drop = rules.dims(op, drop, len(self.shape))
        full, spans = list(self.shape), list(self.shape)
        limits = []  # the first start that is too far
        for d, length, step in zip(self.dims, self.lengths, self.steps, strict=True):
            last = (length - 1) * step if length else 0
            if step < 1 or length < 0 or last >= max(full[d], 1):
                raise ShapeError(f"{op}: {length} elements, step {step}, do not fit into size {full[d]}")
            limits.append(full[d] - last + (length == 0))
            full[d] = length
            spans[d] = last + 1 if length else 0
        self.spans = tuple(spans)  #: how much of each dimension is between the slice's ends
        self.limits = tuple(limits)
        self.full = tuple(full)  #: the slice's shape before `drop`
        for d in self.drop:
            if d not in self.dims or full[d] != 1:
                raise ShapeError(f"{op}: dimension {d} of size {full[d]} cannot be dropped")
        self.result = tuple(n for d, n in enumerate(full) if d not in self.drop)

    def where(self, starts: tuple[int, ...]) -> tuple[slice, ...]:
        """The slice as Python knows it; refuses elements outside, which Python would leave out."""
        place = [slice(None)] * len(self.shape)
        for i, start in enumerate(starts):
            self.check(i, start)
            step, length = self.steps[i], self.lengths[i]
            place[self.dims[i]] = slice(start, start + (length - 1) * step + 1 if length else start, step)
        return tuple(place)

    def check(self, i: int, start: int) -> None:
        if not 0 <= start < self.limits[i]:
            d = self.dims[i]
            raise IndexOutOfRange(
                f"slice: {self.lengths[i]} elements from {start} exceed dimension {d} of size {self.shape[d]}"
            )


def _starts(name: str, cut: Cut, starts: tuple[Spec, ...]) -> None:
    rules.integer(name, *starts)
    if len(starts) != len(cut.dims):
        raise ArgumentError(f"{name}: {len(starts)} starts for {len(cut.dims)} dimensions")


def _infer_slice(x: Spec, *starts: Spec, dims: Any, lengths: Any, steps: Any, drop: Any) -> Spec:
    rules.tensor("slice", x)
    cut = Cut("slice", x.shape, dims, lengths, steps, drop)
    _starts("slice", cut, starts)
    return spec(cut.result, x.dtype)


def _slice_array(xp: Any, x: Any, *starts: int, **attrs: Any) -> Any:
    cut = Cut("slice", x.shape, **attrs)
    return x[cut.where(starts)].reshape(cut.result)


def _corner(cut: Cut, starts: tuple[Any, ...]) -> list[Any]:
    """Where the slice begins in every dimension."""
    corner: list[Any] = [0] * len(cut.shape)
    for d, start in zip(cut.dims, starts, strict=True):
        corner[d] = start
    return corner


def _apart(cut: Cut) -> tuple[slice, ...]:
    """What to take of the span between the slice's ends."""
    steps = dict(zip(cut.dims, cut.steps, strict=True))
    return tuple(slice(None, None, steps.get(d, 1)) for d in range(len(cut.shape)))


def _slice_jax(jax: Any, x: Any, *starts: Any, **attrs: Any) -> Any:
    # Starts that are known only when it runs: the span has a fixed size, its place has not.
    cut = Cut("slice", x.shape, **attrs)
    return jax.lax.dynamic_slice(x, _corner(cut, starts), cut.spans)[_apart(cut)].reshape(cut.result)


def _slice_put_jax(jax: Any, x: Any, new: Any, *starts: Any, **attrs: Any) -> Any:
    cut = Cut("slice_put", x.shape, **attrs)
    corner, new = _corner(cut, starts), new.reshape(cut.full)
    if cut.spans != cut.full:
        new = jax.lax.dynamic_slice(x, corner, cut.spans).at[_apart(cut)].set(new)
    return jax.lax.dynamic_update_slice(x, new, corner)


def _check_starts(specs: tuple[Spec, ...], *, shape: Any = None, **attrs: Any) -> Any:
    """The check of the starts, for kernels that cannot see them."""
    cut = Cut("slice", specs[0].shape if shape is None else shape, **attrs)
    return lambda *starts: cut.where(starts)


def _slice_torch(torch: Any, site: Site, **attrs: Any) -> Any:
    cut = Cut("slice", site.specs[0].shape, **attrs)
    if len(cut.dims) == 1 and cut.steps == (1,):
        dim, length = cut.dims[0], cut.lengths[0]
        if cut.drop:
            return lambda x, start: x.select(dim, start)  # torch refuses elements outside
        return lambda x, start: x.narrow(dim, start, length)
    view = _view_torch(cut)
    return lambda x, *starts: view(x, starts)


def _view_torch(cut: Cut) -> Any:
    """The slice of a torch tensor, sharing its memory."""
    drop = sorted(cut.drop, reverse=True)

    def view(x: Any, starts: tuple[int, ...]) -> Any:
        x = x[cut.where(starts)]
        for d in drop:
            x = x.select(d, 0)
        return x

    return view


# -- in a graph: the host checks the starts, indices are computed of them ---------------------


def _prepared(cut: Cut, kernel: Any) -> PreparedKernel:
    def numbers(*starts: int) -> tuple[int, ...]:
        cut.where(starts)
        return starts

    return PreparedKernel(numbers, "i" * len(cut.dims), kernel)


def _positions(torch: Any, site: Site, cut: Cut, i: int, start: Any) -> Any:
    """The slice's indices in its i-th dimension."""
    return torch.arange(cut.lengths[i], device=site.device) * cut.steps[i] + start


def _moving(cut: Cut) -> list[int]:
    """The positions in `dims` where the slice is not all there is."""
    return [i for i, d in enumerate(cut.dims) if cut.full[d] != cut.shape[d]]


def _slice_graph(torch: Any, site: Site, **attrs: Any) -> PreparedKernel:
    cut = Cut("slice", site.specs[0].shape, **attrs)

    def kernel(x: Any, *starts: Any) -> Any:
        for i in _moving(cut):
            x = x.index_select(cut.dims[i], _positions(torch, site, cut, i, starts[i]))
        return x.reshape(cut.result)

    return _prepared(cut, kernel)


def _slice_put_graph(torch: Any, site: Site, **attrs: Any) -> PreparedKernel:
    # As an index_put, which a compiler can do in place if the base may be overwritten.
    cut = Cut("slice_put", site.specs[0].shape, **attrs)
    moving = _moving(cut)
    if not moving:
        return _prepared(cut, lambda x, new, *starts: new.reshape(cut.full).clone())
    first, last = min(cut.dims[i] for i in moving), max(cut.dims[i] for i in moving)

    def kernel(x: Any, new: Any, *starts: Any) -> Any:
        # Index tensors for all dimensions in between: only then do they stay where they are.
        places = {d: torch.arange(cut.shape[d], device=site.device) for d in range(first, last + 1)}
        for i in moving:
            places[cut.dims[i]] = _positions(torch, site, cut, i, starts[i])
        index = [None] * first + [places[d].view(-1, *[1] * (last - d)) for d in range(first, last + 1)]
        return torch.ops.aten.index_put.default(x, index, new.reshape(cut.full))

    return _prepared(cut, kernel)


def _slice_dx_graph(torch: Any, site: Site, *, shape: Any, **attrs: Any) -> PreparedKernel:
    # Read from where it is written to: the element of g that belongs there, or 0. This fuses with what it is added to.
    cut = Cut("slice_dx", shape, **attrs)

    def kernel(g: Any, *starts: Any) -> Any:
        g = g.reshape(cut.full)
        inside = None
        for i in _moving(cut):
            d, length, step = cut.dims[i], cut.lengths[i], cut.steps[i]
            if not length:
                return g.new_zeros(cut.shape)
            away = torch.arange(cut.shape[d], device=site.device) - starts[i]
            here = (away >= 0) & (away <= (length - 1) * step)
            if step > 1:
                here, away = here & (away % step == 0), away // step
            g = g.index_select(d, away.clamp(0, length - 1))
            here = here.view(-1, *[1] * (len(cut.shape) - 1 - d))
            inside = here if inside is None else inside & here
        return g.clone() if inside is None else torch.where(inside, g, g.new_zeros(()))

    return _prepared(cut, kernel)


def _cut_samples(rng: Rng) -> list[tuple[Any, tuple[int, ...], dict[str, Any]]]:
    """(base, starts, attributes)"""

    def attrs(dims: Any, lengths: Any, steps: Any = None, drop: Any = ()) -> dict[str, Any]:
        return {"dims": dims, "lengths": lengths, "steps": steps or (1,) * len(dims), "drop": drop}

    x = rng.normal(size=(4, 5, 3))
    return [
        (x, (1,), attrs((0,), (2,))),
        (x, (2,), attrs((1,), (1,), drop=(1,))),
        (x, (3, 0), attrs((0, 2), (1, 2), drop=(0,))),
        (x, (0, 1), attrs((0, 1), (2, 2), (2, 3))),
        (x, (4,), attrs((0,), (0,))),
        (x, (), attrs((), ())),
        (np.array([1.0, 2.0]), (1,), attrs((0,), (1,), drop=(0,))),
        (np.zeros((0, 2)), (1,), attrs((1,), (1,), drop=(1,))),
    ]


# -- on shards: where a slice starts is known only when it is taken, so a shard asks which of its elements are in it --


def _rule(text: str, starts: tuple[Spec, ...], ndim: int, dims: Any, drop: Any) -> str:
    """A rule of the factors of the whole (v where it is cut) and of the part (m there; none where it is dropped)."""
    rest = letters(ndim, "mv")
    whole = [f"v{d}@" if d in dims else a for d, a in enumerate(rest)]
    part = [f"m{d}@" if d in dims else a for d, a in enumerate(rest) if d not in drop]
    return text.format(whole=" ".join(whole), part=" ".join(part), starts=", " * len(starts))


def _begin(shard: Any, d: int, start: Any, length: int, step: int) -> Any:
    """Where the slice starts along d, as a tensor of one element: checked against the whole, as the op itself does."""
    limit = shard.sizes[f"v{d}"] - (length - 1) * step if length else shard.sizes[f"v{d}"] + 1
    return ops.in_range(shard.apply(ops.arange, start, 1, n=1, dtype="int64"), n=limit)


def _slice_local(shard: Any, x: Any, *starts: Any, dims: Any, lengths: Any, steps: Any, drop: Any) -> Any:
    """Elements of the slice that other shards have are zero here; the sum over shards has every one once."""
    left = []
    for d, start, length, step in zip(dims, starts, lengths, steps, strict=True):
        v, m = f"v{d}", f"m{d}"
        if not shard.split(v) and not (d not in drop and shard.split(m)):
            left.append((d, start, length, step))
            continue
        first, n = (0, 1) if d in drop else (shard.start(m), shard.size(m))
        places = shard.apply(ops.arange, first * step, step, n=n, dtype="int64") + _begin(shard, d, start, length, step)
        inside, place = within(places, shard.start(v), shard.size(v))
        x = ops.index_select(x, place, dim=d)
        if shard.split(v):
            x = masked(ops.reshape(inside, shape=(n, *(1,) * (x.ndim - d - 1))), x)
    if left:
        places, begins, sizes, by = zip(*left, strict=True)
        x = shard.again(x, *begins, dims=places, lengths=sizes, steps=by, drop=())
    return ops.reshape(x, shape=shard.results[0].shape)


slice_ = linear_op(
    "slice",
    "A slice of x: a start, length and step in some dimensions, of which those of length 1 may be dropped.",
    infer=_infer_slice,
    factors=lambda x, *starts, dims, drop, **attrs: _rule("{whole}{starts} -> {part}", starts, x.ndim, dims, drop),
    moves=True,
    local=_slice_local,
    vjp=(lambda g, y, x, *starts, **attrs: ops.slice_dx(g, *starts, shape=x.shape, **attrs),),
    kernels={
        "array": _slice_array,
        "jax_lib": _slice_jax,
        "torch": _slice_torch,
        "torch_graph": _slice_graph,
        "numbers": _check_starts,
    },
    put=lambda base, new, k, *starts, **attrs: ops.slice_put(base, new, *starts, **attrs),
    samples=lambda rng: [((x, *starts), attrs) for x, starts, attrs in _cut_samples(rng)],
)


def _infer_slice_put(x: Spec, new: Spec, *starts: Spec, dims: Any, lengths: Any, steps: Any, drop: Any) -> Spec:
    rules.tensor("slice_put", x, new)
    rules.same_dtype("slice_put", x, new)
    cut = Cut("slice_put", x.shape, dims, lengths, steps, drop)
    _starts("slice_put", cut, starts)
    if new.shape != cut.result:
        raise ShapeError(f"slice_put: expected a value of the slice's shape {cut.result}, got {new.shape}")
    return x


def _slice_put_array(xp: Any, x: Any, new: Any, *starts: int, **attrs: Any) -> Any:
    cut = Cut("slice_put", x.shape, **attrs)
    return put_at(x, cut.where(starts), new.reshape(cut.full))


def _slice_put_into(torch: Any, site: Site, **attrs: Any) -> Any:
    """Writes into the base it is given."""
    cut = Cut("slice_put", site.specs[0].shape, **attrs)
    view = _view_torch(cut)

    def write(x: Any, new: Any, *starts: int) -> Any:
        view(x, starts).copy_(new)
        return x

    return write


def _slice_put_torch(torch: Any, site: Site, **attrs: Any) -> Any:
    write = _slice_put_into(torch, site, **attrs)
    return lambda x, new, *starts: write(x.clone(), new, *starts)


def _slice_put_dx(g: Any, y: Any, x: Any, new: Any, *starts: int, **attrs: Any) -> Any:
    return ops.slice_put(g, fill(g, 0.0, new.shape, g.dtype), *starts, **attrs)


def _slice_put_rule(x: Spec, new: Spec, *starts: Spec, dims: Any, drop: Any, **attrs: Any) -> str:
    part = _rule("{part}", starts, x.ndim, dims, drop).replace("m", "!m").replace("@", "")
    return _rule(f"{{whole}}, {part}{{starts}} -> {{whole}}", starts, x.ndim, dims, drop)


def _laid_out(shard: Any, part: Any, starts: Any, dims: Any, lengths: Any, steps: Any, full: Any) -> tuple[Any, Any]:
    """Of each element of a shard of the whole: whether the slice has it, and what the part holds there. `full` is the
    shape of the part as the shard has it, with dropped dimensions."""
    part, mask = ops.reshape(part, shape=full), None
    for d, start, length, step in zip(dims, starts, lengths, steps, strict=True):
        n, first = shard.size(f"v{d}"), shard.start(f"m{d}") if f"m{d}" in shard.sizes else 0
        away = shard.apply(ops.arange, shard.start(f"v{d}"), 1, n=n, dtype="int64")
        away = away - _begin(shard, d, start, length, step)
        inside = ops.logical_and(ops.ge(away, 0), ops.lt(away, length * step))
        if step > 1:
            inside = ops.logical_and(inside, ops.eq(ops.remainder(away, step), 0))
        row = ops.floor_divide(away, step)
        here, place = within(row, first, full[d])
        inside = ops.reshape(ops.logical_and(inside, here), shape=(n, *(1,) * (len(full) - d - 1)))
        mask = inside if mask is None else ops.logical_and(mask, inside)
        part = ops.index_select(part, place, dim=d)
    return mask, part


def _slice_put_local(shard: Any, x: Any, new: Any, *starts: Any, dims: Any, lengths: Any, steps: Any, drop: Any) -> Any:
    """Each shard writes what it has of the slice."""
    if not dims or 0 in lengths:
        return ops.clone(x if dims else ops.reshape(new, shape=x.shape))
    full = tuple(lengths[list(dims).index(d)] if d in dims else n for d, n in enumerate(x.shape))
    mask, part = _laid_out(shard, new, starts, dims, lengths, steps, full)
    return ops.where(mask, part, x)


slice_put = op(
    "slice_put",
    "x with a slice of it replaced by `new`.",
    infer=_infer_slice_put,
    factors=_slice_put_rule,
    moves=True,
    local=_slice_put_local,
    vjp=(_slice_put_dx, lambda g, y, x, new, *starts, **attrs: ops.slice(g, *starts, **attrs)),
    kernels={
        "array": _slice_put_array,
        "jax_lib": _slice_put_jax,
        "torch": _slice_put_torch,
        "torch_inplace": _slice_put_into,
        "torch_graph": _slice_put_graph,
        "numbers": _check_starts,
    },
    inplace=(0,),
    samples=lambda rng: [
        ((x, rng.normal(size=Cut("slice", x.shape, **attrs).result), *starts), attrs)
        for x, starts, attrs in _cut_samples(rng)
    ],
)


def _infer_slice_dx(g: Spec, *starts: Spec, shape: Any, dims: Any, lengths: Any, steps: Any, drop: Any) -> Spec:
    rules.tensor("slice_dx", g)
    cut = Cut("slice_dx", rules.shape("slice_dx", shape), dims, lengths, steps, drop)
    _starts("slice_dx", cut, starts)
    if g.shape != cut.result:
        raise ShapeError(f"slice_dx: expected a gradient of the slice's shape {cut.result}, got {g.shape}")
    return spec(cut.shape, g.dtype)


def _slice_dx_torch(torch: Any, site: Site, *, shape: Any, **attrs: Any) -> Any:
    view = _view_torch(Cut("slice_dx", shape, **attrs))
    target = tuple(shape)

    def kernel(g: Any, *starts: int) -> Any:
        result = g.new_zeros(target)
        view(result, starts).copy_(g)
        return result

    return kernel


def _slice_dx_local(
    shard: Any, g: Any, *starts: Any, shape: Any, dims: Any, lengths: Any, steps: Any, drop: Any
) -> Any:
    there = shard.results[0]
    if not dims or 0 in lengths:
        return ops.clone(g) if not dims else fill(g, 0.0, there.shape, g.dtype)
    sizes = {d: 1 if d in drop else shard.size(f"m{d}") for d in dims}
    full = tuple(sizes.get(d, n) for d, n in enumerate(there.shape))
    return masked(*_laid_out(shard, g, starts, dims, lengths, steps, full))


slice_dx = linear_op(
    "slice_dx",
    "The gradient of slice: zeros of the base's shape, with g at the slice.",
    infer=_infer_slice_dx,
    factors=lambda g, *starts, shape, dims, drop, **attrs: _rule(
        "{part}{starts} -> {whole}", starts, len(shape), dims, drop
    ),
    local=_slice_dx_local,
    vjp=(lambda u, z, g, *starts, shape, **attrs: ops.slice(u, *starts, **attrs),),
    kernels={
        "array": lambda xp, g, *starts, shape, **attrs: _slice_put_array(
            xp, xp.zeros(tuple(shape), g.dtype), g, *starts, **attrs
        ),
        "jax_lib": lambda jax, g, *starts, shape, **attrs: _slice_put_jax(
            jax, jax.numpy.zeros(tuple(shape), g.dtype), g, *starts, **attrs
        ),
        "torch": _slice_dx_torch,
        "torch_graph": _slice_dx_graph,
        "numbers": _check_starts,
    },
    samples=lambda rng: [
        ((rng.normal(size=Cut("slice", x.shape, **attrs).result), *starts), {"shape": x.shape, **attrs})
        for x, starts, attrs in _cut_samples(rng)
    ],
    flops=0,
)
