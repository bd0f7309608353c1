"""Copies of tensors for another session: memory of its own, all of them or none, and nobody waits long for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from worker_building import unary
from worker_driver import Driver

from gt.transport import messages as msg
from gt.worker.run import copies

ONE, TWO = np.full(4, 1, np.float32), np.full(4, 2, np.float32)
NEG = unary("neg")


def copy(source: Driver, target: Driver, ids: list[int], first: int, request: int = 5) -> msg.Copy:
    return msg.Copy(target.session, request, source.session, msg.pack_ids(ids), first)


def held(driver: Driver) -> list[int]:
    session = driver.core.sessions.get(driver.session)
    return sorted(session.store.entries) if session is not None else []


@pytest.fixture
def pair(numpy_engine: Any) -> tuple[Driver, Driver]:
    """A session with two tensors, and one with none."""
    source = Driver(numpy_engine).holding(ONE, TWO)
    return source, source.beside()


def test_a_copy_has_memory_of_its_own(engine: Any) -> None:
    source = Driver(engine).holding(ONE, TWO)
    target = source.beside()
    assert source.send(copy(source, target, [2, 1], 10)) == [msg.Copied(5)]
    mine, others = (source.core.sessions[n].store.entries for n in (1, 2))
    for ours, theirs in ((mine[2].array, others[10].array), (mine[1].array, others[11].array)):
        assert ours is not theirs
        ours += 7  # whatever writes to one of them
    np.testing.assert_array_equal(target.fetch(10), TWO)
    np.testing.assert_array_equal(target.fetch(11), ONE)
    source.send(msg.CloseSession(source.session))
    target.define(NEG)
    target.call(NEG, [10], 20)
    np.testing.assert_array_equal(target.fetch(20), -TWO)


def test_it_comes_after_what_was_sent_before(pair: tuple[Driver, Driver]) -> None:
    source, target = pair
    source.define(NEG)
    free = msg.Free(source.session, msg.pack_ids([10]))
    source.receive(source.call_message(NEG, [1], 10), copy(source, target, [10], 30), free)
    assert [type(m) for m in source.work()] == [msg.CallDone, msg.Copied]
    np.testing.assert_array_equal(target.fetch(30), -ONE)


def test_others_have_their_turn_in_between(pair: tuple[Driver, Driver], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is copied may be freed meanwhile."""
    monkeypatch.setattr(copies, "PIECE_NBYTES", 1)
    source, target = pair
    other = target.beside().holding(ONE)
    other.define(NEG)
    free = msg.Free(source.session, msg.pack_ids([1, 2]))
    source.receive(copy(source, target, [1, 2], 10), free, other.call_message(NEG, [1], 2))
    assert [type(m) for m in source.work()] == [msg.CallDone, msg.Copied]
    assert held(source) == []
    np.testing.assert_array_equal(target.fetch(11), TWO)


def test_copies_may_be_freed_before_they_are_there(
    pair: tuple[Driver, Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker of both sessions was lost: the dispatcher gives up copies that this worker still makes."""
    monkeypatch.setattr(copies, "PIECE_NBYTES", 1)
    source, target = pair
    source.core.receive(copy(source, target, [1, 2], 10))
    source.core.step()  # the first of them
    source.receive(msg.Free(target.session, msg.pack_ids([11])))
    assert source.work() == [msg.Copied(5)]
    assert held(target) == [10]
    assert source.core.sessions[target.session].copying == []


@pytest.mark.parametrize("closed", ["source", "target"])
def test_a_session_that_closes(pair: tuple[Driver, Driver], closed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "PIECE_NBYTES", 1)
    source, target = pair
    source.core.receive(copy(source, target, [1, 2], 10))
    source.core.step()  # the first of them
    source.core.receive(msg.CloseSession((source if closed == "source" else target).session))
    assert source.work() == []
    assert held(target) == []
    source.receive(msg.CloseSession(source.session), msg.CloseSession(target.session))
    assert not source.core.sessions


def test_all_or_none(pair: tuple[Driver, Driver], monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = pair
    own, left = source.core.engine.own, [True]

    def scarce(array: Any) -> Any:
        if not left:
            raise MemoryError("no room")
        left.pop()
        return own(array)

    monkeypatch.setattr(source.core.engine, "own", scarce)
    assert source.send(copy(source, target, [1, 2], 10)) == [msg.Copied(5, msg.Failure("OutOfMemory", "no room"))]
    assert held(target) == []
    np.testing.assert_array_equal(source.fetch(1), ONE)


def test_what_could_not_be_made_cannot_be_copied(pair: tuple[Driver, Driver]) -> None:
    source, target = pair
    source.core.sessions[1].store.poison(3, source.entry(1).spec, msg.Failure("X", "no"), 0)
    assert source.send(copy(source, target, [1, 3], 10)) == [msg.Copied(5, msg.Failure("X", "no"))]
    assert held(target) == []
    assert source.send(copy(source, target, [1, 99], 10)) == [msg.Copied(5)]  # others hold all of 99
    assert held(target) == [10]


def test_nothing_is_copied_where_only_is_asked_what_is_there(pair: tuple[Driver, Driver]) -> None:
    source, target = pair
    assert source.send(copy(source, source, [1, 2], 0)) == [msg.Copied(5)]
    assert held(source) == [1, 2]
    missing = msg.Failure("LostError", "tensor 9 is not there")
    assert source.send(copy(source, source, [1, 9], 0)) == [msg.Copied(5, missing)]
    source.core.sessions[1].store.poison(3, source.entry(1).spec, msg.Failure("X", "no"), 0)
    assert source.send(copy(source, source, [3], 0)) == [msg.Copied(5, msg.Failure("X", "no"))]
    assert held(target) == []
