"""What stays when a client goes: the records of shelves. shelves.py and named.py change them.

A shelf has a session of its own at the dispatcher and the workers, its room, which has tensors and no client. So its
bytes are counted, limited and lost like those of any session.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from gt.dispatcher.session import Session
from gt.layout import Mesh
from gt.transport.messages import Drop, Failure, GetKept, Keep, Take

OTHERS_S = 30.0  #: The lease of what a session without a name has published.

ShelfKey = tuple[str, str]  #: The key of the user ("" where no keys are needed), and the name of the session.


@dataclass(slots=True, eq=False)
class Item:
    """Something that is kept or published: an object with tensors, which are in the room under consecutive ids."""

    name: str
    form: str  #: see messages.Keep
    ids: range
    readers: tuple[str, ...] = ()  #: of what is published: users who may read it; (): all


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """What a client asks of its shelf, until all that came before is done."""

    session: Session
    asked: Take | Drop | GetKept
    behind: int  #: so many Keeps of the session come before it


@dataclass(slots=True, eq=False)
class Shelf:
    """What one session keeps, and what it has published."""

    key: ShelfKey
    name: str  #: of the session; "": it has none, and what it has published goes soon after its client
    room: Session
    client: Session | None = None  #: who keeps things here now
    #: By number: sessions of clients that are gone and whose work goes on, in the order in which they went.
    leaving: dict[int, Session] = field(default_factory=dict)
    waiting: deque[Waiting] = field(default_factory=deque)  #: questions of its client, oldest first
    kept: dict[str, Item] = field(default_factory=dict)
    published: dict[str, Item] = field(default_factory=dict)
    until_s: float = 0.0  #: while there is no client: when its lease ends
    workers: tuple[int, ...] = ()  #: of the client before,
    meshes: dict[str, Mesh] = field(default_factory=dict)  #: and its meshes

    def items(self, published: bool) -> dict[str, Item]:
        return self.published if published else self.kept

    @property
    def empty(self) -> bool:
        return not (self.kept or self.published)

    @property
    def busy(self) -> bool:
        """Whether something is under way that may change what is kept."""
        return bool(self.leaving) or (self.client is not None and self.client.keeps > 0)

    @property
    def answerable(self) -> bool:
        """Whether all that came before the first question is done."""
        return bool(self.waiting) and not self.leaving and self.waiting[0].session.kept >= self.waiting[0].behind

    def let_go(self, session: Session, now_s: float, lease_s: float) -> None:
        """This session has ended, or its client is gone."""
        self.leaving.pop(session.number, None)
        self.waiting = deque(each for each in self.waiting if each.session is not session)
        if self.client is session:
            self.client = None
            self.until_s = now_s + (lease_s if self.name else OTHERS_S)
            self.workers, self.meshes = tuple(session.workers), dict(session.meshes)

    def turn_of(self, session: Session) -> bool:
        """Whether this session may keep the next thing: all sessions before it have finished their work, and what it
        asked before is answered."""
        if self.leaving:
            return next(iter(self.leaving.values())) is session
        return not self.waiting or self.waiting[0].behind > session.kept


@dataclass(slots=True, eq=False)
class Copying:
    """Copies of tensors of one session that are made for another one; workers have been asked."""

    number: int
    source: Session
    target: Session
    asker: Session  #: one of the two
    asked: Keep | Take
    item: Item  #: what is kept, or taken
    ids: range  #: in the target. They are counted there, and cannot be used
    left: list[int] = field(default_factory=list)  #: workers that have not answered
    failure: Failure | None = None
    over: bool = False  #: it was answered
