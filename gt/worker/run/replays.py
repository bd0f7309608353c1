"""The same call again: a session's graph on the arrays that its last replay left.

A training loop calls one program, each time on the parameters and state that the call before made. If that call was
a replay in place, nothing has to be checked again: the entries in the store are the same objects under new ids. So
most of the host's work for a call is skipped.

Law 1: it is the same call only if every input that the graph reads in place is the very array that the last replay
       left there, and nothing in the session's store has been tainted or shared since. What the graph must know of
       indices is asked at every call: which array holds them says nothing of their values.
Law 2: no array is kept alive for it. If one is freed its graph becomes stale, so that no other is mistaken for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from gt.worker.run.engine import CapturedProgram, CaptureForm, Scalars
from gt.worker.run.origins import end_of, meet
from gt.worker.run.programs import Known
from gt.worker.run.store import Entry, Store

_array = attrgetter("array")


class Replay:
    """What the next call of a program should find."""

    __slots__ = (
        "_arrays", "_loose", "_needs", "_version", "capture", "captured", "dropped", "indices", "moved", "new", "tier",
    )  # fmt: skip

    def __init__(self, capture: CaptureForm, captured: CapturedProgram, known: Known) -> None:
        form = capture.form
        self.capture, self.captured, self.tier = capture, captured, capture.tier
        source = {value: i for i, value in form.writes}
        #: (input, output): the entry of that input becomes that of the output.
        self.moved = [(source[o], k) for k, o in enumerate(form.outputs) if o in source]
        #: The outputs that get a new entry, and their specs, in the order of the graph's results.
        self.new = [(k, known.outputs[k]) for k, o in enumerate(form.outputs) if o not in source]
        taken = {i for i, _ in self.moved}
        #: The outputs that may be indices: what is known of their values is not what was known at the last call.
        self.indices = [k for k, s in enumerate(known.outputs) if end_of(s.dtype)]
        self.dropped = [i for i in known.donate if i not in taken]
        self._loose: list[int] = self.captured.copied  #: Inputs that are copied in: any array will do.
        self._needs = () if known.standing is None else known.standing.code.needs
        self._arrays: list[int] = []
        self._version = -1

    def expect(self, entries: Sequence[Entry | None], made: Sequence[Entry], store: Store) -> bool:
        """Note what a call left that had these entries and made those; False if the next call cannot be the same."""
        after = list(entries)
        for i, k in self.moved:
            after[i] = made[k]
        kept = [e for i, e in enumerate(after) if i not in self._loose]
        if any(e is None or e.taint or e.shared for e in kept):
            return False
        if not self.captured.fits([None if e is None else e.array for e in after]):
            return False  # an input was another graph's result: it was moved before that memory was used
        self._arrays, self._version = [*map(id, map(_array, kept))], store.version
        return True

    def fits(self, entries: Sequence[Entry | None], scalars: Scalars, store: Store, known: Known) -> bool:
        """Whether a call with these entries is the same call again; its numbers may be others."""
        if store.version != self._version or self.captured is not self.capture.captured or self.captured.stale:
            return False
        every = entries
        if self._loose:
            for i in self._loose:
                entry = entries[i] if i < len(entries) else None
                if entry is None or entry.taint or entry.spec is not known.inputs[i]:
                    return False
            entries = [e for i, e in enumerate(entries) if i not in self._loose]
        try:
            if [*map(id, map(_array, entries))] != self._arrays:
                return False
        except AttributeError:  # one of them does not exist
            return False
        return not self._needs or meet(self._needs, every, scalars)
