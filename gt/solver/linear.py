"""A linear program, written down in pieces and solved by HiGHS.

Problems have hundreds of thousands of variables, so every piece is a few arrays: variables with their costs, and rows
as lists of (row, variable, weight).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

#: Presolving a linear program with more variables than this takes longer than it saves.
_MANY = 100_000


def available() -> bool:
    """Whether the package highspy is installed."""
    try:
        import highspy
    except ImportError:
        return False
    return bool(highspy)


class LinearProgram:
    """Variables between 0 and 1 whose costs add up, and bounds for sums of them."""

    def __init__(self) -> None:
        self.columns = 0  #: how many variables
        self.height = 0  #: how many rows
        self._costs: list[tuple[np.ndarray, np.ndarray]] = []
        self._upper: list[tuple[np.ndarray, float]] = []  #: of the variables whose bound is not 1
        self._bounds: list[tuple[int, float, float]] = []  #: number of rows, low, high
        self._entries: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def variables(self, costs: np.ndarray) -> np.ndarray:
        """More variables, one of each cost: their numbers."""
        made = np.arange(self.columns, self.columns + len(costs))
        self.columns += len(costs)
        self.add_costs(made, costs)
        return made

    def add_costs(self, variables: np.ndarray, costs: np.ndarray) -> None:
        """Variables, each of them once, cost more."""
        self._costs.append((variables, costs))

    def bound(self, variables: np.ndarray, upper: float) -> None:
        """Variables are at most so large."""
        self._upper.append((variables, upper))

    def rows(self, at: np.ndarray, variables: np.ndarray, weights: np.ndarray, low: float, high: float) -> None:
        """More rows: weighted sums of variables between two bounds. `at`: the row of each weight, counted from 0."""
        if len(at):
            count = int(at.max()) + 1
            self._entries.append((at + self.height, variables, weights))
            self._bounds.append((count, low, high))
            self.height += count

    def solve(self, limit_s: float) -> tuple[str, float, np.ndarray | None]:
        """Status, least cost, and the value of each variable."""
        import highspy

        h = self._highs(limit_s)
        if self.columns > _MANY:
            h.setOptionValue("presolve", "off")
        h.run()
        if h.getModelStatus() == highspy.HighsModelStatus.kInfeasible:
            return "infeasible", np.inf, None
        if h.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return "unfinished", -np.inf, None
        return "optimal", float(h.getInfo().objective_function_value), np.array(h.getSolution().col_value)

    def solve_integral(
        self, whole: int, start: Sequence[int] | None, limit_s: float, gap: float
    ) -> tuple[str, float, np.ndarray | None]:
        """Status, a bound of the cost, and the value of each variable, where the first ones, so many, are 0 or 1.
        `start`: those of them that are 1 in a known solution."""
        import highspy

        h = self._highs(limit_s)
        h.setOptionValue("mip_rel_gap", gap)
        first = np.arange(whole, dtype=np.int32)
        h.changeColsIntegrality(whole, first, np.array([highspy.HighsVarType.kInteger] * whole))
        if start is not None:
            values = np.zeros(whole)
            values[list(start)] = 1.0
            h.setSolution(whole, first, values)
        h.run()
        if h.getModelStatus() == highspy.HighsModelStatus.kInfeasible:
            return "infeasible", np.inf, None
        info = h.getInfo()
        if info.primal_solution_status != 2:
            return "none", float(info.mip_dual_bound), None
        return "found", float(info.mip_dual_bound), np.array(h.getSolution().col_value)

    def _highs(self, limit_s: float) -> Any:
        """The program as an object of HiGHS."""
        import highspy

        cost, upper = np.zeros(self.columns), np.ones(self.columns)
        for variables, more in self._costs:
            cost[variables] += more
        for variables, most in self._upper:
            upper[variables] = most
        low, high = (np.repeat([each[k] for each in self._bounds], [each[0] for each in self._bounds]) for k in (1, 2))
        row, variables, weights = (np.concatenate([each[k] for each in self._entries]) for k in range(3))
        order = np.argsort(row, kind="stable")
        starts = np.searchsorted(row[order], np.arange(self.height)).astype(np.int32)
        make: Any = highspy.Highs
        h = make()
        h.setOptionValue("output_flag", False)
        h.setOptionValue("random_seed", 0)
        h.setOptionValue("time_limit", float(limit_s))
        h.addVars(self.columns, np.zeros(self.columns), upper)
        h.changeColsCost(self.columns, np.arange(self.columns, dtype=np.int32), cost)
        h.addRows(
            self.height, low, high, len(order), starts, variables[order].astype(np.int32),
            weights[order].astype(np.float64),
        )  # fmt: skip
        return h
