"""The messages of named sessions: what a client keeps, publishes and takes, and how workers copy it."""

from __future__ import annotations

import msgspec

from gt.transport.struct import Failure, Struct


class Keep(Struct, frozen=True):
    """Keep copies of these tensors beyond this client, under a name. They replace what had that name, all at once,
    when all calls before are done. The answer is Kept."""

    request: int
    name: str
    form: str  #: the object that has the tensors, as its client wrote it down; nobody else reads it
    ids: bytes  #: packed
    acked: int  #: see Call
    published: bool = False  #: others may take it,
    readers: tuple[str, ...] = ()  #: these users; (): all


class Take(Struct, frozen=True):
    """Copy what is kept or published under a name to this session, as tensors first, first + 1, ... The answer is
    Kept."""

    request: int
    name: str
    first: int
    published: bool = False
    owner: str = ""  #: the user who published it; "": the client's own user
    more: bool = False  #: the session may get more workers for it


class Drop(Struct, frozen=True):
    """Keep or publish this no longer. The answer is Kept."""

    request: int
    name: str  #: "": everything
    published: bool = False


class GetKept(Struct, frozen=True):
    """What is kept in this session, or what may be read of what is published? The answer is Kept, with `things`."""

    request: int
    published: bool = False


class Thing(msgspec.Struct, frozen=True, array_like=True):
    """Something that is kept or published."""

    name: str
    owner: str = ""
    form: str = ""  #: see Keep; of what is published only with its tensors
    specs: tuple[tuple[tuple[int, ...], str], ...] = ()  #: shape and dtype of each tensor


class Kept(Struct, frozen=True):
    """The answer to Keep, Take, Drop and GetKept. With an error nothing was changed."""

    request: int
    things: tuple[Thing, ...] = ()
    first: int = 0  #: of Take
    error: Failure | None = None
    more: bool = False  #: of Take: nothing was taken; it takes more workers


class Copy(Struct, frozen=True):
    """To a worker: session `session` gets copies of these tensors of session `source`, under the ids first, first + 1,
    ...: of all of them, or of none. The answer is Copied. If `first` is 0, nothing is copied: the answer says whether
    all of them are there."""

    session: int
    request: int
    source: int
    ids: bytes  #: packed; 0: it holds no part of that one
    first: int


class Copied(Struct, frozen=True):
    request: int
    error: Failure | None = None
