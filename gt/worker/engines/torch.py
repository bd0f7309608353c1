"""The engine on torch, on a CPU or a GPU. Only this file and the files that it imports import torch.

Law 1: nothing here waits for the whole device: only for the current stream, or for an event.
Law 2: on CUDA no kernel gets a bad index. `check` replaces it by 0 and sets a flag, on the device.

No tensor here ever requires a gradient, so torch's autograd records nothing, in any thread.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from gt import dtypes
from gt.errors import IndexOutOfRange, StartError
from gt.ops.check import Checked
from gt.ops.record import Op, Site
from gt.program import Precision, Spec, as_tuple
from gt.transport.messages import Buffer
from gt.worker.engines import updates
from gt.worker.engines.captures import Capture, Captures
from gt.worker.engines.graph_program import GraphProgram
from gt.worker.engines.library import load, load_segment
from gt.worker.engines.moving import Moving, as_bytes, host_pieces
from gt.worker.engines.pinned import Pinned
from gt.worker.engines.streams import Streams
from gt.worker.run.engine import Coming, Engine, Form, Graph, KernelUse, Piece, Room, bad_indices
from gt.worker.run.segments import CapturedSegment


def _library(name: str) -> str:
    """The file of one of torch's libraries."""
    return os.path.join(os.path.dirname(torch.__file__), "lib", f"{name}.so")


#: Types that torch cannot hand over to numpy.
_NOT_NUMPYS = frozenset({torch.bfloat16, *(getattr(torch, d.name) for d in dtypes.STORED if d.is_floating_point)})


