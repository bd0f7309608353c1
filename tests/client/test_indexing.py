"""`x[...]`, `x[...] = y` and the functions that index, against torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.client.session import Session
from gt.errors import GTError

SHAPE = (4, 5, 6)
DATA = np.arange(120.0).reshape(SHAPE)
Key = Callable[[Any], Any]

#: The key, made by the library: index tensors are its own.
KEYS: dict[str, Key] = {
    "int": lambda t: 2,
    "negative int": lambda t: -1,
    "ints": lambda t: (1, 2, 3),
    "numpy int": lambda t: np.int64(3),
    "slice": lambda t: slice(1, 3),
    "open slice": lambda t: slice(2, None),
    "negative slice": lambda t: slice(-3, -1),
    "slice past the end": lambda t: slice(2, 100),
    "empty slice": lambda t: slice(3, 1),
    "whole": lambda t: slice(None),
    "step": lambda t: slice(None, None, 2),
    "start and step": lambda t: (slice(1, None, 2), slice(0, 5, 3)),
    "slices": lambda t: (slice(1, 3), slice(None), slice(2, 5)),
    "int and slice": lambda t: (1, slice(1, 4)),
    "slice and int": lambda t: (slice(1, 4), 2),
    "ellipsis": lambda t: (Ellipsis, 1),
    "ellipsis in the middle": lambda t: (0, Ellipsis, slice(1, 3)),
    "ellipsis alone": lambda t: Ellipsis,
    "none": lambda t: None,
    "none inside": lambda t: (slice(1, 3), None, 2),
    "none at the end": lambda t: (Ellipsis, None),
    "empty tuple": lambda t: (),
    "tensor": lambda t: t.tensor([0, 2, 3]),
    "tensor with negatives": lambda t: t.tensor([-1, 0, -4]),
    "matrix of indices": lambda t: t.tensor([[0, 1], [3, 3]]),
    "int32 tensor": lambda t: t.tensor([1, 2], dtype=t.int32),
    "tensor without dimensions": lambda t: t.tensor(2),
    "empty tensor": lambda t: t.tensor([], dtype=t.int64),
    "list": lambda t: [0, 3],
    "numpy array": lambda t: np.array([1, 2]),
    "two tensors": lambda t: (t.tensor([0, 1, 2]), t.tensor([4, 3, 2])),
    "two tensors broadcast": lambda t: (t.tensor([[0], [1]]), t.tensor([4, 3, 2])),
    "three tensors": lambda t: (t.tensor([0, 1]), t.tensor([4, 3]), t.tensor([5, 0])),
    "tensor and slice": lambda t: (t.tensor([0, 1]), slice(1, 3)),
    "slice and tensor": lambda t: (slice(1, 3), t.tensor([0, 4])),
    "slice and two tensors": lambda t: (slice(1, 3), t.tensor([0, 4]), t.tensor([1, 2])),
    "tensors apart": lambda t: (t.tensor([0, 1]), slice(None), t.tensor([1, 2])),
    "tensor and ellipsis": lambda t: (Ellipsis, t.tensor([5, 0])),
    "tensor and none": lambda t: (None, t.tensor([1, 2])),
}


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS.keys())
def test_reading(key: Key, session: Session) -> None:
    want = torch.from_numpy(DATA.copy())[key(torch)]
    got = gt.from_numpy(DATA)[key(gt)]
    assert got.shape == tuple(want.shape)
    np.testing.assert_array_equal(got.numpy(), want.numpy())


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS.keys())
def test_gradients_of_reading(key: Key, session: Session) -> None:
    grads = []
    for lib in (torch, gt):
        x = lib.from_numpy(DATA.copy()).requires_grad_()
        (x[key(lib)] ** 2).sum().backward()
        grads.append(x.grad.numpy())
    np.testing.assert_array_equal(grads[1], grads[0])


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS.keys())
@pytest.mark.parametrize("value", ["number", "tensor", "row"])
def test_writing(key: Key, value: str, session: Session) -> None:
    results = []
    for lib in (torch, gt):
        x = lib.from_numpy(DATA.copy())
        shape = tuple(x[key(lib)].shape)
        new: Any = -1.0
        if value == "tensor":
            new = lib.arange(int(np.prod(shape)), dtype=lib.float64).reshape(shape) * -1.0
        elif value == "row":
            new = lib.arange(shape[-1] if shape else 1, dtype=lib.float64).reshape(shape[-1:]) * -1.0
        x[key(lib)] = new
        results.append(x.numpy())
    np.testing.assert_array_equal(results[1], results[0])


WRITES: dict[str, Callable[[Any, Any], Any]] = {
    "mask": lambda t, x: x.__setitem__(x > 50.0, 0.0),
    "mask with a tensor of one element": lambda t, x: x.__setitem__(x > 50.0, x[0, 0, 3]),
    "list of numbers": lambda t, x: x.__setitem__((0, 0), t.tensor([1.0, 2, 3, 4, 5, 6], dtype=t.float64)),
    "an int into floats": lambda t, x: x.__setitem__((1, 2, 3), 7),
    "leading ones": lambda t, x: x.__setitem__((0, 0), t.ones(1, 1, 6, dtype=t.float64)),
    "other dtype": lambda t, x: x.__setitem__(2, t.ones(5, 6, dtype=t.float32)),
    "ints": lambda t, x: x.__setitem__((slice(None), 0), t.arange(6)),
    "a bool": lambda t, x: x.__setitem__(0, True),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_other_writes(write: Callable[[Any, Any], Any], session: Session) -> None:
    results = []
    for lib in (torch, gt):
        x = lib.from_numpy(DATA.copy())
        write(lib, x)
        results.append(x.numpy())
    np.testing.assert_array_equal(results[1], results[0])


FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "gather": lambda t, x: x[0].gather(1, t.tensor([[0, 5], [1, 1], [2, 0], [3, 3], [4, 4]])),
    "gather along 0": lambda t, x: x[0].gather(0, t.tensor([[4, 0, 1, 2, 3, 4]])),
    "index_select": lambda t, x: x.index_select(1, t.tensor([4, 0, 0])),
    "index_add": lambda t, x: x[0].index_add(0, t.tensor([1, 1]), x[1, :2]),
    "scatter_add": lambda t, x: x[0].scatter_add(1, t.tensor([[0, 0], [5, 1]]), x[1, :2, :2]),
    "narrow": lambda t, x: x.narrow(2, 1, 3),
    "narrow from the end": lambda t, x: x.narrow(2, -3, 2),
    "select": lambda t, x: x.select(1, -2),
    "embedding": lambda t, x: t.nn.functional.embedding(t.tensor([[1, 0], [4, 4]]), x[2]),
    "one_hot": lambda t, x: t.nn.functional.one_hot(t.tensor([2, 0, 1]), 4),
    "one_hot without a number": lambda t, x: t.nn.functional.one_hot(t.tensor([2, 0, 1])),
    "unbind": lambda t, x: t.stack(x.unbind(1)[::-1]),
    "split": lambda t, x: t.cat(x.split(2, dim=1)[::-1], 1),
    "chunk": lambda t, x: t.cat(x.chunk(4, dim=2)[::-1], 2),
    "iteration": lambda t, x: t.stack([row.sum() for row in x]),
    "masked_fill": lambda t, x: x.masked_fill(x > 100.0, -1.0),
}


@pytest.mark.parametrize("f", FUNCTIONS.values(), ids=FUNCTIONS.keys())
def test_functions(f: Callable[[Any, Any], Any], session: Session) -> None:
    want, got = (f(lib, lib.from_numpy(DATA.copy())) for lib in (torch, gt))
    np.testing.assert_array_equal(got.numpy(), want.numpy())


def test_a_moving_index_is_one_program(session: Session) -> None:
    x = gt.from_numpy(DATA)
    x.numpy()
    x[0:2].numpy(), x[0].numpy(), x[0, 0, 0].item(), x[:, 0:4:2].numpy()
    defined = session.defined
    for i in range(1, 4):
        k = min(i, 2)
        np.testing.assert_array_equal(x[k : k + 2].numpy(), DATA[k : k + 2])
        np.testing.assert_array_equal(x[i].numpy(), DATA[i])
        np.testing.assert_array_equal(x[-i].numpy(), DATA[-i])
        assert x[i, -i, i].item() == DATA[i, -i, i]
        np.testing.assert_array_equal(x[:, 1:5:2].numpy(), DATA[:, 1:5:2])
    assert session.defined == defined


REFUSED: dict[str, tuple[Key, str]] = {
    "too far": (lambda x: x[4], "index: 4 is out of range for dimension 0 of size 4"),
    "too far back": (lambda x: x[0, -6], "index: -6 is out of range for dimension 1 of size 5"),
    "too many": (lambda x: x[0, 0, 0, 0], "index: 4 indices for a tensor of 3 dimensions"),
    "two ellipses": (lambda x: x[..., 0, ...], "only one ellipsis"),
    "a float": (lambda x: x[1.5], "index: float is not an index"),
    "a text": (lambda x: x["a"], "index: str is not an index"),
    "a float tensor": (lambda x: x[gt.ones(2)], "an index tensor must hold ints, not float32"),
    "a mask": (lambda x: x[x > 0], r"the size of x\[mask\] depends on data; use where"),
    "a negative step": (lambda x: x[::-1], r"the step of a slice must be positive; use flip\(\)"),
    "a value that does not fit": (lambda x: x.__setitem__(0, gt.ones(5)), r"shape \(5,\) does not fit into \(5, 6\)"),
    "an index of other size": (lambda x: x[gt.tensor([0, 1]), gt.tensor([0, 1, 2])], "index"),
    "narrow too far": (lambda x: x.narrow(1, 3, 3), "narrow: 3 elements from 3 do not fit into dimension 1 of size 5"),
    "select too far": (lambda x: x.select(2, 6), "index: 6 is out of range for dimension 2 of size 6"),
}


@pytest.mark.parametrize(("read", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_refusals(read: Key, message: str, session: Session) -> None:
    x = gt.from_numpy(DATA)
    with pytest.raises(GTError, match=message):
        read(x)
    assert x[0, 0, 1].item() == 1.0
