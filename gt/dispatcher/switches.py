"""The plan of a program changes under a running loop.

A client that asked for it (`split`) and says nothing about layouts runs as the fast planner decides, op by op. Once a
program has run for `plan_after_s` seconds, the best plan for it is searched for in another process (`Solve`). If that
promises to be faster by more than the change costs, the session is switched to it:

    SOLVING    the search is under way                           -> `solved`
    PREPARING  plans of the program and of the moves are made    -> `plans_made`
               the workers make their code, and compile it       -> `prepared`
    READY      the next call of the program waits until those before it are finished
    MOVING     tensors move to the layouts of the plan (moves.py)
    TRIAL      the program runs as the new plan says; if it is not faster, it is switched back, by the same way

Law 1: the loop goes on in every stage but MOVING. Whatever fails, the session runs on with the layouts that it has.
Law 2: a program is switched to each plan that was found at most once, and back from it at most once; what was decided
       in the end stays. What a search predicts of another number of workers may be wrong: so the other plans that it
       found are tried too, if they may be faster (`Tuned.left`). Between two trials a session makes APART calls.
Law 3: what the client placed itself stays where it is; programs that place values are left alone.
Law 4: old and new are compared by what calls took on the same tier (timing.py).
Law 5: programs share tensors. The one that takes the most time decides where they are; the others are planned for the
       layouts that are there.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

import msgspec

from gt.dispatcher import calls, moves, plans
from gt.dispatcher.events import Decided, FoundPlan, MakePlan, PlanSolved, Solve
from gt.dispatcher.moves import Batch, MovesUnderWay, Want
from gt.dispatcher.plans import CachedProgram, PlanKey, ProgramPlan, home_of, place_of, plain_layout, set_home
from gt.dispatcher.session import Followed, SentCall, Session
from gt.dispatcher.state import State, Worker
from gt.dispatcher.timing import ENOUGH, Times, call_us, compare, step_us, top
from gt.errors import ArgumentError, GTError
from gt.layout import Layout, Mesh, fits, mesh, parse
from gt.program import Spec
from gt.transport.messages import Buffer, Define, Prepare, Prepared

PROGRAMS = 256  #: Programs of a session that are watched.
RUNS = ENOUGH  #: Calls of a program before it is solved, beside the time that they took.
APART = 500  #: Calls of a session from a change of its plans to the next search or trial.
RECENT = 1000  #: A program that did not run in so many calls of its session decides nothing any more.
GAIN = 0.95  #: A plan is switched to if it promises to take at most this part of the time,
DOUBT = 1.5  #: or this part, on a number of workers of which nothing was tried: that is predicted less well.
WORTH_S = 60.0  #: A switch has to pay for itself within so many seconds of running,
COPY_RATE = 0.5e9  #: if so many bytes are copied in a second.
FOUND = "plans were found; what runs now is timed first"
PREPARE_S = 120.0  #: The longest that workers may take to make its code; then it is begun without.

_encode = msgspec.msgpack.Encoder(order="deterministic").encode


class Stage(Enum):
    SOLVING = "solving"
    PREPARING = "preparing"
    READY = "ready"
    MOVING = "moving"
    TRIAL = "trial"


@dataclass(slots=True, eq=False)
class Tuned:
    """What a session knows of its programs with one body: they differ in what they return."""

    spent_us: int = 0
    runs: int = 0
    last: int = 0  #: how many calls the session had had when it last ran
    sent: SentCall | None = None  #: its last call
    decision: str = ""  #: why its plan is as it is; "": nothing was decided
    text: str = ""  #: what the search said about the plan that it runs
    predicted_us: float = 0.0  #: of that plan
    times: dict[int, Times] = field(default_factory=dict)  #: of calls since its plan last changed, by tier
    left: list[FoundPlan] = field(default_factory=list)  #: plans that may be tried
    found_us: int = 0  #: what a call took when they were found,
    scale: float = 1.0  #: and that for each predicted microsecond;
    scales: dict[int, float] = field(default_factory=dict)  #: the same of plans that were tried, by number of workers

    @property
    def is_decided(self) -> bool:
        """Whether its plan stays as it is."""
        return bool(self.decision) and not self.left


@dataclass(slots=True, eq=False)
class Side:
    """A way to run the program: before or after the switch."""

    grid: Mesh | None
    followed: Mapping[str, Followed]
    layouts: tuple[Layout, ...]  #: of the inputs
    uploads: Mapping[Spec, Layout]


@dataclass(slots=True, eq=False)
class Switch:
    """One change of plan, from the search to its end."""

    entry: CachedProgram
    stage: Stage
    old: Side
    since_s: float
    fresh: tuple[int, ...]  #: inputs that are new at each call: they do not move
    new: Side | None = None
    keys: list[PlanKey] = field(default_factory=list)  #: of the plans that the program needs after the switch
    #: Workers that are making the code of its plans, and the programs; None: the plans are not made yet.
    awaited: set[tuple[int, bytes]] | None = None
    batches: list[Batch] = field(default_factory=list)
    held: list[ProgramPlan] = field(default_factory=list)  #: plans that must not be forgotten
    copied: MovesUnderWay | None = None
    before: ProgramPlan | None = None  #: what ran before,
    times: dict[int, Times] = field(default_factory=dict)  #: and its times
    back: bool = False  #: it leads back,
    why: str = ""  #: for this reason
    predicted_us: float = 0.0
    text: str = ""

    def let_go(self) -> None:
        """Its plans may be forgotten."""
        while self.held:
            self.held.pop().uses -= 1


# --- what is hot -----------------------------------------------------------------------------


def ran(state: State, session: Session, sent: SentCall) -> None:
    """A call of a session that may be switched has succeeded."""
    plan, switch = sent.plan, session.switch
    last_s, session.ended_s = session.ended_s or state.now_s, state.now_s
    body = plan.entry.body
    tuned = session.tuned.get(body)
    if tuned is None:
        tuned = session.tuned[body] = Tuned()
        if len(session.tuned) > PROGRAMS:
            del session.tuned[next(iter(session.tuned))]
    tuned.spent_us += sent.run_us
    tuned.runs += 1
    tuned.last = session.calls
    last, tuned.sent = tuned.sent, sent
    if sent.tier not in tuned.times:
        tuned.times[sent.tier] = Times()
    calm = switch is None or switch.stage not in (Stage.SOLVING, Stage.PREPARING)
    tuned.times[sent.tier].note(sent.run_us, int((state.now_s - last_s) * 1e6), calm)
    if switch is not None:
        if switch.stage is Stage.TRIAL and switch.entry.body == body:
            _judge(state, session, switch, tuned, plan)
        elif switch.awaited and state.now_s - switch.since_s > PREPARE_S:
            _ready(switch)
    elif not tuned.is_decided and tuned.runs >= RUNS and last is not None and len(last.inputs) == len(sent.inputs):
        after_s = state.settings.plan_after_s
        if after_s > 0 and tuned.spent_us >= after_s * 1e6 and _may_solve(session, tuned):
            _solve(state, session, tuned, sent, last.inputs)


def _may_solve(session: Session, tuned: Tuned) -> bool:
    """Whether it is this program's turn: nothing was switched lately, it was timed in calm, and those that take more
    time are decided."""
    if not _is_timed(tuned):
        return False
    if session.switched and session.calls - session.switched < APART:
        return False
    return all(each.is_decided for each in _leaders(session, tuned))


def _is_timed(tuned: Tuned) -> bool:
    """Whether it is known what its calls take while nothing is searched for or prepared."""
    return not tuned.times or tuned.times[top(tuned.times)].is_calm


def _leaders(session: Session, tuned: Tuned) -> list[Tuned]:
    """The programs of a session that take more time than this one, and still run: see Law 5."""
    return [
        each for each in session.tuned.values()
        if each.spent_us > tuned.spent_us and each.runs >= RUNS and session.calls - each.last < RECENT
    ]  # fmt: skip


def _solve(state: State, session: Session, tuned: Tuned, sent: SentCall, last: Sequence[int]) -> None:
    """Ask for the best plan of a program that has just run, or try another one of those that were found."""
    entry, now, own = sent.plan.entry, sent.inputs, session.grid or session.meshes.get("")
    updated = {i: sent.outputs + o for o, i in entry.program.updates}
    carried, given = _made_by_others(session, tuned)
    lasting = [k for k in range(len(now)) if k in updated or now[k] == last[k] or now[k] in carried]
    kept = [k for k in range(len(now)) if k in lasting or now[k] in given]
    if own is None or entry.sets_layouts or any(not each.solved for each in session.followed.values()):
        tuned.left.clear()
        _decide(state, session, entry, "the client says how it runs")
        return
    layouts, fresh = _layouts(sent.plan), [k for k in range(len(now)) if k not in kept]
    follows = bool(_leaders(session, tuned))
    # What another program makes anew for each call has the layout in which it is made.
    pinned = [k for k in kept if follows or k not in lasting or updated.get(k, now[k]) in session.pins]
    # Uploads are told apart by their specs alone: see `upload_layouts`.
    pinned += [k for k in fresh if follows and session.upload_layouts.get(entry.inputs[k]) is layouts[k]]
    alike: dict[Spec, list[int]] = {}
    for k in fresh:
        alike.setdefault(entry.inputs[k], []).append(k)
    pins = {k: repr(layouts[k]) for k in pinned}
    texts = tuple([repr(at) if at.mesh is own or len(own.workers) == 1 else "" for at in layouts])
    if any(not texts[k] for k in pins):
        tuned.left.clear()
        _decide(state, session, entry, "its inputs are on several meshes")
        return
    session.switch = Switch(
        entry, Stage.SOLVING, Side(session.grid, session.followed, layouts, session.upload_layouts), state.now_s,
        tuple(fresh), before=_held(sent.plan), held=[sent.plan],
    )  # fmt: skip
    if tuned.decision:
        if pins:  # they were found for other circumstances
            tuned.left.clear()
        _try(state, session, session.switch, tuned)
        return
    said = session.meshes.get("", own)
    fixed = bool(pins) or len(said.axes) > 1  # a grid was asked for
    most = own.axes if pins else said.axes
    memory = min((w.memory for w in session.workers.values() if w.memory), default=0)
    device = next((w.device for w in session.workers.values()), "")
    plain = tuned.times.get(1)  # as programs run while the hardware is measured
    state.out.append(Solve(
        session.number, entry.hash, entry.program, most, fixed, own.axes, texts, pins, memory, device,
        plain.us if plain is not None else 0, tuple([tuple(each) for each in alike.values() if len(each) > 1]),
    ))  # fmt: skip


def _made_by_others(session: Session, tuned: Tuned) -> tuple[set[int], set[int]]:
    """What the last calls of a session's other programs have made: tensors that they have replaced, such as parameters,
    and all others."""
    carried: set[int] = set()
    given: set[int] = set()
    for each in session.tuned.values():
        if each is not tuned and each.sent is not None:
            first, entry = each.sent.outputs, each.sent.plan.entry
            over = {o for o, _ in entry.program.updates}
            for o in range(len(entry.outputs)):
                (carried if o in over else given).add(first + o)
    return carried, given


def _layouts(plan: ProgramPlan) -> tuple[Layout, ...]:
    """The layouts of the inputs that a plan was made for: the last part of its key. () if the plan was forgotten."""
    key = next((key for key, each in plan.entry.plans.items() if each is plan), ())
    return key[len(key) - len(plan.entry.inputs) :]  # type: ignore[return-value]  # see PlanKey


def _held(plan: ProgramPlan) -> ProgramPlan:
    """A plan that must not be forgotten."""
    plan.uses += 1
    return plan


# --- what was found --------------------------------------------------------------------------


def solved(state: State, event: PlanSolved) -> None:
    """The search is over."""
    session = state.sessions.get(event.session)
    switch = session.switch if session is not None else None
    if session is None or switch is None or switch.stage is not Stage.SOLVING or switch.entry.hash != event.program:
        return
    if event.error:
        _end(state, session, switch, f"no better plan was found: {event.error}")
        return
    tuned = session.tuned.get(switch.entry.body)
    assert switch.before is not None
    if tuned is None:
        _end(state, session, switch, "stays: it has not run for a long time")
        return
    now_us = tuned.found_us = call_us(tuned.times)
    tuned.left = list(event.plans)
    tuned.scale = now_us / event.current_us if event.current_us else 1.0
    more = ""
    best_us = min([each.time_us for each in event.plans], default=0.0) * tuned.scale
    if 0 < event.alone_us * tuned.scale < GAIN * min(best_us, now_us):
        more = (
            f"; on one worker {event.alone_us * tuned.scale:,.0f}, but other programs need its tensors where they are"
        )
    if tuned.left and not _is_timed(tuned):  # it was compiled during the search, for instance
        _end(state, session, switch, FOUND)
    else:
        _try(state, session, switch, tuned, more)


def _try(state: State, session: Session, switch: Switch, tuned: Tuned, more: str = "") -> None:
    """Begin the change to the next plan that may be worth it. If there is none, the plan stays as it is."""
    assert switch.before is not None
    now_us, why = call_us(tuned.times), tuned.decision
    if why == FOUND:
        tuned.scale, why = tuned.scale * now_us / max(tuned.found_us, 1), ""
    for plan in [*tuned.left]:
        expected_us = tuned.scale * plan.time_us
        says = f"{now_us:,} us a call; {expected_us:,.0f} expected of {plan.words or 'the best plan'}{more}"
        if not _may_be_faster(tuned, plan, now_us, switch.before):
            why = why or f"stays: {says}"
            continue  # it may be, beside another one that is tried now
        tuned.left.remove(plan)
        try:
            new = _new_side(session, switch, plan)
        except GTError as e:
            why = why or f"stays: {type(e).__name__}: {e}"
            continue
        wants = _wants(switch, new)
        cost_s = sum(w.spec.nbytes for w in wants) / COPY_RATE
        if expected_us < now_us and (1 - expected_us / now_us) * WORTH_S < cost_s:
            why = why or f"stays: {says}, but the change takes {cost_s:.1f} s"
            continue
        switch.predicted_us, switch.text = plan.time_us, plan.text
        _say(state, session, switch.entry, f"changes: {says}")
        _prepare(state, session, switch, new)
        return
    tuned.left.clear()
    _end(state, session, switch, why or "stays: no plan was found")


def _may_be_faster(tuned: Tuned, plan: FoundPlan, now_us: int, now: ProgramPlan) -> bool:
    """Whether a plan is worth a trial, beside one that takes so long."""
    n = math.prod(n for _, n in plan.axes)
    part = GAIN if n == len(now.locals) or n in tuned.scales else DOUBT
    return tuned.scales.get(n, tuned.scale) * plan.time_us <= part * now_us


def _new_side(session: Session, switch: Switch, event: FoundPlan) -> Side:
    """What a plan says, for the workers of a session. Raises GTError if it says what cannot be."""
    entry, n = switch.entry, math.prod(size for _, size in event.axes)
    workers = session.meshes[""].workers if "" in session.meshes else ()
    if len(event.layouts) != len(entry.inputs) or not 0 < n <= len(workers):
        raise ArgumentError("the plan is for another program or mesh")
    grid = mesh(workers[:n], **dict(event.axes))
    layouts = []
    for k, (text, s) in enumerate(zip(event.layouts, entry.inputs, strict=True)):
        one = parse(text, grid)
        fits(one, s.shape)
        # A partial sum, such as a gradient that is added to, comes as it is.
        layouts.append(switch.old.layouts[k] if one.partial else plain_layout(one))
    followed = {body: each for body, each in session.followed.items() if body != entry.body}
    if n > 1:
        digest = hashlib.sha256(_encode((event.axes, sorted(event.ways.items())))).digest()
        followed[entry.body] = Followed(event.axes, event.ways, digest, solved=True)
    uploads: dict[Spec, Layout] = dict(session.upload_layouts) if grid is session.grid else {}
    uploads.update({entry.inputs[k]: layouts[k] for k in switch.fresh})
    return Side(grid, followed, tuple(layouts), uploads)


def _wants(switch: Switch, new: Side) -> list[Want]:
    old, fresh = switch.old.layouts, switch.fresh
    return [
        Want(k, s, old[k], new.layouts[k]) for k, s in enumerate(switch.entry.inputs)
        if k not in fresh and old[k] is not new.layouts[k]
    ]  # fmt: skip


# --- getting ready ---------------------------------------------------------------------------


def _prepare(state: State, session: Session, switch: Switch, new: Side) -> None:
    """Ask for every plan that it takes."""
    entry, switch.new, switch.stage, switch.since_s = switch.entry, new, Stage.PREPARING, state.now_s
    home = home_of(session, new.grid)
    place = place_of(session, home, new.followed)
    # Uploads that are on their way have the layouts of the old plan.
    first = tuple([switch.old.layouts[k] if k in switch.fresh else at for k, at in enumerate(new.layouts)])
    switch.keys = [(*place, *layouts) for layouts in dict.fromkeys((first, new.layouts))]
    for key, layouts in zip(switch.keys, dict.fromkeys((first, new.layouts)), strict=True):
        if key in entry.plans or key in entry.planning:
            continue
        if len(home.mesh.workers) == 1 and all(at is home for at in layouts):
            calls.add_plan(state, key, plans.plan_alone(entry, home))
            continue
        assert entry.checked is not None
        entry.planning[key] = None
        grid = new.grid or session.meshes.get("", home.mesh)
        meshes = dict(session.meshes)
        followed, split_new = new.followed, session.split
        state.out.append(MakePlan(entry.hash, key, entry.checked, layouts, grid, meshes, followed, split_new))
    wants = _wants(switch, new)
    switch.batches = moves.prepare(state, wants, new.grid or home.mesh) if wants else []
    plans_made(state, session)


def plans_made(state: State, session: Session) -> None:
    """A plan was made: maybe it was the last one that a switch needs."""
    switch = session.switch
    if switch is None or switch.stage is not Stage.PREPARING:
        return
    entry = switch.entry
    wanted = [(entry, key) for key in switch.keys] + [(batch.entry, batch.key) for batch in switch.batches]
    found = [each.plans.get(key) for each, key in wanted]
    for plan in found:
        if plan is not None and plan not in switch.held:
            switch.held.append(_held(plan))
    refused = next((plan.refused for plan in found if plan is not None and plan.refused is not None), None)
    if refused is not None:
        _end(state, session, switch, f"stays: {refused.text}")
    elif any(plan is None and key not in each.planning for plan, (each, key) in zip(found, wanted, strict=True)):
        _end(state, session, switch, "stays: a plan for it could not be made")
    elif None not in found and switch.awaited is None:
        switch.awaited = set()
        tuned = session.tuned.get(entry.body)
        compiled = tuned is not None and 3 in tuned.times
        for plan in found:
            if plan is not None:
                _define(state, session, switch, plan, compiled and plan.entry is entry)


def _define(state: State, session: Session, switch: Switch, plan: ProgramPlan, compiled: bool) -> None:
    """Send the workers what they will run, and have them make its code."""
    compile, awaited = 1 if compiled else plan.entry.compile, switch.awaited
    assert awaited is not None
    for number, local in plan.locals.items():
        worker = state.workers[number]
        if (number, local.hash) in awaited:
            continue
        if local.hash not in worker.programs or compile > plan.entry.compile:
            worker.programs.add(local.hash)
            state.send(worker.control, Define(local.program, plan.entry.timed, compile))
        awaited.add((number, local.hash))
        state.send(worker.control, Prepare(session.number, local.hash))


def prepared(state: State, worker: Worker, message: Prepared, _: Buffer | None) -> None:
    """A worker has the code of a program."""
    session = state.sessions.get(message.session)
    switch = session.switch if session is not None else None
    if switch is not None and switch.awaited:
        switch.awaited.discard((worker.number, message.program))
        if not switch.awaited:
            _ready(switch)


def _ready(switch: Switch) -> None:
    switch.stage, switch.awaited = Stage.READY, None


# --- the change ------------------------------------------------------------------------------


def may_run(state: State, session: Session, entry: CachedProgram, acked: int, inputs: Sequence[int]) -> bool:
    """Whether the call at the head of a queue may run now. If not, it waits for those before it, or for moves."""
    switch = session.switch
    if switch is None or switch.stage is Stage.MOVING:
        return switch is None
    if switch.stage is not Stage.READY or switch.entry is not entry:
        return True
    if session.sent:
        return False
    wants = [want for batch in switch.batches for want in batch.wants]
    ids = [inputs[w.position] for w in wants]
    if len(set(ids)) < len(ids) or any(
        session.tensors[i].layout is not w.before for i, w in zip(ids, wants, strict=True)
    ):
        _end(state, session, switch, "stays: its inputs are not where they were")
        return True
    problem = moves.no_room(state, session, switch.batches)
    if problem:
        _end(state, session, switch, f"stays: {problem}")
        return True
    if not wants:
        _arrive(state, session, switch)
        return True
    switch.stage = Stage.MOVING
    switch.copied = moves.begin(session, switch.batches, inputs, acked)
    return False


def move_answered(state: State, session: Session) -> None:
    """A worker has answered a move."""
    moving, switch = session.moving, session.switch
    if moving is None or moving.left or switch is None or switch.copied is None:
        return
    if moving.failure is not None:
        _end(state, session, switch, f"stays: {moving.failure.kind}: {moving.failure.text}")
    elif moves.done(session, switch.copied):
        moves.commit(state, session, switch.copied)
        switch.copied = None
        _arrive(state, session, switch)


def _arrive(state: State, session: Session, switch: Switch) -> None:
    """All tensors are where the new plan wants them."""
    new = switch.new
    assert new is not None
    session.grid, session.followed, session.upload_layouts = new.grid, new.followed, new.uploads
    session.switched = max(session.calls, 1)
    set_home(session)
    tuned = session.tuned.get(switch.entry.body)
    if tuned is not None:
        # What is said of the plan before is kept: it may lead back there.
        switch.text, tuned.text = tuned.text, switch.text
        switch.predicted_us, tuned.predicted_us = tuned.predicted_us, switch.predicted_us
        switch.times, tuned.times = tuned.times, switch.times
    if switch.back:
        _end(state, session, switch, switch.why)
    else:
        switch.stage, switch.since_s = Stage.TRIAL, state.now_s


def _judge(state: State, session: Session, switch: Switch, tuned: Tuned, plan: ProgramPlan) -> None:
    """Compare what the new plan takes with what the old one took. Law 4."""
    assert switch.before is not None
    more = len(plan.locals) / len(switch.before.locals)
    found = compare(switch.times, tuned.times, state.now_s - switch.since_s, more)
    if found is None or not found.over:
        return
    says = found.text
    tuned.scales[len(plan.locals)] = call_us(tuned.times) / max(tuned.predicted_us, 1.0)
    kept, times = (switch.before, switch.times) if found.is_slower else (plan, tuned.times)
    tuned.left = [each for each in tuned.left if _may_be_faster(tuned, each, call_us(times), kept)]
    if not found.is_slower:
        _end(state, session, switch, f"changed: {says}")
        return
    _say(state, session, switch.entry, f"changes back: {says}")
    assert switch.new is not None
    back = Switch(switch.entry, Stage.PREPARING, switch.new, state.now_s, switch.fresh, before=switch.before, back=True)
    back.held, back.times, switch.held = switch.held, switch.times, []
    back.text, back.predicted_us = switch.text, switch.predicted_us
    back.why = f"stays: the plan that was found took {says}"
    session.switch = back
    _prepare(state, session, back, switch.old)


# --- endings ---------------------------------------------------------------------------------


def _end(state: State, session: Session, switch: Switch, why: str) -> None:
    """A switch is over, or is given up. What was copied and has not arrived is dropped."""
    session.switch = None
    if switch.copied is not None:
        moves.give_up(state, session, switch.copied)
    switch.let_go()
    _decide(state, session, switch.entry, why)


def forget(state: State, session: Session, why: str) -> None:
    """The session's workers or wishes have changed: plans that were found for it are of no use."""
    if session.switch is not None:
        _end(state, session, session.switch, f"stays: {why}")
    session.tuned.clear()
    session.grid, session.upload_layouts = None, {}
    session.followed = {body: each for body, each in session.followed.items() if not each.solved}


