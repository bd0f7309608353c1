"""Aliasing idioms on bare tensors: a case gets the library, makes tensors, writes to some and returns all of interest.

`base(lib)` is a (4, 6) tensor of different numbers. test_aliasing.py has those with modules and with history, and
runs them all on torch and on GT.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gt

Case = Callable[[Any], Any]
CASES: list[Case] = []


def case(f: Case) -> Case:
    CASES.append(f)
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


# --- more ways to share ----------------------------------------------------------------------------------------


@case
def augmented_names_stay_the_same_tensor(lib: Any) -> Any:
    a = base(lib)
    b = a
    a += 1.0
    c = a
    a = a + 1.0
    return a, b, c, b is c


@case
def columns_swapped_by_assignment(lib: Any) -> Any:
    x = base(lib)
    x[:, 0], x[:, 1] = x[:, 1].clone(), x[:, 0].clone()
    x[[0, 1]] = x[[1, 0]]
    return x


@case
def views_read_late_in_a_swap(lib: Any) -> Any:
    x = base(lib)
    x[0], x[1] = x[1], x[0]  # both are views: the second row is gone before it is read
    return x


@case
def expanded_is_read(lib: Any) -> Any:
    row = lib.arange(6, dtype=lib.float64)
    wide = row.expand(4, 6)
    row[2] = 50.0
    return wide, wide + base(lib), row.expand(1, 6).add_(1.0), row


@case
def broadcast_views(lib: Any) -> Any:
    x = lib.arange(4, dtype=lib.float64)
    a, b = lib.broadcast_tensors(x[:, None], base(lib)[0])
    x.add_(1.0)
    return a, b


@case
def masked_assignment_on_a_view(lib: Any) -> Any:
    x = base(lib)
    v = x[1:, ::2]
    v[v > 2.0] = 0.0
    x.t()[x.t() < -2.0] = 8.0
    return x, v


@case
def masked_augmented(lib: Any) -> Any:
    x = base(lib)
    x[x > 0.0] += 10.0
    x[1:][x[1:] > 15.0] *= 2.0
    return x


@case
def mask_of_rows_on_a_transpose(lib: Any) -> Any:
    x = base(lib)
    x.t()[lib.tensor([True, False, False, True, True, False]), 1:3] = -7.0
    return x


@case
def index_put_on_a_strided_view(lib: Any) -> Any:
    x = base(lib)
    x[:, ::2][lib.tensor([0, 3]), lib.tensor([2, 0])] = lib.tensor([1.5, 2.5], dtype=lib.float64)
    x.t()[lib.tensor([1, 5])] += 100.0
    return x


@case
def transposed_slices_in_place(lib: Any) -> Any:
    x = base(lib)
    x.t()[1:3, ::2].mul_(-1.0)
    x.transpose(0, 1)[..., 1].add_(4.0)
    x.T[0, 0] = 77.0
    return x


@case
def unbound_columns_in_place(lib: Any) -> Any:
    x = base(lib)
    a, b, *_ = x.unbind(1)
    a.add_(b)
    b.zero_()
    return x, a, b


@case
def qkv_split_by_heads(lib: Any) -> Any:
    qkv = base(lib)
    q, k, v = qkv.view(4, 3, 2).unbind(1)
    q.mul_(0.5)
    k.copy_(v)
    v[0] = -1.0
    return qkv, q, k, v


@case
def reshape_of_a_transpose_copies(lib: Any) -> Any:
    x = base(lib)
    y = x.t().reshape(-1)
    y.zero_()
    z = x.t().contiguous()
    z.fill_(1.0)
    return x, y, z


@case
def contiguous_of_contiguous_is_itself(lib: Any) -> Any:
    x = base(lib)
    y = x.contiguous()
    y.add_(1.0)
    return x, y


@case
def casts_share_only_without_a_change(lib: Any) -> Any:
    x = base(lib)
    same, other = x.to(lib.float64), x.to(lib.float32)
    x.add_(1.0)
    return same, other, same is x


@case
def diagonal_is_a_view(lib: Any) -> Any:
    x = base(lib)
    x.diagonal().add_(100.0)
    x.fill_diagonal_(1.5)
    return x


@case
def unfolded_windows_see_writes(lib: Any) -> Any:
    x = lib.arange(8, dtype=lib.float64)
    w = x.unfold(0, 3, 2)
    x[2] = 100.0
    return w, x


@case
def a_ring_buffer(lib: Any) -> Any:
    ring = lib.zeros(4, 6, dtype=lib.float64)
    x = base(lib)
    for step in range(7):
        ring[step % 4].copy_(x[step % 3])
    return ring


@case
def a_key_value_cache(lib: Any) -> Any:
    cache = lib.zeros(2, 5, 3, dtype=lib.float64)
    for step in range(4):
        cache[:, step : step + 1] = lib.full((2, 1, 3), float(step), dtype=lib.float64)
    seen = cache[:, :4]
    cache[0, 1] += 5.0
    return cache, seen


@case
def an_index_that_is_a_tensor_is_a_view(lib: Any) -> Any:
    x = base(lib)
    i = lib.tensor(2)
    row = x[i]
    i += 1  # which row was meant stays
    row.fill_(3.0)
    x[:, i].neg_()
    return x, row


@case
def views_in_a_list(lib: Any) -> Any:
    x = base(lib)
    rows = list(x)
    for i, row in enumerate(rows):
        row.mul_(float(i))
    stacked = lib.stack(rows)
    rows[0].fill_(1.0)
    return x, stacked, rows


@case
def cat_copies(lib: Any) -> Any:
    x = base(lib)
    both = lib.cat([x, x])
    x.zero_()
    both[0] = 9.0
    return x, both


@case
def scatter_into_views(lib: Any) -> Any:
    x = base(lib)
    x[1].scatter_(0, lib.tensor([0, 5]), 1.0)
    x[:, 2].index_fill_(0, lib.tensor([3]), -4.0)
    x[2:].scatter_add_(1, lib.tensor([[0, 1], [2, 2]]), lib.ones(2, 2, dtype=lib.float64))
    return x


@case
def shape_changed_in_place(lib: Any) -> Any:
    x = base(lib)
    y = x.detach()
    y.t_()
    y[0] = 5.0
    y.unsqueeze_(0)
    x[0, 1] = 6.0
    return x, y


@case
def a_write_between_two_reads_of_a_product(lib: Any) -> Any:
    x = base(lib)
    y = x * 2.0
    x.add_(1.0)
    z = x * 2.0
    return y, z


@case
def numpy_gets_a_copy_of_the_present(lib: Any) -> Any:
    x = base(lib)
    before = x.detach().clone().numpy()
    x.zero_()
    return x, before
