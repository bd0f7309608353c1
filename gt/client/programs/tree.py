"""The tree of everything this session has recorded.

A node is "this op, these attributes, these operands" below its parent. It knows what follows from
that: the result's shape and dtype, what the gradient will read, and the user's line. A loop's
second pass walks known nodes, one dictionary look-up per op, and infers nothing.

A program is named by the node where it ends, the results that are kept and the inputs given away. Its precision
is its root's: there is one root for each.

The tree is bounded: ends of programs are kept in the order of their last use, and the branches of
those longest unused are cut.
"""

from __future__ import annotations

import os
import sys
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, NamedTuple

import msgspec

from gt.config import PACKAGE
from gt.ops.record import Op
from gt.places import NAME, Place
from gt.program import DEFAULT_PRECISION, Instruction, Precision, Program, Spec

NODE_NBYTES = 700  #: What a node costs in memory, its share of dictionaries included.

#: Functions around others (modules, compat/arguments.py, optimizers): the user wrote the name of the one inside.
_WRAPPERS = frozenset(["__call__", "_call_impl", "_use_grad", "_wrapped_call_impl", "call", "whole", "wrapper"])
#: Names in which many functions are made: they say nothing.
_MADE = frozenset(["__torch_function__", "_torch_function", "function", "handle_torch_function", "method", "operator"])


_precision: list[Precision] = [DEFAULT_PRECISION]  #: One entry: how exactly this process computes float32.


class Kind(msgspec.Struct, eq=False, gc=False):
    """An op with its attributes: the part of an instruction that is not an operand. Interned.

    A struct without garbage collection: then the keys of nodes, of which the tree consists, need none either.
    """

    op: Op
    attrs: dict[str, Any]
    home: Kinds | None = None

    def refused(self) -> None:
        """Inference raised an error for these attributes. Forget them: others may equal them (True == 1 == 1.0)."""
        if self.home is not None:
            for values in [v for v, kind in self.home.items() if kind is self]:
                del self.home[values]

    def __repr__(self) -> str:
        return f"{self.op.name}{self.attrs or ''}"


class Kinds(dict[Any, Kind]):
    """All kinds of one op, by the values of its attributes: `SUM[(0, 1), False]`."""

    __slots__ = ("names", "op")
    LIMIT = 10_000

    def __init__(self, op: Op, *names: str) -> None:
        self.op = op
        self.names = names

    def __missing__(self, values: Any) -> Kind:
        if len(self) >= self.LIMIT:
            self.clear()  # the tree grows new branches; only time is lost
        row = values if len(self.names) != 1 else (values,)
        kind = self[values] = Kind(self.op, dict(zip(self.names, row, strict=True)), self)
        return kind


_KINDS: dict[tuple[Op, tuple[str, ...]], Kinds] = {}  #: of ops called from a gradient or a composition


def kind_of(op: Op, attrs: dict[str, Any]) -> Kind:
    """The kind of an op with these attributes."""
    names = (*attrs,)
    kinds = _KINDS.get((op, names))
    if kinds is None:
        kinds = _KINDS[op, names] = Kinds(op, *names)
    values = (*attrs.values(),)
    return kinds[values if len(values) != 1 else values[0]]


Called = tuple[tuple[str, int], str]  #: The user's file and line, and the name of GT's function that is called there.


class Code(NamedTuple):
    """What a gradient records. Its values have places: the gradients of the results, the operands, the results, the
    constants, and then what it computes, in order."""

    constants: tuple[Any, ...]
    steps: tuple[tuple[Kind, tuple[int, ...]], ...]  #: ops, and the places of their operands
    gradients: tuple[tuple[int, int], ...]  #: (operand, place of its gradient)


@dataclass(slots=True, eq=False)
class Pullback:
    """What is known of the gradient of an op for some of its operands. pullback.py works it out."""

    use: tuple[Kind, tuple[Spec, ...], tuple[Spec, ...], int]  #: the op, its operands and results, which operands
    saves: int  #: Which values the VJP reads, as bits: operands, then the result. -1: there is no gradient.
    pick: Callable[[tuple[Any, ...]], tuple[Any, ...]]  #: Of operands, result and None: what a graph node keeps.
    whole: Code | None  #: If every result has a gradient; None: the VJP itself must be run.
    codes: dict[tuple[bool, ...], Code | None]  #: If only those results have one.
    frees: bool  #: Whether it reads tensors. Else a node can pass gradients any number of times, as in torch.


