"""Calls on their workers, one or several: how they are sent, counted, refused, and how they fail."""

from __future__ import annotations

import itertools
from dataclasses import replace

import msgspec
import pytest
from dispatching import (
    PLAIN,
    STEP,
    WRITE,
    at_the_input,
    calls,
    copies,
    fail,
    floats,
    planning,
    program,
    start,
    start_with_tensor,
    types,
)

from gt.dispatcher.planner.emit import Local
from gt.layout import split
from gt.program import Instruction, Program
from gt.transport import messages as msg

TWO = program(outputs=2)
COUNTS = pytest.mark.parametrize("count", [1, 2, 3])  #: of workers


# --- what a call does ------------------------------------------------------------------------


def test_a_call_is_sent_with_its_session_and_its_program_once(client, worker, x):
    define, call = worker.hears(client.call(PLAIN, [x], frees=b"", acked=0))
    assert define == msg.Define(PLAIN)
    assert call == msg.Call(client.number, 1, PLAIN.hash(), msg.pack_ids([x]), (), x + 1, b"", 0)
    (call,) = worker.hears(client.call(PLAIN, [x + 1]))
    assert (call.seq, call.outputs) == (2, x + 2)
    assert client.session.tensors[x + 2].spec is floats(8)


@COUNTS
def test_results_donations_and_frees_are_counted(hand, count):
    client, workers = start(hand, count)
    x, y = (client.upload(*workers) for _ in range(2))
    assert client.session.nbytes == 64 * count
    out = client.call(STEP, [x], (1.0,), frees=msg.pack_ids([y]))
    assert [call.frees for w in workers for call in calls(w, out)] == [msg.pack_ids([y])] * count
    assert set(client.session.tensors) == {y + 1}
    assert client.session.nbytes == 32 * count
    assert [w.state.nbytes for w in workers] == [32] * count
    out = client.free(y + 1)
    assert all(w.hears(out) == [msg.Free(client.number, msg.pack_ids([y + 1]))] for w in workers)
    assert [w.state.nbytes for w in workers] == [0] * count


def test_a_call_goes_to_all_workers_at_once_with_a_program_of_its_own(hand):
    client, workers, x = start_with_tensor(hand)
    out = client.call(STEP, [x], (0.5,))
    for worker in workers:
        define, call = worker.hears(out)
        assert isinstance(define, msg.Define)
        assert define.program.workers == (1, 2)
        assert call.program == define.program.hash() != STEP.hash()
        assert (msg.unpack_ids(call.inputs), call.scalars, call.refused) == ([x], (0.5,), None)
    assert client.hears(workers[0].done(client, 1)) == []
    assert client.hears(workers[1].done(client, 1, run_us=300)) == [msg.CallDone(0, 1, 300)]
    again = client.call(STEP, [client.next_id - 1], (0.5,))
    assert types(workers[0].hears(again)) == [msg.Call]


def test_constants_stand_behind_the_calls_scalars(hand):
    client, workers, x = start_with_tensor(hand)

    def with_constants(plan, inputs, home):
        return replace(plan, locals={n: replace(plan.locals[n], constants=(n, 0.25)) for n in plan.workers})

    hand.planner = planning(with_constants)
    out = client.call(STEP, [x], (0.5,))
    assert [call.scalars for w in workers for call in calls(w, out)] == [(0.5, 1, 0.25), (0.5, 2, 0.25)]


def test_results_have_the_layouts_that_the_plan_says(hand):
    client, workers, x = start_with_tensor(hand)
    hand.planner = planning(lambda plan, inputs, home: replace(plan, outputs=(split(home, (8,), {0: "x"}),)))
    client.call(PLAIN, [x])
    y = client.session.tensors[client.next_id - 1]
    assert (repr(y.layout), y.parts, y.nbytes) == ("[8@x]", {1: 16, 2: 16}, 32)
    assert [w.state.nbytes for w in workers] == [48, 48]
    out = client.free(x)
    assert all(types(w.hears(out)) == [msg.Free] for w in workers)
    assert [w.state.nbytes for w in workers] == [16, 16]


