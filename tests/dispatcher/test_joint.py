"""Calls of sessions on several workers: plans, failures, refusals, turns."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from dispatching import PLAIN, STEP, Client, FakeWorker, Hand, Settings, copies, program, start

from gt.dispatcher import plans
from gt.dispatcher.events import MakePlan
from gt.dispatcher.log import InstructionLog
from gt.dispatcher.planner.emit import Local
from gt.errors import ArgumentError
from gt.layout import split
from gt.program import Instruction, Program
from gt.transport.messages import Call, CallDone, CallFailed, Define, Failure, Forget, Free, Need, pack_ids, unpack_ids


@pytest.fixture
def hand() -> Hand:
    return Hand()


def calls(worker: FakeWorker, out: list) -> list[Call]:
    return [m for m in worker.hears(out) if isinstance(m, Call)]


def finish(client: Client, workers: list[FakeWorker], seq: int) -> list:
    return [action for w in workers for action in w.done(client, seq)]


# --- calls -----------------------------------------------------------------------------------


def test_a_call_goes_to_all_workers_at_once_with_a_program_of_its_own(hand):
    client, workers = start(hand)
    x = client.upload(workers[0], 8, workers[1])
    out = client.call(STEP, [x], (0.5,))
    for worker in workers:
        define, call = worker.hears(out)
        assert isinstance(define, Define)
        assert define.program.workers == (1, 2)
        assert call.program == define.program.hash() != STEP.hash()
        assert (unpack_ids(call.inputs), call.scalars, call.refused) == ([x], (0.5,), None)
    assert client.hears(workers[0].done(client, 1)) == []
    assert client.hears(workers[1].done(client, 1, run_us=300)) == [CallDone(0, 1, 300)]
    again = client.call(STEP, [client.next_id - 1], (0.5,))
    assert [type(m) for m in workers[0].hears(again)] == [Call]


def test_constants_stand_behind_the_calls_scalars(hand):
    client, workers = start(hand)

    def planner(checked, inputs, home, meshes):
        made = copies(checked, inputs, home, meshes)
        locals_ = {n: msgspec_free(made.locals[n], (n, 0.25)) for n in made.workers}
        return replaced(made, locals=locals_)

    hand.planner = planner
    x = client.upload(workers[0], 8, workers[1])
    out = client.call(STEP, [x], (0.5,))
    assert [call.scalars for w in workers for call in calls(w, out)] == [(0.5, 1, 0.25), (0.5, 2, 0.25)]


def replaced(made, **fields):
    return type(made)(**{**{name: getattr(made, name) for name in made.__slots__}, **fields})


def msgspec_free(local, constants):
    return type(local)(local.program, constants)


def test_a_plan_is_made_outside_and_only_its_session_waits(hand):
    client, workers = start(hand)
    hand.checking = False
    x = client.upload(workers[0], 8, workers[1])
    out = client.call(PLAIN, [x])
    (job,) = hand.pending
    assert isinstance(job, MakePlan)
    assert calls(workers[0], out) == []
    twin = hand.client()
    twin.set_mesh(x=2)
    y = twin.upload(workers[0], 8, workers[1])
    twin.call(PLAIN, [y])
    assert hand.pending == [job]  # the same plan: it is asked for once
    other = hand.client()
    z = other.upload(workers[0])
    assert calls(workers[0], other.call(PLAIN, [z]))
    workers[0].done(other, 1)
    out = hand.feed(hand.ready(job))
    assert [(c.session, c.seq) for c in calls(workers[1], out)] == [(client.number, 1), (twin.number, 1)]
    assert hand.feed(hand.ready(job)) == []  # nobody waits for it


def test_results_lie_as_the_plan_says(hand):
    client, workers = start(hand, 2)

    def planner(checked, inputs, home, meshes):
        return replaced(copies(checked, inputs, home, meshes), outputs=(split(home, (8,), {0: "x"}),))

    hand.planner = planner
    x = client.upload(workers[0], 8, workers[1])
    client.call(PLAIN, [x])
    y = client.session.tensors[client.next_id - 1]
    assert (repr(y.layout), y.parts, y.nbytes) == ("[8@x]", {1: 16, 2: 16}, 32)
    assert [w.state.nbytes for w in workers] == [48, 48]
    out = client.free(x)
    assert all([type(m) for m in w.hears(out)] == [Free] for w in workers)
    assert [w.state.nbytes for w in workers] == [16, 16]


def test_one_failure_fails_the_call_and_is_told_when_all_have_answered(hand):
    client, workers = start(hand, 3)
    x = client.upload(workers[0], 8, *workers[1:])
    client.call(program(), [x])
    assert client.hears(workers[0].failed(client, 1, kind="PeerFailed", text="another")) == []
    assert client.hears(workers[1].failed(client, 1, kind="IndexOutOfRange", text="this")) == []
    out = workers[2].failed(client, 1, kind="PeerFailed", text="another")
    assert client.hears(out) == [CallFailed(0, 1, 1, Failure("IndexOutOfRange", "this")), CallDone(0, 1, 0)]
    for worker in workers:  # its result is of no use to anybody
        assert [unpack_ids(m.ids) for m in worker.hears(out) if isinstance(m, Free)] == [[x + 1]]
    (failed,) = client.hears(client.fetch(1, x + 1))
    assert failed.error.text == "this"
    assert [w.state.nbytes for w in workers] == [32] * 3


def test_a_failure_is_told_of_the_clients_program(hand):
    """Its op and instruction, whatever the worker's own program runs for it."""
    client, workers = start(hand)

    def planner(checked, inputs, home, meshes):
        made = copies(checked, inputs, home, meshes)
        code = (Instruction("neg", (0,), {}), *checked.program.code)
        local = msgspec.structs.replace(checked.program, code=code, outputs=(2,), workers=made.workers)
        return replaced(made, locals=dict.fromkeys(made.workers, Local(local, (), (0, 0))))

    hand.planner = planner
    x = client.upload(workers[0], 8, workers[1])
    (call,) = calls(workers[0], client.call(PLAIN, [x]))
    error = Failure("IndexOutOfRange", "neg: 9 is too much", call.program, 0)
    workers[0].say(CallFailed(client.number, 1, 1, error))
    failed, _ = client.hears(workers[1].failed(client, 1, kind="PeerFailed"))
    assert failed.error == Failure("IndexOutOfRange", f"{PLAIN.code[0].op}: 9 is too much", PLAIN.hash(), 0)


