"""Tier 1: lines, and the code generated of them, do what the program says, hold nothing too long, and fail cleanly."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

import numpy as np
import pytest
from worker_building import Broken, Builder, Device, Faulty, Kernels, Wrapped

from gt.errors import IndexOutOfRange, OutOfMemory
from gt.ops.check import check
from gt.ops.record import TABLE
from gt.program import Program, spec
from gt.worker.run import writing
from gt.worker.run.executor import arrange_program
from gt.worker.run.writing import compile_program
from tests.ops.cases import is_up, program_of, samples, specs_of, to_engine, to_numpy

SHAPE = (3, 4)


def arrays(engine: Any, program: Program, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    made = []
    for shape, dtype in program.inputs:
        s = check(program).specs[len(made)]
        host = rng.normal(size=shape).astype(s.dtype.numpy) if "int" not in dtype else rng.integers(0, 3, shape)
        made.append(engine.from_bytes(np.ascontiguousarray(host, s.dtype.numpy).data.cast("B"), s))
    return made


@pytest.fixture(autouse=True, params=["line by line", "written"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of these tests are of both: the first call of a program, and the later ones."""
    if request.param == "line by line":
        monkeypatch.setattr(sys.modules[__name__], "compile_program", arrange_program)


def host(engine: Any, array: Any) -> bytes:
    return bytes(engine.to_bytes(array))


def run_plainly(engine: Any, program: Program, inputs: list[Any], scalars: tuple[Any, ...] = ()) -> list[Any]:
    """The oracle: one program per instruction, everything kept, no donation."""
    values: list[Any] = list(inputs)
    specs = check(program).specs
    for ins in program.code:
        used = [a for a in ins.args if a >= 0]
        order = {a: k for k, a in enumerate(used)}
        given = tuple((specs[a].shape, specs[a].dtype.name) for a in used)
        code = type(ins)(ins.op, tuple(order[a] if a >= 0 else a for a in ins.args), ins.attrs, ins.results)
        n = len(used)
        one = Program(given, program.scalars, (code,), tuple(range(n, n + ins.results)), (), ())
        results, _ = compile_program(check(one), engine).run([values[a] for a in used], scalars)
        values.extend(results)
    return [values[o] for o in program.outputs]


def random_program(rng: np.random.Generator) -> Program:
    b = Builder(SHAPE, SHAPE, SHAPE, (12,), scalars="f")
    values = [0, 1, 2, b.add("reshape", 3, shape=list(SHAPE))]
    for _ in range(int(rng.integers(3, 14))):
        pick = lambda: int(rng.choice(values))  # noqa: E731
        match int(rng.integers(7)):
            case 0 | 1:
                values.append(b.add(str(rng.choice(["tanh", "relu", "neg", "abs"])), pick()))
            case 2 | 3:
                values.append(b.add(str(rng.choice(["add", "sub", "mul", "maximum"])), pick(), pick()))
            case 4:
                values.append(b.add("mul", pick(), ~0))
            case 5:
                turned = b.add("permute", pick(), dims=[1, 0])
                values.append(b.add("reshape", turned, shape=list(SHAPE)))
            case 6:
                left, right = b.add("split", pick(), sizes=[1, 3], dim=1)
                values.append(b.add("cat", right, left, dim=1))
    values.append(b.add("assign", 0, values[-1]))
    results = list(range(4, len(b.specs)))
    outputs = sorted({int(o) for o in rng.choice(results, size=min(4, len(results)))} | {values[-1]})
    donate = tuple(int(d) for d in range(4) if rng.random() < 0.7)
    updates = ((outputs.index(values[-1]), 0),) if rng.random() < 0.7 else ()
    return b.program(outputs, donate, updates)


