"""Sessions with a name: what is kept, for whom, and for how long."""

from __future__ import annotations

from typing import Any

import pytest
from dispatching import PLAIN, STEP, TOKEN, Client, FakeWorker, Hand, Settings, disconnected, sent_to, types

from gt.dispatcher import events as ev
from gt.dispatcher.named import QUESTIONS, SHELVES
from gt.dispatcher.shelves import ITEMS
from gt.transport import messages as msg
from gt.transport.identity import CLIENT, User


class Named(Client):
    """A client of a session with a name, and maybe with a key."""

    def __init__(self, hand: Hand, name: str = "exp", user: User | None = None) -> None:
        self.hand, self.seq, self.next_id, self.request = hand, 0, 1, 0
        self.peer = hand.peer()
        hello = msg.Hello(msg.VERSION, TOKEN, "a process", name)
        self.told = hand.feed(ev.MessageCame(self.peer, hello, None, user))
        (self.welcome,) = self.hears(self.told)
        self.number = getattr(self.welcome, "session", 0)

    def ask(self, kind: Any, *fields: Any, **more: Any) -> list[ev.Effect]:
        self.request += 1
        return self.say(kind(self.request, *fields, **more))

    def keep(self, name: str, *ids: int, acked: int = 0, **more: Any) -> list[ev.Effect]:
        return self.ask(msg.Keep, name, "form", msg.pack_ids(ids), acked, **more)

    def take(self, name: str, first: int = 1000, **more: Any) -> list[ev.Effect]:
        return self.ask(msg.Take, name, first, **more)

    def names(self) -> list[str]:
        return [thing.name for thing in self.answer(self.ask(msg.GetKept)).things]

    def answer(self, actions: list[ev.Effect]) -> msg.Kept:
        (answer,) = self.hears(actions)
        assert isinstance(answer, msg.Kept)
        return answer

    def refused(self, actions: list[ev.Effect]) -> str:
        """Why it cannot have what it asked for."""
        error = self.answer(actions).error
        assert error is not None
        return error.text

    @property
    def room(self) -> Any:
        return self.session.shelf.room


def copied(actions: list[ev.Effect], *workers: FakeWorker, error: msg.Failure | None = None) -> list[ev.Effect]:
    """The workers make the copies that they are asked for, or say why they cannot."""
    out = []
    for worker in workers:
        (copy,) = worker.hears(actions, msg.Copy)
        out += worker.say(msg.Copied(copy.request, error))
    return out


def kept(client: Named, worker: FakeWorker, name: str = "x", n: int = 8) -> int:
    """A tensor of n floats that is kept."""
    id = client.upload(worker, n=n)
    assert client.answer(copied(client.keep(name, id), worker)) == msg.Kept(client.request)
    return id


@pytest.fixture
def named(hand: Hand, worker: FakeWorker) -> Named:
    client = Named(hand)
    client.define(PLAIN)
    client.define(STEP)
    return client


def test_a_copy_is_kept_and_comes_back(hand: Hand, worker: FakeWorker, named: Named) -> None:
    id = named.upload(worker)
    (copy,) = worker.hears(out := named.keep("x", id), msg.Copy)
    assert copy == msg.Copy(named.room.number, copy.request, named.number, msg.pack_ids([id]), 1)
    assert named.answer(worker.say(msg.Copied(copy.request))) == msg.Kept(1)
    assert not named.hears(out), "it was answered before it was kept"
    named.free(id)
    assert worker.state.nbytes == 32
    named.leave()
    again = Named(hand)
    assert again.welcome == msg.Welcome(msg.VERSION, again.number, msg.WINDOW, (worker.number,))
    assert again.names() == ["x"]
    out = again.take("x")
    assert worker.hears(out, msg.Copy)[0].ids == msg.pack_ids([1])
    assert again.answer(copied(out, worker)) == msg.Kept(2, (msg.Thing("x", "", "form", (((8,), "float32"),)),), 1000)
    assert worker.state.nbytes == 64
    again.define(PLAIN)
    assert types(worker.hears(again.call(PLAIN, [1000], outputs=2000)))[-1] is msg.Call


