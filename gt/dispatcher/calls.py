"""A call on its workers: its plan, how it is sent, what becomes of it.

Law 1: all workers of a call get it in one event. So every two workers get the calls they share in the same order,
       in whatever session, and never wait for each other in a circle.
Law 2: a call is finished when all its workers have answered, and has failed if one of them says so. What the client
       hears of the calls, it hears in their order. What fails because of an earlier failure is blamed on the same call.
Law 3: a call that may not run (no memory, lost inputs, no plan, no mesh) is sent all the same, marked as refused: the
       workers compute nothing, and keep what it was to replace as after any failed call. On several workers its plan is
       a refusal (plans.py), so that no worker waits for another. Without a worker it fails here, the same way.
Law 4: results that a failed call does not keep are lost here and freed on the workers; where one worker says that a
       call went well and another that it failed, nothing of it is kept.

Every worker of a session may have something under an id, an empty array if nothing else. So frees go to all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gt.dispatcher import fetches, memory
from gt.dispatcher.events import MakePlan, PlanReady
from gt.dispatcher.limits import allowed
from gt.dispatcher.plans import CachedProgram, LocalPlan, ProgramPlan, plan_alone, plan_refusal, plan_together
from gt.dispatcher.schedule import MAX_RUN_US, Lane, claim, settle, unclaim
from gt.dispatcher.session import Lost, Moved, ReadyCall, SentCall, Session, lost_of
from gt.dispatcher.state import State, Worker
from gt.layout import Layout
from gt.transport.messages import WINDOW, Call, CallDone, CallFailed, Define, Failure, Free, pack_ids

PEER_FAILED = "PeerFailed"  #: The failure of a worker that only saw another one fail.

# --- plans -----------------------------------------------------------------------------------


def plan_for(
    state: State, session: Session, entry: CachedProgram, layouts: Sequence[Layout], refused: bool
) -> ProgramPlan | None:
    """The plan of a call whose inputs have these layouts; None if it is being made."""
    alone = runs_alone(session, entry, layouts)
    key = ("refused", session.home, *layouts) if refused and not alone else (*session.place, *layouts)
    found = entry.plans.get(key)
    if found is None and alone:
        found = add_plan(state, key, plan_alone(entry, session.home))
    elif found is None and refused:
        found = add_plan(state, key, plan_refusal(entry, layouts, session.home))
    elif found is None and key not in entry.planning:
        assert entry.checked is not None
        entry.planning[key] = None
        home = session.grid or session.meshes.get("", session.home.mesh)
        inputs, meshes = tuple(layouts), dict(session.meshes)
        followed, split_new = session.followed, session.split
        state.out.append(MakePlan(entry.hash, key, entry.checked, inputs, home, meshes, followed, split_new))
    return found


def runs_alone(session: Session, entry: CachedProgram, layouts: Sequence[Layout]) -> bool:
    """Whether one worker has all that a call needs and gets all that it makes: it runs the client's own program."""
    if len(session.workers) == 1:
        return True
    home = session.home
    return len(home.mesh.workers) == 1 and not entry.sets_layouts and all(at is home for at in layouts)


def plan_ready(state: State, event: PlanReady) -> None:
    """A plan that was asked for; sessions that wait for it look for it themselves."""
    entry = state.programs.get(event.program)
    if entry is None or event.key not in entry.planning:
        return
    del entry.planning[event.key]
    if event.key in entry.plans:
        return  # a session that has only that worker has made one meanwhile, and may be using it
    home, *layouts = [each for each in event.key if isinstance(each, Layout)]
    if event.planned is not None:
        made = plan_together(entry, layouts, event.planned)
    else:
        made = plan_refusal(entry, layouts, home)
        made.refused = event.failure
    if all(number in state.workers for number in made.locals):  # else it is of no use any more
        add_plan(state, event.key, made)


def add_plan(state: State, key: tuple[object, ...], made: ProgramPlan) -> ProgramPlan:
    """Enter a plan under a key that is free."""
    for name in state.programs.add_plan(key, made):
        state.forget(name)
    return made


# --- sending ---------------------------------------------------------------------------------


def may_go_beside(state: State, session: Session, lane: Lane) -> bool:
    """Whether the call at the head of a session's queue may be sent to this worker alone, beside long ones there. It
    does not overtake calls of its own session."""
    ready = session.head
    assert ready is not None
    if ready.plan.alone != lane.number:
        return False
    if session.sent and not session.sent[session.seq].beside:
        return False
    return ready.call.seq > 0 and lane.allows(session, ready.plan.entry.best_us, state.now_s)


