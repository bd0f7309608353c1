"""Memory of workers: what leaves it for whom, what comes back, who waits, and what is refused."""

from __future__ import annotations

from typing import Any

from dispatching import CREATE, STEP, WRITE, Client, FakeWorker, Hand, calls, finish, program, types

from gt.dispatcher.memory import IDLE_S, RETRY_S, SLICE_S
from gt.transport import messages as msg

ADD = program()
KNOWN = (WRITE, ADD, STEP)


def spills(worker: FakeWorker, out: Any) -> list[tuple[int, list[int]]]:
    return [(m.session, msg.unpack_ids(m.ids)) for m in worker.hears(out, msg.Spill)]


def returns(worker: FakeWorker, out: Any) -> list[tuple[int, list[int]]]:
    return [(m.session, msg.unpack_ids(m.ids)) for m in worker.hears(out, msg.Return)]


def spilled(worker: FakeWorker, client: Client, *tensors: int, kept: tuple[int, ...] = (), why: str = "") -> Any:
    return worker.say(msg.Spilled(client.number, msg.pack_ids(tensors), msg.pack_ids(kept), why))


def returned(worker: FakeWorker, client: Client, *tensors: int) -> Any:
    return worker.say(msg.Returned(client.number, msg.pack_ids(tensors)))


def three(hand: Hand, memory: int = 100) -> tuple[FakeWorker, list[Client]]:
    """A worker, and clients that know the programs."""
    worker = hand.worker(memory)
    return worker, [hand.client(*KNOWN) for _ in range(3)]


def crowded(hand: Hand, count: int = 1, layout: str = "") -> tuple[list[FakeWorker], Client, Client, int, int]:
    """Workers with room for three tensors: x of client a, which may have a layout, y of client b, and what b has made
    of it. The next call of b needs room for a fourth: x must leave."""
    workers = hand.workers(count, memory=96)
    a, b = (hand.client(*KNOWN, **({"x": count} if count > 1 else {})) for _ in range(2))
    x, y = a.upload(*workers, layout=layout), b.upload(*workers)
    b.call(ADD, [y])
    finish(b, workers, 1)
    out = b.call(ADD, [y])
    assert [spills(w, out) for w in workers] == [[(a.number, [x])]] * count
    return workers, a, b, x, y


def test_the_session_that_has_not_run_for_longest_gives_way(hand: Hand) -> None:
    worker, (a, b, c) = three(hand, 160)
    x, y, z = a.upload(worker), b.upload(worker), c.upload(worker)
    for client, tensor in ((b, y), (a, x)):  # b has run before a
        client.call(ADD, [tensor])
        worker.done(client, 1)
    assert worker.state.on_device == 160
    out = c.call(ADD, [z])
    assert calls(worker, out) == []
    assert spills(worker, out) == [(b.number, [y])]  # no more than is needed
    assert worker.state.on_device == 160  # until the worker says that it has left
    (call,) = calls(worker, spilled(worker, b, y))
    assert (call.session, call.refused) == (c.number, None)
    assert worker.state.on_device == 160
    assert b.session.away_nbytes == 32


def test_what_is_away_comes_back_before_the_call_that_uses_it(hand: Hand) -> None:
    (worker,), a, b, x, _ = crowded(hand)
    spilled(worker, a, x)
    worker.done(b, 2)
    assert worker.state.on_device == 96
    hand.pass_time(IDLE_S)
    out = a.call(ADD, [x])  # needs 64 bytes: what it uses, and what it makes
    assert [n for n, _ in spills(worker, out)] == [b.number]
    assert calls(worker, out) == returns(worker, out) == []
    out = spilled(worker, b, *spills(worker, out)[0][1])
    assert returns(worker, out) == [(a.number, [x])]
    assert calls(worker, out) == []
    (call,) = calls(worker, returned(worker, a, x))
    assert call.refused is None


