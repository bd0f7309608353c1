"""Programs as people write them for torch, run once on torch and once with `lib` being GT: all values are compared.

Each port is a function of the library, in short what a whole script does. Weights and data are numpy's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import gt

Port = Callable[[Any], Any]


def normal(lib: Any, *shape: int, seed: int = 0) -> Any:
    return lib.tensor(np.random.default_rng(seed).normal(size=shape).astype("float32"))


def whole(lib: Any, high: int, *shape: int, seed: int = 0) -> Any:
    return lib.from_numpy(np.random.default_rng(seed).integers(0, high, size=shape))


def filled(lib: Any, model: Any, seed: int = 0) -> Any:
    """The same weights in both libraries."""
    rng = np.random.default_rng(seed)
    with lib.no_grad():
        for _, p in sorted(model.named_parameters()):
            p.copy_(lib.tensor(rng.normal(size=tuple(p.shape)).astype("float32") * 0.3))
    return model


def found(x: Any, path: str = "") -> list[tuple[str, Any]]:
    """Everything in a result, with the way to it."""
    if isinstance(x, (torch.nn.Module, gt.nn.Module)):
        x = dict(x.state_dict())
    if isinstance(x, dict):
        return [row for k, v in x.items() for row in found(v, f"{path}.{k}")]
    if isinstance(x, (list, tuple)):
        return [row for i, v in enumerate(x) for row in found(v, f"{path}[{i}]")]
    return [(path, x)]


def compare(port: Port) -> None:
    """What the port gives with GT is what it gives with torch."""
    theirs, ours = found(port(torch)), found(port(gt))
    assert [path for path, _ in ours] == [path for path, _ in theirs]
    for (path, x), (_, y) in zip(ours, theirs, strict=True):
        if isinstance(y, torch.Tensor):
            assert (tuple(x.shape), x.dtype.name) == (tuple(y.shape), str(y.dtype).removeprefix("torch.")), path
            assert x.requires_grad == y.requires_grad, path
            want = y.detach().resolve_conj().numpy()
            np.testing.assert_allclose(x.detach().numpy(), want, rtol=2e-4, atol=2e-4, err_msg=path)
        elif isinstance(y, float):
            assert x == pytest.approx(y, rel=2e-4, abs=2e-4), path
        else:
            assert str(x).replace("gt.", "torch.") == str(y), path
