"""Calls that several workers run together, in one process: results, order, failures, fresh groups."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from worker_building import Builder, Device, Faulty, unary

from gt.ops.check import check
from gt.transport.messages import CloseSession, Failure, Forget
from gt.worker.engines import load
from gt.worker.run import collectives
from gt.worker.run.writing import compile_program
from tests.workers_here import Many, Part, check_exchanges, check_reductions, steps, sum_program, sums, together

NUMPY = load("numpy")
PAIR = (1, 2)
NEG = unary("neg", (2,))
FAIL = Failure("OutOfMemory", "no room")


def numbers(*values: float) -> np.ndarray[Any, Any]:
    return np.array(values, np.float32)


@pytest.fixture(params=range(5))
def pair(request: pytest.FixtureRequest) -> Many:
    return Many([NUMPY, NUMPY], request.param)


def fill(many: Many, id: int, session: int = 1) -> None:
    for worker in many.cores:
        many.upload(worker, id, numbers(worker, 10 * worker), session)


def filled(count: int, seed: int = 0) -> Many:
    """So many workers on numpy that hold tensor 1."""
    many = Many([NUMPY] * count, seed)
    fill(many, 1)
    return many


# --- the code --------------------------------------------------------------------------------------------------------


def test_a_collective_is_started_where_it_stands_and_taken_where_it_is_read() -> None:
    b = Builder((2,), (2,))
    unread = b.add("all_reduce", 0, workers=PAIR, rank=0, kind="max")
    total = b.add("all_reduce", 1, workers=PAIR, rank=0, kind="sum")
    between = b.add("neg", 0)
    last = b.add("add", between, total)
    source = compile_program(check(together(b, PAIR, [last])), NUMPY).source
    lines = [line.strip().split("  #")[0].split("; del")[0] for line in source.splitlines()[2:]]
    assert lines == [
        f"h{unread} = c.start(k0, v0, False)",
        f"h{total} = c.start(k1, v1, False)",
        f"v{between} = k2(v0)",
        f"v{total} = yield h{total}",
        f"v{last} = k3(v{between}, v{total})",
        f"v{unread} = yield h{unread}",
        "c.agreed((yield c.agree(None)))",
        f"return (v{last}, ), None",
    ]


def test_views_of_what_is_under_way_do_not_wait_for_it() -> None:
    """Gradients travel as one array and are cut apart again: the cutting waits until somebody wants one of them."""
    b = Builder((4,), (4,))
    total = b.add("all_reduce", 0, workers=PAIR, rank=0, kind="sum")
    square = b.add("reshape", total, shape=(2, 2))
    turned = b.add("permute", square, dims=(1, 0))
    between = b.add("neg", 1)
    other = b.add("all_reduce", between, workers=PAIR, rank=0, kind="sum")
    last = b.add("neg", turned)
    source = compile_program(check(together(b, PAIR, [last, other])), NUMPY).source
    made = [line.split(" = ")[0].strip() for line in source.splitlines()[2:] if " = " in line]
    assert made == [f"h{total}", f"v{between}", f"h{other}", f"v{total}", f"v{square}", f"v{turned}", f"v{last}",
                    f"v{other}"]  # fmt: skip


def test_a_collective_may_overwrite_only_what_nobody_else_reads() -> None:
    def private(*more: str, out: bool = False) -> bool:
        b = Builder((2,))
        x = b.add("neg", 0)
        view = b.add("reshape", x, shape=(2, 1)) if "view" in more else x
        total = b.add("all_reduce", x, workers=PAIR, rank=0, kind="sum")
        outputs = [total, *([b.add("neg", view)] if more else []), *([x] if out else [])]
        return ", True)" in compile_program(check(together(b, PAIR, outputs)), NUMPY).source

    assert private()
    assert not private("again")
    assert not private("view")
    assert not private(out=True)


# --- results ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_sums_over_workers(name: str) -> None:
    pytest.importorskip(name)
    many = Many([load(name, "cpu" if name == "torch" else "", 1) for _ in range(3)], 0)
    fill(many, 1)
    assert many.run(sums((1, 2, 3), [1]), 10) == {1: "", 2: "", 3: ""}
    for worker in many.cores:
        np.testing.assert_array_equal(many.fetch(worker, 10), [-6, -60])
        np.testing.assert_array_equal(many.fetch(worker, 11), [worker + 1, 10 * worker + 1])
        np.testing.assert_array_equal(many.fetch(worker, 1), [worker, 10 * worker])


def test_gathers_and_exchanges_of_uneven_sizes() -> None:
    many = Many([NUMPY] * 3, 1)
    check_exchanges(many)
    assert many.hall.count == {"all_to_all": 2, "all_gather": 2, "all_reduce": 4}


def test_groups_of_some_workers_and_what_lies_elsewhere() -> None:
    """Workers 1 and 3 add; worker 2 has nothing and makes nothing, but the call is also its own."""
    everyone = (1, 2, 3)
    made = {}
    for w in everyone:
        b = Builder((2,) if w != 2 else (0,), scalars="f", kinds={0: "float32" if w != 2 else "uint8"})
        if w == 2:
            y = b.add("full", ~0, shape=(0,), dtype="uint8")
        else:
            y = b.add("all_reduce", 0, workers=(1, 3), rank=w // 2, kind="sum")
        made[w] = Part(together(b, everyone, [y], donate=(0,)), [1 if w != 2 else 0], (0.0,))
    many = Many([NUMPY] * 3, 2)
    for _ in range(2):  # nothing is used up
        fill(many, 1)
        assert many.run(made, 10) == {1: "", 2: "", 3: ""}
        np.testing.assert_array_equal(many.fetch(1, 10), [4, 40])
        assert many.fetch(2, 10).shape == (0,)
        assert isinstance(many.fetch(1, 1), Failure)  # donated


def test_reductions_of_every_dtype() -> None:
    check_reductions(Many([NUMPY] * 3))


def test_an_upload_of_which_a_part_is_kept() -> None:
    many = Many([NUMPY])
    whole = np.arange(24, dtype=np.float32).reshape(4, 6)
    many.upload(1, 1, whole, keep=(((1, 3),), ((0, 2), (4, 5))))
    many.upload(1, 2, whole, keep=(((0, 4),), ()))
    many.upload(1, 3, whole, keep=(((0, 5),), ((0, 6),)))
    many.work()
    np.testing.assert_array_equal(many.fetch(1, 1), whole[1:3][:, [0, 1, 4]])
    assert many.fetch(1, 2).shape == (4, 0)
    assert "ranges in order" in many.fetch(1, 3).text


# --- failures --------------------------------------------------------------------------------------------------------


def test_all_fail_where_one_does_and_the_next_call_runs() -> None:
    """The second worker's kernels fail: no state changes anywhere, and the groups of the next call are fresh."""
    faulty = Faulty(NUMPY)
    many = Many([NUMPY, faulty], 3)
    fill(many, 1)
    for w in PAIR:
        many.upload(w, 2, numbers(100, 200))
    for place in range(2):
        faulty.count, faulty.fail_at = 0, place
        bad = many.call(steps(PAIR, [2, 1]), 20 + 2 * place)
        behind = many.call(steps(PAIR, [20 + 2 * place, 1]), 30 + 2 * place)
        assert many.kinds(bad) == {1: "PeerFailed", 2: "WorkerError"}
        assert many.kinds(behind) == {1: "PeerFailed", 2: "WorkerError"}  # its state is what the failed one kept
        assert many.outcome(1, behind).root == many.outcome(2, behind).root == bad
        for w in PAIR:
            np.testing.assert_array_equal(many.fetch(w, 30 + 2 * place), [100, 200])
            assert isinstance(many.fetch(w, 21 + 2 * place), Failure)
        assert many.run(steps(PAIR, [30 + 2 * place, 1]), 40 + 2 * place, acked=behind) == {1: "", 2: ""}
        for w in PAIR:
            np.testing.assert_array_equal(many.fetch(w, 40 + 2 * place), [103, 230])
            many.upload(w, 2, numbers(100, 200))


