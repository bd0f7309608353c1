"""The engines a worker is tested with."""

from __future__ import annotations

from typing import Any

import pytest

from gt.worker import engines


@pytest.fixture(params=["numpy", "torch", pytest.param("cuda", marks=pytest.mark.gpu)])
def engine(request: pytest.FixtureRequest) -> Any:
    if request.param == "numpy":
        return engines.load("numpy")
    torch = pytest.importorskip("torch")
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    return engines.load("torch", "cuda:0" if request.param == "cuda" else "cpu", 1)


@pytest.fixture
def numpy_engine() -> Any:
    return engines.load("numpy")


@pytest.fixture
def torch_engine() -> Any:
    pytest.importorskip("torch")
    return engines.load("torch", "cpu", 1)
