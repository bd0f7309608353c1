"""The meshes of a session: which of the server's workers it runs on, and how they are arranged in a grid.

A session begins on one worker. The mesh "" is its default mesh: results go there unless a layout says otherwise. A
named mesh is a grid of some of the session's workers. Layouts refer to it by name: "stage1: [100@x]".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gt import layout
from gt.errors import ArgumentError
from gt.layout import Layout
from gt.program import Spec


@dataclass(frozen=True)
class SessionMesh:
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
    """The meshes of one session, by name. placing.py makes them."""

    def __init__(self) -> None:
        self.by_name: dict[str, SessionMesh] = {}
        self.several = False  #: Whether the session runs on more than one worker.
        #: The layouts of uploads that have none of their own, by shape and dtype: a plan's. They are of the mesh "".
        self.uploads: dict[Spec, str] = {}
        self.alone: Layout | None = None  #: Without a mesh: the layout of every tensor, once the server was asked.

    def take_over(
        self, workers: Sequence[int], meshes: Sequence[tuple[str, tuple[tuple[str, int], ...], tuple[int, ...]]]
    ) -> None:
        """The session has these workers and meshes from the start: those of the client before."""
        for name, axes, members in meshes:
            self.by_name[name] = SessionMesh(name, layout.mesh(members, **dict(axes)))
        self.several = len(workers) > 1

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
