"""Who may say what: greetings, programs, wrong messages, endings; and that the machine is a function."""

from __future__ import annotations

import pytest
from dispatching import BROKEN, PLAIN, STEP, TOKEN, Hand, Settings, disconnected, program, sent_to, types
from msgspec import structs

from gt.dispatcher import state as state_module
from gt.dispatcher.events import CheckProgram, PeerLost, ProgramChecked
from gt.dispatcher.machine import Machine
from gt.program import Precision
from gt.transport import messages as msg

# --- greetings -------------------------------------------------------------------------------


def test_a_client_is_welcomed_into_a_session_of_its_own(hand):
    first, second = hand.client(name="a"), hand.client(name="b")
    assert (first.number, second.number) == (1, 2)
    assert hand.state.sessions[1].name == "a"


NEWER = msg.VERSION + 1


@pytest.mark.parametrize(
    ("version", "token", "words"),
    [
        (NEWER, TOKEN, [str(msg.VERSION), str(NEWER)]),
        (msg.VERSION, "", ["token"]),
        (msg.VERSION, "the secret ", ["token"]),
        (msg.VERSION, "ünïcode", ["token"]),
    ],
)
@pytest.mark.parametrize("worker", [False, True])
def test_another_version_or_a_wrong_token_is_refused_and_named(version, token, words, worker):
    hand = Hand()
    out = hand.say(b"p", msg.WorkerHello(version, token, "l", True) if worker else msg.Hello(version, token, "x"))
    (refused,) = sent_to(b"p", out)
    assert isinstance(refused, msg.Refused)
    assert all(word in refused.text for word in words)
    assert disconnected(out) == [b"p"]
    assert not hand.state.peers


def test_before_hello_nothing_is_allowed(hand):
    for message in (msg.Define(PLAIN), msg.GetStats(1), msg.Goodbye(), msg.CallDone(1, 1), msg.Welcome(1, 1, 1)):
        out = hand.say(b"p", message)
        assert types(sent_to(b"p", out)) == [msg.Refused]
        assert disconnected(out) == [b"p"], "a stranger may not stay"
    assert not hand.state.peers
    hand.handle(PeerLost(b"p"))


def test_a_second_hello_and_a_workers_message_are_rejected_and_change_nothing(hand):
    client = hand.client()
    hellos = [msg.Hello(msg.VERSION, TOKEN, "again"), msg.WorkerHello(msg.VERSION, TOKEN, "l", True)]
    for message in (*hellos, msg.CallDone(1, 1), msg.Stats(1, {}), msg.CloseSession(1)):
        assert types(client.hears(client.say(message))) == [msg.Rejected]
    assert types(client.hears(client.garble())) == [msg.Rejected]
    assert client.session.name == "somebody"
    assert not hand.state.workers


def test_sessions_are_bounded(monkeypatch):
    monkeypatch.setattr("gt.dispatcher.machine.SESSIONS", 2)
    monkeypatch.setattr(state_module, "SESSIONS", 2)
    hand = Hand()
    hand.client(), hand.client()
    out = hand.say(b"p", msg.Hello(msg.VERSION, TOKEN, "x"))
    assert isinstance(sent_to(b"p", out)[0], msg.Refused)
    assert disconnected(out) == [b"p"]


# --- programs --------------------------------------------------------------------------------


def test_a_program_is_checked_once_and_calls_of_it_wait_in_order():
    hand = Hand(checking=False)
    worker, one, two = hand.worker(), hand.client(), hand.client()
    x, y = one.upload(worker), two.upload(worker)
    assert [type(a) for a in one.define(PLAIN)] == [CheckProgram]
    assert two.define(PLAIN) == []
    assert one.call(PLAIN, [x]) == []
    assert one.free(x) == []
    assert two.call(PLAIN, [y]) == []
    (asked,) = hand.pending
    out = hand.feed(hand.ready(asked))
    heard = worker.hears(out)
    # One Define, then both calls, and the free behind the call it came after.
    assert [type(m).__name__ for m in heard].count("Define") == 1
    assert isinstance(heard[0], msg.Define)
    assert [m.session for m in heard if isinstance(m, msg.Call)] == [one.number, two.number]
    names = [type(m).__name__ for m in heard]
    assert names.index("Free") > names.index("Call")
    assert hand.feed(hand.ready(asked)) == []  # a second result changes nothing
    assert hand.feed(ProgramChecked(b"never asked for", None, "x")) == []


