"""What can happen to the dispatcher, and what it can ask for. Events are past facts.

Structs, because one is made for every message that passes: a frozen dataclass takes five times as long.
"""

from __future__ import annotations

import msgspec

from gt.ops.check import Checked
from gt.transport.codec import Buffer
from gt.transport.messages import Message

Peer = bytes  #: A connection, as the sockets name it. Never an identity: sessions are.


class MessageCame(msgspec.Struct, frozen=True):
    peer: Peer
    message: Message
    payload: Buffer | None = None


class BadFramesCame(msgspec.Struct, frozen=True):
    """Bytes that did not decode."""

    peer: Peer
    text: str


class PeerLost(msgspec.Struct, frozen=True):
    """A connection ended, however it ended."""

    peer: Peer


class PlanReady(msgspec.Struct, frozen=True):
    """The check of a program, asked for with `Check`, is finished."""

    program: bytes
    checked: Checked | None
    error: str = ""


class TimePassed(msgspec.Struct, frozen=True):
    now_s: float


Event = MessageCame | BadFramesCame | PeerLost | PlanReady | TimePassed


class Send(msgspec.Struct, frozen=True):
    peer: Peer
    message: Message
    payload: Buffer | None = None


class Check(msgspec.Struct, frozen=True):
    """Please check this program outside the event loop and come back with PlanReady."""

    program: bytes
    text: object  #: the Program


class Disconnect(msgspec.Struct, frozen=True):
    """Nothing more will be read from or sent to this peer."""

    peer: Peer


Action = Send | Check | Disconnect