def test_if_all_only_saw_others_fail_that_is_told(hand):
    client, workers = start(hand)
    x = client.upload(workers[0], 8, workers[1])
    client.call(PLAIN, [x])
    workers[0].failed(client, 1, kind="PeerFailed", text="in time")
    failed, _ = client.hears(workers[1].failed(client, 1, kind="PeerFailed", text="in time"))
    assert failed.error.kind == "PeerFailed"


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_of_several_failures_the_one_with_the_earliest_root_is_told(hand, order):
    """In whatever order the workers answer: one has a result of call 1, which failed; one fails by itself."""
    client, workers = start(hand, 3)
    x = client.upload(workers[0], 8, *workers[1:])
    client.call(PLAIN, [x])
    for worker in workers:
        worker.failed(client, 1, kind="PeerFailed")
    client.call(PLAIN, [x])
    answers = [("PeerFailed", 2), ("PeerFailed", 1), ("IndexOutOfRange", 2)]
    for k in order:
        kind, root = answers[k]
        out = workers[k].failed(client, 2, kind=kind, root=root)
    failed, *_ = client.hears(out)
    assert (failed.seq, failed.root, failed.error.kind) == (2, 1, "PeerFailed")


def test_a_failed_step_keeps_what_it_was_to_replace(hand):
    client, workers = start(hand)
    x = client.upload(workers[0], 8, workers[1])
    client.call(STEP, [x], (0.5,))
    for worker in workers:
        worker.failed(client, 1)
    assert client.session.tensors[x + 1].parts == {1: 32, 2: 32}
    assert client.session.tensors[x + 1].lost is None
    assert x not in client.session.tensors


