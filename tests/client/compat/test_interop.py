"""Tensors from torch, numpy and DLPack, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.errors import DTypeError

pytestmark = pytest.mark.usefixtures("session")

NAMES = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(2, 3), (), (0, 4), (300, 5)])
def test_torch_and_back(name: str, shape: tuple[int, ...]) -> None:
    theirs = (torch.arange(int(np.prod(shape))).reshape(shape) % 5).to(getattr(torch, name))
    ours = gt.from_torch(theirs)
    assert (ours.dtype.name, ours.shape) == (name, shape)
    assert torch.equal(ours.torch(), theirs)


def test_data_from_torch_is_a_copy_without_history() -> None:
    t = torch.ones(3, requires_grad=True)
    x = gt.from_torch(t)
    with torch.no_grad():
        t.mul_(5)
    assert not x.requires_grad
    assert x.tolist() == [1.0, 1.0, 1.0]
    assert gt.from_torch(torch.ones(2, 3).T).tolist() == np.ones((3, 2)).tolist()
    assert gt.from_torch(torch.tensor([1 + 2j]).conj()).tolist() == [1 - 2j]


def test_from_torch_refuses_other_types() -> None:
    with pytest.raises(DTypeError, match=r"from_torch: expected a torch tensor, got \[1\.0\]"):
        gt.from_torch([1.0])
    with pytest.raises(DTypeError, match=r"from_torch: expected a dense tensor, got layout torch\.sparse_coo"):
        gt.from_torch(torch.eye(2).to_sparse())


def test_torch_tensors_are_operands() -> None:
    x = gt.ones(2)
    assert (x + torch.tensor([1.0, 2.0])).tolist() == [2.0, 3.0]
    assert gt.tensor(torch.tensor([1, 2])).tolist() == [1, 2]
    assert gt.as_tensor(torch.tensor([1, 2])).dtype is gt.int64


@pytest.mark.parametrize("name", ["float32", "int64", "bool", "bfloat16"])
def test_dlpack(name: str) -> None:
    theirs = torch.tensor([[1, 0], [1, 1]]).to(getattr(torch, name))
    x = gt.from_dlpack(theirs)
    assert x.dtype.name == name
    assert torch.equal(torch.from_dlpack(x), theirs)
    if name != "bfloat16":
        np.testing.assert_array_equal(np.from_dlpack(x), theirs.numpy())
        assert gt.from_dlpack(np.ones(3, dtype=name)).dtype.name == name


def test_numpy_functions_take_tensors() -> None:
    x = gt.arange(4)
    assert np.mean(np.asarray(x)) == 1.5
    assert np.asarray(x, dtype=np.float32).dtype == np.float32
    with pytest.raises(ValueError, match="always a copy"):
        np.array(x, copy=False)


@pytest.mark.parametrize("number", [np.float32(1.5), np.float64(1.5), np.int64(2), np.bool_(True), np.array(1.5)])
def test_numpys_numbers_are_numbers(number: Any) -> None:
    x, t = gt.ones(2), torch.ones(2)
    np.testing.assert_array_equal((x * number).numpy(), (t * torch.as_tensor(number)).numpy())
    assert (x * number).dtype is gt.float32
