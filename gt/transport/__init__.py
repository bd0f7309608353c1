"""How messages are sent: their structs, their bytes, and connections.

On one machine they go over Unix sockets (unix.py), between machines over ZeroMQ (sockets.py and router.py).
`connect` and `listen` choose by the address.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from gt.transport.identity import Key, Keyring
    from gt.transport.router import Router
    from gt.transport.sockets import SocketChannel
    from gt.transport.unix import UnixChannel, UnixRouter


def connect(address: str, key: Key | None = None, silent_s: float | None = None) -> SocketChannel | UnixChannel:
    """A channel to the server at "host:port" or "ipc:///path"; encrypted, with a key. The server gives up a connection
    between machines after `silent_s` without a sign of life."""
    if address.startswith("ipc://"):
        from gt.transport.unix import UnixChannel

        return UnixChannel(address)
    from gt.transport.sockets import SocketChannel

    return SocketChannel(address, key, silent_s)


def look_up(home: Path, address: str = "") -> tuple[str, Key | None]:
    """The address of a server, without its key, and the key of a client for it, if it has one: see logins.find."""
    from gt.transport import logins  # only here: most clients start a server of their own

    return logins.find(home, address)


def listen(address: str, ring: Keyring | None = None) -> Router | UnixRouter:
    """The server's side of `connect`. With a ring of keys it accepts those who have one of them alone."""
    if address.startswith("ipc://"):
        from gt.transport.unix import UnixRouter

        return UnixRouter(address)
    from gt.transport.router import Router

    return Router(address, ring=ring)
