"""`gt trace`: a recording of a real server, as Chrome's format and as a picture; clocks; simulated workers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import gt
from gt.cli.lanes import Excerpt, svg
from gt.cli.main import main
from gt.cli.recorded import Process, Recorded
from gt.cli.trace import chrome
from gt.dispatcher.recording import offset_of
from gt.errors import ArgumentError
from gt.places import Place
from gt.tracing import Recording, now_ns, unpack_steps
from gt.transport.messages import Span, Spans, Trace, TracedProgram
from tests.processes.running import DEADLINE_S, Server, environment
from tests.processes.running import Process as Started
from tests.sessions import own_settings
from tests.sim.cluster import Cluster, using


def whole(text: str) -> dict[str, list[dict[str, Any]]]:
    """The events of a trace, by their kind."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for event in json.loads(text)["traceEvents"]:
        kinds.setdefault(event["ph"], []).append(event)
    return kinds


def recorded() -> Recorded:
    """A trace of one call on two workers, one of them on another machine."""
    found = Recorded()
    program = TracedProgram(("matmul", "all_reduce"), (Place("a.py", 3, "forward", 1), Place("", 0, "", 1)))
    steps = Recording()
    steps.begun_ns = 0
    steps.mark(0)
    steps.mark(1)
    for who, spans in {
        "session 1 ann/a.py-7": (Span("MainThread", "record", 1_000, 2_000, 1, 1, b"p"),),
        "dispatcher": (Span("loop", "Call", 2_100, 2_200, 1, 1),),
        "worker 1 (cpu)": (Span("session 1", "call", 3_000, 9_000, 1, 1, b"q", 1),),
    }.items():
        found.take(Spans(1, who, spans, True))
    far = Span("session 1", "call", 53_000, 59_000, 1, 1, b"q", 1)
    together = Span("session 1 collectives", "all_reduce sum", 54_000, 58_000, 1, 1, b"q")
    found.take(Spans(1, "worker 2 (cpu)", (far, together), True, offset_ns=50_000))
    found.take(Spans(1, programs={b"q".hex(): program, b"p".hex(): program}))
    assert found.take(Spans(1, last=True))
    return found


def test_clocks_are_brought_together_and_arrows_lead_to_workers() -> None:
    kinds = whole(json.dumps(chrome(recorded())))
    calls = [e for e in kinds["X"] if e["name"] == "call a.py:3"]
    assert [e["ts"] for e in calls] == [2.0, 2.0]  # microseconds after the beginning
    assert {e["args"]["name"] for e in kinds["M"] if e["name"] == "process_name"} == {
        "session 1 ann/a.py-7", "dispatcher", "worker 1 (cpu)", "worker 2 (cpu)"
    }  # fmt: skip
    ids = {e["id"] for e in kinds["s"]}
    assert ids == {e["id"] for e in kinds["t"]} == {e["id"] for e in kinds["f"]} == {"1.1"}
    assert len(kinds["f"]) == 2


@pytest.mark.parametrize(
    ("asked", "heard", "sent", "came", "offset"),
    [(0, 10, 20, 30, 0), (0, 0, 30, 30, 0), (0, 1010, 1020, 30, 1000), (1000, 10, 20, 1030, -1000)],
)
def test_the_offset_of_a_clock(asked: int, heard: int, sent: int, came: int, offset: int) -> None:
    assert offset_of(asked, heard, sent, came) == offset


def test_the_picture_has_lanes_and_a_legend() -> None:
    drawn = ElementTree.fromstring(svg(recorded(), Excerpt()))
    words = [each.text or "" for each in drawn.iter("{http://www.w3.org/2000/svg}text")]
    for name in ("worker 1 (cpu)", "worker 2 (cpu)", "dispatcher", "session 1 collectives", "waits", "collective"):
        assert name in words
    arrows = list(drawn.iter("{http://www.w3.org/2000/svg}path"))
    assert len(arrows) == 2


@pytest.mark.parametrize(("begin", "end"), [(0.0, 0.0), (5.0, 1.0)])
def test_a_window_that_is_empty(begin: float, end: float) -> None:
    with pytest.raises(ArgumentError, match=f"the end must be after the begin, got {begin:g} to {end:g} ms"):
        svg(recorded(), Excerpt(begin, end))
    with pytest.raises(ArgumentError, match="nothing happened"):
        svg(Recorded(processes={"dispatcher": Process("dispatcher")}), Excerpt())


def test_what_others_wrote_cannot_break_the_picture_or_the_file() -> None:
    found = recorded()
    odd = Span("lane\x1b\x00", "na<me>&\x1b[2J\n", 2_000, 1_000, -5, -1, b"\xff" * 99, 7, b"odd steps")
    found.take(Spans(1, "session 9 evil\x1b[2J\n", (odd, Span("", "", -(1 << 62), 1 << 62)), True, offset_ns=-7))
    found.take(Spans(1, "worker x", (odd,), True))
    text = json.dumps(chrome(found)) + svg(found, Excerpt(0.0, 1e6))
    assert "\\u001b" not in text
    assert "\x1b" not in text
    ElementTree.fromstring(svg(found, Excerpt()))


