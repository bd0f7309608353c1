"""Programs that workers run together, cut into parts: which these are, and that they do what the whole program did."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import numpy as np
import pytest
from worker_building import Broken, Builder, FakeCompiler, Faulty, Wrapped

from gt.config import Config, replace
from gt.config import load as load_settings
from gt.dispatcher.planner.plan import plan_program
from gt.layout import mesh
from gt.ops.check import Checked, check
from gt.ops.record import TABLE
from gt.program import Spec
from gt.tracing import Recording, unpack_steps
from gt.worker.engines import load
from gt.worker.run import programs, segments, tiers
from gt.worker.run.collectives import Collective, PeerResult
from gt.worker.run.executor import Runnable, arrange_program
from gt.worker.run.segments import CompiledSegment, cut
from gt.worker.run.writing import compile_program
from tests.sessions import raising
from tests.sharding.recorded import is_update, record
from tests.sharding.timing import cases
from tests.workers_here import Many, Part, together

TORCH = load("torch", "cpu", 1)
MODELS = ["mlp", "cnn", "unet", "gpt", "lstm"]


# --- training steps, planned ----------------------------------------------------------------


class Alone:
    """All the others, as one worker sees them: what they send depends on nothing but its place in the call."""

    def __init__(self) -> None:
        self.met: list[tuple[Any, ...]] = []  #: What was sent, in order.

    def start(self, what: Collective, array: Any, private: bool) -> PeerResult:
        self.met.append((what.name, what.workers, array.numpy().tobytes()))
        made = some(what.made, len(self.met))
        return PeerResult(lambda: made)

    def agree(self, flag: Any) -> PeerResult:
        return PeerResult(lambda: 0)

    def agreed(self, said: int) -> None:
        self.met.append(("end",))


def some(s: Spec, seed: int) -> Any:
    """Numbers of this form. Those that may be indices are small."""
    rng = np.random.default_rng(seed)
    drawn = rng.uniform(0.1, 1.0, s.shape) if s.dtype.is_floating_point else rng.integers(0, 2, s.shape)
    return TORCH.from_bytes(np.ascontiguousarray(drawn.astype(s.dtype.numpy)).tobytes(), s)


def run(code: Runnable, checked: Checked, scalars: tuple[Any, ...]) -> tuple[list[Any], list[tuple[Any, ...]]]:
    """The results of a call, and what was sent meanwhile."""
    peers = Alone()
    inputs = [some(s, 1000 + i) for i, s in enumerate(checked.specs[: len(checked.program.inputs)])]
    steps: Generator[Any, Any, Any] = code.run(inputs, scalars, peers)
    value = None
    while True:
        try:
            value = steps.send(value).result()
        except StopIteration as end:
            return list(end.value[0]), peers.met


def plainly(part: segments.Segment) -> CompiledSegment:
    """A part that stands for what it was cut of, but was not compiled."""
    plain = compile_program(part.checked, TORCH)
    own = [lambda a, s: [x.clone() for x in plain.run(list(a), s)[0]]]
    return CompiledSegment(part, own[0], list(range(len(part.results))), plain)


def locals_of(name: str, way: str, m: Any) -> Iterator[tuple[Checked, tuple[Any, ...]]]:
    """(program, scalars) of every worker for a training step."""
    call = next(call for call in record(name).calls if is_update(call))
    layouts = next(lay for text, at, lay in cases(call.checked) if text.startswith(way) and at is m)
    for local in plan_program(call.checked, layouts, m, {}).locals.values():
        yield check(local.program), (*call.scalars, *local.constants)


@pytest.mark.parametrize("way", ["data", "both"])
@pytest.mark.parametrize("name", MODELS)
def test_a_step_in_parts_is_the_step(name: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same results, and the same things sent in the same order, to the last bit."""
    monkeypatch.setattr(segments, "LEAST", 2)
    monkeypatch.setattr(segments, "SEGMENTS", 1000)
    for checked, scalars in locals_of(name, way, mesh(x=2)):
        found = cut(checked)
        assert found
        whole = compile_program(checked, TORCH, whole=[plainly(part) for part in found])
        want, sent = run(compile_program(checked, TORCH), checked, scalars)
        for code in (whole, arrange_program(checked, TORCH)):
            got, met = run(code, checked, scalars)
            assert met == sent
            assert len(got) == len(want)
            for a, b in zip(got, want, strict=True):
                assert a.dtype == b.dtype
                np.testing.assert_array_equal(a.numpy(), b.numpy())