def test_calls_of_other_workers_are_told_in_order(hand):
    client, workers = start(hand, 2)
    client.set_mesh("a", (0,), x=1)
    client.set_mesh("b", (1,), x=1)
    hand.planner = planning(at_the_input)
    x = client.upload(workers[0], layout="a: []")
    y = client.upload(workers[1], layout="b: []")
    out = client.call(PLAIN, [x])
    assert [len(calls(w, out)) for w in workers] == [1, 0]
    out = client.call(PLAIN, [y])
    assert [len(calls(w, out)) for w in workers] == [0, 1]
    assert client.hears(workers[1].failed(client, 2)) == []
    assert types(client.hears(workers[0].done(client, 1))) == [msg.CallFailed, msg.CallDone]


def test_frees_and_donations_reach_workers_that_do_not_run_the_call(hand):
    client, workers = start(hand, 2)
    client.set_mesh("a", (0,), x=1)
    x = client.upload(workers[0], layout="a: []")
    z = client.upload(*workers)
    hand.planner = planning(lambda plan, inputs, home: replace(plan, workers=(1,), outputs=tuple(inputs)))
    out = client.call(STEP, [x], (0.5,), frees=msg.pack_ids([z]))
    (call,) = calls(workers[0], out)
    assert msg.unpack_ids(call.frees) == [z]
    (free,) = workers[1].hears(out)
    assert msg.unpack_ids(free.ids) == [z, x]


# --- failures --------------------------------------------------------------------------------


@COUNTS
def test_a_failed_call_is_relayed_counts_as_done_and_holds_no_bytes(hand, count):
    client, workers, x = start_with_tensor(hand, count)
    client.call(PLAIN, [x])
    client.call(PLAIN, [x + 1])
    assert client.session.nbytes == 96 * count
    failed, done = client.hears(fail(client, workers, 1))
    assert (failed.session, failed.seq, failed.root) == (0, 1, 1)
    assert done.seq == 1
    assert [w.state.nbytes for w in workers] == [64] * count
    failed, _ = client.hears(fail(client, workers, 2, root=1))
    assert (failed.seq, failed.root) == (2, 1)
    assert client.session.nbytes == 32 * count
    assert all(w.state.lane.calls == 0 for w in workers)


def test_one_failure_fails_the_call_and_is_told_when_all_have_answered(hand):
    client, workers, x = start_with_tensor(hand, 3)
    client.call(program(), [x])
    assert client.hears(workers[0].failed(client, 1, kind="PeerFailed", text="another")) == []
    assert client.hears(workers[1].failed(client, 1, kind="IndexOutOfRange", text="this")) == []
    out = workers[2].failed(client, 1, kind="PeerFailed", text="another")
    assert client.hears(out) == [msg.CallFailed(0, 1, 1, msg.Failure("IndexOutOfRange", "this")), msg.CallDone(0, 1, 0)]
    for worker in workers:  # its result is of no use to anybody
        assert [msg.unpack_ids(m.ids) for m in worker.hears(out, msg.Free)] == [[x + 1]]
    assert client.fetch_error(x + 1).text == "this"
    assert [w.state.nbytes for w in workers] == [32] * 3


def test_a_failure_is_told_of_the_clients_program(hand):
    """Its op and instruction, whatever the worker's own program runs for it."""
    client, workers, x = start_with_tensor(hand)

    def planner(checked, inputs, home, meshes, ways, split_new):
        made = copies(checked, inputs, home, meshes)
        code = (Instruction("neg", (0,), {}), *checked.program.code)
        local = msgspec.structs.replace(checked.program, code=code, outputs=(2,), workers=made.workers)
        return replace(made, locals=dict.fromkeys(made.workers, Local(local, (), (0, 0))))

    hand.planner = planner
    (call,) = calls(workers[0], client.call(PLAIN, [x]))
    error = msg.Failure("IndexOutOfRange", "neg: 9 is too much", call.program, 0)
    workers[0].say(msg.CallFailed(client.number, 1, 1, error))
    failed, _ = client.hears(workers[1].failed(client, 1, kind="PeerFailed"))
    assert failed.error == msg.Failure("IndexOutOfRange", f"{PLAIN.code[0].op}: 9 is too much", PLAIN.hash(), 0)