def test_it_waits_for_the_calls_before_and_holds_up_those_behind(worker: FakeWorker, named: Named) -> None:
    x = named.upload(worker)
    named.call(PLAIN, [x])
    assert not worker.hears(named.keep("x", x + 1))
    assert not worker.hears(named.call(STEP, [x + 1], (0.5,))), "a step has begun on what is to be kept"
    out = worker.done(named, 1)
    assert types(worker.hears(out)) == [msg.Copy]
    out = copied(out, worker)
    assert types(named.hears(out)) == [msg.Kept]
    assert types(worker.hears(out)) == [msg.Define, msg.Call]


def test_nothing_is_kept_of_what_has_failed_unheard(worker: FakeWorker, named: Named) -> None:
    x = kept(named, worker)
    named.call(STEP, [x], (0.5,))
    named.keep("x", x + 1)
    answers = named.hears(worker.failed(named, 1))
    assert types(answers) == [msg.CallFailed, msg.CallDone, msg.Kept]
    assert "an earlier call has failed" in answers[-1].error.text
    out = named.keep("x", x + 1, acked=1)  # the client knows by now, and wants the value that is left
    assert types(worker.hears(out)) == [msg.Copy]


def test_the_old_one_stays_until_all_of_the_new_one_is_there(worker: FakeWorker, named: Named) -> None:
    x = kept(named, worker)
    out = copied(named.keep("x", x), worker, error=msg.Failure("OutOfMemory", "no room"))
    assert named.answer(out).error == msg.Failure("OutOfMemory", "no room")
    assert [*named.room.tensors] == [1]
    assert named.names() == ["x"]
    out = copied(named.keep("x", x), worker)
    assert worker.hears(out) == [msg.Free(named.room.number, msg.pack_ids([1]))]
    assert [*named.room.tensors] == [3]


def test_what_does_not_fit_is_refused_with_the_numbers(hand: Hand) -> None:
    worker = hand.worker(memory=80)
    named = Named(hand)
    x = kept(named, worker)
    text = named.refused(named.keep("x", x))
    assert text.startswith(f"copies of 32 bytes on worker {worker.number}, which has 16 bytes free of 80 bytes")
    assert "gt.drop() frees it" in text
    named.ask(msg.Drop, "x")
    assert worker.hears(named.keep("x", x), msg.Copy)


def test_the_work_of_a_client_that_is_gone_goes_on(hand: Hand, worker: FakeWorker, named: Named) -> None:
    """Whoever comes next sees what is kept after all that had arrived."""
    x = kept(named, worker)
    named.call(STEP, [x], (0.5,))
    named.call(STEP, [x + 1], (0.5,))
    named.fetch(1, x + 2)
    named.keep("x", x + 2)
    named.leave()
    after = Named(hand)
    assert not after.hears(after.ask(msg.GetKept))
    assert not after.hears(after.take("x"))
    worker.done(named, 1)
    out = worker.done(named, 2)
    (copy,) = worker.hears(out, msg.Copy)
    assert copy.ids == msg.pack_ids([x + 2])
    out = worker.say(msg.Copied(copy.request))
    (listed,) = after.hears(out)
    assert [thing.name for thing in listed.things] == ["x"]
    assert worker.hears(out, msg.Copy)[0].source == after.room.number
    assert named.number not in hand.state.sessions
    assert msg.CloseSession(named.number) in worker.hears(out)


