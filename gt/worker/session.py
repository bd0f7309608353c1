"""What a worker has of one session: its store, its waiting work, its calls, its transfers. Pure data."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import cast

import msgspec

from gt.transport.messages import Call, Failure, Message
from gt.transport.shared import Ring
from gt.worker.run.copies import Copies
from gt.worker.run.engine import CaptureForm, Form, Mark
from gt.worker.run.programs import Known
from gt.worker.run.replays import Replay
from gt.worker.run.store import Array, Entry, Store
from gt.worker.transfers import Arrived, Incoming, Outgoing


class QueuedWork(msgspec.Struct, eq=False):
    """Something that waits for its turn."""

    session: WorkerSession | None  #: None: it belongs to no session (a program's text).
    message: Message | Arrived
    fetches: Sequence[QueuedWork] = ()  #: Fetches of what this makes, to be served right after it.
    entry: Entry | None = None  #: Of a fetch that had to wait: what it will send.
    together: bool = False  #: A call that several workers run together.
    waits: bool = False  #: A call that cannot continue the one before: it waits for the outcome.
    ring: Ring | None = None  #: Of a fetch: the memory that was lent for its answer,
    box: Ring | None = None  #: or the one with a mailbox for it.
    target: WorkerSession | None = None  #: Of a Copy: the session that gets the copies,
    copies: Copies | None = None  #: and those that have been made;
    freed: set[int] | None = None  #: ids of copies that were freed before they were there.


RECENT = 64  #: Calls of a session whose time is kept.


class Running(msgspec.Struct, eq=False):
    """A call that has begun, until it is reported as done."""

    session: WorkerSession
    call: Call
    known: Known
    ids: Sequence[int]  #: Of its inputs,
    entries: list[Entry | None]  #: and their entries in the store; empty once it is launched.
    is_quick: bool = False  #: It runs at the desk; see calls.py.
    form: Form = cast(Form, None)  #: What runs it; None for a replay.
    ranges: Sequence[tuple[int, int]] = ()  #: (output, n): all elements of that output are in [0, n).
    touched: tuple[int, ...] = ()  #: Of one that failed: inputs that it may have begun to overwrite.
    start_ns: int = 0
    cpu_ns: int = 0  #: Of the runner's thread, when it began; 0 of a quick one.
    issue_us: int = 0  #: What it took the host; the device may have been at work at the same time.
    began: Mark = None  #: When the device began, if it notes that; only of calls that are no replay.
    mark: Mark = None
    flag: Array | None = None
    tier: int = 1


class WorkerSession:
    """See the file's header."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.closed = False  #: Work that finds this set is dropped.
        self.store = Store()
        self.waits_for = b""  #: The program whose text was asked for; all work is held until it comes.
        self.held: deque[QueuedWork] = deque()
        #: Calls in flight whose outcome is on the device, oldest first. Each one continues the one before: it fails if
        #: that fails, and then for this reason, which is that of the call with this number.
        self.flagged: deque[Running] = deque()
        self.why_late: tuple[Failure, int] | None = None
        self.paused = False  #: A call has begun and waits for other workers.
        self.computing = False  #: A call is being computed, and the runner has left the desk for it.
        self.queued = 0  #: Its work in the worker's queue,
        self.short = 0  #: and in the one of short work: all of that is later than what is in the queue.
        self.flying: deque[Running] = deque()  #: Calls on the device, oldest first.
        self.cpu_ns = 0  #: For so long the runner's thread had a core for its calls,
        #: and for each of the latest: (seq, time on a core, time that it took the host, when it ended), in nanoseconds.
        self.recent: deque[tuple[int, int, int, int]] = deque(maxlen=RECENT)
        self.last_done_ns = 0  #: When the latest of them was done.
        self.behind: deque[QueuedWork] = deque()  #: Work that waits for one of them.
        self.captures: dict[bytes, CaptureForm] = {}  #: Its graphs on a device, by program; see engines/captures.py.
        self.replays: dict[bytes, Replay] = {}  #: What their next calls should find, by program; see replays.py.
        self.failed = 0  #: The latest call that failed,
        self.acked = 0  #: and up to which call the client is known to have heard of failures.
        self.out = False  #: Tensors of it may be outside of the device, or on their way; see spilling.py.
        self.keep_out: set[int] = set()  #: Uploads that are to stay outside when they have arrived.
        self.ring: Ring | None = None  #: Memory shared with the client, if there is any.
        self.uploads: dict[int, Incoming] = {}  #: By id; chunks of others are ignored.
        self.upload_fetches: dict[int, list[QueuedWork]] = {}  #: Fetches of what is still being uploaded.
        self.fetches: dict[int, QueuedWork] = {}  #: By request, until answered. A cancelled one is not in here.
        self.sending: dict[int, Outgoing] = {}  #: By request; those with chunks left to send.
        self.answering = 0  #: Small fetches whose values are on their way from the device.
        self.copying: list[QueuedWork] = []  #: Copies that this session is to get.
        self.backlog: deque[QueuedWork] = deque()  #: Fetches that wait until others have been sent.

    def close(self) -> None:
        """Drop everything."""
        self.closed = True
        self.ring = None
        self.store = Store()
        self.held.clear()
        self.keep_out.clear()
        self.behind.clear()
        self.backlog.clear()
        for table in (self.captures, self.replays, self.uploads, self.upload_fetches, self.fetches, self.sending):
            table.clear()
