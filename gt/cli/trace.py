"""`gt trace`: what clients, the dispatcher and workers did for some seconds, as a timeline.

The file is Chrome's trace format, which Perfetto (ui.perfetto.dev) and chrome://tracing open: a process for each
client, the dispatcher and each worker; a thread for each of their lanes; arrows from the user's lines to the calls on
workers.
`--png` and `--svg` draw a part of it (lanes.py).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from gt import config
from gt.cli.asking import Asker, add_options
from gt.cli.lanes import Excerpt, draw
from gt.cli.recorded import Recorded
from gt.cli.top import plain
from gt.command_line import Parser
from gt.errors import ArgumentError, GTError, ServerError
from gt.transport.messages import Span, Spans, Trace

LATER_S = 15.0  #: How long the answers may take after the end.


def record(asker: Asker, seconds: float) -> Recorded:
    """Have a trace recorded, and collect it."""
    asker.send(Trace(1, round(seconds * 1e6)))
    found = Recorded()
    while True:
        message = asker.next(seconds + LATER_S)
        if isinstance(message, Spans) and found.take(message):
            break
    if found.missing and not found.processes:
        raise ServerError(found.missing)
    return found


# --- Chrome's format -------------------------------------------------------------------------------------------------


def chrome(found: Recorded) -> dict[str, Any]:
    """The trace as Perfetto reads it; times are in microseconds since its beginning."""
    processes = found.in_order()
    start_ns = min((span.start_ns for p in processes for span in p.spans), default=0)
    events: list[dict[str, Any]] = []
    for pid, process in enumerate(processes, 1):
        events.append({"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": process.who}})
        events.append({"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}})
        lanes: dict[str, int] = {}
        for span in sorted(process.spans, key=lambda s: s.start_ns):
            tid = lanes.get(span.lane)
            if tid is None:
                tid = lanes[span.lane] = len(lanes) + 1
                args = {"name": plain(span.lane)}
                events.append({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": args})
            events += _events(found, span, pid, tid, start_ns, process.who)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _events(found: Recorded, span: Span, pid: int, tid: int, start_ns: int, who: str) -> list[dict[str, Any]]:
    begin_us, end_us = (span.start_ns - start_ns) / 1000, (span.end_ns - start_ns) / 1000
    where = {"pid": pid, "tid": tid}
    about: dict[str, Any] = {}
    name = plain(span.name)
    if span.program:
        about = {"program": span.program.hex()[:8], "lines": found.lines_of(span)}
        name = f"{name} {about['lines']}"
    if span.seq:
        about |= {"session": span.session, "call": span.seq}
    if span.tier:
        about["tier"] = span.tier
    events = [{"ph": "X", "name": name, "ts": begin_us, "dur": max(0.0, end_us - begin_us), "args": about, **where}]
    for step in found.steps_of(span):
        us = (step.start_ns - start_ns) / 1000
        line = {} if step.place is None else {"line": plain(step.place), "called": plain(step.place.called)}
        each = {"ph": "X", "name": step.op, "ts": us, "dur": (step.end_ns - step.start_ns) / 1000, "args": line}
        events.append({**each, **where})
    if span.seq and "collectives" not in span.lane:
        flow = {"name": "call", "cat": "call", "id": f"{span.session}.{span.seq}", **where}
        if who.startswith("session"):
            events.append({"ph": "s", "ts": max(begin_us, end_us - 0.001), **flow})
        elif who.startswith("worker"):
            events.append({"ph": "f", "bp": "e", "ts": begin_us, **flow})
        else:
            events.append({"ph": "t", "ts": begin_us, **flow})
    return events


# --- the command -----------------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> int:
    """Record a trace and write it; returns the exit code."""
    settings = config.load()
    p = Parser(prog="gt trace", description="Record what clients, dispatcher and workers do, as a timeline.")
    add_options(p, settings)
    p.add_argument("-s", "--seconds", type=float, default=5.0, help="how long to record (default: %(default)g)")
    p.add_argument(
        "-o", "--output", metavar="FILE", help="Chrome trace for Perfetto (default: trace.json, or a picture)"
    )
    p.add_argument("--png", metavar="FILE", help="also draw the lanes; needs the package cairosvg")
    p.add_argument("--svg", metavar="FILE", help="also draw the lanes")
    p.add_argument("--begin", type=float, metavar="MS", help="where the picture begins (default: a call in the middle)")
    p.add_argument("--end", type=float, metavar="MS", help="where the picture ends")
    args = p.parse_args(argv)
    pictures = [Path(each) for each in (args.png, args.svg) if each]
    output = args.output or (None if pictures else "trace.json")
    try:
        with Asker(args.server, args.token, "gt trace", settings.connect_timeout_s) as asker:
            found = record(asker, args.seconds)
        if found.missing:
            print(f"gt trace: {found.missing}", file=sys.stderr)
        if output:
            Path(output).write_text(json.dumps(chrome(found)))
            print(f"{output}: {_said(found)}; open it at ui.perfetto.dev")
        for path in pictures:
            draw(path, found, Excerpt(args.begin, args.end))
            print(f"{path}: {_said(found)}")
    except (GTError, ServerError, ArgumentError) as e:
        print(f"gt trace: {e}", file=sys.stderr)
        return 1
    except OSError as e:
        print(f"gt trace: {e.filename}: {e.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _said(found: Recorded) -> str:
    spans = sum(len(p.spans) for p in found.processes.values())
    text = f"{spans:,} spans of {len(found.processes)} processes"
    return text + (f", {found.left_out:,} more were too many" if found.left_out else "")
