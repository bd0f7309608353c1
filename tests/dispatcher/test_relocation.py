"""Sessions move to other workers: who moves, what is copied, and that whatever happens on the way leaves them whole."""

from __future__ import annotations

from typing import Any

import pytest
from dispatching import CREATE, PLAIN, STEP, Client, FakeWorker, Hand, calls, types

from gt.dispatcher.events import Noted
from gt.dispatcher.meshes import NOTE_S
from gt.dispatcher.relocation import HOLD_S, LONG_S, REST_S
from gt.transport import messages as msg


def crowded(hand: Hand, memory: int = 0) -> tuple[FakeWorker, FakeWorker, Client, int, list[Any]]:
    """Two clients on one worker, each with a tensor; then a second worker comes, and time passes: what follows."""
    here = hand.worker(memory)
    client, other = hand.client(PLAIN, STEP, CREATE), hand.client(PLAIN)
    x = client.upload(here)
    other.upload(here)
    there = hand.worker(memory)
    return here, there, client, x, hand.pass_time(NOTE_S)


def send(here: FakeWorker, client: Client, out: list[Any], n: int = 8) -> list[Any]:
    """The old worker answers with all of a tensor."""
    (fetch,) = here.hears(out, msg.Fetch)
    assert fetch.request < 0
    return here.say(msg.Chunk(client.number, fetch.request, 0, 4 * n, (n,), "float32"), bytes(4 * n))


def question(there: FakeWorker, out: list[Any], ids: list[int]) -> msg.Copied:
    """The new worker is asked whether it has these; that it has."""
    (asked,) = there.hears(out, msg.Copy)
    assert (asked.first, msg.unpack_ids(asked.ids)) == (0, ids)
    return msg.Copied(asked.request)


def noted(out: list[Any]) -> str:
    (said,) = [a.text for a in out if isinstance(a, Noted)]
    return said


def test_a_session_moves_to_a_worker_that_others_want_less(hand: Hand) -> None:
    here, there, client, x, out = crowded(hand)
    out = send(here, client, out)
    (chunk,) = there.hears(out, msg.Chunk)
    assert (chunk.session, chunk.key, chunk.shape) == (client.number, x, (8,))
    out = there.say(question(there, there.ack(client, x), [x]))
    assert here.hears(out) == [msg.CloseSession(client.number)]
    assert noted(out) == "moves from worker 1 to worker 2: 1 tensors, 32 bytes"
    assert list(client.session.workers) == [2]
    assert (here.state.nbytes, there.state.nbytes, there.state.reserved) == (32, 32, 0)
    (call,) = calls(there, client.call(PLAIN, [x]))
    assert msg.unpack_ids(call.inputs) == [x]
    there.done(client, 1)
    for _ in range(int(2 * REST_S)):  # and stays there
        hand.pass_time(NOTE_S)
        client.call(CREATE, [], (1.0,), frees=msg.pack_ids([client.next_id - 1]))
        there.done(client, client.seq)
        assert hand.state.relocation is None


def test_a_session_with_nothing_moves_at_once_when_it_comes_back(hand: Hand) -> None:
    here = hand.worker()
    client, other = hand.client(CREATE), hand.client(CREATE)
    for each in (client, other):
        each.call(CREATE, [], (1.0,))
        here.done(each, 1)
    client.free(1)
    hand.pass_time(1000.0)
    for _ in range(30):  # the other one has always something to run
        other.call(CREATE, [], (1.0,))
        hand.pass_time(NOTE_S)
        here.done(other, other.seq)
    there = hand.worker()
    assert hand.state.relocation is None
    other.call(CREATE, [], (1.0,))
    client.call(CREATE, [], (1.0,))
    here.done(client, 2)
    client.free(2)
    out = there.say(question(there, hand.pass_time(NOTE_S), []))
    assert "moves from worker 1 to worker 2: 0 tensors" in noted(out)
    assert len(calls(there, client.call(CREATE, [], (1.0,)))) == 1


