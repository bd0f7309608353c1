"""Who may join a server that other machines can reach: users, keys, and the URLs that carry them.

Law 1: a key pair is made by `gt user`. The server keeps the public half; the secret half is in the URL, printed once.
Law 2: a key is for a client or for workers, never for both.
Law 3: the repr of a key shows no secret.

A connection URL is `gt://host:port#user-KEY` or `gt://host:port#worker-KEY`. KEY is the server's public key and the
secret key of the user: with the first a client knows that it talks to this server, with the second it proves who it is.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from gt.errors import ServerError

NBYTES = 32  #: of a key, public or secret
CLIENT, WORKER = "user", "worker"  #: What a key is for.
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}")


class User(msgspec.Struct, frozen=True):
    """Somebody who may join, and what they may use."""

    name: str
    role: str  #: CLIENT or WORKER
    key: str  #: the public key, as hexadecimal digits
    memory: int = 0  #: bytes that the sessions of this user may hold on one worker; 0: no limit
    share: int = 1  #: run time, in proportion to others
    workers: int = 0  #: workers of one session; 0: no limit
    upload: int = 0  #: bytes that the sessions of this user may upload per second; 0: no limit

    def __repr__(self) -> str:
        return f"User({self.name})"


@dataclass(frozen=True)
class Key:
    """What a client or worker needs to join a server: see the file's header."""

    role: str
    server: bytes = field(repr=False)  #: public key of the server
    secret: bytes = field(repr=False)


class Keyring:
    """The users who may join now. The dispatcher's loop replaces them; the thread that admits connections reads them.
    It calls `look` when it does not know a key: the user may have been added a moment ago."""

    def __init__(
        self, public: bytes, secret: bytes, users: Mapping[str, User], look: Callable[[], None] = lambda: None
    ) -> None:
        self.public = public  #: keys of the server
        self.secret = secret
        self.users = dict(users)  #: by public key; replaced, never changed
        self._look = look

    def knows(self, key: str) -> bool:
        if key not in self.users:
            self._look()
        return key in self.users


def parse_url(url: str) -> tuple[str, Key]:
    """The address "host:port" and the key in a connection URL. An error never repeats the key."""
    where, _, text = url.strip().removeprefix("gt://").partition("#")
    role, dash, digits = text.partition("-")
    if not url.strip().startswith("gt://") or not dash or role not in (CLIENT, WORKER) or not where:
        raise ServerError("a connection URL must have the form gt://host:port#key, as gt user prints it")
    try:
        raw = base64.b64decode(digits + "=" * (-len(digits) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != 2 * NBYTES:
        raise ServerError(f"the key in the connection URL for {where} is incomplete; copy the whole line")
    return where, Key(role, raw[:NBYTES], raw[NBYTES:])


def url(address: str, key: Key) -> str:
    """The connection URL of a key.

    >>> text = url("lab:12345", Key("user", b"a" * 32, b"b" * 32))
    >>> text[:20], parse_url(text)[0]
    ('gt://lab:12345#user-', 'lab:12345')
    """
    digits = base64.urlsafe_b64encode(key.server + key.secret).decode().rstrip("=")
    return f"gt://{address}#{key.role}-{digits}"