def test_a_recording_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gt.tracing.SPANS", 5)
    monkeypatch.setattr("gt.tracing.PIECE", 2)
    recording = Recording()
    for k in range(9):
        recording.add("lane", str(k), now_ns(), now_ns())
    said = list(recording.answer(3, now_ns()))
    assert [len(m.spans) for m in said] == [2, 2, 1, 0]
    assert [m.last for m in said] == [False, False, False, True]
    assert said[-1].left_out == 4


def test_workers_tell_instructions_and_collectives() -> None:
    """In a simulated cluster: the session that asks is traced by hand here, as it does not trace itself."""
    cluster = Cluster()
    cluster.add_worker()
    with using(cluster.client()) as session:
        gt.mesh(x=2)
        x = gt.shard(gt.ones(8, 4), {0: "x"})
        x.sum().item()
        for each in cluster.workers:
            assert each.core.receive(Trace(1, 1000)) == []
        session._handle(Trace(1, 1000), None)
        assert x.sum().item() == 32
        said = [m for each in cluster.workers for m, _ in each.core.receive(Trace(1, 0))]
        spans = [span for m in said if isinstance(m, Spans) for span in m.spans]
        (mine,) = [span for span in (session.trace.spans if session.trace else []) if span.seq]
        session._handle(Trace(1, 0), None)
        assert session.trace is None
    calls = [s for s in spans if s.name == "call"]
    assert len(calls) == 2
    assert {(s.session, s.seq) for s in calls} == {(mine.session, mine.seq)}
    for call in calls:
        steps = unpack_steps(call.steps)
        assert {i for i, _ in steps} >= {0, 1}
        assert [ns for _, ns in steps] == sorted(ns for _, ns in steps)
        assert call.start_ns + steps[-1][1] <= call.end_ns
    assert [s.name for s in spans if "collectives" in s.lane] == ["all_reduce sum"] * 2


def test_a_client_that_leaves_tells_what_it_did() -> None:
    cluster = Cluster()
    with using(cluster.client()) as session:
        session._handle(Trace(7, 1_000_000), None)
        gt.ones(3).sum().item()
        sent: list[Any] = []
        session.channel.send = lambda message, payload=None: sent.append(message)
        session.close()
    spans = [m for m in sent if isinstance(m, Spans)]
    assert {m.request for m in spans} == {7}
    assert any(span.name == "record" for m in spans for span in m.spans)
    assert spans[-1].last


@pytest.mark.processes
def test_a_real_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = Server("--engine", "numpy", "--workers", "1", GT_TOKEN="a secret token")
    file, picture = tmp_path / "trace.json", tmp_path / "trace.svg"
    tracer = None
    try:
        with own_settings() as patch:
            patch.setenv("GT_TOKEN", "a secret token")
            gt.connect(server.address)
            x = gt.ones(16, 16)
            options = ["trace", "--server", server.address, "-s", "0.3", "-o", str(file), "--svg", str(picture)]
            tracer = Started(["-m", "gt.cli.main", *options], environment(GT_TOKEN="a secret token"))
            steps = 0
            while tracer.popen.poll() is None:
                (x @ x).sum().item()
                steps += 1
            code, out, err = tracer.end(DEADLINE_S)
            assert (code, err) == (0, ""), err
            assert "spans of 3 processes" in out
            assert main(["trace", "--server", server.address, "-s", "99"]) == 1
            assert "between 0 and 60 s, got 99 s" in capsys.readouterr().err
            gt.disconnect()
    finally:
        if tracer is not None:
            tracer.popen.kill()
            tracer.popen.communicate()
        server.stop()
    text = file.read_text() + picture.read_text()
    assert "a secret token" not in text
    assert str(tmp_path.parent) not in text
    kinds = whole(file.read_text())
    calls = [e for e in kinds["X"] if e["name"].startswith("call test_trace.py:")]
    assert 0 < len(calls) <= steps
    inside = [e for e in kinds["X"] if e["name"] == "matmul"]
    assert inside
    assert all(e["args"]["line"].startswith("test_trace.py:") for e in inside)
    assert any(e["name"].startswith("wait test_trace.py:") and e["name"].endswith(" item") for e in kinds["X"])
    assert {e["id"] for e in kinds["s"]} & {e["id"] for e in kinds["t"]} & {e["id"] for e in kinds["f"]}
    assert all(e["dur"] >= 0 for e in kinds["X"])
    sent = {e["id"]: e["ts"] for e in kinds["s"]}
    assert all(e["ts"] >= sent[e["id"]] for e in kinds["f"] if e["id"] in sent)  # one clock: a call begins after it
    ElementTree.fromstring(picture.read_text())
