"""The instruction log: one line per message, whatever is in it."""

from __future__ import annotations

import pytest
from dispatching import BROKEN, PLAIN, TOKEN, start
from msgspec import structs

from gt.dispatcher.events import BadFramesCame, MessageCame, PeerLost
from gt.dispatcher.log import InstructionLog
from gt.program import Instruction, Precision, Program
from gt.transport.messages import VERSION, Call, Define, Hello, WorkerHello


def logged(hand):
    """The log of all that this hand has done."""
    lines = []
    log = InstructionLog(lines.append, clock=lambda: 0.25)
    for event, actions in zip(hand.events, hand.actions, strict=True):
        log(event)
        for action in actions:
            log(action)
    return "".join(lines).splitlines()


def test_a_call_from_client_to_worker_and_back(hand):
    worker, client = hand.worker(), hand.client("train.py@ann")
    x = client.upload(worker)
    client.define(PLAIN)
    client.call(PLAIN, [x])
    worker.done(client, 1, 42)
    client.leave()
    lines = logged(hand)
    words = [line.split() for line in lines if not line.startswith("    |")]
    assert [int(w[1]) for w in words] == list(range(1, len(words) + 1))
    assert all(w[0].endswith(".250000") for w in words)
    ways = {w[2] for w in words}
    assert ways == {"RECV", "SEND", "WORKER_RECV", "WORKER_SEND", "CONNECT", "DISCONNECT"}

    name = PLAIN.hash().hex()[:8]
    calls = [line for line in lines if " Call " in line]
    assert len(calls) == 2
    assert all(f"#1 {name} (1 instructions)" in line for line in calls)
    assert "RECV" in calls[0]
    assert "train.py@ann" in calls[0]
    assert "WORKER_SEND" in calls[1]
    assert "worker 1" in calls[1]
    assert any("CallDone" in line and "#1 42 us" in line for line in lines)


def test_a_program_is_listed_when_it_first_passes(hand, client, worker):
    client.define(PLAIN)
    client.define(PLAIN)
    client.call(PLAIN, [client.upload(worker)])
    lines = logged(hand)
    assert sum("%1 = add %0 %0" in line for line in lines) == 1
    first = next(i for i, line in enumerate(lines) if " Define " in line)
    assert lines[first + 1].startswith("    | program ")


def test_a_chunks_size_includes_its_bytes(hand):
    hand.client().upload(hand.worker(), 100)
    sizes = [int(line.split()[5]) for line in logged(hand) if "RECV" in line and " Chunk " in line]
    assert sizes
    assert min(sizes) > 400


def test_strangers_cannot_write_lines_or_break_it():
    lines = []
    log = InstructionLog(lines.append)
    log(MessageCame(b"p", Hello(VERSION, TOKEN, "evil\n00:00 RECV\x1b[2J")))
    log(MessageCame(b"p", Define(BROKEN)))
    log(MessageCame(b"q", WorkerHello(VERSION, TOKEN, "l", True)))
    log(BadFramesCame(b"p", "what\never"))
    log(PeerLost(b"p"))
    log(PeerLost(b"unknown"))
    assert all(line.endswith("\n") for line in lines)
    plain = [line for line in lines if not line.startswith("    |")]
    assert all(line.count("\n") == 1 for line in plain)
    text = "".join(lines)
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
    lines = []
    InstructionLog(lines.append)(MessageCame(b"p", Define(bad)))
    assert said in lines[-1]


def test_the_choice_and_the_precision_are_shown():
    lines = []
    fast = structs.replace(PLAIN, precision=Precision("high", False))
    for choice in (1, -1, 0):
        InstructionLog(lines.append)(MessageCame(b"p", Define(fast, False, choice)))
    said = [line for line in lines if " Define " in line]
    assert ["never compile" in line for line in said] == [False, True, False]
    assert [" compile" in line for line in said] == [True, True, False]
    assert "precision high, exact convolutions" in "".join(lines)


def test_a_strangers_precision_cannot_write_lines():
    lines = []
    bad = structs.replace(PLAIN, precision=Precision("\n00:00 RECV\x1b[2J"))
    InstructionLog(lines.append)(MessageCame(b"p", Define(bad)))
    assert "\x1b" not in "".join(lines)
    assert not any(line.startswith("00:00") for line in "".join(lines).splitlines())


def test_the_log_shows_plans_for_several_workers(hand):
    client, workers = start(hand)
    x = client.upload(workers[0], 8, workers[1])
    client.call(PLAIN, [x])
    text = "\n".join(logged(hand))
    (call,) = [m for m in workers[0].hears([a for each in hand.actions for a in each]) if isinstance(m, Call)]
    name = call.program.hex()[:8]
    assert f"{PLAIN.hash().hex()[:8]} (1 instructions) workers 1:{name} 2:{name} results []" in text
    assert "    | a note\n" in text
    assert "its own x=2" in text
