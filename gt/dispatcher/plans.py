"""Programs the dispatcher knows, the plans made from them, and the work on both that is done outside the event loop.

Law 1: a program is believed only after its check, which happens outside the event loop.
Law 2: a plan is a pure function of the program, the layouts of its inputs and the session's meshes, and is made once
       for them; after that a call is a look-up. On one worker the plan is the client's own program (`plan_alone`). A
       plan for several workers takes longer, and is made outside the event loop (`work_off`, planner/).
Law 3: the cache is bounded in bytes. What a timer cut goes first, then the least recently used; what a
       call under way needs, and what was used last, stays.

Programs are shared by all sessions: one that knows the hash has the text. Local programs that the planner wrote belong
to their plan; the text of one that two plans have is kept until both are gone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

import msgspec

from gt.dispatcher.events import CheckProgram, MakePlan, PlanReady, ProgramChecked
from gt.dispatcher.planner.plan import Planned, plan_program
from gt.dispatcher.schedule import UNKNOWN_US, guess, learned
from gt.dispatcher.session import Followed, Session, Tensor
from gt.errors import BY_NAME
from gt.layout import Layout, Mesh, layout, local_shape, whole
from gt.ops.check import Checked, check_client
from gt.ops.record import TABLE
from gt.places import NAME, Place
from gt.program import SCALAR_TYPES, Instruction, Program, Spec, spec
from gt.transport.messages import Failure

PLANS_PER_PROGRAM = 64
EMPTY: tuple[tuple[int, ...], str] = ((0,), "uint8")  #: What a worker has of a tensor that it holds no part of.

PlanKey = tuple[object, ...]  #: A session's `place`, then the layout of each input.

_encode = msgspec.msgpack.Encoder().encode


@lru_cache(1 << 14)
def tensor_at(spec: Spec, at: Layout) -> Tensor:
    """The record of a tensor with this layout."""
    m = at.mesh
    parts: dict[int, int] = {}
    for worker, where in zip(m.workers, m.coordinates, strict=True):
        count = spec.dtype.itemsize
        for n in local_shape(at, spec.shape, where):
            count *= n
        parts[worker] = count
    return Tensor(spec, at, parts, sum(parts.values()))


@dataclass(frozen=True, slots=True, eq=False)
class LocalPlan:
    """What one worker does of a plan."""

    program: Program
    hash: bytes
    need_nbytes: int  #: memory a call takes there beside its inputs, at least; never less than it changes
    change_nbytes: int  #: bytes of tensors that it has more after a call: results, less donated inputs
    constants: tuple[bool | int | float | bytes, ...] = ()  #: scalars of its own, behind those of the call
    absent: tuple[int, ...] = ()  #: inputs that it holds no part of: it is given id 0 for them
    origins: Sequence[int] = ()  #: the instruction of the client's program that each one of it is of; -1: of none


@dataclass(slots=True, eq=False)
class ProgramPlan:
    """A program made ready for given layouts of its inputs."""

    entry: CachedProgram
    locals: Mapping[int, LocalPlan]  #: by worker: who runs it. It takes credit on all of them or on none
    outputs: tuple[Tensor, ...]  #: the results if it succeeds
    kept: Mapping[int, int]  #: output -> input: if the call fails, that output has that input's value
    change_nbytes: int  #: the sum over `locals`
    refused: Failure | None = None  #: there is no way to run it
    uses: int = 0  #: calls that are at the head of a queue or on workers
    nbytes: int = 0  #: what it adds to its program's in the cache
    alone: int = field(init=False)  #: the one worker that runs it; 0: several, or none

    def __post_init__(self) -> None:
        self.alone = next(iter(self.locals)) if len(self.locals) == 1 else 0


class LatestCall(NamedTuple):
    """What a call of a program has read, and its plan: the next one that reads the same needs no look-up."""

    place: tuple[object, ...]  #: of the session
    inputs: Sequence[object]  #: records of tensors, which tensors of one spec and layout share
    plan: ProgramPlan


@dataclass(slots=True, eq=False)
class CachedProgram:
    """A program in the cache. Before its check only the first fields mean anything."""

    hash: bytes
    program: Program
    nbytes: int
    timed: bool
    compile: int  #: see Define
    checked: Checked | None = None
    error: str = ""  #: why it failed the check
    inputs: list[Spec] = field(default_factory=list)
    outputs: list[Spec] = field(default_factory=list)
    scalar_types: tuple[type, ...] = ()
    need_nbytes: int = 0  #: memory a call takes beside its inputs, at least, where one worker runs it
    plans: dict[PlanKey, ProgramPlan] = field(default_factory=dict)  #: all that are in use are here
    planning: dict[PlanKey, None] = field(default_factory=dict)  #: plans that were asked for
    latest: LatestCall | None = None  #: Its plan is one of `plans`.
    cost_us: int = UNKNOWN_US  #: what a call is charged before it has run
    best_us: int = UNKNOWN_US  #: what it takes if nothing disturbs it; see schedule.py
    runs: int = 0
    users: set[int] = field(default_factory=set)  #: sessions that called it; only membership is asked
    #: Sessions that sent its text, and may call it: to others it is as if it were not here. Only membership is asked.
    owners: set[int] = field(default_factory=set)
    #: Whether the program says the layout of a value, and which of its outputs are such values.
    sets_layouts: bool = False
    pinned: tuple[int, ...] = ()
    _body: str = ""
    places: tuple[Place, ...] = ()  #: the lines that it comes from, of the first client that said so

    @property
    def finished(self) -> bool:
        """Its check is over, one way or the other."""
        return self.checked is not None or bool(self.error)

    @property
    def body(self) -> str:
        """See Program.body."""
        if not self._body:
            self._body = self.program.body()
        return self._body

    @property
    def spare(self) -> bool:
        """No call needs it now."""
        return self.finished and not self.planning and not any(plan.uses for plan in self.plans.values())

    def note_run(self, run_us: int) -> None:
        """A call has run, on all its workers, and took so long."""
        self.runs = runs = self.runs + 1
        self.cost_us, self.best_us = learned(self.cost_us, self.best_us, run_us, runs)

    def take_places(self, places: tuple[Place, ...]) -> None:
        """Where its instructions come from, as a client says. What cannot be true is ignored."""
        count = len(self.program.code)
        if len(places) <= count and sum(p.instructions for p in places) == count:
            if all(p.instructions > 0 and len(p.file) <= NAME and len(p.called) <= NAME for p in places):
                self.places = places

    def accept(self, checked: Checked) -> None:
        self.checked = checked
        self.nbytes += checked.text_nbytes
        self.inputs = [plain(s) for s in checked.specs[: len(self.program.inputs)]]
        self.outputs = [plain(checked.specs[o]) for o in self.program.outputs]
        self.scalar_types = tuple(SCALAR_TYPES[k] for k in self.program.scalars)
        self.need_nbytes = max(0, checked.peak_nbytes - _in_place_nbytes(checked))
        self.pinned, self.sets_layouts = _pinned(checked)
        self.best_us = guess(_sizes(checked))


# --- what plans depend on --------------------------------------------------------------------


def home_of(session: Session, grid: Mesh | None) -> Layout:
    """Where results of a session with a worker go: to this mesh, its mesh "", or else its first worker."""
    own = grid or session.meshes.get("")
    if own is not None:
        return plain_layout(layout(own))
    assert session.first is not None
    return session.first.layout


def place_of(session: Session, home: Layout, followed: Mapping[str, Followed]) -> tuple[object, ...]:
    """What the plans of a session depend on beside the layouts of inputs: the first part of their keys."""
    named = sorted((name, m) for name, m in session.meshes.items() if name)
    digests = [each.digest for each in followed.values()]
    return (home, session.split, *(each for pair in named for each in pair), *digests)


def set_home(session: Session) -> None:
    """The session's workers, meshes or plans have changed."""
    if session.first is None:
        session.place = ()
        return
    session.home = home_of(session, session.grid)
    session.place = place_of(session, session.home, session.followed)


