"""Plans of the running session: `gt.explain()` tells which one each program runs by, `gt.autoshard` asks for one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gt.client.mesh.plans import use_plan
from gt.client.session.connecting import current
from gt.errors import ArgumentError
from gt.solver.plan import Plan, plan
from gt.solver.units import time_text

SHOWN = 4  #: Programs that are shown.

STAGES = {
    "solving": "a better plan is being searched for",
    "timing": "a better plan was found; what runs now is timed before it changes",
    "preparing": "a better plan was found and is being prepared",
    "ready": "a better plan is ready; the next call changes to it",
    "moving": "tensors are being moved to the layouts of a better plan",
    "trial": "the plan has changed and is compared with the one before",
}


def explain(step: Callable[..., Any] | None = None, *args: Any, **settings: Any) -> str:
    """Why programs run as they do.

    `gt.explain(step, *args, ...)` is `gt.plan(step, *args, ...).explain()`. Without a step it is about the running
    session: for each of its most expensive programs the plan that it runs by, the plan that is coming, and the time of
    a call as predicted and as measured. Plans change by themselves with GT_AUTO_SHARD=1.

    >>> import gt
    >>> (gt.ones(8, 8) @ gt.ones(8, 8)).sum().item()
    512.0
    >>> print(gt.explain())
    This session runs on 1 worker: there is nothing to plan.
    """
    if step is not None:
        return plan(step, *args, **settings).explain()
    session = current()
    about = session.stats()["session"]
    workers = about["workers"]
    if len(workers) < 2:
        return "This session runs on 1 worker: there is nothing to plan."
    rows = about.get("plans", [])
    if not rows:
        hint = "Set GT_AUTO_SHARD=1 to have better ones found."
        if session.config.auto_shard:
            hint = "They do not change by themselves." if about["calls"] else "No call has finished yet."
        return (
            f"This session runs on {len(workers)} workers. Its layouts are those that you chose and, for the rest, "
            f"those of the fast planner. {hint}"
        )
    total_us = sum(row["run_us"] for row in rows) or 1
    lines = [f"This session has {len(workers)} workers. Its most expensive programs:"]
    for row in rows[:SHOWN]:
        lines += ["", *_program_lines(row, total_us)]
    return "\n".join(lines)


def _program_lines(row: Mapping[str, Any], total_us: int) -> list[str]:
    used = row["workers"]
    lines = [
        f"program {row['program'][:8]}: {row['instructions']} instructions, {row['runs']} calls, "
        f"{row['run_us'] / total_us:.0%} of the time, on worker{'s' * (len(used) > 1)} {' '.join(map(str, used))}",
        f"  a call takes {time_text(row['measured_us'])}"
        + (f", predicted {time_text(row['predicted_us'])}" if row["predicted_us"] else "")
        + f"; from the end of one to the end of the next {time_text(row['step_us'])}",
    ]
    if row["stage"]:
        lines.append(f"  {STAGES.get(row['stage'], row['stage'])}")
    if row["decision"]:
        lines.append(f"  {row['decision']}")
    if row["text"]:
        lines += ["  the plan:", *(f"    {line}".rstrip() for line in row["text"].splitlines())]
    else:
        lines.append("  the plan: that of the fast planner, op by op")
    if row["coming"] and row["coming"] != row["text"]:
        lines += ["  the plan that is coming:", *(f"    {line}".rstrip() for line in row["coming"].splitlines())]
    return lines


def autoshard(step: Callable[..., Any], *args: Any, mesh: Mapping[str, int] | None = None, **settings: Any) -> Plan:
    """Find the best plan for a training step on this session's workers, use it, and return it.

    It waits until the plan is found: seconds, and a few more if the workers of this server were never measured.
    `step(*args)` is recorded: if its tensors are on workers it is really run for that, up to four times, until its
    programs repeat. Without `mesh`, every mesh of all workers of the server is tried, and fewer workers too. Other
    arguments are those of `gt.plan`.
    """
    if not callable(step):
        raise ArgumentError(
            "autoshard: expected a function that makes a training step, as in gt.autoshard(step, batch)"
        )
    settings.setdefault("hardware", "measured")
    if mesh is None:
        settings.setdefault("workers", max(1, len(current().stats()["workers"])))
    found = plan(step, *args, mesh=mesh, **settings)
    use_plan(found, step, *args)
    return found
