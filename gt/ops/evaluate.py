"""Running programs and traces one instruction at a time: slow, plain, and what everything else is
compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gt.errors import ProgramError
from gt.ops.check import Checked
from gt.ops.record import TABLE, Op
from gt.ops.trace import OpTrace, Symbol, scalar_kind
from gt.program import SCALARS, Spec

#: (op, attributes, specs of the operands) -> a function of the operands, or None: expand its composition.
KernelOf = Callable[[Op, dict[str, Any], Sequence[Spec]], Callable[..., Any] | None]


def expand(op: Op, specs: Sequence[Spec], attrs: dict[str, Any]) -> tuple[OpTrace, tuple[Symbol, ...]]:
    """The composition of an op, written down: its operands are the trace's first symbols (numbers
    among them have the weak specs of SCALARS), then come the results that are returned too."""
    if op.compose is None:
        raise ProgramError(f"{op.name}: has neither a kernel for this engine nor a composition")
    trace = OpTrace()
    results = op.compose(*[trace.symbol(s) for s in specs], **attrs)
    return trace, results if isinstance(results, tuple) else (results,)


def apply(
    op: Op, args: Sequence[Any], specs: Sequence[Spec], attrs: dict[str, Any], kernel_of: KernelOf
) -> tuple[Any, ...]:
    """The results of one op on arrays and numbers."""
    kernel = kernel_of(op, attrs, specs)
    if kernel is None:
        trace, results = expand(op, specs, attrs)
        return run(trace, results, args, kernel_of)
    made = kernel(*args)
    return tuple(made) if isinstance(made, tuple | list) else (made,)


def run(trace: OpTrace, results: Sequence[Symbol], operands: Sequence[Any], kernel_of: KernelOf) -> tuple[Any, ...]:
    """The values of `results`, given those of the trace's first symbols."""
    values: dict[int, Any] = dict(enumerate(operands))
    for op, args, attrs, numbers in trace.code:
        specs = [a.spec if isinstance(a, Symbol) else SCALARS[scalar_kind(a)] for a in args]
        actual = [values[a.number] if isinstance(a, Symbol) else a for a in args]
        values.update(zip(numbers, apply(op, actual, specs, attrs, kernel_of), strict=True))
    return tuple(values[r.number] for r in results)


def evaluate(checked: Checked, inputs: Sequence[Any], scalars: Sequence[Any], kernel_of: KernelOf) -> tuple[Any, ...]:
    """The outputs of a program."""
    values: list[Any] = list(inputs)
    for ins in checked.program.code:
        args = [values[a] if a >= 0 else scalars[~a] for a in ins.args]
        specs = [checked.specs[a] if a >= 0 else SCALARS[checked.program.scalars[~a]] for a in ins.args]
        values.extend(apply(TABLE[ins.op], args, specs, ins.attrs, kernel_of))
    return tuple(values[o] for o in checked.program.outputs)
