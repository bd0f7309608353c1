"""Whose turn it is: credits, shares of run time, and nobody who waits without a reason."""

from __future__ import annotations

from collections import deque

import pytest
from dispatching import PLAIN, Hand, at_the_input, calls, planning, program

from gt.dispatcher.schedule import AHEAD_US, CREDITS, Lane, learned
from gt.dispatcher.session import Session
from gt.transport import messages as msg
from gt.transport.identity import CLIENT, User

OTHER = program(length=2)


class Running:
    """A worker that runs what it is sent, in order, each session's program taking its own time."""

    def __init__(self, hand, run_us):
        self.hand = hand
        self.worker = hand.worker()
        self.run_us = run_us  #: session -> microseconds of its calls
        self.waiting = deque()
        self.used_us = dict.fromkeys(run_us, 0)
        self.finished = dict.fromkeys(run_us, 0)
        self.behind_us = []  #: for each call: the work that was before it when it came

    def take(self, actions):
        for message in self.worker.hears(actions):
            if isinstance(message, msg.Call):
                self.behind_us.append(sum(self.run_us[c.session] for c in self.waiting))
                self.waiting.append(message)

    def run_one(self, clients):
        call = self.waiting.popleft()
        client = clients[call.session]
        self.used_us[call.session] += self.run_us[call.session]
        self.finished[call.session] += 1
        self.take(self.worker.done(client, call.seq, self.run_us[call.session]))
        return client


def compete(run_us, steps, sync=(), users=None):
    """Sessions with calls of these lengths, always as many as their window allows; those in `sync` one. `users` says of
    whom they are."""
    hand = Hand(looking=False)
    running = Running(hand, {n + 1: us for n, us in enumerate(run_us)})
    clients = {}
    for n in running.run_us:
        what = program(length=n)
        client = clients[n] = hand.client(what)
        client.session.user = users[n - 1] if users is not None else None
        client.x, client.what = client.upload(running.worker), what
    for n, client in clients.items():
        for _ in range(1 if n in sync else 32):
            running.take(client.call(client.what, [client.x]))
    for _ in range(steps):
        client = running.run_one(clients)
        running.take(client.call(client.what, [client.x]))
    hand.machine.invariants()
    return running


def test_credits_bound_what_a_worker_is_sent(client, worker, x):
    client.call(PLAIN, [x])
    worker.done(client, 1)
    assert sum(len(calls(worker, client.call(PLAIN, [x]))) for _ in range(30)) == CREDITS
    more = calls(worker, worker.done(client, 2))
    assert [m.seq for m in more] == [CREDITS + 2]


def test_few_calls_of_an_unknown_program_are_sent_at_once(client, worker, x):
    for _ in range(10):
        client.call(PLAIN, [x])
    assert worker.state.lane.calls == 2
    worker.done(client, 1, 50)
    assert worker.state.lane.calls == 9  # all there are


def test_long_calls_are_not_piled_up_on_a_worker(client, worker, x):
    for _ in range(3):  # it turns out that they take a second
        client.call(PLAIN, [x])
        worker.done(client, client.seq, 1_000_000)
    for _ in range(10):
        client.call(PLAIN, [x])
    assert worker.state.lane.calls == 2


def test_equal_sessions_take_turns():
    running = compete([100, 100, 100], 600)
    assert max(running.finished.values()) - min(running.finished.values()) <= 2 * CREDITS


@pytest.mark.parametrize(("long_us", "short_us", "steps"), [(10_000, 100, 8000), (1_000_000, 1_000, 10_000)])
def test_a_session_of_long_calls_gets_its_share_of_time_and_not_more(long_us, short_us, steps):
    running = compete([long_us, short_us], steps)
    assert 0.8 < running.used_us[1] / running.used_us[2] < 1.25
    assert running.finished[2] > long_us / short_us / 2 * running.finished[1]


def test_users_are_given_time_by_their_shares():
    ada, bob = User("ada", CLIENT, "aa", share=2), User("bob", CLIENT, "bb")
    used = compete([700, 1000], 4000, users=(ada, bob)).used_us
    assert 1.9 < used[1] / used[2] < 2.1
    used = compete([500, 20_000, 700], 6000, users=(ada, ada, bob)).used_us
    assert 1.9 < (used[1] + used[2]) / used[3] < 2.1, "the sessions of a user have their share together"
    assert 0.9 < used[1] / used[2] < 1.1
    ada = User("ada", CLIENT, "aa", share=5)
    used = compete([100, 50_000, 1000], 20_000, users=(ada, bob, None)).used_us
    assert 4.5 < used[1] / used[2] < 5.5
    assert 0.9 < used[2] / used[3] < 1.1


