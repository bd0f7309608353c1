"""What programs that were written for torch begin with: the same numbers in both libraries."""

from __future__ import annotations

from typing import Any

import numpy as np


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
