"""A mesh of workers in one process: values as lists of numpy shards, collectives in numpy.

A step of `redistribute` is done here as a worker would do it: it hears only from the workers that the step's axes
name. Where that is not enough, an element stays missing and the simulation says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gt import dtypes
from gt.dispatcher.planner.choose import Choice, Sharding, choose, needed
from gt.dispatcher.planner.redistribute import LOCAL, Step, redistribute
from gt.layout import Layout, Mesh, held, layout, local_shape
from gt.ops import TABLE, Op
from gt.ops.evaluate import run
from gt.ops.record import as_tuple
from gt.ops.shard import first_phase, last_phase, on_shard, parts_at, shard_spec
from gt.ops.trace import Symbol, Trace, scalar_kind
from gt.program import SCALARS, Spec, spec
from gt.worker.engines.numpy import NumpyEngine

ENGINE = NumpyEngine()
COMBINE = {"sum": np.add, "max": np.maximum, "min": np.minimum}
#: What happened: (op or "", step), for tests that count collectives.
Log = list[tuple[str, Step]]


@dataclass
class Value:
    """A tensor on a mesh: what each worker holds of it."""

    layout: Layout
    spec: Spec
    parts: list[np.ndarray]  #: in the order of the mesh's workers

    @property
    def mesh(self) -> Mesh:
        return self.layout.mesh


def positions(one: Layout, shape: Sequence[int], at: tuple[int, ...]) -> list[np.ndarray]:
    """Of each dimension: the positions that a worker holds."""
    found = []
    for d, n in enumerate(shape):
        runs = held(one.pieces(d), n, one.mesh, at)
        found.append(np.concatenate([np.arange(a, b) for a, b in runs]) if runs else np.arange(0))
    return found


def block(x: np.ndarray, places: Sequence[np.ndarray]) -> np.ndarray:
    return x[np.ix_(*places)] if places else x.copy()


# -- putting and reading ---------------------------------------------------------------------


def spec_of(a: Any) -> Spec:
    return spec(a.shape, dtypes.dtype(a.dtype)) if isinstance(a, np.ndarray) else SCALARS[scalar_kind(a)]


def place(x: np.ndarray, one: Layout, rng: np.random.Generator) -> Value:
    """An array in a layout. What is partial is cut into random addends, or hidden among smaller or larger values."""
    m, parts = one.mesh, []
    shares = _shares(x, one, rng)
    for at in m.coordinates:
        mine = shares[m.index(one.pending, at)]
        parts.append(block(mine, positions(one, x.shape, at)))
    return Value(one, spec_of(x), parts)


def _shares(x: np.ndarray, one: Layout, rng: np.random.Generator) -> list[np.ndarray]:
    count = one.mesh.size(one.pending)
    if count == 1:
        return [x]
    if one.kind == "sum":
        with np.errstate(all="ignore"):
            shares = [_noise(x, rng) for _ in range(count - 1)]
            return [np.asarray(x - sum(shares), x.dtype), *shares]
    away = -1 if one.kind == "max" else 1
    shares = [np.asarray(x + away * np.abs(_noise(x, rng)), x.dtype) if x.dtype.kind != "b" else x & False
              for _ in range(count)]  # fmt: skip
    if x.dtype.kind == "b" and one.kind == "min":
        shares = [x | True for _ in range(count)]
    shares[rng.integers(count)] = x
    return shares


def _noise(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    if x.dtype.kind in "iu":
        return rng.integers(-3, 4, size=x.shape).astype(x.dtype)
    # In eighths: of 0, 1 or 2.5 the parts add up exactly, so that what asks for equality finds it.
    made, turned = (rng.integers(-16, 17, size=x.shape) / 8 for _ in range(2))
    return np.asarray(made + 1j * turned if x.dtype.kind == "c" else made).astype(x.dtype)


def read(value: Value) -> np.ndarray:
    """The whole array. Replicas must agree."""
    one, m = value.layout, value.mesh
    done = Value(layout(m, one.dims), value.spec, reduced(value)) if one.partial else value
    out = np.zeros(value.spec.shape, value.spec.dtype.numpy)
    seen = np.zeros(value.spec.shape, bool)
    for at, part in zip(m.coordinates, done.parts, strict=True):
        places = positions(done.layout, value.spec.shape, at)
        where = np.ix_(*places) if places else ()
        same = np.where(seen[where], out[where], part)
        assert close(part, same, value.spec.dtype), f"replicas of {one!r} differ"
        out[where], seen[where] = part, True
    assert seen.all(), f"{one!r} misses elements"
    return out


def reduced(value: Value) -> list[np.ndarray]:
    m, kind = value.mesh, value.layout.kind
    assert kind is not None
    made = []
    for at in m.coordinates:
        members = [value.parts[k] for k in m.group(value.layout.pending, at)]
        total = members[0]
        for other in members[1:]:
            total = np.asarray(COMBINE[kind](total, other), total.dtype)
        made.append(total)
    return made


def close(a: Any, b: Any, dtype: dtypes.DType) -> bool:
    """Equal to rounding: 1e-9 for float64."""
    if not dtype.is_differentiable:
        return bool(np.array_equal(a, b))
    tolerance = {8: 1e-9, 16: 1e-9, 4: 1e-4, 2: 5e-2}[dtype.itemsize]
    if dtype.name == "complex64":
        tolerance = 1e-4
    if dtype.is_complex:
        a, b = (np.stack([np.real(v), np.imag(v)]) for v in (a, b))
    if dtype.itemsize == 2:
        a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
    return bool(np.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True))


# -- collectives -----------------------------------------------------------------------------


def moved(value: Value, target: Layout, log: Log | None = None, name: str = "") -> Value:
    """The value in another layout, by the steps of `redistribute`."""
    for step in redistribute(value.layout, target, value.spec.shape, value.spec.dtype.itemsize):
        value = performed(value, step)
        if log is not None:
            log.append((name, step))
    return value


def performed(value: Value, step: Step) -> Value:
    """One collective."""
    m, shape = value.mesh, value.spec.shape
    parts = []
    for k, at in enumerate(step.to.mesh.coordinates):
        want = positions(step.to, shape, at)
        if step.kind == "partial":
            new = [a for a in step.to.pending if a not in value.layout.pending]
            first = step.to.kind != "sum" or all(at[m.place[a]] == 0 for a in new)
            parts.append(value.parts[k] if first else np.zeros_like(value.parts[k]))
        elif step.kind in ("all_reduce", "reduce_scatter"):
            total = None
            for j in m.group(step.axes, at):
                part = taken(value, [j], want)
                kind = value.layout.kind
                assert kind is not None
                total = part if total is None else np.asarray(COMBINE[kind](total, part), part.dtype)
            assert total is not None
            parts.append(total)
        else:
            same = step.to.mesh is m
            members = [k] if step.kind in LOCAL else m.group(step.axes, at) if same else range(len(m.workers))
            parts.append(taken(value, members, want))
    return Value(step.to, value.spec, parts)


def taken(value: Value, members: Sequence[int], want: Sequence[np.ndarray]) -> np.ndarray:
    """A block of a value, out of what some workers hold."""
    shape = tuple(len(p) for p in want)
    out = np.zeros(shape, value.spec.dtype.numpy)
    seen = np.zeros(shape, bool)
    for j in members:
        mine = positions(value.layout, value.spec.shape, value.mesh.coordinates[j])
        pairs = [
            np.intersect1d(w, h, assume_unique=True, return_indices=True)[1:] for w, h in zip(want, mine, strict=True)
        ]
        to = np.ix_(*(a for a, _ in pairs)) if pairs else ()
        out[to] = block(value.parts[j], [b for _, b in pairs])
        seen[to] = True
    assert seen.all(), f"workers {list(members)} of {value.layout!r} do not hold what is wanted"
    return out


# -- ops -------------------------------------------------------------------------------------


def windowed(
    op: Op, attrs: dict[str, Any], specs: Sequence[Spec], s: Sharding, k: int, value: Value, w: int
) -> np.ndarray:
    """An operand as one worker uses it: its shard, with windows where the rule has them."""
    at, one = value.mesh.coordinates[w], value.layout
    if not s.halos[k]:
        return value.parts[w]
    places = positions(one, value.spec.shape, at)
    axes: list[str] = []
    masks = []
    for halo in s.halos[k]:
        n = value.spec.shape[halo.dim]
        lo, hi, border = needed(op, attrs, specs, s, k, halo, at)
        wanted = np.arange(lo, hi)
        if border == "wrap":
            wanted = wanted % n
        real = (wanted >= 0) & (wanted < n)
        places[halo.dim] = wanted
        masks.append((halo.dim, real))
        axes += [a for a in halo.axes if one.pieces(halo.dim)]
    members = value.mesh.group(axes, at)
    unique, back = [], []
    for d, p in enumerate(places):
        inside = p[(p >= 0) & (p < value.spec.shape[d])]
        u = np.unique(inside)
        unique.append(u)
        back.append(np.searchsorted(u, p.clip(u[0], u[-1])) if len(u) else np.zeros(len(p), int))
    got = taken(value, members, unique)
    for d, real in masks:
        if not len(unique[d]):
            pad = list(got.shape)
            pad[d] = len(real)
            got = np.zeros(pad, got.dtype)
            continue
        got = np.take(got, back[d], d)
        shape = [1] * got.ndim
        shape[d] = len(real)
        got = np.where(real.reshape(shape), got, np.zeros((), got.dtype))
    return got


def run_sharded(op: Op, attrs: dict[str, Any], specs: Sequence[Spec], s: Sharding, args: Sequence[Any]) -> list[Value]:
    """The op on operands that lie as it wants them."""
    results = as_tuple(op.infer(*specs, **attrs))
    if s.merges:
        return run_phases(op, attrs, specs, s, args, results)
    made: list[list[np.ndarray]] = [[] for _ in results]
    for w, at in enumerate(s.mesh.coordinates):
        operands = [windowed(op, attrs, specs, s, k, a, w) if isinstance(a, Value) else a for k, a in enumerate(args)]
        local = [shard_spec(whole, np.shape(a)) for whole, a in zip(specs, operands, strict=True)]
        wanted = [shard_spec(r, local_shape(one, r.shape, at)) for one, r in zip(s.gives, results, strict=True)]
        trace, symbols = on_shard(
            op, s.bound, specs, attrs, parts_at(s.split, s.bound.sizes, s.mesh, at), local, wanted
        )
        for out, array in zip(made, run(trace, symbols, operands, ENGINE.kernel), strict=True):
            out.append(np.asarray(array))
    return [Value(one, r, parts) for one, r, parts in zip(s.gives, results, made, strict=True)]


def run_phases(
    op: Op, attrs: dict[str, Any], specs: Sequence[Spec], s: Sharding, args: Sequence[Any], results: Sequence[Spec]
) -> list[Value]:
    """The same for an op in two phases: what each worker sends comes together along a new first dimension."""
    factor, m = s.bound.merged, s.mesh
    assert factor is not None
    axes = [a for _, over in s.split[factor] for a in over]
    parts = [parts_at(s.split, s.bound.sizes, m, at) for at in m.coordinates]
    kept, sent = [], []
    for w in range(len(m.coordinates)):
        operands = [a.parts[w] if isinstance(a, Value) else a for a in args]
        local = [shard_spec(whole, np.shape(a)) for whole, a in zip(specs, operands, strict=True)]
        trace, stays, goes = first_phase(op, s.bound, specs, attrs, parts[w], local)
        arrays = [np.asarray(a) for a in run(trace, (*stays, *goes), operands, ENGINE.kernel)]
        kept.append(arrays[: len(stays)])
        sent.append(arrays[len(stays) :])
    made: list[list[np.ndarray]] = [[] for _ in results]
    for w, at in enumerate(m.coordinates):
        members = sorted(m.group(axes, at), key=lambda j: m.index(axes, m.coordinates[j]))
        theirs = [np.stack([sent[j][i] for j in members]) for i in range(len(sent[w]))]
        wanted = [shard_spec(r, local_shape(one, r.shape, at)) for one, r in zip(s.gives, results, strict=True)]
        inputs = [*kept[w], *theirs]
        shapes = [spec_of(a) for a in inputs]
        mine = len(kept[w])
        trace, symbols = last_phase(op, s.bound, specs, attrs, parts[w], shapes[:mine], shapes[mine:], wanted)
        assert [x.spec for x in symbols] == wanted
        for out, array in zip(made, run(trace, symbols, inputs, ENGINE.kernel), strict=True):
            out.append(np.asarray(array))
    return [Value(one, r, parts) for one, r, parts in zip(s.gives, results, made, strict=True)]


def apply(op: Op, args: Sequence[Any], attrs: dict[str, Any], mesh: Mesh, log: Log | None = None) -> list[Value]:
    """The op on operands that lie anyhow: what the planner would do with it."""
    specs = [a.spec if isinstance(a, Value) else spec_of(a) for a in args]
    results = as_tuple(op.infer(*specs, **attrs))
    # An op of numbers alone runs whole; where it shall lie is for whoever uses it to say.
    have = [a.layout if isinstance(a, Value) else layout(mesh) if all(s.weak for s in specs) else None for a in args]
    choice = choose(op, specs, results, attrs, have)
    if choice is None:
        return expanded(op, specs, args, attrs, mesh, log)
    return carried_out(op, specs, args, attrs, choice, log)


def carried_out(
    op: Op, specs: Sequence[Spec], args: Sequence[Any], attrs: dict[str, Any], choice: Choice, log: Log | None = None
) -> list[Value]:
    ready = []
    for a, want, steps in zip(args, choice.sharding.wants, choice.steps, strict=True):
        if isinstance(a, Value):
            assert want is not None
            a = moved(a, want, log, op.name)
            if log is not None:
                log.extend((op.name, s) for s in steps if s.kind in ("halo", "merge"))
        ready.append(a)
    return run_sharded(op, attrs, specs, choice.sharding, ready)


def expanded(
    op: Op, specs: Sequence[Spec], args: Sequence[Any], attrs: dict[str, Any], mesh: Mesh, log: Log | None
) -> list[Value]:
    """The op written in other ops, each of them on shards."""
    trace = Trace()
    form = op.parts or op.compose
    assert form is not None
    symbols = [trace.symbol(s) for s in specs]
    made = form(*symbols, **attrs)
    values: dict[int, Any] = {s.number: a for s, a in zip(symbols, args, strict=True)}
    for inner, operands, inner_attrs, numbers in trace.code:
        actual = [values[a.number] if isinstance(a, Symbol) else a for a in operands]
        values.update(zip(numbers, apply(inner, actual, inner_attrs, mesh, log), strict=True))
    return [values[r.number] for r in (made if isinstance(made, tuple) else (made,))]


def collectives(log: Log) -> Iterator[str]:
    """What was communicated, in order."""
    return (step.kind for _, step in log if step.kind not in LOCAL)


def plain(op: Op, args: Sequence[Any], attrs: dict[str, Any]) -> tuple[np.ndarray, ...]:
    """The unsharded results."""
    from gt.ops.evaluate import apply as whole

    return tuple(np.asarray(r) for r in whole(op, list(args), [spec_of(a) for a in args], attrs, ENGINE.kernel))


__all__ = ["TABLE", "Value", "apply", "carried_out", "close", "collectives", "moved", "place", "plain", "read"]
