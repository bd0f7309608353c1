"""Memory of workers: tensors of idle sessions move out of it for calls that need it, and come back when they are used.

Law 1: whether a call fits depends on its own session alone: what the session has on a worker, on the device or moved
       out, and what the call needs more must not exceed what the worker has. A call that does not fit is refused before
       it runs, with the numbers.
Law 2: a call that fits, and finds no room, waits for it. On a worker calls get room in the order in which they began to
       wait. Tensors of other sessions move out for them (Spill): those of the session that has not run for longest go
       first, and never those of a session with calls on workers. If that is not enough, the largest of the running
       sessions wait behind it with their next calls.
Law 3: a call is sent when its inputs are on the devices (Return). From then on, until it is sent, nothing of its
       session moves out: every return is followed by a call.
Law 4: a session that was given memory has its turn for SLICE_S, unless it runs nothing for IDLE_S: it keeps what it
       has, and gets what else it needs before others, but not before those whose turn began earlier. So sessions that
       need the same memory do not exchange it at every call.
Law 5: bytes count as on the device until the worker says that they have left it, and again from the moment when they
       are asked back.

A session that waits for memory has its head here, and stands in no ring and no claim. Waits end: calls under way and
moves out and back come to an end, and a session that got its memory needs nothing but its turn.
"""

from __future__ import annotations

import math

from gt.dispatcher.limits import allowed, missing_text
from gt.dispatcher.schedule import unclaim
from gt.dispatcher.session import Moved, ReadyCall, Session, Tensor, Upload
from gt.dispatcher.state import State, Worker
from gt.transport.messages import Failure, Return, Returned, Spill, Spilled, pack_ids, unpack_ids

SLICE_S = 2.0
IDLE_S = 0.15
RETRY_S = 5.0  #: So long after a worker had no place to move tensors to, it is not asked again.

# --- what a call needs -----------------------------------------------------------------------


def misfit(state: State, session: Session, ready: ReadyCall) -> Failure | None:
    """Why a call can never run beside what its session has; None if it can. Law 1."""
    for number, local in ready.plan.locals.items():
        worker = state.workers[number]
        freed = sum(session.tensors[i].parts.get(number, 0) for i in ready.frees)
        if not fits(session, worker, local.need_nbytes - freed):
            text = f"the call needs {missing_text(session, worker, local.need_nbytes)}"
            return Failure("OutOfMemory", text, ready.call.program)
    return None


def fits(session: Session, worker: Worker, nbytes: int) -> bool:
    """Whether a session may have so many bytes more on a worker."""
    if worker.memory and held_on(session, worker.number) + nbytes > worker.memory:
        return False
    return session.user is None or allowed(session, worker, nbytes)


def held_on(session: Session, number: int) -> int:
    """Bytes that a session has on a worker, on the device or moved out."""
    if len(session.workers) == 1:
        return session.nbytes
    return sum(tensor.parts.get(number, 0) for tensor in session.tensors.values())


def is_there(state: State, session: Session, ready: ReadyCall) -> bool:
    """Whether a call has its memory now: its inputs are on the devices, and there is room for what it makes."""
    if session.yields_to and not _may_go_on(state, session, ready):
        return False
    for number, local in ready.plan.locals.items():
        moved = session.moved.get(number)
        if moved is not None and not moved.clear_of(ready.inputs):
            return False
        if not state.workers[number].has_room(local.need_nbytes - _freed(session, moved, number, ready)):
            return False
    return True


def _may_go_on(state: State, session: Session, ready: ReadyCall) -> bool:
    """Whether nobody waits for this session any more."""
    if session.yields_to in state.memory_queue and ready.call.seq > 0:
        return False
    session.yields_to = 0
    return True


def _freed(session: Session, moved: Moved | None, number: int, ready: ReadyCall) -> int:
    """Bytes on a device that a call frees when it is sent. What is on its way out frees its room by itself: it may be
    gone before the call is sent."""
    stays = [i for i in ready.frees if moved is None or not (i in moved.away or i in moved.leaving)]
    return sum(session.tensors[i].parts.get(number, 0) for i in stays)


# --- waiting ---------------------------------------------------------------------------------


