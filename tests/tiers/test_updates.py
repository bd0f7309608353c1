"""Optimizer steps as kernels made of their formulas: their C runs here on the host, compiled by the C++ compiler."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gt import dtypes
from gt.ops.record import TABLE, Op
from gt.program import SCALARS, Spec, spec
from gt.worker.engines import updates
from gt.worker.engines.graph_program import GraphProgram
from tests.tiers.graphs import DEVICE, PLAIN, packed, run_device, run_plain
from tests.worker.worker_building import Builder

STEPS = ["sgd", "sgd_momentum", "adam", "adam_amsgrad", "adamw", "adamw_amsgrad", "adagrad"]

#: What CUDA knows and C++ does not.
HOST = """
#include <algorithm>
#include <cmath>
#include <cstring>
using std::min;
using std::sqrt;
#define __device__ static inline
#define __global__
#define __launch_bounds__(threads)
#define asm(...) std::abort()
struct Place { int x; } blockIdx, threadIdx;
static inline float __uint_as_float(unsigned int x) { float y; memcpy(&y, &x, 4); return y; }
static inline unsigned int __float_as_uint(float x) { unsigned int y; memcpy(&y, &x, 4); return y; }
"""
ALL_OF_THEM = """
extern "C" void run(const Table* table, int blocks, int threads, const double* numbers, const bool* flag) {
  for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++)
    for (threadIdx.x = 0; threadIdx.x < threads; threadIdx.x++) update(*table, numbers, flag);
}
"""


@pytest.fixture
def launches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Kernels run on the host. Returns the numbers of blocks that were launched."""
    seen: list[int] = []

    def load(text: str) -> Callable[..., None]:
        source, made = tmp_path / f"{len(seen)}.cpp", tmp_path / f"{abs(hash(text))}.so"
        source.write_text(HOST + text + ALL_OF_THEM)
        subprocess.run(["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-o", made, source], check=True)
        library = ctypes.CDLL(str(made))

        def run(table: ctypes.Structure, blocks: int, numbers: int, flag: int) -> None:
            seen.append(blocks)
            library.run(ctypes.byref(table), blocks, updates.THREADS, ctypes.c_void_p(numbers), ctypes.c_void_p(flag))

        return run

    monkeypatch.setattr(updates, "available", lambda: True)
    monkeypatch.setattr(updates, "load", load)
    monkeypatch.setattr(updates, "_made", {})
    return seen


def specs(operands: tuple[Any, ...], dtype: Any) -> list[Spec]:
    numbers = {int: SCALARS["i"], float: SCALARS["f"], bool: SCALARS["b"]}
    return [numbers[type(a)] if type(a) in numbers else spec(np.shape(a), dtype) for a in operands]


def step(op: Op, dtype: str, sizes: list[int], offset: int = 0) -> tuple[list[list[Any]], list[list[Any]]]:
    """Rows of arrays of these sizes after a step by the kernel, and what torch's fused kernel makes of them."""
    operands, attrs = op.samples(np.random.default_rng(0))[0]
    numbers = [a for a in operands if isinstance(a, int | float)]
    count = len(operands) - len(numbers)
    text, prepared = updates.source(op, attrs, specs(operands, getattr(dtypes, dtype)))
    generator, kind = torch.Generator().manual_seed(1), getattr(torch, dtype)

    def array(size: int) -> Any:  # `offset` elements after an address that is aligned
        return (torch.rand(size + offset, generator=generator) + 0.1).to(kind)[offset:]

    rows = [[array(size) for _ in range(count)] for size in sizes]
    given = torch.tensor(prepared.numbers(*numbers), dtype=torch.float64)
    wide = torch.float32 if kind is torch.bfloat16 else kind
    wanted = []
    for row in rows:
        given_specs = [*[spec(row[0].shape, getattr(dtypes, str(wide)[6:]))] * count, *specs(tuple(numbers), None)]
        made = PLAIN.kernel(op, attrs, given_specs)(*[a.to(wide) for a in row], *numbers)
        new = dict(zip(op.inplace, made if isinstance(made, tuple) else (made,), strict=True))
        wanted.append([new[i].to(kind) if i in new else a.clone() for i, a in enumerate(row)])
    updates.update(text, count)(rows, given.data_ptr(), None)
    return rows, wanted


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("name", STEPS)
def test_a_kernel_does_what_the_formula_says(name: str, dtype: str, launches: list[int]) -> None:
    """Sizes around those of a thread's share and of a block's, nothing at all, and one element."""
    rows, wanted = step(TABLE[name], dtype, [1, 4, 7, 0, 1023, 1024, 1025, 5000])
    for have, want in zip(rows, wanted, strict=True):
        for a, b in zip(have, want, strict=True):
            torch.testing.assert_close(a, b)
    assert len(launches) == 1


