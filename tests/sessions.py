"""Clients for tests: in a cluster of their own in this process, or of a private server without anybody's settings."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import pytest

import gt
from gt.client.session.session import Session
from tests.sim.cluster import Cluster, using


@contextmanager
def session_on(place: str | Cluster = "numpy", **cluster: Any) -> Iterator[Session]:
    """A client of this cluster, or of a new one with this engine. Tensors made inside belong to its session."""
    where = place if isinstance(place, Cluster) else Cluster(engine=place, **cluster)
    with using(where.client()) as session:
        yield session
    session.close()


def session_fixture(*engines: str, workers: int = 1, **options: Any) -> Any:
    """A fixture: such a session, on each of these engines."""

    @pytest.fixture(params=engines if len(engines) > 1 else None, **options)
    def session(request: pytest.FixtureRequest) -> Iterator[Session]:
        with session_on(getattr(request, "param", engines[0]), workers=workers) as session:
            yield session

    return session


def raising(error: BaseException) -> Callable[..., NoReturn]:
    """What stands for something that fails: a function that raises this, whatever it is given."""

    def fail(*_: Any, **__: Any) -> NoReturn:
        raise error.with_traceback(None)  # else it would hold the frames of the times before

    return fail


@contextmanager
def default_dtype(dtype: gt.DType) -> Iterator[None]:
    """What makes floats makes them of this dtype."""
    before = gt.get_default_dtype()
    gt.set_default_dtype(dtype)
    try:
        yield
    finally:
        gt.set_default_dtype(before)


@contextmanager
def own_settings() -> Iterator[pytest.MonkeyPatch]:
    """This process has none of GT's settings, and no session before and afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [n for n in os.environ if n.startswith("GT_")]:
            patch.delenv(name)
        gt.disconnect()
        yield patch
        gt.disconnect()
