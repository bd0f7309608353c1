"""Reductions: sums, means, extremes, softmax. `axis` and `keepdims` are accepted for dim and keepdim."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from gt import dtypes
from gt.client.compat.arguments import called, shown
from gt.client.compat.autocast import autocast, autocasts
from gt.client.compat.dims import one_dim, some_dims
from gt.client.functions import elementwise as ew
from gt.client.functions import shapes
from gt.client.programs import kinds
from gt.client.programs.tree import Kinds
from gt.client.record.recorder import apply, unary
from gt.client.tensor import Tensor
from gt.errors import DTypeError
from gt.ops import TABLE
from gt.ops.record import Autocast

__all__ = [
    "all", "amax", "amin", "aminmax", "any", "argmax", "argmin", "count_nonzero", "log_softmax", "logsumexp", "max",
    "mean", "min", "nanmean", "nansum", "prod", "softmax", "std", "std_mean", "sum", "var", "var_mean",
]  # fmt: skip
METHODS = [*{*__all__} - {"var_mean", "std_mean"}]

_MISSING: Any = object()


class ValuesAndIndices(NamedTuple):
    """Elements, and their indices along the dimension."""

    values: Tensor
    indices: Tensor


class MinMax(NamedTuple):
    """The result of aminmax."""

    min: Tensor
    max: Tensor


def renamed(op: str, dim: Any, keepdim: Any, names: dict[str, Any]) -> tuple[Any, Any]:
    """dim and keepdim, which may be given as `axis` and `keepdims`."""
    for name in names:
        if name not in ("axis", "keepdims"):
            raise TypeError(f"{op}() got an unexpected keyword argument {name!r}")
    return names.get("axis", dim), names.get("keepdims", keepdim)


def _reduction(name: str) -> Callable[..., Tensor]:
    mine = getattr(kinds, name)

    def function(input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None, **names: Any) -> Tensor:
        if names:
            dim, keepdim = renamed(name, dim, keepdim, names)
        if dtype is not None:
            input = ew.cast(input, dtype)
        out = unary(mine[some_dims(name, dim, input.ndim), bool(keepdim)], input)
        return out if dtype is None else ew.cast(out, dtype)  # integers come out as int64

    return called(function, name, TABLE[name].doc)


sum = _reduction("sum")
mean = _reduction("mean")
prod = _reduction("prod")


def _plain_reduction(name: str, none_for_all: bool) -> Callable[..., Tensor]:
    """`none_for_all`: an empty tuple of dimensions means all of them."""
    mine = getattr(kinds, name)

    def function(input: Any, dim: Any = None, keepdim: bool = False, **names: Any) -> Tensor:
        if names:
            dim, keepdim = renamed(name, dim, keepdim, names)
        dims = () if not none_for_all and dim == () else some_dims(name, dim, input.ndim)
        return unary(mine[dims, bool(keepdim)], input)

    return called(function, name, TABLE[name].doc)


amax = _plain_reduction("amax", True)
amin = _plain_reduction("amin", True)
any = _plain_reduction("any", False)
all = _plain_reduction("all", False)


def lifted(x: Any, f: Callable[[Any], Any]) -> Any:
    """f(x), where f needs a dimension: a 0-dimensional tensor is treated as a vector of one element."""
    if x.ndim:
        return f(x)
    out = f(shapes.reshape(x, (1,)))
    if isinstance(out, tuple):
        return tuple(shapes.reshape(y, ()) if y.shape == (1,) else y for y in out)
    return shapes.reshape(out, ()) if out.shape == (1,) else out


# --- sums --------------------------------------------------------------------------------------------


@autocasts(Autocast(cuda="off"))
def nansum(input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The sum over dims, with nan counted as 0."""
    if input.dtype.is_differentiable:
        input = ew.where(ew.isnan(input), 0.0, input)
    return sum(input, dim, keepdim, dtype=dtype)


