"""The same call again, before it is known whether the one before has failed: on a device, where indices are checked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gt import config
from gt.transport import messages as msg
from gt.worker.core import IN_FLIGHT
from tests.worker.pretend import Late
from tests.worker.worker_building import Builder
from tests.worker.worker_driver import Driver

TABLE, STATE, ZERO, GOOD, BAD, SAME = 1, 2, 3, 4, 5, 6  #: Tensors of the session. The last equals GOOD.
WARM = 20  #: Calls after which the program is replayed.


def gathering() -> Any:
    """(table, state, zero, index) -> state + 2 * table[index], the rows. Nothing is known of the index, which is a
    sum."""
    b = Builder((4, 2), (3, 2), (3,), (3,), kinds={2: "int64", 3: "int64"})
    rows = b.add("embedding", 0, b.add("add", 2, 3))
    back = b.add("neg", b.add("neg", rows))
    return b.program([b.add("add", b.add("add", 1, rows), back), back], donate=(1,), updates=((0, 1),))


PROGRAM = gathering()


class Loop(Driver):
    """Calls the program on what the call before left."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("SLOWER", "BUSY"):  # to play a replay takes longer than to run plain code
            monkeypatch.setattr(f"gt.worker.run.tiers.{name}", 1e9)
        self.device = Late()
        super().__init__(self.device, config.replace(config.load(), auto_compile=True))
        table = np.arange(8, dtype=np.float32).reshape(4, 2)
        indices = [np.array(index) for index in ((0, 1, 2), (0, 9, 2), (0, 1, 2))]
        self.holding(table, np.zeros((3, 2), np.float32), np.zeros(3, np.int64), *indices)
        self.gain = 2 * table[:3]  #: What a good call adds.
        self.state, self.next = STATE, 10
        self.define(PROGRAM)
        for k in range(WARM):  # the index is another array at times: so it is copied to where the graph reads it
            assert [type(m) for m in self.again(SAME if k % 3 else GOOD)] == [msg.CallDone]
        assert len(self.core.sessions[1].replays) == 1

    def again(self, index: int = GOOD, **more: Any) -> list[Any]:
        """One more call; what is reported until nothing more is."""
        answers = self.launch(index, **more)
        return answers + self.work()

    def launch(self, index: int = GOOD, **more: Any) -> list[Any]:
        """The same, but the host does not learn what the device has done."""
        message = self.call_message(PROGRAM, [TABLE, self.state, ZERO, index], self.next, **more)
        self.state, self.next = self.next, self.next + 2
        self.core.receive(message)
        return self.told()

    def work(self) -> list[Any]:
        """What is reported when the host has learned all that the device has done."""
        answers = self.told()
        while self.core.in_flight:
            self.device.done = self.device.marks
            answers += self.told()
        return answers

    def told(self) -> list[Any]:
        answers: list[Any] = []
        while (out := self.core.step()) is not None:
            answers += [m for m, _ in out]
            self.payloads = [bytes(p) for _, p in out if p is not None] or self.payloads
        return answers

    @property
    def pending(self) -> int:
        return len(self.core.sessions[1].flagged)


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    return Loop(monkeypatch)


def test_calls_do_not_wait_for_the_outcome_of_the_one_before(loop: Loop) -> None:
    before = loop.fetch(loop.state)
    assert [m for _ in range(IN_FLIGHT + 1) for m in loop.launch()] == []
    assert loop.pending == IN_FLIGHT
    done = loop.work()
    assert [type(m) for m in done] == [msg.CallDone] * (IN_FLIGHT + 1)
    assert loop.pending == 0
    np.testing.assert_allclose(loop.fetch(loop.state), before + (IN_FLIGHT + 1) * loop.gain)


def test_calls_that_continue_a_failed_one_fail_for_its_reason(loop: Loop) -> None:
    before = loop.fetch(loop.state)
    loop.launch()
    bad = loop.seq + 1
    for index in (BAD, GOOD, GOOD):
        loop.launch(index)
    assert loop.pending == 4
    first, *failed = loop.work()
    assert type(first) is msg.CallDone
    assert [(m.seq, m.root, m.error) for m in failed] == [(bad + k, bad, failed[0].error) for k in range(3)]
    assert failed[0].error.kind == "IndexOutOfRange"
    assert loop.fetch_error(loop.state + 1) == failed[0].error
    np.testing.assert_allclose(loop.fetch(loop.state), before + loop.gain)
    (late,) = loop.again()  # the client did not know of it
    assert (late.root, late.error) == (bad, failed[0].error)
    for _ in range(WARM):  # it is replayed again, and what failed is forgotten
        assert [type(m) for m in loop.again(acked=loop.seq)] == [msg.CallDone]
    np.testing.assert_allclose(loop.fetch(loop.state), before + (1 + WARM) * loop.gain)


def test_what_was_freed_meanwhile_stays_freed(loop: Loop) -> None:
    """A call frees the rows of the one before, of which nobody knows yet that it fails."""
    tensors = loop.tensors()
    loop.launch(BAD)
    rows = loop.state + 1
    loop.launch(frees=(rows,))
    assert [type(m) for m in loop.work()] == [msg.CallFailed] * 2
    assert loop.tensors() == tensors + 1  # the rows of the second
    assert rows not in loop.core.sessions[1].store.entries


@pytest.mark.parametrize("what", ["another program", "other arrays", "a fetch"])
def test_all_else_waits_for_the_outcome(loop: Loop, what: str) -> None:
    other = Builder((3, 2))
    program = other.program([other.add("neg", 0)])
    loop.define(program)
    loop.upload(7, np.ones((4, 2), np.float32))
    loop.launch(BAD)
    failed = loop.state
    if what == "another program":
        loop.receive(loop.call_message(program, [failed], 100))
    elif what == "other arrays":
        loop.receive(loop.call_message(PROGRAM, [7, failed, ZERO, GOOD], 100))
    else:
        loop.receive(loop.fetch_message(failed + 1))
    assert loop.told() == []
    assert loop.pending == 1
    first, second = loop.work()
    assert type(first) is msg.CallFailed
    assert type(second) is (msg.FetchFailed if what == "a fetch" else msg.CallFailed)
    assert second.error == first.error


def test_uploads_do_not_wait_for_an_outcome(loop: Loop) -> None:
    loop.launch()
    data = np.array([2, 2, 2]).tobytes()
    assert loop.core.receive(msg.Chunk(1, 8, 0, len(data), (3,), "int64"), data)
    loop.told()
    assert 8 in loop.core.sessions[1].store.entries
    loop.launch(8)  # the index of every call may be another array
    assert loop.pending == 2
    assert [type(m) for m in loop.work()] == [msg.CallDone] * 2


@pytest.mark.parametrize("pending", [0, 2])
def test_a_program_that_was_forgotten_and_comes_again_is_run_as_a_new_one(loop: Loop, pending: int) -> None:
    """Though the session has arrays and a graph of the old one."""
    before = loop.fetch(loop.state)
    for _ in range(pending):
        loop.launch()
    loop.core.receive(msg.Forget(PROGRAM.hash()))
    assert loop.told() == []
    loop.core.receive(msg.Define(PROGRAM))
    assert [type(m) for m in loop.again()] == [msg.CallDone] * (pending + 1)
    np.testing.assert_allclose(loop.fetch(loop.state), before + (pending + 1) * loop.gain)
