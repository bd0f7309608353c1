"""Short calls beside long ones: who may go, how many, how much, and that credit comes back."""

from __future__ import annotations

from typing import Any

import pytest
from dispatching import PLAIN, Hand, calls, program

from gt.dispatcher.schedule import BESIDE, BURST_US, CREDITS, SHORT_US, UNKNOWN_US, Lane, guess, learned, settle
from gt.dispatcher.session import Session
from gt.program import Program
from gt.transport import messages as msg
from gt.transport.identity import CLIENT, User

LONG_US = 300_000
LONG = program(length=2)


class Worker:
    """A worker that is busy with long calls of a greedy session, and a light session beside it."""

    def __init__(self, greedy: int = 1) -> None:
        self.hand = Hand()
        self.worker = self.hand.worker()
        self.greedy = [self.join(LONG) for _ in range(greedy)]
        first = self.greedy[0]
        for _ in range(3):
            self.call(first, LONG)
            self.worker.done(first, first.seq, LONG_US)
        for client in self.greedy:
            for _ in range(5):
                self.call(client, LONG)
        assert self.lane.calls == self.lane.long == 2
        self.light = self.join()

    @property
    def lane(self) -> Any:
        return self.worker.state.lane

    def join(self, what: Program = PLAIN) -> Any:
        """Another session, which has defined this program and uploaded its input."""
        client: Any = self.hand.client(what)
        client.x = client.upload(self.worker)
        return client

    def call(self, client: Any, what: Any = PLAIN) -> list[msg.Call]:
        """What the worker gets when the client calls this."""
        return calls(self.worker, client.call(what, [client.x]))

    def end_long(self) -> list[msg.Call]:
        """The oldest long call is done; what the worker gets then."""
        sent = [(s, min(s.sent)) for c in self.greedy for s in [c.session] if s.sent]
        session, seq = sent[0]
        client = next(c for c in self.greedy if c.session is session)
        return calls(self.worker, self.worker.done(client, seq, LONG_US))


def test_a_short_call_does_not_wait_for_long_ones() -> None:
    busy = Worker(greedy=4)
    (call,) = busy.call(busy.light)
    assert call.beside
    assert (busy.lane.calls, busy.lane.beside) == (2, 1)
    busy.worker.done(busy.light, 1, 100)
    assert (busy.lane.calls, busy.lane.beside) == (2, 0)
    (call,) = busy.call(busy.light)
    assert (call.seq, call.beside) == (2, True)


def test_where_nothing_is_long_nothing_goes_beside(client: Any, worker: Any, x: int) -> None:
    client.call(PLAIN, [x])
    worker.done(client, 1, 100)
    worker.done(client, 2, 100)
    for _ in range(3):
        (call,) = calls(worker, client.call(PLAIN, [x]))
        assert not call.beside


def test_a_long_call_waits_for_its_turn() -> None:
    busy = Worker()
    for _ in range(2):  # the second run tells how long it takes
        assert busy.call(busy.light)
        busy.worker.done(busy.light, busy.light.seq, 2 * SHORT_US)
    assert busy.call(busy.light) == []
    (call,) = busy.end_long()
    assert (call.session, call.beside) == (busy.light.number, False)


def test_what_has_never_run_is_judged_by_its_size() -> None:
    busy = Worker()
    large = program(length=200)
    busy.light.define(large)
    assert busy.call(busy.light, large) == []
    assert busy.light.session.head is not None
    other = busy.join()
    assert [c.beside for c in busy.call(other)] == [True]


def test_a_session_does_not_overtake_itself() -> None:
    busy = Worker()
    light = busy.light
    large = program(length=200)
    light.define(large)
    assert busy.call(light, large) == []
    assert busy.call(light) == []
    (call,) = busy.end_long()  # its own large one
    assert (call.session, call.seq, call.beside) == (light.number, 1, False)
    assert light.session.head is not None, "the short one waits until that is done"
    sent = calls(busy.worker, busy.worker.done(light, 1, 50_000))
    assert [c.seq for c in sent if c.session == light.number] == [2]


