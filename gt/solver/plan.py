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
import itertools
import math
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from gt.chosen import Chosen
from gt.client.session.connecting import current
from gt.errors import ArgumentError
from gt.layout import layout, parse, split
from gt.layout import mesh as make_mesh
from gt.program import Program, input_spec
from gt.solver.calibrate import hardware_for, kept
from gt.solver.hardware import Hardware, hardware_named
from gt.solver.linear import available
from gt.solver.pictures import Bar, draw
from gt.solver.process import Answer, SolveJob, answers
from gt.solver.purposes import Purposes, class_name
from gt.solver.reasons import ClassReason, PlannedInput, Reasons, input_classes
from gt.solver.recorded import RecordedProgram, record_step
from gt.solver.solve import Limits, MemoryTooSmall, candidate_meshes
from gt.solver.units import parse_size, size_text, time_text

#: What pins may map a pattern to: {0: "x"}, or a layout as text.
Pin = Mapping[int, Any] | str

_TOO_LARGE = "does not fit"
TIE = 1.01  #: Plans that take at most so many times as long are as fast.


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
        return f"<plan on {axes}: {time_text(self.time_us)} a step, {size_text(self.peak_nbytes)} a worker>"

    def explain(self, most: int = 10) -> str:
        """The plan on one screen: in words, what is expensive, what else could have been done. `most`: how many classes
        of instructions are listed."""
        best, reasons = self.best, self.reasons
        gap = 1 - best.bound_us / best.objective_us if best.objective_us else 0.0
        lines = [f"{self!r}, {self.hardware}", *[f"  {text}" for text in reasons.words]]
        if self.programs > 1:
            lines.append(f"  the step has {self.programs} programs; this is the plan of the largest")
        hidden = best.compute_us + best.communication_us - best.time_us
        proof = f"another choice could be at most {gap:.1%} cheaper" if gap > 5e-4 else "no other choice is cheaper"
        lines += [
            "",
            f"time    {time_text(best.time_us)}: computation {time_text(best.compute_us)}, communication "
            f"{time_text(best.communication_us)}"
            + (f", of which {time_text(hidden)} overlap" if hidden > 0.05 else ""),
            f"memory  {size_text(self.peak_nbytes)} of {size_text(self.memory_nbytes)} at the peak; inputs "
            f"{size_text(best.input_nbytes)}",
            f"search  {best.note}" + (f"; {proof}" if best.bound_us else "; not proven to be the best"),
        ]
        if len(self.alternatives) > 1:
            small = [each.mesh for each in self.alternatives if each.note == _TOO_LARGE]
            tried = [
                f"{each.mesh}: {each.note or time_text(each.time_us)}"
                for each in self.alternatives
                if each.mesh not in small
            ]
            text = "; ".join(tried) + (f"; it does not fit on {' or '.join(small)}" if small else "")
            lines += textwrap.wrap(f"meshes  {text}", 118, subsequent_indent=" " * 8)
        if reasons.collectives:
            lines += ["", f"{'collectives':24} {'times':>7} {'received':>10} {'time':>9}"]
            lines += [
                f"  {f'{c.kind} over {c.axes}':22} {c.count:7} {size_text(c.nbytes):>10} {time_text(c.time_us):>9}"
                for c in reasons.collectives[:8]
            ]
        lines += ["", *self._class_lines(most)]
        return "\n".join([*lines, "", *self._layout_lines(14)])

    def _class_lines(self, most: int) -> list[str]:
        """The most expensive classes of instructions: where, what, for which parameter, how long, in which layouts."""
        rows = [
            (_cut(self._where(each.instruction), 20), _cut(_counted(each), 28), _cut_left(purpose, 28), each)
            for purpose, each in self._purposes(most)
        ]
        a, b, c = [max([len(str(row[k])) for row in rows], default=0) for k in range(3)]
        start = a + b + c + 25  # of the layouts
        lines = [
            f"{'the most expensive':{start - 20}} {'time':>8} {'moving':>8}  operands -> results, and the next best"
        ]
        for where, ops, purpose, each in rows:
            moving = time_text(each.moving_us) if each.moving_us else ""
            lines.append(
                f"  {where:{a}} {ops:{b}} {purpose:{c}} {time_text(each.time_us):>8} {moving:>8}  "
                f"{_cut_choice(each.choice, 138 - start)}"
            )
            if each.runner_up:
                operands, results = each.runner_up.split(" -> ")
                other = f"-> {results}" if each.choice.startswith(f"{operands} -> ") else each.runner_up
                extra = f"  +{time_text(each.extra_us)}: "
                lines.append(f"{'':{start}}{extra}{_cut_choice(other, 138 - start - len(extra))}")
        return lines

    def _purposes(self, most: int) -> list[tuple[str, ClassReason]]:
        """The most expensive classes, each with the parameter that it is for."""
        purposes = Purposes(self.program, [(each.name, each.role) for each in self.inputs])
        found = []
        for each in self.reasons.classes[:most]:
            name = purposes.of(each.instruction) if each.instruction >= 0 else ""
            found.append((class_name(name) if each.count > 1 else name, each))
        return found

    def _where(self, instruction: int) -> str:
        file, line = self.lines[instruction] if 0 <= instruction < len(self.lines) else ("", 0)
        return f"{Path(file).name}:{line}" if file else ""

    def _layout_lines(self, most: int) -> list[str]:
        """The layouts of the largest data, parameters and buffers, and of the state of parameters where it differs."""
        groups = input_classes(self.inputs)
        largest = sorted(groups, key=lambda each: -each.nbytes)[:most]
        lines = [f"{'layouts':45} {'':20} {'':9}"]
        for each in groups:
            if each in largest:
                number = f"{each.count} x " if each.count > 1 else ""
                state = "" if each.state in ("", each.layout) else f"   its state {each.state}"
                lines.append(f"  {_cut_left(each.name, 42):42} {number + each.spec:26} {each.layout}{state}")
        if len(groups) > most:
            lines.append(f"  and {len(groups) - most} smaller ones")
        lines[0] = lines[0].rstrip()
        return lines

    def compare(self, other: Plan) -> str:
        """This plan beside another one of the same program."""
        rows = [("", repr(self), repr(other))]
        for name, ours, theirs in (
            ("time", time_text(self.time_us), time_text(other.time_us)),
            ("computation", time_text(self.best.compute_us), time_text(other.best.compute_us)),
            ("communication", time_text(self.best.communication_us), time_text(other.best.communication_us)),
            ("received", size_text(self.nbytes), size_text(other.nbytes)),
            ("memory", size_text(self.peak_nbytes), size_text(other.peak_nbytes)),
        ):
            rows.append((name, ours, theirs))
        both = itertools.zip_longest(self.reasons.words, other.reasons.words, fillvalue="")
        rows += [("" if k else "in words", ours, theirs) for k, (ours, theirs) in enumerate(both)]
        theirs_by_name = other.layouts
        changed = [each for each in self.inputs if theirs_by_name.get(each.name, each.layout) != each.layout]
        alike: dict[tuple[str, str, str], list[str]] = {}
        for each in changed:
            if each.role != "state":
                key = (class_name(each.name), each.layout, theirs_by_name[each.name])
                alike.setdefault(key, []).append(each.name)
        shown = [(name if len(same) > 1 else same[0], a, b) for (name, a, b), same in alike.items()]
        rows += shown[:20]
        if len(shown) > 20:
            rows.append((f"and {len(shown) - 20} other layouts", "", ""))
        state = sum(each.role == "state" for each in changed)
        if state:
            rows.append((f"and {state} layouts of optimizer state", "", ""))
        widths = [max(len(row[k]) for row in rows) for k in range(2)]
        return "\n".join(f"{a:{widths[0]}}  {b:{widths[1]}}  {c}".rstrip() for a, b, c in rows)

    def what_if(
        self, pins: Mapping[str, Pin] | None = None, mesh: Mapping[str, int] | None = None, hardware: Any = None,
        memory: Any = None,
    ) -> Plan:  # fmt: skip
        """The best plan of the same program under other conditions: layouts that are pinned, another mesh, hardware or
        memory. Without `mesh` it is that of this plan."""
        named = [(each.name, each.role) for each in self.inputs]
        count = math.prod((mesh or self.mesh).values())
        chosen = _hardware(hardware if hardware is not None else self.hardware, count)
        memory_nbytes = parse_size(memory) if memory is not None else self.memory_nbytes
        if hardware is not None and memory is None:
            memory_nbytes = chosen.memory_nbytes
        return best_plan(self.program, named, self.lines, [tuple((mesh or self.mesh).items())], chosen, memory_nbytes,
                     pins or {}, Limits(memory_nbytes=memory_nbytes), None, self.programs)  # fmt: skip

    def picture(self, path: str | Path) -> Path:
        """Draw the plan: where the time goes, how data and parameters are split. SVG, or PNG if the path ends in
        .png."""
        title = f"{repr(self).strip('<>')}, {self.hardware}"
        bars = [
            Bar(_cut(_counted(each), 34), purpose or self._where(each.instruction), each.time_us, each.moving_us)
            for purpose, each in self._purposes(12)
        ]
        return draw(Path(path), title, self.mesh, self.reasons, bars, self.inputs)

    def json(self) -> dict[str, Any]:
        """Everything as plain data: the program as a graph, with choices, costs and layouts."""
        return msgspec.json.decode(msgspec.json.encode(self))

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

    `step(*args)` is recorded on paper; nothing is run and no worker is needed. If its tensors are on workers it is
    really run, up to four times, until its programs repeat. Give a `mesh`, such as {"x": 9, "y": 8},
    or a number of `workers`: then every mesh that they can form is tried, and fewer workers too. `hardware` is a name
    (gt.solver.hardware lists them), a `Hardware`, or "measured": the workers of this session's server, which are then
    measured if they never were. `memory` of a worker, such as "80GB", is the hardware's by default. `pins` maps
    patterns of names to layouts that must be kept: {"model.head.weight": {0: "x"}}.

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
    count = math.prod(mesh.values()) if mesh is not None else workers
    chosen = _hardware(hardware, count if type(count) is int and count > 0 else 1)
    memory_nbytes = parse_size(memory) if memory is not None else chosen.memory_nbytes
    if mesh is not None and workers is not None:
        raise ArgumentError(f"plan: give mesh= or workers=, not both; got mesh={dict(mesh)} and workers={workers}")
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
    return best_plan(largest.program, named, largest.lines, meshes, chosen, memory_nbytes, pins or {}, limits, trace,
                 len(recorded.programs))  # fmt: skip


