"""Sessions on several workers: how they come to them, and what is left when they lose one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from dispatching import CREATE, PLAIN, STEP, calls, fail, planning, start, start_with_tensor, types

from gt.layout import whole
from gt.program import Instruction, Program
from gt.transport import messages as msg
from gt.transport.shared import nbytes_of

# --- coming to several -----------------------------------------------------------------------


def test_a_mesh_keeps_the_workers_there_are_and_takes_the_least_loaded(hand):
    workers = hand.workers(4)
    other = hand.client()
    other.upload(workers[0])  # on the first: it is the most loaded
    client = hand.client()
    client.upload(workers[1])
    assert client.set_mesh(x=2).workers == (2, 3)
    assert client.set_mesh(x=2, y=2).workers == (2, 3, 1, 4)
    assert client.session.first.number == 2
    assert list(client.session.workers) == [2, 3, 1, 4]
    assert client.set_mesh("stage", (3, 0), x=2).workers == (4, 2)
    assert client.set_mesh("stage", x=3).workers == (2, 3, 1)
    assert client.session.home.mesh.workers == (2, 3, 1, 4)


def test_a_mesh_of_fewer_takes_no_worker(hand):
    hand.workers(6)
    client = hand.client()
    assert client.set_mesh(x=3).workers == (1, 2, 3)
    assert client.session.first.number == 1
    assert client.set_mesh(x=2).workers == (1, 2)
    assert list(client.session.workers) == [1, 2, 3]


def test_sessions_on_the_same_workers_have_the_same_mesh(hand):
    workers = hand.workers(3)
    hand.client().upload(workers[0])  # the first is loaded; where all are needed that does not matter
    assert hand.client().set_mesh(x=3).workers == hand.client().set_mesh(x=3).workers == (1, 2, 3)


def test_a_mesh_of_one_leaves_the_session_as_it_is(client, worker):
    assert client.set_mesh(x=1).workers == (1,)
    x = client.upload(worker, layout="anything: it is not looked at")
    client.define(PLAIN)
    client.call(PLAIN, [x])
    (plan,) = [sent.plan for sent in client.session.sent.values()]
    assert plan.locals[1].program == PLAIN


def test_a_mesh_waits_for_workers_and_the_wait_has_an_end(hand):
    hand.workers(1)
    client = hand.client()
    wish = msg.SetMesh(7, "", (("x", 2),))
    assert client.hears(client.say(wish)) == []
    (refused,) = client.hears(client.say(msg.SetMesh(8, "", (("x", 2),))))
    assert "waiting" in refused.error
    late = hand.worker(0, "there:2")
    assert client.hears(late.joined, msg.MeshSet) == [msg.MeshSet(7, (1, 2))]

    assert client.hears(client.say(msg.SetMesh(9, "", (("x", 3),)))) == []
    hand.pass_time(14.0)
    (answer,) = client.hears(hand.pass_time(2.0))
    assert answer == msg.MeshSet(9, (), "a mesh of 3 workers; this server has 2")
    assert client.session.home.mesh.workers == (1, 2)


@pytest.mark.parametrize("size", [1, 2])
def test_what_waits_for_any_worker_goes_on_when_a_mesh_brings_one(hand, size):
    client = hand.client(CREATE)
    client.call(CREATE, [], (1.0,))
    client.say(msg.SetMesh(1, "", (("x", size),)))
    workers = [hand.worker(0, f"there:{i}") for i in range(size)]
    out = [action for w in workers for action in w.joined]
    assert [call.seq for w in workers for call in calls(w, out)] == [1]


def test_workers_without_an_address_run_nothing_with_others(hand):
    alone = hand.worker()
    client = hand.client()
    client.upload(alone)
    hand.workers(2)
    assert "together with others" in client.set_mesh(x=2).error
    assert hand.client().set_mesh(x=2).workers == (2, 3)


def test_everybody_hears_where_the_others_are(hand):
    first, second = hand.workers(2)
    expected = msg.Peers({1: "there:1", 2: "there:2"})
    assert first.hears(second.joined, msg.Peers) == [expected]
    assert second.hears(second.joined, msg.Peers) == [expected]
    third = hand.worker(0, "there:3")
    out = third.die()
    assert first.hears(out, msg.Peers) == [expected]
    out = second.die()  # the last one may wait for it
    assert first.hears(out, msg.Peers) == [msg.Peers({1: "there:1"})]


FIVE = tuple((f"a{i}", 1) for i in range(5))
NO_AXES = [(), (("x", 0),), (("x", -2),), (("x", 1), ("x", 1)), (("a b", 1),), (("", 1),), FIVE]
NO_MESHES = [msg.SetMesh(1, "", axes) for axes in NO_AXES]
NO_MESHES += [msg.SetMesh(1, name, (("x", 1),)) for name in ("no name", "n" * 65)]
NO_MESHES += [msg.SetMesh(1, "m", (("x", 2),), members) for members in ((0,), (0, 0), (-1, 0))]


@pytest.mark.parametrize("wish", NO_MESHES)
def test_what_is_no_mesh_changes_nothing(hand, wish):
    hand.workers(2)
    client = hand.client()
    (answer,) = client.hears(client.say(wish))
    assert answer.error
    assert not answer.workers
    assert not client.session.meshes
    assert not client.session.workers


def test_a_session_has_so_many_meshes_and_no_more(hand):
    hand.workers(2)
    client = hand.client()
    for k in range(16):
        assert not client.set_mesh(f"m{k}", x=2).error
    assert "16" in client.set_mesh("one_more", x=2).error
    assert not client.set_mesh("m3", x=1).error


def test_a_huge_mesh_only_waits(hand):
    hand.workers(1)
    client = hand.client()
    client.say(msg.SetMesh(1, "", (("x", 2**62), ("y", 2**62))))
    client.say(msg.SetMesh(1, "m", (("x", 1),), (2**62,)))
    assert client.hears(hand.pass_time(16.0))
    assert client.leave() == []
    assert not hand.state.wishes


def test_a_ring_is_one_workers(hand):
    workers = hand.workers(2)
    client = hand.client()
    client.upload(workers[0])
    client.say(msg.Share(0, 5, 3, "ring", 77))
    workers[0].say(msg.Shared(client.number, 5, True))
    first = msg.Chunk(0, 7, 0, 1 << 22, (1 << 20,), "float32", 0)
    client.say(first)
    assert client.hears(client.say(msg.SetMesh(1, "", (("x", 2),)))) == [msg.MeshSet(1, (1, 2))]
    # What began goes on, by messages; what names a slot now was never sent.
    assert client.say(msg.Chunk(0, 7, nbytes_of(first), 1 << 22, slot=1)) == []
    out = client.say(msg.Chunk(0, 7, nbytes_of(first), 1 << 22), bytes(8))
    assert [types(w.hears(out)) for w in workers] == [[msg.Chunk], []]
    assert client.hears(client.say(msg.Share(0, 6, 3, "ring", 77))) == [msg.Shared(0, 6, False)]


def test_statistics_know_of_several(hand):
    workers = hand.workers(3)
    client = hand.client(x=2)
    client.say(msg.GetStats(3))
    for worker in workers[:2]:
        worker.say(msg.Stats(1, {}))
    (stats,) = client.hears(workers[2].say(msg.Stats(1, {})))
    assert stats.data["session"]["workers"] == [1, 2]
    assert stats.data["session"]["meshes"] == {"": {"axes": {"x": 2}, "workers": [1, 2]}}
    assert [stats.data["workers"][n]["yours"] for n in "123"] == [True, True, False]


# --- values stay -----------------------------------------------------------------------------


def on_the_first_of_two(hand):
    """A client that has a tensor on the first of two workers, and knows no mesh."""
    first, second = hand.workers(2)
    client = hand.client(PLAIN)
    return client, first, second, client.upload(first)


def test_values_stay_where_they_are_when_a_session_gets_more_workers(hand):
    client, first, second, x = on_the_first_of_two(hand)
    client.call(PLAIN, [x])  # under way while the mesh is set
    client.set_mesh(x=2)
    (before,) = client.hears(first.done(client, 1), msg.CallDone)
    assert before.seq == 1
    assert client.session.tensors[x].layout is first.state.layout

    out = client.call(PLAIN, [x])
    (one,), (two,) = calls(first, out), calls(second, out)
    assert msg.unpack_ids(one.inputs) == [x]
    assert msg.unpack_ids(two.inputs) == [0]  # it holds nothing of it
    assert client.session.tensors[client.next_id - 1].parts == {1: 32, 2: 32}


def test_a_head_that_waits_when_the_mesh_is_set_still_goes(hand):
    client, first, second, x = on_the_first_of_two(hand)
    for _ in range(6):
        client.call(PLAIN, [x])
    waiting = client.session.head.call.seq
    client.set_mesh(x=2)
    out = [action for seq in range(1, 7) for w in (first, second) for action in w.done(client, seq)]
    assert [call.seq for call in calls(second, out)] == list(range(waiting + 1, 7))
    assert client.session.done == 6


# --- losing one ------------------------------------------------------------------------------


def test_what_others_have_all_of_outlives_a_worker(hand):
    client, workers, copied = start_with_tensor(hand, 3)
    cut = client.upload(*workers, n=9, layout="[9@x]")
    assert client.session.tensors[cut].parts == {1: 12, 2: 12, 3: 12}
    out = workers[2].die()
    assert client.session.tensors[copied].parts == {1: 32, 2: 32}
    assert client.session.tensors[copied].layout.is_whole
    assert client.lost(cut).kind == "LostError"
    for worker in workers[:2]:
        (free,) = worker.hears(out, msg.Free)
        assert msg.unpack_ids(free.ids) == [cut]
    assert client.fetch_error(cut).kind == "LostError"


def test_a_fetch_goes_on_at_another_worker_that_has_all_of_it(hand):
    client, workers, copied = start_with_tensor(hand, 3)
    cut = client.upload(*workers, n=9, layout="[9@x]")
    client.fetch(1, copied)
    client.fetch(2, cut)
    workers[0].say(msg.Chunk(client.number, 1, 0, 32, (8,), "float32"), bytes(16))
    out = workers[0].die()
    heard = client.hears(out, msg.Sharded, msg.FetchFailed)
    assert [(type(m), m.request) for m in heard] == [(msg.Sharded, 1), (msg.FetchFailed, 2)]
    assert [m.request for m in workers[1].hears(out, msg.Fetch)] == [1]
    (chunk,) = client.hears(workers[1].say(msg.Chunk(client.number, 1, 0, 32, (8,), "float32"), bytes(32)))
    assert (chunk.offset, chunk.part) == (0, 0)
    assert not client.session.fetches


def test_everything_under_way_fails_with_a_worker(hand):
    client, workers, x = start_with_tensor(hand, 3)
    client.call(PLAIN, [x])
    client.call(STEP, [x], (0.5,))
    client.fetch(4, x + 1)
    y = client.chunk(8)
    client.say(y, bytes(32))
    workers[0].done(client, 1)
    out = workers[1].die()
    heard = client.hears(out)
    assert types(heard) == [msg.ChunkAck, msg.FetchFailed, msg.CallFailed, msg.CallFailed, msg.CallDone]
    assert {(m.seq, m.root) for m in heard if isinstance(m, msg.CallFailed)} == {(1, 1), (2, 1)}
    assert all(client.lost(i) for i in (x + 1, x + 2, y.key))
    for worker in (workers[0], workers[2]):
        assert worker.state.lane.calls == 0
        ended = worker.hears(out, msg.Chunk)
        assert [(m.key, m.offset) for m in ended] == [(y.key, -1)]
    # What those that are left say of these calls is nobody's business any more.
    assert client.hears(workers[2].done(client, 1)) == []
    assert client.hears(workers[2].failed(client, 2)) == []


def test_what_was_computed_from_a_call_that_fails_with_a_worker_fails_too(hand):
    """Though it had finished, on a worker that is left. What has nothing to do with it has succeeded."""
    client, workers, x = start_with_tensor(hand)
    client.set_mesh("a", (0,), x=1)
    hand.planner = planning(
        lambda plan, inputs, home: replace(plan, workers=inputs[0].mesh.workers, outputs=(whole(workers[0].number),))
    )
    apart = client.upload(workers[0], layout="a: []")
    made = client.next_id
    for given in (x, made, apart):
        client.call(PLAIN, [given])
    for seq in (1, 2, 3):
        assert client.hears(workers[0].done(client, seq)) == []
    heard = client.hears(workers[1].die())
    assert [(m.seq, m.root) for m in heard if isinstance(m, msg.CallFailed)] == [(1, 1), (2, 1)]
    assert [m.seq for m in heard if isinstance(m, msg.CallDone)] == [3]
    assert client.lost(made)
    assert client.lost(made + 1)
    assert client.lost(made + 2) is None


def test_a_call_in_which_the_lost_worker_had_no_part_goes_on(hand):
    """It was sent before the session had several workers."""
    client, first, second, x = on_the_first_of_two(hand)
    client.call(PLAIN, [x])
    made = client.next_id - 1
    client.fetch(5, made)
    client.set_mesh(x=2)
    assert client.hears(second.die(), msg.CallFailed, msg.FetchFailed) == []
    done = client.hears(first.done(client, 1))
    assert [m.seq for m in done if isinstance(m, msg.CallDone)] == [1]
    there = first.say(msg.Chunk(client.session.number, 5, 0, 32, (8,), "float32"), bytes(32))
    assert types(client.hears(there)) == [msg.Chunk]


def test_without_its_mesh_a_session_waits_for_a_new_one(hand):
    client, workers, x = start_with_tensor(hand, 3)
    workers[2].die()
    client.call(STEP, [x], (0.5,))
    seq = client.seq
    (failed, _) = client.hears(fail(client, workers[:2], seq, kind="LostError", text="mesh"))
    assert failed.seq == seq
    kept = client.session.tensors[client.next_id - 1]
    assert kept.parts == {1: 32, 2: 32}  # the step changed nothing
    z = client.upload()
    assert "gt.mesh" in client.lost(z).text

    assert client.set_mesh(x=2).workers == (1, 2)
    out = client.call(PLAIN, [client.next_id - 2])
    assert [call.refused for w in workers[:2] for call in calls(w, out)] == [None, None]


def test_refused_calls_say_why(hand):
    client, workers, x = start_with_tensor(hand, 3)
    workers[2].die()
    out = client.call(PLAIN, [x])
    (call,) = calls(workers[0], out)
    assert "this session's mesh (x=3) has lost a worker (host, pid 7); set a new one: gt.mesh(...)" in call.refused.text


def test_calls_that_wait_for_a_new_mesh_are_one_error_with_the_loss(hand):
    """Calls that a loop had sent before its client heard of the loss. What it sends later is told again."""
    client, workers, x = start_with_tensor(hand, 3)
    client.call(PLAIN, [x])
    workers[2].die()
    for worker in workers[:2]:
        worker.done(client, 1)
    for acked, root in ((0, 1), (0, 1), (1, 4), (1, 4), (5, 6)):
        (call,) = calls(workers[0], client.call(PLAIN, [x], acked=acked))
        assert (call.root, call.refused.kind) == (root, "LostError")
        for worker in workers[:2]:
            worker.failed(client, call.seq, root)


def test_calls_that_fail_for_one_reason_are_one_error(hand):
    """A step whose batch was lost too is blamed on the call that lost the parameters, not on itself."""
    client, workers, x = start_with_tensor(hand, 3)
    both = Program(PLAIN.inputs * 2, "", (Instruction("add", (0, 1), {}),), (2,), (), ())
    client.define(both)
    client.call(PLAIN, [x])
    workers[2].die()
    batch = client.upload()
    for inputs in ([batch, x + 1], [x + 1, batch]):
        out = client.call(both, inputs)
        assert [call.root for call in calls(workers[0], out)] == [1]


def test_a_call_that_fails_for_two_reasons_is_blamed_on_the_earlier_one(hand):
    """One operand could not be created without a mesh; the other is a step on what was lost with the worker."""
    client, workers, x = start_with_tensor(hand, 3)
    both = Program(PLAIN.inputs * 2, "", (Instruction("add", (0, 1), {}),), (2,), (), ())
    client.define(both)
    client.define(CREATE)
    client.call(PLAIN, [x])
    workers[2].die()
    lost, created = x + 2, x + 3
    client.call(STEP, [x + 1], (0.5,))
    fail(client, workers[:2], 2, root=1)
    client.call(CREATE, [], (1.0,), acked=2)
    (failed, _) = client.hears(fail(client, workers[:2], 3, text="no mesh"))
    assert (failed.root, client.lost(lost).kind, "mesh" in client.lost(created).text) == (3, "LostError", True)
    for inputs in ([created, lost], [lost, created]):
        out = client.call(both, inputs, acked=3)
        (call,) = calls(workers[0], out)
        assert (call.root, call.refused) == (1, client.lost(lost))


def test_a_session_may_lose_all_its_workers(hand):
    client, workers, x = start_with_tensor(hand, 2)
    for worker in workers:
        worker.die()
    assert not client.session.workers
    assert client.lost(x)
    new = hand.workers(2)
    assert types(client.hears(client.call(PLAIN, [x]))) == [msg.CallFailed, msg.CallDone]
    assert not client.set_mesh(x=2).error
    y = client.upload(*new)
    out = client.call(PLAIN, [y])
    assert all([call.refused for call in calls(w, out)] == [None] for w in new)


def test_the_end_of_a_session_is_told_to_all_its_workers(hand):
    client, workers, _ = start_with_tensor(hand, 3)
    out = client.leave()
    assert all(types(w.hears(out)) == [msg.CloseSession] for w in workers)
    assert all(w.state.nbytes == 0 for w in workers)


def test_nobody_else_notices_a_lost_worker(hand):
    _, workers = start(hand, 3)
    other = hand.client(PLAIN, x=2)
    other.call(PLAIN, [other.upload(*workers[:2])])
    out = workers[2].die()
    assert other.hears(out) == []
    assert not other.session.broken
    workers[0].done(other, 1)
    assert other.hears(workers[1].done(other, 1)) == [msg.CallDone(0, 1, 100)]


def test_rejected_layouts_change_nothing(hand):
    client, workers = start(hand, 3)
    long = ("[" * 2000, "[99999999999999999999@x]")
    for text in ("[8@y]", "nowhere: [8@x]", "[8@x] sum x", "[9@x]", "[8@x,x]", "(((", *long):
        chunk = client.chunk(8)
        out = client.say(msg.Chunk(0, chunk.key, 0, 32, (8,), "float32", layout=text), bytes(32))
        assert client.rejection(out)
        assert chunk.key not in client.session.tensors
        assert all(w.hears(out) == [] for w in workers)


def test_who_claims_fewer_workers_than_before_lets_the_others_go_on(hand):
    """A call waits for room on three workers, and behind it somebody else's for one of them. Then it is refused, which
    needs two."""
    workers = hand.workers(4)
    client, other = hand.client(PLAIN, x=3), hand.client(PLAIN, x=3)
    assert other.set_mesh("", (2, 1), x=2).workers == (4, 2)
    x = client.upload(*workers[:3])
    client.call(PLAIN, [x])
    client.call(PLAIN, [x])
    client.call(PLAIN, [x + 1])
    assert client.session.claims
    y = other.upload(workers[3], workers[1])
    assert other.hears(other.call(PLAIN, [y])) == []
    assert other.session.claims
    assert client.set_mesh("", (0, 2), x=2).workers == (1, 3)
    out = fail(client, workers[:3], 1)
    assert [call.seq for call in calls(workers[0], out)] == [3]
    assert [call.session for call in calls(workers[3], out)] == [other.session.number]
