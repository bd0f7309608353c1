"""Stories about parameters, buffers and gradients that share memory. See test_aliases.py.

`layer` has weights of shape (4, 6). It is compared when the story is over.
"""

from __future__ import annotations

import copy
from typing import Any

from tests.client.views.aliasing import base, linear


def tied_weights(lib: Any, layer: Any) -> Any:
    a = lib.nn.Linear(3, 3, dtype=lib.float64)
    b = lib.nn.Linear(3, 3, dtype=lib.float64)
    b.weight = a.weight
    with lib.no_grad():
        a.weight.copy_(base(lib)[:3, :3])
        b.weight.mul_(2.0)
    return a.weight, b.weight, a.weight is b.weight


def parameters_in_a_state_dict_share(lib: Any, layer: Any) -> Any:
    a = lib.nn.Linear(6, 4, bias=False, dtype=lib.float64)
    state = a.state_dict()
    with lib.no_grad():
        a.weight.copy_(base(lib))
        state["weight"][0] = 0.0
    return a.weight, state


def init_on_data(lib: Any, layer: Any) -> Any:
    before = layer.weight
    layer.weight.data.fill_(0.5)
    layer.bias.data.zero_()
    return before, layer.weight is before, layer.weight.is_leaf


def init_of_a_part_of_data(lib: Any, layer: Any) -> None:
    layer.weight.data[0].fill_(2.0)
    layer.weight.data[:, 1:3] = -1.0
    layer.weight.data.view(-1)[-1] = 9.0


def padding_row_zeroed(lib: Any, layer: Any) -> Any:
    table = lib.nn.Embedding(4, 6, dtype=lib.float64)
    table.weight.data.copy_(base(lib))
    with lib.no_grad():
        table.weight[2].fill_(0.0)
    return table.weight, table.weight.requires_grad


def state_dict_shares(lib: Any, layer: Any) -> Any:
    state = layer.state_dict()
    state["bias"].add_(1.0)
    with lib.no_grad():
        layer.weight.mul_(2.0)
    return state


def state_dict_deepcopy_does_not(lib: Any, layer: Any) -> Any:
    saved = copy.deepcopy(layer.state_dict())
    with lib.no_grad():
        layer.weight.zero_()
    saved["bias"].add_(5.0)
    return saved


def state_dict_cloned_and_loaded_back(lib: Any, layer: Any) -> Any:
    best = {k: v.clone() for k, v in layer.state_dict().items()}
    with lib.no_grad():
        for p in layer.parameters():
            p.add_(3.0)
    changed = layer.weight.detach().clone()
    layer.load_state_dict(best)
    return changed, best


def deepcopied_module(lib: Any, layer: Any) -> Any:
    twin = copy.deepcopy(layer)
    with lib.no_grad():
        twin.weight.mul_(3.0)
        layer.bias.sub_(1.0)
    return twin


def tied_parameters_in_two_modules(lib: Any, layer: Any) -> Any:
    table, head = lib.nn.Embedding(4, 6, dtype=lib.float64), linear(lib)
    head.weight = table.weight
    table.weight.data.copy_(base(lib))
    (head(table(lib.tensor([1, 3]))) ** 2).sum().backward()
    with lib.no_grad():
        head.weight.sub_(0.01 * head.weight.grad)
    return table.weight, head.weight, table.weight.grad


def exponential_moving_average(lib: Any, layer: Any) -> Any:
    mean = copy.deepcopy(layer)
    for _ in range(3):
        with lib.no_grad():
            for p in layer.parameters():
                p.add_(1.0)
            for e, p in zip(mean.parameters(), layer.parameters(), strict=True):
                e.mul_(0.9).add_(p, alpha=0.1)
    return mean


def moving_average_by_lerp(lib: Any, layer: Any) -> Any:
    shadow = {k: v.detach().clone() for k, v in layer.named_parameters()}
    layer.weight.data.mul_(2.0)
    for k, v in layer.named_parameters():
        shadow[k].lerp_(v.detach(), 0.25)
    return shadow


