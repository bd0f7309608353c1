"""Batch norms that become part of the layer before them, beside torch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.beside_torch import agree_as_twins

X = np.random.default_rng(1).normal(size=(4, 3, 6, 6))


@pytest.mark.parametrize("kind", ["Conv2d", "ConvTranspose2d", "Linear"])
def test_fused_layers(kind: str) -> None:
    def build(lib: Any) -> Any:
        if kind == "Linear":
            return lib.Sequential(lib.Linear(6, 5), lib.BatchNorm1d(5)).double()
        return lib.Sequential(getattr(lib, kind)(3, 5, 3, bias=False), lib.BatchNorm2d(5)).double()

    def story(lib: Any, model: Any) -> Any:
        x = lib.from_numpy(X[:, 0, 0] if kind == "Linear" else X)
        model(x)  # statistics
        model.eval()
        if kind == "Linear":
            fused = lib.nn.utils.fuse_linear_bn_eval(model[0], model[1])
        else:
            fused = lib.nn.utils.fusion.fuse_conv_bn_eval(model[0], model[1], kind == "ConvTranspose2d")
        return [fused(x), model(x), fused.weight, fused.bias]

    agree_as_twins(story, build)
