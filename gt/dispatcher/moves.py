"""Tensors of a session move to other layouts under their ids: all that a plan wants moved, or none.

Law 1: a session that moves runs nothing else. Its calls wait in its queue; those sent before are finished. Fetches and
       uploads go on.
Law 2: a move is a call of the dispatcher's own: it takes its turn and its credit as any call does, and copies tensors
       into new layouts under ids of its own. The old ones stay until every copy is there on every worker.
Law 3: then the workers are told in one event that the copies take the place of the tensors (Rename), which cannot fail.
       Before that moment the old layouts hold, after it the new ones, whoever dies when.
Law 4: one move copies at most MOVE_NBYTES to a worker, or one tensor; what all of them copy must have room beforehand.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gt.dispatcher import calls
from gt.dispatcher.events import MakePlan
from gt.dispatcher.limits import has_room
from gt.dispatcher.plans import CachedProgram, PlanKey, ProgramPlan, plain_layout, tensor_at
from gt.dispatcher.session import MAX_ID, Move, SentCall, Session, Tensor, show_nbytes
from gt.dispatcher.state import State
from gt.layout import Layout, Mesh, layout
from gt.ops.check import check_client
from gt.program import Instruction, Program, Spec
from gt.transport.messages import Call, Rename, pack_ids

MOVE_NBYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Want:
    """One tensor that moves: an input of the program whose plan is switched to."""

    position: int
    spec: Spec
    before: Layout
    after: Layout


@dataclass(slots=True, eq=False)
class Batch:
    """What one move copies."""

    wants: tuple[Want, ...]
    entry: CachedProgram
    key: PlanKey

    @property
    def plan(self) -> ProgramPlan | None:
        return self.entry.plans.get(self.key)


@dataclass(slots=True, eq=False)
class MovesUnderWay:
    """Moves that have begun."""

    acked: int  #: see Call
    left: list[tuple[Batch, list[int]]]  #: with the ids of their tensors; the first is in the queue or on workers
    ids: list[int] = field(default_factory=list)  #: of the tensors whose copies are there or under way,
    first: int = 0  #: which have the ids first, first + 1, ...


def prepare(state: State, wants: Sequence[Want], grid: Mesh) -> list[Batch]:
    """Ask for the plans of the moves that it takes to bring these tensors to their new layouts on a mesh."""
    return [_batch(state, group, grid) for group in _groups(wants)]


def _groups(wants: Sequence[Want]) -> list[tuple[Want, ...]]:
    """Law 4."""
    groups: list[tuple[Want, ...]] = []
    group: list[Want] = []
    size = 0
    for want in wants:
        nbytes = max(tensor_at(want.spec, want.after).parts.values())
        if group and size + nbytes > MOVE_NBYTES:
            groups.append(tuple(group))
            group, size = [], 0
        group.append(want)
        size += nbytes
    return [*groups, tuple(group)] if group else groups


def _batch(state: State, wants: tuple[Want, ...], grid: Mesh) -> Batch:
    n = len(wants)
    program = Program(
        tuple([(tuple(w.spec.shape), w.spec.dtype.name) for w in wants]), "",
        tuple([Instruction("shard", (k,), {"layout": _text(w.after)}) for k, w in enumerate(wants)]),
        tuple(range(n, 2 * n)), (), (),
    )  # fmt: skip
    name = program.hash()
    entry = state.programs.get(name)
    if entry is None:
        entry = state.programs.add(name, program, timed=True, compile=-1)
    if not entry.finished:
        state.programs.finish(entry, check_client(program), "")
    befores = tuple([w.before for w in wants])
    key: PlanKey = (plain_layout(layout(grid)), "move", *befores)
    if key not in entry.plans and key not in entry.planning:
        assert entry.checked is not None
        entry.planning[key] = None
        state.out.append(MakePlan(name, key, entry.checked, befores, grid, {}))
    return Batch(wants, entry, key)


def _text(at: Layout) -> str:
    """A layout of the mesh that is moved to, as the moves' programs name it."""
    return repr(at) if len(at.mesh.workers) > 1 else "[]"


def no_room(state: State, session: Session, batches: Iterable[Batch]) -> str:
    """Why both the old and the new layouts do not fit at once; empty if they do."""
    more: dict[int, int] = {}
    for batch in batches:
        for want in batch.wants:
            for number, nbytes in tensor_at(want.spec, want.after).parts.items():
                more[number] = more.get(number, 0) + nbytes
    for number, nbytes in more.items():
        if not has_room(session, state.workers[number], nbytes):
            return f"{show_nbytes(nbytes)} of copies do not fit on worker {number}"
    return ""


def begin(session: Session, batches: Sequence[Batch], inputs: Sequence[int], acked: int) -> MovesUnderWay:
    """Begin to copy: `inputs` are the ids of the program's inputs now. There must be something to copy."""
    left = [(batch, [inputs[w.position] for w in batch.wants]) for batch in batches]
    copied = MovesUnderWay(acked, left, first=MAX_ID + 1 + session.copies)
    _put_first(session, copied)
    return copied


def _put_first(session: Session, copied: MovesUnderWay) -> None:
    """Put the next move before everything that the client has sent."""
    batch, ids = copied.left[0]
    plan = batch.plan
    assert plan is not None
    session.moves += 1
    outputs = MAX_ID + 1 + session.copies
    session.copies += len(ids)
    copied.ids += ids
    call = Call(0, -session.moves, batch.entry.hash, pack_ids(ids), (), outputs, b"", copied.acked)
    session.queue.appendleft(Move(call, plan))
    session.sizes.appendleft(0)


def done(session: Session, copied: MovesUnderWay) -> bool:
    """The move on the workers has succeeded; whether it was the last one. Else the next is at the head of the queue."""
    assert session.moving is not None
    session.moving.plan.uses -= 1
    session.moving = None
    del copied.left[0]
    if not copied.left:
        return True
    _put_first(session, copied)
    return False


def commit(state: State, session: Session, copied: MovesUnderWay) -> None:
    """All copies are there: they take the place of the tensors. Law 3."""
    rename = Rename(session.number, pack_ids(copied.ids), copied.first)
    for worker in session.workers.values():
        state.send(worker.control, rename)
    tensors = session.tensors
    for k, id in enumerate(copied.ids):
        new = tensors.pop(copied.first + k)
        assert type(new) is Tensor
        state.count(session, tensors[id], -1)  # the copy is counted already
        tensors[id] = new


def give_up(state: State, session: Session, copied: MovesUnderWay) -> None:
    """Nothing moves: the copies are dropped, wherever they are."""
    if session.queue and type(session.queue[0]) is Move:
        state.drop_head(session)
        session.queue.popleft()
        session.sizes.popleft()
    moving, session.moving = session.moving, None
    if moving is not None:
        _leave(state, session, moving)
    made = [i for k in range(len(copied.ids)) if (i := copied.first + k) in session.tensors]
    calls.free(state, session, calls.drop(state, session, made), session.workers.values())


def _leave(state: State, session: Session, moving: SentCall) -> None:
    moving.plan.uses -= 1
    state.abandon(session, moving)
