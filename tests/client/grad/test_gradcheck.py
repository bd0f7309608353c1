"""gradcheck: gradients beside differences of the function's values."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch

import gt
from tests.beside_torch import as_in_torch

pytestmark = pytest.mark.usefixtures("session")

X = np.array([[0.5, -1.0, 2.0], [1.5, 0.25, -0.75]])


def wrong(lib: Any, by: float) -> Any:
    class Wrong(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * by

    return Wrong.apply


@as_in_torch()
@pytest.mark.filterwarnings("ignore:.*double:UserWarning")
def test_what_agrees(lib: Any) -> list[bool]:
    x = lib.tensor(X, requires_grad=True)
    w = lib.tensor(X.T.copy(), requires_grad=True)
    z = lib.tensor(X + 1j * X[::-1], requires_grad=True)
    check, twice = lib.autograd.gradcheck, lib.autograd.gradgradcheck
    return [
        check(lambda x, w: (x @ w).tanh(), (x, w)), check(lambda x: (x.sin(), x.sum(0)), x), check(lib.exp, [x]),
        check(lambda x, n: x**n, (x, 3)), check(lambda x, w: (x @ w).tanh(), (x, w), fast_mode=True),
        check(lambda z: (z * z).abs(), z), check(lambda z: z * z.conj() + z, z),
        twice(lambda x, w: (x @ w).tanh(), (x, w)), twice(lambda x: (x**3).sum(), x),
        check(wrong(lib, 3.0), x, raise_exception=False), check(wrong(lib, 2.0), x),
        check(wrong(lib, 3.0), x, raise_exception=False, fast_mode=True),
    ]  # fmt: skip


@pytest.mark.parametrize("lib", [gt, torch], ids=["gt", "torch"])
def test_what_does_not(lib: Any) -> None:
    error = import_module(f"{lib.__name__}.autograd.gradcheck").GradcheckError
    x = lib.tensor(X, requires_grad=True)
    with pytest.raises(error, match="Jacobian mismatch for output 0 with respect to input 0"):
        lib.autograd.gradcheck(wrong(lib, 3.0), x)
    with pytest.raises(ValueError, match="gradcheck"):
        lib.autograd.gradcheck(lib.sin, x.detach())
    with pytest.warns(UserWarning, match="double precision"):
        lib.autograd.gradcheck(lib.sin, lib.ones(2, requires_grad=True), eps=1e-2, atol=1e-2)