class TorchEngine(Engine):
    """See `gt.worker.run.engine.Engine`."""

    name = "torch"

    def __init__(self, device: str = "", threads: int = 0) -> None:
        if threads > 0:
            torch.set_num_threads(threads)
        if not device or device.startswith("auto:"):  # that GPU, if torch can use one
            device = f"cuda:{device[5:] or 0}" if torch.cuda.is_available() else "cpu"
        elif device == "cuda":
            device = "cuda:0"
        self.device = device
        self._runners = torch.get_num_threads()
        self.deferred = device.startswith("cuda")
        self._pinned = Pinned(torch) if self.deferred else None
        self.cuda: Streams | None = None
        if self.deferred:
            if not torch.cuda.is_available():
                raise StartError(f"device {device}: torch finds no GPU; use --device cpu")
            where = torch.device(device)
            if where.index >= torch.cuda.device_count():
                raise StartError(f"device {device}: torch finds {torch.cuda.device_count()} GPUs")
            torch.cuda.set_device(where)
            about = torch.cuda.get_device_properties(where)
            # What other processes leave, less what libraries and gaps between tensors take.
            self.memory: int = torch.cuda.mem_get_info(where)[0] * 15 // 16
            self.cuda = Streams(device)
            on = f"{about.name} {torch.version.cuda} {updates.available()}"
        elif device == "cpu":
            self.memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
            self.beside = True
            if threads <= 0:
                self.threads = torch.get_num_threads()
            several = "several" if self.threads > 1 else torch.get_num_threads()
            on = f"{torch.backends.cpu.get_cpu_capability()} {several} threads"
        else:
            raise StartError(f"unknown device {device!r}; expected cpu, cuda or cuda:N")
        self._moving = Moving(device) if self.deferred else None
        self.captures = Captures(self)
        self.compiles_with: tuple[str, str] | None = ("gt.worker.engines.inductor", f"torch {torch.__version__} {on}")

    def kernel(
        self, op: Op, attrs: dict[str, Any], operands: Sequence[Spec], inplace: bool = False
    ) -> Callable[..., Any] | None:
        make = op.kernels.get("torch_inplace" if inplace else "torch")
        if make is not None:
            site = Site(self.device, tuple(operands), as_tuple(op.infer(*operands, **attrs)))
            return make(torch, site, **attrs)
        if inplace or op.compose is not None:
            return None
        f: Callable[..., Any] = getattr(torch, op.name)
        return functools.partial(f, **attrs) if attrs else f

    def pair(
        self, op: Op, gradient: Op, attrs: dict[str, Any], operands: Sequence[Spec]
    ) -> tuple[Callable[..., Any], Callable[..., Any]] | None:
        make = gradient.kernels.get("torch_pair")
        if make is None:
            return None
        site = Site(self.device, tuple(operands), as_tuple(op.infer(*operands, **attrs)))
        return make(torch, site, **attrs)

    def many(self, op: Op, attrs: dict[str, Any]) -> Callable[..., Any] | None:
        make = op.kernels.get("torch_many")
        return None if make is None else make(torch, self.device, **attrs)

    def whole(self, run: Callable[..., Any], steps: Sequence[KernelUse]) -> Callable[..., Any]:
        return run

    def graph(self, checked: Checked, trusted: bool, whole: Sequence[CapturedSegment] = ()) -> GraphProgram:
        return GraphProgram(checked, self, trusted, whole)

    def load_library(self, folder: str, graph: Graph) -> Callable[..., Any]:
        library = load(folder, graph, self.device)
        return graph.around(library) if self.deferred else library

    def load_segment(self, folder: str, graph: Graph) -> Callable[..., list[Any]]:
        return load_segment(folder, graph, self.device)

    def new_capture(self, graph: Graph, f: Callable[..., Any], plain: Form, tier: int) -> Capture:
        return Capture(self.captures, graph, f, plain, tier)

    def capture(self, f: Callable[[], list[Any]], changed: list[Any]) -> tuple[Any, list[Any]]:
        assert self.cuda is not None
        return self.cuda.capture(f)

    def pool(self) -> int:
        return 0 if self.cuda is None else self.cuda.current

    def staging(self, slots: int) -> Any:
        assert self.cuda is not None
        return self.cuda.staging(slots)

    def use(self, session: int) -> None:
        if self.cuda is not None:
            self.cuda.use(session)

    def leave(self, session: int) -> None:
        if self.cuda is not None:
            self.cuda.leave(session)

    def usage(self) -> dict[str, int]:
        return {} if self.cuda is None else self.cuda.usage(len(self.captures))

    def send_flag(self, flag: Any) -> Any:
        return flag if self.cuda is None else self.cuda.send_flag(flag)

    def set_precision(self, precision: Precision) -> None:
        # This also sets the flags of single libraries, as it does for torch's own users.
        torch.set_float32_matmul_precision(precision.product)
        torch.backends.cudnn.allow_tf32 = precision.conv_tf32

    def use_threads(self, count: int) -> None:
        torch.set_num_threads(count)

    def enter_beside(self) -> None:
        # One thread: others would wait for cores that the runner's program uses. torch has a number of threads for each
        # thread, and forgets it unless it was asked for it before. Its library for products has one for all threads,
        # which is the runner's.
        self._runners = torch.get_num_threads()
        torch.set_num_threads(1)
        with suppress(OSError, AttributeError):
            ctypes.CDLL(_library("libtorch_cpu")).MKL_Set_Num_Threads_Local(1)

    def enter_runner(self) -> None:
        if not self.deferred:
            torch.set_num_threads(self._runners)

    def host_buffer(self, nbytes: int) -> np.ndarray[Any, Any]:
        pinned = None if self._pinned is None else self._pinned.buffer(nbytes)
        return np.empty(nbytes, np.uint8) if pinned is None else pinned

    def from_bytes(self, data: Buffer, spec: Spec, given: bool = False) -> Any:
        dtype = getattr(torch, spec.dtype.name)
        source = np.frombuffer(data, np.uint8)
        if given and source.flags.writeable:
            host = torch.from_numpy(source).view(dtype).reshape(spec.shape)
            return host if self._pinned is None else self._pinned.copy(host, self.device)
        array = torch.empty(spec.shape, dtype=dtype)
        # Through numpy: torch itself needs writable buffers.
        array.reshape(-1).view(torch.uint8).numpy()[:] = source
        return array.to(self.device)

    def to_bytes(self, array: Any, borrow: bool = False) -> memoryview:
        if borrow and not self.deferred:
            return memoryview(as_bytes(array).numpy())
        if not self.deferred and array.dtype not in _NOT_NUMPYS:
            return memoryview(array.numpy().tobytes())
        # A copy to the host waits for the current stream alone.
        host = array.cpu() if self.deferred else array.clone(memory_format=torch.contiguous_format)
        return memoryview(as_bytes(host).numpy())

    def start_fetch(self, array: Any) -> Coming:
        # Into pinned memory: the copy is asynchronous, and programs of other sessions go on meanwhile.
        host = torch.empty(array.shape, dtype=array.dtype, pin_memory=self.cuda is not None)
        return Coming(host.copy_(array, non_blocking=True), self.mark())

    def end_fetch(self, coming: Coming) -> memoryview:
        host = coming.host
        return memoryview(host.reshape(-1).view(torch.uint8).numpy()) if host.numel() else memoryview(b"")

    def take_out(self, array: Any, mark: Any, borrow: bool = False) -> Sequence[Piece]:
        if self._moving is None:
            return super().take_out(array, mark, borrow)
        return self._moving.take_out(array, mark)

    def host_pieces(self, nbytes: int) -> Sequence[Piece]:
        return super().host_pieces(nbytes) if self._moving is None else host_pieces(nbytes)

    def keep_pieces(self, pieces: Sequence[Piece]) -> Sequence[Piece]:
        if self._moving is None:
            return pieces
        whole = pieces[0] if len(pieces) == 1 else np.concatenate(list(pieces))
        made, at = host_pieces(len(whole)), 0
        for piece in made:
            piece[:] = whole[at : at + len(piece)]
            at += len(piece)
        return made

    def room_for(self, spec: Spec) -> Room | None:
        if self._moving is None:
            return None
        return Room(torch.empty(spec.shape, dtype=getattr(torch, spec.dtype.name), device=self.device), self.mark())

    def bring_in(self, pieces: Sequence[Piece], spec: Spec, room: Room | None, given: bool) -> Any:
        if self._moving is None:
            return super().bring_in(pieces, spec, room, given)
        if room is None:
            raise torch.cuda.OutOfMemoryError("there was no room on the device")
        self._moving.bring_in(pieces, room)
        return room.array

    def let_pool_go(self) -> None:
        if self.cuda is not None:
            self.cuda.let_pool_go()

    def trim(self) -> None:
        if self._moving is not None:
            torch.cuda.empty_cache()

    def own(self, array: Any) -> Any:
        return array.clone(memory_format=torch.contiguous_format)

    def dense(self, array: Any) -> Any:
        return array.contiguous()

    def check(self, op: str, index: Any, n: int, extra: int | None, flag: Any) -> tuple[Any, Any]:
        if index.numel() == 0:
            return index, flag
        if self.deferred and n > 0:
            bad = bad_indices(index, n, extra)
            raised = bad.any()
            return index.masked_fill(bad, 0), raised if flag is None else flag | raised
        if extra is None and n > 0:
            low, high = torch.aminmax(index)
            if 0 <= low.item() and high.item() < n:
                return index, flag
        bad = bad_indices(index, n, extra)
        if not bad.any():
            return index, flag
        # On CUDA only where n is 0, which is rare: it may wait for the device.
        raise IndexOutOfRange(f"{op}: index {index[bad][0].item()} is out of range for size {n}")

    def select(self, flag: Any, old: Any, new: Any, into: bool = False) -> Any:
        return torch.where(flag, old, new, out=old) if into else torch.where(flag, old, new)

    def put(self, old: Any, new: Any) -> Any:
        return old.copy_(new)

    def mark(self) -> Any:
        return None if self.cuda is None else self.cuda.mark()

    def stamp(self) -> Any:
        return None if self.cuda is None else self.cuda.mark(timed=True)

    def between_us(self, before: Any, after: Any) -> int:
        return round(1000 * before.elapsed_time(after))

    def passed(self, mark: Any, wait: bool = False) -> bool:
        if mark is None:
            return True
        if wait:
            mark.synchronize()
            return True
        return bool(mark.query())

    def raised(self, flag: Any) -> bool:
        return False if self.cuda is None else self.cuda.raised(flag)

    def out_of_memory(self, error: BaseException) -> bool:
        if isinstance(error, MemoryError | torch.cuda.OutOfMemoryError):
            return True
        return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)

    def release(self) -> None:
        if self._pinned is not None:
            self.captures.let_go()
            self._pinned.look()
            torch.cuda.empty_cache()
