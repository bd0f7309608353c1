"""The worker's queue: order, fetches, uploads, programs that are not known, sessions that close."""

from __future__ import annotations

import threading
from typing import Any

import msgspec
import numpy as np
import pytest
from worker_building import Builder, Faulty, unary
from worker_driver import Driver

from gt import dtypes
from gt.config import Config
from gt.transport import messages as msg

SHAPE = (4,)
ONE = np.full(4, 1, np.float32)
NEG = unary("neg")


@pytest.fixture
def driver(numpy_engine: Any) -> Driver:
    return Driver(numpy_engine).holding(ONE)


def names(messages: list[Any]) -> list[str]:
    return [type(m).__name__ for m in messages]


# --- fetches ---------------------------------------------------------------------------------


def test_a_fetch_is_served_when_its_value_is_there_not_behind_later_calls(driver: Driver) -> None:
    driver.define(NEG)
    driver.receive(*(driver.call_message(NEG, [9 + k if k else 1], 10 + k) for k in range(4)))  # 10 -> 11 -> 12 -> 13
    driver.receive(driver.fetch_message(11), driver.fetch_message(1))  # made by the second of them; there already
    answers = driver.work()
    assert names(answers) == ["Chunk", "CallDone", "CallDone", "Chunk", "CallDone", "CallDone"]
    assert [m.key for m in answers if isinstance(m, msg.Chunk)] == [2, 1]


def test_fetches_of_one_value_are_served_in_order(driver: Driver) -> None:
    driver.define(NEG)
    driver.receive(driver.call_message(NEG, [1], 10), *(driver.fetch_message(10) for _ in range(3)))
    assert [m.key for m in driver.work() if isinstance(m, msg.Chunk)] == [1, 2, 3]


def test_code_is_made_before_the_first_call(driver: Driver) -> None:
    driver.define(NEG)
    assert driver.send(msg.Prepare(driver.session, NEG.hash())) == [msg.Prepared(driver.session, NEG.hash())]
    known = driver.core.programs.peek(NEG.hash())
    assert known is not None
    assert known.runnable is not None
    assert names(driver.call(NEG, [1], 10)) == ["CallDone"]
    assert driver.send(msg.Prepare(driver.session, b"unknown")) == [msg.Prepared(driver.session, b"unknown")]


def test_tensors_take_the_place_of_others_and_fetches_before_that_get_the_old_ones(driver: Driver) -> None:
    driver.define(NEG)
    assert names(driver.call(NEG, [1], 100)) == ["CallDone"]
    rename = msg.Rename(driver.session, msg.pack_ids([1, 5]), 100)
    driver.receive(driver.fetch_message(1), rename, driver.fetch_message(1))
    driver.work()
    assert driver.payloads == [ONE.tobytes(), (-ONE).tobytes()]
    assert driver.fetch_error(100).kind == driver.fetch_error(5).kind == "ProgramError"


def test_a_move_that_fails_is_no_failure_of_the_clients(driver: Driver) -> None:
    driver.define(NEG)
    move = msgspec.structs.replace(driver.call_message(NEG, [77], 100), seq=-1)
    (failed,) = driver.send(move)
    assert (failed.seq, failed.error.kind) == (-1, "ProgramError")
    assert driver.core.sessions[driver.session].failed == 0


def test_a_fetch_of_what_nothing_makes_fails(driver: Driver) -> None:
    assert driver.fetch_error(77).kind == "ProgramError"


def test_an_empty_tensor_is_one_empty_chunk(driver: Driver) -> None:
    driver.upload(2, np.zeros((0, 3), np.int64))
    (chunk,) = driver.send(driver.fetch_message(2))
    assert chunk == msg.Chunk(1, 1, 0, 0, (0, 3), "int64")
    assert driver.payloads == [b""]


def test_a_large_tensor_goes_out_in_chunks_a_few_at_a_time(driver: Driver) -> None:
    n_chunks = 2 * msg.CHUNKS_IN_FLIGHT + 2
    data = np.random.default_rng(0).integers(0, 255, n_chunks * msg.CHUNK - 5, dtype=np.uint8)
    driver.upload(2, data)
    chunks = driver.send(driver.fetch_message(2))
    got = list(driver.payloads)
    assert len(chunks) == msg.CHUNKS_IN_FLIGHT
    ack = msg.ChunkAck(1, 1, False)
    # The reader sends nothing before all of the runner's chunks have arrived: they go different ways.
    for _ in range(msg.CHUNKS_IN_FLIGHT - 1):
        assert driver.core.receive(ack) == []
    while more := driver.core.receive(ack):
        chunks += [m for m, _ in more]
        got += [bytes(p) for _, p in more if p is not None]
    assert [c.offset for c in chunks] == [k * msg.CHUNK for k in range(n_chunks)]
    assert max(map(len, got)) <= msg.CHUNK
    assert b"".join(got) == data.tobytes()
    assert driver.core.receive(ack) == []
    assert driver.core.sessions[1].sending == {}
    assert driver.core.sessions[1].fetches == {}


