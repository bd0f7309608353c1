"""From actions to the local program of each worker, and the memory that it takes.

Workers are `Twins` as long as their values have the same numbers: what one of them writes down, the others write too,
but for attributes (sizes of shards, places in a group). They part where one has to make something that another one has
or does not need.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any

from gt import dtypes
from gt.dispatcher.planner.actions import Action, Key, Script, number_key
from gt.dispatcher.planner.memory import Lives
from gt.layout import Layout, local_shape
from gt.ops.trace import scalar_kind
from gt.program import Instruction, Program, Spec, spec

NOTHING = spec((0,), dtypes.uint8)  #: What a worker has instead of a tensor that lies elsewhere: tensor 0.


@dataclass(frozen=True, slots=True)
class Local:
    """What one worker runs."""

    program: Program
    constants: tuple[bool | int | float | bytes, ...]  #: scalars behind those of the caller
    origins: Sequence[int] = ()  #: the instruction of the client's program that each one here is of; -1: of none


#: A placed value's number, its layout, and the spec of the whole.
Output = tuple[int, Layout, Spec]


def written(
    program: Program, workers: tuple[int, ...], inputs: Sequence[tuple[Layout, Spec]], actions: Sequence[Action],
    outputs: Sequence[Output], literals: Sequence[Any], count: int,
) -> tuple[dict[int, Local], dict[int, int]]:  # fmt: skip
    """The local programs by worker, and the memory that each of them takes beside its inputs. `literals`: what the
    scalars are that come behind those of the program. `count`: of placed values."""
    shards = [shards_of(one, s) for one, s in inputs]
    twins = [end for each in _twins(program, workers, inputs, literals) for end in _write(each, actions)]
    numbers = [number for number, _, _ in outputs]
    lives = Lives(actions, numbers, count + len(program.scalars) + len(literals))
    locals_, nbytes = {}, {}
    for each in twins:
        origins = _origins(each, actions)
        ends = _ends(each, len(inputs), outputs)
        donate = {i: None for i in program.donate if i in each.where}
        # An output that lies elsewhere than the input that it replaces cannot take over its memory, nor its value.
        updates = tuple([(o, i) for o, i in program.updates if i in each.where and outputs[o][1] is inputs[i][0]])
        free = lives.written_over(each.scripts, each.where, {numbers[o]: i for o, i in updates if i in donate})
        which = [i for i, script in enumerate(each.scripts) if script.beside]
        peaks = lives.peaks([(text.kept, text.beside, text.copied) for text in each.texts], which, free)
        for text, peak in zip(each.texts, peaks, strict=True):
            mine = tuple([by_worker.get(text.worker, NOTHING_THERE) for by_worker in shards])
            kinds = program.scalars + "".join(map(scalar_kind, text.constants))
            together = workers if len(workers) > 1 else ()
            made = Program(mine, kinds, tuple(text.code), ends, tuple(donate), updates, program.precision, together)
            locals_[text.worker], nbytes[text.worker] = Local(made, tuple(text.constants), origins), peak
    return {w: locals_[w] for w in workers}, {w: nbytes[w] for w in workers}


@lru_cache(1 << 12)
def shards_of(one: Layout, s: Spec) -> dict[int, tuple[tuple[int, ...], str]]:
    """What each worker holds of a tensor, as a program says it."""
    m = one.mesh
    return {w: (local_shape(one, s.shape, at), s.dtype.name) for w, at in zip(m.workers, m.coordinates, strict=True)}


NOTHING_THERE = (NOTHING.shape, NOTHING.dtype.name)


# -- writing ---------------------------------------------------------------------------------


class Text:
    """The local program of one worker, while it is written."""

    __slots__ = ("beside", "code", "constants", "copied", "kept", "worker")

    def __init__(self, worker: int) -> None:
        self.worker = worker
        self.code: list[Instruction] = []
        self.kept: list[int] = []  #: the memory of each result of the actions, in order,
        self.beside: list[int] = []  #: what some take beside their results: two numbers each, see `Template`;
        self.copied = 0  #: and what is written down behind the actions takes
        self.constants: list[Any] = []  #: the values of the scalars behind the caller's own

    def add(self, name: str, args: tuple[int, ...], attrs: dict[str, Any], nbytes: int) -> None:
        """One more instruction, of one result."""
        self.code.append(Instruction(name, args, attrs, 1))
        self.copied += nbytes


class Twins:
    """See the file's header."""

    def __init__(
        self, texts: Sequence[Text], where: dict[int, int], count: int, literals: Mapping[int, Any], scalars: int,
        scripts: Iterable[Script] = (),
    ) -> None:  # fmt: skip
        self.texts = texts
        self.workers = tuple([text.worker for text in texts])
        self.adds = [text.code.append for text in texts]
        self.where = where  #: the numbers here of placed values, and of the caller's scalars
        self.count = count  #: of values
        self.literals = literals  #: by what stands for them in an action
        self.scalars = scalars  #: of the caller
        self.known: dict[Key, int] = {}  #: what stands for numbers here
        self.scripts = list(scripts)  #: of all actions so far,
        self.parted = len(self.scripts)  #: of which so many were written before they were by themselves

    def settle(self) -> None:
        """Note the memory of what was written."""
        mine = self.scripts[self.parted :]
        more = [script.beside for script in mine if script.beside]
        for k, text in enumerate(self.texts):
            text.kept.extend(chain.from_iterable([script.kept[k] for script in mine]))
            text.beside.extend(chain.from_iterable([beside[k] for beside in more]))

    def part(self, scripts: Iterable[Script]) -> list[Twins]:
        """The workers of each script by themselves."""
        self.settle()
        made = []
        for script in scripts:
            texts = [self.texts[k] for k in script.places]
            made.append(Twins(texts, dict(self.where), self.count, self.literals, self.scalars, self.scripts))
        return made

    def write(self, script: Script, sources: Sequence[int], results: Sequence[int]) -> None:
        """Copy templates in, instruction by instruction."""
        where, adds = self.where, self.adds
        made = range(self.count, self.count + script.count)
        self.count = made.stop
        for s in sources:
            if s < 0 and s not in where:
                where[s] = self.same_number(self.literals[s])
        env = (*[where[s] for s in sources if s in where], *made)
        if script.numbers:
            env += tuple([self.number(key, values) for key, values in script.numbers])
        for pick, variants in script.lines:
            args = pick(env)
            for name, attrs, count, places in variants:
                ins = Instruction(name, args, attrs, count)
                for k in places:
                    adds[k](ins)
        where.update(zip(results, script.results(env), strict=False))

    def number(self, key: Key, values: Sequence[Any]) -> int:
        """The operand that stands for a number, which may be another one in each text."""
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = ~(self.scalars + len(self.texts[0].constants))
            for text, value in zip(self.texts, values, strict=True):
                text.constants.append(value)
        return found

    def same_number(self, value: Any) -> int:
        return self.number(number_key(value), [value] * len(self.texts))