@pytest.mark.parametrize("joint", [False, True])
def test_a_step_that_is_traced_is_the_step(joint: bool) -> None:
    """The code that tells when instructions begin: the same results, in whole or in parts; also of what it sends."""
    tracing = tiers.Tiers(TORCH, replace(load_settings(), auto_compile=False), lambda line: None)
    for checked, scalars in locals_of("mlp", "data", mesh(x=2)):
        known = programs.Known(checked.program, False)
        plain = compile_program(checked, TORCH)
        known.standing = standing = programs.Standing(plain, None)
        if joint:
            standing.joint = compile_program(checked, TORCH, whole=[plainly(part) for part in cut(checked)])
            standing.joint.ran = 3
        form: Any = standing.joint if joint else plain
        trace = Recording()
        marked: Any = tracing._marked(known, standing, form, trace)
        assert marked is not form
        assert marked.ran == form.ran
        assert tracing._marked(known, standing, form, trace) is marked
        want, sent = run(plain, checked, scalars)
        got, met = run(marked, checked, scalars)
        assert met == sent
        for a, b in zip(got, want, strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy())
        steps = [i for i, _ in unpack_steps(trace.take_steps(0))]
        assert set(steps) <= set(range(len(checked.program.code)))
        assert any(TABLE[checked.program.code[i].op].collective for i in steps)
        assert (len(steps) < len(checked.program.code)) or not joint


@pytest.mark.parametrize("name", MODELS)
def test_most_of_a_data_parallel_step_is_in_parts(name: str) -> None:
    """All but views, updates, and what looks at indices."""
    for checked, _ in locals_of(name, "data", mesh(x=2)):
        found = cut(checked)
        inside = {i for part in found for i in part.replaces}
        code = checked.program.code
        work = [i for i, ins in enumerate(code) if not TABLE[ins.op].aliases and not TABLE[ins.op].inplace]
        assert len(inside) > 0.5 * len(work)
        assert len(found) <= 8
        for i in inside:
            assert not TABLE[code[i].op].collective


# --- small ones -----------------------------------------------------------------------------


def chain(b: Builder, x: int, times: int = segments.LEAST) -> int:
    """x + x + ... of so many instructions."""
    for _ in range(times):
        x = b.add("add", x, x)
    return x


def reduce(b: Builder, x: int, rank: int = 0) -> int:
    reduced: int = b.add("all_reduce", x, workers=(1, 2), rank=rank, kind="sum")
    return reduced


def cut_of(b: Builder, outputs: list[int], **ends: Any) -> list[segments.Segment]:
    return cut(check(together(b, (1, 2), outputs, **ends)))


def test_a_part_ends_where_a_collective_reads_it_and_begins_where_one_is_read() -> None:
    b = Builder((2,), (2,))
    first = chain(b, 0)
    total = reduce(b, first)
    beside = chain(b, 1)  # while the others are waited for
    last = chain(b, b.add("add", total, beside))
    found = cut_of(b, [last])
    assert [part.results for part in found] == [(first,), (beside,), (last,)]
    assert [part.args for part in found] == [(0,), (1,), (total, beside)]
    n = segments.LEAST
    assert [part.replaces for part in found[:2]] == [set(range(n)), set(range(n + 1, 2 * n + 1))]


def test_a_collective_that_reads_nothing_of_a_part_does_not_cut_it() -> None:
    b = Builder((2,), (2,))
    half = chain(b, 0)
    total = reduce(b, 1)
    whole = chain(b, half)
    found = cut_of(b, [whole, total])
    assert [part.results for part in found] == [(whole,)]


def test_views_are_seen_through() -> None:
    """A part reads what a view is of, and hands out what a view is of: no copies are made for views."""
    b = Builder((2, 3))
    turned = b.add("permute", 0, dims=(1, 0))
    y = chain(b, turned)
    back = b.add("permute", y, dims=(1, 0))
    total = reduce(b, back)
    (part,) = cut_of(b, [total, back])
    assert part.args == (0,)
    assert part.results == (y,)
    assert [ins.op for ins in part.checked.program.code] == ["permute", *["add"] * segments.LEAST]


