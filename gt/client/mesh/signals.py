"""Signals: names for parts of a computation, and a configuration that says where those parts run.

`with gt.signal.context("name"):` names the ops that are recorded inside. The configuration gives the results of those
ops a layout: a mesh, and the dimensions that are sharded. The layout is set by an instruction (`shard`) that gives the
gradient the same layout, so the backward pass runs on the same workers. `gt.signal.place(model)` uses the names of the
modules as contexts and gives the parameters their layouts: the model's code stays as it is. Outside of contexts there
is no cost.

    mesh: {x: 4}                          the session's default mesh
    meshes:
      first: {x: 2, workers: [0, 1]}      a named mesh of some of its workers, given by their positions
    parameters:                           of a placed model; the first pattern that matches is used
      "blocks.*.up.weight": {0: x}
    signals:                              by the name of a context or module
      stage1: {mesh: first, split: {0: x}}
      "blocks.*.down": {split: {}, ops: [linear]}
"""

from __future__ import annotations

import fnmatch
import functools
import json
import runpy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gt import layout as layouts
from gt.client.compat import autocast as policy
from gt.client.compat.arguments import shown
from gt.client.mesh import sharding
from gt.client.record.recorder import apply, recorder
from gt.client.record.tree import Kind
from gt.client.session.session import Session
from gt.errors import ArgumentError, DTypeError
from gt.ops import TABLE

SECTIONS = ("mesh", "meshes", "parameters", "signals")


@dataclass(frozen=True)
class Placement:
    """A layout for tensors of any shape: the mesh, and which dimensions are sharded over which axes."""

    mesh: str = ""
    split: tuple[tuple[int, tuple[str, ...]], ...] = ()
    whole: bool = False  #: `split: {}` was given: the tensor is replicated
    ops: frozenset[str] | None = None  #: applies to the results of these ops; None: of all ops that compute

    def covers(self, kind: Kind) -> bool:
        """Whether it applies to the results of this op. Ops that only move elements keep their operand's layout."""
        return not kind.op.moves if self.ops is None else kind.op.name in self.ops

    def text(self, session: Session, shape: tuple[int, ...]) -> str | None:
        """The layout of a tensor of this shape; None if it is unrestricted. Dimensions beyond the shape are ignored."""
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
    """A checked configuration."""

    def __init__(self, given: Any) -> None:
        if not isinstance(given, Mapping):
            raise DTypeError(f"signal: a configuration must be a mapping of {', '.join(SECTIONS)}, got {shown(given)}")
        for key, value in given.items():
            if key not in SECTIONS:
                raise ArgumentError(f"signal: unknown section {key!r}; expected one of {', '.join(SECTIONS)}")
            if not isinstance(value, Mapping):
                raise DTypeError(f"signal: {key} must be a mapping, got {shown(value)}")
        self.mesh = dict(given.get("mesh", {}))
        self.meshes: dict[str, dict[str, Any]] = {name: dict(m) for name, m in given.get("meshes", {}).items()}
        self.parameters = {str(k): _placement(f"parameters: {k}", v) for k, v in given.get("parameters", {}).items()}
        self.signals = {str(k): _placement(f"signals: {k}", v) for k, v in given.get("signals", {}).items()}

    def find(self, name: str) -> Placement | None:
        """The placement for a name: its own entry, or that of the first pattern that matches."""
        return _find(self.signals, name)


def _find(table: Mapping[str, Placement], name: str) -> Placement | None:
    found = table.get(name)
    return found or next((p for pattern, p in table.items() if fnmatch.fnmatchcase(name, pattern)), None)


def _placement(where: str, given: Any) -> Placement:
    if isinstance(given, str):
        return Placement(mesh=given)
    if not isinstance(given, Mapping):
        raise DTypeError(f"signal: {where} must be the name of a mesh or a mapping, got {shown(given)}")
    if given.keys() and all(_is_dim(k) for k in given):
        given = {"split": given}
    unknown = given.keys() - {"mesh", "split", "ops"}
    if unknown or not given:
        got = ", ".join(map(repr, unknown)) or "an empty mapping"
        raise ArgumentError(f"signal: {where}: expected the keys mesh, split and ops, got {got}")
    mesh, split, ops = given.get("mesh", ""), given.get("split"), given.get("ops")
    if not isinstance(mesh, str):
        raise DTypeError(f"signal: {where}: mesh must be the name of a mesh, got {shown(mesh)}")
    if split is not None and not (isinstance(split, Mapping) and all(_is_dim(d) for d in split)):
        raise DTypeError(f"signal: {where}: split must map dimensions to axes, like {{0: x}}, got {shown(split)}")
    names = None if ops is None else frozenset([ops] if isinstance(ops, str) else ops)
    for name in names or ():
        if name not in TABLE:
            raise ArgumentError(f"signal: {where}: unknown op {name!r}; `gt ops` lists all ops")
    if split is None and not mesh:
        raise ArgumentError(f"signal: {where} needs a mesh or a split; `split: {{}}` replicates")
    dims = tuple((int(d), sharding.axes_of(f"signal: {where}", axes)) for d, axes in (split or {}).items())
    return Placement(mesh, dims, split is not None and not split, names)


