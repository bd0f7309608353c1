"""The named cases at real sizes, on paper: no strategy by hand is cheaper, and layouts are what an expert would say.

`python benchmarks/plans.py` does all of them, on 4 and 2x2 workers.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import gt
from gt.dispatcher.planner.plan import plan_program
from gt.layout import Layout, mesh
from gt.solver.hardware import HARDWARE
from gt.solver.pricing import price_plan
from gt.solver.reasons import words_of
from gt.solver.recorded import RecordedProgram
from gt.solver.solve import Limits, Solved, solve_on

from .cases import CASES, FIVE, recorded
from .full import Full
from .pins import priced

H100 = HARDWARE["h100"]
FOUR = mesh(x=4)
SOME = [
    "mlp 16x8192", "vocabulary 128k, tied", "picture 1024x1024", "eight experts", "adapters", "dropout",
    "clipped gradients", "diamond", "large batch", "small batch, large weights", "weights that do not fit", "6 heads",
    "accumulated gradients",
]  # fmt: skip


@cache
def solved(name: str) -> Solved:
    return solve_on(recorded(name).checked, FOUR, H100, {}, Limits(memory_nbytes=CASES[name].memory_nbytes))


def layouts(name: str) -> dict[str, Layout]:
    """By the input's name."""
    return {i.name: one for i, one in zip(recorded(name).inputs, solved(name).inputs, strict=True)}


def weights(program: RecordedProgram) -> list[str]:
    return [i.name for i in program.inputs if i.role == "parameter" and len(i.spec.shape) > 1]


def split_dim(one: Layout) -> int | None:
    """The dimension that is split; None if none is."""
    return next((d for d, pieces in enumerate(one.dims) if any(axes for _, axes in pieces)), None)


@pytest.mark.parametrize("name", SOME)
def test_no_strategy_by_hand_is_cheaper(name: str) -> None:
    mine = solved(name)
    by_hand = priced(recorded(name), FOUR, H100, CASES[name].memory_nbytes or H100.memory_nbytes)
    assert by_hand
    assert mine.price.time_us <= by_hand[0].price.time_us + 1e-6, by_hand[0].name
    assert mine.price.time_us <= mine.objective_us + 1e-6
    assert not [note for note in mine.planned.notes if "not followed" in note]


def words(name: str) -> list[str]:
    return words_of(solved(name).problem, solved(name).assigned)


def test_a_large_batch_is_split_and_activations_are_not_communicated() -> None:
    assert split_dim(layouts("large batch")["batch.0"]) == 0
    assert words("large batch")[0] == "data parallel over x"
    parameters = sum(i.spec.nbytes for i in recorded("large batch").inputs if i.role == "parameter")
    assert solved("large batch").price.received_nbytes < 2 * parameters


def test_clipped_gradients_stay_scattered() -> None:
    """Each gradient is reduced to shards, the norm is one small sum, the update runs on shards: no gradient is reduced
    everywhere."""
    name = "clipped gradients"
    assert words(name) == [
        "data parallel over x", "gradients reduced and scattered over x",
        "parameters sharded over x, gathered before use", "optimizer state sharded over x",
    ]  # fmt: skip
    largest = max(i.spec.nbytes for i in recorded(name).inputs if i.role == "parameter")
    everywhere = sum(t.nbytes for (kind, _), t in solved(name).price.collectives.items() if kind == "all_reduce")
    assert everywhere < largest / 100


def test_weights_of_a_small_batch_are_split_and_only_activations_move() -> None:
    found, program = layouts("small batch, large weights"), recorded("small batch, large weights")
    assert all(split_dim(found[name]) is not None for name in weights(program))
    activation = next(i.spec.nbytes for i in program.inputs if i.role == "data")
    weight = max(i.spec.nbytes for i in program.inputs)
    received = solved("small batch, large weights").price.received_nbytes
    assert received <= 2 * 2 * 3 * activation < weight / 100  # forward and backward of three layers


