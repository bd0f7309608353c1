"""Which workers a session runs on, as the user asks: its meshes, and its configuration of signals."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from gt import layout as layouts
from gt.client.compat.arguments import shown
from gt.client.programs.pending import in_use
from gt.client.session.meshes import SessionMesh
from gt.client.session.session import Session
from gt.client.session.signals import Placement, Signals, read
from gt.errors import ArgumentError, FunctionError
from gt.layout import Layout
from gt.transport.messages import MeshSet, SetMesh

LOOK_S = 0.1  #: How often take_all() asks whether the server has a worker yet.


def set_mesh(
    session: Session, name: str, axes: Mapping[str, int], workers: Sequence[int] | None = None, split: bool = False
) -> SessionMesh:
    """Create a mesh. `workers` are positions among the session's workers."""
    checked = _checked(name, axes, workers)
    rec = in_use()
    if rec is not None and rec.session is session:
        if rec.trace is not None:
            raise FunctionError(f"{rec.trace.name}: call gt.mesh() outside of the @gt.function")
        rec.settle()  # what was recorded so far runs on the old mesh,
    sent = session.seq
    session.wait(lambda: session.done >= sent)  # and has finished before the axes of that mesh are gone
    needed = max(workers) + 1 if workers else math.prod(checked.values())
    if session.private is not None:  # no worker will join a private server later
        there = len(session.stats()["workers"])
        if needed > there:
            raise ArgumentError(f"mesh: needs {needed} workers, but this server has {there}{_cure(session, needed)}")
    if math.prod(checked.values()) > 1 or workers:
        with session.lock:  # before SetMesh is sent: messages after it must carry their bytes themselves
            session.transfers.stop_sharing()
    answer: MeshSet = session.ask(
        lambda request: SetMesh(request, name, tuple(checked.items()), tuple(workers or ()), split)
    )
    if answer.error:
        cure = _cure(session, needed) if needed > len(session.stats()["workers"]) else ""
        raise ArgumentError(f"mesh: {answer.error}{cure}")
    if not name:
        session.meshes.uploads.clear()  # they name axes of the mesh before
    made = session.meshes.by_name[name] = SessionMesh(name, layouts.mesh(answer.workers, **checked))
    if len(made.workers) > 1:
        session.meshes.several = True
    return made


def _cure(session: Session, count: int) -> str:
    if session.private is not None:
        return f"; set GT_WORKERS={count}, or call gt.gpu_workers({count}) first, to start more on a private server"
    return "; start more with `gt worker`, or start the server with `gt serve --workers N`"


def take_all(session: Session, wait_s: float) -> None:
    """Create a mesh of all workers with one axis x. Wait up to wait_s seconds for the first worker."""
    deadline = time.monotonic() + wait_s
    while not (count := len(session.stats()["workers"])) and time.monotonic() < deadline:
        time.sleep(LOOK_S)  # the server sends no message when a worker joins
    if count > 1:
        set_mesh(session, "", {"x": count}, split=True)


def layout_alone(session: Session) -> Layout:
    """The layout of every tensor in a session without a mesh: whole on its one worker. The server is asked once."""
    meshes = session.meshes
    if meshes.alone is None:
        workers = session.stats()["workers"]
        mine = [int(n) for n, about in workers.items() if about["yours"]]
        if not mine:  # no worker was assigned yet
            return layouts.whole(min(map(int, workers), default=0))
        meshes.alone = layouts.whole(mine[0])
    return meshes.alone


def _checked(name: Any, axes: Mapping[str, int], workers: Any) -> dict[str, int]:
    if not isinstance(name, str) or (name and not re.fullmatch(r"[a-zA-Z_]\w*", name)):
        raise ArgumentError(f"mesh: the name must be a valid identifier, got {shown(name)}")
    if not isinstance(axes, Mapping) or not axes:
        raise ArgumentError("mesh: expected at least one axis, as in gt.mesh(x=4)")
    for axis, n in axes.items():
        if type(n) is not int or n < 1:
            raise ArgumentError(f"mesh: the size of axis {axis} must be an int >= 1, got {shown(n)}")
        if not isinstance(axis, str) or not re.fullmatch(r"[a-zA-Z_]\w*", axis):
            raise ArgumentError(f"mesh: the name of an axis must be a valid identifier, got {shown(axis)}")
    if workers is not None:
        count = math.prod(axes.values())
        if not name:
            raise ArgumentError("mesh: workers= needs a named mesh, as in gt.mesh('first', x=2, workers=[0, 1])")
        if isinstance(workers, str) or any(type(w) is not int or w < 0 for w in workers):
            raise ArgumentError(f"mesh: workers must be positions among the session's workers, got {shown(workers)}")
        if len(workers) != count or len(set(workers)) != count:
            raise ArgumentError(f"mesh: axes {dict(axes)} need {count} different workers, got {list(workers)}")
    return dict(axes)


def configure_session(session: Session, config: Any) -> None:
    """Set where named parts of the computation run; `config` is a mapping, or the name of a file with one."""
    signals = Signals(read(config) if isinstance(config, str) or hasattr(config, "__fspath__") else config)
    if signals.mesh:
        set_mesh(session, "", signals.mesh, split=session.config.auto_shard)
    for name, axes in signals.meshes.items():
        workers = axes.pop("workers", None)
        set_mesh(session, name, axes, workers)
    if session.meshes.by_name:
        for where, table in (("parameters", signals.parameters), ("signals", signals.signals)):
            for name, placement in table.items():
                _check_axes(session, f"signal: {where}: {name}", placement)
    session.signals = signals


def _check_axes(session: Session, where: str, placement: Placement) -> None:
    """Check the names of meshes and axes now, rather than when a model runs."""
    try:
        grid = session.meshes.find(placement.mesh)
        layouts.split(grid, (1,) * len(placement.split), dict(enumerate(axes for _, axes in placement.split)))
    except ArgumentError as e:
        raise ArgumentError(f"{where}: {str(e).removeprefix('layout: ')}") from None
