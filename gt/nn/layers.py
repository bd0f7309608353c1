"""Linear, bilinear and embedding layers; distances.

All layers have torch's arguments, parameter names, shapes and distributions of initial values. `device` is accepted
everywhere and has no effect: the server chooses where tensors are stored.
"""

from __future__ import annotations

import math
from typing import Any, Self

from gt.client.functions import creation
from gt.client.grad.modes import set_grad
from gt.client.tensor import Parameter, Tensor
from gt.errors import ArgumentError, ShapeError
from gt.nn import functional as F
from gt.nn import init
from gt.nn.module import Module
from gt.nn.settings import Functional, settings

__all__ = ["Bilinear", "CosineSimilarity", "Embedding", "EmbeddingBag", "Identity", "Linear", "PairwiseDistance"]


class Identity(Module):
    """Returns its input."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, input: Tensor) -> Tensor:
        return input


class Linear(Module):
    """y = x @ weight.T + bias."""

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = Parameter(creation.empty(out_features, in_features, dtype=dtype))
        self.register_parameter("bias", Parameter(creation.empty(out_features, dtype=dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize the parameters."""
        init.linear_(self.weight, self.bias)

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class Bilinear(Module):
    """y = x1 @ weight[k] @ x2 + bias[k], for each output k."""

    def __init__(
        self, in1_features: int, in2_features: int, out_features: int, bias: bool = True, device: Any = None,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if in1_features <= 0:
            raise ArgumentError(f"Bilinear: in1_features must be > 0, got {in1_features}")
        self.in1_features, self.in2_features, self.out_features = in1_features, in2_features, out_features
        self.weight = Parameter(creation.empty(out_features, in1_features, in2_features, dtype=dtype))
        self.register_parameter("bias", Parameter(creation.empty(out_features, dtype=dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize the parameters."""
        bound = 1 / math.sqrt(self.in1_features)
        for p in self.parameters():
            init.uniform_(p, -bound, bound)

    def forward(self, input1: Tensor, input2: Tensor) -> Tensor:
        return F.bilinear(input1, input2, self.weight, self.bias)

    def extra_repr(self) -> str:
        return (
            f"in1_features={self.in1_features}, in2_features={self.in2_features}, "
            f"out_features={self.out_features}, bias={self.bias is not None}"
        )


#: The defaults that the repr of an embedding does not show.
_HIDDEN = {"padding_idx": None, "max_norm": None, "norm_type": 2, "scale_grad_by_freq": False, "sparse": False}


class _Table(Module):
    """A table of embeddings; one row may be padding."""

    num_embeddings: int
    embedding_dim: int
    padding_idx: int | None

    def _make(self, size: tuple[int, int], padding_idx: int | None, weight: Any, freeze: bool, dtype: Any) -> None:
        self.num_embeddings, self.embedding_dim = size
        name, n = type(self).__name__, size[0]
        if padding_idx is not None:
            if not -n <= padding_idx < n:
                raise ArgumentError(f"{name}: padding_idx must be a row index below {n}, got {padding_idx}")
            padding_idx %= n
        self.padding_idx = padding_idx
        if weight is not None:
            if tuple(weight.shape) != size:
                raise ShapeError(f"{name}: weight must have shape {size}, got {tuple(weight.shape)}")
            self.weight = Parameter(weight, requires_grad=not freeze)
        else:
            self.weight = Parameter(creation.empty(*size, dtype=dtype), requires_grad=not freeze)
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize the parameters."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            with set_grad(False):
                self.weight[self.padding_idx].fill_(0)

    @classmethod
    def from_pretrained(cls, embeddings: Tensor, freeze: bool = True, *args: Any, **kwargs: Any) -> Self:
        """A layer with this table, frozen by default."""
        if embeddings.ndim != 2:
            raise ShapeError(f"{cls.__name__}: embeddings must be a matrix, got shape {tuple(embeddings.shape)}")
        make: Any = cls
        made: Self = make(*embeddings.shape, *args, _weight=embeddings, **kwargs)
        made.weight.requires_grad_(not freeze)
        return made

    def _extra(self, *names: str) -> str:
        """The sizes, and the settings that differ from their defaults."""
        values = {name: getattr(self, name) for name in names}
        shown = [f"{name}={value!r}" for name, value in values.items() if value != _HIDDEN.get(name, ...)]
        return ", ".join([str(self.num_embeddings), str(self.embedding_dim), *shown])


class Embedding(_Table):
    """The rows of a table at given indices."""

    def __init__(
        self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, max_norm: float | None = None,
        norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False, _weight: Any = None,
        _freeze: bool = False, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.max_norm, self.norm_type = max_norm, norm_type
        self.scale_grad_by_freq, self.sparse = scale_grad_by_freq, sparse
        self._make((num_embeddings, embedding_dim), padding_idx, _weight, _freeze, dtype)

    def forward(self, input: Tensor) -> Tensor:
        return F.embedding(
            input, self.weight, self.padding_idx, self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse
        )

    def extra_repr(self) -> str:
        return self._extra("padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")


class EmbeddingBag(_Table):
    """The sum, mean or maximum of the rows of a table at bags of indices."""

    def __init__(
        self, num_embeddings: int, embedding_dim: int, max_norm: float | None = None, norm_type: float = 2.0,
        scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False, _weight: Any = None,
        include_last_offset: bool = False, padding_idx: int | None = None, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.max_norm, self.norm_type, self.scale_grad_by_freq = max_norm, norm_type, scale_grad_by_freq
        self.mode, self.sparse, self.include_last_offset = mode, sparse, include_last_offset
        self._make((num_embeddings, embedding_dim), padding_idx, _weight, False, dtype)

    def forward(self, input: Tensor, offsets: Any = None, per_sample_weights: Any = None) -> Tensor:
        return F.embedding_bag(
            input, self.weight, offsets, self.max_norm, self.norm_type, self.scale_grad_by_freq, self.mode,
            self.sparse, per_sample_weights, self.include_last_offset, self.padding_idx,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return self._extra("max_norm", "norm_type", "scale_grad_by_freq", "mode", "padding_idx")


@settings
class CosineSimilarity(Functional, function=F.cosine_similarity, shown=()):
    """The cosine of the angle between vectors along dim."""

    dim: int = 1
    eps: float = 1e-8


class PairwiseDistance(Module):
    """The p-norm of differences along the last dimension."""

    def __init__(self, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> None:
        super().__init__()
        self.norm, self.eps, self.keepdim = p, eps, keepdim

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return F.pairwise_distance(x1, x2, self.norm, self.eps, self.keepdim)
