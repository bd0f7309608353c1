"""The gradient of an op as code: which ops it records, on which values.

A VJP is a pure function of specs, attributes and ops (gt/ops). So it is run once, on symbols, for all uses of the op
that are alike: of one kind, on operands of the same specs, with a gradient for the same operands. That says which
values it reads, which is what a graph node keeps, and what it does with them, which backward records without running
the VJP again.

Not every gradient can be written down: one may look at a number among its operands. Then `whole` is None, and backward
runs the VJP itself.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from gt.client.programs.pending import inferred
from gt.client.programs.tree import Code, Kind, Pullback, kind_of
from gt.errors import AutogradError
from gt.ops.record import Op
from gt.ops.reverse import fit
from gt.ops.trace import OpTrace, Symbol, scalar_kind
from gt.program import SCALAR_TYPES, SCALARS, Spec


#: Uses that are alike share one: layers of a model, and the tree's branches.
@functools.lru_cache(maxsize=4096)
def pullback(kind: Kind, operands: tuple[Spec, ...], results: tuple[Spec, ...], mask: int) -> Pullback:
    """The gradient of an op on these operands, for those in the mask."""
    saves, whole = -1, None
    if _flows(kind, operands, results, mask):
        saves, whole = _write(kind, operands, results, mask, (True,) * len(results))
    n = len(operands)
    pick = itemgetter(*[i if saves >> i & 1 else n + 1 for i in range(n + 1)])
    frees = any(saves >> i & 1 and not (i < n and operands[i].weak) for i in range(n + 1))
    return Pullback((kind, operands, results, mask), saves, pick, whole, {}, frees)


def code_for(pull: Pullback, given: tuple[bool, ...]) -> Code | None:
    """The gradient where only those results have one."""
    try:
        return pull.codes[given]
    except KeyError:
        _, code = _write(*pull.use, given)
        pull.codes[given] = code
        return code


def _flows(kind: Kind, operands: Sequence[Spec], results: Sequence[Spec], mask: int) -> bool:
    """Whether any gradient passes through."""
    op = kind.op
    assert op.vjp is not None or op.compose is None, (
        f"{op.name}: record its parts (Tensor._apply), they have the gradient"
    )
    if op.vjp is None or not any(s.dtype.is_differentiable for s in results):
        return False
    if not any(mask >> i & 1 and s.dtype.is_differentiable for i, s in enumerate(operands)):
        return False
    return callable(op.vjp) or any(mask >> i & 1 and f is not None for i, f in enumerate(op.vjp))


def gradients(
    kind: Kind, mask: int, g: Any, y: Any, args: Sequence[Any], operands: Sequence[Spec]
) -> list[tuple[int, Any]]:
    """The results of the VJP: (operand, its gradient), for the operands in the mask."""
    vjp, attrs, found = kind.op.vjp, kind.attrs, []
    if callable(vjp):
        for i, d in enumerate(vjp(g, y, *args, **attrs)):
            if d is not None and mask >> i & 1:
                found.append((i, fit(d, operands[i])))
        return found
    for i, f in enumerate(vjp[: len(args)] if vjp else ()):
        if f is not None and mask >> i & 1:
            d = f(g, y, *args, **attrs)
            if d is not None:
                found.append((i, fit(d, operands[i])))
    return found


class _Trace(OpTrace):
    """What a VJP does. What is inferred of it is known when backward records it."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: dict[int, Kind] = {}  #: Of each instruction, by its first result.

    def add(self, op: Op, args: tuple[Any, ...], attrs: dict[str, Any]) -> Any:
        kind = self.kinds[self.count] = kind_of(op, attrs)
        uses = (kind, *[a.spec if type(a) is Symbol else SCALARS[scalar_kind(a)] for a in args])
        made = tuple([self.symbol(s) for s in inferred(kind, uses)[1]])
        self.code.append((op, args, attrs, tuple([r.number for r in made])))
        return made if len(made) > 1 else made[0]


def _run(
    kind: Kind, operands: Sequence[Spec], results: Sequence[Spec], mask: int, given: Sequence[bool], args: Sequence[Any]
) -> tuple[_Trace, list[tuple[int, Symbol]]]:
    """The VJP on symbols, whose numbers are: those of the results' gradients, of the operands that are no numbers
    themselves, of the results. With the gradients it made."""
    trace = _Trace()
    g = [trace.symbol(s) for s in results]
    tensors = [trace.symbol(a) if type(a) is Spec else a for a in args]
    y = [trace.symbol(s) for s in results]
    gs = [s if has else None for s, has in zip(g, given, strict=True)]
    if len(results) == 1:
        return trace, gradients(kind, mask, gs[0], y[0], tensors, operands)
    return trace, gradients(kind, mask, tuple(gs), tuple(y), tensors, operands)