def send(state: State, session: Session, beside: bool = False) -> bool:
    """Send the call at the head of a session's queue to all its workers, if all have room; else it waits for that. With
    `beside`: it `may_go_beside`."""
    ready = session.head
    assert ready is not None
    if session.lost and not ready.root:
        _look_for_lost(state, session, ready)
    if ready.refused is None and session.grant is None and _is_in_doubt(state, session, ready.plan):
        if _waits_for_memory(state, session, ready):
            return False
    call, plan, ring = ready.call, ready.plan, session.ring
    entry, locals_ = plan.entry, plan.locals
    if beside and plan.alone:  # a call that is refused meanwhile may need more workers
        cost_us = entry.best_us
    else:
        cost_us, beside = entry.cost_us, False
    if ring is not None and ring.number == plan.alone:
        if beside:
            ring.take_beside(session, cost_us)
        elif not ring.take_own(session, cost_us):
            return False  # it stays in the ring
    elif locals_ and not _take_all(state, session, plan):
        return False
    if session.grant is not None:
        state.drop_grant(session)
    session.used, session.used_s = state.calls, state.now_s
    freed, frees = ready.frees, call.frees
    if freed:
        freed = drop(state, session, freed)
        if len(freed) < len(ready.frees):
            frees = pack_ids(freed)
    gone = freed  # what workers without a part in it may drop
    seq, outputs = call.seq, call.outputs
    sent = SentCall(
        seq, plan, ready.inputs, outputs, cost_us, [*locals_], ready.refused, ready.root or seq, beside
    )  # fmt: skip
    if ready.refused is None:
        tensors = session.tensors
        if entry.program.donate:
            donated = [ready.inputs[d] for d in entry.program.donate]
            gone = [*freed, *donated]
            for i in donated:
                del tensors[i]
        tensors.update(enumerate(plan.outputs, outputs))
        session.nbytes += plan.change_nbytes
        lost: list[int] = []
    else:
        donated = [ready.inputs[d] for d in entry.program.donate]
        gone = [*freed, *donated]
        lost = _put_refused(state, session, ready, donated)
    if seq < 0:
        session.moving = sent
    else:
        if entry.outputs:
            session.call_mark = outputs + len(entry.outputs) - 1
        if session.split and (session.pins or entry.pinned):
            _carry_pins(session, entry, sent)
        session.seq, session.acked = seq, call.acked
        session.sent[seq] = sent
    workers = state.workers
    for number, local in locals_.items():
        _send_to(state, session, workers[number], ready, local, frees, beside)
    if len(session.workers) > len(locals_):
        free(state, session, gone, [w for n, w in session.workers.items() if n not in locals_])
    if lost:
        free(state, session, lost, session.workers.values())
    if not locals_:
        retire(state, session)
    return True


def _is_in_doubt(state: State, session: Session, plan: ProgramPlan) -> bool:
    """Whether there may be too little memory for a call: it has to be looked at closely."""
    if session.moved or session.yields_to:
        return True
    if plan.alone and session.user is None:
        return not state.workers[plan.alone].has_room(plan.locals[plan.alone].need_nbytes)
    for number, local in plan.locals.items():
        worker, need = state.workers[number], local.need_nbytes
        if not worker.has_room(need) or (session.user is not None and not allowed(session, worker, need)):
            return True
    return False


def _carry_pins(session: Session, entry: CachedProgram, sent: SentCall) -> None:
    """What a call makes has a layout that the client chose if the program says so, or if it replaces what had one."""
    session.pins.update(sent.outputs + o for o in entry.pinned)
    session.pins.update(sent.outputs + o for o, i in entry.program.updates if sent.inputs[i] in session.pins)
    session.pins.intersection_update(session.tensors)


def _send_to(
    state: State, session: Session, worker: Worker, ready: ReadyCall, local: LocalPlan, frees: bytes, beside: bool
) -> None:
    """Send one worker its part of a call, and its program if it does not have that."""
    call, program = ready.call, local.hash
    if ready.refused is None:
        worker.nbytes += local.change_nbytes
    if program not in worker.programs:
        worker.programs.add(program)
        entry = ready.plan.entry
        state.send(worker.control, Define(local.program, entry.timed, entry.compile))
    inputs, scalars = call.inputs, call.scalars
    if local.constants:
        scalars = (*scalars, *local.constants)
    if local.absent:  # what it has of such an input, an empty array, it is not given: so it would not drop it
        inputs = pack_ids(0 if i in local.absent else each for i, each in enumerate(ready.inputs))
        frees += pack_ids(ready.inputs[d] for d in ready.plan.entry.program.donate if d in local.absent)
    message = Call(
        session.number, call.seq, program, inputs, scalars, call.outputs, frees, call.acked, ready.refused, ready.root,
        beside,
    )  # fmt: skip
    state.send(worker.control, message)


