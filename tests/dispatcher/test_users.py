"""Who may stay, and which workers may run calls together."""

from __future__ import annotations

from dispatching import PLAIN, STEP, TOKEN, calls, disconnected, sent_to

from gt.dispatcher import events as ev
from gt.dispatcher.users import REVOKED
from gt.transport import messages as msg
from gt.transport.identity import CLIENT, WORKER, User

ADA, BOB = User("ada", CLIENT, "aa"), User("bob", CLIENT, "bb")
CREW = User("crew", WORKER, "cc")


def hello(hand, peer, user, message=None):
    return hand.feed(ev.MessageCame(peer, message or msg.Hello(msg.VERSION, "", user.name), None, user))


def users(*all_):
    return ev.UsersChanged({user.key: user for user in all_}, "new secret")


def crew(hand, count, user=CREW):
    """Workers that try the addresses of each other; their connections for commands."""
    found = []
    for k in range(count):
        control, results = hand.peer(), hand.peer()
        about = (f"link{control.hex()}", True, "numpy", "cpu", 0, f"host{k}", 7, f"10.0.0.{k}:4", True)
        for peer, first in ((control, True), (results, False)):
            greeting = msg.WorkerHello(msg.VERSION, "", about[0], first, *about[2:])
            assert sent_to((peer,), hello(hand, peer, user, greeting))[0].worker
        found.append(control)
    return found


def reach(hand, crew, but=()):
    """All say that they reach the others, but for some pairs."""
    for who, peer in enumerate(crew, 1):
        for whom in range(1, len(crew) + 1):
            if who != whom:
                hand.say(peer, msg.Reached(whom, f"10.0.0.{whom - 1}:4 (refused)" if (who, whom) in but else ""))


# --- keys ------------------------------------------------------------------------------------


def test_a_key_stands_for_the_token(hand):
    assert isinstance(sent_to((b"a",), hello(hand, b"a", ADA))[0], msg.Welcome)
    assert TOKEN
    assert sent_to((b"b",), hello(hand, b"b", CREW)) == [msg.Refused("this key is for workers alone")]
    joining = msg.WorkerHello(msg.VERSION, "", "l", True)
    assert sent_to((b"c",), hello(hand, b"c", ADA, joining)) == [msg.Refused("this key is for clients alone")]


def test_the_connections_of_a_worker_have_one_key(hand):
    joining = msg.WorkerHello(msg.VERSION, "", "l", True)
    hello(hand, b"c", CREW, joining)
    other = User("other", WORKER, "dd")
    (said,) = sent_to((b"d",), hello(hand, b"d", other, msg.WorkerHello(msg.VERSION, "", "l", False)))
    assert said == msg.Refused("both connections of a worker must have the same key")


def test_a_revoked_user_is_gone_and_others_stay(hand):
    crew(hand, 1)
    for peer, user in ((b"a", ADA), (b"b", BOB), (b"c", ADA)):
        hello(hand, peer, user)
    out = hand.feed(users(BOB, CREW))
    assert sent_to((b"a", b"c"), out) == [msg.Refused(REVOKED)] * 2
    assert sent_to((b"b",), out) == []
    assert [session.peer for session in hand.state.sessions.values()] == [b"b"]
    assert ev.Disconnect(b"a") in out
    assert hand.feed(users(BOB, CREW)) == []


def test_a_revoked_worker_is_lost(hand):
    control, _ = crew(hand, 2), crew(hand, 1, User("others", WORKER, "dd"))
    out = hand.feed(users(ADA, User("others", WORKER, "dd")))
    assert msg.Refused(REVOKED) in sent_to(tuple(control), out)
    assert list(hand.state.workers) == [3]


def test_workers_hear_of_a_new_secret(hand):
    control = crew(hand, 2)
    out = hand.feed(users(CREW))
    assert [m.secret for m in sent_to(tuple(control), out)] == ["new secret"] * 2
    assert "new secret" not in repr(out)


# --- meeting ---------------------------------------------------------------------------------


def test_a_mesh_waits_until_its_workers_have_tried_each_other(hand):
    control = crew(hand, 2)
    client = hand.client()
    asked = msg.SetMesh(1, "", (("x", 2),))
    assert client.hears(client.say(asked)) == []
    hand.say(control[0], msg.Reached(2))
    assert not client.session.workers
    out = hand.say(control[1], msg.Reached(1))
    assert client.hears(out) == [msg.MeshSet(1, (1, 2))]


def test_what_cannot_meet_is_refused_at_once(hand):
    reach(hand, crew(hand, 2), but={(2, 1)})
    answer = hand.client().set_mesh(x=2)
    assert answer.error == (
        "a mesh of 2 workers: worker 2 (host1, pid 7, at 10.0.0.1:4) cannot reach worker 1 (host0, pid 7): "
        "10.0.0.0:4 (refused)"
    )
    assert answer.workers == ()


