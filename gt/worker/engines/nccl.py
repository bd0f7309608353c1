"""Collectives from GPU to GPU: NCCL, where every worker of a group has a GPU of its own.

Law 1: the group's gloo decides. All workers agree there whether NCCL is used, and whether a call succeeded.
Law 2: a device cannot finish a collective that another worker does not start. So the host waits for a device only
       after all workers have said that they have started theirs (together.py). A worker that leaves aborts what runs.
"""

from __future__ import annotations

import hashlib
import threading
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from gt.config import nccl_host
from gt.worker.engines.moving import as_bytes
from gt.worker.engines.reducing import narrowed, reduce_op, widened
from gt.worker.run.collectives import Collective, Devices, PeerResult

POLL_S = 0.001  #: How often a worker looks whether the GPUs have met.


def on_devices(
    store: Any, gloo: Any, rank: int, size: int, device: str, timeout: timedelta, meeting: timedelta
) -> Devices | None:
    """NCCL for this group; None if some of its workers have no GPU, or share one, or NCCL does not work."""
    everyone = [torch.zeros(16, dtype=torch.uint8) for _ in range(size)]
    gloo.allgather([everyone], [_identity(device)]).wait()
    gpus = {bytes(other.numpy()) for other in everyone}
    if len(gpus) < size or bytes(16) in gpus:
        return None
    made, met = None, False
    with suppress(Exception), torch.cuda.device(device):  # a group is made in a thread of its own
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        made = dist.ProcessGroupNCCL(dist.PrefixStore("nccl", store), rank, size, options)
        _meet(made, device, meeting)
        met = True
    works = torch.tensor([met], dtype=torch.uint8)
    lowest = dist.AllreduceOptions()
    lowest.reduceOp = dist.ReduceOp.MIN
    gloo.allreduce([works], lowest).wait()
    if works.item():
        return _NcclGroup(made)
    if made is not None:
        _NcclGroup(made).drop()
    return None


def _meet(group: Any, device: str, timeout: timedelta) -> None:
    """Run one all_reduce on the GPUs, with a deadline: a GPU that does not take part must not block the host."""
    work = group.allreduce([torch.zeros(1, device=device)])
    deadline_s = time.monotonic() + timeout.total_seconds()
    while not work.is_completed():
        if time.monotonic() > deadline_s:
            raise TimeoutError
        time.sleep(POLL_S)


def _identity(device: str) -> Any:
    """A unique name of the worker's GPU; zeros if it has none. NCCL takes one GPU for two if NCCL_HOSTID says that
    they are in different hosts, and so does this."""
    if not device.startswith("cuda"):
        return torch.zeros(16, dtype=torch.uint8)
    gpu = bytes(torch.cuda.get_device_properties(device).uuid.bytes)
    name = hashlib.sha256(gpu + nccl_host().encode()).digest()[:16]
    return torch.tensor(list(name), dtype=torch.uint8)


class _NcclGroup:
    def __init__(self, group: Any) -> None:
        self._group = group

    def start(self, what: Collective, array: Any, private: bool) -> PeerResult:
        data = as_bytes(array)
        if what.name == "all_reduce":
            out = data if private else data.clone()
            reduced = widened(out, what)
            options = dist.AllreduceOptions()
            options.reduceOp = reduce_op(what)
            return _result(self._group.allreduce([reduced], options), what, out, reduced)
        out = torch.empty(what.made.nbytes, dtype=torch.uint8, device=array.device)
        if what.name == "all_gather" and len(set(what.takes)) == 1:
            return _result(self._group._allgather_base(out, data), what, out, None)
        sent = data.repeat(len(what.workers)) if what.name == "all_gather" else data
        takes, sends = what.nbytes(what.takes), what.nbytes(what.sends)
        return _result(self._group.alltoall_base(out, sent, takes, sends), what, out, None)

    def drop(self) -> None:
        group, self._group = self._group, None

        def end() -> None:
            with suppress(Exception):
                group.abort()

        threading.Thread(target=end, name="leaving GPUs", daemon=True).start()


def _result(work: Any, what: Collective, out: Any, reduced: Any) -> PeerResult:
    """The array that a collective makes. The stream waits for it, not the host."""

    def result() -> Any:
        work.wait()
        if reduced is not None:
            narrowed(reduced, out, what)
        return out.view(getattr(torch, what.made.dtype.name)).reshape(what.made.shape)

    return PeerResult(result)