def test_a_long_call_that_is_sent_first_is_not_waited_for() -> None:
    """Both are sent in one event."""
    hand = Hand()
    worker = hand.worker()
    users: list[Any] = [hand.client(what) for what in (LONG, PLAIN)]
    for client, what, run_us in zip(users, (LONG, PLAIN), (LONG_US, 100), strict=True):
        client.x = client.upload(worker)
        for _ in range(3):
            client.call(what, [client.x])
            worker.done(client, client.seq, run_us)
    lane = worker.state.lane
    lane.calls += CREDITS  # there is no room for either,
    hand.looking = False
    for client, what in zip(users, (LONG, PLAIN), strict=True):
        client.call(what, [client.x])
    lane.calls -= CREDITS  # and now there is for both
    users[0].session.deficit_us = 500  # it is the turn of the long one
    hand.state.touch((lane,))
    sent = calls(worker, hand.pass_time(0.0))
    assert [(c.session, c.beside) for c in sent] == [(users[0].number, False), (users[1].number, True)]
    hand.machine.invariants()


def test_calls_beside_have_their_own_credits() -> None:
    busy = Worker()
    sent = [call for _ in range(BESIDE + 3) for call in busy.call(busy.light)]
    assert [c.seq for c in sent] == [*range(1, BESIDE + 1)]
    more = calls(busy.worker, busy.worker.done(busy.light, 1, 10))
    assert [(c.seq, c.beside) for c in more] == [(BESIDE + 1, True)]


@pytest.mark.parametrize("others", [1, 3])
def test_beside_long_calls_nobody_gets_more_than_its_share(others: int) -> None:
    """One that never pauses: after its burst it gets its part of the time, and no more."""
    lane = Lane()
    light, *_ = sessions = [Session(n, b"%d" % n, "") for n in range(others + 1)]
    for session in sessions:
        lane.enlist(session, 50.0)
    used_us, seconds = 0, 20
    for ms in range(seconds * 1000):
        if lane.allows(light, 300, 50.0 + ms / 1000):
            lane.take_beside(light, 300)
            lane.give_back(300, beside=True)
            settle(light, 300, 1000, beside=True)  # it takes longer than it was thought to
            used_us += 1000
    share_us = seconds * 1e6 / (others + 1)
    assert share_us <= used_us <= BURST_US + share_us + 1000


def test_shares_count_beside_long_calls_too() -> None:
    busy = Worker()
    ada, bob = (User(n, CLIENT, n, share=s) for n, s in (("ada", 3), ("bob", 1)))
    busy.greedy[0].session.user, busy.light.session.user = bob, ada
    light = busy.light.session
    light.allowance_us, light.allowed_s = 0, busy.hand.now_s
    busy.hand.pass_time(0.001)
    lane = busy.lane
    lane.enlist(light, busy.hand.now_s)
    assert lane.allows(light, 700, busy.hand.now_s)
    assert 740 <= light.allowance_us <= 760
    lane.leave(light, busy.hand.now_s)


@pytest.mark.parametrize("ending", ["failed", "closed", "worker"])
def test_credit_comes_back_however_a_call_ends(ending: str) -> None:
    busy = Worker()
    busy.call(busy.light)
    assert busy.lane.beside == 1
    if ending == "failed":
        busy.worker.failed(busy.light, 1)
    elif ending == "closed":
        busy.light.leave()
    else:
        busy.worker.die()
        assert not busy.hand.state.workers
        return
    assert (busy.lane.beside, busy.lane.beside_us) == (0, 0)
    busy.hand.machine.invariants()


def test_a_client_cannot_ask_for_it() -> None:
    busy = Worker()
    busy.light.define(LONG)
    out = busy.light.call(LONG, [busy.light.x], beside=True)
    assert [c for c in calls(busy.worker, out) if c.session == busy.light.number] == []


def test_one_slow_run_does_not_make_a_program_long() -> None:
    assert learned(0, 300, 40_000, 1)[1] == 300  # the first run pays for getting ready,
    assert learned(0, 300, 40_000, 2)[1] == 40_000  # the second shows that the guess was wrong,
    assert learned(0, 200, 40_000, 9)[1] == 226  # a later one was disturbed
    assert learned(0, 40_000, 200, 9)[1] == 200
    assert guess([]) == 0
    assert guess([10] * 100_000) == guess([1 << 40]) == UNKNOWN_US
