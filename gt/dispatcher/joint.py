"""Calls of wide sessions: one plan, a local program for each worker, and one outcome.

Law 1: all workers of a call get it in one event. So every two workers get the calls they share in the same order,
       whoever's they are, and never wait for each other in a ring.
Law 2: a call is finished when all its workers have answered, and has failed if one of them says so. What the client
       hears of the calls, it hears in their order.
Law 3: a call that may not run (no memory, lost inputs, no way to plan it) is sent as a *refusal*: programs that compute
       nothing and say only what replaces what, so that updates keep their old values as after any failed call. It
       needs no plan, and no worker waits for another because of it.
Law 4: results that a failed call does not keep are lost here and freed on the workers; where one worker says that a
       call went well and another that it failed, nothing of it is kept.

Every worker of a session may have something under an id, an empty array if nothing else. So frees go to all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from gt.dispatcher.events import MakePlan, PlanMade
from gt.dispatcher.plans import Entry, Part, Plan
from gt.dispatcher.schedule import MAX_RUN_US, claim, estimate, unclaim
from gt.dispatcher.session import Head, Sent, Session, Tensor, lost_of, show_nbytes
from gt.dispatcher.state import State, Worker
from gt.layout import Layout, local_shape, whole
from gt.program import Instruction, Program, Spec
from gt.transport.messages import Call, CallDone, CallFailed, Define, Failure, Free, pack_ids

if TYPE_CHECKING:
    from gt.dispatcher.planner.plan import Planned

NOTHING: tuple[tuple[int, ...], str] = ((0,), "uint8")  #: What a worker has of a tensor that lies elsewhere.
PEER_FAILED = "PeerFailed"  #: The failure of a worker that only saw another one fail.

# --- plans -----------------------------------------------------------------------------------


def plan_for(
    state: State, session: Session, entry: Entry, layouts: Sequence[Layout], lost: Tensor | None
) -> Plan | None:
    """The plan of a call whose inputs lie so; None if it is being made."""
    if lost is not None or session.broken is not None:
        return _refusal_of(state, session, entry, layouts)
    key = (*session.place, *layouts)
    found = entry.plans.get(key)
    if found is None and key not in entry.planning:
        assert entry.checked is not None
        assert session.home is not None
        entry.planning[key] = None
        meshes = dict(session.meshes)
        home = meshes.get("", session.home.mesh)
        state.out.append(MakePlan(entry.hash, key, entry.checked, tuple(layouts), home, meshes))
    return found


def plan_made(state: State, event: PlanMade) -> None:
    """A plan that was asked for; sessions that wait for it look for it themselves."""
    entry = state.programs.get(event.program)
    if entry is None or event.key not in entry.planning:
        return
    del entry.planning[event.key]
    layouts = [each for each in event.key[len(event.key) - len(entry.inputs) :] if isinstance(each, Layout)]
    home = event.key[0]
    assert isinstance(home, Layout)
    made = _joint(entry, layouts, event.planned) if event.planned is not None else _refusal(entry, layouts, home)
    made.refused = event.failure
    if any(n not in state.workers for n in made.workers):
        return  # it was made for one that is gone meanwhile
    for name in state.programs.add_plan(entry, event.key, made):
        state.forget(name)


def _joint(entry: Entry, layouts: Sequence[Layout], planned: Planned) -> Plan:
    outputs = tuple(tensor_at(s, plain_layout(at)) for s, at in zip(entry.outputs, planned.outputs, strict=True))
    kept = tuple((o, i) for o, i in entry.program.updates if outputs[o].layout is layouts[i])
    parts = {}
    for number in planned.workers:
        local = planned.locals[number]
        absent = tuple(i for i, at in enumerate(layouts) if number not in at.mesh.workers)
        need = planned.nbytes.get(number, 0)
        parts[number] = Part(local.program, local.program.hash(), local.constants, absent, need, local.origins)
    return Plan(planned.workers, outputs, 0, parts=parts, kept=kept)


def _refusal_of(state: State, session: Session, entry: Entry, layouts: Sequence[Layout]) -> Plan:
    """What is sent of a call that may not run."""
    assert session.home is not None
    key = ("refusal", session.home, *layouts)
    found = entry.plans.get(key)
    if found is None:
        found = _refusal(entry, layouts, session.home)
        for name in state.programs.add_plan(entry, key, found):
            state.forget(name)
    return found


def _refusal(entry: Entry, layouts: Sequence[Layout], home: Layout) -> Plan:
    """Local programs that are never run: they have the inputs, and the results that replace one of them."""
    sources = {o: i for o, i in entry.program.updates if entry.outputs[o] is entry.inputs[i]}
    outputs = tuple(tensor_at(s, layouts[sources[o]] if o in sources else home) for o, s in enumerate(entry.outputs))
    workers = tuple(sorted({n for at in (home, *layouts) for n in at.mesh.workers}))
    parts = {}
    for number in workers:
        here = [at for at in layouts if number in at.mesh.workers]
        inputs = tuple(
            _held(s, at, number) if at in here else NOTHING for s, at in zip(entry.inputs, layouts, strict=True)
        )
        made = [(o, inputs[sources[o]]) if o in sources else (o, NOTHING) for o in range(len(entry.outputs))]
        code = tuple(Instruction("full", (~0,), {"shape": list(shape), "dtype": dtype}) for _, (shape, dtype) in made)
        results = tuple(range(len(inputs), len(inputs) + len(made)))
        updates = tuple((o, i) for o, i in sources.items() if inputs[i] is not NOTHING)
        absent = tuple(i for i, shape in enumerate(inputs) if shape is NOTHING)
        donate = tuple(d for d in entry.program.donate if d not in absent)
        program = Program(inputs, "i", code, results, donate, updates)
        parts[number] = Part(program, program.hash(), (), absent, 0)
    return Plan(workers, outputs, 0, parts=parts, kept=tuple(sources.items()))


def _held(s: Spec, at: Layout, worker: int) -> tuple[tuple[int, ...], str]:
    return local_shape(at, s.shape, at.mesh.coordinates[at.mesh.workers.index(worker)]), s.dtype.name


def tensor_at(s: Spec, at: Layout) -> Tensor:
    """The record of a tensor that lies so."""
    m = at.mesh
    parts: dict[int, int] = {}
    for worker, where in zip(m.workers, m.coordinates, strict=True):
        count = s.dtype.itemsize
        for n in local_shape(at, s.shape, where):
            count *= n
        parts[worker] = count
    return Tensor(s, sum(parts.values()), at, parts=parts)


def plain_layout(at: Layout) -> Layout:
    """On one worker there is one layout, whatever the axes of its mesh."""
    return whole(at.mesh.workers[0]) if len(at.mesh.workers) == 1 else at


# --- sending ---------------------------------------------------------------------------------


def send(state: State, session: Session, head: Head) -> bool:
    """Send a call to all its workers, if all have room; else it claims room on them."""
    refused, root = _why_not(state, session, head)
    call, entry, plan = head.call, head.entry, head.plan
    parts = plan.parts
    assert parts is not None
    lanes = tuple(state.workers[n].lane for n in plan.workers)
    if not all(lane.admits(session, entry.cost_us) for lane in lanes):
        before = session.claims
        if claim(session, lanes):
            state.touch((*before, *lanes))
        return False
    # Who claims room there next may be in another ring. (A call that is refused meanwhile may need fewer workers.)
    state.touch((*unclaim(session), *lanes))
    for lane in lanes:
        lane.take(entry.cost_us)
        lane.owe(session, entry.cost_us)
    session.deficit_us -= entry.cost_us

    frees = drop(state, session, head.frees)
    donated = [head.inputs[d] for d in entry.program.donate]
    kept = tuple(o for o, i in plan.kept if _has_value(session.tensors[head.inputs[i]]))
    drop(state, session, donated)
    lost: list[int] = []
    for o, tensor in enumerate(plan.outputs):
        session.call_mark = call.outputs + o
        if refused is not None and o not in kept:
            session.tensors[call.outputs + o] = Tensor(tensor.spec, 0, None, refused, root or call.seq)
            lost.append(call.outputs + o)
        else:
            session.tensors[call.outputs + o] = tensor
            state.spread(session, tensor.parts or {})
    session.hollow = session.hollow or refused is not None

    session.seq = call.seq
    sent = Sent(call.seq, entry, plan, call.outputs, (), entry.cost_us, root or call.seq)
    sent.left, sent.kept, sent.failure = list(plan.workers), kept, refused
    session.sent[call.seq] = sent
    for number, part in parts.items():
        worker = state.workers[number]
        if part.hash not in worker.programs:
            worker.programs.add(part.hash)
            state.send(worker.control, Define(part.program, entry.timed, entry.compile))
        inputs, gone = call.inputs, frees
        if part.absent:  # what it has of such an input, an empty array, it is not given: so it would not drop it
            inputs = pack_ids(0 if i in part.absent else each for i, each in enumerate(head.inputs))
            gone = [*frees, *(head.inputs[d] for d in entry.program.donate if d in part.absent)]
        scalars = (*call.scalars, *part.constants)
        state.send(
            worker.control,
            Call(
                session.number, call.seq, part.hash, inputs, scalars, call.outputs, pack_ids(gone), call.acked,
                refused, root,
            ),
        )  # fmt: skip
    others = [w for n, w in session.workers.items() if n not in parts]
    free(state, session, [*frees, *donated], others)
    free(state, session, lost, session.workers.values())
    return True


def _why_not(state: State, session: Session, head: Head) -> tuple[Failure | None, int]:
    """Why a call may not run, and the call where that began; its plan is then a refusal."""
    if head.lost is None and session.hollow:  # an input may have been lost while it waited for its turn
        head.lost = lost_of(map(session.tensors.__getitem__, head.inputs))
        if head.lost is not None:
            _refuse(state, session, head)
    if head.lost is not None:
        return head.lost.lost, head.lost.root
    if head.refused is None and head.plan.refused is None:
        head.refused = _no_memory(state, head)
        if head.refused is not None:
            _refuse(state, session, head)
    return head.refused or head.plan.refused, 0


def _refuse(state: State, session: Session, head: Head) -> None:
    assert session.home is not None
    layouts = [session.tensors[i].layout or session.home for i in head.inputs]
    old, head.plan = head.plan, _refusal_of(state, session, head.entry, layouts)
    old.uses -= 1
    head.plan.uses += 1


def _no_memory(state: State, head: Head) -> Failure | None:
    for number, part in (head.plan.parts or {}).items():
        worker = state.workers[number]
        if worker.memory and worker.nbytes + part.need_nbytes > worker.memory:
            free_nbytes = max(0, worker.memory - worker.nbytes)
            text = (
                f"the call needs {show_nbytes(part.need_nbytes)} on worker {number}, which has "
                f"{show_nbytes(free_nbytes)} free of {show_nbytes(worker.memory)}"
            )
            return Failure("OutOfMemory", text, head.call.program)
    return None


def _has_value(tensor: Tensor) -> bool:
    return tensor.layout is not None and (tensor.nbytes > 0 or not tensor.spec.nbytes)


def drop(state: State, session: Session, ids: Iterable[int]) -> list[int]:
    """Forget these tensors; returns those that workers know."""
    there = []
    for i in ids:
        tensor = session.tensors.pop(i)
        state.uncount(session, tensor)
        if tensor.layout is not None:
            there.append(i)
    return there


def free(state: State, session: Session, ids: Sequence[int], workers: Iterable[Worker]) -> None:
    """These workers may drop what they have under these ids."""
    if ids:
        packed = pack_ids(ids)
        for worker in workers:
            state.send(worker.control, Free(session.number, packed))


# --- what becomes of it ----------------------------------------------------------------------


def answered(state: State, worker: Worker, session: Session, sent: Sent, answer: CallDone | CallFailed) -> None:
    """One worker of a call says how its part went."""
    assert sent.left is not None
    if worker.number not in sent.left:
        return
    sent.left.remove(worker.number)
    worker.lane.give_back(sent.cost_us)
    worker.calls += 1
    state.touched[worker.number] = worker
    if type(answer) is CallDone:
        sent.good = True
        sent.run_us = max(sent.run_us, min(max(answer.run_us, 0), MAX_RUN_US))
    elif type(answer) is CallFailed:
        root = answer.root if 0 < answer.root < answer.seq else answer.seq
        if _says_more(sent, answer, root):
            sent.failure = _as_recorded(sent, worker.number, answer.error)
            sent.root = min(root, sent.root)
    if sent.left:
        return
    sent.finished = True
    session.calls += 1
    state.calls += 1
    if sent.failure is None:
        entry = sent.entry
        entry.runs += 1
        entry.cost_us = max(1, estimate(entry.cost_us, sent.run_us, entry.runs))
        worker.lane.settle(session, sent.cost_us, sent.run_us)
        session.total_us += sent.run_us
    retire(state, session)


def _says_more(sent: Sent, answer: CallFailed, root: int) -> bool:
    """Whether this tells more than what is known: an earlier call with which it began; or, of the same, the reason. In
    whatever order workers answer, one of them is believed."""
    if sent.failure is None or root < sent.root:
        return True
    return root == sent.root and sent.failure.kind == PEER_FAILED != answer.error.kind


def _as_recorded(sent: Sent, worker: int, failure: Failure) -> Failure:
    """What went wrong in a worker's own program, said of the client's: users know the ops and lines of that one."""
    part = (sent.plan.parts or {}).get(worker)
    if part is None or failure.program != part.hash or not 0 <= failure.instruction < len(part.origins):
        return failure
    origin, entry, text = part.origins[failure.instruction], sent.entry, failure.text
    here = part.program.code[failure.instruction].op
    if origin >= 0 and text.startswith(f"{here}: "):
        text = f"{entry.program.code[origin].op}{text.removeprefix(here)}"
    return Failure(failure.kind, text, entry.hash, origin)


def orphan_answered(state: State, worker: Worker, session: Session, answer: CallDone | CallFailed) -> None:
    """A worker has done with a call that failed long ago, with another worker."""
    found = session.orphans.pop((worker.number, answer.seq), None)
    if found is None:
        return
    entry, plan = found
    state.release(entry, plan)
    gone = next((n for n in plan.workers if n not in state.workers), 0)
    if gone:
        for name in state.programs.drop_plans(entry, gone):
            state.forget(name)


def retire(state: State, session: Session) -> None:
    """Calls leave in order: those that are finished and have only finished ones before them."""
    while session.sent:
        oldest = next(iter(session.sent.values()))
        if not oldest.finished:
            break
        del session.sent[oldest.seq]
        session.done = oldest.seq
        session.run_us = oldest.run_us or session.run_us
        state.release(oldest.entry, oldest.plan)
        if oldest.failure is not None:
            fail(state, session, oldest, oldest.failure)
    state.news[session.number] = session


def fail(state: State, session: Session, sent: Sent, failure: Failure) -> None:
    """A joint call has failed: the client hears of it, and what it does not keep is lost."""
    state.send(session.peer, CallFailed(0, sent.seq, sent.root, failure))
    session.hollow = True
    kept = () if sent.good else sent.kept
    lost = []
    for o, good in enumerate(sent.plan.outputs):
        i = sent.outputs + o
        if o not in kept and session.tensors.get(i) is good:
            state.uncount(session, good)
            session.tensors[i] = Tensor(good.spec, 0, None, failure, sent.root)
            lost.append(i)
    free(state, session, lost, session.workers.values())
