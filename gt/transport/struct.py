"""What all messages are (messages.py)."""

from __future__ import annotations

import msgspec


class Struct(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """The base class of all messages. None is in a cycle, so the garbage collector need not visit them."""


class Failure(msgspec.Struct, frozen=True, array_like=True):
    """Why a call or a fetch failed."""

    kind: str  #: a name in errors.BY_NAME
    text: str
    program: bytes = b""  #: the program that failed, and which of its instructions (-1: none)
    instruction: int = -1
