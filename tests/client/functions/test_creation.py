"""Making tensors: what dtype data gets, how numbers are counted, and forms that torch's own database leaves out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.errors import ArgumentError, DTypeError
from tests.beside_torch import agree, same
from tests.client.mistakes import Mistakes, refused

pytestmark = pytest.mark.usefixtures("session")

DATA: dict[str, Any] = {
    "float": 1.5,
    "int": 3,
    "bool": True,
    "complex": 1 + 2j,
    "floats": [1.0, 2.5],
    "ints and floats": [1, 2.5],
    "bools and ints": [True, 2],
    "nothing": [],
    "rows of nothing": [[], []],
    "nested": [[[1], [2]], [[3], [4]]],
    "tuples": ((1.0, 2.0), [3.0, 4.0]),
    "a range": range(3),
    "numpy float64": np.float64(1.5),
    "numpy int32": np.int32(3),
    "a list of numpy float64": [np.float64(1.5), np.float64(2.5)],
    "a list of numpy float16": [np.float16(1.5), 2.5],
    "a list of arrays": [np.zeros(2), np.ones(2)],
    "numpy bools": [np.bool_(True), np.bool_(False)],
    "an array": np.arange(6, dtype=np.int16).reshape(2, 3)[:, ::2],
    "an array of floats": np.ones((2, 2)),
    "a large array": np.arange(3000.0).reshape(30, 100).T,
    "complex numbers": [1j, 2.0],
}


#: torch itself does not make all of these what it is asked to.
ONLY_AS_THEY_ARE = {"complex", "complex numbers", "a list of numpy float16", "numpy bools"}


@pytest.mark.parametrize("what", DATA)
@pytest.mark.filterwarnings("ignore:Creating a tensor from a list of numpy:UserWarning")
def test_data_gets_torchs_dtype(what: str) -> None:
    same(gt.tensor(DATA[what]), torch.tensor(DATA[what]), rtol=0)
    for name in ("float32", "int64", "bool"):
        if what not in ONLY_AS_THEY_ARE:
            agree(lambda lib, name=name: lib.tensor(DATA[what], dtype=getattr(lib, name)), rtol=0)


@pytest.fixture
def _float64_by_default() -> Iterator[None]:
    gt.set_default_dtype(gt.float64)
    torch.set_default_dtype(torch.float64)
    yield
    gt.set_default_dtype(gt.float32)
    torch.set_default_dtype(torch.float32)


Case = Callable[[Any], Any]
FORMS: dict[str, Case] = {
    "floats": lambda lib: (lib.tensor([1.0]), lib.tensor(1j), lib.tensor(2), lib.zeros(2), lib.full((2,), 1.5)),
    "sizes": lambda lib: (lib.zeros(2, 3), lib.ones((2, 3)), lib.zeros([2]), lib.ones(size=(2, 1)), lib.zeros(())),
    "full": lambda lib: (lib.full((2,), 3), lib.full((), True), lib.full([2], 1.5), lib.full((2,), 1 + 2j)),
    "full of a tensor": lambda lib: lib.full((2, 2), lib.tensor(1.5)),
    "full as": lambda lib: lib.full((2,), 2.7, dtype=lib.int64),
    "like": lambda lib: [f(lib.ones(2, 3).int()) for f in (lib.zeros_like, lib.ones_like)],
    "full_like": lambda lib: lib.full_like(lib.ones(2).int(), 2.7),
    "new": lambda lib: (lib.ones(1).int().new_zeros(2, 3), lib.ones(1).new_ones((2,), dtype=lib.bool)),
    "new_full": lambda lib: (lib.ones(1).new_full((2,), 3), lib.ones(1).int().new_tensor([1.5, 2.5])),
    "ignored": lambda lib: lib.zeros(2, device="cpu", pin_memory=False),
    "arange": lambda lib: (lib.arange(5), lib.arange(1, 5), lib.arange(5, 0, -2), lib.arange(0)),
    "arange of floats": lambda lib: (lib.arange(0, 1, 0.1), lib.arange(1.0), lib.arange(2.5, 0, -0.5)),
    "arange as": lambda lib: (lib.arange(3, dtype=lib.float16), lib.arange(0.5, 5.5, 1.5, dtype=lib.int64)),
    "arange of a tensor": lambda lib: lib.arange(lib.tensor(4)),
    "arange by name": lambda lib: (lib.arange(start=1, end=8, step=3), lib.arange(end=3), lib.arange(end=2.5)),
    "arange of many": lambda lib: lib.arange(2**40, 2**40 + 6, 2),
    "linspace": lambda lib: (lib.linspace(0, 1, 5), lib.linspace(3, 3, 1), lib.linspace(0, 1, 0)),
    "linspace of ints": lambda lib: lib.linspace(0, 10, 5, dtype=lib.int64),
    "linspace of tensors": lambda lib: lib.linspace(lib.tensor(0.0), lib.tensor(1.0), 3),
    "eye": lambda lib: (lib.eye(3), lib.eye(2, 3, dtype=lib.int64), lib.eye(0)),
    "triangles": lambda lib: (lib.tril_indices(3, 4, 1), lib.triu_indices(3, 3, offset=-1), lib.tril_indices(0, 2)),
    "scalar_tensor": lambda lib: (lib.scalar_tensor(2), lib.scalar_tensor(2.5, dtype=lib.float64)),
    "Python's types": lambda lib: [lib.ones(2, dtype=d) for d in (float, int, bool, complex)] + [lib.ones(2).to(float)],
    "frombuffer": lambda lib: lib.frombuffer(bytearray(b"\1\0\2\0"), dtype=lib.int16),
    "from_numpy": lambda lib: lib.from_numpy(np.arange(3)),
    "as_tensor": lambda lib: (lib.as_tensor([1, 2]), lib.asarray([1.0]), lib.as_tensor(np.ones(2), dtype=lib.int8)),
    "a list of tensors": lambda lib: lib.tensor([lib.tensor(1), lib.tensor(2.5)]),
    "empty": lambda lib: [tuple(x.shape) for x in (lib.empty(2, 3), lib.empty_strided((2, 3), (1, 2)))],
}


@pytest.mark.parametrize("what", FORMS)
def test_forms_are_as_in_torch(what: str) -> None:
    agree(FORMS[what], rtol=0)


@pytest.mark.parametrize("what", ["floats", "arange of floats", "linspace", "eye", "scalar_tensor"])
@pytest.mark.usefixtures("_float64_by_default")
def test_the_default_dtype_is_kept(what: str) -> None:
    agree(FORMS[what], rtol=0)


@pytest.mark.parametrize("name", ["bartlett", "blackman", "hamming", "hann", "kaiser"])
def test_windows_are_as_in_torch(name: str) -> None:
    f, g = (getattr(lib, f"{name}_window") for lib in (gt, torch))
    for n, options in ((8, {}), (7, {"periodic": False}), (1, {}), (0, {})):
        np.testing.assert_allclose(f(n, **options).numpy(), g(n, **options).numpy(), atol=1e-6)


def test_logspace_is_as_in_torch() -> None:
    np.testing.assert_allclose(gt.logspace(-1, 2, 7).numpy(), torch.logspace(-1, 2, 7).numpy(), rtol=1e-6)
    np.testing.assert_allclose(gt.logspace(0, 3, 4, base=2).numpy(), [1, 2, 4, 8], rtol=1e-6)


def test_tensors_of_torch_are_read() -> None:
    for x in (torch.arange(6.0).reshape(2, 3).t(), torch.ones(3, dtype=torch.bfloat16), torch.tensor([True])):
        t = gt.tensor(x)
        assert t.dtype.name == str(x.dtype).removeprefix("torch.")
        assert t.tolist() == x.tolist()
    assert gt.as_tensor(torch.tensor(2.5)).item() == 2.5


def test_a_tensor_is_a_copy_and_as_tensor_is_not() -> None:
    x = gt.ones(2)
    y, z, w = gt.tensor(x), gt.as_tensor(x), gt.asarray(x, copy=True)
    x += 1.0
    assert (y.tolist(), w.tolist()) == ([1.0, 1.0], [1.0, 1.0])
    assert z is x
    data = np.ones(2)
    t = gt.from_numpy(data)
    data[:] = 5
    assert t.tolist() == [1.0, 1.0]
    assert gt.tensor([1.0], requires_grad=True).requires_grad


ERRORS: Mistakes = {
    "ragged": (lambda: gt.tensor([[1], [1, 2]]), ArgumentError, "tensor: expected nested lists of numbers, all rows"),
    "text": (lambda: gt.tensor("ab"), DTypeError, "tensor: expected numbers or nested lists of numbers, got 'ab'"),
    "none": (lambda: gt.tensor(None), DTypeError, "tensor: expected numbers or nested lists of numbers, got None"),
    "too large": (lambda: gt.tensor([300], dtype=gt.uint8), ArgumentError, "tensor: the data contains a number that"),
    "unknown": (lambda: gt.zeros(2, dtpye=gt.int64), ArgumentError, "zeros: unexpected argument dtpye"),
    "negative": (lambda: gt.ones(-1), ArgumentError, r"ones: sizes must be >= 0, got \(-1,\)"),
    "step": (lambda: gt.arange(0, 3, 0), ArgumentError, "arange: step must not be 0"),
    "direction": (lambda: gt.arange(3, 0), ArgumentError, "arange: step 1 does not lead from 3 to 0"),
    "full": (lambda: gt.full((2,), gt.ones(2)), ArgumentError, "full: fill_value must be a number, got a tensor of"),
    "requires_grad": (lambda: gt.ones(2, dtype=gt.int64, requires_grad=True), DTypeError, "require grad"),
}


test_mistakes = refused(ERRORS)
