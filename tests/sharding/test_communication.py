"""What plans communicate: what well-known ways to train need, each tensor once, and no byte more."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from gt.dispatcher.planner import decide, order
from gt.dispatcher.planner.order import BUCKET_NBYTES
from gt.dispatcher.planner.plan import Planned, plan_program
from gt.dispatcher.planner.work import prove
from gt.errors import ArgumentError, GTError, IndexOutOfRange
from gt.layout import Layout, Mesh, layout, mesh, parse, split
from gt.ops import TABLE, check
from gt.ops.record import ops
from gt.ops.trace import OpTrace, Symbol
from gt.program import Program
from tests.ops.cases import backward
from tests.sharding.planned import (
    collectives,
    one_op,
    planned_values,
    received_nbytes,
    run_planned,
    unsharded,
    written_down,
)
from tests.sharding.simulate import Value, close, place, read, spec_of
from tests.sharding.timing import cases, forget, step_of

RNG = np.random.default_rng(0)
Made = tuple[Planned, list[Value]]


class Writing:
    """A program that a test writes, with its inputs."""

    def __init__(self, **arrays: np.ndarray) -> None:
        self.arrays = arrays
        self.trace = OpTrace()
        self.at = {name: self.trace.symbol(spec_of(a)) for name, a in arrays.items()}

    def __getitem__(self, name: str) -> Symbol:
        return self.at[name]

    def grads(self, loss: Any, names: list[str]) -> list[Any]:
        one = self.trace.add(ops.full, (1.0,), {"shape": (), "dtype": loss.dtype.name})
        return backward(self.trace, [(loss, one)], [self.at[n] for n in names])

    def planned(
        self, m: Mesh, layouts: dict[str, Layout], results: list[Any], updates: dict[int, str] | None = None
    ) -> Made:
        """The plan, and the values of the results, which are compared with the unsharded ones."""
        places = {name: i for i, name in enumerate(self.arrays)}
        replaced = {k: places[name] for k, name in (updates or {}).items()}
        checked, scalars = written_down(self.trace, list(self.at.values()), results, replaced)
        every = [layouts.get(name, layout(m)) for name in self.arrays]
        arrays = list(self.arrays.values())
        planned, made = planned_values(checked, arrays, scalars, every, m, RNG)
        for value, want in zip(made, unsharded(checked, arrays, scalars), strict=True):
            assert close(read(value), want, value.spec.dtype)
        return planned, made


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape)


def meetings(planned: Planned) -> float:
    """All-reduces; a scatter and a gather, each half of one, count as one together."""
    return sum(1.0 if name == "all_reduce" else 0.5 for name in collectives(planned))


# -- well-known ways to train ----------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("width", [16, 512])
def test_column_then_row(n: int, width: int) -> None:
    """Megatron's MLP, whose input requires grad: one all-reduce forward, one backward."""
    m = mesh(x=n)
    w = Writing(x=normal(24, width), w1=normal(width, 96), w2=normal(96, width))
    y = ops.matmul(ops.relu(ops.matmul(w["x"], w["w1"])), w["w2"])
    loss = ops.sum(ops.relu(y), dims=(0, 1), keepdim=False)
    dx, d1, d2 = w.grads(loss, ["x", "w1", "w2"])
    steps = [ops.sgd(w[p], d, 0.1, 0.0) for p, d in (("w1", d1), ("w2", d2))]
    layouts = {"w1": split(m, (width, 96), {1: "x"}), "w2": split(m, (96, width), {0: "x"})}
    planned, made = w.planned(m, layouts, [*steps, dx], {0: "w1", 1: "w2"})
    assert [v.layout for v in made[:2]] == [layouts["w1"], layouts["w2"]]
    assert meetings(planned) <= 2


