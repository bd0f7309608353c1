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
    uploads.py     tensor bytes to workers    fetches.py     tensor bytes to clients
    meshes.py      where a session runs       limits.py      what a user may use
    memory.py      idle tensors give way      moves.py       tensors move to other layouts
    relocation.py  sessions move to other workers
    switches.py    changing a session's plan  traces.py      recordings of what all do
    workers.py     coming and going           stats.py       numbers for those who ask
    shelves.py     what is kept by name       named.py       clients that come back to it
    users.py       who may stay
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Any

from gt.dispatcher import (
    calls,
    events,
    fetches,
    memory,
    meshes,
    named,
    queues,
    relocation,
    shelves,
    stats,
    switches,
    traces,
    uploads,
    users,
    workers,
)
from gt.dispatcher.events import MessageCame
from gt.dispatcher.invariants import check_state
from gt.dispatcher.limits import too_many_sessions
from gt.dispatcher.session import Session
from gt.dispatcher.state import SESSIONS, Settings, State, Worker
from gt.transport import messages
from gt.transport.identity import WORKER, User
from gt.transport.messages import VERSION, WINDOW, Buffer

SMALL_NBYTES = 4096  #: To check a program whose text is not longer takes less than half a millisecond.

ClientRule = Callable[[State, Session, Any, Buffer | None], None]
WorkerRule = Callable[[State, Worker, Any, Buffer | None], None]


