"""Traces: everybody is asked to record, what they tell reaches the one who asked, and it always ends."""

from __future__ import annotations

import pytest
from dispatching import PLAIN, Client, Hand, start_with_tensor

from gt.dispatcher.events import LoopRecorded, RecordLoop
from gt.dispatcher.traces import ANSWER_S
from gt.places import Place
from gt.transport.messages import Define, Span, Spans, Trace

SPAN = Span("a lane", "a name", 5, 9)


def ask(asker, duration_us=1_000_000):
    return asker.say(Trace(7, duration_us))


def number(hand: Hand) -> int:
    assert hand.state.trace is not None
    return hand.state.trace.number


def tracing(hand: Hand) -> tuple[Client, int]:
    """Somebody who has asked for a trace of a second, and the number of the trace."""
    asker = hand.client()
    ask(asker)
    return asker, number(hand)


def test_everybody_records_and_is_heard(hand, worker, client):
    asker = hand.client(name="asker")
    out = ask(asker)
    n = number(hand)
    assert worker.hears(out) == client.hears(out) == [Trace(n, 1_000_000)]
    assert asker.hears(out) == []
    assert [a for a in out if isinstance(a, RecordLoop)] == [RecordLoop(n, True)]
    assert client.hears(hand.pass_time(0.9)) == []
    out = hand.pass_time(0.2)
    assert worker.hears(out) == client.hears(out) == [Trace(n, 0)]
    assert [a for a in out if isinstance(a, RecordLoop)] == [RecordLoop(n, False)]

    (said,) = asker.hears(client.say(Spans(n, "not me", (SPAN,), offset_ns=3)))
    assert said == Spans(7, "session 1 somebody", (SPAN,), offset_ns=3)
    client.say(Spans(n, last=True))
    (said,) = asker.hears(hand.feed(LoopRecorded(n, (SPAN,))))
    assert (said.who, said.spans) == ("dispatcher", (SPAN,))
    said = asker.hears(hand.say(worker.control, Spans(n, spans=(SPAN,), last=True)))
    assert [(m.who, m.last) for m in said] == [("worker 1 (cpu)", True), ("", True)]
    assert said[-1].error == ""
    assert hand.state.trace is None


def test_programs_are_told_with_their_lines(hand):
    client, workers, x = start_with_tensor(hand)
    client.say(Define(PLAIN, places=(Place("a.py", 3, "add", 1),)))  # it was defined without: that stays
    client.call(PLAIN, [x])
    asker, n = tracing(hand)
    hand.pass_time(2.0)
    hand.feed(LoopRecorded(n, ()))
    (local,) = {p.hash for e in hand.state.programs for plan in e.plans.values() for p in plan.locals.values()}
    for w in workers[1:]:
        hand.say(w.control, Spans(n, last=True))
    client.say(Spans(n, spans=(Span("t", "record", 1, 2, 1, 1, PLAIN.hash()),), last=True))
    spans = (Span("s", "call", 1, 2, 1, 1, local), Span("s", "call", 1, 2, 1, 1, b"nobody's"))
    said = asker.hears(hand.say(workers[0].control, Spans(n, spans=spans, last=True)))
    programs = {name: p for m in said for name, p in m.programs.items()}
    assert set(programs) == {PLAIN.hash().hex(), local.hex()}
    assert programs[local.hex()].ops == ("add",)


def test_one_at_a_time_and_not_forever(hand, worker, client):
    asker, other = hand.client(), hand.client()
    for bad in (0, -1, 61_000_000):
        (said,) = asker.hears(ask(asker, bad))
        assert said.last
        assert "between 0 and 60 s" in said.error
    ask(asker)
    (said,) = other.hears(ask(other))
    assert "another trace is being recorded" in said.error


def test_who_joins_late_records_and_who_leaves_is_not_waited_for(hand, worker, client):
    asker, n = tracing(hand)
    late = hand.client(name="late")
    assert late.hears(hand.pass_time(0.5)) == [Trace(n, 500_000)]
    hand.pass_time(0.6)
    late.leave()
    client.say(Spans(n, last=True))
    hand.feed(LoopRecorded(n, ()))
    worker.die()
    (said,) = asker.hears(hand.pass_time(0.1))
    assert said.last
    assert said.error == ""
    assert hand.state.trace is None


def test_who_does_not_answer_is_named(hand, worker, client):
    asker, n = tracing(hand)
    hand.pass_time(1.1)
    hand.feed(LoopRecorded(n, ()))
    hand.say(worker.control, Spans(n, last=True))
    assert asker.hears(hand.pass_time(1.0)) == []
    (said,) = asker.hears(hand.pass_time(ANSWER_S))
    assert said.error == "no answer from session 1 somebody"
    assert asker.hears(client.say(Spans(n, spans=(SPAN,)))) == []  # too late


@pytest.mark.parametrize("after_s", [0.1, 1.2])
def test_the_one_who_asked_leaves(hand, worker, client, after_s):
    asker, n = tracing(hand)
    hand.pass_time(after_s)
    asker.leave()
    out = hand.pass_time(0.1)
    assert hand.state.trace is None
    if after_s < 1:
        assert client.hears(out) == [Trace(n, 0)]
        assert RecordLoop(n, False) in out
    ask(hand.client())
    assert hand.state.trace is not None


def test_what_nobody_asked_for_is_ignored(hand, worker, client):
    assert hand.say(worker.control, Spans(3, spans=(SPAN,), last=True)) == []
    assert client.say(Spans(3, spans=(SPAN,), last=True)) == []
    assert hand.feed(LoopRecorded(3, (SPAN,))) == []
    ask(hand.client())
    other = hand.client(name="after the trace began")
    assert other.say(Spans(number(hand), spans=(SPAN,))) == []


@pytest.mark.parametrize("counts", [[2], [1, 0], [5, -4], "too long a name", []])
def test_places_that_cannot_be_true_are_ignored(hand, client, counts):
    long = (Place("a" * 300, 3, "add", 1),)
    places = long if isinstance(counts, str) else tuple(Place("a.py", 3, "add", n) for n in counts)
    assert client.hears(client.say(Define(PLAIN, places=places))) == []
    assert hand.state.programs.get(PLAIN.hash()).places == ()
