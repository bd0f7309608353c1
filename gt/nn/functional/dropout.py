"""Dropout of single elements, of whole channels, and alpha dropout, which preserves mean and variance."""

from __future__ import annotations

import math
from typing import Any

from gt.client.functions import creation, inplace
from gt.client.functions import elementwise as ew
from gt.client.programs import kinds
from gt.client.record.recorder import apply
from gt.client.tensor import Tensor
from gt.errors import ArgumentError, ShapeError

__all__ = ["alpha_dropout", "dropout", "dropout1d", "dropout2d", "dropout3d", "feature_alpha_dropout"]

_ALPHA = 1.7580993408473766  #: Minus the limit of selu at minus infinity.


def _probability(op: str, p: Any) -> float:
    if not isinstance(p, (int, float)) or not 0.0 <= p <= 1.0:
        raise ArgumentError(f"{op}: p must be a probability between 0 and 1, got {p}")
    return float(p)


def _done(op: str, input: Tensor, result: Tensor, in_place: bool) -> Tensor:
    return inplace.replace(op, input, result) if in_place else result


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Zero each element with probability p, and scale the others by 1 / (1 - p)."""
    p = _probability("dropout", p)
    if not training or p == 0.0:
        return input
    return _done("dropout", input, apply(kinds.dropout[p], (input, creation.next_seed())), inplace)


def _per_channel(input: Tensor) -> tuple[int, ...]:
    return (*input.shape[:2], *(1,) * (input.ndim - 2))


def _channels(op: str, input: Tensor, p: float, training: bool, inplace: bool, batched: int) -> Tensor:
    """Dropout of whole channels. `batched`: the ndim of an input with a batch dimension; 0 if it always has one."""
    p = _probability(op, p)
    if input.ndim < 2:
        raise ShapeError(f"{op}: expected an input (N, C, ...), got shape {tuple(input.shape)}")
    if not training or p == 0.0:
        return input
    alone = input.ndim == batched - 1
    x = input.unsqueeze(0) if alone else input
    y = x * dropout(creation.ones(_per_channel(x), dtype=x.dtype), p)
    return _done(op, input, y.squeeze(0) if alone else y, inplace)


def dropout1d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Zero each channel of (N, C, L) or (C, L) with probability p, and scale the others by 1 / (1 - p)."""
    if input.ndim not in (2, 3):
        raise ShapeError(f"dropout1d: expected an input (N, C, L) or (C, L), got shape {tuple(input.shape)}")
    return _channels("dropout1d", input, p, training, inplace, 3)


def dropout2d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Zero each channel of (N, C, ...) with probability p, and scale the others by 1 / (1 - p)."""
    return _channels("dropout2d", input, p, training, inplace, 0)  # (N, C, L) too, as in torch


def dropout3d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Zero each channel of (N, C, D, H, W) or (C, D, H, W) with probability p, and scale the others by 1 / (1 - p)."""
    return _channels("dropout3d", input, p, training, inplace, 5)


def _alpha(op: str, input: Tensor, shape: tuple[int, ...], p: float, training: bool, inplace: bool) -> Tensor:
    p = _probability(op, p)
    if not training or p == 0.0:
        return input
    if p == 1.0:
        return _done(op, input, input * 0.0, inplace)
    scale = 1.0 / math.sqrt((_ALPHA * _ALPHA * p + 1.0) * (1.0 - p))
    kept = dropout(creation.ones(shape, dtype=input.dtype), p) > 0
    y = ew.where(kept, input * scale, -_ALPHA * scale) + _ALPHA * scale * p
    return _done(op, input, y, inplace)


def alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """Dropout that preserves mean 0 and variance 1: dropped elements get the limit of selu at minus infinity."""
    return _alpha("alpha_dropout", input, tuple(input.shape), p, training, inplace)


def feature_alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """alpha_dropout of whole channels."""
    if training and input.ndim < 2:
        raise ShapeError(f"feature_alpha_dropout: expected an input (N, C, ...), got shape {tuple(input.shape)}")
    return _alpha("feature_alpha_dropout", input, _per_channel(input), p, training, inplace)
