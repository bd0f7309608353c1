"""Programs that jax compiles as a whole: the same results, the same errors at the same instructions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from worker_building import Builder

from gt import dtypes
from gt.errors import IndexOutOfRange, OutOfMemory
from gt.ops.check import Checked
from gt.program import spec
from gt.worker import engines
from gt.worker.run.executor import Runnable
from gt.worker.run.writing import compile_program


@pytest.fixture(scope="module")
def engine() -> Any:
    pytest.importorskip("jax")
    return engines.load("jax", "cpu")


def array(engine: Any, value: Any) -> Any:
    value = np.asarray(value)
    return engine.from_bytes(value.tobytes(), spec(value.shape, dtypes.dtype(value.dtype)))


def run(runnable: Runnable, arrays: list[Any], *scalars: Any) -> list[np.ndarray]:
    results, flag = runnable.run(list(arrays), scalars)
    assert flag is None
    return [np.asarray(r) for r in results]


def make_whole(engine: Any, checked: Checked, arrays: list[Any], *scalars: Any) -> tuple[Runnable, list[np.ndarray]]:
    """A program that has been run until it was compiled, and what it made while it was not."""
    runnable = compile_program(checked, engine)
    for _ in range(3):
        made = run(runnable, arrays, *scalars)
    whole: Any = runnable.run
    whole.compiling.result(60)
    assert is_whole(runnable)
    return runnable, made


def is_whole(runnable: Runnable) -> bool:
    whole: Any = runnable.run
    return whole._compiled is not None


def test_it_does_what_the_steps_did_and_numbers_stay_numbers(engine: Any) -> None:
    b = Builder((4, 3), (3,), scalars="fii")
    part = b.add("slice", 0, ~1, dims=(0,), lengths=(2,), steps=(1,), drop=())
    scaled = b.add("mul", b.add("tanh", part), ~0)
    noise = b.add("rand", ~2, shape=(2, 3), dtype="float32")
    sums = b.add("add", b.add("add", scaled, 1), noise)
    arrays = [array(engine, np.arange(12, dtype=np.float32).reshape(4, 3)), array(engine, np.ones(3, np.float32))]
    checked = b.checked([sums, noise])
    runnable, before = make_whole(engine, checked, arrays, 0.5, 1, 7)
    given = list(arrays)
    after, _ = runnable.run(given, (0.5, 1, 7))
    assert given == []
    for x, y in zip(before, after, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6)
    plain = compile_program(checked, engine)
    for numbers in ((2.0, 0, 7), (0.5, 2, 8)):
        for x, y in zip(run(plain, arrays, *numbers), run(runnable, arrays, *numbers), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-6)


def test_host_data_comes_by_value(engine: Any) -> None:
    b = Builder((2,), scalars="d")
    y = b.add("add", 0, b.add("data", ~0, shape=(2,), dtype="float32"))
    x = array(engine, np.ones(2, np.float32))
    runnable, _ = make_whole(engine, b.checked([y]), [x], np.array([1, 2], np.float32).tobytes())
    assert run(runnable, [x], np.array([5, 6], np.float32).tobytes())[0].tolist() == [6, 7]


def test_a_bad_index_changes_nothing_and_is_named(engine: Any) -> None:
    b = Builder((5, 2), (3,), kinds={1: "int64"})
    rows = b.add("embedding", b.add("tanh", 0), 1)
    weight, good = array(engine, np.ones((5, 2), np.float32)), array(engine, np.array([0, 4, 1]))
    runnable, _ = make_whole(engine, b.checked([rows]), [weight, good])
    given = [weight, array(engine, np.array([0, 5, 1]))]
    with pytest.raises(IndexOutOfRange, match="embedding: index 5 is out of range for size 5") as caught:
        runnable.run(given, ())
    assert runnable.where(caught.value) == (1, False)
    assert run(runnable, [weight, good])[0].shape == (3, 2)


def test_a_number_that_is_out_of_range_is_named(engine: Any) -> None:
    b = Builder((5,), scalars="i")
    part = b.add("slice", b.add("neg", 0), ~0, dims=(0,), lengths=(2,), steps=(1,), drop=())
    x = array(engine, np.arange(5, dtype=np.float32))
    runnable, _ = make_whole(engine, b.checked([part]), [x], 0)
    assert run(runnable, [x], 3)[0].tolist() == [-3, -4]
    with pytest.raises(IndexOutOfRange, match="slice: 2 elements from 4 exceed dimension 0 of size 5") as caught:
        runnable.run([x], (4,))
    assert runnable.where(caught.value) == (1, False)


def test_what_cannot_be_compiled_goes_on_step_by_step(engine: Any) -> None:
    """Here because memory runs out, as far as the program can tell."""
    b = Builder((64,))
    y = b.add("tanh", b.add("tanh", 0))
    x = array(engine, np.ones(64, np.float32))
    runnable = compile_program(b.checked([y]), engine, fake_memory=300)
    for _ in range(3):
        with pytest.raises(OutOfMemory, match="GT_FAKE_MEMORY"):
            runnable.run([x], ())
    whole: Any = runnable.run
    whole.compiling.result(60)
    assert not is_whole(runnable)
