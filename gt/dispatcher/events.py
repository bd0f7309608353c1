"""What can happen to the dispatcher, and what it can ask for. Events are past facts."""

from __future__ import annotations

from dataclasses import dataclass

from gt.ops.check import Checked
from gt.transport.codec import Buffer
from gt.transport.messages import Message

Peer = bytes  #: A connection, as the sockets name it. Never an identity: sessions are.


@dataclass(frozen=True, slots=True)
class MessageCame:
    peer: Peer
    message: Message
    payload: Buffer | None = None


@dataclass(frozen=True, slots=True)
class BadFramesCame:
    """Bytes that did not decode."""

    peer: Peer
    text: str


@dataclass(frozen=True, slots=True)
class PeerLost:
    """A connection ended, however it ended."""

    peer: Peer


@dataclass(frozen=True, slots=True)
class PlanReady:
    """The check of a program, asked for with `Check`, is finished."""

    program: bytes
    checked: Checked | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class TimePassed:
    now_s: float


Event = MessageCame | BadFramesCame | PeerLost | PlanReady | TimePassed


@dataclass(frozen=True, slots=True)
class Send:
    peer: Peer
    message: Message
    payload: Buffer | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """Please check this program outside the event loop and come back with PlanReady."""

    program: bytes
    text: object  #: the Program


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Nothing more will be read from or sent to this peer."""

    peer: Peer


Action = Send | Check | Disconnect
