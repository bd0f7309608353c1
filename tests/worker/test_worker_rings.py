"""Rings on a worker: large tensors in and out of memory that a client shares."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from worker_building import Builder
from worker_driver import Driver

from gt.transport.messages import Cancel, Chunk, ChunkAck, CloseSession, Fetch, Share, Shared
from gt.transport.shared import PIECE, SLOTS, Ring, make_ring, nbytes_of

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
    assert made is not None
    given = {"fd": made.fd, "name": made.name, "pid": os.getpid(), **changes}
    assert driver.send(Share(driver.session, number, **given)) == [Shared(driver.session, number, not changes)]
    return made


def put(driver: Driver, ring: Ring, id: int, array: np.ndarray[Any, Any]) -> list[Any]:
    """Upload through the ring; the answers."""
    flat = array.reshape(-1).view(np.uint8)
    answers: list[Any] = []
    for k, offset in enumerate(range(0, array.nbytes, PIECE)):
        head = (array.shape, array.dtype.name) if offset == 0 else ()
        ring.put(k, flat[offset : offset + PIECE])
        assert driver.send(Chunk(driver.session, id, offset, array.nbytes, *head, slot=k)) == []
    while (out := driver.core.copy()) is not None:
        answers += [m for m, _ in out]
    driver.work()
    return answers


def get(driver: Driver, ring: Ring, id: int, slots: tuple[int, ...]) -> np.ndarray[Any, Any]:
    got = np.empty(0, np.uint8)
    came = driver.send(Fetch(driver.session, 9, id, ring.number, slots))
    total = came[0].total
    while came:
        more = []
        for chunk in came:
            assert chunk.slot in slots
            assert chunk.offset == len(got)
            got = np.concatenate([got, ring.slot(chunk.slot, nbytes_of(chunk))])
            if len(got) < total:
                more += driver.send(ChunkAck(driver.session, 9, False))
        came = more
    return got.view(np.float64)


def test_there_and_back(driver: Driver, ring: Ring) -> None:
    assert put(driver, ring, 1, DATA) == [ChunkAck(1, 1, True)] * 4
    for slots in ((5,), (7, 6), (1, 2, 3, 4, 5)):
        assert (get(driver, ring, 1, slots) == DATA).all()
    assert driver.core.sessions[1].sending == driver.core.sessions[1].fetches == {}


def test_what_is_being_sent_is_not_written_over(driver: Driver, ring: Ring) -> None:
    """A step that replaces a tensor comes while the old value is on its way."""
    b = Builder(DATA.shape, scalars="ff", kinds={0: "float64"})
    step = b.program([b.add("sgd", 0, 0, ~0, ~1)], donate=(0,), updates=((0, 0),))
    put(driver, ring, 1, DATA)
    first = driver.send(Fetch(1, 9, 1, 1, (0,)))
    driver.call(step, [1], 2, scalars=(2.0, 0.0))  # x - 2 x
    got = [ring.slot(0, nbytes_of(first[0])).copy()]
    for _ in range(3):
        (chunk,) = driver.send(ChunkAck(1, 9, False))
        got.append(ring.slot(0, nbytes_of(chunk)).copy())
    assert (np.concatenate(got).view(np.float64) == DATA).all()
    assert (get(driver, ring, 2, (0, 1)) == -DATA).all()


def test_a_ring_that_is_none_is_refused_and_bytes_go_as_ever(driver: Driver) -> None:
    ring = shared_with(driver, pid=1)
    driver.upload(1, DATA)
    chunks = driver.send(Fetch(1, 9, 1, ring.number, (0, 1)))
    assert [c.slot for c in chunks] == [-1] * 4


def test_slots_of_no_ring(driver: Driver) -> None:
    answers = driver.send(Chunk(1, 1, 0, 16, (2,), "float64", 0))
    assert answers == [ChunkAck(1, 1, True)]
    assert driver.fetch_error(1).kind == "ProgramError"


@pytest.mark.parametrize("slots", [(SLOTS,), (-1,), (0, 10**6)])
def test_slots_that_a_ring_does_not_have(driver: Driver, ring: Ring, slots: tuple[int, ...]) -> None:
    put(driver, ring, 1, DATA)
    chunks = driver.send(Fetch(1, 9, 1, 1, slots))
    assert {c.slot for c in chunks} == {-1}


def test_rings_are_counted(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gt.worker.core.RINGS", 1)
    shared_with(driver)
    shared_with(driver, 2)  # in place of the first
    made = make_ring(1)
    assert made is not None
    offer = Share(2, 1, made.fd, made.name, os.getpid())
    assert driver.send(offer) == [Shared(2, 1, False)]
    driver.send(CloseSession(1))
    assert driver.send(offer) == [Shared(2, 1, True)]


def test_the_end_of_a_session_in_the_middle(driver: Driver, ring: Ring) -> None:
    driver.send(Chunk(1, 1, 0, TOTAL, DATA.shape, "float64", 0))
    driver.send(CloseSession(1))
    assert driver.core.copy() is not None
    assert driver.work() == []
    assert driver.core.sessions == {}


def test_a_new_ring_does_not_disturb_what_is_under_way_in_the_old(driver: Driver, ring: Ring) -> None:
    ring.put(0, DATA.view(np.uint8)[:800])
    driver.send(Chunk(1, 1, 0, 800, (100,), "float64", 0))
    new = shared_with(driver, 2)
    new.put(0, np.zeros(800, np.uint8))
    driver.core.copy()
    driver.work()
    assert (driver.fetch(1) == DATA[:100]).all()


def test_a_fetch_that_is_cancelled(driver: Driver, ring: Ring) -> None:
    put(driver, ring, 1, DATA)
    driver.send(Fetch(1, 9, 1, 1, (0,)))
    driver.send(Cancel(1, 9))
    assert driver.send(ChunkAck(1, 9, False)) == []
    assert (get(driver, ring, 1, (0, 1)) == DATA).all()
