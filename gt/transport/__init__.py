"""How messages are sent: their structs, their bytes, and connections.

On one machine they go over sockets of our own, Unix or TCP (plain.py, plain_router.py). A server that other machines
can reach has users with keys: there they go over ZeroMQ, encrypted (sockets.py, router.py). `connect` and `listen`
choose by the key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from gt.transport.identity import Key, Keyring
    from gt.transport.plain import PlainChannel
    from gt.transport.plain_router import PlainRouter
    from gt.transport.router import Router
    from gt.transport.sockets import SocketChannel


def connect(address: str, key: Key | None = None, silent_s: float | None = None) -> SocketChannel | PlainChannel:
    """A channel to the server at "host:port" or "ipc:///path"; encrypted, with a key. The server gives up a connection
    between machines after `silent_s` without a sign of life."""
    if key is None:
        from gt.transport.plain import PlainChannel

        return PlainChannel(address)
    from gt.transport.sockets import SocketChannel

    return SocketChannel(address, key, silent_s)


def look_up(home: Path, address: str = "", given: str = "") -> tuple[str, Key | None]:
    """The address of a server, without its key, and the key of a client for it, if it has one: see logins.find."""
    from gt.transport import logins  # only here: most clients start a server of their own

    return logins.find(home, address, given=given)


def listen(address: str, ring: Keyring | None = None) -> Router | PlainRouter:
    """The server's side of `connect`. With a ring of keys it accepts those who have one of them alone."""
    if ring is None:
        from gt.transport.plain_router import PlainRouter

        return PlainRouter(address)
    from gt.transport.router import Router

    return Router(address, ring=ring)
