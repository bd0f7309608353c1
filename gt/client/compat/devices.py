"""Devices, for code that names them: `gt.device("cuda")`, `x.device`, `x.is_cuda`.

The server decides which worker holds a tensor, so passing a device has no effect. `x.device` is the device that the
session's worker computes on; the server is asked once per session.
"""

from __future__ import annotations

import re
from typing import Any
from weakref import WeakKeyDictionary

from gt.client.compat.arguments import shown
from gt.client.compat.interop import torch_function
from gt.client.record.recorder import recorder
from gt.client.session.session import Session
from gt.errors import ArgumentError, DTypeError, StateError

__all__ = ["device", "get_default_device", "set_default_device"]
METHODS = ["get_device", "is_pinned", "is_shared", "pin_memory", "share_memory_"]

_NAME = re.compile(r"([a-z]+)(?::(\d+))?")
_TYPES = ("cpu", "cuda", "mps", "xpu", "meta")


class device:
    """The name of a device, such as `cpu` or `cuda:0`.

    >>> device("cuda", 1)
    device(type='cuda', index=1)
    """

    __slots__ = ("index", "type")

    type: str
    index: int | None

    def __init__(self, type: Any = None, index: int | None = None, *, device: Any = None) -> None:
        name = device if type is None else type
        if isinstance(name, bool) or (not isinstance(name, (str, int)) and not _NAME.fullmatch(str(name))):
            raise DTypeError(f"device: expected a name such as 'cuda:0', got {shown(name)}")
        match = _NAME.fullmatch(f"cuda:{name}" if isinstance(name, int) else str(name))
        if match is None or match[1] not in _TYPES:
            raise StateError(f"device: unknown device {name!r}; expected one of {', '.join(_TYPES)}, or e.g. 'cuda:0'")
        if match[2] is not None and index is not None:
            raise ArgumentError(f"device: {name!r} contains an index already, got index={index} too")
        object.__setattr__(self, "type", match[1])
        object.__setattr__(self, "index", index if match[2] is None else int(match[2]))

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"device.{name} is read-only")

    def __reduce__(self) -> Any:
        return (device, (self.type, self.index))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, device) and (self.type, self.index) == (other.type, other.index)

    def __hash__(self) -> int:
        return hash((self.type, self.index))

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __repr__(self) -> str:
        index = "" if self.index is None else f", index={self.index}"
        return f"device(type={self.type!r}{index})"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """A torch tensor is sent to this device: `batch.to(device)` is a GT tensor."""
        return torch_function(cls, func, types, args, kwargs)

    def __enter__(self) -> device:
        return self

    def __exit__(self, *_: object) -> None:
        pass


_CPU = device("cpu")
_found: WeakKeyDictionary[Session, device] = WeakKeyDictionary()


def of_session() -> device:
    """The device of the session's worker; the CPU while the session has no worker."""
    session = recorder().session
    found = _found.get(session)
    if found is None:
        workers = list(session.stats()["workers"].values())
        mine = [w for w in workers if w["yours"]] or workers
        if not mine:
            return _CPU
        found = _found[session] = device(mine[0]["device"])
    return found


def get_default_device() -> device:
    """The device that new tensors are created on: the worker's."""
    return of_session()


def set_default_device(device: Any) -> None:
    """Accepted without effect: the server decides where tensors are stored."""


# --- methods of a tensor -----------------------------------------------------------------------------------


def get_device(input: Any) -> int:
    """The index of the tensor's device; -1 for the CPU."""
    found = of_session()
    return -1 if found.type == "cpu" else found.index or 0


def pin_memory(input: Any, device: Any = None) -> Any:
    """Return the tensor itself: its data is not in this process's memory."""
    return input


def is_pinned(input: Any, device: Any = None) -> bool:
    """Always False: the data is not in this process's memory."""
    return False


share_memory_, is_shared = pin_memory, is_pinned


def _never(what: str) -> property:
    return property(lambda self: False, doc=f"Whether the tensor is {what}: always False.")


PROPERTIES = {
    "device": property(lambda self: of_session(), doc="The device that the tensor's worker computes on."),
    "is_cuda": property(lambda self: of_session().type == "cuda", doc="Whether the tensor's worker has a GPU."),
    "is_cpu": property(lambda self: of_session().type == "cpu", doc="Whether the tensor's worker has no GPU."),
    "is_meta": _never("without data"),
    "is_mps": _never("on an Apple GPU"),
    "is_nested": _never("nested"),
    "is_quantized": _never("quantized"),
    "is_sparse": _never("sparse"),
    "is_xpu": _never("on an Intel GPU"),
}