def _look_for_lost(state: State, session: Session, ready: ReadyCall) -> None:
    """An input may have been lost while a call waited for its turn."""
    lost = lost_of(map(session.tensors.__getitem__, ready.inputs))
    if lost is not None:
        _refuse(state, session, ready, lost.failure, lost.root)


def _waits_for_memory(state: State, session: Session, ready: ReadyCall) -> bool:
    """Whether a call has to wait for memory. One that can never fit is refused."""
    problem = memory.misfit(state, session, ready)
    if problem is not None:
        _refuse(state, session, ready, problem, 0)
    elif not memory.is_there(state, session, ready):
        memory.wait(state, session)
        return True
    return False


def serve_memory(state: State) -> None:
    """Look at the calls that wait for memory, in their order."""
    blocked: set[int] = set()  # workers on which a call waits that came before
    for session in memory.order(state):
        ready = session.head
        assert ready is not None
        if not blocked.isdisjoint(ready.plan.locals):
            continue
        outcome = memory.attempt(state, session)
        if isinstance(outcome, Failure):
            _refuse(state, session, ready, outcome, 0)
            memory.go_on(state, session)
        elif not outcome:
            blocked.update(ready.plan.locals)


def _refuse(state: State, session: Session, ready: ReadyCall, failure: Failure, root: int) -> None:
    """A call may not run."""
    ready.refused, ready.root = failure, root
    if session.workers:
        layouts = [session.tensors[i].layout or session.home for i in ready.inputs]
        plan = plan_for(state, session, ready.plan.entry, layouts, refused=True)
        assert plan is not None
        ready.plan.uses -= 1
        plan.uses += 1
        ready.plan = plan


def _take_all(state: State, session: Session, plan: ProgramPlan) -> bool:
    """Take a call's credit on all its workers; if one has no room, claim room on all of them."""
    cost_us = plan.entry.cost_us
    lanes = tuple(state.workers[number].lane for number in plan.locals)
    if not all(lane.admits(session, cost_us) for lane in lanes):
        before = session.claims
        if claim(session, lanes, state.now_s):
            state.touch((*before, *lanes))
        return False
    # Who claims room there next may be in another ring. (A call that is refused meanwhile may need fewer workers.)
    state.touch((*unclaim(session), *lanes))
    for lane in lanes:
        lane.take(session, cost_us)
    session.deficit_us -= cost_us
    return True


def _put_refused(state: State, session: Session, ready: ReadyCall, donated: Iterable[int]) -> list[int]:
    """The results of a call that will not run: what replaces an input has its value, the rest is lost, and returned."""
    call, plan, tensors = ready.call, ready.plan, session.tensors
    assert ready.refused is not None
    kept = {o for o, i in plan.kept.items() if tensors[ready.inputs[i]].layout is not None}
    away = [
        (number, call.outputs + o, moved.away[ready.inputs[plan.kept[o]]])
        for number, moved in session.moved.items() for o in kept if ready.inputs[plan.kept[o]] in moved.away
    ]  # fmt: skip
    drop(state, session, donated)
    lost = []
    for o, spec in enumerate(plan.entry.outputs):
        if o in kept:
            tensors[call.outputs + o] = plan.outputs[o]
            state.count(session, plan.outputs[o])
        else:
            tensors[call.outputs + o] = Lost(spec, ready.refused, ready.root or call.seq)
            lost.append(call.outputs + o)
    session.lost += len(lost)
    for number, i, nbytes in away:  # kept values stay where they were, on the device or outside
        session.moved.setdefault(number, Moved()).away[i] = nbytes
        state.workers[number].away += nbytes
    return lost


def drop(state: State, session: Session, ids: Iterable[int]) -> list[int]:
    """Forget these tensors; returns those that workers have."""
    held, workers, tensors = [], state.workers, session.tensors
    for i in ids:
        tensor = tensors.pop(i)
        for number, nbytes in tensor.parts.items():
            session.nbytes -= nbytes
            workers[number].nbytes -= nbytes
        if session.moved:
            state.forget_moved(session, i)
        if tensor.layout is not None:
            held.append(i)
        else:
            session.lost -= 1  # what is being uploaded is never dropped
    return held


def free(state: State, session: Session, ids: Sequence[int], workers: Iterable[Worker]) -> None:
    """These workers may drop what they have under these ids."""
    if ids:
        packed = pack_ids(ids)
        for worker in workers:
            state.send(worker.control, Free(session.number, packed))


# --- what becomes of it ----------------------------------------------------------------------


