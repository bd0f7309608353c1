"""How a program runs: as generated Python (tier 1), captured as a CUDA graph (2), or compiled (3).

Law 1: a program moves up when it has proved hot, and no call waits for that: it runs as before until the next tier is
       ready.
Law 2: a tier that fails is given up for that program, and the call that found out runs on tier 1. Before its commit
       a call has changed nothing, on any tier. A capture that fails concerns its own session only: there the program
       runs on the next lower tier, and the capture is tried again later. So is a compilation, a few times.
Law 3: a tier that turns out slower than the one below is given up. It is tried again later, ever more rarely, because
       other programs may have slowed it down.
Law 4: which tier a program runs on depends on the program alone, never on the numbers of a call. Only a call whose
       indices may be out of range runs on tier 1, where they are checked, though others of its program trust theirs.
Law 5: a program that several workers run together is compiled in segments, between the collectives. At the end of each
       call the workers tell each other whether they can run the compiled segments (`say`), and all go by what was said
       (`hear`). They change over with the same call, so the same code computes what all of them must agree on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from typing import Any

from gt.config import Config
from gt.tracing import Recording
from gt.worker.run.compiling import Compiler
from gt.worker.run.engine import CaptureForm, Engine, Form, Graph, Rest, Scalars
from gt.worker.run.executor import Runnable, arrange_program
from gt.worker.run.layers import SHORT, cut_layers
from gt.worker.run.origins import meet
from gt.worker.run.programs import TRIAL, Doubt, Job, Known, Standing
from gt.worker.run.segments import CapturedSegment, CompiledSegment, Segment, cut
from gt.worker.run.store import Array, Entry
from gt.worker.run.writing import compile_around, compile_program, write

PLAIN = 1  #: What a worker says that cannot or should not run compiled segments.
STEPS = 4  #: Programs of fewer instructions stay on tier 1: there is nothing to fuse.
SEEN = 3  #: Calls before the cache is searched, where that takes time.
HITS = 10  #: Calls of a program before it may be compiled,
HOT_US = 300_000  #: and the time they took together.
BUSY = 1.5  #: Where a device takes so much longer than the host, launching kernels one by one costs nothing.
FAILED_US = 2_000_000  #: What a program runs before a capture that failed is tried again; twice that the next time,
FAILED_TIMES = 7  #: and so on, up to this many times.
SLOWER = 1.08  #: How much slower than the tier below it may be: clocks are not exact.


class Around:
    """Generated code around a compiled function, with the plain code to fall back to when that fails. It is a Form."""

    lends = False

    def __init__(self, standing: Standing, code: Runnable, plain: Runnable) -> None:
        self.ran = 3
        self.takes = tuple({*code.takes, *plain.takes})
        self.checks = plain.checks
        self._standing, self._code, self._plain = standing, code, plain

    def run(self, arrays: list[Array], scalars: Scalars) -> tuple[tuple[Array, ...], Array | None]:
        try:
            self.ran = 3
            return self._code.run(list(arrays), scalars)
        except Exception as e:
            if self._code.where(e)[1]:
                raise  # the commit had begun
        self.ran = 1
        made = self._plain.run(arrays, scalars)  # a bad index fails here too, and the line names its instruction
        self._standing.give_up("the compiled code failed where the plain code did not")
        return made

    def where(self, error: BaseException) -> tuple[int, bool]:
        found = self._code.where(error)
        return found if found != (-1, False) else self._plain.where(error)

    def lend(self, entries: Sequence[Entry]) -> None:
        pass


@dataclass(slots=True)
class Total:
    """What ran on a tier."""

    calls: int = 0
    run_us: int = 0
    instructions: int = 0


class Tiers:
    """Chooses the form in which each call runs."""

    def __init__(self, engine: Engine, config: Config, log: Callable[[str], None]) -> None:
        self.engine, self.config, self._log = engine, config, log
        self.trace: Recording | None = None  #: Set while somebody records what workers do.
        self.totals: dict[int, Total] = {}  #: By tier, of all programs there ever were.
        self.sequences = self.hot_sequences = 0  #: Programs that have run, and those that have left tier 1.
        self.compiler: Compiler | None = None
        if engine.compiles_with is not None:
            module, about = engine.compiles_with
            self.compiler = Compiler(module, engine.device, about, config.cache_dir, log, config.debug_compile)

    def get_ready(self) -> None:
        """Programs will come: start what takes long to be ready."""
        if self.compiler is not None and self.config.auto_compile:
            self.compiler.get_ready()

    def choose(
        self, known: Known, entries: Sequence[Entry | None], scalars: Scalars, captures: dict[bytes, CaptureForm]
    ) -> Form | None:
        """The form for a call with these inputs and numbers, of a session with these captures; None if there is no code
        (known.failure says why)."""
        form = self._choose(known, entries, scalars, captures)
        if self.trace is not None and form is not None and known.standing is not None:
            return self._marked(known, known.standing, form, self.trace)
        return form

    def _marked(self, known: Known, standing: Standing, form: Form, trace: Recording) -> Form:
        """The same code, which also tells when each instruction begins. Where a device works behind the host's back
        that would say nothing."""
        joint = form is standing.joint
        if not (joint or form is standing.code) or self.engine.deferred or known.checked is None:
            return form
        if standing.marked is None or standing.marked[:2] != (trace, form):
            whole = tuple(standing.joint.whole.values()) if joint and standing.joint is not None else ()
            limit, trusted = self.config.fake_memory, bool(standing.code.needs)
            made = compile_program(known.checked, self.engine, limit, trusted, whole, trace.mark)
            made.ran = form.ran
            standing.marked = (trace, form, made)
        return standing.marked[2]

    def _choose(
        self, known: Known, entries: Sequence[Entry | None], scalars: Scalars, captures: dict[bytes, CaptureForm]
    ) -> Form | None:
        standing = known.standing
        if standing is None:
            standing = self._begin(known, entries, scalars)
            if standing is None:
                return None
        elif standing.code.lines is not None and known.hits >= self.engine.by_line:
            write(standing.code, self.engine)
        if standing.code.needs and not meet(standing.code.needs, entries, scalars):
            if known.hits >= self.engine.by_line:
                write(standing.plain, self.engine)
            return standing.plain
        if not self._wanted(known):
            return standing.code
        if standing.again_us:
            standing.try_again(known.run_us)
        if self.compiler is not None and 3 not in standing.refused and self._may_compile(known):
            if standing.library is None and standing.joint is None:
                self._move_up(known, standing, self.compiler)
        if known.workers:
            return standing.joint if standing.agreed and standing.joint is not None else standing.code
        if not self.engine.deferred:
            return standing.code if standing.times_lower else standing.around or standing.code
        return self._captured(captures, known, standing)

    def _begin(self, known: Known, entries: Sequence[Entry | None], scalars: Scalars) -> Standing | None:
        plain = known.make_ready(self.engine, self.config.fake_memory)
        if plain is None or known.checked is None:
            return None
        trusting = None
        if self.engine.deferred and plain.checks:  # the outcome of a check has to come from the device
            trusting = arrange_program(known.checked, self.engine, self.config.fake_memory, trusted=True)
            if trusting.checks or not meet(trusting.needs, entries, scalars):
                trusting = None
        known.standing = standing = Standing(plain, trusting)
        self.sequences += 1
        if self.config.debug_compile:
            write(standing.code, self.engine)
            self._log(f"program {known.hash.hex()}\n{standing.code.source}")
        return standing

    def note(self, known: Known, tier: int, run_us: int, issue_us: int, device_us: int) -> None:
        """A call took `run_us` on that tier; the host was busy with it for `issue_us`, the device for `device_us`."""
        standing = known.standing
        assert standing is not None
        total = self.totals.get(tier)
        if total is None:
            total = self.totals[tier] = Total()
        total.calls += 1
        total.run_us += run_us
        total.instructions += known.instructions
        if tier > 1 and not standing.hot:
            standing.hot = True
            self.hot_sequences += 1
        tried = standing.note(tier, run_us, issue_us, device_us)
        if standing.doubt is not None:
            self._resolve(known, standing, standing.doubt)
        elif tier > 1 and tried == 2 * TRIAL:  # the first ones warm up
            self._judge(known, standing, tier)

    def stats(self) -> dict[str, Any]:
        """For `gt.debug.get_worker_stats()`. An instruction or a sequence (a program) is hot above tier 1."""
        totals = dict(sorted(self.totals.items()))
        return {
            "total_instructions": sum(t.instructions for t in totals.values()),
            "hot_instructions": sum(t.instructions for tier, t in totals.items() if tier > 1),
            "unique_sequences": self.sequences,
            "hot_sequences": self.hot_sequences,
            "compile_us": 0 if self.compiler is None else self.compiler.compile_us,
            "compiling": 0 if self.compiler is None else self.compiler.waiting,
            "tiers": {str(tier): {"calls": t.calls, "run_us": t.run_us} for tier, t in totals.items()},
        }

    def settled(self, known: Known, capture: CaptureForm) -> bool:
        """Whether a program that runs in this form will go on doing so: it is not about to move to another tier."""
        standing, tier = known.standing, capture.tier
        if standing is None:
            return False  # it was forgotten, and has come again
        if standing.doubt is not None or (standing.again_us and standing.rested(known.run_us)):
            return False
        if capture.rests and any(known.run_us >= rest.again_us for rest in capture.rests.values()):
            return False
        highest = tier == 3 or not self._may_compile(known) or 3 in standing.refused or 3 in capture.rests
        return tier not in standing.refused and highest

    def prepare(self, known: Known) -> bool:
        """Make the code of a program before its first call, and have it compiled if it is to be compiled then. Returns
        whether that is done."""
        plain = known.make_ready(self.engine, self.config.fake_memory)
        if plain is not None:
            write(plain, self.engine)
        if plain is None or self.compiler is None or known.compile <= 0 or not self._wanted(known):
            return True
        if known.standing is None and self.engine.deferred and plain.checks:
            return True  # what is compiled depends on what is known of the inputs
        standing = known.standing or self._begin(known, (), ())
        if standing is None:
            return True
        if not self._has_moved_up(standing):
            self._move_up(known, standing, self.compiler)
        return self._has_moved_up(standing)

    @staticmethod
    def _has_moved_up(standing: Standing) -> bool:
        return 3 in standing.refused or standing.library is not None or standing.joint is not None

    # --- together --------------------------------------------------------------------------------------------

    def say(self, known: Known) -> int:
        """What this worker tells the others at the end of a call: 0 if it can run the compiled segments."""
        standing = known.standing
        assert standing is not None
        if standing.joint is None:
            return PLAIN
        why = next((w.failed for w in standing.joint.whole.values() if w.failed), "")
        if why and 3 not in standing.refused:
            standing.give_up(why)
            self._say(known, f"leaves tier 3: {why}")
        return PLAIN if 3 in standing.refused else 0

    def hear(self, known: Known, said: int) -> None:
        """The largest number that a worker has said."""
        assert known.standing is not None
        known.standing.agreed = said == 0

    # --- compiling -------------------------------------------------------------------------------------------

    def _wanted(self, known: Known) -> bool:
        """Whether the program may leave tier 1."""
        if known.compile < 0 or known.timed or self.config.fake_memory:
            return False
        return known.compile > 0 or known.instructions >= STEPS

    def _may_compile(self, known: Known) -> bool:
        """Whether a program that may leave tier 1 may be compiled too."""
        return self.compiler is not None and (known.compile > 0 or self.config.auto_compile)

    def _move_up(self, known: Known, standing: Standing, compiler: Compiler) -> None:
        """Have the program compiled if it is hot, and load what was compiled if that is done."""
        hot = known.compile > 0 or (known.hits >= HITS and known.run_us >= HOT_US)
        if standing.jobs is None:
            if (known.workers or known.instructions >= SHORT) and known.hits < SEEN and not hot:
                return  # it may not be called again, and to cut it takes time
            standing.jobs = self._jobs(known, standing, compiler)
            # By folder: segments that are alike share one.
            missing = {job.folder: job for job in standing.jobs if not compiler.ready(job.folder)}
            standing.missing = list(missing.values())
        if not standing.jobs:
            standing.give_up("there is nothing between its collectives to compile")
            return
        if not standing.asked:
            if standing.missing and (not hot or compiler.full):
                return
            standing.asked = True
            if standing.missing and not known.workers and self._graph(known, standing) is None:
                standing.give_up(standing.unfit)
                return
            for job in standing.missing:
                compiler.request(job.folder, job.checked.program, job.trusted)
            if standing.missing:
                self._say(known, "is being compiled")
        if any(compiler.waits(job.folder) for job in standing.missing):
            return
        try:
            for job in standing.jobs:
                if not compiler.ready(job.folder):
                    raise RuntimeError(compiler.failed.get(job.folder, "the compiler left nothing"))
            if known.workers:
                self._load_segments(known, standing, standing.jobs)
            elif standing.jobs[0].segment is not None:
                self._load_layers(known, standing, standing.jobs)
            else:
                self._load_whole(known, standing, standing.jobs[0].folder)
            self._say(known, "runs compiled")
        except Exception as e:
            standing.fail(str(e) or type(e).__name__, known.run_us)
            for job in standing.missing:
                compiler.failed.pop(job.folder, None)  # so that it may be asked for again
            self._say(known, f"cannot be compiled: {e}")

    def _jobs(self, known: Known, standing: Standing, compiler: Compiler) -> list[Job]:
        """What has to be compiled: the program, or the segments of it that can be. All workers find the same ones."""
        checked = known.checked
        assert checked is not None
        if known.workers:
            return self._jobs_of(cut(checked), False, compiler)
        graph = self._graph(known, standing) if self.engine.deferred and not standing.failures else None
        if graph is not None and not graph.flagged:  # so all indices are known to be in range, in every segment
            jobs = self._jobs_of(cut_layers(checked), True, compiler)
            if jobs:
                return jobs
        trusted = bool(standing.code.needs)
        return [Job(checked, compiler.folder(checked.program, trusted), trusted)]

    def _jobs_of(self, segments: list[Segment], trusted: bool, compiler: Compiler) -> list[Job]:
        """The segments that can be compiled."""
        found: list[Job] = []
        fit: dict[str, bool] = {}
        for segment in segments:
            folder = compiler.folder(segment.checked.program, trusted)
            if folder not in fit:
                fit[folder] = self._is_fit(segment, trusted)
            if fit[folder]:
                found.append(Job(segment.checked, folder, trusted, segment))
        return found

    def _is_fit(self, segment: Segment, trusted: bool) -> bool:
        with suppress(Exception):
            graph = self.engine.graph(segment.checked, trusted)
            return not graph.flagged and len(set(graph.outputs)) == len(graph.outputs)
        return False

    def _load_segments(self, known: Known, standing: Standing, jobs: list[Job]) -> None:
        ready = [self._load_segment(job.folder, job.segment) for job in jobs if job.segment is not None]
        assert known.checked is not None
        trusted = bool(standing.code.needs)
        joint = compile_program(known.checked, self.engine, trusted=trusted, whole=ready)
        joint.ran = 3
        standing.joint = joint

    def _load_layers(self, known: Known, standing: Standing, jobs: list[Job]) -> None:
        loaded: dict[str, tuple[Graph, Callable[..., Any]]] = {}
        for job in jobs:
            if job.folder not in loaded:
                graph = self.engine.graph(job.checked, job.trusted)
                loaded[job.folder] = graph, self.engine.load_library(job.folder, graph)
        layers = [CapturedSegment(job.segment, *loaded[job.folder]) for job in jobs if job.segment is not None]
        assert known.checked is not None
        standing.layered = self.engine.graph(known.checked, bool(standing.code.needs), layers)
        standing.library = standing.layered.build

    def _load_segment(self, folder: str, segment: Segment) -> CompiledSegment:
        graph = self.engine.graph(segment.checked, False)
        order = [graph.wants.index(o) for o in graph.outputs]
        plain = compile_program(segment.checked, self.engine)
        return CompiledSegment(segment, self.engine.load_segment(folder, graph), order, plain)

    def _load_whole(self, known: Known, standing: Standing, folder: str) -> None:
        graph = self._graph(known, standing)
        if graph is None or known.checked is None:
            raise RuntimeError(standing.unfit)
        standing.library = self.engine.load_library(folder, graph)
        if not self.engine.deferred:
            code = compile_around(known.checked, self.engine, standing.library)
            standing.around = Around(standing, code, standing.code)

    def _graph(self, known: Known, standing: Standing) -> Graph | None:
        if standing.graph is None and not standing.unfit:
            assert known.checked is not None
            try:
                standing.graph = self.engine.graph(known.checked, bool(standing.code.needs))
            except Exception as e:
                standing.unfit = str(e) or type(e).__name__
        return standing.graph

    # --- graphs on a device ----------------------------------------------------------------------------------

    def _captured(self, captures: dict[bytes, CaptureForm], known: Known, standing: Standing) -> Form:
        """The session's graph of the program."""
        capture = captures.get(known.hash)
        rests: dict[int, Rest] = {} if capture is None else capture.rests
        if capture is not None and capture.why and not capture.noted:
            self._rest(known, standing, capture)
        possible = [t for t in (3, 2) if t not in standing.refused and (t == 2 or standing.library is not None)]
        if standing.doubt is not None and standing.times_lower:
            possible = [t for t in possible if t <= standing.doubt.lower]
        tier = next((t for t in possible if t not in rests or known.run_us >= rests[t].again_us), 1)
        if tier == 1:
            return standing.code
        if tier == 2 and (capture is None or capture.captured is None) and self._busy(standing):
            return standing.code
        if capture is None or capture.tier != tier or capture.why:
            layered = standing.layered if tier == 3 else None
            graph = layered or self._graph(known, standing)
            if graph is None:
                standing.give_up(standing.unfit, 2)
                return standing.code
            f: Any = graph.build if tier == 2 else standing.library
            if capture is not None:
                capture.let_go()  # or both would have memory for all that the program makes
            capture = captures[known.hash] = self.engine.new_capture(graph, f, standing.code, tier)
            capture.rests = rests
            if standing.hits.get(1, 0) > TRIAL or tier == 3:
                capture.hurry()
        return capture

    def _rest(self, known: Known, standing: Standing, capture: CaptureForm) -> None:
        """Note that a capture has failed: its tier rests in this session."""
        capture.noted = True
        before = capture.rests.get(capture.tier)
        times = 1 if before is None else before.times + 1
        again_us = known.run_us + (FAILED_US << min(times, FAILED_TIMES) - 1)
        capture.rests[capture.tier] = Rest(capture.why, times, again_us)
        standing.uncaptured[capture.tier] = capture.why
        self._say(known, f"cannot be captured on tier {capture.tier}: {capture.why}")

    def _busy(self, standing: Standing) -> bool:
        """Whether the device has so much to do that launching its kernels one by one costs nothing."""
        times = standing.times.get(1, ())
        return len(times) >= 3 and median(times) > BUSY * median(standing.issue_us)

    # --- which tier is faster --------------------------------------------------------------------------------

    def _judge(self, known: Known, standing: Standing, tier: int) -> None:
        """Doubt a tier if a lower one was faster. Their better times are compared: other work may have disturbed the
        rest. That work may have begun only now, so the lower tier is timed again before the tier is given up."""
        now_us = _good(standing.times[tier])
        for lower in range(1, tier):
            before = standing.times.get(lower)
            if before and len(before) >= 3 and now_us > SLOWER * _good(before):
                if known.workers:  # another worker cannot be asked to time a lower tier too
                    self._leave(known, standing, tier, now_us, lower, _good(before))
                else:
                    standing.doubt = Doubt(tier, lower, now_us)
                    before.clear()
                return

    def _resolve(self, known: Known, standing: Standing, doubt: Doubt) -> None:
        """Give up a tier that is in doubt, if the lower one is faster now too. The two are timed in turn."""
        times = standing.times[doubt.tier if doubt.lower_us else doubt.lower]
        if len(times) < TRIAL:
            return
        if not doubt.lower_us:
            standing.doubt = doubt._replace(lower_us=max(1, _good(times)))
            standing.times[doubt.tier].clear()
            return
        standing.doubt = None
        now_us = min(doubt.us, _good(times))
        if now_us > SLOWER * doubt.lower_us:
            self._leave(known, standing, doubt.tier, now_us, doubt.lower, doubt.lower_us)

    def _leave(self, known: Known, standing: Standing, tier: int, us: int, lower: int, lower_us: int) -> None:
        standing.rest(f"{us} us, against {lower_us} us on tier {lower}", tier, known.run_us)
        self._say(known, f"leaves tier {tier}: {standing.refused[tier]}")

    def _say(self, known: Known, what: str) -> None:
        if self.config.debug_compile:
            self._log(f"program {known.hash.hex()[:8]} ({known.instructions} instructions) {what}")


def _good(times: Sequence[int]) -> int:
    """A time among the better ones: the best may be a measurement error."""
    return sorted(times)[len(times) // 6]
