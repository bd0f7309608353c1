"""Solving in a process of its own: `python -m gt.solver.process` reads a job and writes an answer, as MessagePack.

Meshes are independent of each other, so they are solved side by side. A process of its own also keeps the solver's
memory and time out of the caller's way.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Sequence

import msgspec

from gt.chosen import Chosen
from gt.errors import GTError
from gt.layout import Layout, mesh, parse
from gt.ops.check import check
from gt.program import Program
from gt.solver.hardware import Hardware
from gt.solver.reasons import Reasons, reasons_of
from gt.solver.solve import Limits, MemoryTooSmall, NotFaster, Solved, solve_on


class Job(msgspec.Struct, frozen=True):
    """What to solve."""

    program: Program
    axes: tuple[tuple[str, int], ...]
    hardware: Hardware
    pins: dict[int, str]
    limits: Limits


class Answer(msgspec.Struct, frozen=True):
    """What was found on one mesh; `error` instead if there is no plan."""

    axes: tuple[tuple[str, int], ...]
    inputs: tuple[str, ...] = ()  #: layouts
    ways: dict[int, Chosen] = {}
    time_us: float = 0.0
    compute_us: float = 0.0
    communication_us: float = 0.0
    received_nbytes: float = 0.0
    input_nbytes: int = 0
    peak_nbytes: int = 0
    objective_us: float = 0.0
    bound_us: float = 0.0
    note: str = ""
    seeds: dict[str, float] = {}
    reasons: Reasons | None = None
    log: tuple[str, ...] = ()
    error: str = ""
    missing_nbytes: float = 0.0


def answer(job: Job) -> Answer:
    """Solve a job."""
    m = mesh(None, **dict(job.axes))
    pins: dict[int, Layout] = {i: parse(text, m) for i, text in job.pins.items()}
    log: list[str] = []
    collects = gc.isenabled()
    gc.disable()  # a problem is millions of objects that all stay: looking for garbage takes a quarter of the time
    try:
        return answer_of(solve_on(check(job.program), m, job.hardware, pins, job.limits, log.append))
    except MemoryTooSmall as error:
        return Answer(job.axes, error=str(error), missing_nbytes=error.missing_nbytes, log=tuple(log))
    except NotFaster as error:
        return Answer(job.axes, error=str(error), missing_nbytes=float("inf"), log=tuple(log))
    except GTError as error:
        return Answer(job.axes, error=f"{type(error).__name__}: {error}", missing_nbytes=float("inf"), log=tuple(log))
    finally:
        if collects:
            gc.enable()


def answer_of(solved: Solved) -> Answer:
    """What was found, as data."""
    price = solved.price
    return Answer(
        solved.mesh.axes, tuple(map(repr, solved.inputs)), solved.ways, price.time_us, price.compute_us,
        price.communication_us, price.received_nbytes, price.input_nbytes, price.peak_nbytes, solved.objective_us,
        solved.bound_us, solved.note, solved.seeds, reasons_of(solved.problem, solved.assigned, price),
        tuple(solved.log),
    )  # fmt: skip


def answers(jobs: Sequence[Job]) -> list[Answer]:
    """Solve jobs: here if there is one, else side by side, as many at once as there are cores."""
    if len(jobs) == 1:
        return [answer(jobs[0])]
    found: dict[int, Answer] = {}
    waiting = list(enumerate(jobs))
    running: dict[int, subprocess.Popen[bytes]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < max(os.cpu_count() or 1, 1):
                k, job = waiting.pop(0)
                command = [sys.executable, "-m", "gt.solver.process"]
                running[k] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                into = running[k].stdin
                assert into is not None
                into.write(msgspec.msgpack.encode(job))
                into.close()
            k = next(iter(running))  # the oldest: the others go on meanwhile
            out = running[k].stdout
            assert out is not None
            with out:
                text = out.read()
            if running.pop(k).wait() != 0:
                raise GTError(f"plan: the solver's process for {dict(jobs[k].axes)} ended before it had answered")
            found[k] = msgspec.msgpack.decode(text, type=Answer)
    finally:
        for process in running.values():  # an interrupt, or a job that failed
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
    return [found[k] for k in range(len(jobs))]


def main() -> None:
    job = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Job)
    sys.stdout.buffer.write(msgspec.msgpack.encode(answer(job)))


if __name__ == "__main__":
    main()
