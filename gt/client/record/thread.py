"""One thread's recording: the program that it adds to, and how that ends.

Law: only the owner thread adds to its pending program. Another thread may end it, when the owner is not inside an op:
     see `Recorder.steal`.

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
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

from gt.client.programs.numbers import Finder, Guards, Number
from gt.client.programs.pending import NOWHERE, Pending, Value, grow, held_alone, in_use, local, program_of, roll_back
from gt.client.programs.tree import Kind, Node, find_period
from gt.client.session.session import ELSEWHERE, Session
from gt.client.tensor import GradFn, Leaf, Tensor
from gt.errors import ServerError

CAP = 4_000  #: Instructions after which a program ends in any case.
TRACE_CAP = 50_000  #: The same for a traced function, which should stay one program.
HELD_NBYTES = 64 << 20  #: A program ends when it alone holds inputs of more bytes than this.

#: Changes the operands of an op before it is recorded: autocast, another default dtype, anomaly mode.
Policy = Callable[[Kind, tuple[Any, ...]], tuple[Any, ...]]


class Tracing(Protocol):
    """What a recorder needs of the trace of a @gt.function; see replay/trace.py."""

    name: str
    clear: bool
    guards: Guards
    owners: dict[int, Finder]

    def learn(self, t: Tensor) -> None: ...

    def touch(self, leaf: Leaf) -> None: ...

    def wrote(self, t: Tensor, old: Value) -> None: ...

    def seed(self) -> Number: ...

    def live(self, read: Callable[[], Any]) -> Number: ...

    def effect(self, do: Callable[[], None], undo: Callable[[], None]) -> None: ...

    def mode(self, module: Any) -> None: ...

    def refuse_sync(self) -> NoReturn: ...


class NanWatch(Protocol):
    """What a recorder needs of anomaly mode; see grad/anomaly.py."""

    def __call__(self, kind: Kind, args: tuple[Any, ...]) -> tuple[Any, ...]: ...

    def gradients(self, fn: GradFn, grads: list[Tensor]) -> None: ...


class Pinning(Protocol):
    """What a recorder needs of the context of a signal; see mesh/signals.py."""

    @property
    def placements(self) -> tuple[Any, ...]: ...

    def __call__(self, kind: Kind, args: tuple[Any, ...]) -> tuple[Any, ...]: ...

    def record(self, kind: Kind, args: tuple[Any, ...]) -> Any: ...


class SeedTape(Protocol):
    """What a recorder needs of a checkpointed function; see grad/checkpoint.py."""

    def next(self, draw: Callable[[], Any]) -> Any: ...


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
        self.trace: Tracing | None = None  #: Set while a @gt.function is being traced.
        self.anomaly: NanWatch | None = None  #: Set in anomaly mode.
        self.transforms = 0  #: Functions of gt.func that are running: inner gradients are differentiable then.
        self.tape: SeedTape | None = None  #: Set while a checkpointed function runs.
        self.policy: Policy | None = None  #: None while operands are recorded as they are.
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

    def miss(self, p: Pending, kind: Kind, args: tuple[Any, ...]) -> None:
        """Do what is needed so that recording this op again finds a node, or raise the user's error."""
        roll_back(p)
        self.busy = False
        session = self.session
        session.check_usable()
        operands: list[Any] = []
        for a in args:
            if isinstance(a, Tensor):
                v = a._v or a._read()
                self._bring_here(v)
                if self.trace is not None and v.owner is not p:
                    self.trace.learn(a)
                operands.append(v)
            else:
                operands.append(a)
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
            grow(session.tree, p, kind, operands)

    def _bring_here(self, v: Value) -> None:
        """If an operand is pending in another thread, settle its program first."""
        owner = v.owner
        if owner is not None and owner.rec is not self:
            if owner.rec.session is not self.session:
                raise ServerError("this tensor belongs to another session; pass tensor.numpy() instead")
            self.session.settle(owner)
        elif owner is None and v.handle is not None and v.handle.dead is not self.session.dead:
            raise ServerError(ELSEWHERE)

    def _end_at_cap(self, p: Pending) -> bool:
        """The program has reached the cap. True if it was settled; False if it may grow to the end of the period that
        it repeats: then the next program begins where this one did."""
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
        self.session.hear_of_new()  # first: after the mark the timer may settle it at any time
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
                session.send_call(p, variant, live)
        finally:
            p.clear()
        session.tree.touch(end, session.pinned)


def _repeats_from_start(node: Node, period: int) -> bool:
    """Whether the whole path consists of this period (its first round may have new inputs)."""
    kinds = [(n.kind, n.specs) for n in node.path()]
    return kinds[period:] == kinds[: len(kinds) - period]


# --- policies ----------------------------------------------------------------------------------------

_policies: list[Policy | None] = [None]  #: One entry: the policy of threads that have not chosen one.


def policy() -> Policy | None:
    """The policy that this thread has chosen, or else the process."""
    mine: Policy | None = getattr(local, "policy", None)
    return mine or _policies[0]


def choose_policy(chosen: Policy | None) -> None:
    """Record with this policy in this thread. Anomaly mode comes first, and asks for `policy` itself."""
    local.policy = chosen
    rec: Recorder | None = in_use()
    if rec is not None:
        rec.policy = rec.anomaly or policy() or rec.pin


def choose_default_policy(chosen: Policy | None) -> None:
    """Record with this policy in threads that begin to record later."""
    _policies[0] = chosen