def test_others_go_on_while_a_program_is_checked(hand):
    worker, one, two = hand.worker(), hand.client(), hand.client(PLAIN)
    y = two.upload(worker)
    hand.checking = False
    x = one.upload(worker)
    one.define(STEP)
    assert one.call(STEP, [x], (1.0,)) == []
    assert types(worker.hears(two.call(PLAIN, [y]))) == [msg.Define, msg.Call]


def test_a_program_that_fails_its_check_is_rejected_and_a_call_of_it_ends_the_session(hand, client, worker, x):
    other = hand.client()
    assert "nonsense" in client.rejection(client.define(BROKEN))
    assert types(client.hears(client.define(BROKEN))) == [msg.Rejected]  # again, without a check
    out = client.call(BROKEN, [x])
    assert isinstance(client.hears(out)[0], msg.Refused)
    assert disconnected(out) == [client.peer]
    assert worker.hears(out) == [msg.CloseSession(client.number)]
    assert list(hand.state.sessions) == [other.number]


def test_a_call_waiting_for_a_program_that_fails_ends_the_session():
    hand = Hand(checking=False)
    client = hand.client(BROKEN)
    client.call(BROKEN, [1])
    out = hand.feed(hand.ready(hand.pending[0]))
    assert types(client.hears(out)) == [msg.Rejected, msg.Refused]
    assert disconnected(out) == [client.peer]


def test_an_unknown_program_is_asked_for_once_and_held_in_order(client, worker):
    x = client.upload(worker)
    assert client.hears(client.call(PLAIN, [x])) == [msg.Need(PLAIN.hash())]
    assert client.call(PLAIN, [x + 1]) == []
    assert client.fetch(1, x + 1) == []
    out = client.define(PLAIN)
    assert types(worker.hears(out)) == [msg.Define, msg.Call, msg.Fetch, msg.Call]


def test_the_cache_is_bounded_forgets_timed_programs_first_and_tells_the_workers():
    hand = Hand(Settings(cache_bytes=2000))
    worker, client = hand.worker(), hand.client()
    x = client.upload(worker, n=3)
    oldest, timed, fourth = (program(3, length=n) for n in (1, 2, 3))
    third = program(3, scalars="f")
    for what, cut in ((oldest, False), (timed, True)):
        client.define(what, timed=cut)
        client.call(what, [x])
        worker.done(client, client.seq)
    assert worker.hears(client.define(third)) == [msg.Forget(timed.hash())]
    assert worker.hears(client.define(fourth)) == [msg.Forget(oldest.hash())]
    assert {e.hash for e in hand.state.programs} == {third.hash(), fourth.hash()}
    # A call of what was forgotten is held while its text is asked for, and goes out with it.
    assert client.hears(client.call(timed, [x])) == [msg.Need(timed.hash())]
    assert types(worker.hears(client.define(timed))) == [msg.Define, msg.Call]


def test_a_program_in_use_is_not_forgotten():
    hand = Hand(Settings(cache_bytes=10))
    worker, client = hand.worker(), hand.client(PLAIN)
    client.call(PLAIN, [client.upload(worker)])
    client.define(program(length=2))
    assert worker.hears(worker.say(msg.Need(PLAIN.hash()))) == [msg.Define(PLAIN)]
    client.define(program(length=3))
    assert PLAIN.hash() in {e.hash for e in hand.state.programs}
    assert msg.Forget(PLAIN.hash()) in worker.hears(worker.done(client, 1))


def test_a_program_that_ended_by_itself_is_no_longer_timed(hand):
    client = hand.client()
    client.define(PLAIN, timed=True)
    client.define(PLAIN, timed=False)
    assert [e.timed for e in hand.state.programs] == [False]


