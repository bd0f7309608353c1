"""Tensor bytes through the dispatcher: uploads in, fetches out."""

from __future__ import annotations

import pytest
from dispatching import PLAIN, Hand, disconnected, floats, program, start, start_with_tensor, types

from gt.dispatcher.events import Send
from gt.program import Instruction, Program
from gt.transport import messages as msg

UPDATE = program(update=True)


def test_an_upload_goes_to_the_worker_untouched_and_is_acknowledged(client, worker):
    total = msg.CHUNK + 8
    first, second = bytes(msg.CHUNK), b"12345678"
    out = client.say(msg.Chunk(0, 5, 0, total, (total // 4,), "float32"), first)
    assert worker.hears(out) == [msg.Chunk(client.number, 5, 0, total, (total // 4,), "float32")]
    assert next(a for a in out if isinstance(a, Send)).payload is first
    client.say(msg.Chunk(0, 5, msg.CHUNK, total), second)
    assert client.session.tensors[5].layout is None
    assert client.hears(worker.ack(client, 5)) == [msg.ChunkAck(0, 5, True)]
    assert client.session.tensors[5].layout is None
    worker.ack(client, 5)
    assert client.session.tensors[5].spec is floats(total // 4)
    assert client.session.tensors[5].layout == worker.state.layout
    assert not client.session.uploads
    assert worker.ack(client, 5) == []  # one too many


def test_an_empty_tensor_is_one_empty_chunk(client, worker):
    client.say(msg.Chunk(0, 1, 0, 0, (0, 3), "int64"), b"")
    worker.ack(client, 1)
    assert client.session.tensors[1].nbytes == 0
    assert client.session.tensors[1].layout is not None


@pytest.mark.parametrize(
    ("chunk", "nbytes"),
    [
        (msg.Chunk(0, 0, 0, 32, (8,), "float32"), 32),  # no id
        (msg.Chunk(0, -1, 0, 32, (8,), "float32"), 32),
        (msg.Chunk(0, 2**63, 0, 32, (8,), "float32"), 32),
        (msg.Chunk(0, 1, 0, 32, (8,), "float32"), 32),  # an id in use
        (msg.Chunk(0, 3, 4, 32, (8,), "float32"), 28),  # begins in the middle
        (msg.Chunk(0, 3, 0, 32, (8,), "float33"), 32),  # no dtype
        (msg.Chunk(0, 3, 0, 32, (-8,), "float32"), 32),  # no shape
        (msg.Chunk(0, 3, 0, 0, (1,) * 65, "float32"), 0),
        (msg.Chunk(0, 3, 0, 2**62, (2**60,), "float32"), 32),  # absurd
        (msg.Chunk(0, 3, 0, 36, (8,), "float32"), 32),  # sizes that disagree
        (msg.Chunk(0, 3, 0, 32, (8,), "float32"), 33),
        (msg.Chunk(0, 3, 0, 32, (8,), "float32"), 0),  # brings nothing
        (msg.Chunk(0, 3, 0, 4 * msg.CHUNK, (msg.CHUNK,), "float32"), msg.CHUNK + 4),
        (msg.Chunk(0, 2, 0, 32, (8,), "float32"), 16),  # not the next piece of an upload under way
        (msg.Chunk(0, 2, 16, 36), 16),
        (msg.Chunk(0, 2, 16, 32), 17),
        (msg.Chunk(0, 2, 8, 32), 16),
    ],
)
def test_a_bad_chunk_is_rejected_and_changes_nothing(client, worker, chunk, nbytes):
    client.upload(worker)  # id 1
    client.say(msg.Chunk(0, 2, 0, 32, (8,), "float32"), bytes(16))
    before = (dict(client.session.tensors), client.session.nbytes, client.session.uploads[2].received)
    out = client.say(chunk, bytes(nbytes))
    assert types(client.hears(out)) == [msg.Rejected]
    assert worker.hears(out) == []
    assert (dict(client.session.tensors), client.session.nbytes, client.session.uploads[2].received) == before


def test_a_chunk_without_bytes_is_rejected(client):
    assert types(client.hears(client.say(msg.Chunk(0, 1, 0, 4, (1,), "float32")))) == [msg.Rejected]


def test_chunks_in_flight_and_uploads_are_bounded(client, worker):
    total = 4 * (msg.CHUNKS_IN_FLIGHT + 1)
    client.say(msg.Chunk(0, 1, 0, total, (total // 4,), "float32"), bytes(4))
    for n in range(1, msg.CHUNKS_IN_FLIGHT):
        assert client.hears(client.say(msg.Chunk(0, 1, 4 * n, total), bytes(4))) == []
    last = msg.Chunk(0, 1, 4 * msg.CHUNKS_IN_FLIGHT, total)
    assert types(client.hears(client.say(last, bytes(4)))) == [msg.Rejected]
    worker.ack(client, 1)
    assert client.hears(client.say(last, bytes(4))) == []
    for key in range(2, msg.UPLOADS + 1):
        assert client.hears(client.say(msg.Chunk(0, key, 0, 4, (1,), "float32"), bytes(4))) == []
    one_more = msg.Chunk(0, msg.UPLOADS + 1, 0, 4, (1,), "float32")
    assert types(client.hears(client.say(one_more, bytes(4)))) == [msg.Rejected]


def test_a_call_waits_for_the_uploads_it_uses(client, worker):
    client.define(PLAIN)
    x = client.upload()
    assert worker.hears(client.call(PLAIN, [x])) == []
    assert types(worker.hears(worker.ack(client, x))) == [msg.Define, msg.Call]


def test_frees_and_fetches_wait_for_the_upload_too(client, worker):
    x = client.upload()
    assert client.fetch(1, x) == []
    assert client.free(x) == []
    assert types(worker.hears(worker.ack(client, x))) == [msg.Fetch, msg.Free]
    assert client.session.nbytes == 0


def test_an_upload_over_the_memory_is_lost_and_its_pump_goes_on(hand):
    worker, client = hand.worker(memory=100), hand.client()
    total = 2 * msg.CHUNK
    out = client.say(msg.Chunk(0, 1, 0, total, (total // 4,), "float32"), bytes(msg.CHUNK))
    assert worker.hears(out) == []
    assert client.hears(out) == [msg.ChunkAck(0, 1, True)]
    assert client.hears(client.say(msg.Chunk(0, 1, msg.CHUNK, total), bytes(msg.CHUNK))) == [msg.ChunkAck(0, 1, True)]
    assert not client.session.uploads
    assert client.session.nbytes == 0
    error = client.fetch_error(1)
    assert error.kind == "OutOfMemory"
    assert "512.0 KiB" in error.text


def test_a_step_on_a_batch_that_did_not_fit_keeps_the_model(hand):
    code = (Instruction("add", (0, 0), {}),)
    step = Program((((8,), "float32"), ((64,), "float32")), "", code, (2,), (0,), ((0, 0),))
    worker, client = hand.worker(memory=100), hand.client(step)
    w = client.upload(worker)
    batch = client.upload(n=64)
    (call,) = worker.hears(client.call(step, [w, batch]), msg.Call)
    # The worker hears of it, refused, because it alone can keep the old value under the new id.
    assert call.refused is not None
    assert call.refused.kind == "OutOfMemory"
    assert client.session.nbytes == 32
    worker.failed(client, 1)
    # Freeing the batch is no matter for the worker: it never had it.
    assert worker.hears(client.free(batch)) == []
    (free,) = worker.hears(client.free(client.next_id - 1))
    assert isinstance(free, msg.Free)


def test_what_is_held_without_a_worker_is_bounded(monkeypatch):
    monkeypatch.setattr("gt.dispatcher.uploads.HELD_NBYTES", 1000)
    monkeypatch.setattr("gt.dispatcher.invariants.HELD_NBYTES", 1000)
    hand = Hand()
    client = hand.client()
    client.say(msg.Chunk(0, 1, 0, 800, (200,), "float32"), bytes(800))
    assert hand.state.held_nbytes == 800
    out = client.say(msg.Chunk(0, 2, 0, 800, (200,), "float32"), bytes(800))
    assert isinstance(client.hears(out)[0], msg.Refused)
    assert disconnected(out) == [client.peer]
    assert hand.state.held_nbytes == 0


# --- uploads to several workers --------------------------------------------------------------


def test_a_worker_gets_the_bytes_that_are_its_own(hand):
    client, workers = start(hand, 3)
    total = 3 * msg.CHUNK
    data = bytes(range(256)) * (total // 256)
    key = client.chunk(0).key
    shape = (3, msg.CHUNK)
    got: dict[int, bytes] = {w.number: b"" for w in workers}
    for k in range(3):
        first = {"shape": shape, "dtype": "uint8", "layout": "[3@x]"} if k == 0 else {}
        out = client.say(msg.Chunk(0, key, k * msg.CHUNK, total, **first), data[k * msg.CHUNK : (k + 1) * msg.CHUNK])
        for w in workers:
            for action in out:
                if isinstance(action, Send) and action.peer == w.control:
                    assert action.message.offset == len(got[w.number])
                    assert action.message.total == msg.CHUNK
                    got[w.number] += bytes(action.payload)
        assert client.hears(workers[k].ack(client, key)) == [msg.ChunkAck(0, key, True)]
    assert b"".join(got.values()) == data
    assert client.session.tensors[key].parts == dict.fromkeys((1, 2, 3), msg.CHUNK)
    assert not client.session.uploads


def test_a_chunk_on_a_border_goes_to_both_sides(hand):
    client, workers = start(hand)
    key = client.chunk(0).key
    out = client.say(msg.Chunk(0, key, 0, 12, (3,), "float32", layout="[3@x]"), b"aaaabbbbcccc")
    sent = [(a.message.offset, a.message.total, a.message.shape, bytes(a.payload)) for a in out if isinstance(a, Send)]
    assert sent == [(0, 4, (1,), b"aaaa"), (0, 8, (2,), b"bbbbcccc")]
    assert client.hears(workers[0].ack(client, key)) == []
    assert client.hears(workers[0].ack(client, key)) == []  # one too many
    assert client.hears(workers[1].ack(client, key)) == [msg.ChunkAck(0, key, True)]


def test_a_split_of_another_dimension_is_cut_by_the_worker(hand):
    client, workers = start(hand)
    key = client.chunk(0).key
    out = client.say(msg.Chunk(0, key, 0, 16, (2, 2), "float32", layout="[. 2@x]"), bytes(16))
    keeps = [m.keep for w in workers for m in w.hears(out)]
    assert keeps == [(((0, 2),), ((0, 1),)), (((0, 2),), ((1, 2),))]
    assert client.session.tensors[key].parts == {1: 8, 2: 8}


def test_who_gets_nothing_gets_an_empty_chunk(hand):
    client, workers = start(hand)
    key = client.chunk(0).key
    out = client.say(msg.Chunk(0, key, 0, 4, (1,), "float32", layout="[1@x]"), b"abcd")
    sent = [(m.total, m.shape) for w in workers for m in w.hears(out)]
    assert sent == [(0, (0,)), (4, (1,))]
    workers[1].ack(client, key)
    assert client.hears(workers[0].ack(client, key)) == [msg.ChunkAck(0, key, True)]
    empty = client.upload(*workers, n=0)
    assert client.session.tensors[empty].layout is not None


def test_uploads_without_a_wish_are_split_if_they_are_large_and_the_session_likes_it(hand):
    client, workers = start(hand)
    small, large = 100, 1 << 14
    whole = client.upload(*workers, n=large)
    assert client.session.tensors[whole].layout.is_whole
    client.set_mesh(split=True, x=2)
    cut = client.upload(*workers, n=large)
    assert repr(client.session.tensors[cut].layout) == "[16384@x]"
    rest = client.upload(*workers, n=small)
    assert client.session.tensors[rest].layout.is_whole


def test_an_upload_that_has_no_room_on_one_worker_is_lost(hand):
    workers = [hand.worker(1000, "a"), hand.worker(40, "b")]
    client = hand.client(x=2)
    chunk = client.chunk(16)
    out = client.say(chunk, bytes(64))
    assert client.hears(out) == [msg.ChunkAck(0, chunk.key, True)]
    assert "worker 2, which can have 40 bytes free" in client.lost(chunk.key).text
    assert [w.state.nbytes for w in workers] == [0, 0]
    half = client.upload(*workers, n=16, layout="[16@x]")
    assert client.session.tensors[half].parts == {1: 32, 2: 32}


# --- fetches ---------------------------------------------------------------------------------


def test_a_fetch_is_relayed_both_ways(client, worker, x):
    client.fetch(9, x)
    payload = bytes(msg.CHUNK)
    out = worker.say(msg.Chunk(client.number, 9, 0, msg.CHUNK + 4, (3,), "float32"), payload)
    assert client.hears(out) == [msg.Chunk(0, 9, 0, msg.CHUNK + 4, (3,), "float32")]
    assert next(a for a in out if isinstance(a, Send)).payload is payload
    assert worker.hears(client.say(msg.ChunkAck(0, 9, False))) == [msg.ChunkAck(client.number, 9, False)]
    assert client.say(msg.ChunkAck(0, 9, False)) == []  # nothing more to acknowledge
    assert worker.say(msg.Chunk(client.number, 9, 0, msg.CHUNK + 4), payload) == []  # that was had
    worker.say(msg.Chunk(client.number, 9, msg.CHUNK, msg.CHUNK + 4), bytes(4))
    assert not client.session.fetches
    assert worker.say(msg.Chunk(client.number, 9, 0, 4), bytes(4)) == []  # it is over


def test_a_fetch_that_fails_is_relayed(client, worker):
    client.fetch(1, client.upload(worker))
    (failed,) = client.hears(worker.fetch_failed(client, 1))
    assert (failed.session, failed.request) == (0, 1)
    assert worker.fetch_failed(client, 1) == []


def test_a_request_number_in_use_is_rejected(client, x):
    y = client.upload()
    for id in (x, y):
        client.fetch(id, id)
        assert types(client.hears(client.fetch(id, id))) == [msg.Rejected]


def test_a_cancel_goes_around_the_queue(client, worker, x):
    client.fetch(1, x)
    assert worker.hears(client.say(msg.Cancel(0, 1))) == [msg.Cancel(client.number, 1)]
    assert client.hears(worker.say(msg.Chunk(client.number, 1, 0, 32, (8,), "float32"), bytes(32))) == []
    assert client.say(msg.Cancel(0, 1)) == []
    assert client.say(msg.ChunkAck(0, 1, False)) == []
    # One that still waits in the queue just leaves it, and what is behind it goes on.
    y = client.upload()
    client.fetch(2, y)
    client.free(x)
    assert types(worker.hears(client.say(msg.Cancel(0, 2)))) == [msg.Free]
    assert worker.hears(worker.ack(client, y)) == []


def test_only_workers_acknowledge_uploads(client, worker):
    x = client.upload()
    assert types(client.hears(client.say(msg.ChunkAck(0, x, True)))) == [msg.Rejected]
    assert client.session.uploads[x].unacked == 1


def test_a_fetch_of_a_lost_tensor_fails_at_once(client, worker, x):
    worker.die()
    error = client.fetch_error(x)
    assert error.kind == "LostError"
    assert "host, pid 7" in error.text


# --- fetches from several workers ------------------------------------------------------------


def test_a_fetch_asks_as_few_as_hold_the_tensor_together(hand):
    client, workers = start(hand, 4, x=2, y=2)
    x = client.upload(*workers, layout="[8@y]")
    out = client.fetch(5, x)
    (sharded,) = client.hears(out)
    assert sharded == msg.Sharded(5, "", (("x", 2), ("y", 2)), (1, 2, 3, 4), "[8@y]", (8,), "float32", (0, 1))
    assert [types(w.hears(out)) for w in workers] == [[msg.Fetch], [msg.Fetch], [], []]
    out = workers[1].say(msg.Chunk(client.number, 5, 0, 16, (4,), "float32"), b"b" * 16)
    assert client.hears(out) == [msg.Chunk(0, 5, 0, 16, (4,), "float32", part=1)]
    assert 5 in client.session.fetches
    workers[0].say(msg.Chunk(client.number, 5, 0, 16, (4,), "float32"), b"a" * 16)
    assert not client.session.fetches


def test_each_part_is_acknowledged_to_who_sent_it(hand):
    client, workers, x = start_with_tensor(hand, layout="[8@x]")
    client.fetch(5, x)
    for worker in workers:
        worker.say(msg.Chunk(client.number, 5, 0, 16, (4,), "float32"), bytes(8))
    out = client.say(msg.ChunkAck(0, 5, False, 1))
    assert [w.hears(out) for w in workers] == [[], [msg.ChunkAck(client.number, 5, False)]]
    assert client.say(msg.ChunkAck(0, 5, False, 7)) == []
    assert client.say(msg.ChunkAck(0, 5, False, 1)) == []  # one too many
    out = client.say(msg.Cancel(0, 5))
    assert all(types(w.hears(out)) == [msg.Cancel] for w in workers)


def test_one_part_that_fails_ends_the_fetch(hand):
    client, workers, x = start_with_tensor(hand, layout="[8@x]")
    client.fetch(5, x)
    out = workers[1].fetch_failed(client, 5)
    assert types(client.hears(out)) == [msg.FetchFailed]
    assert types(workers[0].hears(out)) == [msg.Cancel]
    assert not client.session.fetches
    assert workers[0].say(msg.Chunk(client.number, 5, 0, 16, (4,), "float32"), bytes(16)) == []


def test_what_is_fetched_comes_behind_the_outcome_of_its_call(hand):
    client, workers, x = start_with_tensor(hand)
    client.call(PLAIN, [x])
    assert client.hears(client.fetch(5, x + 1)) == []
    workers[0].done(client, 1)
    assert client.hears(workers[0].say(msg.Chunk(client.number, 5, 0, 32, (8,), "float32"), bytes(32))) == []
    heard = client.hears(workers[1].done(client, 1))
    assert types(heard) == [msg.CallDone, msg.Sharded, msg.Chunk]
    assert not client.session.fetches


def test_a_value_from_the_only_worker_is_passed_on_at_once(client, worker, x):
    client.call(PLAIN, [x])
    client.fetch(5, x + 1)
    out = worker.say(msg.Chunk(client.number, 5, 0, 32, (8,), "float32"), bytes(32))
    assert types(client.hears(out)) == [msg.Chunk]
    assert not client.session.fetches


def test_that_a_value_is_lost_is_told_behind_the_outcome_of_its_call(hand):
    worker, client = hand.worker(memory=40), hand.client(PLAIN)
    client.call(PLAIN, [client.upload(worker)])  # it has no room for the result
    assert client.hears(client.fetch(5, 2)) == []
    assert types(client.hears(worker.failed(client, 1))) == [msg.CallFailed, msg.CallDone, msg.FetchFailed]


def test_a_layout_can_be_asked_for_alone(hand):
    client, workers, x = start_with_tensor(hand, layout="[8@x]")
    out = client.say(msg.Fetch(0, 5, x, layout=True))
    assert client.hears(out) == [msg.Sharded(5, "", (("x", 2),), (1, 2), "[8@x]", (8,), "float32")]
    assert not client.session.fetches
    other = hand.client()
    y = other.upload(workers[0])
    (answer,) = other.hears(other.say(msg.Fetch(0, 1, y, layout=True)))
    assert (answer.workers, answer.layout) == ((1,), "[]")


def test_a_value_that_a_failed_call_kept_comes_behind_the_failure(client, worker, x):
    """A refused call fails before the one before it has ended on the device, and keeps a value that can be fetched."""
    client.call(PLAIN, [x])
    client.define(UPDATE)
    client.call(UPDATE, [x])
    kept = client.next_id - 1
    client.fetch(1, kept)
    assert client.hears(worker.failed(client, 2)) == []
    assert client.hears(worker.say(msg.Chunk(client.number, 1, 0, 32, (8,), "float32"), bytes(32))) == []
    assert types(client.hears(worker.done(client, 1))) == [msg.CallFailed, msg.CallDone, msg.Chunk]
    assert not client.session.fetches