def test_nobody_stands_behind_more_than_the_bound():
    running = compete([30_000, 100], 2000, sync=(2,))
    # Once the lengths are known, a call finds at most two long ones, or AHEAD_US of work, before it.
    assert max(running.behind_us[100:]) <= max(AHEAD_US, 2 * 30_000)
    assert running.finished[2] >= 100


def test_one_that_is_alone_has_it_all():
    running = compete([5_000], 100)
    assert running.finished[1] == 100


def lane_with(*deficits):
    lane = Lane()
    sessions = [Session(n, b"%d" % n, "") for n, _ in enumerate(deficits)]
    for session, deficit in zip(sessions, deficits, strict=True):
        session.deficit_us = deficit
        lane.ring.append(session)
        session.ring = lane
    return lane, sessions


def test_one_that_is_alone_owes_what_is_on_the_worker():
    lane, (session,) = lane_with(-(10**9))
    lane.ahead_us = 700
    assert lane.next() is session
    assert session.deficit_us == -700


def test_a_turn_lasts_until_the_deficit_is_used_up():
    lane, (first, second) = lane_with(500, 500)
    assert lane.next() is first
    first.deficit_us -= 600
    assert lane.next() is second
    second.deficit_us -= 600
    assert lane.next() is second  # the round begins where the last one ended
    assert (first.deficit_us, second.deficit_us) == (900, 900)


def test_a_large_debt_is_worked_off_in_one_step():
    lane, (debtor, other) = lane_with(-(10**9), -(10**9) - 5000)
    assert lane.next() is debtor
    assert debtor.deficit_us > 0 >= other.deficit_us


def test_a_debt_outlives_a_short_pause_and_savings_none():
    lane, (debtor, saver) = lane_with(-3_000_000, 500)
    lane.leave(debtor, 10.0)
    lane.leave(saver, 10.0)
    assert saver.deficit_us == 0
    lane.enlist(debtor, 11.0)
    assert debtor.deficit_us == -2_000_000
    lane.leave(debtor, 11.0)
    lane.enlist(debtor, 60.0)
    assert debtor.deficit_us == 0


def test_no_credit_no_turn():
    lane, _ = lane_with(500)
    lane.calls = CREDITS
    assert lane.next() is None


def test_estimates_follow_what_was_measured():
    assert learned(1000, 1000, 50_000, 1)[0] == 50_000  # the first run replaces the guess,
    assert learned(50_000, 1000, 100, 2)[0] == 100  # the second the first, which paid for getting ready,
    assert learned(100, 100, 180, 3)[0] == 110  # later ones count for an eighth


# --- calls for several workers ---------------------------------------------------------------


def test_sessions_that_share_some_workers_never_wait_for_each_other(hand):
    """1 2, 2 3 and 3 1: each worker gets the calls it shares with another in the same order."""
    workers = hand.workers(3)
    order: dict[int, list[tuple[int, int]]] = {w.number: [] for w in workers}
    clients = []
    for k in range(3):
        client = hand.client(PLAIN, x=3)
        mine = list(client.session.workers)
        pair = client.set_mesh("pair", (mine.index(k + 1), mine.index((k + 1) % 3 + 1)), x=2).workers
        a, b = (workers[n - 1] for n in pair)
        clients.append((client, client.upload(a, b, layout="pair: []")))
    hand.planner = planning(at_the_input)

    def note(out: list) -> None:
        for w in workers:
            order[w.number] += [(c.session, c.seq) for c in calls(w, out)]

    for _ in range(20):
        for client, x in clients:
            note(client.call(PLAIN, [x]))
    at = dict.fromkeys(order, 0)
    for _ in range(200):
        for w in workers:
            if at[w.number] < len(order[w.number]):
                session, seq = order[w.number][at[w.number]]
                at[w.number] += 1
                note(w.say(msg.CallDone(session, seq, 12_000)))
    assert all(client.session.done == 20 for client, _ in clients)
    for a in workers:
        for b in workers:
            common = [c for c in order[a.number] if c in order[b.number]]
            assert common == [c for c in order[b.number] if c in order[a.number]]


def test_a_call_for_two_takes_credit_on_both_or_on_none(hand):
    workers = hand.workers(2)
    busy = hand.client()
    busy.upload(workers[0])
    lone = hand.client(PLAIN)
    y = lone.upload(workers[1])
    client = hand.client(PLAIN, x=2)
    x = client.upload(*workers)
    for _ in range(4):
        lone.call(PLAIN, [y])  # two of them go: nobody knows how long it takes
    out = client.call(PLAIN, [x])
    assert [calls(w, out) for w in workers] == [[], []]
    assert workers[0].state.lane.calls == 0
    out = workers[1].done(lone, 1, run_us=20_000)
    assert [[c.session for c in calls(w, out)] for w in workers] == [[client.number], [client.number]]
    # The next of the one that waited meanwhile goes before the next of the other.
    client.call(PLAIN, [x])
    out = workers[1].done(lone, 2, run_us=20_000)
    assert [c.session for c in calls(workers[1], out)] == [lone.number]