def test_a_large_vocabulary_is_split() -> None:
    """At 2 rows of 1,024 tokens the products with the head run on shards of the vocabulary. At 8 rows the logits take
    4.2 GB and the head 0.5 GB: gathering the head is faster than splitting what it makes, as Megatron does."""
    few, many = "vocabulary 128k, tied", "vocabulary 128k, 8 rows"
    assert split_dim(layouts(few)["model.tokens.weight"]) == 0
    assert head_product(few) == ([None, 0], 1)
    assert head_product(many) == ([0, None], 0)
    by_hand = {each.name: each.price.time_us for each in priced(recorded(many), FOUR, H100, H100.memory_nbytes)}
    assert solved(many).price.time_us < min(by_hand["Megatron"], by_hand["fully-sharded"])


def head_product(name: str) -> tuple[list[int | None], int | None]:
    """Which dimensions of operands and result are split where the head is used."""
    problem = solved(name).problem
    for node, k in zip(problem.nodes, solved(name).assigned, strict=True):
        if node.instructions and problem.program.code[node.instructions[0]].op == "linear":
            option = node.options[k]
            if 128_000 in problem.uses[node.instructions[0]].specs[1].shape:
                return [split_dim(want) for want in option.wants], split_dim(option.gives[0])
    raise AssertionError("no product with the head")


@pytest.mark.parametrize("name", FIVE)
def test_an_integer_program_without_restrictions_finds_nothing_better(name: str) -> None:
    """At most 1.02 of its price; what is emitted of both is priced by the same code."""
    full = Full(recorded(name).checked, FOUR, H100)
    price, bound, assigned = full.solve()
    assert price == pytest.approx(full.problem.price(assigned), rel=1e-6)
    mine = solved(name)
    assert bound * (1 - 1e-6) <= mine.objective_us <= 1.02 * price
    ways, inputs = full.problem.chosen(assigned), full.problem.inputs(assigned)
    theirs = price_plan(
        plan_program(recorded(name).checked, inputs, FOUR, {}, ways), recorded(name).checked, inputs, H100
    )
    assert mine.price.time_us <= 1.02 * theirs.time_us


def test_experts_are_split_among_workers() -> None:
    found = layouts("eight experts")
    assert [split_dim(found[f"model.{name}"]) for name in ("up", "down")] == [0, 0]
    assert {kind for kind, _ in solved("eight experts").price.collectives} <= {"all_reduce", "all_gather"}
    assert solved("eight experts").price.received_nbytes < 4 * 512 * 1024 * 4  # activations, never weights


def test_weights_that_do_not_fit_are_split() -> None:
    name = "weights that do not fit"
    found = layouts(name)
    assert all(split_dim(found[each]) is not None for each in weights(recorded(name)))
    assert solved(name).price.peak_nbytes <= 16 * 10**9


def test_frozen_weights_are_not_communicated() -> None:
    """Only the adapters' gradients are, 3 MB of them, beside 268 MB of frozen weights."""
    assert solved("adapters").price.received_nbytes < 4e6


def test_a_case_of_a_stranger() -> None:
    """A matrix factorization: nothing that the strategies by hand know by name."""
    with gt.on_paper():
        left = gt.nn.Parameter(gt.randn(40_000, 512))
        right = gt.nn.Parameter(gt.randn(512, 30_000))
        optimizer = gt.optim.SGD([left, right], lr=0.1)
        seen = gt.zeros(40_000, 30_000)

        def step(seen: gt.Tensor) -> gt.Tensor:
            loss = (left @ right - seen).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        program = gt.solver.recorded.record_step(step, seen).largest
    mine = solve_on(program.checked, FOUR, H100, {}, Limits())
    by_hand = priced(program, FOUR, H100, H100.memory_nbytes)
    assert mine.price.time_us <= by_hand[0].price.time_us + 1e-6
    assert mine.price.compute_us < 0.3 * next(p for p in by_hand if p.name == "replicated").price.compute_us
    assert np.isfinite(mine.gap)