class Node(msgspec.Struct, eq=False, gc=False):
    """A place in the tree; see the file's header.

    A struct without garbage collection: there are many, and they stay, and to look at all of them again and again took
    a third of the time of a loop whose programs are new. A tree's nodes refer to each other; it cuts them apart when it
    ends.
    """

    parent: Node | None
    key: Any
    kids: dict[Any, Node] = {}
    depth: int = 0
    #: Counts along the path from the root, this node included.
    n_inputs: int = 0
    n_scalars: int = 0
    n_values: int = 0
    kind: Kind | None = None
    refs: tuple[int | None, ...] = ()  #: operands: result number, ~k for input k, None for a scalar
    operands: tuple[Spec, ...] = ()
    specs: tuple[Spec, ...] = ()
    spec: Spec | None = None  #: of the first result
    pulls: dict[int, Pullback] | None = None  #: The gradient, by which operands need one, as bits.
    where: tuple[str, int] = ("", 0)
    called: str = ""  #: GT's function that the user called there
    programs: dict[Any, Variant] | None = None  #: Those that end here, if any do.
    ends: bool = False  #: A program that reaches this node ends here: at the cap, or at the end of a period.
    joins: bool = False  #: An optimizer's step that ends here does not end the program; see record/joining.py.

    def path(self) -> list[Node]:
        """The nodes from the first op to this one."""
        nodes: list[Node] = []
        node = self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        nodes.reverse()
        return nodes


@dataclass(slots=True)
class Variant:
    """A program that ends at some node, ready to be called."""

    program: Program
    hash: bytes
    outputs: tuple[int, ...]  #: result numbers (of the path), in the program's order
    inputs: tuple[int, ...]  #: which of the path's inputs the program takes
    scalars: tuple[int, ...]  #: which of the path's scalars
    dead: frozenset[int]  #: path inputs that the program may overwrite
    updates: tuple[tuple[int, int], ...]  #: (result number, path input)
    where: list[tuple[str, int]]  #: the user's line for each instruction
    places: tuple[Place, ...]  #: the same as it is sent
    timed: bool = False
    compile: int = 0  #: see Define
    reads: dict[int, Spec] = field(default_factory=dict)  #: Outputs that were read together; see session/transfers.py.

    def made_by(self, instruction: int) -> str:
        """A line for an error: the op of an instruction, and the user's line. Empty if there is no such instruction."""
        if not 0 <= instruction < len(self.where):
            return ""
        file, line = self.where[instruction]
        return f"\n  made by {self.program.code[instruction].op} at {file}:{line}"


