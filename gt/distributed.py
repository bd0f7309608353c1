"""The names of torch.distributed, for scripts that are written for several processes: this is rank 0 of 1.

One GT process uses all workers of its session, so nothing needs to be launched: `gt.mesh(x=8)` and a sharded batch are
data parallelism. Collectives between ranks leave their tensors as they are, which is right for one rank.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NoReturn

__all__ = [
    "FinishedWork", "ReduceOp", "all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "barrier",
    "broadcast", "broadcast_object_list", "destroy_process_group", "gather_object", "get_backend", "get_rank",
    "get_world_size", "init_process_group", "is_available", "is_initialized", "is_torchelastic_launched", "new_group",
    "reduce", "reduce_scatter_tensor",
]  # fmt: skip

HINT = "one GT process uses all workers: see gt.mesh and gt.shard"

group = SimpleNamespace(WORLD=None)  #: The only group there is.

_started = [False]  #: One entry: whether init_process_group() was called.


class ReduceOp:
    """How all_reduce reduces; of one rank, all are the same."""

    SUM = "sum"
    AVG = "avg"
    PRODUCT = "product"
    MIN = "min"
    MAX = "max"


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


def is_nccl_available() -> bool:
    """Always False: one rank needs no backend."""
    return False


is_gloo_available = is_mpi_available = is_nccl_available


def get_backend(group: Any = None) -> str:
    """The name of the backend."""
    return "gt"


def new_group(*args: Any, **kwargs: Any) -> None:
    """The only group there is."""


def barrier(*args: Any, **kwargs: Any) -> None:
    """Does nothing: there is nobody to wait for."""


class FinishedWork:
    """What collectives with async_op=True return: it is done."""

    def wait(self, timeout: Any = None) -> bool:
        """Does nothing."""
        return True

    is_completed = is_success = wait


def all_reduce(tensor: Any, *args: Any, async_op: bool = False, **kwargs: Any) -> FinishedWork | None:
    """Leaves the tensor as it is: it is the only addend."""
    return FinishedWork() if async_op else None


broadcast = broadcast_object_list = reduce = all_reduce


def all_gather(tensor_list: list[Any], tensor: Any, group: Any = None, async_op: bool = False) -> FinishedWork | None:
    """Write the tensor into the first of the list."""
    return all_gather_into_tensor(tensor_list[0], tensor, group, async_op)


def all_gather_into_tensor(
    output_tensor: Any, input_tensor: Any, group: Any = None, async_op: bool = False
) -> FinishedWork | None:
    """Write the tensor into the output: it is the only part."""
    output_tensor.copy_(input_tensor.reshape(output_tensor.shape))
    return FinishedWork() if async_op else None


def reduce_scatter_tensor(output: Any, input: Any, op: Any = None, group: Any = None, async_op: bool = False) -> Any:
    """Write the tensor into the output: it is the only addend and the only part."""
    return all_gather_into_tensor(output, input, group, async_op)


def all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
    """Write the object into the first place of the list."""
    object_list[0] = obj


def gather_object(obj: Any, object_gather_list: list[Any] | None = None, *args: Any, **kwargs: Any) -> None:
    """The same, with torch's order of arguments."""
    if object_gather_list is not None:
        object_gather_list[0] = obj


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(f"module 'gt.distributed' has no attribute {name!r}; {HINT}")
