"""Indices that need no check, because of where their elements come from; and those that still need one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from worker_building import Builder, Device
from worker_driver import Driver

from gt import config
from gt.transport import messages as msg
from gt.worker.run.lowering import Lowered, lower
from gt.worker.run.origins import Origin, meet, ranges_of
from gt.worker.run.replays import Replay
from gt.worker.run.store import Entry

N = 8  #: Rows of the table.
ROWS = np.arange(2 * N, dtype=np.float32).reshape(N, 2)
INDEX, PLACES = np.array([0, 7, 1, 3, 7, 2]), np.array([5, 4, 3, 2, 1, 0])


@pytest.fixture
def device(numpy_engine: Any) -> Device:
    return Device(numpy_engine)


class Indexed(Builder):
    """(table of N rows, two indices a and b, more of other dtypes)"""

    def __init__(self, *more: tuple[tuple[int, ...], str], scalars: str = "") -> None:
        shapes = [((N, 2), "float32"), ((6,), "int64"), ((6,), "int64"), *more]
        super().__init__(*[s for s, _ in shapes], scalars=scalars, kinds={i: d for i, (_, d) in enumerate(shapes)})

    def rows(self, index: int) -> Any:
        """A program that reads the table at this index."""
        return self.program([self.add("embedding", 0, index)])


def trusting(device: Device, b: Indexed, index: int) -> Lowered:
    outputs = [b.add("embedding", 0, index), b.add("clone", index)]
    return lower(b.checked(outputs), device, trusted=True)


#: How an index is made of inputs 1 and 2, and of which it has elements.
MADE: dict[str, tuple[Any, set[int]]] = {
    "itself": (lambda b: 1, {1}),
    "slice": (lambda b: b.add("slice", 1, ~0, dims=(0,), lengths=(3,), steps=(1,), drop=()), {1}),
    "clone of a slice": (
        lambda b: b.add("clone", b.add("slice", 1, ~0, dims=(0,), lengths=(3,), steps=(1,), drop=())),
        {1},
    ),
    "reshape, permute": (lambda b: b.add("permute", b.add("reshape", 1, shape=(2, 3)), dims=(1, 0)), {1}),
    "cat": (lambda b: b.add("cat", 1, 2, dim=0), {1, 2}),
    "stack": (lambda b: b.add("stack", 1, 2, dim=0), {1, 2}),
    "second piece": (lambda b: b.add("split", b.add("cat", 1, 2, dim=0), sizes=(6, 6), dim=0)[1], {1, 2}),
    "rows by index": (lambda b: b.add("index", 1, b.add("wrap_index", 2, n=6), dims=(0,)), {1}),
    "index_select": (lambda b: b.add("index_select", 1, 2, dim=0), {1}),
    "gather": (lambda b: b.add("gather", 1, 2, dim=0), {1}),
    "wrap_index": (lambda b: b.add("wrap_index", 1, n=N), {1}),
    "sorted values": (lambda b: b.add("sort", 1, dim=0, descending=False, stable=True)[0], {1}),
    "top values": (lambda b: b.add("topk", 1, k=2, dim=0, largest=True, sorted=True)[0], {1}),
    "largest": (lambda b: b.add("amax", 1, dims=(0,), keepdim=False), {1}),
    "where": (lambda b: b.add("where", b.add("gt", 1, 2), 1, 2), {1, 2}),
    "assign": (lambda b: b.add("assign", 1, 2), {2}),
    "slice_put": (lambda b: b.add("slice_put", 1, 2, ~0, dims=(0,), lengths=(6,), steps=(1,), drop=()), {1, 2}),
    "narrower": (lambda b: b.add("cast", 1, dtype="int32"), {1}),
    "flip, roll": (lambda b: b.add("roll", b.add("flip", 1, dims=(0,)), shifts=(1,), dims=(0,)), {1}),
}


@pytest.mark.parametrize("made", MADE)
def test_what_has_only_elements_of_inputs_needs_no_check(device: Device, made: str) -> None:
    make, inputs = MADE[made]
    b = Indexed(scalars="i")
    lowered = trusting(device, b, make(b))
    assert not lowered.checks
    assert {i: n for i, n in lowered.needs.items() if isinstance(i, int) and i in inputs} == dict.fromkeys(inputs, N)
    ((output, origin),) = lowered.bounds
    assert (output, origin.sources) == (1, inputs)


@pytest.mark.parametrize("made", MADE)
def test_without_trust_it_is_checked(device: Device, made: str) -> None:
    b = Indexed(scalars="i")
    b.rows(MADE[made][0](b))
    lowered = lower(b.checked([len(b.specs) - 1]), device)
    assert [s.op.name for s in lowered.checks][-1] == "embedding"
    assert not lowered.needs


#: Ways to make an index of which nothing is known.
UNKNOWN: dict[str, Any] = {
    "sum": lambda b: b.add("add", 1, 2),
    "product": lambda b: b.add("mul", 1, ~0),
    "difference": lambda b: b.add("sub", 1, 2),
    "negative": lambda b: b.add("neg", 1),
    "cat with one of them": lambda b: b.add("cat", 1, b.add("add", 1, 2), dim=0),
    "added rows": lambda b: b.add("index_put", 1, 2, 2, dims=(0,), accumulate=True),
    "other bits": lambda b: b.add(
        "bitcast",
        b.add("slice", b.add("bitcast", 1, dtype="int32"), ~0, dims=(0,), lengths=(4,), steps=(1,), drop=()),
        dtype="int64",
    ),
    "from floats": lambda b: b.add("cast", b.add("cast", 1, dtype="float32"), dtype="int64"),
    "cumulative sum": lambda b: b.add("cumsum", 1, dim=0),
    "largest sums": lambda b: b.add("amax", b.add("add", 1, 2), dims=(0,), keepdim=False),
    "floats": lambda b: b.add("cast", 3, dtype="int64"),
}


@pytest.mark.parametrize("made", UNKNOWN)
def test_what_is_computed_is_checked(device: Device, made: str) -> None:
    b = Indexed(((6,), "float32"), scalars="i")
    lowered = trusting(device, b, UNKNOWN[made](b))
    assert [s.op.name for s in lowered.checks][-1:] == ["embedding"]
    assert not lowered.bounds


#: Indices made with numbers of a call: numbers with which all of them are in [0, N), and others.
NUMBERS: dict[str, tuple[Any, str, list[tuple[Any, ...]], list[tuple[Any, ...]]]] = {
    "where": (lambda b: b.add("where", b.add("gt", 1, 2), 1, ~0), "i", [(0,), (N - 1,)], [(-1,), (N,)]),
    "pad": (lambda b: b.add("pad", 1, ~0, pads=(1, 1)), "i", [(0,)], [(-100,), (N,)]),
    "full": (lambda b: b.add("full", ~0, shape=(6,), dtype="int64"), "i", [(N - 1,)], [(N,), (-1,)]),
    "narrow full": (lambda b: b.add("cast", b.add("full", ~0, shape=(2,), dtype="uint8"), dtype="int64"), "i",
                    [(0,)], [(256,), (-1,)]),
    "assign": (lambda b: b.add("assign", 1, ~0), "i", [(3,)], [(N,), (-1,)]),
    "scatter": (lambda b: b.add("scatter", 1, 2, ~0, dim=0), "i", [(3,)], [(N,), (-1,)]),
    "arange": (lambda b: b.add("arange", ~0, ~1, n=4, dtype="int64"), "ii", [(0, 1), (N - 1, -2), (0, 2)],
               [(N - 3, 1), (2, -1), (-1, 1), (0, 3)]),
    "arange of floats": (lambda b: b.add("arange", ~0, ~1, n=4, dtype="int64"), "fi", [], [(0.0, 1)]),
    "randint": (lambda b: b.add("randint", ~0, ~1, ~2, shape=(6,), dtype="int64"), "iii", [(7, 0, N), (7, 2, 3)],
                [(7, -1, N), (7, 0, N + 1)]),
    "clamp": (lambda b: b.add("clamp", b.add("mul", 1, 2), ~0, ~1), "ii", [(0, N - 1), (2, 2)],
              [(-1, 2), (0, N), (3, 2)]),
    "remainder": (lambda b: b.add("remainder", b.add("neg", 1), ~0), "i", [(N,), (1,)], [(N + 1,), (0,), (-3,)]),
    "data": (lambda b: b.add("data", ~0, shape=(3,), dtype="int64"), "d", [(np.array([0, 3, N - 1]).tobytes(),)],
             [(np.array([0, 3, N]).tobytes(),), (np.array([-1, 3, 2]).tobytes(),), (b"short",), (b"",)]),
}  # fmt: skip


@pytest.mark.parametrize("made", NUMBERS)
def test_numbers_of_the_call_decide(device: Device, made: str) -> None:
    make, kinds, good, bad = NUMBERS[made]
    b = Indexed(scalars=kinds)
    lowered = trusting(device, b, make(b))
    assert not lowered.checks
    entries = [None, Entry(b.specs[1], None, below=N), Entry(b.specs[2], None, below=6)]
    for numbers in good + bad:
        fits = meet(list(lowered.needs.items()), entries, numbers)
        assert fits == (numbers in good)
        known = ranges_of(lowered.bounds, entries, numbers)
        if fits:
            assert known
            assert known[0][1] <= N
        elif known:
            assert known[0][1] > N


def test_numbers_have_to_fit_the_dtype(device: Device) -> None:
    """256 becomes 0 in uint8, and 2**32 becomes 0 in int32, by which nothing can be divided."""
    b = Indexed(scalars="i")
    wide = b.add("remainder", b.add("cast", 1, dtype="int32"), ~0)
    lowered = lower(b.checked([wide]), device)
    assert ranges_of(lowered.bounds, [None, None], (1 << 31,)) == [(0, 1 << 31)]
    assert not ranges_of(lowered.bounds, [None, None], (1 << 32,))


def test_a_range_that_the_op_knows_joins_that_of_inputs(device: Device) -> None:
    b = Indexed()
    place = b.add("argmax", b.add("cast", 0, dtype="float64"), dim=0, keepdim=False)
    both = b.add("cat", place, 1, dim=0)
    lowered = trusting(device, b, both)
    assert not lowered.checks
    assert lowered.bounds == ((1, Origin(N, frozenset({1}), 1 << 63)),)
    for few, checks in ((N, 0), (N - 1, 1)):  # a table with fewer rows than the op's range
        b = Indexed(((few, 2), "float32"))
        place = b.add("argmax", b.add("cast", 0, dtype="float64"), dim=0, keepdim=False)
        b.add("embedding", 3, b.add("cat", place, 1, dim=0))
        assert len(lower(b.checked([len(b.specs) - 1]), device, trusted=True).checks) == checks


def test_a_cast_that_may_change_a_value_asks_for_more(device: Device) -> None:
    """uint8 cannot hold 256: it would become 0, which is in range, but not what was uploaded."""
    b = Indexed(((1000, 2), "float32"))
    b.add("embedding", 3, b.add("cast", b.add("cast", 1, dtype="uint8"), dtype="int64"))
    lowered = lower(b.checked([len(b.specs) - 1, len(b.specs) - 2]), device, trusted=True)
    assert lowered.needs == {1: 256}
    assert [bound.origin.most for bound in lowered.bounds] == [256]
    assert not lowered.checks


def test_an_index_that_two_ops_read_must_fit_both(device: Device) -> None:
    b = Indexed(((3, 2), "float32"))
    outputs = [b.add("embedding", t, b.add("clone", 1)) for t in (0, 3)]
    assert lower(b.checked(outputs), device, trusted=True).needs == {1: 3}


# -- calls -----------------------------------------------------------------------------------


def program(make: Any, donate: tuple[int, ...] = (), updates: tuple[tuple[int, int], ...] = ()) -> Any:
    """(a, b) -> an index of both."""
    b = Builder((6,), (6,), kinds={0: "int64", 1: "int64"})
    return b.program([make(b)], donate, updates)


PICK = program(lambda b: b.add("index_select", 0, 1, dim=0))
JOIN = program(lambda b: b.add("cat", 0, 1, dim=0))
SUM = program(lambda b: b.add("add", 0, 1))
SET = program(lambda b: b.add("assign", 0, 1), donate=(0,), updates=((0, 0),))


def reading(size: int) -> Any:
    """(table, index, state) -> new state; rows."""
    b = Builder((N, 2), (size,), (size, 2), kinds={1: "int64"})
    rows = b.add("embedding", 0, 1)
    return b.program([b.add("assign", 2, rows), rows], donate=(2,), updates=((0, 2),))


READ = reading(6)


@pytest.fixture
def driver(device: Device) -> Driver:
    """A session with a table (1), an index (2: up to 7), one of places (3: up to 5), and one with a negative (4)."""
    return Driver(device).holding(ROWS, INDEX, PLACES, np.array([0, -1, 1, 3, 7, 2]))


def flagged(driver: Driver, call: Any) -> bool:
    """Whether this call's outcome is only known to the device; it succeeds."""
    sent: list[bool] = []
    engine = driver.core.engine
    engine.send_flag = lambda flag: sent.append(True) or flag
    try:
        answers = call()
    finally:
        del engine.send_flag
    assert all(isinstance(m, msg.CallDone) for m in answers)
    return bool(sent)


