"""From actions to the local program of each worker, and the memory that it takes.

Workers are `Twins` as long as their values have the same numbers: what one of them writes down, the others write too,
but for attributes (sizes of shards, places in a group). They part where one has to make something that another one has
or does not need.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np

from gt import dtypes
from gt.dispatcher.planner.actions import Action, Script
from gt.dispatcher.planner.template import op_named
from gt.layout import Layout, local_shape
from gt.ops.trace import scalar_kind
from gt.program import Instruction, Program, Spec, spec

NOTHING = spec((0,), dtypes.uint8)  #: What a worker has instead of a tensor that lies elsewhere: tensor 0.


@dataclass(frozen=True, slots=True)
class Local:
    """What one worker runs."""

    program: Program
    constants: tuple[bool | int | float | bytes, ...]  #: scalars behind those of the caller


#: A placed value's number, its layout, and the spec of the whole.
Output = tuple[int, Layout, Spec]


def written(
    program: Program, workers: tuple[int, ...], inputs: Sequence[tuple[Layout, Spec]], actions: Sequence[Action],
    outputs: Sequence[Output], literals: Sequence[Any],
) -> tuple[dict[int, Local], dict[int, int]]:  # fmt: skip
    """The local programs by worker, and the memory that each of them takes beside its inputs. `literals`: what the
    scalars are that come behind those of the program."""
    shards = [shards_of(one, s) for one, s in inputs]
    twins = [end for each in _twins(program, workers, inputs, literals) for end in _write(each, actions)]
    locals_, nbytes = {}, {}
    for each in twins:
        ends = _ends(each, len(inputs), outputs)
        donate = {i: None for i in program.donate if i in each.where}
        # An output that lies elsewhere than the input that it replaces cannot take over its memory, nor its value.
        updates = tuple([(o, i) for o, i in program.updates if i in each.where and outputs[o][1] is inputs[i][0]])
        peaks = _peaks(each, len(inputs), ends, [(ends[o], i) for o, i in updates if i in donate])
        for text, peak in zip(each.texts, peaks, strict=True):
            mine = tuple([by_worker.get(text.worker, NOTHING_THERE) for by_worker in shards])
            kinds = program.scalars + "".join(map(scalar_kind, text.constants))
            together = workers if len(workers) > 1 else ()
            made = Program(mine, kinds, tuple(text.code), ends, tuple(donate), updates, program.precision, together)
            locals_[text.worker], nbytes[text.worker] = Local(made, tuple(text.constants)), peak
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

    __slots__ = ("_first", "_known", "code", "constants", "nbytes", "worker")

    def __init__(self, worker: int, scalars: int) -> None:
        self.worker = worker
        self.code: list[Instruction] = []
        self.nbytes: list[int] = []  #: of every value that it makes: the memory it takes
        self.constants: list[Any] = []  #: the values of the scalars behind the caller's own
        self._known: dict[tuple[type, Any], int] = {}
        self._first = scalars

    def number(self, value: Any) -> int:
        """The operand that stands for a number."""
        # Not all floats equal themselves, nor are all that are equal the same.
        key = (type(value), repr(value) if isinstance(value, float) else value)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = ~(self._first + len(self.constants))
            self.constants.append(value)
        return found

    def add(self, name: str, args: tuple[int, ...], attrs: dict[str, Any], nbytes: int) -> None:
        """One more instruction, of one result."""
        self.code.append(Instruction(name, args, attrs, 1))
        self.nbytes.append(nbytes)


class Twins:
    """See the file's header."""

    def __init__(self, texts: Sequence[Text], where: dict[int, int], count: int, literals: Mapping[int, Any]) -> None:
        self.texts = texts
        self.workers = tuple([text.worker for text in texts])
        self.codes = [text.code for text in texts]
        self.where = where  #: the numbers here of placed values, and of the caller's scalars
        self.count = count  #: of values
        self.literals = literals  #: by what stands for them in an action
        self.scripts: list[Script] = []  #: what was written since they are by themselves

    def settle(self) -> None:
        """Note the memory of what was written."""
        for k, text in enumerate(self.texts):
            text.nbytes.extend(chain.from_iterable([script.nbytes[k] for script in self.scripts]))
        self.scripts.clear()

    def part(self, scripts: Iterable[Script]) -> list[Twins]:
        """The workers of each script by themselves."""
        self.settle()
        return [
            Twins([self.texts[k] for k in script.places], dict(self.where), self.count, self.literals)
            for script in scripts
        ]

    def write(self, script: Script, sources: Sequence[int], results: Sequence[int]) -> None:
        """Copy templates in, instruction by instruction."""
        where, codes = self.where, self.codes
        made = range(self.count, self.count + script.count)
        self.count = made.stop
        if script.numbers or (self.literals and not self.literals.keys().isdisjoint(sources)):
            envs = [(*self.numbered(text, k, script, sources), *made) for k, text in enumerate(self.texts)]
        else:
            envs = [(*[where[s] for s in sources if s in where], *made)]
        env = envs[0]
        if envs.count(env) == len(envs):
            for pick, variants in script.lines:
                args = pick(env)
                for name, attrs, count, places in variants:
                    ins = Instruction(name, args, attrs, count)
                    for k in places:
                        codes[k].append(ins)
        else:  # the same number is another scalar in each text
            for pick, variants in script.lines:
                for name, attrs, count, places in variants:
                    for k in places:
                        codes[k].append(Instruction(name, pick(envs[k]), attrs, count))
        where.update(zip(results, script.results(env), strict=False))

    def numbered(self, text: Text, place: int, script: Script, sources: Sequence[int]) -> Iterator[int]:
        """The operands that there are, and the numbers behind them."""
        for s in sources:
            if s in self.where:
                yield self.where[s]
            elif s in self.literals:
                yield text.number(self.literals[s])
        for value in script.numbers[place] if script.numbers else ():
            yield text.number(value)


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
        made.append(Twins([Text(worker, scalars) for worker in mine], where, len(inputs), numbers))
    return made


