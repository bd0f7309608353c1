"""Questions about types have torch's answers."""

from __future__ import annotations

import pytest
import torch

import gt
from gt.errors import DTypeError

FLOATS = ["float64", "float32", "float16", "bfloat16"]
INTS = ["int64", "int32", "int16", "int8", "uint8"]


@pytest.mark.parametrize("name", FLOATS)
def test_limits_of_floats(name: str) -> None:
    mine, theirs = (lib.finfo(getattr(lib, name)) for lib in (gt, torch))
    for what in ("bits", "dtype", "eps", "max", "min", "resolution", "smallest_normal", "tiny"):
        assert getattr(mine, what) == getattr(theirs, what), what


@pytest.mark.parametrize("name", INTS)
def test_limits_of_integers(name: str) -> None:
    mine, theirs = (lib.iinfo(getattr(lib, name)) for lib in (gt, torch))
    assert (mine.bits, mine.max, mine.min) == (theirs.bits, theirs.max, theirs.min)


def test_limits_are_of_the_right_kind() -> None:
    with pytest.raises(DTypeError, match="finfo: expected a floating-point dtype, got int64"):
        gt.finfo(gt.int64)
    with pytest.raises(DTypeError, match="iinfo: expected an integer dtype, got float32"):
        gt.iinfo(gt.float32)
    assert gt.finfo().dtype == "float32"


@pytest.mark.parametrize("name", [*FLOATS, *INTS, "bool", "complex64"])
def test_casts_that_are_allowed(name: str) -> None:
    for other in (*FLOATS, *INTS, "bool", "complex64"):
        mine, theirs = (lib.can_cast(getattr(lib, name), getattr(lib, other)) for lib in (gt, torch))
        assert mine == theirs, (name, other)


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("name", [*FLOATS, *INTS, "bool"])
def test_types_of_results(name: str) -> None:
    for other in (1, 1.5, True, 2j):
        mine, theirs = (lib.result_type(lib.ones(2, dtype=getattr(lib, name)), other) for lib in (gt, torch))
        if "complex" not in str(theirs) or name != "float16":  # complex32 is not there
            assert repr(mine).removeprefix("gt.") == str(theirs).removeprefix("torch."), other
    x = gt.ones((), dtype=getattr(gt, name))
    assert gt.is_tensor(x)
    assert not gt.is_tensor(1)
    assert gt.is_nonzero(x)
    assert gt.is_floating_point(x) == x.dtype.is_floating_point
    assert x.is_signed() == torch.ones((), dtype=getattr(torch, name)).is_signed()


@pytest.mark.usefixtures("session")
def test_old_names_of_types() -> None:
    for name in (gt.LongTensor, torch.LongTensor, "torch.LongTensor", "torch.cuda.LongTensor", gt.int64, "torch.int64"):
        assert gt.ones(2).type(name).dtype is gt.int64
    with pytest.raises(DTypeError, match="is not one of GT's"):
        gt.ones(2).type("torch.WideTensor")


@pytest.mark.usefixtures("session")
def test_tensors_as_values_of_python() -> None:
    x = gt.tensor([1.0, 2.0], requires_grad=True)
    assert 2 in x
    assert gt.tensor(3.0) not in x
    with pytest.raises(DTypeError, match="in: expected a number or a tensor, got 'a'"):
        "a" in x  # noqa: B015
    with pytest.raises(RuntimeError, match="no elements is ambiguous"):
        bool(gt.zeros(0))
    assert x.numpy(force=True).tolist() == [1.0, 2.0]