def test_no_worker_is_idle_while_a_call_waits_for_another_one_too(hand):
    """It has calls for itself. With one of them, there is still room for the call that waits."""
    workers = hand.workers(2)
    near = hand.client(PLAIN)
    w = near.upload(workers[0])
    far = hand.client(PLAIN)
    y = far.upload(workers[1])
    client = hand.client(PLAIN, x=2)
    x = client.upload(*workers)
    for _ in range(2):
        far.call(PLAIN, [y])  # nobody knows how long it takes
    client.call(PLAIN, [x])
    assert client.session.claims
    sent = [calls(workers[0], near.call(PLAIN, [w])) for _ in range(3)]
    assert [len(each) for each in sent] == [1, 0, 0]
    out = workers[0].done(near, 1, run_us=20_000)
    assert [c.session for c in calls(workers[0], out)] == [near.number]
    out = workers[1].done(far, 1, run_us=20_000)
    assert [[c.session for c in calls(each, out)] for each in workers] == [[client.number], [client.number]]


def parts_of(singles, together, *, long_us=10_000, joint_us=10_000, users=None, total_us=4_000_000):
    """The part of the second of two workers that each session gets: so many on it alone, then so many on both, each of
    which always has calls there. A call of both begins on the two at once."""
    hand = Hand(looking=False)
    workers = hand.workers(2)
    hand.planner = planning(at_the_input)
    clients = {}
    for k in range(singles + together):
        if k < singles:
            hand.client().upload(workers[0])  # somebody on the first worker, who does nothing
        what = program(length=k + 1)
        client = hand.client(what, **({} if k < singles else {"x": 2}))
        client.x, client.what = client.upload(*workers[k < singles :]), what
        client.session.user = users[k] if users is not None else None
        client.us = long_us if k < singles else joint_us
        clients[client.number] = client
    assert [list(c.session.workers) for c in clients.values()] == [[2]] * singles + [[1, 2]] * together
    waiting = [deque() for _ in workers]
    busy = [None, None]  # (when it is done, call)
    used = dict.fromkeys(clients, 0)

    def note(out):
        for w, calls_ in zip(workers, waiting, strict=True):
            calls_.extend(calls(w, out))

    for client in clients.values():
        for _ in range(24):
            note(client.call(client.what, [client.x]))
    now_us = 0
    while now_us < total_us:
        heads = [calls_[0] if calls_ and at is None else None for calls_, at in zip(waiting, busy, strict=True)]
        for k, call in enumerate(heads):
            client = clients[call.session] if call is not None else None
            if client is not None and (len(client.session.workers) == 1 or heads[1 - k] == call):
                waiting[k].popleft()
                busy[k] = now_us + client.us, call
        then_us = min(at[0] for at in busy if at is not None)
        hand.pass_time((then_us - now_us) / 1e6)
        now_us = then_us
        for k, at in enumerate(busy):
            if at is not None and at[0] == now_us:
                busy[k], client = None, clients[at[1].session]
                note(workers[k].done(client, at[1].seq, client.us))
                if k == 1:
                    used[client.number] += client.us
                    note(client.call(client.what, [client.x]))
    return [us / total_us for us in used.values()]


@pytest.mark.parametrize(
    ("singles", "together", "long_us", "joint_us"),
    [
        (3, 1, 10_000, 10_000),
        (1, 3, 10_000, 10_000),
        (2, 2, 10_000, 10_000),
        (3, 1, 2_000, 30_000),
        (1, 1, 50_000, 9_000),
    ],
)
def test_a_worker_is_shared_evenly_with_sessions_on_several(singles, together, long_us, joint_us):
    fair = 1 / (singles + together)
    for part in parts_of(singles, together, long_us=long_us, joint_us=joint_us):
        assert 0.9 * fair < part < 1.1 * fair


def test_shares_hold_for_sessions_on_several_workers_too():
    ada, bob = User("ada", CLIENT, "aa", share=2), User("bob", CLIENT, "bb")
    for users in ((ada, bob), (bob, ada)):
        alone, both = parts_of(1, 1, users=users)
        assert 0.9 < (alone / both) / (users[0].share / users[1].share) < 1.1
