"""What a plan does, for all workers at once: a list of actions over placed values; and the order they come in.

Law 1: every worker writes down the actions of this one list that concern it, in this order. So the workers of a group
       meet in the same collectives in the same order.
Law 2: an action that no output needs is dropped: workers never drop a collective themselves.
Law 3: a reduction starts right behind the instruction that makes its operand, and its result is used as late as the
       program says: in between the workers compute. Small ones that can wait for each other travel together; to that
       end, what takes a few reduced numbers and makes a few others waits until something larger needs those. A small
       one that is nearly made of inputs (how many targets count, say) comes first of all: nobody waits for it later.

A placed value is a number: a value of the program in one of its layouts, or windows of it. The inputs of the program
come first. What is done is one thing (`Work`, made once and remembered), to which values another: an action is both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest
from typing import Any

from gt.dispatcher.planner.moving import joint_templates, step_templates, wire_dtype
from gt.dispatcher.planner.proof import prove
from gt.dispatcher.planner.redistribute import Step
from gt.dispatcher.planner.template import Pick, Template, op_named, picking
from gt.layout import Axes, Layout, Mesh, largest
from gt.program import Instruction, Spec

#: All-reduces are joined up to this many bytes: enough to make the meeting cheap, few enough to start early. Of 4 MiB
#: a GPT of 13 MB on two CPUs that compute took 3% longer than of 12 MiB, of 25 MiB no less than that.
BUCKET_NBYTES = 12 << 20
#: What is used within so many actions of one another starts together; what is used later does not hold it up.
NEAR = 16
#: What an action takes and makes, at most, if it may wait: it then holds no memory to speak of.
FEW_NBYTES = 1 << 10
#: A small reduction comes first if it is so few actions away from inputs, and each makes no more than this.
STEPS, LIGHT_NBYTES = 6, 1 << 20

#: All-reduces that may travel together: the same workers, dtype on the wire, and kind.
Line = tuple[Mesh, Axes, str, str]
#: One instruction as it is different for some workers: op, attributes, count of results, places of these workers.
Variant = tuple[str, dict[str, Any], int, tuple[int, ...]]


#: What a number is known by, or the numbers of several workers that stand in one place.
Key = tuple[Any, ...]


def number_key(value: Any) -> Key:
    """Not all floats equal themselves, nor are all that are equal the same."""
    return type(value), repr(value) if isinstance(value, float) else value


@dataclass(frozen=True, slots=True)
class Script:
    """A work as workers write it down that number their values alike. They are known by their places among those that
    were asked about. `Pick`s are out of (operands, made values, numbers)."""

    places: tuple[int, ...]
    takes_part: bool
    numbers: tuple[tuple[Key, tuple[Any, ...]], ...]  #: each with its value for every place
    count: int  #: of values that are made
    length: int  #: of what each worker writes down, in instructions
    #: Operands and variants of each instruction; of one that has other operands on some workers, several times.
    lines: tuple[tuple[Pick, tuple[Variant, ...]], ...]
    operands: int  #: how many values it takes
    results: Pick
    #: Of a single instruction on all operands in order, whose results are those of the work: its variants.
    plain: tuple[Variant, ...]
    kept: tuple[tuple[int, ...], ...]  #: of each place: the memory that each result of the work takes
    #: Of each place: what is taken beside them, see `Template`. () if nothing is, anywhere.
    beside: tuple[tuple[int, int], ...]
    #: Of each result: the operand whose memory it can take over; -1 if there is none. () if there is none of any.
    over: tuple[int, ...]


class Work:
    """What some workers do at one place of a program, whatever values it is done to."""

    __slots__ = (
        "early",
        "line",
        "makes_nbytes",
        "member",
        "nbytes",
        "results",
        "scripts",
        "step",
        "templates",
        "workers",
    )

    def __init__(
        self, templates: dict[int, Template], step: Step | None = None, member: tuple[Layout, Spec] | None = None
    ) -> None:
        prove({worker: template.code for worker, template in templates.items()})
        self.templates = templates  #: by worker
        self.workers = tuple(templates)
        self.step = step  #: if it is one
        self.member = member  #: how the operand of a step lies before
        #: Whether it starts as soon as its operand is there.
        self.early = step is not None and step.kind in ("all_reduce", "reduce_scatter")
        self.makes_nbytes = max([template.nbytes for template in templates.values()], default=0)  #: on a worker
        self.results = max([len(each.results) for each in templates.values()], default=0)
        self.line: Line | None = None  #: of an all-reduce
        self.nbytes = 0  #: that a worker puts on the wire in it
        self.scripts: dict[tuple[int, ...], tuple[Script, ...]] = {}  #: that were asked for
        if step is not None and step.kind == "all_reduce" and member is not None:
            one, s = member
            assert one.kind is not None
            dtype = wire_dtype(one.kind, s.dtype)
            self.line = (step.to.mesh, step.axes, one.kind, dtype.name)
            self.nbytes = largest(one, s.shape) * dtype.itemsize

    def script(self, workers: tuple[int, ...]) -> tuple[Script, ...]:
        """How workers write it down that have numbered their values alike so far: several scripts if they no longer
        do."""
        templates = [self.templates.get(worker) for worker in workers]
        alike: list[list[int]] = []
        for place, mine in enumerate(templates):
            for places in alike:
                other = templates[places[0]]
                if mine is other or (mine is not None and other is not None and mine.has_numbering_of(other)):
                    places.append(place)
                    break
            else:
                alike.append([place])
        made = self.scripts[workers] = tuple([_script(places, templates, self.results) for places in alike])
        return made


def _script(places: Sequence[int], templates: Sequence[Template | None], results: int) -> Script:
    """`results`: of those workers that get all of them."""
    mine = [template for template in (templates[place] for place in places) if template is not None]
    if not mine:
        nothing = ((0,) * results,) * len(places), (), ()
        return Script(tuple(places), False, (), 0, 0, (), 0, picking([]), (), *nothing)
    first = mine[0]
    lines: list[tuple[Pick, tuple[Variant, ...]]] = []
    different: dict[int, tuple[Template, list[int]]] = {}  # many workers have one template
    for place, template in zip(places, mine, strict=True):
        different.setdefault(id(template), (template, []))[1].append(place)
    having = [there for _, there in different.values()]
    for row in zip(*[template.code for template, _ in different.values()], strict=True):
        variants: list[tuple[Instruction, list[int]]] = []
        for there, ins in zip(having, row, strict=True):
            for other, having_it in variants:
                if ins == other:
                    having_it += there
                    break
            else:
                variants.append((ins, list(there)))
        by_args: dict[tuple[int, ...], list[Variant]] = {}
        for ins, having_it in variants:
            by_args.setdefault(ins.args, []).append((ins.op, ins.attrs, ins.results, tuple(having_it)))
        lines += [(picking(args), tuple(alike)) for args, alike in by_args.items()]
    count = sum([ins.results for ins in first.code])
    operands = tuple(range(first.operands))
    in_order = len(first.code) == len(lines) == 1 and first.code[0].args == operands
    is_plain = in_order and first.results == tuple(range(first.operands, first.operands + count))
    missing = (0,) * (results - len(first.results))
    return Script(
        tuple(places), True, _numbers([template.numbers for template in mine]), count, len(first.code), tuple(lines),
        len(operands), picking(first.results), lines[0][1] if is_plain else (),
        tuple([template.kept + missing for template in mine]),
        tuple([template.beside for template in mine]) if any(template.beside != (0, 0) for template in mine) else (),
        _over(first),
    )  # fmt: skip


def _numbers(rows: Sequence[tuple[Any, ...]]) -> tuple[tuple[Key, tuple[Any, ...]], ...]:
    """The numbers of several workers, place by place: then what stands for them is the same for all workers."""
    found = []
    for values in zip_longest(*rows, fillvalue=0):  # who writes down fewer has some that nobody reads
        keys = tuple([number_key(value) for value in values])
        found.append((keys if len(set(keys)) > 1 else keys[0], values))
    return tuple(found)


def _over(template: Template) -> tuple[int, ...]:
    """Of each result: the operand that an engine can write it into."""
    found = {}
    number = template.operands
    for ins in template.code:
        for k, a in enumerate(op_named(ins.op).inplace):
            if ins.args[a] < template.operands:
                found[number + k] = ins.args[a]
        number += ins.results
    return tuple([found.get(r, -1) for r in template.results]) if found else ()


@lru_cache(1 << 13)
def step_work(source: Layout, step: Step, s: Spec) -> Work:
    """One step of `redistribute`, of a tensor of this spec."""
    return Work(step_templates(source, step, s), step, (source, s))


@lru_cache(1 << 12)
def joint_work(line: Line, step: Step, members: tuple[tuple[Layout, Spec], ...]) -> Work:
    return Work(joint_templates(line[0], line[1], line[2], members), step)


#: What is done; to which placed values, where ~k is a scalar; which ones it makes; the instruction of the client's
#: program that it is done for. Workers that do not have a value leave it out, and their templates do too.
Action = tuple[Work, tuple[int, ...], tuple[int, ...], int]


def needed_actions(actions: Sequence[Action], outputs: Sequence[int], count: int, scalars: int) -> list[Action]:
    """Those that outputs need: Law 2. `count`: of placed values."""
    wanted = bytearray(count + scalars)  # scalars count from the end, as indices below zero do
    for number in outputs:
        wanted[number] = 1
    kept = []
    for action in reversed(actions):
        _, sources, results, _ = action
        for r in results:
            if wanted[r]:
                for s in sources:
                    wanted[s] = 1
                kept.append(action)
                break
    kept.reverse()
    return kept


@dataclass(slots=True)
class _Bucket:
    actions: list[tuple[Action, int]]  #: each with the position behind which its operand is made
    nbytes: int


class _Order:
    """See Law 3."""

    def __init__(self, actions: Sequence[Action], inputs: int) -> None:
        self.actions = actions
        self.inputs = inputs
        self.behind: dict[int, list[Action]] = {}  #: position -> the early actions that come right behind it
        self.open: dict[Line, _Bucket] = {}
        self.inside: dict[int, Line] = {}  #: result of a reduction that has not started -> its line
        self.waiting: dict[int, list[Action]] = {}  #: value -> the early actions that take it
        self.first: dict[int, int] = {}  #: result of a reduction -> the first action that takes it and is not early

    def run(self) -> list[Action]:
        early = [action for action in self.actions if action[0].early]
        if not early:
            return list(self.actions)
        for action in early:
            self.waiting.setdefault(action[1][0], []).append(action)
        reduced = {action[2][0] for action in early}
        for i, (work, sources, _, _) in enumerate(self.actions):
            if not (reduced.isdisjoint(sources) or work.early):
                for s in reduced.intersection(sources):
                    self.first.setdefault(s, i)
        inside, waiting = self.inside, self.waiting
        reading = inside.keys()
        for number in [n for n in self.waiting if n < self.inputs]:
            self.arrive(number, -1)
        for i, (work, sources, results, _) in enumerate(self.actions):
            if work.early:
                continue
            if inside and not reading.isdisjoint(sources):
                for s in sources:
                    if s in inside:
                        # If more are to come, those that can wait for them do.
                        self.close(inside[s], i - 1, i + NEAR if waiting else None)
            for r in results:
                if r in waiting:
                    self.arrive(r, i)
        while self.open:  # closing one may open another
            self.close(next(iter(self.open)), len(self.actions))
        made = self.behind.pop(-1, [])
        for i, action in enumerate(self.actions):
            if not action[0].early:
                made.append(action)
            if i in self.behind:
                made += self.behind[i]
        return made + self.behind.get(len(self.actions), [])

    def put(self, at: int, action: Action) -> None:
        self.behind.setdefault(at, []).append(action)

    def arrive(self, number: int, at: int) -> None:
        """A value is made behind position `at`: what waits for it can start."""
        for action in self.waiting.pop(number, ()):
            self.start(action, at)

    def start(self, action: Action, at: int) -> None:
        work, _, results, _ = action
        line = work.line
        if line is None:
            self.put(at, action)
            self.arrive(results[0], at)
            return
        bucket = self.open.get(line)
        if bucket is not None and bucket.nbytes + work.nbytes > BUCKET_NBYTES:
            self.close(line, at)
            bucket = None
        if bucket is None:
            bucket = self.open[line] = _Bucket([], 0)
        bucket.actions.append((action, at))
        bucket.nbytes += work.nbytes
        self.inside[results[0]] = line
        if bucket.nbytes >= BUCKET_NBYTES:
            self.close(line, at)

    def close(self, line: Line, at: int, until: int | None = None) -> None:
        """The reductions of a bucket start, right behind the last of their operands: all of them, or those that are
        used until some action. What waits for their results may start at `at`."""
        bucket = self.open.pop(line)
        going: list[Action] = []
        staying: list[tuple[Action, int]] = []
        start = -1
        for action, made_at in bucket.actions:
            # One that is not in `first` has only early users: it is asked for by those.
            if until is None or self.first.get(action[2][0], until) <= until:
                going.append(action)
                start = max(start, made_at)
            else:
                staying.append((action, made_at))
        if staying:
            self.open[line] = _Bucket(staying, sum(action[0].nbytes for action, _ in staying))
        for action in going:
            del self.inside[action[2][0]]
        joint = going[0] if len(going) == 1 else _joint(line, going)
        self.put(start, joint)
        for r in joint[2]:
            self.arrive(r, max(at, start))


def _joint(line: Line, actions: Sequence[Action]) -> Action:
    step = actions[0][0].step
    assert step is not None
    members = tuple(work.member for work, _, _, _ in actions if work.member is not None)
    sources = tuple(s for _, taken, _, _ in actions for s in taken)
    return joint_work(line, step, members), sources, tuple(r for _, _, made, _ in actions for r in made), -1


def leading(actions: Sequence[Action], inputs: int) -> tuple[Sequence[Action], int]:
    """The actions in an order in which those come first that small reductions near the inputs need, and how many those
    are: see Law 3."""
    away: dict[int, int] = {}  #: value that is near -> how many actions it is away from inputs,
    maker: dict[int, int] = {}  #: and which action makes it
    near: set[int] = set()
    for i, (work, sources, results, _) in enumerate(actions):
        if work.makes_nbytes > LIGHT_NBYTES:
            continue
        steps = 1
        for s in sources:
            if s >= inputs:
                steps = max(steps, 1 + away.get(s, STEPS))
        if steps <= STEPS:
            for r in results:
                away[r], maker[r] = steps, i
            if work.early and steps > 1 and work.nbytes <= FEW_NBYTES:
                near.add(i)
    wanted = [s for i in near for s in actions[i][1]]
    while wanted:
        i = maker.get(wanted.pop(), -1)
        if i >= 0 and i not in near:
            near.add(i)
            wanted += actions[i][1]
    if not near:
        return actions, 0
    first, rest = [actions[i] for i in sorted(near)], [each for i, each in enumerate(actions) if i not in near]
    return first + rest, len(first)


def waiting(actions: Sequence[Action], begun: int) -> Sequence[Action]:
    """The actions in an order in which those that may wait come as late as they can: see Law 3. What the first ones
    reduce, so many of them, is there in time anyway."""
    order: list[Action] = []
    put = order.append
    held: dict[int, int] = {}  #: value -> the action that makes it, and waits
    waiting_for = held.keys()
    few: set[int] = set()  #: values of a few numbers,
    reduced: set[int] = set()  #: and those that wait for a reduction
    for i, action in enumerate(actions):
        work, sources, results, _ = action
        if work.makes_nbytes <= FEW_NBYTES:
            waits = bool(reduced) and not reduced.isdisjoint(sources)
            # What only views makes nothing: it is as small as its operands.
            of_few = (waits or not work.makes_nbytes) and few.issuperset([s for s in sources if s >= 0])
            if of_few or work.makes_nbytes:
                few.update(results)
            if work.early:
                if i >= begun:
                    reduced.update(results)
            elif waits and of_few:
                reduced.update(results)
                held.update(dict.fromkeys(results, i))
                continue
        if held and not waiting_for.isdisjoint(sources):
            order += _released(actions, held, sources)
        put(action)
    order += [actions[i] for i in sorted(set(held.values()))]
    return order


def _released(actions: Sequence[Action], held: dict[int, int], sources: Sequence[int]) -> list[Action]:
    """What waits and has to be done for these values."""
    found: set[int] = set()
    wanted = list(sources)
    while wanted:
        i = held.get(wanted.pop(), -1)
        if i >= 0:
            found.add(i)
            _, taken, made, _ = actions[i]
            wanted += taken
            for r in made:
                del held[r]
    return [actions[i] for i in sorted(found)]


def ordered(actions: Sequence[Action], inputs: int) -> list[Action]:
    """The actions in the order in which workers run them: Law 3. `inputs`: how many of the values are there before."""
    if any(work.early and work.nbytes <= FEW_NBYTES for work, _, _, _ in actions):
        actions = waiting(*leading(actions, inputs))
    return _Order(actions, inputs).run()