@autocasts(Autocast(cuda="off"))
def nanmean(input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The mean over dims of the elements that are not nan."""
    kept = sum(ew.logical_not(ew.isnan(input)), dim, keepdim)
    return ew.div(nansum(input, dim, keepdim, dtype=dtype), kept)


def count_nonzero(input: Any, dim: Any = None) -> Tensor:
    """The number of nonzero elements over dims."""
    return sum(ew.ne(input, 0), dim)


def _spread(name: str, what: str) -> tuple[Callable[..., Tensor], Callable[..., tuple[Tensor, Tensor]]]:
    """A function of this name, and the one that also returns the mean."""
    mine = getattr(kinds, name)

    def function(
        input: Any, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = 1, **names: Any
    ) -> Tensor:
        if names:
            dim, keepdim = renamed(name, dim, keepdim, names)
        if isinstance(dim, bool):  # var(x, False) means unbiased=False
            dim, unbiased = None, dim
        if unbiased is not None:
            correction = int(unbiased)
        dims = some_dims(name, dim, input.ndim)
        return unary(mine[dims, 1 if correction is None else correction, bool(keepdim)], input)

    def with_mean(
        input: Any, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = 1, **names: Any
    ) -> tuple[Tensor, Tensor]:
        if names:
            dim, keepdim = renamed(name, dim, keepdim, names)
        spread = function(input, dim, unbiased, keepdim, correction=correction)
        return spread, mean(input, None if isinstance(dim, bool) else dim, keepdim)

    both = called(with_mean, f"{name}_mean", f"The {what} and the mean over dims.")
    return called(function, name, f"The {what} over dims, with the divisor n - correction."), both


var, var_mean = _spread("var", "variance")
std, std_mean = _spread("std", "standard deviation")


# --- extremes ----------------------------------------------------------------------------------------


def aminmax(input: Any, *, dim: Any = None, keepdim: bool = False) -> MinMax:
    """The smallest and the largest element, of all or along dim."""
    return MinMax(amin(input, dim, keepdim), amax(input, dim, keepdim))


def _index_of(name: str, which: str) -> Callable[..., Tensor]:
    mine = getattr(kinds, name)

    def function(input: Any, dim: Any = None, keepdim: bool = False, **names: Any) -> Tensor:
        if names:
            dim, keepdim = renamed(name, dim, keepdim, names)
        if dim is not None:
            dim = one_dim(name, dim, input.ndim)
        return unary(mine[dim if input.ndim else None, bool(keepdim)], input)

    return called(function, name, f"The index of the {which} element, of the flattened tensor or along dim.")


argmax, argmin = _index_of("argmax", "largest"), _index_of("argmin", "smallest")


def _extreme(name: str, input: Any, dim: Any, keepdim: bool, names: dict[str, Any]) -> Any:
    if "other" in names:
        dim = names.pop("other")
    if names:
        dim, keepdim = renamed(name, dim, keepdim, names)
    if dim is _MISSING or dim is None:
        return (amax if name == "max" else amin)(input)
    if isinstance(dim, Tensor):
        return (ew.maximum if name == "max" else ew.minimum)(input, dim)
    kind = getattr(kinds, name)[one_dim(name, dim, input.ndim), bool(keepdim)]
    return ValuesAndIndices(*lifted(input, lambda x: apply(kind, (x,))))


def max(input: Any, dim: Any = _MISSING, keepdim: bool = False, **names: Any) -> Any:
    """The largest element; with dim, the largest elements along it and their indices; with a tensor, maximum()."""
    return _extreme("max", input, dim, keepdim, names)


def min(input: Any, dim: Any = _MISSING, keepdim: bool = False, **names: Any) -> Any:
    """The smallest element; with dim, the smallest elements along it and their indices; with a tensor, minimum()."""
    return _extreme("min", input, dim, keepdim, names)


# --- softmax -----------------------------------------------------------------------------------------


def logsumexp(input: Any, dim: Any, keepdim: bool = False, **names: Any) -> Tensor:
    """log(sum(exp(input))) over dims, computed without overflow."""
    if names:
        dim, keepdim = renamed("logsumexp", dim, keepdim, names)
    if not input.dtype.is_differentiable:
        input = ew.cast(input, dtypes.float32)
    return unary(kinds.logsumexp[some_dims("logsumexp", dim, input.ndim), bool(keepdim)], input)


def _along(softmaxes: Kinds, input: Any, dim: Any, dtype: Any) -> Tensor:
    if dtype is not None:  # takes precedence over autocast
        with autocast(enabled=False):
            return _along(softmaxes, ew.cast(input, dtype), dim, None)
    if not hasattr(input, "ndim"):
        raise DTypeError(f"{softmaxes.op.name}: expected a tensor, got {shown(input)}")
    kind = softmaxes[one_dim(softmaxes.op.name, dim, input.ndim)]
    return unary(kind, input) if input.ndim else lifted(input, lambda x: unary(kind, x))


def softmax(input: Any, dim: int, dtype: Any = None) -> Tensor:
    """exp(input) / sum(exp(input)) along dim."""
    return _along(kinds.softmax, input, dim, dtype)


def log_softmax(input: Any, dim: int, dtype: Any = None) -> Tensor:
    """log(softmax(input)) along dim, computed without overflow."""
    return _along(kinds.log_softmax, input, dim, dtype)


def softmin(input: Any, dim: int, dtype: Any = None) -> Tensor:
    """softmax(-input) along dim."""
    return softmax(ew.neg(input), dim, dtype)