def test_little_is_left_as_it_is() -> None:
    b = Builder((2,))
    assert cut_of(b, [reduce(b, chain(b, 0, segments.LEAST - 1))]) == []


def test_only_so_many_and_the_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SEGMENTS", 2)
    b = Builder((2,))
    x, sizes = 0, [segments.LEAST, segments.LEAST + 3, segments.LEAST + 1]
    for times in sizes:
        x = reduce(b, chain(b, x, times))
    assert [len(part.replaces) for part in cut_of(b, [x])] == sizes[1:]


def test_indices_and_updates_stay_where_they_are() -> None:
    b = Builder((4, 2), (3,), (4, 2), kinds={1: "int64"})
    rows = b.add("embedding", 0, 1)
    total = reduce(b, b.add("embedding_dweight", chain(b, rows), 1, n=4))
    step = chain(b, total)
    new = b.add("assign", 2, step)
    more = chain(b, step)
    found = cut_of(b, [new, more], donate=(2,), updates=((0, 2),))
    named = {b.code[i].op for part in found for i in part.replaces}
    assert named == {"add"}
    assert found[-1].results == (step, more), "the update is left to the end: it does not cut"


def test_an_error_in_a_part_has_its_instruction() -> None:
    """Where a library fails its plain code runs; and where that fails too it says which instruction it was."""
    b = Builder((6,))
    total = reduce(b, 0)
    checked = check(together(b, (1, 2), [chain(b, total)]))
    (part,) = cut(checked)
    library = raising(RuntimeError("it has got lost"))
    engine: Any = Faulty(TORCH)
    ready = CompiledSegment(part, library, [0], compile_program(part.checked, engine))
    code = compile_program(checked, TORCH, whole=[ready])
    (got,), _ = run(code, checked, ())
    (want,), _ = run(compile_program(checked, TORCH), checked, ())
    np.testing.assert_array_equal(got.numpy(), want.numpy())
    assert ready.failed == "it has got lost"
    engine.fail_at = engine.count + 2
    with pytest.raises(Broken) as caught:
        run(code, checked, ())
    assert code.where(caught.value) == (3, False)


# --- several workers ------------------------------------------------------------------------


class Compiles(Wrapped):
    """An engine whose compiler has always done its work. Its libraries are plain code, until they `fail`."""

    compiles_with = ("nobody", "")

    def __init__(self) -> None:
        super().__init__(TORCH)
        self.fail = False
        self.ran = 0

    def graph(self, checked: Checked, trusted: bool) -> Any:
        return Graph(checked)

    def load_segment(self, folder: str, graph: Any) -> Any:
        plain = compile_program(graph.checked, TORCH)

        def pure(inputs: Any, scalars: Any) -> Any:
            if self.fail:
                raise RuntimeError("it has got lost")
            self.ran += 1
            return list(plain.run(list(inputs), scalars)[0])

        return pure


class Graph:
    def __init__(self, checked: Checked) -> None:
        self.checked = checked
        self.flagged = False
        self.wants = self.outputs = list(checked.program.outputs)


