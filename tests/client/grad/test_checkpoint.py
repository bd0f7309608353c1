"""checkpoint: activations computed again in backward."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gt
from gt.client.tensor import Later
from gt.errors import AutogradError
from tests.beside_torch import same

pytestmark = pytest.mark.usefixtures("session")

X = np.array([[0.5, -1.0, 2.0], [1.5, 0.25, -0.75]])


def test_checkpoint_gives_the_same_gradients_with_dropout() -> None:
    model = gt.nn.Sequential(gt.nn.Linear(3, 8), gt.nn.Dropout(0.5), gt.nn.GELU(), gt.nn.Linear(8, 1))
    x = gt.tensor(X.astype(np.float32), requires_grad=True)

    def gradients(run: Any) -> list[np.ndarray]:
        gt.manual_seed(3)
        model.zero_grad()
        x.grad = None
        run(model, x).sum().backward()
        return [t.grad.numpy() for t in (*model.parameters(), x)]

    plain = gradients(lambda m, x: m(x))
    for way in (gt.checkpoint, lambda m, x: gt.checkpoint(lambda t: gt.checkpoint(m, t), x)):
        same(plain, gradients(way), rtol=0)
    sequential = gradients(lambda m, x: gt.checkpoint_sequential(m, 2, x))
    same(plain, sequential, rtol=0)


def test_checkpoint_keeps_no_values_and_draws_the_same_afterwards() -> None:
    x = gt.ones(3, requires_grad=True)
    gt.manual_seed(0)
    y = gt.checkpoint(lambda t: gt.nn.functional.dropout(t.exp(), 0.5).sin(), x)
    assert type(y.grad_fn.saved) is Later
    y.sum().backward()
    after = gt.rand(2).numpy()
    gt.manual_seed(0)
    gt.nn.functional.dropout(x.exp(), 0.5)
    np.testing.assert_array_equal(after, gt.rand(2).numpy())


def test_checkpoint_of_a_function_that_changes_its_mind() -> None:
    x, times = gt.ones(3, requires_grad=True), []

    def f(t: Any) -> Any:
        times.append(1)
        return t.exp() if len(times) == 1 else t.sin().exp()

    y = gt.checkpoint(f, x)
    with pytest.raises(AutogradError, match="recorded other ops in its second run"):
        y.sum().backward()


def test_checkpoint_inside_a_traced_function() -> None:
    w = gt.nn.Parameter(gt.full((3,), 0.5))

    def step(x: Any) -> Any:
        w.grad = None
        loss = gt.checkpoint(lambda t: gt.nn.functional.dropout(t * w, 0.5).exp(), x).sum()
        loss.backward()
        return loss.detach()

    fast = gt.function(step)
    for i in range(4):
        x = gt.full((3,), float(i))
        gt.manual_seed(i)
        a, ga = step(x).item(), w.grad.numpy()
        gt.manual_seed(i)
        assert fast(x).item() == pytest.approx(a)
        np.testing.assert_allclose(w.grad.numpy(), ga, rtol=1e-6)