# --- making plans ----------------------------------------------------------------------------


def plan_alone(entry: CachedProgram, at: Layout) -> ProgramPlan:
    """One worker holds all inputs, runs the client's program and holds the results."""
    outputs = [tensor_at(s, at) for s in entry.outputs]
    layouts = [at] * len(entry.inputs)
    (number,) = at.mesh.workers
    change = _change_nbytes(entry, layouts, outputs)
    more = change.get(number, 0)
    local = LocalPlan(entry.program, entry.hash, max(entry.need_nbytes, more), more)
    return _plan(entry, layouts, outputs, {number: local})


def plan_nowhere(entry: CachedProgram) -> ProgramPlan:
    """The plan of one call that is refused while there is no worker."""
    return ProgramPlan(entry, {}, (), {}, 0, uses=1)


def plan_together(entry: CachedProgram, layouts: Sequence[Layout], planned: Planned) -> ProgramPlan:
    """What the planner made, for several workers."""
    outputs = [tensor_at(s, plain_layout(at)) for s, at in zip(entry.outputs, planned.outputs, strict=True)]
    change = _change_nbytes(entry, layouts, outputs)
    locals_ = {}
    for number in planned.workers:
        local = planned.locals[number]
        absent = tuple(i for i, at in enumerate(layouts) if number not in at.mesh.workers)
        more = change.get(number, 0)
        # A result that is a view of an input needs no memory before it is kept: then it is copied.
        need = max(planned.nbytes.get(number, 0), more)
        locals_[number] = LocalPlan(
            local.program, local.program.hash(), need, more, local.constants, absent, local.origins
        )
    return _plan(entry, layouts, outputs, locals_)


