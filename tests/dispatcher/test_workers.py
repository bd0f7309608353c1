"""Workers come and go: placement, waiting for a first one, and what is lost with one."""

from __future__ import annotations

from dispatching import CREATE, PLAIN, TOKEN, Hand, Settings, disconnected, sent_to, types

from gt.dispatcher.events import PeerLost
from gt.transport import messages as msg

NO_WORKER = "no worker has joined this server; start one with: gt worker --host here -p 1"


# --- joining ---------------------------------------------------------------------------------


def test_a_worker_is_usable_once_both_connections_are_there(hand):
    client = hand.client()
    x = client.upload()
    hand.say(b"control", msg.WorkerHello(msg.VERSION, TOKEN, "link", True))
    assert not client.session.workers
    out = hand.say(b"results", msg.WorkerHello(msg.VERSION, TOKEN, "link", False))
    assert types(sent_to(b"control", out)) == [msg.Chunk]
    assert client.session.first.number == 1
    assert x in client.session.uploads


def test_a_worker_is_lost_with_its_signs_of_life(hand):
    worker, client = hand.worker(), hand.client()
    client.upload()
    assert hand.say(b"signs", msg.Alive(worker.control.hex())) == []
    out = hand.handle(PeerLost(b"signs"))
    assert sorted(disconnected(out)) == sorted([worker.control, worker.results])
    assert not hand.state.workers
    assert not hand.state.peers.keys() & {b"signs", worker.control, worker.results}


def test_signs_of_life_of_nobody_are_refused(hand):
    worker = hand.worker()
    hand.say(b"signs", msg.Alive(worker.control.hex()))
    for link in ("", "unknown", worker.control.hex()):  # the last one has them already
        out = hand.say(b"p", msg.Alive(link))
        assert types(sent_to(b"p", out)) == [msg.Refused]
        assert disconnected(out) == [b"p"]
    assert hand.handle(PeerLost(b"p")) == []
    assert worker.state.usable


def test_a_link_is_used_by_one_worker_only(hand):
    worker = hand.worker()
    out = hand.say(b"other", msg.WorkerHello(msg.VERSION, TOKEN, worker.control.hex(), True))
    assert isinstance(sent_to(b"other", out)[0], msg.Refused)
    assert disconnected(out) == [b"other"]
    assert worker.state.usable


def test_half_a_worker_that_leaves_is_forgotten(hand):
    hand.say(b"control", msg.WorkerHello(msg.VERSION, TOKEN, "link", True))
    hand.handle(PeerLost(b"control"))
    assert not hand.state.workers
    assert not hand.state.links


def test_a_session_is_placed_on_the_least_loaded_worker_when_it_needs_one(hand):
    first, second = hand.worker(), hand.worker()
    clients = [hand.client() for _ in range(5)]
    assert all(not c.session.workers for c in clients)
    sizes = [8, 8, 100, 8, 8]
    for client, n in zip(clients, sizes, strict=True):
        client.say(client.chunk(n), bytes(4 * n))
    # By sessions: 1, 2, 1 (lowest number), 2; then by bytes: the first worker holds the large one.
    assert [c.session.first.number for c in clients] == [1, 2, 1, 2, 2]
    assert (first.state.nbytes, second.state.nbytes) == (432, 96)


def test_idle_sessions_keep_nobody_away_but_their_memory_does(hand):
    first, second = hand.worker(memory=1000), hand.worker(memory=4000)
    idle = [hand.client() for _ in range(4)]
    for client, worker, n in zip(idle, (first, second, second, first), (200, 300, 8, 8), strict=True):
        client.upload(worker, n=n)
    assert (first.state.nbytes, second.state.nbytes) == (832, 1232)
    hand.pass_time(50.0)
    busy = hand.client()
    busy.upload(second)  # by memory: 83% of the first worker's is taken, 31% of the second's
    hand.pass_time(20.0)  # the others have been idle for 70 s
    late = hand.client()
    late.upload(first)
    assert (busy.session.first.number, late.session.first.number) == (2, 1)


def test_one_who_always_computes_keeps_more_away_than_several_who_pause(hand):
    first, second = hand.worker(), hand.worker()
    greedy, *others = [hand.client(PLAIN) for _ in range(4)]
    x = greedy.upload(first)
    greedy.call(PLAIN, [x])  # which takes some minutes
    for client in others:
        client.upload(second)
        for _ in range(60):
            hand.pass_time(1.0)
    assert [c.session.first.number for c in (greedy, *others)] == [1, 2, 2, 2]


