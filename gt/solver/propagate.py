"""Good assignments without a search: splits are followed through the rules from a few starting points.

A fact says how one axis of the mesh is used for one value: it splits a dimension, or it does not split the value.

Law 1: a fact is set at most once, so propagation ends: there are as many facts as values times axes.
Law 2: pins come first, then the seed, then heavy instructions in the order of their cost.
Law 3: `improve` only ever lowers the price, so it ends too.

A node with a fact among its operands or values takes the option that agrees with most facts, by bytes; what this option
says about the axes of those facts becomes new facts, in both directions, and along the edge from a new value to the
stored one that it replaces. `assign` then walks over the nodes in the order of the program: an option that agrees with
the facts, the cheapest among them. `improve` changes one node at a time as long as that helps.

The best of several seeds is the start of the search (search.py), its bound, and what is used where no search is
possible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gt.dispatcher.planner.plan import layouts_of
from gt.layout import Layout
from gt.solver.problem import Problem

#: What an axis does to a value: the dimension that it splits (`Layout.dim_of`), or one of these.
WHOLE, PARTIAL = -1, -2
#: (value, axis) -> what the axis does.
Facts = dict[tuple[int, int], int]


@dataclass(slots=True)
class _Place:
    """A value that a node reads or makes: what each axis does to it in each option."""

    value: int
    roles: np.ndarray  #: [option, axis]
    weight: float


class Propagation:
    """Propagates facts over a problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.axes = list(problem.mesh.sizes)
        self.places: list[list[_Place]] = [[] for _ in problem.nodes]
        self.near: list[set[int]] = [set() for _ in problem.values]  #: of each value: the nodes that read or make it
        made = [self._roles(value.layouts) for value in problem.values]
        wanted = [self._roles(value.targets) for value in problem.values]
        for v, value in enumerate(problem.values):
            if value.node >= 0:
                roles = made[v][value.layout_of]
                self.places[value.node].append(_Place(v, roles, float(value.spec.nbytes)))
                self.near[v].add(value.node)
        for edge in problem.edges:
            roles = wanted[edge.value][edge.target_of]
            weight = float(problem.values[edge.value].spec.nbytes)
            self.places[edge.node].append(_Place(edge.value, roles, weight))
            self.near[edge.value].add(edge.node)
        self.rounds = 0  #: nodes that were looked at

    def _roles(self, layouts: Sequence[Layout]) -> np.ndarray:
        found = np.full((max(len(layouts), 1), len(self.axes)), WHOLE)
        for k, one in enumerate(layouts):
            for j, axis in enumerate(self.axes):
                found[k, j] = PARTIAL if axis in one.pending else one.dim_of(axis)
        return found

    def agreeing(self, node: int, facts: Mapping[tuple[int, int], int]) -> np.ndarray:
        """Of each option: how many bytes of facts it agrees with."""
        score = np.zeros(len(self.problem.nodes[node].options))
        for place in self.places[node]:
            for j in range(len(self.axes)):
                fact = facts.get((place.value, j))
                if fact is not None:
                    score += place.weight * (place.roles[:, j] == fact)
        return score

    def run(self, seed: Mapping[tuple[int, int], int]) -> Facts:
        """All facts that follow from a seed."""
        problem = self.problem
        facts: Facts = dict(seed)
        todo = {node for v, _ in facts for node in self.near[v]}
        heavy = sorted(range(len(problem.nodes)), key=lambda k: -_saving(problem, k))
        most = len(problem.values) * len(self.axes)
        while True:
            while todo:
                node = min(todo)
                todo.discard(node)
                self.rounds += 1
                todo |= self._visit(node, facts, None)
            assert len(facts) <= most  # Law 1
            while heavy and all((p.value, j) in facts for p in self.places[heavy[0]] for j in range(len(self.axes))):
                heavy.pop(0)
            if not heavy:
                return facts
            node = heavy.pop(0)
            todo |= self._visit(node, facts, range(len(self.axes)))

    def _visit(self, node: int, facts: Facts, axes: range | None) -> set[int]:
        """Set what follows from the facts at a node; the nodes that this may concern. `axes`: all of them, for a node
        that is decided without facts."""
        score = self.agreeing(node, facts)
        best = np.flatnonzero(score >= score.max() - 1e-9)
        option = int(best[np.argmin(self.problem.nodes[node].time_us[best])])
        known = {
            j for place in self.places[node] for j in range(len(self.axes))
            if facts.get((place.value, j)) == place.roles[option, j]
        }  # fmt: skip
        changed: set[int] = set()
        for place in self.places[node]:
            for j in known if axes is None else axes:
                role = int(place.roles[option, j])
                if (place.value, j) not in facts and role != PARTIAL:
                    facts[place.value, j] = role
                    changed |= self.near[place.value]
        return changed - {node}

    def assign(self, facts: Mapping[tuple[int, int], int]) -> list[int]:
        """An assignment that agrees with the facts, node by node in the order of the program."""
        problem = self.problem
        assigned = [0] * len(problem.nodes)
        reads: list[list[int]] = [[] for _ in problem.nodes]
        for e, edge in enumerate(problem.edges):
            if edge.operand >= 0:
                reads[edge.node].append(e)
        done: set[int] = set()
        for k in sorted(range(len(problem.nodes)), key=lambda k: problem.nodes[k].instructions[:1] or [-1]):
            node = problem.nodes[k]
            cost = node.count * node.time_us
            for e in reads[k]:
                edge = problem.edges[e]
                value = problem.values[edge.value]
                if value.node < 0 or value.node in done:
                    source = problem.layout_index(edge.value, assigned)
                    cost = cost + len(edge.instances) * value.price_us[source, edge.target_of]
            score = self.agreeing(k, facts)
            best = np.flatnonzero(score >= score.max() - 1e-9)
            assigned[k] = int(best[np.argmin(cost[best])])
            done.add(k)
        return assigned


