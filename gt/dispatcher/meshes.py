"""Meshes of a session: how it comes to several workers, and what is left when it loses one of them.

Law 1: a session keeps the workers that it has; a mesh that needs more takes the least loaded. Values stay where they
       are: the next program that uses them brings them to where it needs them. What is on its way in goes on to where
       it began to go. A client gives up its ring before it asks for a mesh: one worker alone has it.
Law 2: a mesh that needs more workers than there are waits for them, and the wait has a deadline.
Law 3: with a worker go the values that it had a part in, unless others have all of them, and what every call under way
       was to make. Meshes that it was in are gone. Without the mesh "" every call is refused, with a line that says
       so, until one is set; fetches and frees go on.
Law 4: what a client may ask for is bounded by the numbers below; what it may not is answered and changes nothing.
"""

from __future__ import annotations

import math
import re

from gt.dispatcher import calls, joint, parts
from gt.dispatcher.placement import settle
from gt.dispatcher.session import Sent, Session, Tensor
from gt.dispatcher.state import State, Worker
from gt.layout import Layout, layout, mesh, whole
from gt.transport.codec import Buffer
from gt.transport.messages import CallFailed, Failure, MeshSet, Peers, SetMesh

MESHES = 16  #: of one session
AXES = 4  #: of one mesh
NAME = re.compile(r"[a-zA-Z_]\w{0,63}", re.ASCII)


def set_mesh(state: State, session: Session, wish: SetMesh, _: Buffer | None = None) -> None:
    """A client wants to live on several workers."""
    problem = _problem(session, wish)
    if not problem and session.wish is not None:
        problem = "another mesh is waiting for workers"
    if problem:
        state.send(session.peer, MeshSet(wish.request, (), problem))
    elif not _fulfil(state, session, wish):
        session.wish, session.wish_since_s = wish, state.now_s
        state.wishes[session.number] = session


def workers_changed(state: State) -> None:
    """A worker has joined or is gone: tell the others where it is, and look at the meshes that wait for one."""
    addresses = {n: w.peers for n, w in state.workers.items() if w.usable and w.peers}
    if len(addresses) > 1:
        for number in addresses:
            state.send(state.workers[number].control, Peers(addresses))
    for session in list(state.wishes.values()):
        assert session.wish is not None
        if _fulfil(state, session, session.wish):
            _forget_wish(state, session)


def time_passed(state: State) -> None:
    for session in list(state.wishes.values()):
        wish = session.wish
        if wish is not None and state.now_s - session.wish_since_s >= state.settings.worker_timeout_s:
            count = sum(_can_join(w) for w in state.workers.values())
            text = f"a mesh of {_needed(wish)} workers; this server has {count}"
            state.send(session.peer, MeshSet(wish.request, (), text))
            _forget_wish(state, session)


def _forget_wish(state: State, session: Session) -> None:
    session.wish = None
    del state.wishes[session.number]


def _problem(session: Session, wish: SetMesh) -> str:
    """Why this mesh cannot be; empty if it can."""
    names = [name for name, _ in wish.axes]
    sizes = [n for _, n in wish.axes]
    if wish.name and not NAME.fullmatch(wish.name):
        return "a mesh is named like a variable"
    if wish.name not in session.meshes and len(session.meshes) >= MESHES:
        return f"more than {MESHES} meshes"
    if not 1 <= len(names) <= AXES or len(set(names)) != len(names) or not all(NAME.fullmatch(a) for a in names):
        return f"a mesh has 1 to {AXES} axes, named like variables"
    if any(n < 1 for n in sizes):
        return "an axis has at least one worker"
    members = wish.members
    if members and (len(set(members)) != len(members) or min(members) < 0 or math.prod(sizes) != len(members)):
        return "the members are not as many different positions as the axes have"
    return ""


def _needed(wish: SetMesh) -> int:
    """How many workers the session has to have."""
    return max(wish.members) + 1 if wish.members else math.prod(n for _, n in wish.axes)


def _can_join(worker: Worker) -> bool:
    return worker.usable and bool(worker.peers)


def _fulfil(state: State, session: Session, wish: SetMesh) -> bool:
    """Set the mesh, if there are workers enough."""
    mine, needed = session.workers, _needed(wish)
    fit = [w for w in state.workers.values() if (_can_join(w) if needed > 1 else w.usable)]
    others = [w for w in fit if w.number not in mine]
    if needed > len(mine) + len(others):
        return False
    if needed > 1:
        apart = next((w for w in mine.values() if not w.peers), None)
        if apart is not None:
            text = f"worker {apart.number} ({apart}), where this session lives, runs nothing together with others"
            state.send(session.peer, MeshSet(wish.request, (), text))
            return True
    others.sort(key=lambda w: (len(w.sessions), w.nbytes, w.number))
    # In the order of their numbers: sessions on the same workers then have the same mesh, and share their plans.
    for worker in sorted(others[: max(needed - len(mine), 0)], key=lambda w: w.number):
        mine[worker.number] = worker
        worker.sessions[session.number] = session
    waited = session.waiting_since_s is not None
    if session.worker is None:
        settle(state, session, next(iter(mine.values())))
    numbers = list(mine)
    chosen = [numbers[k] for k in wish.members] if wish.members else numbers[: math.prod(n for _, n in wish.axes)]
    made = session.meshes[wish.name] = mesh(chosen, **dict(wish.axes))
    if len(mine) > 1:
        session.wide = True
        session.share, session.sharing = None, False  # its client has given it up
    if not wish.name:
        session.broken = None
        session.split = wish.split
    if session.wide:
        set_home(session)
    state.send(session.peer, MeshSet(wish.request, made.workers))
    if waited:  # for any worker, and has one now
        calls.advance(state, session)
    return True


