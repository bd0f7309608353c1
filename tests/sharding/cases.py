"""Which ops are tried on shards, and uses of them with sizes that no mesh divides: 7, 10 and 11, and some below it.

Every sample of every op is a use. Samples are small, many below the mesh; so for each op there are larger uses too:
those written down in `cases`, or a sample that `grown` repeats along the factors of its rule.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from gt.errors import GTError
from gt.ops import TABLE, Op
from gt.ops.engines import EXCEPTIONS
from gt.ops.sharding import Bound, bind
from gt.program import as_tuple
from tests.sharding.simulate import plain, spec_of

#: Collectives work on flat arrays, which have no layout; ops that need torch on the worker too are not simulated.
OPS: list[Op] = [op for op in TABLE.values() if not op.collective and op.name not in EXCEPTIONS]

Case = tuple[str, tuple[Any, ...], dict[str, Any]]
Sample = tuple[Sequence[Any], dict[str, Any]]

SIZES = (7, 10, 11)


def uses(op: Op) -> list[Sample]:
    """Every sample of an op, and larger ones."""
    samples = op.samples(np.random.default_rng(0))
    mine = written().get(op.name, [])
    return [*samples, *mine, *grown(op, [*mine, *samples])]


@cache
def written() -> dict[str, list[Sample]]:
    found: dict[str, list[Sample]] = {}
    for name, args, attrs in [*cases(), *more()]:
        found.setdefault(name, []).append((args, attrs))
    return found


def bound_of(op: Op, sample: Sample) -> Bound:
    args, attrs = sample
    specs = [spec_of(a) for a in args]
    return bind(op, specs, as_tuple(op.infer(*specs, **attrs)), attrs)


def large(op: Op, sample: Sample) -> set[str]:
    """The factors that may be split, and that have 7, 10 or 11 elements or are windows of so many."""
    bound = bound_of(op, sample)
    found = {f for f, n in bound.sizes.items() if n in SIZES}
    found |= {bound.inputs[k][d][0] for k, d in bound.rule.windows if sample[0][k].shape[d] in SIZES}
    return found & set(bound.splittable())


def grown(op: Op, samples: Sequence[Sample]) -> Iterator[Sample]:
    """Samples repeated along their factors to the sizes 7, 10 and 11, until each factor was so large at least once.
    Where more than the shapes of operands and the attribute `shape` says a factor's size, it stays as it is."""
    reached = set().union(*(large(op, sample) for sample in samples))
    for sample in samples:
        missing = [f for f in bound_of(op, sample).splittable() if f not in reached]
        sizes = dict(zip(missing, itertools.cycle(SIZES), strict=False))
        # All of them at once if that is possible, else one at a time.
        for tried in [sizes, *({f: n} for f, n in sizes.items())]:
            larger = resized(op, sample, {f: n for f, n in tried.items() if f not in reached})
            if larger is not None:
                reached |= large(op, larger)
                yield larger


def resized(op: Op, sample: Sample, sizes: dict[str, int]) -> Sample | None:
    """The sample with factors of other sizes; None if it has none of them or the op cannot do that."""
    bound, args, attrs = bound_of(op, sample), list(sample[0]), dict(sample[1])
    changed = False
    for k, a in enumerate(args):
        for d, dim in enumerate(bound.inputs[k]):
            if len(dim) == 1 and dim[0] in sizes and isinstance(a, np.ndarray):
                args[k], changed = repeated(args[k], d, sizes[dim[0]]), True
    shape = attrs.get("shape")
    if shape is not None and len(shape) == len(bound.outputs[0]):
        attrs["shape"] = tuple(sizes.get(dim[0], n) if len(dim) == 1 else n
                               for dim, n in zip(bound.outputs[0], shape, strict=True))  # fmt: skip
    try:
        if changed or attrs != sample[1]:
            bound_of(op, (args, attrs))
            plain(op, args, attrs)
            return args, attrs
    except (GTError, ValueError, IndexError):
        pass
    return None


def repeated(a: np.ndarray, dim: int, n: int) -> np.ndarray:
    """Of size n along a dimension. Each copy is a little smaller, so that what is put in a wrong place is seen."""
    at = np.arange(n)
    scale = 1 - (at // a.shape[dim]) / 64
    larger = a.take(at % a.shape[dim], dim)
    if a.dtype.kind not in "fc":
        return larger
    return (larger * scale.reshape([-1 if d == dim else 1 for d in range(a.ndim)])).astype(a.dtype)


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


def more() -> list[Case]:
    """Larger uses of ops whose attributes say sizes in ways of their own."""
    rng = np.random.default_rng(4)

    def r(*shape: int) -> np.ndarray:
        return rng.normal(size=shape)

    pool: dict[str, Any] = {"kernel": (3,), "stride": (1,), "padding": (1,), "ceil_mode": False}
    largest: dict[str, Any] = {**pool, "dilation": (1,)}
    average: dict[str, Any] = {**pool, "include_pad": False, "divisor": None}
    plane: dict[str, Any] = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
    cut: dict[str, Any] = {"dims": (0,), "lengths": (7,), "steps": (2,), "drop": ()}
    _, at = plain(TABLE["max_pool"], (r(3, 4, 11),), largest)
    return [
        ("max_pool_dx", (r(3, 4, 11), at), {"sizes": (11,), **largest}),
        ("avg_pool_dx", (r(3, 4, 11),), {"sizes": (11,), **average}),
        ("conv_dx", (r(2, 4, 7, 10), r(4, 3, 3, 3)), {"sizes": (7, 10), **plane}),
        ("conv", (r(2, 7, 6), r(14, 1, 3)), {"stride": (1,), "padding": (1,), "dilation": (1,), "groups": 7}),
        ("slice", (r(17, 10), 3), cut),
        ("slice_dx", (r(7, 10), 3), {"shape": (17, 10), **cut}),
    ]