def test_what_waited_goes_out_when_a_worker_joins(hand):
    client = hand.client(PLAIN)
    x = client.upload()
    client.call(PLAIN, [x])
    client.fetch(1, x + 1)
    hand.pass_time(14.0)
    worker = hand.worker()
    assert types(worker.hears(worker.joined))[-1] is msg.Chunk
    out = worker.ack(client, x)
    assert types(worker.hears(out)) == [msg.Define, msg.Call, msg.Fetch]
    assert hand.state.held_nbytes == 0
    assert client.hears(hand.pass_time(100.0)) == []


# --- no worker -------------------------------------------------------------------------------


def test_without_a_worker_calls_and_fetches_fail_after_the_timeout():
    hand = Hand(Settings(worker_timeout_s=15.0))
    client = hand.client(PLAIN)
    x = client.upload()
    client.call(PLAIN, [x])
    client.call(PLAIN, [x + 1])
    client.fetch(1, x + 2)
    assert client.hears(hand.pass_time(14.9)) == []
    heard = client.hears(hand.pass_time(0.2))
    assert types(heard) == [msg.ChunkAck, msg.CallFailed, msg.CallFailed, msg.FetchFailed, msg.CallDone]
    _, first, second, fetch, done = heard
    assert (first.seq, first.root, first.error.kind) == (1, 1, "LostError")
    assert first.error.text == second.error.text == fetch.error.text == NO_WORKER
    assert (second.seq, second.root, done.seq) == (2, 1, 2)

    # What uses the lost results fails at once, and so on.
    failed, done = client.hears(client.call(PLAIN, [x + 2]))
    assert (failed.seq, failed.root, done.seq) == (3, 1, 3)
    assert client.fetch_error(x + 3, request=2).text == NO_WORKER
    client.free(x, x + 1, x + 2, x + 3)
    assert not client.session.tensors

    # The session goes on when a worker comes.
    worker = hand.worker()
    y = client.upload(worker)
    assert types(worker.hears(client.call(PLAIN, [y]))) == [msg.Define, msg.Call]


def test_creation_without_inputs_waits_and_fails_the_same_way(hand):
    client = hand.client(CREATE)
    client.call(CREATE, [], (1.0,))
    hand.pass_time(10.0)
    client.call(CREATE, [], (1.0,))
    heard = client.hears(hand.pass_time(6.0))  # both: the wait counts from the first need
    assert types(heard) == [msg.CallFailed, msg.CallFailed, msg.CallDone]
    assert [m.root for m in heard[:2]] == [1, 2]
    # A later need waits anew.
    client.call(CREATE, [], (1.0,))
    assert client.hears(hand.pass_time(14.0)) == []
    worker = hand.worker()
    assert types(worker.hears(worker.joined))[1:] == [msg.Define, msg.Call]
    assert [t.nbytes for i, t in client.session.tensors.items() if not client.lost(i)] == [32]


def test_a_call_waiting_for_its_program_is_not_failed_by_the_timeout(hand):
    client = hand.client()
    x = client.upload()
    client.call(PLAIN, [x])
    heard = client.hears(hand.pass_time(16.0))
    assert types(heard) == [msg.ChunkAck]  # the upload is lost; the program may still come
    heard = client.hears(client.define(PLAIN))
    assert types(heard) == [msg.CallFailed, msg.CallDone]


# --- losing ----------------------------------------------------------------------------------


def test_a_lost_worker_answers_everything_under_way(hand, client, worker, x):
    other = hand.client()
    other.upload(hand.worker())
    for _ in range(2):
        client.call(PLAIN, [x])
    worker.done(client, 1)
    client.fetch(7, x)
    y = client.chunk(8)
    client.say(y, bytes(32))
    out = worker.die()
    heard = client.hears(out)
    assert types(heard) == [msg.ChunkAck, msg.FetchFailed, msg.CallFailed, msg.CallDone]
    ack, fetch, failed, done = heard
    assert ack.key == y.key
    assert fetch.request == 7
    assert (failed.seq, failed.root, done.seq) == (2, 2, 2)
    for text in (fetch.error.text, failed.error.text):
        assert "(host, pid 7) is gone" in text
    assert disconnected(out) == [worker.control]
    assert other.hears(out) == []
    assert all(map(client.lost, client.session.tensors))
    assert client.session.nbytes == 0


def test_a_worker_may_leave_in_good_order(hand, client, worker):
    client.upload(worker)
    out = hand.say(worker.control, msg.Goodbye())
    assert sorted(disconnected(out)) == sorted([worker.control, worker.results])
    assert not hand.state.workers
    assert not client.session.workers