def test_a_torn_call_keeps_nothing(hand):
    client, workers = start(hand)
    x = client.upload(workers[0], 8, workers[1])
    client.call(STEP, [x], (0.5,))
    workers[0].done(client, 1)
    out = workers[1].failed(client, 1)
    assert client.session.tensors[x + 1].lost
    assert [unpack_ids(m.ids) for m in workers[0].hears(out) if isinstance(m, Free)] == [[x + 1]]
    assert [w.state.nbytes for w in workers] == [0, 0]


def test_calls_of_other_workers_are_told_in_order(hand):
    client, workers = start(hand, 2)
    client.set_mesh("a", (0,), x=1)
    client.set_mesh("b", (1,), x=1)

    def planner(checked, inputs, home, meshes):
        made = copies(checked, inputs, home, meshes)
        (at,) = {i.mesh.workers for i in inputs}
        return replaced(made, workers=at, outputs=tuple(inputs))

    hand.planner = planner
    x = client.upload(workers[0], layout="a: []")
    y = client.upload(workers[1], layout="b: []")
    out = client.call(PLAIN, [x])
    assert [len(calls(w, out)) for w in workers] == [1, 0]
    out = client.call(PLAIN, [y])
    assert [len(calls(w, out)) for w in workers] == [0, 1]
    assert client.hears(workers[1].failed(client, 2)) == []
    assert [type(m) for m in client.hears(workers[0].done(client, 1))] == [CallFailed, CallDone]


def test_frees_and_donations_reach_workers_that_do_not_run_the_call(hand):
    client, workers = start(hand, 2)
    client.set_mesh("a", (0,), x=1)
    x = client.upload(workers[0], layout="a: []")
    z = client.upload(workers[0], 8, workers[1])

    def planner(checked, inputs, home, meshes):
        return replaced(copies(checked, inputs, home, meshes), workers=(1,), outputs=tuple(inputs))

    hand.planner = planner
    out = client.call(STEP, [x], (0.5,), frees=pack_ids([z]))
    (call,) = calls(workers[0], out)
    assert unpack_ids(call.frees) == [z]
    (free,) = workers[1].hears(out)
    assert unpack_ids(free.ids) == [z, x]


# --- calls that may not run ------------------------------------------------------------------


def test_a_call_that_finds_no_memory_somewhere_is_refused_everywhere(hand):
    workers = [FakeWorker(hand, 1000, "a"), FakeWorker(hand, 40, "b")]
    client = hand.client()
    client.set_mesh(x=2)
    client.define(STEP)
    x = client.upload(workers[0], 8, workers[1])
    out = client.call(STEP, [x], (0.5,))
    for worker in workers:
        (call,) = calls(worker, out)
        assert call.refused.kind == "OutOfMemory"
        assert "32 bytes on worker 2, which has 8 bytes free of 40 bytes" in call.refused.text
        (define,) = [m for m in worker.hears(out) if isinstance(m, Define)]
        assert define.program.workers == ()  # nobody has to wait for anybody
        assert define.program.updates == ((0, 0),)
        assert define.program.hash() == call.program
    for worker in workers:
        worker.failed(client, 1, kind="OutOfMemory")
    assert client.session.tensors[x + 1].parts == {1: 32, 2: 32}


def test_lost_inputs_are_known_here_and_the_rest_is_kept(hand):
    client, workers = start(hand)
    both = Program(
        (((8,), "float32"), ((8,), "float32")), "",
        (Instruction("add", (0, 1), {}), Instruction("mul", (0, 1), {})), (2, 3), (0,), ((0, 0),),
    )  # fmt: skip
    client.define(both)
    x = client.upload(workers[0], 8, workers[1])
    client.call(PLAIN, [x])
    for worker in workers:
        worker.failed(client, 1)
    out = client.call(both, [x, x + 1])
    for worker in workers:
        (call,) = calls(worker, out)
        assert (call.refused.text, call.root) == ("no", 1)
        assert unpack_ids(worker.hears(out)[-1].ids) == [x + 3]
        worker.failed(client, 2, root=1)
    assert client.session.tensors[x + 2].parts == {1: 32, 2: 32}
    assert client.session.tensors[x + 3].lost.text == "no"
    assert client.session.done == 2


