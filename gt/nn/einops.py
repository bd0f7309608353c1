"""The modules of einops.layers for GT: `from gt.nn.einops import Rearrange`. Needs einops.

Rearrange and Reduce are einops' own, on GT's Module. EinMix creates its weights as GT parameters.
"""

from __future__ import annotations

from typing import Any

from einops.layers import RearrangeMixin, ReduceMixin
from einops.layers._einmix import _EinmixMixin

from gt.client.functions.creation import zeros
from gt.client.functions.einsum import einsum
from gt.client.tensor import Parameter, Tensor
from gt.nn.module import Module

__all__ = ["EinMix", "Rearrange", "Reduce"]


class Rearrange(RearrangeMixin, Module):  # type: ignore[misc]  # einops is not typed
    """Rearrange the elements of a tensor by a pattern: `Rearrange("b c h w -> b (c h w)")`."""

    def __init__(self, pattern: str, **axes_lengths: Any) -> None:
        Module.__init__(self)
        RearrangeMixin.__init__(self, pattern, **axes_lengths)

    def forward(self, input: Tensor) -> Any:
        return self._apply_recipe(input)


class Reduce(ReduceMixin, Module):  # type: ignore[misc]  # likewise
    """Reduce dimensions of a tensor by a pattern: `Reduce("b c h w -> b c", "mean")`."""

    def __init__(self, pattern: str, reduction: str, **axes_lengths: Any) -> None:
        Module.__init__(self)
        ReduceMixin.__init__(self, pattern, reduction, **axes_lengths)

    def forward(self, input: Tensor) -> Any:
        return self._apply_recipe(input)


class EinMix(_EinmixMixin, Module):  # type: ignore[misc]  # likewise
    """A linear layer by a pattern: `EinMix("b t c -> b t d", weight_shape="c d", bias_shape="d", c=8, d=16)`."""

    weight: Parameter
    bias: Parameter | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        Module.__init__(self)
        _EinmixMixin.__init__(self, *args, **kwargs)

    def _create_parameters(self, weight_shape: Any, weight_bound: float, bias_shape: Any, bias_bound: float) -> None:
        self.weight = Parameter(zeros(weight_shape).uniform_(-weight_bound, weight_bound))
        self.bias = None
        if bias_shape is not None:
            self.bias = Parameter(zeros(bias_shape).uniform_(-bias_bound, bias_bound))

    def _create_rearrange_layers(self, before: Any, before_lengths: Any, after: Any, after_lengths: Any) -> None:
        self.pre_rearrange = None if before is None else Rearrange(before, **before_lengths)
        self.post_rearrange = None if after is None else Rearrange(after, **after_lengths)

    def forward(self, input: Tensor) -> Tensor:
        x: Any = input if self.pre_rearrange is None else self.pre_rearrange(input)
        x = einsum(self.einsum_pattern, x, self.weight)
        if self.bias is not None:
            x = x + self.bias
        return x if self.post_rearrange is None else self.post_rearrange(x)