def weight_clipping(lib: Any, layer: Any) -> None:
    for p in layer.parameters():
        p.data.clamp_(-0.2, 0.2)


def weight_clipping_by_norm(lib: Any, layer: Any) -> Any:
    w = linear(lib).weight
    with lib.no_grad():
        norm = (w**2).sum(1, keepdim=True).sqrt()
        w.mul_((1.0 / norm).clamp(max=1.0))
    return w


def target_network_updated(lib: Any, layer: Any) -> Any:
    online, target = linear(lib), linear(lib)
    with lib.no_grad():
        online.weight.add_(1.0)
        for t, p in zip(target.parameters(), online.parameters(), strict=True):
            t.data.copy_(0.5 * t.data + 0.5 * p.data)
    return online, target


def optimizer_reads_the_gradient_that_was_changed(lib: Any, layer: Any) -> Any:
    optimizer = lib.optim.SGD(layer.parameters(), lr=0.1)
    layer(base(lib)).sum().backward()
    layer.weight.grad[1:] = 0.0
    layer.bias.grad.fill_(2.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    return layer.weight.grad, layer.bias.grad


def optimizer_writes_what_views_see(lib: Any, layer: Any) -> Any:
    row, data = layer.weight.detach()[1], layer.weight.data
    optimizer = lib.optim.SGD(layer.parameters(), lr=0.1)
    layer(base(lib)).sum().backward()
    optimizer.step()
    return row, data


def flat_parameters_behind_data(lib: Any, layer: Any) -> Any:
    flat = lib.zeros(28, dtype=lib.float64)
    at = 0
    for p in layer.parameters():
        n = p.numel()
        flat[at : at + n] = p.data.reshape(-1)
        p.data = flat[at : at + n].view(p.shape)
        at += n
    flat.mul_(2.0)
    return flat


def parameter_on_the_memory_of_a_tensor(lib: Any, layer: Any) -> Any:
    flat = lib.arange(24, dtype=lib.float64)
    whole, part = lib.nn.Parameter(flat), lib.nn.Parameter(flat[6:18].view(2, 6))
    flat.mul_(2.0)
    with lib.no_grad():
        part.add_(1.0)
    (whole[:12].sum() * part.sum()).backward()
    return flat, whole, part, whole.grad, part.grad


def data_of_another_is_shared(lib: Any, layer: Any) -> Any:
    a, b = linear(lib), linear(lib)
    b.weight.data = a.weight.data
    a.weight.data.add_(1.0)
    return a, b


def buffers_updated_in_place(lib: Any, layer: Any) -> Any:
    m = lib.nn.Module()
    m.register_buffer("mean", lib.zeros(6, dtype=lib.float64))
    held = m.mean
    m.mean.mul_(0.9).add_(base(lib).mean(0), alpha=0.1)
    return m.mean, held, m.state_dict()


def views_of_a_parameter_whose_data_is_stepped(lib: Any, layer: Any) -> Any:
    """Steps of gradient descent by hand, on what views of the parameters were taken of before."""
    turned, rows = layer.weight.t(), layer.weight[1:3]
    losses = []
    for _ in range(3):
        loss = (base(lib) @ turned).square().sum() + rows.sum()
        loss.backward(retain_graph=True)
        layer.weight.data -= 0.001 * layer.weight.grad
        rows.data *= 0.9
        layer.weight.grad = None
        losses.append(loss.detach())
    turned.sum().backward()
    return losses, turned.requires_grad, rows.requires_grad, layer.weight.grad


def views_of_a_parameter_that_was_moved(lib: Any, layer: Any) -> Any:
    part, memory = layer.weight[:2], layer.weight.data
    layer.weight.data = base(lib)
    memory.mul_(2.0)
    part.sum().backward()
    return part, memory, part.requires_grad, layer.weight.grad