def test_if_all_only_saw_others_fail_that_is_told(hand):
    client, workers, x = start_with_tensor(hand)
    client.call(PLAIN, [x])
    failed, _ = client.hears(fail(client, workers, 1, kind="PeerFailed", text="in time"))
    assert failed.error.kind == "PeerFailed"


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_of_several_failures_the_one_with_the_earliest_root_is_told(hand, order):
    """In whatever order the workers answer: one has a result of call 1, which failed; one fails by itself."""
    client, workers, x = start_with_tensor(hand, 3)
    client.call(PLAIN, [x])
    fail(client, workers, 1, kind="PeerFailed")
    client.call(PLAIN, [x])
    answers = [("PeerFailed", 2), ("PeerFailed", 1), ("IndexOutOfRange", 2)]
    for k in order:
        kind, root = answers[k]
        out = workers[k].failed(client, 2, kind=kind, root=root)
    failed, *_ = client.hears(out)
    assert (failed.seq, failed.root, failed.error.kind) == (2, 1, "PeerFailed")


@pytest.mark.parametrize("early", [False, True])
def test_what_a_worker_blames_on_a_call_is_blamed_on_what_that_failed_for(hand, early):
    """The second worker has nothing of what call 1 made: it only sees that the first one fails in call 2. What call 2
    has kept, it keeps for that, and so it fails in call 3."""
    client, workers, x = start_with_tensor(hand)
    one, other = workers
    why, seen = msg.Failure("IndexOutOfRange", "this"), msg.Failure("PeerFailed", "another")
    for what, inputs, scalars in ((PLAIN, [x], ()), (STEP, [x], (0.5,)), (STEP, [x + 2], (0.5,))):
        client.call(what, inputs, scalars)
    answers = [(one, 1, 1, why), (other, 1, 1, why), (other, 2, 2, seen), (other, 3, 2, seen), (one, 3, 2, seen)]
    answers.insert(2 if early else 4, (one, 2, 1, why))
    heard = [
        m for worker, seq, root, error in answers
        for m in client.hears(worker.failed(client, seq, root, error.text, error.kind))
    ]  # fmt: skip
    failed = [m for m in heard if isinstance(m, msg.CallFailed)]
    assert failed == [msg.CallFailed(0, seq, 1, why) for seq in (1, 2, 3)]


@COUNTS
def test_a_failed_step_keeps_what_it_was_to_replace(hand, count):
    client, workers, x = start_with_tensor(hand, count)
    client.call(STEP, [x], (0.5,))
    fail(client, workers, 1)
    assert client.session.tensors[x + 1].parts == {w.number: 32 for w in workers}
    assert client.lost(x + 1) is None
    assert x not in client.session.tensors


def test_a_torn_call_keeps_nothing(hand):
    client, workers, x = start_with_tensor(hand)
    client.call(STEP, [x], (0.5,))
    workers[0].done(client, 1)
    out = workers[1].failed(client, 1)
    assert client.lost(x + 1)
    assert [msg.unpack_ids(m.ids) for m in workers[0].hears(out, msg.Free)] == [[x + 1]]
    assert [w.state.nbytes for w in workers] == [0, 0]


def test_a_chain_of_failed_updates_without_a_value_counts_nothing(hand):
    """A model that was lost with its worker must not fill the next one with bytes that are not there."""
    first, client = hand.worker(memory=40), hand.client(STEP)
    x = client.upload(first)
    first.die()
    second = hand.worker(memory=40)
    for _ in range(3):
        failed, _ = client.hears(client.call(STEP, [x], (1.0,)))
        assert failed.error.kind == "LostError"
        x = client.next_id - 1
    assert client.session.nbytes == 0
    y = client.upload(second)  # there is room for a new model
    assert client.lost(y) is None