def _saving(problem: Problem, k: int) -> float:
    """What splitting a node at all is worth."""
    node = problem.nodes[k]
    return node.count * float(node.time_us.max() - node.time_us.min())


# -- seeds -----------------------------------------------------------------------------------


def seeds(problem: Problem) -> Iterator[tuple[str, Facts]]:
    """The starting points, by name: for each axis data, weights, or both are split."""
    axes = range(len(problem.mesh.sizes))

    def rows(over: Sequence[int], of_state: bool = False) -> Facts:
        """The first dimensions of data, or of what is trained, are split."""
        return {(v, j): 0 for v, is_state, shape in inputs_of(problem) for j in over if is_state is of_state and shape}

    yield "batch", pinned(problem, rows(axes))
    yield "parameters", pinned(problem, rows(axes) | rows(axes, of_state=True))
    yield "columns and rows", pinned(problem, _columns_and_rows(problem, axes))
    if len(axes) > 1:
        first, last = axes[:1], axes[-1:]
        yield "batch, columns and rows", pinned(problem, rows(first) | _columns_and_rows(problem, last))
        yield "columns and rows, batch", pinned(problem, rows(last) | _columns_and_rows(problem, first))
    yield "heavy", pinned(problem, {})


def inputs_of(problem: Problem) -> Iterator[tuple[int, bool, tuple[int, ...]]]:
    """(value, whether the program replaces it, shape) of each input."""
    replaced = {problem.classes.inputs[j] for _, j in problem.program.updates}
    for node in problem.nodes:
        if node.input >= 0:
            shape = problem.checked.specs[node.input].shape
            yield node.values[0], node.input in replaced, shape


def pinned(problem: Problem, facts: Facts) -> Facts:
    """Law 2: pins come first."""
    made: Facts = {}
    for node in problem.nodes:
        stored = {option.gives[0] for option in node.options}
        if node.input in problem.pins and len(stored) == 1:
            (one,) = stored
            for j, axis in enumerate(problem.mesh.sizes):
                made[node.values[0], j] = one.dim_of(axis)
    return {**facts, **made}


def _columns_and_rows(problem: Problem, axes: Sequence[int]) -> Facts:
    """Of two weights in a row the first is split over its results, the second over what it sums up: Megatron's way."""
    facts: Facts = {}
    state = {v for v, is_state, _ in inputs_of(problem) if is_state}
    follows = {v: v for v in state}
    column = True
    seen: set[int] = set()
    by_node: dict[int, list[int]] = {}
    for edge in problem.edges:
        if edge.operand >= 0 and edge.value in follows:
            by_node.setdefault(edge.node, []).append(edge.value)
    for k in sorted(by_node):
        node = problem.nodes[k]
        heavy = [v for v in by_node[k] if len(problem.values[v].spec.shape) > 1 and v not in seen]
        if node.instructions and node.instructions[0] < problem.boundary and heavy and _saving(problem, k) > 0:
            v = max(heavy, key=lambda v: problem.values[v].spec.size)
            seen.add(v)
            name = problem.program.code[node.instructions[0]].op
            out_dim = 0 if name == "linear" else len(problem.values[v].spec.shape) - 1
            in_dim = 1 if name == "linear" else 0
            for j in axes:
                facts[v, j] = out_dim if column else in_dim
            column = not column
    return facts


# -- the planner's own decisions -------------------------------------------------------------


