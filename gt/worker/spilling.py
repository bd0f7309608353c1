"""Tensors of idle sessions leave the device and come back, as the dispatcher says (Spill, Return).

Law 1: the runner notes what is to move, behind all earlier work of the session, and gives room on the device. A thread
       of its own copies (`work`): other sessions go on meanwhile.
Law 2: an entry of the store has an array, or its bytes outside (`Entry.away`). While they are copied out it
       has its array and is marked as LEAVING; a call that uses it meanwhile takes the mark away, and it stays.
Law 3: what cannot leave stays, and is told. What cannot be read back is lost, and says why.
Law 4: with the tensors of a session its graphs go: they refer to the arrays, and their memory is wanted too.

Calls find their inputs on the device, because the dispatcher waits until they are there. Should one not be (its
session has just been told something else), the call itself brings it back: `bring_now`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any

import numpy as np

from gt import gpus
from gt.config import Config
from gt.transport.messages import Buffer, Failure, Message, Return, Returned, Spill, Spilled, pack_ids
from gt.worker.heap import trim_heap
from gt.worker.run.engine import Engine, Mark, Room
from gt.worker.run.outside import Away, File, Outside
from gt.worker.run.store import LEAVING, Entry
from gt.worker.session import WorkerSession
from gt.worker.transfers import Arrived

TRIM_NBYTES = 1 << 20  #: If so much has left at once, the allocator gives back what it caches.

Out = list[tuple[Message, Buffer | None]]


@dataclass(slots=True, eq=False)
class _Job:
    """What one message moves, or an upload that has to stay outside, for which there is no message."""

    session: WorkerSession
    message: Spill | Return | None
    ids: list[int]
    entries: dict[int, Entry]
    mark: Mark = None
    rooms: dict[int, Room | None] = field(default_factory=dict)


class Spilling:
    """See the file's header. `lock` guards the stores."""

    def __init__(self, engine: Engine, outside: Outside, lock: Lock) -> None:
        self.engine = engine
        self.outside = outside
        self._lock = lock
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self.moved_out = 0  #: Bytes that have left the device,
        self.moved_in = 0  #: and that have come back.

    # --- the runner's side ---------------------------------------------------------------------------------

    def take(self, session: WorkerSession, message: Spill | Return, ids: list[int]) -> None:
        """Note what is to move. What is still on its way in will be kept outside when it has arrived."""
        with self._lock:
            held = session.store.entries
            entries = {i: held[i] for i in ids if i in held}
            session.out = True
            if isinstance(message, Spill):
                session.keep_out.update(i for i in ids if i not in held)
                entries = {i: e for i, e in entries.items() if e.array is not None and e.away is None}
                for entry in entries.values():
                    entry.away = LEAVING
            else:
                entries = {i: e for i, e in entries.items() if isinstance(e.away, Away)}
            session.store.version += 1  # no replay may expect these arrays
            session.replays.clear()
        job = _Job(session, message, ids, entries)
        if isinstance(message, Spill):
            for capture in session.captures.values():
                capture.let_go()
            self.engine.let_pool_go()
            job.mark = self.engine.mark()
        else:
            for i, entry in entries.items():
                job.rooms[i] = self._room(entry)
        self._jobs.put(job)

    def _room(self, entry: Entry) -> Room | None:
        try:
            try:
                return self.engine.room_for(entry.spec)
            except Exception as e:
                if not self.engine.out_of_memory(e):
                    raise
            self.engine.release()
            return self.engine.room_for(entry.spec)
        except Exception:
            return None  # the call that needs it tries again, and says why it fails

    def keep(self, session: WorkerSession, arrived: Arrived) -> None:
        """An upload for which there is no room on the device has come: it stays outside."""
        with self._lock:
            session.keep_out.discard(arrived.id)
            if arrived.failure is not None or arrived.data is None:
                failure = arrived.failure or Failure("WorkerError", "an upload without bytes")
                session.store.poison(arrived.id, arrived.spec, failure, root=0)
            elif not session.closed:
                entry = Entry(arrived.spec, None, below=arrived.below)
                session.out = True
                entry.away = self.outside.hold([np.frombuffer(arrived.data, np.uint8)], entry.spec.nbytes)
                session.store.entries[arrived.id] = entry
                self._jobs.put(_Job(session, None, [arrived.id], {arrived.id: entry}))

    def bring_now(self, session: WorkerSession, entries: list[Entry | None]) -> Failure | None:
        """Bring back what a call reads and is not on the device; returns why that is not possible."""
        for entry in entries:
            if entry is None or entry.away is None:
                continue
            with self._lock:
                if entry.away is LEAVING:
                    entry.away = None
                    continue
                away = entry.away
            if away is None:
                continue
            try:
                array = self._bring(entry, away, self.engine.room_for(entry.spec))
            except Exception as e:
                short = self.engine.out_of_memory(e) or isinstance(e, MemoryError)
                text = f"a tensor of an idle session could not come back to the device: {e}"
                return Failure("OutOfMemory" if short else "LostError", text)
            self._put(entry, away, array)
        return None

    # --- the thread that copies ----------------------------------------------------------------------------

    def work(self, wait: bool = False) -> Out | None:
        """Move what the next message says; returns what to answer. None: there is nothing to move."""
        try:
            job = self._jobs.get(wait)
        except Empty:
            return None
        if job.message is None:
            self._settle(job)
            return []
        packed = pack_ids(job.ids)
        if isinstance(job.message, Return):
            self._move_in(job)
            return [(Returned(job.session.number, packed), None)]
        kept, why = self._move_out(job)
        return [(Spilled(job.session.number, packed, pack_ids(kept), why), None)]

    def _move_out(self, job: _Job) -> tuple[list[int], str]:
        """Returns what has stayed, and why."""
        file: list[File] = []
        kept: list[int] = []
        why, total = "", 0
        while job.entries:
            i, entry = job.entries.popitem()
            with self._lock:
                array = entry.array
                if entry.away is not LEAVING or job.session.closed:
                    kept.append(i)
                    continue
            try:
                away: Away | None = self._copy(array, entry.spec.nbytes, job.mark, file)
            except Exception as e:  # no memory, no disk, a device that fails
                away, why = None, f"{e}" or type(e).__name__
            with self._lock:
                if away is None or entry.away is not LEAVING:
                    kept.append(i)
                    entry.away = None if entry.away is LEAVING else entry.away
                else:
                    entry.array, entry.away = None, away
                    self.moved_out += away.nbytes
                    total += away.nbytes
            del array, away, entry
        if total >= TRIM_NBYTES:
            self.engine.trim()
            trim_heap()
        return kept, why

    def _copy(self, array: Any, nbytes: int, mark: Mark, file: list[File]) -> Away:
        if self.outside.has_memory(nbytes):
            return self.outside.hold(self.engine.take_out(array, mark), nbytes)
        if not file:
            file.append(File(self.outside.folder))
        return self.outside.write(self.engine.take_out(array, mark, borrow=True), nbytes, file[0])

    def _move_in(self, job: _Job) -> None:
        for i, entry in job.entries.items():
            away, room = entry.away, job.rooms.pop(i, None)
            if not isinstance(away, Away) or job.session.closed:
                continue
            try:
                array = self._bring(entry, away, room)
            except OSError as e:
                failure = Failure("LostError", f"a tensor of an idle session could not be read back from the disk: {e}")
                with self._lock:
                    if job.session.store.entries.get(i) is entry:
                        job.session.store.poison(i, entry.spec, failure, root=0)
                continue
            except Exception:
                continue  # no memory: the call tries again, and says why it fails
            self._put(entry, away, array)
        with self._lock:
            session = job.session
            session.out = bool(session.keep_out) or any(e.away is not None for e in session.store.entries.values())

    def _bring(self, entry: Entry, away: Away, room: Room | None) -> Any:
        pieces, given = away.load(self.engine)
        return self.engine.bring_in(pieces, entry.spec, room, given)

    def _put(self, entry: Entry, away: Away, array: Any) -> None:
        with self._lock:
            if entry.away is away:
                entry.array, entry.away = array, None
                self.moved_in += away.nbytes

    def _settle(self, job: _Job) -> None:
        """Find the right place for what was uploaded: the memory in which it came may be wanted for other uploads."""
        for entry in job.entries.values():
            old = entry.away
            if not isinstance(old, Away) or job.session.closed:
                continue
            pieces, _ = old.load(self.engine)
            nbytes = old.nbytes
            try:
                if self.outside.has_memory(0):
                    new = self.outside.hold(self.engine.keep_pieces(pieces), nbytes)
                else:
                    new = self.outside.write(pieces, nbytes, File(self.outside.folder))
            except (OSError, MemoryError):
                continue  # it stays where it is
            with self._lock:
                if entry.away is old:
                    entry.away = new


def outside_of(engine: Engine, config: Config) -> Outside:
    """Where tensors go that leave the device."""
    limit = config.spill_memory
    if limit < 0 and not engine.deferred:
        limit = 0  # the device is the host: they go to disk
    elif limit < 0:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        limit = memory // 2 // max(1, len(gpus.of_machine()))
    return Outside(engine, limit, config.spill_dir)