def _is_dim(key: Any) -> bool:
    return type(key) is int or (isinstance(key, str) and key.lstrip("-").isdecimal())  # JSON has no int keys


# --- configuring --------------------------------------------------------------------------------------


def read(path: str) -> Any:
    """The configuration in a YAML, JSON or TOML file, or the variable `signals` of a Python file."""
    file = Path(path)
    try:
        if file.suffix == ".py":
            found = runpy.run_path(str(file))
            if "signals" not in found:
                raise ArgumentError(f"{path}: the file must define a variable `signals`")
            return found["signals"]
        text = file.read_text()
    except OSError as e:
        raise ArgumentError(f"{path}: {e.strerror or e}") from None
    try:
        if file.suffix == ".json":
            return json.loads(text)
        if file.suffix == ".toml":
            import tomllib  # only here, so that `import gt` does not load it

            return tomllib.loads(text)
    except ValueError as e:
        raise ArgumentError(f"{path}: {e}") from None
    return _yaml(path, text)


def _yaml(path: str, text: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise ArgumentError(
            f"{path}: reading YAML needs PyYAML, which is not installed; `pip install pyyaml`, or use JSON or TOML"
        ) from None
    try:
        return yaml.safe_load(text) or {}
    except yaml.MarkedYAMLError as e:
        line = "" if e.problem_mark is None else f"line {e.problem_mark.line + 1}: "
        raise ArgumentError(f"{path}: {line}{e.problem}") from None


def configure(config: Any) -> None:
    """Set where named parts of the computation run; config is a mapping or a file (YAML, JSON, TOML or Python).

    It replaces the session's previous configuration. The setting GT_SIGNALS names a file for every session.
    """
    configure_session(recorder().session, config)


def configure_session(session: Session, config: Any) -> None:
    """configure() for a given session."""
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
    """Check the names of meshes and axes now, rather than when a model runs."""
    try:
        grid = session.meshes.find(placement.mesh)
        layouts.split(grid, (1,) * len(placement.split), dict(enumerate(axes for _, axes in placement.split)))
    except ArgumentError as e:
        raise ArgumentError(f"{where}: {str(e).removeprefix('layout: ')}") from None


# --- contexts -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pin:
    """The placements of the contexts that a thread is in, innermost first. The recorder calls it like a policy."""

    placements: tuple[Placement, ...]

    def __call__(self, kind: Kind, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The policy's cast: none."""
        return args

    def record(self, kind: Kind, args: tuple[Any, ...]) -> Any:
        """Record an op and give its results their layout."""
        rec = recorder()
        rec.policy = rec.pin = None  # the ops below are recorded without policy and pin
        try:
            out = apply(kind, args)
            placement = next((p for p in self.placements if p.covers(kind)), None)
            if placement is None or not any(hasattr(a, "_v") for a in args):  # a new tensor gets its first use's layout
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
    """Name the ops recorded inside; the configuration sets where they run. A context manager and a decorator.

    >>> import gt
    >>> gt.signal.configure({"signals": {"mlp": {"split": {0: "x"}}}})
    >>> with gt.signal.context("mlp"):
    ...     y = gt.ones(4, 3) * 2  # on a mesh with an axis x, its rows are sharded
    """

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise DTypeError(f"signal: the name of a context must be a string, got {shown(name)}")
        self.name = name
        self._before: list[Any] = []

    def __enter__(self) -> context:
        rec = recorder()
        signals: Signals | None = rec.session.signals
        if rec.trace is not None:
            session = rec.session
            rec.trace.guards.append((lambda args: session.signals, signals))  # traced again when the signals change
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
    """Place a model as configured: give its parameters and buffers their layouts, and run every module whose name
    matches a signal in the context of that name. Returns the model. Call it before creating the optimizer."""
    session = recorder().session
    signals: Signals | None = session.signals
    if signals is None:
        raise ArgumentError("signal: no configuration; call gt.signal.configure() first, or set GT_SIGNALS")
    for name, t in [*model.named_buffers(), *model.named_parameters()]:
        found = _find(signals.parameters, name)
        text = None if found is None else found.text(session, t.shape)
        if text is not None:
            sharding.set_layout(t, text)
    for name, module in model.named_modules():
        if name and signals.find(name) is not None:
            enter = _Named(name)
            around = module._hooked().around
            if enter not in around:
                around.append(enter)
    return model


@dataclass(frozen=True)
class _Named:
    """Enters the context named after a module."""

    name: str

    def __call__(self, module: Any) -> context:
        return context(self.name)
