"""What the planner chooses: the communication that well-known ways to train need, and no more."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gt.dispatcher import planner
from gt.dispatcher.planner.choose import Choice, choose
from gt.dispatcher.planner.ways import use_of
from gt.layout import layout, mesh, parse, split
from gt.ops import TABLE
from tests.sharding.simulate import Log, Value, apply, collectives, moved, place, read, spec_of

RNG = np.random.default_rng(0)


class Machine:
    """Ops on one mesh, with a log of what they communicate."""

    def __init__(self, **axes: int) -> None:
        self.mesh = mesh(**axes)
        self.log: Log = []

    def put(self, x: np.ndarray, dims: dict[int, Any] | None = None, partial: dict[str, str] | None = None) -> Value:
        return place(x, split(self.mesh, x.shape, dims or {}, partial), RNG)

    def __call__(self, name: str, *args: Any, **attrs: Any) -> Any:
        made = apply(TABLE[name], args, attrs, self.mesh, self.log)
        return made[0] if len(made) == 1 else made

    def whole(self, value: Value) -> Value:
        return moved(value, layout(self.mesh), self.log)

    def communicated(self) -> list[str]:
        return list(collectives(self.log))


def chosen(
    name: str, have: list[str], args: list[np.ndarray], m: Any, reread: tuple[int, ...] = (), **attrs: Any
) -> Choice:
    use = use_of(TABLE[name], [spec_of(a) for a in args], attrs)
    made = choose(use, [(parse(text, m),) for text in have], reread=reread)
    assert made is not None
    return made


def test_a_partial_operand_that_others_read_too() -> None:
    """It is reduced for all of them, unless what comes of it is small."""
    m, x, y = mesh(x=2), RNG.normal(size=(64, 96)), RNG.normal(size=(64, 96))
    have = ["[] sum x", "[]"]
    assert chosen("sub", have, [x, y], m).way.gives[0].kind == "sum"
    for reread in [(0,), (0, 1)]:
        made = chosen("sub", have, [x, y], m, reread)
        assert made.way.gives[0].kind is None
        assert [step.kind for step in made.steps[0]] == ["reduce_scatter"]
    small = chosen("sum", have[:1], [x], m, (0,), dims=(0, 1), keepdim=False)
    assert small.way.gives[0].kind == "sum"
    # Both partial, as two gradients of a tied weight: the sum of both is reduced once, in any case.
    both = chosen("add", ["[] sum x", "[] sum x"], [x, y], m, (0,))
    assert repr(both.way.gives[0]) == "[] sum x"
    assert not any(both.steps)


def test_column_then_row_split() -> None:
    """Megatron's MLP: the first weight split by columns, the second by rows. One reduction forward, one backward."""
    run = Machine(x=2)
    x, w1, w2 = RNG.normal(size=(8, 16)), RNG.normal(size=(16, 64)), RNG.normal(size=(64, 16))
    vx, v1, v2 = run.put(x), run.put(w1, {1: "x"}), run.put(w2, {0: "x"})
    h = run("matmul", vx, v1)
    a = run("relu", h)
    y = run("matmul", a, v2)
    assert run.communicated() == []
    assert repr(y.layout) == "[] sum x"
    np.testing.assert_allclose(read(run.whole(y)), np.maximum(x @ w1, 0) @ w2, rtol=1e-9)
    assert run.communicated() == ["all_reduce"]

    run.log.clear()
    g = run.put(RNG.normal(size=(8, 16)))
    ga = run("matmul", g, run("permute", v2, dims=(1, 0)))
    d2 = run("matmul", run("permute", a, dims=(1, 0)), g)
    gh = run("relu_dx", ga, a)
    d1 = run("matmul", run("permute", vx, dims=(1, 0)), gh)
    dx = run("matmul", gh, run("permute", v1, dims=(1, 0)))
    assert (d1.layout, d2.layout) == (v1.layout, v2.layout)
    run.whole(dx)
    assert run.communicated() == ["all_reduce"]


@pytest.mark.parametrize(("rows", "kind"), [(8, "all_reduce"), (8192, "reduce_scatter")])
def test_a_nonlinear_op_reduces_first(rows: int, kind: str) -> None:
    """On the way to a split if it is large: half the bytes. A small one everywhere: no gather follows."""
    run = Machine(x=2)
    x = RNG.normal(size=(rows, 6))
    v = run.put(x, {}, {"x": "sum"})
    np.testing.assert_allclose(read(run("relu", v)), np.maximum(x, 0), rtol=1e-9, atol=1e-9)
    assert run.communicated() == [kind]


def test_a_number_is_not_added_by_everyone() -> None:
    """x partial: 2 x stays so, x + 2 does not."""
    run = Machine(x=2)
    v = run.put(RNG.normal(size=(8, 6)), {}, {"x": "sum"})
    assert run("mul", v, 2.0).layout.kind == "sum"
    assert run("add", v, 2.0).layout.kind is None


def test_flattening_batch_and_sequence_moves_nothing() -> None:
    run = Machine(x=2, y=2)
    v = run.put(RNG.normal(size=(4, 6, 5)), {0: "x", 1: "y"})
    flat = run("reshape", v, shape=(24, 5))
    assert repr(flat.layout) == "[(4@x)(6@y)]"
    y = run("linear", flat, run.put(RNG.normal(size=(3, 5))))
    back = run("reshape", y, shape=(4, 6, 3))
    assert repr(back.layout) == "[4@x 6@y]"
    assert run.communicated() == []


