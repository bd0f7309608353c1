"""A session's programs as CUDA graphs: captured once, replayed at every call.

Law 1: a replay reads and writes fixed memory. An input is *kept* (the session's own array, which is there at every
       call because results are written into what they replace) or *copied in*. A call whose arrays are not the
       captured ones is never replayed on the wrong memory: it runs as plain code, and if that happens again the
       program is captured anew.
Law 2: results are in the graph's memory and are lent: before the next replay each that is still held is moved to
       memory of its own. Graphs of one stream share their memory, so this includes the results of the other graphs
       there. Small results rotate: a replay leaves them in the next of ROWS places, so that a loss that is held
       until the next one is there need not be moved.
Law 3: a call that could not be rehearsed or captured has changed nothing, and runs as plain code. What failed is told
       to tiers.py (`why`), which tries it again later; other programs, sessions and tiers do not notice.
Law 4: a graph keeps no array of a session alive.
Law 5: a replay is one launch. The numbers of a call are written to the next of ROWS rows of host memory; the graph
       itself fetches them, and counts the rows. No more calls of a session are on the device than there are rows.
Law 6: a replay may begin before it is known whether the one before, on the same arrays, has failed. If it has, this one
       changes nothing and fails too: the graph remembers its flag on the device.

A program is watched for a few calls, rehearsed once (as a plain function: kernels are loaded, and its results are the
call's), then captured. All of this happens in the thread that runs programs.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from sys import getrefcount
from typing import Any, Protocol

import torch

from gt import dtypes
from gt.program import Spec
from gt.worker.run.engine import Form, Graph, Rest, Scalars
from gt.worker.run.store import Entry

WATCHED = 3  #: Calls before a program is rehearsed.
AGAIN = 4  #: Times a program is captured anew before that is given up,
WORTH = 50  #: unless it was replayed this often in between.
ROWS = 16  #: Calls whose numbers may be on their way to the device at once. A power of two.
SMALL = 64  #: Bytes of a result that rotates, as losses do,
FEW = 4  #: and how many results of a program do: each is one more kernel.
GRAPHS = 256  #: Graphs that are kept; the least recently used one is dropped first.

#: Dtypes of results that rotate: torch's kernel for it has no others.
ROUND = {dtypes.float32, dtypes.float64, dtypes.float16, dtypes.bfloat16, dtypes.int64, dtypes.int32, dtypes.bool_}

#: The function that is captured: inputs and a buffer of numbers -> results.
Function = Callable[[Sequence[Any], Any], list[Any]]


class CudaGraph(Protocol):
    """What a capture returns."""

    def replay(self) -> None: ...


class CaptureDevice(Protocol):
    """What this file asks of an engine."""

    device: str

    def capture(self, f: Callable[[], list[Any]], changed: list[Any]) -> tuple[CudaGraph, list[Any]]:
        """Capture what f does on the device, without running it; its results have no values yet. `changed`: arrays
        from before the capture that f writes to."""

    def staging(self, slots: int) -> Any:
        """Host memory of so many slots of int64 that the device can read asynchronously."""

    def pool(self) -> int:
        """The memory pool that a graph captured now shares with others."""

    def own(self, array: Any) -> Any: ...


class Captured:
    """A program of one session, as it can be replayed."""

    def __init__(self, device: CaptureDevice, form: Graph, f: Function, arrays: list[Any], same: list[bool]) -> None:
        written = {i for i, _ in form.writes}
        if not all(arrays[i].is_contiguous() for i in written):
            raise ValueError("an array that is written to is not contiguous")
        self._form = form
        self._copies: list[tuple[int, Any]] = []  #: Inputs that are copied in, and where to.
        inputs: list[Any] = []
        self.stale = False  #: An array that is part of the graph is gone.
        for i, array in enumerate(arrays):
            if i in written or (same[i] and array.is_contiguous()):
                inputs.append(array)
            else:
                inputs.append(torch.empty_like(array, memory_format=torch.contiguous_format))
                self._copies.append((i, inputs[i]))
        self.copied = [i for i, _ in self._copies]
        self._kept = [i for i in range(len(arrays)) if i not in self.copied]
        self._ids = [id(arrays[i]) for i in self._kept]
        self._alive = [weakref.ref(arrays[i], self._gone) for i in self._kept]
        slots = max(form.slots, 1)
        self._rows = device.staging(ROWS * slots).view(ROWS, slots)
        self._views = [row.numpy().data.cast("B") for row in self._rows]
        self._turn = 0  #: The row of the last replay,
        # and the same on the device. What the graph uses is held here: the graph itself knows addresses only.
        self._row_there = torch.zeros(1, dtype=torch.int64, device=device.device)
        self._rows_there = torch.zeros(ROWS, slots, dtype=torch.int64, device=device.device)
        self._failed_there = torch.zeros(1, dtype=torch.int64, device=device.device)  #: The flag of the last replay.
        specs = [form.spec(v) for v in form.wants]
        small = [k for k, s in enumerate(specs) if 0 < s.nbytes <= SMALL and s.dtype in ROUND][:FEW]
        #: For each small result: ROWS places, in memory that no other graph uses.
        self._rounds = [_places(specs[k], device.device) for k in small]
        self._places = [(k, list(places.unbind(0))) for k, places in zip(small, self._rounds, strict=True)]
        self._large = [k for k in range(len(form.wants)) if k not in small]
        self.pool = device.pool()
        changed = [*inputs, self._row_there, self._rows_there, self._failed_there, *self._rounds]
        self._graph, self._results = device.capture(lambda: self._step(f, inputs), changed)
        self._lent: list[list[Entry]] = [[] for _ in form.wants]  #: By result, the entries that have its array,
        self._round: list[list[list[Entry]]] = [[[] for _ in range(ROWS)] for _ in small]  #: and those of small ones.

    def _step(self, f: Function, inputs: list[Any]) -> list[Any]:
        """What the graph does: fetch the numbers of this call, run the function, put small results in their places."""
        row = self._row_there
        self._rows_there.copy_(self._rows, non_blocking=True)
        row.add_(1).bitwise_and_(ROWS - 1)
        numbers, before = self._rows_there.index_select(0, row)[0], self._form.before
        if before >= 0:
            numbers[before : before + 1].mul_(self._failed_there)  # `prepare` says whether that matters
        made = f(inputs, numbers)
        if before >= 0:
            self._failed_there.copy_(made[-1])
        for (k, _), places in zip(self._places, self._rounds, strict=True):
            places.index_copy_(0, row, made[k][None])
        return made

    def _gone(self, ref: object) -> None:
        self.stale = True

    def fits(self, arrays: Sequence[Any]) -> bool:
        """Whether these arrays are the captured ones, where that matters."""
        return not self.stale and [id(arrays[i]) for i in self._kept] == self._ids

    def others(self, arrays: Sequence[Any]) -> list[int]:
        """Which inputs do not fit."""
        return [i for i, ref in zip(self._kept, self._alive, strict=True) if ref() is not arrays[i]]

    def prepare(self, scalars: Scalars, continues: bool) -> None:
        """Check a call's numbers and write them to the next row. Raises if they are wrong. With `continues` it fails if
        the last replay has failed."""
        turn = (self._turn + 1) % ROWS
        self._form.pack(scalars, self._views[turn])
        if continues:
            self._rows[turn, self._form.before] = 1

    def replay(self, arrays: Sequence[Any]) -> list[Any]:
        """Run it with the numbers that were prepared, after its memory was taken back."""
        for i, static in self._copies:
            static.copy_(arrays[i], non_blocking=True)
        turn = self._turn = (self._turn + 1) % ROWS
        for (_, places), lent in zip(self._places, self._round, strict=True):
            if lent[turn]:
                _move_out(lent[turn], places[turn])  # it may have been held for ROWS calls
        self._graph.replay()
        made = list(self._results)
        for k, places in self._places:
            made[k] = places[turn]
        return made

    def lend(self, entries: Sequence[Entry]) -> bool:
        """Note which entries hold the results of the last replay; whether any of them is in the graph's memory."""
        for (k, _), lent in zip(self._places, self._round, strict=True):
            lent[self._turn].append(entries[k])
            entries[k].lent = True
        for k in self._large:
            self._lent[k].append(entries[k])
            entries[k].lent = True
        return bool(self._large)

    def lend_too(self, entry: Entry, new: Entry) -> None:
        """The new entry has the array of this one, which may be a result."""
        for holders in (*self._lent, *[places for lent in self._round for places in lent]):
            if any(each is entry for each in holders):
                holders.append(new)

    def take_back(self) -> None:
        """Move results that are still held out of the graph's memory."""
        for k in self._large:
            if self._lent[k]:
                _move_out(self._lent[k], self._results[k])