def test_a_session_with_calls_on_workers_keeps_its_tensors_and_then_waits(hand: Hand) -> None:
    worker, (a, b, _) = three(hand)
    x, y = a.upload(worker), b.upload(worker)
    (first,) = calls(worker, a.call(ADD, [x]))
    assert first.refused is None
    out = b.call(ADD, [y])
    assert worker.hears(out) == []  # a's call is under way
    out = a.call(ADD, [x], frees=msg.pack_ids([x + 1]))
    assert worker.hears(out) == []  # and its next one has to wait
    out = worker.done(a, 1)
    assert [n for n, _ in spills(worker, out)] == [a.number]
    (call,) = calls(worker, spilled(worker, a, *spills(worker, out)[0][1]))
    assert call.session == b.number


def test_whether_a_call_is_refused_depends_on_its_own_session(hand: Hand) -> None:
    worker, (a, b, _) = three(hand, 70)
    a.upload(worker)
    y, z = b.upload(worker), b.upload(worker)
    assert b.session.away_nbytes == 32  # it arrived in host memory: there was no room on the device
    (call,) = calls(worker, b.call(ADD, [y]))
    assert call.refused.kind == "OutOfMemory"
    wanted = "the call needs 32 bytes on worker 1, which can have 6 bytes free of 70 bytes; this session holds 64 bytes"
    assert wanted in call.refused.text
    worker.failed(b, 1, kind="OutOfMemory")
    b.free(z)
    out = b.call(ADD, [y])  # the session is whole
    assert spills(worker, out) == [(a.number, [1])]
    (call,) = calls(worker, spilled(worker, a, 1))
    assert call.refused is None


def test_sessions_that_have_nothing_yet_wait_for_each_other(hand: Hand) -> None:
    """A notebook was left open; two others begin, and each needs nearly all memory."""
    worker = hand.worker(50)
    a, b, c = hand.client(*KNOWN), hand.client(CREATE), hand.client(CREATE)
    x = a.upload(worker)
    out = b.call(CREATE, [], scalars=(1.0,)) + c.call(CREATE, [], scalars=(2.0,))
    assert spills(worker, out) == [(a.number, [x])]
    assert calls(worker, out) == []
    (call,) = calls(worker, spilled(worker, a, x))
    assert (call.session, call.refused) == (b.number, None)
    worker.done(b, 1)
    ((number, tensors),) = spills(worker, hand.pass_time(IDLE_S))  # what it has made leaves, for the other one
    assert number == b.number
    (call,) = calls(worker, spilled(worker, b, *tensors))
    assert (call.session, call.refused) == (c.number, None)


def test_an_upload_without_room_is_kept_outside(hand: Hand) -> None:
    worker, (a, b, _) = three(hand, 70)
    a.upload(worker)
    a.upload(worker)
    chunk = b.chunk(8)
    out = b.say(chunk, bytes(32))
    assert types(worker.hears(out)) == [msg.Spill, msg.Chunk]  # the worker knows it before the bytes come
    assert worker.state.on_device == 64
    assert worker.state.nbytes == 96
    worker.ack(b, chunk.key)
    spilled(worker, b, chunk.key)
    assert b.session.away_nbytes == 32
    b.free(chunk.key)
    assert worker.state.away == 0


def test_an_upload_under_way_gives_way(hand: Hand) -> None:
    worker, (a, b, _) = three(hand, 96)
    x = a.upload(worker)
    b.upload()  # all of it was sent, and nothing was acknowledged
    a.call(ADD, [x])
    worker.done(a, 1)
    out = a.call(ADD, [x])
    assert spills(worker, out) == [(b.number, [1])]
    worker.ack(b, 1)
    assert calls(worker, spilled(worker, b, 1)) != []
    assert b.session.away_nbytes == 32


def test_a_fetch_and_a_free_do_not_bring_anything_back(hand: Hand) -> None:
    (worker,), a, _, x, _ = crowded(hand)
    spilled(worker, a, x)
    out = a.fetch(1, x)
    assert types(worker.hears(out)) == [msg.Fetch]
    a.free(x)
    assert worker.state.away == worker.state.leaving == 0
    assert a.session.moved == {}


def test_what_is_freed_or_closed_on_its_way_out_is_forgotten(hand: Hand) -> None:
    worker, (a, b, c) = three(hand, 96)
    x, y = a.upload(worker), b.upload(worker)
    z = a.upload(worker)
    assert spills(worker, c.say(c.chunk(8), bytes(32))) == [(c.number, [1])]
    out = b.call(ADD, [y])
    assert spills(worker, out) == [(a.number, [x])]
    assert calls(worker, a.free(x)) != []  # now there is room
    assert worker.hears(spilled(worker, a, x)) == []
    worker.done(b, 1)
    assert spills(worker, b.call(ADD, [y])) == [(a.number, [z])]
    assert calls(worker, a.leave()) != []
    assert worker.state.leaving == 0