@pytest.mark.parametrize("n", [2, 4])
def test_a_loss_that_is_kept_costs_no_second_reduction(n: int) -> None:
    """Forward and backward both subtract the target from the partial output: it is reduced once, for both."""
    m = mesh(x=n)
    w = Writing(x=normal(64, 96), w1=normal(96, 128), w2=normal(128, 96), target=normal(64, 96))
    y = ops.matmul(ops.relu(ops.matmul(w["x"], w["w1"])), w["w2"])
    loss = ops.mse_loss(y, w["target"], reduction="mean")
    steps = [ops.sgd(w[p], d, 0.1, 0.0) for p, d in zip(("w1", "w2"), w.grads(loss, ["w1", "w2"]), strict=True)]
    layouts = {"w1": split(m, (96, 128), {1: "x"}), "w2": split(m, (128, 96), {0: "x"})}
    planned, _ = w.planned(m, layouts, [*steps, loss], {0: "w1", 1: "w2"})
    assert sorted(collectives(planned)) == ["all_gather", "all_reduce", "all_to_all"]
    output, number = 64 * 96 * 8, 8
    assert received_nbytes(planned, 0) == 2 * (output + number) * (n - 1) / n


def test_a_partial_value_is_reduced_once_for_all_readers() -> None:
    """Each of them could pass it on as it is, and then need a reduction of its own."""
    m = mesh(x=2)
    w = Writing(a=normal(64, 96), b=normal(96, 64), c=normal(64, 64), d=normal(64, 64))
    layouts = {"a": split(m, (64, 96), {1: "x"}), "b": split(m, (96, 64), {0: "x"})}
    y = ops.matmul(w["a"], w["b"])
    sums = [ops.add(y, w[name]) for name in "cd"]
    planned, _ = w.planned(m, layouts, [ops.relu(s) for s in sums])
    assert collectives(planned) == ["all_to_all"]
    # Read by one, it is passed on: what is added to it may be partial too.
    w = Writing(**{name: w.arrays[name] for name in "abc"})
    planned, _ = w.planned(m, layouts, [ops.relu(ops.add(ops.matmul(w["a"], w["b"]), w["c"]))])
    code = [ins.op for ins in planned.locals[0].program.code]
    assert code.index("add") < code.index("all_to_all")


def test_what_sums_up_a_partial_value_leaves_it_partial() -> None:
    """A sum is small: it is reduced instead of the value, though another op reads the value too."""
    m = mesh(x=2)
    w = Writing(a=normal(64, 96), b=normal(96, 64))
    layouts = {"a": split(m, (64, 96), {1: "x"}), "b": split(m, (96, 64), {0: "x"})}
    y = ops.matmul(w["a"], w["b"])
    planned, _ = w.planned(m, layouts, [ops.sum(y, dims=(k,), keepdim=False) for k in (0, 1)])
    assert received_nbytes(planned, 0) == 2 * 2 * 64 * 8 / 2


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_data_parallel(optimizer: str) -> None:
    """Each gradient is reduced once, all of them together, and nothing else moves."""
    m = mesh(x=4)
    arrays = {f"w{i}": normal(64, 64) for i in range(3)} | {f"b{i}": normal(64) for i in range(3)}
    states = {f"{s}{p}": np.abs(normal(*a.shape)) for p, a in arrays.items() for s in "mv"}
    w = Writing(x=normal(39, 64), **arrays, **(states if optimizer == "adamw" else {}))
    h = w["x"]
    for i in range(3):
        h = ops.relu(ops.linear(h, w[f"w{i}"], w[f"b{i}"]))
    names = list(arrays)
    grads = w.grads(ops.sum(h, dims=(0, 1), keepdim=False), names)
    results, updates = [], {}
    for name, g in zip(names, grads, strict=True):
        if optimizer == "sgd":
            made: Any = (ops.sgd(w[name], g, 0.1, 0.0),)
            replaced = [name]
        else:
            made = ops.adamw(w[name], g, w["m" + name], w["v" + name], 0.01, 0.9, 0.999, 1e-8, 0.01, 3)
            replaced = [name, "m" + name, "v" + name]
        for r, n in zip(made, replaced, strict=True):
            updates[len(results)] = n
            results.append(r)
    planned, values = w.planned(m, {"x": split(m, (39, 64), {0: "x"})}, results, updates)
    assert all(v.layout.is_whole for v in values)
    assert collectives(planned) == ["all_reduce"]
    nbytes = sum(a.nbytes for a in arrays.values())
    assert [received_nbytes(planned, k) for k in m.workers] == [2 * nbytes * 3 / 4] * 4