def test_whoever_fails_before_it_runs_does_not_leave_the_others_waiting(pair: Many) -> None:
    fill(pair, 1)
    missing = {1: sums(PAIR, [7])[1], 2: sums(PAIR, [1])[2]}
    assert pair.run(missing, 10) == {1: "ProgramError", 2: "PeerFailed"}
    refused = pair.call(sums(PAIR, [1]), 20, refused=FAIL)
    assert pair.kinds(refused) == {1: "OutOfMemory", 2: "OutOfMemory"}
    assert pair.run(sums(PAIR, [1]), 30) == {1: "", 2: ""}


def test_memory_that_runs_out_between_collectives() -> None:
    b = [Builder((2,)) for _ in PAIR]
    made = {}
    for r, each in enumerate(b):
        once = each.add("all_reduce", 0, workers=PAIR, rank=r, kind="sum")
        large = each.add("expand", each.add("reshape", once, shape=(2, 1)), shape=(2, 50))
        large = each.add("add", large, large)
        summed = each.add("sum", large, dims=(1,), keepdim=False)
        again = each.add("all_reduce", summed, workers=PAIR, rank=r, kind="sum")
        made[r + 1] = Part(together(each, PAIR, [again]), [1])
    many = Many([NUMPY, NUMPY], 5, fake_memory=[0, 600])
    fill(many, 1)
    bad = many.call(made, 10)
    good = many.call(sums(PAIR, [1]), 20)
    assert many.kinds(bad) == {1: "PeerFailed", 2: "OutOfMemory"}
    assert many.outcome(2, bad).error.instruction == 3
    assert many.kinds(good) == {1: "", 2: ""}
    assert many.hall.count == {"all_reduce": 2}  # the first of the failed call, and the good call's


