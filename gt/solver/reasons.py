"""Why a plan is as it is: the plan in words, and for each class of instructions the choice, its price, the runner-up.

Reasons are data: they travel with a plan, and `Plan.explain` prints them.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence

import msgspec

from gt.layout import Layout
from gt.ops.record import TABLE
from gt.solver.choices import ChoiceNode
from gt.solver.facts import is_product
from gt.solver.pricing import Price
from gt.solver.problem import Problem
from gt.solver.propagate import option_costs
from gt.solver.purposes import class_name
from gt.solver.regions import find_classes


class ClassReason(msgspec.Struct, frozen=True):
    """What was chosen for equal instructions."""

    instruction: int  #: the first of them
    ops: str  #: with followers; views are left out
    count: int
    choice: str  #: "[72@x] [] -> [72@x]"
    time_us: float  #: of all of them, with the conversions that are made for them
    moving_us: float  #: the part of it in which data is moved between workers
    runner_up: str  #: the best other choice, if nothing else changes
    extra_us: float  #: what it would cost more


class CollectiveReason(msgspec.Struct, frozen=True):
    """Collectives of one kind over the same axes."""

    kind: str
    axes: str
    count: int
    nbytes: float  #: that a worker receives
    time_us: float


class PlannedInput(msgspec.Struct, frozen=True):
    """An input of the program."""

    name: str
    role: str  #: "parameter", "state", "buffer" or "data"
    spec: str  #: "f32[4096,4096]"
    layout: str


class InputClass(msgspec.Struct, frozen=True):
    """Inputs of equal layers, or one input. State is told with its parameter."""

    name: str
    role: str
    spec: str
    layout: str
    state: str  #: the layouts of the optimizer's state of it, without repetition
    count: int
    nbytes: int  #: of all of them


def input_classes(inputs: Sequence[PlannedInput]) -> list[InputClass]:
    """Data, parameters and buffers in the order of the program; those that are alike as one."""
    state: dict[str, dict[str, None]] = {}
    for each in inputs:
        if each.role == "state":
            state.setdefault(each.name.partition(":")[2], {})[each.layout] = None
    groups: dict[tuple[str, str, str, str, str], list[str]] = {}
    for each in inputs:
        if each.role != "state":
            mine = " and ".join(state.get(each.name, ()))
            groups.setdefault((class_name(each.name), each.role, each.spec, each.layout, mine), []).append(each.name)
    return [
        InputClass(name if len(same) > 1 else same[0], role, spec, layout, mine, len(same), len(same) * _nbytes(spec))
        for (name, role, spec, layout, mine), same in groups.items()
    ]


def shape_of(spec: str) -> tuple[int, ...]:
    """The shape in a spec's text.

    >>> shape_of("f32[4096,1024]"), shape_of("f32[]")
    ((4096, 1024), ())
    """
    return tuple(map(int, re.findall(r"\d+", spec.partition("[")[2])))


def _nbytes(spec: str) -> int:
    bits = re.match(r"[a-z]+(\d+)", spec)
    return math.prod(shape_of(spec)) * (int(bits[1]) if bits else 8) // 8


class Reasons(msgspec.Struct, frozen=True):
    """See the file's header."""

    words: tuple[str, ...]
    classes: tuple[ClassReason, ...]  #: the most expensive first
    collectives: tuple[CollectiveReason, ...]


