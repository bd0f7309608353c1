"""The flags of torch.backends.cudnn. `allow_tf32` lets convolutions use TF32; the others have no effect."""

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
    """The class of this module, in which `allow_tf32` is a property."""

    @property
    def allow_tf32(self) -> bool:
        return current_precision().conv_tf32

    @allow_tf32.setter
    def allow_tf32(self, allow: bool) -> None:
        choose_precision(conv_tf32=bool(allow))


sys.modules[__name__].__class__ = _Flags


def is_available() -> bool:
    """Whether cuDNN can be configured from GT: never."""
    return False


def version() -> None:
    """None: the version is known to workers only."""


@contextmanager
def flags(
    enabled: bool = False, benchmark: bool = False, benchmark_limit: int | None = 10, deterministic: bool = False,
    allow_tf32: bool = True, fp32_precision: str = "none",
) -> Iterator[Any]:  # fmt: skip
    """A context manager that sets `allow_tf32`; the other flags have no effect."""
    before = current_precision().conv_tf32
    choose_precision(conv_tf32=bool(allow_tf32))
    try:
        yield
    finally:
        choose_precision(conv_tf32=before)
