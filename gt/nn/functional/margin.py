"""Losses with a margin: predictions that are right by more than the margin have loss 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.client.compat import checks
from gt.client.compat.arguments import shown
from gt.client.compat.autocast import autocasts
from gt.client.functions import creation
from gt.client.functions import elementwise as ew
from gt.client.tensor import Tensor
from gt.errors import DTypeError, ShapeError
from gt.nn.functional.distance import pairwise_distance
from gt.nn.functional.loss import reduced, reduction_of, same_shape
from gt.ops import ops
from gt.ops.record import FLOAT32, Autocast

__all__ = [
    "cosine_embedding_loss", "hinge_embedding_loss", "margin_ranking_loss", "multi_margin_loss",
    "multilabel_margin_loss", "multilabel_soft_margin_loss", "soft_margin_loss", "triplet_margin_loss",
    "triplet_margin_with_distance_loss",
]  # fmt: skip


@autocasts(FLOAT32)
def hinge_embedding_loss(
    input: Tensor, target: Tensor, margin: float = 1.0, size_average: bool | None = None, reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """input where the target is 1, max(0, margin - input) where the target is -1."""
    reduction = reduction_of("hinge_embedding_loss", reduction, size_average, reduce)
    apart = ew.where(target != 1, (margin - input).clamp(min=0), 0.0)
    together = ew.where(target != -1, input, 0.0)
    return reduced(apart + together, reduction)


@autocasts(FLOAT32)
def margin_ranking_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0, size_average: bool | None = None,
    reduce: bool | None = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """max(0, -target * (input1 - input2) + margin), for targets 1 and -1."""
    reduction = reduction_of("margin_ranking_loss", reduction, size_average, reduce)
    if not input1.ndim == input2.ndim == target.ndim:
        shapes = ", ".join(str(tuple(x.shape)) for x in (input1, input2, target))
        raise ShapeError(
            f"margin_ranking_loss: input1, input2 and target must have the same number of dimensions, got {shapes}"
        )
    return reduced((-target * (input1 - input2) + margin).clamp(min=0), reduction)


@autocasts(FLOAT32)
def soft_margin_loss(
    input: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean"
) -> Tensor:
    """log(1 + exp(-target * input)), for targets 1 and -1."""
    reduction = reduction_of("soft_margin_loss", reduction, size_average, reduce)
    return reduced((-target * input).exp().log1p(), reduction)


def _rows(op: str, input: Tensor, target: Tensor, per_class: bool) -> tuple[Tensor, Tensor]:
    """Inputs and targets with one row per sample; a single sample becomes one row."""
    wanted = tuple(input.shape) if per_class else tuple(input.shape[:-1])
    lone = (1,) if input.ndim < 2 and not per_class else wanted
    if input.ndim > 2 or tuple(target.shape) not in (wanted, lone):
        raise ShapeError(f"{op}: expected targets {wanted} for input {tuple(input.shape)}, got {tuple(target.shape)}")
    rows = input.reshape(1, -1) if input.ndim < 2 else input
    return rows, target.reshape(*(rows.shape if per_class else rows.shape[:1]))


@autocasts(FLOAT32)
def multi_margin_loss(
    input: Tensor, target: Tensor, p: int = 1, margin: float = 1.0, weight: Any = None,
    size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """The mean over all classes i but the target y of max(0, margin - input[y] + input[i])^p."""
    reduction = reduction_of("multi_margin_loss", reduction, size_average, reduce)
    checks.one_of("multi_margin_loss", "p", p, 1, 2)
    x, place = _rows("multi_margin_loss", input, target, per_class=False)
    place = place.unsqueeze(1)
    excess = (margin - x.gather(1, place) + x).clamp(min=0)
    excess = excess if p == 1 else excess * excess
    if weight is not None:
        if tuple(weight.shape) != (x.shape[1],):
            raise ShapeError(f"multi_margin_loss: weight must have shape {(x.shape[1],)}, got {tuple(weight.shape)}")
        excess = excess * ops.embedding(weight.reshape(-1, 1), place.squeeze(1))
    others = creation.arange(x.shape[1]) != place
    loss = ew.where(others, excess, 0.0).sum(1) / x.shape[1]
    return reduced(loss if input.ndim == 2 else loss.squeeze(0), reduction)


@autocasts(FLOAT32)
def multilabel_margin_loss(
    input: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean"
) -> Tensor:
    """The sum over targets y and other classes i of max(0, 1 - input[y] + input[i]), over the number of classes.
    The targets of a row end at the first -1."""
    reduction = reduction_of("multilabel_margin_loss", reduction, size_average, reduce)
    x, places = _rows("multilabel_margin_loss", input, target, per_class=True)
    counts = (places < 0).cumsum(1) == 0
    places = ew.where(counts, places, 0)
    each = counts.to(x.dtype)
    right = ops.scatter_add(each * 0.0, places, each, dim=1) > 0
    excess = (1.0 - x.gather(1, places).unsqueeze(2) + x.unsqueeze(1)).clamp(min=0)  # (rows, targets, classes)
    pairs = counts.unsqueeze(2).logical_and(right.logical_not().unsqueeze(1))
    loss = ew.where(pairs, excess, 0.0).sum((1, 2)) / x.shape[1]
    return reduced(loss if input.ndim == 2 else loss.squeeze(0), reduction)


@autocasts(Autocast(cpu="off"))
def multilabel_soft_margin_loss(
    input: Tensor, target: Tensor, weight: Any = None, size_average: bool | None = None, reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """The binary cross-entropy of sigmoid(input), averaged over the classes."""
    reduction = reduction_of("multilabel_soft_margin_loss", reduction, size_average, reduce)
    same_shape("multilabel_soft_margin_loss", input, target)
    loss = ops.binary_cross_entropy_with_logits(input, target.to(input.dtype))
    return reduced((loss if weight is None else loss * weight).mean(-1), reduction)


@autocasts(FLOAT32)
def triplet_margin_loss(
    anchor: Tensor, positive: Tensor, negative: Tensor, margin: float = 1.0, p: float = 2, eps: float = 1e-6,
    swap: bool = False, size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """max(0, d(anchor, positive) - d(anchor, negative) + margin), where d is the p-norm distance."""
    reduction = reduction_of("triplet_margin_loss", reduction, size_average, reduce)
    return _triplet(
        "triplet_margin_loss", anchor, positive, negative, lambda a, b: pairwise_distance(a, b, p, eps), margin, swap,
        reduction,
    )  # fmt: skip


def triplet_margin_with_distance_loss(
    anchor: Tensor, positive: Tensor, negative: Tensor, *,
    distance_function: Callable[[Tensor, Tensor], Tensor] | None = None, margin: float = 1.0, swap: bool = False,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """triplet_margin_loss with a distance function of the user."""
    for name, x in (("anchor", anchor), ("positive", positive), ("negative", negative)):
        if not isinstance(x, Tensor):  # an error of the user's function is not to be taken for one of these
            raise DTypeError(f"triplet_margin_with_distance_loss: {name} must be a tensor, got {shown(x)}")
    if not hasattr(margin, "__float__") and not hasattr(margin, "_letter"):
        raise DTypeError(f"triplet_margin_with_distance_loss: margin must be a number, got {shown(margin)}")
    return _triplet(
        "triplet_margin_with_distance_loss", anchor, positive, negative, distance_function or pairwise_distance, margin,
        swap, reduction_of("triplet_margin_with_distance_loss", reduction),
    )  # fmt: skip


def _triplet(
    op: str, anchor: Tensor, positive: Tensor, negative: Tensor, distance: Callable[[Tensor, Tensor], Tensor],
    margin: float, swap: bool, reduction: str,
) -> Tensor:  # fmt: skip
    checks.positive(op, "margin", margin)
    if not anchor.ndim == positive.ndim == negative.ndim:
        shapes = ", ".join(str(tuple(x.shape)) for x in (anchor, positive, negative))
        raise ShapeError(f"{op}: anchor, positive and negative must have the same number of dimensions, got {shapes}")
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = ew.minimum(far, distance(positive, negative))
    return reduced((near - far + margin).clamp(min=0), reduction)


@autocasts(FLOAT32)
def cosine_embedding_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0, size_average: bool | None = None,
    reduce: bool | None = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """1 - cos(input1, input2) where the target is 1, max(0, cos(input1, input2) - margin) where it is -1."""
    reduction = reduction_of("cosine_embedding_loss", reduction, size_average, reduce)
    if target.ndim not in (0, 1) or input1.ndim != target.ndim + 1 or input2.ndim != target.ndim + 1:
        shapes = ", ".join(str(tuple(x.shape)) for x in (input1, input2, target))
        raise ShapeError(
            f"cosine_embedding_loss: expected inputs (N, D) and a target (N,), or (D,) and (), got {shapes}"
        )
    dim = target.ndim
    squares = ((input1 * input1).sum(dim) + 1e-12) * ((input2 * input2).sum(dim) + 1e-12)
    cosine = (input1 * input2).sum(dim) / squares.sqrt()
    loss = ew.where(target == 1, 1.0 - cosine, 0.0) + ew.where(target == -1, (cosine - margin).clamp(min=0), 0.0)
    return reduced(loss, reduction)
