"""Stories about plain tensors that share memory. See test_aliases.py: x is compared when the story is over."""

from __future__ import annotations

from typing import Any

import gt
from tests.client.views.aliasing import base


def view_of_view(lib: Any, x: Any) -> Any:
    v = x[1:3]
    w = v[:, 2:4]
    w.fill_(9.0)
    return v, w


def view_of_view_of_view_written_at_each_level(lib: Any, x: Any) -> Any:
    a = x.t()
    b = a[1:5]
    c = b.reshape(4, 2, 2) if lib is gt else b.view(4, 2, 2)
    c[0] = 1.0
    b[1] = 2.0
    a[2] = 3.0
    x[3] = 4.0
    return a, b, c


def chunks(lib: Any, x: Any) -> Any:
    q, k = x.chunk(2, dim=1)
    q.mul_(0.1)
    k[0] = 5.0
    return q, k


def splits_of_uneven_size(lib: Any, x: Any) -> Any:
    a, b, c = x.split([1, 2, 3], dim=1)
    b.zero_()
    x.add_(1.0)
    c.neg_()
    return a, b, c


def rows_by_iteration(lib: Any, x: Any) -> None:
    for i, row in enumerate(x):
        row += float(i)


def base_written_twice_between_reads(lib: Any, x: Any) -> Any:
    v = x[0]
    first = v * 1.0
    x.add_(1.0)
    x.mul_(2.0)
    second = v * 1.0
    return first, second


def two_views_overlap(lib: Any, x: Any) -> Any:
    a, b = x[:3], x[1:]
    a.mul_(2.0)
    b.add_(1.0)
    return a, b


def permuted_in_place(lib: Any, x: Any) -> Any:
    v = x.view(2, 2, 6).permute(2, 0, 1)
    v[1] = -1.0
    return v


def copy_(lib: Any, x: Any) -> Any:
    y = base(lib) * 2.0
    x[1:3].copy_(y[:2])
    x[0].copy_(y[3, 0])
    return y


def copy_casts(lib: Any, x: Any) -> None:
    x[0].copy_(lib.arange(6))


def fill_and_zero(lib: Any, x: Any) -> None:
    x[0].fill_(3.0)
    x[:, 0].zero_()


def fill_with_a_tensor(lib: Any, x: Any) -> None:
    x[2].fill_(x[3, 1])


def masked_assignment(lib: Any, x: Any) -> Any:
    v = x[0]
    x[x > 2.0] = -1.0
    return v


def masked_fill_of_view(lib: Any, x: Any) -> None:
    v = x[1:]
    v.masked_fill_(v < 0.0, 0.0)


def index_assignment(lib: Any, x: Any) -> None:
    x[lib.tensor([0, 2])] = x[lib.tensor([1, 3])] * 10.0


def index_assignment_into_view(lib: Any, x: Any) -> None:
    x[:, 1:4][lib.tensor([3, 0])] = 6.0
    x[1, lib.tensor([0, 5])] = lib.tensor([1.5, 2.5], dtype=lib.float64)


def element_assignment(lib: Any, x: Any) -> None:
    for i in range(4):
        x[i, i] = float(i) * 100.0
    x[-1, -1] = 5.0


def swapped_rows(lib: Any, x: Any) -> None:
    x[0], x[1] = x[1].clone(), x[0].clone()


def shifted_onto_itself(lib: Any, x: Any) -> None:
    x[1:] = x[:-1].clone()


def data_set(lib: Any, x: Any) -> Any:
    y = base(lib) * 3.0
    d = x
    x.data = y + 0.0
    return d, y


def in_place_chain_returns_itself(lib: Any, x: Any) -> Any:
    y = x.add_(1.0).mul_(2.0).clamp_(-3.0, 3.0)
    y.sub_(1.0)
    return y, x is y


def detached_view_of_a_view(lib: Any, x: Any) -> Any:
    v = x[1:]
    v.mul_(2.0)
    w = v[0]
    d = w.detach()
    x.add_(1.0)
    return d + 0.0, w


def augmented_slice(lib: Any, x: Any) -> None:
    x[1] += 5.0
    x[:, 2] *= x[:, 3]


def in_place_with_itself(lib: Any, x: Any) -> None:
    x.add_(x)
    x.mul_(x[0].clone())


def columns_swapped_by_assignment(lib: Any, x: Any) -> None:
    x[:, 0], x[:, 1] = x[:, 1].clone(), x[:, 0].clone()
    x[[0, 1]] = x[[1, 0]]


def views_read_late_in_a_swap(lib: Any, x: Any) -> None:
    x[0], x[1] = x[1], x[0]  # both are views: the second row is gone before it is read


def masked_assignment_on_a_view(lib: Any, x: Any) -> Any:
    v = x[1:, ::2]
    v[v > 2.0] = 0.0
    x.t()[x.t() < -2.0] = 8.0
    return v


def masked_augmented(lib: Any, x: Any) -> None:
    x[x > 0.0] += 10.0
    x[1:][x[1:] > 15.0] *= 2.0


def mask_of_rows_on_a_transpose(lib: Any, x: Any) -> None:
    x.t()[lib.tensor([True, False, False, True, True, False]), 1:3] = -7.0


def index_put_on_a_strided_view(lib: Any, x: Any) -> None:
    x[:, ::2][lib.tensor([0, 3]), lib.tensor([2, 0])] = lib.tensor([1.5, 2.5], dtype=lib.float64)
    x.t()[lib.tensor([1, 5])] += 100.0