def state(driver: Driver, id: int, size: int = 6) -> int:
    driver.upload(id, np.zeros((size, 2), np.float32))
    return id


def test_results_of_a_call_are_in_the_range_of_what_they_were_picked_from(driver: Driver) -> None:
    driver.call(PICK, [2, 3], 10)
    driver.call(JOIN, [10, 3], 11)
    assert (driver.entry(10).below, driver.entry(11).below) == (8, 8)
    assert not flagged(driver, lambda: driver.call(READ, [1, 10, state(driver, 5)], 20))
    assert np.array_equal(driver.fetch(21), driver.fetch(1)[driver.fetch(10)])


def test_of_what_is_computed_nothing_is_known(driver: Driver) -> None:
    driver.call(SUM, [2, 3], 10)
    driver.call(PICK, [4, 3], 11)
    driver.call(JOIN, [2, 4], 12)
    assert [driver.entry(i).below for i in (10, 11, 12)] == [-1, -1, -1]


def test_an_index_out_of_range_is_reported_though_it_was_moved(driver: Driver) -> None:
    """A program that trusts its indices meets one that is too large: its plain code runs, and names the line."""
    driver.call(PICK, [2, 3], 10)
    assert not flagged(driver, lambda: driver.call(READ, [1, 10, state(driver, 5)], 20))
    driver.upload(6, np.array([0, 8, 1, 3, 7, 2]))
    driver.call(PICK, [6, 3], 30)
    assert driver.entry(30).below == 9
    for bad in (6, 30, 4):
        driver.call(READ, [1, bad, state(driver, 100 + bad)], 200 + 2 * bad)
        error = driver.fetch_error(201 + 2 * bad)
        assert (error.kind, error.instruction) == ("IndexOutOfRange", 0)
        assert not driver.fetch(200 + 2 * bad).any()  # the old value is kept