def test_a_sharded_parameter_is_updated_in_its_layout() -> None:
    """The gradient is scattered, not reduced everywhere."""
    m = mesh(x=2)
    w = Writing(x=normal(400, 96), w=normal(96, 128))
    (g,) = w.grads(ops.sum(ops.relu(ops.matmul(w["x"], w["w"])), dims=(0, 1), keepdim=False), ["w"])
    layouts = {"x": split(m, (400, 96), {0: "x"}), "w": split(m, (96, 128), {0: "x"})}
    planned, (new,) = w.planned(m, layouts, [ops.sgd(w["w"], g, 0.1, 0.0)], {0: "w"})
    assert new.layout is layouts["w"]
    assert sorted(collectives(planned)) == ["all_gather", "all_to_all"]
    assert received_nbytes(planned, 0) == 2 * w.arrays["w"].nbytes / 2


def test_large_gradients_do_not_wait_for_each_other() -> None:
    """They start as soon as they are there: before the rest of the backward pass."""
    m = mesh(x=2)
    n = int((BUCKET_NBYTES / 8) ** 0.5)
    w = Writing(x=normal(2 * n, n), a=normal(n, n), b=normal(n, n))
    loss = ops.sum(ops.matmul(ops.matmul(w["x"], w["a"]), w["b"]), dims=(0, 1), keepdim=False)
    da, db = w.grads(loss, ["a", "b"])
    new = [ops.sgd(w[p], d, 0.1, 0.0) for p, d in (("a", da), ("b", db))]
    planned, _ = w.planned(m, {"x": split(m, (2 * n, n), {0: "x"})}, new, {0: "a", 1: "b"})
    code = [ins.op for ins in planned.locals[0].program.code]
    starts = [i for i, name in enumerate(code) if name == "all_reduce"]
    assert len(starts) == 2
    assert "matmul" in code[starts[0] : starts[1]]
    assert code.index("sgd") > starts[1]


def scattering_step(m: Mesh) -> Planned:
    """Three layers with sharded parameters, each of 32 KB: their gradients are reduced and scattered."""
    n = 64
    w = Writing(x=normal(800, n), w1=normal(n, n), w2=normal(n, n), w3=normal(n, n))
    y: Any = w["x"]
    for name in ("w1", "w2", "w3"):
        y = ops.relu(ops.matmul(y, w[name]))
    grads = w.grads(ops.sum(y, dims=(0, 1), keepdim=False), ["w1", "w2", "w3"])
    steps = [ops.sgd(w[p], d, 0.1, 0.0) for p, d in zip(("w1", "w2", "w3"), grads, strict=True)]
    layouts = {name: split(m, (n, n), {0: m.axes[-1][0]}) for name in ("w1", "w2", "w3")}
    layouts["x"] = split(m, (800, n), {0: tuple(m.sizes)})
    return w.planned(m, layouts, [*steps], {0: "w1", 1: "w2", 2: "w3"})[0]


def products_while_waiting(planned: Planned) -> list[int]:
    """Of each exchange of addends: how many products a worker computes before it adds them up."""
    program = planned.locals[0].program
    number, made = len(program.inputs), {}
    for i, ins in enumerate(program.code):
        made.update(dict.fromkeys(range(number, number + ins.results), i))
        number += ins.results
    found = []
    for i, ins in enumerate(program.code):
        if ins.op == "sum" and ins.args[0] in made:
            rows = program.code[made[ins.args[0]]]
            start = made.get(rows.args[0], -1) if rows.op == "reshape" else -1
            if start >= 0 and program.code[start].op == "all_to_all":
                found.append(sum(each.op == "matmul" for each in program.code[start:i]))
    return found