def build(end: Node, live: tuple[int, ...], dead: frozenset[int], updates: tuple[tuple[int, int], ...]) -> Variant:
    """The program of the path to `end` with the results `live`. Instructions that they do not need are left out."""
    path = end.path()
    needed: set[int | None] = {*live}
    keep: list[Node] = []  # last first
    first = end.n_values
    for node in reversed(path):
        results = len(node.specs)
        first -= results
        if first in needed or (results > 1 and not needed.isdisjoint(range(first + 1, first + results))):
            keep.append(node)
            needed.update(node.refs)
    keep.reverse()

    inputs = tuple(sorted({~r for r in needed if r is not None and r < 0}.union([source for _, source in updates])))
    input_number = {source: i for i, source in enumerate(inputs)}
    input_specs = _input_specs(path)

    takes = {node: _scalars(node) for node in keep if None in node.refs}
    letters = {k: part[0] for taken in takes.values() for part, k in taken}
    scalars = tuple(sorted(letters))
    scalar_number = {k: i for i, k in enumerate(scalars)}

    number: list[int] = [-1] * (end.n_values + end.n_inputs)  # of the path -> of the program; of input k at ~k
    for source, i in input_number.items():
        number[~source] = i
    code: list[Instruction] = []
    count = len(inputs)
    for node in keep:
        kind, results, refs = node.kind, len(node.specs), node.refs
        assert kind is not None
        taken = takes.get(node)
        if taken is None:
            args = tuple([number[r] for r in refs])  # type: ignore[index]  # None is a scalar
        else:
            passed = iter(taken)
            args = tuple([~scalar_number[next(passed)[1]] if r is None else number[r] for r in refs])
        for made in range(node.n_values - results, node.n_values):
            number[made] = count
            count += 1
        code.append(Instruction(kind.op.name, args, kind.attrs, results))

    program = Program(
        inputs=tuple([(input_specs[i].shape, input_specs[i].dtype.name) for i in inputs]),
        scalars="".join([letters[k] for k in scalars]),
        code=tuple(code),
        outputs=tuple([number[v] for v in live]),
        donate=tuple([input_number[d] for d in sorted(dead) if d in input_number]),
        updates=tuple([(live.index(v), input_number[source]) for v, source in updates]),
        precision=path[0].parent.key,  # type: ignore[union-attr]  # the root
    )
    where = [node.where for node in keep]
    return Variant(program, program.hash(), live, inputs, scalars, dead, updates, where, _places(keep))


def _places(keep: list[Node]) -> tuple[Place, ...]:
    """The lines that instructions come from, as they are sent: those in a row from one line are one."""
    found: list[Place] = []
    count, last = 0, keep[0]
    for node in keep:
        if node.where != last.where or node.called != last.called:
            found.append(_place(last, count))
            count, last = 0, node
        count += 1
    return (*found, _place(last, count))


def _place(node: Node, instructions: int) -> Place:
    file, line = node.where
    return Place(file.rpartition("/")[2][:NAME], line, node.called, instructions)


def _scalars(node: Node) -> list[tuple[str, int]]:
    """The scalars a node takes: their parts of its key, and which of the path's they are. A part is the letter of a new
    one ("f"), or the letter and number of one that the path has had ("f3")."""
    assert node.parent is not None
    count = node.parent.n_scalars
    found: list[tuple[str, int]] = []
    for part in node.key[1:]:
        if type(part) is str:
            new = len(part) == 1
            found.append((part, count if new else int(part[1:])))
            count += new
    return found


def _input_specs(path: list[Node]) -> list[Spec]:
    """The specs of the inputs, in the order in which the path meets them."""
    specs: list[Spec] = []
    for node in path:
        if len(specs) == node.n_inputs:
            continue
        specs.extend(part[1] for part in node.key[1:] if type(part) is tuple)
    return specs


def current_precision() -> Precision:
    """The precision of programs that begin now."""
    return _precision[0]


def change_precision(product: str | None, conv_tf32: bool | None) -> bool:
    """Change the precision of programs that begin later; None leaves a field as it is. Returns whether it changed.

    A program has one precision (program.py says why it is part of it), so whoever calls this ends what is pending:
    recording an op never asks for it."""
    before = _precision[0]
    _precision[0] = Precision(
        before.product if product is None else product, before.conv_tf32 if conv_tf32 is None else conv_tf32
    )
    return _precision[0] != before


