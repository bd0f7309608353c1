"""Channels to the `router` of a test's own file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gt.transport.router import Router

from .wires import Join, joining


@pytest.fixture
def join(router: Router) -> Iterator[Join]:
    """A function that connects to the router."""
    with joining(router) as new:
        yield new