def _twins(
    program: Program, workers: Sequence[int], inputs: Sequence[tuple[Layout, Spec]], literals: Sequence[Any]
) -> list[Twins]:
    """Workers that hold shards of the same inputs."""
    scalars = len(program.scalars)
    meshes = list(dict.fromkeys([one.mesh for one, _ in inputs]))
    alike: dict[tuple[bool, ...], list[int]] = {}
    for worker in workers:
        alike.setdefault(tuple([worker in m.workers for m in meshes]), []).append(worker)
    numbers = {~(scalars + i): value for i, value in enumerate(literals)}
    made = []
    for mine in alike.values():
        where = {i: i for i, (one, _) in enumerate(inputs) if mine[0] in one.mesh.workers}
        where.update({~k: ~k for k in range(scalars)})
        made.append(Twins([Text(worker) for worker in mine], where, len(inputs), numbers, scalars))
    return made


def _write(each: Twins, actions: Sequence[Action], start: int = 0) -> list[Twins]:
    """The actions from one on into the programs of their workers; who are twins in the end."""
    workers, where, adds, done = each.workers, each.where, each.adds, each.scripts.append
    number_of = where.__getitem__
    for at, (work, sources, results, _) in enumerate(actions[start:], start):
        scripts = work.scripts.get(workers) or work.script(workers)
        if len(scripts) > 1:
            return [end for part in each.part(scripts) for end in _write(part, actions, at)]
        script = scripts[0]
        done(script)
        if not script.plain:
            if script.takes_part:
                each.write(script, sources, results)
            continue
        try:
            args = tuple(map(number_of, sources))
        except KeyError:  # a number, or what these workers do not have
            each.write(script, sources, results)
            continue
        for name, attrs, count, places in script.plain:
            ins = Instruction(name, args, attrs, count)
            for k in places:
                adds[k](ins)
        number = each.count
        for r in results:
            where[r] = number
            number += 1
        each.count = number
    each.settle()
    return [each]


def _origins(each: Twins, actions: Sequence[Action]) -> Sequence[int]:
    """The instructions of the client's program that those here are of."""
    found = array("i")
    for script, (_, _, _, instruction) in zip(each.scripts, actions, strict=True):
        found.extend([instruction] * script.length)
    return found


def _ends(each: Twins, inputs: int, outputs: Sequence[Output]) -> tuple[int, ...]:
    """The outputs: each is a value of its own."""
    numbers: list[int] = []
    taken: set[int] = set()
    for placed, one, s in outputs:
        number = each.where.get(placed)
        if number is None:
            zero = each.same_number(0)
            for text in each.texts:
                text.add("full", (zero,), {"shape": (0,), "dtype": "uint8"}, NOTHING.nbytes)
        elif number < inputs or number in taken:
            for text in each.texts:
                shape, _ = shards_of(one, s)[text.worker]
                text.add("shard", (number,), {"layout": ""}, math.prod(shape) * s.dtype.itemsize)
        if number is None or number < inputs or number in taken:
            number = each.count
            each.count += 1
        numbers.append(number)
        taken.add(number)
    return tuple(numbers)
