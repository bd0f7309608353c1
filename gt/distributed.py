"""The names of torch.distributed, for scripts that are written for several processes: this is rank 0 of 1.

One GT process uses all workers of its session, so nothing needs to be launched: `gt.mesh(x=8)` and a sharded batch are
data parallelism. Collectives between ranks leave their tensors as they are, which is right for one rank.
"""

from __future__ import annotations

from typing import Any, NoReturn

__all__ = [
    "ReduceOp", "all_gather", "all_reduce", "barrier", "broadcast", "destroy_process_group", "get_backend", "get_rank",
    "get_world_size", "init_process_group", "is_available", "is_initialized", "is_torchelastic_launched", "new_group",
]  # fmt: skip

HINT = "one GT process uses all workers: see gt.mesh and gt.shard"

_started = [False]  #: One entry: whether init_process_group() was called.


class ReduceOp:
    """How all_reduce reduces; of one rank, all are the same."""

    SUM, AVG, PRODUCT, MIN, MAX = "sum", "avg", "product", "min", "max"


def is_available() -> bool:
    """Always True: for one rank."""
    return True


def is_initialized() -> bool:
    """Whether init_process_group() was called."""
    return _started[0]


def is_torchelastic_launched() -> bool:
    """Always False."""
    return False


def init_process_group(
    backend: Any = None, init_method: Any = None, timeout: Any = None, world_size: int = -1, rank: int = -1, **more: Any
) -> None:
    """Begin as rank 0 of 1. More ranks are refused."""
    if world_size > 1 or rank > 0:
        raise NotImplementedError(f"init_process_group: rank {rank} of {world_size}; {HINT}")
    _started[0] = True


def destroy_process_group(group: Any = None) -> None:
    """End what init_process_group() began."""
    _started[0] = False


def get_rank(group: Any = None) -> int:
    """Always 0."""
    return 0


def get_world_size(group: Any = None) -> int:
    """Always 1."""
    return 1


def get_backend(group: Any = None) -> str:
    """The name of the backend."""
    return "gt"


def new_group(*args: Any, **kwargs: Any) -> None:
    """The only group there is."""


def barrier(*args: Any, **kwargs: Any) -> None:
    """Does nothing: there is nobody to wait for."""


def all_reduce(tensor: Any, *args: Any, **kwargs: Any) -> None:
    """Leaves the tensor as it is: it is the only addend."""


broadcast = reduce = all_reduce


def all_gather(tensor_list: list[Any], tensor: Any, *args: Any, **kwargs: Any) -> None:
    """Write the tensor into the first of the list."""
    tensor_list[0].copy_(tensor)


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(f"module 'gt.distributed' has no attribute {name!r}; {HINT}")