def test_a_bad_index_on_a_device_is_found_at_the_agreement() -> None:
    """Nothing is selected by a flag: the host looks at it before the commit."""
    engines = [Device(NUMPY), Device(NUMPY)]
    many = Many(engines, 6)
    made = {}
    for r in range(2):
        b = Builder((3,), (2,), (3,), kinds={1: "int64"})
        total = b.add("all_reduce", b.add("gather", 2, 1, dim=0), workers=PAIR, rank=r, kind="sum")
        new = b.add("assign", 0, b.add("add", 0, b.add("sum", total, dims=(0,), keepdim=False)))
        made[r + 1] = Part(together(b, PAIR, [new], donate=(0,), updates=((0, 0),)), [1, 2, 3])
    for w, index in ((1, [0, 1]), (2, [0, 9])):
        many.upload(w, 1, numbers(1, 2, 3))
        many.upload(w, 2, np.array(index))
        many.upload(w, 3, numbers(5, 6, 7))
    bad = many.call(made, 10)
    for engine in engines:
        engine.done = 1 << 30
    assert many.kinds(bad) == {1: "PeerFailed", 2: "IndexOutOfRange"}
    assert many.outcome(2, bad).error.instruction == 0
    for w in PAIR:
        many.request += 1
        np.testing.assert_array_equal(many.fetch(w, 10), [1, 2, 3])


@pytest.mark.parametrize("when", range(12))
def test_a_worker_that_dies_leaves_nobody_waiting(when: int) -> None:
    many = filled(3, when)
    seqs = [many.call(sums((1, 2, 3), [1]), 10 * (k + 1)) for k in range(2)]
    for _ in range(when):
        many.step()
    many.kill(2)
    many.work()
    for seq in seqs:
        kinds = many.kinds(seq)
        assert set(kinds) == {1, 3}
        assert kinds[1] == kinds[3]
    assert many.run(sums((1, 3), [1]), 50) == {1: "", 3: ""}


@pytest.mark.parametrize("when", range(10))
def test_a_session_that_is_closed_leaves_nobody_waiting(when: int) -> None:
    many = Many([NUMPY] * 2, when)
    for session in (1, 2):
        fill(many, 1, session)
    many.call(sums(PAIR, [1]), 10)
    many.call(sums(PAIR, [1]), 20)
    other = many.call(sums(PAIR, [1]), 10, session=2)
    for _ in range(when):
        many.step()
    many.close(1)
    assert many.kinds(other) == {1: "", 2: ""}
    assert all(core.number and not core.busy for core in many.cores.values())


def test_a_session_that_comes_back_runs_calls_with_others() -> None:
    """It was on another worker in between; there and here it is like a new one."""
    many = Many([NUMPY] * 2, 0)
    fill(many, 1)
    many.cores[1].receive(CloseSession(1))
    many.work()
    many.upload(1, 1, numbers(1, 10))
    assert many.run(sums(PAIR, [1]), 10) == {1: "", 2: ""}


# --- order and memory ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_calls_run_in_the_order_in_which_they_came_over_all_sessions(seed: int) -> None:
    """Plain calls and fetches of others are served while one waits; nothing of its own session is."""
    many = Many([NUMPY] * 3, seed)
    for session in (1, 2, 3):
        fill(many, 1, session)
    seqs = []
    for k in range(3):
        seqs.append(many.call(sums((1, 2), [1]), 100 + 10 * k, session=1))
        seqs.append(many.call({w: Part(NEG, [100 + 10 * k]) for w in (1, 2)}, 500 + k, session=1))
        seqs.append(many.call(sums((2, 3), [1]), 100 + 10 * k, session=2))
        seqs.append(many.call(sums((1, 3), [1]), 100 + 10 * k, session=3))
        seqs.append(many.call(sums((1, 2, 3), [1]), 200 + 10 * k, session=3))
    many.work()
    for seq in seqs:
        assert set(many.kinds(seq).values()) == {""}, seq
    np.testing.assert_array_equal(many.fetch(1, 502, session=1), [3, 30])
    assert len(many.cores[2]._groups) == 3
    many.close(3)
    assert len(many.cores[2]._groups) == 2


