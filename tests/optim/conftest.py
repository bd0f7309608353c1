"""Clients in whole clusters of their own, in this process; torch computes in float64 what it computes on the side."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.sessions import session_fixture

session = session_fixture("numpy", "torch")


@pytest.fixture(autouse=True, scope="package")
def _torch_in_float64() -> Iterator[None]:
    """torch keeps some numbers of a step in tensors of its default type; GT keeps them as Python's floats."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
