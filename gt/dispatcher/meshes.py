"""Which workers a session runs on: one, the least loaded when it first needs one; or those of its meshes.

Law 1: a session gets a worker before anything of it is sent to one. Where there is none it waits, and the wait has a
       deadline (workers.py).
Law 2: a session keeps the workers that it has; a mesh that needs more takes the least loaded. Values stay where they
       are: the next program that uses them brings them to where it needs them. What is on its way in goes on to where
       it began to go. A client gives up its ring before it asks for a mesh: one worker alone has it.
Law 3: a mesh that needs more workers than there are waits for them, and the wait has a deadline.
Law 4: a client's plan changes how its own programs are planned and nothing else. It is believed as far as it fits.
Law 5: workers that say that they do not reach each other are never in one session. Whether they do is known before a
       mesh is granted; a mesh that could only be made of workers that do not is refused at once, with their addresses.
Law 6: what a client may ask for is bounded by the numbers below; what it may not is answered and changes nothing.
"""

from __future__ import annotations

import hashlib
import math
import re

import msgspec

from gt.dispatcher import meeting, switches, uploads
from gt.dispatcher.limits import too_many
from gt.dispatcher.plans import set_home
from gt.dispatcher.queues import advance
from gt.dispatcher.session import Followed, MeshWish, Session
from gt.dispatcher.state import State, Worker
from gt.layout import mesh
from gt.transport.messages import CHOICES_NBYTES, Buffer, MeshSet, Peers, Reached, SetMesh, UsePlan

MESHES = 16  #: of one session
FOLLOWED = 16  #: Plans that one session follows, each for the programs of one body. The oldest is dropped for another.
AXES = 4  #: of one mesh
DEMAND_S = 20.0  #: What a session has wanted for about so long is what it is thought to want.
NOTE_S = 1.0  #: How often it is looked at.
BODY = 64  #: characters of the name of a body
NAME = re.compile(r"[a-zA-Z_]\w{0,63}", re.ASCII)

_encode = msgspec.msgpack.Encoder().encode

# --- one worker ------------------------------------------------------------------------------


def place_homeless(state: State) -> None:
    """Sessions that need a worker get one, if there is one."""
    usable = [w for w in state.workers.values() if w.usable]
    if usable:
        for session in list(state.homeless.values()):
            settle(state, session, min(usable, key=load))
            advance(state, session)


def load(worker: Worker) -> tuple[float, float, int, int]:
    """How much a worker has to do: what its sessions want of it, and the part of its memory that is taken. The number
    decides between equals."""
    wanted = sum(session.demand for session in worker.sessions.values())
    taken = worker.on_device / worker.memory if worker.memory else 0.0
    return round(wanted, 1), taken, worker.on_device, worker.number


def _note_demand(state: State) -> None:
    """Look which sessions have calls to run: one that always has counts fully, one that waits for its user hardly."""
    passed_s = state.now_s - state.noted_s
    if passed_s < NOTE_S:
        return
    state.noted_s = state.now_s
    kept = math.exp(-passed_s / DEMAND_S)
    for session in state.sessions.values():
        wants = bool(session.sent or session.queued_calls)
        session.demand = kept * session.demand + (1 - kept) * wants


def settle(state: State, session: Session, worker: Worker) -> None:
    """This is the session's first worker."""
    session.workers[worker.number] = worker
    worker.sessions[session.number] = session
    session.used_s = state.now_s  # it is about to use it
    session.demand = 1.0
    set_home(session)
    state.stop_waiting(session)
    uploads.pass_held(state, session)


# --- several ---------------------------------------------------------------------------------


def set_mesh(state: State, session: Session, wish: SetMesh, _: Buffer | None = None) -> None:
    """A client wants to run on several workers."""
    problem = _problem(session, wish)
    if not problem and session.wish is not None:
        problem = "another mesh is waiting for workers"
    if not problem and state.relocation is not None and state.relocation.session is session:
        state.end_relocation("it asks for a mesh")
        advance(state, session)
    if problem:
        state.send(session.peer, MeshSet(wish.request, (), problem))
    elif not _fulfil(state, session, wish):
        session.wish = MeshWish(wish, state.now_s)
        state.wishes[session.number] = session


def workers_changed(state: State) -> None:
    """A worker has joined or is gone: tell the others where it is, and look at the meshes that wait for one."""
    addresses = {n: w.peers for n, w in state.workers.items() if w.usable and w.peers}
    before, state.met = state.met, len(addresses)
    if max(before, state.met) > 1:  # the last one is told too: it may wait for a worker that is gone
        for number in addresses:
            state.send(state.workers[number].control, Peers(addresses, state.secret))
    _look_at_wishes(state)