def _reads(trace: _Trace, found: list[tuple[int, Symbol]], args: Sequence[Any], results: int) -> int:
    """Which values the VJP reads, as bits: what it does with symbols shows it."""
    reads = trace.reads() | {d.number for _, d in found}
    number, bits = results, 0
    for i, a in enumerate(args):
        if type(a) is not Spec:
            bits |= 1 << i
        else:
            bits |= (number in reads) << i
            number += 1
    return bits | any(number + i in reads for i in range(results)) << len(args)


class _LookedAt(Exception):
    """A gradient depends on a number among its operands."""


def _look(self: Any, *others: Any) -> Any:
    raise _LookedAt


_LOOKS = (
    "abs add and bool ceil contains divmod eq float floor floordiv ge getitem gt hash index int invert iter le len "
    "lshift lt mod mul ne neg or pos pow radd rand rdivmod rfloordiv rlshift rmod rmul ror round rpow rrshift rshift "
    "rsub rtruediv rxor str sub truediv trunc xor"
)
_HOLES: dict[type, Any] = {
    kind: type("Hole", (kind,), {f"__{name}__": _look for name in _LOOKS.split()}) for kind in (float, int, bytes)
}
#: Numbers to run a VJP with, by dtype. Two: what C code made of one differs from what it makes of the other.
_STAND_INS: dict[str, tuple[Any, Any]] = {
    "float32": (1.5, 2.5), "int64": (2, 3), "bool": (True, False), "uint8": (b"", b"\0")
}  # fmt: skip


def _write(
    kind: Kind, operands: Sequence[Spec], results: Sequence[Spec], mask: int, given: tuple[bool, ...]
) -> tuple[int, Code | None]:
    """Which values the gradient reads, as bits, and its code; None if it depends on a number."""
    numbers = [s.dtype.name for s in operands if s.weak]
    try:
        if "bool" not in numbers:
            use = kind, operands, results, mask, given
            try:
                reads, code = _written(*use, 0)
                if not numbers or _written(*use, 1)[1] == code:
                    return reads, code
            except _LookedAt:
                pass
        args = [_STAND_INS[s.dtype.name][0] if s.weak else s for s in operands]
        return _reads(*_run(kind, operands, results, mask, given, args), args, len(results)), None
    except AutogradError:
        return 0, None  # there is no gradient in this case; backward raises the error if it gets here


def _written(
    kind: Kind, operands: Sequence[Spec], results: Sequence[Spec], mask: int, given: tuple[bool, ...], k: int
) -> tuple[int, Code]:
    args = [_HOLES[type(x := _STAND_INS[s.dtype.name][k])](x) if s.weak else s for s in operands]
    trace, found = _run(kind, operands, results, mask, given, args)
    n, count = len(results), 2 * len(results) + len(args)
    tensors = [*range(n), *[n + i for i, s in enumerate(operands) if not s.weak], *range(n + len(args), count)]
    place = dict(enumerate(tensors))  # of a symbol, by its number
    number_place = {id(a): n + i for i, a in enumerate(args) if type(a) is not Spec}  # trace.code keeps the ids theirs
    needed = _needed(trace, {d.number for _, d in found})
    constants: list[Any] = []
    for _, takes, _, _ in needed:
        for a in takes:
            if not isinstance(a, Symbol) and id(a) not in number_place:
                number_place[id(a)] = count + len(constants)
                constants.append(SCALAR_TYPES[scalar_kind(a)](a))
    count += len(constants)
    steps: list[tuple[Kind, tuple[int, ...]]] = []
    for _, takes, _, makes in needed:
        places = [place[a.number] if isinstance(a, Symbol) else number_place[id(a)] for a in takes]
        steps.append((trace.kinds[makes[0]], tuple(places)))
        for number in makes:
            place[number] = count
            count += 1
    code = Code(tuple(constants), tuple(steps), tuple([(i, place[d.number]) for i, d in found]))
    return _reads(trace, found, args, n), code


def _needed(trace: OpTrace, wanted: set[int]) -> list[Any]:
    """The instructions that the gradients are made of, in order."""
    kept = []
    for instruction in reversed(trace.code):
        _, takes, _, makes = instruction
        if not wanted.isdisjoint(makes):
            wanted.update([a.number for a in takes if isinstance(a, Symbol)])
            kept.append(instruction)
    kept.reverse()
    return kept
