"""Sessions move to other workers: from one that has much to do to one that has little.

Law 1: a session that did not choose its worker moves if it has calls to run, others want more of its worker than of
       another one (by MARGIN, over seconds: see meshes.py), and its tensors are few enough (NBYTES, TENSORS) and fit
       there. One session moves at a time; one that has moved stays where it is for REST_S, one that could not for
       longer. It moves back only when others want more of its new worker by MARGIN: nothing moves to and fro.
Law 2: until all is there, the session is on its old worker, and whatever happens leaves it there: only copies go.
       They are read and stored as fetches and uploads are, piece by piece, so that no other session waits for them. Its
       calls go on meanwhile. They wait, for HOLD_S at most, while the last tensors are copied: what is new since.
Law 3: it changes over in one event, while nothing of it is under way, and after the new worker has said that all is
       there. Ids stay. What was outside of the device is so there too (memory.py). Its client learns nothing but that
       its ring is given up, as when a worker is lost.
Law 4: a session whose client may not know of a failed call yet does not change over: its old worker alone knows what
       that call kept. What is kept or published is on the worker of its session, and so such a session stays too.
"""

from __future__ import annotations

from gt.dispatcher.events import Noted
from gt.dispatcher.limits import allowed
from gt.dispatcher.meshes import load
from gt.dispatcher.plans import set_home, tensor_at
from gt.dispatcher.queues import advance
from gt.dispatcher.session import Moved, Session, Tensor, show_nbytes
from gt.dispatcher.state import Crossing, Relocation, State, Worker
from gt.transport import messages as msg
from gt.transport.messages import Buffer, pack_ids

MARGIN = 0.5  #: Of a worker's time: by so much more others want the one than the other.
ACTIVE_S = 2.0  #: A session that has sent no call for so long moves when it sends the next.
NBYTES = 1 << 30
TENSORS = 1 << 12
REST_S = 30.0
AT_ONCE = 4  #: Tensors that cross at once.
LONG_S = 10.0  #: A move that takes longer is given up,
HOLD_S = 0.5  #: and one that keeps calls waiting for longer.

# --- who moves -------------------------------------------------------------------------------


def time_passed(state: State) -> None:
    """What sessions want was looked at: one of them may move."""
    if state.relocation is not None or state.noted_s < state.now_s:
        return
    loads = {n: load(w) for n, w in state.workers.items() if w.usable}
    found: list[tuple[float, int, int, Worker]] = []
    for session in state.sessions.values():
        here = session.first
        if here is None or not (_comes_back(state, session) and may_move(session)):
            continue
        others = [n for n in loads if n != here.number and _is_like(state.workers[n], here)]
        there = state.workers[min(others, key=loads.__getitem__)] if others else here
        gain = loads[here.number][0] - session.demand - loads[there.number][0]
        if there is not here and gain >= MARGIN and _fits(session, there):
            found.append((-round(gain, 1), session.nbytes, session.number, there))
    if found:
        *_, number, there = min(found, key=lambda each: each[:3])
        session = state.sessions[number]
        (here,) = session.workers.values()
        state.relocation = Relocation(session, here, there, state.now_s, list(session.tensors))


def _comes_back(state: State, session: Session) -> bool:
    """Whether it has something to run, and may move again."""
    active = session.sent or session.queued_calls or state.now_s < session.used_s + ACTIVE_S
    return bool(active) and state.now_s >= session.rests_until_s


def may_move(session: Session) -> bool:
    """Whether a session is on one worker, which it did not choose, and with nothing else that has to stay there."""
    chose = session.meshes or session.split or session.wish is not None or session.broken is not None
    bound = session.shelf is not None and session.shelf.room.tensors
    if len(session.workers) != 1 or chose or bound or session.holds is not None or session.peer is None:
        return False
    return not session.coming and session.copying is None


def _is_like(there: Worker, here: Worker) -> bool:
    """Whether a worker can do for sessions what another one does."""
    alike = (there.engine, there.device.partition(":")[0]) == (here.engine, here.device.partition(":")[0])
    return alike and (not there.memory or 0 < here.memory <= there.memory)


def _fits(session: Session, there: Worker) -> bool:
    """Whether there is room for all that a session has."""
    nbytes = session.nbytes
    if nbytes > NBYTES or len(session.tensors) > TENSORS or not there.has_room(nbytes - session.away_nbytes):
        return False
    return session.user is None or allowed(session, there, nbytes)


# --- the way there ---------------------------------------------------------------------------


def look(state: State) -> bool:
    """Before an event is over: bring the session that moves as far as it can be. Returns whether that is over."""
    moving = state.relocation
    assert moving is not None
    session = moving.session
    while True:
        problem = _problem(state, moving)
        if problem:
            state.end_relocation(problem)
            advance(state, session)
            return True
        while moving.left and len(moving.crossing) < AT_ONCE and not moving.problem:
            _begin(state, moving, moving.left.pop())
        if moving.problem:
            continue
        asked = moving.question and not moving.sure
        if moving.crossing or asked or (moving.held_s is not None and _is_busy(session)):
            return False
        missing = _missing(state, moving)
        if moving.held_s is None and session.failed <= session.acked:
            moving.held_s = state.now_s  # all that it had is there
            if session.head is not None:
                state.drop_head(session)
                state.touch((moving.here.lane,))
        if missing:
            moving.question, moving.sure = 0, False
        elif moving.held_s is None or _is_busy(session):
            return False  # in the first case its client may not know of a failed call: it says so with its next calls
        elif moving.sure:
            _change_over(state, moving)
            return True
        else:
            state.last_copy += 1
            moving.question, ids = state.last_copy, pack_ids(moving.copies)
            state.send(moving.there.control, msg.Copy(session.number, moving.question, session.number, ids, 0))


