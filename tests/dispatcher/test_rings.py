"""Rings through the dispatcher: who is told of them, and what counts when they come and go."""

from __future__ import annotations

from dispatching import PLAIN, start, types

from gt.transport import messages as msg
from gt.transport.shared import PIECE, SLOTS

NAME = "gt-" + "0" * 32
TOTAL = 3 * PIECE + 8


def share(client, ring=1, pid=4242):
    return client.say(msg.Share(0, ring, 9, NAME, pid))


def accept(client, worker, ring=1, ok=True):
    return worker.say(msg.Shared(client.number, ring, ok))


def settle(client, worker, ring=1):
    """A session that lives on a worker which has its ring."""
    client.upload(worker)
    share(client, ring)
    accept(client, worker, ring)


def piece(client, key, offset=0, slot=0, total=TOTAL):
    head = ((total // 4,), "float32") if offset == 0 else ()
    return client.say(msg.Chunk(0, key, offset, total, *head, slot=slot))


def test_a_ring_is_offered_to_the_worker_and_answered(client, worker):
    client.upload(worker)
    out = share(client)
    assert worker.hears(out) == [msg.Share(client.number, 1, 9, NAME, 4242)]
    assert client.hears(out) == []
    assert not client.session.shares_ring
    assert client.hears(accept(client, worker)) == [msg.Shared(0, 1, True)]
    assert client.session.shares_ring


def test_a_ring_waits_for_a_worker(hand):
    client = hand.client()
    assert share(client) == []
    worker = hand.worker()
    out = client.say(client.chunk(), bytes(32))
    assert msg.Share(client.number, 1, 9, NAME, 4242) in worker.hears(out)


def test_a_ring_of_nobody_known_is_refused(client, worker):
    client.upload(worker)
    out = share(client, pid=0)
    assert client.hears(out) == [msg.Shared(0, 1, False)]
    assert worker.hears(out) == []


def test_a_worker_that_cannot_have_it(client, worker):
    client.upload(worker)
    share(client)
    assert client.hears(accept(client, worker, ok=False)) == [msg.Shared(0, 1, False)]
    assert client.session.offer is None


def test_an_answer_about_the_ring_before_is_nobodys_business(client, worker):
    client.upload(worker)
    share(client, 1)
    share(client, 2)
    assert accept(client, worker, 1) == []
    assert not client.session.shares_ring
    assert client.hears(accept(client, worker, 2)) == [msg.Shared(0, 2, True)]
    assert worker.say(msg.Shared(99, 2, True)) == []


def test_chunks_that_name_slots(client, worker):
    settle(client, worker)
    client.define(PLAIN)
    for i in range(3):
        out = piece(client, 5, i * PIECE, i)
        assert [m.slot for m in worker.hears(out)] == [i]
    piece(client, 5, 3 * PIECE, 0)
    assert client.session.uploads[5].received == TOTAL
    for _ in range(4):
        assert client.hears(worker.ack(client, 5)) == [msg.ChunkAck(0, 5, True)]
    assert client.session.tensors[5].layout is not None
    assert client.session.tensors[5].nbytes == TOTAL


def test_wrong_slots_and_too_many_are_rejected(client, worker):
    settle(client, worker)
    assert types(client.hears(piece(client, 5, slot=SLOTS))) == [msg.Rejected]
    total = (SLOTS + 2) * PIECE
    for i in range(SLOTS):
        assert client.hears(piece(client, 5, i * PIECE, i, total)) == []
    assert types(client.hears(piece(client, 5, SLOTS * PIECE, 0, total))) == [msg.Rejected]
    bytes_too = msg.Chunk(0, 5, SLOTS * PIECE, total)
    assert types(client.hears(client.say(bytes_too, bytes(8)))) == [msg.Rejected]
    assert SLOTS > msg.CHUNKS_IN_FLIGHT
    # Sizes and the quota are what they are for bytes.
    assert types(client.hears(client.say(msg.Chunk(0, 6, 0, 7, (2,), "float32", 0)))) == [msg.Rejected]
    assert types(client.hears(client.say(msg.Chunk(0, 6, 0, 2**62, (2**60,), "float32", 0)))) == [msg.Rejected]


def test_a_tensor_that_does_not_fit_is_lost_in_a_ring_too(hand):
    worker, client = hand.worker(memory=1000), hand.client()
    settle(client, worker)
    out = piece(client, 5)
    assert client.hears(out) == [msg.ChunkAck(0, 5, True)]
    assert worker.hears(out) == []
    assert client.lost(5).kind == "OutOfMemory"


def test_what_names_a_slot_while_nobody_has_the_ring_counts_as_not_sent(client, worker):
    client.upload(worker)
    client.define(PLAIN)
    out = piece(client, 5, total=32)
    assert out == []
    assert client.session.uploads[5].received == 0
    assert piece(client, 5, PIECE, total=32) == []
    # But the tensor is known, and a call waits for it.
    assert client.hears(client.call(PLAIN, [5], outputs=6)) == []
    assert len(worker.hears(client.say(msg.Chunk(0, 5, 0, 32, (8,), "float32"), bytes(32)))) == 1
    assert msg.Call in types(worker.hears(worker.ack(client, 5)))


def test_a_lost_worker_takes_the_ring_with_it(hand, client, worker):
    settle(client, worker)
    piece(client, 5)
    out = worker.die()
    heard = client.hears(out)
    assert msg.ChunkAck(0, 5, True) in heard
    assert heard.index(msg.ChunkAck(0, 5, True)) < heard.index(msg.Shared(0, 1, False))
    assert not client.session.shares_ring
    other = hand.worker()
    # On their way when it happened: of a tensor that is lost, and of one that is not.
    assert piece(client, 5, PIECE, 1) == []
    assert piece(client, 6) == []
    assert client.hears(client.say(msg.Chunk(0, 5, PIECE, TOTAL), bytes(8))) == [msg.ChunkAck(0, 5, True)]
    assert other.hears(client.say(msg.Chunk(0, 6, 0, TOTAL, (TOTAL // 4,), "float32"), bytes(8))) != []
    assert other.hears(share(client, 2)) == [msg.Share(client.number, 2, 9, NAME, 4242)]


def test_a_tensor_that_was_never_sent_is_not_lost_with_a_worker(hand, client, worker):
    settle(client, worker)
    worker.die()
    client.define(PLAIN)
    second = hand.worker()
    # Its client does not know yet that the ring is gone: this counts as not sent, to whichever worker comes.
    assert piece(client, 5, total=32) == []
    client.next_id = 10
    client.upload(second)
    assert client.hears(client.call(PLAIN, [5], outputs=20)) == []
    second.die()
    third = hand.worker()
    assert client.lost(5) is None
    out = client.say(msg.Chunk(0, 5, 0, 32, (8,), "float32"), bytes(32))
    assert third.hears(out) == [msg.Chunk(client.number, 5, 0, 32, (8,), "float32")]
    assert msg.Call in types(third.hears(third.ack(client, 5)))


def test_a_tensor_that_was_never_sent_does_not_wait_for_a_worker(hand, client, worker):
    settle(client, worker)
    worker.die()
    assert piece(client, 5, total=32) == []
    client.next_id = 10
    other = client.upload()
    hand.pass_time(20)
    assert client.lost(other) is not None
    assert client.lost(5) is None
    assert client.hears(client.say(msg.Chunk(0, 5, 0, 32, (8,), "float32"), bytes(32))) == []
    assert client.hears(hand.pass_time(20)) == [msg.ChunkAck(0, 5, True)]
    assert client.lost(5) is not None


def test_the_layout_of_a_tensor_is_checked_when_it_is_sent(hand):
    client, workers = start(hand, 2)
    for known in (False, True):
        if known:
            assert piece(client, 5, total=32) == []
        bad = msg.Chunk(0, 5, 0, 32, (8,), "float32", layout="stage1: [8@x]")
        assert types(client.hears(client.say(bad, bytes(32)))) == [msg.Rejected]
    good = msg.Chunk(0, 5, 0, 32, (8,), "float32", layout="[8@x]")
    out = client.say(good, bytes(32))
    assert [(m.key, m.total) for w in workers for m in w.hears(out)] == [(5, 16), (5, 16)]


def test_a_session_that_ends_tells_nobody(client, worker):
    settle(client, worker)
    assert client.hears(client.leave(), msg.Shared) == []


def test_slots_are_lent_for_fetches(client, worker):
    settle(client, worker)
    out = client.say(msg.Fetch(0, 1, 1, 1, (30, 31)))
    assert worker.hears(out) == [msg.Fetch(client.number, 1, 1, 1, (30, 31))]
    got = worker.say(msg.Chunk(client.number, 1, 0, TOTAL, (8,), "float32", 30))
    assert client.hears(got) == [msg.Chunk(0, 1, 0, TOTAL, (8,), "float32", 30)]
    assert client.session.fetches[1].shards[1].received == PIECE
    assert worker.say(msg.Chunk(client.number, 1, PIECE, PIECE - 9, slot=30)) == []  # past its own end
    for ring in (0, 2):  # not the one that the worker has
        out = client.say(msg.Fetch(0, 10 + ring, 1, ring, (30, 31)))
        assert worker.hears(out) == [msg.Fetch(client.number, 10 + ring, 1)]
