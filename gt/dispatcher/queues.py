"""A session's queue: calls, fetches, frees and what is to be kept leave it in order.

Law 1: a call is checked when it reaches the head, against what is true then: all before it has been
       sent. It is sent whole, or answered and forgotten; a rejected one changes nothing.
Law 2: it leaves when its program is checked and planned, its inputs have arrived, and it is its session's turn;
       then it takes credit on all its workers or on none (calls.py).
Law 3: a fetch of a value that exists does not wait for the calls before it, and one of a value that a queued call makes
       waits for no call behind that one.

`advance` brings the head as far as it can, `drain` sends what has its turn. They never call each other's
callers, so the stack does not grow with the queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from gt.dispatcher import calls, fetches, shelves, switches
from gt.dispatcher.plans import CachedProgram, LatestCall, ProgramPlan, plan_nowhere
from gt.dispatcher.schedule import Lane
from gt.dispatcher.session import (
    HASH_NBYTES,
    MAX_ID,
    QUEUE_ITEMS,
    QUEUE_NBYTES,
    TENSORS,
    AnyTensor,
    Item,
    Lost,
    Move,
    ReadyCall,
    Session,
    Tensor,
    Upload,
    lost_of,
    many_tensors,
    show_nbytes,
)
from gt.dispatcher.state import State, Worker
from gt.transport.messages import (
    WINDOW,
    Buffer,
    Call,
    Cancel,
    Failure,
    Fetch,
    FetchFailed,
    Free,
    Keep,
    Need,
    unpack_ids,
)

SMALL_NBYTES = 1 << 16  #: One item of so many bytes is never too much.

# --- into the queue --------------------------------------------------------------------------


def enqueue(state: State, session: Session, item: Item, _: Buffer | None = None) -> None:
    """A call, a fetch, a free or something to keep came from the client."""
    if type(item) is Call:
        if session.queued_calls + len(session.sent) >= WINDOW:
            state.reject(session, f"call {item.seq}: more than {WINDOW} calls that are not done")
            return
        session.queued_calls += 1
    elif type(item) is Keep:
        session.keeps += 1
    queue, nbytes = session.queue, item_nbytes(item)
    session.queue_nbytes += nbytes
    if not queue:
        queue.append(item)
        session.sizes.append(nbytes)
        advance(state, session)
    else:
        position = _behind_maker(session, item.id) if type(item) is Fetch else len(queue)
        queue.insert(position, item)
        session.sizes.insert(position, nbytes)
    if len(queue) > 1 or nbytes > SMALL_NBYTES:
        check_queue(state, session)


def _behind_maker(session: Session, id: int) -> int:
    """Where a fetch of this value belongs in the queue: behind the call that makes it, and fetches of the same. Ids of
    results grow with the calls, so that is the last call whose first result is not above it."""
    queue = session.queue
    for k in range(len(queue) - 1, -1, -1):
        item = queue[k]
        if type(item) is Call and item.outputs <= id:
            while k + 1 < len(queue) and type(queue[k + 1]) is Fetch:
                k += 1
            return k + 1
    return len(queue)


def item_nbytes(item: Item) -> int:
    """A measure of what a queued message keeps in memory."""
    if type(item) is Call:
        nbytes = 200 + len(item.inputs) + len(item.frees)
        for s in item.scalars:
            nbytes += 16 + len(s) if type(s) is bytes else 16
        return nbytes
    if type(item) is Fetch:
        return 100
    if type(item) is Free:
        return 100 + len(item.ids)
    if type(item) is Keep:
        return 200 + len(item.ids) + len(item.form) + sum(map(len, item.readers))
    assert type(item) is Move
    return 0


def unqueue(session: Session, position: int = 0) -> None:
    """Take an item out of the queue: its head, or a cancelled fetch further back."""
    queue, sizes = session.queue, session.sizes
    item, nbytes = queue[position], sizes[position]
    if position:
        del queue[position], sizes[position]
    else:
        queue.popleft(), sizes.popleft()
    session.queue_nbytes -= nbytes
    if type(item) is Call:
        session.queued_calls -= 1
    elif type(item) is Keep:
        session.keeps -= 1
        session.kept += 1


def clear(state: State, session: Session) -> None:
    """Nothing in the queue can be done any more."""
    state.drop_head(session)
    state.programs.stop_waiting(session)
    while session.queue:
        unqueue(session)


def check_queue(state: State, session: Session) -> None:
    """Cut off a client that makes the dispatcher hold too much for it."""
    if session.closed:
        return
    if len(session.queue) + len(session.fetches) > QUEUE_ITEMS:
        state.cut_off(session, f"too much queued: more than {QUEUE_ITEMS} messages")
    elif session.queue_nbytes > QUEUE_NBYTES:
        state.cut_off(session, f"too much queued: more than {show_nbytes(QUEUE_NBYTES)}")


def fetch_came(state: State, session: Session, fetch: Fetch, _: Buffer | None = None) -> None:
    """A client wants a value. If it exists by now, calls that came before need not be waited for."""
    if fetch.request < 0:
        state.reject(session, f"fetch {fetch.request}: the number must be >= 0")
        return
    if fetch.request in session.fetches or (
        session.queue and any(type(item) is Fetch and item.request == fetch.request for item in session.queue)
    ):
        state.reject(session, f"fetch {fetch.request}: that number is in use")
        return
    if type(session.tensors.get(fetch.id)) in (Tensor, Lost):
        _advance_fetch(state, session, fetch)
        check_queue(state, session)
    else:
        enqueue(state, session, fetch)


def cancel_came(state: State, session: Session, cancel: Cancel, _: Buffer | None = None) -> None:
    """Not an error if there is no such fetch: it may have ended while this message was on its way."""
    download = session.fetches.pop(cancel.request, None)
    if download is not None:
        fetches.cancel(state, session, cancel.request, download)
        return
    for k, item in enumerate(session.queue):
        if type(item) is Fetch and item.request == cancel.request:
            unqueue(session, k)
            if k == 0:
                advance(state, session)
            return


# --- out of the queue ------------------------------------------------------------------------


def advance(state: State, session: Session) -> None:
    """Handle the queue up to the first item that has to wait."""
    while session.queue and session.head is None:
        item = session.queue[0]
        if type(item) is Call:
            passed = _advance_call(state, session, item)
        elif type(item) is Fetch:
            passed = _advance_fetch(state, session, item)
        elif type(item) is Free:
            passed = _advance_free(state, session, item)
        elif type(item) is Keep:
            passed = shelves.keep(state, session, item)
        else:
            passed = _advance_move(state, session, cast("Move", item))
        if session.closed:
            return
        if passed:
            unqueue(session)
        elif session.queue[0] is item:
            return  # it waits


def drain(state: State, worker: Worker) -> None:
    """Send to this worker what has its turn, and what need not wait for it."""
    lane = worker.lane
    while True:
        if lane.long and lane.ring:
            _drain_beside(state, lane)
        session = lane.claims[0] if lane.claims else None
        if session is None or not calls.send(state, session):
            session = lane.next()
            if session is None:
                return
            if not calls.send(state, session):
                if session.ring is lane:
                    return  # it waits here for room
                continue  # it claims room, and the next one has its turn
        _go_on(state, session)
        if not lane.ring and not lane.claims:
            return


def _drain_beside(state: State, lane: Lane) -> None:
    """Send short calls of those who use little beside the long ones that are there; see schedule.py."""
    for session in list(lane.ring):
        while session.ring is lane and calls.may_go_beside(state, session, lane):
            if calls.send(state, session, beside=True):
                _go_on(state, session)


def _go_on(state: State, session: Session) -> None:
    """The head of the queue was sent."""
    queue, session.head = session.queue, None
    session.queue_nbytes -= session.sizes.popleft()
    if type(queue.popleft()) is Call:  # not a move of the dispatcher's own
        session.queued_calls -= 1
    if queue:
        advance(state, session)
    if session.head is None and session.ring is not None:
        session.ring.leave(session, state.now_s)


# --- the head of the queue: each returns whether the item is dealt with ----------------------


def _advance_call(state: State, session: Session, call: Call) -> bool:
    if call.seq != session.seq + 1:
        state.reject(session, f"call {call.seq}: the next call is {session.seq + 1}")
        return True
    entry = state.programs.get(call.program)
    if entry is not None and session.number not in entry.owners:
        entry = None  # one that another session sent is asked for like one that nobody has
    if entry is None or (entry.checked is None and not entry.error):
        if entry is None and len(call.program) != HASH_NBYTES:
            text = f"a program is named by {HASH_NBYTES} bytes, got {len(call.program)}"
            state.reject(session, f"call {call.seq}: {text}")
            return True
        _await_program(state, session, call.program, known=entry is not None)
        return False
    if session.blocked_on:
        state.programs.stop_waiting(session)
    if entry.error:
        # How many results it was to have is not known, so nothing after it could be understood.
        state.cut_off(session, f"call {call.seq} of a program that was rejected: {entry.error}")
        return False
    try:
        inputs, frees = unpack_ids(call.inputs), unpack_ids(call.frees) if call.frees else []
    except ValueError:
        state.reject(session, f"call {call.seq}: a list of ids must be a multiple of 8 bytes long")
        return True
    found = list(map(session.tensors.get, inputs))
    latest = entry.latest
    if latest is not None and latest.inputs == found and latest.place == session.place:
        plan: ProgramPlan | None = latest.plan
        problem = ""
    else:
        plan = None
        problem = _problem_of_inputs(entry, inputs, found)
    problem = problem or _problem(session, call, entry, inputs, frees)
    if problem:
        state.reject(session, f"call {call.seq}: {problem}")
        return True

    tensors: list[AnyTensor] = found  # type: ignore[assignment]  # none is missing: that would have been a problem
    refused, root = session.broken, 0
    layouts = [t.layout for t in tensors] if plan is None else []
    if None in layouts:
        if any(type(t) is Upload for t in tensors):
            return False
        lost = lost_of(tensors)
        assert lost is not None
        refused, root = lost.failure, lost.root
    elif refused is not None:  # one loss is one error, until the client has heard of it
        if session.broken_root <= call.acked:
            session.broken_root = call.seq
        root = session.broken_root
    if frees and session.uploads and _uploading(session, frees):
        return False
    count = len(session.tensors) + len(entry.outputs)
    if count > TENSORS:
        more = len(entry.outputs) - len(frees) - len(entry.program.donate)
        count = len(session.tensors) + more
        if more > 0 and count > 2 * TENSORS:
            state.cut_off(session, f"too many tensors: a session can have at most {TENSORS}")
            return False
        if more > 0 and count > TENSORS:
            refused = refused or many_tensors(session)
    if not session.workers:
        if None not in layouts:
            loss = state.loss_of(session, call.acked)
            if loss is not None:
                loss.root = loss.root or call.seq
                refused, root = loss.failure, loss.root
            elif session.no_worker is None:
                state.await_worker(session)
                return False
            else:
                refused = session.no_worker
        session.head = ReadyCall(call, plan_nowhere(entry), inputs, frees, refused, root)
        calls.send(state, session)
        session.head = None
        return True
    if state.relocation is not None and state.relocation.holds(session):
        return False
    if session.switch is not None and not switches.may_run(state, session, entry, call.acked, inputs):
        return False
    if plan is None or refused is not None:
        # What is lost has no layout; the call will be refused, and any will do.
        known = [t.layout or session.home for t in tensors]
        plan = calls.plan_for(state, session, entry, known, refused is not None)
        if plan is None:
            state.programs.wait(session, call.program)
            return False
        if refused is None:
            entry.latest = LatestCall(session.place, found, plan)
    entry.users.add(session.number)
    _await_turn(state, session, ReadyCall(call, plan, inputs, frees, refused or plan.refused, root))
    return False


def _advance_move(state: State, session: Session, move: Move) -> bool:
    _await_turn(state, session, ReadyCall(move.call, move.plan, unpack_ids(move.call.inputs), [], None, 0))
    return False


def _await_turn(state: State, session: Session, ready: ReadyCall) -> None:
    """The head of the queue is ready, and waits for its turn."""
    session.head = ready
    ready.plan.uses += 1
    worker = next(iter(session.workers.values()))
    worker.lane.enlist(session, state.now_s)  # in the ring of the first
    state.touched[worker.number] = worker


def _await_program(state: State, session: Session, program: bytes, known: bool) -> None:
    if not session.blocked_on:
        state.programs.wait(session, program)
    if not known and not session.asked:
        session.asked = True
        state.send(session.peer, Need(program))


def _problem_of_inputs(entry: CachedProgram, inputs: list[int], found: list[AnyTensor | None]) -> str:
    """Why a program cannot take these inputs; empty if it can."""
    if len(inputs) != len(entry.inputs):
        return f"got {len(inputs)} inputs; the program takes {len(entry.inputs)}"
    if None in found:
        return f"tensor {inputs[found.index(None)]} does not exist"
    specs = [t.spec for t in found]  # type: ignore[union-attr]  # none is missing
    if specs != entry.inputs:  # specs are interned: this compares identities
        i, have, want = next(each for each in zip(inputs, specs, entry.inputs, strict=True) if each[1] is not each[2])
        return f"tensor {i} is {have!r}; the program takes {want!r}"
    return ""


def _problem(session: Session, call: Call, entry: CachedProgram, inputs: list[int], frees: list[int]) -> str:
    """What else is wrong with a call; empty if nothing is."""
    if session.coming and not session.coming.isdisjoint(inputs):
        return f"tensor {min(session.coming.intersection(inputs))} does not exist"
    if call.scalars or entry.scalar_types:
        if tuple(map(type, call.scalars)) != entry.scalar_types:
            kinds = ", ".join(t.__name__ for t in entry.scalar_types) or "none"
            return f"the program takes scalars of these types: {kinds}"
        for scalar in call.scalars:
            if type(scalar) is int and not -(1 << 63) <= scalar < 1 << 63:
                return f"scalar {scalar} is not a 64-bit integer"
    n = len(entry.outputs)
    if n and not session.call_mark < call.outputs <= MAX_ID - n:
        return f"ids of results must be above {session.call_mark}, got {call.outputs}"
    if session.upload_mark >= call.outputs:
        for i in range(call.outputs, call.outputs + n):
            if i in session.tensors:
                return f"tensor {i} exists already"
    if not 0 <= call.acked < call.seq:
        return f"acked must be in [0, {call.seq}), got {call.acked}"
    donate = entry.program.donate
    if donate and len(set(inputs)) != len(inputs) and any(inputs.count(inputs[d]) > 1 for d in donate):
        return "a donated tensor is given twice"
    return _free_problem(session, frees, inputs) if frees else ""


def _free_problem(session: Session, ids: list[int], inputs: Sequence[int] = ()) -> str:
    """Why these tensors cannot be freed, by a call with these inputs; empty if they can."""
    named = set(ids)
    if len(named) != len(ids):
        return "a tensor is freed twice"
    if session.coming or not named <= session.tensors.keys():
        for i in ids:
            if i not in session.tensors or i in session.coming:
                return f"tensor {i} does not exist"
    return "" if named.isdisjoint(inputs) else "it frees one of its inputs"


def _uploading(session: Session, ids: list[int]) -> bool:
    return any(i in session.uploads and not session.uploads[i].sink for i in ids)


def _advance_fetch(state: State, session: Session, fetch: Fetch) -> bool:
    tensor = session.tensors.get(fetch.id)
    if tensor is None or fetch.id in session.coming:
        error = Failure("ServerError", f"tensor {fetch.id} does not exist")
        state.send(session.peer, FetchFailed(0, fetch.request, error))
    elif type(tensor) is Lost:
        fetches.fetch_lost(state, session, fetch, tensor.failure)
    elif type(tensor) is not Tensor:
        return False  # it is being uploaded
    elif fetch.layout:
        state.send(session.peer, fetches.describe(session, fetch.request, tensor))
    else:
        fetches.fetch(state, session, fetch, tensor)
    return True


def _advance_free(state: State, session: Session, free: Free) -> bool:
    try:
        ids = unpack_ids(free.ids)
    except ValueError:
        state.reject(session, "free: a list of ids must be a multiple of 8 bytes long")
        return True
    problem = _free_problem(session, ids)
    if problem:
        state.reject(session, f"free: {problem}")
        return True
    if _uploading(session, ids):
        return False
    calls.free(state, session, calls.drop(state, session, ids), session.workers.values())
    return True
