"""Solving in other processes: `python -m gt.solver.process` reads jobs and writes an answer to each, as MessagePack.

Meshes are independent of each other, so they are solved side by side. Processes of their own also keep the solver's
memory and time out of the caller's way. What one remembers of a job (rules, expansions) serves its next one.
"""

from __future__ import annotations

import gc
import os
import selectors
import subprocess
import sys
from collections.abc import Sequence
from typing import IO

import msgspec

from gt.chosen import Chosen
from gt.errors import GTError
from gt.layout import Layout, mesh, parse
from gt.ops.check import check
from gt.program import Program
from gt.solver.hardware import Hardware
from gt.solver.reasons import Reasons, reasons_of
from gt.solver.solve import Limits, MemoryTooSmall, NotFaster, Solved, solve_on


class SolveJob(msgspec.Struct, frozen=True):
    """What to solve."""

    program: Program
    axes: tuple[tuple[str, int], ...]
    hardware: Hardware
    pins: dict[int, str]
    limits: Limits
    alike: tuple[tuple[int, ...], ...] = ()  #: inputs that must have the same layout


class OtherAnswer(msgspec.Struct, frozen=True):
    """Another plan on the same mesh, that may turn out to be faster."""

    name: str
    inputs: tuple[str, ...]
    ways: dict[int, Chosen]
    time_us: float


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
    others: tuple[OtherAnswer, ...] = ()
    error: str = ""
    missing_nbytes: float = 0.0


def answer(job: SolveJob) -> Answer:
    """Solve a job."""
    m = mesh(None, **dict(job.axes))
    pins: dict[int, Layout] = {i: parse(text, m) for i, text in job.pins.items()}
    log: list[str] = []
    collects = gc.isenabled()
    gc.disable()  # a problem is millions of objects that all stay: looking for garbage takes a quarter of the time
    try:
        return answer_of(solve_on(check(job.program), m, job.hardware, pins, job.limits, log.append, alike=job.alike))
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
        tuple(solved.log), tuple([
            OtherAnswer(each.name, tuple(map(repr, each.inputs)), each.ways, each.price.time_us)
            for each in solved.others
        ]),
    )  # fmt: skip


def answers(jobs: Sequence[SolveJob]) -> list[Answer]:
    """Solve jobs: here if there is one, else side by side, in as many processes as there are cores."""
    if len(jobs) == 1:
        return [answer(jobs[0])]
    found: dict[int, Answer] = {}
    # More axes take longer: those come first, so that no process is left alone with a long one.
    waiting = sorted(range(len(jobs)), key=lambda k: len(jobs[k].axes))
    running: dict[subprocess.Popen[bytes], int] = {}
    started: list[subprocess.Popen[bytes]] = []
    try:
        with selectors.DefaultSelector() as answered:
            for _ in range(min(len(jobs), os.cpu_count() or 1)):
                command = [sys.executable, "-m", "gt.solver.process"]
                started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
                answered.register(_out(started[-1]), selectors.EVENT_READ, started[-1])
                running[started[-1]] = waiting.pop()
                _send(_into(started[-1]), jobs[running[started[-1]]])
            while running:
                for key, _ in answered.select():
                    process: subprocess.Popen[bytes] = key.data
                    k = running.pop(process)
                    text = _receive(_out(process))
                    if text is None:
                        raise GTError(f"plan: the solver's process for {dict(jobs[k].axes)} ended before it answered")
                    found[k] = msgspec.msgpack.decode(text, type=Answer)
                    if waiting:
                        running[process] = waiting.pop()
                        _send(_into(process), jobs[running[process]])
                    else:
                        answered.unregister(_out(process))
    finally:
        for process in started:  # they have nothing more to do, or there was an interrupt, or a job failed
            process.kill()
            process.wait()
            _into(process).close()
            _out(process).close()
    return [found[k] for k in range(len(jobs))]


def _into(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdin is not None
    return process.stdin


def _out(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdout is not None
    return process.stdout


def _send(into: IO[bytes], message: SolveJob | Answer) -> None:
    """A message, after the number of its bytes."""
    text = msgspec.msgpack.encode(message)
    into.write(len(text).to_bytes(8, "little") + text)
    into.flush()


def _receive(out: IO[bytes]) -> bytes | None:
    """The next message; None if the other side has ended."""
    head = out.read(8)
    text = out.read(int.from_bytes(head, "little"))
    return text if len(head) == 8 and len(text) == int.from_bytes(head, "little") else None


def main() -> None:
    while (text := _receive(sys.stdin.buffer)) is not None:
        _send(sys.stdout.buffer, answer(msgspec.msgpack.decode(text, type=SolveJob)))


if __name__ == "__main__":
    main()