def _write(each: Twins, actions: Sequence[Action], start: int = 0) -> list[Twins]:
    """The actions from one on into the programs of their workers; who are twins in the end."""
    workers, where, codes, done = each.workers, each.where, each.codes, each.scripts.append
    for at in range(start, len(actions)):
        work, sources, results, _ = actions[at]
        scripts = work.scripts.get(workers) or work.script(workers)
        if len(scripts) > 1:
            return [end for part in each.part(scripts) for end in _write(part, actions, at)]
        script = scripts[0]
        if not script.takes_part:
            continue
        done(script)
        try:
            args = tuple([where[s] for s in sources]) if script.plain else None
        except KeyError:  # a number, or what these workers do not have
            args = None
        if args is None:
            each.write(script, sources, results)
            continue
        for name, attrs, count, places in script.plain:
            ins = Instruction(name, args, attrs, count)
            for k in places:
                codes[k].append(ins)
        for r in results:
            where[r] = each.count
            each.count += 1
    each.settle()
    return [each]


def _ends(each: Twins, inputs: int, outputs: Sequence[Output]) -> tuple[int, ...]:
    """The outputs: each is a value of its own."""
    numbers: list[int] = []
    taken: set[int] = set()
    for placed, one, s in outputs:
        number = each.where.get(placed)
        if number is None:
            for text in each.texts:
                text.add("full", (text.number(0),), {"shape": (0,), "dtype": "uint8"}, NOTHING.nbytes)
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


# -- memory ----------------------------------------------------------------------------------


def _peaks(each: Twins, inputs: int, ends: Sequence[int], updates: Sequence[tuple[int, int]]) -> list[int]:
    """Of each worker: the most bytes of results alive at once, less those that are written into donated inputs.
    `updates`: (value, donated input that it replaces)."""
    code = each.texts[0].code
    end = len(code)
    if not end:
        return [0] * len(each.texts)
    order = np.arange(end)
    born = np.repeat(order, [ins.results for ins in code])  # of each value: the instruction that makes it ...
    read = np.fromiter(chain.from_iterable([ins.args for ins in code]), np.int64)
    at = np.repeat(order, [len(ins.args) for ins in code])
    last = np.full(each.count, -1)
    np.maximum.at(last, read[read >= 0], at[read >= 0])
    last[list(ends)] = end
    dies = np.maximum(last[inputs:], born)  # ... and the last one that reads it
    places = np.array([value for value, _ in updates], np.int64) - inputs
    makers = born[places]
    which = places - np.searchsorted(born, makers)
    free = [
        place
        for place, i, k, (_, target) in zip(places.tolist(), makers.tolist(), which.tolist(), updates, strict=True)
        if _in_place(code[i], k, target)
    ]
    peaks = []
    for text in each.texts:
        nbytes = np.array(text.nbytes, np.int64)
        nbytes[free] = 0
        change = np.zeros(end + 2, np.int64)  # what is made comes to what is alive, what dies goes after that
        np.add.at(change, born, nbytes)
        np.subtract.at(change, dies + 1, nbytes)
        peaks.append(int(np.cumsum(change).max()))
    return peaks


def _in_place(ins: Instruction, k: int, target: int) -> bool:
    """Whether an engine can write this result into the input that it replaces."""
    inplace = op_named(ins.op).inplace
    return k < len(inplace) and ins.args[inplace[k]] == target
