"""Routers and channels for tests, and how to wait for something on a router."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gt.transport.curve import new_pair, public_of
from gt.transport.identity import CLIENT, Key, Keyring, User
from gt.transport.messages import Buffer, GetStats
from gt.transport.plain import PlainChannel
from gt.transport.plain_router import PlainRouter
from gt.transport.router import Router
from gt.transport.sockets import SocketChannel

DEADLINE_S = 30.0  #: For what a loaded machine may do slowly.

AnyRouter = Router | PlainRouter
AnyChannel = SocketChannel | PlainChannel
Join = Callable[[], AnyChannel]


_OWN, _USER = new_pair(), new_pair()
KEY = Key(CLIENT, _OWN[0], _USER[1])  #: Of a user whom `ring` knows.


def ring() -> Keyring:
    """A ring with one user."""
    public = public_of(KEY.secret).hex()
    return Keyring(*_OWN, {public: User("ada", CLIENT, public)})


def channel_to(router: AnyRouter) -> AnyChannel:
    if isinstance(router, PlainRouter):
        return PlainChannel(router.address)
    return SocketChannel(router.address, KEY if router._ring is not None else None)


@contextmanager
def joining(router: AnyRouter) -> Iterator[Join]:
    """A function that connects to a router; what it has made is closed at the end."""
    made: list[AnyChannel] = []

    def new() -> AnyChannel:
        made.append(channel_to(router))
        return made[-1]

    yield new
    for channel in made:
        channel.close()


def until(router: AnyRouter, ready: Callable[[], Any]) -> Any:
    """Let the router work until `ready` returns something true; returns that."""
    deadline = time.monotonic() + DEADLINE_S
    while not (found := ready()):
        assert time.monotonic() < deadline, "it did not happen"
        router.wait(0.05)
    return found


def next_message(router: AnyRouter) -> tuple[bytes, list[Buffer]]:
    got: tuple[bytes, list[Buffer]] = until(router, router.receive)
    return got


def meet(router: AnyRouter, channel: AnyChannel) -> bytes:
    """Let a channel say something; the name of its peer."""
    channel.send(GetStats(1))
    return next_message(router)[0]


def until_lost(router: AnyRouter, peer: bytes) -> list[bytes]:
    """The peers lost up to and with this one."""
    lost: list[bytes] = []

    def look() -> bool:
        router.receive()
        lost.extend(router.lost())
        return peer in lost

    until(router, look)
    return lost
