"""When a program moves to another tier, with an engine and a compiler that do as they are told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gt.config import Config, replace
from gt.errors import IndexOutOfRange
from gt.worker.engines.numpy import NumpyEngine
from gt.worker.run import tiers
from gt.worker.run.programs import REST_US, TRIAL, Known, Standing
from gt.worker.run.store import Entry
from gt.worker.run.tiers import HITS, HOT_US, Around, Tiers
from tests.sessions import raising
from tests.worker.worker_building import Builder, FakeCompiler, Wrapped

AUTO = replace(Config(), auto_compile=True)
X = np.arange(3, dtype=np.float32)


class Compiles(Wrapped):
    """A numpy engine that can load what was compiled: `library`."""

    deferred = False
    compiles_with = ("nobody", "")

    def __init__(self) -> None:
        super().__init__(NumpyEngine())
        self.library: Callable[..., Any] = lambda inputs, scalars: [(inputs[0] * 2 + scalars[0]) * 8]
        self.unfit = ""

    def graph(self, checked: Any, trusted: bool) -> Any:
        if self.unfit:
            raise ValueError(self.unfit)
        return "graph"

    def load_library(self, folder: str, graph: Any) -> Any:
        assert (folder, graph) == ("folder", "graph")
        return self.library


def program(timed: bool = False, compile: int = 0, steps: int = 4) -> Known:
    """((x * 2 + s) * 2) * 2 ..., of so many instructions."""
    b = Builder((3,), scalars="f")
    y = b.add("add", b.add("add", 0, 0), ~0)
    for _ in range(3):
        y = b.add("add", y, y)
    known = Known(b.program([y]), timed, compile)
    assert known.failure is None
    known.instructions = steps
    return known


class Setting:
    """One program's calls."""

    def __init__(self, known: Known, config: Config = AUTO, quick: bool = True) -> None:
        self.engine, self.compiler, self.known = Compiles(), FakeCompiler(quick, "folder"), known
        self.said: list[str] = []
        self.tiers = Tiers(self.engine, config, self.said.append)
        self.tiers.compiler = self.compiler  # type: ignore[assignment]

    def call(self, us: int = HOT_US, times: int = 1, s: float = 1.0) -> int:
        """The tier that the call ran on; `us`: how long it took."""
        for _ in range(times):
            form = self.tiers.choose(self.known, [Entry(self.known.inputs[0], X)], (), {})
            (made,), flag = form.run([X], (s,))
            assert np.array_equal(made, (X * 2 + s) * 8)
            assert flag is None
            self.known.hits += 1
            self.known.run_us += us
            self.tiers.note(self.known, form.ran, us, us, us)
        return form.ran

    def judge(self) -> None:
        """Take 1000 us a call on tier 1; from now on there is compiled code."""
        self.call(times=HITS)
        self.call(us=1000, times=TRIAL)
        self.compiler.there.add("folder")

    @property
    def stats(self) -> dict[str, Any]:
        assert self.known.standing is not None
        return self.known.standing.stats()


# --- the first call -------------------------------------------------------------------------


def test_code_is_written_for_a_program_that_is_called_often() -> None:
    """Most programs of a loop whose structure changes are called once, or a few times."""
    setting = Setting(program(compile=-1))
    for _ in range(setting.engine.by_line):
        assert setting.call() == 1
        code = setting.known.runnable
        assert code is not None
        assert code.lines is not None
        assert not code.source
    assert setting.call() == 1
    assert code.lines is None
    assert "def run" in code.source


def test_code_is_written_for_a_program_that_is_prepared() -> None:
    setting = Setting(program())
    setting.tiers.prepare(setting.known)
    assert setting.known.runnable is not None
    assert setting.known.runnable.source


# --- up -------------------------------------------------------------------------------------


