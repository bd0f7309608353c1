"""Programs as graphs: the numbers that go in, and what becomes of inputs that are given away."""

from __future__ import annotations

import struct
from typing import Any

import pytest
import torch

from gt.errors import IndexOutOfRange, ProgramError
from gt.ops.check import Checked
from gt.worker.engines.graph_program import GraphProgram
from tests.tiers.graphs import DEVICE, PLAIN, packed, run_around, run_device, run_plain
from tests.worker.worker_building import Builder

BOTH = pytest.mark.parametrize("engine", [PLAIN, DEVICE], ids=["cpu", "device"])


def arrays(*shapes: tuple[int, ...]) -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(s, generator=generator) for s in shapes]


def agree(checked: Checked, given: list[Any], scalars: tuple[Any, ...] = ()) -> list[Any]:
    """Both forms of the graph make what the plain code makes, and write only to what is given away."""
    want = run_plain(checked, given, scalars)
    for run in (run_around, lambda *a: run_device(*a)[0]):
        mine = [a.clone() for a in given]
        made = run(checked, list(mine), scalars)
        for a, b in zip(made, want, strict=True):
            assert a.dtype is b.dtype
            torch.testing.assert_close(a, b, equal_nan=True)
        for i, (a, b) in enumerate(zip(mine, given, strict=True)):
            assert i in checked.program.donate or torch.equal(a, b)
    return want


# --- numbers --------------------------------------------------------------------------------


@BOTH
def test_every_kind_of_number_has_its_place(engine: Any) -> None:
    b = Builder((3,), scalars="fifb")
    y = b.add("add", b.add("mul", 0, ~0), ~1)
    y = b.add("where", b.add("eq", b.add("gt", 0, ~2), ~3), y, 0)
    checked = b.checked([y])
    graph = GraphProgram(checked, engine)
    assert graph.slots == 4
    bits = packed(graph, (2.5, -7, 0.5, True)).numpy().tobytes()
    assert struct.unpack("=dqdq", bits) == (2.5, -7, 0.5, 1)
    for numbers in ((2.5, -7, 0.5, True), (-1.0, 2**40, 0.1, False)):
        agree(checked, arrays((3,)), numbers)


@BOTH
def test_no_inputs(engine: Any) -> None:
    b = Builder(scalars="i")
    checked = b.checked([b.add("rand", ~0, shape=(5,), dtype="float32")])
    assert len(GraphProgram(checked, engine).example()) == 1
    assert not torch.equal(*(agree(checked, [], (seed,))[0] for seed in (1, 2)))


@BOTH
def test_no_numbers(engine: Any) -> None:
    b = Builder((3,))
    checked = b.checked([b.add("neg", 0)])
    graph = GraphProgram(checked, engine)
    assert graph.slots == 0
    assert [e.shape for e in graph.example()] == [(3,), (1,)], "a buffer, for its form's sake"
    agree(checked, arrays((3,)))


@BOTH
@pytest.mark.parametrize("nbytes", [0, 7, 11, 16])
def test_host_data_of_the_wrong_length(engine: Any, nbytes: int) -> None:
    b = Builder((3,), scalars="d")
    y = b.add("add", 0, b.add("data", ~0, shape=(3,), dtype="float32"))
    checked = b.checked([y])
    agree(checked, arrays((3,)), (struct.pack("=3f", 1, 2, 3),))
    with pytest.raises(ProgramError, match=f"got {nbytes} bytes of host data, expected 12"):
        packed(GraphProgram(checked, engine), (b"x" * nbytes,))


@BOTH
def test_an_index_by_value_is_looked_at_by_the_host(engine: Any) -> None:
    b = Builder((4, 2), scalars="i")
    y = b.add("exp", b.add("slice", 0, ~0, dims=(0,), lengths=(2,), steps=(1,), drop=()))
    checked = b.checked([y])
    for start in (0, 2):
        agree(checked, arrays((4, 2)), (start,))
    for start in (3, -1, 2**62):
        with pytest.raises(IndexOutOfRange):
            packed(GraphProgram(checked, engine), (start,))


# --- indices --------------------------------------------------------------------------------


def cross_entropy(extra: int) -> tuple[Checked, list[Any]]:
    """A loss, and weights that are updated by it."""
    b = Builder((3, 4), (3,), kinds={1: "int64"})
    loss, *_ = b.add("cross_entropy", 0, 1, ignore_index=extra, reduction="mean", smoothing=0.0)
    new = b.add("sub", 0, loss)
    checked = b.checked([loss, new], donate=(0,), updates=((1, 0),))
    return checked, [*arrays((3, 4)), torch.tensor([0, 3, 1])]


