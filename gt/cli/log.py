"""`gt log`: follow a tensor, a session, a program or the errors through an instruction log (GT_INSTRUCTION_LOG).

A log has a line per message (gt/dispatcher/log.py says which columns), and a server that starts adds to the file. So
the ids of a file are those of one run of a server: the last one, unless another is asked for.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from gt.command_line import Parser

_CALL = re.compile(
    r"#(?P<seq>\d+) (?P<program>[0-9a-f]+) (?P<about>\(.*?\)(?: at .*?)?) in (?P<inputs>[^,]*)"
    r"(?:, makes (?P<makes>[^,]*))?(?:, replaces (?P<replaces>[^,]*))?(?:, frees (?P<frees>[^,]*))?(?P<rest>,.*|$)"
)
_OUTCOME = re.compile(r"(?:ERROR )?session \d+ #(?P<seq>\d+) ")
PROGRAMS = 12  #: Programs in a summary.
_REQUEST = re.compile(r"request (?P<request>\d+)(?:: tensor (?P<id>\d+))?")


@dataclass(slots=True)
class Line:
    """A line of the log, and what is listed below it."""

    text: str
    since: str
    number: int
    way: str
    who: str
    what: str
    details: str
    below: list[str] = field(default_factory=list)

    @property
    def session(self) -> int:
        """The session that it is of; 0: of none."""
        found = re.match(r"(?:ERROR )?session (\d+)", self.details)
        return int(found[1]) if found else 0

    @property
    def error(self) -> bool:
        return self.details.startswith("ERROR")


class NotFound(Exception):
    """What was asked for is not in the log."""


def read(lines: Iterable[str]) -> Iterator[list[Line]]:
    """The runs of a log. What cannot be read is part of the line before it: it was cut off, or is not of GT."""
    run: list[Line] = []
    for text in lines:
        cells = re.split(r" {2,}", text.rstrip("\n"), maxsplit=7)
        if text.startswith("    |") or len(cells) < 7 or not cells[2].isdecimal():
            if run:
                run[-1].below.append(text.rstrip("\n"))
            continue
        if cells[3] == "START" and run:
            yield run
            run = []
        details = cells[7] if len(cells) > 7 else ""
        run.append(Line(text.rstrip("\n"), cells[1], int(cells[2]), cells[3], cells[4], cells[5], details))
    if run:
        yield run


def ids(text: str | None) -> list[range]:
    """The ids of a list as the log writes it: "1 4-7 9 ... (80 in all)".

    >>> ids("1 4-7 none")
    [range(1, 2), range(4, 8)]
    """
    found = []
    for word in (text or "").partition(" ...")[0].split():
        first, _, last = word.partition("-")
        if first.isdecimal():
            found.append(range(int(first), int(last or first) + 1))
    return found


def has(text: str | None, id: int) -> bool:
    return any(id in r for r in ids(text))


# --- one tensor ------------------------------------------------------------------------------------------------------


class Story:
    """What happened to one tensor of one session."""

    def __init__(self, run: list[Line], session: int, id: int) -> None:
        self.id = id
        self.events: list[tuple[Line, str, str]] = []
        self._makers: set[str] = set()  #: Calls that make it, or were to make it.
        self._requests: set[str] = set()
        self._told: set[tuple[str, str]] = set()
        for line in run:
            if line.session == session:
                self._take(line)

    def _add(self, line: Line, word: str, text: str, once: str = "") -> None:
        if not once or (word, once) not in self._told:
            self._told.add((word, once))
            self.events.append((line, word, text))

    def _take(self, line: Line) -> None:
        details, id = line.details, self.id
        if line.what == "Call":
            self._take_call(line)
        elif line.what == "Free" and has(details.partition("frees ")[2], id):
            self._add(line, "freed", "by itself, with no call" if line.way == "RECV" else f"on {line.who}")
        elif line.what == "tensors" and has(details.partition(" holds ")[2].partition(",")[0], id):
            self._add(line, "held", _held(details, id))
        elif line.what in ("Chunk", "ChunkAck") and f"upload of tensor {id}:" in f"{details}:":
            if line.what == "Chunk":
                way = "from the client" if line.way == "RECV" else f"to {line.who}"
                self._add(line, "uploaded", f"{way}{details.partition(f'upload of tensor {id}')[2]}", way)
        elif line.what == "Fetch" and (found := _REQUEST.search(details)) and found["id"] == str(id):
            self._requests.add(found["request"])
            self._add(line, "fetched", f"request {found['request']} of {line.who}", found["request"])
        elif line.what == "FetchFailed" and (found := _REQUEST.search(details)) and found["request"] in self._requests:
            self._add(line, "ERROR", details.partition(": ")[2], details.partition(": ")[2])
        elif line.what in ("CallDone", "CallFailed") and (found := _OUTCOME.match(details)):
            if found["seq"] in self._makers and line.way == "WORKER_RECV" and not line.error:
                self._add(line, "computed", f"call #{found['seq']} on {line.who}{details[found.end() - 1 :]}")
            elif found["seq"] in self._makers and line.error:
                self._add(line, "ERROR", f"{line.who}: {details.partition('#')[2]}")
        elif line.error and re.search(rf"\btensor {id}\b", details):
            self._add(line, "ERROR", f"{line.what}: {details.partition(' ')[2]}")

    def _take_call(self, line: Line) -> None:
        call = _CALL.search(line.details)
        if call is None:
            return
        id, seq, where = self.id, call["seq"], "" if line.way == "RECV" else f" on {line.who}"
        name = f"call #{seq} {call['program']} {call['about']}{where}"
        if has(call["makes"], id):
            self._makers.add(seq)
            self._add(line, "made", f"by {name}" + (f" {call['rest'].strip(', ')}" if where else ""))
        if has(call["inputs"], id):
            self._add(line, "used", f"by {name}")
        for pair in (call["replaces"] or "").split():
            old, _, new = pair.partition("->")
            if old == str(id):
                self._add(line, "replaced", f"by tensor {new} in call #{seq}", seq)
            elif new == str(id):
                self._add(line, "replaces", f"tensor {old}", seq)
        if has(call["frees"], id):
            self._add(line, "freed", f"by call #{seq}{where}")
        if line.error and (has(call["inputs"], id) or has(call["makes"], id)):
            self._add(line, "ERROR", f"{name}: {call['rest'].strip(', ')}")


def _held(details: str, id: int) -> str:
    """How a tensor is held, from a line about several."""
    listed, _, rest = details.partition(" holds ")[2].partition(", as ")
    specs, _, layout = rest.partition(", layout ")
    place = [i for r in ids(listed) for i in r].index(id)
    each = specs.split()
    return f"{each[place] if place < len(each) else '...'}, layout {layout}"


def follow(run: list[Line], id: int, session: int) -> list[str]:
    """What happened to a tensor, line by line."""
    sessions = sorted({line.session for line in run if line.session} & ({session} if session else set(range(1 << 20))))
    stories = {n: story for n in sessions if (story := Story(run, n, id)).events}
    if not stories:
        made = sorted(
            (r.start, r.stop - 1)
            for line in run
            if line.session in sessions and (call := _CALL.search(line.details)) is not None
            for r in ids(call["makes"])
        )
        known = f"; results of calls have the ids {made[0][0]} to {max(b for _, b in made)}" if made else ""
        of = f" of session {session}" if session else ""
        raise NotFound(f"nothing is told of tensor {id}{of}{known}")
    if len(stories) > 1:
        numbers = ", ".join(map(str, stories))
        raise NotFound(f"tensor {id} exists in the sessions {numbers}; choose one with --session")
    ((number, story),) = stories.items()
    names = [line.who for line in run if line.way == "CONNECT" and line.details == f"session {number}"]
    shown = [f"tensor {id} of session {number}" + (f" ({names[0]})" if names else "")]
    width = max(len(word) for _, word, _ in story.events)
    shown += [f"{line.since:>12}  line {line.number:<6}  {word:<{width}}  {text}" for line, word, text in story.events]
    words = [word for _, word, _ in story.events]
    if "freed" not in words:
        shown.append("it is never freed in this log")
    if any(" ..." in line.details and line.what == "Call" and line.session == number for line in run):
        shown.append("lists of some calls are cut off in the log: it may have been used by more of them")
    return shown


# --- lines of the log ------------------------------------------------------------------------------------------------


def chosen(run: list[Line], session: int, errors: bool, program: str) -> list[str]:
    """The lines that were asked for; of a program its text too."""
    shown = []
    listed = False
    for line in run:
        if session and line.session != session:
            continue
        if errors and not line.error:
            continue
        if program and not re.search(rf"\b{re.escape(program)}", line.details):
            continue
        shown.append(line.text)
        if line.what == "plan" or (program and line.what == "Define" and not listed):
            shown += line.below
            listed = listed or line.what == "Define"
    return shown


def summary(run: list[Line]) -> list[str]:
    """What is in a run, in a few lines."""
    shown = []
    for line in run:
        if line.way == "CONNECT" and line.what == "client":
            number = line.session
            mine = [each for each in run if each.session == number]
            calls = [each for each in mine if each.what == "Call" and each.way == "RECV"]
            programs = {found["program"] for each in calls if (found := _CALL.search(each.details))}
            fetches = sum(each.what == "Fetch" and each.way == "RECV" for each in mine)
            bad = sum(each.error for each in mine)
            shown.append(
                f"session {number}  {line.who}: {len(calls)} calls of {len(programs)} programs, {fetches} fetches, "
                f"{bad} errors, {line.since} to {mine[-1].since} s"
            )
            if bad:  # the others are often its consequences
                first = next(each for each in mine if each.error)
                shown.append(f"    the first, in line {first.number}: {first.details.removeprefix('ERROR ')}")
    shown += _programs(run)
    workers = sorted({line.who for line in run if line.way == "CONNECT" and line.what == "worker"})
    errors = sum(line.error for line in run)
    shown.append(f"{len(run)} lines, {errors} with ERROR; {', '.join(workers) or 'no workers'}")
    return shown


def _programs(run: list[Line]) -> list[str]:
    """The programs that clients called, with what workers do together for them."""
    calls: dict[str, int] = {}
    about: dict[str, str] = {}
    together: dict[str, list[str]] = {}
    for line in run:
        if line.what == "Call" and line.way == "RECV" and (found := _CALL.search(line.details)):
            calls[found["program"]] = calls.get(found["program"], 0) + 1
            about[found["program"]] = found["about"]
        elif line.what == "plan":
            notes = [note.partition("collective: ")[2] for note in line.below]
            together[line.details.split()[0]] = [note for note in notes if note]
    shown = []
    for name in sorted(calls, key=lambda each: -calls[each])[:PROGRAMS]:
        what = f"; {', '.join(together[name])}" if together.get(name) else ""
        shown.append(f"program {name} {about[name]}: {calls[name]} calls{what}")
    return shown + ([f"... {len(calls) - PROGRAMS} more programs"] if len(calls) > PROGRAMS else [])


# --- the command -----------------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> int:
    """Print what was asked for; returns the exit code."""
    p = Parser(
        prog="gt log", description="Read an instruction log, which GT_INSTRUCTION_LOG=FILE makes a server write."
    )
    p.add_argument("file", metavar="FILE", help="the log")
    p.add_argument(
        "--tensor", type=int, metavar="ID", help="what happened to this tensor, from its creation to its end"
    )
    p.add_argument("--session", type=int, default=0, metavar="N", help="only this session")
    p.add_argument("--errors", action="store_true", help="only what failed")
    p.add_argument("--program", default="", metavar="HASH", help="only this program, and its text")
    p.add_argument("--run", type=int, default=0, metavar="N", help="which run of a server (default: the last)")
    args = p.parse_args(argv)
    try:
        for line in _answer(args.file, args.run, args.session, args.tensor, args.errors, args.program):
            print(line)
    except BrokenPipeError:
        raise
    except OSError as e:
        print(f"gt log: {args.file}: {e.strerror}", file=sys.stderr)
        return 2
    except NotFound as e:
        print(f"gt log: {args.file}: {e}", file=sys.stderr)
        return 1
    return 0


def _answer(file: str, number: int, session: int, tensor: int | None, errors: bool, program: str) -> list[str]:
    with open(file, encoding="utf-8", errors="replace") as opened:
        runs = list(read(opened))
    if not runs:
        raise NotFound("there is no instruction log in this file")
    if number and not 0 < number <= len(runs):
        raise NotFound(f"there is no run {number}; it has {len(runs)}")
    run = runs[number - 1 if number else -1]
    if session and not any(line.session == session for line in run):
        known = sorted({line.session for line in run} - {0})
        raise NotFound(f"there is no session {session}; it has {', '.join(map(str, known)) or 'none'}")
    if tensor is not None:
        return follow(run, tensor, session)
    if not (session or errors or program):
        return summary(run)
    shown = chosen(run, session, errors, program.lower())
    if program and not shown:
        raise NotFound(f"there is no program {program}")
    return shown
