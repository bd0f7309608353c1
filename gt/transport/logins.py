"""The keys that `gt login` has stored on this machine: a file that its user alone can read.

Law 1: the file and its folder have the modes 0600 and 0700 from the moment they exist.
Law 2: it is replaced as a whole: a reader never sees half of it.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
from contextlib import suppress
from pathlib import Path

from gt.errors import ServerError
from gt.transport.identity import CLIENT, Key, parse_url, url

FILE = "logins.json"


def write_private(path: Path, text: str) -> None:
    """Replace a file by one that only its user can read."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")  # has the mode 0600
    try:
        with open(fd, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


def read_private(path: Path) -> str:
    """The text of such a file; empty if there is none. Refuses one that others could read or write."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    except OSError as e:
        raise ServerError(f"cannot read {path}: {e.strerror}") from None
    with open(fd) as file:
        mode = os.fstat(fd).st_mode & 0o777
        if mode & 0o077:
            raise ServerError(f"{path} can be read by others (mode {mode:04o}); run: chmod 600 {path}")
        return file.read()


def _read(home: Path) -> dict[str, dict[str, str]]:
    text = read_private(home / FILE)
    try:
        found = json.loads(text) if text else {}
        return {role: {str(a): str(u) for a, u in logins.items()} for role, logins in found.items()}
    except (ValueError, AttributeError):
        raise ServerError(f"{home / FILE} is damaged; delete it and run gt login again") from None


def store(home: Path, text: str) -> tuple[str, Key]:
    """Store a connection URL; the latest one of a role is the one used by default."""
    address, key = parse_url(text)
    logins = _read(home)
    of_role = logins.setdefault(key.role, {})
    of_role.pop(address, None)
    of_role[address] = url(address, key)
    try:
        write_private(home / FILE, json.dumps(logins, indent=1))
    except OSError as e:
        raise ServerError(f"cannot write {home / FILE}: {e.strerror}") from None
    return address, key


def find(home: Path, address: str = "", role: str = CLIENT, given: str = "") -> tuple[str, Key | None]:
    """The address to connect to, and the key for it if there is one. A URL has both. Without an address it is that of
    the latest login, or empty. `given`: what GT_SERVER says; if it is the URL of this address, its key is used."""
    if address.startswith("gt://"):
        return _of_role(*parse_url(address), role)
    if address.startswith("ipc://"):
        return address, None
    if address and given.startswith("gt://"):
        named, key = parse_url(given)
        if key.role == role and (named == address or _same(named, address)):
            return address, key
    logins = _read(home).get(role, {})
    if not address:
        address = next(reversed(logins), "")
    text = logins.get(address) or next((u for a, u in logins.items() if _same(a, address)), None)
    if text:
        text = url(address, parse_url(text)[1])  # the name that was asked for
    return _of_role(*parse_url(text), role) if text else (address, None)


def _same(a: str, b: str) -> bool:
    """Whether two names mean the same address. A key is safe to use either way: the server has to prove its own."""
    (host_a, _, port_a), (host_b, _, port_b) = a.rpartition(":"), b.rpartition(":")
    if port_a != port_b:
        return False
    try:
        return socket.gethostbyname(host_a) == socket.gethostbyname(host_b)
    except (OSError, UnicodeError):
        return False


def _of_role(address: str, key: Key, role: str) -> tuple[str, Key]:
    if key.role != role:
        raise ServerError(
            f"the URL for {address} has a {key.role} key; "
            + ("clients need one of: gt user add NAME" if role == CLIENT else "workers need one of: gt user worker-key")
        )
    return address, key
