"""Messages to frames and back. Whatever does not decode raises BadMessage, and only that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from gt.transport.messages import CHUNK, MAX_FRAME, Chunk, Message

#: Anything with bytes in it; payloads are passed along without copying where possible.
Buffer = bytes | bytearray | memoryview

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Message).decode


class BadMessage(ValueError):
    """Bytes that are no message of ours. Nothing may change because of them."""


def encode(message: Message, payload: Buffer | None = None) -> list[Any]:
    """The frames of a message: its struct, then the payload if there is one.

    >>> from gt.transport.messages import GetStats
    >>> decode(encode(GetStats(7)))
    (GetStats(request=7), None)
    """
    head = _encode(message)
    return [head] if payload is None else [head, payload]


def decode(frames: Sequence[Buffer]) -> tuple[Message, Buffer | None]:
    """The message in these frames, and its payload."""
    if not 1 <= len(frames) <= 2:
        raise BadMessage(f"a message has one or two frames, not {len(frames)}")
    head = frames[0]
    if len(head) > MAX_FRAME:
        raise BadMessage(f"a message of {len(head)} bytes; the limit is {MAX_FRAME}")
    try:
        message: Message = _decode(head)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError, OverflowError) as e:
        raise BadMessage(f"not a message: {e}") from None
    if isinstance(message, Chunk) != (len(frames) == 2):
        raise BadMessage("a payload comes with a Chunk, and with nothing else")
    if len(frames) == 1:
        return message, None
    payload = frames[1]
    if len(payload) > CHUNK:
        raise BadMessage(f"a payload of {len(payload)} bytes; the limit is {CHUNK}")
    return message, payload
