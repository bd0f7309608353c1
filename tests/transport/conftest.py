"""Channels to the `router` of a test's own file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .wires import AnyRouter, Join, joining


@pytest.fixture
def join(router: AnyRouter) -> Iterator[Join]:
    """A function that connects to the router."""
    with joining(router) as new:
        yield new
