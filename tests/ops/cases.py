"""Every sample of every op in the table, and what the table's tests do with one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import numpy as np
import pytest

from gt import dtypes
from gt.ops import TABLE, Op
from gt.ops.evaluate import apply, expand, run
from gt.ops.trace import OpTrace, Symbol, scalar_kind
from gt.program import SCALARS, Instruction, Program, Spec, as_tuple, spec
from gt.worker.engines.numpy import NumpyEngine

NUMPY = NumpyEngine()


def samples(op: Op) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    return op.samples(np.random.default_rng(0))


def ops(which: Callable[[Op], Any] = lambda op: True) -> Any:
    """A test for each of these ops, which goes through its samples: a test for each sample would cost minutes."""
    return pytest.mark.parametrize("op", [op for op in TABLE.values() if which(op)], ids=lambda op: op.name)


@contextmanager
def trying(what: str) -> Iterator[None]:
    """What fails in here says with what."""
    try:
        yield
    except BaseException as e:
        e.add_note(f"with {what}")
        raise


def specs_of(args: Sequence[Any]) -> list[Spec]:
    return [
        spec(a.shape, dtypes.dtype(a.dtype)) if isinstance(a, np.ndarray) else SCALARS[scalar_kind(a)] for a in args
    ]


def as_dtype(args: Sequence[Any], name: str) -> tuple[Any, ...]:
    """The operands with their float64 arrays in another type."""
    target = dtypes.dtype(name).numpy
    return tuple(a.astype(target) if isinstance(a, np.ndarray) and a.dtype == np.float64 else a for a in args)


def is_float(a: Any) -> bool:
    return isinstance(a, np.ndarray) and dtypes.dtype(a.dtype).is_floating_point


def to_engine(engine: Any, args: Sequence[Any]) -> list[Any]:
    """The operands as the engine's own arrays; numbers stay."""
    pairs = zip(args, specs_of(args), strict=True)
    return [engine.from_bytes(a.tobytes(), s) if isinstance(a, np.ndarray) else a for a, s in pairs]


def program_of(op: Op, args: Sequence[Any], attrs: dict[str, Any]) -> tuple[Program, list[np.ndarray], tuple[Any, ...]]:
    """A program of one instruction that returns all its results, its arrays, and its numbers as scalars."""
    arrays = [a for a in args if isinstance(a, np.ndarray)]
    numbers = tuple(a for a in args if not isinstance(a, np.ndarray))
    places, scalars = count(), count()
    refs = tuple(next(places) if isinstance(a, np.ndarray) else ~next(scalars) for a in args)
    results = len(as_tuple(op.infer(*specs_of(args), **attrs)))
    inputs = tuple((a.shape, dtypes.dtype(a.dtype).name) for a in arrays)
    outputs = tuple(range(len(arrays), len(arrays) + results))
    code = (Instruction(op.name, refs, attrs, results),)
    return Program(inputs, "".join(map(scalar_kind, numbers)), code, outputs, (), ()), arrays, numbers


def calls_with(engine: Any, op: Op, args: Sequence[Any], attrs: dict[str, Any]) -> tuple[Any, ...]:
    """The op's results as numpy arrays, computed by an engine."""
    specs = specs_of(args)
    results = apply(op, to_engine(engine, args), specs, attrs, engine.kernel)
    return tuple(to_numpy(engine, r, s) for r, s in zip(results, as_tuple(op.infer(*specs, **attrs)), strict=True))


def to_numpy(engine: Any, array: Any, s: Spec) -> np.ndarray:
    return np.frombuffer(engine.to_bytes(array), s.dtype.numpy).reshape(s.shape)


def is_up(engine: Any, flag: Any) -> bool:
    """Whether the flag of a call says that an index was wrong, as a worker finds out: it is sent, and read later."""
    place = engine.send_flag(flag)
    engine.passed(engine.mark(), wait=True)
    return bool(engine.raised(place))


def wide(a: Any) -> np.ndarray:
    """For comparison: narrow floats as float64."""
    return a.astype(np.float64) if dtypes.dtype(a.dtype).is_floating_point else a


