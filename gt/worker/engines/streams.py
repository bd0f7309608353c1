"""CUDA streams: each session has one, so that small programs of different users overlap on one GPU.

Law 1: there are at most STREAMS streams, made when first needed; further sessions share them.
Law 2: all work of a session is on its stream, uploads and fetches too. So its memory never crosses streams: what it
       frees is reused after its own work.
Law 3: nothing waits for the whole device. A flag is copied to the host asynchronously, before the event after it.
Law 4: graphs of one stream share one pool of memory: they never run at the same time, and each keeps its results.
Law 5: a pool can be captured into as long as it exists. torch fails if the last graph of a pool is gone while an array
       in it is still held, so each pool has a first graph that does nothing. When all others are gone, the next capture
       uses a new pool: torch can free the memory of the old one, which it keeps as long as any graph is left there.
       After an error of CUDA inside a capture, torch considers the pool as being recorded to for ever: later captures
       of that stream use a new one, too.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

STREAMS = 16  #: Each costs the driver some memory.
SPARE = 1 << 30  #: If torch caches more bytes than this, they are freed before a capture.
FLAGS = 4096  #: More than there are sessions: each has at most one flag on its way.


class _Pool:
    """Memory that graphs share."""

    def __init__(self, id: Any) -> None:
        self.id = id
        self.first: Any = None  #: See law 5.
        self.graphs: weakref.WeakSet[Any] = weakref.WeakSet()  #: The others.


class Streams:
    """See the file's header. Used by the thread that runs programs."""

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        self._streams: list[Any] = []
        self._of: dict[int, int] = {}  #: The stream of each session.
        self._pools: dict[int, _Pool] = {}  #: Of each stream, the pool that its next graph uses.
        self._abandoned: list[Any] = []  #: Graphs whose capture could not be ended.
        self.current = -1  #: The stream that work is on now.
        self._flags = torch.zeros(FLAGS, dtype=torch.bool, pin_memory=True)
        self._seen = self._flags.numpy()
        self._next = 0

    def use(self, session: int) -> None:
        """What follows is work of this session."""
        number = self._of.get(session)
        if number is None:
            number = self._of[session] = self._place()
        if number != self.current:
            torch.cuda.set_stream(self._streams[number])
            self.current = number

    def mark(self, timed: bool = False) -> Any:
        """An event after all work launched on the current stream. (For torch to look up that stream takes longer than
        the event.)"""
        event = torch.cuda.Event(enable_timing=timed)
        event.record(self._streams[self.current] if self.current >= 0 else None)
        return event

    def _place(self) -> int:
        """A stream for one more session: a new one, or the one with the fewest sessions."""
        if len(self._streams) < STREAMS:
            self._streams.append(torch.cuda.Stream(self._device))
            return len(self._streams) - 1
        taken = list(self._of.values())
        return min(range(STREAMS), key=taken.count)

    def leave(self, session: int) -> None:
        """This session has ended."""
        self._of.pop(session, None)

    def capture(self, f: Callable[[], list[Any]]) -> tuple[Any, list[Any]]:
        """A graph of what f does, on the current stream. If this raises, nothing is left behind."""
        pool = self._pools.get(self.current)
        if pool is not None and not pool.graphs:
            del self._pools[self.current]
            pool = None
        spare = torch.cuda.memory_reserved(self._device) - torch.cuda.memory_allocated(self._device)
        if spare > SPARE:
            torch.cuda.empty_cache()  # the graph needs as much again as the plain code did
        if pool is None:
            pool = _Pool(torch.cuda.graph_pool_handle())
            with self._capturing(pool.id) as pool.first:
                torch.zeros(1, device=self._device)
            self._pools[self.current] = pool
        with self._capturing(pool.id) as graph:
            results = f()
        pool.graphs.add(graph)
        return graph, results

    def let_pool_go(self) -> None:
        """The graphs of a session on the current stream are gone. Later ones use another pool: torch can free the
        memory of this one when no graph is left in it, of another session on this stream."""
        self._pools.pop(self.current, None)

    @contextmanager
    def _capturing(self, pool: Any) -> Iterator[Any]:
        """Capture what is done inside into a graph, with memory of this pool."""
        graph = torch.cuda.CUDAGraph()
        collecting = gc.isenabled()
        gc.disable()  # it might free something that must not be freed during a capture
        try:
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                yield graph
            except BaseException:
                with suppress(RuntimeError):  # the error inside is the reason; this one follows from it
                    self._end(graph, pool)
                raise
            self._end(graph, pool)
        except BaseException:
            if torch.cuda.is_current_stream_capturing():  # it could not even be ended
                self._abandon(graph, pool)
            raise
        finally:
            if collecting:
                gc.enable()

    def _end(self, graph: Any, pool: Any) -> None:
        try:
            graph.capture_end()
        except BaseException:
            self._abandon(graph, pool)
            raise

    def _abandon(self, graph: Any, pool: Any) -> None:
        """No later capture uses this pool. Graphs that were captured into it before stay as they are."""
        self._abandoned.append(graph)  # torch's allocators refer to it, so it must not be destroyed
        with suppress(RuntimeError):  # newer versions of torch have done this themselves
            torch._C._cuda_endAllocateToPool(self._device.index, pool)
        generator = torch.cuda.default_generators[self._device.index]
        generator.graphsafe_set_state(generator.clone_state())  # the old state would count as being captured for ever
        for stream, each in list(self._pools.items()):
            if each.id == pool:
                del self._pools[stream]

    def staging(self, slots: int) -> Any:
        return torch.zeros(slots, dtype=torch.int64, pin_memory=True)

    def send_flag(self, flag: Any) -> int:
        """Copy a flag to the host asynchronously, after all work launched so far."""
        self._next = (self._next + 1) % FLAGS
        self._flags[self._next].copy_(flag, non_blocking=True)
        return self._next

    def raised(self, place: int) -> bool:
        return bool(self._seen[place])

    def usage(self, graphs: int) -> dict[str, int]:
        """Bytes on the device: allocated for tensors, reserved by torch, and the peaks of both."""
        return {
            "allocated": torch.cuda.memory_allocated(self._device),
            "reserved": torch.cuda.memory_reserved(self._device),
            "peak_allocated": torch.cuda.max_memory_allocated(self._device),
            "peak_reserved": torch.cuda.max_memory_reserved(self._device),
            "graphs": graphs,
        }