def answered(state: State, session: Session, worker: Worker, answer: CallDone | CallFailed) -> SentCall | None:
    """A worker says how a call or a move went. Returns it if that was the last answer, and it has not failed."""
    seq, number = answer.seq, worker.number
    sent = session.sent.get(seq) if seq > 0 else session.moving
    if sent is None or sent.seq != seq or number not in sent.left:
        _orphan_answered(state, session, worker, seq)
        return None
    left, lane = sent.left, worker.lane
    left.remove(number)
    lane.give_back(sent.cost_us, sent.beside)
    worker.calls += 1
    if lane.ring or lane.claims:  # somebody waits for room there
        state.touched[number] = worker
    if type(answer) is CallDone:
        sent.good = True
        if answer.run_us > sent.run_us:
            sent.run_us = min(answer.run_us, MAX_RUN_US)
        if not sent.tier or answer.tier < sent.tier:
            sent.tier = answer.tier
    elif type(answer) is CallFailed:
        if answer.error.kind == "OutOfMemory" and sent.failure is None:
            memory.relieve(state, session, worker)
        root = answer.root if 0 < answer.root < seq else seq
        if _says_more(sent, answer, root):
            sent.failure = _as_recorded(sent, number, answer.error)
            sent.root = min(root, sent.root)
    if left:
        return None
    good = sent.failure is None
    if good:
        run_us = sent.run_us
        sent.plan.entry.note_run(run_us)
        settle(session, sent.cost_us, run_us, sent.beside)
        session.total_us += run_us
    if seq > 0:
        retire(state, session)
    return sent if good else None


def _says_more(sent: SentCall, answer: CallFailed, root: int) -> bool:
    """Whether this tells more than what is known: an earlier call with which it began; or, of the same, the reason. In
    whatever order workers answer, one of them is believed."""
    if sent.failure is None or root < sent.root:
        return True
    return root == sent.root and sent.failure.kind == PEER_FAILED != answer.error.kind


def _as_recorded(sent: SentCall, worker: int, failure: Failure) -> Failure:
    """What went wrong in a local program, said of the client's: users know the ops and lines of that one."""
    local, entry = sent.plan.locals[worker], sent.plan.entry
    if failure.program != local.hash or not 0 <= failure.instruction < len(local.origins):
        return failure
    origin, text = local.origins[failure.instruction], failure.text
    here = local.program.code[failure.instruction].op
    if origin >= 0 and text.startswith(f"{here}: "):
        text = f"{entry.program.code[origin].op}{text.removeprefix(here)}"
    return Failure(failure.kind, text, entry.hash, origin)


def _orphan_answered(state: State, session: Session, worker: Worker, seq: int) -> None:
    """A worker has done with a call that failed long ago, with another worker."""
    plan = session.orphans.pop((worker.number, seq), None)
    if plan is None:
        return
    plan.uses -= 1
    gone = next((n for n in plan.locals if n not in state.workers), 0)
    if gone:
        for name in state.programs.drop_plans(plan.entry, gone):
            state.forget(name)


def retire(state: State, session: Session) -> None:
    """Calls leave in order: those that are finished and have only finished ones before them."""
    calls = session.sent
    while calls:
        oldest = next(iter(calls.values()))
        if oldest.left:
            break
        del calls[oldest.seq]
        session.done = oldest.seq
        session.run_us = oldest.run_us or session.run_us
        session.calls += 1
        state.calls += 1
        oldest.plan.uses -= 1
        if oldest.failure is not None:
            _tell_failed(state, session, oldest, oldest.failure)
    state.news[session.number] = session


def _tell_failed(state: State, session: Session, sent: SentCall, failure: Failure) -> None:
    """The client hears that a call has failed; what the call does not keep is lost."""
    # A worker that only saw another one fail in an earlier call takes that call for the first that failed.
    sent.root, failure = session.blamed.get(sent.root, (sent.root, failure))
    session.blamed[sent.seq] = sent.root, failure
    if len(session.blamed) > WINDOW:
        del session.blamed[next(iter(session.blamed))]
    session.failed = sent.seq
    state.send(session.peer, CallFailed(0, sent.seq, sent.root, failure))
    kept = {} if sent.good else sent.plan.kept
    lost = []
    for o, good in enumerate(sent.plan.outputs):
        i = sent.outputs + o
        if o not in kept and session.tensors.get(i) is good:
            state.put_lost(session, i, failure, sent.root)
            lost.append(i)
    free(state, session, lost, session.workers.values())


def tell(state: State) -> None:
    """Say once how far each session's calls have come."""
    for session in state.news.values():
        if session.done > session.told:
            session.told = session.done
            state.send(session.peer, CallDone(0, session.done, session.run_us))
        if session.fetches:
            fetches.pass_on_held(state, session)
    state.news.clear()