def test_whether_to_compile_travels_and_the_most_willing_counts(hand):
    worker, client, other = hand.worker(), hand.client(), hand.client()
    x = client.upload(worker)
    client.say(msg.Define(PLAIN, False, -1))
    define, _ = worker.hears(client.call(PLAIN, [x]))
    assert define == msg.Define(PLAIN, False, -1)
    assert worker.hears(other.say(msg.Define(PLAIN, False, -1))) == []
    assert worker.hears(other.say(msg.Define(PLAIN, False, 1))) == [msg.Define(PLAIN, False, 1)]
    assert worker.hears(other.say(msg.Define(PLAIN, False, -1))) == []
    assert worker.hears(worker.say(msg.Need(PLAIN.hash()))) == [msg.Define(PLAIN, False, 1)]


def test_a_worker_without_the_program_is_not_told(client, worker):
    client.define(PLAIN)
    assert worker.hears(client.say(msg.Define(PLAIN, False, 1))) == []


@pytest.mark.parametrize(("said", "told"), [(1 << 40, 1), (-5, -1)])
def test_a_strange_choice_is_an_extreme_one(client, worker, said, told):
    x = client.upload(worker)
    client.say(msg.Define(PLAIN, False, said))
    assert worker.hears(client.call(PLAIN, [x]))[0] == msg.Define(PLAIN, False, told)


def test_a_program_of_an_unknown_precision_is_rejected(hand):
    client = hand.client()
    strange = structs.replace(PLAIN, precision=Precision("low"))
    assert strange.hash() != PLAIN.hash()
    said = "unknown precision 'low'; expected one of highest, high, medium"
    assert said in client.rejection(client.define(strange))


def test_one_program_over_the_limit_still_runs():
    hand = Hand(Settings(cache_bytes=10))
    worker, client = hand.worker(), hand.client()
    x = client.upload(worker)
    for what in (PLAIN, program(length=2), PLAIN):
        client.define(what)
        assert msg.Call in map(type, worker.hears(client.call(what, [x])))
        worker.done(client, client.seq)


def test_a_worker_that_forgot_a_program_gets_it_again(client, worker, x):
    client.call(PLAIN, [x])
    assert worker.hears(worker.say(msg.Need(PLAIN.hash()))) == [msg.Define(PLAIN)]
    assert worker.say(msg.Need(b"unknown")) == []


def test_programs_being_checked_count_as_queued(monkeypatch):
    monkeypatch.setattr("gt.dispatcher.queues.QUEUE_NBYTES", 3000)
    monkeypatch.setattr("gt.dispatcher.invariants.QUEUE_NBYTES", 3000)
    hand = Hand(checking=False)
    client = hand.client()
    for n in range(1, 200):
        out = client.define(program(length=n))
        if disconnected(out):
            break
    assert "too much" in client.hears(out)[0].text
    assert not hand.state.sessions
    for asked in hand.pending:
        hand.feed(hand.ready(asked))


# --- endings ---------------------------------------------------------------------------------


@pytest.mark.parametrize("politely", [True, False])
def test_a_session_ends_and_nothing_of_it_is_left(hand, client, worker, x, politely):
    other = hand.client()
    other.upload(worker)
    client.call(PLAIN, [x])
    client.fetch(1, x)
    client.say(client.chunk(), bytes(32))
    client.call(STEP, [x], (1.0,))
    out = client.say(msg.Goodbye()) if politely else client.leave()
    assert worker.hears(out) == [msg.CloseSession(client.number)]
    assert disconnected(out) == ([client.peer] if politely else [])
    assert list(hand.state.sessions) == [other.number]
    assert worker.state.lane.calls == 0
    assert worker.state.nbytes == 32
    # What the worker still says about it is late, and nobody's business.
    for late in (worker.done(client, 1), worker.fetch_failed(client, 1), worker.ack(client, x + 2)):
        assert late == []


def test_time_does_not_run_backwards(hand):
    hand.pass_time(5.0)
    hand.pass_time(-50.0)
    assert hand.state.now_s == 105.0


# --- statistics ------------------------------------------------------------------------------


