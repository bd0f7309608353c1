"""Where tensors lie on the session's workers, as far as the user wants to say it.

Nothing here is needed: what is not said, the planner decides. A layout is given as text ("[100@x .]", on another mesh
"stage1: [100@x .]"), as the axes that split some dimensions ({0: "x", 1: ("y", "z")}), or as another's `.layout`.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from typing import Any

from gt import layout as layouts
from gt.client.compat.arguments import shown
from gt.client.grad.modes import set_grad
from gt.client.mesh.drawing import drawing
from gt.client.mesh.meshes import Mesh
from gt.client.record.recorder import apply, recorder, unary
from gt.client.record.tree import Kind, Kinds
from gt.client.views import aliases as views
from gt.errors import ArgumentError, DTypeError
from gt.layout import Layout
from gt.ops import TABLE

__all__ = ["mesh", "replicate", "shard", "shard_", "visualize_layout"]
METHODS: list[str] = []

_SHARD = Kinds(TABLE["shard"], "layout")
_NEVER, _CAST, _ADD = Kind(TABLE["lt"], {}), Kinds(TABLE["cast"], "dtype"), Kind(TABLE["add"], {})
_TEXT = re.compile(r"(?:(\w+): ?)?(\[.*)?", re.DOTALL)


def mesh(name: str = "", /, *, workers: Sequence[int] | None = None, **axes: int) -> Mesh:
    """Have this session live on several workers, as a grid with these axes: `gt.mesh(x=2, y=2)`.

    New tensors go there from now on; what is there already stays where it lies until something brings it along. With a
    name it is a grid of some of the session's workers, to place parts of a model on:
    `gt.mesh("stage1", x=2, workers=[2, 3])` names them by their positions in the session. Without axes: the mesh of
    that name, as it is.
    """
    session = recorder().session
    if not axes and workers is None:
        session.meshes.find(name)
        return session.meshes.by_name[name]
    return session.meshes.set(name, axes, workers, split=session.config.auto_shard and not name)


# --- what users say, as text ---------------------------------------------------------------------------


def layout_text(op: str, shape: tuple[int, ...], wish: Any, on: Any = None) -> str:
    """A wish for a tensor of this shape, checked, as programs and uploads name it. In a session without a mesh there is
    one worker, and no wish changes anything: ""."""
    meshes = recorder().session.meshes
    name = on.name if isinstance(on, Mesh) else "" if on is None else on
    if not isinstance(name, str):
        raise DTypeError(f"{op}: mesh is a mesh or its name, not {shown(name)}")
    if isinstance(wish, Layout):
        if not meshes.by_name and len(wish.mesh.workers) == 1:
            return ""
        found = wish
        text = meshes.text(wish)
    elif isinstance(wish, Mapping):
        dims = {_dim(op, d, len(shape)): axes_of(op, axes) for d, axes in wish.items()}
        if len(dims) < len(wish):
            raise ArgumentError(f"{op}: {dict(wish)} names a dimension twice")
        if not meshes.by_name:
            return ""
        found = layouts.split(meshes.find(name), shape, dims)
        text = meshes.text(found)
    elif isinstance(wish, str):
        match = _TEXT.fullmatch(wish.strip())
        if match is None:
            raise ArgumentError(f"{op}: {wish!r} is not a layout like '[100@x .]' or 'stage1: [100@x .]'")
        name = match[1] or name
        if not meshes.by_name:
            return ""
        found = layouts.parse(match[2] or "[]", meshes.find(name))
        text = meshes.text(found)
    else:
        raise DTypeError(
            f"{op}: a layout is text like '[100@x .]', or axes by dimension like {{0: 'x'}}, not {shown(wish)}"
        )
    if found.partial:
        raise ArgumentError(f"{op}: {found!r} is what a computation leaves to be reduced; nothing can be laid out so")
    layouts.fits(found, shape)
    return text


def _dim(op: str, d: Any, ndim: int) -> int:
    if type(d) is not int:
        raise DTypeError(f"{op}: a dimension is an int, not {shown(d)}")
    if not -ndim <= d < ndim:
        raise ArgumentError(f"{op}: there is no dimension {d} in a tensor of {ndim}")
    return d % ndim


def axes_of(op: str, axes: Any) -> tuple[str, ...]:
    """The axes that someone names for a dimension: one, or some."""
    found = (axes,) if isinstance(axes, str) else tuple(axes) if isinstance(axes, (tuple, list)) else ()
    if not all(isinstance(a, str) for a in found) or not (found or axes in ((), [])):
        raise DTypeError(f"{op}: a dimension is split over an axis, or some of them, by name; not {shown(axes)}")
    return found


# --- tensors -------------------------------------------------------------------------------------------


def shard(tensor: Any, layout: Any, mesh: Any = None) -> Any:
    """The same tensor, laid out over the session's workers as you say; its gradient will lie alike.

    >>> import gt
    >>> rows = gt.shard(gt.ones(100, 8), {0: "x"})  # on a mesh with an axis x; on one worker it changes nothing
    """
    return pinned(tensor, layout_text("shard", tensor.shape, layout, mesh))


def pinned(tensor: Any, text: str) -> Any:
    """The same tensor, laid out as this text says."""
    made = unary(_SHARD[text], tensor)
    value = made._v or made._read()
    if text and value.owner is not None:
        value.owner.pins[value.num] = text
    return made


def replicate(tensor: Any, mesh: Any = None) -> Any:
    """The same tensor, whole on every worker of the session's mesh, or of another one; its gradient will lie alike."""
    return shard(tensor, "", mesh)