def test_indices_that_are_picked_at_a_place_out_of_range(driver: Driver) -> None:
    """The result of the failed call is poisoned, and is trusted by nobody."""
    driver.call(PICK, [2, 2], 10)
    error = driver.fetch_error(10)
    assert (error.kind, error.instruction) == ("IndexOutOfRange", 0)


def test_an_index_that_is_overwritten_has_the_range_of_its_new_value(driver: Driver) -> None:
    driver.call(SET, [3, 2], 10)
    assert driver.entry(10).below == 8
    driver.call(SET, [10, 4], 11)
    assert driver.entry(11).below == -1


def test_inputs_that_are_dropped_before_the_call_count_too(driver: Driver) -> None:
    b = Builder((6,), (6,), kinds={0: "int64", 1: "int64"})
    early = b.program([b.add("index_select", 0, 1, dim=0)], donate=(0, 1))
    driver.call(early, [2, 3], 10)
    assert driver.entry(10).below == 8


def failing_update() -> Any:
    """(index, new, table, places) -> the index replaced by `new`; rows of the table at places that are out of range."""
    b = Builder((6,), (6,), (N, 2), (6,), kinds={0: "int64", 1: "int64", 3: "int64"})
    new = b.add("assign", 0, b.add("clone", 1))
    return b.program([new, b.add("embedding", 2, 3)], donate=(0,), updates=((0, 0),))