def _move_out(holders: list[Entry], place: Any) -> None:
    """Those of these entries that are still held, and have this array, get one of their own."""
    array: Any = None
    while holders:
        entry = holders.pop()
        entry.lent = False
        if getrefcount(entry) > 2 and entry.array is place:  # held by more than this name
            array = entry.array.clone() if array is None else array
            entry.array = array


def _places(spec: Spec, device: str) -> Any:
    return torch.zeros((ROWS, *spec.shape), dtype=getattr(torch, spec.dtype.name), device=device)


class Capture:
    """A program of one session that will be captured, and then its graph. It is a CaptureForm: see run/engine.py."""

    lends = True

    def __init__(self, captures: Captures, form: Graph, f: Function, plain: Form, tier: int) -> None:
        self.tier = tier  #: The tier of the captured function.
        self.ran = 1  #: The tier that the last call ran on.
        self.form, self.plain = form, plain
        self.takes = tuple({*plain.takes, *(i for i, _ in form.writes)})
        self.checks = plain.checks
        self.captured: Captured | None = None
        self.why = ""  #: Why it is not captured any more.
        self.noted = False  #: tiers.py knows why.
        self.rests: dict[int, Rest] = {}  #: Tiers that could not be captured in this session; see tiers.py.
        self._captures = captures
        self._f = f
        self._seen: list[Any] = [lambda: None] * len(form.inputs)  #: The last call's arrays, as weak references.
        self._calls = 0
        self._again = 0
        self._rehearsed = False
        self._misses = 0  #: Since it was captured: calls that it did not fit,
        self._replays = 0  #: and calls that it did.
        self._changing: set[int] = set()  #: Inputs that were other arrays once: they are copied in.
        wanted = set(form.wants)
        self._lent = [k for k, o in enumerate(form.outputs) if o in wanted]

    def where(self, error: BaseException) -> tuple[int, bool]:
        return self.plain.where(error)

    def run(self, arrays: list[Any], scalars: Scalars) -> tuple[tuple[Any, ...], Any]:
        self.ran = 1
        captured = self.captured
        if captured is not None and captured.fits(arrays):
            return self._replay(arrays, scalars)
        if captured is not None:
            self._changing.update(captured.others(arrays))
        if self.why or (captured is not None and not self._misses):
            self._misses += 1  # the next call may fit again
            return self.plain.run(arrays, scalars)
        same = [seen() is a for seen, a in zip(self._seen, arrays, strict=True)]
        self._seen = [weakref.ref(a) for a in arrays]
        self._calls += 1
        if self._calls <= WATCHED:
            return self.plain.run(arrays, scalars)
        try:
            if not self._rehearsed:
                buffer = torch.zeros(max(self.form.slots, 1), dtype=torch.int64)
                try:
                    self.form.pack(scalars, buffer.numpy().data.cast("B"))
                except Exception:
                    return self.plain.run(arrays, scalars)  # which raises too, and knows the instruction
                return self._results(arrays, self._rehearse(arrays, buffer))
            self._capture(arrays, same)
        except Exception as e:
            self.give_up(f"{type(e).__name__}: {e}")
        if self.captured is None:
            return self.plain.run(arrays, scalars)
        return self._replay(arrays, scalars)

    def _replay(self, arrays: list[Any], scalars: Scalars) -> tuple[tuple[Any, ...], Any]:
        made = self.again(arrays, scalars)
        return self.plain.run(arrays, scalars) if made is None else self._results(arrays, made)

    def again(self, arrays: Sequence[Any], scalars: Scalars, continues: bool = False) -> list[Any] | None:
        """Replay it on arrays that are known to fit; what the function returns. None if the numbers are wrong. With
        `continues` it fails if the last replay, whose outcome is not known yet, has failed."""
        captured = self.captured
        assert captured is not None
        try:
            captured.prepare(scalars, continues)
        except Exception:
            return None  # plain code knows the instruction
        self._captures.take_back(captured.pool)
        made = captured.replay(arrays)
        self.ran = self.tier
        self._replays += 1
        self._captures.used(self)
        return made

    def lend(self, entries: Sequence[Entry]) -> None:
        """Note which entries hold the results of the last call, in the program's order."""
        if self.captured is not None and self.ran == self.tier:
            self.lent([entries[k] for k in self._lent])

    def lent(self, entries: Sequence[Entry]) -> None:
        """The same, in the order of what the function returns."""
        assert self.captured is not None
        if self.captured.lend(entries):
            self._captures.lends(self.captured)

    def lend_too(self, entry: Entry, new: Entry) -> None:
        """The new entry has the array of this one, which may be lent."""
        if self.captured is not None:
            self.captured.lend_too(entry, new)

    def _rehearse(self, arrays: list[Any], buffer: Any) -> list[Any]:
        """Run the function eagerly, on copies of what it overwrites; the copies replace the call's arrays."""
        device = self._captures.device
        inputs = [a.contiguous() for a in arrays]
        for i, _ in self.form.writes:
            inputs[i] = device.own(arrays[i])
        made = self._f(inputs, buffer.to(device.device))
        for i, _ in self.form.writes:
            arrays[i] = inputs[i]
        self._rehearsed = True
        return made

    def _capture(self, arrays: list[Any], same: list[bool]) -> None:
        self._drop()
        self._captures.make_way(self.tier)
        self._again = 1 if self._replays > WORTH else self._again + 1
        self._misses = self._replays = 0
        if self._again > AGAIN:
            changing = sorted(self._changing)[:8]
            self.give_up(f"its inputs are different arrays at every call, such as inputs {changing}")
            return
        copied = {*self.form.donate, *self._changing}
        kept = [alike and i not in copied for i, alike in enumerate(same)]
        self.captured = Captured(self._captures.device, self.form, self._f, arrays, kept)

    def _results(self, arrays: list[Any], made: list[Any]) -> tuple[tuple[Any, ...], Any]:
        """The program's results out of the function's, and the flag."""
        form = self.form
        flag = made.pop() if form.flagged else None
        values = dict(zip(form.wants, made, strict=True))
        values.update({value: arrays[i] for i, value in form.writes})
        arrays.clear()
        return tuple([values[o] for o in form.outputs]), flag

    def give_up(self, why: str) -> None:
        """Run it as plain code from now on."""
        self.why = why or "no reason given"
        self._drop()

    def hurry(self) -> None:
        """Skip the watched calls: it is known to be called again and again."""
        self._calls = WATCHED

    def let_go(self) -> None:
        """Free its memory; it is captured again if it is called again."""
        self._drop()
        self._calls = 0

    def _drop(self) -> None:
        if self.captured is not None:
            self.captured.take_back()  # or the next graph in that memory would overwrite results that are held
        self.captured = None
        self._captures.forget(self)


