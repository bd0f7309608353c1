"""Tensors leave the device and come back: values, calls, fetches and uploads meanwhile, full disks, ends."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from worker_building import Builder, Device, unary
from worker_driver import Driver

from gt import config
from gt.transport import messages as msg
from gt.worker.run import outside
from gt.worker.run.outside import File, Outside
from tests.sessions import raising

NEG = unary("neg", (1000,))
X = np.arange(1000, dtype=np.float32)


def step_program() -> Any:
    b = Builder((1000,), (1000,), scalars="ff")
    return b.program([b.add("sgd", 0, 1, ~0, ~1)], donate=(0,), updates=((0, 0),))


STEP = step_program()


def settings(folder: Path, memory: int) -> config.Config:
    return config.replace(config.load(), spill_memory=memory, spill_dir=str(folder), auto_compile=False)


def holding(engine: Any, folder: Path, memory: int) -> Driver:
    """A session with X as tensor 1, on a worker with so much host memory for what leaves the device."""
    made = Driver(engine, settings(folder, memory)).holding(X)
    made.define(NEG, STEP)
    return made


@pytest.fixture(params=["memory", "disk"])
def driver(request: pytest.FixtureRequest, engine: Any, tmp_path: Path) -> Driver:
    return holding(engine, tmp_path, 1 << 20 if request.param == "memory" else 0)


def moved(driver: Driver, message: Any) -> list[Any]:
    """Tell a worker to move tensors, and let it do so; its answers."""
    assert driver.send(message) == []
    return moving(driver)


def moving(driver: Driver) -> list[Any]:
    answers = []
    while (out := driver.core.move()) is not None:
        answers += [m for m, _ in out]
    return answers


def spill(driver: Driver, *ids: int) -> list[int]:
    """Move tensors out; those that stay."""
    packed = msg.pack_ids(ids)
    (answer,) = moved(driver, msg.Spill(driver.session, packed))
    assert (type(answer), answer.session, answer.ids) == (msg.Spilled, driver.session, packed)
    return msg.unpack_ids(answer.kept)


def bring_back(driver: Driver, *ids: int) -> None:
    packed = msg.pack_ids(ids)
    assert moved(driver, msg.Return(driver.session, packed)) == [msg.Returned(driver.session, packed)]


def spilled_nbytes(driver: Driver) -> int:
    stats = driver.stats()
    own = stats["sessions"][str(driver.session)]
    assert own["spilled"] == stats["spilled_memory"] + stats["spilled_disk"]
    return int(own["spilled"])


def test_a_tensor_leaves_and_comes_back(driver: Driver) -> None:
    assert spill(driver, 1) == []
    assert driver.entry(1).array is None
    assert spilled_nbytes(driver) == driver.stats()["moved_out"] == X.nbytes
    assert driver.stats()["sessions"]["1"]["nbytes"] == X.nbytes  # it still holds it
    bring_back(driver, 1)
    assert spilled_nbytes(driver) == 0
    assert driver.stats()["moved_in"] == X.nbytes
    driver.call(NEG, [1], 10)
    assert np.array_equal(driver.fetch(10), -X)
    assert np.array_equal(driver.fetch(1), X)


def test_twice_and_with_what_was_made_in_between(driver: Driver) -> None:
    for k in range(3):
        driver.call(STEP, [1 + k, 1 + k], 2 + k, scalars=(0.5, 0.0))
        assert spill(driver, 2 + k) == []
        bring_back(driver, 2 + k)
    assert np.array_equal(driver.fetch(4), X / 8)


def test_a_fetch_needs_no_room_on_the_device(driver: Driver) -> None:
    spill(driver, 1)
    assert np.array_equal(driver.fetch(1), X)
    assert driver.entry(1).array is None


def test_a_waiting_fetch_is_served_though_its_tensor_has_left(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gt.worker.fetches.SENDING_NBYTES", 1)
    monkeypatch.setattr("gt.worker.fetches.CHUNK", 100)
    monkeypatch.setattr("gt.transport.chunks.CHUNK", 100)
    driver.receive(driver.fetch_message(1), driver.fetch_message(1))
    data = {1: b"", 2: b""}
    sent = [*driver.work()]
    payloads = list(driver.payloads)
    assert spill(driver, 1) == []
    while sent:
        (chunk, *sent), (piece, *payloads) = sent, payloads
        data[chunk.key] += piece
        out = driver.core.receive(msg.ChunkAck(driver.session, chunk.key, False))
        sent += [m for m, _ in out]
        payloads += [bytes(p) for _, p in out if p is not None]
        sent += driver.work()
        payloads += driver.payloads
    assert data == {1: X.tobytes(), 2: X.tobytes()}


def test_a_call_brings_back_what_it_uses_if_nobody_else_has(driver: Driver) -> None:
    spill(driver, 1)
    driver.call(NEG, [1], 10)
    assert np.array_equal(driver.fetch(10), -X)
    assert driver.entry(1).array is not None


def test_what_a_call_uses_on_its_way_out_stays(driver: Driver) -> None:
    driver.upload(2, X + 1)
    assert driver.send(msg.Spill(driver.session, msg.pack_ids([1, 2]))) == []
    driver.call(STEP, [1, 1], 3, scalars=(0.5, 0.0))
    (answer,) = moving(driver)
    assert (msg.unpack_ids(answer.kept), answer.why) == ([1], "")
    assert np.array_equal(driver.fetch(3), X / 2)
    assert np.array_equal(driver.fetch(2), X + 1)


def test_the_old_value_of_a_failed_call_may_be_away(driver: Driver) -> None:
    spill(driver, 1)
    refused = msg.Failure("OutOfMemory", "no room")
    (failed,) = driver.call(STEP, [1, 1], 5, scalars=(0.5, 0.0), refused=refused)
    assert failed.error == refused
    assert driver.entry(5).array is None
    assert np.array_equal(driver.fetch(5), X)
    bring_back(driver, 5)
    driver.call(NEG, [5], 6, acked=driver.seq)
    assert np.array_equal(driver.fetch(6), -X)


def test_two_tensors_on_one_array(driver: Driver) -> None:
    """A failed call leaves two ids with one array. Each comes back as an array of its own."""
    keeps = msg.Failure("OutOfMemory", "no room")
    b = Builder((1000,), (1000,), scalars="ff")
    both = b.program([b.add("sgd", 0, 1, ~0, ~1)], updates=((0, 0),))  # the input is not donated
    driver.call(both, [1, 1], 5, scalars=(0.5, 0.0), refused=keeps)
    assert driver.entry(1).array is driver.entry(5).array
    assert spill(driver, 1, 5) == []
    bring_back(driver, 1, 5)
    driver.call(STEP, [1, 1], 7, scalars=(0.5, 0.0), acked=driver.seq)
    assert np.array_equal(driver.fetch(7), X / 2)
    assert np.array_equal(driver.fetch(5), X)


def test_an_upload_that_is_to_stay_outside(driver: Driver) -> None:
    assert moved(driver, msg.Spill(driver.session, msg.pack_ids([7])))[0].kept == b""
    driver.upload(7, X + 7)
    moving(driver)
    assert driver.entry(7).array is None
    assert np.array_equal(driver.fetch(7), X + 7)
    bring_back(driver, 7)
    driver.call(NEG, [7], 8)
    assert np.array_equal(driver.fetch(8), -(X + 7))
    driver.upload(9, X)  # others are not concerned
    assert driver.entry(9).array is not None


def test_what_is_freed_or_closed_leaves_nothing_behind(driver: Driver) -> None:
    before = len(os.listdir("/proc/self/fd"))
    spill(driver, 1)
    driver.free([1])
    driver.upload(2, X)
    assert driver.send(msg.Spill(driver.session, msg.pack_ids([2]))) == []
    driver.free([2])  # on its way out
    moving(driver)
    driver.upload(3, X)
    spill(driver, 3)
    assert driver.send(msg.Return(driver.session, msg.pack_ids([3]))) == []
    driver.send(msg.CloseSession(driver.session))
    moving(driver)
    stats = driver.stats()
    assert (stats["spilled_memory"], stats["spilled_disk"]) == (0, 0)
    assert len(os.listdir("/proc/self/fd")) == before
    assert os.listdir(driver.core.spilling.outside.folder) == []


def test_a_file_never_has_a_name(engine: Any, tmp_path: Path) -> None:
    driver = holding(engine, tmp_path, 0)
    spill(driver, 1)
    assert driver.stats()["spilled_disk"] == X.nbytes
    assert os.listdir(tmp_path) == []


def test_memory_is_used_before_the_disk(engine: Any, tmp_path: Path) -> None:
    driver = Driver(engine, settings(tmp_path, X.nbytes + 100)).holding(X + 1, X + 2)
    spill(driver, 1, 2)
    stats = driver.stats()
    assert (stats["spilled_memory"], stats["spilled_disk"]) == (X.nbytes, X.nbytes)
    for k in (1, 2):
        assert np.array_equal(driver.fetch(k), X + k)


def test_a_full_disk_leaves_tensors_there(engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = holding(engine, tmp_path, 0)
    monkeypatch.setattr(outside, "FREE_SHARE", 1)  # all of the disk has to stay free
    (answer,) = moved(driver, msg.Spill(driver.session, msg.pack_ids([1])))
    assert msg.unpack_ids(answer.kept) == [1]
    assert "of the disk would stay free" in answer.why
    assert np.array_equal(driver.fetch(1), X)
    monkeypatch.undo()
    (answer,) = moved(Driver(engine, settings(tmp_path / "none", 0), core=None), msg.Spill(1, msg.pack_ids([1])))
    assert answer.kept == b""  # there is no such tensor, and so nothing to complain of
    assert spill(driver, 1) == []


def test_a_folder_that_does_not_exist_leaves_tensors_where_they_are(engine: Any, tmp_path: Path) -> None:
    driver = holding(engine, tmp_path / "none", 0)
    (answer,) = moved(driver, msg.Spill(driver.session, msg.pack_ids([1])))
    assert msg.unpack_ids(answer.kept) == [1]
    assert "No such file" in answer.why
    assert np.array_equal(driver.fetch(1), X)


def test_what_cannot_be_read_back_is_lost(engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = holding(engine, tmp_path, 0)
    spill(driver, 1)
    monkeypatch.setattr(File, "read", raising(OSError("a bad sector")))
    bring_back(driver, 1)
    failed = driver.fails(NEG, [1], 2)
    assert failed.error.kind == "LostError"
    assert "a bad sector" in failed.error.text


def test_a_call_that_cannot_bring_back(engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails for what it uses, and the session is whole."""
    driver = holding(engine, tmp_path, 1 << 20)
    spill(driver, 1)
    monkeypatch.setattr(driver.core.engine, "bring_in", raising(MemoryError("no room")), raising=False)
    bring_back(driver, 1)
    assert driver.fails(NEG, [1], 2).error.kind == "OutOfMemory"
    monkeypatch.undo()
    driver.call(NEG, [1], 3, acked=driver.seq)
    assert np.array_equal(driver.fetch(3), -X)


