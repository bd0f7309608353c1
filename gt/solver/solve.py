"""From a program to a plan: meshes, memory, and what is emitted.

For every candidate mesh the problem is built, good assignments are propagated, and the best is searched for. The plan
that counts is the emitted one: it is made by the planner, which follows the choices, and priced by pricing.py.

Law 1: the result never costs more than any plan that was emitted on the way: that of the search, what the planner alone
       makes of the inputs of the propagated assignments and of those that people give by hand (usual.py), those of
       searches that assume that reductions overlap, of the propagated assignments, and of the planner's decisions as
       assignments; then of all these with the planner's own paths of values, as far as `PLAIN` and `EMITTED` allow.
       The search adds up times, in an emitted plan they overlap: so an assignment with a higher price may be the
       faster plan.
Law 2: memory is what the emitted plan takes. Where that is too much, a row for the point at which it is too much is
       added and the problem is solved again; copies are then dropped between the passes, if that helps. What cannot fit
       is an error that says how much is missing, and where.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, product

from gt.chosen import Chosen
from gt.dispatcher.planner.plan import Planned, plan_program
from gt.dispatcher.planner.ways import uses_of
from gt.errors import GTError
from gt.layout import Layout, Mesh, mesh
from gt.ops.check import Checked
from gt.solver.facts import is_product
from gt.solver.hardware import Hardware
from gt.solver.linear import available
from gt.solver.memory import MemoryRow, memory_row
from gt.solver.options import least_us
from gt.solver.polish import plain_plan, polished
from gt.solver.pricing import Price, peak_of, price_plan
from gt.solver.problem import SMALL, Problem
from gt.solver.propagate import decided, improve, propagated
from gt.solver.regions import Classes, alone, find_classes, together
from gt.solver.search import Found, Infeasible, search
from gt.solver.units import time_text
from gt.solver.usual import usual_inputs

#: How often a problem is solved again with more rows of memory.
ROUNDS = 6
#: Beside the plan of the search, others are emitted and compared while their instructions on all workers are fewer.
EMITTED = 20_000
#: Plans that the planner makes without choices take less time: they are compared while these programs have fewer
#: instructions.
PLAIN = 20_000
#: The same for the best of these with other layouts of some inputs (polish.py), if it is not much slower than the plan
#: of the search.
POLISHED, NEAR = 60_000, 1.03
#: Predictions are a model: so other plans that were emitted are told too, if they are predicted to take at most so many
#: times as long as the best one, and compute or communicate another amount, by this part of its time.
TOLD, ALIKE, MOST_TOLD = 1.3, 0.1, 2
#: In a small problem, plans are also searched for as if reductions of gradients were hidden behind these
#: shares of the backward pass.
OVERLAPS = (0.5, 1.0)


#: An assignment, with its name and price.
Start = tuple[str, list[int], float]


class MemoryTooSmall(GTError):
    """No plan fits into the memory of the workers."""

    missing_nbytes = 0.0  #: of the smallest plan that was found


class NotFaster(GTError):
    """No plan on this mesh is as fast as one that is known already."""


@dataclass(frozen=True, slots=True)
class Other:
    """Another plan on the same mesh, that may turn out to be faster."""

    name: str
    inputs: list[Layout]
    ways: dict[int, Chosen]
    price: Price


@dataclass(slots=True)
class Solved:
    """The best plan of one mesh."""

    mesh: Mesh
    inputs: list[Layout]
    ways: dict[int, Chosen]
    planned: Planned
    price: Price
    objective_us: float  #: what the search said
    bound_us: float  #: no assignment on this mesh is cheaper; 0 if unknown
    note: str
    seeds: dict[str, float]  #: prices of the propagated assignments
    problem: Problem
    assigned: list[int]
    log: list[str] = field(default_factory=list)
    others: list[Other] = field(default_factory=list)  #: the fastest first

    @property
    def gap(self) -> float:
        """How much cheaper another assignment could be, at most."""
        return max(0.0, 1 - self.bound_us / self.objective_us) if self.objective_us else 0.0


def candidate_meshes(workers: int, hardware: Hardware, fewer: bool = True) -> list[Mesh]:
    """Meshes of at most two axes, the minor one within a node; and of fewer workers.

    >>> from gt.solver.hardware import HARDWARE
    >>> [repr(m) for m in candidate_meshes(72, HARDWARE["h100-ib"], fewer=False)]
    ['x=72', 'x=36 y=2', 'x=18 y=4', 'x=9 y=8']
    """
    found = [mesh(x=workers)]
    for y in range(2, min(workers // 2, hardware.workers_per_node) + 1):
        if workers % y == 0 and hardware.workers_per_node % y == 0:
            found.append(mesh(x=workers // y, y=y))
    if fewer:
        n = workers // 2
        while n >= 1:
            found.append(mesh(x=n))
            n //= 2
    return found


@dataclass(frozen=True, slots=True)
class Limits:
    """How long and how exactly to search."""

    search_s: float = 20.0  #: for one mesh
    gap: float = 0.01
    memory_nbytes: int | None = None  #: of a worker; None: the hardware's
    use_search: bool = True
    cutoff_us: float = float("inf")  #: plans that cannot be faster than this are not looked for


def solve_on(
    checked: Checked, m: Mesh, hardware: Hardware, pins: Mapping[int, Layout], limits: Limits,
    trace: Callable[[str], object] = lambda line: None, classes: Classes | None = None,
    alike: Sequence[Sequence[int]] = (),
) -> Solved:  # fmt: skip
    """The best plan on one mesh. `alike`: inputs that must have the same layout."""
    hardware = hardware.busy(len(m.workers))
    if limits.cutoff_us < float("inf") and (least := _least_us(checked, m, hardware)) >= limits.cutoff_us:
        raise NotFaster(f"at least {time_text(least)}")
    memory = limits.memory_nbytes if limits.memory_nbytes is not None else hardware.memory_nbytes
    log: list[str] = []

    def say(line: str) -> None:
        log.append(line)
        trace(line)

    began = time.monotonic()
    problem = Problem(checked, m, hardware, classes, pins) if classes else problem_on(checked, m, hardware, pins, alike)
    best: Solved | None = None
    for phases in (1, 2):
        if phases > 1:
            began = time.monotonic()
            problem = Problem(checked, m, hardware, problem.classes, pins, phases)
        say(f"{m!r}: {len(problem.nodes)} choices with {sum(len(n.options) for n in problem.nodes)} options for "
            f"{len(checked.program.code)} instructions, {time.monotonic() - began:.1f} s")  # fmt: skip
        # Communication may be hidden behind computation, computation behind nothing.
        least = sum(node.count * min(option.cost.compute_us for option in node.options) for node in problem.nodes)
        if least >= limits.cutoff_us:
            raise NotFaster(f"at least {time_text(least)}")
        solved = _with_memory(problem, memory, limits, say, log)
        if solved is not None and (best is None or solved.price.time_us < best.price.time_us):
            best = solved
        if best is not None and (phases == 2 or "memory" not in best.note):  # memory did not change the plan
            break
    if best is None:
        raise _too_small(problem, memory)
    return best


def _least_us(checked: Checked, m: Mesh, hardware: Hardware) -> float:
    """What a step takes at least on this mesh: the arithmetic of its products, shared equally among the workers."""
    uses = [use for use in uses_of(checked) if is_product(use)]
    return sum(least_us(use, len(m.workers), hardware) for use in uses)


def problem_on(
    checked: Checked, m: Mesh, hardware: Hardware, pins: Mapping[int, Layout], alike: Sequence[Sequence[int]] = ()
) -> Problem:
    """The problem in which as few instructions share a choice as its size allows: none do, or the layers between the
    first and the last one, or all layers that are alike."""
    coarse = together(find_classes(checked, are_ends_apart=False), alike)
    if not _fits_pins(coarse, pins):
        coarse = together(alone(checked), alike)
    problem = Problem(checked, m, hardware, coarse, pins)
    for finer in (together(alone(checked), alike), together(find_classes(checked), alike)):
        if finer != coarse and _fits_pins(finer, pins) and problem.size_with(finer) <= SMALL:
            return Problem(checked, m, hardware, finer, pins)
    return problem


def _fits_pins(classes: Classes, pins: Mapping[int, Layout]) -> bool:
    """Whether inputs that share a choice are pinned alike."""
    return all(pins.get(j) is pins.get(c) for j, c in enumerate(classes.inputs))


def _with_memory(
    problem: Problem, memory: float, limits: Limits, say: Callable[[str], object], log: list[str]
) -> Solved | None:  # fmt: skip
    """The best plan that fits; None if there is none."""
    began = time.monotonic()
    starts = propagated(problem, say)
    seeds = {name: price for name, _, price in starts}
    rows: list[int] = []
    limit = float(memory)
    for attempt in range(ROUNDS):
        try:
            made = [memory_row(problem, at, limit) for at in dict.fromkeys(rows)]
            found = _find(problem, starts, made, limits)
        except Infeasible:
            say(f"  no assignment fits into {limit / 1e9:.2f} GB at {len(set(rows))} points")
            break
        ways, inputs, planned, price = _emitted(problem, found.assigned)
        note = found.note + (f", memory rows at {len(set(rows))} points" if rows else "")
        say(f"  {note}: {found.price_us:,.0f} us, bound {found.bound_us:,.0f}; emitted {price.time_us:,.0f} us, peak "
            f"{price.peak_nbytes / 1e9:.2f} GB, {time.monotonic() - began:.1f} s")  # fmt: skip
        if price.peak_nbytes <= memory:
            solved = Solved(problem.mesh, inputs, ways, planned, price, found.price_us, found.bound_us, note, seeds,
                            problem, found.assigned, log)  # fmt: skip
            _emit_others(solved, starts, made, memory, limits, say)
            return solved
        at, _ = peak_of(planned)
        at = max(at, 0)
        if at in rows or attempt:  # the row says less than the plan takes: leave a margin
            row = memory_row(problem, at, limit)
            margin = price.peak_nbytes - row.nbytes(found.assigned)
            limit = min(limit, memory - max(margin, 0.0) - 0.01 * memory * attempt)
        rows += [at, max(problem.boundary - 1, 0), problem.boundary]
    # Rows count what is alive in the client's program; what is emitted may take less. A start that fits is a plan.
    fitting = []
    for name, assigned, price_us in starts:
        ways, inputs, planned, price = _emitted(problem, assigned)
        if price.peak_nbytes <= memory:
            note = f"propagated from {name}, to fit into memory"
            fitting.append(Solved(problem.mesh, inputs, ways, planned, price, price_us, 0.0, note, seeds, problem,
                                  assigned, log))  # fmt: skip
    return min(fitting, key=lambda solved: solved.price.time_us, default=None)


def _emitted(
    problem: Problem, assigned: Sequence[int], with_paths: bool = True
) -> tuple[dict[int, Chosen], list[Layout], Planned, Price]:
    """What the planner makes of an assignment: choices, layouts of the inputs, plan, price."""
    ways, inputs = problem.chosen(assigned, with_paths), problem.inputs(assigned)
    planned = plan_program(problem.checked, inputs, problem.mesh, {}, ways)
    return ways, inputs, planned, price_plan(planned, problem.checked, inputs, problem.hardware)


def _emit_others(
    solved: Solved, starts: Sequence[Start], rows: Sequence[MemoryRow], memory: float, limits: Limits,
    say: Callable[[str], object],
) -> None:  # fmt: skip
    """Take a plan that is faster than that of the search, if there is one: Law 1."""
    problem = solved.problem
    most = EMITTED // (len(problem.program.code) * len(problem.mesh.workers))
    if not most:
        return
    first = ("search", solved.assigned, solved.objective_us)
    seen = [Other("search", solved.inputs, solved.ways, solved.price)]
    given = _given(problem, starts)
    plain = [(name, plain_plan(problem, inputs)) for name, inputs in given[: PLAIN // len(problem.program.code)]]
    fitting = [each for each in plain if each[1].price.peak_nbytes <= memory]
    seen += [Other(name, each.inputs, {}, each.price) for name, each in fitting]
    if fitting:
        name, best = min(fitting, key=lambda each: each[1].price.time_us)
        if best.price.time_us <= NEAR * solved.price.time_us:
            best = polished(problem, best, memory, POLISHED // len(problem.program.code))
        if best.price.time_us < solved.price.time_us:
            say(f"  {name}, the planner alone: emitted {best.price.time_us:,.0f} us")
            solved.inputs, solved.ways, solved.planned, solved.price = best.inputs, {}, best.planned, best.price
            solved.assigned = decided(problem, best.inputs)
    candidates = [first, *_overlapping(solved, rows, limits), *_others(problem, starts, given[:most])]
    tried = {(tuple(first[1]), True)}
    # The cheapest path of a value by itself may not be the one that overlaps best: the planner's own come second.
    for with_paths, (name, assigned, _) in product((True, False), candidates):
        if len(tried) > most:
            break
        if (tuple(assigned), with_paths) in tried:
            continue
        tried.add((tuple(assigned), with_paths))
        ways, inputs, planned, price = _emitted(problem, assigned, with_paths)
        if price.peak_nbytes > memory:
            continue
        seen.append(Other(name, inputs, ways, price))
        if price.time_us < solved.price.time_us:
            paths = "" if with_paths else ", paths of the planner"
            say(f"  {name}{paths}: emitted {price.time_us:,.0f} us")
            solved.inputs, solved.ways, solved.planned, solved.price = inputs, ways, planned, price
            solved.assigned = assigned
    solved.others = _apart(solved.price, seen)


def _apart(best: Price, seen: Sequence[Other]) -> list[Other]:
    """Some of these plans that are not like the best one, nor like each other: see TOLD."""
    found: list[Other] = []
    for each in sorted(seen, key=lambda each: each.price.time_us):
        if each.price.time_us > TOLD * best.time_us or len(found) == MOST_TOLD:
            break
        if all(
            abs(each.price.compute_us - one.compute_us) + abs(each.price.communication_us - one.communication_us)
            > ALIKE * best.time_us for one in (best, *[other.price for other in found])
        ):  # fmt: skip
            found.append(each)
    return found


def _overlapping(solved: Solved, rows: Sequence[MemoryRow], limits: Limits) -> list[Start]:
    """What the search finds if it assumes that reductions overlap."""
    problem = solved.problem
    if not limits.use_search or not available() or problem.size_with(problem.classes) > SMALL:
        return []
    found: list[Start] = []
    for overlap in OVERLAPS:
        each = search(problem, solved.assigned, limits.search_s, limits.gap, rows, overlap)
        found.append((f"search with overlap {overlap:g}", each.assigned, each.price_us))
    return found


def _given(problem: Problem, starts: Sequence[Start]) -> list[tuple[str, list[Layout]]]:
    """Layouts of the inputs, each once: those of the propagated assignments, and the usual ones."""
    found: dict[tuple[Layout, ...], str] = {}
    for name, inputs in chain([(name, problem.inputs(each)) for name, each, _ in starts], usual_inputs(problem)):
        found.setdefault(tuple(inputs), name)
    return [(name, list(inputs)) for inputs, name in found.items()]


def _others(problem: Problem, starts: Sequence[Start], given: Sequence[tuple[str, list[Layout]]]) -> list[Start]:
    """The propagated assignments, and what the planner decides from these inputs: the cheapest first."""
    found = list(starts)
    for name, inputs in given:
        here = decided(problem, inputs)
        for each in (here, improve(problem, here)):
            found.append((f"{name}, then the planner", each, problem.price(each)))
    return sorted(found, key=lambda each: each[2])


def _find(problem: Problem, starts: Sequence[Start], rows: Sequence[MemoryRow], limits: Limits) -> Found:
    """The best assignment that keeps the rows."""
    fitting = [each for each in starts if all(row.holds(each[1]) for row in rows)]
    if limits.use_search and available():
        return search(problem, fitting[0][1] if fitting else None, limits.search_s, limits.gap, rows)
    if not fitting:
        raise Infeasible
    name, assigned, price = fitting[0]
    return Found(assigned, price, 0.0, f"propagated from {name}")


def _too_small(problem: Problem, memory: float) -> MemoryTooSmall:
    """How much is missing, and where: of the plan that needs the least."""
    least: tuple[float, str] | None = None
    for _, assigned, _ in propagated(problem):
        _, _, planned, price = _emitted(problem, assigned)
        at, _ = peak_of(planned)
        where = f"instruction {at} ({problem.program.code[at].op})" if at >= 0 else "a joint reduction"
        if least is None or price.peak_nbytes < least[0]:
            least = price.peak_nbytes, where
    assert least is not None
    missing = least[0] - memory
    error = MemoryTooSmall(
        f"the program does not fit on {problem.mesh!r}: the smallest plan found needs {least[0] / 1e9:.2f} GB of a "
        f"worker, {missing / 1e9:.2f} GB more than the {memory / 1e9:.2f} GB that it has; the peak is at {least[1]}"
    )
    error.missing_nbytes = missing
    return error
