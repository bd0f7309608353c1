"""The engines that the table's tests run on: numpy, torch on the CPU, and on a GPU if there is one."""

from __future__ import annotations

import pytest
import torch

from gt.worker.engines import Engine
from gt.worker.engines.torch import TorchEngine

_GPU = pytest.param(
    "cuda:0", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]
)
_ENGINES: dict[str, Engine] = {}


@pytest.fixture(params=["cpu", _GPU])
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def engine(device: str) -> Engine:
    """torch, on each device."""
    if device not in _ENGINES:
        _ENGINES[device] = TorchEngine(device)
    return _ENGINES[device]
