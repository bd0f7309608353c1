"""torch.backends.cudnn's flags. `allow_tf32` counts: whether convolutions may use TF32. The others change nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from gt.client.programs.tree import current_precision
from gt.client.session.connecting import choose_precision

enabled, benchmark, deterministic = True, False, False
benchmark_limit: int | None = 10


class _Flags(ModuleType):
    """This module: setting its flag is more than keeping it."""

    @property
    def allow_tf32(self) -> bool:
        return current_precision().conv_tf32

    @allow_tf32.setter
    def allow_tf32(self, allow: bool) -> None:
        choose_precision(conv_tf32=bool(allow))


sys.modules[__name__].__class__ = _Flags


def is_available() -> bool:
    """Whether GT can be told to use it: never."""
    return False


def version() -> None:
    """None: GT does not know."""


@contextmanager
def flags(
    enabled: bool = False,
    benchmark: bool = False,
    benchmark_limit: int | None = 10,
    deterministic: bool = False,
    allow_tf32: bool = True,
    fp32_precision: str = "none",
) -> Iterator[Any]:
    """Settings for a while. `allow_tf32` counts."""
    before = current_precision().conv_tf32
    choose_precision(conv_tf32=bool(allow_tf32))
    try:
        yield
    finally:
        choose_precision(conv_tf32=before)
