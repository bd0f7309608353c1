"""The instruction log: one line per message, whatever is in it."""

from __future__ import annotations

import re
import weakref

import pytest
from dispatching import BROKEN, PLAIN, STEP, TOKEN, program, start_with_tensor
from msgspec import structs

from gt.dispatcher.events import BadFramesCame, MessageCame, PeerLost, Send
from gt.dispatcher.lines import LogLines
from gt.dispatcher.log import WAITING, InstructionLog
from gt.places import Place
from gt.program import Instruction, Precision, Program
from gt.transport.messages import (
    VERSION,
    Call,
    CallDone,
    CallFailed,
    Chunk,
    Define,
    Hello,
    Refused,
    Stats,
    WorkerHello,
    pack_ids,
)


def written(*happened, **options):
    """The lines of a log of this."""
    notes, lines = [], LogLines()
    log = InstructionLog(notes.append, **options)
    for each in happened:
        log(each)
    log.flush()
    return "".join(lines.text(each) for each in notes if each).splitlines()


def logged(hand):
    """The log of all that this hand has done."""
    happened = [each for event, actions in zip(hand.events, hand.actions, strict=True) for each in (event, *actions)]
    return written(*happened, clock=lambda: 0.25, held=hand.state)


def test_a_call_from_client_to_worker_and_back(hand):
    worker, client = hand.worker(), hand.client(PLAIN, name="train.py@ann")
    x = client.upload(worker)
    client.call(PLAIN, [x])
    worker.done(client, 1, 42)
    client.leave()
    lines = logged(hand)
    words = [line.split() for line in lines if not line.startswith("    |")]
    assert [int(w[2]) for w in words] == list(range(1, len(words) + 1))
    assert all(w[0].endswith(".250000") and w[1] == "+0.000000" for w in words)
    ways = {w[3] for w in words}
    assert ways == {"START", "RECV", "SEND", "WORKER_RECV", "WORKER_SEND", "CONNECT", "DISCONNECT"}

    name = PLAIN.hash().hex()[:8]
    calls = [line for line in lines if " Call " in line]
    assert len(calls) == 2
    assert all(f"session 1 #1 {name} (add) in {x}, makes 2" in line for line in calls)
    for call, words in zip(calls, (("RECV", "train.py@ann"), ("WORKER_SEND", "worker 1")), strict=True):
        assert all(word in call for word in words)
    assert any("CallDone" in line and "session 1 #1 42 us" in line for line in lines)
    assert "ERROR" not in "".join(lines)


def test_a_line_tells_what_a_call_replaces_and_frees(hand, client, worker, x):
    client.define(STEP)
    client.call(STEP, [x], (0.5,), frees=pack_ids([client.upload(worker)]))
    client.free(3)
    lines = logged(hand)
    (came,) = [line for line in lines if "  RECV " in line and " Call " in line]
    assert came.endswith("(add) in 1, makes 3, replaces 1->3, frees 2 1, 1 scalars")
    (freed,) = [line for line in lines if "  RECV " in line and " Free " in line]
    assert freed.endswith("session 1 frees 3")


def test_long_programs_are_named_and_long_lists_capped(hand, client, worker):
    long = program(length=20)
    client.define(long)
    xs = [client.upload(worker) for _ in range(130)]
    client.free(*xs[::2])
    client.call(long, [xs[1]])
    lines = logged(hand)
    assert f"{long.hash().hex()[:8]} (20 instructions) in 2" in "\n".join(lines)
    (freed,) = [line for line in lines if "  RECV " in line and " Free " in line]
    assert freed.endswith("... (65 in all)")
    assert len(freed) < 400


def test_every_failure_is_an_error(hand, client, worker, x):
    client.call(PLAIN, [x])
    worker.failed(client, 1, text="out of coffee")
    client.fetch(1, 77)
    client.call(PLAIN, [99])
    client.say(CallDone(0, 1))
    client.garble()
    worker.die()
    errors = [line for line in logged(hand) if "  ERROR " in line]
    text = "\n".join(errors)
    missing = ("request 1: ServerError: tensor 77 does not exist", "tensor 99 does not exist", "not a message")
    for said in ("out of coffee", *missing, "CallDone is not allowed here", "the connection of worker 1 is lost"):
        assert said in text, said


def test_places_are_written_beside_the_instructions():
    lines = written(MessageCame(b"p", Define(PLAIN, False, 0, (Place("train.py", 7, "add", 1),))))
    assert any(line.endswith("train.py:7 add") and "%1 = add %0 %0" in line for line in lines)
    assert "(add) at train.py:7" in lines[1]
    wrong = written(MessageCame(b"p", Define(PLAIN, False, 0, (Place("train.py", 7, "add", 1 << 60),))))
    assert not any(line.endswith("train.py:7 add") for line in wrong)


