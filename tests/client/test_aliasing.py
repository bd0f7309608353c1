"""Aliasing idioms: the same code on torch and on GT leaves the same numbers in every tensor.

Here are the cases with modules, gradients and history; those on bare tensors are in aliasing.py, and gradients
through views in test_views.py.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.client.session.session import Session
from gt.client.views import aliases as views
from tests.client.aliasing import CASES, Case, base, case
from tests.client.training import numbers
from tests.sim.cluster import Cluster, using

# --- modules, parameters, gradients ------------------------------------------------------------------------


def linear(lib: Any) -> Any:
    """A layer with known weights of (4, 6)."""
    layer = lib.nn.Linear(6, 4, dtype=lib.float64)
    with lib.no_grad():
        layer.weight.copy_(base(lib) * 0.1)
        layer.bias.copy_(lib.arange(4, dtype=lib.float64))
    return layer


@case
def init_on_data(lib: Any) -> Any:
    layer = linear(lib)
    before = layer.weight
    layer.weight.data.fill_(0.5)
    layer.bias.data.zero_()
    return layer, before, layer.weight is before, layer.weight.is_leaf


@case
def init_of_a_part_of_data(lib: Any) -> Any:
    layer = linear(lib)
    layer.weight.data[0].fill_(2.0)
    layer.weight.data[:, 1:3] = -1.0
    layer.weight.data.view(-1)[-1] = 9.0
    return layer


@case
def padding_row_zeroed(lib: Any) -> Any:
    table = lib.nn.Embedding(4, 6, dtype=lib.float64)
    table.weight.data.copy_(base(lib))
    with lib.no_grad():
        table.weight[2].fill_(0.0)
    return table.weight, table.weight.requires_grad


@case
def state_dict_shares(lib: Any) -> Any:
    layer = linear(lib)
    state = layer.state_dict()
    state["bias"].add_(1.0)
    with lib.no_grad():
        layer.weight.mul_(2.0)
    return layer, state


@case
def state_dict_deepcopy_does_not(lib: Any) -> Any:
    layer = linear(lib)
    saved = copy.deepcopy(layer.state_dict())
    with lib.no_grad():
        layer.weight.zero_()
    saved["bias"].add_(5.0)
    return layer, saved


@case
def state_dict_cloned_and_loaded_back(lib: Any) -> Any:
    layer = linear(lib)
    best = {k: v.clone() for k, v in layer.state_dict().items()}
    with lib.no_grad():
        for p in layer.parameters():
            p.add_(3.0)
    changed = layer.weight.detach().clone()
    layer.load_state_dict(best)
    return layer, changed, best


@case
def deepcopied_module(lib: Any) -> Any:
    layer = linear(lib)
    twin = copy.deepcopy(layer)
    with lib.no_grad():
        twin.weight.mul_(3.0)
        layer.bias.sub_(1.0)
    return layer, twin


@case
def tied_parameters_in_two_modules(lib: Any) -> Any:
    table, head = lib.nn.Embedding(4, 6, dtype=lib.float64), linear(lib)
    head.weight = table.weight
    table.weight.data.copy_(base(lib))
    (head(table(lib.tensor([1, 3]))) ** 2).sum().backward()
    with lib.no_grad():
        head.weight.sub_(0.01 * head.weight.grad)
    return table.weight, head.weight, table.weight.grad


@case
def exponential_moving_average(lib: Any) -> Any:
    layer = linear(lib)
    mean = copy.deepcopy(layer)
    for _ in range(3):
        with lib.no_grad():
            for p in layer.parameters():
                p.add_(1.0)
            for e, p in zip(mean.parameters(), layer.parameters(), strict=True):
                e.mul_(0.9).add_(p, alpha=0.1)
    return layer, mean


@case
def moving_average_by_lerp(lib: Any) -> Any:
    layer = linear(lib)
    shadow = {k: v.detach().clone() for k, v in layer.named_parameters()}
    layer.weight.data.mul_(2.0)
    for k, v in layer.named_parameters():
        shadow[k].lerp_(v.detach(), 0.25)
    return layer, shadow


@case
def weight_clipping(lib: Any) -> Any:
    layer = linear(lib)
    for p in layer.parameters():
        p.data.clamp_(-0.2, 0.2)
    return layer


@case
def weight_clipping_by_norm(lib: Any) -> Any:
    w = linear(lib).weight
    with lib.no_grad():
        norm = (w**2).sum(1, keepdim=True).sqrt()
        w.mul_((1.0 / norm).clamp(max=1.0))
    return w


@case
def target_network_updated(lib: Any) -> Any:
    online, target = linear(lib), linear(lib)
    with lib.no_grad():
        online.weight.add_(1.0)
        for t, p in zip(target.parameters(), online.parameters(), strict=True):
            t.data.copy_(0.5 * t.data + 0.5 * p.data)
    return online, target


@case
def gradient_zeroed_in_place(lib: Any) -> Any:
    x = base(lib, True)
    (x * 2.0).sum().backward()
    held = x.grad
    held.zero_()
    (x * 3.0).sum().backward()
    return x.grad, held, held is x.grad


@case
def gradient_scaled_and_clipped(lib: Any) -> Any:
    x = base(lib, True)
    (x**2).sum().backward()
    x.grad.mul_(0.5).clamp_(-1.0, 1.0)
    x.grad[0] = 7.0
    return x.grad


@case
def gradient_held_before_set_to_none(lib: Any) -> Any:
    x = base(lib, True)
    (x**2).sum().backward()
    held = x.grad
    x.grad = None
    (x * 3.0).sum().backward()
    return x.grad, held


@case
def gradient_assigned_is_shared(lib: Any) -> Any:
    x, g = base(lib, True), base(lib)
    x.grad = g
    g.add_(1.0)
    (x * 2.0).sum().backward()
    return x.grad, g


@case
def gradients_accumulate_into_the_same_tensor(lib: Any) -> Any:
    x = base(lib, True)
    (x * 2.0).sum().backward()
    held = x.grad
    (x * 3.0).sum().backward()
    return held, x.grad, held is x.grad


@case
def optimizer_reads_the_gradient_that_was_changed(lib: Any) -> Any:
    layer = linear(lib)
    optimizer = lib.optim.SGD(layer.parameters(), lr=0.1)
    layer(base(lib)).sum().backward()
    layer.weight.grad[1:] = 0.0
    layer.bias.grad.fill_(2.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    return layer, layer.weight.grad, layer.bias.grad


@case
def optimizer_writes_what_views_see(lib: Any) -> Any:
    layer = linear(lib)
    row, data = layer.weight.detach()[1], layer.weight.data
    optimizer = lib.optim.SGD(layer.parameters(), lr=0.1)
    layer(base(lib)).sum().backward()
    optimizer.step()
    return layer, row, data


@case
def flat_parameters(lib: Any) -> Any:
    flat = lib.arange(12, dtype=lib.float64)
    w, b = flat[:8].view(2, 4), flat[8:].view(4)
    w.mul_(2.0)
    b += 1.0
    flat.sub_(3.0)
    return flat, w, b


@case
def flat_parameters_behind_data(lib: Any) -> Any:
    layer = linear(lib)
    flat = lib.zeros(28, dtype=lib.float64)
    at = 0
    for p in layer.parameters():
        n = p.numel()
        flat[at : at + n] = p.data.reshape(-1)
        p.data = flat[at : at + n].view(p.shape)
        at += n
    flat.mul_(2.0)
    return layer, flat


@case
def parameter_on_the_memory_of_a_tensor(lib: Any) -> Any:
    flat = lib.arange(24, dtype=lib.float64)
    whole, part = lib.nn.Parameter(flat), lib.nn.Parameter(flat[6:18].view(2, 6))
    flat.mul_(2.0)
    with lib.no_grad():
        part.add_(1.0)
    (whole[:12].sum() * part.sum()).backward()
    return flat, whole, part, whole.grad, part.grad


@case
def views_stay_when_their_base_moves(lib: Any) -> Any:
    x, y = base(lib), base(lib) * 10.0
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
    return x, y, v, w, z, u


@case
def data_replaced_does_not_touch_views_of_the_old(lib: Any) -> Any:
    x = base(lib)
    v = x[0]
    x.data = base(lib) * 10.0
    x.add_(1.0)
    return x, v


@case
def data_of_another_is_shared(lib: Any) -> Any:
    a, b = linear(lib), linear(lib)
    b.weight.data = a.weight.data
    a.weight.data.add_(1.0)
    return a, b


@case
def buffers_updated_in_place(lib: Any) -> Any:
    m = lib.nn.Module()
    m.register_buffer("mean", lib.zeros(6, dtype=lib.float64))
    held = m.mean
    m.mean.mul_(0.9).add_(base(lib).mean(0), alpha=0.1)
    return m.mean, held, m.state_dict()


# --- in place with history -----------------------------------------------------------------------------------


@case
def zeroed_result_still_requires_grad(lib: Any) -> Any:
    x = base(lib, True)
    y = x * 2.0
    y.zero_()
    (y + x).sum().backward()
    return y.requires_grad, y.is_leaf, x.grad


@case
def constant_copied_into_a_result(lib: Any) -> Any:
    x = base(lib, True)
    y = x * 2.0
    y.copy_(base(lib))
    y.sum().backward()
    return y.requires_grad, y, x.grad


@case
def part_of_a_result_filled(lib: Any) -> Any:
    x = base(lib, True)
    y = x * 2.0
    row = y[1]
    row.fill_(5.0)
    flags = (y.requires_grad, row.requires_grad)
    (y * y).sum().backward()
    return flags, y, row, x.grad


@case
def reshaped_result_filled(lib: Any) -> Any:
    x = base(lib, True)
    y = x * 2.0
    flat = y.view(-1)
    flat.fill_(1.0)
    (y * x).sum().backward()
    return y, flat, y.requires_grad, flat.requires_grad, x.grad


@case
def filled_by_a_tensor_with_history(lib: Any) -> Any:
    x = base(lib, True)
    y = lib.zeros(3, dtype=lib.float64)
    y.fill_(x[1, 2])
    (y**2).sum().backward()
    return y, x.grad


@case
def value_and_base_both_get_gradients(lib: Any) -> Any:
    x, v = base(lib, True), lib.arange(6, dtype=lib.float64).requires_grad_()
    y = x * 3.0
    y[1:3] = v * 2.0
    y[:, 0] = v[2]
    (y**2).sum().backward()
    return x.grad, v.grad


@case
def masked_and_indexed_values_get_gradients(lib: Any) -> Any:
    x, v = base(lib, True), lib.arange(6, dtype=lib.float64).requires_grad_()
    y = x * 3.0
    y[y > 20.0] = v[1]
    y[lib.tensor([0, 3])] = v
    y[[True, False, False, False]] *= v
    (y**2).sum().backward()
    return x.grad, v.grad


@case
def in_place_activation(lib: Any) -> Any:
    x = base(lib, True)
    y = x * 2.0
    y.clamp_(min=0.0)
    y[:, 2].mul_(3.0)
    (y**2).sum().backward()
    return y, x.grad


@case
def buffer_filled_row_by_row(lib: Any) -> Any:
    x = base(lib, True)
    out = lib.empty(4, 6, dtype=lib.float64)
    h = x[0]
    for i in range(4):
        h = h * 0.5 + x[i]
        out[i] = h
    (out**2).sum().backward()
    return out, x.grad


@case
def detached_result_written_changes_the_result(lib: Any) -> Any:
    x = base(lib, True)
    y = x * 2.0
    y.detach()[0] = 0.0
    y.data[1] = 1.0
    (y * 3.0).sum().backward()
    return y, x.grad


@case
def no_grad_update_of_a_view_of_a_leaf(lib: Any) -> Any:
    x = base(lib, True)
    with lib.no_grad():
        x[:, 0].zero_()
        x.t()[1].add_(1.0)
        x.view(-1)[-1] = 9.0
    (x**2).sum().backward()
    return x, x.grad, x.requires_grad, x.is_leaf


@case
def leaf_clamped_between_steps(lib: Any) -> Any:
    x = base(lib, True)
    for _ in range(3):
        (x**2).sum().backward()
        with lib.no_grad():
            x -= 0.1 * x.grad
            x.clamp_(min=-1.0)
            x.grad.zero_()
    return x, x.grad


# --- the tests -----------------------------------------------------------------------------------------------


def compare(case: Case) -> None:
    want, got = numbers(case(torch)), numbers(case(gt))
    assert len(want) == len(got) > 0
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-12, atol=1e-14)
        assert g.dtype == w.dtype


@pytest.mark.parametrize("case", CASES, ids=lambda f: f.__name__)
def test_aliasing_is_torchs(case: Case, session: Session) -> None:
    compare(case)


@pytest.mark.parametrize("case", CASES, ids=lambda f: f.__name__)
def test_aliasing_does_not_depend_on_where_programs_end(
    case: Case, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same, with every op a program of its own."""
    monkeypatch.setattr("gt.client.record.thread.CAP", 1)
    compare(case)