def test_a_program_that_cannot_be_planned_fails_its_calls_and_changes_nothing(hand):
    client, workers = start(hand)

    def planner(*_):
        raise ArgumentError("shard: the session has no mesh 'nowhere'")

    hand.planner = planner
    x = client.upload(workers[0], 8, workers[1])
    out = client.call(STEP, [x], (0.5,))
    (call,) = calls(workers[0], out)
    assert (call.refused.kind, call.refused.text) == ("ArgumentError", "shard: the session has no mesh 'nowhere'")
    for worker in workers:
        worker.failed(client, 1)
    assert client.session.tensors[x + 1].parts == {1: 32, 2: 32}


def test_a_planner_that_breaks_is_no_harm(hand):
    client, workers = start(hand)
    hand.planner = lambda *_: 1 // 0
    x = client.upload(workers[0], 8, workers[1])
    (call,) = calls(workers[0], client.call(PLAIN, [x]))
    assert "could not be planned: ZeroDivisionError" in call.refused.text


def test_clients_write_no_joint_programs(hand):
    client, _ = start(hand)
    named = msgspec.structs.replace(PLAIN, workers=(1, 2))
    (rejected,) = client.hears(client.define(named))
    assert "names no workers" in rejected.text
    attrs = {"workers": [1, 2], "rank": 0, "kind": "sum"}
    together = Program((((8,), "float32"),), "", (Instruction("all_reduce", (0,), attrs),), (1,), (), ())
    (rejected,) = client.hears(client.define(together))
    assert "only the planner" in rejected.text


# --- the cache -------------------------------------------------------------------------------


def test_local_programs_are_forgotten_with_their_program():
    hand = Hand(Settings(cache_bytes=6000))
    client, workers = start(hand)
    x = client.upload(workers[0], 8, workers[1])
    out = client.call(PLAIN, [x])
    (call,) = calls(workers[0], out)
    finish(client, workers, 1)
    assert hand.state.programs.nbytes > PLAIN_NBYTES
    out = [action for k in range(2, 12) for action in client.define(program(length=k))]
    assert call.program in [m.program for m in workers[0].hears(out) if isinstance(m, Forget)]
    assert all(call.program not in w.state.programs for w in workers)
    assert hand.state.programs.local_counts() == {}


PLAIN_NBYTES = 600


def test_a_local_program_that_a_worker_has_forgotten_is_sent_again(hand):
    client, workers = start(hand)
    x = client.upload(workers[0], 8, workers[1])
    (call,) = calls(workers[0], client.call(PLAIN, [x]))
    (define,) = workers[0].hears(hand.say(workers[0].results, Need(call.program)))
    assert define.program.hash() == call.program


def test_plans_of_one_program_are_bounded_and_those_in_use_stay(hand, monkeypatch):
    monkeypatch.setattr(plans, "PLANS_PER_PROGRAM", 8)
    client, workers = start(hand)
    x = client.upload(workers[0], 8, workers[1])
    client.call(PLAIN, [x])
    (entry,) = [e for e in hand.state.programs if e.hash == PLAIN.hash()]
    (plan,) = entry.plans.values()
    other = hand.client()
    other.set_mesh(x=2)
    y = other.upload(workers[0], 8, workers[1])
    for k in range(20):
        other.set_mesh(f"m{k % 16}", (k % 2,), **{f"a{k}": 1})
        other.call(PLAIN, [y])
        finish(other, workers, other.seq)
    assert len(entry.plans) == 8
    assert plan in entry.plans.values()


