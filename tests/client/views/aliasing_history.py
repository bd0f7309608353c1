"""Stories about gradients through views and in-place writes. See test_aliases.py.

`x` requires a gradient. It and its gradient are compared when the story is over.
"""

from __future__ import annotations

from typing import Any

from tests.client.views.aliasing import base


def gradient_zeroed_in_place(lib: Any, x: Any) -> Any:
    (x * 2.0).sum().backward()
    held = x.grad
    held.zero_()
    (x * 3.0).sum().backward()
    return held, held is x.grad


def gradient_scaled_and_clipped(lib: Any, x: Any) -> None:
    (x**2).sum().backward()
    x.grad.mul_(0.5).clamp_(-1.0, 1.0)
    x.grad[0] = 7.0


def gradient_held_before_set_to_none(lib: Any, x: Any) -> Any:
    (x**2).sum().backward()
    held = x.grad
    x.grad = None
    (x * 3.0).sum().backward()
    return held


def gradient_assigned_is_shared(lib: Any, x: Any) -> Any:
    g = base(lib)
    x.grad = g
    g.add_(1.0)
    (x * 2.0).sum().backward()
    return g


def gradients_accumulate_into_the_same_tensor(lib: Any, x: Any) -> Any:
    (x * 2.0).sum().backward()
    held = x.grad
    (x * 3.0).sum().backward()
    return held, held is x.grad


def zeroed_result_still_requires_grad(lib: Any, x: Any) -> Any:
    y = x * 2.0
    y.zero_()
    (y + x).sum().backward()
    return y.requires_grad, y.is_leaf


def constant_copied_into_a_result(lib: Any, x: Any) -> Any:
    y = x * 2.0
    y.copy_(base(lib))
    y.sum().backward()
    return y.requires_grad, y


def part_of_a_result_filled(lib: Any, x: Any) -> Any:
    y = x * 2.0
    row = y[1]
    row.fill_(5.0)
    flags = (y.requires_grad, row.requires_grad)
    (y * y).sum().backward()
    return flags, y, row


def reshaped_result_filled(lib: Any, x: Any) -> Any:
    y = x * 2.0
    flat = y.view(-1)
    flat.fill_(1.0)
    (y * x).sum().backward()
    return y, flat, y.requires_grad, flat.requires_grad


def filled_by_a_tensor_with_history(lib: Any, x: Any) -> Any:
    y = lib.zeros(3, dtype=lib.float64)
    y.fill_(x[1, 2])
    (y**2).sum().backward()
    return y


def value_and_base_both_get_gradients(lib: Any, x: Any) -> Any:
    v = lib.arange(6, dtype=lib.float64).requires_grad_()
    y = x * 3.0
    y[1:3] = v * 2.0
    y[:, 0] = v[2]
    (y**2).sum().backward()
    return v.grad


def masked_and_indexed_values_get_gradients(lib: Any, x: Any) -> Any:
    v = lib.arange(6, dtype=lib.float64).requires_grad_()
    y = x * 3.0
    y[y > 20.0] = v[1]
    y[lib.tensor([0, 3])] = v
    y[[True, False, False, False]] *= v
    (y**2).sum().backward()
    return v.grad


def in_place_activation(lib: Any, x: Any) -> Any:
    y = x * 2.0
    y.clamp_(min=0.0)
    y[:, 2].mul_(3.0)
    (y**2).sum().backward()
    return y


def buffer_filled_row_by_row(lib: Any, x: Any) -> Any:
    out = lib.empty(4, 6, dtype=lib.float64)
    h = x[0]
    for i in range(4):
        h = h * 0.5 + x[i]
        out[i] = h
    (out**2).sum().backward()
    return out


def detached_result_written_changes_the_result(lib: Any, x: Any) -> Any:
    y = x * 2.0
    y.detach()[0] = 0.0
    y.data[1] = 1.0
    (y * 3.0).sum().backward()
    return y


def no_grad_update_of_a_view_of_a_leaf(lib: Any, x: Any) -> Any:
    with lib.no_grad():
        x[:, 0].zero_()
        x.t()[1].add_(1.0)
        x.view(-1)[-1] = 9.0
    (x**2).sum().backward()
    return x.requires_grad, x.is_leaf


def leaf_clamped_between_steps(lib: Any, x: Any) -> None:
    for _ in range(3):
        (x**2).sum().backward()
        with lib.no_grad():
            x -= 0.1 * x.grad
            x.clamp_(min=-1.0)
            x.grad.zero_()


def through_a_slice(lib: Any, x: Any) -> None:
    (x[1:3] ** 2).sum().backward()


def through_chunks(lib: Any, x: Any) -> None:
    q, k = x.chunk(2, dim=1)
    (q * k.sum()).sum().backward()


def in_place_on_a_result(lib: Any, x: Any) -> Any:
    y = x * 2.0
    y.add_(1.0).mul_(3.0)
    (y * y).sum().backward()
    return y


def slice_of_a_result_written(lib: Any, x: Any) -> Any:
    y = x * 2.0
    y[0] = 0.0
    y[1] = x[2] * 5.0
    (y**2).sum().backward()
    return y


def view_of_a_result_written(lib: Any, x: Any) -> None:
    y = x * 2.0
    v = y[1:3]
    v.mul_(10.0)
    (y.sum() + (v**2).sum()).backward()


def base_written_after_view_was_taken(lib: Any, x: Any) -> None:
    y = x * 2.0
    v = y[1:3]
    y.mul_(3.0)
    (v * v).sum().backward()


def changed_view_first_read_without_gradients(lib: Any, x: Any) -> Any:
    y = x * 2.0
    v = y[1:3]
    y.mul_(3.0)
    with lib.no_grad():
        total = v.sum()
    (v * v).sum().backward()
    return total


def result_with_history_written_into_a_plain_tensor(lib: Any, x: Any) -> Any:
    buffer = lib.zeros(4, 6, dtype=lib.float64)
    for i in range(4):
        buffer[i] = x[i] * float(i)
    (buffer**2).sum().backward()
    return buffer, buffer.requires_grad


def masked_in_place(lib: Any, x: Any) -> None:
    y = x + 0.0
    y[y < 0.0] = 1.0
    y.masked_fill_(y > 4.0, 2.0)
    (y**2).sum().backward()


def index_put_with_gradient(lib: Any, x: Any) -> None:
    y = x * 1.0
    y[lib.tensor([0, 3])] = x[lib.tensor([1, 2])] ** 2
    (y * 3.0).sum().backward()


def transposed_view_in_place(lib: Any, x: Any) -> None:
    y = x * 1.0
    y.t().mul_(lib.arange(4, dtype=lib.float64))
    (y**2).sum().backward()


def leaf_under_no_grad(lib: Any, x: Any) -> Any:
    with lib.no_grad():
        x.mul_(2.0)
        x[0] = 1.0
    (x**2).sum().backward()
    return x.is_leaf, x.requires_grad


def view_of_a_leaf_written_under_no_grad(lib: Any, x: Any) -> Any:
    v = x[1]
    with lib.no_grad():
        x.mul_(2.0)
        v.add_(1.0)
    (v * x[2]).sum().backward()
    return v


def data_of_leaf(lib: Any, x: Any) -> None:
    x.data[1] = 0.0
    x.data.add_(1.0)
    (x**2).sum().backward()


def detach_stops(lib: Any, x: Any) -> Any:
    (x * x.detach()).sum().backward()
    return x.detach().requires_grad
