"""For tests: `assert_close`, as in torch.testing, and a pytest fixture that gives each test a session of its own."""

from __future__ import annotations

from typing import Any

from gt.testing.comparing import assert_close, make_tensor

__all__ = ["assert_close", "client", "make_tensor"]


def __getattr__(name: str) -> Any:
    if name == "client":
        from gt.testing.fixtures import client  # only here: it needs pytest

        return client
    raise AttributeError(f"module 'gt.testing' has no attribute {name!r}")