def reasons_of(problem: Problem, assigned: Sequence[int], price: Price, most: int = 40) -> Reasons:
    """The reasons of an assignment and of the plan that was made of it. The times of all classes add up to the price of
    the assignment, if nothing overlaps."""
    classes = []
    moving, making = _conversions(problem, assigned)
    for k, node in enumerate(problem.nodes):
        if not node.instructions and not moving[k]:
            continue
        costs = option_costs(problem, k, assigned)
        chosen = assigned[k]
        mine = node.options[chosen]
        layouts = (mine.wants, mine.gives)
        others = [i for i, option in enumerate(node.options) if (option.wants, option.gives) != layouts]
        other = min(others, key=lambda i: costs[i]) if others else None
        moved_us = moving[k] + node.count * mine.cost.exchange_us
        ops = [problem.program.code[i].op for i in node.instructions]
        classes.append(ClassReason(
            node.instructions[0] if ops else -1, " ".join([op for op in ops if not TABLE[op].aliases] or ops[:1]),
            node.count, _text(node, chosen), node.count * mine.cost.compute_us + making[k] + moved_us, moved_us,
            _text(node, other) if other is not None else "",
            float(costs[other] - costs[chosen]) if other is not None else 0.0,
        ))  # fmt: skip
    classes = _joined(problem, classes)
    return Reasons(tuple(words_of(problem, assigned)), tuple(classes[:most]), tuple(_collectives(problem, price)))


def _joined(problem: Problem, classes: Sequence[ClassReason]) -> list[ClassReason]:
    """Equal instructions of layers that are alike as one class, if they have chosen alike; the most expensive first."""
    alike = find_classes(problem.checked, are_ends_apart=False).instructions
    groups: dict[tuple[int, str, str, str], list[ClassReason]] = {}
    for k, each in enumerate(classes):
        first = alike[each.instruction] if each.instruction >= 0 else ~k
        groups.setdefault((first, each.ops, each.choice, each.runner_up), []).append(each)
    found = [
        msgspec.structs.replace(
            mine[0], count=sum(each.count for each in mine), time_us=sum(each.time_us for each in mine),
            moving_us=sum(each.moving_us for each in mine), extra_us=sum(each.extra_us for each in mine),
        )
        for mine in groups.values()
    ]  # fmt: skip
    return sorted(found, key=lambda each: -each.time_us)


def _conversions(problem: Problem, assigned: Sequence[int]) -> tuple[list[float], list[float]]:
    """Of each node: the time of the conversions that are made for it, and of making values of numbers alone. One that
    several nodes share belongs to the first of them; the way of a new value back to where the old one was stored
    belongs to the node that makes it."""
    moving, making = [0.0] * len(problem.nodes), [0.0] * len(problem.nodes)
    for sharing in problem.sharings:
        value = problem.values[sharing.value]
        source = problem.layout_index(sharing.value, assigned)
        seen: set[int] = set()
        for edge in sorted([problem.edges[e] for e in sharing.edges], key=lambda edge: edge.operand < 0):
            target = int(edge.target_of[assigned[edge.node]])
            if target not in seen:
                seen.add(target)
                owner = value.node if edge.operand < 0 and value.node >= 0 else edge.node
                (moving if value.node >= 0 else making)[owner] += sharing.count * float(value.price_us[source, target])
    return moving, making


def _text(node: ChoiceNode, option: int) -> str:
    each = node.options[option]
    wants, gives = (each.gives[:1], each.gives[1:]) if node.input >= 0 else (each.wants, each.gives)
    return f"{_layouts(wants)} -> {_layouts(gives)}"


def _layouts(given: Sequence[Layout]) -> str:
    """Layouts in their order, equal ones in a row as one."""
    runs = [(repr(one), len(list(same))) for one, same in itertools.groupby(given)]
    return ", ".join([f"{n} x {text}" if n > 1 else text for text, n in runs])


def _collectives(problem: Problem, price: Price) -> list[CollectiveReason]:
    """The collectives, by the axes over which the workers meet."""
    m = problem.mesh
    last = m.coordinates[-1]
    groups = {}
    names = list(m.sizes)
    for k in range(1, 1 << len(names)):
        axes = [a for j, a in enumerate(names) if k >> j & 1]
        groups[tuple(m.workers[j] for j in m.group(axes, last))] = " ".join(axes)
    found = [
        CollectiveReason(kind, groups.get(workers, f"{len(workers)} workers"), tally.count, tally.nbytes, tally.time_us)
        for (kind, workers), tally in price.collectives.items()
    ]
    return sorted(found, key=lambda each: -each.time_us)


