"""A program that is being recorded, and the values in it.

Law: which values are alive is exact: it is read off CPython's reference counts when the program is sent. So nothing
     that holds a value may be part of a reference cycle; the autograd graph may not either.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from sys import getrefcount
from typing import Any, Protocol

import msgspec

from gt.client.programs.numbers import Number
from gt.client.programs.tree import Called, Kind, Node, Tree, Variant, users_call
from gt.errors import ArgumentError, ShapeError
from gt.ops.check import misfit
from gt.program import SCALARS, Spec, as_tuple


class Value(msgspec.Struct, eq=False, gc=False):
    """One immutable value. Tensors, cells and the autograd graph share it.

    A struct without garbage collection, because every op makes one: it costs a third of an object. The only cycle it
    is ever part of is with its pending program, which drops its values when it ends.
    """

    owner: Pending | None  #: The pending program that will make it; None once it has an id, or the host knows it.
    num: int  #: Its number among the results of that program.
    spec: Spec
    handle: RemoteId | None = None
    replaces: int | None = None  #: The input of its program that it was written over.
    host: Any = None  #: Its data as an array that nobody changes, where the host knows it: see hosted.py.
    #: The host data that it was made of. Reading it still waits for the worker: what was read is there, whatever fails
    #: later. See `reading.known_data`.
    given: Any = None
    copied: bool = False  #: Tensors that do not share memory have had it; see views/aliases.py.
    asked: bool = False  #: Something was read that was made of it; see hosted.py.
    count: int = -1  #: How many of its elements are nonzero, once somebody has asked; see functions/masks.py.


KEPT_NBYTES = 1024  #: Values of up to this size are kept when they have been read.
WHOLE_NBYTES = 4096  #: A tensor of up to this size is fetched whole when a view of it is read: it takes no longer.


def keep(v: Value, data: Any, whole: bool = False) -> None:
    """Remember the data of a value, if it is small; `whole`: it was fetched for a part of it. The array is the caller's
    to change: a copy is kept."""
    if v.spec.nbytes <= (WHOLE_NBYTES if whole else KEPT_NBYTES):
        v.host = data.copy()


class DeadIds(deque[int]):
    """The ids of a session's values that nobody holds any more; finalizers append to it. It also says whose a value is:
    all values of a session have the same one."""

    def __init__(self, elsewhere: str) -> None:
        super().__init__()
        self.elsewhere = elsewhere  #: The error if a value of this session is used in another one.


class RemoteId:
    """The id of a value at the dispatcher. When this object is freed, the id is appended to the session's
    `dead` and nothing else happens: no lock, no message, since this may run in any thread, at any time."""

    __slots__ = ("dead", "id")

    def __init__(self, id: int, dead: DeadIds) -> None:
        self.id = id
        self.dead = dead

    def __del__(self) -> None:
        if self.id:
            self.dead.append(self.id)


class OwnIds(Protocol):
    """What a pending program knows of a session."""

    dead: DeadIds


class ThreadRecorder(Protocol):
    """What a pending program and a session know of a thread's recorder (recorder.py)."""

    thread: threading.Thread
    pending: Pending
    blocked: Pending
    busy: bool
    seen: tuple[int, int, float]

    @property
    def session(self) -> OwnIds: ...

    @property
    def tracing(self) -> bool: ...

    def refuse_sync(self) -> None: ...

    def settle(self, timed: bool = False) -> None: ...

    def steal(self, p: Pending, timed: bool = False) -> bool: ...


#: `recorder`: the recorder that this thread records with; unset until there is one.
local = threading.local()


def in_use() -> Any:
    """This thread's recorder; None if it has none yet."""
    return getattr(local, "recorder", None)


def use(rec: ThreadRecorder | None) -> Any:
    """Make this the thread's recorder; returns the one before."""
    before = in_use()
    if rec is None:
        local.__dict__.pop("recorder", None)
    else:
        local.recorder = rec
    return before


class Pending:
    """A program that is being recorded."""

    __slots__ = (
        "compile", "end", "grown_to", "held", "inputs", "marked_s", "node", "pins", "rec", "scalars", "shared",
        "sources", "undo", "values",
    )  # fmt: skip

    def __init__(self, rec: ThreadRecorder, node: Node) -> None:
        self.rec = rec
        self.node = node
        self.values: list[Value] = []  #: Every result so far, by number.
        self.inputs: dict[Value, int] = {}  #: What it takes, in order; the k-th as ~k, its number in a key.
        self.scalars: list[Any] = []
        #: A Number or SharedNumber that was passed: its scalar k as a later op's key has it ("f3"), and itself, to keep
        #: its id() its own. In the order of k.
        self.shared: dict[int, tuple[str, Any]] = {}
        self.pins: dict[int, str] = {}  #: The layouts that the user gave to some results, by their numbers.
        self.sources: dict[int, Number] = {}  #: In a trace: where scalar k comes from; see traced.py.
        self.undo: list[Callable[[], None]] = []  #: What to undo on the host if the call fails.
        self.compile = 0  #: What the user chose: see messages.Define.
        self.end: Node | None = None  #: Once marked: the node it ends at. `node` then has no children.
        self.marked_s = 0.0
        self.held = 0  #: Bytes of the inputs, as far as they are large; see `held_alone`.
        self.grown_to = 0  #: The length up to which it may grow before the recorder looks at it again.

    def clear(self) -> None:
        """Drop its values when it is over. They refer to it as their owner, and would keep each other alive."""
        self.values.clear()
        self.inputs.clear()