class Pair:
    """Two workers that call one program again and again."""

    def __init__(self, seed: int) -> None:
        self.engines = [Compiles(), Compiles()]
        settings = replace(Config(), auto_compile=True)
        self.many = Many(self.engines, seed, auto_compile=settings.auto_compile)
        self.compilers = [FakeCompiler(), FakeCompiler()]
        for core, compiler in zip(self.many.cores.values(), self.compilers, strict=True):
            core._calls.tiers.compiler = compiler  # type: ignore[assignment]
        for worker in (1, 2):
            self.many.upload(worker, 1, np.full(2, worker, np.float32))
        self.programs = {}
        for rank, worker in enumerate((1, 2)):
            b = Builder((2,))
            self.programs[worker] = together(b, (1, 2), [chain(b, reduce(b, chain(b, 0), rank))])
        self.made = 10

    def call(self, times: int = 1) -> list[int]:
        """On how many parts of the last call the workers were."""
        for _ in range(times):
            before = [engine.ran for engine in self.engines]
            self.made += 1
            seq = self.many.call({w: Part(p, [1]) for w, p in self.programs.items()}, self.made)
            self.many.work()
            assert self.many.kinds(seq) == {1: "", 2: ""}
            for worker in (1, 2):
                want = np.full(2, 3 * 4.0**segments.LEAST)
                np.testing.assert_array_equal(self.many.fetch(worker, self.made), want)
        return [engine.ran - was for engine, was in zip(self.engines, before, strict=True)]

    def heat(self) -> None:
        """The program has proved hot."""
        for known in self.known():
            known.hits, known.run_us = tiers.HITS, tiers.HOT_US

    def known(self) -> list[Any]:
        return [core.programs.peek(self.programs[worker].hash()) for worker, core in self.many.cores.items()]

    def tiers(self) -> list[int]:
        return [known.standing.tier for known in self.known()]


@pytest.fixture(params=range(3))
def pair(request: pytest.FixtureRequest) -> Pair:
    return Pair(request.param)


def test_they_change_over_when_all_are_ready(pair: Pair) -> None:
    assert pair.call(tiers.SEEN + 2) == [0, 0]
    assert not any(c.asked for c in pair.compilers), "it was not hot"
    pair.heat()
    assert pair.call(2) == [0, 0]
    assert all(len(c.asked) == 1 for c in pair.compilers), "both of its parts are one program"
    assert all(known.standing.stats()["compiling"] for known in pair.known())
    pair.compilers[0].everything = True
    assert pair.call(3) == [0, 0], "the other one is not ready"
    pair.compilers[1].everything = True
    assert pair.call() == [0, 0], "in this call they tell each other"
    assert pair.call() == [2, 2]
    assert pair.tiers() == [3, 3]
    assert not any(known.standing.stats()["compiling"] for known in pair.known())


def test_what_was_compiled_on_an_earlier_day_is_taken_before_it_is_hot(pair: Pair) -> None:
    pair.compilers[0].everything = pair.compilers[1].everything = True
    assert pair.call(tiers.SEEN + 1) == [0, 0]
    assert pair.call() == [2, 2]


def test_a_library_that_fails_is_left_by_all(pair: Pair) -> None:
    pair.compilers[0].everything = pair.compilers[1].everything = True
    pair.call(tiers.SEEN + 2)
    pair.engines[1].fail = True
    assert pair.call() == [2, 0], "its plain code ran, and the result is right"
    assert pair.call(3) == [0, 0]
    assert pair.tiers() == [1, 1]
    assert [known.standing.refused for known in pair.known()] == [{}, {3: "it has got lost"}]


def test_one_that_could_not_be_compiled_is_run_by_nobody(pair: Pair) -> None:
    pair.call()
    pair.heat()
    pair.call()
    pair.compilers[0].everything = True
    for folder in pair.compilers[1].asked:
        pair.compilers[1].failed[folder] = "no room"
    assert pair.call(4) == [0, 0]
    assert [known.standing.refused for known in pair.known()] == [{}, {3: "no room"}]


def test_one_that_is_slower_for_somebody_is_left_by_all_for_a_while(pair: Pair) -> None:
    pair.compilers[0].everything = pair.compilers[1].everything = True
    pair.call(tiers.SEEN + 2)
    known = pair.known()[0]
    known.standing.rest("it was slower", 3, known.run_us)
    assert pair.call() == [2, 2], "they go together"
    assert pair.call(2) == [0, 0]
    known.run_us += programs.REST_US
    assert pair.call() == [0, 0]
    assert pair.call() == [2, 2]


def test_a_failed_call_changes_nothing_of_it(pair: Pair) -> None:
    pair.compilers[0].everything = pair.compilers[1].everything = True
    pair.call(tiers.SEEN + 2)
    seq = pair.many.call({1: Part(pair.programs[1], [1]), 2: Part(pair.programs[2], [77])}, 500)
    pair.many.work()
    assert set(pair.many.kinds(seq).values()) == {"ProgramError", "PeerFailed"}
    assert pair.call() == [2, 2]