# -- in words --------------------------------------------------------------------------------


def words_of(problem: Problem, assigned: Sequence[int]) -> list[str]:
    """The plan in words, as an expert would say it."""
    if len(problem.mesh.workers) == 1:
        return ["one worker"]
    state = {problem.classes.inputs[j] for _, j in problem.program.updates}
    roles = _roles(problem, assigned, state)
    found: list[str] = []
    for role, text in (
        ("batch", "data parallel over {}"),
        ("weights", "weights split over {} (tensor parallel)"),
        ("other", "activations split over {} along another dimension than the batch"),
    ):
        axes = [a for a, mine in roles.items() if mine.get(role, 0.0) > 0.15]
        if axes:
            shares = [roles[a][role] for a in axes]
            part = " and ".join(dict.fromkeys(f"{share:.0%}" for share in shares))  # of each axis, or of all alike
            found.append(
                text.format(" and ".join(axes)) + (f" in {part} of the products" if min(shares) < 0.995 else "")
            )
    found += _gradients(problem, assigned)
    found += _storage(problem, assigned, state)
    idle = [a for a, mine in roles.items() if mine.get("none", 0.0) > 0.5]
    if idle:
        found.append(f"most products are the same on all workers along {' and '.join(idle)}")
    return found or ["every worker computes the same"]


def _roles(problem: Problem, assigned: Sequence[int], state: set[int]) -> dict[str, dict[str, float]]:
    """By axis: the share of the products' time in which it splits the batch, weights, something else, or nothing."""
    found: dict[str, dict[str, float]] = {a: {} for a in problem.mesh.sizes}
    origins = _origins(problem)
    weights_read = {(edge.node, edge.operand) for edge in problem.edges if origins.get(edge.value) in state}
    total = 0.0
    for k, (node, choice) in enumerate(zip(problem.nodes, assigned, strict=True)):
        if node.input >= 0 or not is_product(problem.uses[node.instructions[0]]):
            continue
        if node.instructions[0] >= problem.boundary or not any(
            (k, o) in weights_read for o in range(len(node.operands))
        ):
            continue
        option = node.options[choice]
        time_us = node.count * option.cost.compute_us
        total += time_us
        for a in problem.mesh.sizes:
            role = "none"
            for o, want in enumerate(option.wants):
                if a in want.axes() and (k, o) in weights_read:
                    role = "weights"
                    break
                if a in want.axes():
                    role = "batch" if want.dim_of(a) == 0 else "other"
            found[a][role] = found[a].get(role, 0.0) + time_us
    return {a: {role: t / total for role, t in mine.items()} for a, mine in found.items()} if total else found


def _origins(problem: Problem) -> dict[int, int]:
    """Of values that are an input, or an input after casts and views: which one."""
    found = {v: node.input for node in problem.nodes if node.input >= 0 for v in node.values}
    reads: dict[int, set[int]] = {}
    for edge in problem.edges:
        if edge.operand >= 0:
            reads.setdefault(edge.node, set()).add(edge.value)
    for k, node in enumerate(problem.nodes):  # in the order of the program
        mine = {found.get(v) for v in reads.get(k, ())}
        if node.input < 0 and len(mine) == 1 and len(node.operands) == 1:
            (origin,) = mine
            if origin is not None:
                found.update(dict.fromkeys(node.values, origin))
    return found