class Tree:
    """The roots, and the bound on the number of nodes."""

    VARIANTS = 4  #: If one node has more programs, they are joined into one.

    def __init__(self, limit_nbytes: int) -> None:
        self._roots: dict[Precision, Node] = {}  #: Each has its precision for a key.
        self.limit = max(1, limit_nbytes // NODE_NBYTES)
        self.nodes = 0
        #: Nodes where a pending program ended or was dropped, least recently used first.
        self.ends: OrderedDict[Node, None] = OrderedDict()

    def __del__(self) -> None:
        nodes = [*self._roots.values()]
        while nodes:
            node = nodes.pop()
            nodes += node.kids.values()
            node.parent, node.kids, node.programs = None, {}, None

    @property
    def root(self) -> Node:
        """Where a program begins now."""
        chosen = _precision[0]
        found = self._roots.get(chosen)
        return self._roots.setdefault(chosen, Node(None, chosen)) if found is None else found

    def variant(
        self, end: Node, live: tuple[int, ...], dead: frozenset[int], updates: tuple[tuple[int, int], ...]
    ) -> Variant:
        """A program for this end: one that exists and serves (keeps at least what is live, gives
        away no more than what is dead), or a new one."""
        exact = (live, dead, updates)
        programs = end.programs = {} if end.programs is None else end.programs
        found = programs.get(exact)
        if found is not None:
            return found
        alive = set(live)
        for v in programs.values():
            if v.updates == updates and v.dead <= dead and alive.issubset(v.outputs):
                return v
        if len(programs) >= self.VARIANTS:
            # The user's code keeps different results each time. One program that keeps all of them serves every case.
            for v in programs.values():
                alive.update(v.outputs)
                dead = dead & v.dead
            live = tuple(sorted(alive))
            programs.clear()
        made = build(end, live, dead, updates)
        programs[live, dead, updates] = made
        return made

    def touch(self, end: Node, pinned: Callable[[], set[Node]]) -> None:
        """A pending program ended here. If the tree is too large, cut the least recently used branches, except those
        that are `pinned`."""
        self.ends[end] = None
        self.ends.move_to_end(end)
        while self.nodes > self.limit and len(self.ends) > 1:
            oldest = next(iter(self.ends))
            if oldest is end:
                break
            del self.ends[oldest]
            oldest.programs = None
            self._cut(oldest, pinned())

    def _cut(self, node: Node, pinned: set[Node]) -> None:
        while node.parent is not None and not node.kids and not node.programs and node not in pinned:
            if node in self.ends:
                return
            if node.parent.kids.get(node.key) is node:  # else its thread has come there while it was being cut
                del node.parent.kids[node.key]
            self.nodes -= 1
            node = node.parent


#: Folders whose frames are not the user's line: GT's own, and torch's once a model was adopted.
_hidden: tuple[str, ...] = (str(PACKAGE) + os.sep,)


def hide_frames_of(folder: str) -> None:
    """Files in this folder are not the user's, either."""
    global _hidden
    _hidden = (*_hidden, folder + os.sep)


def users_frame() -> FrameType:
    """The innermost frame that is the user's."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(_hidden) and frame.f_back is not None:
        frame = frame.f_back
    return frame


def users_line() -> tuple[str, int]:
    """File and line of that frame."""
    frame = users_frame()
    return frame.f_code.co_filename, frame.f_lineno


def users_call() -> Called:
    """File and line of that frame, and the name of GT's function that it calls."""
    frame, called = sys._getframe(1), ""
    while frame.f_code.co_filename.startswith(_hidden) and frame.f_back is not None:
        name = frame.f_code.co_name
        frame, called = frame.f_back, called if name in _WRAPPERS else "" if name in _MADE else name
    return (frame.f_code.co_filename, frame.f_lineno), called.strip("_")


def find_period(path: list[Node], repeats: int = 8) -> int:
    """The shortest period with which the path ends at least `repeats` times; 0 if there is none.

    Two ops are equal here if they are of one kind and take their operands from equally far back.
    """
    shapes = []
    first = 0
    for node in path:
        refs = tuple(
            part[0] if type(part) is str else "new" if type(part) is tuple else part - first if part >= 0 else "input"
            for part in node.key[1:]
        )
        shapes.append((node.kind, refs, node.specs))
        first += len(node.specs)
    n = len(shapes)
    for p in range(1, n // repeats + 1):
        if shapes[n - 1] == shapes[n - 1 - p] and shapes[n - repeats * p : n - p] == shapes[n - (repeats - 1) * p :]:
            return p
    return 0


def end_of_period(path: list[Node], period: int) -> int:
    """The length up to which a program must grow so that it consists of whole periods; its own length if it does not
    repeat this one from its beginning. The first round of a period may have new inputs."""
    kinds = [(n.kind, n.specs) for n in path]
    if not period or kinds[period:] != kinds[: len(kinds) - period]:
        return len(path)
    return -(-len(path) // period) * period