@pytest.mark.parametrize("extra", [-100, 2])
def test_an_index_that_is_ignored_is_no_error(extra: int) -> None:
    checked, given = cross_entropy(extra)
    agree(checked, given)
    given[1] = torch.tensor([extra, 3, extra])
    agree(checked, given)


@pytest.mark.parametrize("bad", [4, -1, 2**40, -(2**63)])
def test_a_bad_index_raises_the_flag_and_changes_nothing(bad: int) -> None:
    checked, given = cross_entropy(-100)
    given[1] = torch.tensor([0, bad, 1])
    for run in (run_plain, run_around):
        mine = [a.clone() for a in given]
        with pytest.raises(IndexOutOfRange):
            run(checked, mine)
        assert all(map(torch.equal, mine, given))
    mine = [a.clone() for a in given]
    (_, new), flag = run_device(checked, mine)
    assert flag
    assert new is mine[0]
    assert all(map(torch.equal, mine, given))


# --- inputs that are given away -------------------------------------------------------------


def view(b: Builder, value: int, *shape: int) -> int:
    made: int = b.add("reshape", value, shape=shape)
    return made


def test_results_that_are_views_of_inputs_are_copies() -> None:
    b = Builder((4, 2), (4, 2))
    out = [view(b, 0, 8), view(b, 0, 2, 4), view(b, 1, 8)]
    agree(b.checked(out), arrays((4, 2), (4, 2)))
    agree(b.checked(out, donate=(1,)), arrays((4, 2), (4, 2)))


def test_results_that_share_memory_do_not() -> None:
    b = Builder((4, 2))
    y = b.add("exp", 0)
    agree(b.checked([y, view(b, y, 8), view(b, y, 2, 4)]), arrays((4, 2)))


def test_inputs_change_places() -> None:
    """a, b = b, a: each is overwritten with what the other was."""
    b = Builder((4,), (4,))
    new = [view(b, view(b, 1, 2, 2), 4), view(b, view(b, 0, 2, 2), 4)]
    checked = b.checked(new, donate=(0, 1), updates=((0, 0), (1, 1)))
    first, second = arrays((4,), (4,))
    agree(checked, [first, second])
    mine = [first.clone(), second.clone()]
    made, _ = run_device(checked, mine)
    assert made[0] is mine[0]
    assert torch.equal(mine[0], second)
    assert torch.equal(mine[1], first)


def test_each_is_updated_with_what_the_others_were() -> None:
    b = Builder((4,), (4,), (4,))
    new = [b.add("add", 0, 1), b.add("add", 1, 2), b.add("add", 2, 0)]
    checked = b.checked(new, donate=(0, 1, 2), updates=((0, 0), (1, 1), (2, 2)))
    agree(checked, arrays((4,), (4,), (4,)))


def test_two_results_replace_one_input() -> None:
    """One of them can have its memory."""
    b = Builder((4,))
    new = [b.add("exp", 0), b.add("neg", 0)]
    checked = b.checked(new, donate=(0,), updates=((0, 0), (1, 0)))
    agree(checked, arrays((4,)))
    assert len(GraphProgram(checked, DEVICE).writes) == 1


def test_what_is_not_given_away_is_not_written() -> None:
    b = Builder((4,))
    checked = b.checked([b.add("exp", 0)], updates=((0, 0),))
    assert GraphProgram(checked, DEVICE).writes == []
    agree(checked, arrays((4,)))


def test_an_optimizer_step_shares_its_numbers() -> None:
    """All parameters have one learning rate and one step count: they take their places once."""
    b = Builder(*[(3,)] * 8, scalars="fffffi")
    new: list[int] = []
    for p in (0, 4):
        new += b.add("adamw", p, p + 1, p + 2, p + 3, *(~k for k in range(6)))
    owned = [0, 2, 3, 4, 6, 7]
    checked = b.checked(new, donate=(0, 2, 3, 4, 6, 7), updates=tuple(enumerate(owned)))
    given = arrays(*[(3,)] * 8)
    graph = GraphProgram(checked, DEVICE)
    assert len(graph.writes) == 6
    assert graph.wants == []
    for step in (1, 7):
        agree(checked, given, (0.01 / step, 0.9, 0.99, 1e-8, 0.1, step))
    alone = Builder(*[(3,)] * 4, scalars="fffffi")
    one = alone.checked(list(alone.add("adamw", 0, 1, 2, 3, *(~k for k in range(6)))))
    assert GraphProgram(one, DEVICE).slots == graph.slots