def test_a_program_is_listed_when_it_first_passes(hand, client, worker):
    client.define(PLAIN)
    client.define(PLAIN)
    client.call(PLAIN, [client.upload(worker)])
    lines = logged(hand)
    assert sum("%1 = add %0 %0" in line for line in lines) == 1
    first = next(i for i, line in enumerate(lines) if " Define " in line)
    assert lines[first + 1].startswith("    | program ")


def test_a_chunks_size_includes_its_bytes(hand):
    hand.client().upload(hand.worker(), n=100)
    sizes = [float(re.split(" {2,}", line)[6]) for line in logged(hand) if "RECV" in line and " Chunk " in line]
    assert sizes
    assert min(sizes) >= 0.4  # KB


def test_strangers_cannot_write_lines_or_break_it():
    lines = written(
        MessageCame(b"p", Hello(VERSION, TOKEN, "evil\n00:00  1  RECV\x1b[2J")),
        MessageCame(b"p", Define(BROKEN, False, 0, (Place("a\n  |", 1, "\x1b", 1),))),
        MessageCame(b"q", WorkerHello(VERSION, TOKEN, "l", True)),
        MessageCame(b"p", Call(0, 1, b"?", b"no ids", (), -5, b"neither", 0)),
        BadFramesCame(b"p", "what\never"),
        PeerLost(b"p"),
        PeerLost(b"unknown"),
    )
    plain = [line for line in lines if not line.startswith("    |")]
    assert len(plain) == 8
    assert all(len(re.split(" {2,}", line, maxsplit=7)) >= 7 for line in plain)
    text = "\n".join(lines)
    assert "\x1b" not in text
    assert TOKEN not in text


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (Program((((8,), "no such dtype"),), "", (), (), (), ()), "not readable"),
        (Program((), "", (Instruction("full", (), {}, (1 << 63) - 1),), (0,), (), ()), "too many results"),
    ],
)
def test_a_program_that_cannot_be_written_out(bad, said):
    assert said in written(MessageCame(b"p", Define(bad)))[-1]


def test_the_choice_and_the_precision_are_shown():
    fast = structs.replace(PLAIN, precision=Precision("high", False))
    lines = [line for n in (1, -1, 0) for line in written(MessageCame(b"p", Define(fast, False, n)))]
    said = [line for line in lines if " Define " in line]
    assert ["never compile" in line for line in said] == [False, True, False]
    assert [" compile" in line for line in said] == [True, True, False]
    assert "precision high, exact convolutions" in "".join(lines)


def test_a_strangers_precision_cannot_write_lines():
    bad = structs.replace(PLAIN, precision=Precision("\n00:00 RECV\x1b[2J"))
    lines = written(MessageCame(b"p", Define(bad)))
    assert "\x1b" not in "".join(lines)
    assert not any(line.startswith("00:00 RECV") for line in lines)


def test_the_log_shows_plans_for_several_workers(hand):
    client, workers, x = start_with_tensor(hand)
    client.call(PLAIN, [x])
    text = "\n".join(logged(hand))
    (call,) = workers[0].hears([a for each in hand.actions for a in each], Call)
    name = call.program.hex()[:8]
    assert f"{PLAIN.hash().hex()[:8]} (add) workers 1:{name} 2:{name} results []" in text
    assert "    | a note\n" in text
    assert "session 1 holds 2, as f32[8], layout [] on x=2: workers 1 2" in text
    assert "its own x=2" in text


def test_messages_that_cannot_be_encoded_have_a_line_too():
    bad = Stats(1, {"x": object()})
    lines = written(
        Send(b"p", Refused("no")), Send(b"p", bad), Send(b"p", CallFailed(1, 1, 1, object())), Send(b"p", bad)
    )
    assert [re.split(" {2,}", line)[5] for line in lines] == ["log", "Refused", "Stats", "CallFailed", "Stats"]
    assert all("ERROR not readable: TypeError" in line for line in lines[2:])


def test_a_note_keeps_no_payload():
    class Payload(bytearray):
        pass

    handed_on = []
    log = InstructionLog(handed_on.append)
    payload = Payload(1000)
    gone = weakref.ref(payload)
    log(MessageCame(b"p", Chunk(0, 1, 0, 1000), payload))
    del payload
    assert gone() is None
    assert not handed_on
    log.flush()
    assert "  1.0  " in LogLines().text(handed_on[0])


def test_messages_are_not_kept_for_long():
    handed_on = []
    log = InstructionLog(handed_on.append)
    for i in range(10 * WAITING):
        log(MessageCame(b"p", CallDone(0, i)))
    assert len(handed_on) == 10
    assert all(handed_on)  # the one who writes it is not asked to yet
    log.flush()
    assert handed_on[10:] == [b""]
