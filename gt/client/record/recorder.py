"""Recording an op: what the user's Python does becomes part of a pending program.

Law 1: recording a known op waits for nobody, takes no lock and infers nothing. Nor does a new one, unless something
       else is missing; inference remembers what it has said of equal operands.
Law 2: only the owner thread adds to its pending program. Another thread may end it, when the owner is not inside an op:
       see `Recorder.steal`.

Ops come in through `unary`, `binary` and `apply`, those of a gradient through `record_code`. Each makes the op's key
(its kind and its operands as numbers) and looks it up among the children of the current tree node. If it is not there,
`Recorder.grow` adds it to the tree. If that cannot be, `Recorder.miss` does whatever else was missing (end a marked
program, settle an operand) so that the same op, tried again, hits.

How a program ends, in three verbs:

- `mark` says that it ends here, at an optimizer's step for instance. It is sent when the next op is recorded: until
  then the user's Python may let go of values that need not be kept.
- `settle` ends it now: what is alive is kept, what is not alive is given away, and the call is sent. The owner settles
  a program when something needs a result of it, when it is marked and an op follows, and when it is too long.
- `steal` settles it from another thread: the timer, when it was marked or left for a while, or a thread that needs a
  result. It fails while the owner is inside an op.

`Session.settle` is either of the last two, as it fits the thread. `Session.settle_value` settles the program that
makes a value.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gt.client.programs.numbers import Number, SharedNumber
from gt.client.programs.pending import (
    HIGHEST,
    LETTERS,
    LOWEST,
    NOWHERE,
    Pending,
    Value,
    grow,
    held_alone,
    is_loop,
    local,
    program_of,
    roll_back,
    too_long,
)
from gt.client.programs.pullback import pullback
from gt.client.programs.tree import Called, Kind, Kinds, Node, end_of_period, find_period, kind_of, users_call
from gt.client.record.contexts import NanWatch, Pinning, Policy, SeedTape, Tracing, policy
from gt.client.record.joining import EndHistory
from gt.client.session.connecting import current
from gt.client.session.session import Session
from gt.client.tensor import Edge, GradNode, Tensor
from gt.errors import DTypeError
from gt.ops import TABLE
from gt.ops.record import Op

CAP = 4_000  #: Instructions after which a program ends if it is a loop that goes on and on: see `_end_at_cap`.
LONGEST = 50_000  #: Instructions after which a program ends in any case.
TRACE_CAP = 50_000  #: The same for a traced function.
HELD_NBYTES = 64 << 20  #: A program ends when it alone holds inputs of more bytes than this.


_DATA = Kinds(TABLE["data"], "shape", "dtype")


class Recorder:
    """One thread's recording."""

    __slots__ = (
        "ahead", "anomaly", "blocked", "busy", "grad", "joining", "pending", "pin", "place", "policy", "seen",
        "session", "tape", "thread", "trace",
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
        self.joining: EndHistory | None = None  #: Set once an optimizer's step has ended a program.
        self.seen = (0, 0, 0.0)  #: At the timer's last look: the program, its length, and since when.
        self.trace: Tracing | None = None  #: Set while a @gt.function is being traced.
        self.anomaly: NanWatch | None = None  #: Set in anomaly mode.
        self.tape: SeedTape | None = None  #: Set while a checkpointed function runs.
        self.policy: Policy | None = None  #: None while operands are recorded as they are.
        self.ahead: list[Any] = []  #: The graph nodes to which the backward that is running has yet to come.
        self.place: Called | None = None  #: Where the user has called the backward that is running, if known.
        self.pin: Pinning | None = None  #: Set in a signal's context. Never without a policy.

    @property
    def tracing(self) -> bool:
        """Whether a @gt.function is being traced."""
        return self.trace is not None

    def refuse_sync(self) -> None:
        """Raise the user's error if a @gt.function is being traced: no value can be read then."""
        if self.trace is not None:
            self.trace.refuse_sync()

    # --- the slow path ---

    def miss(self, p: Pending, args: Iterable[Any]) -> None:
        """Do what is needed so that recording an op of these operands again succeeds, or raise the user's error."""
        roll_back(p)
        self.busy = False
        session = self.session
        session.check_usable()
        for a in args:
            if isinstance(a, Tensor):
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
            if not self._end_at_cap(p) and self._holds_much(p):
                self.settle()

    def grow(
        self, p: Pending, key: tuple[Any, ...], operands: Sequence[Any], place: Called | None = None
    ) -> Node | None:
        """The new node of an op that no program has had there, on values and numbers that have been passed; None if
        something else is missing. The owner is inside an op, so nobody else ends the program."""
        session, node = self.session, p.node
        if node is NOWHERE or p.end is not None or None in key or session.broken or session.forked:
            return None
        if self._is_long(p) or self._holds_much(p):
            return None
        return grow(session.tree, p, key, operands, place)

    def _holds_much(self, p: Pending) -> bool:
        """Whether only the program holds inputs of more than HELD_NBYTES."""
        if p.held > HELD_NBYTES:
            p.held = held_alone(p)
        return p.held > HELD_NBYTES

    def _is_long(self, p: Pending) -> bool:
        """Whether the program has to be looked at before it grows: see `_end_at_cap`."""
        node = p.node
        if self.trace is not None:
            return node.depth >= TRACE_CAP
        return node.ends or node.depth >= max(min(CAP, LONGEST), p.grown_to)

    def _bring_here(self, v: Value) -> None:
        """If an operand is pending in another thread, settle its program first."""
        owner = v.owner
        if owner is not None and owner.rec is not self:
            if owner.rec.session is not self.session:
                raise self.session.foreign(owner.rec.session.dead)
            self.session.settle(owner)
        elif owner is None and v.handle is None and v.host is not None:
            self._bring_data(v)
        elif owner is None and v.handle is not None and v.handle.dead is not self.session.dead:
            raise self.session.foreign(v.handle.dead)

    def _bring_data(self, v: Value) -> None:
        """The host has computed an operand (programs/hosted.py): make it a result of the pending program."""
        if self.trace is not None:
            self.session.restore(v)  # an input: a replay may meet another value there
            return
        _, _, (made,) = record(self, _DATA[v.spec.shape, v.spec.dtype.name], (v.host.tobytes(),))
        p = made.owner
        assert p is not None
        p.values[made.num] = v
        v.owner, v.num = p, made.num

    def _end_at_cap(self, p: Pending) -> bool:
        """Settle the program if it has become too long; returns whether it was.

        A training step ends with its optimizer's step and must be one program, however long it is. A loop that reads
        nothing never ends. So a program is looked at when it reaches the cap, and again whenever it is twice as long. A
        loop ends there, or at the edge of its period if it repeats it from the beginning: the next program then begins
        where this one did. A traced function is not looked at: it should stay one program.
        """
        node = p.node
        if not self._is_long(p):
            return False
        if self.trace is None and not node.ends:
            path = node.path()
            period = find_period(path)
            if node.depth < LONGEST and not (period and is_loop(p, path, period)):
                p.grown_to = min(2 * node.depth, LONGEST)
                return False
            edge = end_of_period(path, period)
            if node.depth < edge:
                p.grown_to = edge
                return False
            node.ends = True
        self.settle()
        return True

    # --- ends ---

    def mark(self) -> None:
        """The program ends here; it settles when the next op is recorded, at a sync, or by the timer."""
        if self.trace is not None:
            return  # a traced function is one program
        self.session.hear_of_new()  # first: after the mark the timer may settle it at any time
        p = self.pending
        if p.end is None and p.node.depth and not p.node.joins:
            p.marked_s = time.monotonic()
            p.end = p.node
            p.node = NOWHERE
        session = self.session
        if session.asleep or session.dozing:
            session.wake_timer()
        session.raise_failures_soon()

    def settle(self, timed: bool = False) -> None:
        """End the pending program now: fix what it keeps and gives away, and send the call."""
        session = self.session
        with session.lock:
            session.make_room()
            p = self.pending
            self.pending = Pending(self, session.tree.root)
            self._send(p, timed)

    def steal(self, p: Pending, timed: bool = False) -> bool:
        """Settle this program, and no later one, from another thread. False if the owner is inside an op, or there is
        no room."""
        session = self.session
        with session.lock:
            if session.full:
                return False
            if self.pending is not p:
                return True  # the owner has ended it meanwhile; what it records now may be a function's trace
            self.pending = self.blocked  # an op that begins now misses, and waits for the lock
            if self.busy:
                self.pending = p
                return False
            try:
                self._send(p, timed)
            finally:
                self.pending = Pending(self, session.tree.root)
            return True

    def _send(self, p: Pending, timed: bool) -> None:
        """Send a program that nobody adds to any more. The caller has the lock."""
        session = self.session
        end = p.end or p.node
        if end.depth == 0 or end is NOWHERE:
            return
        try:
            call = program_of(p, end, session.tree)
            if call is not None:
                variant, live = call
                variant.timed = timed
                if p.end is not None:
                    self.joining = self.joining or EndHistory()
                    self.joining.ends(end, p.inputs)
                elif self.joining is not None:
                    self.joining.interrupted()
                session.send_call(p, variant, live)
                if self.joining is not None:
                    self.joining.sent(variant, session.next_id)
        finally:
            p.clear()
        session.tree.touch(end, session.pinned)


# --- this thread's recorder --------------------------------------------------------------------------


def recorder() -> Recorder:
    """This thread's recorder, in the current session."""
    rec: Recorder | None = getattr(local, "recorder", None)
    if rec is None or rec.session.closed:
        rec = local.recorder = new_recorder(current())
    return rec


def new_recorder(session: Session) -> Recorder:
    """A recorder for this thread."""
    rec = Recorder(session)
    rec.policy = policy()
    session.add_recorder(rec)
    return rec


# --- history -----------------------------------------------------------------------------------------

#: Lists, by thread, that every new GradNode of that thread is appended to: see grad/checkpoint.py.
watchers: dict[int, list[GradNode]] = {}


def attach(node: Node, edges: tuple[Edge | None, ...], values: tuple[Any, ...], mask: int) -> GradNode | None:
    """The graph node of an op just recorded; None if no gradient passes through it. `values`: operands, result, None.
    `mask`: which operands have an edge, as bits."""
    try:
        pull = node.pulls[mask]  # type: ignore[index]  # the first time it is None
    except (KeyError, TypeError):
        assert node.kind is not None
        node.pulls = node.pulls or {}
        pull = node.pulls[mask] = pullback(node.kind, node.operands, node.specs, mask)
    if pull.saves < 0:
        return None
    made = GradNode(node, pull, edges, pull.pick(values))
    if watchers:
        mine = watchers.get(threading.get_ident())
        if mine is not None:
            mine.append(made)
    return made


# --- recording an op ---------------------------------------------------------------------------------

_NUMBERS = frozenset([*LETTERS, Number, SharedNumber])


def _input(rec: Recorder, p: Pending, v: Value) -> Any:
    """An operand that is new to `p`, as part of a key: its number and spec. None, which is in no key, if the program
    that makes it must be settled first."""
    handle = v.handle
    if handle is None or handle.dead is not rec.session.dead:
        return None
    if rec.trace is not None and id(v) not in rec.trace.owners:
        return None
    ref = ~len(p.inputs)
    p.inputs[v] = ref
    if v.spec.nbytes > 1 << 16:
        p.held += v.spec.nbytes
    return ref, v.spec


_new: Callable[[type[Tensor]], Tensor] = object.__new__  # without a call of __init__, on the hot path

# The functions below are the hot path, and do the same four times: for one operand, for two (the second may be a
# number), for any (`record`), for several ops at once on values. Keep them equal.


def unary(kind: Kind, a: Tensor) -> Tensor:
    """Record an op of one tensor and one result."""
    try:
        rec: Recorder = local.recorder
    except AttributeError:
        rec = recorder()
    if rec.policy is not None:
        (a,) = rec.policy(kind, _operands(kind, (a,)))
        if rec.pin is not None:
            return rec.pin.record(kind, (a,))
    try:
        while True:
            va = a._v or a._read()
            rec.busy = True
            p = rec.pending
            key = (kind, va.num if va.owner is p else p.inputs.get(va) or _input(rec, p, va))
            node = p.node.kids.get(key)
            if node is not None or (node := rec.grow(p, key, (va,))) is not None:
                break
            rec.miss(p, (a,))
            rec = recorder()
        v = Value(p, node.n_values - 1, node.spec)  # type: ignore[arg-type]  # set when the node was made
        p.values.append(v)
        p.node = node
        rec.busy = False
    except AttributeError:
        _interrupted(rec)
        if isinstance(a, Tensor):
            raise
        a = Tensor._coerce(kind.op.name, a)
        if not isinstance(a, Tensor):
            raise DTypeError(f"{kind.op.name}: expected a tensor, got {a!r}") from None
        return unary(kind, a)
    except BaseException:
        _interrupted(rec)
        raise
    t = _new(Tensor)
    t._v, t._x = v, None
    fn = a._fn
    t._fn = None if fn is None or not rec.grad else attach(node, (fn,), (va, v, None), 1)
    return t


def binary(kind: Kind, a: Tensor, b: Any) -> Tensor:
    """Record an op of a tensor and a tensor or number."""
    try:
        rec: Recorder = local.recorder
    except AttributeError:
        rec = recorder()
    if rec.policy is not None:
        a, b = rec.policy(kind, _operands(kind, (a, b)))
        if rec.pin is not None:
            return rec.pin.record(kind, (a, b))
    letter = None if type(b) is Tensor else LETTERS.get(type(b))
    vb: Any = b
    try:
        while True:
            va = a._v or a._read()
            if letter is None:
                vb = b._v or b._read()
                rec.busy = True
                p = rec.pending
                ka = va.num if va.owner is p else p.inputs.get(va) or _input(rec, p, va)
                kb = vb.num if vb.owner is p else p.inputs.get(vb) or _input(rec, p, vb)
            else:
                if letter == "i" and not LOWEST <= b <= HIGHEST:
                    raise too_long(kind, b)
                rec.busy = True
                p = rec.pending
                ka = va.num if va.owner is p else p.inputs.get(va) or _input(rec, p, va)
                kb = letter
                p.scalars.append(b)
            node = p.node.kids.get((kind, ka, kb))
            if node is not None or (node := rec.grow(p, (kind, ka, kb), (va, vb))) is not None:
                break
            rec.miss(p, (a, b))
            rec = recorder()
        v = Value(p, node.n_values - 1, node.spec)  # type: ignore[arg-type]  # set when the node was made
        p.values.append(v)
        p.node = node
        rec.busy = False
    except AttributeError:
        _interrupted(rec)
        if isinstance(a, Tensor) and (letter or isinstance(b, Tensor)):
            raise
        return apply(kind, (a, b))
    except BaseException:
        _interrupted(rec)
        raise
    t = _new(Tensor)
    t._v, t._x = v, None
    fa = a._fn
    fb = b._fn if letter is None else None
    if (fa is None and fb is None) or not rec.grad:
        t._fn = None
    else:
        t._fn = attach(node, (fa, fb), (va, vb, v, None), 1 if fb is None else 2 if fa is None else 3)
    return t


def apply(kind: Kind, args: tuple[Any, ...]) -> Any:
    """Record any op: a tensor, or a tuple of them where the op has several results."""
    rec = recorder()
    if rec.policy is not None:
        args = rec.policy(kind, _operands(kind, args))
        if rec.pin is not None:
            return rec.pin.record(kind, args)
    try:
        node, operands, values = record(rec, kind, args)
    except AttributeError:
        if all(type(a) in _NUMBERS or isinstance(a, Tensor) for a in args):
            raise
        return apply(kind, _operands(kind, args))
    fn: Any = None
    if rec.grad:
        mask, bit = 0, 1
        edges: list[Any] = []
        for a in args:
            edge = None if type(a) in _NUMBERS else a._fn
            edges.append(edge)
            if edge is not None:
                mask |= bit
            bit += bit
        if mask:
            result = values[0] if len(values) == 1 else tuple(values)
            fn = attach(node, tuple(edges), (*operands, result, None), mask)
    if len(values) == 1:
        t = _new(Tensor)
        t._v, t._x, t._fn = values[0], None, fn
        return t
    made = []
    for i, v in enumerate(values):
        t = _new(Tensor)
        # Of several results those that are indices have no gradient.
        t._v, t._x, t._fn = v, None, None if fn is None or not v.spec.dtype.is_differentiable else fn.part(i)
        made.append(t)
    return tuple(made)


def apply_op(op: Op, args: tuple[Any, ...], attrs: dict[str, Any]) -> Any:
    """Record an op by its record; see `Op.__call__`."""
    if op.compose is not None and op.vjp is None and recorder().grad:
        if any(isinstance(a, Tensor) and a._fn is not None for a in args):
            return op.compose(*args, **attrs)  # its parts have the gradients
    return apply(kind_of(op, attrs), args)


def record(rec: Recorder, kind: Kind, args: Sequence[Any]) -> tuple[Node, list[Any], list[Value]]:
    """Record an op on tensors and numbers: its node, the operands and the results as values. No history, no policy."""
    try:
        while True:
            # Reading a view may record an op: all are read before the first is named.
            operands = [a if type(a) in _NUMBERS else a._v or a._read() for a in args]
            rec.busy = True
            p = rec.pending
            key: list[Any] = [kind]
            for x in operands:
                if type(x) is Value:
                    key.append(x.num if x.owner is p else p.inputs.get(x) or _input(rec, p, x))
                    continue
                letter = LETTERS.get(type(x))
                if letter is None:  # a Number or SharedNumber: the same one is passed once
                    known = p.shared.get(id(x))
                    if known is not None:
                        key.append(known[0])
                        continue
                    letter = x._letter
                    p.shared[id(x)] = f"{letter}{len(p.scalars)}", x
                    if type(x) is Number:
                        p.sources[len(p.scalars)] = x
                    x = x.value
                if letter == "i" and not LOWEST <= x <= HIGHEST:
                    raise too_long(kind, x)
                key.append(letter)
                p.scalars.append(x)
            node = p.node.kids.get(tuple(key))
            if node is not None or (node := rec.grow(p, tuple(key), operands)) is not None:
                break
            rec.miss(p, args)
            rec = recorder()
        number, values = p.node.n_values, []
        for spec in node.specs:
            values.append(Value(p, number, spec))
            number += 1
        p.values += values
        p.node = node
        rec.busy = False
    except BaseException:
        _interrupted(rec)
        raise
    return node, operands, values


def _operands(kind: Kind, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The operands as tensors and plain numbers."""
    name = kind.op.name
    return tuple([a if type(a) in _NUMBERS or isinstance(a, Tensor) else Tensor._coerce(name, a, args) for a in args])


def record_code(rec: Recorder, steps: Iterable[tuple[Kind, tuple[int, ...]]], values: list[Any]) -> None:
    """Record ops on values and numbers: of each its kind and the places of its operands in `values`, where its results
    are appended. No history, no policy, no trace."""
    try:
        rec.busy = True
        p = rec.pending
        for kind, places in steps:
            while True:
                key: list[Any] = [kind]
                for i in places:
                    x = values[i]
                    if type(x) is Value:
                        key.append(x.num if x.owner is p else p.inputs.get(x) or _input(rec, p, x))
                    else:
                        key.append(LETTERS[type(x)])
                        p.scalars.append(x)
                node = p.node.kids.get(tuple(key))
                if node is not None:
                    break
                operands = [values[i] for i in places]
                if rec.place is None:
                    rec.place = users_call()
                node = rec.grow(p, tuple(key), operands, rec.place)
                if node is not None:
                    break
                rec.miss(p, [Tensor(x, None) for x in operands if type(x) is Value])
                rec.busy = True
                p = rec.pending
            number = p.node.n_values
            for spec in node.specs:
                v = Value(p, number, spec)
                p.values.append(v)
                values.append(v)
                number += 1
            p.node = node
        rec.busy = False
    except BaseException:
        _interrupted(rec)
        raise


def _interrupted(rec: Recorder) -> None:
    """After an error or Ctrl-C inside an op: restore the pending program as it was before the op."""
    roll_back(rec.pending)
    rec.busy = False