@pytest.mark.parametrize("what", ["there dies", "here dies", "client leaves", "mesh", "no", "memory", "time"])
@pytest.mark.parametrize("step", [0, 1, 2])
def test_whatever_happens_on_the_way_the_session_stays_whole(hand: Hand, step: int, what: str) -> None:
    here, there, client, x, out = crowded(hand, 1000)
    asked: Any = None
    if step > 0:
        out = send(here, client, out)
    if step > 1:
        asked = question(there, there.ack(client, x), [x])
    assert hand.state.relocation is not None
    requests, before = [*hand.state.relocation.crossing], len(hand.actions)
    assert len(requests) == (step < 2)
    if what == "there dies":
        there.die()
    elif what == "here dies":
        here.die()
        assert client.fetch_error(x).kind == "LostError"
    elif what == "client leaves":
        out = client.leave()
        assert here.hears(out, msg.CloseSession) == [msg.CloseSession(client.number)]
    elif what == "mesh":
        client.say(msg.SetMesh(1, "", (("x", 1),)))
    elif what == "no":
        no = msg.Failure("OutOfMemory", "there is no room")
        request = next(iter(hand.state.relocation.crossing), 0)
        said = msg.Copied(asked.request, no) if asked else msg.FetchFailed(client.number, request, no)
        out = (there if asked else here).say(said)
        assert noted(out) == "stays on worker 1: there is no room"
    elif what == "memory":  # somebody else needs what is reserved there
        others = [hand.client(CREATE, PLAIN) for _ in range(2)]
        for other in others:
            for _ in range(15):
                other.upload(there)
        assert hand.state.relocation is not None
        others[0].call(PLAIN, [1])
    else:
        hand.pass_time(LONG_S + 1)
    assert hand.state.relocation is None
    out = [a for each in hand.actions[before:] for a in each]
    if what != "here dies":  # what is on its way will not be taken
        assert here.hears(out, msg.Cancel) == [msg.Cancel(client.number, r) for r in requests]
    if what != "there dies":
        assert there.state.reserved == 0
        assert msg.CloseSession(client.number) in there.hears(out)
    if what not in ("here dies", "client leaves"):
        assert list(client.session.workers) == [1]
        (call,) = calls(here, client.call(PLAIN, [x]))
        assert call.refused is None


def test_calls_go_on_meanwhile_and_wait_at_the_end(hand: Hand) -> None:
    here, there, client, x, out = crowded(hand)
    assert len(calls(here, client.call(STEP, [x], (1.0,)))) == 1
    y = client.next_id - 1
    out = send(here, client, out)  # it was read before the call replaced it
    out = there.ack(client, x)
    assert calls(here, client.call(STEP, [y], (1.0,))) == []  # it waits
    assert calls(here, here.done(client, 1)) == []
    assert there.hears(send(here, client, out), msg.Chunk)[0].key == y
    out = there.say(question(there, there.ack(client, y), [y]))
    (call,) = calls(there, out)
    assert (call.seq, msg.unpack_ids(call.inputs)) == (2, [y])
    freed = there.hears([a for each in hand.actions for a in each], msg.Free)
    assert [msg.unpack_ids(m.ids) for m in freed] == [[x]]


def test_calls_that_wait_go_on_where_they_are_after_a_while(hand: Hand) -> None:
    here, there, client, x, out = crowded(hand)
    send(here, client, out)
    there.ack(client, x)
    assert calls(here, client.call(PLAIN, [x])) == []
    out = hand.pass_time(HOLD_S + 0.1)
    assert noted(out) == "stays on worker 1: it took too long"
    assert there.hears(out) == [msg.CloseSession(client.number)]
    (call,) = calls(here, out)
    assert call.session == client.number