def plan_refusal(entry: CachedProgram, layouts: Sequence[Layout], home: Layout) -> ProgramPlan:
    """What is sent of a call that may not run: local programs that compute nothing and say only which results replace
    which inputs. It needs no planner, and no worker waits for another because of it."""
    workers = tuple(sorted({n for at in (home, *layouts) for n in at.mesh.workers}))
    sources = {o: i for o, i in entry.program.updates if entry.outputs[o] is entry.inputs[i]}
    outputs = [tensor_at(s, layouts[sources[o]] if o in sources else home) for o, s in enumerate(entry.outputs)]
    change = _change_nbytes(entry, layouts, outputs)
    locals_ = {}
    for number in workers:
        inputs = tuple(_held(s, at, number) for s, at in zip(entry.inputs, layouts, strict=True))
        absent = tuple(i for i, at in enumerate(layouts) if number not in at.mesh.workers)
        made = [inputs[sources[o]] if o in sources else EMPTY for o in range(len(entry.outputs))]
        code = tuple(Instruction("full", (~0,), {"shape": list(shape), "dtype": dtype}) for shape, dtype in made)
        results = tuple(range(len(inputs), len(inputs) + len(made)))
        updates = tuple((o, i) for o, i in sources.items() if i not in absent)
        donate = tuple(d for d in entry.program.donate if d not in absent)
        program = Program(inputs, "i", code, results, donate, updates)
        locals_[number] = LocalPlan(program, program.hash(), 0, change.get(number, 0), absent=absent)
    return _plan(entry, layouts, outputs, locals_)


def _plan(
    entry: CachedProgram, layouts: Sequence[Layout], outputs: Sequence[Tensor], locals_: Mapping[int, LocalPlan]
) -> ProgramPlan:
    kept = {
        o: i for o, i in entry.program.updates if outputs[o].spec is entry.inputs[i] and outputs[o].layout is layouts[i]
    }
    return ProgramPlan(entry, locals_, tuple(outputs), kept, sum(local.change_nbytes for local in locals_.values()))


def _change_nbytes(entry: CachedProgram, layouts: Sequence[Layout], outputs: Iterable[Tensor]) -> dict[int, int]:
    """By worker: the bytes of the results, less those of the donated inputs."""
    change: dict[int, int] = {}
    donated = [tensor_at(entry.inputs[d], layouts[d]) for d in entry.program.donate]
    for sign, tensors in ((1, outputs), (-1, donated)):
        for tensor in tensors:
            for number, nbytes in tensor.parts.items():
                change[number] = change.get(number, 0) + sign * nbytes
    return change


def _held(s: Spec, at: Layout, worker: int) -> tuple[tuple[int, ...], str]:
    """What a worker has of a tensor, as a program's input."""
    if worker not in at.mesh.workers:
        return EMPTY
    return local_shape(at, s.shape, at.mesh.coordinates[at.mesh.workers.index(worker)]), s.dtype.name


def plain_layout(at: Layout) -> Layout:
    """On one worker there is one layout, whatever the axes of its mesh."""
    return whole(at.mesh.workers[0]) if len(at.mesh.workers) == 1 else at


def plain(s: Spec) -> Spec:
    """The spec of a value outside its program: a tensor is never a Python number."""
    return spec(s.shape, s.dtype) if s.weak else s


