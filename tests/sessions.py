"""Clients for tests: in a cluster of their own in this process, or of a private server without anybody's settings."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import gt
from gt.client.session.session import Session
from tests.sim.cluster import Cluster, using


@contextmanager
def session_on(engine: str = "numpy", **cluster: Any) -> Iterator[Session]:
    """A client of a new cluster with this engine. Tensors that are made inside belong to its session."""
    with using(Cluster(engine=engine, **cluster).client()) as session:
        yield session
    session.close()


def session_fixture(*engines: str, **options: Any) -> Any:
    """A fixture: such a session, on each of these engines."""

    @pytest.fixture(params=engines if len(engines) > 1 else None, **options)
    def session(request: pytest.FixtureRequest) -> Iterator[Session]:
        with session_on(getattr(request, "param", engines[0])) as session:
            yield session

    return session


@contextmanager
def own_settings() -> Iterator[pytest.MonkeyPatch]:
    """This process has none of GT's settings, and no session before and afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [n for n in os.environ if n.startswith("GT_")]:
            patch.delenv(name)
        gt.disconnect()
        yield patch
        gt.disconnect()
