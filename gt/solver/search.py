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

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gt.solver.choices import Edge
from gt.solver.memory import MemoryRow
from gt.solver.problem import Problem
from gt.solver.propagate import improve

_WHOLE = 1e-5  #: how far from a whole number a solution may be
#: Of an edge: the variables whose sum is what flows from one layout of a value to another, by their places.
Flows = dict[tuple[int, int], list[int]]


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


def available() -> bool:
    """Whether the package highspy is installed."""
    try:
        import highspy
    except ImportError:
        return False
    return bool(highspy)


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

    model = _Model(problem, rows, overlap)
    upper = price_of(start) if start is not None and all(row.holds(start) for row in rows) else np.inf
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
    """The integer program of a problem."""

    def __init__(self, problem: Problem, memory: Sequence[MemoryRow], overlap: float) -> None:
        self.problem, self.overlap = problem, overlap
        self.cost: list[float] = []
        self.upper: list[float] = []
        self.rows: list[tuple[float, float, list[int], list[float]]] = []
        self.start_of: list[int] = []  #: of each node: its first variable
        for node in problem.nodes:
            self.start_of.append(len(self.cost))
            self.cost += (node.count * node.time_us).tolist()
            self.upper += [1.0] * len(node.options)
            mine = range(self.start_of[-1], len(self.cost))
            self.rows.append((1.0, 1.0, list(mine), [1.0] * len(mine)))
        self.options = len(self.cost)
        self.copies: dict[tuple[int, int, int], int] = {}  #: (sharing, layout, target) -> variable of the copy
        self.alone: dict[tuple[int, int, int], list[int]] = {}  #: ... of a copy that nobody shares: the sum of these
        self.late: tuple[list[int], list[float]] = ([], [])  #: what can be hidden: variables, microseconds
        flows = [self._flows(edge) for edge in problem.edges]
        for k, sharing in enumerate(problem.sharings):
            self._conversions(k, [flows[e] for e in sharing.edges])
        self._overlap()
        for row in memory:
            self._memory(row)

    def _variable(self, cost: float, upper: float = 1.0) -> int:
        self.cost.append(cost)
        self.upper.append(upper)
        return len(self.cost) - 1

    def _flows(self, edge: Edge) -> Flows:
        """How much of a value flows from each layout in which it is made to each one in which a reader wants it."""
        value, reader = self.problem.values[edge.value], self.start_of[edge.node]
        wants: dict[int, list[int]] = {}
        for option, t in enumerate(edge.target_of.tolist()):
            wants.setdefault(t, []).append(reader + option)
        if len(value.layouts) <= 1:  # there is nothing to choose: all that is wanted flows
            return {(0, t): mine for t, mine in wants.items()}
        made: dict[int, list[int]] = {}
        for option, s in enumerate(value.layout_of.tolist()):
            made.setdefault(s, []).append(self.start_of[value.node] + option)
        if len(wants) == 1:
            (only,) = wants
            return {(s, only): mine for s, mine in made.items()}
        found: Flows = {}
        for s in made:
            for t in wants:
                if np.isfinite(value.price_us[s, t]):
                    found[s, t] = [self._variable(0.0)]
        for s, mine in made.items():
            row = [found[s, t][0] for t in wants if (s, t) in found]
            self.rows.append((0.0, 0.0, row + mine, [1.0] * len(row) + [-1.0] * len(mine)))
        for t, mine in wants.items():
            row = [found[s, t][0] for s in made if (s, t) in found]
            self.rows.append((0.0, 0.0, row + mine, [1.0] * len(row) + [-1.0] * len(mine)))
        return found

    def _conversions(self, k: int, readers: list[Flows]) -> None:
        """What the readers of a sharing pay: each by itself if it is alone, else the largest flow of any of them."""
        sharing = self.problem.sharings[k]
        prices = self.problem.values[sharing.value].price_us * sharing.count
        for flows in readers:
            for (s, t), by in flows.items():
                self._pay(k, s, t, float(prices[s, t]), by, len(readers) > 1, sharing.is_reduced_late)

    def _pay(self, k: int, s: int, t: int, price: float, by: list[int], shared: bool, late: bool) -> None:
        """A conversion that is wanted as much as the sum of some variables."""
        if not np.isfinite(price):
            for variable in by:
                self.upper[variable] = 0.0
            return
        if not price:
            return
        if not shared:
            self.alone[k, s, t] = by
            for variable in by:
                self.cost[variable] += price
            if late:
                self.late[0].extend(by)
                self.late[1].extend([price] * len(by))
            return
        copy = self.copies.get((k, s, t))
        if copy is None:
            copy = self.copies[k, s, t] = self._variable(price)
            if late:
                self.late[0].append(copy)
                self.late[1].append(price)
        self.rows.append((0.0, np.inf, [copy, *by], [1.0, *[-1.0] * len(by)]))

    def _overlap(self) -> None:
        problem = self.problem
        if not self.overlap or not self.late[0]:
            return
        behind: tuple[list[int], list[float]] = ([], [])
        for node, start in zip(problem.nodes, self.start_of, strict=True):
            if node.instructions and problem.boundary <= node.instructions[0] < problem.update_start:
                for k, option in enumerate(node.options):
                    behind[0].append(start + k)
                    behind[1].append(self.overlap * node.count * option.cost.compute_us)
        hidden = self._variable(-1.0, np.inf)
        for variables, weights in (self.late, behind):
            total: dict[int, float] = {}
            for variable, weight in zip(variables, weights, strict=True):
                total[variable] = total.get(variable, 0.0) - weight
            self.rows.append((-np.inf, 0.0, [hidden, *total], [1.0, *total.values()]))

    def _memory(self, row: MemoryRow) -> None:
        weights: dict[int, float] = {}
        for node, option, nbytes in row.options:
            at = self.start_of[node] + option
            weights[at] = weights.get(at, 0.0) + nbytes / 1e6
        for sharing, s, t, nbytes in row.copies:
            copy = self.copies.get((sharing, s, t))
            for variable in [copy] if copy is not None else self.alone.get((sharing, s, t), []):
                weights[variable] = weights.get(variable, 0.0) + nbytes / 1e6
        self.rows.append((-np.inf, row.limit / 1e6, list(weights), list(weights.values())))

    # -- solving -------------------------------------------------------------------------------

    def solve(
        self, integral: bool, limit_s: float, start: Sequence[int] | None = None, gap: float = 1e-6
    ) -> tuple[str, float, np.ndarray | None]:
        """Status, bound, and the values of all variables."""
        import highspy

        make: Any = highspy.Highs
        h = make()
        h.setOptionValue("output_flag", False)
        h.setOptionValue("time_limit", float(limit_s))
        h.setOptionValue("mip_rel_gap", gap)
        h.setOptionValue("random_seed", 0)
        n, m = len(self.cost), len(self.rows)
        h.addVars(n, np.zeros(n), np.array(self.upper))
        h.changeColsCost(n, np.arange(n, dtype=np.int32), np.array(self.cost))
        lengths = [len(row[2]) for row in self.rows]
        starts = np.concatenate(([0], np.cumsum(lengths)[:-1])).astype(np.int32)
        indices = np.concatenate([row[2] for row in self.rows]).astype(np.int32)
        weights = np.concatenate([row[3] for row in self.rows])
        low, high = np.array([row[0] for row in self.rows]), np.array([row[1] for row in self.rows])
        h.addRows(m, low, high, len(indices), starts, indices, weights)
        if integral:
            kinds = np.array([highspy.HighsVarType.kInteger] * self.options)
            h.changeColsIntegrality(self.options, np.arange(self.options, dtype=np.int32), kinds)
            if start is not None:
                chosen = np.array([at + k for at, k in zip(self.start_of, start, strict=True)], np.int32)
                values = np.zeros(self.options)
                values[chosen] = 1.0
                h.setSolution(self.options, np.arange(self.options, dtype=np.int32), values)
        fixed = self.problem.fixed_us
        h.run()
        status = h.getModelStatus()
        info = h.getInfo()
        if status == highspy.HighsModelStatus.kInfeasible:
            return "infeasible", np.inf, None
        solution = np.array(h.getSolution().col_value) if info.primal_solution_status == 2 else None
        if integral:
            return "found" if solution is not None else "none", float(info.mip_dual_bound) + fixed, solution
        if status != highspy.HighsModelStatus.kOptimal:
            return "unfinished", 0.0, None
        return "optimal", float(info.objective_function_value) + fixed, solution

    def rounded(self, solution: np.ndarray | None) -> tuple[list[int], bool]:
        """The option of each node with the largest share, and whether all shares are whole."""
        assert solution is not None
        found, integral = [], True
        for node, start in zip(self.problem.nodes, self.start_of, strict=True):
            mine = solution[start : start + len(node.options)]
            found.append(int(mine.argmax()))
            integral = integral and bool(mine.max() > 1 - _WHOLE)
        return found, integral
