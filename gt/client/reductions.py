"""Sums, means, extremes, softmax and the like. `axis` and `keepdims` are other names of dim and keepdim."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from gt.client import elementwise as ew
from gt.client.dims import one_dim, some_dims
from gt.client.recorder import apply, unary
from gt.client.tree import Kinds
from gt.errors import ArgumentError
from gt.ops import TABLE

if TYPE_CHECKING:
    from gt.client.tensor import Tensor

__all__ = [
    "all", "amax", "amin", "any", "argmax", "argmin", "cumsum", "log_softmax", "logsumexp", "max", "mean", "min",
    "norm", "prod", "softmax", "std", "sum", "var",
]  # fmt: skip
METHODS = __all__
INPLACE = ["cumsum"]

_MISSING: Any = object()


class Extremes(NamedTuple):
    """What max and min along a dimension return."""

    values: Tensor
    indices: Tensor


def _dims(op: str, x: Any, dim: Any, keepdim: bool, names: dict[str, Any]) -> tuple[tuple[int, ...], bool]:
    for name in names:
        if name not in ("axis", "keepdims"):
            raise TypeError(f"{op}() got an unexpected keyword argument {name!r}")
    dim = names.get("axis", dim)
    keepdim = names.get("keepdims", keepdim)
    return some_dims(op, dim, x.ndim), bool(keepdim)


def _reduction(name: str) -> Callable[..., Tensor]:
    kinds = Kinds(TABLE[name], "dims", "keepdim")

    def function(input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None, **names: Any) -> Tensor:
        if dtype is not None:
            input = ew.cast(input, dtype)
        return unary(kinds[_dims(name, input, dim, keepdim, names)], input)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = TABLE[name].doc
    return function


sum = _reduction("sum")
mean = _reduction("mean")
prod = _reduction("prod")
amax = _reduction("amax")
amin = _reduction("amin")
any = _reduction("any")
all = _reduction("all")

_VAR = Kinds(TABLE["var"], "dims", "correction", "keepdim")
_LOGSUMEXP = Kinds(TABLE["logsumexp"], "dims", "keepdim")
_ARG = {name: Kinds(TABLE[name], "dim", "keepdim") for name in ("argmax", "argmin")}
_ALONG = {name: Kinds(TABLE[name], "dim") for name in ("softmax", "log_softmax", "cumsum")}
_GATHER = Kinds(TABLE["gather"], "dim")


def var(
    input: Any,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: int = 1,
    **names: Any,
) -> Tensor:
    """Variance; divides by n - correction."""
    if unbiased is not None:
        correction = int(unbiased)
    dims, keep = _dims("var", input, dim, keepdim, names)
    return unary(_VAR[dims, correction, keep], input)


def std(
    input: Any,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: int = 1,
    **names: Any,
) -> Tensor:
    """Standard deviation; divides by n - correction."""
    return ew.sqrt(var(input, dim, unbiased, keepdim, correction=correction, **names))


def logsumexp(input: Any, dim: Any, keepdim: bool = False, **names: Any) -> Tensor:
    """log(sum(exp(input))), without overflow."""
    return unary(_LOGSUMEXP[_dims("logsumexp", input, dim, keepdim, names)], input)


def _arg(name: str, input: Any, dim: Any, keepdim: bool, names: dict[str, Any]) -> Tensor:
    dim = names.get("axis", dim)
    keepdim = names.get("keepdims", keepdim)
    return unary(_ARG[name][None if dim is None else one_dim(name, dim, input.ndim), bool(keepdim)], input)


def argmax(input: Any, dim: Any = None, keepdim: bool = False, **names: Any) -> Tensor:
    """Where the largest element is."""
    return _arg("argmax", input, dim, keepdim, names)


def argmin(input: Any, dim: Any = None, keepdim: bool = False, **names: Any) -> Tensor:
    """Where the smallest element is."""
    return _arg("argmin", input, dim, keepdim, names)


def _extreme(name: str, input: Any, dim: Any, keepdim: bool, names: dict[str, Any]) -> Any:
    if "axis" in names:
        dim = names["axis"]
    keepdim = names.get("keepdims", keepdim)
    if dim is _MISSING or dim is None:
        return (amax if name == "max" else amin)(input)
    if hasattr(dim, "_v"):
        return (ew.maximum if name == "max" else ew.minimum)(input, dim)
    d = one_dim(name, dim, input.ndim)
    if input.ndim == 0:
        return Extremes(input, _arg("arg" + name, input, None, False, {}))
    where = _arg("arg" + name, input, d, True, {})
    found = apply(_GATHER[d], (input, where))
    if keepdim:
        return Extremes(found, where)
    return Extremes(found.squeeze(d), where.squeeze(d))


def max(input: Any, dim: Any = _MISSING, keepdim: bool = False, **names: Any) -> Any:
    """The largest element; with dim, the largest along it and where they are; with a tensor, maximum."""
    return _extreme("max", input, dim, keepdim, names)


def min(input: Any, dim: Any = _MISSING, keepdim: bool = False, **names: Any) -> Any:
    """The smallest element; with dim, the smallest along it and where they are; with a tensor, minimum."""
    return _extreme("min", input, dim, keepdim, names)


def norm(input: Any, p: Any = 2, dim: Any = None, keepdim: bool = False, **names: Any) -> Tensor:
    """The p-norm over dims (2, 1, inf, -inf, 0 or any number)."""
    dims, keep = _dims("norm", input, dim, keepdim, names)
    x = ew.abs(input)
    if p == float("inf"):
        return amax(x, dims, keep)
    if p == float("-inf"):
        return amin(x, dims, keep)
    if p == 0:
        return ew.cast(sum(ew.ne(x, 0), dims, keep), input.dtype)
    if p == 1:
        return sum(x, dims, keep)
    if p in (2, "fro", None):
        return ew.sqrt(sum(ew.mul(input, input), dims, keep))
    if isinstance(p, str):
        raise ArgumentError(f"norm: p is a number or 'fro', not {p!r}")
    return ew.pow(sum(ew.pow(x, p), dims, keep), 1.0 / p)


def softmax(input: Any, dim: int, dtype: Any = None) -> Tensor:
    """exp(input), scaled to sum to one along dim."""
    x = input if dtype is None else ew.cast(input, dtype)
    return unary(_ALONG["softmax"][one_dim("softmax", dim, x.ndim)], x)


def log_softmax(input: Any, dim: int, dtype: Any = None) -> Tensor:
    """The logarithm of softmax, without overflow."""
    x = input if dtype is None else ew.cast(input, dtype)
    return unary(_ALONG["log_softmax"][one_dim("log_softmax", dim, x.ndim)], x)


def cumsum(input: Any, dim: int, **names: Any) -> Tensor:
    """Sums of the elements so far along dim."""
    return unary(_ALONG["cumsum"][one_dim("cumsum", names.get("axis", dim), input.ndim)], input)
