"""The work of ops in floating-point operations."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from gt import dtypes
from gt.ops import TABLE, Op
from gt.ops.work import flops
from gt.program import SCALARS, Spec, spec
from tests.ops.cases import ops, samples, specs_of


def f32(*shape: int) -> Spec:
    return spec(shape, dtypes.float32)


def int64(*shape: int) -> Spec:
    return spec(shape, dtypes.int64)


CONV = {"stride": (2, 2), "padding": (1, 1), "dilation": (1, 1), "groups": 2}
N, D, V = 32, 64, 1000
NUMBER = SCALARS["f"]

#: (op, operands, attributes, floating-point operations)
CASES: list[tuple[str, list[Spec], dict[str, Any], int]] = [
    ("add", [f32(N, D), f32(D)], {}, N * D),
    ("eq", [f32(N, D), f32(D)], {}, 0),
    ("cast", [f32(N, D)], {"dtype": "bfloat16"}, 0),
    ("reshape", [f32(N, D)], {"shape": (D, N)}, 0),
    ("matmul", [f32(3, N, D), f32(D, V)], {}, 2 * 3 * N * D * V),
    ("matmul", [f32(D), f32(D)], {}, 2 * D),
    ("linear", [f32(N, D), f32(V, D), f32(V)], {}, 2 * N * D * V + N * V),
    ("conv", [f32(4, 6, 8, 8), f32(10, 3, 3, 3)], CONV, 2 * (4 * 10 * 4 * 4) * 3 * 9),
    ("conv_dx", [f32(4, 10, 4, 4), f32(10, 3, 3, 3)], {**CONV, "sizes": (8, 8)}, 2 * (4 * 10 * 4 * 4) * 3 * 9),
    ("conv_dw", [f32(4, 10, 4, 4), f32(4, 6, 8, 8)], {**CONV, "kernel": (3, 3)}, 2 * (4 * 10 * 4 * 4) * 3 * 9),
    ("sum", [f32(N, D)], {"dims": (1,), "keepdim": False}, N * D),
    ("mean", [f32(N, D)], {"dims": (1,), "keepdim": False}, N * D + N),
    # The largest, minus it, exp, sum, divided.
    ("softmax", [f32(N, D)], {"dim": 1}, 5 * N * D),
    # mean; minus it; squared, mean; + eps, rsqrt; times that, the weight and the bias.
    ("layer_norm", [f32(N, D), f32(D), f32(D)], {"n": 1, "eps": 1e-5}, 7 * N * D + 4 * N),
    ("mse_loss", [f32(N, D), f32(N, D)], {"reduction": "mean"}, 3 * N * D + 1),
    ("nll_loss", [f32(N, V), int64(N)], {"reduction": "sum", "ignore_index": -100}, N),
    ("embedding", [f32(V, D), int64(N)], {}, 0),
    ("sgd", [f32(N, D), f32(N, D), NUMBER, NUMBER], {}, 4 * N * D),
    ("adamw", [f32(N, D)] * 4 + [NUMBER] * 5 + [SCALARS["i"]], {}, 14 * N * D),
    ("linalg_cholesky_ex", [f32(4, 12, 12)], {"upper": False}, 4 * 12**3 // 3),
]


@pytest.mark.parametrize(("name", "specs", "attrs", "want"), CASES, ids=[c[0] for c in CASES])
def test_exact_counts(name: str, specs: list[Spec], attrs: dict[str, Any], want: int) -> None:
    assert flops(TABLE[name], specs, attrs) == want


def test_attention_is_two_products_and_a_softmax() -> None:
    b, h, n, m, e = 2, 4, 128, 256, 64
    operands = [f32(b, h, n, e), f32(b, h, m, e), f32(b, h, m, e)]
    products, scores = 4 * b * h * n * m * e, b * h * n * m
    assert products <= flops(TABLE["attention"], operands, {"causal": False, "scale": 1.0, "dmask": False})
    assert flops(TABLE["attention"], operands, {"causal": False, "scale": 1.0, "dmask": False}) < products + 12 * scores
    g, total = f32(b, h, n, e), f32(b, h, n)
    back = flops(TABLE["attention_d"], [g, *operands, g, total], {"causal": False, "scale": 1.0})
    assert 2.5 * products <= back < 2.5 * products + 12 * scores


def test_products_are_counted_as_torch_counts_them() -> None:
    x, w = torch.ones(4, 6, 9, 9), torch.ones(8, 6, 3, 3)
    a, b = torch.ones(5, 7), torch.ones(7, 3)
    with FlopCounterMode(display=False) as counter:
        torch.nn.functional.conv2d(x, w, stride=2)
        a @ b
    attrs = {"stride": (2, 2), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
    ours = flops(TABLE["conv"], [f32(*x.shape), f32(*w.shape)], attrs) + flops(
        TABLE["matmul"], [f32(5, 7), f32(7, 3)], {}
    )
    assert counter.get_total_flops() == ours


@ops()
def test_every_op_has_its_work(op: Op) -> None:
    """An int, not negative, and nothing where there are no elements (but in a composition may be rows of none)."""
    for args, attrs in samples(op):
        specs = specs_of(args)
        work = flops(op, specs, attrs)
        assert type(work) is int
        assert work >= 0
        results = op.infer(*specs, **attrs)
        every = (*[s for s in specs if not s.weak], *(results if isinstance(results, tuple) else (results,)))
        if op.compose is None and not any(math.prod(s.shape) for s in every):
            assert work == 0
        if op.moves or op.collective:
            assert work == 0