def test_plans_with_a_lost_worker_go(hand):
    client, workers = start(hand)
    x = client.upload(workers[0], 8, workers[1])
    (call,) = calls(workers[0], client.call(PLAIN, [x]))
    workers[1].die()
    (entry,) = [e for e in hand.state.programs if e.hash == PLAIN.hash()]
    # The one that is left still has the call, and may ask for its program.
    (define,) = workers[0].hears(hand.say(workers[0].results, Need(call.program)))
    assert define.program.hash() == call.program
    out = workers[0].failed(client, 1, kind="PeerFailed")
    assert client.hears(out) == []
    assert workers[0].hears(out) == [Forget(call.program)]
    assert not entry.plans
    assert not entry.uses


# --- turns -----------------------------------------------------------------------------------


def test_sessions_that_share_some_workers_never_wait_for_each_other(hand):
    """1 2, 2 3 and 3 1: each worker gets the calls it shares with another in the same order."""
    workers = hand.workers(3)
    order: dict[int, list[tuple[int, int]]] = {w.number: [] for w in workers}
    clients = []
    for k in range(3):
        client = hand.client()
        client.set_mesh(x=3)
        mine = list(client.session.workers)
        pair = client.set_mesh("pair", (mine.index(k + 1), mine.index((k + 1) % 3 + 1)), x=2).workers
        client.define(PLAIN)
        a, b = (workers[n - 1] for n in pair)
        clients.append((client, client.upload(a, 8, b, layout="pair: []")))

    def planner(checked, inputs, home, meshes):
        return replaced(copies(checked, inputs, home, meshes), workers=inputs[0].mesh.workers, outputs=tuple(inputs))

    hand.planner = planner

    def note(out: list) -> None:
        for w in workers:
            order[w.number] += [(c.session, c.seq) for c in calls(w, out)]

    for _ in range(20):
        for client, x in clients:
            note(client.call(PLAIN, [x]))
    at = dict.fromkeys(order, 0)
    for _ in range(200):
        for w in workers:
            if at[w.number] < len(order[w.number]):
                session, seq = order[w.number][at[w.number]]
                at[w.number] += 1
                note(w.say(CallDone(session, seq, 12_000)))
    assert all(client.session.done == 20 for client, _ in clients)
    for a in workers:
        for b in workers:
            common = [c for c in order[a.number] if c in order[b.number]]
            assert common == [c for c in order[b.number] if c in order[a.number]]


def test_a_call_for_two_takes_credit_on_both_or_on_none(hand):
    workers = hand.workers(2)
    busy = hand.client()
    busy.upload(workers[0])
    lone = hand.client()
    lone.define(PLAIN)
    y = lone.upload(workers[1])
    client = hand.client()
    client.set_mesh(x=2)
    x = client.upload(workers[0], 8, workers[1])
    for _ in range(4):
        lone.call(PLAIN, [y])  # two of them go: nobody knows how long it takes
    out = client.call(PLAIN, [x])
    assert [calls(w, out) for w in workers] == [[], []]
    assert workers[0].state.lane.calls == 0
    out = workers[1].done(lone, 1, run_us=20_000)
    assert [[c.session for c in calls(w, out)] for w in workers] == [[client.number], [client.number]]
    # The next of the one that waited meanwhile goes before the next of the other.
    client.call(PLAIN, [x])
    out = workers[1].done(lone, 2, run_us=20_000)
    assert [c.session for c in calls(workers[1], out)] == [lone.number]


# --- the log ---------------------------------------------------------------------------------


def test_the_log_shows_plans_for_several_workers(hand):
    client, workers = start(hand)
    lines: list[str] = []
    log = InstructionLog(lines.append, clock=lambda: 0.0)
    x = client.upload(workers[0], 8, workers[1])
    client.call(PLAIN, [x])
    for event, actions in zip(hand.events, hand.actions, strict=True):
        log(event)
        for action in actions:
            log(action)
    text = "".join(lines)
    (call,) = [m for m in workers[0].hears([a for each in hand.actions for a in each]) if isinstance(m, Call)]
    name = call.program.hex()[:8]
    assert f"{PLAIN.hash().hex()[:8]} (1 instructions) workers 1:{name} 2:{name} results []" in text
    assert "    | a note\n" in text
    assert "its own x=2" in text
