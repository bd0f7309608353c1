"""The memory that workers need for a plan beside its inputs.

A result of an action is alive from there to the last action that reads it, or for good if it is an output. A view takes
nothing, and neither does what is written over an input that nobody else will read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain

import numpy as np

from gt.dispatcher.planner.actions import Action, Script

#: Of one worker, in bytes: what each result of the actions takes; what some actions take beside their results, until
#: they have read their operands and after that, one behind the other; and what is written behind the actions takes.
Taken = tuple[list[int], list[int], int]


class Lives:
    """How long the results of all actions are alive: for all workers alike. `count`: of placed values and scalars."""

    def __init__(self, actions: Sequence[Action], outputs: Sequence[int], count: int) -> None:
        self.actions = actions
        end = len(actions)
        order = np.arange(end + 1)
        taken, made = [sources for _, sources, _, _ in actions], [results for _, _, results, _ in actions]
        last = np.full(count, -1)  # scalars count from the end, as indices below zero do
        last[_flat(taken)] = np.repeat(order[:end], list(map(len, taken)))  # of those that take it, the last one counts
        last[list(outputs)] = end
        counts = np.array([*map(len, made), 0])
        dies = np.maximum(last[_flat(made)], np.repeat(order, counts))
        self.by_death = np.argsort(dies, kind="stable")
        #: How many results were made when an action is done, and when all are.
        self.made_by = np.cumsum(counts)
        #: How many of them are dead when an action begins, and when all are done.
        self.dead_by = np.searchsorted(dies[self.by_death], order)

    def written_over(self, scripts: Sequence[Script], there: Collection[int], updates: Mapping[int, int]) -> list[int]:
        """Which results take over the memory of the donated inputs that they replace: `updates`, from result to input.
        `there`: what the workers have."""
        found: list[int] = []
        for i, script in enumerate(scripts):
            if script.over:
                _, sources, results, _ = self.actions[i]
                # Workers leave out what they do not have.
                operands = sources if len(sources) == script.operands else [s for s in sources if s < 0 or s in there]
                for k, (r, over) in enumerate(zip(results, script.over, strict=True)):
                    if over >= 0 and updates.get(r) == operands[over]:
                        found.append(int(self.made_by[i]) - len(results) + k)
        return found

    def peaks(self, taken: Sequence[Taken], which: Sequence[int], free: Sequence[int]) -> list[int]:
        """The most memory that each worker needs at once. `which`: the actions that take something beside their
        results; `free`: results that take none."""
        rows = len(taken)
        results = _flat([kept for kept, _, _ in taken]).reshape(rows, -1)
        results[:, free] = 0
        made = _sums(results)[:, self.made_by]
        dead = _sums(results[:, self.by_death])[:, self.dead_by]
        alive = made - dead
        alive[:, -1] += [copied for _, _, copied in taken]
        if which:
            beside = _flat([row for _, row, _ in taken]).reshape(rows, -1, 2)
            at = np.array(which)
            # What dies in an action is gone when the last operand was read.
            later = made[:, at] - dead[:, at + 1] + beside[:, :, 1]
            alive[:, at] = np.maximum(alive[:, at] + beside[:, :, 0], later)
        most: list[int] = alive.max(axis=1).tolist()
        return most


def _flat(rows: Sequence[Iterable[int]]) -> np.ndarray:
    return np.fromiter(chain.from_iterable(rows), np.int64)


def _sums(rows: np.ndarray) -> np.ndarray:
    """Of the first 0, 1, 2, ... numbers of each row."""
    made = np.zeros((rows.shape[0], rows.shape[1] + 1), np.int64)
    np.cumsum(rows, axis=1, out=made[:, 1:])
    return made
