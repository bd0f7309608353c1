"""Aliasing: the same code on torch and on GT leaves the same numbers in every tensor.

A case gets the library, makes tensors, writes to some and returns all of interest. `base(lib)` is a
(4, 6) tensor of different numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.client.session import Session
from gt.errors import AutogradError
from tests.client.training import numbers

Case = Callable[[Any], Any]
CASES: list[Case] = []
GRADIENTS: list[Case] = []


def case(f: Case) -> Case:
    CASES.append(f)
    return f


def gradient(f: Case) -> Case:
    GRADIENTS.append(f)
    return f


def base(lib: Any, requires_grad: bool = False) -> Any:
    x = lib.arange(24, dtype=lib.float64).reshape(4, 6).clone() * 0.5 - 3.0
    return x.requires_grad_() if requires_grad else x


# --- writes to views and bases ---------------------------------------------------------------------------


@case
def data_shares(lib: Any) -> Any:
    x = base(lib)
    x.data.mul_(2.0)
    return x


@case
def detach_shares_both_ways(lib: Any) -> Any:
    x = base(lib)
    d = x.detach()
    d[0] = 7.0
    x[1] = 8.0
    return x, d


@case
def clone_does_not_share(lib: Any) -> Any:
    x = base(lib)
    c = x.clone()
    c.add_(1.0)
    x.mul_(3.0)
    return x, c


@case
def write_through_flat_view(lib: Any) -> Any:
    x = base(lib)
    x.view(-1)[3] = 0.0
    return x


@case
def view_of_view(lib: Any) -> Any:
    x = base(lib)
    v = x[1:3]
    w = v[:, 2:4]
    w.fill_(9.0)
    return x, v, w


@case
def view_of_view_of_view_written_at_each_level(lib: Any) -> Any:
    x = base(lib)
    a = x.t()
    b = a[1:5]
    c = b.reshape(4, 2, 2) if lib is gt else b.view(4, 2, 2)
    c[0] = 1.0
    b[1] = 2.0
    a[2] = 3.0
    x[3] = 4.0
    return x, a, b, c


@case
def chunks(lib: Any) -> Any:
    qkv = base(lib)
    q, k = qkv.chunk(2, dim=1)
    q.mul_(0.1)
    k[0] = 5.0
    return qkv, q, k


@case
def splits_of_uneven_size(lib: Any) -> Any:
    x = base(lib)
    a, b, c = x.split([1, 2, 3], dim=1)
    b.zero_()
    x.add_(1.0)
    c.neg_()
    return x, a, b, c


@case
def unbound_rows(lib: Any) -> Any:
    x = base(lib)
    rows = x.unbind(0)
    rows[2].fill_(1.0)
    return x, rows


@case
def rows_by_iteration(lib: Any) -> Any:
    x = base(lib)
    for i, row in enumerate(x):
        row += float(i)
    return x


@case
def slice_written_then_base_read(lib: Any) -> Any:
    x = base(lib)
    x[:, 1:3].add_(10.0)
    return x * 2.0


@case
def base_written_then_view_read(lib: Any) -> Any:
    x = base(lib)
    v = x[1:3]
    x.mul_(2.0)
    return v + 0.0, v


@case
def base_written_twice_between_reads(lib: Any) -> Any:
    x = base(lib)
    v = x[0]
    first = v * 1.0
    x.add_(1.0)
    x.mul_(2.0)
    second = v * 1.0
    return first, second


@case
def two_views_overlap(lib: Any) -> Any:
    x = base(lib)
    a, b = x[:3], x[1:]
    a.mul_(2.0)
    b.add_(1.0)
    return x, a, b


@case
def transposed_in_place(lib: Any) -> Any:
    x = base(lib)
    x.t().add_(lib.arange(4, dtype=lib.float64))
    x.transpose(0, 1)[0].mul_(3.0)
    return x


@case
def permuted_in_place(lib: Any) -> Any:
    x = base(lib)
    v = x.view(2, 2, 6).permute(2, 0, 1)
    v[1] = -1.0
    return x, v


@case
def copy_(lib: Any) -> Any:
    x, y = base(lib), base(lib) * 2.0
    x[1:3].copy_(y[:2])
    x[0].copy_(y[3, 0])
    return x, y


@case
def copy_casts(lib: Any) -> Any:
    x = base(lib)
    x[0].copy_(lib.arange(6))
    return x


@case
def fill_and_zero(lib: Any) -> Any:
    x = base(lib)
    x[0].fill_(3.0)
    x[:, 0].zero_()
    return x


@case
def fill_with_a_tensor(lib: Any) -> Any:
    x = base(lib)
    x[2].fill_(x[3, 1])
    return x


@case
def masked_assignment(lib: Any) -> Any:
    x = base(lib)
    v = x[0]
    x[x > 2.0] = -1.0
    return x, v


@case
def masked_fill_of_view(lib: Any) -> Any:
    x = base(lib)
    v = x[1:]
    v.masked_fill_(v < 0.0, 0.0)
    return x


@case
def index_assignment(lib: Any) -> Any:
    x = base(lib)
    x[lib.tensor([0, 2])] = x[lib.tensor([1, 3])] * 10.0
    return x


@case
def index_assignment_into_view(lib: Any) -> Any:
    x = base(lib)
    x[:, 1:4][lib.tensor([3, 0])] = 6.0
    x[1, lib.tensor([0, 5])] = lib.tensor([1.5, 2.5], dtype=lib.float64)
    return x


@case
def indexing_copies(lib: Any) -> Any:
    x = base(lib)
    y = x[lib.tensor([0, 1])]
    y.zero_()
    return x, y


@case
def element_assignment(lib: Any) -> Any:
    x = base(lib)
    for i in range(4):
        x[i, i] = float(i) * 100.0
    x[-1, -1] = 5.0
    return x


@case
def strided_slice_written(lib: Any) -> Any:
    x = base(lib)
    x[::2, 1::3] = 0.0
    return x


@case
def swapped_rows(lib: Any) -> Any:
    x = base(lib)
    x[0], x[1] = x[1].clone(), x[0].clone()
    return x


@case
def shifted_onto_itself(lib: Any) -> Any:
    x = base(lib)
    x[1:] = x[:-1].clone()
    return x


@case
def with_none_and_ellipsis(lib: Any) -> Any:
    x = base(lib)
    x[..., 0] = 1.0
    x[None, 1].mul_(2.0)
    return x


@case
def squeezed_views(lib: Any) -> Any:
    x = base(lib)
    x.unsqueeze(0).squeeze(0)[1] = 0.0
    x[1:2].squeeze(0).add_(4.0)
    return x


@case
def flatten_is_a_view(lib: Any) -> Any:
    x = base(lib)
    x.flatten()[5:8] = 0.0
    return x


@case
def whole_slice_is_a_view(lib: Any) -> Any:
    x = base(lib)
    y = x[:]
    y += 1.0
    return x, y


@case
def data_set(lib: Any) -> Any:
    x, y = base(lib), base(lib) * 3.0
    d = x
    x.data = y + 0.0
    return x, d, y


@case
def in_place_chain_returns_itself(lib: Any) -> Any:
    x = base(lib)
    y = x.add_(1.0).mul_(2.0).clamp_(-3.0, 3.0)
    y.sub_(1.0)
    return x, y, x is y


@case
def view_outlives_base(lib: Any) -> Any:
    v = base(lib)[1]
    w = v[2:]
    v.add_(1.0)
    return v, w


@case
def detached_view_of_a_view(lib: Any) -> Any:
    x = base(lib)
    v = x[1:]
    v.mul_(2.0)
    w = v[0]
    d = w.detach()
    x.add_(1.0)
    return d + 0.0, w


@case
def narrow_and_select(lib: Any) -> Any:
    x = base(lib)
    x.narrow(1, 2, 2).fill_(0.0)
    x.select(0, 3).add_(2.0)
    return x


@case
def tied_weights(lib: Any) -> Any:
    a = lib.nn.Linear(3, 3, dtype=lib.float64)
    b = lib.nn.Linear(3, 3, dtype=lib.float64)
    b.weight = a.weight
    with lib.no_grad():
        a.weight.copy_(base(lib)[:3, :3])
        b.weight.mul_(2.0)
    return a.weight, b.weight, a.weight is b.weight


@case
def parameters_in_a_state_dict_share(lib: Any) -> Any:
    a = lib.nn.Linear(6, 4, bias=False, dtype=lib.float64)
    state = a.state_dict()
    with lib.no_grad():
        a.weight.copy_(base(lib))
        state["weight"][0] = 0.0
    return a.weight, state


@case
def other_dtypes_in_place(lib: Any) -> Any:
    x = lib.arange(6)
    x += 2
    x[1] = 7
    y = x.to(lib.float64)
    y.add_(x)
    return x, y


@case
def augmented_slice(lib: Any) -> Any:
    x = base(lib)
    x[1] += 5.0
    x[:, 2] *= x[:, 3]
    return x


@case
def in_place_with_itself(lib: Any) -> Any:
    x = base(lib)
    x.add_(x)
    x.mul_(x[0].clone())
    return x


@pytest.mark.parametrize("case", CASES, ids=lambda f: f.__name__)
def test_aliasing_is_torchs(case: Case, session: Session) -> None:
    want, got = numbers(case(torch)), numbers(case(gt))
    assert len(want) == len(got)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_array_equal(g, w)
        assert g.dtype == w.dtype


@pytest.mark.parametrize("case", CASES, ids=lambda f: f.__name__)
def test_aliasing_does_not_depend_on_where_programs_end(
    case: Case, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same, with every op a program of its own."""
    monkeypatch.setattr("gt.client.recorder.CAP", 1)
    for g, w in zip(numbers(case(gt)), numbers(case(torch)), strict=True):
        np.testing.assert_array_equal(g, w)


def test_the_table_is_long_enough() -> None:
    assert len(CASES) >= 25


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
