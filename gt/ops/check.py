"""Is this a program? Nothing that was declared is believed: numbering, ops, attributes and
shapes are all checked and inferred again, before anything is planned or allocated.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from gt import dtypes
from gt.errors import GTError, ProgramError
from gt.ops.record import TABLE, Op
from gt.program import PRODUCTS, SCALARS, Program, Spec, as_tuple, spec

MAX_INSTRUCTIONS = 100_000
MAX_DIMS = 64
MAX_ELEMENTS = 1 << 48  #: More than any worker could hold; keeps sizes far from overflow.


REMEMBERED = 1 << 14  #: Uses of ops of which it is remembered what inference said,
REMEMBERED_SIZE = 256  #: if they are not larger than this: bytes of attributes, and eight for each operand.


class Inferred(msgspec.Struct, eq=False, gc=False):
    """An op with some attributes on operands of some specs, and what inference has said of it."""

    op: Op
    attrs: dict[str, Any]
    operands: tuple[Spec, ...]
    results: tuple[Spec, ...]
    lowered: Any = None  #: What a worker has made of it: see lowering.py.


@dataclass(frozen=True, slots=True)
class Checked:
    """What is known of a program that passed."""

    program: Program
    uses: tuple[Inferred, ...]  #: of every instruction
    specs: tuple[Spec, ...]  #: of every value
    last_use: tuple[int, ...]  #: of every value: the last instruction that reads it, -1 if none does
    peak_nbytes: int  #: most bytes of results alive at once, inputs not counted
    text_nbytes: int  #: a measure of its size, for caches


def check_client(program: Program) -> Checked:
    """The facts of a program that a client wrote: what only the planner may write is refused."""
    if program.workers:
        raise ProgramError("a client's program must not name workers")
    for i, ins in enumerate(program.code):
        op = TABLE.get(ins.op)
        if op is not None and op.collective:
            raise ProgramError(f"instruction {i} ({ins.op}): a client must not use collective ops")
    return check(program)


def check(program: Program) -> Checked:
    """The program's facts; raises ProgramError with the reason if it is invalid."""
    if len(program.code) > MAX_INSTRUCTIONS:
        raise ProgramError(f"{len(program.code)} instructions; the limit is {MAX_INSTRUCTIONS}")
    specs = [_input(shape, dtype) for shape, dtype in program.inputs]
    n_inputs = len(specs)
    for letter in program.scalars:
        if letter not in SCALARS:
            raise ProgramError(f"unknown scalar kind {letter!r}; expected one of {', '.join(SCALARS)}")
    if program.precision.product not in PRODUCTS:
        raise ProgramError(f"unknown precision {program.precision.product!r}; expected one of {', '.join(PRODUCTS)}")
    scalar_specs = [SCALARS[k] for k in program.scalars]
    last_use = [-1] * n_inputs
    uses: list[Inferred] = []
    given = [*scalar_specs[::-1], *specs]  # operand `a` at `a + first`
    first, end = len(scalar_specs), n_inputs
    for i, ins in enumerate(program.code):
        op = TABLE.get(ins.op)
        if op is None:
            raise ProgramError(f"instruction {i}: unknown op {ins.op!r}")
        operands = []
        for a in ins.args:
            if not -first <= a < end:
                raise ProgramError(f"instruction {i} ({ins.op}): operand {a} does not exist")
            operands.append(given[a + first])
            if a >= 0:
                last_use[a] = i
        use = _infer(i, op, operands, ins.attrs)
        results = use.results
        if len(results) != ins.results:
            raise ProgramError(f"instruction {i} ({ins.op}): expected {len(results)} results, got {ins.results}")
        uses.append(use)
        given += results
        end += len(results)
        last_use += [-1] * len(results)
    specs = given[first:]
    _check_ends(program, n_inputs, specs)
    peak = max(alive_nbytes(program, [s.nbytes for s in specs], last_use, set(program.outputs)), default=0)
    size = 200 + 300 * len(program.code) + 100 * n_inputs
    return Checked(program, tuple(uses), tuple(specs), tuple(last_use), peak, size)