@pytest.mark.parametrize("m", [mesh(x=2), mesh(x=4), mesh(x=2, y=2)], ids=repr)
def test_workers_go_on_while_gradients_are_scattered(m: Mesh) -> None:
    """From the gradients of w3 and w2 to the end of backward there are products, after that of w1 there is none. On two
    axes a second reduction follows: it starts when the next gradient is there."""
    waits = products_while_waiting(scattering_step(m))
    assert sorted(waits, reverse=True) == ([3, 1, 0] if len(m.sizes) == 1 else [2, 1, 0])


def test_addends_take_memory_for_one_reduction_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they may take no more, those of one gradient are added up before the next ones arrive."""
    forget()
    monkeypatch.setattr(order, "ADDENDS_NBYTES", 0)
    assert products_while_waiting(scattering_step(mesh(x=4))) == [2, 1, 0]
    forget()


def test_what_is_counted_in_the_inputs_is_reduced_before_all_else() -> None:
    """How many targets count, which the loss and its gradient divide by: no worker waits for it in the middle."""
    m, rows = mesh(x=2), 12
    w = Writing(x=normal(rows, 16), w1=normal(8, 16), w2=normal(5, 8), y=RNG.integers(0, 5, rows))
    scores = ops.linear(ops.relu(ops.linear(w["x"], w["w1"])), w["w2"])
    loss, _ = ops.cross_entropy(scores, w["y"], ignore_index=-100, reduction="mean", smoothing=0.0)
    new = [ops.sgd(w[p], d, 0.1, 0.0) for p, d in zip(("w1", "w2"), w.grads(loss, ["w1", "w2"]), strict=True)]
    layouts = {"x": split(m, (rows, 16), {0: "x"}), "y": split(m, (rows,), {0: "x"})}
    planned, _ = w.planned(m, layouts, [*new, loss], {0: "w1", 1: "w2"})
    code = [ins.op for ins in planned.locals[0].program.code]
    assert code.index("all_reduce") < code.index("linear")
    assert collectives(planned) == ["all_reduce", "all_reduce"], "the counts, and then the gradients with the loss"


def test_a_split_contraction() -> None:
    m = mesh(x=4)
    w = Writing(a=normal(8, 64), b=normal(64, 8))
    y = ops.matmul(w["a"], w["b"])
    planned, _ = w.planned(m, {"a": split(m, (8, 64), {1: "x"}), "b": split(m, (64, 8), {0: "x"})}, [y])
    assert collectives(planned) == ["all_reduce"]


def test_elementwise_chains() -> None:
    m = mesh(x=2, y=3)
    w = Writing(a=normal(7, 10), b=normal(10))
    y = ops.neg(ops.tanh(ops.exp(ops.mul(ops.relu(w["a"]), w["b"]))))
    planned, (made,) = w.planned(m, {"a": split(m, (7, 10), {0: "x", 1: "y"}), "b": split(m, (10,), {0: "y"})}, [y])
    assert collectives(planned) == []
    assert repr(made.layout) == "[7@x 10@y]"


def test_a_gather_is_paid_once() -> None:
    """Two products with weights that want it whole."""
    m = mesh(x=2)
    w = Writing(x=normal(6, 64), a=normal(64, 32), b=normal(64, 32))
    ys = [ops.matmul(w["x"], w[p]) for p in "ab"]
    layouts = {"x": split(m, (6, 64), {0: "x"}), "a": split(m, (64, 32), {1: "x"}), "b": split(m, (64, 32), {1: "x"})}
    planned, _ = w.planned(m, layouts, ys)
    assert collectives(planned) == ["all_gather"]


def test_gradients_are_accumulated_without_reducing() -> None:
    """Two programs add them up, the third reduces them once."""
    m = mesh(x=2)
    x, v = normal(6, 16), normal(16, 8)
    rows = split(m, x.shape, {0: "x"})
    first = Writing(x=x, w=v)
    (g,) = first.grads(ops.sum(ops.matmul(first["x"], first["w"]), dims=(0, 1), keepdim=False), ["w"])
    planned, (grad,) = first.planned(m, {"x": rows}, [g])
    assert (collectives(planned), repr(grad.layout)) == ([], "[] sum x")

    second = Writing(x=x, w=v, g=read(grad))
    (more,) = second.grads(ops.sum(ops.matmul(second["x"], second["w"]), dims=(0, 1), keepdim=False), ["w"])
    planned, (grad,) = second.planned(m, {"x": rows, "g": grad.layout}, [ops.add(second["g"], more)], {0: "g"})
    assert (collectives(planned), repr(grad.layout)) == ([], "[] sum x")

    third = Writing(w=v, g=read(grad))
    planned, (new,) = third.planned(m, {"g": grad.layout}, [ops.sgd(third["w"], third["g"], 0.1, 0.0)], {0: "w"})
    assert collectives(planned) == ["all_reduce"]
    assert new.layout.is_whole


def test_clipping_by_the_norm_reduces_one_number() -> None:
    """Of sharded gradients: the squares are added up where they are."""
    m = mesh(x=4)
    w = Writing(a=normal(40, 8), b=normal(8, 40))
    total = sum_of_squares(w["a"]) + sum_of_squares(w["b"])
    scale = ops.rsqrt(total)
    layouts = {"a": split(m, (40, 8), {0: "x"}), "b": split(m, (8, 40), {1: "x"})}
    planned, made = w.planned(m, layouts, [ops.mul(w[p], scale) for p in "ab"])
    assert collectives(planned) == ["all_reduce"]
    assert received_nbytes(planned, 0) == 2 * 8 * 3 / 4
    assert [v.layout for v in made] == list(layouts.values())


def sum_of_squares(x: Any) -> Any:
    return ops.sum(ops.mul(x, x), dims=(0, 1), keepdim=False)


# -- how values travel -----------------------------------------------------------------------


def test_sixteen_bits_are_added_in_thirty_two() -> None:
    m = mesh(x=2)
    one = layout(m, (), {"x": "sum"})
    for n in (4, 16384):  # reduced everywhere, and scattered
        x = np.ones(n, np.float16)
        checked, _, numbers = one_op(TABLE["relu"], [x], {})
        planned = plan_program(checked, [one], m, {})
        (value,) = run_planned(planned, checked, [Value(one, spec_of(x), [x, x])], numbers)
        np.testing.assert_array_equal(read(value), 2 * x)
        casts = [ins.attrs["dtype"] for ins in planned.locals[0].program.code if ins.op == "cast"]
        assert casts == ["float32", "float16"]


@pytest.mark.parametrize("kind", ["max", "min"])
@pytest.mark.parametrize("at", [0, 1])
def test_a_nan_survives_max_and_min_on_every_worker(kind: str, at: int) -> None:
    m = mesh(x=2)
    one = layout(m, (), {"x": kind})
    parts = [np.array([1.0, np.inf, -np.inf]), np.array([2.0, 3.0, -np.inf])]
    parts[at] = parts[at].copy()
    parts[at][0] = np.nan
    checked, _, numbers = one_op(TABLE["exp"], [parts[0]], {})
    planned = plan_program(checked, [one], m, {})
    (value,) = run_planned(planned, checked, [Value(one, spec_of(parts[0]), parts)], numbers)
    want = np.exp((np.maximum if kind == "max" else np.minimum)(*parts))
    for part in value.parts:
        np.testing.assert_array_equal(part, want)
    assert collectives(planned) == ["all_reduce"]


def test_rows_come_together_without_shuffling() -> None:
    """A gather along the first dimension is the collective and nothing else."""
    m = mesh(x=3)
    checked, _, _ = one_op(TABLE["sort"], [normal(7, 4)], {"dim": 0, "descending": False, "stable": True})
    planned = plan_program(checked, [split(m, (7, 4), {0: "x"})], m, {})
    assert [ins.op for ins in planned.locals[0].program.code] == ["reshape", "all_gather", "reshape", "sort"]
    assert planned.notes == ("sort: gathers [7@x] of f64[7,4] (dim 0 must be whole)",)


# -- layouts ---------------------------------------------------------------------------------


def test_what_is_made_of_numbers_is_made_where_it_is_used() -> None:
    """Each worker makes its own part, with the numbers that one worker would draw."""
    m = mesh(x=4)
    w = Writing(x=normal(40, 6))
    noise = w.trace.add(ops.randn, (5,), {"shape": (40, 6), "dtype": "float64"})
    planned, (y,) = w.planned(m, {"x": split(m, (40, 6), {0: "x"})}, [ops.add(w["x"], ops.mul(noise, 0.1))])
    assert collectives(planned) == []
    assert repr(y.layout) == "[40@x]"
    assert max(planned.nbytes.values()) < 40 * 6 * 8 * 2


def test_pins() -> None:
    m, stage = mesh(x=2, y=2), mesh([2, 3], z=2)
    w = Writing(x=normal(8, 6))
    a = ops.shard(w["x"], layout="[8@x 6@y]")
    b = ops.shard(ops.relu(a), layout="stage: [8@z]")
    c = ops.shard(ops.exp(b), layout="")
    checked, scalars = written_down(w.trace, [w["x"]], [a, b, c])
    planned, made = planned_values(checked, [w.arrays["x"]], scalars, [layout(m)], m, RNG, {"stage": stage})
    assert [v.layout for v in made] == [split(m, (8, 6), {0: "x", 1: "y"}), split(stage, (8, 6), {0: "z"}), layout(m)]
    for value, want in zip(made, unsharded(checked, [w.arrays["x"]], scalars), strict=True):
        assert close(read(value), want, value.spec.dtype)
    assert planned.workers == (0, 1, 2, 3)
    for text, said in [("[9@x]", "does not fit a tensor"), ("[8@q]", "no axis"), ("[8@x,x]", "twice"),
                       ("here: []", "no mesh 'here'; it has stage"), ("8@x", "expected text like")]:  # fmt: skip
        bad, _, _ = one_op(TABLE["shard"], [w.arrays["x"]], {"layout": text})
        with pytest.raises(GTError, match=said):
            plan_program(bad, [layout(m)], m, {"stage": stage})


def test_an_input_of_other_workers() -> None:
    """They take part, hold no part of a tensor of other workers, and return none."""
    m, away = mesh([0, 1], x=2), mesh([5, 6, 7], y=3)
    w = Writing(x=normal(9, 4), y=normal(9, 4))
    layouts = {"x": split(away, (9, 4), {0: "y"}), "y": layout(m)}
    sent = ops.shard(ops.relu(w["x"]), layout="[9@x]")
    planned, _ = w.planned(m, layouts, [sent, ops.exp(w["x"])], {1: "x"})
    assert planned.workers == (0, 1, 5, 6, 7)
    first, last = planned.locals[0].program, planned.locals[7].program
    assert [tuple(s) for s, _ in first.inputs] == [(0,), (9, 4)]
    assert [tuple(s) for s, _ in last.inputs] == [(3, 4), (0,)]
    assert (first.donate, first.updates) == ((), ())
    assert (last.donate, last.updates) == ((0,), ((1, 0),))
    assert {p.program.workers for p in planned.locals.values()} == {planned.workers}


def test_one_worker_needs_no_others() -> None:
    m = mesh([3])
    w = Writing(x=normal(4))
    planned, _ = w.planned(m, {}, [ops.shard(ops.relu(w["x"]), layout=""), ops.shard(w["x"], layout="[]")])
    assert planned.workers == (3,)
    assert planned.locals[3].program.workers == ()


@pytest.mark.parametrize("axes", [{"x": 2}, {"x": 3}, {"x": 2, "y": 2}])
def test_the_same_plan_twice(axes: dict[str, int]) -> None:
    """A plan is a function of the program, the layouts and the meshes."""
    m = mesh(**axes)
    w = Writing(x=normal(7, 10), w=normal(10, 11))
    checked, _ = written_down(w.trace, [w["x"], w["w"]], [ops.softmax(ops.matmul(w["x"], w["w"]), dim=0)])
    layouts = [split(m, (7, 10), {0: "x"}), split(m, (10, 11), {1: "x"})]
    one, two = (plan_program(checked, layouts, m, {}) for _ in range(2))
    assert one.outputs == two.outputs
    assert {k: v.program.hash() for k, v in one.locals.items()} == {k: v.program.hash() for k, v in two.locals.items()}


# -- what is remembered, and what is needed --------------------------------------------------


@pytest.mark.parametrize("model", ["mlp", "cnn", "gpt"])
def test_what_is_remembered_changes_nothing(model: str) -> None:
    """A plan out of known pieces, some of them of another plan, is the plan that is made of nothing."""
    checked = step_of(model)
    for _, m, layouts in cases(checked):
        forget()
        first = hashes(plan_program(checked, layouts, m, {}))
        others = [layout(m) for _ in layouts]
        plan_program(checked, others, m, {})
        assert hashes(plan_program(checked, layouts, m, {})) == first
        forget()
        plan_program(checked, others, m, {})
        assert hashes(plan_program(checked, layouts, m, {})) == first


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = step_of("mlp")
    _, m, layouts = next(iter(cases(checked)))
    forget()
    first = hashes(plan_program(checked, layouts, m, {}))
    count = len(decide.decisions)
    assert count > 10
    monkeypatch.setattr(decide, "LIMIT", count - 1)
    assert hashes(plan_program(checked, layouts, m, {})) == first
    assert len(decide.decisions) == count, "all were forgotten, and decided again"
    other = [layout(m) for _ in layouts]
    plan_program(checked, other, m, {})
    assert 0 < len(decide.decisions) < 2 * count


def hashes(planned: Planned) -> list[bytes]:
    return [each.program.hash() for each in planned.locals.values()]


@pytest.mark.parametrize("model", ["mlp", "cnn", "gpt"])
def test_workers_number_their_values_alike(model: str) -> None:
    """Also of uneven shards: what is written for one worker is then written for all."""
    checked = step_of(model)
    for _, m, layouts in cases(checked):
        planned = plan_program(checked, layouts, m, {})
        texts = [([ins.results for ins in e.program.code], e.program.outputs) for e in planned.locals.values()]
        assert all(text == texts[0] for text in texts)


@pytest.mark.parametrize("model", ["mlp", "cnn", "gpt"])
def test_the_memory_of_a_plan(model: str) -> None:
    """What is alive at once in a worker's program, as its instructions say it."""
    checked = step_of(model)
    for _, m, layouts in cases(checked):
        planned = plan_program(checked, layouts, m, {})
        for worker, each in planned.locals.items():
            least = peak_nbytes(each.program)
            # An operand counts until an action is done with all of them, and an action may be several instructions.
            assert least <= planned.nbytes[worker] <= 1.1 * least


