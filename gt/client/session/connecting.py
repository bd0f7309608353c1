"""The session of this process: one at a time, opened when it is first needed, closed when the process ends.

A process joins a running server or starts a private one. A session begins with the workers that the settings or the
user ask for: one, a mesh of some, or all.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Mapping
from typing import Any

from gt import config, transport
from gt.client.compat.arguments import shown
from gt.client.programs.pending import NOWHERE, Pending, in_use, use
from gt.client.programs.tree import change_precision
from gt.client.session import timer
from gt.client.session.placing import configure_session, set_mesh, take_all
from gt.client.session.session import Session
from gt.errors import ArgumentError, ServerError, StateError
from gt.server import start_private

__all__ = ["connect", "disconnect", "gpu_workers"]

_current: Session | None = None
_starting = threading.Lock()
_wanted: dict[str, Any] = {}  #: Settings that the user has chosen for the next private server.


def current() -> Session:
    """The session of this process; the first use connects to GT_SERVER or starts a private server."""
    global _current
    if _current is None or _current.closed:
        with _starting:
            if _current is None or _current.closed:
                _current = join_or_start()
    return _current


def adopt(session: Session | None) -> Session | None:
    """Make this the current session (the simulator has many); returns the one before."""
    global _current
    before, _current = _current, session
    return before


def choose_precision(product: str | None = None, conv_tf32: bool | None = None) -> None:
    """Set the precision of float32 for what is recorded from now on; pending programs keep theirs. See Precision."""
    session = _current
    if not change_precision(product, conv_tf32):
        return
    mine = in_use()  # it may be on paper, beside the session of the process
    for each in {s for s in (session, mine and mine.session) if s is not None and not (s.forked or s.broken)}:
        for rec in list(each.recorders):
            each.settle(rec.pending)


def connect(
    address: str = "", token: str | None = None, mesh: Mapping[str, int] | None = None, session: str = ""
) -> Session:
    """Join a running server: `gt.connect("host:12345")`. Tensors made before belong to the old session.

    A server that other machines can reach needs a key: `gt login` stores it, or the address is the connection URL
    itself (`gt://host:12345#key`). Without an address it is the server of GT_SERVER, or that of the latest login.
    With `mesh={"x": 4}` the session runs on four of its workers: see `gt.mesh`.

    With `session="exp1"` it has a name. What it keeps (`gt.keep`) stays when this process ends or is cut off, for the
    lease of the server (an hour). The next client that connects with the name gets it back (`gt.kept`), on the same
    workers and with the same meshes. If another client uses the name, that one is closed.
    """
    _refuse_on_paper("connect")
    if not isinstance(session, str):
        raise ArgumentError(f"connect: session must be a str, got {shown(session)}")
    settings = config.load()
    if token is not None:
        settings = config.replace(settings, token=token)
    new = _join(address or settings.server, settings, mesh, session)
    disconnect()
    adopt(new)
    use(None)
    return new


def disconnect() -> None:
    """Close the session. The next tensor opens one again."""
    _refuse_on_paper("disconnect")
    old = adopt(None)
    if old is not None:
        old.close()
    use(None)


def _refuse_on_paper(name: str) -> None:
    rec = in_use()
    if rec is not None and rec.session.on_paper and not rec.session.closed:
        raise StateError(f"{name}: not inside of a gt.on_paper() block, which uses no server; call it before or after")


def gpu_workers(n: int) -> None:
    """Set the number of workers of the private server. They run on this machine's GPUs in turn, or on its CPU.

    Call it before creating the first tensor. A session runs on one of them until `gt.mesh` is called.
    """
    if type(n) is not int or n < 1:
        raise ArgumentError(f"gpu_workers: n must be an int >= 1, got {shown(n)}")
    if _current is not None and not _current.closed:
        raise StateError("gpu_workers: the server is running already; call it before creating the first tensor")
    _wanted["workers"] = n


def join_or_start() -> Session:
    """A session at GT_SERVER, or at a private server."""
    settings = config.load()
    return _join(settings.server, settings) if settings.server else _start(config.replace(settings, **_wanted))


def _join(address: str, settings: config.Config, mesh: Mapping[str, int] | None = None, name: str = "") -> Session:
    address, key = transport.look_up(config.home(settings), address, settings.server)
    if not address:
        raise ServerError("no server to connect to: give its address, set GT_SERVER, or run gt login URL first")
    channel = transport.connect(address, key)
    try:
        session = Session(channel, settings, name=name)
    except ServerError as e:
        channel.close()
        raise ServerError(f"{address}: {e}") from None
    session.address = address
    if settings.verbose or settings.debug_client:
        session.say(f"connected to {address} as session {session.number}")
    timer.start(session)
    return begin(session, mesh)


def _start(settings: config.Config) -> Session:
    private = start_private(settings)
    try:
        channel = transport.connect(private.address)
        session = Session(channel, config.replace(settings, token=private.token), private)
    except BaseException:
        private.close()
        raise
    if settings.verbose or settings.debug_client:
        session.say(f"started a private server, process {private.pid}, and connected as session {session.number}")
    timer.start(session)
    return begin(session)


def begin(session: Session, mesh: Mapping[str, int] | None = None) -> Session:
    """Give a new session the workers that were asked for."""
    settings = session.config
    try:
        if mesh is not None:
            set_mesh(session, "", mesh, split=settings.auto_shard)
        elif settings.auto_shard:
            take_all(session, settings.worker_timeout_s)
        if settings.signals:
            configure_session(session, settings.signals)
    except BaseException:
        session.close()
        raise
    return session


def _after_fork() -> None:
    if _current is not None:
        _current.forked = True
        _current.channel.leave()
        _current.transfers.ring = None
        for rec in _current.recorders:
            rec.pending = Pending(rec, NOWHERE)


def _at_exit() -> None:
    if _current is not None and not _current.forked:
        _current.close()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
