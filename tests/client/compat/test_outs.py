"""`out=`, types by dtype, sizes, and other habits of torch code."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.client.compat import interop
from gt.errors import AutogradError, DTypeError
from tests.beside_torch import as_in_torch

pytestmark = pytest.mark.usefixtures("session")


def test_every_function_takes_out_none() -> None:
    """Those that torch gives an out=, on one tensor of two dimensions."""
    tried = 0
    for name in sorted(set(dir(gt)) & set(dir(torch))):
        function = getattr(gt, name)
        if (
            name.startswith("_")
            or not inspect.isfunction(function)
            or "out=None" not in (getattr(torch, name).__doc__ or "")
        ):
            continue
        try:
            plain = function(gt.eye(2) + 1)
        except (TypeError, ValueError, RuntimeError, IndexError):
            continue  # it needs other arguments
        if isinstance(plain, gt.Tensor) and not name.startswith(("rand", "empty", "normal", "poisson", "bernoulli")):
            np.testing.assert_array_equal(function(gt.eye(2) + 1, out=None).numpy(), plain.numpy())
            out = gt.empty(0, dtype=plain.dtype)
            assert function(gt.eye(2) + 1, out=out) is out, name
            np.testing.assert_array_equal(out.numpy(), plain.numpy())
            tried += 1
    assert tried > 55  # or the loop above has found nothing to try


def test_out_is_written() -> None:
    out = gt.zeros(2, 3)
    row = out[0]
    assert gt.add(gt.ones(2, 3), 1, out=out) is out
    assert row.tolist() == [2, 2, 2]  # the same memory
    values, indices = gt.empty(2), gt.empty(2, dtype=gt.int64)
    gt.max(gt.tensor([[1.0, 2.0], [3.0, 0.0]]), dim=1, out=(values, indices))
    assert (values.tolist(), indices.tolist()) == ([2, 3], [1, 0])
    assert gt.matmul(gt.eye(2), gt.ones(2, 2), out=gt.empty(0)).tolist() == [[1, 1], [1, 1]]
    assert gt.linalg.norm(gt.ones(4), out=gt.empty(())).item() == 2
    assert gt.zeros(2, out=gt.ones(2)).tolist() == [0, 0]


def test_out_that_cannot_be_written() -> None:
    with pytest.raises(DTypeError, match="add: the result has dtype float32, which cannot be written to int64"):
        gt.add(gt.ones(2), 1, out=gt.empty(2, dtype=gt.int64))
    with pytest.raises(AutogradError, match=r"exp: out= has no gradient"):
        gt.exp(gt.ones(2, requires_grad=True), out=gt.empty(2))
    with pytest.raises(DTypeError, match=r"exp: out must have 1 tensors, got 0"):
        gt.exp(gt.ones(2), out=[])


@pytest.mark.parametrize(
    "name", ["FloatTensor", "LongTensor", "DoubleTensor", "BoolTensor", "HalfTensor", "ByteTensor"]
)
@as_in_torch(rtol=0)
def test_types_by_dtype(lib: Any, name: str) -> Any:
    kind = getattr(lib, name)
    made, sized, others = kind([1, 0]), kind(2, 3), [lib.tensor([1.0]), lib.tensor([1]), lib.tensor([True])]
    return (
        isinstance(made, kind), isinstance(made, lib.Tensor), [isinstance(x, kind) for x in others],
        isinstance(1, kind), isinstance(kind, type), tuple(sized.shape), made.tolist(),
        isinstance(sized, (lib.LongTensor, kind)),
    )  # fmt: skip


def test_sizes() -> None:
    shape = gt.zeros(2, 3, 4).shape
    more = shape + (5,)  # noqa: RUF005  # the sum is what is tested
    assert (shape.numel(), shape[1:].numel(), more.numel(), gt.Size([2, 3]).numel()) == (24, 12, 120, 6)
    assert isinstance(shape, tuple)
    assert isinstance(shape[:1], gt.Size)
    assert shape == (2, 3, 4)
    assert gt.zeros(2, 3).size().numel() == 6


def test_old_habits() -> None:
    assert gt.div(8, 3, rounding_mode="floor").item() == 2
    assert gt.div(-7, 2, rounding_mode="trunc").item() == -3
    assert gt.div(7, 2).dtype is gt.float32
    x = gt.ones(2, dtype=gt.float64)
    assert (x.new(2, 3).dtype, x.new([1, 2]).tolist(), x.new().shape) == (gt.float64, [1, 2], (0,))
    assert gt.legacy_contiguous_format == gt.contiguous_format
    assert gt.nn.init.xavier_uniform(gt.nn.Parameter(gt.empty(2, 2))).shape == (2, 2)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        gt.nn.init.nothing  # noqa: B018
    with pytest.raises(RuntimeError, match="retain_grad: the tensor does not require grad"):
        gt.ones(2).retain_grad()


def test_torch_batches_meet_gt() -> None:
    batch, device = torch.arange(6).reshape(2, 3), gt.device("cuda")
    assert isinstance(batch.to(device), gt.Tensor)
    assert batch.to(device, non_blocking=True).tolist() == batch.tolist()
    assert batch.to(device=gt.device("cpu")).dtype is gt.int64
    assert batch.view_as(gt.ones(3, 2)).shape == (3, 2)
    assert (batch * gt.ones(3)).tolist() == batch.tolist()
    assert batch.eq(gt.zeros(2, 3)).sum().item() == 1
    with pytest.raises(TypeError, match=r"torch.\w+ cannot be used with GT tensors"):
        interop.torch_function(gt.Tensor, torch.nn.functional.pixel_shuffle, (), (gt.ones(1, 4, 2, 2), 2))
