"""The queue of a session: what a call must be, what waits, what a client may queue."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from dispatching import PLAIN, STEP, Hand, calls, disconnected, program, types

from gt.program import Instruction, Program
from gt.transport import messages as msg

TWO_INPUTS = Program((((8,), "float32"), ((8,), "float32")), "", (Instruction("add", (0, 1), {}),), (2,), (0,), ())


def test_done_is_cumulative_and_in_order(client, worker, x):
    for _ in range(3):
        client.call(PLAIN, [x])
    assert client.hears(worker.done(client, 2, 80)) == []
    assert client.hears(worker.done(client, 1, 70)) == [msg.CallDone(0, 2, 80)]
    assert client.hears(worker.done(client, 3, 90)) == [msg.CallDone(0, 3, 90)]


def test_a_fetch_does_not_wait_behind_calls_that_its_value_does_not_need(hand, client, worker):
    x = client.upload(worker)
    hand.checking = False
    client.define(PLAIN)
    client.call(PLAIN, [x])
    assert worker.hears(client.fetch(1, x)) == [msg.Fetch(client.number, 1, x)]
    assert worker.hears(client.fetch(2, x + 1)) == []  # waits for the call that makes it


def test_a_fetch_does_not_wait_for_calls_behind_the_one_that_makes_its_value(client, worker):
    """What somebody waits for goes ahead of the bulk of their own work."""
    client.define(PLAIN)
    x = client.upload()  # it has not arrived: everything waits
    first = client.next_id
    for k in range(6):
        client.call(PLAIN, [first + k - 1 if k else x])
    client.free(first + 5)
    for request, made in ((1, first + 2), (2, first + 2), (3, first), (4, first + 5), (5, 10**9)):
        assert client.fetch(request, made) == []
    sent = worker.hears(worker.ack(client, x))
    for seq in range(1, 7):
        sent += worker.hears(worker.done(client, seq))
    order = [m.seq if isinstance(m, msg.Call) else getattr(m, "request", "free") for m in sent[1:]]
    assert order == [1, 3, 2, 3, 1, 2, 4, 5, 6, 4, "free"]
    assert [type(sent[k]) for k in (2, 5, 6, 10)] == [msg.Fetch] * 4


def test_a_fetch_of_nothing_fails(client, worker):
    error = client.fetch_error(77, request=3)
    assert error.kind == "ServerError"
    assert "77" in error.text


# --- what is not a call ----------------------------------------------------------------------


BAD_CALLS: list[tuple[str, str, list[Any]]] = [
    ("seq", "the next call is 1", [3, 0]),
    ("program", "named by 16 bytes", [b"", b"x" * 17]),
    ("inputs", "multiple of 8", [b"1234567"]),
    ("inputs", "0 inputs", [b""]),
    ("inputs", "tensor 99 does not exist", [msg.pack_ids([99])]),
    ("inputs", "tensor -1 does not exist", [msg.pack_ids([-1])]),
    ("inputs", "f32[4]", [msg.pack_ids([2])]),
    ("scalars", "scalars", [(), (1,), (True,), (b"x",), (1.0, 1.0)]),
    ("outputs", "ids of results", [0, -5, 2**63 - 1]),
    ("outputs", "exists already", [2]),
    ("frees", "multiple of 8", [b"1"]),
    ("frees", "frees one of its inputs", [msg.pack_ids([1])]),
    ("frees", "twice", [msg.pack_ids([2, 2])]),
    ("frees", "tensor 98 does not exist", [msg.pack_ids([98])]),
    ("acked", "acked must be", [1, -1]),
]


@pytest.mark.parametrize(("field", "reason", "value"), [(f, r, v) for f, r, values in BAD_CALLS for v in values])
def test_a_bad_call_is_rejected_and_changes_nothing(client, worker, field, reason, value):
    assert (client.upload(worker), client.upload(worker, n=4)) == (1, 2)
    client.define(STEP)
    good = client.make_call(STEP, [1], (1.0,))
    before = (dict(client.session.tensors), client.session.nbytes, client.session.seq)
    out = client.say(msgspec.structs.replace(good, **{field: value}))
    assert reason in client.rejection(out)
    assert worker.hears(out) == []
    assert (dict(client.session.tensors), client.session.nbytes, client.session.seq) == before
    assert calls(worker, client.say(good))  # and the session goes on


def test_integers_by_value_have_64_bits(client, x):
    client.define(program(scalars="i"))
    assert "64-bit" in client.rejection(client.call(program(scalars="i"), [x], (2**63,)))


def test_a_donated_tensor_cannot_be_given_twice(client, x):
    client.define(TWO_INPUTS)
    assert "given twice" in client.rejection(client.call(TWO_INPUTS, [x, x]))


def test_ids_of_calls_grow(client, x):
    client.call(PLAIN, [x])
    client.free(x + 1)
    assert "ids of results" in client.rejection(client.call(PLAIN, [x], outputs=x + 1))


def test_the_calls_behind_a_rejected_one_are_rejected_too(hand, client, worker):
    x = client.upload(worker)
    hand.checking = False
    client.define(PLAIN)
    client.call(PLAIN, [99])
    client.call(PLAIN, [x])
    out = hand.feed(hand.ready(hand.pending[0]))
    assert types(client.hears(out)) == [msg.Rejected, msg.Rejected]
    assert worker.hears(out) == []


@pytest.mark.parametrize("ids", [[5], [1, 1], [-3]])
def test_a_bad_free_is_rejected(client, worker, ids):
    client.upload(worker)
    assert types(client.hears(client.free(*ids))) == [msg.Rejected]
    assert 1 in client.session.tensors
    assert types(client.hears(client.say(msg.Free(0, b"xyz")))) == [msg.Rejected]


def test_the_window_is_kept(client, worker, x):
    for _ in range(msg.WINDOW):
        assert client.hears(client.call(PLAIN, [x])) == []
    assert str(msg.WINDOW) in client.rejection(client.call(PLAIN, [x]))
    worker.done(client, 1)
    client.seq -= 1
    client.next_id -= 1
    assert client.hears(client.call(PLAIN, [x])) == []


def test_a_client_that_queues_too_much_is_cut_off(client, worker):
    client.call(PLAIN, [1])  # an unknown program: all behind it waits
    for request in range(1, 3000):
        out = client.fetch(request, 50)
        if disconnected(out):
            break
    assert request == 1024
    assert isinstance(client.hears(out)[0], msg.Refused)
    assert "too much" in client.hears(out)[0].text


def test_queued_bytes_are_bounded(client, worker):
    client.call(PLAIN, [1])
    for _ in range(70):
        out = client.say(msg.Free(0, bytes(1 << 20)))
        if disconnected(out):
            break
    assert isinstance(client.hears(out)[0], msg.Refused)


# --- isolation -------------------------------------------------------------------------------


def test_a_session_cannot_name_anothers_tensors(hand, worker):
    one, two = hand.client(PLAIN), hand.client(PLAIN)
    two.upload(worker)
    x = one.upload(worker)
    one.call(PLAIN, [x])
    secret = one.next_id - 1
    two.next_id = 1000
    assert types(two.hears(two.call(PLAIN, [secret]))) == [msg.Rejected]
    assert types(two.hears(two.free(secret))) == [msg.Rejected]
    assert types(two.hears(two.fetch(1, secret))) == [msg.FetchFailed]
    # The session in a client's message means nothing.
    two.seq = 0
    (call,) = calls(worker, two.call(PLAIN, [1], session=one.number))
    assert call.session == two.number
    assert set(one.session.tensors) == {x, secret}


@pytest.mark.parametrize("finished", [True, False])
def test_anothers_program_is_answered_like_a_missing_one(finished):
    """Whoever calls it must have sent its text: else one could ask what others run."""
    hand = Hand(checking=finished)
    worker, one, two = hand.worker(), hand.client(), hand.client()
    missing = program(length=5)
    one.define(PLAIN)
    x = two.upload(worker)
    three = hand.client()
    y = three.upload(worker)
    assert two.hears(two.call(PLAIN, [x])) == [msg.Need(PLAIN.hash())]
    assert three.hears(three.call(missing, [y])) == [msg.Need(missing.hash())]
    out = two.define(PLAIN)
    if not finished:
        assert calls(worker, out) == []
        out = hand.feed(hand.ready(hand.pending[0]))
    assert [call.session for call in calls(worker, out)] == [two.number]


def test_the_text_of_a_program_ends_with_its_session(hand, worker):
    one, two = hand.client(PLAIN), hand.client(PLAIN)
    one.leave()
    x = two.upload(worker)
    assert len(calls(worker, two.call(PLAIN, [x]))) == 1
    (entry,) = hand.state.programs
    assert entry.owners == {two.number}


def test_a_failure_goes_to_its_own_session_only(hand, worker):
    one, two = hand.client(PLAIN), hand.client(PLAIN)
    for client in (one, two):
        client.call(PLAIN, [client.upload(worker)])
    out = worker.failed(one, 1, text="private matters")
    assert types(one.hears(out)) == [msg.CallFailed, msg.CallDone]
    assert two.hears(out) == []