def test_many_rows_take_several_launches(launches: list[int]) -> None:
    rows, wanted = step(TABLE["adamw"], "float32", [3] * (2 * updates.rows_of(4) + 1))
    torch.testing.assert_close(rows, wanted)
    assert len(launches) == 3


def test_arrays_that_are_not_aligned(launches: list[int]) -> None:
    rows, wanted = step(TABLE["sgd_momentum"], "float32", [2000, 5], offset=1)
    torch.testing.assert_close(rows, wanted)


def test_large_arrays_have_large_chunks(launches: list[int]) -> None:
    rows, wanted = step(TABLE["sgd"], "float32", [3_000_000, 10])
    torch.testing.assert_close(rows, wanted)
    assert launches == [-(-3_000_000 // 2048) + 1]


def test_what_no_formula_says() -> None:
    f32, number = spec((3,), dtypes.float32), SCALARS["f"]
    for name, operands in (("add", [f32, f32]), ("mul", [f32, number])):
        with pytest.raises(updates.NoFormula):
            updates.source(TABLE[name], {}, operands)
    mixed = [f32, spec((3,), dtypes.float64), number, number]
    with pytest.raises(updates.NoFormula, match="several dtypes"):
        updates.source(TABLE["sgd"], {}, mixed)


# --- in a program -----------------------------------------------------------------------------

NUMBERS = (0.01, 0.9, 0.99, 1e-8, 0.1, 3)


def training(index: bool) -> tuple[Any, list[Any]]:
    """Two parameters, of which the gradient of the second is an input that is set to zero in the same program, and a
    mean that is updated without an optimizer. With `index`, rows of a table that may be out of range."""
    b = Builder((5, 4), (5, 4), (5, 4), (6,), (6,), (6,), (6,), (5, 4), (3,), scalars="fffffi", kinds={8: "int64"})
    numbers = [~k for k in range(6)]
    x = b.add("index_select", 7, 8, dim=0) if index else b.add("slice", 7, dims=(0,), starts=(0,), lengths=(3,))
    g = b.add("mul", 0, b.add("sum", x, dims=(0, 1), keepdim=False))
    first = b.add("adamw", 0, g, 1, 2, *numbers)
    second = b.add("adamw", 3, 4, 5, 6, *numbers)
    mean = b.add("add", 7, g)
    zero = b.add("sub", 4, 4)
    out = [*first, *second, mean, zero, b.add("sum", g, dims=(0, 1), keepdim=False)]
    owned = [0, 1, 2, 3, 5, 6, 7, 4]
    checked = b.checked(out, donate=(0, 1, 2, 3, 4, 5, 6, 7), updates=tuple(enumerate(owned)))
    generator = torch.Generator().manual_seed(0)
    shapes = [s.shape for s in checked.specs[:8]]
    return checked, [*(torch.rand(s, generator=generator) for s in shapes), torch.tensor([0, 4, 2])]


def test_steps_come_last(launches: list[int]) -> None:
    """All numbers are those of the program without such kernels, also where a gradient is overwritten."""
    checked, given = training(index=True)
    want = run_plain(checked, given, NUMBERS)
    mine = [a.clone() for a in given]
    made, flag = run_device(checked, mine, NUMBERS)
    assert not flag
    torch.testing.assert_close(made, want)
    assert len(launches) == 1, "both parameters at once"
    assert made[0] is mine[0]
    assert made[7] is mine[4]


def test_a_raised_flag_stops_them(launches: list[int]) -> None:
    checked, given = training(index=True)
    given[8] = torch.tensor([0, 5, 2])
    mine = [a.clone() for a in given]
    _, flag = run_device(checked, mine, NUMBERS)
    assert flag
    assert launches
    assert all(map(torch.equal, mine, given))


def test_what_is_compiled_has_no_steps(launches: list[int]) -> None:
    checked, given = training(index=True)
    graph = GraphProgram(checked, DEVICE)
    mine = [a.clone() for a in given]
    made = graph.pure(mine, packed(graph, NUMBERS))
    assert not launches
    for i in (0, 1, 2, 3, 5, 6):
        assert torch.equal(mine[i], given[i])
    graph.around(lambda inputs, buffer: made)(mine, packed(graph, NUMBERS))
    torch.testing.assert_close(mine[0], run_plain(checked, given, NUMBERS)[0])


def test_a_step_whose_result_is_read_again_is_no_commit(launches: list[int]) -> None:
    b = Builder((4,), (4,), (4,), scalars="ff")
    new = b.add("sgd", 0, 1, ~0, ~1)
    checked = b.checked([new, b.add("add", 2, new)], donate=(0, 2), updates=((0, 0), (1, 2)))
    given = [torch.rand(4) for _ in range(3)]
    torch.testing.assert_close(run_device(checked, [a.clone() for a in given], (0.1, 0.0))[0],
                               run_plain(checked, given, (0.1, 0.0)))  # fmt: skip
    assert not launches