def test_a_mesh_is_made_of_workers_that_reach_each_other(hand):
    reach(hand, crew(hand, 4), but={(1, 2), (1, 3), (1, 4)})
    assert hand.client().set_mesh(x=3).workers == (2, 3, 4)
    assert hand.client().set_mesh(x=1).workers == (1,), "the least loaded; alone it is as good as others"
    assert "cannot reach" in hand.client().set_mesh(x=4).error


def test_a_session_stays_where_it_is(hand):
    reach(hand, crew(hand, 3), but={(1, 2), (2, 1)})
    client = hand.client()
    assert client.set_mesh(x=1).workers == (1,)
    assert client.set_mesh(x=2).workers == (1, 3)
    assert "cannot reach" in client.set_mesh(x=3).error
    assert client.set_mesh(x=2).workers == (1, 3)


def test_a_way_that_opens_later_is_used(hand):
    control = crew(hand, 2)
    reach(hand, control, but={(1, 2)})
    assert "cannot reach" in hand.client().set_mesh(x=2).error
    hand.say(control[0], msg.Reached(2))
    assert hand.client().set_mesh(x=2).workers == (1, 2)


def test_what_was_said_of_a_worker_goes_with_it(hand):
    control = crew(hand, 2)
    reach(hand, control)
    hand.feed(ev.PeerLost(control[1]))
    assert hand.state.workers[1].reached == {}
    hand.say(control[0], msg.Reached(2, "late"))
    hand.say(control[0], msg.Reached(99, "nobody"))
    assert hand.state.workers[1].reached == {}


# --- limits ----------------------------------------------------------------------------------


def limited(hand, *known, **limits):
    """A client of a user with these limits."""
    client = hand.client(*known)
    client.session.user = User("ada", CLIENT, "aa", **limits)
    return client


def test_memory_of_a_user_is_for_all_sessions_together(hand):
    worker = hand.worker()
    first, second = limited(hand, PLAIN, memory=64), limited(hand, PLAIN, memory=64)
    x = first.upload(worker)
    nbytes = first.session.nbytes
    first.session.user = second.session.user = User("ada", CLIENT, "aa", memory=3 * nbytes)
    y = second.upload(worker)
    (done,) = calls(worker, second.call(PLAIN, [y]))
    assert done.refused is None, "three of them fit"
    (refused,) = calls(worker, first.call(PLAIN, [x]))
    assert refused.refused.kind == "OutOfMemory"
    text = refused.refused.text
    assert text.startswith("the call needs "), text
    all_ = f"{3 * nbytes} bytes"
    assert text.endswith(f"where the sessions of ada hold {all_} of the {all_} that this user may use")
    worker.done(second, 1)
    other = hand.client(PLAIN)
    (mine,) = calls(worker, other.call(PLAIN, [other.upload(worker)]))
    assert mine.refused is None, "another user has nothing to do with it"
    second.leave()
    x2 = first.upload(worker)
    assert first.session.tensors[x2].nbytes == nbytes, "there is room again"


def test_an_upload_over_the_limit_is_lost(hand):
    worker = hand.worker()
    client = limited(hand, memory=1)
    client.upload(worker)
    (lost,) = client.session.tensors.values()
    assert lost.failure.kind == "OutOfMemory"
    assert "an upload of" in lost.failure.text
    assert "of the 1 bytes that this user may use" in lost.failure.text


def test_workers_of_a_user(hand):
    hand.workers(4)
    client = limited(hand, workers=2)
    assert client.set_mesh(x=2).workers == (1, 2)
    answer = client.set_mesh(x=2, y=2)
    assert answer.error == "a mesh of 4 workers; ada may use 2"
    assert client.set_mesh(x=2).workers == (1, 2)


def test_sessions_of_a_user(hand, monkeypatch):
    """Nobody can take all sessions of a server."""
    monkeypatch.setattr("gt.dispatcher.limits.SESSIONS_OF_USER", 2)
    for peer in (b"a", b"b"):
        assert isinstance(sent_to((peer,), hello(hand, peer, ADA))[0], msg.Welcome)
    text = "ada has 2 sessions already, the limit of a user; close some"
    assert sent_to((b"c",), hello(hand, b"c", ADA)) == [msg.Refused(text)]
    assert isinstance(sent_to((b"d",), hello(hand, b"d", BOB))[0], msg.Welcome)
    hand.feed(ev.PeerLost(b"a"))
    assert isinstance(sent_to((b"e",), hello(hand, b"e", ADA))[0], msg.Welcome)


