"""A session's queue: calls, fetches and frees leave it in order.

Law 1: a call is checked when it reaches the head, against what is true then: all before it has been
       sent. It is sent whole, or answered and forgotten; a rejected one changes nothing.
Law 2: it leaves when its program is checked, its inputs are on its worker, and it is its session's turn;
       then it takes credit on all its workers or on none.
Law 3: a call that may not run (no memory, lost inputs) is sent all the same, marked as refused: one
       place, the worker, knows what a failed call leaves behind. Only where there is no worker do
       its results become lost tensors here.

A wide session's calls take the same way; where they differ, joint.py says how.

`advance` brings the head as far as it can, `drain` sends what has its turn. They never call each other's
callers, so the stack does not grow with the queue.
"""

from __future__ import annotations

from typing import cast

from gt.dispatcher import joint, parts
from gt.dispatcher.placement import await_worker, memory_text, place
from gt.dispatcher.plans import Entry
from gt.dispatcher.schedule import MAX_RUN_US, estimate
from gt.dispatcher.session import (
    HASH_NBYTES,
    MAX_ID,
    QUEUE_ITEMS,
    QUEUE_NBYTES,
    Download,
    Head,
    Item,
    Sent,
    Session,
    Tensor,
    item_nbytes,
    lost_of,
    show_nbytes,
)
from gt.dispatcher.state import State, Worker
from gt.layout import Layout
from gt.transport.codec import Buffer
from gt.transport.messages import (
    WINDOW,
    Call,
    CallDone,
    CallFailed,
    Define,
    Failure,
    Fetch,
    FetchFailed,
    Free,
    Need,
    pack_ids,
    unpack_ids,
)


def enqueue(state: State, session: Session, item: Item, _: Buffer | None = None) -> None:
    """A call, fetch or free came from the client."""
    if type(item) is Call:
        if session.queued_calls + len(session.sent) >= WINDOW:
            state.reject(session, f"call {item.seq}: more than {WINDOW} calls that are not done")
            return
        session.queued_calls += 1
    nbytes = item_nbytes(item)
    session.queue.append(item)
    session.sizes.append(nbytes)
    session.queue_nbytes += nbytes
    if len(session.queue) == 1:
        advance(state, session)
    check_queue(state, session)


def check_queue(state: State, session: Session) -> None:
    """Cut off a client that makes the dispatcher hold too much for it."""
    if session.closed:
        return
    if len(session.queue) + len(session.fetches) > QUEUE_ITEMS:
        state.cut_off(session, f"too much queued: more than {QUEUE_ITEMS} messages")
    elif session.queue_nbytes > QUEUE_NBYTES:
        state.cut_off(session, f"too much queued: more than {show_nbytes(QUEUE_NBYTES)}")


def advance(state: State, session: Session) -> None:
    """Handle the queue up to the first item that has to wait."""
    while session.queue and session.head is None:
        item = session.queue[0]
        if type(item) is Call:
            passed = _advance_call(state, session, item)
        elif type(item) is Fetch:
            passed = advance_fetch(state, session, item)
        else:
            passed = _advance_free(state, session, cast("Free", item))
        if not passed or session.closed:
            return
        session.unqueue()


def drain(state: State, worker: Worker) -> None:
    """Send to this worker what has its turn."""
    lane = worker.lane
    while True:
        if lane.claims and _send_claimed(state, lane.claims[0]):
            continue
        session = lane.next()
        if session is None:
            return
        head = session.head
        assert head is not None
        if head.plan.parts is None:
            cost_us = head.entry.cost_us
            if not lane.has_room(cost_us) or (lane.claims and not lane.owed_us):
                return
            lane.take(cost_us)
            if lane.owed_us:
                lane.owed_us = max(0, lane.owed_us - cost_us)
            session.deficit_us -= cost_us
            _send(state, session, worker, head)
        elif not joint.send(state, session, head):
            lane.leave(session, state.now_s)  # its turn comes with its claim
            continue
        session.head = None
        session.unqueue()
        advance(state, session)
        if session.head is None and session.enlisted:
            lane.leave(session, state.now_s)


def _send_claimed(state: State, session: Session) -> bool:
    """Send the call of a session that has claimed room, if it now has it."""
    assert session.head is not None
    if not joint.send(state, session, session.head):
        return False
    session.head = None
    session.unqueue()
    advance(state, session)
    return True


