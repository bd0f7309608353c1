"""Tensors on their way to or from the server, chunk by chunk."""

from __future__ import annotations

from typing import Any

from gt.program import Spec
from gt.transport.codec import Buffer
from gt.transport.messages import Failure


class Download:
    """A fetch under way."""

    __slots__ = ("buffer", "done", "dtype", "error", "got", "shape")

    def __init__(self) -> None:
        self.buffer: Any = None
        self.got = 0
        self.shape: tuple[int, ...] = ()
        self.dtype = ""
        self.done = False
        self.error: Failure | None = None


class Upload:
    """Host data on its way to a worker."""

    __slots__ = ("data", "flying", "sent", "spec")

    def __init__(self, data: Buffer, spec: Spec) -> None:
        self.data = memoryview(data)
        self.spec = spec
        self.sent = -1  #: bytes sent; -1: not even the first chunk, which an empty tensor has too
        self.flying = 0
