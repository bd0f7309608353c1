"""Fetches: a value becomes chunks, at once or when the device has copied its bytes to the host.

Law 1: a fetch is answered once, unless it is cancelled.
Law 2: an array that is sent without a copy is marked as shared: a call that replaces the value does not write to it.
Law 3: a session that reads slowly holds a bounded number of copies; its further fetches wait.
"""

from __future__ import annotations

from collections import deque
from threading import Lock

from gt.transport.messages import CHUNK, Cancel, Chunk, ChunkAck, Failure, Fetch, FetchFailed
from gt.transport.shared import LARGE, SLOTS, SMALL
from gt.worker.calls import Calls, Out
from gt.worker.run.engine import Coming, Engine
from gt.worker.run.store import Entry
from gt.worker.session import QueuedWork, WorkerSession
from gt.worker.transfers import Outgoing, Pieces

SENDING_NBYTES = 64 << 20  #: Copies made for fetches of one session, beyond which further fetches wait.


class Fetches:
    """The fetches of all sessions. `urgent` gets those whose turn has come; `lock` guards it and the sessions."""

    def __init__(self, engine: Engine, calls: Calls, lock: Lock, urgent: deque[QueuedWork]) -> None:
        self.engine = engine
        self._calls = calls
        self._lock = lock
        self._urgent = urgent
        self.sent_nbytes = 0  #: Bytes of the values that were answered with.
        #: Those on their way from the device.
        self.coming: deque[tuple[QueuedWork, WorkerSession, Entry, Coming]] = deque()

    def __len__(self) -> int:
        """How many are on their way from the device."""
        return len(self.coming)

    # --- the reader's side: the caller has the lock --------------------------------------------------------

    def take_in(self, session: WorkerSession, fetch: Fetch) -> QueuedWork:
        """The work of a fetch that has come, with the memory that was lent for its answer."""
        work = session.fetches[fetch.request] = QueuedWork(session, fetch)
        ring = session.ring
        if fetch.slots and ring is not None and ring.number == fetch.ring:
            if all(0 <= s < SLOTS for s in fetch.slots):
                work.ring = ring
            elif len(fetch.slots) == 1:
                work.box = ring
        return work

    def send_more(self, session: WorkerSession | None, ack: ChunkAck) -> tuple[Outgoing | None, Pieces]:
        going = session.sending.get(ack.key) if session is not None else None
        if session is None or going is None:
            return None, []
        going.acknowledge()
        pieces = going.more_chunks()
        if going.sent:
            self._end(session, ack.key)
        return going, pieces

    def cancel(self, session: WorkerSession | None, cancel: Cancel) -> None:
        if session is not None:
            self._end(session, cancel.request)

    def _end(self, session: WorkerSession, request: int) -> None:
        """A fetch was answered or cancelled: one that waits for that may try again."""
        session.fetches.pop(request, None)
        session.sending.pop(request, None)
        if session.backlog:
            self._urgent.append(session.backlog.popleft())

    # --- the runner's side ---------------------------------------------------------------------------------

    def serve(self, work: QueuedWork, session: WorkerSession, fetch: Fetch, out: Out) -> None:
        """Send a value, or start copying it from the device first."""
        failure: Failure | None = None
        data = memoryview(b"")
        borrow = False
        with self._lock:
            wanted = session.fetches.get(fetch.request) is work
            entry = work.entry or session.store.entries.get(fetch.id)
            if entry is None:
                failure = Failure("ProgramError", f"there is no tensor {fetch.id} on this worker")
            elif entry.failure is not None and entry.poisoned:
                failure = entry.failure
            elif wanted and not _may_send(session, entry.spec.nbytes):
                # A call that replaces the value must not write to this array until it was sent.
                session.store.share(entry)
                first = work.entry is not None  # it had its turn before, so it is still the first
                work.entry = entry
                session.backlog.appendleft(work) if first else session.backlog.append(work)
                return
            elif wanted and entry.spec.nbytes > LARGE and not self.engine.deferred and entry.array is not None:
                session.store.share(entry)  # sent without a copy
                borrow = True
            array, away = (None, None) if entry is None else (entry.array, entry.away)
        if wanted and failure is None and entry is not None:
            try:
                if array is None and away is not None:
                    data = away.read()  # it need not come back to the device for that
                elif self.engine.deferred:
                    self.coming.append((work, session, entry, self.engine.start_fetch(array)))
                    session.answering += entry.spec.nbytes <= SMALL
                    return
                else:
                    data = self.engine.to_bytes(array, borrow)
            except Exception as e:
                failure = self._calls.failure(e)
        self._answer(work, session, entry, data, failure, out)

    def look(self, out: Out) -> None:
        """Answer the fetches whose values have arrived from the device."""
        for _ in range(len(self.coming)):
            work, session, entry, coming = self.coming.popleft()
            if not self._calls.passed(coming.mark):
                self.coming.append((work, session, entry, coming))
                continue
            session.answering -= entry.spec.nbytes <= SMALL
            if not session.closed:
                self._answer(work, session, entry, self.engine.end_fetch(coming), None, out)

    def _answer(
        self,
        work: QueuedWork,
        session: WorkerSession,
        entry: Entry | None,
        data: memoryview,
        failure: Failure | None,
        out: Out,
    ) -> None:
        fetch = work.message
        assert isinstance(fetch, Fetch)
        going: Outgoing | None = None
        pieces: Pieces = []
        with self._lock:
            wanted = session.fetches.get(fetch.request) is work  # or it was cancelled in between
            if wanted and failure is None and entry is not None:
                self.sent_nbytes += len(data)
                if work.ring is None and len(data) <= CHUNK:
                    self._answer_whole(work, session, fetch, entry, data, out)
                    return
                going = Outgoing(fetch.session, fetch.request, entry.spec, data, work.ring, fetch.slots)
                session.sending[fetch.request] = going
                pieces = going.first_chunks()
            elif wanted and failure is not None:
                out.append((FetchFailed(fetch.session, fetch.request, failure), None))
            if going is None or going.sent:
                self._end(session, fetch.request)
        if going is not None:
            out.extend(going.fill(pieces))

    def _answer_whole(
        self, work: QueuedWork, session: WorkerSession, fetch: Fetch, entry: Entry, data: memoryview, out: Out
    ) -> None:
        """All of it in one chunk, as most are. The caller has the lock."""
        # What is in a mailbox is seen at once, even before a failure that was sent earlier. Then it must not be there.
        if work.box is not None and session.failed <= session.acked:
            work.box.post(fetch.slots[0], fetch.request, data)
        shape, dtype = entry.spec.shape, entry.spec.dtype.name
        out.append((Chunk(fetch.session, fetch.request, 0, len(data), shape, dtype), data))
        self._end(session, fetch.request)


def _may_send(session: WorkerSession, nbytes: int) -> bool:
    """Whether one more copy of this size may be made for a fetch. One always may."""
    going = sum(len(o.data) for o in session.sending.values())
    return not going or going + nbytes <= SENDING_NBYTES


def is_untold(session: WorkerSession) -> bool:
    """Whether a call may have failed of which the client does not hear yet, because calls before it are on the device.
    Until then it must not see what that left."""
    return bool(session.flying) and session.failed > session.acked
