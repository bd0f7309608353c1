"""Reductions and walks along a dimension, beside torch: forms of the call, types, gradients at kinks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gt
from gt.errors import ArgumentError, DimError, DTypeError, ShapeError
from tests.beside_torch import agree, compare
from tests.client.mistakes import Mistakes, refused

pytestmark = pytest.mark.usefixtures("session")

X = np.array([[3.0, -1.0, 2.0], [0.5, 3.0, 3.0]], np.float32)
NAN = np.array([[3.0, np.nan, 2.0], [np.nan, np.nan, 1.0]], np.float32)
I = np.array([[3, 0, 2], [1, 3, 3]])  # noqa: E741 - integers, beside X
Z = np.array([[1 + 2j, -1j], [0.5 + 0j, 2 - 1j]], np.complex64)
NONE = np.zeros((0, 3), np.float32)


#: (the data, what is done with it): written once, run on both.
FORMS: list[tuple[Any, Callable[[Any, Any], Any]]] = [
    (X, lambda lib, x: x.sum()),
    (X, lambda lib, x: x.sum(1)),
    (X, lambda lib, x: x.sum((0, -1), keepdim=True)),
    (X, lambda lib, x: x.sum(axis=0, keepdims=True)),
    (X, lambda lib, x: x.sum(())),
    (X, lambda lib, x: x.any(())),
    (X, lambda lib, x: x.sum(0, dtype=lib.float64)),
    (X > 0, lambda lib, x: x.sum()),
    (X > 0, lambda lib, x: x.sum(0, dtype=lib.int32)),
    (I.astype(np.uint8), lambda lib, x: (x.sum(), x.prod(), x.any(0), x.all(), x.max())),
    (I, lambda lib, x: x.float().mean(0)),
    (I, lambda lib, x: lib.mean(x, 0, dtype=lib.float64)),
    (I, lambda lib, x: x.logsumexp(0)),
    (I, lambda lib, x: x.cumsum(1)),
    (I.astype(np.int32), lambda lib, x: (x.cumsum(1), x.cumsum_(1), x.cumprod(0, dtype=lib.int16))),
    (NAN, lambda lib, x: (x.nansum(), lib.nanmean(x, 0), x.nanmean(1, keepdim=True), x.sum(), x.amax(1))),
    (X, lambda lib, x: (x.var(), x.var(False), x.var(0, True), x.std(1, correction=0), x.std((0, 1), keepdim=True))),
    (X, lambda lib, x: lib.var_mean(x, 1) + lib.std_mean(x, unbiased=False)),
    (X[:, :1], lambda lib, x: x.var(1, correction=0)),
    (X, lambda lib, x: (x.max(), x.min(), lib.max(x, lib.zeros_like(x)), lib.min(x, other=lib.zeros_like(x)))),
    (X, lambda lib, x: tuple(x.max(1)) + tuple(x.min(0, keepdim=True)) + tuple(x.max(axis=0))),
    (X > 0, lambda lib, x: tuple(x.max(1)) + tuple(x.min(0))),
    (X, lambda lib, x: (x.argmax(), x.argmin(1), x.argmax(dim=-1, keepdim=True))),
    (X, lambda lib, x: tuple(x.aminmax()) + tuple(lib.aminmax(x, dim=1, keepdim=True))),
    (X, lambda lib, x: (lib.count_nonzero(x), x.count_nonzero(1), lib.count_nonzero(x, (0, 1)))),
    (X, lambda lib, x: (x.norm(), x.norm(1), x.norm(3, 1), lib.norm(x, float("inf"), 0), lib.norm(x, "fro", (0, 1)))),
    (X, lambda lib, x: (x.norm(0, 1), x.norm(float("-inf")), lib.norm(x, 2, 1, True, dtype=lib.float64))),
    (X, lambda lib, x: (x.softmax(1), x.log_softmax(-1), lib.softmax(x, 0, dtype=lib.float64))),
    (X, lambda lib, x: tuple(x.cummax(1)) + tuple(x.cummin(0))),
    (NAN, lambda lib, x: tuple(x.cummax(1)) + tuple(x.cummin(1))),
    (X, lambda lib, x: (x.cumprod(1), x.logcumsumexp(0), x.clone().cumprod_(0), x.cumsum(axis=0))),
    (X, lambda lib, x: (x.diff(), x.diff(n=2), lib.diff(x, dim=0), x.diff(prepend=x[:, :1], append=x), x.diff(n=9))),
    (X > 0, lambda lib, x: x.diff()),
    (X, lambda lib, x: (lib.trapezoid(x), lib.trapz(x, dx=2.0), lib.trapezoid(x, lib.tensor([1.0, 2.0, 4.0]), dim=1))),
    (X, lambda lib, x: (lib.cumulative_trapezoid(x, dim=0), lib.cumulative_trapezoid(x, lib.tensor([1.0, 2.0, 4.0])))),
    (I, lambda lib, x: (lib.trapezoid(x), lib.cumulative_trapezoid(x))),
    (Z, lambda lib, x: (x.sum(), x.mean(0), x.prod(1), x.cumsum(0), x.cumprod(1), x.var(), x.std(0), x.norm(3, 0))),
    (NONE, lambda lib, x: (x.sum(), x.sum(0), x.prod(0), x.any(0), x.all(0), x.amax(1), x.cumsum(0), x.logsumexp(0))),
    (NONE, lambda lib, x: (*x.max(1), x.softmax(0), x.mean(1), x.norm(dim=0))),
    (X[0, 0], lambda lib, x: (x.sum(0), x.sum((0,)), x.softmax(-1), x.cumsum(0), x.var(correction=0), x.argmax(0))),
    (X[0, 0], lambda lib, x: tuple(x.max(0)) + tuple(x.cummin(0)) + (x.logsumexp(0), x.norm(1, 0), x.any(0))),
]  # fmt: skip


@pytest.mark.parametrize(("data", "f"), FORMS)
def test_forms(data: Any, f: Any) -> None:
    agree(lambda lib: f(lib, lib.tensor(data)), rtol=1e-5, atol=1e-6)


#: As above; the gradients of a weighted sum of the results, once and twice, are compared.
GRADIENTS: list[tuple[Any, Callable[[Any, Any], Any]]] = [
    (X, lambda lib, x: x.max(1).values),
    (X, lambda lib, x: x.max()),
    (X, lambda lib, x: x.amin(1)),
    (X, lambda lib, x: x.aminmax(dim=1)),
    (X, lambda lib, x: x.cummax(1).values),
    (X, lambda lib, x: x.std(0)),
    (X * 0 + 1, lambda lib, x: x.std(0)),
    (X * 0, lambda lib, x: x.norm(dim=1)),
    (X, lambda lib, x: x.norm(float("inf"))),
    (X, lambda lib, x: x.norm(1.5, 1)),
    (X, lambda lib, x: x.logcumsumexp(1)),
    (X, lambda lib, x: lib.trapezoid(x, x + 1.0)),
    (np.array([[0.0, 2.0, 3.0], [0.0, 0.0, 3.0]], np.float32), lambda lib, x: x.prod(1)),
    (np.array([0.0, 2.0, 0.0, 0.0], np.float32), lambda lib, x: x.prod()),
    (np.array([[0.0, 2.0, 3.0], [1.0, 0.0, 3.0]], np.float32), lambda lib, x: x.cumprod(1)),
    (Z, lambda lib, x: (x.prod(1), x.cumprod(0), x.mean(), x.cumsum(1), x.logsumexp(0))),
    (Z, lambda lib, x: (x.var(0), x.std(), x.norm(dim=0), x.norm(3))),
]  # fmt: skip


@pytest.mark.parametrize(("data", "f"), GRADIENTS)
def test_gradients(data: Any, f: Any) -> None:
    # torch's second derivatives at 0 of a norm and of a standard deviation are nan.
    compare(f, data, second=not (data == data.flat[0]).all(), rtol=1e-3)


def test_third_derivative_of_a_product_with_zeros() -> None:
    x = gt.tensor([0.0, 0.0, 0.0, 2.0], requires_grad=True)
    (a,) = gt.grad(x.prod(), x, create_graph=True)
    (b,) = gt.grad(a[0], x, create_graph=True)
    (c,) = gt.grad(b[1], x)
    assert c.tolist() == [0.0, 0.0, 2.0, 0.0]  # of x0 x1 x2 x3 by x0, x1: x2 x3; by x2: x3


def test_indices_have_no_gradient() -> None:
    values, indices = gt.tensor(X, requires_grad=True).max(1)
    assert values.requires_grad
    assert not indices.requires_grad


MISTAKES: Mistakes = {
    "mean": (lambda x: x.long().mean(), DTypeError, "mean: expected a floating-point dtype, got int64"),
    "max": (lambda x: x[:0].max(), DimError, "expected at least one element"),
    "max (2)": (lambda x: x[:0].max(0), DimError, "expected at least one element"),
    "argmax": (lambda x: x.bool().argmax(), DTypeError, "argmax: is not defined for bool"),
    "norm": (lambda x: x.norm("large"), ArgumentError, "norm: p must be a number, 'fro' or 'nuc', got 'large'"),
    "amax": (lambda x: gt.complex(x, x).amax(), DTypeError, "amax: complex numbers are not ordered"),
    "trapezoid": (lambda x: gt.trapezoid(x, gt.ones(2)), ShapeError, "trapezoid: x must have 3 points, the size of"),
    "sum": (lambda x: x.sum(over=1), TypeError, "unexpected keyword argument 'over'"),
    "softmax": (lambda x: x.softmax(0.5), ArgumentError, r"softmax: dim must be an int, got 0\.5"),
}
test_mistakes = refused(MISTAKES, lambda: gt.tensor(X))
