"""Copies of a session's tensors for another session.

Law 1: no two sessions share memory: on a device each has a stream of its own. A copy is made on the stream of the
       session that gets it, and is there before anything else happens to what it was made of.
Law 2: what is to be copied is looked up once, when the copying begins. It may be freed meanwhile.
       What has left the device (spilling.py) is copied from where it is.
Law 3: the copies are made piece by piece, so that other sessions need not wait for all of them. They are stored
       together, or none is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Lock

from gt.transport.messages import Failure
from gt.worker.run.engine import Engine
from gt.worker.run.outside import Away
from gt.worker.run.store import Entry, Store

PIECE_NBYTES = 32 << 20  #: What is copied before others have their turn: so much, or one tensor.


class Copies:
    """The copies that one Copy asks for. `session` is the one that gets them; `lock` guards the stores."""

    def __init__(self, entries: Mapping[int, Entry], ids: Sequence[int], first: int, session: int, lock: Lock) -> None:
        self._session, self._lock = session, lock
        #: What is still to be copied, and under which id.
        self.left = [(first + k, entries[i]) for k, i in enumerate(ids) if i and i in entries]
        self.left.reverse()
        self._made: dict[int, Entry] = {}
        self._failure: Failure | None = next((e.failure for _, e in self.left if e.poisoned), None)
        if not first:  # it is only asked whether all of them are there
            self.left.clear()
            missing = (Failure("LostError", f"tensor {i} is not there") for i in ids if i not in entries)
            self._failure = self._failure or next(missing, None)

    def go_on(self, engine: Engine) -> Failure | None:
        """Make the next ones; returns why there cannot be any. What the engine raises ends it."""
        engine.use(self._session)
        nbytes = 0
        while self.left and self._failure is None and nbytes < PIECE_NBYTES:
            id, entry = self.left.pop()
            with self._lock:
                array, away = entry.array, entry.away
            if array is not None:
                copy = engine.own(array)
            else:
                assert isinstance(away, Away)
                pieces, _ = away.load(engine)
                copy = engine.bring_in(pieces, entry.spec, engine.room_for(entry.spec), given=False)
            self._made[id] = Entry(entry.spec, copy, below=entry.below)
            nbytes += entry.spec.nbytes
        engine.passed(engine.mark(), wait=True)
        return self._failure

    def put(self, store: Store) -> None:
        """All are there: they can be used."""
        store.entries.update(self._made)
