"""Workers come and go.

Law 1: a worker has two connections and is usable once both are there; losing either loses it. It may have a third one,
       by which it is known to be there; losing that loses it too.
Law 2: with a worker go the values that it had a part in, unless others have all of them, and what every call under way
       of its sessions was to make. All that was under way is answered: nothing waits for a worker that is gone.
Law 3: meshes that it was in are gone. A session that has other workers, but has lost its mesh "", has every call
       refused, with a line that says so, until one is set; fetches and frees go on.
       What its client sent before it heard of the loss of the only worker fails at once, with what was lost.
Law 4: a wait for a first worker ends after `worker_timeout_s`, with one line that says what to do.
"""

from __future__ import annotations

from gt.dispatcher import calls, fetches, meshes, shelves, switches, uploads
from gt.dispatcher.events import Peer
from gt.dispatcher.plans import plain_layout, set_home, tensor_at
from gt.dispatcher.queues import advance
from gt.dispatcher.session import Bereft, SentCall, Session
from gt.dispatcher.state import State, Worker
from gt.dispatcher.stats import worker_lost
from gt.layout import layout, mesh, whole
from gt.transport.identity import User
from gt.transport.messages import VERSION, Alive, Define, Failure, Need, Shared, WorkerHello, WorkerWelcome

#: For a server that only its client can reach: no worker can be started by hand for it.
PRIVATE = "GT's private server has lost its worker; gt.disconnect() ends it, and the next tensor starts a new one"


def joined(state: State, peer: Peer, hello: WorkerHello, user: User | None = None) -> None:
    """One connection of a worker says hello; version and token, or key, are right."""
    worker = state.links.get(hello.link)
    if worker is not None and worker.user != user:
        state.refuse(peer, "both connections of a worker must have the same key")
        return
    if worker is None:
        state.last_worker += 1
        number = state.last_worker
        worker = Worker(number, hello.link, whole(number), user=user)
        state.links[hello.link] = state.workers[number] = worker
    if (worker.control if hello.control else worker.results) is not None:
        state.refuse(peer, f"a worker with link {hello.link!r} is connected already")
        return
    if hello.control:
        worker.control, worker.memory = peer, max(0, hello.memory)
        worker.engine, worker.device = hello.engine, hello.device
        worker.host, worker.pid, worker.peers, worker.tries = hello.host, hello.pid, hello.peers[:1000], hello.tries
    else:
        worker.results = peer
    state.peers[peer] = worker
    state.send(peer, WorkerWelcome(VERSION, worker.number))
    if worker.usable:
        meshes.workers_changed(state)


def alive(state: State, peer: Peer, said: Alive, user: User | None) -> None:
    """The third connection of a worker."""
    worker = state.links.get(said.link)
    if worker is None or worker.user != user or worker.alive is not None:
        state.refuse(peer, "no worker expects this connection")
        return
    worker.alive = peer
    state.peers[peer] = worker


def lost(state: State, worker: Worker, said: Peer | None = None) -> None:
    """A worker is gone, however it went. `said` is the connection that is known to be over."""
    for peer in worker.connections:
        del state.peers[peer]
        if peer != said:
            state.disconnect(peer)
    worker.control = worker.results = worker.alive = None
    del state.links[worker.link]
    orphans = list(worker.sessions.values())
    moving = state.relocation
    if moving is not None and worker in (moving.here, moving.there):
        state.end_relocation(f"worker {worker.number} is gone")
        orphans += [moving.session] if worker is moving.there else []
    for session in list(worker.sessions.values()):
        _lose(state, session, worker)
    shelves.worker_lost(state, worker)
    del state.workers[worker.number]
    state.touched.pop(worker.number, None)
    for other in state.workers.values():
        other.reached.pop(worker.number, None)
    state.forget_plans(worker)
    worker_lost(state, worker)
    meshes.workers_changed(state)
    for session in orphans:
        advance(state, session)