#: What a number is in a key, by its type.
LETTERS: dict[type, str] = {float: "f", int: "i", bool: "b", bytes: "d"}
LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1  #: The range of the ints that a call can carry.

NOWHERE = Node(None, None)  #: Has no children: an op recorded there always misses.


def too_long(kind: Kind, number: int) -> ArgumentError:
    """The error for an int outside of that range."""
    return ArgumentError(f"{kind.op.name}: the number does not fit into int64; it has {number.bit_length()} bits")


#: What inference has said, by the kind and the specs of the operands: those specs, and those of the results. Programs
#: that are recorded for the first time consist of ops that others had. Cleared when it is full: only time is lost.
_inferred: dict[tuple[Any, ...], tuple[tuple[Spec, ...], tuple[Spec, ...]]] = {}
INFERRED = 20_000  #: Its limit.


def grow(tree: Tree, p: Pending, key: tuple[Any, ...], operands: Sequence[Any], place: Called | None = None) -> Node:
    """Add the node of an op on values and numbers to the tree, below the one that the program is at; or raise the
    user's error. The key names its operands, and what it passes first is already part of the program. `place`: where
    the user has called it, if that is known."""
    kind, parent = key[0], p.node
    refs: list[int | None] = []
    known: list[Any] = [kind]
    n_inputs = n_scalars = 0
    for part, x in zip(key[1:], operands, strict=True):
        if type(part) is int:
            refs.append(part)
            known.append(x.spec)
        elif type(part) is str:
            refs.append(None)
            known.append(SCALARS[part[0]])
            n_scalars += len(part) == 1
        else:
            refs.append(part[0])
            known.append(part[1])
            n_inputs += 1
    node_operands, specs = inferred(kind, tuple(known))
    where, called = users_call() if place is None else place
    node = parent.kids[key] = Node(
        parent,
        key,
        depth=parent.depth + 1,
        n_inputs=parent.n_inputs + n_inputs,
        n_scalars=parent.n_scalars + n_scalars,
        n_values=parent.n_values + len(specs),
        kind=kind,
        refs=tuple(refs),
        operands=node_operands,
        specs=specs,
        spec=specs[0],
        where=where,
        called=called,
    )
    tree.nodes += 1
    return node


def inferred(kind: Kind, uses: tuple[Any, ...]) -> tuple[tuple[Spec, ...], tuple[Spec, ...]]:
    """The specs of the operands and of the results of an op; or raise the user's error. `uses`: its kind, and the specs
    of the operands."""
    found = _inferred.get(uses)
    if found is not None:
        return found
    operands = uses[1:]
    try:
        specs = as_tuple(kind.op.infer(*operands, **kind.attrs))
        if problem := next(filter(None, map(misfit, specs)), ""):
            raise ShapeError(f"{kind.op.name}: {problem}")  # here, with the user's line: the server would refuse it
    except Exception:
        kind.refused()
        raise
    if len(_inferred) >= INFERRED:
        _inferred.clear()
    found = _inferred[uses] = operands, specs
    return found


def roll_back(p: Pending) -> None:
    """Remove what an op that was not recorded has already added."""
    node = p.end or p.node
    while len(p.inputs) > node.n_inputs:
        p.inputs.popitem()
    while p.shared and int(next(reversed(p.shared.values()))[0][1:]) >= node.n_scalars:
        p.shared.popitem()
    for k in [k for k in p.sources if k >= node.n_scalars]:
        del p.sources[k]
    del p.scalars[node.n_scalars :]
    del p.values[node.n_values :]


def held_alone(p: Pending) -> int:
    """The bytes of inputs that nobody else holds. An input that was written over does not count: the new value takes
    its memory, and the step of an optimizer must stay one program, however large the model is."""
    replaced = {v.replaces for v in p.values}
    sizes = [v.spec.nbytes if getrefcount(v) <= ALONE else 0 for v in p.inputs]
    return sum([nbytes for k, nbytes in enumerate(sizes) if k not in replaced])


def is_loop(p: Pending, path: list[Node], period: int) -> bool:
    """Whether a program that ends in equal rounds is a loop that may go on for ever: a round leaves nothing behind, and
    takes nothing of its own. Layers take their weights; what gradients will read is kept."""
    some_round = path[-4 * period : -3 * period]  # not the latest: the user's variables hold its values
    new = {~part[0] for node in some_round for part in node.key[1:] if type(part) is tuple}
    first = some_round[0].n_values - len(some_round[0].specs)
    made = range(first, some_round[-1].n_values)
    return new.issubset(alone(p.inputs)) and set(made).issubset(alone(p.values))


def alone(values: Iterable[Value]) -> list[int]:
    """Which of these values nobody else holds. (Not with enumerate: its tuple would hold one.)"""
    return [k for k, n in enumerate([getrefcount(v) for v in values]) if n <= ALONE]


def _alone() -> int:
    """What getrefcount says of an object that is only in a list that is being iterated over."""
    values = [Value(None, 0, SCALARS["f"])]
    return [getrefcount(v) for v in values][0]  # noqa: RUF015 - exactly this form is measured


ALONE = _alone()


def program_of(p: Pending, end: Node, tree: Tree) -> tuple[Variant, set[int]] | None:
    """The program to call, and the results that are alive now. None if none is."""
    live = [v.num for v in p.values if getrefcount(v) > ALONE and v.owner is p]  # not what the host has computed
    if not live:
        return None
    dead = frozenset(alone(p.inputs))
    values = p.values
    updates = tuple([(n, k) for n in live if (k := values[n].replaces) is not None])
    return tree.variant(end, tuple(live), dead, updates), set(live)
