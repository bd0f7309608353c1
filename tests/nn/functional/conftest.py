"""Functions are compared with torch on the numpy engine too, not only on torch's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gt.client.session.session import Session
from tests.sim.cluster import Cluster, using


@pytest.fixture
def session() -> Iterator[Session]:
    """The session that the test's tensors belong to, on the numpy engine."""
    with using(Cluster().client()) as session:
        yield session
    session.close()