def test_the_queue_goes_on_at_another_worker(hand, client, worker, x):
    second = hand.worker()
    client.call(PLAIN, [x])
    worker.done(client, 1)
    for _ in range(20):  # more than the credits: some wait
        client.call(PLAIN, [x])
    out = worker.die()
    # The calls that waited use what was lost: they fail too, and no worker has to hear of it.
    heard = client.hears(out, msg.CallFailed)
    assert [m.seq for m in heard] == list(range(2, 22))
    assert {(m.root, m.error.kind) for m in heard} == {(2, "LostError")}
    assert client.session.done == 21
    assert second.hears(out) == []
    y = client.upload(second)
    assert client.session.first.number == second.number
    assert types(second.hears(client.call(PLAIN, [y]))) == [msg.Define, msg.Call]


def test_the_call_to_blame_is_remembered_across_workers(hand, client, worker, x):
    client.call(PLAIN, [x])  # fails with its worker
    worker.die()
    second = hand.worker()
    failed, _ = client.hears(client.call(PLAIN, [x + 1]))
    assert (failed.seq, failed.root) == (2, 1)
    failed, _ = client.hears(client.call(PLAIN, [x]))  # made by no call, but lost in the same loss
    assert failed.root == 1
    client.upload(second)
    client.call(PLAIN, [x + 2])  # now there is a worker
    failed, _ = client.hears(second.failed(client, 4))
    assert (failed.seq, failed.root) == (4, 1)


def test_frees_of_lost_tensors_are_not_sent(hand, client, worker, x):
    worker.die()
    second = hand.worker()
    y = client.upload(second)
    (call,) = second.hears(client.call(PLAIN, [y], frees=msg.pack_ids([x])), msg.Call)
    assert call.frees == b""
    assert call.refused is None


def test_a_lost_workers_other_connection_means_nothing_any_more(hand, client, worker, x):
    client.call(PLAIN, [x])
    worker.die()
    assert client.hears(hand.say(worker.control, msg.CallDone(client.number, 1, 5))) == []
    assert hand.handle(PeerLost(worker.control)) == []


def test_what_was_sent_before_a_loss_was_heard_fails_with_it_at_once(hand, client, worker, x):
    """A creation after a call that ran on the lost worker: both fail now, and only the first is to blame."""
    client.define(CREATE)
    client.call(PLAIN, [x])
    (failed, done) = client.hears(worker.die())
    assert "is gone" in failed.error.text
    assert (failed.root, done.seq) == (1, 1)
    heard = client.hears(client.call(CREATE, [], (1.0,)))
    assert types(heard) == [msg.CallFailed, msg.CallDone]
    assert (heard[0].root, heard[0].error) == (1, failed.error)
    # It has heard of it: what it sends now may wait for a worker.
    assert client.hears(client.call(CREATE, [], (1.0,), acked=1)) == []
    joined = hand.worker()
    assert types(joined.hears(joined.joined))[1:] == [msg.Define, msg.Call]


def test_a_loss_while_a_call_waits_for_its_program(hand, client, worker):
    """The call was not on the worker yet. It fails at once and names the worker, instead of waiting for another."""
    hand.checking = False
    client.upload(worker)
    client.define(CREATE)
    client.call(CREATE, [], (1.0,))
    assert client.hears(worker.die()) == []
    failed, done = client.hears(hand.feed(hand.ready(hand.pending.pop())))
    assert (failed.seq, failed.root, failed.error.kind, done.seq) == (1, 1, "LostError", 1)
    assert "host, pid 7" in failed.error.text


def test_a_loss_during_uploads(hand, client, worker):
    """The next uploads are lost at once too: a client that waits for their acknowledgement hears of it."""
    client.upload(worker)
    client.say(client.chunk(), bytes(32))  # on its way
    worker.die()
    heard = client.hears(client.say(client.chunk(), bytes(32)))
    assert types(heard) == [msg.ChunkAck]
    assert "host, pid 7" in client.fetch_error(client.next_id - 1).text
    # Later ones wait for a worker.
    hand.pass_time(3.0)
    assert client.hears(client.say(client.chunk(), bytes(32))) == []
    joined = hand.worker()
    assert types(joined.hears(joined.joined))[-1] is msg.Chunk


def test_another_worker_takes_over_at_once(hand, client, worker):
    client.upload(worker)
    client.define(CREATE)
    other = hand.worker()
    client.say(client.chunk(), bytes(32))
    worker.die()
    assert types(other.hears(client.call(CREATE, [], (1.0,)))) == [msg.Define, msg.Call]