def peak_nbytes(program: Program) -> int:
    """The most bytes of results at once. Views take none, nor does what is written over a donated input."""
    specs = check(program).specs
    replaced = {program.outputs[o]: i for o, i in program.updates if i in program.donate}
    last = {a: i for i, ins in enumerate(program.code) for a in ins.args}
    last |= dict.fromkeys(program.outputs, len(program.code))
    alive = most = 0
    number = len(program.inputs)
    dies: dict[int, int] = {}
    for i, ins in enumerate(program.code):
        op = TABLE[ins.op]
        for k in range(ins.results):
            over = k < len(op.inplace) and replaced.get(number + k) == ins.args[op.inplace[k]]
            nbytes = 0 if op.aliases or over else specs[number + k].nbytes
            alive += nbytes
            at = max(last.get(number + k, i), i)
            dies[at] = dies.get(at, 0) + nbytes
        number += ins.results
        most = max(most, alive)
        alive -= dies.get(i, 0)
    return most


# -- what must fail still fails --------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "args", "attrs", "texts"),
    [
        ("embedding", (normal(10, 4), np.array([1, 10])), {}, ["[10@x]", "[]"]),
        ("embedding", (normal(10, 4), np.array([1, -1])), {}, ["[10@x]", "[2@x]"]),
        ("gather", (normal(3, 10), np.array([[1], [10], [0]])), {"dim": 1}, ["[. 10@x]", "[]"]),
        ("index_select", (normal(10, 4), np.array([11])), {"dim": 0}, ["[10@x]", "[]"]),
        ("one_hot", (np.array([3, 5]),), {"n": 5}, ["[2@x]"]),
        ("cross_entropy", (normal(4, 6), np.array([0, 1, 2, 6])),
         {"reduction": "mean", "ignore_index": -100, "smoothing": 0.0}, ["[. 6@x]", "[]"]),
        ("slice", (normal(17, 4), 12), {"dims": (0,), "lengths": (6,), "steps": (1,), "drop": ()}, ["[17@x]"]),
        ("slice", (normal(17, 4), -1), {"dims": (0,), "lengths": (6,), "steps": (1,), "drop": ()}, ["[17@x]"]),
        ("slice_put", (normal(17, 4), normal(6, 4), 12), {"dims": (0,), "lengths": (6,), "steps": (1,), "drop": ()},
         ["[17@x]", "[]"]),
        ("slice_dx", (normal(6, 4), 12), {"shape": (17, 4), "dims": (0,), "lengths": (6,), "steps": (1,), "drop": ()},
         ["[6@x]"]),
    ],
)  # fmt: skip
def test_an_index_out_of_range(name: str, args: Any, attrs: dict[str, Any], texts: list[str]) -> None:
    """Also where each worker answers for a part of the dimension, and would give zeros for the rest."""
    m = mesh(x=2)
    checked, arrays, numbers = one_op(TABLE[name], args, attrs)
    layouts = [parse(text, m) for text in texts]
    planned = plan_program(checked, layouts, m, {})
    values = [place(a, one, RNG) for a, one in zip(arrays, layouts, strict=True)]
    with pytest.raises(IndexOutOfRange):
        run_planned(planned, checked, values, numbers)


def test_collectives_that_do_not_match_are_refused() -> None:
    """The proof that the collectives of all workers match finds what does not."""
    m = mesh(x=2)
    checked, _, _ = one_op(TABLE["sort"], [normal(7, 4)], {"dim": 0, "descending": False, "stable": True})
    planned = plan_program(checked, [split(m, (7, 4), {0: "x"})], m, {})
    codes = {worker: each.program.code for worker, each in planned.locals.items()}
    prove(codes)
    for change in ({"sizes": (12, 15)}, {"rank": 0}, None):
        code = [
            msgspec.structs.replace(ins, attrs={**ins.attrs, **change}) if change and ins.op == "all_gather" else ins
            for ins in codes[1]
            if change or ins.op != "all_gather"
        ]
        with pytest.raises(GTError, match="workers"):
            prove({**codes, 1: code})


def test_a_layout_that_does_not_fit_is_refused() -> None:
    m = mesh(x=2)
    checked, _, _ = one_op(TABLE["relu"], [normal(4)], {})
    with pytest.raises(GTError):
        plan_program(checked, [split(m, (5,), {0: "x"})], m, {})
    with pytest.raises(ArgumentError):
        parse("[4@y]", m)