def test_what_a_client_asks_and_keeps_has_an_effect_in_order(hand: Hand, worker: FakeWorker, named: Named) -> None:
    """Also if it does not wait for the answers, because of Ctrl-C: what it keeps after a drop is there."""
    x = kept(named, worker)
    named.call(PLAIN, [x])
    named.leave()
    again = Named(hand)
    y = again.upload(worker)
    for out in (again.ask(msg.Drop, "x"), again.keep("x"), again.ask(msg.GetKept), again.keep("z", y)):
        assert not again.hears(out), "the work of the client before was not waited for"
    out = worker.done(named, 1)  # nothing has to be copied for the first
    assert [(m.request, [t.name for t in m.things]) for m in again.hears(out)] == [(1, []), (2, []), (3, ["x"])]
    assert again.answer(copied(out, worker)) == msg.Kept(4)
    assert again.names() == ["x", "z"]


def test_a_client_that_asks_without_end_is_cut_off(worker: FakeWorker, named: Named) -> None:
    x = named.upload(worker)
    named.call(PLAIN, [x])
    named.keep("x", x)
    for _ in range(QUESTIONS):
        assert not named.hears(named.ask(msg.GetKept))
    (refused,) = named.hears(named.ask(msg.GetKept))
    assert isinstance(refused, msg.Refused)
    assert "more than 64 questions" in refused.text


def test_what_a_client_asks_behind_what_it_keeps_waits_for_that_alone(worker: FakeWorker, named: Named) -> None:
    x = named.upload(worker)
    named.call(PLAIN, [x])
    named.keep("x", x)
    named.ask(msg.Drop, "x")
    named.keep("x", x + 1)
    out = copied(worker.done(named, 1), worker)
    assert types(named.hears(out)) == [msg.Kept, msg.Kept]
    named.answer(copied(out, worker))
    assert named.names() == ["x"]


def test_what_a_gone_client_cannot_finish_is_given_up(hand: Hand, worker: FakeWorker, named: Named) -> None:
    chunk = msg.Chunk(0, 1, 0, 8 << 18, (1 << 19,), "float32")
    named.say(chunk, bytes(1 << 18))  # the first of eight
    named.keep("half", 1)
    named.leave()
    assert named.number not in hand.state.sessions
    unknown = Named(hand)
    unknown.upload(worker)
    unknown.say(unknown.make_call(STEP, [1], (0.5,), program=b"?" * 16))  # nobody has sent its text
    unknown.keep("x", 2)
    unknown.leave()
    assert unknown.number not in hand.state.sessions
    assert Named(hand).names() == []


def test_the_next_client_takes_over(hand: Hand, worker: FakeWorker, named: Named) -> None:
    x = kept(named, worker)
    after = Named(hand)
    (refused,) = named.hears(after.told)
    assert refused == msg.Refused(
        "session 'exp' was opened by another client ('a process'); this one is closed. To take it back, connect again: "
        "gt.connect(..., session='exp')"
    )
    assert disconnected(after.told) == [named.peer]
    out = named.keep("x", x)  # it has not heard yet
    assert not worker.hears(out)
    assert types(named.hears(out)) == [msg.Refused]
    hand.feed(ev.PeerLost(named.peer))
    assert after.names() == ["x"]
    assert Named(hand, "another").names() == []


def test_a_lease_begins_when_the_last_client_is_gone() -> None:
    """It is as long as the settings say."""
    hand = Hand(Settings(lease_s=5.0))
    worker, named = hand.worker(), Named(hand)
    kept(named, worker)
    hand.pass_time(10_000)
    assert named.names() == ["x"]
    named.say(msg.Goodbye())
    hand.pass_time(4.9)
    again = Named(hand)
    assert again.names() == ["x"]
    again.leave()
    out = hand.pass_time(5)
    assert types(worker.hears(out)) == [msg.CloseSession]
    assert any(isinstance(a, ev.Noted) and "its lease is over" in a.text for a in out)
    assert not hand.state.sessions
    assert not worker.state.nbytes
    assert Named(hand).names() == []


def test_a_name_with_nothing_kept_ends_with_its_client(hand: Hand, named: Named) -> None:
    named.leave()
    hand.pass_time(0.1)
    assert not hand.state.sessions


