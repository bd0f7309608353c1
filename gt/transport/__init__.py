"""How messages are sent: their structs, their bytes, and connections.

On one machine they go over Unix sockets (unix.py), between machines over ZeroMQ (sockets.py and router.py).
`connect` and `listen` choose by the address.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gt.transport.router import Router
    from gt.transport.sockets import SocketChannel
    from gt.transport.unix import UnixChannel, UnixRouter


def connect(address: str) -> SocketChannel | UnixChannel:
    """A channel to the server at "host:port" or "ipc:///path"."""
    if address.startswith("ipc://"):
        from gt.transport.unix import UnixChannel

        return UnixChannel(address)
    from gt.transport.sockets import SocketChannel

    return SocketChannel(address)


def listen(address: str) -> Router | UnixRouter:
    """The server's side of `connect`."""
    if address.startswith("ipc://"):
        from gt.transport.unix import UnixRouter

        return UnixRouter(address)
    from gt.transport.router import Router

    return Router(address)
