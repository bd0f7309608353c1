"""The names of torch.nn.parallel: wrappers that call their module. One GT process uses all workers by gt.mesh."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gt.nn.module import Module

__all__ = ["DataParallel", "DistributedDataParallel"]


class DataParallel(Module):
    """The module itself, as `.module`. For data parallelism, use gt.mesh and give the batch a layout."""

    def __init__(self, module: Module, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)


class DistributedDataParallel(DataParallel):
    """The module itself, as `.module`: gradients of one rank need no reduction."""

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """A context without effect."""
        yield
