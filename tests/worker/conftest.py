"""The engines a worker is tested with."""

from __future__ import annotations

from typing import Any

import pytest

from gt.worker import engines


@pytest.fixture(params=["numpy", "torch"])
def engine(request: pytest.FixtureRequest) -> Any:
    if request.param == "torch":
        pytest.importorskip("torch")
    return engines.load(request.param, "cpu", 1)


@pytest.fixture
def numpy_engine() -> Any:
    return engines.load("numpy")


@pytest.fixture
def torch_engine() -> Any:
    pytest.importorskip("torch")
    return engines.load("torch", "cpu", 1)
