"""What a worker holds for one session: ids, and the arrays behind them.

Law 1: every array here owns its memory. Only an entry marked `shared` may lie in memory that something
       else reads too, and such memory is never written: it is copied first.
Law 2: an id never loses its value by a failed call that was to replace it. The new id then *keeps* the
       old array, tainted by that call: whoever uses it before the client knows of the failure fails too.
Law 3: a poisoned id has no array, only the failure that was to make it.
Law 4: id 0 is nothing: an empty array, there from the first call on that others take part in, and never dropped. A
       worker is given it where other workers hold all of a tensor.
"""

from __future__ import annotations

from collections.abc import Iterable

from gt import dtypes
from gt.program import Spec, spec
from gt.transport.messages import Failure
from gt.worker.engines import Array

NOTHING = spec((0,), dtypes.uint8)
POISON = 1 << 62  #: The taint of an entry without a value: no acknowledgement reaches it.


class Entry:
    """One tensor of a session."""

    __slots__ = ("array", "below", "failure", "root", "shared", "spec", "taint")

    def __init__(
        self,
        spec: Spec,
        array: Array | None,
        taint: int = 0,
        root: int = 0,
        failure: Failure | None = None,
        shared: bool = False,
    ) -> None:
        self.spec = spec
        self.array = array
        #: 0: a good value. Else usable only by calls that acknowledge call `taint` as failed.
        self.taint = taint
        self.root = root  #: The call where the trouble began; 0: an upload, not a call.
        self.failure = failure  #: Set wherever taint is.
        self.shared = shared
        self.below = -1  #: Its elements are known to lie in [0, below); -1: nothing is known.

    @property
    def poisoned(self) -> bool:
        return self.taint >= POISON


class Store:
    """The tensors of one session."""

    __slots__ = ("entries", "version")

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self.version = 0  #: How often an entry has been tainted or shared; see replays.py.

    @property
    def nbytes(self) -> int:
        """Bytes of all values, as their specs say. Added up when asked for: calls need not count."""
        return sum(e.spec.nbytes for e in self.entries.values() if e.array is not None)

    def put(self, id: int, spec: Spec, array: Array, below: int = -1) -> None:
        """A value that has come."""
        entry = self.entries[id] = Entry(spec, array)
        entry.below = below

    def put_nothing(self, array: Array) -> None:
        """See Law 4. It is shared: one call may be given it several times."""
        self.entries[0] = Entry(NOTHING, array, shared=True)

    def poison(self, id: int, spec: Spec, failure: Failure, root: int) -> None:
        """A value that could not be made."""
        self.entries[id] = Entry(spec, None, POISON, root, failure)

    def keep(self, id: int, old: Entry, taint: int, failure: Failure, root: int, shared: bool) -> None:
        """Call `taint` was to replace `old` by `id` and failed: the new id has the old value.

        `shared` says that somebody else goes on holding the same array.
        """
        if old.poisoned:
            self.poison(id, old.spec, failure, root)
            return
        old.shared = old.shared or shared
        self.version += 1
        self.entries[id] = Entry(old.spec, old.array, taint, root, failure, old.shared)

    def taint(self, id: int, seq: int, failure: Failure) -> None:
        """Call `seq` failed after all: its result under this id turned out to be the old value."""
        entry = self.entries.get(id)
        self.version += 1
        if entry is not None:
            entry.taint, entry.root, entry.failure = seq, seq, failure

    def share(self, entry: Entry) -> None:
        """Something else reads this entry's array from now on: whoever replaces it must leave it alone."""
        entry.shared = True
        self.version += 1

    def drop(self, ids: Iterable[int]) -> None:
        """Forget these; unknown ones are none of our trouble."""
        for id in ids:
            if id:
                self.entries.pop(id, None)