def test_a_worker_that_waits_serves_others() -> None:
    many = filled(2)
    fill(many, 1, session=2)
    made = sums(PAIR, [1])
    seq = many.call({1: made[1]}, 10)
    behind = many.call({1: Part(NEG, [10])}, 15)
    assert many.kinds(seq) == {}  # the other has not heard of it yet
    other = many.call({1: Part(NEG, [1])}, 10, session=2)
    assert many.kinds(other) == {1: ""}
    np.testing.assert_array_equal(many.fetch(1, 10, session=2), [-1, -10])
    many.seq = seq - 1
    many.call({2: made[2]}, 10)
    assert many.kinds(seq) == {1: "", 2: ""}
    assert many.kinds(behind) == {1: ""}


def test_a_group_that_was_long_unused_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives, "IDLE", 3)
    many = filled(3, 0)
    for workers in ((1, 2), (1, 3), (1, 3), (1, 3), (1, 3), (2, 3), (1, 2)):
        assert set(many.run(sums(workers, [1]), 10).values()) == {""}
    generations = {key.workers: key.generation for key in many.hall.meetings}
    assert generations == {(1, 2): 1, (1, 3): 0, (2, 3): 0}


def test_groups_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives, "GROUPS", 1)
    many = filled(3, 0)
    many.call(sums((1, 2), [1]), 10)
    bad = many.call(sums((1, 3), [1]), 20)
    assert many.kinds(bad) == {1: "WorkerError", 3: "PeerFailed"}
    assert "limit" in many.outcome(1, bad).error.text


def test_programs_of_several_workers_stay_until_they_are_to_be_forgotten() -> None:
    many = Many([NUMPY, NUMPY], cache_bytes=1)
    fill(many, 1)
    for _ in range(2):
        many.call(sums(PAIR, [1]), 10)
        many.call({w: Part(NEG, [1]) for w in PAIR}, 20)
        many.work()
    assert len(many.cores[1].programs) == 2
    program = sums(PAIR, [1])[1].program
    many.send(1, Forget(program.hash()))
    many.work()
    assert many.cores[1].programs.peek(program.hash()) is None


def test_parts_that_do_not_fit_together_are_named() -> None:
    many = Many([NUMPY, NUMPY])
    many.upload(1, 1, numbers(1, 2))
    many.upload(2, 1, numbers(1, 2, 3))
    made = {w: Part(sum_program(PAIR, r, 2 + r), [1], (1.0,)) for r, w in enumerate(PAIR)}
    seq = many.call(made, 10)
    many.work()
    assert sorted(many.kinds(seq).values()) == ["PeerFailed", "ProgramError"]


def test_a_part_that_is_not_for_this_worker_fails() -> None:
    many = filled(3)
    assert many.run({3: sums(PAIR, [1])[2]}, 10) == {3: "ProgramError"}


# --- everything at once ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", range(0, 120, 20))
def test_random_worlds(first: int) -> None:
    """Sessions on random groups, with calls that fail anywhere: each call ends alike on all its workers, as it would
    alone; state is that of the good calls; and nobody is left waiting."""
    for seed in range(first, first + 20):
        rng = random.Random(seed)
        faulty = {n: Faulty(NUMPY) for n in (1, 2, 3)}
        many = Many(list(faulty.values()), seed)
        state: dict[int, Any] = {}  # of each session: the id of its state, and its value
        for session in (1, 2):
            fill(many, 1, session)
            for w in many.cores:
                many.upload(w, 2, numbers(0, 0), session)
            state[session] = 2, numbers(0, 0)
        many.work()
        for k in range(8):
            session = rng.choice((1, 2))
            workers = (1, 2, 3)
            id, value = state[session]
            new = 100 + 10 * k
            failing = rng.choice((0, 0, 1, 2, 3))
            for n, engine in faulty.items():
                engine.count, engine.fail_at = 0, rng.randrange(3) if n == failing else -1
            beside = many.call(sums(rng.choice(((1, 2), (2, 3), (1, 3))), [77]), 900 + 10 * k, 3 - session)
            seq = many.call(steps(workers, [id, 1]), new, session, acked=many.seq)
            many.work()
            kinds = many.kinds(seq)
            assert set(kinds) == set(workers), seed
            assert all(kinds.values()) if failing else not any(kinds.values()), (seed, kinds)
            assert set(many.kinds(beside).values()) == {"ProgramError"}
            state[session] = new, value if failing else value + numbers(6, 60)
        for session, (id, value) in state.items():
            for w in many.cores:
                np.testing.assert_array_equal(many.fetch(w, id, session), value, f"seed {seed}")