def shard_(x: Any, layout: Any, mesh: Any = None) -> Any:
    """Lay a tensor out in place: a parameter stays the parameter it is. Or all of a module, by the names in it.

    A module's layouts are given by patterns of names; of several that fit, the first counts. What has no dimensions
    stays as it is. Do it before the optimizer is made: its state lies as the parameters do.

    >>> import gt
    >>> model = gt.nn.Sequential(gt.nn.Linear(8, 32), gt.nn.ReLU(), gt.nn.Linear(32, 8))
    >>> model = gt.shard_(model, {"0.*": {0: "x"}, "2.weight": {1: "x"}})
    """
    if hasattr(x, "_v"):
        lay_out(x, layout_text("shard_", x.shape, layout, mesh))
        return x
    if not hasattr(x, "named_parameters"):
        raise DTypeError(f"shard_: takes a tensor or a module, not {shown(x)}")
    if not isinstance(layout, Mapping) or not all(isinstance(k, str) for k in layout):
        raise DTypeError(
            f"shard_: a module's layouts are given by names, like {{'*.weight': {{0: 'x'}}}}, not {shown(layout)}"
        )
    named = {**dict(x.named_buffers()), **dict(x.named_parameters())}
    wanted = {name: next((p for p in layout if fnmatch.fnmatchcase(name, p)), None) for name in named}
    idle = [p for p in layout if not any(fnmatch.fnmatchcase(name, p) for name in named)]
    if idle:
        raise ArgumentError(f"shard_: {idle[0]!r} is the name of no parameter; there are {', '.join([*named][:8])}")
    chosen = {name: p for name, p in wanted.items() if p is not None and named[name].shape}
    texts = {name: layout_text(f"shard_: {name}", named[name].shape, layout[p], mesh) for name, p in chosen.items()}
    for name, text in texts.items():
        lay_out(named[name], text)
    return x


def lay_out(t: Any, text: str) -> None:
    """Lay a tensor and its gradient out in place."""
    with set_grad(False):
        grad = t.grad
        for each in (t, grad) if grad is not None else (t,):
            views.write(each, pinned(each, text))


def filled_like(t: Any, value: float) -> Any:
    """A tensor full of one number that lies as `t` does. (Another creation would lie as its first use likes.)"""
    zeros = apply(_CAST[t.dtype.name], (apply(_NEVER, (t, t)),))  # not even a nan is less than itself
    return apply(_ADD, (zeros, value)) if value else zeros


def layout_of(tensor: Any) -> Layout:
    """How the tensor lies. Waits until it is known; on a session of one worker that is at once."""
    rec = recorder()
    session = rec.session
    if not session.meshes.by_name:
        return session.meshes.alone()
    if rec.trace is not None:
        rec.trace.refuse_sync()
    return session.layout_of(tensor._v or tensor._read())


def visualize_layout(tensor: Any) -> None:
    """Print which workers hold what of a tensor.

    >>> import gt
    >>> gt.visualize_layout(gt.ones(4, 6))
    f32[4,6], whole on worker 1
    """
    print(drawing(layout_of(tensor), tensor._spec))


PROPERTIES = {"layout": property(layout_of, doc="How it lies on the session's workers, such as [100@x .].")}
