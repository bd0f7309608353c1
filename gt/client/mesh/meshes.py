"""The meshes of a session: which of the server's workers it lives on, and as what grid.

A session begins on one worker. The mesh "" is its own, where results go unless something says otherwise; meshes with
a name are grids of some of its workers, and are named in layouts: "stage1: [100@x]".
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

LOOK_S = 0.1  #: How often a session that shall take all workers looks whether there is one.


@dataclass(frozen=True)
class Mesh:
    """A grid of workers that a session lives on."""

    name: str
    grid: layout.Mesh

    @property
    def axes(self) -> dict[str, int]:
        """How many workers there are along each axis, the major one first."""
        return dict(self.grid.axes)

    @property
    def workers(self) -> tuple[int, ...]:
        """Their numbers at the server, row-major over the axes."""
        return self.grid.workers

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        axes = "".join(f" {axis}={n}" for axis, n in self.grid.axes)
        return f"<mesh{name}{axes}: {_workers(self.workers)}>"


def _workers(numbers: Sequence[int]) -> str:
    return f"worker{'s' * (len(numbers) > 1)} {' '.join(map(str, numbers))}"


class Meshes:
    """What a session knows of its meshes."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.by_name: dict[str, Mesh] = {}
        self.several = False  #: Whether the session lives on more than one worker.
        self._alone: Layout | None = None

    def alone(self) -> Layout:
        """How everything lies in a session without a mesh: on its one worker. Asked for once."""
        if self._alone is None:
            workers = self._session.stats()["workers"]
            mine = [int(n) for n, about in workers.items() if about["yours"]]
            if not mine:  # it has none yet
                return layout.whole(min(map(int, workers), default=0))
            self._alone = layout.whole(mine[0])
        return self._alone

    def set(
        self, name: str, axes: Mapping[str, int], workers: Sequence[int] | None = None, split: bool = False
    ) -> Mesh:
        """Have the session live on this mesh too; `workers` are positions among those that it has."""
        checked = _checked(name, axes, workers)
        session = self._session
        rec = recording.in_use()
        if rec is not None and rec.session is session:
            if rec.trace is not None:
                raise FunctionError(f"{rec.trace.name}: a mesh is made outside of a @gt.function")
            rec.settle()  # what was recorded before goes where it would have gone,
        sent = session.seq
        session.wait(lambda: session.done >= sent)  # and is not planned when its axes are gone
        needed = max(workers) + 1 if workers else math.prod(checked.values())
        if session.private is not None:  # nobody else will join it: there is nothing to wait for
            there = len(session.stats()["workers"])
            if needed > there:
                raise ArgumentError(f"mesh: {needed} workers are needed; this server has {there}{self._cure(needed)}")
        if math.prod(checked.values()) > 1 or workers:
            with session.lock:  # before the server hears of it: what comes behind that has to bring its bytes
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
            return f"; a private server has more with GT_WORKERS={count}, or gt.gpu_workers({count}) at the beginning"
        return "; more are started with `gt worker`, or with the server: `gt serve --workers N`"

    def take_all(self, wait_s: float) -> None:
        """Live on all workers that there are, on one axis x. While there is none, wait so long for the first."""
        deadline = time.monotonic() + wait_s
        while not (count := len(self._session.stats()["workers"])) and time.monotonic() < deadline:
            time.sleep(LOOK_S)  # the server tells nobody when a worker joins
        if count > 1:
            self.set("", {"x": count}, split=True)

    def find(self, name: str) -> layout.Mesh:
        """The grid of that name."""
        found = self.by_name.get(name)
        if found is None:
            others = ", ".join(repr(n) for n in self.by_name if n) or "none"
            if name:
                raise ArgumentError(f"layout: there is no mesh {name!r}; those with a name are: {others}")
            raise ArgumentError("layout: this session has no mesh of its own; make one with gt.mesh(x=2)")
        return found.grid

    def text(self, lay: Layout) -> str:
        """A layout as programs and uploads name it."""
        for name, made in self.by_name.items():
            if made.grid is lay.mesh:
                return f"{name}: {lay!r}" if name else repr(lay)
        raise ArgumentError(f"layout: {lay!r} is on {_workers(lay.mesh.workers)}, which no mesh of this session is")


def _checked(name: Any, axes: Mapping[str, int], workers: Any) -> dict[str, int]:
    if not isinstance(name, str) or (name and not re.fullmatch(r"[a-zA-Z_]\w*", name)):
        raise ArgumentError(f"mesh: a name is like that of a variable, not {shown(name)}")
    if not isinstance(axes, Mapping) or not axes:
        raise ArgumentError("mesh: needs an axis, as in gt.mesh(x=4)")
    for axis, n in axes.items():
        if type(n) is not int or n < 1:
            raise ArgumentError(f"mesh: axis {axis} has 1 or more workers, not {shown(n)}")
        if not isinstance(axis, str) or not re.fullmatch(r"[a-zA-Z_]\w*", axis):
            raise ArgumentError(f"mesh: an axis has a name like a variable, not {shown(axis)}")
    if workers is not None:
        count = math.prod(axes.values())
        if not name:
            raise ArgumentError(
                "mesh: which workers is said of a mesh with a name: gt.mesh('first', x=2, workers=[0, 1])"
            )
        if isinstance(workers, str) or any(type(w) is not int or w < 0 for w in workers):
            raise ArgumentError("mesh: workers are named by their positions among the session's: 0, 1, ...")
        if len(workers) != count or len(set(workers)) != count:
            raise ArgumentError(f"mesh: axes {dict(axes)} hold {count} different workers, not {list(workers)}")
    return dict(axes)
