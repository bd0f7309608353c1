"""Tests on a real GPU: a private server of their own whose worker has it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import gt


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[pytest.MonkeyPatch]:
    """No settings and an empty cache. The first op starts a private server with the GPU."""
    for name in [n for n in os.environ if n.startswith("GT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GT_CACHE_DIR", str(tmp_path))
    gt.disconnect()
    yield monkeypatch
    gt.disconnect()