def test_statistics_show_the_askers_own_rows_only(hand):
    worker, client, other = hand.worker(), hand.client(PLAIN, name="me"), hand.client(STEP, name="not me")
    client.call(PLAIN, [client.upload(worker)])
    other.call(STEP, [other.upload(worker)], (1.0,))
    (question,) = worker.hears(client.say(msg.GetStats(5)))
    data = {
        "calls": 2,
        "secret": [1],
        "sessions": {str(client.number): {"nbytes": 1}, str(other.number): {"nbytes": 2}},
        "programs": {PLAIN.hash().hex(): {"hits": 1}, STEP.hash().hex(): {"hits": 2}},
    }
    (answer,) = client.hears(worker.say(msg.Stats(question.request, data)))
    assert (answer.request, answer.data["dispatcher"]["sessions"], answer.data["session"]["name"]) == (5, 2, "me")
    (row,) = answer.data["workers"].values()
    assert row["session"] == {"nbytes": 1}
    assert row["programs"] == {PLAIN.hash().hex(): {"hits": 1}}
    assert row["answered"] is True
    assert "secret" not in row
    assert "not me" not in repr(answer)
    assert worker.say(msg.Stats(question.request, {})) == []  # answered already


def test_a_worker_that_does_not_answer_is_reported_after_the_deadline(hand):
    quick, slow, client = hand.worker(), hand.worker(), hand.client()
    out = client.say(msg.GetStats(1))
    (question,) = quick.hears(out)
    assert client.hears(quick.say(msg.Stats(question.request, {}))) == []
    assert client.hears(hand.pass_time(1.9)) == []
    (answer,) = client.hears(hand.pass_time(0.2))
    assert [w["answered"] for w in answer.data["workers"].values()] == [True, False]
    assert client.hears(slow.say(msg.Stats(question.request, {}))) == []


def test_statistics_without_workers_and_after_a_worker_is_lost(hand):
    client = hand.client()
    (answer,) = client.hears(client.say(msg.GetStats(1)))
    assert answer.data["workers"] == {}
    worker = hand.worker()
    assert client.hears(client.say(msg.GetStats(2))) == []
    (answer,) = client.hears(worker.die())
    assert (answer.request, answer.data["workers"]) == (2, {})


def test_questions_are_bounded_and_end_with_their_session(hand, client, worker):
    for n in range(16):
        assert client.hears(client.say(msg.GetStats(n))) == []
    assert types(client.hears(client.say(msg.GetStats(99)))) == [msg.Rejected]
    client.leave()
    assert not hand.state.questions
    assert worker.say(msg.Stats(1, {})) == []


# --- the machine is a function of its events -------------------------------------------------


def test_the_same_events_give_the_same_actions(hand):
    worker, one, two = hand.worker(), hand.client(STEP), hand.client(STEP)
    for client in (one, two):
        x = client.upload(worker)
        for _ in range(30):
            client.call(STEP, [x], (0.5,))
            x = client.next_id - 1
        client.fetch(1, x)
    for seq in range(1, 31):
        worker.done(one, seq, 300)
        worker.done(two, seq, 50)
    worker.die()
    hand.pass_time(20.0)
    again = Machine(hand.settings, TOKEN, "gt worker --host here -p 1")
    assert [again.handle(event) for event in hand.events] == hand.actions


def test_messages_of_a_worker_are_checked(hand, client, worker, x):
    stranger = hand.worker()
    client.call(PLAIN, [x])
    assert worker.done(client, 2) == []  # never sent
    assert stranger.done(client, 1) == []  # not there
    assert stranger.say(msg.ChunkAck(client.number, x, True)) == []
    assert worker.say(msg.ChunkAck(99, x, True)) == []
    assert client.hears(worker.done(client, 1, -5)) == [msg.CallDone(0, 1, 0)]
    assert worker.done(client, 1) == []  # twice
    # A worker that says what no worker says is of no use any more.
    out = worker.say(msg.GetStats(1))
    assert sorted(disconnected(out)) == sorted([worker.results, worker.control])
    assert list(hand.state.workers) == [stranger.number]
