"""The programs a worker knows: their facts, their code once they were called, and how fast each tier ran them.

Law 1: their size is bounded. The least recently used program is forgotten first, and programs cut by a timer before
       all others. The program defined last always stays, so that the call waiting for it can run. A program that
       several workers run together is forgotten only when the dispatcher says so: the other workers would wait while
       its text is sent again.
Law 2: a program is lowered at its first call, not when it arrives. Its code is written when that pays (tiers.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from gt.errors import GTError, ProgramError
from gt.ops.check import Checked, check
from gt.ops.record import TABLE
from gt.program import SCALAR_TYPES, Program, Spec, spec
from gt.tracing import Recording
from gt.transport.messages import Failure
from gt.worker.run.engine import Engine, Form, Graph
from gt.worker.run.executor import Runnable, arrange_program
from gt.worker.run.origins import KnownOrigin
from gt.worker.run.segments import Segment
from gt.worker.run.threads import Pace

TRIAL = 12  #: Run times that are kept of each tier.
REST_US = 30_000_000  #: What a program runs before a tier that was slower is tried again; twice that the next time,
RESTS = 8  #: and at most so many times.
FAILURES = 3  #: So often a program that could not be compiled is compiled again, after rests of that kind.


class Job(NamedTuple):
    """Something that is compiled: a program, or a segment of one."""

    checked: Checked
    folder: str  #: Where its library is or will be.
    trusted: bool  #: See lowering.py.
    segment: Segment | None = None


class Doubt(NamedTuple):
    """A tier that seemed to be slower than a lower one, which is timed again."""

    tier: int
    lower: int
    us: int  #: The time of a call on the tier in doubt,
    lower_us: int = 0  #: and on the lower one; 0: not known yet.


class Standing:
    """Where one program stands on the tiers: what was made of it, and how fast that ran. tiers.py decides by it."""

    def __init__(self, plain: Runnable, trusting: Runnable | None) -> None:
        self.plain = plain
        #: What runs on tier 1, and what the other tiers implement: without checks of the inputs that are indices, if
        #: enough is known of them. A call of which less is known runs on the plain code.
        self.code = trusting or plain
        self.graph: Graph | None = None  #: The engine's form of it for graphs; None: not made yet.
        self.unfit = ""  #: Why it has no graph.
        self.jobs: list[Job] | None = None  #: What has to be compiled for tier 3; None: not known yet.
        self.missing: list[Job] = []  #: Those of the jobs that were not in the cache at first.
        self.asked = False  #: The missing ones have been requested.
        self.library: Callable[..., Any] | None = None  #: The compiled program,
        self.layered: Graph | None = None  #: its graph, if it consists of compiled layers,
        self.around: Form | None = None  #: and on a CPU the code around it.
        self.joint: Runnable | None = None  #: Of a program that several workers run: the code with compiled segments,
        self.agreed = False  #: and whether all workers have it and want it.
        self.hot = False  #: It has run on a tier above 1.
        self.refused: dict[int, str] = {}  #: Tiers that were given up, and why.
        self.uncaptured: dict[int, str] = {}  #: Tiers whose capture failed in a session since they last ran, and why.
        self.rests: dict[int, int] = {}  #: How often a tier was given up for being slower,
        self.again_us: dict[int, int] = {}  #: and the program's run time from which on it is tried again.
        self.failures = 0  #: How often it could not be compiled, or loaded.
        self.trial: dict[int, int] = {}  #: By tier: its calls since it was last tried.
        self.doubt: Doubt | None = None  #: Whether a tier is being compared with a lower one,
        self.times: dict[int, deque[int]] = {}  #: and by tier the device's latest times.
        self.issue_us: deque[int] = deque(maxlen=TRIAL)  #: On tier 1: the host's part of it.
        self.hits: dict[int, int] = {}
        self.run_us: dict[int, int] = {}
        self.marked: tuple[Recording, Form, Runnable] | None = None  #: Its code for a trace; see tiers.py.
        self.paces: dict[int, Pace] = {}  #: By tier: how fast it is with how many threads.

    def give_up(self, why: str, tier: int = 3) -> None:
        self.refused[tier] = why
        if tier == 3:
            self.around = self.library = self.layered = None

    def rest(self, why: str, tier: int, run_us: int) -> None:
        """Give a tier up for a while, now that the program has run for so long."""
        self.give_up(why, tier)
        rests = self.rests[tier] = self.rests.get(tier, 0) + 1
        if rests <= RESTS:
            self.again_us[tier] = run_us + (REST_US << rests - 1)

    def fail(self, why: str, run_us: int) -> None:
        """It could not be compiled, or loaded, now that it has run for so long. The cause may pass: a compiler that was
        killed, a full disk."""
        self.give_up(why)
        self.failures += 1
        if self.failures <= FAILURES:
            self.again_us[3] = run_us + (REST_US << self.failures - 1)

    def rested(self, run_us: int) -> bool:
        """Whether a tier is to be tried again."""
        return any(run_us >= again for again in self.again_us.values())

    def try_again(self, run_us: int) -> None:
        for tier in [t for t, again in self.again_us.items() if run_us >= again]:
            del self.again_us[tier], self.refused[tier]
            self.trial.pop(tier, None)
            self.times.pop(tier, None)
            self.doubt = None
            if tier == 3:
                self.jobs, self.missing, self.asked = None, [], False

    def note(self, tier: int, run_us: int, issue_us: int, device_us: int) -> int:
        """Record that a call has run on that tier; how many have since the tier was last tried."""
        if tier == 1:
            self.issue_us.append(issue_us)
        self.hits[tier] = self.hits.get(tier, 0) + 1
        self.trial[tier] = tried = self.trial.get(tier, 0) + 1
        self.run_us[tier] = self.run_us.get(tier, 0) + run_us
        times = self.times.get(tier)
        if times is None:
            times = self.times[tier] = deque(maxlen=TRIAL)
        if self.uncaptured:
            self.uncaptured.pop(tier, None)
        times.append(device_us)
        return tried

    def pace(self, tier: int) -> Pace:
        found = self.paces.get(tier)
        if found is None:
            found = self.paces[tier] = Pace()
        return found

    @property
    def times_lower(self) -> bool:
        """Whether a lower tier is being timed, because a higher one is in doubt."""
        return self.doubt is not None and not self.doubt.lower_us

    @property
    def tier(self) -> int:
        """The highest one that runs."""
        if self.joint is not None and not self.agreed:
            return 1
        return max((t for t in self.hits if t not in self.refused), default=1)

    def stats(self) -> dict[str, Any]:
        """For `gt.debug.get_worker_stats()`."""
        tiers = {str(t): {"hits": n, "run_us": self.run_us[t]} for t, n in sorted(self.hits.items())}
        given_up = {str(t): why for t, why in {**self.uncaptured, **self.refused}.items()}
        waiting = self.asked and self.library is None and self.joint is None and 3 not in self.refused
        return {"tier": self.tier, "tiers": tiers, "compiling": waiting, "given_up": given_up}


class Known:
    """One program."""

    __slots__ = (
        "bounds", "checked", "compile", "donate", "early", "failure", "groups", "hash", "hits", "inputs",
        "instructions", "nbytes", "outputs", "precision", "run_us", "runnable", "scalars", "standing", "timed",
        "updates", "workers",
    )  # fmt: skip

    def __init__(self, program: Program, timed: bool, compile: int = 0) -> None:
        self.hash = program.hash()
        self.timed = timed
        self.compile = compile  #: 1: at its first call; 0: when it proves hot; -1: never.
        self.precision = program.precision
        self.workers = program.workers  #: The workers that run it together; (): this one alone.
        #: The groups that its collectives and the agreement at its end use, in one order for all workers.
        self.groups: tuple[tuple[int, ...], ...] = (program.workers,) if len(program.workers) > 1 else ()
        self.instructions = len(program.code)
        self.hits = 0
        self.run_us = 0
        self.runnable: Runnable | None = None
        self.standing: Standing | None = None  #: None until its first call.
        self.failure: Failure | None = None  #: Why it cannot run, if it cannot.
        self.checked: Checked | None = None
        self.nbytes = 0
        self.inputs: tuple[Spec, ...] = ()
        self.outputs: tuple[Spec, ...] = ()
        self.scalars: tuple[type, ...] = ()
        #: Outputs that a call may know the range of; none where indices are checked by the host anyway.
        self.bounds: tuple[KnownOrigin, ...] = ()
        self.donate = program.donate
        #: Position of an output -> the input whose value it takes if the call fails.
        self.updates: dict[int, int] = {}
        #: Donated inputs whose value no failed call keeps: they are dropped before the program runs.
        self.early: tuple[int, ...] = ()
        try:
            checked = check(program)
        except ProgramError as e:
            self.failure = Failure("ProgramError", str(e), self.hash)
            return
        self.checked = checked
        self.groups = _groups(program)
        self.nbytes = checked.text_nbytes
        self.scalars = tuple(SCALAR_TYPES[k] for k in program.scalars)
        self.inputs = checked.specs[: len(program.inputs)]
        self.outputs = tuple(spec(s.shape, s.dtype) for s in (checked.specs[o] for o in program.outputs))
        self.updates = {o: i for o, i in program.updates if self.inputs[i] is self.outputs[o]}
        sources = set(self.updates.values())
        self.early = tuple(i for i in program.donate if i not in sources)

    def stats(self) -> dict[str, Any]:
        """For `gt.debug.get_worker_stats()`."""
        standing = self.standing.stats() if self.standing is not None else {"tier": 1}
        return {"instructions": self.instructions, "hits": self.hits, "run_us": self.run_us, **standing}

    def make_ready(self, engine: Engine, fake_memory: int) -> Runnable | None:
        """Its code; None if there is none (see `failure`)."""
        if self.runnable is None and self.checked is not None and self.failure is None:
            try:
                self.runnable = arrange_program(self.checked, engine, fake_memory)
                self.bounds = self.runnable.bounds if engine.deferred else ()
            except GTError as e:
                self.failure = Failure("ProgramError", str(e), self.hash)
            except Exception as e:  # a kernel factory may fail on attributes that inference accepts
                self.failure = Failure("WorkerError", f"{type(e).__name__}: {e}", self.hash)
        return self.runnable


def _groups(program: Program) -> tuple[tuple[int, ...], ...]:
    found = {tuple(program.workers)}
    for ins in program.code if program.workers else ():
        if ins.op in TABLE and TABLE[ins.op].collective:
            found.add(tuple(ins.attrs["workers"]))
    return tuple(sorted(g for g in found if len(g) > 1))


class Programs:
    """All known programs, by hash."""

    def __init__(self, limit_nbytes: int) -> None:
        self.limit_nbytes = limit_nbytes
        self.nbytes = 0
        self._shared: dict[bytes, Known] = {}  #: Run by several workers together; these stay.
        self._lasting: dict[bytes, Known] = {}  #: Least recently used first.
        self._timed: dict[bytes, Known] = {}  #: Likewise; all of these go before any of the lasting.

    def __len__(self) -> int:
        return len(self._shared) + len(self._lasting) + len(self._timed)

    def __iter__(self) -> Iterator[Known]:
        yield from self._shared.values()
        yield from self._lasting.values()
        yield from self._timed.values()

    def get(self, hash: bytes) -> Known | None:
        """The program; this counts as a use."""
        for side in (self._lasting, self._timed):
            known = side.pop(hash, None)
            if known is not None:
                side[hash] = known
                return known
        return self._shared.get(hash)

    def peek(self, hash: bytes) -> Known | None:
        """The program; this does not count as a use."""
        return self._lasting.get(hash) or self._timed.get(hash) or self._shared.get(hash)

    def add(self, known: Known) -> None:
        """Add a program; others may be forgotten for it."""
        self.forget(known.hash)
        side = self._shared if known.workers else self._timed if known.timed else self._lasting
        side[known.hash] = known
        self.nbytes += known.nbytes
        while self.nbytes > self.limit_nbytes:
            others = [h for h in (*self._head(self._timed), *self._head(self._lasting)) if h != known.hash]
            if not others:
                break
            self.forget(others[0])

    def forget(self, hash: bytes) -> None:
        for side in (self._shared, self._lasting, self._timed):
            known = side.pop(hash, None)
            if known is not None:
                self.nbytes -= known.nbytes

    @staticmethod
    def _head(side: dict[bytes, Known]) -> list[bytes]:
        """The two oldest: the oldest may be the one that has to stay."""
        keys = iter(side)
        return [k for k in (next(keys, None), next(keys, None)) if k is not None]
