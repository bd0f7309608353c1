"""The tensors that a worker holds for one session: ids, and the arrays behind them.

Law 1: every array here owns its memory. Only an entry marked `shared` may use memory that something
       else reads too, and such memory is never written: it is copied first.
Law 2: an id never loses its value because a call that should have replaced it failed. The new id then *keeps* the
       old array, tainted by that call: a call that uses it before the client knows of the failure fails too.
Law 3: a poisoned id has no array, only the failure of the call that should have made it.
Law 4: id 0 is an empty array. It exists from the first call on that several workers run together, and is never
       freed. A worker gets it as input where other workers hold all of a tensor.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from gt import dtypes
from gt.program import Spec, spec
from gt.transport.messages import Failure

Array = Any  #: An array of whatever library the engine uses: torch.Tensor, numpy.ndarray, jax.Array.
LEAVING = object()  #: `Entry.away` of an array that is being copied out of the device.
NOTHING = spec((0,), dtypes.uint8)
POISON = 1 << 62  #: The taint of an entry without a value: no acknowledgement reaches it.


class Entry(msgspec.Struct, eq=False):
    """One tensor of a session."""

    spec: Spec
    array: Array | None
    taint: int = 0  #: 0: a good value. Otherwise only calls that acknowledge call `taint` as failed may use it.
    root: int = 0  #: The call that failed first; 0: an upload, not a call.
    failure: Failure | None = None  #: Set wherever taint is.
    shared: bool = False
    lent: bool = False  #: The array is in the memory of a graph, which will want it back: see engines/captures.py.
    below: int = -1  #: Its elements are known to be in [0, below); -1: nothing is known.
    away: Any = None  #: Its bytes outside of the device (outside.Away), or LEAVING; None: it has its array there.

    @property
    def poisoned(self) -> bool:
        return self.taint >= POISON


@dataclass(slots=True, eq=False)
class Store:
    """The tensors of one session."""

    entries: dict[int, Entry] = field(default_factory=dict)
    version: int = 0  #: How often an entry has been tainted or shared; see replays.py.

    @property
    def nbytes(self) -> int:
        """Bytes of all values, from their specs. Added up when asked for: calls need not count."""
        return sum(e.spec.nbytes for e in self.entries.values() if not e.poisoned)

    @property
    def away_nbytes(self) -> int:
        """Bytes of those that are not on the device."""
        return sum(e.spec.nbytes for e in self.entries.values() if e.array is None and e.away is not None)

    def put(self, id: int, spec: Spec, array: Array, below: int = -1) -> None:
        """Store a value."""
        entry = self.entries[id] = Entry(spec, array)
        entry.below = below

    def put_nothing(self, array: Array) -> None:
        """Store id 0; see Law 4. It is shared: one call may get it several times."""
        self.entries[0] = Entry(NOTHING, array, shared=True)

    def poison(self, id: int, spec: Spec, failure: Failure, root: int) -> None:
        """Store that this value could not be made."""
        self.entries[id] = Entry(spec, None, POISON, root, failure)

    def keep(self, id: int, old: Entry, taint: int, failure: Failure, root: int, shared: bool) -> Entry | None:
        """Call `taint` should have replaced `old` by `id` and failed: the new id has the old value. Returns its entry;
        None if there was no value.

        `shared`: another id goes on holding the same array.
        """
        if old.poisoned:
            self.poison(id, old.spec, failure, root)
            return None
        old.shared = old.shared or shared
        self.version += 1
        away = None if old.away is LEAVING else old.away
        new = self.entries[id] = Entry(old.spec, old.array, taint, root, failure, old.shared, old.lent, old.below, away)
        return new

    def taint(self, id: int, seq: int, failure: Failure, root: int) -> None:
        """Call `seq` failed on the device: its result under this id is the old value."""
        entry = self.entries.get(id)
        self.version += 1
        if entry is not None:
            entry.taint, entry.root, entry.failure = seq, root, failure
            entry.below = -1  # what was known is known of the value that it should have had

    def share(self, entry: Entry) -> None:
        """Something else reads this entry's array from now on: a call that replaces it must not write to it."""
        entry.shared = True
        self.version += 1
