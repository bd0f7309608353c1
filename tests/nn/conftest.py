"""One client in a cluster of its own, in this process, with the torch engine: what comes out is compared with torch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from gt.client.session.session import Session
from tests.sim.cluster import Cluster, using


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[Session]:
    """The session that the tests' tensors belong to."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with using(Cluster(engine="torch").client()) as session:
        yield session
    session.close()
    torch.set_num_threads(before)