def _gradients(problem: Problem, assigned: Sequence[int]) -> list[str]:
    """How gradients are reduced, along the axes where they are partial sums."""
    reduced: dict[str, float] = {}
    scattered: dict[str, float] = {}
    for sharing in problem.sharings:
        if not sharing.is_reduced_late:
            continue
        value = problem.values[sharing.value]
        source, wanted = problem.conversions(sharing, assigned)
        nbytes = float(sharing.count * value.spec.nbytes)
        targets = [value.targets[t] for t in wanted]
        for a in value.layouts[source].pending:
            reduced[a] = reduced.get(a, 0.0) + nbytes
            if all(a in one.axes() and a not in one.pending for one in targets):
                scattered[a] = scattered.get(a, 0.0) + nbytes
    axes = [a for a in problem.mesh.sizes if scattered.get(a, 0.0) > 0.5 * reduced.get(a, 0.0) > 0]
    if not axes:
        return []
    shares = [scattered[a] / reduced[a] for a in axes]
    part = " and ".join(f"{share:.0%}" for share in shares)
    text = f"gradients reduced and scattered over {' and '.join(axes)}"
    return [text + (f" in {part} of their bytes" if min(shares) < 0.995 else "")]


def _storage(problem: Problem, assigned: Sequence[int], state: set[int]) -> list[str]:
    """How parameters and optimizer state are stored."""
    wanted: dict[int, set[Layout]] = {}  # input -> the layouts in which it is read, casts and views aside
    origins = _origins(problem)
    for edge in problem.edges:
        origin, reader = origins.get(edge.value), problem.nodes[edge.node]
        if edge.operand < 0 or origin is None or reader.instructions[0] >= problem.boundary:
            continue
        if not any(origins.get(v) == origin for v in reader.values):
            target = problem.values[edge.value].targets[int(edge.target_of[assigned[edge.node]])]
            wanted.setdefault(origin, set()).add(target)
    gathered: dict[str, float] = {}
    sharded: dict[str, float] = {}
    apart: dict[str, float] = {}  # axis -> bytes of the state of parameters that it does not split where they are used
    total = rest = 0.0
    parameter_of = _parameters(problem, set(wanted))
    for node, choice in zip(problem.nodes, assigned, strict=True):
        if node.input not in state:
            continue
        one, nbytes = node.options[choice].gives[0], node.count * problem.checked.specs[node.input].nbytes
        reads = wanted.get(node.input)
        if reads is not None:
            total += nbytes
            for a in one.axes():
                if all(a not in each.axes() for each in reads):
                    gathered[a] = gathered.get(a, 0.0) + nbytes
            continue
        rest += nbytes
        for a in problem.mesh.sizes:
            if all(a not in each.axes() for each in wanted.get(parameter_of.get(node.input, -1), ())):
                apart[a] = apart.get(a, 0.0) + nbytes
                sharded[a] = sharded.get(a, 0.0) + (nbytes if a in one.axes() else 0.0)
    found = []
    axes = [a for a in problem.mesh.sizes if gathered.get(a, 0.0) > 0.5 * total > 0]
    if axes:
        found.append(f"parameters sharded over {' and '.join(axes)}, gathered before use")
    # State that is split because its parameter is (tensor parallel) is not worth a word.
    axes = [a for a in problem.mesh.sizes if sharded.get(a, 0.0) > 0.5 * apart.get(a, 0.0) > 0.075 * rest]
    if axes:
        found.append(f"optimizer state sharded over {' and '.join(axes)}")
    return found


def _parameters(problem: Problem, used: set[int]) -> dict[int, int]:
    """Of optimizer state: the parameter that it belongs to. The same instruction replaces both, or else reads both."""
    program, classes = problem.program, problem.classes.inputs
    n = len(program.inputs)
    together: dict[int, set[int]] = {}  # instruction -> inputs that it reads, or whose new values it makes
    for o, j in program.updates:
        if program.outputs[o] >= n:
            together.setdefault(problem.maker[program.outputs[o] - n], set()).add(classes[j])
    for i, ins in enumerate(program.code):
        if i >= problem.update_start:
            together.setdefault(i, set()).update(classes[a] for a in ins.args if 0 <= a < n)
    found: dict[int, int] = {}
    for mine in together.values():
        parameters = sorted(mine & used)
        if parameters:
            for j in mine - used:
                found.setdefault(j, parameters[0])
    return found
