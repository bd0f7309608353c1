"""Calls that several worker processes run together, over gloo: results, failures, a worker that dies or hangs.

The workers wait for each other far longer than the tests wait for an answer: whoever learns of a failure only by the
deadline fails the test.
"""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from gt.errors import PeerFailed
from gt.transport.messages import CallDone, Failure, GetStats, Stats
from gt.worker.run.collectives import GroupKey
from tests.workers_here import Crew, Part, check_exchanges, check_reductions, steps, sums

pytestmark = pytest.mark.processes

LONG = {"peer_timeout_s": 300.0}
ALL = (1, 2, 3)
WELL = dict.fromkeys(ALL, "")


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    """Three workers; the third cannot make more than 1000 bytes at once."""
    pytest.importorskip("torch")
    made = Crew(["torch", "numpy", "torch"], [LONG, LONG, {**LONG, "fake_memory": 1000}])
    yield made
    made.end()


def fill(crew: Crew, session: int, workers: Sequence[int] = ALL) -> None:
    for w in workers:
        crew.upload(w, 1, np.array([w, 10 * w], np.float32), session)
        crew.upload(w, 2, np.array([100, 200], np.float32), session)


def groups(crew: Crew, worker: int) -> int:
    crew.send(worker, GetStats(1))
    return int(crew.answer(worker, lambda m: isinstance(m, Stats))[0].data["groups"])


def test_sums_gathers_and_exchanges(crew: Crew) -> None:
    check_exchanges(crew, 11)


def test_reductions_of_every_dtype(crew: Crew) -> None:
    check_reductions(crew, 12)


def test_one_that_fails_in_between_fails_all_and_the_next_call_runs(crew: Crew) -> None:
    fill(crew, 13)
    failed = {1: "PeerFailed", 2: "PeerFailed", 3: "OutOfMemory"}
    assert crew.run(steps(ALL, [2, 1], wide=1), 10, 13) == WELL
    bad = crew.call(steps(ALL, [10, 1], wide=100), 20, 13)
    behind = crew.call(steps(ALL, [20, 1], wide=1), 30, 13)
    assert crew.kinds(bad, ALL) == crew.kinds(behind, ALL) == failed
    assert crew.run(steps(ALL, [30, 1], wide=1), 40, 13, acked=behind) == WELL
    for w in ALL:
        assert isinstance(crew.fetch(w, 31, 13), Failure)
        np.testing.assert_array_equal(crew.fetch(w, 40, 13), [112, 320])


def test_one_whose_input_is_missing_leaves_nobody_waiting(crew: Crew) -> None:
    """It fails before anything of the call ran there; the groups did not exist yet."""
    fill(crew, 14)
    calls = sums(ALL, [1])
    calls[2].inputs = [77]
    assert crew.run(calls, 10, 14) == {1: "PeerFailed", 2: "ProgramError", 3: "PeerFailed"}
    assert crew.run(sums(ALL, [1]), 20, 14) == WELL


def test_calls_of_two_sessions_overlap(crew: Crew) -> None:
    for session in (15, 16):
        fill(crew, session)
    seqs = []
    for k in range(5):
        for session, workers in ((15, (1, 2)), (16, (2, 3)), (15, ALL), (16, (1, 3))):
            seqs.append((crew.call(sums(workers, [1]), 10 + 2 * k, session), workers))
    for seq, workers in seqs:
        assert set(crew.kinds(seq, workers).values()) == {""}


def test_a_session_that_is_closed_leaves_nobody_waiting(crew: Crew) -> None:
    fill(crew, 17)
    assert crew.run(sums(ALL, [1]), 10, 17) == WELL
    before = groups(crew, 1)
    calls = sums(ALL, [1])
    crew.call({w: calls[w] for w in (1, 2)}, 20, 17)  # the third will never hear of it
    crew.close(17)
    fill(crew, 18)
    assert crew.run(sums(ALL, [1]), 10, 18) == WELL
    assert groups(crew, 1) == before


def test_workers_that_are_killed() -> None:
    crew = Crew(["torch", "torch", "torch"], [LONG] * 3)
    lost = {1: "PeerFailed", 3: "PeerFailed"}

    def without_second(inputs: list[int]) -> dict[int, Part]:
        calls = steps(ALL, inputs, wide=1)
        return {w: calls[w] for w in (1, 3)}

    try:
        fill(crew, 1)
        assert crew.run(steps(ALL, [2, 1], wide=1), 10) == WELL
        within = crew.call(without_second([10, 1]), 20)
        crew.kill(2)  # the others are in that call, and wait
        assert crew.kinds(within, (1, 3)) == lost
        for w in (1, 3):
            np.testing.assert_array_equal(crew.fetch(w, 20), [106, 260])
        two = steps((1, 3), [20, 1], wide=1)
        assert crew.run(two, 30, acked=within) == {1: "", 3: ""}
        assert crew.run(without_second([30, 1]), 40) == lost
        fill(crew, 2, (3,))
        meeting = crew.call({3: sums((1, 3), [1])[3]}, 10, 2)  # it waits where they meet, which is at worker 1
        crew.kill(1)
        assert crew.kinds(meeting, [3]) == {3: "PeerFailed"}
        assert crew.run({3: Part(two[3].program, [40, 1])}, 50, acked=meeting) == {3: "PeerFailed"}
        np.testing.assert_array_equal(crew.fetch(3, 50), [110, 300])
    finally:
        crew.end()


def test_a_worker_that_hangs_is_found_out_by_the_deadline() -> None:
    crew = Crew(["torch", "torch"], [{"peer_timeout_s": 1.0}] * 2)
    pair = (1, 2)
    try:
        fill(crew, 1, pair)
        assert crew.run(steps(pair, [2, 1], wide=1), 10) == {1: "", 2: ""}
        crew.signal(2, signal.SIGSTOP)
        seq = crew.call(steps(pair, [10, 1], wide=1), 20)
        assert crew.kinds(seq, [1]) == {1: "PeerFailed"}
        crew.signal(2, signal.SIGCONT)
        assert crew.kinds(seq, [2]) == {2: "PeerFailed"}
        again = crew.call(steps(pair, [20, 1], wide=1), 30, acked=seq)
        assert crew.kinds(again, pair) == {1: "", 2: ""}
        for w in pair:
            np.testing.assert_array_equal(crew.fetch(w, 30), [106, 260])
            done = [m.seq for m, _ in crew.heard[w] if isinstance(m, CallDone)]
            assert done == [1, again], "each call is answered once"
    finally:
        crew.end()


def test_a_meeting_with_a_worker_that_hangs_ends_when_it_is_given_up() -> None:
    """The store takes connections and says nothing, as that of a process that was stopped."""
    pytest.importorskip("torch")
    from gt.worker.engines.groups import Sockets

    with socket.create_server(("127.0.0.1", 0)) as stopped, socket.create_server(("127.0.0.1", 0)) as own:
        first, second = ("{}:{}".format(*s.getsockname()) for s in (stopped, own))
        network = Sockets(own, LONG["peer_timeout_s"], "cpu")
        network.know({1: first, 2: second})
        threading.Timer(0.5, lambda: network.know({2: second})).start()
        with pytest.raises(PeerFailed, match="worker 1 is gone"):
            network.join(GroupKey(1, (1, 2), 0), 1).result()
