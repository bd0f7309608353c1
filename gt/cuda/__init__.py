"""The functions of torch.cuda, which report on the GPUs of the server's workers."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any, NamedTuple

from gt.client.compat import legacy
from gt.client.compat.devices import of_session
from gt.client.debug import get_worker_stats
from gt.client.functions.randoms import get_rng_state as _state
from gt.client.functions.randoms import initial_seed, manual_seed, seed
from gt.client.functions.randoms import set_rng_state as _set_state
from gt.client.record.recorder import recorder
from gt.cuda import amp
from gt.errors import OutOfMemory as OutOfMemoryError
from gt.errors import StateError

__all__ = [
    "DeviceProperties", "Event", "OutOfMemoryError", "Stream", "amp", "current_device", "current_stream",
    "default_stream", "device", "device_count", "empty_cache", "get_arch_list", "get_device_capability",
    "get_device_name", "get_device_properties", "get_rng_state", "get_rng_state_all", "init", "initial_seed",
    "ipc_collect", "is_available", "is_bf16_supported", "is_current_stream_capturing", "is_initialized", "manual_seed",
    "manual_seed_all", "max_memory_allocated", "max_memory_reserved", "mem_get_info", "memory_allocated",
    "memory_reserved", "memory_stats", "memory_summary", "reset_max_memory_allocated", "reset_peak_memory_stats",
    "seed", "seed_all", "set_device", "set_rng_state", "set_rng_state_all", "stream", "synchronize", "utilization",
]  # fmt: skip

manual_seed_all, seed_all = manual_seed, seed


def _gpus() -> list[dict[str, Any]]:
    workers = get_worker_stats()["workers"].values()
    return [w for w in workers if str(w["device"]).startswith("cuda")]


def is_available() -> bool:
    """Whether this session's worker has a GPU."""
    return of_session().type == "cuda"


is_initialized = is_available


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether bfloat16 is supported: on every GPU."""
    return is_available()


def device_count() -> int:
    """The number of GPUs of all workers."""
    return len(_gpus())


def current_device() -> int:
    """The index of the worker's GPU."""
    return of_session().index or 0


def set_device(device: Any) -> None:
    """Does nothing: the server chooses the GPU."""


def get_device_name(device: Any = None) -> str:
    """The device and host of this session's worker."""
    mine = [w for w in _gpus() if w["yours"]] or _gpus()
    return f"{mine[0]['device']} of {mine[0]['host']}" if mine else "cpu"


def synchronize(device: Any = None) -> None:
    """Wait until everything submitted so far is done."""
    rec = recorder()
    if rec.trace is not None:
        rec.trace.refuse_sync()
    rec.mark()
    rec.settle()
    rec.session.wait(lambda: rec.session.done >= rec.session.seq)
    rec.session.raise_failures()


def empty_cache() -> None:
    """Does nothing: workers manage their memory."""


def memory_allocated(device: Any = None) -> int:
    """The number of bytes of this session's tensors."""
    return int(get_worker_stats()["session"]["nbytes"])


memory_reserved = max_memory_allocated = max_memory_reserved = memory_allocated


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """The free and the total memory of the worker, in bytes."""
    workers = list(get_worker_stats()["workers"].values())
    mine = ([w for w in workers if w["yours"]] or workers)[0]
    return mine["memory"] - mine["nbytes"], mine["memory"]


def reset_peak_memory_stats(device: Any = None) -> None:
    """Does nothing: peaks are not tracked."""


reset_max_memory_allocated = reset_peak_memory_stats


class DeviceProperties(NamedTuple):
    """What is known of a worker's GPU."""

    name: str
    total_memory: int
    major: int
    minor: int
    multi_processor_count: int


def get_device_properties(device: Any = None) -> DeviceProperties:
    """Name and memory of the worker's GPU. The capability is not known to the client: 0.0."""
    return DeviceProperties(get_device_name(device), mem_get_info(device)[1], 0, 0, 0)


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """(0, 0): the client does not know the GPU's capability, and need not choose kernels."""
    return 0, 0


class Stream(nullcontext[Any]):
    """A context without effect: each session has a stream of its own on the worker."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(self)

    def synchronize(self) -> None:
        """Wait until everything submitted so far is done."""
        synchronize()

    def wait_stream(self, stream: Any) -> None:
        """Does nothing: calls run in the order of the program."""

    wait_event = record_event = wait_stream


def stream(stream: Any) -> Any:
    """A context without effect."""
    return stream if stream is not None else Stream()


def current_stream(device: Any = None) -> Stream:
    """The session's stream."""
    return Stream()


default_stream = current_stream


def memory_stats(device: Any = None) -> dict[str, int]:
    """The bytes of this session's tensors, under torch's name."""
    return {"allocated_bytes.all.current": memory_allocated()}


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """A sentence about the memory of the worker."""
    free, total = mem_get_info()
    return f"{memory_allocated():,} bytes of this session; {free:,} of {total:,} bytes free"


ipc_collect = init = _lazy_init = empty_cache
memory_cached = memory_reserved


def is_current_stream_capturing() -> bool:
    """Always False: workers capture what they run by themselves."""
    return False


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """Does nothing: the server divides the memory between sessions."""


def can_device_access_peer(device: Any, peer_device: Any) -> bool:
    """Always False: a session's worker is its only device."""
    return False


def utilization(device: Any = None) -> int:
    """0: the client does not know it. `gt top` shows it."""
    return 0


class Event:
    """A point in the program. `record` waits until the program has reached it, so that times between two events are
    those of what was submitted in between."""

    def __init__(self, enable_timing: bool = False, **kwargs: Any) -> None:
        self._timed = enable_timing
        self._at_s: float | None = None

    def record(self, stream: Any = None) -> None:
        """Mark this point."""
        synchronize()
        self._at_s = time.perf_counter()

    def elapsed_time(self, end_event: Event) -> float:
        """The time between two recorded events, in milliseconds."""
        if self._at_s is None or end_event._at_s is None:
            raise StateError("elapsed_time: both events must be recorded first")
        return 1e3 * (end_event._at_s - self._at_s)

    def query(self) -> bool:
        """Whether the program has reached the point."""
        return True

    def synchronize(self) -> None:
        """Does nothing: `record` has waited."""

    wait = synchronize


class device(nullcontext[None]):
    """A context without effect: the server chooses the GPU."""

    def __init__(self, device: Any = None) -> None:
        super().__init__()
        self.idx = device


def get_arch_list() -> list[str]:
    """No architectures: the client compiles nothing."""
    return []


def get_rng_state(device: Any = None) -> Any:
    """The state of the session's generator; all devices have the same."""
    return _state()


def get_rng_state_all() -> list[Any]:
    """The state of the session's generator, in a list."""
    return [_state()]


def set_rng_state(new_state: Any, device: Any = None) -> None:
    """Set the state of the session's generator."""
    _set_state(new_state)


def set_rng_state_all(new_states: Any) -> None:
    """Set the state of the session's generator to the first of a list."""
    _set_state(next(iter(new_states)))


def __getattr__(name: str) -> Any:
    if name == "nvtx":
        from importlib import import_module

        return import_module("gt.cuda.nvtx")
    if name in legacy.__all__:  # FloatTensor, ...
        return getattr(legacy, name)
    raise AttributeError(f"module 'gt.cuda' has no attribute {name!r}")
