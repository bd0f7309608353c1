"""The gradient of a composition, in ops: every part's gradient, in reverse order.

A gradient op whose formula is long can be composed of this: its record then needs a kernel only where one is faster.
The composition runs again, so nothing that it computes has to be an operand of the gradient op.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gt.ops.evaluate import expand
from gt.ops.record import TABLE, Op, fill, tensors
from gt.ops.trace import Symbol, scalar_kind
from gt.program import SCALARS, Spec, spec


def fit(d: Any, spec: Spec) -> Any:
    """A gradient in its operand's shape and dtype: summed over broadcast dimensions, cast; of a real
    operand, the real part."""
    if d.shape != spec.shape:
        d = TABLE["sum_to"](d, shape=spec.shape)
    if d.dtype.is_complex and not spec.dtype.is_complex:
        d = TABLE["real"](d)
    if d.dtype is not spec.dtype:
        d = TABLE["cast"](d, dtype=spec.dtype.name)
    return d


def gradients(op: Op, g: Sequence[Any], operands: Sequence[Any], attrs: dict[str, Any]) -> tuple[Any, ...]:
    """The gradients of an op's operands by its composition, given those of its results; zeros where there is none."""
    tape = _Tape(operands)
    results = tape.run(op, list(range(len(operands))), attrs)
    known: dict[int, Any] = {}  # by place: one tensor may be two operands, each with a gradient of its own

    def add(place: int, d: Any) -> None:
        d = fit(d, _spec(tape.values[place]))
        known[place] = d if place not in known else known[place] + d

    for place, d in zip(results, g, strict=True):
        add(place, d)
    for part, takes, more, makes in reversed(tape.code):
        gs = tuple(known.get(p) for p in makes)
        if part.vjp is None or all(d is None for d in gs):
            continue
        args, ys = [tape.values[p] for p in takes], tuple(tape.values[p] for p in makes)
        gy, y = (gs, ys) if len(ys) > 1 else (gs[0], ys[0])
        if callable(part.vjp):
            found = part.vjp(gy, y, *args, **more)
        else:
            found = tuple(None if f is None else f(gy, y, *args, **more) for f in part.vjp[: len(args)])
        for place, a, d in zip(takes, args, found, strict=False):
            if d is not None and hasattr(a, "_apply") and a.dtype.is_differentiable:
                add(place, d)
    return tuple(known[k] if k in known else fill(x, 0.0, x.shape, x.dtype) for k, x in enumerate(operands))


def _spec(x: Any) -> Spec:
    return spec(x.shape, x.dtype) if hasattr(x, "_apply") else SCALARS[scalar_kind(x)]


class _Tape:
    """The parts of a composition in the order in which they were recorded. Each value has a place."""

    def __init__(self, operands: Sequence[Any]) -> None:
        self.values: list[Any] = list(operands)
        self.code: list[tuple[Op, list[int], dict[str, Any], list[int]]] = []  #: (op, takes, attributes, makes)
        self._maker = tensors(operands)[0]

    def run(self, op: Op, takes: list[int], attrs: dict[str, Any]) -> list[int]:
        """Record the composition of an op. Parts without a gradient of their own are expanded, too."""
        trace, results = expand(op, [_spec(self.values[p]) for p in takes], attrs)
        places = dict(enumerate(takes))
        for part, args, more, numbers in trace.code:
            inner = [places[a.number] if isinstance(a, Symbol) else self._keep(a) for a in args]
            if part.vjp is None and part.compose is not None:
                made = self.run(part, inner, more)
            else:  # by the maker of the operands: a constant has no tensor among its own
                out = self._maker._apply(part, tuple(self.values[p] for p in inner), more)
                made = [self._keep(y) for y in (out if isinstance(out, tuple) else (out,))]
                self.code.append((part, inner, more, made))
            places.update(zip(numbers, made, strict=True))
        return [places[r.number] for r in results]

    def _keep(self, value: Any) -> int:
        self.values.append(value)
        return len(self.values) - 1