# --- the head of the queue: each returns whether the item is dealt with ----------------------


def _advance_call(state: State, session: Session, call: Call) -> bool:
    if call.seq != session.seq + 1:
        state.reject(session, f"call {call.seq}: the next call is {session.seq + 1}")
        return True
    entry = state.programs.get(call.program)
    if entry is None and len(call.program) != HASH_NBYTES:
        state.reject(session, f"call {call.seq}: that is not a program's name")
        return True
    if entry is None or not entry.finished:
        _await_program(state, session, call.program, known=entry is not None)
        return False
    if session.blocked_on:
        state.programs.stop_waiting(session)
    if entry.error:
        # How many results it was to have is not known, so nothing after it could be understood.
        state.cut_off(session, f"call {call.seq} of a program that was rejected: {entry.error}")
        return False
    try:
        inputs, frees = unpack_ids(call.inputs), unpack_ids(call.frees)
    except ValueError:
        state.reject(session, f"call {call.seq}: a list of ids is not a multiple of 8 bytes")
        return True
    found = list(map(session.tensors.get, inputs))
    problem = _problem(session, call, entry, inputs, found, frees)
    if problem:
        state.reject(session, f"call {call.seq}: {problem}")
        return True

    tensors: list[Tensor] = found  # type: ignore[assignment]  # none is missing: that would have been a problem
    layouts = [t.layout for t in tensors]
    lost = None
    if None in layouts:
        lost = lost_of(tensors)
        if any(t.layout is None and t.lost is None for t in tensors):
            return False  # an upload is still under way
    if frees and _uploading(session, frees):
        return False
    worker = session.worker or place(state, session)
    if worker is None:
        if session.no_worker is None and lost is None:
            await_worker(state, session)
            return False
        _fail_here(state, session, call, entry, lost)
        return True
    # Where an input is lost the call will be refused; its results go where the session lives.
    home = worker.layout if not session.wide else cast("Layout", session.home)
    if lost is not None:
        layouts = [each or home for each in layouts]
    if session.wide:
        made = joint.plan_for(state, session, entry, cast("list[Layout]", layouts), lost)
        if made is None:
            state.programs.wait(session, call.program)
            return False
        plan = made
    else:
        plan = entry.plan((home, *layouts))  # type: ignore[arg-type]  # none is missing by now
    session.head = Head(call, entry, plan, inputs, frees, lost, session.broken)
    entry.uses += 1
    plan.uses += 1
    entry.users.add(session.number)
    worker.lane.enlist(session, state.now_s)
    state.touched[worker.number] = worker
    return False


def _await_program(state: State, session: Session, program: bytes, known: bool) -> None:
    if not session.blocked_on:
        state.programs.wait(session, program)
    if not known and not session.asked:
        session.asked = True
        state.send(session.peer, Need(program))


def _problem(
    session: Session, call: Call, entry: Entry, inputs: list[int], found: list[Tensor | None], frees: list[int]
) -> str:
    """Why this call cannot be understood; empty if it can."""
    if len(inputs) != len(entry.inputs):
        return f"{len(inputs)} inputs; the program takes {len(entry.inputs)}"
    if None in found:
        return f"tensor {inputs[found.index(None)]} does not exist"
    specs = [t.spec for t in found]  # type: ignore[union-attr]  # none is missing
    if specs != entry.inputs:  # specs are interned: this compares identities
        i, have, want = next(each for each in zip(inputs, specs, entry.inputs, strict=True) if each[1] is not each[2])
        return f"tensor {i} is {have!r}; the program takes {want!r}"
    if tuple(map(type, call.scalars)) != entry.scalar_types:
        kinds = ", ".join(t.__name__ for t in entry.scalar_types) or "none"
        return f"its scalars are not what the program takes: {kinds}"
    for scalar in call.scalars:
        if type(scalar) is int and not -MAX_ID - 1 <= scalar <= MAX_ID:
            return f"scalar {scalar} is not a 64-bit integer"
    n = len(entry.outputs)
    if n and not session.call_mark < call.outputs <= MAX_ID - n:
        return f"results from id {call.outputs}; the last id that a call made is {session.call_mark}"
    if session.upload_mark >= call.outputs:
        for i in range(call.outputs, call.outputs + n):
            if i in session.tensors:
                return f"tensor {i} exists already"
    if not 0 <= call.acked < call.seq:
        return f"it acknowledges call {call.acked}"
    if frees:
        problem = _free_problem(session, frees)
        if problem:
            return problem
        if not set(frees).isdisjoint(inputs):
            return "it frees one of its inputs"
    donate = entry.program.donate
    if donate and len(set(inputs)) != len(inputs) and any(inputs.count(inputs[d]) > 1 for d in donate):
        return "a donated tensor is given twice"
    return ""


