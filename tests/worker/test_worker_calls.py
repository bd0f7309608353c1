"""What calls leave in the store: results, kept values, poison; and what the client may rely on then."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from worker_building import Broken, Builder, Device, Faulty, Kernels, Wrapped, unary
from worker_driver import Driver

from gt.config import Config
from gt.program import Precision
from gt.transport import messages as msg
from gt.worker.calls import EngineLost
from gt.worker.core import IN_FLIGHT
from gt.worker.run.engine import Coming

SHAPE = (4,)
NEG = unary("neg", SHAPE)
ONE, TWO = np.full(4, 1, np.float32), np.full(4, 2, np.float32)


def step_program() -> Any:
    """(state, gradient) -> new state, a result on the side; both inputs are donated."""
    b = Builder(SHAPE, SHAPE)
    side = b.add("neg", 1)
    moved = b.add("add", 0, side)
    new = b.add("assign", 0, moved)
    return b.program([new, side], donate=(0, 1), updates=((0, 0),))


@pytest.fixture
def faulty(engine: Any) -> Faulty:
    return Faulty(engine)


@pytest.fixture
def driver(faulty: Faulty) -> Driver:
    return loaded(faulty)


def loaded(engine: Any) -> Driver:
    """A session with ONE as tensor 1 and TWO as tensor 2."""
    return Driver(engine).holding(ONE, TWO)


def types(messages: list[Any]) -> list[type]:
    return [type(m) for m in messages]


def test_a_call_makes_its_results_and_takes_what_is_donated(driver: Driver) -> None:
    assert types(driver.call(step_program(), [1, 2], outputs=10)) == [msg.CallDone]
    assert np.array_equal(driver.fetch(10), ONE - TWO)
    assert np.array_equal(driver.fetch(11), -TWO)
    for gone in (1, 2):
        assert driver.fetch_error(gone).kind == "ProgramError"
    assert driver.tensors() == 2


def test_frees_go_before_the_call_and_by_themselves(driver: Driver) -> None:
    for id in (3, 4):
        driver.upload(id, ONE)
    driver.call(step_program(), [1, 2], outputs=10, frees=[3])
    assert driver.tensors() == 3
    driver.free([4, 99])
    assert driver.tensors() == 2


def test_a_failed_call_changes_nothing(driver: Driver, faulty: Faulty) -> None:
    faulty.count, faulty.fail_at = 0, 1
    failed = driver.fails(step_program(), [1, 2], outputs=10)
    assert (failed.seq, failed.root, failed.error.kind, failed.error.instruction) == (1, 1, "WorkerError", 1)
    assert "piece of work 1" in failed.error.text
    assert np.array_equal(driver.fetch(10), ONE)  # the state under its new id
    assert driver.fetch_error(11) == failed.error
    assert driver.fetch_error(1).kind == driver.fetch_error(2).kind == "ProgramError"  # donated: gone


def test_calls_behind_a_failed_one_fail_the_same_way_until_it_is_known(driver: Driver, faulty: Faulty) -> None:
    program = step_program()
    for id in (3, 4, 5):
        driver.upload(id, ONE)
    faulty.count, faulty.fail_at = 0, 0
    first = driver.fails(program, [1, 2], outputs=10)
    second = driver.fails(program, [10, 3], outputs=20)  # uses the kept state too early
    assert (second.seq, second.root, second.error) == (2, 1, first.error)
    third = driver.fails(program, [20, 4], outputs=30, acked=1)  # knows of the first failure only
    assert (third.root, third.error) == (1, first.error)
    assert types(driver.call(program, [30, 5], outputs=40, acked=3)) == [msg.CallDone]
    assert np.array_equal(driver.fetch(40), ONE - ONE)


def test_poison_is_never_forgiven(driver: Driver, faulty: Faulty) -> None:
    faulty.count, faulty.fail_at = 0, 0
    first = driver.fails(step_program(), [1, 2], outputs=10)
    use = driver.fails(NEG, [11], outputs=20, acked=1)
    assert (use.root, use.error) == (1, first.error)
    assert driver.fetch_error(20) == first.error


def test_a_kept_value_that_two_ids_share_is_not_overwritten(driver: Driver, faulty: Faulty) -> None:
    b = Builder(SHAPE, SHAPE)
    moved = b.add("add", 0, 1)
    keeping = b.program([b.add("assign", 0, moved)], updates=((0, 0),))  # the input stays alive
    faulty.count, faulty.fail_at = 0, 0
    driver.call(keeping, [1, 2], outputs=10)
    driver.call(step_program(), [10, 2], outputs=20, acked=1)  # donates 10, which shares its array with 1
    assert np.array_equal(driver.fetch(20), ONE - TWO)
    assert np.array_equal(driver.fetch(1), ONE)


def test_an_input_given_twice_is_not_overwritten_while_it_is_read(driver: Driver) -> None:
    b = Builder(SHAPE, SHAPE)
    program = b.program([b.add("assign", 0, 1), b.add("add", 1, 1)], donate=(0,))
    driver.call(program, [1, 1], outputs=10)
    assert np.array_equal(driver.fetch(10), ONE)
    assert np.array_equal(driver.fetch(11), ONE + ONE)


def test_what_does_not_fit_the_program_is_refused(driver: Driver) -> None:
    driver.upload(3, np.zeros(5, np.float32))
    driver.upload(4, np.zeros(4, np.int64))
    program = step_program()
    for ids, why in (([1, 99], "not a tensor of this session"), ([1, 3], "f32[5]"), ([1, 4], "i64"), ([1], "1 inputs")):
        failed = driver.fails(program, ids, outputs=10)
        assert failed.error.kind == "ProgramError"
        assert why in failed.error.text
        driver.upload(1, ONE)
    b = Builder(SHAPE, scalars="f")
    scaled = b.program([b.add("mul", 0, ~0)])
    for scalars in ((), (1,), (True,), (1.0, 2.0)):
        failed = driver.fails(scaled, [1], outputs=10, scalars=scalars)
        assert failed.error.kind == "ProgramError"
    assert types(driver.call(scaled, [1], outputs=10, scalars=(3.0,))) == [msg.CallDone]


def test_broken_id_lists_do_no_harm(driver: Driver) -> None:
    program = step_program()
    driver.define(program)
    assert types(driver.send(msg.Call(1, 1, program.hash(), b"123", (), 10, b"1234567", 0))) == [msg.CallFailed]
    assert np.array_equal(driver.fetch(1), ONE)


def test_a_refused_call_fails_for_the_reason_it_brings(driver: Driver) -> None:
    reason = msg.Failure("OutOfMemory", "the session's quota is used up")
    (failed,) = driver.call(step_program(), [1, 2], outputs=10, refused=reason)
    assert failed == msg.CallFailed(1, 1, 1, reason)
    assert np.array_equal(driver.fetch(10), ONE)
    assert driver.fetch_error(11) == reason


def test_out_of_memory_is_named_and_the_engine_gives_memory_back(engine: Any) -> None:
    released = []

    class Full(Faulty):
        def work(self) -> None:
            raise MemoryError

        def release(self) -> None:
            released.append(True)

    driver = loaded(Full(engine))
    failed = driver.fails(step_program(), [1, 2], outputs=10)
    assert failed.error.kind == "OutOfMemory"
    assert failed.error.text
    assert released == [True]


def test_the_faked_limit_fails_calls(engine: Any) -> None:
    driver = Driver(engine, Config(fake_memory=1000)).holding(np.zeros(16, np.float32), np.zeros(512, np.float32))
    failed = driver.fails(unary("neg", (512,)), [2], outputs=10)
    assert (failed.error.kind, failed.error.instruction) == ("OutOfMemory", 0)
    assert types(driver.call(unary("neg", (16,)), [1], outputs=11)) == [msg.CallDone]


def test_an_index_out_of_range_is_named(engine: Any) -> None:
    driver = Driver(engine).holding(np.zeros((4, 2), np.float32), np.array([0, 4, 1]))
    b = Builder((4, 2), (3,), kinds={1: "int64"})
    program = b.program([b.add("embedding", 0, 1)])
    failed = driver.fails(program, [1, 2], outputs=10)
    assert (failed.error.kind, failed.error.instruction) == ("IndexOutOfRange", 0)


def test_a_failure_in_the_commit_poisons_what_it_touched(torch_engine: Any) -> None:
    class Torn(Kernels):
        def run(self, kernel: Any, op: Any, inplace: bool, *args: Any) -> Any:
            made = kernel(*args)
            if inplace:
                raise Broken("half-way")
            return made

    driver = loaded(Torn(torch_engine))
    failed = driver.fails(step_program(), [1, 2], outputs=10)
    assert driver.fetch_error(10) == failed.error


# --- a device whose work is done later -------------------------------------------------------


@pytest.fixture
def device(numpy_engine: Any) -> Device:
    return Device(numpy_engine)


def test_completion_is_reported_when_the_device_is_done(device: Device) -> None:
    driver = loaded(device)
    assert driver.call(NEG, [1], outputs=10) == []
    assert driver.call(NEG, [10], outputs=20) == []
    device.done = 1
    assert [m.seq for m in driver.work()] == [1]
    device.done = 2
    assert [m.seq for m in driver.work()] == [2]
    assert device.waits == 0


def test_what_a_failed_call_left_is_not_sent_while_calls_before_it_are_on_the_device(device: Device) -> None:
    """Failures are told in order: the client would take the old value for the new one."""
    driver = loaded(device)
    step = step_program()
    assert driver.call(NEG, [1], outputs=10) == []
    refused = msg.Failure("OutOfMemory", "too much")
    driver.define(step)
    driver.receive(driver.call_message(step, [1, 2], outputs=20, refused=refused), driver.fetch_message(20))
    assert [type(m) for m in driver.work()] == [msg.CallFailed, msg.CallDone, msg.Chunk]


def test_a_call_on_the_device_holds_none_of_its_inputs(device: Device) -> None:
    driver = loaded(device)
    array = weakref.ref(driver.entry(1).array)
    assert driver.call(NEG, [1], outputs=10) == []
    driver.free([1])
    assert array() is None


def test_no_more_than_a_few_calls_are_in_flight(device: Device) -> None:
    driver = loaded(device)
    reported = [m.seq for k in range(IN_FLIGHT + 3) for m in driver.call(NEG, [1], outputs=10 + k)]
    assert reported == [1, 2, 3]


def flagged() -> Any:
    """(table, index, state) -> new state, rows"""
    b = Builder((4, 2), (3,), (3, 2), kinds={1: "int64"})
    rows = b.add("embedding", 0, 1)
    return b.program([b.add("assign", 2, rows), rows], donate=(2,), updates=((0, 2),))


def indexing(device: Device) -> Driver:
    """A session with a table (1), an index out of its range (2), one within it (3), and a state (4)."""
    table, state = np.zeros((4, 2), np.float32), np.ones((3, 2), np.float32)
    return Driver(device).holding(table, np.array([0, 4, 1]), np.array([0, 3, 1]), state)


def test_a_bad_index_on_the_device_fails_the_call_and_those_behind_it(device: Device) -> None:
    driver = indexing(device)
    assert driver.call(flagged(), [1, 2, 4], outputs=10) == []  # the outcome is on the device
    first, second = driver.call(flagged(), [1, 3, 10], outputs=20)
    assert types([first, second]) == [msg.CallFailed] * 2
    assert (first.seq, first.root, first.error.kind, first.error.instruction) == (1, 1, "IndexOutOfRange", 0)
    assert (second.seq, second.root, second.error) == (2, 1, first.error)
    assert driver.fetch_error(11) == first.error
    assert np.array_equal(driver.fetch(20), np.ones((3, 2), np.float32))
    driver.call(flagged(), [1, 3, 20], outputs=30, acked=2)
    assert np.array_equal(driver.fetch(30), np.zeros((3, 2), np.float32))


@pytest.mark.parametrize("together", [False, True])
def test_a_fetch_waits_for_the_outcome_of_the_call_before_it(device: Device, together: bool) -> None:
    """Also if both are there before the call runs: the answer must not travel with results that are none."""
    driver = indexing(device)
    driver.define(flagged())
    assert driver.core.receive(driver.call_message(flagged(), [1, 2, 4], 10), None) == []
    assert together or driver.work() == []
    assert types(driver.send(driver.fetch_message(11))) == [msg.CallFailed, msg.FetchFailed]


class Copying(Device):
    """Values take their time to come from the device, too."""

    def start_fetch(self, array: Any) -> Coming:
        return Coming(array.copy(), self.mark())


def test_an_outcome_is_sent_with_the_small_value_that_follows_it(numpy_engine: Any) -> None:
    device = Copying(numpy_engine)
    driver = loaded(device)
    core = driver.core
    driver.define(NEG)
    core.receive(driver.call_message(NEG, [1], 10))
    core.receive(driver.fetch_message(10))
    assert not [m for _ in range(9) for m in core.step() or ()]
    call_mark = device.marks - 1
    device.done = call_mark  # the call is done, its value is on its way
    assert not [m for _ in range(9) for m in core.step() or ()]
    assert core.in_flight
    device.done = device.marks
    out = core.step()
    assert out is not None
    assert [type(m) for m, _ in out] == [msg.CallDone, msg.Chunk]


@pytest.mark.parametrize("why", ["another call", "a large value", "another session"])
def test_an_outcome_does_not_wait_for_what_may_take_long(numpy_engine: Any, why: str) -> None:
    device = Copying(numpy_engine)
    driver = loaded(device)
    core = driver.core
    size = (1025,) if why == "a large value" else SHAPE
    driver.upload(5, np.ones(size, np.float32))
    other = driver.beside()
    other.upload(1, ONE)
    program = unary("neg", size)
    driver.define(program)

    def take_in(message: Any) -> None:
        core.receive(message)
        while core.step() is not None:
            pass

    take_in(driver.call_message(program, [5], 10))
    first = device.marks
    if why == "another call":
        take_in(driver.call_message(program, [10], 20))
    take_in(other.fetch_message(1) if why == "another session" else driver.fetch_message(10))
    device.done = first
    told = [m for _ in range(9) for m, _ in core.step() or ()]
    assert [type(m) for m in told] == [msg.CallDone]


def test_a_broken_device_is_told_apart_from_a_failed_call(device: Device) -> None:
    class Dead(Device):
        def mark(self) -> int:
            raise RuntimeError("device-side assert")

    driver = loaded(Dead(device.engine))
    with pytest.raises(EngineLost, match="device-side assert"):
        driver.call(NEG, [1], outputs=10)


def test_inputs_that_cannot_come_back_are_let_go_of_early(numpy_engine: Any) -> None:
    """A donated input that nothing replaces is gone from the store while the program runs."""
    held: list[int] = []

    class Looking(Faulty):
        def work(self) -> None:
            held.append(len(driver.core.sessions[1].store.entries))

    driver = loaded(Looking(numpy_engine))
    driver.call(step_program(), [1, 2], outputs=10)
    assert held
    assert set(held) == {1}


class Watched(Wrapped):
    """Notes the precisions that it is set to."""

    def __init__(self, engine: Any) -> None:
        super().__init__(engine)
        self.precisions: list[Precision] = []

    def set_precision(self, precision: Precision) -> None:
        self.precisions.append(precision)


def test_the_engine_is_set_when_a_call_has_another_precision_than_the_last(numpy_engine: Any) -> None:
    watched = Watched(numpy_engine)
    driver = loaded(watched)
    fast = structs.replace(NEG, precision=Precision("high", False))
    for i, program in enumerate((NEG, NEG, fast, fast, NEG)):
        assert types(driver.call(program, [1], outputs=10 + i)) == [msg.CallDone]
    assert watched.precisions == [NEG.precision, fast.precision, NEG.precision]


def test_torch_is_set(torch_engine: Any) -> None:
    import torch

    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    try:
        for word, tf32 in (("medium", False), ("high", True), ("highest", True)):
            torch_engine.set_precision(Precision(word, tf32))
            assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == (word, tf32)
            assert torch.backends.cuda.matmul.allow_tf32 == (word != "highest")
    finally:
        torch_engine.set_precision(Precision(*before))


def test_a_session_does_not_wait_for_what_others_have_on_the_device(numpy_engine: Any) -> None:
    """Streams overlap: a call may be done before an older one of another session."""

    over: set[int] = set()

    class Streams(Device):
        def passed(self, mark: int, wait: bool = False) -> bool:
            return mark in over

    device = Streams(numpy_engine)
    driver = loaded(device)
    other = driver.beside().holding(TWO)
    assert driver.call(NEG, [1], outputs=10) == []
    assert other.call(NEG, [1], outputs=10) == []
    over.add(2)  # the younger one
    (done,) = driver.work()
    assert done.session == other.session
