"""Layers that find their size at the first call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.errors import ArgumentError, ShapeError
from tests.beside_torch import arrays

_rng = np.random.default_rng(6)

CASES: dict[str, tuple[tuple[Any, ...], tuple[int, ...]]] = {
    "LazyLinear": ((3,), (2, 5)),
    "LazyConv1d": ((4, 3), (2, 5, 6)),
    "LazyConv2d": ((4, 3, 1, 1, 1, 2), (6, 5, 5)),
    "LazyConv3d": ((4, 2), (1, 2, 3, 3, 3)),
    "LazyConvTranspose1d": ((4, 3), (2, 5, 6)),
    "LazyConvTranspose2d": ((4, 3), (2, 5, 4, 4)),
    "LazyConvTranspose3d": ((4, 2), (1, 2, 3, 3, 3)),
    "LazyBatchNorm1d": ((), (4, 3)),
    "LazyBatchNorm2d": ((1e-3,), (2, 3, 4, 4)),
    "LazyBatchNorm3d": ((), (2, 3, 2, 2, 2)),
    "LazyInstanceNorm1d": ((), (2, 3, 5)),
    "LazyInstanceNorm2d": ((), (2, 3, 4, 4)),
    "LazyInstanceNorm3d": ((), (2, 3, 2, 2, 2)),
}


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("name", CASES)
def test_lazy_layers_are_torchs(name: str) -> None:
    args, shape = CASES[name]
    x = _rng.normal(size=shape)
    theirs, ours = (getattr(lib.nn, name)(*args).double() for lib in (torch, gt))
    assert repr(ours) == repr(theirs)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    first = list(ours.parameters())
    ours(gt.from_numpy(x))
    theirs(torch.from_numpy(x))
    assert repr(ours) == repr(theirs)
    assert type(ours) is getattr(gt.nn, name.removeprefix("Lazy"))
    assert all(a is b for a, b in zip(ours.parameters(), first, strict=True))
    loaded = getattr(gt.nn, name)(*args).double()
    loaded.load_state_dict(theirs.state_dict())
    ours.load_state_dict(theirs.state_dict())
    want = theirs(torch.from_numpy(x)).detach().numpy()
    for module in (ours, loaded):
        np.testing.assert_allclose(arrays(module(gt.from_numpy(x)))[0], want, rtol=1e-6, atol=1e-9)
        assert repr(module) == repr(theirs)


def test_lazy_layers_refuse_what_does_not_fit() -> None:
    with pytest.raises(ShapeError, match="expected an input of 3 dimensions, or 4 with a batch,"):
        gt.nn.LazyConv2d(3, 2)(gt.ones(2, 2))
    with pytest.raises(ArgumentError, match="channels must be a multiple of 2 groups, got 3"):
        gt.nn.LazyConv1d(4, 2, groups=2)(gt.ones(3, 5))
    alone = gt.nn.LazyInstanceNorm1d()
    assert alone(gt.randn(3, 5)).shape == (3, 5)
    assert alone.num_features == 3
    layer = gt.nn.Sequential(gt.nn.LazyLinear(4), gt.nn.ReLU(), gt.nn.LazyLinear(2))
    layer(gt.ones(1, 3)).sum().backward()
    assert layer[2].weight.grad.shape == (2, 4)
