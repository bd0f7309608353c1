"""A small data loader for clients without torch: datasets, samplers and batches, in this process."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from gt.client.functions.creation import from_numpy, tensor
from gt.client.functions.shapes import stack
from gt.client.tensor import Tensor
from gt.errors import ArgumentError

__all__ = ["DataLoader", "Dataset", "IterableDataset", "Subset", "TensorDataset", "get_worker_info", "random_split"]


class Dataset:
    """The base class of datasets, with `__getitem__` and `__len__`."""

    def __getitem__(self, index: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no __getitem__")

    def __class_getitem__(cls, item: Any) -> Any:
        return cls


class IterableDataset(Dataset):
    """The base class of datasets that are iterated over."""

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(f"{type(self).__name__} has no __iter__")


class TensorDataset(Dataset):
    """Tensors of GT, torch or numpy with the same first size; a batch is indexed at once."""

    def __init__(self, *tensors: Any) -> None:
        if len({len(t) for t in tensors}) != 1:
            raise ArgumentError(f"TensorDataset: the first sizes must be equal, got {[len(t) for t in tensors]}")
        self.tensors = tensors

    def __getitem__(self, index: Any) -> tuple[Any, ...]:
        return tuple(t[index] for t in self.tensors)

    def __getitems__(self, indices: list[int]) -> Sequence[Any]:
        if type(self).__getitem__ is not TensorDataset.__getitem__:  # a subclass changes the elements
            return [self[i] for i in indices]
        return Rows([t[indices] for t in self.tensors])

    def __len__(self) -> int:
        return len(self.tensors[0])


class Rows(TensorDataset, Sequence[Any]):
    """Elements of a TensorDataset: a list of them, of which `collated` takes the tensors as they are."""

    def __init__(self, tensors: list[Any]) -> None:
        self.tensors = tuple(tensors)


class Subset(Dataset):
    """Some of the elements of a dataset."""

    def __init__(self, dataset: Any, indices: Sequence[int]) -> None:
        self.dataset, self.indices = dataset, indices

    def __getitem__(self, index: Any) -> Any:
        return self.dataset[self.indices[index]]

    def __len__(self) -> int:
        return len(self.indices)


def random_split(dataset: Any, lengths: Sequence[float], generator: Any = None) -> list[Subset]:
    """Random disjoint parts of a dataset; lengths are counts, or fractions that add up to 1."""
    n = len(dataset)
    counts = [int(x * n) for x in lengths] if abs(sum(lengths) - 1) < 1e-6 and n != 1 else [int(x) for x in lengths]
    counts[0] += n - sum(counts) if abs(sum(lengths) - 1) < 1e-6 else 0
    if sum(counts) != n:
        raise ArgumentError(f"random_split: the lengths {list(lengths)} must add up to {n}")
    order = random.sample(range(n), n)
    ends = np.cumsum(counts).tolist()
    return [Subset(dataset, order[end - count : end]) for end, count in zip(ends, counts, strict=True)]


def get_worker_info() -> None:
    """None: elements are loaded in this process."""


def collated(batch: Any, collate: Callable[[Any], Any] | None = None) -> Any:
    """A batch of elements, by this function; of those of a TensorDataset nothing is to be done."""
    return list(batch.tensors) if isinstance(batch, Rows) else (collate or default_collate)(batch)


def default_collate(batch: list[Any]) -> Any:
    """A batch of elements: arrays, tensors and numbers are stacked, tuples and dicts are collated by their parts."""
    first = batch[0]
    if isinstance(first, Tensor):
        return stack(batch)
    if isinstance(first, dict):
        return {k: default_collate([x[k] for x in batch]) for k in first}
    if isinstance(first, (tuple, list)):
        return [default_collate(list(part)) for part in zip(*batch, strict=True)]
    if isinstance(first, (np.ndarray, np.generic)):
        return from_numpy(np.stack(batch))
    return tensor(batch) if isinstance(first, (bool, int, float)) else batch


class DataLoader:
    """Batches of a dataset. It loads in this process: num_workers and pin_memory have no effect."""

    def __init__(
        self, dataset: Any, batch_size: int | None = 1, shuffle: bool = False, sampler: Any = None,
        batch_sampler: Any = None, num_workers: int = 0, collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False, drop_last: bool = False, **more: Any,
    ) -> None:  # fmt: skip
        self.dataset, self.batch_size, self.shuffle, self.drop_last = dataset, batch_size, shuffle, drop_last
        self.sampler, self.batch_sampler = sampler, batch_sampler
        self.collate_fn = collate_fn or collated

    def __len__(self) -> int:
        n, size = len(self.dataset), self.batch_size or 1
        return n // size if self.drop_last else -(-n // size)

    def _order(self) -> Iterator[int]:
        if self.sampler is not None:
            return iter(self.sampler)
        n = len(self.dataset)
        return iter(random.sample(range(n), n) if self.shuffle else range(n))

    def _batches(self) -> Iterator[list[int]]:
        if self.batch_sampler is not None:
            yield from self.batch_sampler
            return
        batch: list[int] = []
        for index in self._order():
            batch.append(index)
            if len(batch) == (self.batch_size or 1):
                yield batch
                batch = []
        if batch and not self.drop_last:
            yield batch

    def __iter__(self) -> Iterator[Any]:
        for indices in self._batches():
            if hasattr(self.dataset, "__getitems__"):
                yield self.collate_fn(self.dataset.__getitems__(indices))
            else:
                yield self.collate_fn([self.dataset[i] for i in indices])