def _decide(state: State, session: Session, entry: CachedProgram, why: str) -> None:
    tuned = session.tuned.get(entry.body)
    if tuned is None or tuned.decision != why:
        _say(state, session, entry, why)
    if tuned is not None:
        tuned.decision = why


def _say(state: State, session: Session, entry: CachedProgram, text: str) -> None:
    state.out.append(Decided(session.number, entry.hash, text))


def about(session: Session) -> list[dict[str, object]]:
    """What is known of the plans of a session's programs, for the client: the most expensive program first."""
    rows: list[dict[str, object]] = []
    for body, tuned in sorted(session.tuned.items(), key=lambda each: -each[1].spent_us)[:8]:
        plan, switch = tuned.sent.plan if tuned.sent is not None else None, session.switch
        if plan is not None:
            mine = switch if switch is not None and switch.entry.body == body else None
            is_timed = tuned.decision != FOUND  # else nothing is decided yet
            more = f"; another plan may be tried after {APART} calls" if tuned.left and mine is None else ""
            rows.append({
                "program": plan.entry.hash.hex(), "instructions": len(plan.entry.program.code), "runs": tuned.runs,
                "run_us": tuned.spent_us, "measured_us": call_us(tuned.times), "step_us": step_us(tuned.times),
                "predicted_us": tuned.predicted_us, "workers": list(plan.locals), "text": tuned.text,
                "decision": tuned.decision + more if is_timed else "",
                "stage": mine.stage.value if mine is not None else "" if is_timed else "timing",
                "coming": mine.text if mine is not None and mine.stage is not Stage.TRIAL else "",
            })  # fmt: skip
    return rows