def _lose(state: State, session: Session, worker: Worker) -> None:
    """A session has lost a worker, maybe its only one; it goes on on the others."""
    held = Failure("LostError", f"the worker that held it ({worker}) is gone")
    ran = Failure("LostError", f"the worker that ran it ({worker}) is gone")
    several = len(session.workers) > 1
    under_way = bool(session.queue or session.uploads)
    state.drop_head(session)
    switches.forget(state, session, f"a worker ({worker}) is gone")
    uploads.lose_uploads(state, session, worker, held)
    failing = _failing(session, worker.number)
    again = fetches.lose_fetches(state, session, worker, failing, held)
    root = _fail_calls(state, session, failing, ran)
    for number, seq in list(session.orphans):
        if number == worker.number:
            session.orphans.pop((number, seq)).uses -= 1
    gone = []
    for i, tensor in session.tensors.items():
        if worker.number not in tensor.parts:
            continue
        left = [n for n in tensor.parts if n != worker.number]
        if tensor.layout is not None and tensor.layout.is_whole and left:
            state.count(session, tensor, -1)
            at = plain_layout(layout(mesh(left, copies=len(left))))
            session.tensors[i] = kept = tensor_at(tensor.spec, at)
            state.count(session, kept)
        else:
            state.put_lost(session, i, held, root)
            gone.append(i)
    if not several and (root or under_way or gone):
        session.bereft = Bereft(ran, root, state.now_s if root else None)
    state.forget_moves(session, worker.number)
    session.lost_worker = str(worker)
    del session.workers[worker.number], worker.sessions[session.number]
    calls.free(state, session, gone, session.workers.values())
    fetches.fetch_again(state, session, again, held)
    for name in [name for name, m in session.meshes.items() if worker.number in m.workers]:
        m = session.meshes.pop(name)
        if not name and several:
            text = f"this session's mesh ({m!r}) has lost a worker ({worker}); set a new one: gt.mesh(...)"
            session.broken, session.broken_root = Failure("LostError", text), root
    if session.offer is not None:
        state.send(session.peer, Shared(0, session.offer.share.ring, False))
        session.offer = None
    set_home(session)


def _failing(session: Session, lost: int) -> list[int]:
    """The calls under way that fail with a worker: those in which it has a part that is not done, and what others have
    computed from their results."""
    found: list[int] = []
    spoilt: set[int] = set()  # results of these calls
    for seq, sent in session.sent.items():
        if (sent.left and lost in sent.plan.locals) or not (
            spoilt.isdisjoint(sent.inputs) or (not sent.left and sent.failure is not None)
        ):
            found.append(seq)
            spoilt.update(range(sent.outputs, sent.outputs + len(sent.plan.outputs)))
    return found


def _fail_calls(state: State, session: Session, failing: list[int], failure: Failure) -> int:
    """One loss is one error: the first call that fails because of it is the root of the others, and is returned."""
    calls_failing = [session.sent[seq] for seq in failing]
    root = next((sent.seq for sent in calls_failing if sent.left and not _failed_anyway(sent)), 0)
    for sent in calls_failing:
        state.abandon(session, sent)
        sent.left.clear()
        sent.good = True  # other workers may have done their part: its results are dropped
        if not _failed_anyway(sent):
            sent.failure, sent.root = failure, root
    calls.retire(state, session)
    return root


def _failed_anyway(sent: SentCall) -> bool:
    """Whether a call was refused, or failed on another worker for a reason of its own."""
    return sent.failure is not None and sent.failure.kind != calls.PEER_FAILED


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
            since = f" since the one of this session ({session.lost_worker}) was lost" if session.lost_worker else ""
            text = f"no worker has joined this server{since}; start one with: {state.join}" if state.join else PRIVATE
            session.no_worker = Failure("LostError", text)
            state.stop_waiting(session)
            for upload in list(session.uploads.values()):
                if upload.waits_for_worker:
                    state.lose_upload(session, upload, session.no_worker)
            advance(state, session)
            session.no_worker = None
