"""What an engine does besides kernels: bytes, memory, marks, errors."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch

from gt import dtypes
from gt.dtypes import ALL, DType
from gt.errors import IndexOutOfRange, StartError
from gt.ops import TABLE, Op
from gt.ops.engines import ENGINES, EXCEPTIONS, runs
from gt.program import SCALARS, spec
from gt.worker.engines import load
from gt.worker.engines.torch import TorchEngine
from tests.ops.cases import NUMPY


@pytest.fixture(params=["numpy", "torch", "jax"])
def any_engine(request: pytest.FixtureRequest, device: str) -> Any:
    if request.param == "torch":
        return request.getfixturevalue("engine")
    if device != "cpu":
        pytest.skip("is not for devices of torch's")
    return NUMPY if request.param == "numpy" else request.getfixturevalue("jax_engine")


@pytest.mark.parametrize("d", ALL, ids=lambda d: d.name)
@pytest.mark.parametrize("shape", [(3, 2), (), (0, 4)])
def test_bytes_come_back(any_engine: Any, d: DType, shape: tuple[int, ...]) -> None:
    s = spec(shape, d)
    data = np.random.default_rng(0).integers(0, 2, size=s.nbytes, dtype=np.uint8).tobytes()
    source = bytearray(data)
    array = any_engine.from_bytes(memoryview(source).toreadonly(), s)
    source[:] = bytes(len(source))  # a copy was taken
    out = any_engine.to_bytes(array)
    assert isinstance(out, memoryview)
    assert out.contiguous
    assert bytes(out) == data


def test_bytes_of_what_does_not_lie_in_order(any_engine: Any) -> None:
    s = spec((2, 3), dtypes.float32)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    turned = any_engine.kernel(TABLE["permute"], {"dims": (1, 0)}, [s])(any_engine.from_bytes(x.tobytes(), s))
    assert bytes(any_engine.to_bytes(turned)) == x.T.tobytes()


def test_what_leaves_is_a_copy(any_engine: Any) -> None:
    if any_engine.name == "jax":
        pytest.skip("its arrays never change")
    s = spec((2,), dtypes.float32)
    array = any_engine.from_bytes(np.ones(2, np.float32).tobytes(), s)
    out, own = any_engine.to_bytes(array), any_engine.own(array)
    array[:] = 5
    assert bytes(out) == bytes(any_engine.to_bytes(own)) == np.ones(2, np.float32).tobytes()


def test_dense_copies_only_what_has_gaps(any_engine: Any) -> None:
    if any_engine.name == "jax":
        pytest.skip("its arrays have no gaps")
    s = spec((2, 3), dtypes.float32)
    array = any_engine.from_bytes(np.arange(6, dtype=np.float32).tobytes(), s)
    assert any_engine.dense(array) is array
    turned = any_engine.kernel(TABLE["permute"], {"dims": (1, 0)}, [s])(array)
    dense = any_engine.dense(turned)
    assert dense is not turned
    assert bytes(any_engine.to_bytes(dense)) == bytes(any_engine.to_bytes(turned))


def test_marks_pass(any_engine: Any) -> None:
    mark = any_engine.mark()
    assert any_engine.passed(mark, wait=True)
    assert any_engine.passed(mark)
    any_engine.release()


def test_memory_is_that_of_the_machine(any_engine: Any) -> None:
    assert any_engine.memory > 1 << 28


def test_running_out_of_memory_is_known(any_engine: Any) -> None:
    kernel = any_engine.kernel(TABLE["full"], {"shape": (1 << 47,), "dtype": "float64"}, [SCALARS["f"]])
    with pytest.raises((MemoryError, RuntimeError)) as caught:
        kernel(1.0)
    assert any_engine.out_of_memory(caught.value)
    assert not any_engine.out_of_memory(RuntimeError("something else"))
    assert not any_engine.out_of_memory(ValueError("memory"))


def test_a_flag_selects(engine: Any) -> None:
    if not engine.deferred:
        pytest.skip("indices are checked at once on a CPU")
    old, new = torch.zeros(2, device=engine.device), torch.ones(2, device=engine.device)
    index = torch.tensor([5], device=engine.device)
    _, up = engine.check("gather", index, 3, None, None)
    _, down = engine.check("gather", index, 9, None, None)
    assert torch.equal(engine.select(up, old, new), old)
    assert torch.equal(engine.select(down, old, new), new)


def test_a_slice_never_leaves_its_tensor(any_engine: Any) -> None:
    """Also not by numbers that only a call brings."""
    s = spec((5,), dtypes.float32)
    x = any_engine.from_bytes(np.zeros(5, np.float32).tobytes(), s)
    for length, step in ((2, 1), (2, 3)):
        attrs = {"dims": (0,), "lengths": (length,), "steps": (step,), "drop": ()}
        kernel = any_engine.kernel(TABLE["slice"], attrs, [s, SCALARS["i"]])
        for start in (5, 4, 2**40):
            with pytest.raises((IndexOutOfRange, RuntimeError, IndexError)):
                kernel(x, start)
        assert tuple(kernel(x, 1).shape) == (length,)


def test_bytes_of_the_wrong_length_are_refused(any_engine: Any) -> None:
    kernel = any_engine.kernel(TABLE["data"], {"shape": (2,), "dtype": "float32"}, [SCALARS["d"]])
    with pytest.raises(ValueError, match=r"data: float32 of shape \(2,\) needs 8 bytes, got 7"):
        kernel(b"1234567")


def test_kernels_without_attributes_are_torchs_own(engine: Any) -> None:
    s = spec((2, 2), dtypes.float32)
    assert engine.kernel(TABLE["exp"], {}, [s]) is torch.exp
    assert engine.kernel(TABLE["add"], {}, [s, s]) is torch.add
    assert engine.kernel(TABLE["matmul"], {}, [s, s]) is torch.mm


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(StartError, match=r"^the jax engine needs jax: pip install 'gt\[jax\]'$"):
        load("jax")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(
        StartError, match=r"^the torch engine needs torch: pip install 'gt\[torch\]', or use --engine numpy$"
    ):
        load("torch")


@pytest.mark.parametrize("op", TABLE.values(), ids=lambda op: op.name)
def test_every_engine_runs_every_op_by_itself_but_those_that_are_listed(op: Op) -> None:
    borrowing = [e for e in ENGINES if runs(op, e) == "borrowed"]
    assert bool(borrowing) == (op.name in EXCEPTIONS)


def test_engines_are_loaded_by_name() -> None:
    assert load("numpy").name == "numpy"
    assert load("torch", "cpu").device == "cpu"
    with pytest.raises(StartError, match="unknown engine 'abacus'; expected one of: torch, numpy, jax"):
        load("abacus")
    with pytest.raises(StartError, match="unknown device 'tpu'; expected cpu, cuda or cuda:N"):
        TorchEngine("tpu")
    if not torch.cuda.is_available():
        with pytest.raises(StartError, match="device cuda:0: torch finds no GPU; use --device cpu"):
            TorchEngine("cuda")