def test_workers_and_meshes_come_back(hand: Hand) -> None:
    workers = hand.workers(3)
    named = Named(hand)
    named.set_mesh(x=2)
    id = named.upload(*workers[:2], layout="[8@x]")
    assert named.answer(copied(named.keep("x", id), *workers[:2])).error is None
    named.leave()
    again = Named(hand)
    assert again.welcome.workers == (1, 2)
    assert again.welcome.meshes == (("", (("x", 2),), (1, 2)),)
    assert again.answer(copied(again.take("x"), *workers[:2])).error is None
    assert repr(again.session.tensors[1000].layout) == "[8@x]"
    again.leave()
    workers[1].die()
    third = Named(hand)
    assert third.welcome.workers == (1,)
    assert third.welcome.meshes == ()
    assert third.refused(third.take("x")) == "the worker that held it (host, pid 7) is gone"


def test_a_worker_that_dies_while_it_copies(hand: Hand, worker: FakeWorker, named: Named) -> None:
    x = kept(named, worker)
    named.keep("x", x)
    answers = named.hears(worker.die())
    assert [m.error.kind for m in answers if isinstance(m, msg.Kept)] == ["LostError"]
    named.leave()
    hand.pass_time(1)
    assert Named(hand).names() == ["x"]  # it is lost, and said to be so when it is taken


def test_copies_cannot_be_named_before_they_are_there(worker: FakeWorker, named: Named) -> None:
    kept(named, worker)
    out = named.take("x")
    for message in (named.make_call(PLAIN, [1000]), msg.Free(0, msg.pack_ids([1000])), msg.Fetch(0, 7, 1000)):
        (answer,) = named.hears(named.say(message))
        assert "tensor 1000 does not exist" in (answer.error if isinstance(answer, msg.FetchFailed) else answer).text
    assert named.answer(copied(out, worker)).error is None


def test_an_unnamed_session_keeps_nothing(hand: Hand, worker: FakeWorker) -> None:
    client = Named(hand, "")
    x = client.upload(worker)
    error = client.answer(client.keep("x", x)).error
    assert error == msg.Failure("ArgumentError", "keep: this session has no name")


@pytest.mark.parametrize("name", ["", "two\nlines", "\x1b[31m", "x" * 101])
def test_names(hand: Hand, worker: FakeWorker, named: Named, name: str) -> None:
    assert "1 to 100 printable characters" in named.refused(named.keep(name))
    if name:
        (refused,) = (client := Named(hand, name)).hears(client.told)
        assert "1 to 100 printable characters" in refused.text


def test_how_much_may_be_kept_is_bounded(hand: Hand, named: Named) -> None:
    for k in range(ITEMS):
        named.answer(named.keep(f"{k}"))
    assert "256 names" in named.refused(named.keep("more"))
    assert named.answer(named.keep("3")).error is None
    assert "4 MiB" in named.refused(named.ask(msg.Keep, "3", "x" * (5 << 20), b"", 0))
    for k in range(SHELVES - 1):
        Named(hand, f"{k}")
    (refused,) = (client := Named(hand, "one more")).hears(client.told)
    assert refused == msg.Refused(f"a user can have at most {SHELVES} named sessions")


ADA, BOB, EVE = (User(name, CLIENT, name[0] * 64) for name in ("ada", "bob", "eve"))


