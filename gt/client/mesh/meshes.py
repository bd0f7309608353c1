"""The meshes of a session: which of the server's workers it runs on, and how they are arranged in a grid.

A session begins on one worker. The mesh "" is its default mesh: results go there unless a layout says otherwise. A
named mesh is a grid of some of the session's workers. Layouts refer to it by name: "stage1: [100@x]".
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gt import layout
from gt.client.compat.arguments import shown
from gt.client.record import recorder as recording
from gt.errors import ArgumentError, FunctionError
from gt.layout import Layout
from gt.transport.messages import MeshSet, SetMesh

if TYPE_CHECKING:
    from gt.client.session.session import Session

LOOK_S = 0.1  #: How often take_all() asks whether the server has a worker yet.


@dataclass(frozen=True)
class Mesh:
    """A grid of workers that a session runs on."""

    name: str
    grid: layout.Mesh

    @property
    def axes(self) -> dict[str, int]:
        """The number of workers along each axis, the major axis first."""
        return dict(self.grid.axes)

    @property
    def workers(self) -> tuple[int, ...]:
        """The workers' numbers at the server, in row-major order over the axes."""
        return self.grid.workers

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        axes = "".join(f" {axis}={n}" for axis, n in self.grid.axes)
        return f"<mesh{name}{axes}: {_workers(self.workers)}>"


def _workers(numbers: Sequence[int]) -> str:
    return f"worker{'s' * (len(numbers) > 1)} {' '.join(map(str, numbers))}"


class Meshes:
    """The meshes of one session, by name."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.by_name: dict[str, Mesh] = {}
        self.several = False  #: Whether the session runs on more than one worker.
        self._alone: Layout | None = None

    def alone(self) -> Layout:
        """The layout of every tensor in a session without a mesh: whole on its one worker. The server is asked once."""
        if self._alone is None:
            workers = self._session.stats()["workers"]
            mine = [int(n) for n, about in workers.items() if about["yours"]]
            if not mine:  # no worker was assigned yet
                return layout.whole(min(map(int, workers), default=0))
            self._alone = layout.whole(mine[0])
        return self._alone

    def set(
        self, name: str, axes: Mapping[str, int], workers: Sequence[int] | None = None, split: bool = False
    ) -> Mesh:
        """Create a mesh. `workers` are positions among the session's workers."""
        checked = _checked(name, axes, workers)
        session = self._session
        rec = recording.in_use()
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
                raise ArgumentError(f"mesh: needs {needed} workers, but this server has {there}{self._cure(needed)}")
        if math.prod(checked.values()) > 1 or workers:
            with session.lock:  # before SetMesh is sent: messages after it must carry their bytes themselves
                session.transfers.stop_sharing()
        answer: MeshSet = session.ask(
            lambda request: SetMesh(request, name, tuple(checked.items()), tuple(workers or ()), split)
        )
        if answer.error:
            cure = self._cure(needed) if needed > len(session.stats()["workers"]) else ""
            raise ArgumentError(f"mesh: {answer.error}{cure}")
        made = self.by_name[name] = Mesh(name, layout.mesh(answer.workers, **checked))
        if len(made.workers) > 1:
            self.several = True
        return made

    def _cure(self, count: int) -> str:
        if self._session.private is not None:
            return f"; set GT_WORKERS={count}, or call gt.gpu_workers({count}) first, to start more on a private server"
        return "; start more with `gt worker`, or start the server with `gt serve --workers N`"

    def take_all(self, wait_s: float) -> None:
        """Create a mesh of all workers with one axis x. Wait up to wait_s seconds for the first worker."""
        deadline = time.monotonic() + wait_s
        while not (count := len(self._session.stats()["workers"])) and time.monotonic() < deadline:
            time.sleep(LOOK_S)  # the server sends no message when a worker joins
        if count > 1:
            self.set("", {"x": count}, split=True)

    def find(self, name: str) -> layout.Mesh:
        """The grid of the mesh with this name."""
        found = self.by_name.get(name)
        if found is None:
            others = ", ".join(repr(n) for n in self.by_name if n) or "none"
            if name:
                raise ArgumentError(f"layout: unknown mesh {name!r}; named meshes: {others}")
            raise ArgumentError("layout: this session has no default mesh; create one, e.g. with gt.mesh(x=2)")
        return found.grid

    def text(self, lay: Layout) -> str:
        """A layout as text, prefixed with its mesh's name, as programs and uploads contain it."""
        for name, made in self.by_name.items():
            if made.grid is lay.mesh:
                return f"{name}: {lay!r}" if name else repr(lay)
        raise ArgumentError(f"layout: {lay!r} is on {_workers(lay.mesh.workers)}; this session has no such mesh")


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
