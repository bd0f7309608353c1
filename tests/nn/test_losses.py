"""Every loss beside torch's, with every reduction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.errors import ArgumentError, IndexOutOfRange
from tests.beside_torch import compare_modules, nn_twins

_rng = np.random.default_rng(1)
X, Y = _rng.normal(size=(4, 5)), _rng.normal(size=(4, 5))
P = _rng.uniform(0.05, 0.95, size=(4, 5))
SIGNS = np.sign(_rng.normal(size=(4, 5)))
CLASSES = np.array([0, 4, 2, 2])
WEIGHT = _rng.uniform(0.5, 2.0, size=5)
LOG = np.log(P / P.sum(1, keepdims=True))

Make = Callable[[Any, str], Any]


def w(nn: Any) -> Any:
    """Weights of classes, for either library."""
    return (torch if nn is torch.nn else gt).from_numpy(WEIGHT)


def _batch(reduction: str) -> str:
    return "batchmean" if reduction == "mean" else reduction


CASES: dict[str, tuple[Make, tuple[Any, ...]]] = {
    "l1": (lambda nn, r: nn.L1Loss(reduction=r), (X, Y)),
    "mse": (lambda nn, r: nn.MSELoss(reduction=r), (X, Y)),
    "smooth l1": (lambda nn, r: nn.SmoothL1Loss(reduction=r, beta=0.5), (X, Y)),
    "huber": (lambda nn, r: nn.HuberLoss(r, 0.7), (X, Y)),
    "poisson": (lambda nn, r: nn.PoissonNLLLoss(full=True, reduction=r), (X, P * 4)),
    "poisson of rates": (lambda nn, r: nn.PoissonNLLLoss(False, reduction=r), (P, P * 4)),
    "gaussian": (lambda nn, r: nn.GaussianNLLLoss(full=True, reduction=r), (X, Y, P)),
    "nll": (lambda nn, r: nn.NLLLoss(w(nn), ignore_index=2, reduction=r), (LOG, CLASSES)),
    "cross entropy": (lambda nn, r: nn.CrossEntropyLoss(reduction=r), (X, CLASSES)),
    "cross entropy with all": (
        lambda nn, r: nn.CrossEntropyLoss(w(nn), ignore_index=2, reduction=r, label_smoothing=0.1), (X, CLASSES)
    ),
    "cross entropy of probabilities": (lambda nn, r: nn.CrossEntropyLoss(reduction=r), (X, P)),
    "cross entropy of a layer": (
        lambda nn, r: nn.LinearCrossEntropyLoss(5, 6, bias=True, reduction=r, ignore_index=2), (X, CLASSES)
    ),
    "bce": (lambda nn, r: nn.BCELoss(w(nn), reduction=r), (P, (Y > 0) * 1.0)),
    "bce with logits": (
        lambda nn, r: nn.BCEWithLogitsLoss(w(nn), reduction=r, pos_weight=w(nn) * 2), (X, (Y > 0) * 1.0)
    ),
    "kl": (lambda nn, r: nn.KLDivLoss(reduction=_batch(r)), (LOG, P)),
    "kl of logarithms": (lambda nn, r: nn.KLDivLoss(reduction=_batch(r), log_target=True), (LOG, LOG[::-1].copy())),
    "hinge": (lambda nn, r: nn.HingeEmbeddingLoss(0.8, reduction=r), (X, SIGNS)),
    "cosine": (lambda nn, r: nn.CosineEmbeddingLoss(0.1, reduction=r), (X, Y, SIGNS[:, 0])),
    "ranking": (lambda nn, r: nn.MarginRankingLoss(0.1, reduction=r), (X, Y, SIGNS)),
    "soft margin": (lambda nn, r: nn.SoftMarginLoss(reduction=r), (X, SIGNS)),
    "multi margin": (lambda nn, r: nn.MultiMarginLoss(2, 0.8, w(nn), reduction=r), (X, CLASSES)),
    "multi-label margin": (
        lambda nn, r: nn.MultiLabelMarginLoss(reduction=r),
        (X, np.array([[1, 2, -1, 0, 0], [0, -1, 1, 1, 1], [4, 3, 2, 1, 0], [2, -1, -1, -1, -1]])),
    ),
    "multi-label soft margin": (
        lambda nn, r: nn.MultiLabelSoftMarginLoss(w(nn), reduction=r), (X, (Y > 0) * 1.0)
    ),
    "triplet": (lambda nn, r: nn.TripletMarginLoss(0.5, swap=True, reduction=r), (X, Y, P)),
    "triplet with a distance": (
        lambda nn, r: nn.TripletMarginWithDistanceLoss(
            distance_function=lambda a, b: (a - b).abs().sum(-1), margin=0.5, reduction=r
        ),
        (X, Y, P),
    ),
}  # fmt: skip

#: Targets that torch has no gradient for.
FIXED = {"nll", "bce", "bce with logits", "hinge", "cosine", "ranking", "soft margin", "multi-label soft margin"}


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", CASES)
def test_losses_are_torchs(name: str, reduction: str) -> None:
    make, args = CASES[name]
    if name in FIXED:
        target = args[-1]
        module = make
        make = lambda nn, r: _Fixed(nn, module(nn, r), target)  # noqa: E731
        args = args[:-1]
    compare_modules(lambda nn: make(nn, reduction), args)


def _Fixed(nn: Any, loss: Any, target: Any) -> Any:
    """A loss whose target requires no gradient."""
    lib = torch if nn is torch.nn else gt

    class Fixed(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.loss = loss

        def forward(self, *args: Any) -> Any:
            return self.loss(*args, lib.from_numpy(target))

    return Fixed()


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_ctc(reduction: str) -> None:
    """Labels in sequences: padded and one after another; one too long for its sequence, one empty."""
    targets, lengths = _rng.integers(1, 5, (4, 3)), [3, 2, 3, 0]
    flat = np.concatenate([row[:n] for row, n in zip(targets, lengths, strict=True)])
    x = _rng.normal(size=(9, 4, 5))
    x = x - np.log(np.exp(x).sum(-1, keepdims=True))
    for t in (targets, flat):
        make = lambda nn: nn.CTCLoss(reduction=reduction, zero_infinity=True)  # noqa: E731
        compare_modules(make, (x, t, np.array([9, 8, 2, 9]), np.array(lengths)))
    compare_modules(lambda nn: nn.CTCLoss(4, reduction), (x[:, 0], targets[0] - 1, (9,), (3,)))
    impossible = gt.nn.CTCLoss(reduction="sum")(gt.zeros(1, 1, 5), gt.tensor([[1, 2]]), (1,), (2,))
    assert impossible.item() == float("inf")


def test_the_gradient_of_ctc_is_a_slope_of_the_scores() -> None:
    scores = _rng.normal(size=(6, 3, 4))
    targets, times, lengths = gt.tensor([[1, 1], [2, 3], [3, -1]]), gt.tensor([6, 4, 5]), gt.tensor([2, 2, 1])

    def loss(x: Any) -> Any:
        return gt.nn.functional.ctc_loss(x.log_softmax(-1), targets, times, lengths, reduction="sum")

    x = gt.from_numpy(scores).requires_grad_()
    (d,) = gt.autograd.grad(loss(x), x, create_graph=True)
    (dd,) = gt.autograd.grad(d.square().sum(), x)
    along = _rng.normal(size=scores.shape)
    step = 1e-6 * along
    ends = [gt.from_numpy(scores + k * step).requires_grad_() for k in (1, -1)]
    slopes = [gt.autograd.grad(loss(end), end)[0] for end in ends]
    high, low = (loss(end).item() for end in ends)
    assert (d.detach().numpy() * along).sum() == pytest.approx((high - low) / 2e-6, rel=1e-6)
    twice = (slopes[0].square().sum() - slopes[1].square().sum()).item() / 2e-6
    assert (dd.numpy() * along).sum() == pytest.approx(twice, rel=1e-6)


def test_ctc_refuses_targets_that_are_left_over() -> None:
    lp = gt.zeros(6, 2, 4)
    with pytest.raises(gt.GTError, match=r"targets of shape \(6,\) do not match target_lengths \[3, 2\]"):
        gt.nn.functional.ctc_loss(lp, gt.ones(6).long(), gt.tensor([6, 5]), gt.tensor([3, 2]))


def test_ctc_refuses_lengths_beyond_the_sequence() -> None:
    lp, targets = gt.zeros(3, 1, 4).log_softmax(-1), gt.tensor([[1, 2]])
    for lengths in ([4], [2]), ([3], [3]), ([-1], [1]):
        with pytest.raises(IndexError, match="ctc_loss: index"):
            gt.nn.functional.ctc_loss(lp, targets, *(gt.tensor(n) for n in lengths)).item()


def test_the_old_way_to_say_the_reduction() -> None:
    assert gt.nn.MSELoss(size_average=False).reduction == "sum"
    assert gt.nn.MSELoss(reduce=False).reduction == "none"
    assert gt.nn.CrossEntropyLoss(None, True).reduction == "mean"


def test_adaptive_softmax() -> None:
    def build(nn: Any) -> Any:
        return nn.AdaptiveLogSoftmaxWithLoss(16, 20, [5, 10], div_value=2.0, head_bias=True)

    x, t = _rng.normal(size=(7, 16)), np.array([0, 4, 5, 9, 10, 19, 3])
    compare_modules(build, (x, t))
    theirs, ours = nn_twins(build)
    one = ours(gt.from_numpy(x[0]), gt.tensor(9)).output.item()
    assert one == pytest.approx(theirs(torch.from_numpy(x[0]), torch.tensor(9)).output.item())
    for name in ("log_prob", "predict"):
        got, want = (getattr(m, name)(lib.from_numpy(x)) for lib, m in ((gt, ours), (torch, theirs)))
        np.testing.assert_allclose(got.detach().numpy(), want.detach().numpy(), rtol=1e-6)
    with pytest.raises(ArgumentError, match=r"cutoffs must increase and be below 20, got \[5, 3\]"):
        gt.nn.AdaptiveLogSoftmaxWithLoss(16, 20, [5, 3])
    for wrong in (20, -1):
        with pytest.raises(IndexOutOfRange):
            ours(gt.from_numpy(x[0]), gt.tensor(wrong)).loss.item()
