"""What can happen to the dispatcher (events: past facts), and what it asks its surroundings to do (effects).

Structs, because one is made for every message that passes: a frozen dataclass takes five times as long.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from gt.layout import Layout, Mesh
from gt.ops.check import Checked
from gt.program import Program
from gt.transport.messages import Buffer, Failure, Message

if TYPE_CHECKING:
    from gt.dispatcher.planner.plan import Planned
    from gt.dispatcher.session import Followed

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


class ProgramChecked(msgspec.Struct, frozen=True):
    """The check of a program, asked for with `CheckProgram`, is finished."""

    program: bytes
    checked: Checked | None
    error: str = ""


class PlanReady(msgspec.Struct, frozen=True):
    """A plan for several workers, asked for with `MakePlan`, was made, or could not be made for a reason."""

    program: bytes
    key: tuple[object, ...]
    planned: Planned | None
    failure: Failure | None = None


class TimePassed(msgspec.Struct, frozen=True):
    now_s: float


Event = MessageCame | BadFramesCame | PeerLost | ProgramChecked | PlanReady | TimePassed


class Send(msgspec.Struct, frozen=True):
    peer: Peer
    message: Message
    payload: Buffer | None = None


class CheckProgram(msgspec.Struct, frozen=True):
    """Please check this program outside the event loop and come back with ProgramChecked."""

    program: bytes
    text: Program


class MakePlan(msgspec.Struct, frozen=True):
    """Please plan this program for several workers outside the event loop and come back with PlanReady."""

    program: bytes
    key: tuple[object, ...]  #: the plan's name among those of the program
    checked: Checked
    inputs: tuple[Layout, ...]
    home: Mesh  #: where results go that nothing else decides
    meshes: Mapping[str, Mesh]  #: the session's, by name
    followed: Mapping[str, Followed] = {}  #: what the client's plans say, by body


class Disconnect(msgspec.Struct, frozen=True):
    """Nothing more will be read from or sent to this peer."""

    peer: Peer


Effect = Send | CheckProgram | MakePlan | Disconnect