def _problem(state: State, moving: Relocation) -> str:
    """Why a session cannot move any more; empty if it can."""
    session, number = moving.session, moving.there.number
    if moving.problem or not may_move(session):
        return moving.problem or "it cannot leave it any more"
    if any(number in s.head.plan.locals for s in state.memory_queue.values() if s.head is not None):
        return f"others need memory on worker {number}"
    if moving.held_s is not None and session.failed > session.acked:
        return "a call has failed"
    if session.user is not None and not allowed(session, moving.there, session.nbytes):
        return "its user may not hold more there"
    if state.now_s > moving.since_s + LONG_S or (moving.held_s is not None and state.now_s > moving.held_s + HOLD_S):
        return "it took too long"
    return ""


def _is_busy(session: Session) -> bool:
    """Whether something of a session is under way on its worker."""
    offered = session.offer is not None and not session.offer.taken
    under_way = session.sent or session.uploads or session.fetches or session.orphans or session.head is not None
    return bool(under_way) or offered


def _missing(state: State, moving: Relocation) -> bool:
    """Drop copies of what was freed meanwhile; whether there are tensors that have not been copied."""
    tensors = moving.session.tensors
    gone = [i for i in moving.copies if i not in tensors]
    if gone:
        moving.there.reserved -= sum(map(moving.copies.pop, gone))
        state.send(moving.there.control, msg.Free(moving.session.number, pack_ids(gone)))
    moving.left = [i for i, t in tensors.items() if type(t) is Tensor and i not in moving.copies]
    return bool(moving.left)


def _begin(state: State, moving: Relocation, id: int) -> None:
    """Copy a tensor."""
    session, here, there = moving.session, moving.here, moving.there
    tensor = session.tensors.get(id)
    if type(tensor) is not Tensor:
        return
    moved, nbytes = session.moved.get(here.number), tensor.nbytes
    if moved is not None and id in moved.away:
        nbytes = 0
        state.send(there.control, msg.Spill(session.number, pack_ids([id])))
    elif not there.has_room(nbytes):
        moving.problem = f"there is no room for {show_nbytes(nbytes)} on worker {there.number}"
        return
    there.reserved += nbytes
    moving.copies[id] = nbytes
    state.last_copy += 1
    moving.crossing[-state.last_copy] = Crossing(id)
    state.send(here.control, msg.Fetch(session.number, -state.last_copy, id))


def came(state: State, worker: Worker, chunk: msg.Chunk, payload: Buffer | None) -> None:
    """The old worker sends a piece of a tensor."""
    moving = state.relocation
    crossing = moving.crossing.get(chunk.key) if moving is not None and worker is moving.here else None
    if moving is None or crossing is None or payload is None or chunk.offset != crossing.received:
        return
    crossing.received += len(payload)
    crossing.total = chunk.total
    crossing.unacked += 1
    c = chunk
    message = msg.Chunk(moving.session.number, crossing.id, c.offset, c.total, c.shape, c.dtype)
    state.send(moving.there.control, message, payload)


def acked(state: State, worker: Worker, ack: msg.ChunkAck) -> bool:
    """The new worker has taken a piece; False if this is about something else."""
    moving = state.relocation
    if moving is None or worker is not moving.there or ack.session != moving.session.number:
        return False
    for request, crossing in moving.crossing.items():
        if crossing.id == ack.key and crossing.unacked:
            crossing.unacked -= 1
            if crossing.received < crossing.total:
                state.send(moving.here.control, msg.ChunkAck(ack.session, request, False))
            elif not crossing.unacked:
                del moving.crossing[request]
            break
    return True


def failed(state: State, worker: Worker, said: msg.FetchFailed) -> None:
    """The old worker cannot send a tensor."""
    moving = state.relocation
    if moving is not None and worker is moving.here and said.request in moving.crossing:
        moving.problem = said.error.text[:200]


def answered(state: State, worker: Worker, answer: msg.Copied) -> None:
    """The new worker says whether it has everything."""
    moving = state.relocation
    if moving is not None and worker is moving.there and answer.request == moving.question:
        moving.sure = answer.error is None
        moving.problem = answer.error.text[:200] if answer.error is not None else ""


def _change_over(state: State, moving: Relocation) -> None:
    """The session is on its new worker from now on. Law 3."""
    session, here, there = moving.session, moving.here, moving.there
    state.relocation = None
    there.reserved -= sum(moving.copies.values())
    for tensor in session.tensors.values():
        state.count(session, tensor, -1)
    state.forget_moves(session, here.number)
    del session.workers[here.number], here.sessions[session.number]
    state.send(here.control, msg.CloseSession(session.number))
    session.workers[there.number] = there
    there.sessions[session.number] = session
    set_home(session)
    away: dict[int, int] = {}
    for i, tensor in session.tensors.items():
        if type(tensor) is Tensor:
            session.tensors[i] = new = tensor_at(tensor.spec, session.home)
            state.count(session, new)
            if new.nbytes and not moving.copies[i]:
                away[i] = new.nbytes
    if away:
        session.moved[there.number] = Moved(away)
        there.away += sum(away.values())
    if session.offer is not None:
        state.send(session.peer, msg.Shared(0, session.offer.share.ring, False))
        session.offer = None
    session.rests_until_s = state.now_s + REST_S
    text = f"{len(moving.copies)} tensors, {show_nbytes(session.nbytes)}"
    state.out.append(Noted(session.number, f"moves from worker {here.number} to worker {there.number}: {text}"))
    state.touch((here.lane, there.lane))
    advance(state, session)
