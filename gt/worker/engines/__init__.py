"""The engines, one file per array library; `load` imports the one that is asked for.

An engine implements `gt.worker.run.engine.Engine` and imports only gt/worker/run/ and what is below that.
"""

from __future__ import annotations

import socket

from gt.errors import StartError
from gt.worker.run.collectives import Network
from gt.worker.run.engine import Engine
from gt.worker.run.reach import Reach


def network(listening: socket.socket, timeout_s: float, device: str, reach: Reach | None = None) -> Network:
    """How a worker with that device meets others, which reach it at this socket, or as `reach` says. Arrays of
    any engine travel by torch.distributed, which is imported here."""
    from gt.worker.engines.groups import Sockets

    return Sockets(listening, timeout_s, device, reach)


def load(name: str, device: str = "", threads: int = 0) -> Engine:
    """The engine of that name. Its library is imported here, and nowhere else."""
    if name == "numpy":
        from gt.worker.engines.numpy import NumpyEngine

        return NumpyEngine()
    if name == "torch":
        try:
            import torch  # noqa: F401
        except ImportError:
            raise StartError("the torch engine needs torch: pip install 'gt[torch]', or use --engine numpy") from None
        from gt.worker.engines.torch import TorchEngine

        return TorchEngine(device, threads)
    if name == "jax":
        try:
            import jax  # noqa: F401
        except ImportError:
            raise StartError("the jax engine needs jax: pip install 'gt[jax]'") from None
        from gt.worker.engines.jax import JaxEngine

        return JaxEngine(device)
    raise StartError(f"unknown engine {name!r}; expected one of: torch, numpy, jax")
