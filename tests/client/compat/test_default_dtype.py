"""The default dtype, and autocast in functions and decorators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.errors import ArgumentError
from tests.beside_torch import as_in_torch, dtype_name

pytestmark = pytest.mark.usefixtures("session")

X = np.array([[0.5, -1.0, 2.0], [1.5, 0.25, -0.75]])


def test_autocast_computes_products_in_the_narrow_type() -> None:
    for lib in (gt, torch):
        x, w = lib.ones(2, 3, requires_grad=True), lib.ones(3, 4, requires_grad=True)
        with lib.autocast("cpu", dtype=lib.bfloat16):
            y = x @ w
            z = y.softmax(-1)
            assert y.dtype == lib.bfloat16
            with lib.autocast("cpu", enabled=False):
                assert (x @ w).dtype == lib.float32
            assert lib.is_autocast_enabled("cpu")
        assert not lib.is_autocast_enabled("cpu")
        z.sum().backward()
        assert x.grad.dtype == w.grad.dtype == lib.float32
        assert (x @ w).dtype == lib.float32


def test_autocast_as_a_decorator_and_in_a_traced_function() -> None:
    @gt.autocast(dtype=gt.bfloat16)
    def product(a: Any, b: Any) -> Any:
        return a @ b

    a = gt.ones(2, 2)
    assert product(a, a).dtype is gt.bfloat16

    @gt.function
    def f(a: Any) -> Any:
        return a @ a

    assert f(a).dtype is gt.float32
    with gt.autocast(dtype=gt.bfloat16):
        assert f(a).dtype is gt.bfloat16
    assert f(a).dtype is gt.float32
    with pytest.raises(ArgumentError, match="bfloat16, float16 or float32, got int64"):
        gt.autocast(dtype=gt.int64)


@as_in_torch()
def test_the_default_dtype_is_that_of_new_floats(lib: Any) -> Any:
    lib.set_default_dtype(lib.float64)
    try:
        i = lib.tensor([1, 2, 3])
        made = [
            lib.tensor([1.5]), lib.zeros(2), lib.ones(2), lib.rand(2), lib.randn(2), lib.arange(0, 1, 0.5),
            lib.linspace(0, 1, 3), lib.full((2,), 0.5), lib.eye(2), i * 1.5, i / 2, i.exp(), i + 1,
            i * 1j, i.float() * 1j, i == np.array([1, 5, 3]), i * np.int64(2), i * np.float64(2),
            lib.where(i > 1, 1.0, 2.0), lib.where(i > 1, i, 2.5), lib.where(i > 1, i.float(), 2.5),
        ]  # fmt: skip
        assert lib.get_default_dtype() == lib.float64
    finally:
        lib.set_default_dtype(lib.float32)
    assert (lib.tensor([1, 2]) * 1.5).dtype == lib.float32
    return [dtype_name(t) for t in made]
