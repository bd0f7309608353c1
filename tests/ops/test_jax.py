"""The jax engine: every op of the table agrees with numpy when it is compiled, with its numbers as operands."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from gt.dtypes import float32
from gt.errors import ArgumentError
from gt.ops import TABLE, Op
from gt.ops.engines import EXCEPTIONS
from gt.ops.evaluate import apply
from gt.ops.record import op
from gt.program import SCALARS, as_tuple, spec
from tests.ops.cases import NUMPY, as_dtype, calls_with, is_float, ops, samples, specs_of, to_engine, to_numpy
from tests.ops.test_table import TOLERANCE, close, find_bad_indices

#: The ops that jax does not run are left out; tests/ops/test_engines.py sees to it that they are few.
OPS = [o for o in TABLE.values() if o.name not in EXCEPTIONS]


def cases_of(op: Op) -> list[tuple[Any, dict[str, Any], str]]:
    """(operands, attributes, the type of its floats): all samples in float64, the first in narrower types."""
    chosen = [(args, attrs, "float64") for args, attrs in samples(op)]
    args, attrs, _ = chosen[0]
    if any(is_float(a) for a in args):
        chosen += [(as_dtype(args, d), attrs, d) for d in ("float32", "bfloat16")]
    return chosen


#: Code that is quick to make, not to run: a third of the time.
QUICK = {
    "xla_backend_optimization_level": 0,
    "xla_cpu_parallel_codegen_split_count": 1,
    "xla_cpu_use_fusion_emitters": False,
}


@functools.cache
def quick_options() -> dict[str, Any]:
    """Those of them that this version of XLA knows."""
    import jax

    known = {}
    for name, value in QUICK.items():
        with suppress(jax.errors.JaxRuntimeError):
            jax.jit(lambda: 0, compiler_options={name: value})()
            known[name] = value
    return known


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_agrees_with_numpy(op: Op, jax_engine: Any) -> None:
    """All cases of an op are compiled at once, which is most of the time it takes."""
    import jax

    from gt.worker.engines.jax import with_bytes

    cases = cases_of(op)

    def run(given: Any) -> Any:
        return [apply(op, args, specs_of(c[0]), c[1], jax_engine.kernel) for args, c in zip(given, cases, strict=True)]

    made = jax.jit(run, compiler_options=quick_options())(
        [with_bytes(tuple(to_engine(jax_engine, args))) for args, _, _ in cases]
    )
    for (args, attrs, dtype), theirs in zip(cases, made, strict=True):
        specs = specs_of(args)
        ours = apply(op, args, specs, attrs, NUMPY.kernel)
        for s, a, b in zip(as_tuple(op.infer(*specs, **attrs)), theirs, ours, strict=True):
            assert (a.shape, a.dtype) == (s.shape, s.dtype.numpy)
            coarse = max(dtype, s.dtype.to_real().name, key=lambda d: TOLERANCE.get(d, (0, 0)))
            close(to_numpy(jax_engine, a, s), b, coarse)


@pytest.mark.parametrize("name", ["full", "arange", "data", "slice", "slice_put", "slice_dx", "adamw", "randint"])
def test_numbers_may_be_known_as_well(name: str, jax_engine: Any) -> None:
    """One op at a time, as a program runs that is new."""
    for args, attrs in samples(TABLE[name]):
        for a, b in zip(*(calls_with(e, TABLE[name], args, attrs) for e in (jax_engine, NUMPY)), strict=True):
            close(a, b, "float32")


@ops(lambda op: op.indices)
def test_bad_indices_are_found(op: Op, jax_engine: Any) -> None:
    find_bad_indices(op, jax_engine)


def test_numbers_are_looked_at(jax_engine: Any) -> None:
    kernel = jax_engine.kernel(TABLE["randint"], {"shape": (2,), "dtype": "int64"}, [SCALARS["i"]] * 3)
    for _ in range(2):
        with pytest.raises(ArgumentError, match="randint: low must be < high, got 3 and 3"):
            kernel(1, 3, 3)


def made_of_ones(jax_engine: Any, f: Callable[..., Any]) -> Callable[[float], float]:
    """What the kernel f(xp, x, number) of an op makes of ones, by the number."""
    s = spec((3,), float32)
    try:
        record = op("by", "f(x).", infer=lambda x, by: x, vjp=None, kernels={"array": f}, samples=lambda r: [])
        kernel = jax_engine.kernel(record, {}, [s, SCALARS["f"]])
    finally:
        TABLE.pop("by", None)
    x = jax_engine.from_bytes(np.ones(3, np.float32).tobytes(), s)
    return lambda by: float(kernel(x, by)[0])


def test_a_number_that_changes_compiles_nothing(jax_engine: Any) -> None:
    traced: list[Any] = []
    scaled = made_of_ones(jax_engine, lambda xp, x, by: traced.append(by) or x * by)
    assert [scaled(0.5 * k) for k in range(5)] == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert len(traced) == 1


def test_a_kernel_that_must_know_a_number_runs_all_the_same(jax_engine: Any) -> None:
    sign_of = made_of_ones(jax_engine, lambda xp, x, by: xp.ones_like(x) if by > 0 else -xp.ones_like(x))
    assert [sign_of(by) for by in (2.0, -2.0)] == [1.0, -1.0]
