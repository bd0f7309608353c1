"""Tests on a real GPU: a private server of their own whose worker has it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sessions import own_settings


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[pytest.MonkeyPatch]:
    """No settings and an empty cache. The first op starts a private server with the GPU."""
    with own_settings() as patch:
        patch.setenv("GT_CACHE_DIR", str(tmp_path))
        yield patch
