"""A recording of what a process does while somebody traces the server (`gt trace`): spans of time on named lanes.

Law 1: nothing is recorded unless somebody asks, and what is kept is bounded.
Law 2: times are those of the machine's monotonic clock, which all its processes share. The dispatcher estimates how far
       the clock of another machine is ahead.
"""

from __future__ import annotations

import threading
import time
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from threading import get_ident

from gt.transport.messages import Span, Spans

SPANS = 50_000  #: Spans that one process records,
STEPS = 500_000  #: and instructions.
PIECE = 2_000  #: Spans in one message,
PIECE_NBYTES = 4 << 20  #: and bytes of instructions.

now_ns = time.monotonic_ns


class Recording:
    """The spans of one process. Threads may add to it at the same time."""

    def __init__(self, request: int = 0) -> None:
        self.request = request  #: The trace that it is for.
        self.begun_ns = now_ns()
        self.spans: list[Span] = []
        self.left_out = 0  #: Spans that did not fit.
        self._steps = 0
        self._marks: dict[int, list[int]] = {}  #: By thread: an instruction, when it began, and so on.
        self._last = threading.local()

    def add(
        self, lane: str, name: str, start_ns: int, end_ns: int, session: int = 0, seq: int = 0, program: bytes = b"",
        tier: int = 0, steps: bytes = b"",
    ) -> None:  # fmt: skip
        """Something took this time."""
        if len(self.spans) >= SPANS:
            self.left_out += 1
        else:
            self.spans.append(
                Span(lane, name, max(start_ns, self.begun_ns), end_ns, session, seq, program, tier, steps)
            )

    # --- what a thread of a client does in turn: it records, it waits ---

    def since_last(self) -> int:
        """When this thread's latest span ended."""
        return getattr(self._last, "ns", self.begun_ns)

    def ended(self, ns: int) -> None:
        self._last.ns = ns

    # --- the instructions of a worker's calls ---

    def mark(self, instruction: int) -> None:
        """An instruction begins. Generated code calls this."""
        marks = self._marks.get(get_ident())
        if marks is None:
            marks = self._marks[get_ident()] = []
        marks.append(instruction)
        marks.append(now_ns())

    def take_steps(self, start_ns: int) -> bytes:
        """The instructions since a call began, packed: (instruction, nanoseconds after the beginning) each."""
        marks = self._marks.pop(get_ident(), None)
        if not marks or self._steps > STEPS:
            return b""
        if marks[1] < start_ns:  # a call that was not recorded has left some
            marks = marks[2 * bisect_left(marks[1::2], start_ns) :]
        marks[1::2] = [ns - start_ns for ns in marks[1::2]]
        self._steps += len(marks) // 2
        return array("q", marks).tobytes()

    # --- the end ---

    def answer(self, request: int, heard_ns: int) -> Iterator[Spans]:
        """The messages that tell it all; the last one says so."""
        spans, first = self.spans, 0
        while first < len(spans):
            last, nbytes = first, 0
            while last < len(spans) and last - first < PIECE and (nbytes == 0 or nbytes < PIECE_NBYTES):
                nbytes += len(spans[last].steps)
                last += 1
            yield Spans(request, spans=tuple(spans[first:last]))
            first = last
        yield Spans(request, last=True, heard_ns=heard_ns, sent_ns=now_ns(), left_out=self.left_out)


def unpack_steps(steps: bytes) -> list[tuple[int, int]]:
    """(instruction, nanoseconds after the call's beginning) of each."""
    pairs = array("q")
    pairs.frombytes(steps[: len(steps) // 16 * 16])
    return list(zip(pairs[::2], pairs[1::2], strict=True))