# --- uploads per second ----------------------------------------------------------------------


def acks(client, out):
    return [m.key for m in client.hears(out) if isinstance(m, msg.ChunkAck)]


def test_uploads_of_a_user_wait_for_the_time_that_they_take(hand):
    """32 bytes each, and 64 bytes per second: two at once, then one in half a second, from whatever session."""
    worker, other = hand.worker(), hand.client()
    one, two = limited(hand, PLAIN, upload=64), limited(hand, upload=64)
    at_once = []
    for client in (one, two, one, one):
        chunk = client.chunk()
        client.say(chunk, bytes(32))
        at_once.append(acks(client, worker.ack(client, chunk.key)))
    assert at_once == [[1], [1], [], []]
    assert calls(worker, one.call(PLAIN, [2])) == [], "what has not been acknowledged has not arrived"
    chunk = other.chunk()
    other.say(chunk, bytes(32))
    assert acks(other, worker.ack(other, chunk.key)) == [chunk.key], "others do not wait"
    out = hand.pass_time(0.25)  # half of one: it may go, and the next one waits longer
    assert acks(one, out) == [2]
    assert len(calls(worker, out)) == 1, "it has arrived now"
    assert acks(one, hand.pass_time(0.2)) == []
    assert acks(one, hand.pass_time(0.2)) == [3]
    hand.pass_time(2.0)
    assert not hand.state.uploading


def test_a_client_that_does_not_wait_is_rejected(hand):
    worker = hand.worker()
    client = limited(hand, upload=1)
    client.next_id = 2
    for k in range(6):
        out = client.say(msg.Chunk(0, 1, 4 * k, 400, (100,) if not k else (), "float32" if not k else ""), bytes(4))
        if k < 5:
            assert msg.ChunkAck(0, 1, True) in client.hears(worker.ack(client, 1)) or k
    assert "at most 4 chunks may be unacknowledged" in client.rejection(out)


def test_what_waited_ends_with_its_session_its_worker_or_the_limit(hand):
    worker = hand.worker()
    one, two, three = (limited(hand, upload=1) for _ in range(3))
    for client in (one, two, three):
        client.upload(worker)
    one.leave()
    assert two.session.uploads
    two.session.user = three.session.user = ADA  # it has no limit
    out = hand.pass_time(0.1)
    assert acks(two, out) == acks(three, out) == [1]
    four = limited(hand, upload=1)
    for _ in range(2):
        four.upload(worker)
    out = hand.feed(ev.PeerLost(worker.control))
    assert acks(four, out) == [1, 2], "a chunk is always acknowledged in the end"
    assert acks(four, hand.pass_time(100.0)) == []


# --- tensors ---------------------------------------------------------------------------------


def test_tensors_of_a_session(hand, monkeypatch):
    """One more fails, and the session goes on; who does not care is cut off."""
    for module in ("queues", "uploads", "session"):
        monkeypatch.setattr(f"gt.dispatcher.{module}.TENSORS", 4)
    worker, client = hand.worker(), hand.client(PLAIN, STEP)
    ids = [client.upload(worker) for _ in range(4)]
    client.next_id = 50
    (call,) = calls(worker, client.call(PLAIN, [ids[0]]))
    text = "this session has 4 tensors; the limit is 4. Delete some, or stack them"
    assert call.refused == msg.Failure("OutOfMemory", text)
    worker.say(msg.CallFailed(client.number, 1, 1, call.refused))
    (step,) = calls(worker, client.call(STEP, [ids[0]], (1.0,), acked=1))
    assert step.refused is None, "it makes no more than it takes"
    client.free(50)
    frees = msg.pack_ids(ids[1:2])
    assert calls(worker, client.call(PLAIN, [ids[2]], frees=frees, acked=1))[0].refused is None
    for seq in (2, 3):
        worker.done(client, seq)
    lost = client.upload()
    assert client.lost(lost).kind == "OutOfMemory"
    for _ in range(10):
        out = client.call(PLAIN, [ids[2]], acked=1)
        if disconnected(out):
            break
        worker.say(msg.CallFailed(client.number, client.seq, client.seq, call.refused))
    assert client.hears(out)[-1] == msg.Refused("too many tensors: a session can have at most 4")


def test_uploads_are_tensors_of_a_session_too(hand, monkeypatch):
    monkeypatch.setattr("gt.dispatcher.uploads.TENSORS", 2)
    worker, client = hand.worker(), hand.client()
    for _ in range(4):
        client.upload(worker)
    assert [client.lost(i) is not None for i in range(1, 5)] == [False, False, True, True]
    text = client.rejection(client.say(client.chunk(), bytes(32)))
    assert text == "upload 5: a session can have at most 2 tensors"
