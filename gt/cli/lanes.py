"""A trace as a picture: a lane for each thread of each process, time from left to right.

Instructions of a call are drawn below it, in the colour of the line that they come from; the legend names the lines.
Grey ones are the planner's own. Collectives have a lane of their own. Where a lane is empty nothing happens. A thin
line leads from the client that has recorded a call to the workers that run it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gt.cli.recorded import Process, Recorded, RecordedInstruction
from gt.drawing import page, rect, save, text
from gt.errors import ArgumentError
from gt.places import Place
from gt.transport.messages import Span

_WIDTH, _LEFT, _RIGHT = 1400, 190, 20
_ROW, _THIN = 18, 14  #: Heights of a lane and of its instructions.
_RECORD, _WAIT, _LOOP, _CALL, _TOGETHER, _OWN = "#4e79a7", "#d9d9d9", "#76b7b2", "#e8e4d8", "#e15759", "#9a9a9a"
#: Of lines.
_COLOURS = (
    "#59a14f",
    "#edc948",
    "#b07aa1",
    "#f28e2b",
    "#8cd17d",
    "#499894",
    "#d37295",
    "#86bcb6",
    "#a0cbe8",
    "#d7b5a6",
)


@dataclass(frozen=True, slots=True)
class Excerpt:
    """What part of a trace is drawn, in ms since its beginning; None: chosen so that one call is seen."""

    begin_ms: float | None = None
    end_ms: float | None = None

    def choose(self, processes: Sequence[Process]) -> tuple[int, int, int]:
        """Where the trace begins, and where the picture begins and ends."""
        spans = [span for p in processes for span in p.spans]
        if not spans:
            raise ArgumentError("picture: nothing happened while the trace was recorded")
        zero_ns = min(span.start_ns for span in spans)
        first, last = _around_a_call(processes) or (zero_ns, max(span.end_ns for span in spans))
        if self.begin_ms is not None:
            first = zero_ns + round(self.begin_ms * 1e6)
        if self.end_ms is not None:
            last = zero_ns + round(self.end_ms * 1e6)
        if first >= last:
            begin, end = (first - zero_ns) / 1e6, (last - zero_ns) / 1e6
            raise ArgumentError(
                f"picture: the end must be after the begin, got {begin:g} to {end:g} ms; see --begin, --end"
            )
        return zero_ns, first, last


def _around_a_call(processes: Sequence[Process]) -> tuple[int, int] | None:
    """A call of the hottest program in the middle of the trace, with the gaps before and after it."""
    calls = [s for p in processes if p.who.startswith("worker") for s in p.spans if s.tier]
    spent: dict[tuple[int, bytes], int] = {}
    for s in calls:
        spent[s.session, s.program] = spent.get((s.session, s.program), 0) + s.end_ns - s.start_ns
    if not spent:
        return None
    hottest = max(spent, key=lambda key: spent[key])
    mine = sorted((s for s in calls if (s.session, s.program) == hottest), key=lambda s: s.start_ns)
    middle = mine[len(mine) // 2]
    took_ns = middle.end_ns - middle.start_ns
    before = max((s.end_ns for s in mine if s.end_ns <= middle.start_ns), default=middle.start_ns)
    after = min((s.start_ns for s in mine if s.start_ns >= middle.end_ns), default=middle.end_ns)
    sent = [s for p in processes if p.who.startswith("session") for s in p.spans if s.seq]
    recorded = [s.start_ns for s in sent if (s.session, s.seq) == (middle.session, middle.seq)]
    first = max(min([before, *recorded]) - took_ns // 8, middle.start_ns - 2 * took_ns)
    return first, min(after + took_ns // 8, middle.end_ns + 2 * took_ns)


def draw(path: Path, found: Recorded, window: Excerpt) -> Path:
    """Write the picture to a file that ends in .svg or .png."""
    return save(path, svg(found, window))


def svg(found: Recorded, window: Excerpt) -> str:
    """The picture."""
    processes = found.in_order()
    zero_ns, first_ns, last_ns = window.choose(processes)
    return _Picture(found, zero_ns, first_ns, last_ns).draw(processes)


class _Picture:
    def __init__(self, found: Recorded, zero_ns: int, first_ns: int, last_ns: int) -> None:
        self.found, self.zero_ns, self.first_ns, self.last_ns = found, zero_ns, first_ns, last_ns
        self.body: list[str] = []
        self.colours: dict[str, str] = {}  #: By line.
        self.y = 60.0
        self.sent: dict[tuple[int, int], tuple[float, float]] = {}  #: Where calls leave their client.
        self.seen: list[tuple[tuple[int, int], float, float]] = []  #: Where they begin on a worker.

    def x(self, ns: int) -> float:
        part = (ns - self.first_ns) / (self.last_ns - self.first_ns)
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * min(max(part, 0.0), 1.0)

    def draw(self, processes: Sequence[Process]) -> str:
        for process in processes:
            spans = [s for s in process.spans if s.end_ns > self.first_ns and s.start_ns < self.last_ns]
            lanes: dict[str, list[Span]] = {}
            for span in sorted(spans, key=lambda s: s.start_ns):
                lanes.setdefault(span.lane, []).append(span)
            if lanes:
                self.body.append(text(10, self.y + 12, _short(process.who, 60), 12, bold=True))
                self.y += 18
            for name, each in sorted(lanes.items()):
                self.lane(process.who, name, each)
            self.y += 8 if lanes else 0
        bottom = self.y
        self.arrows()
        self.legend()
        self.axis(bottom)
        return page(_WIDTH, math.ceil(self.y + 10), self.body)

    def lane(self, who: str, name: str, spans: list[Span]) -> None:
        self.body.append(text(20, self.y + 13, _short(name, 26), 10, colour="#555"))
        steps = [step for span in spans for step in self.found.steps_of(span)]
        for span in spans:
            self.bar(who, span)
        self.y += _ROW + 2
        if steps:
            self.steps(steps)
            self.y += _THIN + 2

    def bar(self, who: str, span: Span) -> None:
        a, b = self.x(span.start_ns), self.x(span.end_ns)
        words = span.name
        if "collectives" in span.lane:
            colour = _TOGETHER
        elif who.startswith("session"):
            colour = _WAIT if span.name.startswith("wait") else _RECORD
            if span.seq:
                self.sent[span.session, span.seq] = (b, self.y + _ROW)
                words = f"script, records {self.found.lines_of(span)}"
        elif who.startswith("worker"):
            colour = _CALL
            words = f"{self.found.lines_of(span)}, call {span.seq}, tier {span.tier}"
            self.seen.append(((span.session, span.seq), a, self.y))
        else:
            colour = _LOOP
        self.box(a, b, _ROW, colour, words)

    def box(self, a: float, b: float, height: int, colour: str, words: str) -> None:
        self.body.append(rect(a, self.y, max(b - a, 0.6), height, colour))
        room = int((b - a) / 6)
        if room >= 3:
            dark = colour in (_WAIT, _CALL, "#edc948", "#8cd17d", "#a0cbe8", "#86bcb6", "#d7b5a6")
            self.body.append(
                text(a + 3, self.y + height - 5, _short(words, room), 10, colour="#222" if dark else "#fff")
            )

    def steps(self, steps: Iterable[RecordedInstruction]) -> None:
        for step in steps:
            if step.end_ns > self.first_ns and step.start_ns < self.last_ns:
                self.box(self.x(step.start_ns), self.x(step.end_ns), _THIN, self.colour(step.place), step.op)

    def colour(self, place: Place | None) -> str:
        if place is None:
            return _OWN
        name = f"{place} {place.called}".rstrip()
        return self.colours.setdefault(name, _COLOURS[len(self.colours) % len(_COLOURS)])

    def arrows(self) -> None:
        for call, x, y in self.seen:
            if call in self.sent and self.first_ns < self.last_ns:
                x0, y0 = self.sent[call]
                self.body.append(
                    f'<path d="M {x0:.1f} {y0:.1f} C {x0:.1f} {(y0 + y) / 2:.1f}, {x:.1f} {(y0 + y) / 2:.1f}, '
                    f'{x:.1f} {y:.1f}" fill="none" stroke="#333" stroke-width="0.8" stroke-opacity="0.6"/>'
                )

    def legend(self) -> None:
        kinds = [("script, records", _RECORD), ("waits", _WAIT), ("dispatcher", _LOOP), ("collective", _TOGETHER)]
        kinds += [
            ("planner's own instruction", _OWN),
            *sorted(self.colours.items(), key=lambda item: _by_line(item[0])),
        ]
        x, self.y = 20.0, self.y + 14
        for words, colour in kinds:
            width = 30 + 6.3 * len(words)
            if x + width > _WIDTH - 20:
                x, self.y = 20.0, self.y + 18
            self.body.append(rect(x, self.y - 10, 11, 11, colour))
            self.body.append(text(x + 16, self.y, _short(words, 60), 11))
            x += width
        self.y += 10

    def axis(self, bottom: float) -> None:
        span_ms = (self.last_ns - self.first_ns) / 1e6
        step = 10 ** math.floor(math.log10(span_ms / 4))
        step *= next(k for k in (1, 2, 5, 10) if span_ms / (step * k) <= 10)
        begin_ms = (self.first_ns - self.zero_ns) / 1e6
        title = f"{span_ms:.3g} ms of a trace, from {begin_ms:.1f} ms after its beginning"
        self.body.insert(0, text(10, 22, title, 14, bold=True))
        tick = math.ceil(begin_ms / step) * step
        while tick <= begin_ms + span_ms:
            x = self.x(self.zero_ns + round(tick * 1e6))
            line = f'<line x1="{x:.1f}" y1="48" x2="{x:.1f}" y2="{bottom:.1f}" stroke="#ddd" stroke-width="0.7"/>'
            self.body.insert(0, line)
            label = f"{tick:.6g} ms"
            self.body.append(text(min(x - 12, _WIDTH - 6.3 * len(label)), 44, label, 10, colour="#555"))
            tick += step


def _by_line(name: str) -> tuple[str, int, str]:
    place, _, called = name.partition(" ")
    file, _, line = place.rpartition(":")
    return file, int(line) if line.isdecimal() else 0, called


def _short(words: str, limit: int) -> str:
    return words if len(words) <= limit else words[: max(1, limit - 2)] + ".."