def _hardware(given: str | Hardware, workers: int) -> Hardware:
    """The hardware of a name; "measured" is that of the workers of this process's session."""
    if given == "measured":
        return hardware_for(current(), workers)
    return (kept(given) if isinstance(given, str) else None) or hardware_named(given)


_said: list[str] = []


def _say_once() -> None:
    """Without the package that searches, plans are those of propagation."""
    if not _said:
        _said.append("said")
        print("gt.plan: highspy is not installed (pip install 'gt[solver]'): plans are propagated, not searched for")


def best_plan(
    program: Program, named: list[tuple[str, str]], lines: tuple[tuple[str, int], ...],
    meshes: list[tuple[tuple[str, int], ...]], hardware: Hardware, memory_nbytes: int, pins: Mapping[str, Pin],
    limits: Limits, trace: Callable[[str], object] | None = None, programs: int = 1,
) -> Plan:  # fmt: skip
    """The best plan of a program on one of these meshes. `named`: name and role of each input."""
    found = plans_on(program, named, meshes, hardware, pins, limits, trace)
    return plan_of(found, program, named, lines, hardware, memory_nbytes, programs)


def plan_of(
    found: list[Answer], program: Program, named: list[tuple[str, str]], lines: tuple[tuple[str, int], ...],
    hardware: Hardware, memory_nbytes: int, programs: int = 1,
) -> Plan:  # fmt: skip
    """The first of the answers as a plan; the others are its alternatives."""
    best = msgspec.structs.replace(found[0], others=())
    inputs = tuple([
        PlannedInput(name, role, repr(input_spec(shape, dtype)), text)
        for (name, role), (shape, dtype), text in zip(named, program.inputs, best.inputs, strict=True)
    ])  # fmt: skip
    alternatives = tuple([
        Alternative(" ".join(f"{a}={n}" for a, n in each.axes), each.time_us, _failure(each))
        for each in sorted(found, key=lambda each: (bool(each.error), each.time_us))
    ])  # fmt: skip
    return Plan(dict(best.axes), best.time_us, best.received_nbytes, best.peak_nbytes, inputs, best.ways,
                program.body(), program, hardware.name, memory_nbytes, best, alternatives, lines, programs)  # fmt: skip


