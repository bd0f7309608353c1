"""Tensor bytes of sessions on several workers: uploads and fetches in parts."""

from __future__ import annotations

import pytest
from dispatching import PLAIN, FakeWorker, Hand, start

from gt.dispatcher.events import Send
from gt.transport.messages import CHUNK, CallDone, Cancel, Chunk, ChunkAck, Fetch, FetchFailed, Sharded


@pytest.fixture
def hand() -> Hand:
    return Hand()


# --- uploads ---------------------------------------------------------------------------------


def test_a_worker_gets_the_bytes_that_are_its_own(hand):
    client, workers = start(hand, 3)
    total = 3 * CHUNK
    data = bytes(range(256)) * (total // 256)
    key = client.chunk(0).key
    shape = (3, CHUNK)
    got: dict[int, bytes] = {w.number: b"" for w in workers}
    for k in range(3):
        first = {"shape": shape, "dtype": "uint8", "layout": "[3@x]"} if k == 0 else {}
        out = client.say(Chunk(0, key, k * CHUNK, total, **first), data[k * CHUNK : (k + 1) * CHUNK])
        for w in workers:
            for action in out:
                if isinstance(action, Send) and action.peer == w.control:
                    assert action.message.offset == len(got[w.number])
                    assert action.message.total == CHUNK
                    got[w.number] += bytes(action.payload)
        assert client.hears(workers[k].ack(client, key)) == [ChunkAck(0, key, True)]
    assert b"".join(got.values()) == data
    assert client.session.tensors[key].parts == dict.fromkeys((1, 2, 3), CHUNK)
    assert not client.session.uploads


def test_a_chunk_on_a_border_goes_to_both_sides(hand):
    client, workers = start(hand)
    key = client.chunk(0).key
    out = client.say(Chunk(0, key, 0, 12, (3,), "float32", layout="[3@x]"), b"aaaabbbbcccc")
    sent = [(a.message.offset, a.message.total, a.message.shape, bytes(a.payload)) for a in out if isinstance(a, Send)]
    assert sent == [(0, 4, (1,), b"aaaa"), (0, 8, (2,), b"bbbbcccc")]
    assert client.hears(workers[0].ack(client, key)) == []
    assert client.hears(workers[0].ack(client, key)) == []  # one too many
    assert client.hears(workers[1].ack(client, key)) == [ChunkAck(0, key, True)]


def test_a_split_of_another_dimension_is_cut_by_the_worker(hand):
    client, workers = start(hand)
    key = client.chunk(0).key
    out = client.say(Chunk(0, key, 0, 16, (2, 2), "float32", layout="[. 2@x]"), bytes(16))
    keeps = [m.keep for w in workers for m in w.hears(out)]
    assert keeps == [(((0, 2),), ((0, 1),)), (((0, 2),), ((1, 2),))]
    assert client.session.tensors[key].parts == {1: 8, 2: 8}


def test_who_gets_nothing_gets_an_empty_chunk(hand):
    client, workers = start(hand)
    key = client.chunk(0).key
    out = client.say(Chunk(0, key, 0, 4, (1,), "float32", layout="[1@x]"), b"abcd")
    sent = [(m.total, m.shape) for w in workers for m in w.hears(out)]
    assert sent == [(0, (0,)), (4, (1,))]
    workers[1].ack(client, key)
    assert client.hears(workers[0].ack(client, key)) == [ChunkAck(0, key, True)]
    empty = client.upload(workers[0], 0, workers[1])
    assert client.session.tensors[empty].layout is not None


def test_uploads_without_a_wish_are_split_if_they_are_large_and_the_session_likes_it(hand):
    client, workers = start(hand)
    small, large = 100, 1 << 14
    whole = client.upload(workers[0], large, workers[1])
    assert client.session.tensors[whole].layout.is_whole
    client.set_mesh(split=True, x=2)
    cut = client.upload(workers[0], large, workers[1])
    assert repr(client.session.tensors[cut].layout) == "[16384@x]"
    rest = client.upload(workers[0], small, workers[1])
    assert client.session.tensors[rest].layout.is_whole


def test_an_upload_that_has_no_room_on_one_worker_is_lost(hand):
    workers = [FakeWorker(hand, 1000, "a"), FakeWorker(hand, 40, "b")]
    client = hand.client()
    client.set_mesh(x=2)
    chunk = client.chunk(16)
    out = client.say(chunk, bytes(64))
    assert client.hears(out) == [ChunkAck(0, chunk.key, True)]
    assert "worker 2, which has 40 bytes free" in client.lost(chunk.key).text
    assert [w.state.nbytes for w in workers] == [0, 0]
    half = client.upload(workers[0], 16, workers[1], layout="[16@x]")
    assert client.session.tensors[half].parts == {1: 32, 2: 32}


# --- fetches ---------------------------------------------------------------------------------


def test_a_fetch_asks_as_few_as_hold_the_tensor_together(hand):
    client, workers = start(hand, 4, x=2, y=2)
    x = client.upload(workers[0], 8, *workers[1:], layout="[8@y]")
    out = client.fetch(5, x)
    (sharded,) = client.hears(out)
    assert sharded == Sharded(5, "", (("x", 2), ("y", 2)), (1, 2, 3, 4), "[8@y]", (8,), "float32", (0, 1))
    assert [[type(m) for m in w.hears(out)] for w in workers] == [[Fetch], [Fetch], [], []]
    out = workers[1].say(Chunk(client.number, 5, 0, 16, (4,), "float32"), b"b" * 16)
    assert client.hears(out) == [Chunk(0, 5, 0, 16, (4,), "float32", part=1)]
    assert 5 in client.session.fetches
    workers[0].say(Chunk(client.number, 5, 0, 16, (4,), "float32"), b"a" * 16)
    assert not client.session.fetches


def test_each_part_is_acknowledged_to_who_sent_it(hand):
    client, workers = start(hand)
    x = client.upload(workers[0], 8, workers[1], layout="[8@x]")
    client.fetch(5, x)
    for worker in workers:
        worker.say(Chunk(client.number, 5, 0, 16, (4,), "float32"), bytes(8))
    out = client.say(ChunkAck(0, 5, False, 1))
    assert [w.hears(out) for w in workers] == [[], [ChunkAck(client.number, 5, False)]]
    assert client.say(ChunkAck(0, 5, False, 7)) == []
    assert client.say(ChunkAck(0, 5, False, 1)) == []  # one too many
    out = client.say(Cancel(0, 5))
    assert all([type(m) for m in w.hears(out)] == [Cancel] for w in workers)


def test_one_part_that_fails_ends_the_fetch(hand):
    client, workers = start(hand)
    x = client.upload(workers[0], 8, workers[1], layout="[8@x]")
    client.fetch(5, x)
    out = workers[1].fetch_failed(client, 5)
    assert [type(m) for m in client.hears(out)] == [FetchFailed]
    assert [type(m) for m in workers[0].hears(out)] == [Cancel]
    assert not client.session.fetches
    assert workers[0].say(Chunk(client.number, 5, 0, 16, (4,), "float32"), bytes(16)) == []


def test_what_is_fetched_comes_behind_the_outcome_of_its_call(hand):
    client, workers = start(hand)
    x = client.upload(workers[0], 8, workers[1])
    client.call(PLAIN, [x])
    assert client.hears(client.fetch(5, x + 1)) == []
    workers[0].done(client, 1)
    assert client.hears(workers[0].say(Chunk(client.number, 5, 0, 32, (8,), "float32"), bytes(32))) == []
    heard = client.hears(workers[1].done(client, 1))
    assert [type(m) for m in heard] == [CallDone, Sharded, Chunk]
    assert not client.session.fetches


def test_how_a_tensor_lies_can_be_asked_alone(hand):
    client, workers = start(hand)
    x = client.upload(workers[0], 8, workers[1], layout="[8@x]")
    out = client.say(Fetch(0, 5, x, layout=True))
    assert client.hears(out) == [Sharded(5, "", (("x", 2),), (1, 2), "[8@x]", (8,), "float32")]
    assert not client.session.fetches
    other = hand.client()
    y = other.upload(workers[0])
    (answer,) = other.hears(other.say(Fetch(0, 1, y, layout=True)))
    assert (answer.workers, answer.layout) == ((1,), "[]")
