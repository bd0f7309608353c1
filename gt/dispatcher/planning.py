"""What the dispatcher has done outside its event loop: programs are checked, and planned for several workers.

Pure functions of what they are asked; nothing that a program does to them comes out as an exception.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gt.dispatcher.events import Check, MakePlan, PlanMade, PlanReady
from gt.dispatcher.planner.plan import Planned, plan_program
from gt.errors import BY_NAME
from gt.layout import Layout, Mesh
from gt.ops.check import Checked, check_client
from gt.program import Program
from gt.transport.messages import Failure

Planner = Callable[[Checked, Sequence[Layout], Mesh, Mapping[str, Mesh]], Planned]


def work_off(job: Check | MakePlan, planner: Planner = plan_program) -> PlanReady | PlanMade:
    """The answer to what the machine asks for; tests may bring a planner of their own."""
    if isinstance(job, Check):
        assert isinstance(job.text, Program)
        try:
            return PlanReady(job.program, check_client(job.text))
        except Exception as e:
            return PlanReady(job.program, None, str(e) or type(e).__name__)
    try:
        return PlanMade(job.program, job.key, planner(job.checked, job.inputs, job.home, job.meshes))
    except Exception as e:
        kind = type(e).__name__
        text = str(e) if kind in BY_NAME else f"the program could not be planned: {kind}: {e}"
        return PlanMade(
            job.program, job.key, None, Failure(kind if kind in BY_NAME else "ServerError", text, job.program)
        )
