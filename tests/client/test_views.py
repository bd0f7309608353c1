"""Gradients through views and in-place writes, and writes that are refused. Values are in test_aliasing.py.

A case gets the library and returns gradients, and what else is of interest. `base(lib)` is a (4, 6) tensor of
different numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.client.session.session import Session
from gt.errors import AutogradError
from tests.client.training import numbers

Case = Callable[[Any], Any]
GRADIENTS: list[Case] = []


def gradient(f: Case) -> Case:
    GRADIENTS.append(f)
    return f


def base(lib: Any, requires_grad: bool = False) -> Any:
    x = lib.arange(24, dtype=lib.float64).reshape(4, 6).clone() * 0.5 - 3.0
    return x.requires_grad_() if requires_grad else x


# --- gradients through views and in-place writes ------------------------------------------------------------


@gradient
def through_a_slice(lib: Any) -> Any:
    x = base(lib, True)
    (x[1:3] ** 2).sum().backward()
    return x.grad


@gradient
def through_chunks(lib: Any) -> Any:
    x = base(lib, True)
    q, k = x.chunk(2, dim=1)
    (q * k.sum()).sum().backward()
    return x.grad


@gradient
def in_place_on_a_result(lib: Any) -> Any:
    x = base(lib, True)
    y = x * 2.0
    y.add_(1.0).mul_(3.0)
    (y * y).sum().backward()
    return x.grad, y


@gradient
def slice_of_a_result_written(lib: Any) -> Any:
    x = base(lib, True)
    y = x * 2.0
    y[0] = 0.0
    y[1] = x[2] * 5.0
    (y**2).sum().backward()
    return x.grad, y


@gradient
def view_of_a_result_written(lib: Any) -> Any:
    x = base(lib, True)
    y = x * 2.0
    v = y[1:3]
    v.mul_(10.0)
    (y.sum() + (v**2).sum()).backward()
    return x.grad


@gradient
def base_written_after_view_was_taken(lib: Any) -> Any:
    x = base(lib, True)
    y = x * 2.0
    v = y[1:3]
    y.mul_(3.0)
    (v * v).sum().backward()
    return x.grad


@gradient
def changed_view_first_read_without_gradients(lib: Any) -> Any:
    x = base(lib, True)
    y = x * 2.0
    v = y[1:3]
    y.mul_(3.0)
    with lib.no_grad():
        total = v.sum()
    (v * v).sum().backward()
    return x.grad, total


@gradient
def result_with_history_written_into_a_plain_tensor(lib: Any) -> Any:
    x = base(lib, True)
    buffer = lib.zeros(4, 6, dtype=lib.float64)
    for i in range(4):
        buffer[i] = x[i] * float(i)
    (buffer**2).sum().backward()
    return x.grad, buffer, buffer.requires_grad


@gradient
def masked_in_place(lib: Any) -> Any:
    x = base(lib, True)
    y = x + 0.0
    y[y < 0.0] = 1.0
    y.masked_fill_(y > 4.0, 2.0)
    (y**2).sum().backward()
    return x.grad


@gradient
def index_put_with_gradient(lib: Any) -> Any:
    x = base(lib, True)
    y = x * 1.0
    y[lib.tensor([0, 3])] = x[lib.tensor([1, 2])] ** 2
    (y * 3.0).sum().backward()
    return x.grad


@gradient
def transposed_view_in_place(lib: Any) -> Any:
    x = base(lib, True)
    y = x * 1.0
    y.t().mul_(lib.arange(4, dtype=lib.float64))
    (y**2).sum().backward()
    return x.grad


@gradient
def leaf_under_no_grad(lib: Any) -> Any:
    x = base(lib, True)
    with lib.no_grad():
        x.mul_(2.0)
        x[0] = 1.0
    (x**2).sum().backward()
    return x.grad, x, x.is_leaf, x.requires_grad


@gradient
def view_of_a_leaf_written_under_no_grad(lib: Any) -> Any:
    x = base(lib, True)
    v = x[1]
    with lib.no_grad():
        x.mul_(2.0)
        v.add_(1.0)
    (v * x[2]).sum().backward()
    return x.grad, x, v


@gradient
def data_of_leaf(lib: Any) -> Any:
    x = base(lib, True)
    x.data[1] = 0.0
    x.data.add_(1.0)
    (x**2).sum().backward()
    return x.grad, x


@gradient
def detach_stops(lib: Any) -> Any:
    x = base(lib, True)
    (x * x.detach()).sum().backward()
    return x.grad, x.detach().requires_grad


@gradient
def expanded_and_reshaped(lib: Any) -> Any:
    x = lib.arange(6, dtype=lib.float64).requires_grad_()
    (x.expand(4, 6).reshape(2, 12) * base(lib).reshape(2, 12)).sum().backward()
    return x.grad


@pytest.mark.parametrize("case", GRADIENTS, ids=lambda f: f.__name__)
def test_gradients_through_views_are_torchs(case: Case, session: Session) -> None:
    for g, w in zip(numbers(case(gt)), numbers(case(torch)), strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-12)


# --- what is refused -----------------------------------------------------------------------------------------

REFUSED: dict[str, Case] = {
    "leaf": lambda x: x.add_(1.0),
    "augmented": lambda x: x.__iadd__(1.0),
    "slice of a leaf": lambda x: x.__setitem__(0, 1.0),
    "view of a leaf": lambda x: x[0].mul_(2.0),
    "view of a view of a leaf": lambda x: x.t()[1].zero_(),
    "mask": lambda x: x.__setitem__(x > 0.0, 1.0),
    "copy_": lambda x: x.copy_(x.detach() * 2.0),
    "zero_": lambda x: x.zero_(),
}


@pytest.mark.parametrize("write", REFUSED.values(), ids=REFUSED.keys())
def test_writing_to_a_leaf_is_refused_and_changes_nothing(write: Case, session: Session) -> None:
    with pytest.raises(RuntimeError):
        write(base(torch, True))
    x = base(gt, True)
    with pytest.raises(AutogradError, match=r"in place; do it under gt\.no_grad\(\)"):
        write(x)
    np.testing.assert_array_equal(x.detach().numpy(), base(torch).numpy())
    (x * 2.0).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), np.full((4, 6), 2.0))


EXPANDED: dict[str, Case] = {
    "add_": lambda x: x.expand(3, 4, 6).add_(1.0),
    "assignment": lambda x: x[:1].expand(4, 6).__setitem__(0, 1.0),
    "view of it": lambda x: x[0].expand(2, 6)[0].mul_(2.0),
}


@pytest.mark.parametrize("write", EXPANDED.values(), ids=EXPANDED.keys())
def test_writing_to_what_was_expanded_is_refused_and_changes_nothing(write: Case, session: Session) -> None:
    x = base(gt)
    with pytest.raises(RuntimeError, match=r"several of its elements share memory; write to a clone\(\) of it"):
        write(x)
    np.testing.assert_array_equal(x.numpy(), base(torch).numpy())


def test_the_value_of_fill_has_no_dimensions(session: Session) -> None:
    with pytest.raises(RuntimeError, match=r"fill_: value must be a number or a tensor of 0 dimensions"):
        base(gt).fill_(gt.zeros(2))
