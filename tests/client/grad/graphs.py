"""Stories about what backward does. See test_backward.py.

`x` and `y` are leaves with the values A and B. Their gradients are compared when the story is over.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.beside_torch import leaf

_rng = np.random.default_rng(3)
A, B, C = _rng.normal(size=(4, 5)), _rng.normal(size=(4, 5)), _rng.normal(size=5)
W, V = _rng.normal(size=(5, 3)), _rng.normal(size=(2, 4, 5))


def accumulates(lib: Any, x: Any, y: Any) -> None:
    for k in range(3):
        (x * float(k)).sum().backward()


def gradients_of_leaves_share_nothing(lib: Any, x: Any, y: Any) -> None:
    (x + y).sum().backward()
    x.grad.mul_(3.0)


def given_gradient_is_not_shared(lib: Any, x: Any, y: Any) -> None:
    g = lib.from_numpy(B.copy())
    (x + 0.0).backward(g)
    g.zero_()


def retained_gradients_share_nothing(lib: Any, x: Any, y: Any) -> Any:
    y = x * 2.0
    z = y + 1.0
    y.retain_grad()
    z.retain_grad()
    z.sum().backward()
    y.grad.mul_(5.0)
    return y.grad, z.grad


def retain_graph_twice(lib: Any, x: Any, y: Any) -> None:
    y = (x**2).sum()
    y.backward(retain_graph=True)
    y.backward()


def one_of_two_paths_detached(lib: Any, x: Any, y: Any) -> None:
    h = x.exp()
    (h * h.detach() + h).sum().backward()


def hook_changes_the_gradient(lib: Any, x: Any, y: Any) -> Any:
    y = x * 3.0
    seen = []
    y.register_hook(lambda g: g * 2.0)
    y.register_hook(lambda g: seen.append(g.detach()))
    x.register_hook(lambda g: g + 1.0)
    (y**2).sum().backward()
    return seen


def hook_on_one_of_several_results(lib: Any, x: Any, y: Any) -> None:
    a, b = x.split([2, 3], dim=1)
    b.register_hook(lambda g: g * 10.0)
    ((a**2).sum() + (b**2).sum()).backward()


def no_grad_in_the_middle(lib: Any, x: Any, y: Any) -> Any:
    y = x * 2.0
    with lib.no_grad():
        z = y * 5.0
        with lib.enable_grad():
            u = y * 7.0
    (y * z + u).sum().backward()
    return z.requires_grad, u.requires_grad


def no_grad_as_a_decorator(lib: Any, x: Any, y: Any) -> Any:
    @lib.no_grad()
    def frozen(x: Any) -> Any:
        return x * 2.0

    @lib.enable_grad()
    def live(x: Any) -> Any:
        return x * 2.0

    with lib.no_grad():
        y = live(x)
    return frozen(x).requires_grad, y.requires_grad, lib.is_grad_enabled()


def unused_leaf_keeps_none(lib: Any, x: Any, y: Any) -> None:
    (x * 2.0).sum().backward()


def grad_leaves_dot_grad_alone(lib: Any, x: Any, y: Any) -> Any:
    return lib.autograd.grad((x * y).sum(), [y, x])


def grad_with_weights_and_unused(lib: Any, x: Any, y: Any) -> Any:
    gs = lib.autograd.grad([x * 2.0, x.exp()], [x, y], [lib.from_numpy(B), lib.from_numpy(A)], allow_unused=True)
    return gs[0], gs[1] is None


def grad_of_an_inner_tensor(lib: Any, x: Any, y: Any) -> Any:
    h = x.tanh()
    return lib.autograd.grad((h**2).sum(), h, retain_graph=True)[0], lib.autograd.grad((h**2).sum(), x)[0]


def mixed_dtypes(lib: Any, x: Any, y: Any) -> Any:
    x = lib.from_numpy(A.astype(np.float32)).requires_grad_()
    k = lib.arange(5)
    (x * y * k + x.to(lib.float64).exp()).sum().backward()
    return x.grad, y.grad


def halves_stay_halves(lib: Any, x: Any, y: Any) -> Any:
    x = lib.from_numpy(A.astype(np.float16)).requires_grad_()
    (x.float() * 2.0).sum().backward()
    return x.grad


def integers_carry_no_gradient(lib: Any, x: Any, y: Any) -> Any:
    return x.argmax(1).requires_grad, (x > 0).requires_grad, x.to(lib.int64).requires_grad


def gradient_of_a_view_of_a_parameter(lib: Any, x: Any, y: Any) -> None:
    (x.t()[1:3] ** 2).sum().backward()
    (x[0] * 2.0).sum().backward()


def zero_gradients_flow(lib: Any, x: Any, y: Any) -> None:
    (x.relu() * 0.0).sum().backward()


def scalars_of_every_shape(lib: Any, x: Any, y: Any) -> Any:
    x = leaf(lib, np.array(2.0))
    (x**3).reshape(1, 1).backward()
    return x.grad


def backward_inside_no_grad(lib: Any, x: Any, y: Any) -> Any:
    y = (x * x).sum()
    with lib.no_grad():
        y.backward()
    return x.grad.requires_grad


def create_graph_in_backward(lib: Any, x: Any, y: Any) -> Any:
    y = (x**3).sum()
    gs = lib.autograd.grad(y, [x], create_graph=True)
    gs[0].sum().backward()
    return gs[0].requires_grad


def frozen_weights_in_between(lib: Any, x: Any, y: Any) -> Any:
    w = lib.from_numpy(W)
    (x @ w).relu().sum().backward()
    return w.grad is None
