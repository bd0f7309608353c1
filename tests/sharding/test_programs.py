"""Whole training steps on shards: forward, backward and update, from parameters and data in any layout."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from gt.dispatcher.planner.plan import plan_program
from gt.layout import Layout, Mesh, layout, mesh, split
from gt.ops import check
from gt.ops.evaluate import run
from gt.ops.record import ops
from gt.ops.trace import Symbol, Trace
from gt.program import Instruction, Program
from tests.ops.cases import backward
from tests.sharding.layouts import MESHES, drawn
from tests.sharding.simulate import ENGINE, Log, apply, close, collectives, place, read, spec_of

Arrays = dict[str, np.ndarray]
RNG = np.random.default_rng(7)


def transformer() -> tuple[Arrays, Any]:
    """One block of a language model, 2 heads of 3, 7 positions of at most 8, a vocabulary of 11."""
    values: Arrays = {
        "ids": RNG.integers(0, 11, size=(3, 7)),
        "targets": RNG.integers(0, 11, size=(21,)),
        **{
            name: RNG.normal(size=shape) * 0.5
            for name, shape in {
                "words": (11, 6), "places": (8, 6), "scale": (6,), "shift": (6,), "qkv": (18, 6), "out": (6, 6),
                "head": (11, 6), "bias": (11,),
            }.items()
        },
    }  # fmt: skip

    def loss(v: dict[str, Symbol]) -> Any:
        cut = {"dims": (0,), "lengths": (7,), "steps": (1,), "drop": ()}
        x = ops.embedding(v["words"], v["ids"]) + ops.slice(v["places"], 0, **cut)  # (3, 7, 6)
        n, _, _ = ops.layer_norm(x, v["scale"], v["shift"], n=1, eps=1e-5)
        parts = ops.split(ops.linear(n, v["qkv"]), sizes=(6, 6, 6), dim=2)
        heads = [ops.permute(ops.reshape(p, shape=(3, 7, 2, 3)), dims=(0, 2, 1, 3)) for p in parts]
        mixed, _ = ops.attention(*heads, causal=True, scale=0.6, dmask=False)
        y = ops.reshape(ops.permute(mixed, dims=(0, 2, 1, 3)), shape=(3, 7, 6))
        x = x + ops.linear(y, v["out"])
        logits = ops.reshape(ops.linear(x, v["head"], v["bias"]), shape=(21, 11))
        return ops.cross_entropy(logits, v["targets"], reduction="mean", ignore_index=-100, smoothing=0.0)[0]

    return values, loss


def network() -> tuple[Arrays, Any]:
    """A small convolutional network with batch norm."""
    values: Arrays = {
        "images": RNG.normal(size=(5, 3, 8, 7)),
        "targets": RNG.integers(0, 4, size=(5,)),
        **{
            name: RNG.normal(size=shape) * 0.5
            for name, shape in {
                "conv": (4, 3, 3, 3),
                "scale": (4,),
                "shift": (4,),
                "head": (4, 4 * 4 * 3),
                "bias": (4,),
            }.items()
        },
    }

    def loss(v: dict[str, Symbol]) -> Any:
        x = ops.conv(v["images"], v["conv"], stride=(1, 1), padding=(1, 1), dilation=(1, 1), groups=1)
        x = ops.relu(ops.batch_norm(x, v["scale"], v["shift"], running=False, eps=1e-5)[0])
        x, _ = ops.max_pool(x, kernel=(2, 2), stride=(2, 2), padding=(0, 0), dilation=(1, 1), ceil_mode=False)
        x = ops.linear(ops.reshape(x, shape=(5, 48)), v["head"], v["bias"])
        return ops.cross_entropy(x, v["targets"], reduction="mean", ignore_index=-100, smoothing=0.0)[0]

    return values, loss


class Step:
    """One training step written down: the loss, and every parameter after gradient descent."""

    def __init__(self, model: Any) -> None:
        self.values, loss_of = model()
        self.trace = Trace()
        self.inputs = {name: self.trace.symbol(spec_of(a)) for name, a in self.values.items()}
        loss = loss_of(self.inputs)
        parameters = [
            s for s in self.inputs.values() if s.dtype.is_floating_point and s is not self.inputs.get("images")
        ]
        one = self.trace.add(ops.full, (1.0,), {"shape": (), "dtype": "float64"})
        grads = backward(self.trace, [(loss, one)], parameters)
        self.results = [loss, *(ops.sgd(p, g, 0.1, 0.0) for p, g in zip(parameters, grads, strict=True))]
        self.wanted = [np.asarray(a) for a in run(self.trace, self.results, list(self.values.values()), ENGINE.kernel)]

    def sharded(self, m: Mesh, layouts: dict[str, Layout], log: Log) -> list[Any]:
        draws = np.random.default_rng(0)
        known: dict[int, Any] = {s.number: place(self.values[n], layouts[n], draws) for n, s in self.inputs.items()}
        for op, args, attrs, numbers in self.trace.code:
            actual = [known[a.number] if isinstance(a, Symbol) else a for a in args]
            known.update(zip(numbers, apply(op, actual, attrs, m, log), strict=True))
        return [known[r.number] for r in self.results]

    def check(self, m: Mesh, layouts: dict[str, Layout]) -> tuple[list[Any], list[str]]:
        log: Log = []
        made = self.sharded(m, layouts, log)
        for value, want in zip(made, self.wanted, strict=True):
            assert close(read(value), want, value.spec.dtype), layouts
        return made, list(collectives(log))


STEPS = {"transformer": Step(transformer), "network": Step(network)}


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("m", MESHES, ids=repr)
def test_from_any_layout(name: str, m: Mesh) -> None:
    step, rng = STEPS[name], random.Random(f"{name} {m!r}")
    for _ in range(2):
        kinds = {n: () if a.dtype.kind == "i" else ("sum",) for n, a in step.values.items()}
        step.check(m, {n: drawn(rng, m, a.shape, kinds[n]) for n, a in step.values.items()})


@pytest.mark.parametrize("name", STEPS)
def test_data_parallel(name: str) -> None:
    """The batch split, everything else whole."""
    step, m = STEPS[name], mesh(x=3)
    data = {"ids", "images"}
    layouts = {n: split(m, a.shape, {0: "x"} if n in data else {}) for n, a in step.values.items()}
    step.check(m, layouts)


def test_everything_whole_communicates_nothing() -> None:
    for step in STEPS.values():
        m = mesh(x=2)
        _, kinds = step.check(m, {n: layout(m) for n in step.values})
        assert kinds == []


def test_weights_split_as_megatron_does() -> None:
    """Heads, and the vocabulary, over two workers: the weights are updated in their layouts."""
    step, m = STEPS["transformer"], mesh(x=2)
    dims = {"qkv": None, "out": {1: "x"}, "head": {0: "x"}, "bias": {0: "x"}, "words": {0: "x"}}
    layouts = {n: split(m, a.shape, dims.get(n) or {}) for n, a in step.values.items()}
    layouts["qkv"] = layout(m, [((3, ()), (6, ("x",)))])
    made, _ = step.check(m, layouts)
    kept = dict(zip([n for n in step.values if n not in ("ids", "targets")], made[1:], strict=True))
    assert kept["qkv"].layout is layouts["qkv"]
    assert kept["head"].layout is layouts["head"]


@pytest.mark.parametrize(("m", "checks"), [(mesh(x=3), [0]), (mesh(x=2, y=2), [0, 2])], ids=str)
def test_what_a_worker_runs_is_known_by_what_it_is_run_for(m: Mesh, checks: list[int]) -> None:
    """So an error names the user's op and line."""
    shapes = [((11, 4), "float64"), ((6,), "int64"), ((6,), "int64")]
    attrs = {"padding_idx": -1, "scale_grad_by_freq": False}
    loss = {"reduction": "mean", "ignore_index": -100, "smoothing": 0.0}
    code = (
        Instruction("embedding", (0, 1), attrs), Instruction("relu", (3,), {}),
        Instruction("cross_entropy", (4, 2), loss, 2),
    )  # fmt: skip
    program = Program(tuple(shapes), "", code, (5,), (), ())
    axes = [axis for axis, _ in m.axes]
    layouts = [split(m, (11, 4), dict(enumerate(axes))), layout(m), layout(m)]
    for local in plan_program(check(program), layouts, m, {}).locals.values():
        made = [(local.program.code[k].op, origin) for k, origin in enumerate(local.origins)]
        assert len(made) <= len(local.program.code)
        assert [origin for op, origin in made if op == "in_range"] == checks
        assert ("relu", 1) in made
