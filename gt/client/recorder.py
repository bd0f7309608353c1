"""Recording: what the user's Python does becomes a pending program.

Law 1: recording a known op waits for nobody, takes no lock and infers nothing.
Law 2: which values are alive is exact: it is read off CPython's reference counts when the program
       settles. So nothing here, nor in the autograd graph, may form a reference cycle.
Law 3: only the owner thread adds to its pending program. Another thread may end it, when the
       owner is not inside an op: see `Recorder.steal`.

Ops come in through `unary`, `binary` and `apply`. Each makes the op's key (its kind and its operands as
numbers) and looks it up among the children of the current tree node. A miss goes to `Recorder.miss`,
which does whatever was missing (end a marked program, grow the tree) so that the same op,
tried again, hits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from sys import getrefcount
from typing import TYPE_CHECKING, Any

import msgspec

from gt.client.autograd import attach
from gt.client.number import Number, Shared
from gt.client.tree import Kind, Node, Variant, find_period, users_line
from gt.errors import DTypeError, ServerError
from gt.ops.record import as_tuple
from gt.program import SCALARS, Spec

if TYPE_CHECKING:
    from gt.client.session import Session
    from gt.client.tensor import Tensor

CAP = 4_000  #: Instructions after which a program ends in any case.
TRACE_CAP = 50_000  #: The same for a traced function, which should stay one program.
HELD_NBYTES = 64 << 20  #: Bytes of inputs that only a pending program holds before it ends.
MARK_S = 0.002  #: A marked program settles after this time at the latest.
IDLE_S = 0.2  #: An unfinished program is cut after this long without a GT call.

#: What an op's result is wrapped in, and what makes an operand out of something that is none
#: (a numpy number, an array). Both are set by tensor.py, which is built on this file.
make: type[Tensor] = None  # type: ignore[assignment]  # there from the first op on
coerce: Callable[..., Any] = None  # type: ignore[assignment]  # likewise


class Value(msgspec.Struct, eq=False, gc=False):
    """One immutable value. Tensors, cells and the autograd graph share it.

    A struct that the collector does not look at, because one is made by every op: it costs a third so. The only
    cycle it is ever in is that with a pending program, which lets go of its values when it ends.
    """

    owner: Pending | None  #: The pending program that will make it; None once it has an id.
    num: int  #: Its number among the results of that program.
    spec: Spec
    handle: Handle | None = None
    replaces: int | None = None  #: The input of its program that it was written over.
    copied: bool = False  #: A second tensor has had it that does not share memory with the first; see views.py.


class Handle:
    """A value's name at the dispatcher. When it dies, the id is appended to a deque and that is all:
    no lock, no send, since this may run in any thread, inside anything."""

    __slots__ = ("dead", "id")

    def __init__(self, id: int, session: Session) -> None:
        self.id = id
        self.dead = session.dead

    def __del__(self) -> None:
        if self.id:
            self.dead.append(self.id)


class Pending:
    """A program that is being recorded."""

    __slots__ = (
        "compile",
        "end",
        "grown_to",
        "held",
        "inputs",
        "marked_s",
        "node",
        "rec",
        "scalars",
        "shared",
        "sources",
        "undo",
        "values",
    )

    def __init__(self, rec: Recorder, node: Node) -> None:
        self.rec = rec
        self.node = node
        self.values: list[Value] = []  #: Every result so far, by number.
        self.inputs: dict[Value, int] = {}  #: What it takes, in order; the k-th as ~k, its number in a key.
        self.scalars: list[Any] = []
        #: A Number or Shared that was passed: its scalar k as a later op's key has it ("f3"), and itself, to keep its
        #: id() its own. In the order of k.
        self.shared: dict[int, tuple[str, Any]] = {}
        self.sources: dict[int, Any] = {}  #: In a trace: where scalar k comes from, see function.py.
        self.undo: list[Callable[[], None]] = []  #: What to take back on the host if the call fails.
        self.compile = 0  #: What the user chose: see messages.Define.
        self.end: Node | None = None  #: Once marked: the node it ends at. `node` then has no children.
        self.marked_s = 0.0
        self.held = 0  #: Bytes of the inputs, as far as they are large; see `_held_too_much`.
        self.grown_to = 0  #: Length at which the cap asked to go on to a period's edge.

    def let_go(self) -> None:
        """It is over. Its values name it as their owner: without this it would live in a cycle, and they with it."""
        self.values.clear()
        self.inputs.clear()


NOWHERE = Node(None, None)  #: Has no children: an op recorded there always misses.


class Recorder:
    """One thread's recording."""

    __slots__ = (
        "anomaly", "blocked", "busy", "grad", "pending", "policy", "seen", "session", "tape", "thread", "trace",
        "transforms",
    )  # fmt: skip

    def __init__(self, session: Session) -> None:
        self.session = session
        self.thread = threading.current_thread()
        self.grad = True
        #: The owner is inside an op. Written before `pending` is read; a thief writes `pending` before it
        #: reads this. So at least one of the two sees the other.
        self.busy = False
        self.pending = Pending(self, session.tree.root)
        self.blocked = Pending(self, NOWHERE)  #: Stands in for `pending` while another thread ends it.
        self.seen = (0, 0, 0.0)  #: At the timer's last look: the program, its length, and since when.
        self.trace: Any = None  #: Set while a @gt.function is being traced.
        self.anomaly: Any = None  #: Looks for the first nan, if it is to be found: see anomaly.py.
        self.transforms = 0  #: Functions of gt.func that are running: inner gradients are differentiable then.
        self.tape: Any = None  #: Notes the seeds that are drawn, or has them drawn again: see checkpoint.py.
        #: Casts the operands of some ops before they are recorded: autocast, another default dtype; see policy.py.
        self.policy: Callable[[Kind, tuple[Any, ...]], tuple[Any, ...]] | None = None

    # --- the slow path ---

    def miss(self, p: Pending, kind: Kind, args: tuple[Any, ...]) -> None:
        """Make it so that recording this op again finds a node, or raise the user's error."""
        _roll_back(p)
        self.busy = False
        session = self.session
        session.check_usable()
        for a in args:
            if hasattr(a, "_v"):
                v = a._v or a._read()
                self._bring_here(v)
                if self.trace is not None and v.owner is not p:
                    self.trace.learn(a)
        with session.lock:
            if self.pending is not p:
                return  # another thread ended it meanwhile
            if p.end is not None:
                self.settle()
                return
            node = p.node
            if node is NOWHERE:
                p.node = session.tree.root
                session.wake_timer()
                return
            if node.depth >= TRACE_CAP if self.trace else node.ends or node.depth >= CAP:
                if self._end_at_cap(p):
                    return
            elif p.held > HELD_NBYTES and _held_too_much(p):
                self.settle()
                return
            self._grow(p, kind, args)

    def _bring_here(self, v: Value) -> None:
        """An operand that is pending in another thread: end that program first."""
        owner = v.owner
        if owner is not None and owner.rec is not self:
            if owner.rec.session is not self.session:
                raise ServerError("a tensor of another session cannot be used here; pass its .numpy()")
            while v.owner is not None and not owner.rec.steal():
                if self.session.full:
                    self.session.make_room()
                else:
                    time.sleep(0)  # it is inside an op, which is a matter of microseconds
        elif owner is None and v.handle is not None and v.handle.dead is not self.session.dead:
            raise ServerError("this tensor belongs to a session that is closed, or is not this thread's")

    def _grow(self, p: Pending, kind: Kind, args: tuple[Any, ...]) -> None:
        key: list[Any] = [kind]
        refs: list[int | None] = []
        specs: list[Spec] = []
        fresh: dict[Value, int] = {}  # inputs that this op is the first to use
        again: dict[int, str] = {}  # and numbers
        n_inputs = n_scalars = 0
        for a in args:
            letter = _LETTERS.get(type(a))
            if letter is None and hasattr(a, "_letter"):
                letter, known = a._letter, p.shared.get(id(a))
                if known is not None or id(a) in again:
                    key.append(again[id(a)] if known is None else known[0])
                    refs.append(None)
                    specs.append(SCALARS[letter])
                    continue
                again[id(a)] = f"{letter}{len(p.scalars) + n_scalars}"
            if letter is not None:
                key.append(letter)
                refs.append(None)
                specs.append(SCALARS[letter])
                n_scalars += 1
                continue
            v = a._v or a._read()
            specs.append(v.spec)
            if v.owner is p:
                key.append(v.num)
                refs.append(v.num)
                continue
            ref = p.inputs.get(v, fresh.get(v))
            if ref is None:
                ref = fresh[v] = ~(len(p.inputs) + n_inputs)
                n_inputs += 1
                key.append((ref, v.spec))
            else:
                key.append(ref)
            refs.append(ref)
        if tuple(key) in p.node.kids:
            return  # only an operand had to be brought here
        node = Node(p.node, tuple(key))
        node.kind = kind
        node.operands = tuple(specs)
        node.refs = tuple(refs)
        try:
            node.specs = as_tuple(kind.op.infer(*specs, **kind.attrs))
        except Exception:
            kind.refused()
            raise
        node.spec = node.specs[0]
        parent = p.node
        node.n_inputs = parent.n_inputs + n_inputs
        node.n_scalars = parent.n_scalars + n_scalars
        node.n_values = parent.n_values + len(node.specs)
        node.where = users_line()
        parent.kids[node.key] = node
        self.session.tree.nodes += 1

    def _end_at_cap(self, p: Pending) -> bool:
        """The program is as long as it may get. True if it ended, False if it goes on a little, to
        the edge of the period that it repeats: then the next program starts where this one did."""
        node = p.node
        if node.ends:
            self.settle()
            return True
        if p.grown_to == 0:
            period = find_period(node.path())
            whole = period and _repeats_from_start(node, period)
            p.grown_to = -(-node.depth // period) * period if whole else node.depth
        if node.depth < p.grown_to:
            return False
        node.ends = True
        self.settle()
        return True

    # --- ends ---

    def mark(self) -> None:
        """The program ends here; it settles when the next op is recorded, at a sync, or by the timer."""
        p = self.pending
        if self.trace is not None:
            return  # a traced function is one program
        if p.end is None and p.node.depth:
            p.marked_s = time.monotonic()
            p.end = p.node
            p.node = NOWHERE
        session = self.session
        if session.asleep:
            session.wake_timer()
        session.raise_failures()

    def settle(self, timed: bool = False) -> None:
        """End the pending program now: fix what it keeps and gives away, and send the call."""
        session = self.session
        with session.lock:
            session.make_room()
            p = self.pending
            self.pending = Pending(self, session.tree.root)
            self._finish(p, timed)

    def steal(self, timed: bool = False) -> bool:
        """End this program from another thread. False if the owner is inside an op, or there is no room."""
        session = self.session
        with session.lock:
            if session.full:
                return False
            p = self.pending
            self.pending = self.blocked  # an op that begins now misses, and waits for the lock
            if self.busy:
                self.pending = p
                return False
            try:
                self._finish(p, timed)
            finally:
                self.pending = Pending(self, session.tree.root)
            return True

    def _finish(self, p: Pending, timed: bool) -> None:
        """Send a program that nobody adds to any more. The caller has the lock."""
        session = self.session
        end = p.end or p.node
        if end.depth == 0 or end is NOWHERE:
            return
        try:
            call = _close(p, end, session)
            if call is not None:
                variant, live = call
                variant.timed = timed
                session.send_call(p, variant, live)
        finally:
            p.let_go()
        session.tree.touch(end, session.pinned)


def _repeats_from_start(node: Node, period: int) -> bool:
    """Whether the whole path is that period over and over (its first round may name new inputs)."""
    kinds = [(n.kind, n.specs) for n in node.path()]
    return kinds[period:] == kinds[: len(kinds) - period]


def _roll_back(p: Pending) -> None:
    """Undo what an op that missed had already added."""
    node = p.end or p.node
    while len(p.inputs) > node.n_inputs:
        p.inputs.popitem()
    while p.shared and int(next(reversed(p.shared.values()))[0][1:]) >= node.n_scalars:
        p.shared.popitem()
    for k in [k for k in p.sources if k >= node.n_scalars]:
        del p.sources[k]
    del p.scalars[node.n_scalars :]
    del p.values[node.n_values :]


def _held_too_much(p: Pending) -> bool:
    """Whether inputs that nobody else holds are larger than the limit. One that was written over does not count: the
    new value takes its memory, and a step of an optimizer shall stay one program, however large the model."""
    replaced = {v.replaces for v in p.values}
    sizes = [v.spec.nbytes if getrefcount(v) <= ALONE else 0 for v in p.inputs]
    p.held = sum(nbytes for k, nbytes in enumerate(sizes) if k not in replaced)
    return p.held > HELD_NBYTES


def alone(values: Iterable[Value]) -> list[int]:
    """Which of these values nobody holds but what they are in. (Not with enumerate: its tuple would hold one.)"""
    return [k for k, n in enumerate([getrefcount(v) for v in values]) if n <= ALONE]


def _alone() -> int:
    """What getrefcount says of an object that is only in a list that is being iterated over."""
    values = [Value(None, 0, SCALARS["f"])]
    return [getrefcount(v) for v in values][0]  # noqa: RUF015 - exactly this form is measured


ALONE = _alone()


def _close(p: Pending, end: Node, session: Session) -> tuple[Variant, set[int]] | None:
    """Which program this is: by what is alive now. None if nothing of it is."""
    live = [v.num for v in p.values if getrefcount(v) > ALONE]
    if not live:
        return None
    dead = frozenset(alone(p.inputs))
    values = p.values
    updates = tuple([(n, k) for n in live if (k := values[n].replaces) is not None])
    return session.tree.variant(end, tuple(live), dead, updates), set(live)


# --- recording an op -------------------------------------------------------------------------------

_LETTERS: dict[type, str] = {float: "f", int: "i", bool: "b", bytes: "d"}
_NUMBERS = frozenset([*_LETTERS, Number, Shared])

_local = threading.local()


def recorder() -> Recorder:
    """This thread's recorder, in the current session."""
    rec: Recorder | None = getattr(_local, "recorder", None)
    if rec is None or rec.session.closed:
        from gt.client.session import current

        rec = _local.recorder = current().new_recorder()
    return rec


def in_use() -> Recorder | None:
    """This thread's recorder, if it has one yet."""
    return getattr(_local, "recorder", None)


def use(rec: Recorder | None) -> Recorder | None:
    """Make this the thread's recorder; returns the one before."""
    before: Recorder | None = getattr(_local, "recorder", None)
    if rec is None:
        _local.__dict__.pop("recorder", None)
    else:
        _local.recorder = rec
    return before


def _input(p: Pending, v: Value) -> Any:
    """An operand that `p` meets for the first time, as it stands in a key: its number and spec; None, which is in
    no key, if it must be brought here first."""
    handle, rec = v.handle, p.rec
    if handle is None or handle.dead is not rec.session.dead:
        return None
    if rec.trace is not None and id(v) not in rec.trace.owners:
        return None
    ref = ~len(p.inputs)
    p.inputs[v] = ref
    if v.spec.nbytes > 1 << 16:
        p.held += v.spec.nbytes
    return ref, v.spec


_new: Callable[[type[Tensor]], Tensor] = object.__new__  # spares the hot path the call of __init__

# The three functions below are the hot path, and the same thing three times: for one operand, for two
# (either may be a number), for any. Keep them equal.


def unary(kind: Kind, a: Tensor) -> Tensor:
    """Record an op of one tensor and one result."""
    try:
        rec: Recorder = _local.recorder
    except AttributeError:
        rec = recorder()
    if rec.policy is not None:
        (a,) = rec.policy(kind, (a,))
    try:
        while True:
            va = a._v or a._read()
            rec.busy = True
            p = rec.pending
            node = p.node.kids.get((kind, va.num if va.owner is p else p.inputs.get(va) or _input(p, va)))
            if node is not None:
                break
            rec.miss(p, kind, (a,))
            rec = recorder()
        v = Value(p, node.n_values - 1, node.spec)  # type: ignore[arg-type]  # set when the node was made
        p.values.append(v)
        p.node = node
        rec.busy = False
    except AttributeError:
        _interrupted(rec)
        if hasattr(a, "_v"):
            raise
        a = coerce(kind.op.name, a)
        if not hasattr(a, "_v"):
            raise DTypeError(f"{kind.op.name}: expected a tensor, got {a!r}") from None
        return unary(kind, a)
    except BaseException:
        _interrupted(rec)
        raise
    t = _new(make)
    t._v, t._x = v, None
    fn = a._fn
    t._fn = None if fn is None or not rec.grad else attach(node, (fn,), (va, v), 1)
    return t


def binary(kind: Kind, a: Tensor, b: Any) -> Tensor:
    """Record an op of a tensor and a tensor or number."""
    try:
        rec: Recorder = _local.recorder
    except AttributeError:
        rec = recorder()
    if rec.policy is not None:
        a, b = rec.policy(kind, (a, b))
    letter = None if type(b) is make else _LETTERS.get(type(b))
    vb: Any = b
    try:
        while True:
            va = a._v or a._read()
            if letter is None:
                vb = b._v or b._read()
                rec.busy = True
                p = rec.pending
                ka = va.num if va.owner is p else p.inputs.get(va) or _input(p, va)
                kb = vb.num if vb.owner is p else p.inputs.get(vb) or _input(p, vb)
            else:
                rec.busy = True
                p = rec.pending
                ka = va.num if va.owner is p else p.inputs.get(va) or _input(p, va)
                kb = letter
                p.scalars.append(b)
            node = p.node.kids.get((kind, ka, kb))
            if node is not None:
                break
            rec.miss(p, kind, (a, b))
            rec = recorder()
        v = Value(p, node.n_values - 1, node.spec)  # type: ignore[arg-type]  # set when the node was made
        p.values.append(v)
        p.node = node
        rec.busy = False
    except AttributeError:
        _interrupted(rec)
        if hasattr(a, "_v") and (letter or hasattr(b, "_v")):
            raise
        return apply(kind, (a, b))
    except BaseException:
        _interrupted(rec)
        raise
    t = _new(make)
    t._v, t._x = v, None
    fa = a._fn
    fb = b._fn if letter is None else None
    if (fa is None and fb is None) or not rec.grad:
        t._fn = None
    else:
        t._fn = attach(node, (fa, fb), (va, vb, v), 1 if fb is None else 2 if fa is None else 3)
    return t


def apply(kind: Kind, args: tuple[Any, ...]) -> Any:
    """Record any op: a tensor, or a tuple of them where the op has several results."""
    rec = recorder()
    name = kind.op.name
    args = tuple([a if type(a) in _NUMBERS or hasattr(a, "_v") else coerce(name, a, args) for a in args])
    if rec.policy is not None:
        args = rec.policy(kind, args)
    try:
        while True:
            operands = [a if type(a) in _NUMBERS else a._v or a._read() for a in args]
            rec.busy = True
            p = rec.pending
            key: list[Any] = [kind]
            for x in operands:
                if type(x) is Value:
                    key.append(x.num if x.owner is p else p.inputs.get(x) or _input(p, x))
                else:
                    letter = _LETTERS.get(type(x))
                    if letter is None:  # a Number or Shared: the same one is passed once
                        known = p.shared.get(id(x))
                        if known is not None:
                            key.append(known[0])
                            continue
                        letter = x._letter
                        p.shared[id(x)] = f"{letter}{len(p.scalars)}", x
                        if type(x) is Number:
                            p.sources[len(p.scalars)] = x
                        x = x.value
                    key.append(letter)
                    p.scalars.append(x)
            node = p.node.kids.get(tuple(key))
            if node is not None:
                break
            rec.miss(p, kind, args)
            rec = recorder()
        first = node.n_values - len(node.specs)
        values = [Value(p, first + i, s) for i, s in enumerate(node.specs)]
        p.values.extend(values)
        p.node = node
        rec.busy = False
    except BaseException:
        _interrupted(rec)
        raise
    fn: Any = None
    if rec.grad:
        edges = tuple([a._fn if type(x) is Value else None for a, x in zip(args, operands, strict=True)])
        mask = sum([1 << i for i, f in enumerate(edges) if f is not None])
        if mask:
            fn = attach(node, edges, (*operands, values[0] if len(values) == 1 else tuple(values)), mask)
    if len(values) == 1:
        return make(values[0], fn)
    # Of several results those that are indices have no gradient.
    flows = [fn is not None and s.dtype.is_differentiable for s in node.specs]
    return tuple([make(v, fn.part(i) if flows[i] else None) for i, v in enumerate(values)])


def _interrupted(rec: Recorder) -> None:
    """An error or Ctrl-C inside an op: the pending program is as it was before the op."""
    _roll_back(rec.pending)
    rec.busy = False
