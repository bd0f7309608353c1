"""The dispatcher's own part in a trace: what its loop and its planner do, and how far other clocks are ahead."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from gt.dispatcher import events
from gt.tracing import Recording, now_ns
from gt.transport.messages import Call, Spans, Trace

Handle = Callable[[events.Event], list[events.Effect]]
Job = events.CheckProgram | events.MakePlan
Done = events.ProgramChecked | events.PlanReady


class LoopRecorder:
    """Records while a trace is on; otherwise it costs nothing."""

    def __init__(self) -> None:
        self.recording: Recording | None = None
        self._asked_ns: dict[events.Peer, int] = {}  #: When each peer was told that the time is over.

    def record(self, asked: events.RecordLoop) -> events.LoopRecorded | None:
        """Begin to record, or end it: then what was recorded."""
        if asked.on:
            self.recording = Recording()
            return None
        made, self.recording = self.recording, None
        spans = tuple(made.spans) if made is not None else ()
        return events.LoopRecorded(asked.number, spans, 0 if made is None else made.left_out)

    def handle(self, handle: Handle, event: events.Event) -> list[events.Effect]:
        """Handle an event, and record how long that took."""
        start_ns = now_ns()
        out = handle(event)
        recording = self.recording
        if recording is None or type(event) is events.TimePassed:
            return out
        end_ns = now_ns()
        name = type(event.message if type(event) is events.MessageCame else event).__name__
        calls: list[tuple[int, int]] = []  # that were sent, each once: most often one or none
        for action in out:
            if type(action) is events.Send and type(call := action.message) is Call:
                if (call.session, call.seq) not in calls:
                    calls.append((call.session, call.seq))
        recording.add("loop", name, start_ns, end_ns, *(calls[0] if calls else ()))
        for session, seq in calls[1:]:
            recording.add("loop", "Call", end_ns, end_ns, session, seq)
        return out

    def work_off(self, job: Job, work_off: Callable[[Job], Done]) -> Done:
        """Check or plan a program, in the background thread."""
        start_ns = now_ns()
        done = work_off(job)
        recording = self.recording
        if recording is not None:
            name = "check" if isinstance(job, events.CheckProgram) else "plan"
            recording.add("planner", name, start_ns, now_ns(), program=job.program)
        return done

    def asks(self, peer: events.Peer, trace: Trace) -> None:
        """A peer is told to begin, or that the time is over."""
        if not trace.duration_us:
            self._asked_ns[peer] = now_ns()

    def with_offset(self, peer: events.Peer, spans: Spans) -> Spans:
        """Its answer, with the offset of its clock. If ours could be the same clock, it is taken for that."""
        offset_ns = 0
        if spans.last and (asked_ns := self._asked_ns.pop(peer, 0)):
            offset_ns = offset_of(asked_ns, spans.heard_ns, spans.sent_ns, now_ns())
        return msgspec.structs.replace(spans, offset_ns=offset_ns)


def offset_of(asked_ns: int, heard_ns: int, sent_ns: int, came_ns: int) -> int:
    """By how much a clock is ahead of ours: it showed `heard` and `sent` between our `asked` and `came`.

    >>> offset_of(1000, 5400, 5500, 1300), offset_of(1000, 1100, 1200, 1300)
    (4300, 0)
    """
    if asked_ns <= heard_ns and sent_ns <= came_ns:
        return 0
    return (heard_ns + sent_ns - asked_ns - came_ns) // 2
