"""A session: the connection of this process to a dispatcher, with its ids and its tree of programs.

Law 1: the channel is used under `lock` only. A thread that waits for a value sleeps without the lock. It is woken by
       the channel, or by the thread that received its message. A thread whose window is full waits with the lock, so
       that no other thread runs between the two halves of its op.
Law 2: ids increase and are never used twice.
Law 3: a failed call is raised once, at the next sync or program end. Calls that were in flight by then and used its
       results failed with it and are not raised again. Calls that are sent later are.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar, NoReturn

import numpy as np

from gt import config, errors
from gt.client.programs.pending import DeadIds, Pending, RemoteId, ThreadRecorder, Value, in_use, keep
from gt.client.programs.tree import Node, Tree, Variant
from gt.client.session import telling
from gt.client.session.meshes import Meshes
from gt.client.session.signals import Signals
from gt.client.session.transfers import Download, Reads, Transfers, layout_of
from gt.client.session.waiting import SessionLock, Sleeper
from gt.errors import ForkError, GTError, ServerError
from gt.layout import Layout
from gt.ops.families.bits import mix64
from gt.program import Spec
from gt.tracing import Recording
from gt.transport import messages as msg
from gt.transport.channel import Channel

TOGETHER = 8  #: So many calls are sent as one, at most: each message wakes every process on its way. A call waits for
QUICK_S = 100e-6  #: others only if the one before was sent a moment ago,
AHEAD = 16  #: and if so many are in flight: then nobody waits for it.
HEAR_S = 500e-6  #: How often the end of a program handles what has come, if programs are quick.


class Session:
    """See the file's header."""

    #: The error if a tensor of this session is used in another one.
    ELSEWHERE: ClassVar[str] = (
        "this tensor belongs to another session, or to one that is closed; pass tensor.numpy() between sessions"
    )
    on_paper: ClassVar[bool] = False  #: Whether tensors have no data: see record/paper.py.

    def __init__(self, channel: Channel, settings: config.Config, private: Any = None, name: str = "") -> None:
        self.channel = channel
        self.config = settings
        self.address = private.address if private is not None else ""  #: of the server; "" in a simulator
        self.private = private  #: The private server that was started for this session, if any.
        self.lock = SessionLock()
        self.closed = False
        self.forked = False
        self.broken: str = ""  #: Why the connection cannot be used any more; "" while it can.
        self.name = name  #: under which what it keeps can be found again; "": it has none
        self.number = 0
        self.window = msg.WINDOW
        self.tree = Tree(settings.cache_bytes)
        self.recorders: list[ThreadRecorder] = []
        self.dead = DeadIds(self.ELSEWHERE)
        self.next_id = 1
        self.seq = 0  #: Calls sent.
        self.done = 0  #: All calls up to this one have finished.
        self.unproven = 0  #: The latest call that was the first one of its program.
        self.acked = 0  #: Failures up to this call were raised.
        self.failures: deque[msg.CallFailed] = deque()
        self.reported = 0  #: Failures that were raised.
        self._raised: dict[int, int] = {}  #: Raised failures, by root: how many calls had been sent by then.
        self._undo: dict[int, list[Callable[[], None]]] = {}  #: By call, as long as it can fail: what to undo then.
        #: Called with each call that is sent: its program, the ids of its inputs, the first id of its results.
        self.watch: Callable[[Variant, list[int], int], None] | None = None
        self.trace: Recording | None = None  #: Set while somebody records what clients do (gt trace).
        #: Programs that were sent, the most recent last: all that may be in flight, and others while there is room.
        self.variants: OrderedDict[bytes, Variant] = OrderedDict()
        self.known = 0  #: Their instructions: no more than the tree may have nodes.
        self.defined = 0  #: The number of program texts sent.
        self.transfers = Transfers(self)
        self.reads = Reads(self)
        self.meshes = Meshes()
        self.signals: Signals | None = None  #: The configuration of signals, if any: see placing.py.
        self._answers: dict[int, Any] = {}  #: By request: the answer, or None until it has come.
        #: Messages held back while `_holds` is not 0, to be sent together.
        self._out: list[tuple[Any, msg.Buffer | None]] = []
        self._holds = 0
        self._threads = threading.local()  #: Each thread's `sleeper`.
        self.waiters: set[int] = set()  #: Event descriptors of the threads that sleep in `wait`.
        self.sent_s = self.heard_s = 0.0
        self.seed = int.from_bytes(os.urandom(8), "little") >> 1
        self.draws = 0
        self.timed = False  #: It has a timer,
        self.asleep = self.dozing = False  #: which sleeps.
        self.wake = threading.Event()
        self._hello()

    def _hello(self) -> None:
        self.channel.send(msg.Hello(msg.VERSION, self.config.token, telling.name_of_process(), self.name))
        deadline = time.monotonic() + self.config.connect_timeout_s
        self.wait(lambda: self.number > 0 or time.monotonic() > deadline)
        if not self.number:
            raise ServerError(f"no GT server answered within {self.config.connect_timeout_s:g} s")

    # --- recorders ---

    def add_recorder(self, rec: ThreadRecorder) -> None:
        """Add the recorder of a thread; those of threads that have ended are removed."""
        with self.lock:
            self.recorders = [r for r in self.recorders if r.thread.is_alive() or r.pending.node.depth]
            self.recorders.append(rec)

    def pinned(self) -> set[Node]:
        """Nodes that the tree must keep, because a pending program is there."""
        return {r.pending.node for r in self.recorders} | {r.pending.end for r in self.recorders if r.pending.end}

    def check_usable(self) -> None:
        if self.forked:
            raise ForkError(
                "GT cannot be used in a forked child: the connection belongs to the parent process "
                "(use the 'spawn' start method, or pass numpy arrays to the child)"
            )
        if self.broken:
            raise ServerError(self.broken)

    def next_seed(self) -> int:
        """The seed of the next random op: 63 bits, a hash of the session's seed and a count."""
        self.draws += 1
        return mix64(self.seed + (self.draws - 1) * 0x9E3779B97F4A7C15) >> 1

    # --- sending ---

    def make_room(self) -> None:
        """Wait while the window of calls in flight is full."""
        self.check_usable()
        if self.full:
            self.wait(lambda: not self.full)

    def hear_of_new(self) -> None:
        """Wait for the outcome of the latest program that was called for the first time. A program that fails (because
        it needs too much memory, for example) usually fails at its first call; so a training loop is told by the end
        of its next step. Programs that have succeeded before are not waited for."""
        if self.unproven > self.done:
            self.wait(lambda: self.done >= self.unproven)

    @property
    def full(self) -> bool:
        """Whether as many calls are in flight as the window allows."""
        return self.seq - self.done >= self.window

    def send_call(self, p: Pending, variant: Variant, live: set[int]) -> None:
        """Send the call of a program, and give its live values their ids. The caller has the lock."""
        inputs = [v.handle for v in p.inputs]
        ids = [inputs[k].id for k in variant.inputs]  # type: ignore[union-attr]  # inputs have handles
        scalars = p.scalars if len(variant.scalars) == len(p.scalars) else [p.scalars[k] for k in variant.scalars]
        for i in variant.program.donate:
            inputs[variant.inputs[i]].id = 0  # type: ignore[union-attr]  # likewise; the call itself drops it
        first = self.call(variant, ids, tuple(scalars), p.undo, p.compile)
        for i, num in enumerate(variant.outputs):
            if num in live:
                v = p.values[num]
                v.owner = None
                v.handle = RemoteId(first + i, self.dead)
            else:
                self.dead.append(first + i)  # an output for other callers; this one does not need it

    def call(
        self, variant: Variant, ids: list[int], scalars: tuple[Any, ...], undo: list[Callable[[], None]], compile: int
    ) -> int:
        """Send one call; returns the id of its first output. `undo` is run if it fails. `compile`: see Define."""
        frees = self._take_dead()
        sent = self.variants.get(variant.hash)
        if sent is None or compile > sent.compile:
            variant.compile = compile
            self.variants[variant.hash] = variant
            self.defined += 1
            self._out.append((msg.Define(variant.program, variant.timed, variant.compile, variant.places), None))
        self.variants.move_to_end(variant.hash)
        if sent is None:
            self.known += len(variant.program.code)
            while self.known > self.tree.limit and len(self.variants) > self.window:
                self.known -= len(self.variants.popitem(last=False)[1].program.code)
        first = self.next_id
        self.next_id += len(variant.outputs)
        self.reads.latest = variant, first
        self.seq += 1
        if sent is None:
            self.unproven = self.seq
        if undo:
            self._undo[self.seq] = undo
        if self.trace is not None:
            telling.record_span(self.trace, "record", self.number, self.seq, variant.hash)
        call = msg.Call(0, self.seq, variant.hash, msg.pack_ids(ids), scalars, first, frees, self.acked)
        self._out.append((call, None))
        if not self._holds and not self._waits_for_more():
            self._flush()
        if self.watch is not None:
            self.watch(variant, ids, first)
        if self.config.debug_client:
            self.say(f"call {self.seq} {telling.told(variant)}: inputs {ids}, results from {first}")
        return first

    def send(self, message: Any, payload: msg.Buffer | None = None) -> None:
        """Send a message now, or with the next `_flush` while messages are held back. The caller has the lock."""
        self._out.append((message, payload))
        if not self._holds:
            self._flush()

    def _waits_for_more(self) -> bool:
        """Whether calls that are held back can wait for one more: see QUICK_S. If none comes the timer sends them."""
        if self.seq - self.done < AHEAD or len(self._out) >= TOGETHER or not self.timed:
            return False
        return time.monotonic() - self.sent_s < QUICK_S

    def send_held(self) -> None:
        """Send calls that have waited for others. The caller has the lock."""
        if self._out and not self._holds and not self.broken:
            self._flush()

    def _flush(self) -> None:
        out, self._out = self._out, []
        try:
            self.channel.send_all(out)
        except ServerError as e:
            self.give_up(telling.cut_off(e, self.name))
        self.sent_s = time.monotonic()
        if self.waiters and not self.channel.local:
            # Sending may consume the channel's signal that a message came; a local channel keeps it.
            self._wake_waiters()

    def _take_dead(self) -> bytes:
        dead = self.dead
        if not dead:
            return b""
        ids: list[int] = []
        later: list[int] = []  # uploads that have not arrived yet
        while dead:
            i = dead.popleft()
            (later if i in self.transfers.uploads else ids).append(i)
        dead.extend(later)
        return msg.pack_ids(ids)

    def flush_frees(self) -> None:
        if self.dead and not self.broken:
            ids = self._take_dead()
            if ids:
                self.reads.latest = None
                self.send(msg.Free(0, ids))

    def upload(self, array: np.ndarray[Any, Any], spec: Spec, layout: str = "") -> Value:
        """A value with the data of this array, which may change when this returns. `layout`: see Chunk."""
        with self.lock:
            v = self.transfers.upload(array, spec, layout)
            if self.config.debug_client and v.handle is not None:
                self.say(f"upload of tensor {v.handle.id}: {spec!r}{f' as {layout}' if layout else ''}")
            if self.asleep or self.dozing:
                self.wake_timer()
            return v

    # --- receiving ---

    def process(self, me: int = -1) -> None:
        """Handle every message that has come. The caller has the lock; `me` is its descriptor among the waiters."""
        if self.closed or self.forked:
            return
        self.heard_s = time.monotonic()
        came = False
        held = len(self._out)
        while True:
            try:
                item = self.channel.receive(0)
            except ServerError as e:
                self.give_up(telling.cut_off(e, self.name))
                break
            if item is None:
                break
            came = True
            self._handle(*item)
        if came and len(self._out) > held:
            self._flush()  # the server may wait for what was added
        if came and len(self.waiters) > (me in self.waiters):
            self._wake_waiters(me)

    def _handle(self, m: Any, payload: msg.Buffer | None) -> None:
        kind = type(m)
        if kind is msg.CallDone:
            self.done = max(self.done, m.seq)
            while self._undo and next(iter(self._undo)) <= m.seq:
                del self._undo[next(iter(self._undo))]
        elif kind is msg.Chunk:
            self.transfers.came(m, payload)
        elif isinstance(m, msg.ChunkAck):
            self.transfers.acknowledged(m)
        elif isinstance(m, msg.CallFailed):
            for take_back in self._undo.pop(m.seq, ()):
                take_back()
            if self.config.debug_client:
                self.say(f"call {m.seq} failed: {m.error.kind}: {m.error.text}")
            # The user was told about calls that were in flight when their root was raised, not about later ones.
            if m.seq > self._raised.get(m.root, 0) and all(f.root != m.root for f in self.failures):
                self.failures.append(m)
        elif isinstance(m, (msg.FetchFailed, msg.Sharded, msg.Stats, msg.MeshSet, msg.Kept)):
            if m.request in self._answers:
                self._answers[m.request] = m
            elif isinstance(m, msg.Kept) and m.first:  # who asked was interrupted: what was taken is not wanted
                self.dead.extend(range(m.first, m.first + len(m.things[0].specs)))
            elif isinstance(m, msg.FetchFailed):
                self.transfers.failed(m)
            elif isinstance(m, msg.Sharded):
                self.transfers.sharded(m)
        elif isinstance(m, msg.Shared):
            self.transfers.shared(m)
        elif isinstance(m, msg.Need):
            variant = self.variants.get(m.program)
            if variant is None:
                self.give_up("the server asked for a program that this client has forgotten")
            else:
                self.send(msg.Define(variant.program, variant.timed, variant.compile, variant.places))
        elif isinstance(m, msg.Welcome):
            self.number, self.window = m.session, min(m.window, msg.WINDOW)
            self.meshes.take_over(m.workers, m.meshes)
            if self.meshes.several:
                self.transfers.stop_sharing()
        elif isinstance(m, (msg.Refused, msg.Rejected)):
            self.give_up(m.text)
        elif isinstance(m, msg.Trace):
            self.trace = telling.answer_trace(self.trace, m, self.send)

    def give_up(self, why: str) -> None:
        """Mark the connection as broken, for this reason."""
        if not self.broken:
            if self.config.debug_client:
                self.say(f"session {self.number} cannot go on: {why}")
            if self.private is not None and not self.private.alive():
                why = f"GT's private server is gone ({why})"
            self.broken = why

    # --- waiting ---

    def wait(self, ready: Callable[[], bool], look: bool = False) -> None:
        """Sleep until `ready()` is true. Raises if the connection breaks; after Ctrl-C the session can still be used.
        With `look` it may become true without a message, and is polled for a moment before the sleep."""
        if self.trace is None:
            self._wait(ready, look)
            return
        telling.record_span(self.trace, "python")
        try:
            self._wait(ready, look)
        finally:
            if self.trace is not None:
                telling.record_wait(self.trace)

    def _wait(self, ready: Callable[[], bool], look: bool) -> None:
        sleeper = self._sleeper()
        try:
            with self.lock:
                if not self.channel.local:  # a thread that sleeps on a local channel sees what has come
                    if self._out:
                        self._flush()
                    self.process()
                done = ready()
                if not done:
                    self.check_usable()
                    self.waiters.add(sleeper.fd)
                if self._out:
                    self._flush()  # last: the process that answers may need this CPU
                if done:
                    return
            if look and sleeper.look(lambda: self._hear(sleeper.fd), ready):
                return
            while True:
                with self.lock.asleep():
                    sleeper.sleep(self.channel)
                with self.lock:
                    self.process(sleeper.fd)
                    if ready():
                        return
                    self.check_usable()
        finally:
            with self.lock:
                self.waiters.discard(sleeper.fd)

    def _hear(self, me: int) -> None:
        with self.lock:
            self.process(me)
            self.check_usable()

    def _sleeper(self) -> Sleeper:
        found: Sleeper | None = getattr(self._threads, "sleeper", None)
        if found is None:
            found = self._threads.sleeper = Sleeper(self.config.awake_us)
        return found

    def _wake_waiters(self, me: int = -1) -> None:
        for fd in self.waiters:
            if fd != me:
                os.eventfd_write(fd, 1)

    def fetch(self, v: Value) -> np.ndarray[Any, Any]:
        """The data of a value, in memory that the caller may write to. What is small is fetched once."""
        if v.host is not None and self._is_ours(v):
            self.check_usable()
            if self.failures:
                self.raise_failures()
            return v.host.copy()
        t = self.download(v)
        if t.parts is not None:
            data = t.parts.whole()
        else:
            data = t.buffer.view(v.spec.dtype.numpy).reshape(v.spec.shape)
        keep(v, data)
        return data

    def _is_ours(self, v: Value) -> bool:
        """Whether a value whose data is known belongs to this session, or to none."""
        if v.owner is not None:
            return v.owner.rec.session is self
        return v.handle is None or v.handle.dead is self.dead

    def download(self, v: Value) -> Download:
        """The data of a value as it is sent: in one buffer, or in shards."""
        t: Download | None = None
        try:
            with self.lock:
                self._holds += 1  # the call and the fetch are sent together
                try:
                    self.settle_value(v)
                    self.check_usable()
                    assert v.handle is not None
                    t = self.reads.begin(v.handle.id, v.spec)
                except BaseException:
                    if self._out and self._holds == 1:
                        self._flush()
                    raise
                finally:
                    self._holds -= 1
            self.wait(t.arrived, t.box >= 0)  # which sends what was held back
        finally:
            if t is not None:
                with self.lock:
                    self.transfers.end(t.request)
        if self.failures:
            self.raise_failures()
        if t.error is not None:
            self._raise_fetch(t.error)
        return t

    def _raise_fetch(self, error: msg.Failure) -> NoReturn:
        """Raise the error of a fetch. If a call failed, its error is raised instead, even if it comes later."""
        self.wait(lambda: self.done >= self.seq)
        self.raise_failures()
        raise self.error_of(error)

    def layout_of(self, v: Value) -> Layout:
        """The layout of a value over the session's workers."""
        with self.lock:
            self.settle_value(v)
            assert v.handle is not None
            id = v.handle.id
        answer = self.ask(lambda request: msg.Fetch(0, request, id, layout=True))
        if self.failures:
            self.raise_failures()
        if isinstance(answer, msg.FetchFailed):
            self._raise_fetch(answer.error)
        return layout_of(answer)

    def settle_value(self, v: Value) -> None:
        """If the value is pending, settle its program. Raises if it belongs to another session, where ids differ."""
        while (owner := v.owner) is not None:
            if owner.rec.session is not self:
                raise self.foreign(owner.rec.session.dead)
            owner.rec.refuse_sync()
            self.settle(owner)
        if v.handle is None and v.host is not None:
            self.restore(v)
        if v.handle is None or v.handle.dead is not self.dead:
            raise self.foreign(self.dead if v.handle is None else v.handle.dead)

    def foreign(self, dead: DeadIds) -> ServerError:
        """The error if a value of another session, whose ids these are, is used in this one."""
        return ServerError(dead.elsewhere)

    def restore(self, v: Value) -> None:
        """Give an id to a value that the host has computed: an op needs it."""
        v.handle = self.upload(v.host, v.spec).handle

    def settle(self, p: Pending) -> None:
        """Settle a program of this session, whichever thread records it."""
        rec = p.rec
        if rec is in_use():
            if rec.pending is p:
                rec.settle()
            return
        while not rec.steal(p):
            if self.full:
                self.make_room()
            else:
                time.sleep(0)  # its thread is inside an op, for a few microseconds

    def ask(self, question: Callable[[int], Any]) -> Any:
        """Send a question, made with a new request number, and wait for its answer."""
        request = 0
        try:
            with self.lock:
                self.check_usable()
                request = self.reads.next_request()
                self._answers[request] = None
                self.send(question(request))
            self.wait(lambda: self._answers[request] is not None)
            return self._answers[request]
        finally:
            with self.lock:
                self._answers.pop(request, None)

    def stats(self, programs: bool = True) -> dict[str, Any]:
        """Statistics of the dispatcher, the workers and this session; of its programs only if they are wanted."""
        return self.ask(lambda request: msg.GetStats(request, programs=programs)).data

    # --- failures ---

    def raise_failures_soon(self) -> None:
        """The same as `raise_failures`, or a moment later if messages were handled just now: see HEAR_S."""
        if self.failures or not self.timed or time.monotonic() - self.heard_s > HEAR_S:
            self.raise_failures()

    def raise_failures(self) -> None:
        """Raise the oldest failure that was not raised yet, if there is one."""
        with self.lock:
            self.process()
            if not self.failures:
                return
            rec = in_use()
            if rec is not None and rec.session is self and not rec.tracing:
                # What is recorded follows the failed call: it is sent now, so that it fails with it.
                rec.settle()
            # Calls in flight that used its results fail too. Then everything is as it was before the failed call.
            self.wait(lambda: self.done >= self.seq)
            failed = self.failures.popleft()
            self.reported += 1
            self._raised = {root: seq for root, seq in self._raised.items() if seq > self.done}
            self._raised[failed.root] = self.acked = self.seq
        raise self.error_of(failed.error)

    def error_of(self, failure: msg.Failure) -> GTError:
        """The error that a user sees of a failure."""
        variant = self.variants.get(failure.program)
        kind = errors.BY_NAME.get(failure.kind, errors.WorkerError)
        return kind(failure.text if variant is None else failure.text + variant.made_by(failure.instruction))

    # --- the timer ---

    def wake_timer(self) -> None:
        self.asleep = self.dozing = False
        self.wake.set()

    @property
    def under_way(self) -> bool:
        """Whether calls or uploads are in flight."""
        return bool(self.transfers.uploads) or self.seq > self.done

    # --- the end ---

    def close(self) -> None:
        """Leave the server. Values of this session cannot be used any more."""
        with self.lock:
            if self.closed:
                return
            self.closed = True
            if self.config.debug_client:
                self.say(f"session {self.number} is closed after {self.seq} calls")
            if not self.forked:
                for rec in self.recorders:
                    ended, rec.pending = rec.pending, rec.blocked
                    ended.clear()
                if not self.broken:
                    self.send_held()
                    if self.trace is not None:
                        telling.tell_trace(self.trace, self.channel.send)
                    with suppress(ServerError):  # it has been cut off a moment ago
                        self.channel.send(msg.Goodbye())
                self.broken = self.broken or "this session is closed"
                self.channel.close()
                self.transfers.ring = None
        self._threads = threading.local()  # their descriptors are closed now, and not when Python finds a cycle
        self.wake_timer()
        if self.private is not None and not self.forked:
            self.private.close()

    def say(self, text: str) -> None:
        print(f"gt client: {text}", file=sys.stderr, flush=True)
