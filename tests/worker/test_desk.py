"""Short work beside a long call: another thread does it while the runner computes, and nothing is overtaken."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
import pytest
from worker_building import Device, Kernels, unary
from worker_driver import Driver

from gt.program import Precision
from gt.tracing import Recording, now_ns, unpack_steps
from gt.transport import messages as msg

ONE = np.full(4, 1, np.float32)
LONG, NEG = unary("exp"), unary("neg")
PATIENCE_S = 60.0  #: A test that waits longer has failed.


class Held(Kernels):
    """An engine whose exp takes as long as the test wants."""

    def __init__(self, engine: Any) -> None:
        super().__init__(engine)
        self.begun, self.may_end = threading.Event(), threading.Event()

    def run(self, kernel: Any, op: Any, inplace: bool, *args: Any) -> Any:
        if op.name == "exp":
            self.begun.set()
            assert self.may_end.wait(PATIENCE_S)
        return kernel(*args)


@pytest.fixture
def long(engine: Any) -> Iterator[Driver]:
    if engine.deferred:
        pytest.skip("a device runs programs beside each other by itself")
    driver = Driver(Held(engine)).holding(ONE)
    driver.define(LONG, NEG)
    yield driver
    driver.core.engine.may_end.set()


@contextmanager
def computing(driver: Driver, outputs: int = 10) -> Iterator[list[Any]]:
    """While this lasts, the runner computes a long call; then what it sent is in the list."""
    sent: list[Any] = []
    core = driver.core
    core.receive(driver.call_message(LONG, [1], outputs))
    runner = threading.Thread(target=lambda: sent.extend(core.step() or []), daemon=True)
    runner.start()
    assert core.engine.begun.wait(PATIENCE_S)
    yield sent
    core.engine.may_end.set()
    runner.join(PATIENCE_S)
    assert not runner.is_alive()


def beside(driver: Driver) -> list[Any]:
    """All that another thread can do now."""
    done = []
    while (out := driver.core.step(beside=True)) is not None:
        done += out
    return [m for m, _ in done]


def short_call(driver: Driver, inputs: list[int], outputs: int, what: Any = NEG) -> msg.Call:
    return msgspec.structs.replace(driver.call_message(what, inputs, outputs), beside=True)


def kinds(messages: list[Any]) -> list[str]:
    return [type(m).__name__ for m in messages]


def test_a_short_call_ends_before_the_long_one_that_runs(long: Driver) -> None:
    light = long.beside()
    with computing(long) as sent:
        light.core.receive(msg.Chunk(2, 1, 0, 16, (4,), "float32"), ONE.tobytes())
        light.receive(short_call(light, [1], 5), light.fetch_message(5))
        assert kinds(beside(light)) == ["CallDone", "Chunk"]
        assert not sent
        light.core.receive(msg.Free(2, msg.pack_ids([5])))
        assert beside(light) == []
        assert list(light.core.sessions[2].store.entries) == [1]
    assert kinds([m for m, _ in sent]) == ["CallDone"]
    np.testing.assert_allclose(long.fetch(10), np.exp(ONE), rtol=1e-6)
    assert (long.stats()["beside"], long.stats()["calls"]) == (1, 2)


def test_who_does_short_work_is_called_for_a_call_of_which_nothing_is_known(long: Driver) -> None:
    with computing(long):
        assert long.core.desk.long
    known = next(each for each in long.core.programs if each.hits)
    known.run_us = 10  # now it is known: nobody has to be woken for it
    long.core.engine.begun.clear()
    with computing(long, 11):
        assert not long.core.desk.long


def test_other_calls_wait_for_the_runner(long: Driver) -> None:
    bulk = long.beside()
    with computing(long):
        bulk.core.receive(msg.Chunk(2, 1, 0, 16, (4,), "float32"), ONE.tobytes())
        bulk.receive(bulk.call_message(NEG, [1], 5), short_call(bulk, [5], 6))  # the second is behind a long one
        assert beside(bulk) == []
    assert kinds(bulk.work()) == ["CallDone", "CallDone"]
    np.testing.assert_array_equal(bulk.fetch(6), ONE)


def test_a_session_does_not_overtake_its_own_long_call(long: Driver) -> None:
    with computing(long):
        long.receive(short_call(long, [10], 11), long.fetch_message(11), msg.Free(1, msg.pack_ids([10])))
        assert beside(long) == []
    assert kinds(long.work()) == ["CallDone", "Chunk"]
    assert set(long.core.sessions[1].store.entries) == {1, 11}


def test_a_value_that_exists_is_read_while_its_session_computes(long: Driver) -> None:
    with computing(long) as sent:
        long.receive(long.fetch_message(10), long.fetch_message(1))  # what is being made, and what is there
        (chunk,) = beside(long)
        assert (type(chunk), chunk.key) == (msg.Chunk, 2)
    assert kinds([m for m, _ in sent]) == ["CallDone", "Chunk"]


def test_a_call_that_fails_beside_another_is_told_at_once(long: Driver) -> None:
    light = long.beside()
    with computing(long) as sent:
        light.core.receive(short_call(light, [77], 5))
        (failed,) = beside(light)
        assert (type(failed), failed.error.kind) == (msg.CallFailed, "ProgramError")
    assert kinds([m for m, _ in sent]) == ["CallDone"]


def test_how_exactly_the_runner_computes_is_not_changed(long: Driver) -> None:
    light = long.beside().holding(ONE)
    rough = msgspec.structs.replace(NEG, precision=Precision("medium"))
    assert rough.precision != LONG.precision
    light.define(rough)
    with computing(long):
        light.core.receive(short_call(light, [1], 5, rough))
        assert beside(light) == []
    assert kinds(light.work()) == ["CallDone"]


def test_a_session_may_end_while_it_computes(long: Driver) -> None:
    with computing(long) as sent:
        long.core.receive(msg.CloseSession(1))
        assert beside(long) == []
    assert sent == []
    assert 1 not in long.core.sessions


def test_a_session_that_ended_leaves_nothing_to_do(long: Driver) -> None:
    light = long.beside()
    with computing(long):
        light.receive(short_call(light, [1], 5), msg.CloseSession(2))
        assert beside(light) == []
        assert not light.core.has_short


def test_a_device_is_used_by_one_thread_alone(numpy_engine: Any) -> None:
    driver = Driver(Device(numpy_engine)).holding(ONE)
    driver.define(NEG)
    driver.core.receive(short_call(driver, [1], 5))
    assert not driver.core.has_short
    assert not driver.core.desk.shared


def test_short_work_goes_before_the_queue(long: Driver) -> None:
    bulk, light = long.beside().holding(ONE), long.beside().beside().holding(ONE)
    light.receive(bulk.call_message(NEG, [1], 5), short_call(light, [1], 5))
    assert [m.session for m in light.work()] == [3, 2]


def test_a_program_whose_text_comes_late_keeps_the_order(long: Driver) -> None:
    light = long.beside().holding(ONE)
    late = unary("sqrt")
    with computing(long):
        light.core.receive(short_call(light, [1], 5, late))
        assert kinds(beside(light)) == ["Need"]
        light.receive(short_call(light, [5], 6), msg.Define(late))
        beside(light)
        light.core.receive(short_call(light, [6], 7))
        beside(light)
    light.work()
    np.testing.assert_array_equal(light.fetch(7), ONE)


def test_instructions_of_two_threads_are_told_apart() -> None:
    recording = Recording()
    recording.mark(1)
    other = threading.Thread(target=recording.mark, args=(7,))
    other.start()
    other.join()
    assert np.frombuffer(recording.take_steps(0), np.int64)[::2].tolist() == [1]
    assert recording.take_steps(0) == b""


def test_instructions_of_an_earlier_call_are_left_out() -> None:
    recording = Recording()
    recording.mark(1)
    recording.mark(2)
    start_ns = now_ns() + 1
    while now_ns() < start_ns:
        pass
    recording.mark(3)
    recording.mark(4)
    end_ns = now_ns()
    steps = unpack_steps(recording.take_steps(start_ns))
    assert [i for i, _ in steps] == [3, 4]
    assert 0 <= steps[0][1] <= steps[1][1] <= end_ns - start_ns