class Machine:
    """See the file's header. `join` is the command that starts a worker for this server, `secret` the workers' own."""

    def __init__(
        self, settings: Settings, token: str = "", join: str = "gt worker --host HOST -p PORT", secret: str = ""
    ) -> None:
        self.state = State(settings, token, join, secret)

    def handle(self, event: events.Event) -> list[events.Effect]:
        """Take in what happened; returns what is to be done about it, in order."""
        state = self.state
        if type(event) is MessageCame:
            _message_came(state, event)
        elif isinstance(event, events.ProgramChecked):
            _program_checked(state, event)
        elif isinstance(event, events.PlanReady):
            _plan_ready(state, event)
        elif isinstance(event, events.PlanSolved):
            switches.solved(state, event)
        elif isinstance(event, events.PeerLost):
            _peer_lost(state, event.peer)
        elif isinstance(event, events.LoopRecorded):
            traces.loop_recorded(state, event)
        elif isinstance(event, events.BadFramesCame):
            _not_allowed(state, event.peer, event.text)
        elif isinstance(event, events.UsersChanged):
            users.changed(state, event.users, event.secret)
        elif isinstance(event, events.TimePassed):
            _time_passed(state, event.now_s)
        if state.touched or state.news or state.homeless or state.memory_queue:
            _settle(state)
        elif state.programs.nbytes > state.programs.limit_nbytes:
            state.forget_programs()
        while state.relocation is not None and (relocation.look(state) or state.touched or state.news):
            _settle(state)
        while (state.copies or state.keeping or state.leaving or state.answering) and named.look(state):
            _settle(state)
        out, state.out = state.out, []
        return out

    def busy(self) -> bool:
        """Whether a worker has calls that are not done: an answer is on its way."""
        for worker in self.state.workers.values():
            if worker.lane.calls or worker.lane.beside:
                return True
        return False

    def invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself. For tests: it looks at everything."""
        check_state(self.state)


def _settle(state: State) -> None:
    """Send what can be sent now, and say what was finished."""
    if state.homeless:
        meshes.place_homeless(state)
    touched = state.touched
    while True:
        while touched:
            queues.drain(state, touched.popitem()[1])
        if not state.memory_queue:
            break
        calls.serve_memory(state)
        if not touched:
            break
    if state.news:
        calls.tell(state)
    if state.programs.nbytes > state.programs.limit_nbytes:
        state.forget_programs()


def _time_passed(state: State, now_s: float) -> None:
    state.now_s = max(state.now_s, now_s)
    workers.time_passed(state)
    if len(state.workers) > 1:
        relocation.time_passed(state)
    stats.time_passed(state)
    if state.uploading:
        for session in uploads.slowed_acked(state):
            queues.advance(state, session)
    if state.shelves:
        named.time_passed(state)
    if state.trace is not None:
        traces.time_passed(state)


# --- who may say what ------------------------------------------------------------------------


def _message_came(state: State, event: MessageCame) -> None:
    who, message = state.peers.get(event.peer), event.message
    kind = type(message)
    if type(who) is Session:
        client_rule = CLIENT_RULES.get(kind)
        if client_rule is not None:
            client_rule(state, who, message, event.payload)
            return
    elif type(who) is Worker:
        worker_rule = WORKER_RULES.get(kind)
        if worker_rule is not None:
            worker_rule(state, who, message, event.payload)
            return
    elif isinstance(message, (messages.Hello, messages.WorkerHello)):
        _hello(state, event.peer, message, event.user)
        return
    elif isinstance(message, messages.Alive):
        workers.alive(state, event.peer, message, event.user)
        return
    _not_allowed(state, event.peer, f"{kind.__name__} is not allowed here")


def _not_allowed(state: State, peer: events.Peer, text: str) -> None:
    who = state.peers.get(peer)
    if isinstance(who, Worker):
        # It may have been an answer that a client waits for.
        state.refuse(peer, text)
        workers.lost(state, who, said=peer)
    elif isinstance(who, Session):
        state.send(peer, messages.Rejected(text))
    else:
        state.refuse(peer, f"{text}; the first message is Hello")  # a stranger: it may not stay


def _hello(
    state: State, peer: events.Peer, hello: messages.Hello | messages.WorkerHello, user: User | None = None
) -> None:
    if hello.version != VERSION:
        state.refuse(peer, f"this server speaks version {VERSION} of GT's protocol, the other side {hello.version}")
    elif user is None and not _same_secret(hello.token, state.token):
        state.refuse(peer, "wrong token; set GT_TOKEN to this server's")
    elif user is not None and (user.role == WORKER) != isinstance(hello, messages.WorkerHello):
        state.refuse(peer, f"this key is for {'workers' if user.role == WORKER else 'clients'} alone")
    elif isinstance(hello, messages.WorkerHello):
        workers.joined(state, peer, hello, user)
    elif len(state.sessions) >= SESSIONS:
        state.refuse(peer, f"this server has {SESSIONS} sessions already, its limit; try again later")
    elif many := too_many_sessions(state, user):
        state.refuse(peer, many)
    elif hello.session and (problem := named.problem(state, hello.session, user)):
        state.refuse(peer, problem)
    else:
        state.last_session += 1
        session = Session(state.last_session, peer, hello.name[:200], user=user)
        state.peers[peer] = state.sessions[session.number] = session
        if hello.session:
            named.come(state, session, hello.session)
        grids = tuple((name, m.axes, m.workers) for name, m in session.meshes.items())
        state.send(peer, messages.Welcome(VERSION, session.number, WINDOW, tuple(session.workers), grids))


def _same_secret(a: str, b: str) -> bool:
    """Compared in constant time: how long it takes tells nothing about the token."""
    return hmac.compare_digest(a.encode(errors="surrogatepass"), b.encode(errors="surrogatepass"))


def _peer_lost(state: State, peer: events.Peer) -> None:
    who = state.peers.get(peer)
    if isinstance(who, Session):
        named.gone(state, who)
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
        entry.owners.add(session.number)
        entry.take_places(define.places)
        session.checking[name] = entry.nbytes
        session.queue_nbytes += entry.nbytes
        at_once = entry.nbytes <= SMALL_NBYTES and len(state.sessions) == 1
        state.out.append(events.CheckProgram(name, define.program, at_once))
        queues.check_queue(state, session)
        return
    entry.owners.add(session.number)
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
    if entry.finished and session.blocked_on == name:
        queues.advance(state, session)  # its call has waited for this text, which another session had sent before


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
    for session in state.sessions.values():
        if session.switch is not None:
            switches.plans_made(state, session)
    _go_on(state, event.program)


def _answered(state: State, worker: Worker, answer: messages.CallDone | messages.CallFailed, _: Buffer | None) -> None:
    session = worker.sessions.get(answer.session)
    if session is None:
        return
    done = calls.answered(state, session, worker, answer)
    if not session.split:
        return
    if answer.seq < 0:
        switches.move_answered(state, session)
        queues.advance(state, session)
    else:
        if done is not None:
            switches.ran(state, session, done)
        if session.switch is not None and not session.sent:
            queues.advance(state, session)  # its next call may have waited for that


def _go_on(state: State, program: bytes) -> None:
    """Sessions may have waited for this program, or a plan of it."""
    for session in list(state.programs.waiting.get(program, {}).values()):
        queues.advance(state, session)


def _reject_program(state: State, session: Session, name: bytes, error: str) -> None:
    state.reject(session, f"program {name.hex()[:8]}: {error}")


# --- the rules: kind of message -> what is done about it -------------------------------------


def _chunk_came(state: State, session: Session, chunk: messages.Chunk, payload: Buffer | None) -> None:
    if uploads.chunk_came(state, session, chunk, payload):
        queues.advance(state, session)


def _upload_acked(state: State, worker: Worker, ack: messages.ChunkAck, _: Buffer | None) -> None:
    if state.relocation is not None and relocation.acked(state, worker, ack):
        return
    session = uploads.upload_acked(state, worker, ack)
    if session is not None:
        queues.advance(state, session)


def _fetched(state: State, worker: Worker, chunk: messages.Chunk, payload: Buffer | None) -> None:
    (fetches.fetched if chunk.key >= 0 else relocation.came)(state, worker, chunk, payload)


def _fetch_failed(state: State, worker: Worker, said: messages.FetchFailed, _: Buffer | None) -> None:
    (fetches.fetch_failed if said.request >= 0 else relocation.failed)(state, worker, said)


def _copied(state: State, worker: Worker, answer: messages.Copied, _: Buffer | None) -> None:
    (shelves.copied if answer.request in state.copies else relocation.answered)(state, worker, answer)


def _goodbye(state: State, session: Session, _: messages.Goodbye, __: Buffer | None) -> None:
    peer = session.peer
    assert peer is not None
    named.gone(state, session)
    state.disconnect(peer)


CLIENT_RULES: dict[type, ClientRule] = {
    messages.Call: queues.enqueue,
    messages.Free: queues.enqueue,
    messages.Define: _define,
    messages.Chunk: _chunk_came,
    messages.ChunkAck: fetches.ack_came,
    messages.SetMesh: meshes.set_mesh,
    messages.UsePlan: meshes.use_plan,
    messages.Keep: queues.enqueue,
    messages.Take: named.asked,
    messages.Drop: named.asked,
    messages.GetKept: named.asked,
    messages.Share: uploads.share_came,
    messages.Fetch: queues.fetch_came,
    messages.Cancel: queues.cancel_came,
    messages.GetStats: lambda state, session, m, _: stats.asked(state, session, m),
    messages.Trace: traces.asked,
    messages.Spans: lambda state, session, m, _: traces.told(state, session.peer, m),
    messages.Goodbye: _goodbye,
}

WORKER_RULES: dict[type, WorkerRule] = {
    messages.CallDone: _answered,
    messages.CallFailed: _answered,
    messages.Chunk: _fetched,
    messages.ChunkAck: _upload_acked,
    messages.Shared: uploads.share_answered,
    messages.FetchFailed: _fetch_failed,
    messages.Copied: _copied,
    messages.Need: lambda state, worker, m, _: workers.needed(state, worker, m),
    messages.Prepared: switches.prepared,
    messages.Stats: lambda state, worker, m, _: stats.answered(state, worker, m),
    messages.Reached: lambda state, worker, m, _: meshes.reached(state, worker, m),
    messages.Spans: lambda state, worker, m, _: traces.told(state, worker.control, m),
    messages.Spilled: memory.spilled,
    messages.Returned: memory.returned,
    messages.Goodbye: lambda state, worker, _, __: workers.lost(state, worker),
}
