"""Rings on a worker: large tensors in and out of memory that a client shares."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from worker_building import Builder
from worker_driver import Driver

from gt.transport import messages as msg
from gt.transport.shared import BOXES, PIECE, SLOTS, SMALL, Ring, make_ring, nbytes_of

TOTAL = 3 * PIECE + 800
DATA = np.random.default_rng(0).normal(size=TOTAL // 8)


@pytest.fixture
def driver(engine: Any) -> Driver:
    return Driver(engine)


@pytest.fixture
def ring(driver: Driver) -> Ring:
    return shared_with(driver)


def shared_with(driver: Driver, number: int = 1, **changes: Any) -> Ring:
    made = make_ring(number)
    given = {"fd": made.fd, "name": made.name, "pid": os.getpid(), **changes}
    assert driver.send(msg.Share(driver.session, number, **given)) == [msg.Shared(driver.session, number, not changes)]
    return made


def put(driver: Driver, ring: Ring, id: int, array: np.ndarray[Any, Any]) -> list[Any]:
    """Upload through the ring; the answers."""
    flat = array.reshape(-1).view(np.uint8)
    answers: list[Any] = []
    for k, offset in enumerate(range(0, array.nbytes, PIECE)):
        head = (array.shape, array.dtype.name) if offset == 0 else ()
        ring.put(k, flat[offset : offset + PIECE])
        assert driver.send(msg.Chunk(driver.session, id, offset, array.nbytes, *head, slot=k)) == []
    while (out := driver.core.copy()) is not None:
        answers += [m for m, _ in out]
    driver.work()
    return answers


def get(driver: Driver, ring: Ring, id: int, slots: tuple[int, ...]) -> np.ndarray[Any, Any]:
    got = np.empty(0, np.uint8)
    came = driver.send(msg.Fetch(driver.session, 9, id, ring.number, slots))
    total = came[0].total
    while came:
        more = []
        for chunk in came:
            assert chunk.slot in slots
            assert chunk.offset == len(got)
            got = np.concatenate([got, ring.slot(chunk.slot, nbytes_of(chunk))])
            if len(got) < total:
                more += driver.send(msg.ChunkAck(driver.session, 9, False))
        came = more
    return got.view(np.float64)


def test_there_and_back(driver: Driver, ring: Ring) -> None:
    assert put(driver, ring, 1, DATA) == [msg.ChunkAck(1, 1, True)] * 4
    for slots in ((5,), (7, 6), (1, 2, 3, 4, 5)):
        assert (get(driver, ring, 1, slots) == DATA).all()
    assert driver.core.sessions[1].sending == driver.core.sessions[1].fetches == {}


def test_what_is_being_sent_is_not_written_over(driver: Driver, ring: Ring) -> None:
    """A step that replaces a tensor comes while the old value is on its way."""
    b = Builder(DATA.shape, scalars="ff", kinds={0: "float64"})
    step = b.program([b.add("sgd", 0, 0, ~0, ~1)], donate=(0,), updates=((0, 0),))
    put(driver, ring, 1, DATA)
    first = driver.send(msg.Fetch(1, 9, 1, 1, (0,)))
    driver.call(step, [1], 2, scalars=(2.0, 0.0))  # x - 2 x
    got = [ring.slot(0, nbytes_of(first[0])).copy()]
    for _ in range(3):
        (chunk,) = driver.send(msg.ChunkAck(1, 9, False))
        got.append(ring.slot(0, nbytes_of(chunk)).copy())
    assert (np.concatenate(got).view(np.float64) == DATA).all()
    assert (get(driver, ring, 2, (0, 1)) == -DATA).all()


def test_a_ring_that_is_none_is_refused_and_bytes_go_as_ever(driver: Driver) -> None:
    ring = shared_with(driver, pid=1)
    driver.upload(1, DATA)
    chunks = driver.send(msg.Fetch(1, 9, 1, ring.number, (0, 1)))
    assert [c.slot for c in chunks] == [-1] * 4


def test_slots_of_no_ring(driver: Driver) -> None:
    answers = driver.send(msg.Chunk(1, 1, 0, 16, (2,), "float64", 0))
    assert answers == [msg.ChunkAck(1, 1, True)]
    assert driver.fetch_error(1).kind == "ProgramError"


@pytest.mark.parametrize("slots", [(SLOTS,), (-1,), (0, 10**6)])
def test_slots_that_a_ring_does_not_have(driver: Driver, ring: Ring, slots: tuple[int, ...]) -> None:
    put(driver, ring, 1, DATA)
    chunks = driver.send(msg.Fetch(1, 9, 1, 1, slots))
    assert {c.slot for c in chunks} == {-1}


def test_rings_are_counted(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gt.worker.uploads.RINGS", 1)
    shared_with(driver)
    shared_with(driver, 2)  # in place of the first
    made = make_ring(1)
    offer = msg.Share(2, 1, made.fd, made.name, os.getpid())
    assert driver.send(offer) == [msg.Shared(2, 1, False)]
    driver.send(msg.CloseSession(1))
    assert driver.send(offer) == [msg.Shared(2, 1, True)]


def test_the_end_of_a_session_in_the_middle(driver: Driver, ring: Ring) -> None:
    driver.send(msg.Chunk(1, 1, 0, TOTAL, DATA.shape, "float64", 0))
    driver.send(msg.CloseSession(1))
    assert driver.core.copy() is not None
    assert driver.work() == []
    assert driver.core.sessions == {}


def test_a_new_ring_does_not_disturb_what_is_under_way_in_the_old(driver: Driver, ring: Ring) -> None:
    ring.put(0, DATA.view(np.uint8)[:800])
    driver.send(msg.Chunk(1, 1, 0, 800, (100,), "float64", 0))
    new = shared_with(driver, 2)
    new.put(0, np.zeros(800, np.uint8))
    driver.core.copy()
    driver.work()
    assert (driver.fetch(1) == DATA[:100]).all()


def test_a_fetch_that_is_cancelled(driver: Driver, ring: Ring) -> None:
    put(driver, ring, 1, DATA)
    driver.send(msg.Fetch(1, 9, 1, 1, (0,)))
    driver.send(msg.Cancel(1, 9))
    assert driver.send(msg.ChunkAck(1, 9, False)) == []
    assert (get(driver, ring, 1, (0, 1)) == DATA).all()


# --- mailboxes ---------------------------------------------------------------------------------


def ask(driver: Driver, ring: Ring, id: int, request: int, box: int = SLOTS) -> list[Any]:
    if SLOTS <= box < SLOTS + BOXES:
        ring.clear(box)
    return driver.send(msg.Fetch(1, request, id, ring.number, (box,)))


def in_box(ring: Ring, request: int, nbytes: int, box: int = SLOTS) -> list[float] | None:
    got = ring.answer(box, request, nbytes)
    return None if got is None else got.view(np.float64).tolist()


def test_a_small_answer_is_in_its_mailbox_and_is_sent(driver: Driver, ring: Ring) -> None:
    for request, data in enumerate((DATA[:3], DATA[: SMALL // 8], DATA[:0]), 1):
        driver.upload(request, data)
        assert ask(driver, ring, request, request) == [msg.Chunk(1, request, 0, data.nbytes, data.shape, "float64")]
        assert driver.payloads == [data.tobytes()]
        assert in_box(ring, request, data.nbytes) == data.tolist()
    assert driver.core.sessions[1].sending == driver.core.sessions[1].fetches == {}


def test_an_answer_that_does_not_fit_is_only_sent(driver: Driver, ring: Ring) -> None:
    driver.upload(1, DATA[: SMALL // 8 + 1])
    (chunk,) = ask(driver, ring, 1, 1)
    assert (chunk.slot, chunk.total) == (-1, SMALL + 8)
    assert not ring._bytes.any()


@pytest.mark.parametrize("slots", [(SLOTS + BOXES,), (10**6,), (SLOTS, SLOTS), (0, SLOTS), (-1,)])
def test_mailboxes_that_a_ring_does_not_have(driver: Driver, ring: Ring, slots: tuple[int, ...]) -> None:
    driver.upload(1, DATA[:3])
    for request in (1, -1, 2**63):
        (chunk,) = driver.send(msg.Fetch(1, request, 1, 1, slots))
        assert chunk.slot == -1
    assert driver.send(msg.Fetch(1, 9, 1, 2, (SLOTS,)))[0].slot == -1  # of another ring
    assert not ring._bytes.any()


def test_what_fails_is_in_no_mailbox(driver: Driver, ring: Ring) -> None:
    driver.upload(1, DATA[:3])
    assert ask(driver, ring, 77, 1)[0].error.kind == "ProgramError"
    driver.receive(msg.Fetch(1, 2, 1, 1, (SLOTS,)), msg.Cancel(1, 2))
    assert driver.work() == []
    assert not ring._bytes.any()


def test_a_failure_that_the_client_does_not_know_of_comes_first(driver: Driver, ring: Ring) -> None:
    """What is in a mailbox would overtake it; the client raises it at this very fetch."""
    b = Builder((3,), (3,), kinds={0: "float64", 1: "int64"})
    pick = b.program([b.add("gather", 0, 1, dim=0)])
    driver.holding(DATA[:3], np.array([0, 1, 7]), np.array([2, 1, 0]))
    ask(driver, ring, 1, 1)
    assert in_box(ring, 1, 24) == DATA[:3].tolist()

    assert [type(m) for m in driver.call(pick, [1, 2], 10)] == [msg.CallFailed]
    ask(driver, ring, 1, 2)
    assert in_box(ring, 2, 24) is None
    assert [type(m) for m in driver.call(pick, [1, 3], 11)] == [msg.CallDone]  # sent before that was known
    ask(driver, ring, 11, 3)
    assert in_box(ring, 3, 24) is None
    assert driver.payloads == [DATA[2::-1].tobytes()]

    driver.call(pick, [1, 3], 12, acked=1)
    ask(driver, ring, 12, 4)
    assert in_box(ring, 4, 24) == DATA[2::-1].tolist()