# -- gradients of traces ---------------------------------------------------------------------


def backward(trace: OpTrace, outputs: Sequence[tuple[Symbol, Any]], wanted: Sequence[Symbol]) -> list[Any]:
    """The gradients of `wanted`, given those of some outputs; written down in the same trace."""
    made = {number: i for i, (_, _, _, numbers) in enumerate(trace.code) for number in numbers}
    known: dict[int, Any] = {}
    symbols: dict[int, Symbol] = {}
    for s, g in outputs:
        known[s.number] = g
    for i in range(max((made.get(s.number, -1) for s, _ in outputs), default=-1), -1, -1):
        op, args, attrs, numbers = trace.code[i]
        if op.vjp is None or not any(n in known for n in numbers):
            continue
        specs = as_tuple(
            op.infer(*[a.spec if isinstance(a, Symbol) else SCALARS[scalar_kind(a)] for a in args], **attrs)
        )
        ys = tuple(symbols.setdefault(n, Symbol(trace, n, s)) for n, s in zip(numbers, specs, strict=True))
        gs = tuple(known.get(n) for n in numbers)
        for a, d in zip(args, vjps(op, gs, ys, args, attrs), strict=False):
            if d is not None and isinstance(a, Symbol) and a.dtype.is_floating_point:
                d = fit(d, a.spec)
                known[a.number] = d if a.number not in known else known[a.number] + d
    return [known.get(s.number) for s in wanted]


def vjps(op: Op, gs: tuple[Any, ...], ys: tuple[Any, ...], args: Sequence[Any], attrs: dict[str, Any]) -> list[Any]:
    """What the record says are the gradients, per operand."""
    g, y = (gs[0], ys[0]) if len(ys) == 1 else (gs, ys)
    if callable(op.vjp):
        returned = op.vjp(g, y, *args, **attrs)
        assert len(returned) == len(args)
        return list(returned)
    assert op.vjp is not None
    return [
        f(g, y, *args, **attrs) if f is not None and isinstance(a, Symbol) and a.dtype.is_floating_point else None
        for a, f in zip(args, op.vjp, strict=False)
    ]


def fit(d: Any, s: Spec) -> Any:
    """What the caller of a VJP does: sum over broadcast dimensions, cast."""
    if d.shape != s.shape:
        d = TABLE["sum_to"](d, shape=s.shape)
    if d.dtype is not s.dtype:
        d = TABLE["cast"](d, dtype=s.dtype.name)
    return d


class Spelled(OpTrace):
    """Writes compositions without a gradient of their own in their parts, as the client does."""

    def add(self, op: Op, args: tuple[Any, ...], attrs: dict[str, Any]) -> Any:
        if op.compose is not None and op.vjp is None:
            return op.compose(*args, **attrs)
        return super().add(op, args, attrs)