def reached(state: State, worker: Worker, said: Reached) -> None:
    """A worker has tried the addresses of another one."""
    if said.worker in state.workers and worker.reached.get(said.worker) != said.error[:1000]:
        worker.reached[said.worker] = said.error[:1000]
        _look_at_wishes(state)


def _look_at_wishes(state: State) -> None:
    for session in list(state.wishes.values()):
        assert session.wish is not None
        if _fulfil(state, session, session.wish.asked):
            _forget_wish(state, session)


def time_passed(state: State) -> None:
    _note_demand(state)
    for session in list(state.wishes.values()):
        assert session.wish is not None
        asked = session.wish.asked
        if state.now_s - session.wish.since_s >= state.settings.worker_timeout_s:
            count = sum(_can_join(w) for w in state.workers.values())
            text = f"a mesh of {_needed(asked)} workers; this server has {count}"
            state.send(session.peer, MeshSet(asked.request, (), text))
            _forget_wish(state, session)


def _forget_wish(state: State, session: Session) -> None:
    session.wish = None
    del state.wishes[session.number]


def _problem(session: Session, wish: SetMesh) -> str:
    """Why this mesh cannot be; empty if it can."""
    names = [name for name, _ in wish.axes]
    sizes = [n for _, n in wish.axes]
    if wish.name and not NAME.fullmatch(wish.name):
        return f"mesh name {wish.name[:80]!r} must be a valid variable name"
    if wish.name not in session.meshes and len(session.meshes) >= MESHES:
        return f"a session can have at most {MESHES} meshes"
    if not 1 <= len(names) <= AXES or len(set(names)) != len(names) or not all(NAME.fullmatch(a) for a in names):
        return f"a mesh must have 1 to {AXES} different axes whose names are valid variable names"
    if any(n < 1 for n in sizes):
        return "every axis must have at least one worker"
    members = wish.members
    if members and (len(set(members)) != len(members) or min(members) < 0 or math.prod(sizes) != len(members)):
        return f"members must be {math.prod(sizes)} different positions >= 0, got {len(members)}"
    return too_many(session, _needed(wish)) if session.user is not None else ""


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
    others.sort(key=load)
    if needed > 1:
        apart = next((w for w in mine.values() if not w.peers), None)
        if apart is not None:
            text = f"worker {apart.number} ({apart}), on which this session runs, cannot run calls together with others"
            state.send(session.peer, MeshSet(wish.request, (), text))
            return True
        tried = any(w.tries for w in fit)  # else all are on one machine
        together = meeting.team(list(mine.values()), others, needed) if tried else others
        if together is None:
            return False  # they have not tried each other yet
        if isinstance(together, str):
            state.send(session.peer, MeshSet(wish.request, (), together))
            return True
        others = together
    # In the order of their numbers: sessions on the same workers then have the same mesh, and share their plans.
    more = sorted(others[: max(needed - len(mine), 0)], key=lambda w: w.number)
    waited = session.waiting_since_s is not None
    if not mine:
        settle(state, session, more.pop(0))  # what was kept for the first worker begins there, before there are others
    session.demand = 1.0
    for worker in more:
        mine[worker.number] = worker
        worker.sessions[session.number] = session
    numbers = list(mine)
    chosen = [numbers[k] for k in wish.members] if wish.members else numbers[: math.prod(n for _, n in wish.axes)]
    made = session.meshes[wish.name] = mesh(chosen, **dict(wish.axes))
    if len(mine) > 1:
        session.offer = None  # its client has given it up
    if not wish.name:
        switches.forget(state, session, "another mesh was set")
        session.broken = None
        session.split = wish.split
    set_home(session)
    state.send(session.peer, MeshSet(wish.request, made.workers))
    if waited or not wish.name:  # for any worker, and has one now; or to move to a plan that is of no use any more
        advance(state, session)
    return True


# --- plans of the client ---------------------------------------------------------------------


def use_plan(state: State, session: Session, m: UsePlan, _: Buffer | None) -> None:
    """Follow the choices of a client's plan. Whether they fit is seen when a program is planned (`plans.work_off`)."""
    encoded = _encode(m)
    if len(encoded) > CHOICES_NBYTES or len(m.body) > BODY or len(m.axes) > AXES:
        state.reject(session, f"a plan of {len(encoded)} bytes; the limit is {CHOICES_NBYTES}")
        return
    if any(not 0 <= k < len(m.choices) for k in m.ways.values()):
        state.reject(session, "a plan names a choice that it does not have")
        return
    switches.forget(state, session, "the client follows a plan of its own")
    followed = {body: each for body, each in session.followed.items() if body != m.body}
    if m.ways:
        ways = {i: m.choices[k] for i, k in m.ways.items()}
        followed[m.body] = Followed(m.axes, ways, hashlib.sha256(encoded).digest())
    session.followed = dict(list(followed.items())[-FOLLOWED:])
    set_home(session)
    advance(state, session)