def test_a_fused_projection_splits_by_heads() -> None:
    """q, k and v out of one product, 4 heads of 3, over two workers: nothing moves."""
    run = Machine(x=2)
    w = RNG.normal(size=(36, 5))
    weight = place(w, parse("[(3)(12@x)]", run.mesh), RNG)
    qkv = run("linear", run.put(RNG.normal(size=(7, 5))), weight)
    parts = run("split", qkv, sizes=(12, 12, 12), dim=1)
    heads = [run("reshape", p, shape=(7, 4, 3)) for p in parts]
    assert {repr(h.layout) for h in heads} == {"[. 4@x]"}
    assert run.communicated() == []


def test_embedding_with_a_split_vocabulary() -> None:
    run = Machine(x=4)
    w = RNG.normal(size=(101, 8))
    y = run("embedding", run.put(w, {0: "x"}), run.put(RNG.integers(0, 101, size=7)))
    assert run.communicated() == []
    assert repr(y.layout) == "[] sum x"


def test_softmax_over_a_split_dimension() -> None:
    """By partial max and sum: two reductions of one number per row, not a gather of the rows."""
    run = Machine(x=4)
    y = run("softmax", run.put(RNG.normal(size=(8, 400)), {1: "x"}), dim=1)
    assert repr(y.layout) == "[. 400@x]"
    assert sum(s.nbytes for _, s in run.log) <= 2 * (2 * 8 * 8)


def test_attention_over_split_keys() -> None:
    """In two phases: each worker attends to its keys, then the results are weighed by their sums."""
    run = Machine(x=3)
    q, k, v = RNG.normal(size=(2, 3, 7, 4)), RNG.normal(size=(2, 3, 100, 4)), RNG.normal(size=(2, 3, 100, 4))
    out, _ = run(
        "attention", run.put(q), run.put(k, {2: "x"}), run.put(v, {2: "x"}), causal=False, scale=0.5, dmask=False
    )
    weights = np.exp(q @ k.swapaxes(2, 3) * 0.5)
    np.testing.assert_allclose(read(out), weights @ v / weights.sum(-1, keepdims=True), rtol=1e-9, atol=1e-9)
    assert run.communicated() == ["merge"]


def test_a_slice_with_a_start_by_value() -> None:
    """64 of 1000 rows on 8 workers: a partial sum of 64 rows, where gathering would move 875."""
    run = Machine(x=8)
    x = RNG.normal(size=(1000, 4))
    cut = {"dims": (0,), "lengths": (64,), "steps": (1,), "drop": ()}
    y = run("slice", run.put(x, {0: "x"}), 300, **cut)
    assert run.communicated() == []
    np.testing.assert_allclose(read(y), x[300:364], rtol=1e-9, atol=1e-9)


def test_the_dearer_operand_stays() -> None:
    """Rows of one operand and columns of the other over one axis: the smaller one is gathered."""
    m = mesh(x=4)
    big, small = np.zeros((400, 16)), np.zeros((16, 8))
    made = chosen("matmul", ["[400@x]", "[. 8@x]"], [big, small], m)
    assert [len(steps) for steps in made.steps] == [0, 1]
    assert repr(made.way.gives[0]) == "[400@x]"
    other = chosen("matmul", ["[8@x]", "[. 400@x]"], [small.T.copy(), np.zeros((16, 400))], m)
    assert repr(other.way.gives[0]) == "[. 400@x]"


def test_what_no_rule_covers_is_gathered_and_said() -> None:
    m = mesh(x=2)
    x = np.zeros((8, 6))
    made = chosen("sort", ["[. 6@x]"], [x], m, dim=1, descending=False, stable=True)
    assert made.blocked
    assert [s.kind for s in made.steps[0]] == ["all_gather"]
    assert not chosen("sort", ["[8@x]"], [x], m, dim=1, descending=False, stable=True).blocked


def test_a_window_of_a_whole_operand_is_cut_out_here() -> None:
    m = mesh(x=2)
    attrs = {"stride": (1,), "padding": (1,), "dilation": (1,), "groups": 1}
    x, w = np.zeros((2, 3, 10)), np.zeros((4, 3, 3))
    made = chosen("conv", ["[. . 10@x]", "[]"], [x, w], m, **attrs)
    assert [(s.kind, s.nbytes) for s in made.steps[0]] == [("halo", 2 * 3 * 8)]  # one row of the neighbour


def test_an_operand_on_another_mesh_comes_over() -> None:
    """The op runs on the mesh of its largest operand."""
    run, other = Machine(x=3), mesh([5, 6], y=2)
    x, w = RNG.normal(size=(70, 10)), RNG.normal(size=(10, 11))
    away = place(w, split(other, w.shape, {1: "y"}), RNG)
    y = run("matmul", run.put(x, {0: "x"}), away)
    np.testing.assert_allclose(read(y), x @ w, rtol=1e-9, atol=1e-9)
    assert (y.layout.mesh, run.communicated()) == (run.mesh, ["permute"])
    assert read(run("matmul", place(w.T.copy(), layout(other), RNG), run.put(x.T.copy()))).shape == (11, 70)


def test_no_op_is_named() -> None:
    """Law 1 of ways.py: the algorithm looks at records, not at names."""
    for file in Path(planner.__file__).parent.glob("*.py"):
        text = file.read_text()
        assert "TABLE" not in text
        assert "op.name ==" not in text
        assert "op.name in" not in text


def test_the_table_of_files_is_true() -> None:
    """The package's docstring names every file of the planner, once."""
    named = re.findall(r"^ +\d+\. (\w+\.py) ", planner.__doc__ or "", re.M)
    assert sorted(named) == sorted({f.name for f in Path(planner.__file__).parent.glob("*.py")} - {"__init__.py"})
