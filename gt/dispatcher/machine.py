"""The dispatcher as a pure state machine.

Law 1: every change of dispatcher state happens here, through handle().
Law 2: no sockets, threads, clocks or randomness; time arrives in events.
Law 3: nothing that a client sends changes another session, or raises. What is not understood is answered
       with Rejected and changes nothing; a client that cannot go on is answered with Refused.

handle(event) updates the state and returns what to do, in order. The same events give the same actions
again: tests, the simulator and the log rely on it.

    machine.py     who may say what (this file)
    session.py     a client's world           state.py       everything, and the counting
    queues.py      a session's queue          schedule.py    whose turn it is
    calls.py       a call on its workers      plans.py       programs and plans
    transfers.py   tensor bytes               meshes.py      which workers a session runs on
    workers.py     coming and going           stats.py       numbers for those who ask
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Any

from gt.dispatcher import calls, events, meshes, queues, stats, transfers, workers
from gt.dispatcher.invariants import check_state
from gt.dispatcher.session import Session
from gt.dispatcher.state import SESSIONS, Settings, State, Worker
from gt.transport import messages
from gt.transport.messages import VERSION, WINDOW, Buffer

ClientRule = Callable[[State, Session, Any, Buffer | None], None]
WorkerRule = Callable[[State, Worker, Any, Buffer | None], None]


class Machine:
    """See the file's header. `join` is the command that starts a worker for this server."""

    def __init__(self, settings: Settings, token: str = "", join: str = "gt worker --host HOST -p PORT") -> None:
        self.state = State(settings, token, join)

    def handle(self, event: events.Event) -> list[events.Effect]:
        """Take in what happened; returns what is to be done about it, in order."""
        state = self.state
        if isinstance(event, events.MessageCame):
            _message_came(state, event.peer, event.message, event.payload)
        elif isinstance(event, events.ProgramChecked):
            _program_checked(state, event)
        elif isinstance(event, events.PlanReady):
            _plan_ready(state, event)
        elif isinstance(event, events.PeerLost):
            _peer_lost(state, event.peer)
        elif isinstance(event, events.BadFramesCame):
            _not_allowed(state, event.peer, event.text)
        else:
            _time_passed(state, event.now_s)
        if state.touched or state.news or state.homeless or state.programs.nbytes > state.programs.limit_nbytes:
            _settle(state)
        out, state.out = state.out, []
        return out

    def busy(self) -> bool:
        """Whether a worker has calls that are not done: an answer is on its way."""
        for worker in self.state.workers.values():
            if worker.lane.calls:
                return True
        return False

    def invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself. For tests: it looks at everything."""
        check_state(self.state)


def _settle(state: State) -> None:
    """Send what can be sent now, and say what was finished."""
    if state.homeless:
        meshes.place_homeless(state)
    while state.touched:
        _, worker = state.touched.popitem()
        queues.drain(state, worker)
    if state.news:
        calls.tell(state)
    if state.programs.nbytes > state.programs.limit_nbytes:
        state.forget_programs()


def _time_passed(state: State, now_s: float) -> None:
    state.now_s = max(state.now_s, now_s)
    workers.time_passed(state)
    stats.time_passed(state)


# --- who may say what ------------------------------------------------------------------------


def _message_came(state: State, peer: events.Peer, message: Any, payload: Buffer | None) -> None:
    who = state.peers.get(peer)
    kind = type(message)
    if type(who) is Session:
        client_rule = CLIENT_RULES.get(kind)
        if client_rule is not None:
            client_rule(state, who, message, payload)
            return
    elif type(who) is Worker:
        worker_rule = WORKER_RULES.get(kind)
        if worker_rule is not None:
            worker_rule(state, who, message, payload)
            return
    elif kind is messages.Hello or kind is messages.WorkerHello:
        _hello(state, peer, message)
        return
    _not_allowed(state, peer, f"{kind.__name__} is not allowed here")


def _not_allowed(state: State, peer: events.Peer, text: str) -> None:
    who = state.peers.get(peer)
    if isinstance(who, Worker):
        # It may have been an answer that a client waits for.
        state.refuse(peer, text)
        workers.lost(state, who, said=peer)
    elif isinstance(who, Session):
        state.send(peer, messages.Rejected(text))
    else:
        state.send(peer, messages.Rejected(f"{text}; the first message is Hello"))


def _hello(state: State, peer: events.Peer, hello: messages.Hello | messages.WorkerHello) -> None:
    if hello.version != VERSION:
        state.refuse(peer, f"this server speaks version {VERSION} of GT's protocol, the other side {hello.version}")
    elif not _same_secret(hello.token, state.token):
        state.refuse(peer, "wrong token; set GT_TOKEN to this server's")
    elif isinstance(hello, messages.WorkerHello):
        workers.joined(state, peer, hello)
    elif len(state.sessions) >= SESSIONS:
        state.refuse(peer, f"this server has {SESSIONS} sessions already")
    else:
        state.last_session += 1
        session = Session(state.last_session, peer, hello.name[:200])
        state.peers[peer] = state.sessions[session.number] = session
        state.send(peer, messages.Welcome(VERSION, session.number, WINDOW))


def _same_secret(a: str, b: str) -> bool:
    """Compared in constant time: how long it takes tells nothing about the token."""
    return hmac.compare_digest(a.encode(errors="surrogatepass"), b.encode(errors="surrogatepass"))


def _peer_lost(state: State, peer: events.Peer) -> None:
    who = state.peers.get(peer)
    if isinstance(who, Session):
        state.close(who)
    elif isinstance(who, Worker):
        workers.lost(state, who, said=peer)


# --- programs --------------------------------------------------------------------------------


def _define(state: State, session: Session, define: messages.Define, _: Buffer | None) -> None:
    try:
        name = define.program.hash()
    except Exception as e:  # attributes that were not checked may break the encoder in any way
        state.reject(session, f"define: not a program: {type(e).__name__}")
        return
    compile = max(-1, min(1, define.compile))
    entry = state.programs.get(name)
    if entry is None:
        entry = state.programs.add(name, define.program, define.timed, compile)
        session.checking[name] = entry.nbytes
        session.queue_nbytes += entry.nbytes
        state.out.append(events.CheckProgram(name, define.program))
        queues.check_queue(state, session)
        return
    if not define.timed:
        state.programs.keep(entry)
    if compile > entry.compile:
        entry.compile = compile
        locals_ = [local for plan in entry.plans.values() for local in plan.locals.values()]
        texts = {name: entry.program, **{local.hash: local.program for local in locals_}}
        for worker in state.workers.values():
            for each, text in texts.items():
                if each in worker.programs:
                    state.send(worker.control, messages.Define(text, entry.timed, compile))
    if entry.error:
        _reject_program(state, session, name, entry.error)
    elif not entry.finished:
        session.checking.setdefault(name, 0)  # it is told too if the check fails


def _program_checked(state: State, event: events.ProgramChecked) -> None:
    entry = state.programs.get(event.program)
    if entry is None or entry.finished:
        return
    state.programs.finish(entry, event.checked, event.error)
    for session in list(state.sessions.values()):
        if event.program in session.checking:
            session.queue_nbytes -= session.checking.pop(event.program)
            if entry.error:
                _reject_program(state, session, event.program, entry.error)
    _go_on(state, event.program)


def _plan_ready(state: State, event: events.PlanReady) -> None:
    calls.plan_ready(state, event)
    _go_on(state, event.program)


def _go_on(state: State, program: bytes) -> None:
    """Sessions may have waited for this program, or a plan of it."""
    for session in list(state.programs.waiting.get(program, {}).values()):
        queues.advance(state, session)


def _reject_program(state: State, session: Session, name: bytes, error: str) -> None:
    state.reject(session, f"program {name.hex()[:8]}: {error}")


# --- the rules: kind of message -> what is done about it -------------------------------------


def _upload_acked(state: State, worker: Worker, ack: messages.ChunkAck, _: Buffer | None) -> None:
    session = transfers.upload_acked(state, worker, ack)
    if session is not None:
        queues.advance(state, session)


def _goodbye(state: State, session: Session, _: messages.Goodbye, __: Buffer | None) -> None:
    state.close(session)
    state.disconnect(session.peer)


CLIENT_RULES: dict[type, ClientRule] = {
    messages.Call: queues.enqueue,
    messages.Free: queues.enqueue,
    messages.Define: _define,
    messages.Chunk: transfers.chunk_came,
    messages.ChunkAck: transfers.ack_came,
    messages.SetMesh: meshes.set_mesh,
    messages.UsePlan: meshes.use_plan,
    messages.Share: transfers.share_came,
    messages.Fetch: queues.fetch_came,
    messages.Cancel: queues.cancel_came,
    messages.GetStats: lambda state, session, m, _: stats.asked(state, session, m.request),
    messages.Goodbye: _goodbye,
}

WORKER_RULES: dict[type, WorkerRule] = {
    messages.CallDone: calls.answered,
    messages.CallFailed: calls.answered,
    messages.Chunk: transfers.fetched,
    messages.ChunkAck: _upload_acked,
    messages.Shared: transfers.share_answered,
    messages.FetchFailed: transfers.fetch_failed,
    messages.Need: lambda state, worker, m, _: workers.needed(state, worker, m),
    messages.Stats: lambda state, worker, m, _: stats.answered(state, worker, m),
    messages.Goodbye: lambda state, worker, _, __: workers.lost(state, worker),
}