def test_a_fetch_and_an_upload_end_where_they_began(hand: Hand) -> None:
    here, there, client, x, out = crowded(hand)
    send(here, client, out)
    client.fetch(1, x)
    chunk = client.chunk(4)
    client.say(chunk, bytes(16))
    assert there.hears(there.ack(client, x), msg.Copy) == []
    out = here.say(msg.Chunk(client.number, 1, 0, 32, (8,), "float32"), bytes(32))
    assert types(client.hears(out)) == [msg.Chunk]
    out = here.ack(client, chunk.key)  # it has arrived, and crosses too
    send(here, client, out, 4)
    out = there.say(question(there, there.ack(client, chunk.key), [x, chunk.key]))
    assert list(client.session.workers) == [2]
    client.fetch(2, chunk.key)
    out = there.say(msg.Chunk(client.number, 2, 0, 16, (4,), "float32"), bytes(16))
    assert types(client.hears(out)) == [msg.Chunk]


def test_the_ring_is_given_up(hand: Hand) -> None:
    here, there, client, x, out = crowded(hand)
    client.say(msg.Share(0, 1, 5, "ring", 7))
    here.say(msg.Shared(client.number, 1, True))
    send(here, client, out)
    out = there.say(question(there, there.ack(client, x), [x]))
    assert client.hears(out, msg.Shared) == [msg.Shared(0, 1, False)]
    assert len(there.hears(client.say(msg.Share(0, 2, 5, "ring", 7)), msg.Share)) == 1


def test_what_has_left_the_device_is_outside_there_too(hand: Hand) -> None:
    here = hand.worker(96)
    client, other = hand.client(PLAIN), hand.client(PLAIN)
    x, y = client.upload(here), other.upload(here)
    other.call(PLAIN, [y])
    here.done(other, 1)
    other.call(PLAIN, [y])
    here.say(msg.Spilled(client.number, msg.pack_ids([x])))
    assert client.session.away_nbytes == 32
    there = hand.worker(96)
    out = hand.pass_time(NOTE_S)
    assert there.hears(out) == [msg.Spill(client.number, msg.pack_ids([x]))]
    send(here, client, out)
    there.say(question(there, there.ack(client, x), [x]))
    assert (there.state.nbytes, there.state.on_device, client.session.away_nbytes) == (32, 0, 32)
    assert (here.state.away, here.state.leaving) == (0, 0)
    out = client.call(PLAIN, [x])
    assert types(there.hears(out)) == [msg.Return]


def test_a_session_whose_client_does_not_know_of_a_failure_stays(hand: Hand) -> None:
    here, there, client, x, out = crowded(hand)
    client.call(STEP, [x], (1.0,))
    here.failed(client, 1)
    y = client.next_id - 1  # has the value of x
    send(here, client, out)
    out = there.ack(client, x)
    send(here, client, out)
    out = there.ack(client, y)
    assert there.hears(out, msg.Copy) == []
    out = client.call(PLAIN, [y], acked=1)
    assert len(calls(here, out)) == 1
    send(here, client, out)
    there.ack(client, client.next_id - 1)
    out = here.done(client, 2)
    there.say(question(there, out, [y, y + 1]))
    assert list(client.session.workers) == [2]


def test_who_has_chosen_a_worker_or_keeps_something_there_stays(hand: Hand) -> None:
    here = hand.worker()
    clients = [hand.client(PLAIN) for _ in range(4)]
    for each in clients:
        each.upload(here)
    clients[0].set_mesh(x=1)
    clients[1].say(msg.Keep(1, "mine", "{}", msg.pack_ids([1]), 0, published=True))
    hand.worker()
    hand.pass_time(NOTE_S)
    assert hand.state.relocation is not None
    assert hand.state.relocation.session is clients[2].session


def test_a_session_does_not_move_to_a_worker_of_another_kind_or_without_room(hand: Hand) -> None:
    here = hand.worker(1000)
    client, other = hand.client(PLAIN), hand.client(PLAIN)
    client.upload(here, n=100)
    other.upload(here, n=100)
    hand.worker(900)
    there = hand.worker(1000)
    third = hand.client(PLAIN)
    third.set_mesh(x=1)
    full = third.session.first.number
    assert full in (2, 3)
    there.state.engine = "torch"
    hand.pass_time(NOTE_S)
    assert hand.state.relocation is None


def test_clients_number_their_fetches_from_zero(client: Client, worker: FakeWorker, x: int) -> None:
    assert client.rejection(client.fetch(-1, x)) == "fetch -1: the number must be >= 0"
