"""Order and statistics beside torch: forms of the call, ties, nan, nothing, gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gt
from gt.errors import ArgumentError, DTypeError, ShapeError
from tests.beside_torch import agree, compare
from tests.client.mistakes import Mistakes, refused

pytestmark = pytest.mark.usefixtures("session")

X = np.array([[3.0, -1.0, 2.0, 0.0], [0.5, 4.0, 3.0, 7.0]], np.float32)
TIES = np.array([[2.0, 1.0, 2.0, 1.0, 3.0], [0.0, 0.0, 5.0, 5.0, 5.0]], np.float32)
NAN = np.array([[3.0, np.nan, 2.0, 1.0], [np.nan, np.nan, 1.0, np.nan]], np.float32)
I = np.array([[3, 0, 2, 2], [1, 3, 3, 0], [3, 0, 2, 2]])  # noqa: E741 - integers, beside X
NONE = np.zeros((0, 3), np.float32)

#: (the data, what is done with it): written once, run on both.
FORMS: list[tuple[Any, Callable[[Any, Any], Any]]] = [
    (X, lambda lib, x: tuple(x.sort()) + tuple(x.sort(0, descending=True)) + (x.argsort(1), lib.msort(x))),
    (TIES, lambda lib, x: tuple(x.sort(stable=True)) + tuple(x.sort(dim=1, descending=True, stable=True))),
    (NAN, lambda lib, x: tuple(x.sort(stable=True)) + tuple(x.sort(descending=True, stable=True))),
    (X > 0, lambda lib, x: x.sort(stable=True)),
    (X, lambda lib, x: tuple(x.topk(2)) + tuple(x.topk(1, 0, largest=False)) + tuple(x.topk(0))),
    (X, lambda lib, x: tuple(x.kthvalue(2)) + tuple(lib.kthvalue(x, 1, 0, keepdim=True))),
    (X, lambda lib, x: (x.median(), x.nanmedian(), *x.median(1), *x.nanmedian(0, keepdim=True))),
    (NAN, lambda lib, x: (x.median(), x.nanmedian(), x.median(1).values, *x.nanmedian(1))),
    (TIES, lambda lib, x: tuple(x.mode()) + tuple(lib.mode(x, 0, keepdim=True))),
    (I, lambda lib, x: (*x.mode(), x.median(), x.sort(dim=0, stable=True).indices)),
    (X, lambda lib, x: [x.quantile(q, 1) for q in (0.0, 0.3, 1.0)] + [x.quantile(lib.tensor([0.2, 0.6]))]),
    (X, lambda lib, x: [x.quantile(0.4, 1, True, interpolation=i) for i in ("lower", "higher", "midpoint", "nearest")]),
    (NAN, lambda lib, x: (x.quantile(0.5, 1), x.nanquantile(0.5, 1), lib.nanquantile(x, lib.tensor([0.1, 0.9]), 0))),
    (I, lambda lib, x: lib.unique(x, return_inverse=True, return_counts=True)),
    (I, lambda lib, x: x.unique(dim=0, return_inverse=True, return_counts=True)),
    (I, lambda lib, x: x.unique(dim=1, return_inverse=True, return_counts=True)),
    (I, lambda lib, x: (x.unique(), x.unique(return_counts=True)[1], x[0].unique_consecutive())),
    (I, lambda lib, x: lib.unique_consecutive(x, return_inverse=True, return_counts=True)),
    (I, lambda lib, x: lib.unique_consecutive(x, return_inverse=True, return_counts=True, dim=0)),
    (NONE, lambda lib, x: lib.unique(x, return_inverse=True, return_counts=True)),
    (NONE, lambda lib, x: tuple(x.sort(0)) + tuple(x.topk(2, 1)) + tuple(x.median(1)) + tuple(x.kthvalue(1, 1))),
    (I, lambda lib, x: (x[0].bincount(), x[1].bincount(minlength=6), x[0].bincount(lib.tensor([1.0, 2.0, 3.0, 4.0])))),
    (I, lambda lib, x: (x[0, :0].bincount(), x[0, :0].bincount(minlength=2), lib.bincount(x[0], x[1]))),
    (X, lambda lib, x: (x.histc(4), lib.histc(x, 3, min=0, max=4), x[:, :1].histc(2, 3, 3), (x * 0).histc(2))),
    (X, lambda lib, x: tuple(x.histogram(4)) + tuple(lib.histogram(x, lib.tensor([0.0, 1.0, 3.0, 9.0]), density=True))),
    (X, lambda lib, x: tuple(lib.histogram(x, 3, range=(0.0, 4.0), weight=x * x))),
    (X, lambda lib, x: lib.histogramdd(x, 2).hist),
    (X, lambda lib, x: lib.searchsorted(lib.tensor([0.0, 2.0, 2.0, 5.0]), x)),
    (X, lambda lib, x: lib.searchsorted(x.sort().values, x, side="right", out_int32=True)),
    (X, lambda lib, x: (lib.searchsorted(x, x, sorter=x.argsort()), lib.searchsorted(x.sort().values[0], 1.5))),
    (X, lambda lib, x: [lib.bucketize(x, lib.tensor([0.0, 3.0]), right=r) for r in (False, True)]),
    (I, lambda lib, x: (lib.isin(x, lib.tensor([2, 3])), lib.isin(x, 2, invert=True), lib.isin(2, x))),
    (I, lambda lib, x: lib.isin(x, lib.arange(20) * 2)),
    (X, lambda lib, x: (lib.cov(x), x.cov(correction=0), lib.corrcoef(x), lib.corrcoef(x[0]), lib.cov(x[0]))),
    (X, lambda lib, x: lib.cov(x, fweights=lib.tensor([1, 2, 1, 3]), aweights=lib.tensor([0.1, 0.2, 0.3, 0.4]))),
    (X, lambda lib, x: (lib.renorm(x, 2, 0, 3.0), x.renorm(1, 1, 2.5), x.clone().renorm_(2, 0, 1.0))),
    (X[0, 0], lambda lib, x: tuple(x.sort()) + tuple(x.topk(1)) + (x.median(), x.quantile(0.3), x.unique())),
]  # fmt: skip


@pytest.mark.parametrize(("data", "f"), FORMS)
def test_forms(data: Any, f: Any) -> None:
    agree(lambda lib: f(lib, lib.tensor(data)), rtol=1e-5, atol=1e-6)


GRADIENTS: list[Callable[[Any, Any], Any]] = [
    lambda lib, x: x.sort(0, descending=True).values,
    lambda lib, x: x.topk(2).values,
    lambda lib, x: x.kthvalue(2, keepdim=True).values,
    lambda lib, x: (x.median(), x.median(1).values),
    lambda lib, x: x.quantile(0.3, 1),
    lambda lib, x: lib.corrcoef(x),
    lambda lib, x: x.renorm(2, 0, 3.0),
]


@pytest.mark.parametrize("f", GRADIENTS)
def test_gradients(f: Any) -> None:
    compare(f, X, rtol=1e-4)


def test_the_median_of_all_shares_its_gradient_among_equals() -> None:
    compare(lambda lib, x: x.median(), TIES)


def test_results_have_names() -> None:
    x = gt.tensor(X)
    for out in (x.sort(), x.topk(1), x.median(1), x.mode(), x.kthvalue(1), x.max(1), x.cummin(0)):
        assert list(out) == [out.values, out.indices]
    assert x.aminmax().max.item() == 7
    hist, edges = x.histogram(2)
    assert (hist.shape, edges.shape) == ((2,), (3,))


MISTAKES: Mistakes = {
    "topk": (lambda x: x.topk(9), ArgumentError, "topk: k must be from 0 to 4, got 9"),
    "kthvalue": (lambda x: x.kthvalue(0), ArgumentError, "kthvalue: k must be from 1 to 4, got 0"),
    "median": (lambda x: x.bool().median(), DTypeError, "median: is not defined for bool"),
    "quantile": (lambda x: x.quantile(2.0), ArgumentError, r"quantile: q must be between 0 and 1, got 2\.0"),
    "quantile (2)": (lambda x: x.half().quantile(0.5), DTypeError, "quantile: expected a float32 or float64 tensor,"),
    "quantile (3)": (lambda x: x[:, :0].quantile(0.5), ShapeError, "quantile: expected at least one element along"),
    "searchsorted": (lambda x: gt.searchsorted(x, x[0]), ShapeError, "all sizes but the last must agree"),
    "searchsorted (2)": (
        lambda x: gt.searchsorted(x, x, side="up"),
        ArgumentError,
        "searchsorted: side must be 'left' or 'right', got 'up'",
    ),
    "searchsorted (3)": (lambda x: gt.searchsorted(x, x.long()), DTypeError, "searchsorted: expected one dtype"),
    "bincount": (lambda x: x.bincount(), ArgumentError, "bincount: expected a vector of integers, got float32 of"),
    "bincount (2)": (lambda x: gt.tensor([1, -2]).bincount(), ArgumentError, "bincount: elements must be >= 0, got -2"),
    "histc": (lambda x: x.long().histc(), DTypeError, "histc: expected a floating-point tensor, got int64"),
    "cov": (lambda x: gt.cov(x[None]), ShapeError, r"cov: expected at most 2 dimensions, got shape \(1, 2, 4\)"),
    "sort": (lambda x: gt.complex(x, x).sort(), DTypeError, "sort: complex numbers are not ordered"),
}
test_mistakes = refused(MISTAKES, lambda: gt.tensor(X))
