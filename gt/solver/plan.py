"""The plan of a training step, as users see it.

    plan = gt.plan(step, batch, workers=8, hardware="h100")
    print(plan.explain())
    gt.use_plan(plan)

`plan` records the step (on paper, if nothing in it is live), solves it for every mesh that the workers can form, and
keeps the best. A plan is data: it can be saved, loaded, compared, drawn, and used in a session.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from gt.chosen import Chosen
from gt.errors import ArgumentError
from gt.layout import layout, parse, split
from gt.layout import mesh as make_mesh
from gt.program import Program, input_spec
from gt.solver.hardware import Hardware, hardware_named
from gt.solver.pictures import draw
from gt.solver.process import Answer, answers, job_of
from gt.solver.reasons import PlannedInput, Reasons
from gt.solver.recorded import RecordedProgram, record_step
from gt.solver.search import available
from gt.solver.solve import Limits, MemoryTooSmall, candidate_meshes

#: What pins may map a pattern to: {0: "x"}, or a layout as text.
Pin = Mapping[int, Any] | str


class Alternative(msgspec.Struct, frozen=True):
    """Another mesh that was tried."""

    mesh: str
    time_us: float
    note: str  #: why there is no plan, if there is none


class Plan(msgspec.Struct, frozen=True):
    """The best layouts for a program, what they cost, and why. Made by `gt.plan`."""

    mesh: dict[str, int]
    time_us: float  #: predicted time of a step
    nbytes: float  #: that a worker receives from others in a step
    peak_nbytes: int  #: memory of a worker
    inputs: tuple[PlannedInput, ...]
    ways: dict[int, Chosen]  #: by instruction
    body: str  #: of the program: Program.body()
    program: Program
    hardware: str
    memory_nbytes: int
    best: Answer
    alternatives: tuple[Alternative, ...]
    lines: tuple[tuple[str, int], ...]  #: the user's file and line of each instruction
    programs: int = 1  #: how many programs the step has; this is the plan of the largest

    @property
    def layouts(self) -> dict[str, str]:
        """The layouts of parameters, state, buffers and data, by name."""
        return {each.name: each.layout for each in self.inputs}

    @property
    def reasons(self) -> Reasons:
        """Why it is as it is."""
        assert self.best.reasons is not None
        return self.best.reasons

    def __repr__(self) -> str:
        axes = " ".join(f"{a}={n}" for a, n in self.mesh.items())
        return f"<plan on {axes}: {_time(self.time_us)} a step, {_size(self.peak_nbytes)} a worker>"

    def explain(self, most: int = 12) -> str:
        """The plan on one screen: in words, what is expensive, what else could have been done."""
        best, reasons = self.best, self.reasons
        gap = 1 - best.bound_us / best.objective_us if best.objective_us else 0.0
        lines = [f"{self!r}, {self.hardware}"]
        lines += [f"  {text}" for text in reasons.words]
        if self.programs > 1:
            lines.append(f"  the step has {self.programs} programs; this is the plan of the largest")
        proof = f"no plan on this mesh is more than {max(gap, 0.0):.1%} faster" if best.bound_us else "not searched"
        lines += [
            "",
            f"time       {_time(best.time_us)}: computation {_time(best.compute_us)}, communication "
            f"{_time(best.communication_us)}, the rest of it overlaps" if best.time_us < best.compute_us +
            best.communication_us - 1e-6 else
            f"time       {_time(best.time_us)}: computation {_time(best.compute_us)}, communication "
            f"{_time(best.communication_us)}",
            f"memory     {_size(self.peak_nbytes)} of {_size(self.memory_nbytes)}; inputs {_size(best.input_nbytes)}",
            f"search     {best.note}; {proof}",
        ]  # fmt: skip
        if reasons.collectives:
            lines += ["", "collectives"]
            lines += [
                f"  {c.kind:12} over {c.axes:8} {c.count:6} times  {_size(c.nbytes):>9}  {_time(c.time_us):>9}"
                for c in reasons.collectives[:6]
            ]
        lines += ["", f"{'instructions':34} {'time':>9}  choice (and the runner-up, what it would cost more)"]
        for each in reasons.classes[:most]:
            name = f"{each.count} x {each.ops}" if each.count > 1 else each.ops
            lines.append(
                f"  {_cut(name, 32):32} {_time(each.time_us):>9}  {each.choice}{self._where(each.instruction)}"
            )
            if each.runner_up:
                lines.append(f"{'':46}(+{_time(each.extra_us)}: {each.runner_up})")
        groups: dict[tuple[str, str, str], list[str]] = {}
        for one in self.inputs:
            groups.setdefault((re.sub(r"\.\d+\.", ".*.", one.name), one.spec, one.layout), []).append(one.name)
        shown = [(key, names) for key, names in groups.items() if not key[0].split(".")[0].startswith("optim")]
        lines += ["", "layouts"]
        lines += [f"  {_cut(name, 44):44} {spec:22} {text}" for (name, spec, text), _ in shown[: 2 * most]]
        if len(self.alternatives) > 1:
            lines += ["", "meshes"]
            lines += [f"  {each.mesh:12} {each.note or _time(each.time_us)}" for each in self.alternatives]
        return "\n".join(lines)

    def _where(self, instruction: int) -> str:
        if instruction >= len(self.lines):
            return ""
        file, line = self.lines[instruction]
        return f"   {Path(file).name}:{line}" if file else ""

    def compare(self, other: Plan) -> str:
        """This plan beside another one of the same program."""
        rows = [("", repr(self), repr(other))]
        for name, ours, theirs in (
            ("time", _time(self.time_us), _time(other.time_us)),
            ("computation", _time(self.best.compute_us), _time(other.best.compute_us)),
            ("communication", _time(self.best.communication_us), _time(other.best.communication_us)),
            ("received", _size(self.nbytes), _size(other.nbytes)),
            ("memory", _size(self.peak_nbytes), _size(other.peak_nbytes)),
            ("in words", "; ".join(self.reasons.words), "; ".join(other.reasons.words)),
        ):
            rows.append((name, ours, theirs))
        mine, theirs_by_name = self.layouts, other.layouts
        different = [n for n in mine if n in theirs_by_name and mine[n] != theirs_by_name[n]]
        rows += [(n, mine[n], theirs_by_name[n]) for n in different[:20]]
        if len(different) > 20:
            rows.append((f"and {len(different) - 20} other layouts", "", ""))
        widths = [max(len(row[k]) for row in rows) for k in range(2)]
        return "\n".join(f"{a:{widths[0]}}  {b:{widths[1]}}  {c}".rstrip() for a, b, c in rows)

    def what_if(
        self, pins: Mapping[str, Pin] | None = None, mesh: Mapping[str, int] | None = None, hardware: Any = None,
        memory: Any = None,
    ) -> Plan:  # fmt: skip
        """The best plan of the same program under other conditions: layouts that are pinned, another mesh, hardware or
        memory. Without `mesh` it is that of this plan."""
        named = [(each.name, each.role) for each in self.inputs]
        chosen = hardware_named(hardware if hardware is not None else self.hardware)
        memory_nbytes = parse_size(memory) if memory is not None else self.memory_nbytes
        if hardware is not None and memory is None:
            memory_nbytes = chosen.memory_nbytes
        return _best(self.program, named, self.lines, [tuple((mesh or self.mesh).items())], chosen, memory_nbytes,
                     pins or {}, Limits(memory_nbytes=memory_nbytes), None, self.programs)  # fmt: skip

    def picture(self, path: str | Path) -> Path:
        """Draw the plan: layouts of the parameters, where the time goes. SVG, or PNG if the path ends in .png."""
        title = f"{repr(self).strip('<>')}, {self.hardware}"
        return draw(Path(path), title, self.mesh, self.reasons, self.inputs)

    def json(self) -> dict[str, Any]:
        """Everything as plain data: the program as a graph, with choices, costs and layouts."""
        made: dict[str, Any] = msgspec.to_builtins(self, str_keys=True)
        return made

    def save(self, path: str | Path) -> None:
        """Write it to a file, as JSON."""
        Path(path).write_bytes(msgspec.json.encode(self))

    @staticmethod
    def load(path: str | Path) -> Plan:
        """Read it from a file."""
        try:
            return msgspec.json.decode(Path(path).read_bytes(), type=Plan)
        except msgspec.DecodeError as error:
            raise ArgumentError(f"Plan.load: {path} is not a plan: {error}") from None


def plan(
    step: Callable[..., Any], *args: Any, mesh: Mapping[str, int] | None = None, workers: int | None = None,
    hardware: str | Hardware = "h100", memory: str | int | None = None, pins: Mapping[str, Pin] | None = None,
    gap: float = 0.01, limit_s: float = 30.0, debug: bool = False,
) -> Plan:  # fmt: skip
    """The best layouts for a training step.

    `step(*args)` is recorded on paper; nothing is run and no worker is needed. Give a `mesh`, such as {"x": 9, "y": 8},
    or a number of `workers`: then every mesh that they can form is tried, and fewer workers too. `hardware` is a name
    (gt.solver.hardware lists them) or a `Hardware`. `memory` of a worker, such as "80GB", is the hardware's by default.
    `pins` maps patterns of names to layouts that must be kept: {"model.head.weight": {0: "x"}}.

    >>> import gt
    >>> with gt.on_paper():
    ...     model = gt.nn.Linear(8192, 8192, bias=False)
    ...     optimizer = gt.optim.SGD(model.parameters(), lr=0.1)
    ...     def step(x):
    ...         model(x).square().mean().backward()
    ...         optimizer.step()
    ...         optimizer.zero_grad()
    ...     found = gt.plan(step, gt.zeros(16, 8192), mesh={"x": 4})
    >>> found.layouts["model.weight"]
    '[8192@x]'
    """
    recorded = record_step(step, *args)
    chosen = hardware_named(hardware)
    memory_nbytes = parse_size(memory) if memory is not None else chosen.memory_nbytes
    if mesh is not None:
        meshes = [tuple(mesh.items())]
    elif workers is not None:
        if type(workers) is not int or workers < 1:
            raise ArgumentError(f"plan: workers must be an int >= 1, got {workers!r}")
        meshes = [m.axes for m in candidate_meshes(workers, chosen)]
    else:
        raise ArgumentError("plan: give mesh={'x': 4} or workers=4")
    largest: RecordedProgram = recorded.largest
    limits = Limits(limit_s, gap, memory_nbytes)
    named = [(each.name, each.role) for each in largest.inputs]
    trace = print if debug else None
    if not available():
        _say_once()
    return _best(largest.program, named, largest.lines, meshes, chosen, memory_nbytes, pins or {}, limits, trace,
                 len(recorded.programs))  # fmt: skip


def explain(step: Callable[..., Any], *args: Any, **settings: Any) -> str:
    """`gt.plan(...).explain()`."""
    return plan(step, *args, **settings).explain()


_said: list[str] = []


def _say_once() -> None:
    """Without the package that searches, plans are those of propagation."""
    if not _said:
        _said.append("said")
        print("gt.plan: highspy is not installed (pip install 'gt[solver]'): plans are propagated, not searched for")


def _best(
    program: Program, named: list[tuple[str, str]], lines: tuple[tuple[str, int], ...],
    meshes: list[tuple[tuple[str, int], ...]], hardware: Hardware, memory_nbytes: int, pins: Mapping[str, Pin],
    limits: Limits, trace: Callable[[str], object] | None, programs: int,
) -> Plan:  # fmt: skip
    def solve(some: list[tuple[tuple[str, int], ...]], limits: Limits) -> list[Answer]:
        return answers([job_of(program, axes, hardware, _pinned(program, named, pins, axes), limits) for axes in some])

    most = max(math.prod(n for _, n in axes) for axes in meshes)
    all_workers = [axes for axes in meshes if math.prod(n for _, n in axes) == most]
    found = solve(all_workers, limits)
    fewer = [axes for axes in meshes if axes not in all_workers]
    if fewer:
        best_us = min([each.time_us for each in found if not each.error], default=math.inf)
        found += solve(fewer, dataclasses.replace(limits, cutoff_us=best_us))
    for each in found:
        for line in each.log if trace is not None else ():
            assert trace is not None
            trace(line)
    good = [each for each in found if not each.error]
    if not good:
        least = min(found, key=lambda each: each.missing_nbytes)
        raise MemoryTooSmall(f"plan: {least.error}")
    best = min(good, key=lambda each: each.time_us)
    inputs = tuple([
        PlannedInput(name, role, repr(input_spec(shape, dtype)), text)
        for (name, role), (shape, dtype), text in zip(named, program.inputs, best.inputs, strict=True)
    ])  # fmt: skip
    others = tuple([
        Alternative(" ".join(f"{a}={n}" for a, n in each.axes), each.time_us, _failure(each))
        for each in sorted(found, key=lambda each: (bool(each.error), each.time_us))
    ])  # fmt: skip
    return Plan(dict(best.axes), best.time_us, best.received_nbytes, best.peak_nbytes, inputs, best.ways,
                program.body(), program, hardware.name, memory_nbytes, best, others, lines, programs)  # fmt: skip


def _failure(found: Answer) -> str:
    """Why there is no plan on a mesh; "" if there is one."""
    return "does not fit" if found.error and found.missing_nbytes < math.inf else found.error


def _pinned(
    program: Program, named: list[tuple[str, str]], pins: Mapping[str, Pin], axes: tuple[tuple[str, int], ...]
) -> dict[int, str]:
    """The layouts of the inputs that patterns match, by their numbers."""
    m = make_mesh(None, **dict(axes))
    found: dict[int, str] = {}
    for pattern, pin in pins.items():
        matching = [i for i, (name, _) in enumerate(named) if fnmatch.fnmatchcase(name, pattern)]
        if not matching:
            some = ", ".join(name for name, _ in named[:6])
            raise ArgumentError(f"plan: no input matches the pin {pattern!r}; the names are {some}, ...")
        for i in matching:
            shape = tuple(program.inputs[i][0])
            if isinstance(pin, str):
                one = parse(pin, m) if pin else layout(m)
            else:
                one = split(m, shape, {d: over for d, over in pin.items() if d < len(shape)})
            found.setdefault(i, repr(one))
    return found


def parse_size(given: str | int) -> int:
    """A number of bytes, or "80GB", "512MB".

    >>> parse_size("80GB"), parse_size(1000)
    (80000000000, 1000)
    """
    if isinstance(given, int):
        return given
    found = re.fullmatch(r"\s*([\d.]+)\s*([KMGT]?)i?B?\s*", given)
    if found is None:
        raise ArgumentError(f"memory: expected bytes or a size such as '80GB', got {given!r}")
    base = 1024 if "i" in given else 1000
    return int(float(found[1]) * base ** " KMGT".index(found[2] or " "))


def _time(us: float) -> str:
    return f"{us / 1e6:.2f} s" if us >= 1e6 else f"{us / 1e3:.1f} ms" if us >= 1e3 else f"{us:.1f} us"


def _size(nbytes: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if nbytes < 1000 or unit == "GB":
            return f"{nbytes:.1f} {unit}" if unit != "B" else f"{nbytes:.0f} B"
        nbytes /= 1000
    return ""


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."
