"""The work of an op: the floating-point operations of one use of it.

Law: an addition, a multiplication, a division, a comparison that picks a number, and a function such as exp are one
operation per element, whatever a device takes for them. So a product of matrices (m, k) and (k, n) is 2 m k n. An op
that only moves, selects or casts elements has no work, nor has one without floating-point results.

`Op.flops` states it where it cannot be derived. An op with a composition has the work of its parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gt.ops.evaluate import expand
from gt.ops.record import Op
from gt.ops.trace import Symbol, scalar_kind
from gt.program import SCALARS, Spec, as_tuple


def flops(op: Op, specs: Sequence[Spec], attrs: dict[str, Any]) -> int:
    """The floating-point operations of one use of an op.

    >>> from gt import dtypes
    >>> from gt.ops import TABLE
    >>> from gt.program import spec
    >>> a, b = spec((8, 16), dtypes.float32), spec((16, 4), dtypes.float32)
    >>> flops(TABLE["matmul"], [a, b], {}), flops(TABLE["exp"], [a], {}), flops(TABLE["permute"], [a], {"dims": (1, 0)})
    (1024, 128, 0)
    """
    if callable(op.flops):
        return op.flops(*specs, **attrs)
    if op.flops is None and op.compose is not None:
        trace, _ = expand(op, specs, attrs)
        return sum(flops(part, [_spec(a) for a in args], more) for part, args, more, _ in trace.code)
    results = as_tuple(op.infer(*specs, **attrs))
    if not any(s.dtype.is_differentiable for s in results) or op.collective:
        return 0
    each = op.flops if op.flops is not None else 0 if op.moves or op.aliases else 1
    return each * max(s.size for s in (*specs, *results) if not s.weak)


def _spec(operand: Any) -> Spec:
    return operand.spec if isinstance(operand, Symbol) else SCALARS[scalar_kind(operand)]


def traffic(op: Op, specs: Sequence[Spec], results: Sequence[Spec]) -> int:
    """The bytes that one use of an op reads and writes: every operand and every result once. An op that only moves or
    selects elements reads no more of an operand than it writes. A view reads and writes nothing.

    >>> from gt import dtypes
    >>> from gt.ops import TABLE
    >>> from gt.program import spec
    >>> table, index, rows = (spec(s, d) for s, d in (((1000, 8), dtypes.float32), ((4,), dtypes.int64),
    ...                                               ((4, 8), dtypes.float32)))
    >>> traffic(TABLE["embedding"], [table, index], [rows])
    288
    """
    if op.aliases:
        return 0
    written = sum(s.nbytes for s in results)
    selects = op.moves or op.indices is not None
    read = [min(s.nbytes, written) if selects else s.nbytes for s in specs if not s.weak]
    return sum(read) + written
