"""DistributedSampler, for scripts that were written for several processes: GT's client is one, and has all the data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gt import distributed
from gt.client.functions.randoms import Generator, randperm
from gt.errors import ArgumentError

__all__ = ["DistributedSampler"]


class DistributedSampler:
    """The places of a data set that one of num_replicas processes gets: of one, all of them."""

    def __init__(
        self, dataset: Any, num_replicas: int | None = None, rank: int | None = None, shuffle: bool = True,
        seed: int = 0, drop_last: bool = False,
    ) -> None:  # fmt: skip
        self.dataset, self.shuffle, self.seed, self.drop_last = dataset, shuffle, seed, drop_last
        self.num_replicas = distributed.get_world_size() if num_replicas is None else num_replicas
        self.rank = distributed.get_rank() if rank is None else rank
        if not 0 <= self.rank < self.num_replicas:
            raise ArgumentError(f"DistributedSampler: rank must be from 0 to {self.num_replicas - 1}, got {self.rank}")
        self.epoch = 0
        short = 0 if drop_last else self.num_replicas - 1
        self.num_samples = (len(dataset) + short) // self.num_replicas
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        n = len(self.dataset)
        places = list(range(n))
        if self.shuffle:
            places = randperm(n, generator=Generator().manual_seed(self.seed + self.epoch)).tolist()
        while len(places) < self.total_size:  # the last processes get some of the first places again
            places += places[: self.total_size - len(places)]
        return iter(places[self.rank : self.total_size : self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples

    def set_epoch(self, epoch: int) -> None:
        """Choose another order: to be called before each epoch."""
        self.epoch = epoch
