"""Layouts that users choose: `gt.mesh`, `gt.shard`, `gt.replicate`.

All of this is optional: where no layout is given, the planner chooses one. A layout is given as text ("[100@x .]", or
"stage1: [100@x .]" on a named mesh), as a mapping from dimensions to the axes that they are sharded over
({0: "x", 1: ("y", "z")}), or as another tensor's `.layout`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from gt import layout as layouts
from gt.client.compat.arguments import shown
from gt.client.grad.modes import set_grad
from gt.client.mesh.drawing import drawing
from gt.client.programs import kinds
from gt.client.record.recorder import apply, recorder
from gt.client.session.meshes import SessionMesh
from gt.client.session.placing import layout_alone, set_mesh
from gt.client.session.signals import axes_of
from gt.client.tensor import own
from gt.client.views import aliases as views
from gt.client.views.aliases import pinned
from gt.errors import ArgumentError, DTypeError
from gt.layout import Layout

__all__ = ["mesh", "replicate", "shard", "visualize_layout"]
METHODS: list[str] = []

_TEXT = re.compile(r"(?:(\w+): ?)?(\[.*)?", re.DOTALL)


def mesh(name: str = "", /, *, workers: Sequence[int] | None = None, **axes: int) -> SessionMesh:
    """Run this session on several workers, arranged in a grid with these axes: `gt.mesh(x=2, y=2)`.

    New tensors are placed on the mesh. Existing tensors stay on their worker until an op uses them together with
    others. A named mesh is a grid of some of the session's workers, for a part of a model:
    `gt.mesh("stage1", x=2, workers=[2, 3])` takes their positions in the session. Without axes, return the existing
    mesh of that name.
    """
    session = recorder().session
    if not axes and workers is None:
        session.meshes.find(name)
        return session.meshes.by_name[name]
    return set_mesh(session, name, axes, workers, split=session.config.auto_shard and not name)


# --- layouts as text -----------------------------------------------------------------------------------


def layout_text(op: str, shape: tuple[int, ...], wish: Any, on: Any = None) -> str:
    """Check a layout that a user gave for a tensor of this shape; returns it as programs and uploads contain it.

    Returns "" in a session without a mesh: with one worker, no layout changes anything.
    """
    meshes = recorder().session.meshes
    name = on.name if isinstance(on, SessionMesh) else "" if on is None else on
    if not isinstance(name, str):
        raise DTypeError(f"{op}: mesh must be a mesh or the name of one, got {shown(name)}")
    if isinstance(wish, Layout):
        if not meshes.by_name and len(wish.mesh.workers) == 1:
            return ""
        found = wish
        text = meshes.text(wish)
    elif isinstance(wish, Mapping):
        dims = {_dim(op, d, len(shape)): axes_of(op, axes) for d, axes in wish.items()}
        if len(dims) < len(wish):
            raise ArgumentError(f"{op}: layout {dict(wish)} contains a dimension twice")
        if not meshes.by_name:
            return ""
        found = layouts.split(meshes.find(name), shape, dims)
        text = meshes.text(found)
    elif isinstance(wish, str):
        match = _TEXT.fullmatch(wish.strip())
        if match is None:
            raise ArgumentError(f"{op}: expected a layout like '[100@x .]' or 'stage1: [100@x .]', got {wish!r}")
        name = match[1] or name
        if not meshes.by_name:
            return ""
        found = layouts.parse(match[2] or "[]", meshes.find(name))
        text = meshes.text(found)
    else:
        raise DTypeError(f"{op}: layout must be a string like '[100@x .]' or a dict like {{0: 'x'}}, got {shown(wish)}")
    if found.partial:
        raise ArgumentError(f"{op}: {found!r} is the layout of a partial result; a tensor cannot be given that layout")
    layouts.fits(found, shape)
    return text


def _dim(op: str, d: Any, ndim: int) -> int:
    if type(d) is not int:
        raise DTypeError(f"{op}: dimensions must be ints, got {shown(d)}")
    if not -ndim <= d < ndim:
        raise ArgumentError(f"{op}: dimension {d} is out of range for a tensor of {ndim} dimensions")
    return d % ndim


# --- tensors -------------------------------------------------------------------------------------------


def shard(tensor: Any, layout: Any, mesh: Any = None) -> Any:
    """The same tensor with the given layout over the session's workers; its gradient gets the same layout.

    >>> import gt
    >>> rows = gt.shard(gt.ones(100, 8), {0: "x"})  # needs a mesh with an axis x; has no effect on one worker
    """
    tensor = own(tensor)
    return pinned(tensor, layout_text("shard", tensor.shape, layout, mesh))


def replicate(tensor: Any, mesh: Any = None) -> Any:
    """The same tensor, replicated on every worker of the session's mesh or of `mesh`; its gradient likewise."""
    return shard(tensor, "", mesh)


def set_layout(t: Any, text: str) -> None:
    """Give a tensor and its gradient a layout, in place."""
    with set_grad(False):
        grad = t.grad
        for each in (t, grad) if grad is not None else (t,):
            views.write(each, pinned(each, text))


@contextmanager
def apart(tensors: Iterable[Any]) -> Iterator[None]:
    """What gives layouts to these tensors is a program of its own, and what they are made of is known to be right: if a
    call fails, a result with another layout than the input that it replaces cannot have that input's value."""
    rec = recorder()
    session = rec.session
    values = [t._v or t._read() for t in tensors] if session.meshes.several and rec.trace is None else []
    this = rec.pending if rec.pending.end is None else None
    there = any(v.owner is None or v.owner is not this or v.replaces is not None for v in values)
    if there:  # not if all of them are created in this very program: then they are made in that layout
        rec.settle()
        sent = session.seq
        session.wait(lambda: session.done >= sent)
        session.raise_failures()
    yield
    if there:
        rec.mark()


def filled_like(t: Any, value: float) -> Any:
    """A tensor filled with one number, with the layout of `t`. (gt.full() gets the layout that its first use needs.)"""
    zeros = apply(kinds.cast[t.dtype.name], (apply(kinds.lt, (t, t)),))  # not even a nan is less than itself
    return apply(kinds.add, (zeros, value)) if value else zeros


def layout_of(tensor: Any) -> Layout:
    """The layout of a tensor. Waits until the planner has chosen it; with one worker it is known at once."""
    tensor, rec = own(tensor), recorder()
    session = rec.session
    if not session.meshes.by_name:
        return layout_alone(session)
    if rec.trace is not None:
        rec.trace.refuse_sync()
    return session.layout_of(tensor._v or tensor._read())


def visualize_layout(tensor: Any) -> None:
    """Print which workers hold which part of a tensor.

    >>> import gt
    >>> gt.visualize_layout(gt.ones(4, 6))
    f32[4,6], whole on worker 1
    """
    print(drawing(layout_of(tensor), own(tensor)._spec))


PROPERTIES = {"layout": property(layout_of, doc="The layout over the session's workers, such as [100@x .].")}