def set_home(session: Session) -> None:
    """Where results go: to the mesh "", or to the session's first worker while there is none."""
    own = session.meshes.get("")
    if own is not None:
        session.home = joint.plain_layout(layout(own))
    elif session.worker is not None:
        session.home = session.worker.layout
    named = sorted((name, m) for name, m in session.meshes.items() if name)
    session.place = (session.home, *(each for pair in named for each in pair))


# --- losing one of several -------------------------------------------------------------------


def lose_worker(state: State, session: Session, worker: Worker) -> None:
    """A worker of a wide session is gone; the session goes on on the others."""
    held = Failure("LostError", f"the worker that held it ({worker}) is gone")
    ran = Failure("LostError", f"the worker that ran it ({worker}) is gone")
    state.drop_head(session)
    again = parts.lose_transfers(state, session, worker, held)
    root = _fail_calls(state, session, ran)
    for key in [k for k in session.orphans if k[0] == worker.number]:
        state.release(*session.orphans.pop(key))
    gone = []
    for i, tensor in session.tensors.items():
        numbers = _holders(session, tensor)
        if worker.number not in numbers or tensor.lost is not None:
            continue
        at = tensor.layout
        state.uncount(session, tensor)
        left = [n for n in numbers if n != worker.number]
        if at is not None and at.is_whole and left and (tensor.nbytes or not tensor.spec.nbytes):
            kept = joint.tensor_at(tensor.spec, _whole_on(left))
            state.spread(session, kept.parts or {})
            session.tensors[i] = kept
        else:
            session.tensors[i] = Tensor(tensor.spec, 0, None, held, root)
            gone.append(i)
    del session.workers[worker.number], worker.sessions[session.number]
    joint.free(state, session, gone, session.workers.values())
    parts.fetch_again(state, session, again, held)
    session.hollow = True
    broken = [name for name, m in session.meshes.items() if worker.number in m.workers]
    for name in broken:
        if not name:
            text = f"this session's mesh ({session.meshes[name]!r}) has lost a worker ({worker})"
            session.broken = Failure("LostError", f"{text}; set one anew: gt.mesh(...)")
        del session.meshes[name]
    if session.worker is worker:
        session.worker = next(iter(session.workers.values()), None)
    set_home(session)


def _holders(session: Session, tensor: Tensor) -> tuple[int, ...]:
    """The workers that have a part of a tensor, or are getting one."""
    if tensor.parts is not None:
        return tuple(tensor.parts)
    return (session.worker.number,) if session.worker is not None else ()


def _whole_on(numbers: list[int]) -> Layout:
    return whole(numbers[0]) if len(numbers) == 1 else layout(mesh(numbers, copies=len(numbers)))


def _failed_anyway(sent: Sent) -> bool:
    """Whether a call was refused, or failed on another worker for a reason of its own."""
    return sent.failure is not None and sent.failure.kind != joint.PEER_FAILED


def _fail_calls(state: State, session: Session, failure: Failure) -> int:
    """Everything under way fails: who is left may or may not have done its part. Returns the call to blame."""
    root = next((sent.seq for sent in session.sent.values() if not sent.finished and not _failed_anyway(sent)), 0)
    lost = []
    for sent in session.sent.values():
        state.release(sent.entry, sent.plan)
        session.done = sent.seq
        if sent.finished:
            if sent.failure is not None:
                joint.fail(state, session, sent, sent.failure)
            continue
        state.give_back(sent)
        for number in sent.plan.workers if sent.left is None else sent.left:
            if state.workers[number].usable:
                session.orphans[number, sent.seq] = sent.entry, sent.plan
                sent.entry.uses += 1
                sent.plan.uses += 1
        session.calls += 1
        why, blame = (sent.failure, sent.root) if _failed_anyway(sent) else (failure, root)
        assert why is not None
        state.send(session.peer, CallFailed(0, sent.seq, blame, why))
        for o, good in enumerate(sent.plan.outputs):
            i = sent.outputs + o
            if session.tensors.get(i) is good:
                state.uncount(session, good)
                session.tensors[i] = Tensor(good.spec, 0, None, why, blame)
                lost.append(i)
    session.sent.clear()
    joint.free(state, session, lost, session.workers.values())
    state.news[session.number] = session
    return root