class Written:
    """One use of an op on paper with its gradients, and their gradients; evaluated on numpy.

    The trace's first symbols are the operands that are arrays, then a gradient for every result,
    then a gradient for the gradient of every operand that is a float.
    """

    def __init__(self, op: Op, args: Sequence[Any], attrs: dict[str, Any]) -> None:
        rng = np.random.default_rng(1)
        specs = specs_of(args)
        self.trace = Spelled()
        self.inputs: list[np.ndarray] = []
        self.args = [self._input(a) if isinstance(a, np.ndarray) else a for a in args]
        self.gs = [self._input(rng.normal(size=s.shape)) for s in as_tuple(op.infer(*specs, **attrs))]
        floats = [s for s, a in zip(self.args, args, strict=True) if is_float(a)]
        us = [self._input(rng.normal(size=s.shape)) for s in floats]
        results = self.trace.add(op, tuple(self.args), attrs)
        self.results = results if isinstance(results, tuple) else (results,)

        grads = backward(self.trace, list(zip(self.results, self.gs, strict=True)), floats)
        #: The operands that have a gradient, with it.
        self.first = [(s, d) for s, d in zip(floats, grads, strict=True) if d is not None]
        self.us = [u for u, d in zip(us, grads, strict=True) if d is not None]
        self.specs_fit = all(d.spec is s.spec for s, d in self.first)

    def _input(self, value: np.ndarray) -> Symbol:
        self.inputs.append(value)
        return self.trace.symbol(spec(value.shape, dtypes.dtype(value.dtype)))

    def twice(self) -> list[tuple[Symbol, Any]]:
        """The gradients of the gradients, by operands and incoming gradients."""
        wanted = [s for s in (*self.args, *self.gs) if isinstance(s, Symbol) and s.dtype.is_floating_point]
        outputs = [(d, u) for (_, d), u in zip(self.first, self.us, strict=True) if d.number >= len(self.inputs)]
        # A gradient that is the incoming one itself has no instruction to go back through.
        for (_, d), u in zip(self.first, self.us, strict=True):
            if d.number < len(self.inputs):
                outputs.append((d, u))
        merged: dict[int, tuple[Symbol, Any]] = {}
        for d, u in outputs:
            merged[d.number] = (d, u if d.number not in merged else merged[d.number][1] + u)
        grads = backward(self.trace, list(merged.values()), wanted)
        return list(zip(wanted, grads, strict=True))

    def values(self, wanted: Sequence[Symbol]) -> tuple[Any, ...]:
        return run(self.trace, wanted, self.inputs, NUMPY.kernel)

    def slope(self, pairs: Sequence[tuple[Symbol, Symbol]], of: Symbol, h: float = 1e-5) -> np.ndarray:
        """By finite differences: how the sum of all products of `pairs` changes with an input."""
        steps = ready(self.trace, [s for pair in pairs for s in pair])
        still: dict[int, Any] = dict(enumerate(self.inputs))
        take(steps, still)
        moving, moved = [], {of.number}  # what does not depend on the input is computed once
        for step in steps:
            _, args, numbers = step
            if any(isinstance(a, Symbol) and a.number in moved for a in args):
                moving.append(step)
                moved.update(numbers)

        base = self.inputs[of.number]
        result = np.zeros(base.shape)
        for place in np.ndindex(*base.shape):
            ends = []
            for way in (h, -h):
                values = {**still, of.number: base.copy()}
                values[of.number][place] += way
                take(moving, values)
                ends.append(sum((np.sum(values[a.number] * values[b.number]) for a, b in pairs), 0.0))
            with np.errstate(all="ignore"):
                result[place] = (ends[0] - ends[1]) / (2 * h)
        return result


#: (kernel, operands, numbers of the results)
Step = tuple[Callable[..., Any], Sequence[Any], Sequence[int]]


def ready(trace: OpTrace, wanted: Sequence[Symbol]) -> list[Step]:
    """What the wanted values need of a trace, with numpy's kernels: to be run thousands of times."""
    steps: list[Step] = []
    needed = {s.number for s in wanted}
    for op, args, attrs, numbers in reversed(trace.code):
        if not needed.isdisjoint(numbers):
            specs = [a.spec if isinstance(a, Symbol) else SCALARS[scalar_kind(a)] for a in args]
            steps.append((NUMPY.kernel(op, attrs, specs) or written_out(op, attrs, specs), args, numbers))
            needed.update(a.number for a in args if isinstance(a, Symbol))
    return steps[::-1]


def written_out(op: Op, attrs: dict[str, Any], specs: Sequence[Spec]) -> Callable[..., Any]:
    """The composition of an op as a kernel."""
    trace, results = expand(op, specs, attrs)
    steps = ready(trace, results)

    def kernel(*args: Any) -> tuple[Any, ...]:
        values: dict[int, Any] = dict(enumerate(args))
        take(steps, values)
        return tuple(values[r.number] for r in results)

    return kernel


def take(steps: Sequence[Step], values: dict[int, Any]) -> None:
    for kernel, args, numbers in steps:
        made = kernel(*[values[a.number] if isinstance(a, Symbol) else a for a in args])
        values.update(zip(numbers, made if isinstance(made, tuple | list) else (made,), strict=True))