def test_what_a_failed_call_leaves(driver: Driver) -> None:
    """It fails on the device: its result is the old value, of which the range of the new one says nothing."""
    driver.upload(6, np.array([0, 9, 1, 3, 7, 2]))  # in range for none of the two
    driver.call(failing_update(), [6, 3, 1, 4], 10)
    driver.fetch_error(11)
    assert np.array_equal(driver.fetch(10), [0, 9, 1, 3, 7, 2])
    assert driver.entry(10).below == -1
    driver.call(READ, [1, 10, state(driver, 5)], 20, acked=driver.seq)
    assert driver.fetch_error(21).kind == "IndexOutOfRange"


def test_a_value_that_a_failed_call_keeps_stays_known(driver: Driver) -> None:
    """It fails on the host: the new id has the old array."""
    driver.fails(SET, [2, 99], 10)
    driver.upload(7, np.zeros(3))
    driver.fails(SET, [3, 7], 11)
    assert driver.entry(11).below == 6
    assert np.array_equal(driver.fetch(11), [5, 4, 3, 2, 1, 0])


def test_copies_and_what_comes_back_stay_known(numpy_engine: Any, tmp_path: Path) -> None:
    settings = config.replace(config.load(), spill_memory=1 << 20, spill_dir=str(tmp_path), auto_compile=False)
    driver = Driver(Device(numpy_engine), settings).holding(ROWS, INDEX, PLACES)
    driver.call(PICK, [2, 3], 10)
    packed = msg.pack_ids([10])
    for message in (msg.Spill(driver.session, packed), msg.Return(driver.session, packed)):
        driver.send(message)
        while driver.core.move() is not None:
            pass
    assert driver.entry(10).below == 8
    other = driver.beside().holding(ROWS)
    other.send(msg.Copy(other.session, 5, driver.session, packed, 40))
    assert other.entry(40).below == 8


