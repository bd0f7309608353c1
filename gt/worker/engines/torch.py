"""The engine on torch, on a CPU or a GPU. The only file that imports torch.

Law 1: nothing here waits for the whole device: only for the current stream, or for an event.
Law 2: on CUDA no kernel meets a bad index. `check` clamps it there, and raises a flag on the device.

No tensor here ever requires a gradient, so torch's autograd records nothing, in any thread.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from gt.errors import IndexOutOfRange, StartError
from gt.ops.record import Op, Site, as_tuple
from gt.program import Spec
from gt.transport.codec import Buffer


class TorchEngine:
    """See `gt.worker.engines.Engine`."""

    name = "torch"

    def __init__(self, device: str = "", threads: int = 0) -> None:
        if threads > 0:
            torch.set_num_threads(threads)
        if not device:
            device = "cuda:0" if torch.cuda.is_available() else "cpu"
        elif device == "cuda":
            device = "cuda:0"
        self.device = device
        self.deferred = device.startswith("cuda")
        if self.deferred:
            if not torch.cuda.is_available():
                raise StartError(f"device {device}: torch sees no GPU; use --device cpu")
            where = torch.device(device)
            if where.index >= torch.cuda.device_count():
                raise StartError(f"device {device}: there are {torch.cuda.device_count()} GPUs")
            torch.cuda.set_device(where)
            self.memory: int = torch.cuda.get_device_properties(where).total_memory
        elif device == "cpu":
            self.memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        else:
            raise StartError(f"device {device!r} is not cpu, cuda or cuda:N")

    def kernel(
        self, op: Op, attrs: dict[str, Any], operands: Sequence[Spec], inplace: bool = False
    ) -> Callable[..., Any] | None:
        make = op.kernels.get("torch_inplace" if inplace else "torch")
        if make is not None:
            site = Site(self.device, tuple(operands), as_tuple(op.infer(*operands, **attrs)))
            made: Callable[..., Any] | None = make(torch, site, **attrs)
            return made
        if inplace or op.compose is not None:
            return None
        f: Callable[..., Any] = getattr(torch, op.name)
        return functools.partial(f, **attrs) if attrs else f

    def whole(self, run: Callable[..., Any], steps: Sequence[Any]) -> Callable[..., Any]:
        return run

    def from_bytes(self, data: Buffer, spec: Spec, given: bool = False) -> Any:
        dtype = getattr(torch, spec.dtype.name)
        source = np.frombuffer(data, np.uint8)
        if given and source.flags.writeable:
            return torch.from_numpy(source).view(dtype).reshape(spec.shape).to(self.device)
        array = torch.empty(spec.shape, dtype=dtype)
        # Through numpy: torch itself wants buffers it could write to.
        array.reshape(-1).view(torch.uint8).numpy()[:] = source
        return array.to(self.device)

    def to_bytes(self, array: Any, borrow: bool = False) -> memoryview:
        if array.numel() == 0:
            return memoryview(b"")  # an empty view may begin anywhere, which `view` below would refuse
        if borrow and not self.deferred:
            return memoryview(array.contiguous().reshape(-1).view(torch.uint8).numpy())
        if not self.deferred and array.dtype is not torch.bfloat16:  # which numpy does not know
            return memoryview(array.numpy().tobytes())
        # A copy to the host waits for the current stream, and for nothing else.
        host = array.cpu() if self.deferred else array.clone(memory_format=torch.contiguous_format)
        return memoryview(host.contiguous().reshape(-1).view(torch.uint8).numpy())

    def own(self, array: Any) -> Any:
        return array.clone(memory_format=torch.contiguous_format)

    def dense(self, array: Any) -> Any:
        return array.contiguous()

    def check(self, op: str, index: Any, n: int, extra: int | None, flag: Any) -> tuple[Any, Any]:
        if index.numel() == 0:
            return index, flag
        if self.deferred and n > 0:
            bad = (index < 0) | (index >= n)
            if extra is not None:
                bad &= index != extra
            raised = bad.any()
            return index.masked_fill(bad, 0), raised if flag is None else flag | raised
        if extra is None and n > 0:
            low, high = torch.aminmax(index)
            if 0 <= low.item() and high.item() < n:
                return index, flag
        bad = (index < 0) | (index >= n)
        if extra is not None:
            bad &= index != extra
        if not bad.any():
            return index, flag
        # On CUDA only where n is 0: known here, and rare, so it may wait.
        raise IndexOutOfRange(f"{op}: index {index[bad][0].item()} is out of range for size {n}")

    def select(self, flag: Any, old: Any, new: Any) -> Any:
        return torch.where(flag, old, new)

    def mark(self) -> Any:
        if not self.deferred:
            return None
        event = torch.cuda.Event()
        event.record()
        return event

    def passed(self, mark: Any, wait: bool = False) -> bool:
        if mark is None:
            return True
        if wait:
            mark.synchronize()
            return True
        return bool(mark.query())

    def raised(self, flag: Any) -> bool:
        return bool(flag.item())

    def out_of_memory(self, error: BaseException) -> bool:
        if isinstance(error, MemoryError | torch.cuda.OutOfMemoryError):
            return True
        return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)

    def release(self) -> None:
        if self.deferred:
            torch.cuda.empty_cache()