def test_other_sessions_go_on_while_tensors_move(driver: Driver) -> None:
    other = driver.beside().holding(X + 5)
    assert driver.send(msg.Spill(driver.session, msg.pack_ids([1]))) == []
    other.call(NEG, [1], 2)
    assert np.array_equal(other.fetch(2), -(X + 5))
    assert len(moving(driver)) == 1


def test_behind_a_device(numpy_engine: Any, tmp_path: Path) -> None:
    """Calls on the device end before their results leave; fetches of what is away need no device."""
    driver = holding(Device(numpy_engine), tmp_path, 1 << 20)
    driver.call(NEG, [1], 2)
    assert spill(driver, 1, 2) == []
    assert np.array_equal(driver.fetch(2), -X)


def test_graphs_go_with_the_tensors_of_their_session(numpy_engine: Any, tmp_path: Path) -> None:
    driver = holding(numpy_engine, tmp_path, 1 << 20)
    session = driver.core.sessions[driver.session]

    class Graph:
        gone = False

        def let_go(self) -> None:
            self.gone = True

    graph: Any = Graph()
    session.captures[b"x"] = graph
    session.replays[b"x"] = graph
    version = session.store.version
    spill(driver, 1)
    assert graph.gone
    assert not session.replays
    assert session.store.version > version


def test_pieces_are_one_value(numpy_engine: Any, tmp_path: Path) -> None:
    """Host memory of a GPU comes in pieces."""
    place = Outside(numpy_engine, 1 << 20, str(tmp_path))
    data = np.arange(10, dtype=np.uint8)
    held = place.hold([data[:4], data[4:]], 10)
    assert bytes(held.read()) == bytes(data)
    file = File(str(tmp_path))
    written = [place.write([data[:4], data[4:]], 10, file), place.write([data[::-1].copy()], 10, file)]
    assert [bytes(w.read()) for w in written] == [bytes(data), bytes(data[::-1])]
    assert (place.nbytes(on_disk=False), place.nbytes(on_disk=True)) == (10, 20)
    del held, written
    assert (place.nbytes(on_disk=False), place.nbytes(on_disk=True)) == (0, 0)
