"""The names of torch.masked: reductions and normalizations that leave out elements. A mask is True where an element
counts; without one, all do. `MaskedTensor` does not exist: keep a tensor and its mask."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar, cast

from gt.client.compat.arguments import called
from gt.client.compat.autocast import autocast
from gt.client.functions import elementwise as ew
from gt.client.functions import reductions, scans, shapes
from gt.client.tensor import Tensor
from gt.errors import ArgumentError

__all__ = [
    "amax", "amin", "argmax", "argmin", "cumprod", "cumsum", "log_softmax", "logaddexp", "logsumexp", "mean", "median",
    "norm", "normalize", "prod", "softmax", "softmin", "std", "sum", "var",
]  # fmt: skip


F = TypeVar("F", bound=Callable[..., Any])


def _as_given(f: F) -> F:
    """Autocast leaves it alone, as in torch: results have the dtype of the input."""

    @functools.wraps(f)
    def plain(*args: Any, **settings: Any) -> Any:
        with autocast("cpu", enabled=False):
            return f(*args, **settings)

    return cast("F", plain)


def _filled(input: Any, mask: Any, value: Any, dtype: Any = None) -> Tensor:
    """The input, with a value where the mask is False."""
    x = input if dtype is None else input.to(dtype)
    return x if mask is None else ew.where(shapes.expand(mask, x.shape), x, value)


def _least(x: Any, sign: int) -> float | int:
    """The smallest value of a dtype, or the largest for -1."""
    if x.dtype.is_floating_point:
        return -sign * math.inf
    bits = 8 * x.dtype.itemsize
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if x.dtype.is_signed else (0, (1 << bits) - 1)
    return low if sign > 0 else high


def _over(input: Any, dim: Any) -> list[int]:
    dims = range(input.ndim) if dim is None else [dim] if isinstance(dim, int) else dim
    return [d % max(input.ndim, 1) for d in dims]


def _count(input: Any, mask: Any, dim: Any, keepdim: bool) -> Any:
    ones = shapes.expand(mask, input.shape) if mask is not None else input.new_ones(input.shape)
    return ones.to(input.dtype if input.dtype.is_floating_point else "float32").sum(_over(input, dim), keepdim)


@_as_given
def sum(input: Any, dim: Any = None, *, keepdim: bool = False, dtype: Any = None, mask: Any = None) -> Tensor:
    """The sum of the elements that count."""
    return _filled(input, mask, 0, dtype).sum(_over(input, dim), keepdim)


def prod(input: Any, dim: Any = None, *, keepdim: bool = False, dtype: Any = None, mask: Any = None) -> Tensor:
    """The product of the elements that count."""
    if dtype is None and not (input.dtype.is_floating_point or input.dtype.is_complex):
        dtype = "int64"
    x = _filled(input, mask, 1, dtype)
    for d in sorted(_over(input, dim), reverse=True):
        x = x.prod(d, keepdim)
    return x


def _extreme(name: str, doc: str, sign: int) -> Callable[..., Tensor]:
    plain = getattr(reductions, name)

    def function(input: Any, dim: Any = None, *, keepdim: bool = False, dtype: Any = None, mask: Any = None) -> Tensor:
        x = _filled(input, mask, _least(input, sign), dtype)
        if name.startswith("arg"):
            return plain(x, dim, keepdim).to(x.dtype)  # as torch gives it
        return plain(x, _over(input, dim), keepdim)

    return called(function, name, doc)


amax = _extreme("amax", "The largest of the elements that count.", 1)
amin = _extreme("amin", "The smallest of the elements that count.", -1)
argmax = _extreme("argmax", "The index of the largest of the elements that count.", 1)
argmin = _extreme("argmin", "The index of the smallest of the elements that count.", -1)


@_as_given
def mean(input: Any, dim: Any = None, *, keepdim: bool = False, dtype: Any = None, mask: Any = None) -> Tensor:
    """The mean of the elements that count; nan if none does."""
    x = input if dtype is None else input.to(dtype)
    return sum(x, dim, keepdim=keepdim, mask=mask) / _count(x, mask, dim, keepdim)


def median(input: Any, dim: int = -1, *, keepdim: bool = False, dtype: Any = None, mask: Any = None) -> Tensor:
    """The median of the elements that count; nan if none does."""
    x = input if dtype is None else input.to(dtype)
    if not x.dtype.is_floating_point:
        raise ArgumentError(f"masked.median: expected a floating-point tensor, got {x.dtype.name}")
    return _filled(x, mask, math.nan).nanmedian(dim, keepdim).values


@_as_given
def var(
    input: Any, dim: Any = None, unbiased: bool | None = None, *, correction: int | float | None = None,
    keepdim: bool = False, dtype: Any = None, mask: Any = None,
) -> Tensor:  # fmt: skip
    """The variance of the elements that count."""
    x = input if dtype is None else input.to(dtype)
    less = correction if correction is not None else 1 if unbiased is None else int(unbiased)
    x = x if x.dtype.is_floating_point else x.float()
    apart = _filled(x - mean(x, dim, keepdim=True, mask=mask), mask, 0)
    rest = _count(x, mask, dim, keepdim) - less
    return apart.square().sum(_over(input, dim), keepdim) / rest.clamp(min=0)


@_as_given
def std(
    input: Any, dim: Any = None, unbiased: bool | None = None, *, correction: int | float | None = None,
    keepdim: bool = False, dtype: Any = None, mask: Any = None,
) -> Tensor:  # fmt: skip
    """The standard deviation of the elements that count."""
    return var(input, dim, unbiased, correction=correction, keepdim=keepdim, dtype=dtype, mask=mask).sqrt()


@_as_given
def norm(
    input: Any, ord: float = 2.0, dim: Any = None, *, keepdim: bool = False, dtype: Any = None, mask: Any = None
) -> Tensor:
    """The vector norm of the elements that count."""
    from gt import linalg

    blank = math.inf if ord == -math.inf or ord < 0 else 0
    return linalg.vector_norm(_filled(input, mask, blank, dtype), ord, _over(input, dim), keepdim)


@_as_given
def logsumexp(input: Any, dim: Any = None, *, keepdim: bool = False, dtype: Any = None, mask: Any = None) -> Tensor:
    """The logarithm of the sum of the exponentials of the elements that count."""
    x = input if input.dtype.is_floating_point else input.float()
    found = _filled(x, mask, -math.inf, dtype).logsumexp(_over(input, dim), keepdim)
    return found.to(dtype if dtype is not None else input.dtype)  # also of integers, as torch gives it


def logaddexp(input: Any, other: Any, *, dtype: Any = None, input_mask: Any = None, other_mask: Any = None) -> Tensor:
    """log(exp(input) + exp(other)), of the elements that count."""
    return ew.logaddexp(_filled(input, input_mask, -math.inf, dtype), _filled(other, other_mask, -math.inf, dtype))


def _along(plain: Callable[[Any, int], Tensor], blank: float, doc: str) -> Callable[..., Tensor]:
    """A function along one dimension, with `blank` in place of what does not count."""

    def function(input: Any, dim: int, *, dtype: Any = None, mask: Any = None) -> Tensor:
        return plain(_filled(input, mask, blank, dtype), dim)

    return _as_given(called(function, plain.__name__, doc))


cumsum = _along(scans.cumsum, 0, "The running sum of the elements that count.")
cumprod = _along(scans.cumprod, 1, "The running product of the elements that count.")
softmax = _along(reductions.softmax, -math.inf, "The softmax of the elements that count; the others are 0.")
log_softmax = _along(reductions.log_softmax, -math.inf, "The logarithm of softmax().")


@_as_given
def softmin(input: Any, dim: int, *, dtype: Any = None, mask: Any = None) -> Tensor:
    """softmax() of the negative elements."""
    return softmax(-input, dim, dtype=dtype, mask=mask)


@_as_given
def normalize(input: Any, ord: float, dim: int, *, eps: float = 1e-12, dtype: Any = None, mask: Any = None) -> Tensor:
    """The elements divided by their norm()."""
    x = input if dtype is None else input.to(dtype)
    return _filled(x, mask, 0) / norm(x, ord, dim, keepdim=True, mask=mask).clamp(min=eps)


def __getattr__(name: str) -> Any:
    is_class = name in ("MaskedTensor", "masked_tensor", "as_masked_tensor", "is_masked_tensor")
    cure = "; keep the tensor and its mask, as in gt.masked.sum(x, mask=mask)" if is_class else ""
    raise AttributeError(f"module 'gt.masked' has no attribute {name!r}{cure}")