def shares(engine: Any, a: Any, b: Any) -> bool:
    if engine.name == "numpy":
        return bool(np.shares_memory(a, b))
    return bool(a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() != 0)


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_give_the_plain_results(engine: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    program = random_program(rng)
    inputs = arrays(engine, program, seed)
    want = [host(engine, x) for x in run_plainly(engine, program, [*inputs], (0.5,))]
    kept = {i: host(engine, x) for i, x in enumerate(inputs) if i not in program.donate}
    runnable = compile_program(check(program), engine)
    given = list(inputs)
    results, flag = runnable.run(given, (0.5,))
    assert flag is None
    assert given == []
    for x, expected, o in zip(results, want, program.outputs, strict=True):
        # To rounding: numpy's loops give another last bit where an array happens to be aligned otherwise.
        dtype = check(program).specs[o].dtype.numpy
        got = np.frombuffer(host(engine, x), dtype).astype(np.float64)
        np.testing.assert_allclose(got, np.frombuffer(expected, dtype).astype(np.float64), rtol=1e-5, atol=1e-6)
    for i, old in kept.items():
        assert host(engine, inputs[i]) == old
    # The aliasing law: what is stored afterwards shares memory with nothing else that is stored.
    stored = [inputs[i] for i in kept]
    for k, x in enumerate(results):
        for other in (*stored, *results[:k]):
            assert not shares(engine, x, other)
    for i, x in enumerate(inputs):
        if any(shares(engine, x, r) for r in results):
            assert i in runnable.takes


@pytest.mark.parametrize("seed", range(8))
def test_a_failure_at_any_point_leaves_all_inputs_as_they_were(engine: Any, seed: int) -> None:
    program = random_program(np.random.default_rng(seed))
    faulty = Faulty(engine)
    runnable = compile_program(check(program), faulty)
    runnable.run(arrays(engine, program), (0.5,))
    total = faulty.count
    assert total > 1
    inputs = arrays(engine, program)
    before = [host(engine, x) for x in inputs]
    for fail_at in range(total):
        faulty.count, faulty.fail_at = 0, fail_at
        with pytest.raises(Broken) as caught:
            runnable.run([*inputs], (0.5,))
        instruction, committing = runnable.where(caught.value)
        assert 0 <= instruction < len(program.code)
        assert not committing
        assert [host(engine, x) for x in inputs] == before
    faulty.count, faulty.fail_at = 0, -1
    runnable.run([*inputs], (0.5,))


def test_the_failing_instruction_is_known(numpy_engine: Any) -> None:
    b = Builder(SHAPE)
    x = b.add("tanh", 0)
    y = b.add("neg", x)
    z = b.add("relu", y)
    faulty = Faulty(numpy_engine, fail_at=1)
    checked = b.checked([z])
    runnable = compile_program(checked, faulty)
    with pytest.raises(Broken) as caught:
        runnable.run(arrays(numpy_engine, checked.program), ())
    assert runnable.where(caught.value) == (1, False)
    assert runnable.where(ValueError()) == (-1, False)


class Watching(Kernels):
    """Knows at each kernel which earlier results are still alive."""

    def __init__(self, engine: Any) -> None:
        super().__init__(engine)
        self.made: list[Any] = []
        self.alive: list[list[int]] = []

    def run(self, kernel: Any, op: Any, inplace: bool, *args: Any) -> Any:
        gc.collect()
        self.alive.append([i for i, r in enumerate(self.made) if r() is not None])
        result = kernel(*args)
        self.made.append(weakref.ref(result))
        return result


def test_values_die_at_their_last_use(numpy_engine: Any) -> None:
    b = Builder(SHAPE)
    x = b.add("tanh", 0)  # read by 1 and 2
    y = b.add("neg", x)
    z = b.add("mul", x, y)
    w = b.add("abs", z)
    v = b.add("neg", w)
    watching = Watching(numpy_engine)
    checked = b.checked([z, v])
    runnable = compile_program(checked, watching)
    inputs = arrays(numpy_engine, checked.program)
    watching.made.append(weakref.ref(inputs[0]))
    results, _ = runnable.run(inputs, ())
    # Made: the input, then x, y, z, w, v. z is an output and stays.
    assert watching.alive == [[0], [1], [1, 2], [3], [3, 4]]
    assert len(results) == 2


def test_what_nobody_needs_is_not_run(numpy_engine: Any) -> None:
    b = Builder(SHAPE)
    b.add("exp", b.add("tanh", 0))
    y = b.add("neg", 0)
    watching = Watching(numpy_engine)
    checked = b.checked([y])
    compile_program(checked, watching).run(arrays(numpy_engine, checked.program), ())
    assert len(watching.alive) == 1


def in_place(program: Program, engine: Any) -> tuple[int, ...]:
    return compile_program(check(program), engine).takes


def test_a_donated_input_is_overwritten_last(torch_engine: Any) -> None:
    b = Builder(SHAPE, SHAPE)
    new = b.add("assign", 0, 1)
    y = b.add("tanh", 0)
    program = b.program([new, y], donate=(0,), updates=((0, 0),))
    inputs = arrays(torch_engine, program)
    old = inputs[0].clone()
    runnable = compile_program(check(program), torch_engine)
    assert runnable.takes == (0,)
    results, _ = runnable.run([*inputs], ())
    assert results[0].data_ptr() == inputs[0].data_ptr()
    assert results[0].equal(inputs[1])
    assert results[1].equal(old.tanh())


def test_in_place_only_where_it_is_legal(torch_engine: Any) -> None:
    def build(donate: tuple[int, ...] = (0,), read_result: bool = False, self_view: bool = False) -> Program:
        b = Builder((4, 4), (4, 4))
        source = b.add("permute", 0, dims=[1, 0]) if self_view else 1
        new = b.add("assign", 0, source)
        outputs = [new, b.add("neg", new)] if read_result else [new]
        return b.program(outputs, donate=donate)

    assert in_place(build(), torch_engine) == (0,)
    assert in_place(build(donate=()), torch_engine) == ()
    assert in_place(build(donate=(1,)), torch_engine) == ()
    assert in_place(build(read_result=True), torch_engine) == ()
    assert in_place(build(self_view=True), torch_engine) == ()

    crossed = Builder((4,), (4,))  # each becomes the other: only one can be done in place
    a, b = crossed.add("assign", 0, 1), crossed.add("assign", 1, 0)
    program = crossed.program([a, b], donate=(0, 1))
    inputs = arrays(torch_engine, program)
    want = [inputs[1].clone(), inputs[0].clone()]
    results, _ = compile_program(check(program), torch_engine).run(inputs, ())
    assert all(r.equal(w) for r, w in zip(results, want, strict=True))


def test_in_place_kernels_get_their_operands_in_order(torch_engine: Any) -> None:
    """torch's fused optimizer steps ignore strides; a transposed gradient must not be read askew."""
    b = Builder((3, 4), (4, 3), scalars="ff")
    turned = b.add("permute", 1, dims=[1, 0])
    new = b.add("sgd", 0, turned, ~0, ~1)
    donating, keeping = b.program([new], donate=(0,)), b.program([new])
    inputs = arrays(torch_engine, donating)
    (want,), _ = compile_program(check(keeping), torch_engine).run([*inputs], (0.5, 0.0))
    inputs[0] = inputs[0].t().contiguous().t()  # the same values, out of order
    runnable = compile_program(check(donating), torch_engine)
    assert runnable.takes == (0,)
    (got,), _ = runnable.run([*inputs], (0.5, 0.0))
    assert got.equal(want)


def test_a_view_of_an_overwritten_input_is_taken_before(torch_engine: Any) -> None:
    b = Builder((4, 4), (4, 4))
    turned = b.add("permute", 0, dims=[1, 0])
    new = b.add("assign", 0, 1)
    program = b.program([turned, new], donate=(0,))
    inputs = arrays(torch_engine, program)
    want = [inputs[0].t().clone(), inputs[1].clone()]
    results, _ = compile_program(check(program), torch_engine).run(inputs, ())
    assert all(r.equal(w) for r, w in zip(results, want, strict=True))
    assert not shares(torch_engine, results[0], results[1])


@pytest.mark.parametrize("part", [False, True])
def test_a_donated_input_may_become_its_own_view(engine: Any, part: bool) -> None:
    """A part of it must not: it would keep the whole alive."""
    b = Builder((2, 6))
    y = b.add("split", 0, sizes=[2, 4], dim=1)[0] if part else b.add("reshape", 0, shape=[3, 4])
    runnable = compile_program(b.checked([y], donate=(0,)), engine)
    inputs = arrays(engine, b.program([y]))
    results, _ = runnable.run([*inputs], ())
    assert shares(engine, results[0], inputs[0]) != part
    assert runnable.takes == (() if part else (0,))


def test_the_faked_limit_fails_at_the_instruction_that_passes_it(engine: Any) -> None:
    b = Builder((256,))
    x = b.add("tanh", 0)  # 1 KiB each
    y = b.add("neg", x)
    z = b.add("mul", x, y)
    checked = b.checked([z])
    inputs = arrays(engine, checked.program)
    compile_program(checked, engine, fake_memory=3072).run([*inputs], ())
    runnable = compile_program(checked, engine, fake_memory=3071)
    with pytest.raises(OutOfMemory) as caught:
        runnable.run([*inputs], ())
    assert runnable.where(caught.value) == (2, False)


def indexing() -> Builder:
    return Builder((4, 2), (3,), (4, 2), kinds={1: "int64"})


def test_an_index_is_checked_before_it_is_used(engine: Any) -> None:
    b = indexing()
    rows = b.add("embedding", 0, 1)
    again = b.add("embedding", 2, 1)
    checked = b.checked([rows, again])
    runnable = compile_program(checked, engine)
    assert writing.compile_program(checked, engine).source.count("'embedding'") == 1  # one index, one check
    table, _, other = arrays(engine, checked.program)
    good = engine.from_bytes(np.array([3, 0, 1]).data.cast("B"), spec((3,), checked.specs[1].dtype))
    bad = engine.from_bytes(np.array([3, 4, 1]).data.cast("B"), spec((3,), checked.specs[1].dtype))
    results, _ = runnable.run([table, good, other], ())
    assert host(engine, results[0])[:8] == host(engine, table)[24:32]
    if engine.deferred:
        _, flag = runnable.run([table, bad, other], ())
        assert is_up(engine, flag)
        return
    with pytest.raises(IndexOutOfRange) as caught:
        runnable.run([table, bad, other], ())
    assert runnable.where(caught.value) == (0, False)


def test_on_a_device_the_flag_selects_the_old_value(numpy_engine: Any) -> None:
    device = Device(numpy_engine)
    b = indexing()
    rows = b.add("embedding", 0, 1)
    total = b.add("sum", rows, dims=[0, 1], keepdim=False)
    new = b.add("assign", 2, total)
    checked = b.checked([new, total], donate=(2,), updates=((0, 2),))
    runnable = compile_program(checked, device)
    assert runnable.checks == ((0, "embedding"),)
    for index, bad in (([3, 0, 1], False), ([3, -1, 1], True)):
        table, _, old = arrays(numpy_engine, checked.program)
        before = old.copy()
        results, flag = runnable.run([table, np.array(index), old], ())
        assert device.raised(flag) is bad
        assert np.array_equal(results[0], before) is bad
        assert results[0] is old  # it was given away: the new value is in its memory


def test_on_a_device_what_is_not_given_away_is_left_alone(numpy_engine: Any) -> None:
    device = Device(numpy_engine)
    b = indexing()
    new = b.add("assign", 2, b.add("sum", b.add("embedding", 0, 1), dims=[0, 1], keepdim=False))
    runnable = compile_program(b.checked([new], updates=((0, 2),)), device)
    table, _, old = arrays(numpy_engine, b.checked([new]).program)
    before = old.copy()
    results, _ = runnable.run([table, np.array([3, 0, 1]), old], ())
    assert np.array_equal(old, before)
    assert not np.shares_memory(results[0], old)


def test_on_a_device_what_is_updated_stays_where_it_is(numpy_engine: Any) -> None:
    """Unless an in-place step at the end reads what it was, or a result is a view of it."""
    b = Builder((3,), (3,), (3,))
    mean = b.add("add", 0, 1)
    doubled = b.add("add", 2, 2)
    program = b.checked([mean, doubled], donate=(0, 2), updates=((0, 0), (1, 2)))
    given = arrays(numpy_engine, program.program)
    wanted = [given[0] + given[1], given[2] * 2]
    results, flag = compile_program(program, Device(numpy_engine)).run([*given], ())
    assert flag is None
    assert results[0] is given[0]
    assert results[1] is given[2]
    assert all(map(np.array_equal, results, wanted))
    b = Builder((3,), (3,))
    views = [b.add("reshape", k, shape=(3,)) for k in (1, 0)]
    swapped = b.checked(views, donate=(0, 1), updates=((0, 0), (1, 1)))
    given = arrays(numpy_engine, swapped.program)
    wanted = [given[1].copy(), given[0].copy()]
    results, _ = compile_program(swapped, Device(numpy_engine)).run([*given], ())
    assert all(map(np.array_equal, results, wanted))


def test_every_op_runs_alike_on_both_engines(numpy_engine: Any, torch_engine: Any) -> None:
    """Kernels of their own on one engine, expanded compositions on the other."""
    for op in TABLE.values():
        for sample, attrs in samples(op):
            program, given, scalars = program_of(op, sample, attrs)
            checked = check(program)
            both = (numpy_engine, torch_engine)
            made = [compile_program(checked, e).run(to_engine(e, given), scalars)[0] for e in both]
            for o, ours, torchs in zip(program.outputs, *made, strict=True):
                x, y = to_numpy(numpy_engine, ours, checked.specs[o]), to_numpy(torch_engine, torchs, checked.specs[o])
                np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5, err_msg=f"{op.name} {attrs}")


