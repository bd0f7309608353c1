"""The local program of each worker, and the memory that it takes.

Law 1: every worker writes the actions of a plan, those that concern it, in the plan's order.
Law 2: a result takes memory from its action to the last one that reads it, or for good if it is an output. A view takes
       none, and neither does a result that is written over an input that no other program will read.

Workers are alike as long as their values have the same numbers: one `Writer` writes for all of them, with attributes
(sizes of shards, ranks) that may differ. It splits where one worker has to make something that another one has already,
or does not need. The constants of a plan become scalars of the local programs, behind those of the caller, so that
workers whose constants differ can still share a text.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import msgspec
import numpy as np

from gt import dtypes
from gt.dispatcher.planner.memo import memo
from gt.dispatcher.planner.work import Action, ConstantKey, Placed, Script, constant_key
from gt.layout import Layout, local_shape
from gt.ops.trace import scalar_kind
from gt.program import Instruction, Program, Spec, spec

#: What a worker has in place of a tensor that it holds no part of: tensor 0.
NOTHING = spec((0,), dtypes.uint8)


@dataclass(frozen=True, slots=True)
class Local:
    """What one worker runs."""

    program: Program
    constants: tuple[bool | int | float | bytes, ...]  #: scalars behind those of the caller
    origins: Sequence[int] = ()  #: of each instruction: that of the client's program it is for; -1 for several


class Output(msgspec.Struct, frozen=True, gc=False):
    """An output of the program, in one layout."""

    slot: int
    layout: Layout
    spec: Spec  #: of the whole tensor


class Emitted(NamedTuple):
    """The result of `emit`, by worker."""

    locals: dict[int, Local]
    nbytes: dict[int, int]  #: memory beside the inputs


def emit(
    program: Program, workers: tuple[int, ...], inputs: Sequence[Placed], actions: Sequence[Action],
    outputs: Sequence[Output], constants: Mapping[int, Any], count: int,
) -> Emitted:  # fmt: skip
    """The local programs. `constants`: by slot; `count`: of slots."""
    shards = [shards_of(one, s) for one, s in inputs]
    writers = [end for each in _writers(program, workers, inputs, constants) for end in _write(each, actions)]
    slots = [output.slot for output in outputs]
    lifetimes = Lifetimes(actions, slots, count)
    locals_, nbytes = {}, {}
    for writer in writers:
        origins = _origins(writer, actions)
        ends = _ends(writer, len(inputs), outputs)
        donate = dict.fromkeys([i for i in program.donate if i in writer.where])
        # An output in another layout than the input that it replaces cannot take over its memory, nor its value.
        updates = tuple([(o, i) for o, i in program.updates
                         if i in writer.where and outputs[o].layout is inputs[i].layout])  # fmt: skip
        free = lifetimes.written_over(writer, {slots[o]: i for o, i in updates if i in donate})
        peaks = lifetimes.peaks(writer, free)
        for draft, peak in zip(writer.drafts, peaks, strict=True):
            mine = tuple([by_worker.get(draft.worker, _NOTHING_HELD) for by_worker in shards])
            kinds = program.scalars + "".join(map(scalar_kind, draft.constants))
            together = workers if len(workers) > 1 else ()
            made = Program(mine, kinds, tuple(draft.code), ends, tuple(donate), updates, program.precision, together)
            locals_[draft.worker], nbytes[draft.worker] = Local(made, tuple(draft.constants), origins), peak
    return Emitted({w: locals_[w] for w in workers}, {w: nbytes[w] for w in workers})


@memo(1 << 12)
def shards_of(one: Layout, s: Spec) -> dict[int, tuple[tuple[int, ...], str]]:
    """What each worker holds of a tensor, as a program has it: shape and dtype."""
    m = one.mesh
    return {w: (local_shape(one, s.shape, at), s.dtype.name) for w, at in zip(m.workers, m.coordinates, strict=True)}


_NOTHING_HELD = (NOTHING.shape, NOTHING.dtype.name)


# -- writing ---------------------------------------------------------------------------------


class Draft:
    """The local program of one worker, while it is written."""

    __slots__ = ("code", "constants", "copied_nbytes", "extra_nbytes", "result_nbytes", "worker")

    def __init__(self, worker: int) -> None:
        self.worker = worker
        self.code: list[Instruction] = []
        self.constants: list[Any] = []
        self.result_nbytes: list[int] = []  #: memory of each result of the actions, in order
        self.extra_nbytes: list[int] = []  #: of actions that take more than that: two numbers each, see `Template`
        self.copied_nbytes = 0  #: memory of what is written after the actions

    def add(self, name: str, args: tuple[int, ...], attrs: dict[str, Any], nbytes: int) -> None:
        """One more instruction after the actions, with one result."""
        self.code.append(Instruction(name, args, attrs, 1))
        self.copied_nbytes += nbytes


class Writer:
    """Writes the drafts of workers whose values have the same numbers."""

    def __init__(
        self, drafts: Sequence[Draft], where: dict[int, int], count: int, constants: Mapping[int, Any], scalars: int,
        scripts: Iterable[Script] = (),
    ) -> None:  # fmt: skip
        self.drafts = drafts
        self.workers = tuple([draft.worker for draft in drafts])
        self.adds = [draft.code.append for draft in drafts]
        self.where = where  #: slot -> the operand that stands for it in the drafts
        self.count = count  #: of values in the drafts
        self.constants = constants  #: by slot
        self.scalars = scalars  #: of the caller
        self.known: dict[ConstantKey, int] = {}  #: the operands of constants
        self.scripts = list(scripts)  #: of all actions so far
        self.inherited = len(self.scripts)  #: how many of them another writer wrote, before it was split

    def note_memory(self) -> None:
        """Note the memory of what was written."""
        mine = self.scripts[self.inherited :]
        extra = [script.extra_nbytes for script in mine if script.extra_nbytes]
        for k, draft in enumerate(self.drafts):
            draft.result_nbytes.extend(chain.from_iterable([script.result_nbytes[k] for script in mine]))
            draft.extra_nbytes.extend(chain.from_iterable([nbytes[k] for nbytes in extra]))

    def split(self, scripts: Iterable[Script]) -> list[Writer]:
        """A writer for the members of each script."""
        self.note_memory()
        made = []
        for script in scripts:
            drafts = [self.drafts[k] for k in script.members]
            made.append(Writer(drafts, dict(self.where), self.count, self.constants, self.scalars, self.scripts))
        return made

    def write(self, script: Script, sources: Sequence[int], results: Sequence[int]) -> None:
        """Write a script."""
        where, adds, constants = self.where, self.adds, self.constants
        made = range(self.count, self.count + script.made)
        self.count = made.stop
        for s in sources:
            if s not in where and s in constants:
                where[s] = self.shared_constant(constants[s])
        env = (*[where[s] for s in sources if s in where], *made)
        if script.constants:
            env += tuple([self.constant(key, values) for key, values in script.constants])
        for pick, variants in script.lines:
            args = pick(env)
            for name, attrs, count, members in variants:
                ins = Instruction(name, args, attrs, count)
                for k in members:
                    adds[k](ins)
        where.update(zip(results, script.results(env), strict=False))

    def constant(self, key: ConstantKey, values: Sequence[Any]) -> int:
        """The operand of a constant that may differ between the drafts."""
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = ~(self.scalars + len(self.drafts[0].constants))
            for draft, value in zip(self.drafts, values, strict=True):
                draft.constants.append(value)
        return found

    def shared_constant(self, value: Any) -> int:
        return self.constant(constant_key(value), [value] * len(self.drafts))


def _writers(
    program: Program, workers: Sequence[int], inputs: Sequence[Placed], constants: Mapping[int, Any]
) -> list[Writer]:
    """One writer for the workers that hold shards of the same inputs. The program's scalars have the slots after the
    inputs."""
    scalars = len(program.scalars)
    meshes = list(dict.fromkeys([one.mesh for one, _ in inputs]))
    alike: dict[tuple[bool, ...], list[int]] = {}
    for worker in workers:
        alike.setdefault(tuple([worker in m.workers for m in meshes]), []).append(worker)
    made = []
    for mine in alike.values():
        where = {i: i for i, (one, _) in enumerate(inputs) if mine[0] in one.mesh.workers}
        where.update({len(inputs) + k: ~k for k in range(scalars)})
        made.append(Writer([Draft(worker) for worker in mine], where, len(inputs), constants, scalars))
    return made


def _write(writer: Writer, actions: Sequence[Action], start: int = 0) -> list[Writer]:
    """Write the actions from one on; the writers in the end."""
    workers, where, adds, done = writer.workers, writer.where, writer.adds, writer.scripts.append
    operand_of = where.__getitem__
    for at in range(start, len(actions)):
        action = actions[at]
        work, sources, results = action.work, action.sources, action.results
        scripts = work.scripts.get(workers) or work.split_scripts(workers)
        if len(scripts) > 1:
            return [end for part in writer.split(scripts) for end in _write(part, actions, at)]
        script = scripts[0]
        done(script)
        if not script.plain:
            if script.takes_part:
                writer.write(script, sources, results)
            continue
        try:
            args = tuple(map(operand_of, sources))
        except KeyError:  # a constant, or a value that these workers do not have
            writer.write(script, sources, results)
            continue
        for name, attrs, count, members in script.plain:
            ins = Instruction(name, args, attrs, count)
            for k in members:
                adds[k](ins)
        number = writer.count
        for r in results:
            where[r] = number
            number += 1
        writer.count = number
    writer.note_memory()
    return [writer]


def _origins(writer: Writer, actions: Sequence[Action]) -> Sequence[int]:
    """See `Local.origins`."""
    found = array("i")
    for script, action in zip(writer.scripts, actions, strict=True):
        found.extend([action.instruction] * script.length)
    return found


def _ends(writer: Writer, inputs: int, outputs: Sequence[Output]) -> tuple[int, ...]:
    """The values that are returned. Each is a value of its own: an input, or one that is returned twice, is copied."""
    ends: list[int] = []
    taken: set[int] = set()
    for output in outputs:
        number = writer.where.get(output.slot)
        if number is None:
            zero = writer.shared_constant(0)
            for draft in writer.drafts:
                draft.add("full", (zero,), {"shape": (0,), "dtype": "uint8"}, NOTHING.nbytes)
        elif number < inputs or number in taken:
            for draft in writer.drafts:
                shape, _ = shards_of(output.layout, output.spec)[draft.worker]
                draft.add("shard", (number,), {"layout": ""}, math.prod(shape) * output.spec.dtype.itemsize)
        if number is None or number < inputs or number in taken:
            number = writer.count
            writer.count += 1
        ends.append(number)
        taken.add(number)
    return tuple(ends)


# -- memory ----------------------------------------------------------------------------------


class Lifetimes:
    """How long the results of all actions are alive, the same for all workers: Law 2. `count`: of slots."""

    def __init__(self, actions: Sequence[Action], outputs: Sequence[int], count: int) -> None:
        self.actions = actions
        end = len(actions)
        order = np.arange(end + 1)
        read, made = [action.sources for action in actions], [action.results for action in actions]
        last = np.full(count, -1)
        last[_flat(read)] = order[:end].repeat(list(map(len, read)))  # of several readers the last one counts
        last[list(outputs)] = end
        counts = np.array([*map(len, made), 0])
        dies = np.maximum(last[_flat(made)], order.repeat(counts))
        self.by_death = dies.argsort(kind="stable")
        #: How many results are made when an action is done, and when all are.
        self.made_by = counts.cumsum()
        #: How many of them are dead when an action begins, and when all are done.
        self.dead_by = dies[self.by_death].searchsorted(order)

    def written_over(self, writer: Writer, updates: Mapping[int, int]) -> list[int]:
        """Which results take over the memory of the donated input that they replace. `updates`: slot -> input."""
        found: list[int] = []
        held: Collection[int] = writer.where
        for i, script in enumerate(writer.scripts):
            if script.reuses:
                sources, results = self.actions[i].sources, self.actions[i].results
                # Workers leave out what they do not have.
                operands = sources if len(sources) == script.operands else [s for s in sources if s in held]
                for k, (r, operand) in enumerate(zip(results, script.reuses, strict=True)):
                    if operand >= 0 and updates.get(r) == operands[operand]:
                        found.append(int(self.made_by[i]) - len(results) + k)
        return found

    def peaks(self, writer: Writer, free: Sequence[int]) -> list[int]:
        """The most memory that each worker needs at once. `free`: results that take none."""
        drafts = writer.drafts
        results = _flat([draft.result_nbytes for draft in drafts]).reshape(len(drafts), -1)
        results[:, free] = 0
        made = _sums(results).take(self.made_by, axis=1)
        dead = _sums(results.take(self.by_death, axis=1)).take(self.dead_by, axis=1)
        alive = made - dead
        alive[:, -1] += [draft.copied_nbytes for draft in drafts]
        more = [i for i, script in enumerate(writer.scripts) if script.extra_nbytes]
        if more:
            extra = _flat([draft.extra_nbytes for draft in drafts]).reshape(len(drafts), -1, 2)
            at = np.array(more)
            # What dies in an action is gone when its last operand was read.
            later = made.take(at, axis=1) - dead.take(at + 1, axis=1) + extra[:, :, 1]
            alive[:, at] = np.maximum(alive.take(at, axis=1) + extra[:, :, 0], later)
        return alive.max(axis=1).tolist()


def _flat(rows: Sequence[Iterable[int]]) -> np.ndarray:
    return np.fromiter(chain.from_iterable(rows), np.int64)


def _sums(rows: np.ndarray) -> np.ndarray:
    """Of the first 0, 1, 2, ... numbers of each row."""
    made = np.zeros((rows.shape[0], rows.shape[1] + 1), np.int64)
    rows.cumsum(axis=1, out=made[:, 1:])
    return made
