"""Uploads into pinned memory, with a torch that plays the device: its copies are done when a test says so."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from worker_building import Wrapped
from worker_driver import Driver

from gt.transport.messages import CHUNK, Chunk, CloseSession
from gt.worker.engines import pinned as pinning
from gt.worker.engines.pinned import Pinned


class Event:
    """Passes when the test lets the device work."""

    def __init__(self, device: FakeTorch) -> None:
        self.device = device
        self.passed = False

    def record(self) -> None:
        self.device.events.append(self)

    def query(self) -> bool:
        return self.passed


class FakeTorch:
    """What Pinned asks of torch: memory that counts as pinned, and events."""

    uint8 = torch.uint8

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.addresses: set[int] = set()
        self.full = False
        self.cuda = SimpleNamespace(Event=lambda: Event(self))

    def empty(self, nbytes: int, dtype: Any, pin_memory: bool) -> Any:
        assert pin_memory
        if self.full:
            raise RuntimeError("CUDA error: out of memory")
        made = torch.empty(nbytes, dtype=dtype)
        self.addresses.add(made.data_ptr())
        return made

    def work(self) -> None:
        for event in self.events:
            event.passed = True


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTorch]:
    fake = FakeTorch()
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda t: t.data_ptr() in fake.addresses)
    monkeypatch.setattr(pinning, "LARGEST", 1000)
    monkeypatch.setattr(pinning, "LIMIT", 1500)
    return fake


@pytest.fixture
def pool(device: FakeTorch) -> Pinned:
    return Pinned(device)


def held(pool: Pinned) -> int:
    gc.collect()
    return pool.lent


def test_it_is_bounded_and_what_is_let_go_of_counts_no_more(pool: Pinned) -> None:
    assert pool.buffer(0) is None
    assert pool.buffer(1001) is None
    first, second = pool.buffer(1000), pool.buffer(500)
    assert second is not None
    assert (first.dtype, first.shape, first.flags.writeable) == (np.uint8, (1000,), True)
    assert pool.buffer(1) is None
    view = memoryview(first)[10:]
    del first
    assert held(pool) == 1500
    assert pool.buffer(1) is None
    del view
    assert held(pool) == 500
    assert pool.buffer(1000) is not None


def test_where_the_system_allows_no_more_there_is_none(pool: Pinned, device: FakeTorch) -> None:
    device.full = True
    assert pool.buffer(10) is None
    assert held(pool) == 0


def test_a_buffer_is_held_until_the_device_has_read_it(pool: Pinned, device: FakeTorch) -> None:
    array = pool.buffer(8)
    array[:] = range(8)
    gone = weakref.ref(array)
    made = pool.copy(torch.from_numpy(array), "cpu")
    assert made.tolist() == list(range(8))
    del array, made
    pool.look()
    gc.collect()
    assert gone() is not None
    assert held(pool) == 8
    device.work()
    pool.look()
    assert held(pool) == 0
    assert gone() is None


def test_ordinary_memory_is_copied_at_once(pool: Pinned, device: FakeTorch) -> None:
    assert pool.copy(torch.ones(3), "cpu").tolist() == [1.0, 1.0, 1.0]
    assert device.events == []


class Pinning(Wrapped):
    """torch's engine with such a device; its arrays are copies."""

    def __init__(self, engine: Any, pool: Pinned) -> None:
        super().__init__(engine)
        engine._pinned = pool
        pool_copy = pool.copy
        pool.copy = lambda host, device: pool_copy(host, device).clone()  # type: ignore[method-assign]


@pytest.fixture
def driver(torch_engine: Any, pool: Pinned) -> Driver:
    return Driver(Pinning(torch_engine, pool))


def test_uploads_come_into_it_and_are_what_was_sent(driver: Driver, pool: Pinned, device: FakeTorch) -> None:
    small, large = np.arange(200, dtype=np.float32), np.arange(CHUNK // 4 + 7, dtype=np.float32)
    driver.holding(small, large, np.zeros((0, 3), np.float32))  # the second is too large for it
    assert len(device.events) == 1
    assert held(pool) == small.nbytes
    assert np.array_equal(driver.fetch(1), small)
    assert np.array_equal(driver.fetch(2), large)
    assert driver.fetch(3).shape == (0, 3)
    device.work()
    driver.upload(4, small[:10])
    assert held(pool) == 40


def test_an_upload_that_never_ends_gives_its_memory_back(driver: Driver, pool: Pinned) -> None:
    driver.send(Chunk(1, 5, 0, 800, (200,), "float32"), bytes(100))
    assert held(pool) == 800
    driver.send(CloseSession(1))
    assert held(pool) == 0


def test_a_broken_upload_gives_its_memory_back(driver: Driver, pool: Pinned) -> None:
    driver.send(Chunk(1, 5, 0, 800, (200,), "float32"), bytes(100))
    driver.send(Chunk(1, 5, 300, 800), bytes(100))
    assert "chunk of 100 bytes at 300" in driver.fetch_error(5).text
    assert held(pool) == 0