def decided(problem: Problem, inputs: Sequence[Layout]) -> list[int]:
    """What the planner decides by itself if the inputs have these layouts, as an assignment: of each node the option
    that agrees most, by bytes, with the layouts in which the planner makes and reads values."""
    found = layouts_of(problem.checked, inputs, problem.mesh)
    number_of = {v: problem.first_of(key) for key, v in problem.value_of.items()}
    assigned = []
    for node in problem.nodes:
        places = [(found[number_of[v]][:1], problem.values[v].spec.nbytes) for v in node.values]
        reads = [problem.program.code[i].args[p] for i, p in node.operands]
        wanted = [(found[a], problem.checked.specs[a].nbytes) for a in reads]
        score = np.array([
            sum(nbytes * (one in mine) for one, (mine, nbytes) in zip(option.gives, places, strict=True))
            + sum(nbytes * (one in mine) for one, (mine, nbytes) in zip(option.wants, wanted, strict=True))
            for option in node.options
        ])  # fmt: skip
        best = np.flatnonzero(score >= score.max())
        assigned.append(int(best[np.argmin(node.time_us[best])]))
    return assigned


# -- one node at a time ----------------------------------------------------------------------


def option_costs(problem: Problem, node: int, assigned: Sequence[int]) -> np.ndarray:
    """What each option of a node costs, with the conversions that concern it, if nothing else changes."""
    reads: dict[int, list[int]] = {}
    concerned: set[int] = set()
    for k, sharing in enumerate(problem.sharings):
        mine = [e for e in sharing.edges if problem.edges[e].node == node]
        if mine:
            reads[k] = mine
        if mine or problem.values[sharing.value].node == node:
            concerned.add(k)
    return _costs(problem, node, assigned, concerned, reads)


def improve(problem: Problem, assigned: Sequence[int], rounds: int = 30) -> list[int]:
    """Change one node at a time as long as the price falls: Law 3."""
    current = list(assigned)
    mine: list[set[int]] = [set() for _ in problem.nodes]  # of each node: the sharings that concern it
    reads: list[dict[int, list[int]]] = [{} for _ in problem.nodes]  # ... and its edges in each of them
    for k, sharing in enumerate(problem.sharings):
        maker = problem.values[sharing.value].node
        if maker >= 0:
            mine[maker].add(k)
        for e in sharing.edges:
            mine[problem.edges[e].node].add(k)
            reads[problem.edges[e].node].setdefault(k, []).append(e)
    todo = set(range(len(problem.nodes)))
    for _ in range(rounds * len(problem.nodes)):
        if not todo:
            break
        node = min(todo)
        todo.discard(node)
        cost = _costs(problem, node, current, mine[node], reads[node])
        best = int(cost.argmin())
        if cost[best] < cost[current[node]] - 1e-9:
            current[node] = best
            for k in mine[node]:
                sharing = problem.sharings[k]
                todo |= {problem.edges[e].node for e in sharing.edges} | {problem.values[sharing.value].node}
            todo -= {node, -1}
    return current if problem.price(current) <= problem.price(assigned) else list(assigned)


def _costs(
    problem: Problem, node: int, current: Sequence[int], sharings: set[int], reads: Mapping[int, list[int]]
) -> np.ndarray:
    """What each option of a node costs, with the conversions that concern it, if nothing else changes."""
    total = problem.nodes[node].count * problem.nodes[node].time_us
    for k in sorted(sharings):
        sharing = problem.sharings[k]
        value = problem.values[sharing.value]
        edges = reads.get(k, [])
        others = {
            int(problem.edges[e].target_of[current[problem.edges[e].node]]) for e in sharing.edges if e not in edges
        }
        prices = value.price_us
        if value.node == node:
            sources = value.layout_of
        else:
            sources = np.full(len(total), problem.layout_index(sharing.value, current))
        mine = prices[sources][:, sorted(others)].sum(axis=1) if others else np.zeros(len(total))
        wanted: list[np.ndarray] = []
        for e in edges:
            targets = problem.edges[e].target_of
            fresh = ~np.isin(targets, sorted(others))
            for before in wanted:
                fresh &= targets != before
            mine = mine + np.where(fresh, prices[sources, targets], 0.0)
            wanted.append(targets)
        total = total + sharing.count * mine
    return total


def propagated(
    problem: Problem, say: Callable[[str], object] = lambda line: None
) -> list[tuple[str, list[int], float]]:
    """The assignment of each seed, improved, with its price: the best first."""
    found = []
    propagation = Propagation(problem)
    for name, seed in seeds(problem):
        before = propagation.rounds
        facts = propagation.run(seed)
        first = propagation.assign(facts)
        assigned = improve(problem, first)
        found.append((name, assigned, problem.price(assigned)))
        changed = sum(a != b for a, b in zip(first, assigned, strict=True))
        say(f"  seed {name}: {len(seed)} facts, {len(facts)} at the fixed point after {propagation.rounds - before} "
            f"rounds: {problem.price(first):,.0f} us; {changed} changes: {found[-1][2]:,.0f} us")  # fmt: skip
    return sorted(found, key=lambda each: each[2])