def test_kernels_share_memory_only_where_the_record_says_so(engine: Any) -> None:
    """For every op and sample; which results are copied rests on `aliases`."""
    wrong = set()
    for op in TABLE.values():
        for sample, attrs in samples(op):
            given = to_engine(engine, sample)
            kernel = engine.kernel(op, attrs, specs_of(sample))
            if kernel is None:
                continue
            out = kernel(*given)
            results = list(out) if isinstance(out, tuple | list) else [out]
            for i, x in enumerate(given):
                array = isinstance(sample[i], np.ndarray) and sample[i].size
                if array and not (op.aliases and i == 0) and any(shares(engine, r, x) for r in results):
                    wrong.add(f"{op.name} returns memory of operand {i}")
            for i, x in enumerate(results):
                if not op.aliases and any(shares(engine, x, r) for r in results[:i]):
                    wrong.add(f"{op.name}: result {i} shares memory with another")
    assert wrong == set()


def test_written_or_not_a_call_under_way_says_where_it_failed(engine: Any) -> None:
    """Another thread may write the code of a program while its first call runs."""
    b = Builder(SHAPE)
    y = b.add("tanh", b.add("neg", 0))
    faulty = Faulty(engine)
    faulty.fail_at = 1
    made = arrange_program(b.checked([y]), faulty)
    run = made.run
    writing.write(made, faulty)
    assert made.run is not run
    for under_way in (run, made.run):
        faulty.count = 0
        with pytest.raises(Broken) as caught:
            under_way(arrays(engine, b.checked([y]).program), ())
        assert made.where(caught.value) == (1, False)


