"""The connectionist temporal classification loss: labels of a sequence without an alignment."""

from __future__ import annotations

from typing import Any

import numpy as np

from gt import dtypes
from gt.client.compat.autocast import autocasts
from gt.client.functions import creation
from gt.client.functions import elementwise as ew
from gt.client.functions.shapes import cat, stack, unbind
from gt.client.tensor import Tensor
from gt.errors import ArgumentError, DTypeError, ShapeError
from gt.nn.functional.loss import reduced, reduction_of
from gt.ops.record import FLOAT32_ON_CPU

__all__ = ["ctc_loss"]

_NEVER = -1e30  #: The logarithm of probability 0; -inf would make gradients nan.


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
    loss = _losses(lp, rows, times, lengths, blank)
    if zero_infinity:
        loss = ew.where(loss == float("inf"), 0.0, loss)
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
    if targets.ndim != 1 or targets.shape[0] < sizes.sum():
        raise ShapeError(
            f"ctc_loss: targets of shape {tuple(targets.shape)} do not match target_lengths {sizes.tolist()}"
        )
    begins = np.cumsum(sizes) - sizes
    places = np.minimum(begins[:, None] + np.arange(int(sizes.max(initial=0))), max(targets.shape[0] - 1, 0))
    return targets.long()[creation.from_numpy(places)] if places.size else creation.zeros(places.shape, dtype="int64")


def _losses(lp: Tensor, rows: Tensor, times: Tensor, lengths: Tensor, blank: int) -> Tensor:
    """The loss of each sample: the forward algorithm over labels with a blank before, between and after them."""
    t_max, n, _ = lp.shape
    s = rows.shape[1]
    wide = lp if lp.dtype in (dtypes.float32, dtypes.float64) else lp.float()
    inside = creation.arange(s) < lengths.unsqueeze(1)
    labels = ew.where(inside, rows, blank)
    blanks = creation.full((n, s), blank, dtype="int64")
    last = creation.full((n, 1), blank, dtype="int64")
    path = cat([stack([blanks, labels], 2).reshape(n, 2 * s), last], 1)  # (n, 2 s + 1)
    # A label may follow another without a blank in between if they differ.
    skips = None
    if s > 1:
        differ = (path[:, 2:] != path[:, :-2]).logical_and(creation.arange(2 * s - 1) % 2 == 1)
        skips = cat([creation.zeros((n, 2), dtype="bool"), differ], 1)
    steps = unbind(wide.gather(2, path.unsqueeze(0).expand(t_max, n, 2 * s + 1)))  # each (n, 2 s + 1)
    nothing = creation.full((n, 2), _NEVER, dtype=wide.dtype)
    at = ew.where(creation.arange(2 * s + 1) < 2, steps[0], _NEVER) if t_max else nothing
    for t in range(1, t_max):
        stay = ew.logaddexp(at, _moved(at, nothing, 1))
        if skips is not None:
            stay = ew.logaddexp(stay, ew.where(skips, _moved(at, nothing, 2), _NEVER))
        at = ew.where((times > t).unsqueeze(1), stay + steps[t], at)
    ends = (2 * lengths).unsqueeze(1)
    final = at.gather(1, ends).squeeze(1)
    before = ew.where(lengths > 0, at.gather(1, (ends - 1).clamp(min=0)).squeeze(1), _NEVER)
    score = ew.logaddexp(final, before)
    # torch's gradient is with respect to the logits before a log_softmax: one more term, whose value is zero.
    known = wide.detach()
    here = (creation.arange(t_max).unsqueeze(1) < times).unsqueeze(2)
    share = ew.where(here, known.exp() * (wide - known), 0.0).sum((0, 2))
    return ew.where(score < _NEVER / 2, float("inf"), share - score).to(lp.dtype)


def _moved(at: Tensor, nothing: Tensor, by: int) -> Tensor:
    """The scores shifted by `by` positions along the path."""
    return cat([nothing[:, :by], at], 1)[:, : at.shape[1]]