def test_a_cancelled_fetch_is_dropped_wherever_it_is(driver: Driver) -> None:
    driver.define(NEG)
    driver.upload(2, np.zeros(9 * msg.CHUNK, np.uint8))
    core = driver.core
    driver.receive(driver.call_message(NEG, [1], 10), driver.fetch_message(10), driver.fetch_message(1))
    driver.receive(msg.Cancel(1, 1), msg.Cancel(1, 2))
    assert names(driver.work()) == ["CallDone"]
    driver.send(driver.fetch_message(2))
    core.receive(msg.Cancel(1, 3))
    assert all(core.receive(msg.ChunkAck(1, 3, False)) == [] for _ in range(8))
    assert core.sessions[1].sending == {}
    driver.receive(msg.Cancel(1, 99), msg.Cancel(5, 99))


def test_copies_for_fetches_are_bounded_and_later_ones_wait(driver: Driver, monkeypatch: Any) -> None:
    monkeypatch.setattr("gt.worker.fetches.SENDING_NBYTES", 6 * msg.CHUNK)
    data = np.arange(5 * msg.CHUNK, dtype=np.uint8)
    driver.upload(2, data)
    driver.upload(3, data)
    b = Builder(data.shape, data.shape, kinds={0: "uint8", 1: "uint8"})
    overwrite = b.program([b.add("assign", 0, 1)], donate=(0,))
    driver.upload(4, np.zeros_like(data))
    driver.receive(driver.fetch_message(2), driver.fetch_message(3))
    assert {m.key for m in driver.work()} == {1}
    assert len(driver.core.sessions[1].backlog) == 1
    driver.call(overwrite, [3, 4], outputs=10)  # takes the memory that the waiting fetch is to read
    driver.receive(*[msg.ChunkAck(1, 1, False)] * msg.CHUNKS_IN_FLIGHT)
    assert {m.key for m in driver.work()} == {2}
    assert driver.payloads[0] == data[: msg.CHUNK].tobytes()
    driver.core.receive(msg.Cancel(1, 2))
    assert driver.fetch(1).tolist() == ONE.tolist()


# --- uploads ---------------------------------------------------------------------------------


def test_a_large_upload_arrives(driver: Driver) -> None:
    data = np.random.default_rng(0).integers(0, 255, (2 * msg.CHUNK + 7,), dtype=np.uint8)
    assert len(driver.upload(2, data)) == 3
    assert np.array_equal(driver.fetch(2), data)


@pytest.mark.parametrize(
    "chunk",
    [
        msg.Chunk(1, 2, 0, 17, (4,), "float32"),  # 16 bytes
        msg.Chunk(1, 2, 0, 16, (4,), "float31"),
        msg.Chunk(1, 2, 0, 16, (-4,), "float32"),
        msg.Chunk(1, 2, 0, 16, (2,) * 65, "float32"),
        msg.Chunk(1, 2, 0, 1 << 62, (1 << 60,), "float32"),
        msg.Chunk(1, 2, 0, 8, (2,), "float32"),  # brings more than it has
        msg.Chunk(1, 2, 0, 16, (), ""),
    ],
)
def test_an_upload_that_lies_is_poisoned(driver: Driver, chunk: msg.Chunk) -> None:
    assert driver.send(chunk, bytes(16)) == [msg.ChunkAck(1, 2, True)]
    assert driver.fetch_error(2).kind == "ProgramError"
    assert driver.fetch(1).tolist() == ONE.tolist()


def test_chunks_out_of_order_are_refused_and_the_rest_ignored(driver: Driver) -> None:
    total = 3 * msg.CHUNK
    first = msg.Chunk(1, 2, 0, total, (total,), "uint8")
    driver.send(first, bytes(msg.CHUNK))
    driver.send(msg.Chunk(1, 2, 2 * msg.CHUNK, total), bytes(msg.CHUNK))
    assert driver.send(msg.Chunk(1, 2, msg.CHUNK, total), bytes(msg.CHUNK)) == [msg.ChunkAck(1, 2, True)]
    assert driver.fetch_error(2).kind == "ProgramError"
    assert driver.send(msg.Chunk(1, 3, msg.CHUNK, total), bytes(msg.CHUNK)) == [msg.ChunkAck(1, 3, True)]


def test_an_upload_larger_than_the_worker_is_refused(numpy_engine: Any) -> None:
    driver = Driver(numpy_engine, Config(worker_memory=1000))
    driver.send(msg.Chunk(1, 2, 0, 2000, (2000,), "uint8"), bytes(2000))
    assert "1000" in driver.fetch_error(2).text


