"""Devices, for code that asks: `gt.device("cuda")`, `x.device`, `x.is_cuda`.

Where tensors lie is the server's affair, so naming a device changes nothing. What `x.device` says is true all the
same: it is what the session's worker computes on, asked for once per session.
"""

from __future__ import annotations

import re
from typing import Any
from weakref import WeakKeyDictionary

from gt.client.compat.arguments import shown
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
            raise DTypeError(f"device: takes a name such as 'cuda:0', not {shown(name)}")
        match = _NAME.fullmatch(f"cuda:{name}" if isinstance(name, int) else str(name))
        if match is None or match[1] not in _TYPES:
            raise StateError(f"device: {name!r} is none; there are {', '.join(_TYPES)}, with a number as in 'cuda:0'")
        if match[2] is not None and index is not None:
            raise ArgumentError(f"device: {name!r} has a number already, index={index} is one too many")
        object.__setattr__(self, "type", match[1])
        object.__setattr__(self, "index", index if match[2] is None else int(match[2]))

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a device's {name} cannot be changed")

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

    def __enter__(self) -> device:
        return self

    def __exit__(self, *_: object) -> None:
        pass


_CPU = device("cpu")
_found: WeakKeyDictionary[Session, device] = WeakKeyDictionary()


def of_session() -> device:
    """What the session's worker computes on; as long as there is no worker, the CPU."""
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
    """The device that tensors are made on: the worker's."""
    return of_session()


def set_default_device(device: Any) -> None:
    """Does nothing: where tensors lie is the server's affair."""


# --- of a tensor -------------------------------------------------------------------------------------------


def get_device(input: Any) -> int:
    """The number of the tensor's device; -1 of the CPU."""
    found = of_session()
    return -1 if found.type == "cpu" else found.index or 0


def pin_memory(input: Any, device: Any = None) -> Any:
    """The tensor itself: it is not in this process's memory."""
    return input


def is_pinned(input: Any, device: Any = None) -> bool:
    """False: it is not in this process's memory."""
    return False


def share_memory_(self: Any) -> Any:
    """The tensor itself: it is not in this process's memory."""
    return self


def is_shared(self: Any) -> bool:
    """Whether other processes may use its memory: never."""
    return False


def _never(what: str) -> property:
    return property(lambda self: False, doc=f"Whether it is {what}: never.")


PROPERTIES = {
    "device": property(lambda self: of_session(), doc="What the tensor's worker computes on."),
    "is_cuda": property(lambda self: of_session().type == "cuda", doc="Whether the tensor's worker has a GPU."),
    "is_cpu": property(lambda self: of_session().type == "cpu", doc="Whether the tensor's worker has no GPU."),
    "is_meta": _never("without data"),
    "is_mps": _never("on an Apple GPU"),
    "is_nested": _never("nested"),
    "is_quantized": _never("quantized"),
    "is_sparse": _never("sparse"),
    "is_xpu": _never("on an Intel GPU"),
}
