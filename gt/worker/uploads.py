"""Uploads: chunks become a tensor in the store of their session.

Law 1: bytes that are in shared memory are copied out of it by `copy`, in a thread of its own, so that no other work
       waits behind a large upload. The lock is not held meanwhile: only one thread at a time handles the chunks of an
       upload.
Law 2: every chunk is acknowledged. A tensor that could not be taken is poisoned: calls that use it say why.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any

from gt.config import Config
from gt.errors import ProgramError
from gt.transport.messages import Buffer, Chunk, ChunkAck, Failure, Share, Shared
from gt.transport.shared import SLOTS, Ring, nbytes_of, open_ring
from gt.worker.calls import Calls, Out
from gt.worker.run.engine import Engine
from gt.worker.run.store import NOTHING
from gt.worker.session import QueuedWork, WorkerSession
from gt.worker.spilling import Spilling
from gt.worker.transfers import Arrived, Incoming, below

RINGS = 256  #: Rings of clients that may be open here: each takes a file descriptor.


class Uploads:
    """The uploads of all sessions. `enqueue` gets each that is over, with the lock held; `lock` guards the sessions."""

    def __init__(
        self, engine: Engine, config: Config, calls: Calls, spilling: Spilling, lock: Lock,
        enqueue: Callable[[QueuedWork], None],
    ) -> None:  # fmt: skip
        self.engine, self.config = engine, config
        self._calls, self._spilling, self._lock, self._enqueue = calls, spilling, lock, enqueue
        self.nbytes = 0  #: Of those that have arrived.
        self.copying = False  #: A large one is being copied: polling for work would slow it down.
        #: Chunks whose bytes are in a ring.
        self._copies: SimpleQueue[tuple[WorkerSession, Chunk, Ring]] = SimpleQueue()

    # --- the reader's side -------------------------------------------------------------------------------

    def share(self, session: WorkerSession, share: Share, others: int) -> Shared:
        """Open a client's ring; it replaces the one before. So many other sessions have one."""
        ring = open_ring(share)
        with self._lock:
            session.ring = ring if others < RINGS else None
            return Shared(share.session, share.ring, session.ring is not None)

    def chunk_came(self, session: WorkerSession, chunk: Chunk, payload: Buffer | None) -> Out:
        """Take in a chunk, or leave that to `copy`; returns what to answer."""
        ring = session.ring
        if ring is not None and 0 <= chunk.slot < SLOTS:
            self._copies.put((session, chunk, ring))
            return []
        return self._take(session, chunk, b"" if payload is None else payload)

    def copy(self, wait: bool = False) -> Out | None:
        """Copy the next chunk out of a ring; returns what to answer; None if there is no chunk."""
        try:
            session, chunk, ring = self._copies.get(wait)
        except Empty:
            return None
        self.copying = True
        out = self._take(session, chunk, ring.slot(chunk.slot, nbytes_of(chunk)))
        self.copying = not self._copies.empty()
        return out

    def _take(self, session: WorkerSession, chunk: Chunk, data: Any) -> Out:
        """Copy a chunk in. If it was the last one, the upload is work to be done."""
        arrived = self._arrived(session, chunk, data)
        if arrived is not None:
            with self._lock:
                session.uploads.pop(chunk.key, None)
                work = QueuedWork(session, arrived)
                work.fetches = session.upload_fetches.pop(chunk.key, ())
                self._enqueue(work)
        return [(ChunkAck(chunk.session, chunk.key, upload=True), None)]

    def _arrived(self, session: WorkerSession, chunk: Chunk, data: Any) -> Arrived | None:
        """The upload, if it is over with this chunk; None if more will come, or if it failed before."""
        key = chunk.key
        try:
            upload = session.uploads.get(key)
            if chunk.offset == 0:
                limit = self.config.worker_memory or self.engine.memory
                upload = session.uploads[key] = Incoming(chunk, limit, self.engine.host_buffer)
            if upload is None or not upload.take(chunk, data):
                return None
            self.nbytes += upload.spec.nbytes
            upload.cut()
            # To check an index on a device costs a wait; on the host it costs little.
            limit = below(upload.data, upload.spec) if self.engine.deferred else -1
            return Arrived(key, upload.spec, upload.data.data, None, limit)
        except (ProgramError, MemoryError) as e:
            kind = "OutOfMemory" if isinstance(e, MemoryError) else "ProgramError"
            return Arrived(key, NOTHING, None, Failure(kind, f"upload of tensor {key}: {e}"))

    # --- the runner's side -------------------------------------------------------------------------------

    def put(self, session: WorkerSession, arrived: Arrived) -> None:
        """Put what has arrived into the store."""
        failure, array = arrived.failure, None
        if session.keep_out and arrived.id in session.keep_out:
            self._spilling.keep(session, arrived)
            return
        if arrived.data is not None:
            try:
                array = self.engine.from_bytes(arrived.data, arrived.spec, given=True)
            except Exception as e:
                failure = self._calls.failure(e)
        with self._lock:
            if session.closed:
                return
            if failure is None:
                session.store.put(arrived.id, arrived.spec, array, arrived.below)
            else:
                session.store.poison(arrived.id, arrived.spec, failure, root=0)
        if failure is not None:
            self._calls.recover(failure)
