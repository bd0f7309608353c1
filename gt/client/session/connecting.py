"""How a process comes to its session: it joins a running server, or starts a private one.

A session begins with the workers that the settings or the user ask for: one, some as a mesh, or all there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gt import config, transport
from gt.client.compat.arguments import shown
from gt.client.record import recorder as recording
from gt.client.session import current as sessions
from gt.client.session.session import Session
from gt.errors import ArgumentError, ServerError, StateError

__all__ = ["connect", "disconnect", "gpu_workers"]

_wanted: dict[str, Any] = {}  #: Settings of the next private server that the user has changed.


def connect(address: str, token: str | None = None, mesh: Mapping[str, int] | None = None) -> Session:
    """Join a running server: `gt.connect("host:12345")`. Tensors made before belong to the old session.

    With `mesh={"x": 4}` the session lives on four of its workers: see `gt.mesh`.
    """
    settings = config.load()
    if token is not None:
        settings = config.replace(settings, token=token)
    new = _join(address, settings, mesh)
    disconnect()
    sessions.adopt(new)
    recording.use(None)
    return new


def disconnect() -> None:
    """Leave the server. The next tensor starts or joins one again."""
    old = sessions.adopt(None)
    if old is not None:
        old.close()
    recording.use(None)


def gpu_workers(n: int) -> None:
    """Have the server that starts by itself run this many workers: on this machine's GPUs in turn, or else on its CPU.

    To be called before the first tensor. A session still lives on one of them, until `gt.mesh` says otherwise.
    """
    if type(n) is not int or n < 1:
        raise ArgumentError(f"gpu_workers: 1 or more, not {shown(n)}")
    if sessions.is_open():
        raise StateError("gpu_workers: this process has a server already; call it before the first tensor is made")
    _wanted["workers"] = n


def join_or_start() -> Session:
    """A session at GT_SERVER, or at a private server."""
    settings = config.load()
    return _join(settings.server, settings) if settings.server else _start(config.replace(settings, **_wanted))


def _join(address: str, settings: config.Config, mesh: Mapping[str, int] | None = None) -> Session:
    channel = transport.connect(address)
    try:
        session = Session(channel, settings)
    except ServerError as e:
        channel.close()
        raise ServerError(f"{address}: {e}") from None
    return begin(session, mesh)


def _start(settings: config.Config) -> Session:
    from gt.server.local import start_private

    private = start_private(settings)
    try:
        channel = transport.connect(private.address)
        session = Session(channel, config.replace(settings, token=private.token), private)
    except BaseException:
        private.close()
        raise
    return begin(session)


def begin(session: Session, mesh: Mapping[str, int] | None = None) -> Session:
    """Give a new session the workers that were asked for."""
    settings = session.config
    try:
        if mesh is not None:
            session.meshes.set("", mesh, split=settings.auto_shard)
        elif settings.auto_shard:
            session.meshes.take_all(settings.worker_timeout_s)
        if settings.signals:
            from gt.client.mesh.signals import configure_session

            configure_session(session, settings.signals)
    except BaseException:
        session.close()
        raise
    return session
