"""torch.backends.cudnn's flags, which change nothing here."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

enabled, benchmark, deterministic, allow_tf32 = True, False, False, True
benchmark_limit: int | None = 10


def is_available() -> bool:
    """Whether GT can be told to use it: never."""
    return False


def version() -> None:
    """None: GT does not know."""


def flags(*args: Any, **kwargs: Any) -> AbstractContextManager[None]:
    """Settings for a while: nothing changes."""
    return nullcontext()