def wait(state: State, session: Session) -> None:
    """The head of a session waits for memory."""
    if session.claims:
        state.touch(unclaim(session))
    if session.ring is not None:
        session.ring.leave(session, state.now_s)
    session.yields_to = 0
    state.memory_queue[session.number] = session


def go_on(state: State, session: Session) -> None:
    """The head of a session has its memory, or will be refused: it waits for its turn again."""
    state.memory_queue.pop(session.number, None)
    for worker in session.workers.values():
        worker.lane.enlist(session, state.now_s)
        state.touched[worker.number] = worker
        break  # in the ring of the first


def attempt(state: State, session: Session) -> bool | Failure:
    """Give the call that waits its memory, if there is room on all its workers; else make room. Returns whether it has
    it, or why it never will."""
    ready = session.head
    assert ready is not None
    problem = misfit(state, session, ready)
    if problem is not None:
        return problem
    lacking: dict[Worker, int] = {}
    grant: dict[int, int] = {}
    for number, local in ready.plan.locals.items():
        worker, moved = state.workers[number], session.moved.get(number)
        if moved is not None and (moved.coming or not moved.leaving.keys().isdisjoint(ready.inputs)):
            return False
        grant[number] = max(0, local.need_nbytes - _freed(session, moved, number, ready))
        back = sum(moved.away[i] for i in {*ready.inputs} if i in moved.away) if moved is not None else 0
        if worker.memory:
            lack = worker.on_device + grant[number] + back - worker.memory
            if lack > 0:
                lacking[worker] = lack
    if not lacking:
        _give(state, session, ready, grant)
        return True
    for worker, lack in lacking.items():
        if not _make_room(state, session, worker, lack):
            text = f"the call needs {missing_text(session, worker, ready.plan.locals[worker.number].need_nbytes)}"
            why = f"; tensors of idle sessions cannot move out: {worker.full}" if worker.full else ""
            return Failure("OutOfMemory", text + why, ready.call.program)
    return False


def _give(state: State, session: Session, ready: ReadyCall, grant: dict[int, int]) -> None:
    """A call gets its memory; what it uses comes back first."""
    session.grant = grant
    if state.now_s >= session.given_s + SLICE_S:
        session.given_s = state.now_s
    for number, nbytes in grant.items():
        worker, moved = state.workers[number], session.moved.get(number)
        worker.reserved += nbytes
        back = [i for i in dict.fromkeys(ready.inputs) if moved is not None and i in moved.away]
        if moved is not None and back:
            for i in back:
                moved.coming[i] = moved.away.pop(i)
                worker.away -= moved.coming[i]
            state.send(worker.control, Return(session.number, pack_ids(back)))
    del state.memory_queue[session.number]
    if not is_coming(session):
        go_on(state, session)


def is_coming(session: Session) -> bool:
    """Whether tensors of a session are on their way back to devices."""
    return any(moved.coming for moved in session.moved.values())


# --- making room -----------------------------------------------------------------------------


def _make_room(state: State, session: Session, worker: Worker, lack: int) -> bool:
    """Move out so many bytes of other sessions, beyond what is leaving; whether there will be room one day."""
    lack -= worker.leaving
    if lack <= 0:
        return True
    others = [s for s in worker.sessions.values() if s is not session]
    if state.now_s >= worker.full_until_s:
        worker.full = ""
        for each in sorted(filter(lambda s: _may_leave(state, s, session), others), key=lambda s: s.used):
            lack -= _spill(state, each, worker, lack)
            if lack <= 0:
                return True
    # What is reserved for the next call of a session will be a value that may leave, or is free again.
    hope = worker.leaving > 0 or worker.reserved > 0
    running = [(_on_device(s, worker), s) for s in others if _goes_on(state, s)]
    for nbytes, each in sorted(running, key=lambda pair: -pair[0]):
        hope = hope or nbytes > 0
        if lack > 0 and nbytes > 0 and each.grant is None and not _goes_before(state, each, session):
            each.yields_to = session.number
            lack -= nbytes
    return hope


def _may_leave(state: State, session: Session, other: Session) -> bool:
    """Whether tensors of a session may move out now, for another one."""
    if session.sent or session.moving is not None or session.orphans or session.grant is not None:
        return False
    if is_coming(session) or (session.switch is not None and session.switch.copied is not None):
        return False
    return not _goes_before(state, session, other)


