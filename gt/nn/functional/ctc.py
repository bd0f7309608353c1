"""The connectionist temporal classification loss: labels of a sequence without an alignment."""

from __future__ import annotations

from typing import Any

import numpy as np

from gt.client.compat.autocast import autocasts
from gt.client.functions import creation
from gt.client.functions import elementwise as ew
from gt.client.tensor import Tensor
from gt.errors import ArgumentError, DTypeError, ShapeError
from gt.nn.functional.loss import reduced, reduction_of
from gt.ops.record import FLOAT32_ON_CPU, ops

__all__ = ["ctc_loss"]


@autocasts(FLOAT32_ON_CPU)
def ctc_loss(
    log_probs: Tensor, targets: Any, input_lengths: Any, target_lengths: Any, blank: int = 0, reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:  # fmt: skip
    """The negative log-likelihood of labels under log_probs (time, batch, classes), summed over all alignments.

    Targets are a matrix with one row per sample, or the concatenation of all targets.
    """
    reduction = reduction_of("ctc_loss", reduction)
    if not log_probs.dtype.is_floating_point:
        raise DTypeError(f"ctc_loss: log_probs must be floating point, got {log_probs.dtype.name}")
    if log_probs.ndim not in (2, 3):
        raise ShapeError(f"ctc_loss: log_probs must be (time, batch, classes), got shape {tuple(log_probs.shape)}")
    alone = log_probs.ndim == 2
    lp = log_probs.unsqueeze(1) if alone else log_probs
    _, n, classes = lp.shape
    if not 0 <= blank < classes:
        raise ArgumentError(f"ctc_loss: blank must be one of {classes} classes, got {blank}")
    times, lengths = (_lengths(name, x, n) for name, x in (("input", input_lengths), ("target", target_lengths)))
    rows = _rows(targets, lengths, n, alone)
    inside = creation.arange(rows.shape[1]) < lengths.unsqueeze(1)
    labels = ew.where(inside, rows, blank)  # what pads them may be anything
    loss = ops.ctc_loss(lp, labels, times, lengths, blank=blank, zero_infinity=bool(zero_infinity))
    if alone:
        loss, lengths = loss.squeeze(0), lengths.squeeze(0)
    if reduction == "mean":
        return (loss / lengths.clamp(min=1).to(loss.dtype)).mean()
    return reduced(loss, reduction)


def _lengths(name: str, x: Any, n: int) -> Tensor:
    made: Tensor = x.long() if isinstance(x, Tensor) else creation.tensor(np.asarray(x, np.int64))
    made = made.reshape(-1) if made.ndim == 0 else made
    if tuple(made.shape) != (n,):
        raise ShapeError(f"ctc_loss: {name}_lengths must have shape {(n,)}, one per sample, got {tuple(made.shape)}")
    return made


def _rows(targets: Any, lengths: Tensor, n: int, alone: bool) -> Tensor:
    """The targets as a matrix (batch, labels)."""
    targets = targets if isinstance(targets, Tensor) else creation.tensor(targets)
    if targets.ndim == 2 or alone:
        rows = targets if targets.ndim == 2 else targets.unsqueeze(0)
        if rows.shape[0] != n:
            raise ShapeError(f"ctc_loss: targets must have {n} rows, one per sample, got shape {tuple(targets.shape)}")
        return rows.long()
    sizes = np.asarray(lengths.tolist(), np.int64)
    if targets.ndim != 1 or targets.shape[0] != sizes.sum():
        raise ShapeError(
            f"ctc_loss: targets of shape {tuple(targets.shape)} do not match target_lengths {sizes.tolist()}"
        )
    begins = np.cumsum(sizes) - sizes
    places = np.minimum(begins[:, None] + np.arange(int(sizes.max(initial=0))), max(targets.shape[0] - 1, 0))
    return targets.long()[creation.from_numpy(places)] if places.size else creation.zeros(places.shape, dtype="int64")