def test_hits_and_time_make_it_hot() -> None:
    setting = Setting(program())
    assert setting.call(times=HITS) == 1
    assert not setting.compiler.asked, "it was called often enough only now"
    assert setting.call() == 3
    assert setting.compiler.asked == ["folder"]
    slow = Setting(program())
    assert slow.call(us=HOT_US // 100, times=100) == 1, "the time is used up only now"
    assert slow.call(us=1) == 3


def test_nobody_waits_for_the_compiler() -> None:
    setting = Setting(program(), quick=False)
    assert setting.call(times=HITS + 5) == 1
    assert setting.compiler.asked == ["folder"], "once"
    assert setting.stats["compiling"]
    setting.compiler.there.add("folder")
    assert setting.call() == 3
    assert not setting.stats["compiling"]


def test_a_full_compiler_is_asked_later() -> None:
    setting = Setting(program())
    setting.compiler.full = True
    assert setting.call(times=HITS + 5) == 1
    assert not setting.compiler.asked
    setting.compiler.full = False
    assert setting.call() == 3


def test_numbers_of_a_call_change_nothing() -> None:
    setting = Setting(program(compile=1))
    for s in (1.0, 2.0, -3.5):
        assert setting.call(s=s) == 3
    assert setting.compiler.asked == ["folder"]


@pytest.mark.parametrize(
    ("known", "config"),
    [
        (program(timed=True), AUTO),
        (program(timed=True, compile=1), AUTO),
        (program(compile=-1), AUTO),
        (program(steps=tiers.STEPS - 1), AUTO),
        (program(), replace(AUTO, auto_compile=False)),
        (program(compile=1), replace(AUTO, fake_memory=1 << 20)),
    ],
    ids=["timed", "timed and told", "told not to", "short", "GT_AUTO_COMPILE=0", "fake memory"],
)
def test_what_stays_on_tier_1(known: Known, config: Config) -> None:
    setting = Setting(known, config)
    setting.compiler.there.add("folder")
    assert setting.call(times=2 * HITS) == 1
    assert not setting.compiler.asked


@pytest.mark.parametrize("steps", [1, 4])
def test_what_is_told_to_is_compiled_at_once(steps: int) -> None:
    setting = Setting(program(compile=1, steps=steps), replace(AUTO, auto_compile=False), quick=False)
    assert setting.call(us=1) == 1
    assert setting.compiler.asked == ["folder"]


def test_a_program_is_compiled_before_its_first_call() -> None:
    setting = Setting(program(compile=1), quick=False)
    assert not setting.tiers.prepare(setting.known)
    assert not setting.tiers.prepare(setting.known)
    assert setting.compiler.asked == ["folder"]
    setting.compiler.there.add("folder")
    assert setting.tiers.prepare(setting.known)
    assert setting.call() == 3


def test_what_cannot_be_compiled_is_prepared_all_the_same() -> None:
    for known in (program(), program(compile=-1), program(compile=1, timed=True)):
        assert Setting(known, quick=False).tiers.prepare(known)
        assert known.runnable is not None
    setting = Setting(program(compile=1))
    setting.engine.unfit = UNFIT
    assert setting.tiers.prepare(setting.known)
    assert setting.call() == 1


def test_what_is_in_the_cache_is_taken_at_the_first_call() -> None:
    setting = Setting(program())
    setting.compiler.there.add("folder")
    assert setting.call(us=1) == 3
    assert not setting.compiler.asked


# --- down -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("us", "stays"), [(900, True), (1050, True), (1200, False)])
def test_a_slower_tier_is_left(us: int, stays: bool) -> None:
    setting = Setting(program(), replace(AUTO, debug_compile=True), quick=False)
    setting.judge()
    assert setting.call(us=10_000, times=TRIAL) == 3, "the first ones warm up"
    assert setting.call(us=us, times=TRIAL) == 3
    if not stays:
        assert setting.call(us=1000, times=TRIAL) == 1, "the lower one is timed again,"
        assert setting.call(us=us, times=TRIAL) == 3, "and so is the one in doubt"
    assert setting.call() == (3 if stays else 1)
    assert setting.stats["given_up"] == ({} if stays else {"3": "1200 us, against 1000 us on tier 1"})
    assert any("leaves tier 3" in line for line in setting.said) != stays


@pytest.mark.parametrize(("lower", "higher"), [(9000, 8000), (1000, 900)], ids=["goes on", "is over"])
def test_others_that_begin_to_disturb_when_a_tier_begins(lower: int, higher: int) -> None:
    """All calls become slower at once, and either stay so or not: that says nothing against the tier."""
    setting = Setting(program(), quick=False)
    setting.judge()
    assert setting.call(us=8000, times=2 * TRIAL) == 3
    assert setting.call(us=lower, times=TRIAL) == 1
    assert setting.call(us=higher, times=3 * TRIAL) == 3
    assert setting.stats["given_up"] == {}


def test_a_slower_tier_is_tried_again() -> None:
    """Somebody else had the machine when it was judged; now it is free. Where it stays slow it rests ever longer."""
    setting = Setting(program(), quick=False)
    setting.judge()

    def lose() -> None:
        setting.call(us=9000, times=2 * TRIAL)
        setting.call(us=1000, times=TRIAL)
        setting.call(us=9000, times=TRIAL)

    lose()
    assert setting.call(us=1000) == 1
    assert setting.call(us=1000, times=REST_US // 1000 - 2) == 1, "it rests"
    assert setting.call(us=1000, times=2) == 3
    assert setting.stats["given_up"] == {}
    lose()
    assert setting.call(us=1000, times=REST_US // 1000 + 100) == 1, "it rests for longer"
    assert setting.call(us=1000, times=REST_US // 1000) == 3
    assert setting.call(us=900, times=100) == 3
    assert setting.stats["given_up"] == {}


def test_others_that_disturb_do_not_count() -> None:
    """A machine that is busy for a while makes most calls slower, not all."""
    setting = Setting(program(), quick=False)
    setting.judge()
    for i in range(2 * TRIAL):
        setting.call(us=250 if i % 4 == 0 else 5000)
    assert setting.call() == 3


def test_a_compiler_that_fails_leaves_it_where_it_is() -> None:
    setting = Setting(program(compile=1), quick=False)
    assert setting.call() == 1
    setting.compiler.failed["folder"] = "InductorError: no"
    assert setting.call(times=5) == 1
    assert setting.stats["given_up"] == {"3": "InductorError: no"}
    assert setting.compiler.asked == ["folder"]


UNFIT = "linalg_eig: cannot be part of a graph"


@pytest.mark.parametrize(
    ("attribute", "value", "reason"),
    [
        ("unfit", UNFIT, UNFIT),
        ("load_library", raising(OSError("program.so: file too short")), "program.so: file too short"),
        ("library", raising(RuntimeError("no")), "the compiled code failed where the plain code did not"),
    ],
    ids=["no graph", "a library that cannot be loaded", "a library that fails"],
)
def test_what_does_not_run_compiled_is_given_up_and_calls_succeed(attribute: str, value: Any, reason: str) -> None:
    setting = Setting(program(compile=1))
    setattr(setting.engine, attribute, value)
    assert setting.call(times=3) == 1
    assert bool(setting.compiler.asked) == (attribute != "unfit"), "what cannot be a graph is not asked for"
    assert setting.stats["given_up"] == {"3": reason}
    assert setting.stats["tiers"]["1"]["hits"] == 3


class Code:
    """Stands for generated code: it raises, before its commit or in it."""

    takes, checks, needs = (0,), (), ()

    def __init__(self, error: Exception | None = None, committing: bool = False) -> None:
        self.error, self.committing, self.runs = error, committing, 0

    def run(self, arrays: list[Any], scalars: Any) -> Any:
        self.runs += 1
        arrays.clear()
        if self.error is not None:
            raise self.error
        return ("made",), None

    def where(self, error: BaseException) -> tuple[int, bool]:
        return (2, self.committing) if error is self.error else (-1, False)


def around(code: Code, plain: Code) -> tuple[Around, Standing]:
    standing = Standing(plain, None)  # type: ignore[arg-type]
    return Around(standing, code, plain), standing  # type: ignore[arg-type]


def test_a_failure_in_the_commit_is_not_tried_again() -> None:
    """Inputs may be half written: a second run would read them."""
    error, plain = RuntimeError("half way"), Code()
    form, standing = around(Code(error, committing=True), plain)
    with pytest.raises(RuntimeError, match="half way"):
        form.run([X], ())
    assert plain.runs == 0
    assert form.where(error) == (2, True)
    assert not standing.refused


def test_what_fails_on_both_is_the_callers_error() -> None:
    """A bad index: the compiled code knows that there is one, the plain code knows which."""
    error = IndexOutOfRange("embedding: index 9")
    form, standing = around(Code(IndexOutOfRange("an index is out of range")), Code(error))
    with pytest.raises(IndexOutOfRange, match="embedding: index 9"):
        form.run([X], ())
    assert form.where(error) == (2, False)
    assert form.ran == 1
    assert not standing.refused


def test_inputs_are_there_for_the_second_try() -> None:
    form, _ = around(Code(RuntimeError("no")), Code())
    arrays = [X]
    assert form.run(arrays, ()) == (("made",), None)
    assert arrays == [], "and are let go of then"


# --- statistics -----------------------------------------------------------------------------


def test_statistics() -> None:
    setting = Setting(program(), quick=False)
    setting.call(us=HOT_US, times=HITS)
    setting.call(us=7)
    setting.compiler.there.add("folder")
    setting.call(us=5, times=2)
    assert setting.stats == {
        "tier": 3,
        "tiers": {"1": {"hits": HITS + 1, "run_us": HITS * HOT_US + 7}, "3": {"hits": 2, "run_us": 10}},
        "compiling": False,
        "given_up": {},
    }


def test_an_engine_that_has_no_compiler() -> None:
    known = program(compile=1)
    plain = Tiers(NumpyEngine(), AUTO, print)
    assert plain.compiler is None
    form = plain.choose(known, [Entry(known.inputs[0], X)], (), {})
    assert form.ran == 1
