"""Workers come and go.

Law 1: a worker has two connections and is usable once both are there; losing either loses it.
Law 2: what a lost worker held is lost with a reason, and every call, fetch and upload that was under way
       there is answered: nobody waits for a worker that is gone.
Law 3: a wait for a first worker ends after `worker_timeout_s`, with one line that says what to do.
"""

from __future__ import annotations

from gt.dispatcher import meshes
from gt.dispatcher.calls import advance
from gt.dispatcher.events import Peer
from gt.dispatcher.placement import lose, place, stop_waiting
from gt.dispatcher.session import Session, Tensor
from gt.dispatcher.state import State, Worker
from gt.dispatcher.stats import worker_lost
from gt.layout import whole
from gt.transport.messages import VERSION, CallFailed, Define, Failure, FetchFailed, Need, WorkerHello, WorkerWelcome

#: Its socket and its secret are no one else's: nobody can start a worker for it.
PRIVATE = "GT's private server has lost its worker; gt.disconnect() ends it, and the next tensor starts a new one"


def joined(state: State, peer: Peer, hello: WorkerHello) -> None:
    """One connection of a worker says hello; version and token are right."""
    worker = state.links.get(hello.link)
    if worker is None:
        state.last_worker += 1
        number = state.last_worker
        worker = Worker(number, hello.link, whole(number))
        state.links[hello.link] = state.workers[number] = worker
    if (worker.control if hello.control else worker.results) is not None:
        state.refuse(peer, f"a worker with link {hello.link!r} is connected already")
        return
    if hello.control:
        worker.control, worker.memory = peer, max(0, hello.memory)
        worker.engine, worker.device = hello.engine, hello.device
        worker.host, worker.pid, worker.peers = hello.host, hello.pid, hello.peers[:200]
    else:
        worker.results = peer
    state.peers[peer] = worker
    state.send(peer, WorkerWelcome(VERSION, worker.number))
    if worker.usable:
        meshes.workers_changed(state)
        for session in list(state.homeless.values()):
            place(state, session)
            advance(state, session)


def lost(state: State, worker: Worker, said: Peer | None = None) -> None:
    """A worker is gone, however it went. `said` is the connection that is known to be over."""
    for peer in (worker.control, worker.results):
        if peer is not None:
            del state.peers[peer]
            if peer != said:
                state.disconnect(peer)
    worker.control = worker.results = None
    del state.links[worker.link]
    orphans = list(worker.sessions.values())
    for session in orphans:
        if session.wide:
            meshes.lose_worker(state, session, worker)
        else:
            _lose_values(state, session, worker)
            state.unplace(session)
    del state.workers[worker.number]
    state.touched.pop(worker.number, None)
    state.forget_plans(worker)
    worker_lost(state, worker)
    meshes.workers_changed(state)
    for session in orphans:
        advance(state, session)


def _lose_values(state: State, session: Session, worker: Worker) -> None:
    held = Failure("LostError", f"the worker that held it ({worker}) is gone")
    ran = Failure("LostError", f"the worker that ran it ({worker}) is gone")
    for upload in list(session.uploads.values()):
        if not upload.sink:
            lose(state, session, upload, held)
    for request in session.fetches:
        state.send(session.peer, FetchFailed(0, request, held))
    session.fetches.clear()

    # One loss is one error: the first call that ran there is to blame for all of it.
    root = next((sent.seq for sent in session.sent.values() if not sent.finished), 0)
    nbytes = 0
    for i, t in session.tensors.items():
        if t.lost is None:
            nbytes += t.nbytes
            session.tensors[i] = Tensor(t.spec, 0, None, held, root)
    state.charge(session, -nbytes)
    session.hollow = True
    for sent in session.sent.values():
        if not sent.finished:
            session.calls += 1
            state.send(session.peer, CallFailed(0, sent.seq, root, ran))
        session.done = sent.seq
    state.news[session.number] = session


def needed(state: State, worker: Worker, need: Need) -> None:
    """A worker has forgotten a program. One that a call under way uses is always here."""
    entry = state.programs.get(need.program)
    text = state.programs.text(need.program)
    if text is not None:
        worker.programs.add(need.program)
        timed, compile = (entry.timed, entry.compile) if entry is not None else (False, 0)
        state.send(worker.control, Define(text, timed, compile))


def time_passed(state: State) -> None:
    meshes.time_passed(state)
    _fail_homeless(state)


def _fail_homeless(state: State) -> None:
    """Fail what has waited too long for a worker; the session goes on when one joins."""
    for session in list(state.homeless.values()):
        assert session.waiting_since_s is not None
        if state.now_s - session.waiting_since_s >= state.settings.worker_timeout_s:
            text = f"no worker has joined this server; start one with: {state.join}" if state.join else PRIVATE
            session.no_worker = Failure("LostError", text)
            stop_waiting(state, session)
            for upload in list(session.uploads.values()):
                if not upload.sink:
                    lose(state, session, upload, session.no_worker)
            advance(state, session)
            session.no_worker = None