def test_the_host_knows_its_own_checks(numpy_engine: Any) -> None:
    """Where checks are not deferred nothing is noted, and calls do nothing for it."""
    driver = Driver(numpy_engine).holding(ROWS, INDEX, PLACES)
    driver.call(PICK, [2, 3], 10)
    assert driver.entry(10).below == -1


# -- replays ---------------------------------------------------------------------------------


class Form:
    """A captured program, as far as a replay looks at it: input 1 is an index that is copied in."""

    form = captured = None
    stale, copied, tier, writes = False, [1], 2, ()  # type: ignore[var-annotated]

    def __init__(self, outputs: list[int]) -> None:
        self.outputs, self.form, self.captured = outputs, self, self  # type: ignore[assignment]

    def fits(self, arrays: list[Any]) -> bool:
        return True


def test_a_replay_asks_what_is_known_of_the_indices_of_each_call(driver: Driver) -> None:
    driver.call(READ, [1, 2, state(driver, 5)], 20)
    known = driver.core.programs.peek(READ.hash())
    assert known is not None
    assert known.standing is not None
    assert known.standing.code.needs == ((1, N),)
    store = driver.core.sessions[driver.session].store
    entries: list[Any] = [store.entries[i] for i in (1, 2, 20)]
    form: Any = Form(list(known.standing.code.takes))
    replay = Replay(form, form, known)
    assert replay.expect(entries, [], store)
    assert replay.fits(entries, (), store, known)
    driver.upload(6, np.array([0, 8, 1, 3, 7, 2]))
    for bad in (4, 6):
        assert not replay.fits([entries[0], store.entries[bad], entries[2]], (), store, known)