def test_a_fetch_of_what_is_being_uploaded_waits_for_it(driver: Driver) -> None:
    data = np.arange(2 * msg.CHUNK, dtype=np.uint8)
    driver.send(msg.Chunk(1, 2, 0, len(data), data.shape, "uint8"), data[: msg.CHUNK].tobytes())
    assert driver.send(driver.fetch_message(2)) == []
    answers = driver.send(msg.Chunk(1, 2, msg.CHUNK, len(data)), data[msg.CHUNK :].tobytes())
    assert names(answers) == ["ChunkAck", "Chunk", "Chunk"]
    assert b"".join(driver.payloads) == data.tobytes()


def test_a_call_with_a_failed_upload_names_itself_as_the_root(driver: Driver) -> None:
    driver.send(msg.Chunk(1, 2, 0, 17, (4,), "float32"), bytes(16))
    failed = driver.fails(NEG, [2], outputs=10)
    assert (failed.root, failed.error.kind) == (1, "ProgramError")


# --- programs that are not known -------------------------------------------------------------


def test_an_unknown_program_holds_its_session_and_no_other(driver: Driver) -> None:
    abs_ = unary("abs")
    driver.define(abs_)
    other = driver.beside().holding(ONE)
    assert driver.send(driver.call_message(NEG, [1], 10)) == [msg.Need(NEG.hash())]
    assert driver.send(driver.call_message(abs_, [10], 11)) == []  # behind it, so held
    assert driver.send(driver.fetch_message(11)) == []
    assert driver.send(driver.fetch_message(10)) == []
    assert driver.fetch(1).tolist() == ONE.tolist()
    assert names(other.call(abs_, [1], 10)) == ["CallDone"]
    assert other.send(other.call_message(NEG, [1], 11)) == []  # asked for already
    answers = driver.send(msg.Define(NEG))
    assert names(answers) == ["CallDone", "Chunk", "CallDone", "Chunk", "CallDone"]
    assert [m.session for m in answers] == [1, 1, 1, 1, 2]


def test_a_forgotten_program_is_asked_for_again(driver: Driver) -> None:
    driver.define(NEG)
    driver.receive(driver.call_message(NEG, [1], 10), msg.Forget(NEG.hash()), driver.call_message(NEG, [10], 11))
    done, need = driver.work()
    assert isinstance(done, msg.CallDone)
    assert need == msg.Need(NEG.hash())
    assert names(driver.send(msg.Define(NEG))) == ["CallDone"]


def test_the_cache_is_bounded_and_timed_programs_go_first(numpy_engine: Any) -> None:
    programs = [unary("neg", (n,)) for n in range(1, 6)]
    driver = Driver(numpy_engine, Config(cache_bytes=3 * 600))
    driver.define(programs[0])
    driver.define(programs[1], timed=True)
    driver.define(programs[2])

    def known() -> list[bool]:
        return [driver.core.programs.peek(p.hash()) is not None for p in programs]

    assert known() == [True, True, True, False, False]
    driver.define(programs[3])
    assert known() == [True, False, True, True, False]
    driver.core.programs.get(programs[0].hash())  # used: now the third is the oldest
    driver.define(programs[4])
    assert known() == [True, False, False, True, True]
    tiny = Driver(numpy_engine, Config(cache_bytes=1)).holding(ONE)
    for k in range(2):  # even then each can run: the newest stays
        for op in ("neg", "abs"):
            assert names(tiny.call(unary(op), [1], 10 + k)) == ["CallDone"]
    assert len(tiny.core.programs) == 1


def test_what_is_no_program_fails_its_calls_only(driver: Driver) -> None:
    b = Builder(SHAPE)
    bad = b.program([b.add("neg", 0)], donate=(7,))
    failed = driver.fails(bad, [1], outputs=10)
    assert failed.error.kind == "ProgramError"
    reason = msg.Failure("ProgramError", "not a program")
    unknown = unary("tanh")
    assert driver.send(driver.call_message(unknown, [1], 10, refused=reason)) == [msg.CallFailed(1, 2, 2, reason)]
    assert names(driver.call(unary("abs"), [1], 11)) == ["CallDone"]


# --- sessions --------------------------------------------------------------------------------


def test_sessions_see_only_their_own(driver: Driver) -> None:
    other = driver.beside()
    assert isinstance(other.send(other.fetch_message(1))[0], msg.FetchFailed)
    other.fails(NEG, [1], outputs=10)