def _free_problem(session: Session, ids: list[int]) -> str:
    if len(set(ids)) != len(ids):
        return "a tensor is freed twice"
    for i in ids:
        if i not in session.tensors:
            return f"tensor {i} does not exist"
    return ""


def _uploading(session: Session, ids: list[int]) -> bool:
    return bool(session.uploads) and any(i in session.uploads and not session.uploads[i].sink for i in ids)


def advance_fetch(state: State, session: Session, fetch: Fetch) -> bool:
    tensor = session.tensors.get(fetch.id)
    if tensor is None:
        error = Failure("ServerError", f"tensor {fetch.id} does not exist")
        state.send(session.peer, FetchFailed(0, fetch.request, error))
    elif tensor.lost is not None:
        if session.wide:
            parts.fetch_lost(state, session, fetch, tensor.lost)
        else:
            state.send(session.peer, FetchFailed(0, fetch.request, tensor.lost))
    elif tensor.layout is None:
        return False
    elif fetch.layout:
        state.send(session.peer, parts.describe(session, fetch.request, tensor))
    elif session.wide:
        parts.fetch(state, session, fetch, tensor)
    else:
        assert session.worker is not None
        session.fetches[fetch.request] = Download(id=fetch.id)
        ring, slots = fetch.ring, fetch.slots
        if slots and not (session.sharing and session.share is not None and session.share.ring == ring):
            ring, slots = 0, ()  # of a ring that the worker does not have: it sends the bytes themselves
        state.send(session.worker.control, Fetch(session.number, fetch.request, fetch.id, ring, slots))
    return True


def _advance_free(state: State, session: Session, free: Free) -> bool:
    try:
        ids = unpack_ids(free.ids)
    except ValueError:
        state.reject(session, "free: the list of ids is not a multiple of 8 bytes")
        return True
    problem = _free_problem(session, ids)
    if problem:
        state.reject(session, f"free: {problem}")
        return True
    if _uploading(session, ids):
        return False
    if session.wide:
        joint.free(state, session, joint.drop(state, session, ids), session.workers.values())
        return True
    there = drop(state, session, ids)
    if there:
        assert session.worker is not None
        state.send(session.worker.control, Free(session.number, there))
    return True


def drop(state: State, session: Session, ids: list[int]) -> bytes:
    """Forget these tensors; returns those of them that the worker knows, packed."""
    nbytes, there = 0, []
    for i in ids:
        tensor = session.tensors.pop(i)
        nbytes += tensor.nbytes
        if tensor.layout is not None:
            there.append(i)
    state.charge(session, -nbytes)
    return pack_ids(there)


def _free_everywhere(state: State, session: Session, ids: list[int]) -> bytes:
    """The same for a session that may have several workers: all but its first are told at once."""
    there = joint.drop(state, session, ids)
    joint.free(state, session, there, [w for w in session.workers.values() if w is not session.worker])
    return pack_ids(there)


# --- sending a call, and what becomes of it --------------------------------------------------


def _send(state: State, session: Session, worker: Worker, head: Head) -> None:
    call, entry, plan = head.call, head.entry, head.plan
    frees = b""
    if head.frees:
        let_go = _free_everywhere if session.wide else drop
        frees = let_go(state, session, head.frees)
    refused, root = None, 0
    if head.lost is not None:
        refused, root = head.lost.lost, head.lost.root
    elif worker.memory and worker.nbytes + entry.need_nbytes > worker.memory:
        text = f"the call needs {show_nbytes(entry.need_nbytes)}: {memory_text(session, worker)}"
        refused = Failure("OutOfMemory", text, call.program)

    tensors = session.tensors
    failed = plan.failed if not session.hollow else _failed_results(session, head)
    results = plan.outputs if refused is None else failed
    delta = plan.output_nbytes if refused is None else sum(t.nbytes for t in failed)
    inputs, take = head.inputs, tensors.pop
    for d in entry.program.donate:
        delta -= take(inputs[d]).nbytes
    if results:
        session.call_mark = call.outputs + len(results) - 1
        tensors.update(zip(range(call.outputs, call.outputs + len(results)), results, strict=True))
    state.charge(session, delta)
    if refused is not None:
        session.hollow = True

    session.seq = call.seq
    session.sent[call.seq] = Sent(call.seq, entry, plan, call.outputs, failed, entry.cost_us, root or call.seq)
    if call.program not in worker.programs:
        worker.programs.add(call.program)
        state.send(worker.control, Define(entry.program, entry.timed, entry.compile))
    state.send(
        worker.control,
        Call(
            session.number, call.seq, call.program, call.inputs, call.scalars,
            call.outputs, frees, call.acked, refused, root,
        ),
    )  # fmt: skip