# --- calls that may not run ------------------------------------------------------------------


def test_a_call_over_the_memory_is_refused_in_order(hand):
    worker = hand.worker(memory=100)
    client, other = hand.client(TWO), hand.client()
    x, y = client.upload(worker), client.upload(worker)
    other.upload(worker, n=1)
    (call,) = calls(worker, client.call(TWO, [x]))
    assert call.refused is not None
    assert call.refused.kind == "OutOfMemory"
    assert "64 bytes" in call.refused.text  # what it needs
    assert "36 bytes free of 100 bytes; this session holds 64 bytes there" in call.refused.text  # nothing of the other
    assert client.session.nbytes == 64  # its results hold nothing
    failed, done = client.hears(worker.failed(client, 1))
    assert (failed.seq, done.seq) == (1, 1)
    # With room, it runs.
    client.free(y)
    (call,) = calls(worker, client.call(TWO, [x]))
    assert call.refused is None


@pytest.mark.parametrize(
    ("memory", "uploads", "what", "inputs", "more", "refused", "left"),
    [
        pytest.param(40, 1, STEP, [1], {"scalars": (1.0,)}, True, {2}, id="a refused update keeps its value"),
        pytest.param(64, 2, WRITE, [1, 2], {}, False, {2, 3}, id="what overwrites a donated input needs none"),
        pytest.param(96, 2, TWO, [1], {"frees": msg.pack_ids([2])}, False, {1, 3, 4}, id="what a call frees is room"),
    ],
)
def test_the_memory_that_a_call_needs(hand, memory, uploads, what, inputs, more, refused, left):
    worker, client = hand.worker(memory=memory), hand.client(what)
    for _ in range(uploads):
        client.upload(worker)
    (call,) = calls(worker, client.call(what, inputs, **more))
    assert (call.refused is not None) == refused
    assert client.session.nbytes == 32 * len(left)
    assert set(client.session.tensors) == left


def test_a_call_that_finds_no_memory_somewhere_is_refused_everywhere(hand):
    workers = [hand.worker(1000, "a"), hand.worker(40, "b")]
    client = hand.client(STEP, x=2)
    x = client.upload(*workers)
    out = client.call(STEP, [x], (0.5,))
    for worker in workers:
        (call,) = calls(worker, out)
        assert call.refused.kind == "OutOfMemory"
        assert "32 bytes on worker 2, which can have 8 bytes free of 40 bytes" in call.refused.text
        (define,) = worker.hears(out, msg.Define)
        assert define.program.workers == ()  # nobody has to wait for anybody
        assert define.program.updates == ((0, 0),)
        assert define.program.hash() == call.program
    fail(client, workers, 1, kind="OutOfMemory")
    assert client.session.tensors[x + 1].parts == {1: 32, 2: 32}


def test_lost_inputs_are_known_here_and_the_rest_is_kept(hand):
    client, workers, x = start_with_tensor(hand)
    both = Program(
        (((8,), "float32"), ((8,), "float32")), "",
        (Instruction("add", (0, 1), {}), Instruction("mul", (0, 1), {})), (2, 3), (0,), ((0, 0),),
    )  # fmt: skip
    client.define(both)
    client.call(PLAIN, [x])
    fail(client, workers, 1)
    out = client.call(both, [x, x + 1])
    for worker in workers:
        (call,) = calls(worker, out)
        assert (call.refused.text, call.root) == ("no", 1)
        assert msg.unpack_ids(worker.hears(out)[-1].ids) == [x + 3]
        worker.failed(client, 2, root=1)
    assert client.session.tensors[x + 2].parts == {1: 32, 2: 32}
    assert client.lost(x + 3).text == "no"
    assert client.session.done == 2
