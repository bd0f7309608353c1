"""The best assignment, as an integer program (HiGHS, the package highspy).

    minimise   sum count * time * y  +  sum count * conversion * e  -  hidden
    for each node                       sum of y over its options = 1
    for each edge and source layout     sum of e over targets = sum of the y that make the value in it
    for each edge and target layout     sum of e over sources = sum of the y that want the value in it
    for readers that share a copy       z >= e of each of them; z is paid instead
    hidden                              <= reductions of gradients, <= overlap * computation of the backward pass
    memory at a point                   sum of bytes of what is alive <= what a worker has

Law: `bound_us` is a proven lower bound of the price of every assignment. The linear program comes first; only where its
     solution is not integral, and a rounded one is not good enough, the integer program follows.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gt.solver.choices import ChoiceNode, Edge
from gt.solver.linear import LinearProgram
from gt.solver.memory import MemoryRow
from gt.solver.problem import Problem
from gt.solver.propagate import improve

_WHOLE = 1e-5  #: how far from a whole number a solution may be


class Flows(NamedTuple):
    """How much of a value is brought from one layout to another: the sum of the variables with the same ends."""

    sources: np.ndarray  #: of each variable: the place of the layout in which the value is made,
    targets: np.ndarray  #: and of the one in which it is wanted
    variables: np.ndarray


@dataclass(slots=True)
class Found:
    """What the search found."""

    assigned: list[int]  #: an option of each node
    price_us: float
    bound_us: float  #: no assignment is cheaper
    note: str  #: how it was found

    @property
    def gap(self) -> float:
        """How much cheaper another assignment could be, at most."""
        return max(0.0, 1 - self.bound_us / self.price_us) if self.price_us > 0 else 0.0


class Infeasible(Exception):
    """No assignment satisfies the memory rows."""


def search(
    problem: Problem, start: Sequence[int] | None = None, limit_s: float = 30.0, gap: float = 1e-6,
    rows: Sequence[MemoryRow] = (), overlap: float | None = None,
) -> Found:  # fmt: skip
    """The best assignment, from a good one if there is one. `overlap`: as if the hardware had this one."""
    if not problem.nodes:
        return Found([], problem.fixed_us, problem.fixed_us, "nothing to choose")
    began = time.monotonic()
    if overlap is None:
        overlap = problem.hardware.overlap

    def price_of(assigned: Sequence[int]) -> float:
        return problem.price(assigned, overlap)

    upper = price_of(start) if start is not None and all(row.holds(start) for row in rows) else np.inf
    model = _Model(problem, rows, overlap, upper)
    status, value, solution = model.solve(False, limit_s)
    if status == "infeasible":
        raise Infeasible
    best = list(start) if start is not None else [0] * len(problem.nodes)
    if status != "optimal":
        return Found(best, price_of(best), 0.0, f"no bound in {limit_s:g} s")
    bound = value
    rounded, integral = model.rounded(solution)
    tries = [rounded] if not rows else []
    if not rows:
        tries.append(improve(problem, rounded))
    elif integral and all(row.holds(rounded) for row in rows):
        tries.append(rounded)
    for each in tries:
        price = price_of(each)
        if price < upper:
            best, upper = each, price
    if upper <= bound * (1 + gap) + 1e-9:
        return Found(best, upper, min(bound, upper), "linear program" + (", integral" if integral else ""))
    left = limit_s - (time.monotonic() - began)
    status, value, solution = model.solve(True, max(left, 1.0), best if np.isfinite(upper) else None, gap)
    if status == "infeasible":
        raise Infeasible
    bound = max(bound, value)
    if solution is not None:
        each, _ = model.rounded(solution)
        if price_of(each) < upper and all(row.holds(each) for row in rows):
            best, upper = each, price_of(each)
    if not np.isfinite(upper):
        raise Infeasible
    return Found(best, upper, min(bound, upper), "integer program")


class _Model:
    """The integer program of a problem. Its first variables are the options of all nodes."""

    def __init__(self, problem: Problem, memory: Sequence[MemoryRow], overlap: float, most_us: float = np.inf) -> None:
        """`most_us`: the price of a known assignment. What no cheaper one can contain is left out."""
        self.problem, self.overlap = problem, overlap
        counts = [len(node.options) for node in problem.nodes]
        self.start_of = np.concatenate(([0], np.cumsum(counts)[:-1])).astype(int).tolist()  #: of each node
        self.linear = LinearProgram()
        options = self.linear.variables(np.concatenate([node.count * node.time_us for node in problem.nodes]))
        self.options = len(options)
        self.linear.rows(np.repeat(np.arange(len(counts)), counts), options, np.ones(self.options), 1.0, 1.0)
        least = [self._least_us(node) for node in problem.nodes]
        #: What an assignment may cost beside the cheapest option of each node. Nothing dearer than that is in a
        #: better assignment than the known one: neither an option nor a conversion.
        #: (If the known one consists of the cheapest, rounding may leave less than nothing.)
        self.spare_us = max(0.0, most_us - problem.fixed_us - sum(float(each.min()) for each in least)) * (1 + 1e-6)
        self.is_open = [each - each.min() <= self.spare_us for each in least]  #: of each node: of each option
        self.linear.bound(options[~np.concatenate(self.is_open)], 0.0)
        self.paid: list[Flows] = []  #: of each sharing: the conversions that cost something
        self.late: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])  #: what can be hidden: variables, microseconds
        flows = [self._flows(edge) for edge in problem.edges]
        for k, sharing in enumerate(problem.sharings):
            self.paid.append(self._conversions(k, [flows[e] for e in sharing.edges]))
            if sharing.is_reduced_late:
                paid, prices = self.paid[-1], problem.values[sharing.value].price_us * sharing.count
                self.late[0].append(paid.variables)
                self.late[1].append(prices[paid.sources, paid.targets])
        self._overlap()
        for row in memory:
            self._memory(row)

    def _is_behind(self, node: ChoiceNode) -> bool:
        """Whether reductions of gradients can hide behind it: it is part of the backward pass."""
        return bool(node.instructions) and self.problem.boundary <= node.instructions[0] < self.problem.update_start

    def _least_us(self, node: ChoiceNode) -> np.ndarray:
        """What each option costs at least, whatever is hidden behind it."""
        if not self.overlap or not self._is_behind(node):
            return node.count * node.time_us
        compute_us = np.array([option.cost.compute_us for option in node.options])
        return node.count * (node.time_us - self.overlap * compute_us)

    def _flows(self, edge: Edge) -> Flows:
        """How much of a value flows from each layout in which it is made to each one in which a reader wants it."""
        value = self.problem.values[edge.value]
        reading = np.flatnonzero(self.is_open[edge.node])
        targets, wanting = edge.target_of[reading], self.start_of[edge.node] + reading
        if len(value.layouts) <= 1:  # there is nothing to choose: all that is wanted flows
            return Flows(np.zeros_like(targets), targets, wanting)
        made = np.flatnonzero(self.is_open[value.node])
        given, making = value.layout_of[made], self.start_of[value.node] + made
        wanted = np.array(list(dict.fromkeys(targets.tolist())))
        if len(wanted) == 1:
            return Flows(given, np.full_like(given, wanted[0]), making)
        is_made = np.zeros(len(value.layouts), bool)
        is_made[given] = True
        price = value.price_us[:, wanted] * len(edge.instances)
        sources, columns = np.nonzero(is_made[:, None] & np.isfinite(price) & (price <= self.spare_us))
        flows = self.linear.variables(np.zeros(len(sources)))
        place = np.zeros(len(value.targets), int)
        place[wanted] = np.arange(len(wanted))
        rank = np.cumsum(is_made) - 1
        for ends, whole, options in ((rank[sources], rank[given], making), (columns, place[targets], wanting)):
            weights = np.concatenate([np.ones(len(flows)), -np.ones(len(options))])
            at, variables = np.concatenate([ends, whole]), np.concatenate([flows, options])
            self.linear.rows(at, variables, weights, 0.0, 0.0)
        return Flows(sources, wanted[columns], flows)

    def _conversions(self, k: int, readers: Sequence[Flows]) -> Flows:
        """What the readers of a sharing pay: each by itself if it is alone, else the largest flow of any of them."""
        sharing = self.problem.sharings[k]
        prices = self.problem.values[sharing.value].price_us * sharing.count
        copies = np.full(prices.shape, -1)
        for every in readers:
            price = prices[every.sources, every.targets]
            is_open = np.isfinite(price) & (price <= self.spare_us)
            self.linear.bound(every.variables[~is_open], 0.0)
            is_paid = is_open & (price != 0.0)
            paid, price = Flows(*[part[is_paid] for part in every]), price[is_paid]
            if len(readers) == 1:
                self.linear.add_costs(paid.variables, price)
                return paid
            if not len(price):
                continue
            keys = paid.sources * prices.shape[1] + paid.targets
            _, first, at = np.unique(keys, return_index=True, return_inverse=True)
            fresh = first[copies[paid.sources[first], paid.targets[first]] < 0]
            copies[paid.sources[fresh], paid.targets[fresh]] = self.linear.variables(price[fresh])
            self.linear.rows(
                np.concatenate([np.arange(len(first)), at]),
                np.concatenate([copies[paid.sources[first], paid.targets[first]], paid.variables]),
                np.concatenate([np.ones(len(first)), -np.ones(len(at))]), 0.0, np.inf,
            )  # fmt: skip
        sources, targets = np.nonzero(copies >= 0)
        return Flows(sources, targets, copies[sources, targets])

    def _overlap(self) -> None:
        problem = self.problem
        late, late_us = (np.concatenate([np.zeros(0, int), *part]) for part in self.late)
        if not self.overlap or not len(late):
            return
        behind: list[int] = []
        behind_us: list[float] = []
        for node, start in zip(problem.nodes, self.start_of, strict=True):
            if self._is_behind(node):
                behind += range(start, start + len(node.options))
                behind_us += [self.overlap * node.count * option.cost.compute_us for option in node.options]
        hidden = self.linear.variables(np.array([-1.0]))
        self.linear.bound(hidden, np.inf)
        for variables, most_us in ((late, late_us), (np.array(behind, int), np.array(behind_us))):
            self._row(np.concatenate([hidden, variables]), np.concatenate([[1.0], -most_us]), 0.0)

    def _memory(self, row: MemoryRow) -> None:
        variables = [self.start_of[node] + option for node, option, _ in row.options]
        nbytes = [nbytes for _, _, nbytes in row.options]
        for k, copies in itertools.groupby(row.copies, key=lambda copy: copy[0]):
            by_ends: dict[tuple[int, int], list[int]] = {}
            for source, target, variable in zip(*[part.tolist() for part in self.paid[k]], strict=True):
                by_ends.setdefault((source, target), []).append(variable)
            for _, source, target, mine in copies:
                found = by_ends.get((source, target), [])
                variables += found
                nbytes += [mine] * len(found)
        self._row(np.array(variables, int), np.array(nbytes) / 1e6, row.limit / 1e6)

    def _row(self, variables: np.ndarray, weights: np.ndarray, most: float) -> None:
        """A weighted sum is at most so large. Weights of one variable are added up."""
        once, at = np.unique(variables, return_inverse=True)
        self.linear.rows(np.zeros_like(once), once, np.bincount(at, weights), -np.inf, most)

    # -- solving -------------------------------------------------------------------------------

    def solve(
        self, integral: bool, limit_s: float, start: Sequence[int] | None = None, gap: float = 1e-6
    ) -> tuple[str, float, np.ndarray | None]:
        """Status, bound, and the values of all variables."""
        if integral:
            chosen = None if start is None else [at + k for at, k in zip(self.start_of, start, strict=True)]
            status, bound, solution = self.linear.solve_integral(self.options, chosen, limit_s, gap)
        else:
            status, bound, solution = self.linear.solve(limit_s)
        return status, bound + self.problem.fixed_us if np.isfinite(bound) else bound, solution

    def rounded(self, solution: np.ndarray | None) -> tuple[list[int], bool]:
        """The option of each node with the largest share, and whether all shares are whole."""
        assert solution is not None
        found, integral = [], True
        for node, start in zip(self.problem.nodes, self.start_of, strict=True):
            mine = solution[start : start + len(node.options)]
            found.append(int(mine.argmax()))
            integral = integral and bool(mine.max() > 1 - _WHOLE)
        return found, integral
