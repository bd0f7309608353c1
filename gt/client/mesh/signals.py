"""Signals: names for parts of a computation, and a configuration that says where those parts run.

`with gt.signal.context("name"):` names what is recorded inside. The configuration pins the results of those ops to a
mesh, or splits them; a pin is an instruction (`shard`) that pins the gradient alike, so backward goes the same
way. `gt.signal.place(model)` names modules by their own names and lays out their parameters: the model's code stays as
it is. Outside of contexts nothing is looked at, and nothing costs anything.

    mesh: {x: 4}                          the session's own mesh
    meshes:
      first: {x: 2, workers: [0, 1]}      grids of some of its workers, by their positions
    parameters:                           of models that are placed; of several patterns that fit, the first counts
      "blocks.*.up.weight": {0: x}
    signals:                              by the names of contexts and modules
      stage1: {mesh: first, split: {0: x}}
      "blocks.*.down": {split: {}, ops: [linear]}
"""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gt import layout as layouts
from gt.client.compat import autocast as policy
from gt.client.compat.arguments import shown
from gt.client.mesh import sharding
from gt.client.mesh.signal_files import read
from gt.client.record.recorder import apply, recorder
from gt.client.record.tree import Kind
from gt.client.session.session import Session
from gt.errors import ArgumentError, DTypeError
from gt.ops import TABLE

SECTIONS = ("mesh", "meshes", "parameters", "signals")


@dataclass(frozen=True)
class Placement:
    """Where something shall lie: on which mesh, and which of its dimensions are split over which axes."""

    mesh: str = ""
    split: tuple[tuple[int, tuple[str, ...]], ...] = ()
    whole: bool = False  #: `split: {}`: it shall be whole, where else nothing would be said
    ops: frozenset[str] | None = None  #: of the results of these ops; None: of all that compute something

    def covers(self, kind: Kind) -> bool:
        """Whether it is about the results of this op. What only moves elements follows its operand."""
        return not kind.op.moves if self.ops is None else kind.op.name in self.ops

    def text(self, session: Session, shape: tuple[int, ...]) -> str | None:
        """The layout of a tensor of this shape; None: anything is right. Dimensions that it does not have are left."""
        ndim = len(shape)
        dims: dict[int, tuple[str, ...]] = {}
        for d, axes in self.split:
            if -ndim <= d < ndim:
                dims.setdefault(d % ndim, axes)
        if not dims and not self.mesh and not self.whole:
            return None
        meshes = session.meshes
        return meshes.text(layouts.split(meshes.find(self.mesh), shape, dims)) if meshes.by_name else ""


class Signals:
    """A configuration, checked."""

    def __init__(self, given: Any) -> None:
        if not isinstance(given, Mapping):
            raise DTypeError(f"signal: a configuration is a mapping with {', '.join(SECTIONS)}, not {shown(given)}")
        for key, value in given.items():
            if key not in SECTIONS:
                raise ArgumentError(f"signal: a configuration has {', '.join(SECTIONS)}; {key!r} is none of them")
            if not isinstance(value, Mapping):
                raise DTypeError(f"signal: {key} is a mapping, not {shown(value)}")
        self.mesh = dict(given.get("mesh", {}))
        self.meshes: dict[str, dict[str, Any]] = {name: dict(m) for name, m in given.get("meshes", {}).items()}
        self.parameters = {str(k): _placement(f"parameters: {k}", v) for k, v in given.get("parameters", {}).items()}
        self.signals = {str(k): _placement(f"signals: {k}", v) for k, v in given.get("signals", {}).items()}

    def find(self, name: str) -> Placement | None:
        """What is said about a name: by itself, or by the first pattern that fits."""
        return _find(self.signals, name)


def _find(table: Mapping[str, Placement], name: str) -> Placement | None:
    found = table.get(name)
    return found or next((p for pattern, p in table.items() if fnmatch.fnmatchcase(name, pattern)), None)


def _placement(where: str, given: Any) -> Placement:
    if isinstance(given, str):
        return Placement(mesh=given)
    if not isinstance(given, Mapping):
        raise DTypeError(f"signal: {where} is a mesh's name, or says mesh, split and ops; not {shown(given)}")
    if given.keys() and all(_is_dim(k) for k in given):
        given = {"split": given}
    unknown = given.keys() - {"mesh", "split", "ops"}
    if unknown or not given:
        raise ArgumentError(
            f"signal: {where} says mesh, split or ops, not {', '.join(map(repr, unknown)) or 'nothing'}"
        )
    mesh, split, ops = given.get("mesh", ""), given.get("split"), given.get("ops")
    if not isinstance(mesh, str):
        raise DTypeError(f"signal: {where}: a mesh is named, not given as {shown(mesh)}")
    if split is not None and not (isinstance(split, Mapping) and all(_is_dim(d) for d in split)):
        raise DTypeError(f"signal: {where}: split has axes by dimension, like {{0: x}}, not {shown(split)}")
    names = None if ops is None else frozenset([ops] if isinstance(ops, str) else ops)
    for name in names or ():
        if name not in TABLE:
            raise ArgumentError(f"signal: {where}: there is no op {name!r}; `gt ops` lists them")
    if split is None and not mesh:
        raise ArgumentError(f"signal: {where} needs a mesh or a split; a split of {{}} is whole")
    dims = tuple((int(d), sharding.axes_of(f"signal: {where}", axes)) for d, axes in (split or {}).items())
    return Placement(mesh, dims, split is not None and not split, names)


