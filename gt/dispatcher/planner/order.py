"""Which actions a plan needs, and in which order the workers run them.

Law 1: every worker writes the actions of one list, those that concern it, in the order of the list. So the workers of a
       group meet in the same collectives in the same order.
Law 2: an action that no output needs is dropped here. Workers never drop a collective themselves.
Law 3: a reduction starts right after the action that makes its operand, and its result is used as late as the program
       says: the workers compute in between. All-reduces that can wait for each other are joined to one (a bucket).
       The addends that a reduce-scatter has brought are added up as late, or when others need their memory.
Law 4: an action that takes a few reduced numbers and makes a few others waits until something larger needs them, so
       that the reductions of many such chains share a bucket. A small reduction that is only a few actions away from
       the inputs (how many targets count, for instance) comes first of all: no worker waits for it later.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gt.dispatcher.planner.step_work import joint_work
from gt.dispatcher.planner.work import Action, BucketKey

#: All-reduces are joined up to this many bytes: enough to make the latency small, few enough to start early. Measured
#: with a GPT of 13 MB on two CPUs that compute: 4 MiB took 3% longer than 12 MiB, and 25 MiB was not faster.
BUCKET_NBYTES = 12 << 20
#: Addends that were exchanged and are not added up yet take at most so much memory, beside those of one reduce-scatter.
ADDENDS_NBYTES = 1 << 28
#: Results that are used within so many actions of one another share a bucket; one that is used later waits.
NEAR = 16
#: An action may wait if it takes and makes at most this: then it holds no memory to speak of.
FEW_NBYTES = 1 << 10
#: A small reduction comes first if it is at most so many actions away from the inputs ...
STEPS = 6
#: ... and each of them makes at most this.
LIGHT_NBYTES = 1 << 20


def needed(actions: Sequence[Action], outputs: Sequence[int], count: int) -> list[Action]:
    """The actions that outputs need: Law 2. `count`: of slots."""
    wanted = bytearray(count)
    for slot in outputs:
        wanted[slot] = 1
    kept = []
    for action in reversed(actions):
        for r in action.results:
            if wanted[r]:
                for s in action.sources:
                    wanted[s] = 1
                kept.append(action)
                break
    kept.reverse()
    return kept


def ordered(actions: Sequence[Action], inputs: int, numbers: Collection[int]) -> list[Action]:
    """The actions in the order in which workers run them: Laws 3 and 4. The first slots are the program's inputs, so
    many of them; `numbers` are the slots of scalars and constants."""
    if any(action.work.early and action.work.wire_nbytes <= FEW_NBYTES for action in actions):
        first = _leading(actions, inputs, numbers)
        if first:
            actions = [actions[i] for i in first] + [each for i, each in enumerate(actions) if i not in first]
        actions = _delayed(actions, len(first), numbers)
    return _Buckets(actions, inputs).run()


# -- small reductions ------------------------------------------------------------------------


def _leading(actions: Sequence[Action], inputs: int, numbers: Collection[int]) -> dict[int, None]:
    """The places of the actions that come first, in order: small reductions near the inputs, and what they need."""
    distance = dict.fromkeys(numbers, 0)  #: of a slot that is near: how many actions it is away from inputs
    maker: dict[int, int] = {}  #: of a slot that is near: the action that makes it
    near: set[int] = set()
    for i, action in enumerate(actions):
        work = action.work
        if work.made_nbytes > LIGHT_NBYTES:
            continue
        steps = 1
        for s in action.sources:
            if s >= inputs and distance.get(s, STEPS) >= steps:
                steps = 1 + distance.get(s, STEPS)
        if steps <= STEPS:
            for r in action.results:
                distance[r], maker[r] = steps, i
            if work.early and steps > 1 and work.wire_nbytes <= FEW_NBYTES:
                near.add(i)
    wanted = [s for i in near for s in actions[i].sources]
    while wanted:
        i = maker.get(wanted.pop(), -1)
        if i >= 0 and i not in near:
            near.add(i)
            wanted += actions[i].sources
    return dict.fromkeys(sorted(near))


def _delayed(actions: Sequence[Action], leading: int, numbers: Collection[int]) -> Sequence[Action]:
    """The actions in an order in which those that may wait come as late as they can: Law 4. What the leading ones
    reduce is there in time anyway."""
    order: list[Action] = []
    put = order.append
    held: dict[int, int] = {}  #: slot -> the action that makes it, and waits
    waiting_for = held.keys()
    few = set(numbers)  #: slots of a few numbers ...
    reduced: set[int] = set()  #: ... and those that wait for a reduction
    for i, action in enumerate(actions):
        work, sources, results = action.work, action.sources, action.results
        if work.made_nbytes <= FEW_NBYTES:
            waits = bool(reduced) and not reduced.isdisjoint(sources)
            # A view makes nothing: it is as small as its operands.
            of_few = (waits or not work.made_nbytes) and few.issuperset(sources)
            if of_few or work.made_nbytes:
                few.update(results)
            if work.early:
                if i >= leading:
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
    """The waiting actions that these slots need."""
    found: set[int] = set()
    wanted = list(sources)
    while wanted:
        i = held.get(wanted.pop(), -1)
        if i >= 0:
            found.add(i)
            wanted += actions[i].sources
            for r in actions[i].results:
                del held[r]
    return [actions[i] for i in sorted(found)]


# -- buckets ---------------------------------------------------------------------------------


class _Waiting(NamedTuple):
    """A reduction in a bucket."""

    action: Action
    made_at: int  #: the position after which its operand is there


@dataclass(slots=True)
class _Bucket:
    reductions: list[_Waiting]
    nbytes: int


class _Buckets:
    """Law 3. Positions are those of the actions as they are given; -1 is before the first."""

    def __init__(self, actions: Sequence[Action], inputs: int) -> None:
        self.actions = actions
        self.inputs = inputs
        self.after: dict[int, list[Action]] = {}  #: position -> the early actions that come right after it
        self.open: dict[BucketKey, _Bucket] = {}
        self.inside: dict[int, BucketKey] = {}  #: result of a reduction that has not started -> its bucket
        self.waiting: dict[int, list[Action]] = {}  #: slot -> the early actions that take it
        self.first_use: dict[int, int] = {}  #: result of a reduction -> the first action that takes it and is not early
        self.adding: dict[int, Action] = {}  #: slot of addends -> the action that adds them up, while it has no place
        self.arrived: dict[
            int, int
        ] = {}  #: slots of addends that are exchanged and not added up -> bytes, oldest first

    def run(self) -> list[Action]:
        early = [action for action in self.actions if action.work.early]
        if not early:
            return list(self.actions)
        for action in early:
            self.waiting.setdefault(action.sources[0], []).append(action)
        reduced = {action.results[0] for action in early}
        exchanged = {action.results[0]: action for action in early if action.work.bucket is None}
        moved: set[int] = set()  # places of actions that add up addends earlier than the program says
        for i, action in enumerate(self.actions):
            sources = action.sources
            if sources and sources[0] in exchanged and not action.work.early:
                self.adding[sources[0]] = action
            if not (reduced.isdisjoint(sources) or action.work.early):
                for s in reduced.intersection(sources):
                    self.first_use.setdefault(s, i)
        inside, waiting = self.inside, self.waiting
        not_started = inside.keys()
        for slot in [s for s in waiting if s < self.inputs]:
            self.arrive(slot, -1)
        for i, action in enumerate(self.actions):
            if action.work.early:
                continue
            sources = action.sources
            if sources and sources[0] in exchanged:
                operand = exchanged[sources[0]].sources[0]
                if operand in inside:
                    self.close(inside[operand], i - 1)
                if self.adding.pop(sources[0], None) is None:
                    moved.add(i)
                    continue
                self.arrived.pop(sources[0], None)
            if inside and not not_started.isdisjoint(sources):
                for s in sources:
                    if s in inside:
                        # If more reductions are to come, those that can wait for them do.
                        self.close(inside[s], i - 1, i + NEAR if waiting else None)
            for r in action.results:
                if r in waiting:
                    self.arrive(r, i)
        while self.open:  # closing one may open another
            self.close(next(iter(self.open)), len(self.actions))
        order = self.after.pop(-1, [])
        for i, action in enumerate(self.actions):
            if not action.work.early and i not in moved:
                order.append(action)
            if i in self.after:
                order += self.after[i]
        return order + self.after.get(len(self.actions), [])

    def put(self, at: int, action: Action) -> None:
        self.after.setdefault(at, []).append(action)

    def arrive(self, slot: int, at: int) -> None:
        """A slot is made at a position: the reductions that wait for it can start."""
        for action in self.waiting.pop(slot, ()):
            self.start(action, at)

    def start(self, action: Action, at: int) -> None:
        key, nbytes, result = action.work.bucket, action.work.wire_nbytes, action.results[0]
        if key is None:
            self.add_up(action.work.made_nbytes, at)
            self.put(at, action)
            self.arrived[result] = action.work.made_nbytes
            return
        bucket = self.open.get(key)
        if bucket is not None and bucket.nbytes + nbytes > BUCKET_NBYTES:
            self.close(key, at)
            bucket = None
        if bucket is None:
            bucket = self.open[key] = _Bucket([], 0)
        bucket.reductions.append(_Waiting(action, at))
        bucket.nbytes += nbytes
        self.inside[result] = key
        if bucket.nbytes >= BUCKET_NBYTES:
            self.close(key, at)

    def add_up(self, more: int, at: int) -> None:
        """Add up addends until there is memory for more; and those whose sum another reduction waits for."""
        while True:
            is_full = sum(self.arrived.values()) + more > ADDENDS_NBYTES
            found = next((s for s in self.arrived if is_full or self.adding[s].results[0] in self.waiting), None)
            if found is None:
                return
            del self.arrived[found]
            action = self.adding.pop(found)
            self.put(at, action)
            self.arrive(action.results[0], at)

    def close(self, key: BucketKey, at: int, until: int | None = None) -> None:
        """The reductions of a bucket start, right after the last of their operands is made: all of them, or those whose
        results are used up to the position `until`. What waits for their results may start at `at`."""
        bucket = self.open.pop(key)
        going: list[Action] = []
        staying: list[_Waiting] = []
        start = -1
        for each in bucket.reductions:
            # A result that is not in `first_use` is taken by reductions only, and they ask for it.
            if until is None or self.first_use.get(each.action.results[0], until) <= until:
                going.append(each.action)
                start = max(start, each.made_at)
            else:
                staying.append(each)
        if staying:
            self.open[key] = _Bucket(staying, sum(each.action.work.wire_nbytes for each in staying))
        for action in going:
            del self.inside[action.results[0]]
        joint = going[0] if len(going) == 1 else _joint(key, going)
        self.put(start, joint)
        for r in joint.results:
            self.arrive(r, max(at, start))


def _joint(key: BucketKey, actions: Sequence[Action]) -> Action:
    """Several all-reduces as one action."""
    step = actions[0].work.step
    assert step is not None
    operands = tuple([action.work.operand for action in actions if action.work.operand is not None])
    sources = tuple([s for action in actions for s in action.sources])
    results = tuple([r for action in actions for r in action.results])
    return Action(joint_work(key, step, operands), sources, results, -1)