def test_what_is_published(hand: Hand, worker: FakeWorker) -> None:
    ada, bob, eve = (Named(hand, "", user) for user in (ADA, BOB, EVE))
    x = ada.upload(worker)
    copied(ada.keep("x", x, published=True), worker)
    copied(ada.keep("bobs", x, published=True, readers=("bob",)), worker)
    seen = [[t.name for t in c.answer(c.ask(msg.GetKept, published=True)).things] for c in (ada, bob, eve)]
    assert seen == [["x", "bobs"], ["x", "bobs"], ["x"]]
    assert ada.answer(copied(ada.take("bobs", published=True), worker)).error is None
    assert bob.answer(copied(bob.take("bobs", published=True, owner="ada"), worker)).error is None
    missing, hidden = (eve.answer(eve.take(n, published=True, owner="ada")).error for n in ("missing", "bobs"))
    assert missing is not None
    assert hidden == msg.Failure(missing.kind, missing.text.replace("missing", "bobs"))
    assert bob.refused(bob.take("x", published=True)), "his own"
    assert "nothing is published" in bob.refused(bob.ask(msg.Drop, "x", published=True))
    # It outlives its client, for a while, and is replaced by what another session of the same user publishes.
    ada.leave()
    hand.pass_time(29)
    second = Named(hand, "", ADA)
    y = second.upload(worker, n=4)
    copied(second.keep("x", y, published=True), worker)
    thing = eve.answer(copied(eve.take("x", published=True, owner="ada"), worker)).things[0]
    assert thing.specs == (((4,), "float32"),)
    hand.pass_time(2)
    second.ask(msg.Drop, "x", published=True)
    assert eve.answer(eve.ask(msg.GetKept, published=True)).things == ()


def test_a_key_that_is_revoked_ends_what_it_kept(hand: Hand, worker: FakeWorker) -> None:
    ada, bob = Named(hand, "exp", ADA), Named(hand, "exp", BOB)
    kept(ada, worker)
    kept(bob, worker)
    x = ada.upload(worker)
    copied(ada.keep("p", x, published=True), worker)
    taking = bob.take("p", published=True, owner="ada")
    ada.leave()
    out = hand.feed(ev.UsersChanged({BOB.key: BOB}, ""))
    error = bob.answer(out).error
    assert error == msg.Failure("ArgumentError", "get: nothing is published as 'ada/p' that you may read")
    copied(taking, worker)  # too late
    assert [s.name for s in hand.state.sessions.values() if s.holds] == ["[exp]"]
    assert bob.names() == ["x"]
    assert worker.state.nbytes == 64


def test_a_users_limit_counts_what_is_kept(hand: Hand, worker: FakeWorker) -> None:
    ada = Named(hand, "exp", User("ada", CLIENT, "a" * 64, memory=70))
    kept(ada, worker)
    ada.leave()
    again = Named(hand, "other", User("ada", CLIENT, "a" * 64, memory=70))
    x = again.upload(worker)
    assert "the sessions of ada hold 64 bytes of the 70 bytes" in again.refused(again.keep("x", x))


def test_what_is_on_another_worker(hand: Hand) -> None:
    """A session that has a worker gets the other one too, when its client has given up its ring."""
    first, second = hand.workers(2)
    ada, bob = Named(hand, ""), Named(hand, "")
    x = ada.upload(first)
    copied(ada.keep("x", x, published=True), first)
    bob.upload(second)
    assert bob.answer(bob.take("x", published=True)) == msg.Kept(bob.request, more=True)
    out = bob.take("x", published=True, more=True)
    assert bob.answer(copied(out, first)).error is None
    assert [*bob.session.workers] == [second.number, first.number]
    bob.define(PLAIN)
    assert len(sent_to((first.control, second.control), bob.call(PLAIN, [1000], outputs=2000))) >= 2


def test_a_worker_copies_what_it_holds_a_part_of(hand: Hand) -> None:
    """Of what others hold it may have an empty array, and that of a call that has failed."""
    workers = hand.workers(2)
    named = Named(hand)
    alone = named.upload(workers[0])
    named.set_mesh(x=2)
    both = named.upload(*workers, layout="[8@x]")
    out = named.keep("x", alone, both)
    assert [w.hears(out, msg.Copy)[0].ids for w in workers] == [msg.pack_ids([alone, both]), msg.pack_ids([0, both])]