def _in_place_nbytes(checked: Checked) -> int:
    """Bytes of results that an engine can write into the donated inputs they replace.

    Counting them would refuse a model of half the worker's memory, which trains well: its optimizer
    overwrites parameters and state.
    """
    program = checked.program
    wanted = {program.outputs[o]: i for o, i in program.updates if i in program.donate}
    if not wanted:
        return 0
    return sum(
        checked.specs[v].nbytes
        for ins, made in program.numbered()
        for v, a in zip(made, TABLE[ins.op].inplace, strict=False)
        if v in wanted and ins.args[a] == wanted[v]
    )


def _sizes(checked: Checked) -> Iterator[int]:
    """The numbers of elements that each instruction reads and writes."""
    specs = checked.specs
    for ins, made in checked.program.numbered():
        yield sum(specs[a].size for a in ins.args if a >= 0) + sum(specs[v].size for v in made)


def _pinned(checked: Checked) -> tuple[tuple[int, ...], bool]:
    """The outputs whose layout the program says, and whether it says one of any value."""
    said = {made.start for ins, made in checked.program.numbered() if TABLE[ins.op].pins}
    return tuple(o for o, value in enumerate(checked.program.outputs) if value in said), bool(said)


# --- outside the event loop ------------------------------------------------------------------

Planner = Callable[..., Planned]  #: as plan_program


def work_off(job: CheckProgram | MakePlan, planner: Planner = plan_program) -> ProgramChecked | PlanReady:
    """The answer to what the machine asks for. Nothing that a program does to it comes out as an exception; tests may
    bring a planner of their own."""
    if isinstance(job, CheckProgram):
        try:
            return ProgramChecked(job.program, check_client(job.text))
        except Exception as e:
            return ProgramChecked(job.program, None, str(e) or type(e).__name__)
    try:
        return PlanReady(job.program, job.key, _follow(job, planner))
    except Exception as e:
        kind = type(e).__name__
        text = str(e) if kind in BY_NAME else f"the program could not be planned: {kind}: {e}"
        failure = Failure(kind if kind in BY_NAME else "ServerError", text, job.program)
        return PlanReady(job.program, job.key, None, failure)


def _follow(job: MakePlan, planner: Planner) -> Planned:
    """The plan with the client's choices, if it made some for this body and mesh, as far as they fit."""
    given = (job.checked, job.inputs, job.home, job.meshes)
    mine = job.followed.get(job.checked.program.body()) if job.followed else None
    if mine is None:
        return planner(*given, None, job.split_new)
    if mine.axes != job.home.axes:
        note = f"choices for the mesh {dict(mine.axes)} are not followed on {dict(job.home.axes)}"
    else:
        try:
            return planner(
                *given, mine.ways, job.split_new and not mine.solved
            )  # the solver has decided on new values too
        except Exception as e:  # a stranger's choices may break the planner in any way; the call must not fail
            note = f"choices were not followed: {type(e).__name__}: {e}"
    made = planner(*given, None, job.split_new)
    return replace(made, notes=(note, *made.notes))


# --- the cache -------------------------------------------------------------------------------


@dataclass(slots=True)
class LocalText:
    """A local program that the planner wrote."""

    program: Program
    count: int = 0  #: local plans that have it


