"""For all tests: nothing is compiled in the background unless a test wants it, and each process has one thread."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("GT_AUTO_COMPILE", "0")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # other tests run beside these, and tensors are tiny


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with real processes come first: they wait much, and nobody shall be left alone with them at the end."""
    first = {item.path for item in items if item.get_closest_marker("processes")}
    items.sort(key=lambda item: item.path not in first)