def test_a_closed_session_leaves_nothing(driver: Driver) -> None:
    driver.define(NEG)
    driver.upload(2, np.zeros(9 * msg.CHUNK, np.uint8))
    driver.send(driver.fetch_message(2))
    core = driver.core
    driver.receive(*(driver.call_message(NEG, [1], 10 + k) for k in range(3)), driver.fetch_message(11))
    assert core.receive(msg.CloseSession(1)) == []
    assert driver.work() == []
    assert driver.stats()["sessions"] == {}
    assert core.receive(msg.ChunkAck(1, 1, False)) == []


def test_a_session_closed_while_its_call_runs(numpy_engine: Any) -> None:
    class Closing(Faulty):
        def work(self) -> None:
            driver.core.receive(msg.CloseSession(1))

    driver = Driver(Closing(numpy_engine)).holding(ONE)
    driver.define(NEG)
    assert driver.send(driver.call_message(NEG, [1], 10)) == []
    assert driver.stats()["sessions"] == {}


def test_stats(driver: Driver) -> None:
    driver.call(NEG, [1], outputs=10)
    driver.call(NEG, [1], outputs=11)
    stats = driver.stats()
    assert (stats["engine"], stats["calls"]) == ("numpy", 2)
    total, recent = stats["sessions"]["1"].pop("cpu_us"), stats["sessions"]["1"].pop("recent")
    assert [seq for seq, *_ in recent] == [1, 2]
    assert total >= sum(cpu_us for _, cpu_us, _, _ in recent) >= 0
    assert stats["sessions"] == {"1": {"nbytes": 48, "spilled": 0, "tensors": 3}}
    program = stats["programs"][NEG.hash().hex()]
    assert (program["instructions"], program["hits"], program["tier"]) == (1, 2, 1)
    assert program["run_us"] <= stats["run_us"]
    (answer,) = driver.send(msg.GetStats(8, programs=False))
    assert answer.data["programs"] == {}


def test_stats_are_told_while_calls_end(driver: Driver) -> None:
    """The runner notes what calls took, in its own thread and at any moment."""

    class Ending(tuple[int, int, int, int]):
        def __iter__(self) -> Any:
            recent.append((2, 0, 0, 0))
            return super().__iter__()

    driver.call(NEG, [1], outputs=10)
    recent = driver.core.sessions[1].recent
    recent.append(Ending((1, 1000, 2000, 3000)))
    assert driver.stats()["sessions"]["1"]["recent"][-1] == (1, 1, 2, 3)


def test_reader_and_runner_in_two_threads(driver: Driver) -> None:
    """Thousands of calls and fetches from one thread, run in another: each fetch sees its call's value."""
    b = Builder(SHAPE, scalars="f")
    scale = b.program([b.add("mul", 0, ~0)])
    driver.define(scale)
    core, n = driver.core, 1500
    got: dict[int, float] = {}
    done: list[int] = []

    def run() -> None:
        while len(got) < n or len(done) < n:
            out = core.step()
            if out is None:
                core.wait(0.25)
                continue
            for message, payload in out:
                if isinstance(message, msg.Chunk) and payload is not None:
                    got[message.key] = float(np.frombuffer(payload, np.float32)[0])
                elif isinstance(message, msg.CallDone):
                    done.append(message.seq)

    runner = threading.Thread(target=run)
    runner.start()
    for k in range(1, n + 1):
        core.receive(driver.call_message(scale, [1], 100 + k, scalars=(float(k),), frees=[99 + k]))
        core.receive(driver.fetch_message(100 + k))
    runner.join(60)
    assert not runner.is_alive()
    assert got == {k: float(k) for k in range(1, n + 1)}
    assert done == list(range(1, n + 1))


def test_a_program_that_only_a_closed_session_waited_for_is_asked_for_again(driver: Driver) -> None:
    assert driver.send(driver.call_message(NEG, [1], 10)) == [msg.Need(NEG.hash())]
    driver.send(msg.CloseSession(1))
    other = driver.beside()
    other.upload(1, ONE)
    assert names(other.call(NEG, [1], 10)) == ["CallDone"]


def test_uploads_are_taken_without_another_copy(engine: Any) -> None:
    """Of every dtype and with no dimensions too; later uploads do not disturb earlier ones."""
    driver = Driver(engine)
    arrays = [np.arange(6).reshape(2, 3).astype(d.numpy) for d in dtypes.ALL] + [np.array(2.5)]
    for id, array in enumerate(arrays):
        driver.upload(id, array)
    for id, array in enumerate(arrays):
        assert driver.fetch(id).tobytes() == array.tobytes()


def test_whether_to_compile_is_kept_and_may_be_raised(driver: Driver) -> None:
    driver.send(msg.Define(NEG, False, -1))
    known = driver.core.programs.peek(NEG.hash())
    assert known.compile == -1
    for said, told in ((0, 0), (1, 1), (-1, 1)):
        driver.send(msg.Define(NEG, False, said))
        assert known.compile == told
    assert driver.core.programs.peek(NEG.hash()) is known
