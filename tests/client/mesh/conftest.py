"""A client whose server is a script."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gt import config
from gt.client.session.session import Session
from tests.client.mesh.scripting import Script
from tests.sim.cluster import using


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def session(script: Script) -> Iterator[Session]:
    with using(Session(script, config.load())) as session:
        yield session
