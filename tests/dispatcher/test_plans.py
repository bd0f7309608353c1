"""Programs and plans: made once, outside the event loop; bounded; forgotten with what they belong to."""

from __future__ import annotations

import msgspec
from dispatching import PLAIN, STEP, Hand, Settings, calls, fail, finish, program, start, start_with_tensor

from gt.dispatcher import plans
from gt.dispatcher.events import MakePlan
from gt.dispatcher.planner.plan import plan_program
from gt.errors import ArgumentError
from gt.layout import layout, mesh
from gt.ops.check import check
from gt.program import Instruction, Program
from gt.transport import messages as msg
from tests.sessions import raising

PLAIN_NBYTES = 600


def test_a_plan_is_made_outside_and_only_its_session_waits(hand):
    client, workers, x = start_with_tensor(hand)
    hand.checking = False
    out = client.call(PLAIN, [x])
    (job,) = hand.pending
    assert isinstance(job, MakePlan)
    assert calls(workers[0], out) == []
    twin = hand.client(PLAIN, x=2)
    twin.call(PLAIN, [twin.upload(*workers)])
    assert hand.pending == [job]  # the same plan: it is asked for once
    other = hand.client(PLAIN)
    assert calls(workers[0], other.call(PLAIN, [other.upload(workers[0])]))
    workers[0].done(other, 1)
    out = hand.feed(hand.ready(job))
    assert [(c.session, c.seq) for c in calls(workers[1], out)] == [(client.number, 1), (twin.number, 1)]
    assert hand.feed(hand.ready(job)) == []  # nobody waits for it


def test_a_plan_that_comes_too_late_replaces_none_in_use(hand):
    first, second = hand.workers(2)
    alone, client = hand.client(), hand.client(x=2)
    x = alone.upload(first)
    client.set_mesh(x=1)  # it keeps both workers, and computes on the one that the other session has
    y = client.upload(first)
    # It says where a value goes, so that several workers always plan it.
    placed = msgspec.structs.replace(PLAIN, code=(Instruction("shard", (0,), {"layout": ""}),))
    alone.define(placed)
    client.define(placed)
    hand.checking = False
    assert calls(first, client.call(placed, [y])) == []
    (job,) = hand.pending
    assert calls(first, alone.call(placed, [x]))  # the same layouts, and no planner is needed on one worker
    out = hand.feed(hand.ready(job))
    assert [c.session for c in calls(first, out)] == [client.number]
    assert calls(second, out) == []
    for each in (alone, client):
        assert msg.CallDone(0, 1, 100) in each.hears(first.done(each, 1))


def test_a_program_that_cannot_be_planned_fails_its_calls_and_changes_nothing(hand):
    client, workers, x = start_with_tensor(hand)
    hand.planner = raising(ArgumentError("shard: the session has no mesh 'nowhere'"))
    out = client.call(STEP, [x], (0.5,))
    (call,) = calls(workers[0], out)
    assert (call.refused.kind, call.refused.text) == ("ArgumentError", "shard: the session has no mesh 'nowhere'")
    fail(client, workers, 1)
    assert client.session.tensors[x + 1].parts == {1: 32, 2: 32}


def test_a_planner_that_breaks_is_no_harm(hand):
    client, workers, x = start_with_tensor(hand)
    hand.planner = lambda *_: 1 // 0
    (call,) = calls(workers[0], client.call(PLAIN, [x]))
    assert "could not be planned: ZeroDivisionError" in call.refused.text


def test_clients_write_no_joint_programs(hand):
    client, _ = start(hand)
    named = msgspec.structs.replace(PLAIN, workers=(1, 2))
    assert "must not name workers" in client.rejection(client.define(named))
    attrs = {"workers": [1, 2], "rank": 0, "kind": "sum"}
    together = Program((((8,), "float32"),), "", (Instruction("all_reduce", (0,), attrs),), (1,), (), ())
    assert "must not use collective ops" in client.rejection(client.define(together))


# --- the cache -------------------------------------------------------------------------------


def test_local_programs_are_forgotten_with_their_program():
    hand = Hand(Settings(cache_bytes=6000))
    client, workers, x = start_with_tensor(hand)
    out = client.call(PLAIN, [x])
    (call,) = calls(workers[0], out)
    finish(client, workers, 1)
    assert hand.state.programs.nbytes > PLAIN_NBYTES
    out = [action for k in range(2, 12) for action in client.define(program(length=k))]
    assert call.program in [m.program for m in workers[0].hears(out, msg.Forget)]
    assert all(call.program not in w.state.programs for w in workers)
    assert hand.state.programs.local_counts() == {}


def test_a_local_program_that_a_worker_has_forgotten_is_sent_again(hand):
    client, workers, x = start_with_tensor(hand)
    (call,) = calls(workers[0], client.call(PLAIN, [x]))
    (define,) = workers[0].hears(hand.say(workers[0].results, msg.Need(call.program)))
    assert define.program.hash() == call.program


def test_a_call_needs_the_memory_of_what_it_returns():
    """Also if a worker only cuts it out of an input: what is kept is copied."""
    checked = check(Program((((8,), "float32"),), "", (Instruction("shard", (0,), {"layout": "[8@x]"}),), (1,), (), ()))
    entry = plans.CachedProgram(b"", checked.program, 0, False, 0)
    entry.accept(checked)
    grid = mesh(x=2)
    whole = layout(grid)
    plan = plans.plan_together(entry, [whole], plan_program(checked, (whole,), grid, {}))
    assert [(local.need_nbytes, local.change_nbytes) for local in plan.locals.values()] == [(16, 16)] * 2


def test_plans_of_one_program_are_bounded_and_those_in_use_stay(hand, monkeypatch):
    monkeypatch.setattr(plans, "PLANS_PER_PROGRAM", 8)
    client, workers, x = start_with_tensor(hand)
    client.call(PLAIN, [x])
    (entry,) = [e for e in hand.state.programs if e.hash == PLAIN.hash()]
    (plan,) = entry.plans.values()
    other = hand.client(PLAIN, x=2)
    y = other.upload(*workers)
    for k in range(20):
        other.set_mesh(f"m{k % 16}", (k % 2,), **{f"a{k}": 1})
        other.call(PLAIN, [y])
        finish(other, workers, other.seq)
    assert len(entry.plans) == 8
    assert plan in entry.plans.values()


def test_plans_with_a_lost_worker_go(hand):
    client, workers, x = start_with_tensor(hand)
    (call,) = calls(workers[0], client.call(PLAIN, [x]))
    workers[1].die()
    (entry,) = [e for e in hand.state.programs if e.hash == PLAIN.hash()]
    # The one that is left still has the call, and may ask for its program.
    (define,) = workers[0].hears(hand.say(workers[0].results, msg.Need(call.program)))
    assert define.program.hash() == call.program
    out = workers[0].failed(client, 1, kind="PeerFailed")
    assert client.hears(out) == []
    assert workers[0].hears(out) == [msg.Forget(call.program)]
    assert not entry.plans
