"""Every op of the table in a program of its own, as a graph: on the CPU around a commit, and as on a device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from msgspec import structs

from gt.errors import IndexOutOfRange
from gt.ops import TABLE, Op
from gt.ops.check import Checked, check
from gt.worker.engines.graph_kernels import Unfit
from tests.ops.cases import as_dtype, program_of, samples, to_engine, to_numpy
from tests.ops.test_graph_kernels import UNFIT
from tests.ops.test_table import TOLERANCE, close
from tests.tiers.graphs import PLAIN, run_around, run_device, run_plain

Case = tuple[Checked, list[Any], tuple[Any, ...]]


def cases(op: Op) -> list[Case]:
    """A program per sample, its arrays and numbers. The first array is given away if a result can replace it."""
    made = []
    for sample, attrs in samples(op):
        program, given, numbers = program_of(op, as_dtype(sample, "float32"), attrs)
        specs = check(program).specs
        if given and specs[len(given)] is specs[0]:
            program = structs.replace(program, donate=(0,), updates=((0, 0),))
        made.append((check(program), to_engine(PLAIN, given), numbers))
    return made


def same(checked: Checked, made: list[Any], want: list[Any]) -> None:
    for o, a, b in zip(checked.program.outputs, made, want, strict=True):
        s = checked.specs[o]
        assert a.dtype is b.dtype is getattr(torch, s.dtype.name)
        coarse = max("float32", s.dtype.name, key=lambda d: TOLERANCE.get(d, (0, 0)))
        close(to_numpy(PLAIN, a, s), to_numpy(PLAIN, b, s), coarse)


def untouched(mine: list[Any], arrays: list[Any], but: tuple[int, ...] = ()) -> None:
    for i, (a, b) in enumerate(zip(mine, arrays, strict=True)):
        assert i in but or torch.equal(a, b) or torch.equal(a.nan_to_num(), b.nan_to_num())


@pytest.mark.parametrize("op", [op for op in TABLE.values() if op.name not in UNFIT], ids=lambda op: op.name)
def test_a_graph_makes_what_the_code_makes(op: Op) -> None:
    for checked, arrays, numbers in cases(op):
        want = run_plain(checked, arrays, numbers)
        for run in (run_around, lambda *a: run_device(*a)[0]):
            mine = [a.clone() for a in arrays]
            same(checked, run(checked, mine, numbers), want)
            untouched(mine, arrays, checked.program.donate)


@pytest.mark.parametrize("name", sorted(UNFIT))
def test_the_unfit_say_so(name: str) -> None:
    refused = []
    for checked, arrays, numbers in cases(TABLE[name]):
        try:
            run_device(checked, [a.clone() for a in arrays], numbers)
        except Unfit as e:
            refused.append(str(e))
    assert refused
    assert all(": " in why for why in refused), "the op, and what is the matter"


@pytest.mark.parametrize(
    "op", [op for op in TABLE.values() if op.indices is not None and op.name not in UNFIT], ids=lambda op: op.name
)
def test_a_bad_index_fails_and_changes_nothing(op: Op) -> None:
    """Each index operand in turn, one element of it out of range on either side."""
    tried = 0
    for checked, arrays, numbers in cases(op):
        (ins,) = checked.program.code
        specs = [checked.specs[a] if a >= 0 else None for a in ins.args]
        if None in specs:
            continue  # an index by value: test_graph_program.py
        assert op.indices is not None
        for place, (n, extra) in op.indices(*specs, **ins.attrs).items():
            at = ins.args[place]
            if not arrays[at].numel() or n <= 0:
                continue
            for bad in {n, -1} - {extra}:
                broken = [a.clone() for a in arrays]
                broken[at].view(-1)[-1] = bad
                mine = [a.clone() for a in broken]
                with pytest.raises(IndexOutOfRange):
                    run_plain(checked, broken, numbers)
                with pytest.raises(IndexOutOfRange):
                    run_around(checked, list(mine), numbers)
                untouched(mine, broken)
                _, flag = run_device(checked, mine, numbers)
                assert flag
                untouched(mine, broken)
                tried += 1
    assert tried
