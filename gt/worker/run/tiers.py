"""How a program runs: as generated Python (tier 1), captured as a CUDA graph (2), or compiled (3).

Law 1: a program moves up when it has proved hot, and nobody waits for that: it runs as before until the next tier is
       ready.
Law 2: a tier that fails is given up for that program, and the call that found out runs on tier 1. Before its commit
       a call has changed nothing, on any tier.
Law 3: a tier that turns out slower than the one before is given up; and tried again later, ever more rarely, for
       others may have been in its way.
Law 4: what a tier is depends on the program alone, never on the numbers of a call.
Law 5: a program that workers run together is compiled in parts, between the collectives. At the end of each call they
       tell each other whether they would rather run it plain (`say`), and go by what all have said: they change over
       with the same call, so what all of them compute comes of the same code.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from statistics import median
from typing import Any, Protocol

from gt.config import Config
from gt.ops.check import Checked
from gt.worker.engines import Array, Engine
from gt.worker.run.compiling import Compiler
from gt.worker.run.executor import Runnable, compile_around, compile_program
from gt.worker.run.parts import Part, Ready, cut
from gt.worker.run.store import Entry

PLAIN = 1  #: What a worker says that would rather not run compiled parts.
STEPS = 4  #: Programs of fewer instructions stay where they are: there is nothing to fuse.
SEEN = 3  #: Calls before it is looked whether it was compiled on an earlier day, if that takes looking.
HITS = 10  #: Calls of a program before it may be compiled,
HOT_US = 300_000  #: and the time they took together.
BUSY = 1.5  #: A device that takes so much longer for a program than the host hides what it costs to start kernels.
TRIAL = 12  #: Calls on a new tier before it is judged.
SLOWER = 1.08  #: How much slower than the tier before it may be: clocks are not exact.
REST_US = 30_000_000  #: What a program has run before a tier that was slower is tried again; twice that the next time,
RESTS = 8  #: and not more often than so.


class Form(Protocol):
    """A program as it can be run. See executor.Runnable."""

    takes: tuple[int, ...]
    checks: tuple[tuple[int, str], ...]
    ran: int  #: The tier that the last call ran on.
    lends: bool  #: Its results may lie in memory that it will use again: it must be told who holds them.

    def run(self, arrays: list[Array], scalars: tuple[Any, ...]) -> tuple[tuple[Array, ...], Array | None]: ...

    def where(self, error: BaseException) -> tuple[int, bool]: ...

    def lend(self, entries: Sequence[Entry]) -> None: ...


class Around:
    """Generated code around a compiled function; and the plain code, for when that fails."""

    lends = False

    def __init__(self, standing: Standing, code: Runnable, plain: Runnable) -> None:
        self.ran = 3
        self.takes = tuple({*code.takes, *plain.takes})
        self.checks = plain.checks
        self._standing, self._code, self._plain = standing, code, plain

    def run(self, arrays: list[Array], scalars: tuple[Any, ...]) -> tuple[tuple[Array, ...], Array | None]:
        try:
            self.ran = 3
            return self._code.run(list(arrays), scalars)
        except Exception as e:
            if self._code.where(e)[1]:
                raise  # the commit had begun
        self.ran = 1
        made = self._plain.run(arrays, scalars)  # a bad index fails here too, and knows its instruction
        self._standing.give_up("the compiled code failed where the plain code did not")
        return made

    def where(self, error: BaseException) -> tuple[int, bool]:
        found = self._code.where(error)
        return found if found != (-1, False) else self._plain.where(error)

    def lend(self, entries: Sequence[Entry]) -> None:
        pass


class Standing:
    """Where one program stands."""

    def __init__(self, plain: Runnable, trusting: Runnable | None) -> None:
        self.plain = plain
        #: What runs on tier 1, and what the other tiers do: without checks of the inputs that are indices, if enough
        #: is known of them. A call of which less is known runs on the plain code.
        self.code = trusting or plain
        self.graph: Any = None  #: The engine's form of it for graphs; None: not made yet.
        self.unfit = ""  #: Why there is none.
        self.folder = ""  #: Where its library is or will be.
        self.asked = False
        self.library: Any = None
        self.around: Around | None = None
        self.parts: list[tuple[Part, str]] | None = None  #: Of a program that workers run together, with their folders;
        self.missing: dict[str, Part] = {}  #: those that were not there when they were looked for.
        self.joint: Runnable | None = None  #: The code with compiled parts,
        self.agreed = False  #: and whether all workers have it and want it.
        self.refused: dict[int, str] = {}  #: Tiers that were given up, and why.
        self.rests: dict[int, int] = {}  #: How often a tier was given up for being slower,
        self.again_us: dict[int, int] = {}  #: and the program's run time from which on it is tried again.
        self.trial: dict[int, int] = {}  #: By tier: its calls since it was tried last.
        self.times: dict[int, deque[int]] = {}  #: By tier, the latest run times.
        self.issue_us: deque[int] = deque(maxlen=TRIAL)  #: On tier 1: the host's part of it.
        self.hits: dict[int, int] = {}
        self.run_us: dict[int, int] = {}

    def give_up(self, why: str, tier: int = 3) -> None:
        self.refused[tier] = why
        if tier == 3:
            self.around = self.library = None

    def rest(self, why: str, tier: int, run_us: int) -> None:
        """Give a tier up for a while, now that the program has run for so long."""
        self.give_up(why, tier)
        rests = self.rests[tier] = self.rests.get(tier, 0) + 1
        if rests <= RESTS:
            self.again_us[tier] = run_us + (REST_US << rests - 1)

    def rested(self, run_us: int) -> bool:
        """Whether a tier is to be tried again."""
        return any(run_us >= again for again in self.again_us.values())

    def try_again(self, run_us: int) -> None:
        for tier in [t for t, again in self.again_us.items() if run_us >= again]:
            del self.again_us[tier], self.refused[tier], self.trial[tier]
            self.times[tier].clear()

    @property
    def tier(self) -> int:
        """The highest one that runs."""
        if self.parts is not None and not self.agreed:
            return 1
        return max((t for t in self.hits if t not in self.refused), default=1)

    def stats(self) -> dict[str, Any]:
        """For `gt.debug.get_worker_stats()`."""
        tiers = {str(t): {"hits": n, "run_us": self.run_us[t]} for t, n in sorted(self.hits.items())}
        given_up = {str(t): why for t, why in self.refused.items()}
        waiting = self.asked and self.library is None and self.joint is None and 3 not in self.refused
        return {"tier": self.tier, "tiers": tiers, "compiling": waiting, "given_up": given_up}


class Tiers:
    """Chooses the form in which each call runs."""

    def __init__(self, engine: Engine, config: Config, log: Callable[[str], None]) -> None:
        self.engine, self.config, self._log = engine, config, log
        self.compiler: Compiler | None = None
        if engine.compiles_with is not None:
            module, about = engine.compiles_with
            self.compiler = Compiler(module, engine.device, about, config.cache_dir, log, config.debug_compile)

    def choose(self, session: Any, known: Any, entries: Sequence[Entry | None]) -> Form | None:
        """The form for this call; None if there is no code (known.failure says why)."""
        standing: Standing | None = known.standing
        if standing is None:
            standing = self._begin(known, entries)
            if standing is None:
                return None
        if standing.code.needs and not _known_to_be(standing.code.needs, entries):
            return standing.plain
        if known.workers:
            return self._together(known, standing)
        if not self._wanted(known):
            return standing.code
        if standing.again_us:
            standing.try_again(known.run_us)
        if self.compiler is not None and standing.library is None and 3 not in standing.refused:
            self._move_up(known, standing)
        if not self.engine.deferred:
            return standing.around or standing.code
        return self._captured(session, known, standing)

    def _begin(self, known: Any, entries: Sequence[Entry | None]) -> Standing | None:
        plain = known.make_ready(self.engine, self.config.fake_memory)
        if plain is None:
            return None
        trusting = None
        if self.engine.deferred and plain.checks:  # the outcome of a check has to come from the device
            trusting = compile_program(known.checked, self.engine, self.config.fake_memory, trusted=True)
            if trusting.checks or not _known_to_be(trusting.needs, entries):
                trusting = None
        known.standing = standing = Standing(plain, trusting)
        if self.config.debug_compile:
            self._log(f"program {known.hash.hex()}\n{standing.code.source}")
        return standing

    def note(self, known: Any, tier: int, run_us: int, issue_us: int) -> None:
        """A call has run on that tier, in that time; the host was at it for a part of that."""
        standing: Standing = known.standing
        if tier == 1:
            standing.issue_us.append(issue_us)
        standing.hits[tier] = standing.hits.get(tier, 0) + 1
        standing.trial[tier] = tried = standing.trial.get(tier, 0) + 1
        standing.run_us[tier] = standing.run_us.get(tier, 0) + run_us
        times = standing.times.get(tier)
        if times is None:
            times = standing.times[tier] = deque(maxlen=TRIAL)
        times.append(run_us)
        if tier > 1 and tried == 2 * TRIAL:  # the first ones warm up
            self._judge(known, standing, tier)

    def settled(self, known: Any, tier: int) -> bool:
        """Whether a program that runs on that tier will go on doing so: nothing higher is on its way to it."""
        standing: Standing = known.standing
        if standing.again_us and standing.rested(known.run_us):
            return False
        return tier not in standing.refused and (tier == 3 or self.compiler is None or 3 in standing.refused)

    # --- together --------------------------------------------------------------------------------------------

    def say(self, known: Any) -> int:
        """What this worker has to say at the end of a call: 0 if it would have the program run in compiled parts."""
        standing: Standing = known.standing
        if standing.joint is None:
            return PLAIN
        why = next((w.failed for w in standing.joint.whole.values() if w.failed), "")
        if why and 3 not in standing.refused:
            standing.give_up(why)
            self._say(known, f"leaves tier 3: {why}")
        return PLAIN if 3 in standing.refused else 0

    def hear(self, known: Any, said: int) -> None:
        """What was said by all."""
        known.standing.agreed = said == 0

    def _together(self, known: Any, standing: Standing) -> Form:
        if self._wanted(known) and self.compiler is not None:
            if standing.again_us:
                standing.try_again(known.run_us)
            if standing.joint is None and 3 not in standing.refused:
                self._cut(known, standing)
        return standing.joint if standing.agreed and standing.joint is not None else standing.code

    def _cut(self, known: Any, standing: Standing) -> None:
        """Have the parts compiled if the program is hot, and take them if that is done."""
        compiler = self.compiler
        assert compiler is not None
        hot = known.compile > 0 or (known.hits >= HITS and known.run_us >= HOT_US)
        if standing.parts is None:
            if known.hits < SEEN and not hot:
                return  # it may not come again
            standing.parts = [(part, compiler.folder(part.checked.program)) for part in self._fit(known.checked)]
            standing.missing = {folder: part for part, folder in standing.parts if not compiler.ready(folder)}
        if not standing.parts:
            standing.give_up("there is nothing between its collectives to compile")
            return
        if not standing.asked:
            if standing.missing and (not hot or compiler.full):
                return
            standing.asked = True
            for folder, part in standing.missing.items():
                compiler.request(folder, part.checked.program)
        if any(compiler.waits(folder) for folder in standing.missing):
            return
        try:
            ready = [self._ready(part, folder) for part, folder in standing.parts]
            trusted = bool(standing.code.needs)
            standing.joint = compile_program(known.checked, self.engine, trusted=trusted, whole=ready)
            standing.joint.ran = 3
            self._say(known, f"has {len(ready)} compiled parts")
        except Exception as e:
            standing.give_up(str(e) or type(e).__name__)
            self._say(known, f"cannot be compiled: {e}")

    def _fit(self, checked: Checked) -> list[Part]:
        """The parts that can be compiled: which these are, all workers find alike."""
        found = []
        for part in cut(checked):
            with suppress(Exception):
                graph = self.engine.graph(part.checked, False)
                if not graph.flagged and len(set(graph.outputs)) == len(graph.outputs):
                    found.append(part)
        return found

    def _ready(self, part: Part, folder: str) -> Ready:
        assert self.compiler is not None
        if not self.compiler.ready(folder):
            raise RuntimeError(self.compiler.failed.get(folder, "the compiler left nothing"))
        graph = self.engine.graph(part.checked, False)
        order = [graph.wants.index(o) for o in graph.outputs]
        return Ready(part, self.engine.load_part(folder, graph), order, compile_program(part.checked, self.engine))

    # --- what is worth it ------------------------------------------------------------------------------------

    def _wanted(self, known: Any) -> bool:
        if known.compile < 0 or known.timed or self.config.fake_memory:
            return False
        return known.compile > 0 or (self.config.auto_compile and known.instructions >= STEPS)

    def _move_up(self, known: Any, standing: Standing) -> None:
        """Have it compiled if it is hot, and take it if that is done."""
        compiler, checked = self.compiler, known.checked
        assert compiler is not None
        if not standing.folder:
            standing.folder = compiler.folder(checked.program, bool(standing.code.needs))
            if compiler.ready(standing.folder):  # from an earlier day
                standing.asked = True
        if not standing.asked:
            hot = known.compile > 0 or (known.hits >= HITS and known.run_us >= HOT_US)
            if not hot or compiler.full:
                return
            standing.asked = True
            if self._graph(checked, standing) is None:
                standing.give_up(standing.unfit)
                return
            self._say(known, "is compiled")
            compiler.request(standing.folder, checked.program, bool(standing.code.needs))
        if compiler.waits(standing.folder):
            return
        self._take(known, standing, checked)

    def _take(self, known: Any, standing: Standing, checked: Checked) -> None:
        compiler = self.compiler
        assert compiler is not None
        try:
            if not compiler.ready(standing.folder):
                raise RuntimeError(compiler.failed.get(standing.folder, "the compiler left nothing"))
            graph = self._graph(checked, standing)
            if graph is None:
                raise RuntimeError(standing.unfit)
            standing.library = self.engine.load_library(standing.folder, graph)
            if not self.engine.deferred:
                code = compile_around(checked, self.engine, standing.library)
                standing.around = Around(standing, code, standing.code)
            self._say(known, "runs compiled")
        except Exception as e:
            standing.give_up(str(e) or type(e).__name__)
            self._say(known, f"cannot be compiled: {e}")

    def _graph(self, checked: Checked, standing: Standing) -> Any:
        if standing.graph is None and not standing.unfit:
            try:
                standing.graph = self.engine.graph(checked, bool(standing.code.needs))
            except Exception as e:
                standing.unfit = str(e) or type(e).__name__
        return standing.graph

    def _captured(self, session: Any, known: Any, standing: Standing) -> Form:
        """The session's graph of it, on a device that has such."""
        tier = 2 if standing.library is None or 3 in standing.refused else 3
        if tier == 2 and 2 in standing.refused:
            return standing.code
        capture = session.captures.get(known.hash)
        if tier == 2 and (capture is None or capture.captured is None) and self._busy(standing):
            return standing.code
        if capture is None or capture.tier != tier:
            graph = self._graph(known.checked, standing)
            if graph is None:
                standing.give_up(standing.unfit, 2)
                return standing.code
            f = graph.build if tier == 2 else standing.library
            if capture is not None:
                capture.let_go()  # or both would have memory for all that the program makes
            capture = session.captures[known.hash] = self.engine.new_capture(graph, f, standing.code, tier)
            if standing.hits.get(1, 0) > TRIAL or tier == 3:
                capture.hurry()
        if capture.why and tier not in standing.refused:
            standing.give_up(capture.why, tier)
            self._say(known, f"cannot be captured on tier {tier}: {capture.why}")
        form: Form = capture
        return form

    def _busy(self, standing: Standing) -> bool:
        """Whether the device has so much to do that starting its kernels one by one costs nothing."""
        times = standing.times.get(1, ())
        return len(times) >= 3 and median(times) > BUSY * median(standing.issue_us)

    def _judge(self, known: Any, standing: Standing, tier: int) -> None:
        """Give a tier up if a lower one was faster. By their better times: others may have disturbed the rest."""
        now_us = _good(standing.times[tier])
        for lower in range(1, tier):
            before = standing.times.get(lower)
            if before and len(before) >= 3 and now_us > SLOWER * _good(before):
                standing.rest(f"{now_us} us, against {_good(before)} us on tier {lower}", tier, known.run_us)
                self._say(known, f"leaves tier {tier}: {standing.refused[tier]}")
                return

    def _say(self, known: Any, what: str) -> None:
        if self.config.debug_compile:
            self._log(f"program {known.hash.hex()[:8]} ({known.instructions} instructions) {what}")


def _good(times: Sequence[int]) -> int:
    """A time among the better ones: the very best may be a clock's mistake."""
    return sorted(times)[len(times) // 6]


def _known_to_be(needs: tuple[tuple[int, int], ...], entries: Sequence[Entry | None]) -> bool:
    """Whether these inputs are known to hold indices in range."""
    for i, n in needs:
        entry = entries[i] if i < len(entries) else None
        if entry is None or not 0 <= entry.below <= n:
            return False
    return True
