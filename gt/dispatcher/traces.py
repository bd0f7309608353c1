"""Recordings of what clients, workers and the dispatcher do, for one who asks (`gt trace`).

Law 1: one trace at a time, of bounded length. It ends with the one who asked.
Law 2: it tells names (of sessions, ops, files) and times, never values; what is told is relayed and not kept.
Law 3: whoever does not answer in time is left out. Who joins while a trace is recorded is asked to record too.

The clock of another machine is compared in server.py: it knows when a question was sent and when its answer came.
"""

from __future__ import annotations

from gt.dispatcher.events import LoopRecorded, Peer, RecordLoop
from gt.dispatcher.session import Session
from gt.dispatcher.state import RunningTrace, State
from gt.places import Place, by_instruction
from gt.transport.messages import Buffer, Spans, Trace, TracedProgram

LONGEST_US = 60_000_000
ANSWER_S = 5.0  #: How long the answers may take. A client that computes in Python may be slow.


def asked(state: State, session: Session, m: Trace, _: Buffer | None = None) -> None:
    """A client asks for a trace."""
    error = ""
    if not 0 < m.duration_us <= LONGEST_US:
        error = f"a trace takes between 0 and {LONGEST_US // 1_000_000} s, got {m.duration_us / 1e6:g} s"
    elif state.trace is not None:
        error = "another trace is being recorded on this server; try again when it has ended"
    if error:
        state.send(session.peer, Spans(m.request, last=True, error=error))
        return
    state.last_question += 1
    until_s = state.now_s + m.duration_us / 1e6
    state.trace = RunningTrace(session, m.request, state.last_question, until_s)
    state.out.append(RecordLoop(state.trace.number, True))
    _begin(state, state.trace)


def _begin(state: State, trace: RunningTrace) -> None:
    """Have everybody record who does not yet."""
    left_us = max(1, round((trace.until_s - state.now_s) * 1e6))
    for worker in state.workers.values():
        if worker.control is not None and worker.usable and worker.control not in trace.recording:
            trace.recording[worker.control] = f"worker {worker.number} ({worker.device})"
            state.send(worker.control, Trace(trace.number, left_us))
    for session in state.sessions.values():
        if session is not trace.session and session.peer is not None and session.peer not in trace.recording:
            trace.recording[session.peer] = f"session {session.number} {session.name}"
            state.send(session.peer, Trace(trace.number, left_us))


def time_passed(state: State) -> None:
    trace = state.trace
    assert trace is not None
    for peer in [p for p in trace.recording if p not in state.peers]:
        del trace.recording[peer]
    if trace.session.closed or trace.session.peer is None:
        _stop(state, trace)
        state.trace = None
    elif not trace.ended and state.now_s < trace.until_s:
        _begin(state, trace)
    elif not trace.ended:
        trace.ended = True
        _stop(state, trace)
    elif state.now_s >= trace.until_s + ANSWER_S or not (trace.recording or trace.loop):
        _finish(state, trace)


def _stop(state: State, trace: RunningTrace) -> None:
    if not trace.ended or trace.loop:
        state.out.append(RecordLoop(trace.number, False))
    for peer in trace.recording:
        state.send(peer, Trace(trace.number, 0))


def told(state: State, peer: Peer | None, m: Spans) -> None:
    """A client or a worker tells what it did."""
    trace = state.trace
    if trace is None or peer is None or m.request != trace.number or peer not in trace.recording:
        return  # it was too late
    who = trace.recording[peer]
    trace.programs.update(dict.fromkeys(span.program for span in m.spans if span.program))
    mine = Spans(trace.request, who, m.spans, m.last, 0, 0, m.offset_ns, m.left_out)
    state.send(trace.session.peer, mine)
    if m.last:
        del trace.recording[peer]
        _look(state, trace)


def loop_recorded(state: State, event: LoopRecorded) -> None:
    trace = state.trace
    if trace is not None and trace.number == event.number:
        trace.loop = False
        state.send(trace.session.peer, Spans(trace.request, "dispatcher", event.spans, True, left_out=event.left_out))
        _look(state, trace)


def _look(state: State, trace: RunningTrace) -> None:
    if trace.ended and not trace.recording and not trace.loop:
        _finish(state, trace)


def _finish(state: State, trace: RunningTrace) -> None:
    state.trace = None
    for name, program in _programs(state, trace):
        state.send(trace.session.peer, Spans(trace.request, programs={name: program}))
    missing = ", ".join(trace.recording.values())
    error = f"no answer from {missing}" if missing else ""
    state.send(trace.session.peer, Spans(trace.request, last=True, error=error))


def _programs(state: State, trace: RunningTrace) -> list[tuple[str, TracedProgram]]:
    """What is known of the programs that were told of: those of clients, and what workers ran of them."""
    found = []
    for entry in state.programs:
        if entry.hash in trace.programs:
            ops = tuple(ins.op for ins in entry.program.code)
            found.append((entry.hash.hex(), TracedProgram(ops, entry.places)))
        each = [Place(p.file, p.line, p.called, 1) for p in by_instruction(entry.places)]
        for plan in entry.plans.values():
            for local in plan.locals.values():
                if local.hash != entry.hash and local.hash in trace.programs:
                    ops = tuple(ins.op for ins in local.program.code)
                    origins = local.origins or [-1] * len(ops)
                    places = tuple([each[o] if 0 <= o < len(each) else Place("", 0, "", 1) for o in origins])
                    found.append((local.hash.hex(), TracedProgram(ops, places)))
    return found
