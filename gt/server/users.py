"""The users of the server of this machine: two files in GT's folder, written by `gt user`, read by `gt serve`.

Law 1: the secret keys of users are never stored. server.key has the server's own, users.json the users' public keys.
Law 2: a change is a new file in place of the old one; a running server notices it (`CurrentUsers`).
"""

from __future__ import annotations

import fcntl
import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from gt.errors import ArgumentError, ServerError, StartError
from gt.transport.curve import new_pair, public_of
from gt.transport.identity import CLIENT, NAME, WORKER, Key, Keyring, User
from gt.transport.logins import read_private, write_private

USERS, SERVER, ADDRESS = "users.json", "server.key", "address"


def read(home: Path) -> dict[str, User]:
    """All users, by public key, in the order in which they were added."""
    text = read_private(home / USERS)
    try:
        users = msgspec.json.decode(text, type=list[User]) if text else []
    except msgspec.DecodeError as e:
        raise ServerError(f"{home / USERS} is damaged: {e}") from None
    return {user.key: user for user in users}


def add(
    home: Path, name: str, role: str = CLIENT, memory: int = 0, share: int = 1, workers: int = 0, upload: int = 0
) -> Key:
    """Add a user; returns the key, which is stored nowhere."""
    if not NAME.fullmatch(name):
        raise ArgumentError(f"user name {name[:80]!r} must be 1 to 64 letters, digits, or _ . @ -")
    if min(memory, workers, upload) < 0 or not 1 <= share <= 1000:
        given = f"memory {memory}, workers {workers}, upload {upload}, share {share}"
        raise ArgumentError(f"limits must be >= 0, and the share must be from 1 to 1000, got {given}")
    with _changing(home) as users:
        if any(user.name == name for user in users.values()):
            raise ArgumentError(f"there is a user {name!r} already; gt user revoke {name} removes it")
        public, secret = new_pair()
        user = User(name, role, public.hex(), memory, share, workers, upload)
        users[user.key] = user
    return Key(role, public_of(server_secret(home)), secret)


def revoke(home: Path, name: str) -> None:
    """Remove a user. A running server ends the user's sessions."""
    with _changing(home) as users:
        found = [key for key, user in users.items() if user.name == name]
        if not found:
            raise ArgumentError(f"there is no user {name!r}; gt user list shows all")
        for key in found:
            del users[key]


@contextmanager
def _changing(home: Path) -> Iterator[dict[str, User]]:
    """The users, to be changed by one process at a time; written at the end if nothing was raised."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(home / f".{USERS}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        users = read(home)
        yield users
        write_private(home / USERS, msgspec.json.format(msgspec.json.encode(list(users.values()))).decode() + "\n")
    finally:
        os.close(fd)


def server_secret(home: Path) -> bytes:
    """The secret key of the server; made at the first use. Who replaces it has to hand out all URLs again."""
    path = home / SERVER
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists():
        fd = os.open(home / f".{SERVER}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)  # two processes must not make two keys
            if not path.exists():
                write_private(path, new_pair()[1].hex() + "\n")
        finally:
            os.close(fd)
    try:
        secret = bytes.fromhex(read_private(path).strip())
    except ValueError:
        secret = b""
    if len(secret) != 32:
        raise ServerError(f"{path} is damaged; delete it, and add the users again")
    return secret


def remember_address(home: Path, address: str) -> None:
    """Note where the server was last reached from outside, for the URLs that are made later."""
    write_private(home / ADDRESS, address + "\n")


def last_address(home: Path) -> str:
    return read_private(home / ADDRESS).strip()


class CurrentUsers:
    """The users of a running server. Keys of its own, for the workers that it starts and for the process that searches
    for plans and measures workers, are stored nowhere."""

    def __init__(self, home: Path) -> None:
        self._home = home
        secret = server_secret(home)
        self._own: dict[str, User] = {}
        self.key = self._own_key("(local workers)", WORKER, secret)
        self.planner_key = self._own_key("(planner)", CLIENT, secret)
        self._lock = threading.Lock()  # `changed` and `look` are called by two threads
        self._seen = self._looked = self._state()
        users = read(home)
        if not any(user.role == CLIENT for user in users.values()):
            raise StartError(
                "a server that other machines can reach needs users: run gt user add NAME for each of them first; "
                "for this machine alone, leave out --host"
            )
        self.ring = Keyring(public_of(secret), secret, {**users, **self._own}, self.look)
        self.secret = secrets.token_hex(32)  #: What workers prove to each other that they know. Another one after a
        #: worker key was revoked.

    def _own_key(self, name: str, role: str, server: bytes) -> Key:
        public, secret = new_pair()
        self._own[public.hex()] = User(name, role, public.hex())
        return Key(role, public_of(server), secret)

    def changed(self) -> bool:
        """Read the users again if the file has changed; whether it has."""
        with self._lock:
            state = self._state()
            if state == self._seen:
                return False
            self._seen = self._looked = state
            try:
                users = read(self._home)
            except ServerError:
                users = {}  # better nobody than somebody who was revoked
            before = {key for key, user in self.ring.users.items() if user.role == WORKER}
            self.ring.users = {**users, **self._own}
            if before - set(self.ring.users):
                self.secret = secrets.token_hex(32)
            return True

    def look(self) -> None:
        """Let in who was added since. Who was revoked is for `changed`: the dispatcher has to end their sessions."""
        with self._lock, suppress(ServerError):
            state = self._state()
            if state != self._looked:
                self._looked = state
                self.ring.users = {**self.ring.users, **read(self._home)}

    def _state(self) -> object:
        try:
            now = os.stat(self._home / USERS)
        except OSError:
            return None
        return now.st_ino, now.st_mtime_ns, now.st_size, now.st_mode


def table(users: dict[str, User]) -> list[str]:
    """The users as `gt user list` prints them. No secrets are in it."""
    rows = [("name", "for", "memory", "share", "workers", "upload/s", "public key")]
    rows += [
        (
            u.name,
            "workers" if u.role == WORKER else "clients",
            str(u.memory or "-"),
            str(u.share),
            str(u.workers or "-"),
            str(u.upload or "-"),
            u.key[:16],
        )
        for u in users.values()
    ]
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return ["  ".join(text.ljust(w) for text, w in zip(row, widths, strict=True)).rstrip() for row in rows]
