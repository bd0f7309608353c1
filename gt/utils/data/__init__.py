"""The names of torch.utils.data: torch's own where torch is installed, a small one of GT's (loading.py) otherwise.

`DataLoader` yields GT tensors. With torch it is torch's DataLoader, with its worker processes, samplers and collating;
each batch is uploaded while the step before it runs. torch is imported when a name is first used.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from functools import cache, partial
from typing import Any

from gt.client.compat.interop import from_torch, is_torch
from gt.client.functions.creation import from_numpy
from gt.client.functions.randoms import Generator
from gt.client.functions.shapes import stack
from gt.client.tensor import Tensor
from gt.utils import loading
from gt.utils._pytree import tree_map
from gt.utils.loading import TensorDataset as TensorDataset

#: What draws places in a data set.
_DRAWS = {"RandomSampler", "SubsetRandomSampler", "WeightedRandomSampler", "random_split"}


def _to_gt(x: Any) -> Any:
    """A leaf of a batch as a GT tensor, if it is an array or a torch tensor."""
    if is_torch(x):
        return from_torch(x)
    return from_numpy(x) if type(x).__module__ == "numpy" and hasattr(x, "shape") and x.dtype.kind in "biufc" else x


def ahead(batches: Iterator[Any]) -> Iterator[Any]:
    """The batches as GT tensors, each uploaded before the one before it is used."""
    waiting: list[Any] = []
    for batch in batches:
        waiting.append(tree_map(_to_gt, batch))
        if len(waiting) > 1:
            yield waiting.pop(0)
    yield from waiting


@cache
def _loader() -> Any:
    theirs: Any = _torchs()
    if theirs is None:
        return loading.DataLoader

    class DataLoader(theirs.DataLoader):  # type: ignore[misc]  # torch's, which is imported only here
        """torch's DataLoader, whose batches are GT tensors."""

        def __init__(self, dataset: Any, batch_size: int | None = 1, *args: Any, **kwargs: Any) -> None:
            if batch_size is not None and len(args) < 5 and kwargs.get("collate_fn") is None:
                kwargs["collate_fn"] = partial(loading.collated, collate=theirs.default_collate)
            if "generator" in kwargs:
                kwargs["generator"] = _seeded(kwargs["generator"])
            super().__init__(dataset, batch_size, *args, **kwargs)

        def __iter__(self) -> Iterator[Any]:
            return ahead(super().__iter__())

    return DataLoader


def _seeded(generator: Any) -> Any:
    """A generator of torch's with the seed of one of GT's: places in a data set are drawn on the host."""
    import torch

    return torch.Generator().manual_seed(generator.initial_seed()) if isinstance(generator, Generator) else generator


@cache
def _drawing(name: str) -> Any:
    """torch's samplers, and what else draws places, which take generators of GT."""
    theirs: Any = getattr(_torchs(), name)
    if not isinstance(theirs, type):
        return lambda *args, generator=None, **kwargs: (
            theirs(*args, **kwargs) if generator is None else theirs(*args, generator=_seeded(generator), **kwargs)
        )

    class Drawing(theirs):  # type: ignore[misc]  # torch's, which is imported only here
        def __init__(self, *args: Any, generator: Any = None, **kwargs: Any) -> None:
            super().__init__(*args, generator=_seeded(generator), **kwargs)

    Drawing.__name__, Drawing.__qualname__, Drawing.__doc__ = name, name, theirs.__doc__
    return Drawing


@cache
def _torchs() -> Any:
    if importlib.util.find_spec("torch") is None:
        return None
    collating = importlib.import_module("torch.utils.data._utils.collate")
    collating.default_collate_fn_map[Tensor] = _collate  # of data sets whose elements are GT tensors
    return importlib.import_module("torch.utils.data")


def _collate(batch: list[Any], *, collate_fn_map: Any = None) -> Any:
    return stack(batch)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    if name == "DataLoader":
        return _loader()
    theirs = _torchs()
    if theirs is not None and name in _DRAWS:
        return _drawing(name)
    found = getattr(loading if theirs is None else theirs, name, None)
    if found is None:
        more = "; more of torch.utils.data is there if torch is installed" if theirs is None else ""
        raise AttributeError(f"module 'gt.utils.data' has no attribute {name!r}{more}")
    return found
