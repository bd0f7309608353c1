"""Checks of arguments that many functions share, each with its error message."""

from __future__ import annotations

from typing import Any

from gt.dtypes import DType
from gt.errors import ArgumentError, DTypeError, ShapeError


def floating(op: str, x: Any) -> DType:
    """The dtype of a tensor, which must be a floating-point type."""
    dtype: DType = x.dtype
    if not dtype.is_floating_point:
        raise DTypeError(f"{op}: expected a floating-point tensor, got {dtype.name}; cast first, as in x.float()")
    return dtype


def same_dtype(op: str, a: Any, b: Any) -> None:
    """Two tensors must have the same dtype."""
    if a.dtype is not b.dtype:
        raise DTypeError(f"{op}: dtypes {a.dtype.name} and {b.dtype.name} differ; cast one tensor to the other's dtype")


def one_of(op: str, name: str, value: Any, *choices: Any) -> None:
    """An argument must be one of these values."""
    if value not in choices:
        shown = [repr(choice) for choice in choices]
        wanted = " or ".join(shown) if len(shown) == 2 else f"one of {', '.join(shown)}"
        raise ArgumentError(f"{op}: {name} must be {wanted}, got {value!r}")


def at_least(op: str, name: str, value: Any, least: int) -> None:
    """A number must be at least this large."""
    if value < least:
        raise ArgumentError(f"{op}: {name} must be >= {least}, got {value}")


def positive(op: str, name: str, value: Any) -> None:
    """A number must be larger than 0."""
    if value <= 0:
        raise ArgumentError(f"{op}: {name} must be > 0, got {value}")


def vectors(op: str, *tensors: Any) -> None:
    """Every tensor must have one dimension."""
    for x in tensors:
        if x.ndim != 1:
            raise ShapeError(f"{op}: expected a vector, got shape {tuple(x.shape)}")


def matrices(op: str, *tensors: Any) -> None:
    """Every tensor must have two dimensions."""
    for x in tensors:
        if x.ndim != 2:
            raise ShapeError(f"{op}: expected a matrix, got shape {tuple(x.shape)}")


def batches(op: str, *tensors: Any) -> None:
    """Every tensor must be a matrix or a batch of matrices."""
    for x in tensors:
        if x.ndim < 2:
            raise ShapeError(f"{op}: expected a matrix or a batch of matrices, got shape {tuple(x.shape)}")


def square(op: str, x: Any) -> None:
    """A tensor must be a square matrix or a batch of square matrices."""
    batches(op, x)
    if x.shape[-1] != x.shape[-2]:
        raise ShapeError(f"{op}: expected square matrices, got shape {tuple(x.shape)}")
