"""`x[...]`, `x[...] = y` and the functions that index, against torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gt
from gt.client.session.session import Session
from gt.errors import FunctionError, GTError
from tests.beside_torch import agree, as_in_torch, compare

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
    "none between tensors": lambda t: (t.tensor([1, 2]), None, t.tensor([0, 4])),
    "range": lambda t: range(1, 4),
    "list of bools": lambda t: [True, False, False, True],
    "numpy mask": lambda t: np.array([True, False, True, True]),
    "list and slice": lambda t: (slice(1, 3), [4, 0, 0]),
    "empty list": lambda t: [],
    "tensor without dimensions, negative": lambda t: (slice(None), t.tensor(-2)),
    "tensors without dimensions": lambda t: (t.tensor(1), slice(1, 3), t.tensor(0)),
    "one without dimensions before another": lambda t: (t.tensor(1), slice(None), t.tensor([0, 5])),
    "one without dimensions after another": lambda t: (t.tensor([0, 2]), t.tensor(4)),
    "int before a tensor": lambda t: (1, slice(None), t.tensor([0, 5])),
    "int between tensors": lambda t: (t.tensor([0, 2]), 1, t.tensor([3, 3])),
    "mask": lambda t: t.arange(120).reshape(SHAPE) % 7 == 0,
    "mask of rows": lambda t: t.tensor([True, False, True, False]),
    "mask of leading dimensions": lambda t: t.arange(20).reshape(4, 5) % 3 == 1,
    "mask of trailing dimensions": lambda t: (Ellipsis, t.arange(30).reshape(5, 6) % 4 == 1),
    "mask in the middle": lambda t: (slice(1, 3), t.tensor([True, False, True, True, False]), slice(None, None, 2)),
    "mask and int": lambda t: (t.tensor([True, False, True, True]), 2),
    "int and mask": lambda t: (2, t.arange(30).reshape(5, 6) % 4 == 1),
    "mask and tensor": lambda t: (t.tensor([True, False, False, True]), t.tensor([0, 4])),
    "mask and tensor apart": lambda t: (t.tensor([True, False, False, True]), slice(None), t.tensor([0, 4])),
    "two masks": lambda t: (t.tensor([True, False, False, True]), t.tensor([True, True, False, False, False])),
    "mask and none": lambda t: (None, t.tensor([True, False, False, True]), None),
    "empty mask": lambda t: t.zeros(4, dtype=t.bool),
    "True": lambda t: True,
    "False": lambda t: False,
    "True and slices": lambda t: (slice(1, 3), True, 2),
    "True beside a tensor": lambda t: (True, t.tensor([0, 2])),
    "mask without dimensions": lambda t: t.tensor(True),
}


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS.keys())
def test_reading_and_its_gradient(key: Key, session: Session) -> None:
    compare(lambda lib, x: x[key(lib)] ** 2, DATA)


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS.keys())
@pytest.mark.parametrize("value", ["number", "tensor", "row"])
@as_in_torch(rtol=0)
def test_writing(lib: Any, key: Key, value: str, session: Session) -> Any:
    x = lib.from_numpy(DATA.copy())
    shape = tuple(x[key(lib)].shape)
    new: Any = -1.0
    if value == "tensor":
        new = lib.arange(int(np.prod(shape)), dtype=lib.float64).reshape(shape) * -1.0
    elif value == "row":
        new = lib.arange(shape[-1] if shape else 1, dtype=lib.float64).reshape(shape[-1:]) * -1.0
    x[key(lib)] = new
    return x


def augmented(x: Any, key: Any) -> None:
    x[key] += 1.0
    x[key] *= 2.0


WRITES: dict[str, Callable[[Any, Any], Any]] = {
    "mask of rows with a row": lambda t, x: x.__setitem__(x[:, 0, 0] > 50.0, t.arange(6, dtype=t.float64)),
    "mask with as many": lambda t, x: x.__setitem__(x > 110.0, t.arange(9, dtype=t.float64)),
    "mask of rows with matrices": lambda t, x: x.__setitem__(
        t.tensor([True, False, True, False]), -t.arange(60, dtype=t.float64).reshape(2, 5, 6)
    ),
    "mask with a float in ints": lambda t, x: x.long().__setitem__(x > 3.0, 1.5),
    "augmented mask": lambda t, x: augmented(x, x > 50.0),
    "augmented tensor": lambda t, x: augmented(x, t.tensor([0, 2, 2])),
    "augmented slice": lambda t, x: augmented(x, (slice(1, 3), 2)),
    "augmented element": lambda t, x: augmented(x, (1, -1, 0)),
    "augmented by tensor without dimensions": lambda t, x: augmented(x, (slice(None), t.tensor(-1))),
    "augmented with none": lambda t, x: augmented(x, (None, 1)),
    "view by a tensor without dimensions": lambda t, x: x[t.tensor(2)].mul_(-1.0),
    "view of a view by a tensor": lambda t, x: x[1:3][:, t.tensor(2)][t.tensor(0), 1:4].fill_(7.0),
    "numpy value": lambda t, x: x.__setitem__((0, 0), t.from_numpy(np.arange(6.0))),
    "swapped columns": lambda t, x: x.__setitem__((slice(None), [0, 1]), x[:, [1, 0]]),
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
@as_in_torch(rtol=0)
def test_other_writes(lib: Any, write: Callable[[Any, Any], Any], session: Session) -> Any:
    x = lib.from_numpy(DATA.copy())
    write(lib, x)
    return x


OLD_KEYS: dict[str, Key] = {
    "lists of ints": lambda t: [[0, 1], [3, 2]],
    "a list with a slice": lambda t: [slice(2), 1],
    "a list of tensors": lambda t: [t.tensor([0, 1]), t.tensor([2, 2])],
    "a mask of bytes": lambda t: t.tensor([1, 0, 0, 1], dtype=t.uint8),
}


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence", "ignore:indexing with dtype torch.uint8")
@pytest.mark.parametrize("key", OLD_KEYS.values(), ids=OLD_KEYS)
def test_keys_that_torch_warns_of(key: Key, session: Session) -> None:
    agree(lambda lib: lib.from_numpy(DATA.copy())[key(lib)], rtol=0)


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
    agree(lambda lib: f(lib, lib.from_numpy(DATA.copy())), rtol=0)


PLACES = [[0, 2, 1, 1, 5, 0], [1, 1, 0, 4, 3, 2]]

#: What torch's database has as functions only: the in-place forms, on a view of a larger tensor.
IN_PLACE: dict[str, Callable[[Any, Any], Any]] = {
    "scatter_": lambda t, x: x.scatter_(1, t.tensor([[0, 3], [2, 1]]), x[2:4, :2].clone()),
    "scatter_ a number": lambda t, x: x.scatter_(0, t.tensor(PLACES) % 5, -1.0),
    "scatter_ and add": lambda t, x: x.scatter_(1, t.tensor(PLACES), 2.0, reduce="add"),
    "scatter_ and multiply": lambda t, x: x.scatter_(1, t.tensor(PLACES), 2.0, reduce="multiply"),
    "scatter_add_": lambda t, x: x.scatter_add_(1, t.tensor(PLACES), x.clone()),
    "scatter_reduce_": lambda t, x: x.scatter_reduce_(1, t.tensor(PLACES), x.flip(1), "amax", include_self=False),
    "index_add_": lambda t, x: x.index_add_(0, t.tensor([0, 0, 4]), x[:3].clone(), alpha=3),
    "index_copy_": lambda t, x: x.index_copy_(1, t.tensor([5, 0]), x[:, 1:3].clone()),
    "index_fill_": lambda t, x: x.index_fill_(1, t.tensor([-1, 2]), 9.0),
    "index_reduce_": lambda t, x: x.index_reduce_(0, t.tensor([1, 1]), x[3:].clone(), "mean"),
    "index_put_": lambda t, x: x.index_put_((t.tensor([0, -1]), t.tensor([1, 1])), t.tensor(4.0, dtype=t.float64)),
    "index_put_ adds": lambda t, x: x.index_put_((t.tensor([0, 0]),), x[1].clone(), accumulate=True),
    "index_put_ with a mask": lambda t, x: x.index_put_((x > 20.0,), t.tensor(-1.0, dtype=t.float64)),
    "put_": lambda t, x: x.put_(t.tensor([0, -1, 7]), t.tensor([1.0, 2.0, 3.0], dtype=t.float64)),
    "masked_fill_": lambda t, x: x.masked_fill_(x < 10.0, t.tensor(3.0, dtype=t.float64)),
    "masked_scatter_": lambda t, x: x.masked_scatter_(x % 2 == 0, -x),
    "fill_ with a tensor": lambda t, x: x.fill_(x[1, 1]),
    "fill_diagonal_": lambda t, x: x.fill_diagonal_(-1.0),
    "fill_diagonal_ of a tall matrix": lambda t, x: x.T.fill_diagonal_(-1.0),
    "fill_diagonal_ wraps": lambda t, x: x[:, :2].fill_diagonal_(-1.0, wrap=True),
    "copy_ a row": lambda t, x: x.copy_(x[1].clone()),
    "map_": lambda t, x: x.map_(x + 1.0, lambda a, b: a * b),
    "apply_": lambda t, x: x.apply_(lambda a: a + 1.5),
    "t_": lambda t, x: x.t_().add_(1.0),
    "transpose_ then rows": lambda t, x: x.transpose_(0, 1)[0].zero_(),
    "unsqueeze_": lambda t, x: x.unsqueeze_(1)[:, 0].mul_(2.0),
    "squeeze_": lambda t, x: x.unsqueeze_(0).squeeze_(0).mul_(2.0),
}


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("write", IN_PLACE.values(), ids=IN_PLACE.keys())
@as_in_torch(rtol=0)
def test_in_place_forms(lib: Any, write: Callable[[Any, Any], Any], session: Session) -> Any:
    whole = lib.from_numpy(DATA.copy())
    part = whole[1]
    return whole, part, write(lib, part)


def positions(t: Any) -> Any:
    yield t.tensor([[1, 0, 2], [0, 0, 3]]).nonzero()
    yield t.where(t.tensor([[1.0, 0.0], [0.0, float("nan")]]))
    yield t.nonzero(t.arange(24).reshape(2, 3, 4) % 5 == 0, as_tuple=True)
    yield t.nonzero(t.tensor(3.0))
    yield t.nonzero(t.tensor(3.0), as_tuple=True)
    yield t.argwhere(t.zeros(2, 3))
    yield t.tensor([3.0, 4.0]).masked_select(t.tensor([[True], [False]]))
    yield t.take(t.arange(6).reshape(2, 3), t.tensor([[-1, 0], [2, 3]]))


def test_positions(session: Session) -> None:
    agree(lambda lib: list(positions(lib)), rtol=0)


def test_a_bad_index_tensor_fails_its_call_only(session: Session) -> None:
    x = gt.from_numpy(DATA)
    x.numpy()  # it is there: what a call made that failed is lost with it
    for read in (
        lambda i: x[i],
        lambda i: x[i[0]],
        lambda i: x.index_select(0, i),
        lambda i: x.take(i * 100),
        lambda i: x.clone().index_fill(0, i, 1.0),
        lambda i: x[0, 0].scatter(0, i, 1.0),
        lambda i: x[:, 0, 0].masked_scatter(x[:, 0, 0] >= 0, x[0, 0, :2]),
    ):
        with pytest.raises(IndexError, match="is out of range for size"):
            read(gt.tensor([7, 0])).numpy()
    np.testing.assert_array_equal(x.numpy(), DATA)


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


def test_the_positions_of_a_mask_are_counted_once(session: Session) -> None:
    x = gt.from_numpy(DATA) * 1  # only the worker knows it
    mask = x[:, 0, 0] > 20
    asked = session.reads.requests
    sums, counts = x[mask].sum((1, 2)), gt.arange(4)[mask]
    x[mask] = x[mask] / counts[:, None, None]
    assert session.reads.requests == asked + 1
    np.testing.assert_array_equal(sums.numpy(), DATA[1:].sum((1, 2)))
    np.testing.assert_array_equal(x.numpy()[1:], DATA[1:] / np.arange(1, 4)[:, None, None])
    mask[0] = True  # another value
    assert x[mask].shape[0] == 4
    with pytest.raises(FunctionError, match="reads a value"):
        gt.function(lambda x, mask: x[mask])(x, mask)


REFUSED: dict[str, tuple[Key, str]] = {
    "too far": (lambda x: x[4], "index: 4 is out of range for dimension 0 of size 4"),
    "too far back": (lambda x: x[0, -6], "index: -6 is out of range for dimension 1 of size 5"),
    "too many": (lambda x: x[0, 0, 0, 0], "index: too many indices: 4 for a tensor of 3 dimensions"),
    "two ellipses": (lambda x: x[..., 0, ...], "only one ellipsis"),
    "a float": (lambda x: x[1.5], r"index: expected ints, slices, None, \.\.\. or tensors, got 1\.5"),
    "a text": (lambda x: x["a"], r"index: expected ints, slices, None, \.\.\. or tensors, got 'a'"),
    "a float tensor": (lambda x: x[gt.ones(2)], "index: an index tensor must contain ints or bools, got float32"),
    "a mask of other shape": (
        lambda x: x[gt.ones(4, 4) > 0],
        r"index: a mask of shape \(4, 4\) does not match dimensions of sizes \(4, 5\)",
    ),
    "a value for a mask": (lambda x: x.__setitem__(x < 7, gt.ones(6)), r"assignment: a value of shape \(6,\) does not"),
    "a list of floats": (lambda x: x[[0.5]], "index: an index must contain ints or bools, got float64"),
    "a negative step": (lambda x: x[::-1], "index: the step of a slice must be > 0, got -1"),
    "a value that does not fit": (lambda x: x.__setitem__(0, gt.ones(5)), r"a value of shape \(5,\) does not"),
    "an index of other size": (lambda x: x[gt.tensor([0, 1]), gt.tensor([0, 1, 2])], "index"),
    "narrow too far": (lambda x: x.narrow(1, 3, 3), "narrow: start 3 and length 3 are out of range for dimension 1 of"),
    "select too far": (lambda x: x.select(2, 6), "index: 6 is out of range for dimension 2 of size 6"),
}


@pytest.mark.parametrize(("read", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_refusals(read: Key, message: str, session: Session) -> None:
    x = gt.from_numpy(DATA)
    with pytest.raises(GTError, match=message):
        read(x)
    assert x[0, 0, 1].item() == 1.0
