"""The lines of a program as straight-line Python, for programs that are called often. executor.py decides on them.

Law 1: nothing is looked up while it runs: kernels are bound as defaults of the function, one line is one step.
Law 2: the line number in a traceback names the instruction that failed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from gt.ops.check import Checked
from gt.worker.run.engine import Engine
from gt.worker.run.executor import (
    AGREE,
    AROUND,
    DENSE,
    FIRST,
    MANY,
    SEVERAL,
    START,
    TAKE,
    Lines,
    ProgramLine,
    Runnable,
    arrange_around,
    arrange_program,
)  # fmt: skip
from gt.worker.run.lowering import Whole


def compile_program(
    checked: Checked, engine: Engine, fake_memory: int = 0, trusted: bool = False, whole: Sequence[Whole] = (),
    mark: Callable[[int], None] | None = None,
) -> Runnable:  # fmt: skip
    """Generate the code of a program: `arrange_program`, written. With `mark`, the code calls it with each instruction
    that begins."""
    made = arrange_program(checked, engine, fake_memory, trusted, whole)
    write(made, engine, mark)
    return made


def compile_around(checked: Checked, engine: Engine, pure: Callable[..., Any]) -> Runnable:
    """`arrange_around`, written."""
    made = arrange_around(checked, engine, pure)
    write(made, engine)
    return made


def write(made: Runnable, engine: Engine, mark: Callable[[int], None] | None = None) -> None:
    """Write its lines as Python, unless they are."""
    lines = made.lines
    if lines is None:
        return
    writer = _Writer(lines, mark)
    source, first = writer.write()
    code = compile(source, f"<program {lines.program.hash().hex()[:8]}>", "exec")
    namespace: dict[str, Any] = dict(writer.bound)
    exec(code, namespace)
    run = namespace["run"]
    made.become(run if lines.together else engine.whole(run, made.steps), run.__code__, source, first)


class _Writer:
    """Writes the function `run`."""

    def __init__(self, lines: Lines, mark: Callable[[int], None] | None) -> None:
        self.lines = lines
        self.bound: dict[str, Any] = {}  #: Name -> kernel or number.
        self.names: dict[int, str] = {}  #: The id() of a bound object -> its name.
        self.mark = "" if mark is None else self.bind(mark)

    def write(self) -> tuple[str, int]:
        """Its source, and the number of the line that is the first of `lines`."""
        lines, program = self.lines, self.lines.program
        text = ["".join(f"v{i}, " for i in range(len(program.inputs))) + "= a; a.clear()" if program.inputs else "pass"]
        if program.scalars:
            text.append("".join(f"s{k}, " for k in range(len(program.scalars))) + "= s")
        if "f" in lines.names:
            text.append("f = None")
        begin = 2 + len(text)
        text += map(self.line, lines.all)
        flag = "None" if lines.flag is None else self.place(lines.flag)
        text.append(f"return ({''.join(self.place(o) + ', ' for o in lines.outputs)}), {flag}")
        given = "a, s, c" if lines.together else "a, s"
        first = f"def run({given}{''.join(f', {n}={n}' for n in self.bound)}):"
        return "\n ".join([first, *text]) + "\n", begin

    def line(self, line: ProgramLine) -> str:
        text = self.step(line)
        if line.dead:
            text += ("; del " if text else "del ") + ", ".join(map(self.place, line.dead))
        if line.what:
            text += f"  # {line.instruction}{f'.. {line.kernel.rows[0]}' if line.form == MANY else ''} {line.what}"
        if self.mark and line.instruction >= 0:
            text = f"{self.mark}({line.instruction}); {text}"
        return text

    def step(self, line: ProgramLine) -> str:
        form, args = line.form, [*map(self.place, line.args)]
        left = "".join(self.place(r) + ", " for r in line.results)
        match form:
            case _ if form == TAKE:
                return f"{self.place(line.results[0])} = yield {args[0]}"
            case _ if form == START:
                return f"{self.place(line.results[0])} = c.start({self.bind(line.kernel)}, {args[0]}, {args[1]})"
            case _ if form == AGREE:
                return f"c.agreed((yield c.agree({args[0]})))"
        if form == SEVERAL and not line.results:
            return ""
        if form == MANY:
            count, width = line.kernel.rows
            rows = [args[i * width : (i + 1) * width] for i in range(count)]
            right = "".join(f"({''.join(f'{a}, ' for a in row)}), " for row in rows)
            return f"{left}= {self.bind(line.kernel.kernel)}(({right}), {', '.join(args[count * width :])})"
        kernel = self.bind(line.kernel)
        if form == DENSE:
            return f"{', '.join(args)} = {', '.join(f'{kernel}({a})' for a in args)}"
        if form == AROUND:
            return f"{left + '= ' if left else ''}{kernel}([{''.join(a + ', ' for a in args)}], s)"
        call = f"{kernel}({', '.join(args)})"
        if form == SEVERAL:
            return f"{left} = {call}"
        return f"{self.place(line.results[0])} = {call}{'[0]' if form == FIRST else ''}"

    def place(self, place: int) -> str:
        values = self.lines.values
        if place < values:
            return f"v{place}" if place >= 0 else f"s{~place}"
        name, value = self.lines.names[place - values], self.lines.constants[place - values]
        if name:
            return name
        plain = value is None or isinstance(value, int | str) or (isinstance(value, float) and math.isfinite(value))
        return repr(value) if plain else self.bind(value)

    def bind(self, thing: Any) -> str:
        name = self.names.get(id(thing))
        if name is None:
            name = self.names[id(thing)] = f"k{len(self.bound)}"
            self.bound[name] = thing  # also keeps it alive, so that its id stays unique
        return name