@pytest.mark.parametrize("case", CASES[::3], ids=lambda f: f.__name__)
def test_aliasing_on_the_torch_engine(case: Case) -> None:
    """There a worker writes into memory that it was given."""
    with using(Cluster(engine="torch").client()) as session:
        compare(case)
    session.close()


def test_the_table_is_long_enough() -> None:
    assert len(CASES) >= 100


# --- threads -------------------------------------------------------------------------------------------------------


def test_two_threads_that_read_a_view_have_one_value(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    x = gt.arange(6).float()
    part = x[1:4]
    x.add_(10)
    taken, found = views.apply, []

    def apply(kind: Any, args: Any) -> Any:
        monkeypatch.setattr(views, "apply", taken)
        found.append(views.read(part))  # another thread's
        return taken(kind, args)

    monkeypatch.setattr(views, "apply", apply)
    assert views.read(part) is found[0]
    np.testing.assert_array_equal(part.numpy(), [11, 12, 13])


def test_a_write_while_a_view_is_taken_is_seen_by_the_next_reader(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = gt.arange(6).float()
    part = x[1:4]
    x.add_(10)
    taken = views.apply

    def apply(kind: Any, args: Any) -> Any:
        monkeypatch.setattr(views, "apply", taken)
        made = taken(kind, args)
        x.add_(10)  # another thread's, before this one has noted what it took
        return made

    monkeypatch.setattr(views, "apply", apply)
    views.read(part)
    np.testing.assert_array_equal(part.numpy(), [21, 22, 23])