def _failed_results(session: Session, head: Head) -> tuple[Tensor, ...]:
    """The results if the call fails, where some inputs may have no value that could be kept."""
    source = dict(head.entry.program.updates)
    inputs, tensors = head.inputs, session.tensors

    def has_value(output: int) -> bool:
        return output not in source or tensors[inputs[source[output]]].nbytes > 0

    return tuple(t if has_value(o) else Tensor(t.spec, 0, t.layout) for o, t in enumerate(head.plan.failed))


def _fail_here(state: State, session: Session, call: Call, entry: Entry, lost: Tensor | None) -> None:
    """There is no worker: the call fails, and its results are lost."""
    failure = session.no_worker if lost is None else lost.lost
    assert failure is not None
    root = lost.root if lost is not None and lost.root else call.seq
    inputs = unpack_ids(call.inputs)
    joint.drop(state, session, [*unpack_ids(call.frees), *(inputs[d] for d in entry.program.donate)])
    for i, spec in enumerate(entry.outputs, call.outputs):
        session.tensors[i] = Tensor(spec, 0, None, failure, root)
        session.call_mark = i
    session.seq = session.done = call.seq
    session.calls += 1
    session.hollow = True
    state.send(session.peer, CallFailed(0, call.seq, root, failure))
    state.news[session.number] = session


def call_done(state: State, worker: Worker, message: CallDone, _: Buffer | None = None) -> None:
    """A worker has run a call."""
    found = _finish(state, worker, message)
    if found is None:
        return
    session, sent = found
    run_us = min(max(message.run_us, 0), MAX_RUN_US)
    entry = sent.entry
    entry.runs += 1
    entry.cost_us = max(1, estimate(entry.cost_us, run_us, entry.runs))
    worker.lane.settle(session, sent.cost_us, run_us)
    session.run_us = run_us
    session.total_us += run_us


def call_failed(state: State, worker: Worker, message: CallFailed, _: Buffer | None = None) -> None:
    """A call failed on a worker, which has dealt with its results."""
    found = _finish(state, worker, message)
    if found is None:
        return
    session, sent = found
    root = message.root if 0 < message.root < message.seq else sent.root
    state.send(session.peer, CallFailed(0, message.seq, root, message.error))
    session.hollow = True
    saved = 0
    for i, (good, bad) in enumerate(zip(sent.plan.outputs, sent.failed, strict=True), sent.outputs):
        if session.tensors.get(i) is good and good is not bad:
            session.tensors[i] = bad
            saved += good.nbytes - bad.nbytes
    state.charge(session, -saved)


def _finish(state: State, worker: Worker, answer: CallDone | CallFailed) -> tuple[Session, Sent] | None:
    """A call is off its worker. None if it is not known: the session has ended, say; or if it is not only its own."""
    session = worker.sessions.get(answer.session)
    sent = session.sent.get(answer.seq) if session is not None else None
    if session is None or sent is None or sent.finished:
        if session is not None and session.orphans:
            joint.orphan_answered(state, worker, session, answer)
        return None
    if sent.left is not None:
        joint.answered(state, worker, session, sent, answer)
        return None
    sent.finished = True
    session.calls += 1
    worker.calls += 1
    state.calls += 1
    worker.lane.give_back(sent.cost_us)
    joint.retire(state, session)
    state.touched[worker.number] = worker
    return session, sent


def tell(state: State) -> None:
    """Say once how far each session's calls have come."""
    for session in state.news.values():
        if session.done > session.told:
            session.told = session.done
            state.send(session.peer, CallDone(0, session.done, session.run_us))
        if session.wide and session.fetches:
            parts.pass_on_held(state, session)
    state.news.clear()