def _input(shape: tuple[int, ...], dtype: str) -> Spec:
    if dtype not in dtypes.BY_NAME:
        raise ProgramError(f"unknown dtype {dtype!r}")
    return _sane(spec(tuple(shape), dtypes.BY_NAME[dtype]), "an input")


def misfit(s: Spec) -> str:
    """Why no tensor can have this shape; empty if one can."""
    if len(s.shape) > MAX_DIMS:
        return f"a shape of {len(s.shape)} dimensions; the limit is {MAX_DIMS}"
    if any(type(n) is not int or n < 0 for n in s.shape):
        return f"{s.shape} is not a shape"
    return f"{s.shape} has more than {MAX_ELEMENTS} elements" if s.size > MAX_ELEMENTS else ""


def _sane(s: Spec, what: str) -> Spec:
    if problem := misfit(s):
        raise ProgramError(f"{what}: {problem}")
    return s


def _infer(i: int, op: Op, operands: list[Spec], attrs: dict[str, Any]) -> Inferred:
    try:
        return infer(op, attrs, operands)
    except ProgramError as e:
        raise ProgramError(f"instruction {i}: {e}") from None
    except GTError as e:
        raise ProgramError(f"instruction {i}: {e}") from None
    except Exception as e:  # a stranger's attributes may break inference in any way
        raise ProgramError(f"instruction {i} ({op.name}): {type(e).__name__}: {e}") from None


def infer(op: Op, attrs: dict[str, Any], operands: Sequence[Spec]) -> Inferred:
    """What follows from the op, its attributes and the specs of its operands. It is the same object if that was asked
    before, and is still remembered. Raises what inference raises."""
    key: Any = None
    try:
        written = _encode(attrs) if attrs else b""
        if len(written) + 8 * len(operands) <= REMEMBERED_SIZE:
            key = (op, written, *operands)
            found = _remembered.get(key)
            if found is not None:
                return found
    except Exception:  # attributes that are not plain data
        key = None
    results = tuple([_sane(s, op.name) for s in as_tuple(op.infer(*operands, **attrs))])
    made = Inferred(op, attrs, tuple(operands), results)
    if key is not None:
        if len(_remembered) >= REMEMBERED:
            _remembered.clear()  # only time is lost
        _remembered[key] = made
    return made


#: By op, attributes as bytes (where 1, 1.0 and True differ), and operands. Errors are not remembered.
_remembered: dict[tuple[Any, ...], Inferred] = {}
_encode = msgspec.msgpack.Encoder().encode


def _check_ends(program: Program, n_inputs: int, specs: list[Spec]) -> None:
    outputs, donate, n_values = program.outputs, program.donate, len(specs)
    if len(set(outputs)) != len(outputs) or not all(n_inputs <= o < n_values for o in outputs):
        raise ProgramError("outputs must be results, each named once")
    if len(set(donate)) != len(donate) or not all(0 <= d < n_inputs for d in donate):
        raise ProgramError("donated values must be inputs, each named once")
    for position, source in program.updates:
        if not (0 <= position < len(outputs) and 0 <= source < n_inputs):
            raise ProgramError(f"update {position} <- {source} does not exist")
        new, old = specs[outputs[position]], specs[source]
        if (new.shape, new.dtype) != (old.shape, old.dtype):
            raise ProgramError(f"update {position} <- {source}: {new!r} cannot replace {old!r}")


def alive_nbytes(
    program: Program, nbytes: Sequence[int], last_use: Sequence[int], kept: Collection[int] = ()
) -> Iterator[int]:
    """Of each instruction: the bytes of results that are alive when it has run. `nbytes` and `last_use` are of every
    value; what is `kept` stays alive."""
    dies: dict[int, int] = {}
    alive = 0
    for i, (_, made) in enumerate(program.numbered()):
        for v in made:
            alive += nbytes[v]
            if v not in kept:
                at = max(last_use[v], i)
                dies[at] = dies.get(at, 0) + nbytes[v]
        yield alive
        alive -= dies.pop(i, 0)