class Captures:
    """All graphs of a worker, the least recently used first."""

    def __init__(self, device: CaptureDevice) -> None:
        self.device = device
        self._used: OrderedDict[int, Capture] = OrderedDict()
        #: By pool: graphs whose results may still be held. (Weakly: those of a session that has ended are not.)
        self._lending: dict[int, list[weakref.ref[Captured]]] = {}

    def __len__(self) -> int:
        return len(self._used)

    def lends(self, captured: Captured) -> None:
        """Results of this graph are in its memory."""
        lending, ref = self._lending.setdefault(captured.pool, []), weakref.ref(captured)
        if ref not in lending:
            lending.append(ref)

    def take_back(self, pool: int) -> None:
        """A graph is about to use this memory: move the results that are still held."""
        lending = self._lending.get(pool)
        while lending:
            if (captured := lending.pop()()) is not None:
                captured.take_back()

    def used(self, capture: Capture) -> None:
        self._used[id(capture)] = capture
        self._used.move_to_end(id(capture))
        if len(self._used) > GRAPHS:
            # One of the same stream: moving results of another stream would not wait for them.
            here = self.device.pool()
            oldest = next((c for c in self._used.values() if c.captured is not None and c.captured.pool == here), None)
            if oldest is not None and oldest is not capture:
                oldest.let_go()

    def make_way(self, tier: int) -> None:
        """A program is to be captured on this tier: graphs on lower tiers in the same pool give their memory back,
        which torch does only when no graph is left in a pool. They are captured again if they are called again."""
        here = self.device.pool()
        for capture in list(self._used.values()):
            if capture.tier < tier and capture.captured is not None and capture.captured.pool == here:
                capture.let_go()

    def forget(self, capture: Capture) -> None:
        self._used.pop(id(capture), None)

    def let_go(self) -> None:
        """Free all graphs' memory. Results that are held stay: no graph is left that could overwrite them."""
        for capture in list(self._used.values()):
            capture.captured = None
            capture.let_go()
