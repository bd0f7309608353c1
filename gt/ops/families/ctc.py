"""The connectionist temporal classification loss: of labels, summed over all their alignments to a sequence.

Operands: log_probs (time, batch, classes), each a log_softmax; targets (batch, labels); how many steps and how many
labels each sample has. What stands in targets behind a sample's labels is not used, but must be a class too.

The gradient is torch's: by the scores whose log_softmax log_probs are. It has one term more than the slope by
log_probs, and log_softmax's gradient maps both to the same.

torch's kernel is used on the CPU. On CUDA it waits for the device, so that no graph could hold it: there the
composition runs, the forward algorithm step by step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gt import dtypes
from gt.errors import ArgumentError, ShapeError
from gt.ops import reverse, rules
from gt.ops.families.norm import cast, wide_dtype
from gt.ops.record import TABLE, Rng, Sample, Site, fill, op, ops
from gt.program import Spec, spec

_NEVER = -1e30  #: The logarithm of probability 0; with -inf the gradients of the composition would be nan.


# -- inference -------------------------------------------------------------------------------


def _check(name: str, lp: Spec, targets: Spec, times: Spec, lengths: Spec, blank: Any, zero_infinity: Any) -> None:
    rules.floats(name, lp)
    rules.index(name, targets, times, lengths)
    if lp.ndim != 3:
        raise ShapeError(f"{name}: log_probs must be (time, batch, classes), got shape {lp.shape}")
    _, n, classes = lp.shape
    if targets.ndim != 2 or targets.shape[0] != n:
        raise ShapeError(f"{name}: targets must be a matrix with {n} rows, one per sample, got shape {targets.shape}")
    for what, x in (("input", times), ("target", lengths)):
        if x.shape != (n,):
            raise ShapeError(f"{name}: {what}_lengths must have shape {(n,)}, one per sample, got {x.shape}")
    if type(blank) is not int or not 0 <= blank < classes:
        raise ArgumentError(f"{name}: blank must be one of {classes} classes, got {rules.shown(blank)}")
    rules.flag(name, "zero_infinity", zero_infinity)


def _infer(lp: Spec, targets: Spec, times: Spec, lengths: Spec, *, blank: Any, zero_infinity: Any) -> Spec:
    _check("ctc_loss", lp, targets, times, lengths, blank, zero_infinity)
    return spec((lp.shape[1],), lp.dtype)


def _infer_d(g: Spec, lp: Spec, targets: Spec, times: Spec, lengths: Spec, *, blank: Any, zero_infinity: Any) -> Spec:
    _check("ctc_loss_d", lp, targets, times, lengths, blank, zero_infinity)
    rules.tensor("ctc_loss_d", g)
    rules.same_dtype("ctc_loss_d", g, lp)
    if g.shape != (lp.shape[1],):
        raise ShapeError(f"ctc_loss_d: the gradient must have shape {(lp.shape[1],)}, got {g.shape}")
    return lp


def _ranges(lp: Spec, targets: Spec, *_: Spec, **attrs: Any) -> dict[int, tuple[int, int | None]]:
    return {1: (lp.shape[2], None), 2: (lp.shape[0] + 1, None), 3: (targets.shape[1] + 1, None)}


def _ranges_d(g: Spec, *operands: Spec, **attrs: Any) -> dict[int, tuple[int, int | None]]:
    return {k + 1: within for k, within in _ranges(*operands).items()}


# -- in other ops ----------------------------------------------------------------------------


def _moved(at: Any, by: int) -> Any:
    """The scores moved by so many positions along the path."""
    n, width = at.shape
    nothing = fill(at, _NEVER, (n, min(by, width)), at.dtype)
    return nothing if by >= width else ops.cat(nothing, ops.split(at, sizes=(width - by, by), dim=1)[0], dim=1)


def _compose(lp: Any, targets: Any, times: Any, lengths: Any, *, blank: int, zero_infinity: bool) -> Any:
    """The forward algorithm over the labels with a blank before, between and after them."""
    own = lp.dtype
    lp = cast(lp, wide_dtype(own))
    t_max, n, _ = lp.shape
    s = targets.shape[1]
    width = 2 * s + 1
    blanks = [fill(lp, blank, shape, targets.dtype) for shape in ((n, s), (n, 1))]
    pairs = ops.reshape(ops.stack(blanks[0], targets, dim=2), shape=(n, 2 * s))
    path = ops.cat(pairs, blanks[1], dim=1)
    at = fill(lp, _NEVER, (n, width), lp.dtype)
    steps: tuple[Any, ...] = ()
    if t_max:
        index = ops.expand(ops.reshape(path, shape=(1, n, width)), shape=(t_max, n, width))
        found = ops.unbind(ops.gather(lp, index, dim=2), dim=0)
        steps = found if isinstance(found, tuple) else (found,)
        begin = steps[0]
        if s:
            begin = ops.split(begin, sizes=(2, width - 2), dim=1)[0]
            begin = ops.cat(begin, fill(lp, _NEVER, (n, width - 2), lp.dtype), dim=1)
        at = begin
    if s > 1:  # a label may follow another without a blank in between if they differ
        ahead, behind = ops.split(path, sizes=(width - 2, 2), dim=1)[0], ops.split(path, sizes=(2, width - 2), dim=1)[1]
        skips = ops.cat(fill(lp, False, (n, 2), dtypes.bool_), ops.ne(behind, ahead), dim=1)
    rows = ops.reshape(times, shape=(n, 1))
    for t in range(1, t_max):
        stay = ops.logaddexp(at, _moved(at, 1)) if s else at
        if s > 1:
            stay = ops.logaddexp(stay, ops.where(skips, _moved(at, 2), _NEVER))
        at = ops.where(ops.gt(rows, t), stay + steps[t], at)
    ends = ops.reshape(lengths * 2, shape=(n, 1))
    final, before = (ops.reshape(ops.gather(at, k, dim=1), shape=(n,)) for k in (ends, ops.maximum(ends - 1, 0)))
    some = ops.gt(lengths, 0)
    score = ops.logaddexp(final, ops.where(some, before, _NEVER))
    score = ops.where(ops.gt(times, 0), score, ops.where(some, _NEVER, fill(lp, 0.0, (n,), lp.dtype)))
    return cast(ops.where(ops.lt(score, _NEVER / 2), 0.0 if zero_infinity else math.inf, -score), own)


def _compose_d(g: Any, lp: Any, targets: Any, times: Any, lengths: Any, **attrs: Any) -> Any:
    own, wide = lp.dtype, wide_dtype(lp.dtype)
    lp, g = cast(lp, wide), cast(g, wide)
    t_max, n, _ = lp.shape
    one = fill(lp, 1.0, (n,), lp.dtype)
    slope = reverse.gradients(TABLE["ctc_loss"], (one,), (lp, targets, times, lengths), attrs)[0]
    whole = ops.exp(lp) + slope
    # At each step the slopes add up to -1; without any alignment all are 0.
    impossible = ops.gt(ops.sum(slope, dims=(2,), keepdim=True), -0.5)
    whole = ops.where(impossible, 0.0 if attrs["zero_infinity"] else math.nan, whole)
    places = ops.reshape(lp._apply(TABLE["arange"], (0, 1), {"n": t_max, "dtype": "int64"}), shape=(t_max, 1, 1))
    here = ops.lt(places, ops.reshape(times, shape=(1, n, 1)))
    return cast(ops.where(here, whole, 0.0) * ops.reshape(g, shape=(1, n, 1)), own)


# -- torch's kernel --------------------------------------------------------------------------


def _usable(site: Site, lp: Spec) -> bool:
    return site.device == "cpu" and lp.size > 0


def _halves(torch: Any, site: Site, blank: int, zero_infinity: bool) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """A function of the operands that returns the losses, and two tensors for the second: all losses, inf where there
    is no alignment, and the scores of the forward algorithm. The second returns the gradient."""
    own, wide = (getattr(torch, d.name) for d in (site.specs[0].dtype, wide_dtype(site.specs[0].dtype)))
    f, df = torch.ops.aten._ctc_loss.Tensor, torch.ops.aten._ctc_loss_backward.Tensor

    def forward(lp: Any, targets: Any, times: Any, lengths: Any) -> tuple[Any, Any, Any]:
        losses, scores = f(lp.to(wide), targets.long(), times.long(), lengths.long(), blank, zero_infinity)
        shown = losses.masked_fill(losses == math.inf, 0.0) if zero_infinity else losses
        return shown.to(own), losses, scores

    def backward(g: Any, lp: Any, targets: Any, times: Any, lengths: Any, losses: Any, scores: Any) -> Any:
        counts = targets.long(), times.long(), lengths.long()
        return df(g.to(wide), lp.to(wide), *counts, losses, scores, blank, zero_infinity).to(own)

    return forward, backward


def _torch(torch: Any, site: Site, *, blank: int, zero_infinity: bool) -> Any:
    if not _usable(site, site.specs[0]):
        return None
    forward, _ = _halves(torch, site, blank, zero_infinity)
    return lambda *operands: forward(*operands)[0]


def _torch_pair(torch: Any, site: Site, *, blank: int, zero_infinity: bool) -> Any:
    if not _usable(site, site.specs[0]):
        return None
    forward, backward = _halves(torch, site, blank, zero_infinity)
    width = 2 * site.specs[1].shape[1] + 1

    def first(*operands: Any) -> Any:
        shown, losses, scores = forward(*operands)
        # They are as wide as the longest target of this batch; a graph needs to know the shape.
        scores = torch.nn.functional.pad(scores, (0, width - scores.shape[2]), value=-math.inf)
        return shown, [losses.clone() if shown is losses else losses, scores]

    def then(g: Any, *more: Any) -> Any:
        *operands, _, kept = more
        return backward(g, *operands, *kept)

    return first, then


def _torch_d(torch: Any, site: Site, *, blank: int, zero_infinity: bool) -> Any:
    own = Site(site.device, site.specs[1:], ())
    if not _usable(own, own.specs[0]):
        return None
    forward, backward = _halves(torch, own, blank, zero_infinity)
    return lambda g, *operands: backward(g, *operands, *forward(*operands)[1:])


# -- samples ---------------------------------------------------------------------------------


def _samples(rng: Rng) -> list[Sample]:
    def case(time: int, labels: int, times: Any, lengths: Any, blank: int = 0, zero: bool = False) -> Sample:
        n = len(times)
        x = rng.normal(size=(time, n, 4))
        x -= np.log(np.exp(x).sum(-1, keepdims=True))
        targets = (rng.integers(1, 4, (n, labels)) + blank) % 4
        counts = (np.array(k, np.int64) for k in (times, lengths))
        return (x, targets, *counts), {"blank": blank, "zero_infinity": zero}

    return [
        case(5, 2, (5, 4), (2, 1)),
        case(6, 3, (6, 5, 2, 3), (2, 0, 3, 1), blank=2, zero=True),  # the third is too long for its sequence
        case(3, 3, (1, 2), (3, 2)),
        case(2, 0, (2, 1), (0, 0)),
        case(2, 1, (2, 0, 0), (1, 0, 1), zero=True),
        case(1, 1, (1,), (1,)),
        case(2, 1, (), ()),
    ]


def _samples_d(rng: Rng) -> list[Sample]:
    return [((rng.normal(size=len(args[2])), *args), attrs) for args, attrs in _samples(rng)]


# -- records ---------------------------------------------------------------------------------


def _work(lp: Spec, targets: Spec, *_: Spec, **attrs: Any) -> int:
    """About a dozen operations for each step and each position of the path."""
    return 12 * lp.shape[0] * lp.shape[1] * (2 * targets.shape[1] + 1)


ctc_loss = op(
    "ctc_loss",
    "The negative log-likelihood of labels, summed over all alignments to a sequence.",
    infer=_infer,
    indices=_ranges,
    factors="!t b !c, b !s, b, b -> b",
    vjp=(lambda g, y, *operands, **attrs: ops.ctc_loss_d(g, *operands, **attrs),),
    compose=_compose,
    kernels={"torch": _torch},
    opaque=True,
    flops=_work,
    samples=_samples,
)

ctc_loss_d = op(
    "ctc_loss_d",
    "The gradient of ctc_loss by the scores whose log_softmax the log-probabilities are.",
    infer=_infer_d,
    indices=_ranges_d,
    factors="b, !t b !c, b !s, b, b -> !t b !c",
    linear=((0,),),
    vjp=None,
    compose=_compose_d,
    kernels={"torch": _torch_d, "torch_pair": _torch_pair},
    opaque=True,
    resumes="ctc_loss",
    flops=lambda g, *operands, **attrs: 2 * _work(*operands) + 2 * operands[0].size,
    samples=_samples_d,
)