class Watched(Wrapped):
    """An engine that says which arrays were made dense, and whose last kernel may fail."""

    def __init__(self, engine: Any) -> None:
        super().__init__(engine)
        self.dense_arrays: list[Any] = []
        self.fails = False

    def dense(self, array: Any) -> Any:
        self.dense_arrays.append(array)
        return self.engine.dense(array)

    def many(self, op: Any, attrs: dict[str, Any]) -> Any:
        many = self.engine.many(op, attrs)

        def run(*args: Any) -> Any:
            if self.fails:
                raise Broken("in the commit")
            return many(*args)

        return run


def test_an_optimizer_step_on_many_parameters_is_one_kernel_in_the_commit(torch_engine: Any) -> None:
    b = Builder(SHAPE, SHAPE, (5,), (5,), scalars="ff")
    new = [b.add("sgd", k, k + 1, ~0, ~1) for k in (0, 2)]
    donating, keeping = b.program(new, donate=(0, 2)), b.program(new)
    inputs = arrays(torch_engine, donating)
    want, _ = compile_program(check(keeping), torch_engine).run([*inputs], (0.5, 0.1))
    engine = Watched(torch_engine)
    runnable = compile_program(check(donating), engine)
    engine.fails = True
    with pytest.raises(Broken) as caught:
        runnable.run([*inputs], (0.5, 0.1))
    assert runnable.where(caught.value) == (0, True)
    engine.fails, engine.dense_arrays = False, []
    got, _ = runnable.run([*inputs], (0.5, 0.1))
    assert [x is y for x, y in zip(engine.dense_arrays, inputs, strict=True)] == [True] * 4
    for k, (x, y) in enumerate(zip(got, want, strict=True)):
        assert x.equal(y)
        assert x.data_ptr() == inputs[2 * k].data_ptr()


def test_an_array_that_was_made_dense_is_what_the_commit_reads(torch_engine: Any) -> None:
    b = Builder((3, 4), (4, 3))
    new = b.add("assign", 0, b.add("permute", 1, dims=[1, 0]))
    inputs = arrays(torch_engine, b.program([new], donate=(0,)))
    engine = Watched(torch_engine)
    engine.dense = lambda array: torch_engine.dense(array) + 1  # type: ignore[method-assign]
    (got,), _ = compile_program(b.checked([new], donate=(0,)), engine).run([*inputs], ())
    assert got.equal(inputs[1].t() + 1)
