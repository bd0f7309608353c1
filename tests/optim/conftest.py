"""Clients in whole clusters of their own, in this process; torch computes in float64 what it computes on the side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from gt.client.session.session import Session
from tests.sim.cluster import Cluster, using


@pytest.fixture(params=["numpy", "torch"])
def session(request: Any) -> Iterator[Session]:
    """The session that the test's tensors belong to, on either engine."""
    with using(Cluster(engine=request.param).client()) as session:
        yield session
    session.close()


@pytest.fixture(autouse=True, scope="package")
def _torch_in_float64() -> Iterator[None]:
    """torch keeps some numbers of a step in tensors of its default type; GT keeps them as Python's floats."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(threads)