def _goes_before(state: State, session: Session, other: Session) -> bool:
    """Whether a session has its turn, and the other one has not or has it later."""
    if not _has_its_turn(state, session):
        return False
    return not _has_its_turn(state, other) or session.given_s <= other.given_s


def _has_its_turn(state: State, session: Session) -> bool:
    """Whether a session keeps the memory that it was given. Law 4."""
    if state.now_s >= session.given_s + SLICE_S:
        return False
    return bool(session.head is not None or session.sent or state.now_s < session.used_s + IDLE_S)


def order(state: State) -> list[Session]:
    """The sessions that wait, in the order in which they are looked at: moves of tensors first, because what they copy
    cannot leave, then those that have their turn, then the rest as they came."""
    waiting = list(state.memory_queue.values())
    turns = {s.number: s.given_s if _has_its_turn(state, s) else math.inf for s in waiting}
    return sorted(waiting, key=lambda s: (s.switch is None or s.switch.copied is None, turns[s.number]))


def _goes_on(state: State, session: Session) -> bool:
    """Whether a session whose tensors may not leave will do something, after which they may."""
    if session.sent or session.moving is not None or session.orphans or session.grant is not None:
        return True
    return is_coming(session) or _has_its_turn(state, session)


def _on_device(session: Session, worker: Worker) -> int:
    moved = session.moved.get(worker.number)
    gone = sum(moved.away.values()) + sum(moved.leaving.values()) if moved is not None else 0
    return held_on(session, worker.number) - gone


def _spill(state: State, session: Session, worker: Worker, want: int) -> int:
    """Move tensors of a session out of a worker's device until so many bytes have left; returns how many will."""
    number = worker.number
    moved = session.moved.get(number) or Moved()
    chosen: dict[int, int] = {}
    total = 0
    for i, tensor in session.tensors.items():
        nbytes = tensor.parts.get(number, 0)
        if nbytes and isinstance(tensor, Tensor | Upload) and not (i in moved.away or i in moved.leaving):
            chosen[i] = nbytes
            total += nbytes
            if total >= want:
                break
    if chosen:
        moved.leaving.update(chosen)
        session.moved[number] = moved
        worker.leaving += total
        state.send(worker.control, Spill(session.number, pack_ids(chosen)))
    return total


def relieve(state: State, session: Session, worker: Worker) -> None:
    """A call of a session ran out of memory though there should have been room: all that is idle moves out, so that the
    next one has more."""
    for each in list(worker.sessions.values()):
        if each is not session and _may_leave(state, each, session):
            _spill(state, each, worker, 1 << 62)


def keep_out(state: State, session: Session, id: int, worker: Worker, nbytes: int) -> None:
    """An upload begins for which there is no room on the device: it arrives in host memory."""
    moved = session.moved.setdefault(worker.number, Moved())
    moved.away[id] = nbytes
    worker.away += nbytes
    state.send(worker.control, Spill(session.number, pack_ids([id])))


# --- what workers say ------------------------------------------------------------------------


def spilled(state: State, worker: Worker, said: Spilled, _: object = None) -> None:
    session = worker.sessions.get(said.session)
    moved = session.moved.get(worker.number) if session is not None else None
    if session is None or moved is None:
        return
    kept = set(_ids(said.kept))
    for i in _ids(said.ids):
        nbytes = moved.leaving.pop(i, None)  # None: it was freed meanwhile
        if nbytes is not None:
            worker.leaving -= nbytes
            if i not in kept:
                moved.away[i] = nbytes
                worker.away += nbytes
    if kept and said.why:
        worker.full, worker.full_until_s = said.why[:200], state.now_s + RETRY_S
    session.tidy(worker.number)


def returned(state: State, worker: Worker, said: Returned, _: object = None) -> None:
    session = worker.sessions.get(said.session)
    moved = session.moved.get(worker.number) if session is not None else None
    if session is None or moved is None:
        return
    for i in _ids(said.ids):
        moved.coming.pop(i, None)
    session.tidy(worker.number)
    if not is_coming(session):
        if session.grant is not None and session.ring is None and not session.claims:
            go_on(state, session)


def _ids(packed: bytes) -> list[int]:
    return unpack_ids(packed) if len(packed) % 8 == 0 else []