def plans_on(
    program: Program, named: list[tuple[str, str]], meshes: list[tuple[tuple[str, int], ...]], hardware: Hardware,
    pins: Mapping[str, Pin], limits: Limits, trace: Callable[[str], object] | None = None,
    alike: tuple[tuple[int, ...], ...] = (),
) -> list[Answer]:  # fmt: skip
    """What was found on each of these meshes, the best first. `alike`: inputs that must have the same layout."""

    def solve(some: list[tuple[tuple[str, int], ...]], limits: Limits) -> list[Answer]:
        return answers(
            [SolveJob(program, axes, hardware, _pinned(program, named, pins, axes), limits, alike) for axes in some]
        )

    most = max(math.prod(n for _, n in axes) for axes in meshes)
    all_workers = [axes for axes in meshes if math.prod(n for _, n in axes) == most]
    found = solve(all_workers, limits)
    for axes in [axes for axes in meshes if axes not in all_workers]:
        best_us = min([each.time_us for each in found if not each.error], default=math.inf)
        found += solve([axes], dataclasses.replace(limits, cutoff_us=TIE * best_us))
        if found[-1].error and found[-1].missing_nbytes == math.inf and not hardware.among:
            break  # so many workers cannot be faster, and fewer still cannot either: none of them slows the others down
    for line in [line for each in found for line in each.log] if trace is not None else ():
        assert trace is not None
        trace(line)
    good = [each for each in found if not each.error]
    if not good:
        least = min(found, key=lambda each: each.missing_nbytes)
        raise MemoryTooSmall(f"plan: {least.error}")
    fastest_us = min(each.time_us for each in good)
    # Workers that would gain nothing are left to others.
    best = min(
        [each for each in good if each.time_us <= TIE * fastest_us],
        key=lambda each: (math.prod(n for _, n in each.axes), each.time_us),
    )
    found.remove(best)
    return [best, *sorted(found, key=lambda each: (bool(each.error), each.time_us))]


def _failure(found: Answer) -> str:
    """Why there is no plan on a mesh; "" if there is one."""
    return _TOO_LARGE if found.error and found.missing_nbytes < math.inf else found.error


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


def _counted(each: ClassReason) -> str:
    return f"{each.count} x {each.ops}" if each.count > 1 else each.ops


def _cut(text: str, length: int) -> str:
    """A text of at most so many characters: its beginning."""
    return text if len(text) <= length else text[: length - 3] + "..."


def _cut_choice(text: str, length: int) -> str:
    """Layouts of at most so many characters: operands are cut first."""
    operands, arrow, results = text.partition(" -> ")
    left = length - len(arrow) - len(results)
    return text if len(text) <= length else f"{_cut(operands, left)} -> {results}" if left > 8 else _cut(text, length)


def _cut_left(text: str, length: int) -> str:
    """A name of at most so many characters: its end."""
    return text if len(text) <= length else "..." + text[-(length - 3) :]
