"""Weights that are computed from others: weight_norm, spectral_norm and one's own, beside torch's."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.errors import ArgumentError, ShapeError
from tests.beside_torch import Build, arrays, compare_modules, nn_twins, same

_rng = np.random.default_rng(5)
X, IMAGE = _rng.normal(size=(3, 4)), _rng.normal(size=(2, 4, 5, 5))

CASES: dict[str, tuple[Build, Any]] = {
    "weight norm": (lambda nn: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), X),
    "weight norm along 1": (lambda nn: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3), dim=1), X),
    "weight norm of all": (lambda nn: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3), dim=None), X),
    "weight norm of a convolution": (lambda nn: nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 3, 2)), IMAGE),
    "spectral norm": (lambda nn: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)), X),
    "spectral norm, not training": (lambda nn: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)).eval(), X),
    "spectral norm of a transposed convolution": (
        lambda nn: nn.utils.parametrizations.spectral_norm(nn.ConvTranspose2d(4, 3, 2), n_power_iterations=2), IMAGE
    ),
    "spectral norm of a bias": (lambda nn: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3), "bias"), X),
    "weight norm by hooks": (lambda nn: nn.utils.weight_norm(nn.Conv2d(4, 3, 2)), IMAGE),
    "spectral norm by hooks": (lambda nn: nn.utils.spectral_norm(nn.Linear(4, 3)), X),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
@pytest.mark.parametrize(("build", "x"), CASES.values(), ids=CASES)
def test_norms_of_weights_are_torchs(build: Any, x: Any) -> None:
    compare_modules(build, (x,))


@pytest.mark.parametrize("sizes", [(4, 4), (4, 3), (3, 4)], ids=["square", "wide", "tall"])
@pytest.mark.parametrize("way", ["matrix_exp", "cayley", "householder"])
@pytest.mark.parametrize("based", [True, False])
def test_orthogonal_weights(sizes: tuple[int, int], way: str, based: bool) -> None:
    def build(nn: Any) -> Any:
        return nn.Linear(*sizes, bias=False)

    results = []
    for lib, layer in zip((torch, gt), nn_twins(build), strict=True):
        lib.nn.utils.parametrizations.orthogonal(layer, orthogonal_map=way, use_trivialization=based)
        original = layer.parametrizations.weight.original
        if sizes[0] == sizes[1] or not based:  # else the base has random columns
            results.append(layer.weight.detach().numpy())
        lib.optim.SGD([original], lr=0.1).zero_grad()
        x = lib.from_numpy(X[:, : sizes[0]].copy())
        (layer(x) * (lib.arange(sizes[1], dtype=lib.float64) + 1.0)).square().sum().backward()
        with lib.no_grad():
            original -= 0.01 * original.grad
        w = layer.weight.detach().numpy()
        small = w.T @ w if w.shape[0] >= w.shape[1] else w @ w.T
        np.testing.assert_allclose(small, np.eye(len(small)), atol=1e-9)
        results.append(w if sizes[0] == sizes[1] or not based else small)
        if based:  # it can be assigned
            layer.weight = lib.eye(*w.shape, dtype=lib.float64)
            np.testing.assert_allclose(layer.weight.detach().numpy(), np.eye(*w.shape), atol=1e-9)
    for want, got in zip(results[: len(results) // 2], results[len(results) // 2 :], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-9)


def test_orthogonal_refuses() -> None:
    orthogonal = gt.nn.utils.parametrizations.orthogonal
    with pytest.raises(ArgumentError, match="expected a matrix or batches of matrices"):
        orthogonal(gt.nn.Linear(3, 2), "bias")
    with pytest.raises(ArgumentError, match="orthogonal_map"):
        orthogonal(gt.nn.Linear(3, 2), orthogonal_map="qr")
    layer = orthogonal(gt.nn.Linear(3, 3), orthogonal_map="cayley", use_trivialization=False)
    with pytest.raises(NotImplementedError, match="has no inverse"):
        layer.weight = gt.eye(3)


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
@pytest.mark.parametrize("kind", ["weight_norm", "spectral_norm"])
def test_hooks_are_taken_off_again(kind: str) -> None:
    theirs, ours = nn_twins(lambda nn: getattr(nn.utils, kind)(nn.Linear(4, 3)))
    for lib, module in ((torch, theirs), (gt, ours)):
        module(lib.from_numpy(X))
        getattr(lib.nn.utils, f"remove_{kind}")(module)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    np.testing.assert_allclose(ours.weight.detach().numpy(), theirs.weight.detach().numpy(), rtol=1e-6)
    with pytest.raises(ArgumentError, match=r"has no .*Norm of 'weight'"):
        getattr(gt.nn.utils, f"remove_{kind}")(ours)


def test_states_with_the_old_names_are_taken() -> None:
    old = gt.nn.utils.weight_norm(gt.nn.Linear(4, 3))
    new = gt.nn.utils.parametrizations.weight_norm(gt.nn.Linear(4, 3))
    new.load_state_dict(old.state_dict())
    np.testing.assert_allclose(new.weight.detach().numpy(), old.weight.detach().numpy(), rtol=1e-6)


def symmetric(nn: Any) -> Any:
    class Symmetric(nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return x.triu() + x.triu(1).transpose(-1, -2)

        def right_inverse(self, x: Any) -> Any:
            return x.triu()

    return Symmetric()


def test_a_parametrization_of_ones_own() -> None:
    results = []
    for lib, module in zip((torch, gt), nn_twins(lambda nn: nn.Linear(4, 4)), strict=True):
        parametrize = lib.nn.utils.parametrize
        parametrize.register_parametrization(module, "weight", symmetric(lib.nn))
        assert parametrize.is_parametrized(module)
        assert parametrize.is_parametrized(module, "weight")
        assert not parametrize.is_parametrized(module, "bias")
        first = [module.weight, *module.state_dict().values()]
        x = lib.from_numpy(X)
        module(x).sum().backward()
        module.weight = lib.eye(4, dtype=lib.float64) * 2
        with parametrize.cached():
            assert module.weight is module.weight
        assert module.weight is not module.weight
        twin = copy.deepcopy(module)
        names = [n for n, _ in module.named_parameters()]
        out = [*first, module(x), twin(x), module.parametrizations.weight.original.grad]
        parametrize.remove_parametrizations(module, "weight")
        results.append((names, repr(twin), repr(module), arrays([*out, module.weight])))
    assert results[0][:3] == results[1][:3]
    same(results[1][3], results[0][3], rtol=1e-6, atol=0)


def test_parametrizations_that_do_not_fit_are_refused() -> None:
    class Half(gt.nn.Module):
        def forward(self, x: Any) -> Any:
            return x[:1]

    register, layer = gt.nn.utils.parametrize.register_parametrization, gt.nn.Linear(4, 3)
    with pytest.raises(ShapeError, match=r"a parametrization must keep gt.float32 and shape \(3,"):
        register(layer, "weight", Half())
    with pytest.raises(ArgumentError, match="has no parameter or buffer 'w'"):
        register(layer, "w", Half())
    register(layer, "weight", Half(), unsafe=True)
    assert layer.weight.shape == (1, 4)
    with pytest.raises(ArgumentError, match="has no right_inverse"):
        layer.weight = gt.ones(3, 4)
    gt.nn.utils.parametrize.remove_parametrizations(layer, "weight", leave_parametrized=False)
    assert type(layer) is gt.nn.Linear
    assert layer.weight.shape == (3, 4)
    with pytest.raises(ArgumentError, match="has no parametrization of 'weight'"):
        gt.nn.utils.parametrize.remove_parametrizations(layer, "weight")
