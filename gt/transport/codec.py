"""Messages to frames and back. What cannot be decoded raises BadMessage, and no other error."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from gt.transport.messages import CHUNK, MAX_FRAME, Chunk, Message

MAX_FRAMES = 512  #: Frames that may be sent as one.

#: Anything with bytes in it; payloads are passed along without copying where possible.
Buffer = bytes | bytearray | memoryview

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Message).decode


class BadMessage(ValueError):
    """Bytes that are not a message. The receiver must not change any state because of them."""


def encode(message: Message, payload: Buffer | None = None) -> list[Any]:
    """The frames of a message: its struct, then the payload if there is one.

    >>> from gt.transport.messages import GetStats
    >>> decode(encode(GetStats(7)))
    (GetStats(request=7), None)
    """
    head = _encode(message)
    return [head] if payload is None else [head, payload]


def encode_all(messages: Iterable[tuple[Message, Buffer | None]]) -> list[list[Any]]:
    """The frames of several messages: one list, or several of at most MAX_FRAMES frames."""
    frames: list[Any] = []
    found = [frames]
    for message, payload in messages:
        if len(frames) > MAX_FRAMES - 2:
            frames = []
            found.append(frames)
        frames.append(_encode(message))
        if payload is not None:
            frames.append(payload)
    return found


def decode(frames: Sequence[Buffer]) -> tuple[Message, Buffer | None]:
    """The one message in these frames, and its payload."""
    found = decode_all(frames)
    if len(found) != 1:
        raise BadMessage(f"got {len(found)} messages, expected one")
    return found[0]


def decode_all(frames: Sequence[Buffer]) -> list[tuple[Message, Buffer | None]]:
    """The messages in these frames, with their payloads. If one is bad, none is returned."""
    found: list[tuple[Message, Buffer | None]] = []
    if len(frames) > MAX_FRAMES:
        raise BadMessage(f"{len(frames)} frames in one message; the limit is {MAX_FRAMES}")
    rest = iter(frames)
    for head in rest:
        if len(head) > MAX_FRAME:
            raise BadMessage(f"a message of {len(head)} bytes; the limit is {MAX_FRAME}")
        try:
            message: Message = _decode(head)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError, OverflowError) as e:
            raise BadMessage(f"not a message: {e}") from None
        if type(message) is not Chunk or message.slot >= 0:
            found.append((message, None))
            continue
        payload = next(rest, None)
        if payload is None or len(payload) > CHUNK:
            raise BadMessage(f"a Chunk must have a payload of at most {CHUNK} bytes")
        found.append((message, payload))
    return found
