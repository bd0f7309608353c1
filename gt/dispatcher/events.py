"""What can happen to the dispatcher (events: past facts), and what it asks its surroundings to do (effects).

Structs, because one is made for every message that passes: a frozen dataclass takes five times as long.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from gt.chosen import Chosen
from gt.layout import Layout, Mesh
from gt.ops.check import Checked
from gt.program import Program
from gt.transport.identity import User
from gt.transport.messages import Buffer, Failure, Message, Span

if TYPE_CHECKING:
    from gt.dispatcher.planner.plan import Planned
    from gt.dispatcher.session import Followed

Peer = bytes  #: A connection, as the sockets name it. Never an identity: sessions are.


class MessageCame(msgspec.Struct, frozen=True, gc=False):
    peer: Peer
    message: Message
    payload: Buffer | None = None
    user: User | None = None  #: with a first message: who sent it, where keys are needed


class UsersChanged(msgspec.Struct, frozen=True):
    """Users were added, changed or revoked."""

    users: Mapping[str, User]  #: all of them now, by public key
    secret: str  #: the workers' new one: see Peers

    def __repr__(self) -> str:
        return f"UsersChanged({', '.join(user.name for user in self.users.values())})"


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


class FoundPlan(msgspec.Struct, frozen=True):
    """A plan that a search has found."""

    axes: tuple[tuple[str, int], ...]
    layouts: tuple[str, ...]  #: of the inputs
    ways: dict[int, Chosen] = {}
    time_us: float = 0.0  #: predicted
    words: str = ""
    text: str = ""  #: the reasons, for people


class PlanSolved(msgspec.Struct, frozen=True):
    """The search asked for with `Solve` is over: what was found, the best plan first, or why there is none."""

    session: int
    program: bytes
    plans: tuple[FoundPlan, ...] = ()  #: each on another number of workers
    current_us: float = 0.0  #: predicted of the plan that the program runs by; 0: unknown
    alone_us: float = 0.0  #: predicted of one worker, where pins rule that out; 0: not asked
    error: str = ""


class TimePassed(msgspec.Struct, frozen=True):
    now_s: float


class LoopRecorded(msgspec.Struct, frozen=True):
    """What the dispatcher's own process did during a trace, asked for with `RecordLoop`."""

    number: int
    spans: tuple[Span, ...]
    left_out: int = 0


Event = (
    MessageCame | BadFramesCame | PeerLost | ProgramChecked | PlanReady | PlanSolved | UsersChanged | LoopRecorded
    | TimePassed
)  # fmt: skip


class Send(msgspec.Struct, frozen=True, gc=False):
    peer: Peer
    message: Message
    payload: Buffer | None = None


class CheckProgram(msgspec.Struct, frozen=True):
    """Please check this program and come back with ProgramChecked."""

    program: bytes
    text: Program
    at_once: bool = False  #: In the event loop: it is small, and nobody else waits. Else outside of it.


class MakePlan(msgspec.Struct, frozen=True):
    """Please plan this program for several workers outside the event loop and come back with PlanReady."""

    program: bytes
    key: tuple[object, ...]  #: the plan's name among those of the program
    checked: Checked
    inputs: tuple[Layout, ...]
    home: Mesh  #: where results go that nothing else decides
    meshes: Mapping[str, Mesh]  #: the session's, by name
    followed: Mapping[str, Followed] = {}  #: what the session's plans say, by body
    split_new: bool = False  #: see plan_program


class Solve(msgspec.Struct, frozen=True):
    """Please search for the best plan of this program in another process and come back with PlanSolved."""

    session: int
    program: bytes
    text: Program
    most: tuple[tuple[str, int], ...]  #: axes of a mesh of all workers that may be used,
    fixed: bool  #: and whether only this mesh will do
    axes: tuple[tuple[str, int], ...]  #: of the mesh that the program runs on,
    layouts: tuple[str, ...]  #: and the layouts of its inputs there; "": on another one
    pins: dict[int, str]  #: inputs that must keep their layouts
    memory: int  #: bytes of a worker; 0: unknown
    device: str = ""  #: of a worker
    measured_us: int = 0  #: what a call takes now, as generated code; 0: unknown
    alike: tuple[tuple[int, ...], ...] = ()  #: inputs that must have the same layout: uploads of one spec


class Decided(msgspec.Struct, frozen=True):
    """What was decided about the plan of a program; for the log."""

    session: int
    program: bytes
    text: str


class Noted(msgspec.Struct, frozen=True):
    """What became of a session: of its name, of the worker that it is on; for the log."""

    session: int
    text: str


class Disconnect(msgspec.Struct, frozen=True):
    """Nothing more will be read from or sent to this peer."""

    peer: Peer


class RecordLoop(msgspec.Struct, frozen=True):
    """Please record what the dispatcher's process does, or stop that and come back with LoopRecorded."""

    number: int
    on: bool


Effect = Send | CheckProgram | MakePlan | Solve | Decided | Noted | RecordLoop | Disconnect