class ProgramCache:
    """The cache, and who waits for what to arrive in it."""

    def __init__(self, limit_nbytes: int) -> None:
        self.limit_nbytes = limit_nbytes
        self.nbytes = 0  #: the sum over all entries
        self._kept: OrderedDict[bytes, CachedProgram] = OrderedDict()  #: least recently used first
        self._timed: OrderedDict[bytes, CachedProgram] = OrderedDict()  #: those that a timer cut, in the same order
        self.last_used = b""  #: stays: one program over the limit would else be asked for for ever
        #: Program -> the sessions, by number, whose head waits for it to be sent, checked or planned.
        self.waiting: dict[bytes, dict[int, Session]] = {}
        self._locals: dict[bytes, LocalText] = {}

    def __len__(self) -> int:
        return len(self._kept) + len(self._timed)

    def __contains__(self, name: bytes) -> bool:
        return name in self._kept or name in self._timed or name in self._locals

    def knows(self, name: bytes, session: Session) -> bool:
        """Whether a program of this name is here that this session has sent."""
        entry = self._kept.get(name) or self._timed.get(name)
        return entry is not None and session.number in entry.owners

    def __iter__(self) -> Iterator[CachedProgram]:
        yield from self._timed.values()
        yield from self._kept.values()

    def get(self, program: bytes) -> CachedProgram | None:
        """The entry of this hash, which thereby is the last used."""
        shelf = self._kept if program in self._kept else self._timed
        entry = shelf.get(program)
        if entry is not None and program != self.last_used:
            shelf.move_to_end(program)
            self.last_used = program
        return entry

    def add(self, program_hash: bytes, program: Program, timed: bool, compile: int = 0) -> CachedProgram:
        entry = CachedProgram(program_hash, program, len(_encode(program)), timed, compile)
        (self._timed if timed else self._kept)[program_hash] = entry
        self.nbytes += entry.nbytes
        self.last_used = program_hash
        return entry

    def keep(self, entry: CachedProgram) -> None:
        """It was cut by a timer once, now it ended by itself: it no longer goes first."""
        if entry.timed:
            entry.timed = False
            self._kept[entry.hash] = self._timed.pop(entry.hash)

    def finish(self, entry: CachedProgram, checked: Checked | None, error: str) -> None:
        """The check is done."""
        if checked is None:
            entry.error = error or "no reason given"
            return
        before = entry.nbytes
        entry.accept(checked)
        self.nbytes += entry.nbytes - before

    def evict(self) -> list[CachedProgram]:
        """Forget what is over the limit; returns it."""
        gone: list[CachedProgram] = []
        for shelf in (self._timed, self._kept):
            for entry in list(shelf.values()):
                if self.nbytes <= self.limit_nbytes:
                    return gone
                if entry.spare and entry.hash != self.last_used:
                    del shelf[entry.hash]
                    self.nbytes -= entry.nbytes
                    gone.append(entry)
        return gone

    # --- plans ---

    def add_plan(self, key: PlanKey, made: ProgramPlan) -> list[bytes]:
        """Enter a plan under a key that is free; returns local programs that went for it."""
        entry = made.entry
        assert key not in entry.plans
        gone: list[bytes] = []
        for old in list(entry.plans):
            if len(entry.plans) < PLANS_PER_PROGRAM:
                break
            if not entry.plans[old].uses:
                gone += self._drop_plan(entry, old)
        entry.plans[key] = made
        seen: set[int] = set()  # workers that do the same share their instructions
        for local in _written(made):
            text = self._locals.setdefault(local.hash, LocalText(local.program))
            text.count += 1
            code = text.program.code
            made.nbytes += 200 + 8 * len(code) + 400 * sum(id(ins) not in seen for ins in code)
            seen.update(map(id, code))
        entry.nbytes += made.nbytes
        self.nbytes += made.nbytes
        return gone

    def drop_plans(self, entry: CachedProgram, worker: int = 0) -> list[bytes]:
        """Forget a program's plans, or those with this worker; returns local programs that no plan has any more."""
        chosen = [k for k, p in entry.plans.items() if not p.uses and (not worker or worker in p.locals)]
        return [name for key in chosen for name in self._drop_plan(entry, key)]

    def _drop_plan(self, entry: CachedProgram, key: PlanKey) -> list[bytes]:
        old = entry.plans.pop(key)
        entry.latest = None
        gone: list[bytes] = []
        for local in _written(old):
            text = self._locals[local.hash]
            text.count -= 1
            if not text.count:
                del self._locals[local.hash]
                gone.append(local.hash)
        entry.nbytes -= old.nbytes
        if entry.hash in self._kept or entry.hash in self._timed:
            self.nbytes -= old.nbytes
        return gone

    def text(self, name: bytes) -> Program | None:
        """The program of this hash: a client's that was checked, or one that the planner wrote."""
        entry = self.get(name)
        if entry is not None and entry.checked is not None:
            return entry.program
        return self._locals[name].program if name in self._locals else None

    def local_counts(self) -> dict[bytes, int]:
        """How many local plans have each program that the planner wrote."""
        return {name: text.count for name, text in self._locals.items()}

    def wait(self, session: Session, program: bytes) -> None:
        session.blocked_on = program
        self.waiting.setdefault(program, {})[session.number] = session

    def stop_waiting(self, session: Session) -> None:
        if session.blocked_on:
            waiters = self.waiting[session.blocked_on]
            del waiters[session.number]
            if not waiters:
                del self.waiting[session.blocked_on]
            session.blocked_on, session.asked = b"", False


def _written(plan: ProgramPlan) -> list[LocalPlan]:
    """The local plans whose programs are not the client's own."""
    return [local for local in plan.locals.values() if local.hash != plan.entry.hash]
