"""The named cases: models with the sizes at which they are planned, and small ones at which plans are run.

Sizes are chosen so that an expert would know what to do. The small ones keep what is odd about a case: a batch of 7, 6
heads on 4 workers, a vocabulary that nothing divides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from gt.solver.recorded import RecordedProgram

from . import models


@dataclass(frozen=True)
class Case:
    """A model in training."""

    build: Callable[..., models.Training]
    sizes: Mapping[str, Any]
    small: Mapping[str, Any] = field(default_factory=dict)
    memory_nbytes: int | None = None  #: of a worker, where the hardware's is not meant


_BLOCK = {"width": 4096, "heads": 32, "rows": 1, "length": 4096}
_LM = {"vocabulary": 128_000, "width": 1024, "heads": 16, "layers": 2, "rows": 2, "length": 1024}

CASES: dict[str, Case] = {
    "mlp 16x8192": Case(models.mlp, {"rows": 16, "width": 8192}, {"rows": 4, "width": 12}),
    "transformer block": Case(models.transformer_block, _BLOCK, {"width": 12, "heads": 4, "rows": 1, "length": 8}),
    "vocabulary 128k": Case(models.language_model, {**_LM, "tied": False}, {"layers": 1, "tied": False}),
    "vocabulary 128k, tied": Case(models.language_model, _LM, {"layers": 1}),
    "vocabulary 128k, 8 rows": Case(models.language_model, {**_LM, "rows": 8}, {"rows": 4, "layers": 1}),
    "picture 1024x1024": Case(models.conv_net, {"channels": 64, "rows": 1, "size": 1024}, {"rows": 1, "size": 12}),
    "convolutions, batch 64": Case(models.conv_net, {"channels": 64, "rows": 64, "size": 224}, {"rows": 6}),
    "eight experts": Case(models.experts, {"width": 1024, "hidden": 4096, "rows": 512}),
    "grouped-query attention": Case(
        models.llama, {"vocabulary": 32_000, "width": 2048, "heads": 16, "groups": 4, "hidden": 5632, "layers": 2,
                       "rows": 4, "length": 2048},
        {"layers": 1, "dtype": None},
    ),
    "adapters": Case(models.adapters, {"width": 4096, "rank": 16, "layers": 4, "rows": 2048}),
    "dropout": Case(models.mlp, {"width": 4096, "rows": 4096, "dropout": 0.1}, {"dropout": 0.5}),
    "clipped gradients": Case(models.mlp, {"width": 4096, "rows": 16_384, "clip": 1.0}, {"clip": 0.1}),
    "sync batch norm": Case(models.batch_norm_net, {"width": 2048, "rows": 16_384}),
    "diamond": Case(models.diamond, {"width": 4096, "rows": 4096}),
    "large batch": Case(models.mlp, {"width": 1024, "rows": 262_144}, {"rows": 24}),
    "small batch, large weights": Case(models.mlp, {"width": 16_384, "rows": 8}, {"width": 24, "rows": 2}),
    "weights that do not fit": Case(
        models.mlp, {"layers": 4, "width": 16_384, "rows": 32_768}, {"layers": 4}, memory_nbytes=16 * 10**9
    ),
    "batch 7": Case(models.mlp, {"width": 4096, "rows": 7}, {"rows": 7}),
    "6 heads": Case(
        models.transformer_block, {"width": 768, "heads": 6, "rows": 4, "length": 1024}, {"width": 12, "heads": 6}
    ),
    "accumulated gradients": Case(models.accumulated, {"layers": 6, "width": 2048, "rows": 256, "batches": 4}),
    "encoder and decoder": Case(
        models.translation, {"vocabulary": 32_000, "width": 512, "heads": 8, "layers": 2, "rows": 32, "length": 128}
    ),
    "vocabulary 50,257": Case(
        models.language_model, {**_LM, "vocabulary": 50_257, "width": 768, "heads": 12}, {"vocabulary": 37, "layers": 1}
    ),
}  # fmt: skip


#: Those that are compared with an integer program without restrictions (full.py).
FIVE = ("mlp 16x8192", "transformer block", "vocabulary 128k", "picture 1024x1024", "eight experts")


@cache
def recorded(name: str) -> RecordedProgram:
    """The step of a case at its real sizes, on paper."""
    return models.recorded_step(CASES[name].build, **CASES[name].sizes).largest
