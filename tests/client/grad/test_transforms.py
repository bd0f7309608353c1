"""gt.func: gradients of functions, beside torch's."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import gt
from gt.errors import ArgumentError, AutogradError, DTypeError
from tests.beside_torch import same

pytestmark = pytest.mark.usefixtures("session")

X = np.array([[0.5, -1.0, 2.0], [1.5, 0.25, -0.75]])


class Pair(NamedTuple):
    a: Any
    b: Any


def f3(x: Any) -> Any:
    return (x * x * x).sum()


USES = [
    lambda F, x: F.grad(f3)(x),
    lambda F, x: F.grad(lambda a, b: (a * b).sum(), argnums=1)(x, x * 2),
    lambda F, x: F.grad(lambda a, b: (a * a * b).sum(), argnums=(0, 1))(x, x * 2),
    lambda F, x: F.grad(lambda a: F.grad(f3)(a).sum())(x),
    lambda F, x: F.grad(lambda a: (f3(a), a * 2), has_aux=True)(x),
    lambda F, x: F.grad(lambda d: (d["a"] * d["b"]).sum())({"a": x, "b": x * 2})["b"],
    lambda F, x: F.grad(lambda p: (p.a * p.b).sum())(Pair(x, x * 2)).b,
    lambda F, x: F.vjp(lambda a: Pair(a * a, a * 3), x)[1](Pair(x, x))[0],
    lambda F, x: F.vjp(lambda a: a * a, x)[1](x)[0],
    lambda F, x: F.vjp(lambda a: (a * a, a * 3), x)[1]((x, x))[0],
    lambda F, x: F.jvp(lambda a: a * a, (x,), (x + 1,)),
    lambda F, x: F.jacrev(lambda a: a * a)(x),
    lambda F, x: F.hessian(f3)(x),
    lambda F, x: F.jacrev(lambda a, b: (a * b.sum(), b[0]), (0, 1))(x, x * 2),
    lambda F, x: F.jacrev(lambda p, b: {"y": (p["w"] * b).sum(0)}, has_aux=False)({"w": x}, x * 2)["y"]["w"],
    lambda F, x: F.jacrev(lambda a: (a * a, a + 1), has_aux=True)(x),
    lambda F, x: F.jacfwd(lambda a: a * a)(x),
    lambda F, x: F.jacfwd(lambda a, b: (a[0] * b.sum(), b[1]), argnums=(0, 1))(x, x * 2),
    lambda F, x: F.jacfwd(lambda a: (a * a, a + 1), has_aux=True)(x),
    lambda F, x: F.jacfwd(F.jacrev(f3))(x),
    lambda F, x: F.hessian(lambda a, b: (a * a * b).sum(), argnums=(0, 1))(x, x * 2),
    lambda F, x: F.vmap(F.jacfwd(lambda row: row.tanh() * row.sum()))(x),
    lambda F, x: F.linearize(lambda a: a * a, x)[1](x + 1),
    lambda F, x: F.jvp(lambda a: (a * a, a), (x,), (x + 1,), has_aux=True),
    lambda F, x: F.grad_and_value(f3)(x) if hasattr(F, "grad_and_value") else None,
]


@pytest.mark.parametrize("use", USES)
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # torch.func's own
@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning")  # the same
def test_func_is_as_in_torch(use: Any) -> None:
    same(use(gt.func, gt.tensor(X)), use(torch.func, torch.tensor(X)), rtol=1e-9)


def test_func_adds_nothing_to_grad_and_goes_through_outer_history() -> None:
    x = gt.tensor(2.0, requires_grad=True)
    g = gt.func.grad(lambda a: a**3)(x)
    assert x.grad is None
    g.backward()  # the derivative of 3 x^2
    assert x.grad.item() == 12.0
    value, slope = gt.func.value_and_grad(lambda a: a * a)(gt.tensor(3.0))
    assert (value.item(), slope.item()) == (9.0, 6.0)


#: Of a weight that the function uses, and of its argument.
WITH_A_WEIGHT: list[Any] = [
    lambda F, w, x: [F.grad(lambda x: (x**2 * w**2).sum())(x)],
    lambda F, w, x: [*F.grad_and_value(lambda x: (x**2 * w**2).sum())(x)],
    lambda F, w, x: F.grad(lambda x: ((x**2).sum(), w * x), has_aux=True)(x),
    lambda F, w, x: [*F.jvp(lambda x: x**2 * w**2, (x,), (x + 1,))],
    lambda F, w, x: [*F.jvp(lambda x: x**2, (x,), (w,))],
    lambda F, w, x: [(pull := F.vjp(lambda x: x**2 * w**2, x))[0], pull[1](x)[0]],
    lambda F, w, x: [(pull := F.vjp(lambda x: x**2, x))[0], pull[1](w)[0]],
    lambda F, w, x: [F.jacrev(lambda x: x**2 * w**2)(x), F.jacfwd(lambda x: x**2 * w**2)(x)],
    lambda F, w, x: [*F.jacrev(lambda x: (x**2, w * x), has_aux=True)(x)],
    lambda F, w, x: [F.hessian(lambda x: (x**2 * w**2).sum())(x)],
    lambda F, w, x: [F.vmap(F.grad(lambda x: x**2 * w.sum()))(x[0])],
    lambda F, w, x: [F.jacrev(lambda w: x**2 * w**2)(w), F.jacfwd(lambda x: x**2)(x)],
]


@pytest.mark.parametrize("use", WITH_A_WEIGHT)
@pytest.mark.parametrize("on", [True, False], ids=["", "no grad"])
def test_what_func_returns_depends_on_the_tensors_that_its_function_uses(use: Any, on: bool) -> None:
    def story(lib: Any) -> list[Any]:
        w, x = lib.tensor(X + 2, requires_grad=True), lib.tensor(X)
        with lib.set_grad_enabled(on):
            found = use(lib.func, w, x)
        lasting = [y for y in found if y.requires_grad]
        if lasting:
            sum(y.square().sum() for y in lasting).backward()
        return [*found, w.grad if lasting else None]

    same(story(gt), story(torch), rtol=1e-9)


def test_jacobians_of_nothing_and_of_integers() -> None:
    for jacobian in (gt.func.jacrev, gt.func.jacfwd):
        assert jacobian(lambda x: x[:0])(gt.ones(2)).shape == (0, 2)
        assert jacobian(lambda x: x.sum())(gt.zeros(0)).shape == (0,)
        with pytest.raises(DTypeError, match="cast it first"):
            jacobian(lambda x: x * 2)(gt.arange(3))


def test_func_refuses_results_of_several_elements() -> None:
    with pytest.raises(AutogradError, match="one element"):
        gt.func.grad(lambda a: a)(gt.ones(2))
    with pytest.raises(ArgumentError, match="argnums 3 is out of range for 1 arguments"):
        gt.func.grad(lambda a: a.sum(), argnums=3)(gt.ones(2))


def test_linearize_runs_its_function_once() -> None:
    runs = []

    def f(x: Any) -> Any:
        runs.append(x)
        return x.sin()

    value, push = gt.func.linearize(f, gt.tensor(X))
    rows = [push(gt.tensor(X) * k) for k in (1.0, 2.0)]
    assert len(runs) == 1
    same(value, torch.tensor(X).sin(), rtol=1e-9)
    same(rows[1], 2 * torch.tensor(X) * torch.tensor(X).cos(), rtol=1e-9)
    assert not value.requires_grad
    with pytest.raises(ArgumentError, match="expected tangents of the shapes"):
        push(gt.ones(2))


def test_batch_norms_without_statistics() -> None:
    model = gt.func.replace_all_batch_norm_modules_(gt.nn.Sequential(gt.nn.BatchNorm1d(3)))
    assert set(model.state_dict()) == {"0.weight", "0.bias"}
    np.testing.assert_allclose(model.eval()(gt.tensor(X).float()).detach().numpy().mean(0), 0, atol=1e-6)


def test_gradients_of_a_batch_of_seeds() -> None:
    x, other = gt.tensor(X, requires_grad=True), gt.ones(1, requires_grad=True)
    seeds = gt.from_numpy(np.random.default_rng(2).normal(size=(3, *X.shape)))
    y = x.sin()
    dx, none = gt.autograd.grad(y, [x, other], seeds, is_grads_batched=True, allow_unused=True, retain_graph=True)
    np.testing.assert_allclose(dx.numpy(), np.cos(X) * seeds.numpy(), atol=1e-12)
    assert none is None
    gt.autograd.grad(y, x, (seeds,), is_grads_batched=True)
    with pytest.raises(AutogradError, match="second time"):
        y.sum().backward()
