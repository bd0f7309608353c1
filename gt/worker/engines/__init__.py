"""What a worker computes with. An engine is the only place that knows an array library."""

from __future__ import annotations

import importlib.util
import socket
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from gt.errors import StartError
from gt.ops.check import Checked
from gt.ops.record import Op
from gt.program import Precision, Spec
from gt.transport.codec import Buffer

Array = Any  #: A torch.Tensor, a numpy.ndarray, a jax.Array: whatever the engine computes with.


class Engine(Protocol):
    """Turns records into callables, and bytes into arrays and back."""

    name: str
    device: str
    memory: int  #: bytes there are on the device
    #: True where an index check must not wait for the device (CUDA). Then `check` clamps the index and
    #: gathers what it saw in a flag on the device; else it raises IndexOutOfRange at once.
    deferred: bool
    #: The module of the process that compiles for it, and what its results depend on besides the program. None: it
    #: has no such tiers, and the next four are never asked for.
    compiles_with: tuple[str, str] | None

    def graph(self, checked: Checked, trusted: bool) -> Any:
        """A program in the form in which it can be captured or compiled; raises where there is none. With `trusted`, as
        in lowering.py."""

    def load_library(self, folder: str, graph: Any) -> Callable[..., Any]:
        """What was compiled: a function of inputs and scalars; where `deferred`, of inputs and a buffer of numbers."""

    def load_part(self, folder: str, graph: Any) -> Callable[..., list[Array]]:
        """What was compiled, of a program without checks: a function of inputs and scalars, on any device."""

    def new_capture(self, graph: Any, f: Callable[..., Any], plain: Any, tier: int) -> Any:
        """A program of one session that is going to be captured; see captures.py. Only where `deferred`."""

    def use(self, session: int) -> None:
        """What follows is work of this session: on a device its own stream."""

    def leave(self, session: int) -> None:
        """This session has ended. Any thread may say so."""

    def usage(self) -> dict[str, int]:
        """Bytes of memory on the device, for statistics."""

    def send_flag(self, flag: Array) -> Any:
        """A flag on its way to the host, for `raised`."""

    def kernel(
        self, op: Op, attrs: dict[str, Any], operands: Sequence[Spec], inplace: bool = False
    ) -> Callable[..., Any] | None:
        """The op as a function of its operands alone (arrays, and Python numbers for scalars), or
        None if the engine has no kernel for it and its composition must be expanded. All that can be
        decided from attributes and specs is decided here, once. With `inplace`: the form that
        writes its results into the operands `op.inplace` and returns them; None if there is none."""

    def many(self, op: Op, attrs: dict[str, Any]) -> Callable[..., Any] | None:
        """The in-place form for many uses at once: (rows of arrays, *numbers) -> all results, row by row."""

    def whole(self, run: Callable[..., Any], steps: Sequence[Any]) -> Callable[..., Any]:
        """The function of a whole program and its steps (see executor.py), as the engine wants it to be called: jax
        compiles what repeats. Where it fails it must raise from `run`, whose lines tell the instruction."""

    def set_precision(self, precision: Precision) -> None:
        """How exactly float32 is computed from here on. An engine may always be more exact."""

    def host_buffer(self, nbytes: int) -> np.ndarray[Any, Any]:
        """Bytes to receive an upload in, to be `given` to `from_bytes`. Not zeroed: where it is large, asking for it
        touches no memory. Any thread may ask."""

    def from_bytes(self, data: Buffer, spec: Spec, given: bool = False) -> Array:
        """A new array with a copy of these bytes. If they are `given`, nobody else will use them again:
        an engine whose arrays lie in host memory takes them as they are, a device may read them later."""

    def to_bytes(self, array: Array, borrow: bool = False) -> memoryview:
        """A contiguous copy of the array in host memory, as bytes. To `borrow`: perhaps its own memory, which
        nobody writes to before they were read."""

    def start_fetch(self, array: Array) -> tuple[Any, Any]:
        """The array on its way to the host, and a mark behind that; `end_fetch` gives its bytes when that has passed.
        Only where `deferred`."""

    def end_fetch(self, coming: tuple[Any, Any]) -> memoryview: ...

    def own(self, array: Array) -> Array:
        """The array in memory of its own: contiguous, shared with nobody."""

    def dense(self, array: Array) -> Array:
        """The array itself if its elements lie in order and without gaps, else a copy that does. In-place
        kernels are given such arrays only: torch's fused ones read memory and never look at strides."""

    def check(self, op: str, index: Array, n: int, extra: int | None, flag: Array | None) -> tuple[Array, Array | None]:
        """The index, known to be in [0, n) or `extra`, and the new flag (None unless `deferred`)."""

    def select(self, flag: Array, old: Array, new: Array, into: bool = False) -> Array:
        """`old` if the flag is up, else `new`; on the device, and if asked `into` the memory of `old`. Only where
        `deferred`."""

    def mark(self) -> Any:
        """A point in the engine's work; `passed(mark)` tells whether all work before it is done."""

    def passed(self, mark: Any, wait: bool = False) -> bool: ...

    def raised(self, flag: Any) -> bool:
        """Whether the flag is up, as `send_flag` returned it. Called after its mark has passed."""

    def out_of_memory(self, error: BaseException) -> bool:
        """Whether this error means that memory ran out."""

    def release(self) -> None:
        """Give cached memory back, if the engine keeps any."""


def network(listening: socket.socket, timeout_s: float, device: str) -> Any:
    """How a worker with that device meets others, which reach it at this socket: a collectives.Network. Any engine's
    arrays travel by torch's library, which is imported here."""
    from gt.worker.engines.groups import Sockets

    return Sockets(listening, timeout_s, device)


def can_meet_others() -> bool:
    """Whether there is such a library."""
    return importlib.util.find_spec("torch") is not None


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
    raise StartError(f"engine {name!r} is not one of: torch, numpy, jax")
