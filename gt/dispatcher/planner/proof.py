"""The proof that workers which meet agree about it. A size that does not would kill a process, past any handler."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gt.dispatcher.planner.template import op_named
from gt.errors import ProgramError
from gt.program import Instruction


def prove(codes: Mapping[int, Iterable[Instruction]]) -> None:
    """Every worker of a group runs the same collectives of the group in the same order, with sizes that agree; raises
    if not. It is enough to prove this of each action: all workers write down the same actions in the same order."""
    meetings: dict[tuple[int, ...], dict[int, list[tuple[str, dict[str, Any]]]]] = {}
    for worker, code in codes.items():
        for ins in code:
            if op_named(ins.op).collective:
                group = tuple(ins.attrs["workers"])
                if group[ins.attrs["rank"]] != worker:
                    raise ProgramError(f"workers {group}: {worker} has the place of {group[ins.attrs['rank']]}")
                meetings.setdefault(group, {}).setdefault(worker, []).append((ins.op, ins.attrs))
    for group, by_worker in meetings.items():
        counts = {w: len(by_worker.get(w, ())) for w in group}
        if len(set(counts.values())) != 1:
            raise ProgramError(f"workers {group} do not meet equally often: {counts}")
        for i, row in enumerate(zip(*(by_worker[w] for w in group), strict=True)):
            if not _agree([name for name, _ in row], [attrs for _, attrs in row]):
                raise ProgramError(f"workers {group} do not agree on collective {i}: {row}")


def _agree(names: list[str], attrs: list[dict[str, Any]]) -> bool:
    """Whether this is one collective, as each member of its group says it."""
    if len(set(names)) != 1:
        return False
    if "sends" in attrs[0]:
        return all(a["sends"][j] == b["takes"][k] for k, a in enumerate(attrs) for j, b in enumerate(attrs))
    same = [{k: v for k, v in a.items() if k != "rank"} for a in attrs]
    return all(a == same[0] for a in same)
