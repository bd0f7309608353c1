"""Calls that several worker processes run together, over gloo: results, failures, a worker that dies or hangs.

The workers wait for each other far longer than the tests wait for an answer: whoever learns of a failure only by the
deadline fails the test.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from gt import dtypes
from gt.program import Program
from gt.transport.messages import CallDone, CloseSession, Failure, GetStats, Stats
from tests.worker.worker_building import Builder

from .crew import Crew

pytestmark = pytest.mark.processes

LONG = {"peer_timeout_s": 300.0}
ALL = (1, 2, 3)


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    """Three workers; the third cannot make more than 1000 bytes at once."""
    pytest.importorskip("torch")
    made = Crew(["torch", "numpy", "torch"], [LONG, LONG, {**LONG, "fake_memory": 1000}])
    yield made
    made.end()


def part(b: Builder, workers: Sequence[int], outputs: list[int], **ends: Any) -> Program:
    return msgspec.structs.replace(b.program(outputs, **ends), workers=tuple(workers))


def parts(
    workers: Sequence[int], write: Callable[[int], Program], inputs: list[int]
) -> dict[int, tuple[Program, list[int], tuple[Any, ...]]]:
    return {w: (write(rank), inputs, ()) for rank, w in enumerate(workers)}


def summing(workers: Sequence[int], size: int = 2) -> dict[int, Any]:
    def write(rank: int) -> Program:
        b = Builder((size,))
        return part(b, workers, [b.add("all_reduce", 0, workers=tuple(workers), rank=rank, kind="sum")])

    return parts(workers, write, [1])


def stepping(workers: Sequence[int], wide: int = 1) -> dict[int, Any]:
    """(state, gradient) -> state + sum of gradients, in place. In between something `wide` is made."""

    def write(rank: int) -> Program:
        b = Builder((2,), (2,))
        group: dict[str, Any] = {"workers": tuple(workers), "rank": rank, "kind": "sum"}
        total = b.add("all_reduce", 1, **group)
        large = b.add("expand", b.add("reshape", total, shape=(2, 1)), shape=(2, wide))
        again = b.add("all_reduce", b.add("sum", b.add("neg", large), dims=(1,), keepdim=False), **group)
        new = b.add("assign", 0, b.add("add", 0, total))
        return part(b, workers, [new, again], donate=(0,), updates=((0, 0),))

    return parts(workers, write, [2, 1])


def fill(crew: Crew, session: int, workers: Sequence[int] = ALL) -> None:
    for w in workers:
        crew.members[w].upload(session, 1, np.array([w, 10 * w], np.float32))
        crew.members[w].upload(session, 2, np.array([100, 200], np.float32))


def groups(crew: Crew, worker: int) -> int:
    crew.members[worker].send(GetStats(1))
    return int(crew.members[worker].until(lambda m: isinstance(m, Stats))[0].data["groups"])


def kill(crew: Crew, worker: int) -> None:
    os.kill(crew.members[worker].process.pid, signal.SIGKILL)
    crew.members[worker].process.join()
    del crew.addresses[worker]
    crew.tell()


def test_sums_gathers_and_exchanges(crew: Crew) -> None:
    sizes = [[0, 3, 1], [2, 0, 0], [1, 4, 2]]  # from each to each
    mine = (3, 0, 2)

    def write(r: int) -> Program:
        b = Builder((sum(sizes[r]),), (mine[r],), (4,))
        takes = tuple(sizes[s][r] for s in range(3))
        group: dict[str, Any] = {"workers": ALL, "rank": r}
        exchanged = b.add("all_to_all", 0, sends=tuple(sizes[r]), takes=takes, **group)
        gathered = b.add("all_gather", 1, sizes=mine, **group)
        total = b.add("all_reduce", 2, kind="sum", **group)
        outputs = [exchanged, gathered, b.add("neg", total)]
        if r != 1:  # a group of some of them
            outputs.append(b.add("all_reduce", 2, workers=(1, 3), rank=r // 2, kind="max"))
        return part(b, ALL, outputs)

    for r in range(3):
        values = [100 * r + 10 * to + i for to in range(3) for i in range(sizes[r][to])]
        crew.members[r + 1].upload(11, 1, np.array(values, np.float32))
        crew.members[r + 1].upload(11, 2, np.arange(10 * r, 10 * r + mine[r], dtype=np.float32))
        crew.members[r + 1].upload(11, 3, np.array([r, -r, 1, 2 * r], np.float32))
    for first in (10, 20):
        seq = crew.call(11, parts(ALL, write, [1, 2, 3]), first)
        assert crew.outcomes(seq, ALL) == ["", "", ""]
    for r in range(3):
        want = [100 * s + 10 * r + i for s in range(3) for i in range(sizes[s][r])]
        np.testing.assert_array_equal(crew.members[r + 1].fetch(11, 20), want)
        np.testing.assert_array_equal(crew.members[r + 1].fetch(11, 21), [0, 1, 2, 20, 21])
        np.testing.assert_array_equal(crew.members[r + 1].fetch(11, 22), [-3, 3, -3, -6])
        if r != 1:
            np.testing.assert_array_equal(crew.members[r + 1].fetch(11, 23), [2, 0, 1, 4])


def test_reductions_of_every_dtype(crew: Crew) -> None:
    kinds = [(d, k) for d in dtypes.ALL for k in ("sum", "max", "min") if k == "sum" or not d.is_complex]
    values = [np.array(v) for v in ([0, 1, 3, 1, 0], [1, 1, 2, 0, 2], [0, 1, 5, 0, 0])]

    def write(r: int) -> Program:
        b = Builder(*[(5,)] * len(dtypes.ALL), kinds={i: d.name for i, d in enumerate(dtypes.ALL)})
        made = [b.add("all_reduce", dtypes.ALL.index(d), workers=ALL, rank=r, kind=k) for d, k in kinds]
        return part(b, ALL, made)

    for r, value in enumerate(values):
        for i, d in enumerate(dtypes.ALL):
            array = value.astype(d.numpy)
            if d.is_floating_point and r == 1:
                array[4] = np.nan
            crew.members[r + 1].upload(12, 1 + i, array)
    seq = crew.call(12, parts(ALL, write, list(range(1, 1 + len(dtypes.ALL)))), 100)
    assert crew.outcomes(seq, ALL) == ["", "", ""]
    for k, (d, kind) in enumerate(kinds):
        f = {"sum": np.add, "max": np.maximum, "min": np.minimum}[kind]
        want = f(f(values[0].astype(d.numpy), values[1].astype(d.numpy)), values[2].astype(d.numpy)).astype(complex)
        if d.is_floating_point:
            want[4] = np.nan
        for w in ALL:
            made = crew.members[w].fetch(12, 100 + k).astype(complex)
            np.testing.assert_array_equal(made.real, want.real, f"{kind} of {d.name} on worker {w}")


def test_one_that_fails_in_between_fails_all_and_the_next_call_runs(crew: Crew) -> None:
    fill(crew, 13)
    assert crew.outcomes(crew.call(13, stepping(ALL), 10), ALL) == ["", "", ""]
    bad = crew.call(13, {w: (p, [10, 1], s) for w, (p, _, s) in stepping(ALL, wide=100).items()}, 20)
    behind = crew.call(13, {w: (p, [20, 1], s) for w, (p, _, s) in stepping(ALL).items()}, 30)
    assert crew.outcomes(bad, ALL) == ["PeerFailed", "PeerFailed", "OutOfMemory"]
    assert crew.outcomes(behind, ALL) == ["PeerFailed", "PeerFailed", "OutOfMemory"]
    good = crew.call(13, {w: (p, [30, 1], s) for w, (p, _, s) in stepping(ALL).items()}, 40, acked=behind)
    assert crew.outcomes(good, ALL) == ["", "", ""]
    for w in ALL:
        assert isinstance(crew.members[w].fetch(13, 31), Failure)
        np.testing.assert_array_equal(crew.members[w].fetch(13, 40), [112, 320])


def test_one_whose_input_is_missing_leaves_nobody_waiting(crew: Crew) -> None:
    """It fails before anything of the call ran there; the groups did not exist yet."""
    fill(crew, 14)
    calls = summing(ALL)
    calls[2] = (calls[2][0], [77], ())
    assert crew.outcomes(crew.call(14, calls, 10), ALL) == ["PeerFailed", "ProgramError", "PeerFailed"]
    assert crew.outcomes(crew.call(14, summing(ALL), 20), ALL) == ["", "", ""]


def test_calls_of_two_sessions_overlap(crew: Crew) -> None:
    for session in (15, 16):
        fill(crew, session)
    seqs = []
    for k in range(5):
        for session, workers in ((15, (1, 2)), (16, (2, 3)), (15, ALL), (16, (1, 3))):
            seqs.append((crew.call(session, summing(workers), 10 + k), workers))
    for seq, workers in seqs:
        assert crew.outcomes(seq, workers) == [""] * len(workers)


def test_a_session_that_is_closed_leaves_nobody_waiting(crew: Crew) -> None:
    fill(crew, 17)
    assert crew.outcomes(crew.call(17, summing(ALL), 10), ALL) == ["", "", ""]
    before = groups(crew, 1)
    calls = summing(ALL)
    crew.call(17, {w: calls[w] for w in (1, 2)}, 20)  # the third will never hear of it
    for w in ALL:
        crew.members[w].send(CloseSession(17))
    fill(crew, 18)
    assert crew.outcomes(crew.call(18, summing(ALL), 10), ALL) == ["", "", ""]
    assert groups(crew, 1) == before


def test_workers_that_are_killed() -> None:
    crew = Crew(["torch", "torch", "torch"], [LONG] * 3)
    try:
        fill(crew, 1)
        assert crew.outcomes(crew.call(1, stepping(ALL), 10), ALL) == ["", "", ""]
        within = crew.call(1, {w: (p, [10, 1], ()) for w, (p, _, _) in stepping(ALL).items() if w != 2}, 20)
        kill(crew, 2)  # the others are in that call, and wait
        assert crew.outcomes(within, (1, 3)) == ["PeerFailed", "PeerFailed"]
        for w in (1, 3):
            np.testing.assert_array_equal(crew.members[w].fetch(1, 20), [106, 260])
        two = {w: (p, [20, 1], ()) for w, (p, _, _) in stepping((1, 3)).items()}
        assert crew.outcomes(crew.call(1, two, 30, acked=within), (1, 3)) == ["", ""]
        three = {w: (p, [30, 1], ()) for w, (p, _, _) in stepping(ALL).items() if w != 2}
        assert crew.outcomes(crew.call(1, three, 40), (1, 3)) == ["PeerFailed", "PeerFailed"]
        fill(crew, 2, (3,))
        meeting = crew.call(2, {3: summing((1, 3))[3]}, 10)  # it waits where they meet, which is at worker 1
        kill(crew, 1)
        assert crew.outcomes(meeting, [3]) == ["PeerFailed"]
        between = crew.call(1, {3: (two[3][0], [40, 1], ())}, 50, acked=meeting)
        assert crew.outcomes(between, [3]) == ["PeerFailed"]
        np.testing.assert_array_equal(crew.members[3].fetch(1, 50), [110, 300])
    finally:
        crew.end()


def test_a_worker_that_hangs_is_found_out_by_the_deadline() -> None:
    crew = Crew(["torch", "torch"], [{"peer_timeout_s": 1.0}] * 2)
    try:
        fill(crew, 1, (1, 2))
        assert crew.outcomes(crew.call(1, stepping((1, 2)), 10), (1, 2)) == ["", ""]
        os.kill(crew.members[2].process.pid, signal.SIGSTOP)
        seq = crew.call(1, {w: (p, [10, 1], s) for w, (p, _, s) in stepping((1, 2)).items()}, 20)
        assert crew.members[1].outcome(seq) == "PeerFailed"
        os.kill(crew.members[2].process.pid, signal.SIGCONT)
        assert crew.members[2].outcome(seq) == "PeerFailed"
        again = {w: (p, [20, 1], s) for w, (p, _, s) in stepping((1, 2)).items()}
        assert crew.outcomes(crew.call(1, again, 30, acked=seq), (1, 2)) == ["", ""]
        for w in (1, 2):
            np.testing.assert_array_equal(crew.members[w].fetch(1, 30), [106, 260])
            assert not any(isinstance(m, CallDone) for m, _ in crew.members[w].heard)
    finally:
        crew.end()
