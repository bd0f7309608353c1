"""How messages are sent: their structs, their bytes, and connections.

An address is "host:port" or, on one machine, "ipc:///path".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gt.transport.router import Router
    from gt.transport.sockets import SocketChannel


def connect(address: str) -> SocketChannel:
    """A channel to the server at that address."""
    from gt.transport.sockets import SocketChannel

    return SocketChannel(address)


def listen(address: str) -> Router:
    """The server's side of `connect`."""
    from gt.transport.router import Router

    return Router(address)