def transposed_slices_in_place(lib: Any, x: Any) -> None:
    x.t()[1:3, ::2].mul_(-1.0)
    x.transpose(0, 1)[..., 1].add_(4.0)
    x.T[0, 0] = 77.0


def unbound_columns_in_place(lib: Any, x: Any) -> Any:
    a, b, *_ = x.unbind(1)
    a.add_(b)
    b.zero_()
    return a, b


def qkv_split_by_heads(lib: Any, x: Any) -> Any:
    q, k, v = x.view(4, 3, 2).unbind(1)
    q.mul_(0.5)
    k.copy_(v)
    v[0] = -1.0
    return q, k, v


def a_ring_buffer(lib: Any, x: Any) -> Any:
    ring = lib.zeros(4, 6, dtype=lib.float64)
    for step in range(7):
        ring[step % 4].copy_(x[step % 3])
    return ring


def an_index_that_is_a_tensor_is_a_view(lib: Any, x: Any) -> Any:
    i = lib.tensor(2)
    row = x[i]
    i += 1  # which row was meant stays
    row.fill_(3.0)
    x[:, i].neg_()
    return row


def views_in_a_list(lib: Any, x: Any) -> Any:
    rows = list(x)
    for i, row in enumerate(rows):
        row.mul_(float(i))
    stacked = lib.stack(rows)
    rows[0].fill_(1.0)
    return stacked, rows


def cat_copies(lib: Any, x: Any) -> Any:
    both = lib.cat([x, x])
    x.zero_()
    both[0] = 9.0
    return both


def scatter_into_views(lib: Any, x: Any) -> None:
    x[1].scatter_(0, lib.tensor([0, 5]), 1.0)
    x[:, 2].index_fill_(0, lib.tensor([3]), -4.0)
    x[2:].scatter_add_(1, lib.tensor([[0, 1], [2, 2]]), lib.ones(2, 2, dtype=lib.float64))


def shape_changed_in_place(lib: Any, x: Any) -> Any:
    y = x.detach()
    y.t_()
    y[0] = 5.0
    y.unsqueeze_(0)
    x[0, 1] = 6.0
    return y


def a_write_between_two_reads_of_a_product(lib: Any, x: Any) -> Any:
    y = x * 2.0
    x.add_(1.0)
    z = x * 2.0
    return y, z


def numpy_gets_a_copy_of_the_present(lib: Any, x: Any) -> Any:
    before = x.detach().clone().numpy()
    x.zero_()
    return before


def views_stay_when_their_base_moves(lib: Any, x: Any) -> Any:
    y = base(lib) * 10.0
    v = x[1]
    w = v[2:]
    x.data = y
    v.fill_(1.0)
    y[0] = 2.0
    w[0] = 3.0
    z = base(lib)
    u = z[0]
    z.t_()
    z[1] = 5.0
    u[2] = 6.0
    return y, v, w, z, u


def data_replaced_does_not_touch_views_of_the_old(lib: Any, x: Any) -> Any:
    v = x[0]
    x.data = base(lib) * 10.0
    x.add_(1.0)
    return v


def view_outlives_base(lib: Any, x: Any) -> Any:
    v = base(lib)[1]
    w = v[2:]
    v.add_(1.0)
    return v, w


def other_dtypes_in_place(lib: Any, x: Any) -> Any:
    x = lib.arange(6)
    x += 2
    x[1] = 7
    y = x.to(lib.float64)
    y.add_(x)
    return x, y


def augmented_names_stay_the_same_tensor(lib: Any, x: Any) -> Any:
    a = base(lib)
    b = a
    a += 1.0
    c = a
    a = a + 1.0
    return a, b, c, b is c


def expanded_is_read(lib: Any, x: Any) -> Any:
    row = lib.arange(6, dtype=lib.float64)
    wide = row.expand(4, 6)
    row[2] = 50.0
    return wide, wide + base(lib), row.expand(1, 6).add_(1.0), row


def broadcast_views(lib: Any, x: Any) -> Any:
    x = lib.arange(4, dtype=lib.float64)
    a, b = lib.broadcast_tensors(x[:, None], base(lib)[0])
    x.add_(1.0)
    return a, b


def unfolded_windows_see_writes(lib: Any, x: Any) -> Any:
    x = lib.arange(8, dtype=lib.float64)
    w = x.unfold(0, 3, 2)
    x[2] = 100.0
    return w, x


def a_key_value_cache(lib: Any, x: Any) -> Any:
    cache = lib.zeros(2, 5, 3, dtype=lib.float64)
    for step in range(4):
        cache[:, step : step + 1] = lib.full((2, 1, 3), float(step), dtype=lib.float64)
    seen = cache[:, :4]
    cache[0, 1] += 5.0
    return cache, seen


def flat_parameters(lib: Any, x: Any) -> Any:
    flat = lib.arange(12, dtype=lib.float64)
    w, b = flat[:8].view(2, 4), flat[8:].view(4)
    w.mul_(2.0)
    b += 1.0
    flat.sub_(3.0)
    return flat, w, b


def expanded_and_reshaped(lib: Any, x: Any) -> Any:
    x = lib.arange(6, dtype=lib.float64).requires_grad_()
    (x.expand(4, 6).reshape(2, 12) * base(lib).reshape(2, 12)).sum().backward()
    return x.grad
