"""What a client tells of itself: its name, its calls in debug output, what it does while somebody traces the server."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from functools import lru_cache
from pwd import getpwuid

from gt.client.programs.tree import Variant, users_call
from gt.errors import ServerError
from gt.places import show
from gt.tracing import Recording, now_ns
from gt.transport.messages import Spans, Trace

OPS = 8  #: Ops of a program that debug output names.


def name_of_process() -> str:
    """How logs and `gt top` name this client: user, script, process."""
    try:
        user = getpwuid(os.getuid()).pw_name
    except KeyError:  # as in some containers
        user = str(os.getuid())
    return f"{user}/{os.path.basename(sys.argv[0]) or 'python'}-{os.getpid()}"


def told(variant: Variant) -> str:
    """A program in debug output: the ops of a short one, the length of a long one, and the user's lines."""
    ops = [ins.op for ins in variant.program.code]
    what = " ".join(ops) if len(ops) <= OPS else f"{len(ops)} instructions"
    return f"{variant.hash.hex()[:8]} ({what}) at {show(variant.places)}"


def told_line() -> str:
    """The user's line, and GT's function that it calls."""
    (file, line), called = users_call()
    return f"{called} at {file}:{line}"


def cut_off(error: ServerError, name: str) -> str:
    """Why the connection is lost, and what can be had again in a session with a name."""
    return f"{error}; gt.connect(..., session={name!r}) gets back what was kept" if name else str(error)


# --- traces ----------------------------------------------------------------------------------------------------------


def record_span(trace: Recording, name: str, session: int = 0, seq: int = 0, program: bytes = b"") -> None:
    """Record what this thread has done since its last span."""
    end_ns = now_ns()
    trace.add(threading.current_thread().name, name, trace.since_last(), end_ns, session, seq, program)
    trace.ended(end_ns)


def record_wait(trace: Recording) -> None:
    """Record that it has waited, and the line that made it wait."""
    record_span(trace, _wait_at(*users_call()))


@lru_cache(1024)
def _wait_at(at: tuple[str, int], called: str) -> str:
    return f"wait {os.path.basename(at[0])}:{at[1]} {called}"


def answer_trace(made: Recording | None, m: Trace, send: Callable[[Spans], None]) -> Recording | None:
    """Somebody traces the server, or has done so: then what was recorded is sent. Returns what to record to."""
    if m.duration_us:
        return Recording(m.request)
    tell_trace(made or Recording(m.request), send)
    return None


def tell_trace(made: Recording, send: Callable[[Spans], None]) -> None:
    """Send what was recorded: the time is over, or this client leaves."""
    for each in made.answer(made.request, now_ns()):
        send(each)