def _is_dim(key: Any) -> bool:
    return type(key) is int or (isinstance(key, str) and key.lstrip("-").isdecimal())  # JSON has no other keys


# --- configuring --------------------------------------------------------------------------------------


def configure(config: Any) -> None:
    """Say where named parts of the computation run: a mapping, or a file with one (YAML, JSON or Python).

    It replaces what was configured before in this session. GT_SIGNALS names a file for every session.
    """
    configure_session(recorder().session, config)


def configure_session(session: Session, config: Any) -> None:
    """The same, of any session."""
    signals = Signals(read(config) if isinstance(config, str) or hasattr(config, "__fspath__") else config)
    if signals.mesh:
        session.meshes.set("", signals.mesh, split=session.config.auto_shard)
    for name, axes in signals.meshes.items():
        workers = axes.pop("workers", None)
        session.meshes.set(name, axes, workers)
    if session.meshes.by_name:
        for where, table in (("parameters", signals.parameters), ("signals", signals.signals)):
            for name, placement in table.items():
                _check_axes(session, f"signal: {where}: {name}", placement)
    session.signals = signals


def _check_axes(session: Session, where: str, placement: Placement) -> None:
    """A wrong name is an error when it is configured, and not in the middle of a model."""
    try:
        grid = session.meshes.find(placement.mesh)
        layouts.split(grid, (1,) * len(placement.split), dict(enumerate(axes for _, axes in placement.split)))
    except ArgumentError as e:
        raise ArgumentError(f"{where}: {str(e).removeprefix('layout: ')}") from None


# --- contexts -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pin:
    """What the contexts say that a thread is in, the innermost first. Stands before the recorder, like a policy."""

    placements: tuple[Placement, ...]

    def __call__(self, kind: Kind, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """As a policy: it casts nothing."""
        return args

    def record(self, kind: Kind, args: tuple[Any, ...]) -> Any:
        """Record an op, and pin its results."""
        rec = recorder()
        rec.policy = rec.pin = None  # what follows is recorded as it is
        try:
            out = apply(kind, args)
            placement = next((p for p in self.placements if p.covers(kind)), None)
            if placement is None or not any(hasattr(a, "_v") for a in args):  # what is created goes to its first use
                return out
            pinned = [_pinned(rec.session, placement, t) for t in (out if isinstance(out, tuple) else (out,))]
            return tuple(pinned) if isinstance(out, tuple) else pinned[0]
        finally:
            rec.pin = self
            policy.enforce()


def _pinned(session: Session, placement: Placement, t: Any) -> Any:
    text = placement.text(session, t.shape)
    return t if text is None else sharding.pinned(t, text)


class context:
    """Name what is recorded inside; the configuration says where it runs. A context manager and a decorator.

    >>> import gt
    >>> gt.signal.configure({"signals": {"mlp": {"split": {0: "x"}}}})
    >>> with gt.signal.context("mlp"):
    ...     y = gt.ones(4, 3) * 2  # on a mesh with an axis x, its rows are split
    """

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise DTypeError(f"signal: a context has a name, not {shown(name)}")
        self.name = name
        self._before: list[Any] = []

    def __enter__(self) -> context:
        rec = recorder()
        signals: Signals | None = rec.session.signals
        if rec.trace is not None:
            session = rec.session
            rec.trace.guards.append((lambda args: session.signals, signals))  # other signals: traced anew
        found = None if signals is None else signals.find(self.name)
        self._before.append(rec.pin)
        if found is not None:
            rec.pin = Pin((found, *(rec.pin.placements if rec.pin is not None else ())))
            policy.enforce()
        return self

    def __exit__(self, *exc: object) -> None:
        rec = recorder()
        rec.pin = self._before.pop()
        policy.enforce()

    def __call__(self, f: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(f)
        def inner(*args: Any, **kwargs: Any) -> Any:
            with context(self.name):
                return f(*args, **kwargs)

        return inner


# --- models -------------------------------------------------------------------------------------------


def place(model: Any) -> Any:
    """Place a model as the configuration says: its parameters and buffers are laid out, and every module that a signal
    names runs in the context of its name. Returns the model; do it before the optimizer is made."""
    session = recorder().session
    signals: Signals | None = session.signals
    if signals is None:
        raise ArgumentError("signal: nothing is configured; call gt.signal.configure first, or set GT_SIGNALS")
    for name, t in [*model.named_buffers(), *model.named_parameters()]:
        found = _find(signals.parameters, name)
        text = None if found is None else found.text(session, t.shape)
        if text is not None:
            sharding.lay_out(t, text)
    for name, module in model.named_modules():
        if name and signals.find(name) is not None:
            enter = _Named(name)
            around = module._hooked().around
            if enter not in around:
                around.append(enter)
    return model


@dataclass(frozen=True)
class _Named:
    """Enters the context of a module's name."""

    name: str

    def __call__(self, module: Any) -> context:
        return context(self.name)
