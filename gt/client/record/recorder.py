"""Recording: what the user's Python does becomes a pending program.

Law 1: recording a known op waits for nobody, takes no lock and infers nothing.
Law 2: only the owner thread adds to its pending program. Another thread may end it, when the
       owner is not inside an op: see `Recorder.steal`.

Ops come in through `unary`, `binary` and `apply`, those of a gradient through `record_code`. Each makes the op's key
(its kind and its operands as numbers) and looks it up among the children of the current tree node. A miss goes to
`Recorder.miss`, which does whatever was missing (end a marked program, grow the tree) so that the same op, tried again,
hits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from gt.client.record.graph import attach
from gt.client.record.numbers import Number, Shared
from gt.client.record.pending import (
    HIGHEST,
    LETTERS,
    LOWEST,
    NOWHERE,
    Pending,
    Value,
    close,
    grow,
    held_alone,
    roll_back,
    too_long,
)
from gt.client.record.tree import Kind, Node, find_period
from gt.errors import DTypeError, ServerError

if TYPE_CHECKING:
    from gt.client.session.session import Session
    from gt.client.tensor import Tensor

CAP = 4_000  #: Instructions after which a program ends in any case.
TRACE_CAP = 50_000  #: The same for a traced function, which should stay one program.
HELD_NBYTES = 64 << 20  #: Bytes of inputs that only a pending program holds before it ends.
ELSEWHERE = "this tensor belongs to a session that is closed, or is not this thread's"
MARK_S = 0.002  #: A marked program settles after this time at the latest.
IDLE_S = 0.2  #: An unfinished program is cut after this long without a GT call.

#: What an op's result is wrapped in, and what makes an operand out of something that is none
#: (a numpy number, an array). Both are set by tensor.py, which is built on this file.
make: type[Tensor] = None  # type: ignore[assignment]  # there from the first op on
coerce: Callable[..., Any] = None  # type: ignore[assignment]  # likewise


class Recorder:
    """One thread's recording."""

    __slots__ = (
        "anomaly", "blocked", "busy", "grad", "pending", "pin", "policy", "seen", "session", "tape", "thread", "trace",
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
        #: Casts the operands of some ops before they are recorded: autocast, another default dtype; see autocast.py.
        self.policy: Callable[[Kind, tuple[Any, ...]], tuple[Any, ...]] | None = None
        self.pin: Any = None  #: In a signal's context: where results shall lie (signals.py). Never without a policy.

    # --- the slow path ---

    def miss(self, p: Pending, kind: Kind, args: tuple[Any, ...]) -> None:
        """Make it so that recording this op again finds a node, or raise the user's error."""
        roll_back(p)
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
            elif p.held > HELD_NBYTES:
                p.held = held_alone(p)
                if p.held > HELD_NBYTES:
                    self.settle()
                    return
            grow(session.tree, p, kind, args)

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
            raise ServerError(ELSEWHERE)

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
        if self.trace is not None:
            return  # a traced function is one program
        self.session.hear_of_new()  # first: what is marked settles soon, and would keep what the next op lets go of
        p = self.pending
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

    def steal(self, timed: bool = False, seen: Pending | None = None) -> bool:
        """End this program from another thread; if it was `seen` before, that one and no other. False if the owner is
        inside an op, or there is no room."""
        session = self.session
        with session.lock:
            if session.full:
                return False
            p = self.pending
            if seen is not None and p is not seen:
                return True  # the owner has ended it meanwhile; what it records now may be a function's trace
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
            call = close(p, end, session.tree)
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


# --- recording an op -------------------------------------------------------------------------------

_NUMBERS = frozenset([*LETTERS, Number, Shared])

_local = threading.local()


def recorder() -> Recorder:
    """This thread's recorder, in the current session."""
    rec: Recorder | None = getattr(_local, "recorder", None)
    if rec is None or rec.session.closed:
        from gt.client.session.current import current

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

# The functions below are the hot path, and the same thing four times: for one operand, for two (the second may be a
# number), for any (`record`), for several ops at once on values. Keep them equal.


def unary(kind: Kind, a: Tensor) -> Tensor:
    """Record an op of one tensor and one result."""
    try:
        rec: Recorder = _local.recorder
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
    t._fn = None if fn is None or not rec.grad else attach(node, (fn,), (va, v, None), 1)
    return t


def binary(kind: Kind, a: Tensor, b: Any) -> Tensor:
    """Record an op of a tensor and a tensor or number."""
    try:
        rec: Recorder = _local.recorder
    except AttributeError:
        rec = recorder()
    if rec.policy is not None:
        a, b = rec.policy(kind, _operands(kind, (a, b)))
        if rec.pin is not None:
            return rec.pin.record(kind, (a, b))
    letter = None if type(b) is make else LETTERS.get(type(b))
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
                if letter == "i" and not LOWEST <= b <= HIGHEST:
                    raise too_long(kind, b)
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
        if all(type(a) in _NUMBERS or hasattr(a, "_v") for a in args):
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
        t = _new(make)
        t._v, t._x, t._fn = values[0], None, fn
        return t
    made = []
    for i, v in enumerate(values):
        t = _new(make)
        # Of several results those that are indices have no gradient.
        t._v, t._x, t._fn = v, None, None if fn is None or not v.spec.dtype.is_differentiable else fn.part(i)
        made.append(t)
    return tuple(made)


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
                    key.append(x.num if x.owner is p else p.inputs.get(x) or _input(p, x))
                    continue
                letter = LETTERS.get(type(x))
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
                if letter == "i" and not LOWEST <= x <= HIGHEST:
                    raise too_long(kind, x)
                key.append(letter)
                p.scalars.append(x)
            node = p.node.kids.get(tuple(key))
            if node is not None:
                break
            rec.miss(p, kind, tuple(args))
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
    """Tensors and numbers out of whatever the user gave."""
    name = kind.op.name
    return tuple([a if type(a) in _NUMBERS or hasattr(a, "_v") else coerce(name, a, args) for a in args])


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
                        key.append(x.num if x.owner is p else p.inputs.get(x) or _input(p, x))
                    else:
                        key.append(LETTERS[type(x)])
                        p.scalars.append(x)
                node = p.node.kids.get(tuple(key))
                if node is not None:
                    break
                operands = [values[i] for i in places]
                rec.miss(p, kind, tuple([make(x, None) if type(x) is Value else x for x in operands]))
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
    """An error or Ctrl-C inside an op: the pending program is as it was before the op."""
    roll_back(rec.pending)
    rec.busy = False
