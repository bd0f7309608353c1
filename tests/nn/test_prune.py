"""Pruned parameters, beside torch's: the masks, the names, and training with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.utils.prune  # torch.nn does not import it

import gt
from gt.errors import ArgumentError, ShapeError
from tests.beside_torch import nn_twins

X = np.random.default_rng(3).normal(size=(6, 4))


def net(nn: Any) -> Any:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def scores(lib: Any) -> Any:
    return lib.arange(24, dtype=lib.float64).reshape(6, 4) * 5 % 24


def globally(lib: Any, m: Any, amount: Any) -> None:
    prune = lib.nn.utils.prune
    prune.global_unstructured([(m[0], "weight"), (m[2], "weight")], pruning_method=prune.L1Unstructured, amount=amount)


WAYS: dict[str, Any] = {
    "l1": lambda lib, m: lib.nn.utils.prune.l1_unstructured(m[0], "weight", 0.3),
    "a number of them": lambda lib, m: lib.nn.utils.prune.l1_unstructured(m[0], "bias", 2),
    "by scores": lambda lib, m: lib.nn.utils.prune.l1_unstructured(m[0], "weight", 5, importance_scores=scores(lib)),
    "rows": lambda lib, m: lib.nn.utils.prune.ln_structured(m[0], "weight", 0.5, n=2, dim=0),
    "columns": lambda lib, m: lib.nn.utils.prune.ln_structured(m[0], "weight", 1, n=1, dim=-1),
    "nothing": lambda lib, m: lib.nn.utils.prune.identity(m[0], "weight"),
    "a mask": lambda lib, m: lib.nn.utils.prune.custom_from_mask(m[0], "weight", scores(lib) > 2),
    "globally": lambda lib, m: globally(lib, m, 0.4),
    "none": lambda lib, m: lib.nn.utils.prune.l1_unstructured(m[0], "weight", 0.0),
}


def story(lib: Any, m: Any, ways: list[Any]) -> list[Any]:
    """Prune, train, prune again, and make it a plain parameter; what came out."""
    prune, found = lib.nn.utils.prune, []
    for way in ways:
        way(lib, m)
        optimizer = lib.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)
        for _ in range(3):
            loss = (m(lib.from_numpy(X)) ** 2).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        found += [prune.is_pruned(m), [n for n, _ in m.named_parameters()], [n for n, _ in m.named_buffers()]]
        found += [v.detach().numpy().copy() for v in m.state_dict().values()]
        found.append(m[0].weight.detach().numpy().copy())
    for layer in (m[0], m[2]):
        for name in ("weight", "bias"):
            if hasattr(layer, name + "_orig"):
                prune.remove(layer, name)
    return [*found, prune.is_pruned(m), sorted(m.state_dict()), m(lib.from_numpy(X)).detach().numpy()]


@pytest.mark.parametrize("again", ["l1", "rows", "globally"])
@pytest.mark.parametrize("first", WAYS)
def test_pruning_is_as_in_torch(first: str, again: str) -> None:
    theirs, ours = nn_twins(net)
    ways = [WAYS[first], WAYS[again]]
    for want, got in zip(story(torch, theirs, ways), story(gt, ours, ways), strict=True):
        if isinstance(want, (list, bool)):
            assert got == want
        else:
            np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-9)


def test_random_pruning() -> None:
    prune, entries, rows = gt.nn.utils.prune, gt.nn.Linear(8, 6), gt.nn.Linear(8, 6)
    for amount, pruned in ((0.25, 12), (6, 18)):
        prune.random_unstructured(entries, "weight", amount)
        assert (entries.weight == 0).sum().item() == pruned
    for amount, pruned in ((2, 2), (0.25, 3)):  # of six rows, then of the four that are left
        prune.random_structured(rows, "weight", amount, dim=0)
        assert (rows.weight == 0).all(1).sum().item() == pruned


def test_a_method_of_ones_own() -> None:
    def compute(self: Any, t: Any, default_mask: Any) -> Any:
        mask = default_mask.clone()
        mask.view(-1)[::2] = 0
        return mask

    results = []
    theirs, ours = nn_twins(net)
    for lib, m in ((torch, theirs), (gt, ours)):
        base = lib.nn.utils.prune.BasePruningMethod
        method = type("Every", (base,), {"PRUNING_TYPE": "unstructured", "compute_mask": compute})
        method.apply(m[0], "weight")
        method.apply(m[0], "weight")
        results.append(m[0].weight_mask.numpy())
        pruned = method().prune(lib.ones(5))
        assert pruned.tolist() == [0, 1, 0, 1, 0]
    np.testing.assert_array_equal(*results)


def test_refusals() -> None:
    prune, layer = gt.nn.utils.prune, gt.nn.Linear(4, 3)
    with pytest.raises(ArgumentError, match=r"amount must be between 0.0 and 1.0, got 1.5"):
        prune.l1_unstructured(layer, "weight", 1.5)
    with pytest.raises(ArgumentError, match="amount must be at most 12"):
        prune.l1_unstructured(layer, "weight", 13)
    with pytest.raises(ArgumentError, match="Linear has no parameter 'weights'"):
        prune.l1_unstructured(layer, "weights", 1)
    with pytest.raises(ShapeError, match="importance_scores must have shape"):
        prune.l1_unstructured(layer, "weight", 1, importance_scores=gt.ones(3))
    with pytest.raises(ArgumentError, match="'weight' of Linear is not pruned"):
        prune.remove(layer, "weight")
    with pytest.raises(TypeError, match="LnStructured is not unstructured"):
        prune.global_unstructured([(layer, "weight")], prune.LnStructured, amount=1, n=2)
    assert list(layer.state_dict()) == ["weight", "bias"]
