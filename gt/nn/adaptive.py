"""Adaptive softmax for many classes: frequent classes in the head, rare ones in clusters."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from gt.client.functions import elementwise as ew
from gt.client.functions.shapes import cat
from gt.client.tensor import Tensor
from gt.errors import ArgumentError, ShapeError
from gt.nn import functional as F
from gt.nn.containers import ModuleList, Sequential
from gt.nn.layers import Linear
from gt.nn.module import Module

__all__ = ["AdaptiveLogSoftmaxWithLoss"]


class _ASMoutput(NamedTuple):
    output: Tensor
    loss: Tensor


class AdaptiveLogSoftmaxWithLoss(Module):
    """The log-probabilities of targets and their loss; the classes between two cutoffs form a cluster.

    Every cluster is computed for every row, because only the workers know which rows need it. So the gradient of a
    cluster without targets is zeros here, and None in torch.
    """

    def __init__(
        self, in_features: int, n_classes: int, cutoffs: Sequence[int], div_value: float = 4.0,
        head_bias: bool = False, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        given = list(cutoffs)
        if not given or given != sorted(set(given)) or given[0] <= 0 or given[-1] > n_classes - 1:
            raise ArgumentError(f"{type(self).__name__}: cutoffs must increase and be below {n_classes}, got {given}")
        self.in_features, self.n_classes, self.cutoffs = in_features, n_classes, [*given, n_classes]
        self.div_value, self.head_bias = div_value, head_bias
        self.shortlist_size, self.n_clusters = given[0], len(given)
        self.head_size = self.shortlist_size + self.n_clusters
        self.head = Linear(in_features, self.head_size, head_bias, dtype=dtype)
        self.tail = ModuleList()
        for i, (low, high) in enumerate(pairwise(self.cutoffs)):
            hidden = int(in_features // div_value ** (i + 1))
            down = Linear(in_features, hidden, False, dtype=dtype)
            self.tail.append(Sequential(down, Linear(hidden, high - low, False, dtype=dtype)))

    def reset_parameters(self) -> None:
        """Initialize the parameters."""
        for m in self.modules():
            if isinstance(m, Linear):
                m.reset_parameters()

    def forward(self, input_: Tensor, target_: Tensor) -> _ASMoutput:
        if target_.ndim > 1 or input_.ndim != target_.ndim + 1 or input_.shape[:-1] != target_.shape:
            raise ShapeError(
                f"AdaptiveLogSoftmaxWithLoss: expected (N, {self.in_features}) and (N,), got {tuple(input_.shape)} and "
                f"{tuple(target_.shape)}"
            )
        alone = target_.ndim == 0
        x, target = (input_.unsqueeze(0), target_.unsqueeze(0)) if alone else (input_, target_)
        place, output = target, None
        for i, (low, high) in enumerate(pairwise(self.cutoffs)):
            here = ew.logical_and(target >= low, target < high)
            within = ew.where(here, target - low, 0).unsqueeze(1)
            local = ew.where(here, F.log_softmax(self.tail[i](x), 1).gather(1, within).squeeze(1), 0.0)
            output = local if output is None else output + local
            place = ew.where(here, self.shortlist_size + i, place)
        # A target that is not a class gets an index outside of the head, which is an error on the worker.
        place = ew.where(target >= self.n_classes, self.head_size, place)
        output = output + F.log_softmax(self.head(x), 1).gather(1, place.unsqueeze(1)).squeeze(1)
        loss = (-output).mean()
        return _ASMoutput(output.squeeze(0) if alone else output, loss)

    def log_prob(self, input: Tensor) -> Tensor:
        """The log-probabilities of all classes."""
        head = F.log_softmax(self.head(input), 1)
        parts = [head[:, : self.shortlist_size]]
        for i, layer in enumerate(self.tail):
            parts.append(F.log_softmax(layer(input), 1) + head[:, self.shortlist_size + i].unsqueeze(1))
        return cat(parts, 1)

    def predict(self, input: Tensor) -> Tensor:
        """The most likely class of each row: that of the head if it is in the shortlist, else that of all."""
        first = self.head(input).argmax(1)
        return ew.where(first < self.shortlist_size, first, self.log_prob(input).argmax(1))
