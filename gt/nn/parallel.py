"""The names of torch.nn.parallel: wrappers that call their module. One GT process uses all workers by gt.mesh."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gt.nn.containers import DataParallel
from gt.nn.module import Module

__all__ = ["DataParallel", "DistributedDataParallel"]


class DistributedDataParallel(DataParallel):
    """The module itself, as `.module`: gradients of one rank need no reduction."""

    def __init__(self, module: Module, *args: Any, **kwargs: Any) -> None:
        super().__init__(module)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """A context without effect."""
        yield
