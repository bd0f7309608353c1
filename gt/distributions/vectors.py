"""Transforms of vectors and matrices, and transforms made of others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gt.client.functions.casts import finfo
from gt.client.functions.creation import arange, zeros
from gt.client.functions.linalg.solving import linalg_cholesky
from gt.client.functions.shapes import cat, stack, tril
from gt.distributions import constraints
from gt.distributions.continuous import within
from gt.distributions.transforms import Transform, summed
from gt.nn.functional import logsigmoid, pad, softplus

__all__ = [
    "CatTransform", "CorrCholeskyTransform", "IndependentTransform", "LowerCholeskyTransform",
    "PositiveDefiniteTransform", "ReshapeTransform", "SoftmaxTransform", "StackTransform", "StickBreakingTransform",
]  # fmt: skip


class IndependentTransform(Transform):
    """A transform of events: the last dimensions of its arguments and results are one event."""

    def __init__(self, base_transform: Transform, reinterpreted_batch_ndims: int, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.base_transform = base_transform.with_cache(cache_size)
        self.reinterpreted_batch_ndims = reinterpreted_batch_ndims

    bijective = property(lambda self: self.base_transform.bijective)
    sign = property(lambda self: self.base_transform.sign)
    domain = property(lambda self: constraints.independent(self.base_transform.domain, self.reinterpreted_batch_ndims))
    codomain = property(
        lambda self: constraints.independent(self.base_transform.codomain, self.reinterpreted_batch_ndims)
    )

    def forward_shape(self, shape: Any) -> Any:
        return self.base_transform.forward_shape(shape)

    def inverse_shape(self, shape: Any) -> Any:
        return self.base_transform.inverse_shape(shape)

    def _call(self, x: Any) -> Any:
        return self.base_transform(x)

    def _inverse(self, y: Any) -> Any:
        return self.base_transform.inv(y)

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        return summed(self.base_transform.log_abs_det_jacobian(x, y), self.reinterpreted_batch_ndims)


class ReshapeTransform(Transform):
    """The last dimensions in another shape."""

    bijective = True

    def __init__(self, in_shape: Any, out_shape: Any, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.in_shape, self.out_shape = tuple(in_shape), tuple(out_shape)
        if math.prod(self.in_shape) != math.prod(self.out_shape):
            raise ValueError(
                f"ReshapeTransform: in_shape {self.in_shape} and out_shape {self.out_shape} differ in their sizes"
            )

    domain = property(lambda self: constraints.independent(constraints.real, len(self.in_shape)))
    codomain = property(lambda self: constraints.independent(constraints.real, len(self.out_shape)))

    @staticmethod
    def _with(shape: Any, last: tuple[int, ...], instead: tuple[int, ...]) -> tuple[int, ...]:
        cut = len(shape) - len(last)
        if cut < 0 or tuple(shape[cut:]) != last:
            raise ValueError(f"ReshapeTransform: expected a shape that ends with {last}, got {tuple(shape)}")
        return (*shape[:cut], *instead)

    def forward_shape(self, shape: Any) -> Any:
        return self._with(shape, self.in_shape, self.out_shape)

    def inverse_shape(self, shape: Any) -> Any:
        return self._with(shape, self.out_shape, self.in_shape)

    def _call(self, x: Any) -> Any:
        return x.reshape(self.forward_shape(x.shape))

    def _inverse(self, y: Any) -> Any:
        return y.reshape(self.inverse_shape(y.shape))

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        return zeros(*x.shape[: x.ndim - len(self.in_shape)], dtype=x.dtype)


class SoftmaxTransform(Transform):
    """softmax(x). It is not bijective: the inverse gives one of many."""

    domain = constraints.real_vector
    codomain = constraints.simplex

    def _call(self, x: Any) -> Any:
        return x.softmax(-1)

    def _inverse(self, y: Any) -> Any:
        return y.log()


class StickBreakingTransform(Transform):
    """n numbers to n + 1 probabilities: each number says which part of the rest of a stick is broken off."""

    domain = constraints.real_vector
    codomain = constraints.simplex
    bijective = True

    def forward_shape(self, shape: Any) -> Any:
        return (*shape[:-1], shape[-1] + 1)

    def inverse_shape(self, shape: Any) -> Any:
        return (*shape[:-1], shape[-1] - 1)

    @staticmethod
    def _left(x: Any) -> Any:
        """log of how many pieces are left: with x = 0 all pieces are of the same length."""
        return arange(x.shape[-1], 0, -1, dtype=x.dtype).log()

    def _call(self, x: Any) -> Any:
        part = within((x - self._left(x)).sigmoid())
        return pad(part, (0, 1), value=1.0) * pad((1 - part).cumprod(-1), (1, 0), value=1.0)

    def _inverse(self, y: Any) -> Any:
        pieces = y[..., :-1]
        rest = (1 - pieces.cumsum(-1)).clamp(min=finfo(y.dtype).tiny)
        return pieces.log() - rest.log() + self._left(pieces)

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        logits = x - self._left(x)
        return (logsigmoid(logits) - logits + y[..., :-1].log()).sum(-1)


class LowerCholeskyTransform(Transform):
    """Matrices to lower triangular ones with a positive diagonal."""

    domain = constraints.independent(constraints.real, 2)
    codomain = constraints.lower_cholesky

    def _call(self, x: Any) -> Any:
        return tril(x, -1) + x.diagonal(dim1=-2, dim2=-1).exp().diag_embed()

    def _inverse(self, y: Any) -> Any:
        return tril(y, -1) + y.diagonal(dim1=-2, dim2=-1).log().diag_embed()


class PositiveDefiniteTransform(Transform):
    """Matrices to positive definite ones."""

    domain = constraints.independent(constraints.real, 2)
    codomain = constraints.positive_definite

    def _call(self, x: Any) -> Any:
        lower = LowerCholeskyTransform()(x)
        return lower @ lower.mT

    def _inverse(self, y: Any) -> Any:
        return LowerCholeskyTransform().inv(linalg_cholesky(y))


class CorrCholeskyTransform(Transform):
    """n (n - 1) / 2 numbers to the Cholesky factor of a correlation matrix: the rows are points of half a sphere, whose
    coordinates are found one by one from tanh(x)."""

    domain = constraints.real_vector
    codomain = constraints.corr_cholesky
    bijective = True

    def forward_shape(self, shape: Any) -> Any:
        size = round((0.25 + 2 * shape[-1]) ** 0.5 + 0.5)
        if size * (size - 1) // 2 != shape[-1]:
            raise ValueError(f"CorrCholeskyTransform: {shape[-1]} is not n * (n - 1) / 2 of any n")
        return (*shape[:-1], size, size)

    def inverse_shape(self, shape: Any) -> Any:
        return (*shape[:-2], shape[-1] * (shape[-1] - 1) // 2)

    @staticmethod
    def _below(n: int) -> tuple[Any, Any]:
        """The rows and columns below the diagonal, row by row."""
        places = [(i, j) for i in range(n) for j in range(i)]
        return [i for i, _ in places], [j for _, j in places]

    def _call(self, x: Any) -> Any:
        shape = self.forward_shape(x.shape)
        eps = finfo(x.dtype).eps
        partial = zeros(*shape, dtype=x.dtype)
        rows, columns = self._below(shape[-1])
        partial[(..., rows, columns)] = x.tanh().clamp(-1 + eps, 1 - eps)
        left = (1 - partial**2).sqrt().cumprod(-1)  # what the coordinates so far leave of the radius
        diagonal = zeros(*shape, dtype=x.dtype)
        index = list(range(shape[-1]))
        diagonal[(..., index, index)] = 1.0
        return (partial + diagonal) * pad(left[..., :-1], (1, 0), value=1.0)

    def _inverse(self, y: Any) -> Any:
        left = pad((1 - (y**2).cumsum(-1)).clamp(min=finfo(y.dtype).tiny)[..., :-1], (1, 0), value=1.0).sqrt()
        rows, columns = self._below(y.shape[-1])
        return (y / left)[(..., rows, columns)].atanh()

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        left = (1 - (y**2).cumsum(-1)).clamp(min=finfo(y.dtype).tiny)
        rows, columns = self._below(y.shape[-1])
        inside = [(i, j - 1) for i, j in zip(rows, columns, strict=True) if j]
        radii = left[(..., [i for i, _ in inside], [j for _, j in inside])].log().sum(-1) if inside else 0.0
        return 0.5 * radii - 2 * (x + softplus(-2.0 * x) - math.log(2.0)).sum(-1)


class _Joined(Transform):
    """Transforms of pieces of a dimension."""

    transforms: list[Transform]
    dim: int

    bijective = property(lambda self: all(t.bijective for t in self.transforms))

    def _pieces(self, x: Any) -> Sequence[Any]:
        raise NotImplementedError  # cat and stack say how

    def _join(self, pieces: list[Any], dim: int) -> Any:
        raise NotImplementedError  # likewise

    def _call(self, x: Any) -> Any:
        return self._join([t(p) for t, p in zip(self.transforms, self._pieces(x), strict=True)], self.dim)

    def _inverse(self, y: Any) -> Any:
        return self._join([t.inv(p) for t, p in zip(self.transforms, self._pieces(y), strict=True)], self.dim)


class CatTransform(_Joined):
    """A transform for each piece of a dimension; the pieces have these lengths."""

    def __init__(
        self, tseq: Sequence[Transform], dim: int = 0, lengths: Sequence[int] | None = None, cache_size: int = 0
    ) -> None:
        super().__init__(cache_size)
        self.transforms, self.dim = [t.with_cache(cache_size) for t in tseq], dim
        self.lengths = [1] * len(self.transforms) if lengths is None else list(lengths)

    event_dim = property(lambda self: max(t.event_dim for t in self.transforms))
    length = property(lambda self: sum(self.lengths))
    domain = property(lambda self: constraints.cat([t.domain for t in self.transforms], self.dim, self.lengths))
    codomain = property(lambda self: constraints.cat([t.codomain for t in self.transforms], self.dim, self.lengths))

    def _pieces(self, x: Any) -> Sequence[Any]:
        return x.split(self.lengths, self.dim)

    def _join(self, pieces: list[Any], dim: int) -> Any:
        return cat(pieces, dim)

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        found = [
            summed(t.log_abs_det_jacobian(a, b), self.event_dim - t.event_dim)
            for t, a, b in zip(self.transforms, self._pieces(x), self._pieces(y), strict=True)
        ]
        dim = (self.dim - x.ndim if self.dim >= 0 else self.dim) + self.event_dim
        return cat(found, dim) if dim < 0 else sum(found)


class StackTransform(_Joined):
    """A transform for each place of a dimension."""

    def __init__(self, tseq: Sequence[Transform], dim: int = 0, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.transforms, self.dim = [t.with_cache(cache_size) for t in tseq], dim

    domain = property(lambda self: constraints.stack([t.domain for t in self.transforms], self.dim))
    codomain = property(lambda self: constraints.stack([t.codomain for t in self.transforms], self.dim))

    def _pieces(self, x: Any) -> Sequence[Any]:
        return x.unbind(self.dim)

    def _join(self, pieces: list[Any], dim: int) -> Any:
        return stack(pieces, dim)

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        pairs = zip(self.transforms, self._pieces(x), self._pieces(y), strict=True)
        return stack([t.log_abs_det_jacobian(a, b) for t, a, b in pairs], self.dim)
