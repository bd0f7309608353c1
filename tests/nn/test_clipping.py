"""nn.utils: gradients kept small, parameters as a vector."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.errors import AutogradError, ShapeError
from tests.beside_torch import arrays, nn_twins, same

_rng = np.random.default_rng(4)
X = _rng.normal(size=(3, 4))


def _graded() -> list[tuple[Any, Any]]:
    """The same model in both, with gradients."""
    models = nn_twins(lambda nn: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)))
    for lib, model in zip((torch, gt), models, strict=True):
        (model(lib.from_numpy(X)) ** 2).sum().backward()
        model[0].bias.grad = None  # some have none
    return list(zip((torch, gt), models, strict=True))


@pytest.mark.parametrize("norm_type", [2.0, 1.0, 3.0, float("inf")])
@pytest.mark.parametrize("max_norm", [0.1, 1000.0])
def test_clipping_by_norm(norm_type: float, max_norm: float) -> None:
    results = []
    for lib, model in _graded():
        total = lib.nn.utils.clip_grad_norm_(model.parameters(), max_norm, norm_type)
        results.append(arrays([total, *[p.grad for p in model.parameters()]]))
    same(results[1], results[0], rtol=1e-6, atol=0)


def test_clipping_by_value_and_norms_by_themselves() -> None:
    results = []
    for lib, model in _graded():
        norm = lib.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
        lib.nn.utils.clip_grads_with_norm_(model[2].weight, 0.5, norm)
        lib.nn.utils.clip_grad_value_(model.parameters(), 0.2)
        results.append(arrays([norm, *[p.grad for p in model.parameters()]]))
    same(results[1], results[0], rtol=1e-6, atol=0)
    assert gt.nn.utils.get_total_norm([]).item() == 0.0
    p = gt.nn.Parameter(gt.ones(2))
    p.grad = gt.tensor([float("nan"), 1.0])
    with pytest.raises(AutogradError, match="is not finite"):
        gt.nn.utils.clip_grad_norm_(p, 1.0, error_if_nonfinite=True)


def test_clipping_inside_a_function() -> None:
    model = gt.nn.Linear(4, 2)
    opt = gt.optim.SGD(model.parameters(), lr=0.1)

    @gt.function
    def step(x: Any) -> Any:
        opt.zero_grad()
        loss = (model(x) ** 2).sum()
        loss.backward()
        norm = gt.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        opt.step()
        return loss.detach(), norm

    x = gt.from_numpy(X.astype(np.float32))
    losses = [step(x)[0].item() for _ in range(5)]
    assert losses == sorted(losses, reverse=True)
    assert step.replays >= 3
    grads = np.concatenate([p.grad.numpy().reshape(-1) for p in model.parameters()])
    assert np.linalg.norm(grads) <= 0.5 + 1e-5


def test_parameters_as_a_vector() -> None:
    (_, theirs), (_, ours) = _graded()
    vector = gt.nn.utils.parameters_to_vector(ours.parameters())
    want = torch.nn.utils.parameters_to_vector(theirs.parameters())
    np.testing.assert_array_equal(vector.detach().numpy(), want.detach().numpy())
    gt.nn.utils.vector_to_parameters(vector * 2, ours.parameters())
    np.testing.assert_array_equal(ours[0].weight.detach().numpy(), 2 * theirs[0].weight.detach().numpy())
    assert ours[0].weight.requires_grad
    with pytest.raises(ShapeError, match=r"expected a vector of 37 elements, got shape \(3,\)"):
        gt.nn.utils.vector_to_parameters(vector[:3], ours.parameters())