def test_a_worker_that_cannot_move_tensors_out_says_why(hand: Hand) -> None:
    (worker,), a, b, x, y = crowded(hand)
    (call,) = calls(worker, spilled(worker, a, x, kept=(x,), why="the disk is full"))
    assert call.refused.kind == "OutOfMemory"
    assert call.refused.text.endswith("tensors of idle sessions cannot move out: the disk is full")
    worker.failed(b, 2, kind="OutOfMemory")
    (call,) = calls(worker, b.call(ADD, [y]))
    assert call.refused is not None  # it is not asked again at once
    worker.failed(b, 3, kind="OutOfMemory")
    hand.pass_time(RETRY_S)
    assert spills(worker, b.call(ADD, [y])) == [(a.number, [x])]
    assert calls(worker, spilled(worker, a, x))[0].refused is None


def test_what_was_used_on_its_way_out_stays_and_is_asked_for_again(hand: Hand) -> None:
    (worker,), a, _, x, _ = crowded(hand)
    assert spills(worker, spilled(worker, a, x, kept=(x,))) == [(a.number, [x])]
    assert calls(worker, spilled(worker, a, x)) != []


def test_sessions_that_need_the_same_memory_take_turns(hand: Hand) -> None:
    (worker,), a, b, x, y = crowded(hand)
    spilled(worker, a, x)
    worker.done(b, 2)
    out = a.call(ADD, [x])
    assert worker.hears(out) == []  # b has its turn
    made = y + 1
    for seq in range(3, 6):
        (call,) = calls(worker, b.call(WRITE, [made, y]))
        assert call.session == b.number
        assert spills(worker, worker.done(b, seq)) == []
        made = b.next_id - 1
    out = hand.pass_time(SLICE_S)
    assert [n for n, _ in spills(worker, out)] == [b.number]


def test_a_sharded_call_waits_until_its_inputs_are_back_everywhere(hand: Hand) -> None:
    workers, a, b, x, _ = crowded(hand, 2)
    assert calls(workers[0], spilled(workers[0], a, x)) == []
    out = spilled(workers[1], a, x)
    assert [len(calls(w, out)) for w in workers] == [1, 1]
    finish(b, workers, 2)
    hand.pass_time(SLICE_S)
    out = a.call(ADD, [x])
    left = [spills(w, out)[0][1] for w in workers]
    spilled(workers[0], b, *left[0])
    out = spilled(workers[1], b, *left[1])
    assert [returns(w, out) for w in workers] == [[(a.number, [x])]] * 2
    assert calls(workers[1], returned(workers[1], a, x)) == []
    out = returned(workers[0], a, x)
    assert [len(calls(w, out)) for w in workers] == [1, 1]


def test_a_worker_that_dies_takes_what_had_left_it_along(hand: Hand) -> None:
    workers, a, _, x, _ = crowded(hand, 2, "[8@x]")
    for worker in workers:
        spilled(worker, a, x)
    workers[1].die()
    assert a.lost(x) is not None
    assert workers[0].state.away == 0
    assert a.session.moved == {}


def test_a_call_that_ran_out_of_memory_makes_idle_sessions_give_way(hand: Hand) -> None:
    worker, (a, b, _) = three(hand, 1000)
    x, y = a.upload(worker), b.upload(worker)
    b.call(ADD, [y])
    assert spills(worker, worker.failed(b, 1, kind="OutOfMemory")) == [(a.number, [x])]


def test_a_refused_update_of_what_is_away_stays_away(hand: Hand) -> None:
    (worker,), a, _, x, _ = crowded(hand)
    spilled(worker, a, x)
    big = a.upload(worker, n=12)
    assert a.session.away_nbytes == 80
    (call,) = calls(worker, a.call(STEP, [x], (0.5,)))
    assert call.refused.kind == "OutOfMemory"
    assert worker.state.away == 80
    assert a.session.moved[1].away == {big: 48, x + 2: 32}
