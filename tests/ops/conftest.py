"""The engines that the table's tests run on: numpy, torch on the CPU, and on a GPU if there is one, and jax."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import nullcontext

import pytest
import torch

from gt.worker.engines import load
from gt.worker.engines.torch import TorchEngine
from gt.worker.run.engine import Engine

#: pytest reads every log that is not passed on, and torch's log of what it traces notes the stack at each operation as
#: soon as somebody reads it: a fifth of the time that tracing takes.
logging.getLogger("torch.__trace").propagate = True

#: Without a GPU the table's tests for one are not even collected: there are thousands.
_DEVICES = ["cpu", *([pytest.param("cuda:0", marks=pytest.mark.gpu)] if torch.cuda.is_available() else [])]
_ENGINES: dict[str, Engine] = {}


@pytest.fixture(params=_DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def engine(device: str) -> Iterator[Engine]:
    """torch, on each device. On a GPU float32 shall be float32 here, also in convolutions."""
    if device not in _ENGINES:
        _ENGINES[device] = TorchEngine(device)
    exact = torch.backends.cudnn.flags(enabled=True, allow_tf32=False) if device != "cpu" else nullcontext()
    with exact:
        yield _ENGINES[device]


@pytest.fixture
def jax_engine() -> Engine:
    """jax, on the CPU."""
    pytest.importorskip("jax")
    if "jax" not in _ENGINES:
        _ENGINES["jax"] = load("jax", "cpu")
    return _ENGINES["jax"]
