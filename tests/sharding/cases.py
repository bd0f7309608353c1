"""Which ops are tried on shards, and uses of them with sizes that no mesh divides: 7, 10 and 11, and some below it."""

from __future__ import annotations

from typing import Any

import numpy as np

from gt.ops import TABLE, Op
from gt.ops.engines import EXCEPTIONS

#: Collectives work on flat arrays, which have no layout; ops that need torch on the worker too are not simulated.
OPS: list[Op] = [op for op in TABLE.values() if not op.collective and op.name not in EXCEPTIONS]

Case = tuple[str, tuple[Any, ...], dict[str, Any]]


def cases() -> list[Case]:
    rng = np.random.default_rng(3)

    def r(*shape: int) -> np.ndarray:
        return rng.normal(size=shape)

    def ids(n: int, *shape: int) -> np.ndarray:
        return rng.integers(0, n, size=shape)

    conv: dict[str, Any] = {"stride": (2,), "padding": (1,), "dilation": (1,), "groups": 1}
    plane: dict[str, Any] = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
    loss: dict[str, Any] = {"ignore_index": -100, "smoothing": 0.0}
    attention: dict[str, Any] = {"causal": False, "scale": 0.5}
    cut: dict[str, Any] = {"dims": (0,), "lengths": (6,), "steps": (2,), "drop": ()}
    return [
        ("add", (r(7, 10), r(10)), {}),
        ("mul", (r(7, 1, 11), r(10, 11)), {}),
        ("relu", (r(7, 10),), {}),
        ("where", (r(7, 10) > 0, r(7, 10), r(10)), {}),
        ("matmul", (r(7, 10), r(10, 11)), {}),
        ("matmul", (r(3, 7, 10), r(3, 10, 11)), {}),
        ("linear", (r(2, 7, 10), r(11, 10), r(11)), {}),
        ("sum", (r(7, 10),), {"dims": (1,), "keepdim": False}),
        ("mean", (r(7, 10),), {"dims": (0,), "keepdim": False}),
        ("mean", (r(0, 10),), {"dims": (0, 1), "keepdim": False}),
        ("var", (r(7, 10),), {"dims": (0,), "correction": 1, "keepdim": True}),
        ("amax", (r(7, 10),), {"dims": (0, 1), "keepdim": False}),
        ("argmax", (r(7, 10),), {"dim": 1, "keepdim": False}),
        ("argmax", (r(7, 10),), {"dim": None, "keepdim": False}),
        ("softmax", (r(7, 11),), {"dim": 1}),
        ("log_softmax_dx", (r(7, 11), -np.abs(r(7, 11))), {"dim": 1}),
        ("logsumexp", (r(7, 11),), {"dims": (1,), "keepdim": False}),
        ("layer_norm", (r(7, 10), r(10), r(10)), {"n": 1, "eps": 1e-5}),
        ("layer_norm_d", (r(7, 10), r(7, 10), r(7, 1), r(7, 1), r(10)), {"n": 1}),
        ("group_norm", (r(3, 10, 7), r(10), r(10)), {"groups": 5, "eps": 1e-5}),
        ("batch_norm", (r(7, 10, 3), r(10), r(10)), {"running": False, "eps": 1e-5}),
        ("cross_entropy", (r(7, 10), ids(10, 7)), {"reduction": "mean", **loss}),
        ("cross_entropy", (r(7, 10), ids(10, 7)), {"reduction": "sum", **loss}),
        ("cross_entropy_dx", (r(), -np.abs(r(7, 10)), ids(10, 7)), {"reduction": "mean", **loss}),
        ("embedding", (r(11, 10), ids(11, 7)), {}),
        ("embedding_dweight", (r(7, 10), ids(11, 7)), {"n": 11}),
        ("reshape", (r(4, 6, 5),), {"shape": (24, 5)}),
        ("reshape", (r(7, 12),), {"shape": (7, 3, 4)}),
        ("reshape", (r(10, 7),), {"shape": (2, 35)}),
        ("permute", (r(7, 10, 11),), {"dims": (2, 0, 1)}),
        ("expand", (r(7, 1),), {"shape": (3, 7, 10)}),
        ("cat", (r(7, 10), r(4, 10)), {"dim": 0}),
        ("cat", (r(7, 10), r(7, 10)), {"dim": 1}),
        ("split", (r(7, 12),), {"sizes": (4, 4, 4), "dim": 1}),
        ("slice", (r(17, 4), 3), cut),
        ("slice_put", (r(17, 4), r(6, 4), 3), cut),
        ("slice_dx", (r(6, 4), 3), {"shape": (17, 4), **cut}),
        ("pad", (r(9, 4), 1.5), {"pads": (2, 3, 0, 0)}),
        ("flip", (r(7, 10),), {"dims": (0,)}),
        ("roll", (r(7, 10),), {"shifts": (3,), "dims": (1,)}),
        ("tril", (r(7, 10),), {"diagonal": 1}),
        ("unfold", (r(11, 3),), {"dim": 0, "size": 3, "step": 2}),
        ("gather", (r(7, 10), ids(10, 7, 3)), {"dim": 1}),
        ("gather_dx", (r(7, 3), ids(10, 7, 3)), {"shape": (7, 10), "dim": 1}),
        ("scatter_add", (r(7, 10), ids(10, 7, 3), r(7, 3)), {"dim": 1}),
        ("index_select", (r(11, 7), ids(11, 10)), {"dim": 0}),
        ("index_add", (r(11, 7), ids(11, 10), r(10, 7)), {"dim": 0}),
        ("index", (r(7, 10, 3), ids(7, 5), ids(10, 5)), {"dims": (0, 1)}),
        ("cumsum", (r(7, 10),), {"dim": 1}),
        ("conv", (r(3, 4, 11), r(5, 4, 3), r(5)), conv),
        ("conv", (r(2, 3, 7, 10), r(4, 3, 3, 3)), plane),
        ("conv_dx", (r(3, 5, 6), r(5, 4, 3), r(4)), {"sizes": (11,), **conv}),
        ("conv_dw", (r(3, 5, 6), r(3, 4, 11)), {"kernel": (3,), **conv}),
        ("attention", (r(2, 3, 7, 4), r(2, 3, 10, 4), r(2, 3, 10, 4)), {"dmask": False, **attention}),
        ("attention", (r(2, 3, 7, 4), r(2, 3, 7, 4), r(2, 3, 7, 4)), {"dmask": False, "causal": True, "scale": 0.5}),
        (
            "attention_d",
            (r(2, 3, 7, 4), r(2, 3, 7, 4), r(2, 3, 10, 4), r(2, 3, 10, 4), r(2, 3, 7, 4), 2 + np.abs(r(2, 3, 7))),
            attention,
        ),
        ("adamw", (r(7, 10), r(7, 10), r(7, 10), r(7, 10) ** 2, 0.01, 0.9, 0.999, 1e-8, 0.01, 3), {}),
        ("dropout", (r(7, 10), 5), {"p": 0.5}),
        ("randn", (5,), {"shape": (7, 10), "dtype": "float64"}),
        ("arange", (2, 3), {"n": 11, "dtype": "int64"}),
        ("one_hot", (ids(11, 7),), {"n": 11}),
    ]
