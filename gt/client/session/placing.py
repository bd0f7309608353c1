"""Which workers a session runs on, as the user asks: its meshes, and a configuration of signals.

A configuration names parts of a computation and gives their results a layout; mesh/signals.py has its format and uses
it while ops are recorded.
"""

from __future__ import annotations

import fnmatch
import json
import math
import re
import runpy
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gt import layout as layouts
from gt.client.compat.arguments import shown
from gt.client.programs.pending import in_use
from gt.client.programs.tree import Kind
from gt.client.session.meshes import SessionMesh
from gt.client.session.session import Session
from gt.errors import ArgumentError, DTypeError, FunctionError
from gt.layout import Layout
from gt.ops import TABLE
from gt.transport.messages import MeshSet, SetMesh

LOOK_S = 0.1  #: How often take_all() asks whether the server has a worker yet.

# --- meshes ------------------------------------------------------------------------------------------


def set_mesh(
    session: Session, name: str, axes: Mapping[str, int], workers: Sequence[int] | None = None, split: bool = False
) -> SessionMesh:
    """Create a mesh. `workers` are positions among the session's workers."""
    checked = _checked(name, axes, workers)
    rec = in_use()
    if rec is not None and rec.session is session:
        if rec.trace is not None:
            raise FunctionError(f"{rec.trace.name}: gt.mesh() cannot be called inside a @gt.function; call it before")
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


# --- signals -----------------------------------------------------------------------------------------

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
            raise DTypeError(
                f"signal: a configuration must be a mapping with {', '.join(SECTIONS)}, got {shown(given)}"
            )
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
        """The placement of the ops in a context of that name."""
        return placement_for(self.signals, name)


def placement_for(table: Mapping[str, Placement], name: str) -> Placement | None:
    """The placement for a name: its own entry, or that of the first pattern that matches."""
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
    dims = tuple((int(d), axes_of(f"signal: {where}", axes)) for d, axes in (split or {}).items())
    return Placement(mesh, dims, split is not None and not split, names)


def _is_dim(key: Any) -> bool:
    return type(key) is int or (isinstance(key, str) and key.lstrip("-").isdecimal())  # JSON and TOML keys are strings


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


def axes_of(op: str, axes: Any) -> tuple[str, ...]:
    """The axes that a dimension is sharded over, given as one name or several."""
    found = (axes,) if isinstance(axes, str) else tuple(axes) if isinstance(axes, (tuple, list)) else ()
    if not all(isinstance(a, str) for a in found) or not (found or axes in ((), [])):
        raise DTypeError(f"{op}: the axes of a dimension must be a name or a tuple of names, got {shown(axes)}")
    return found


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
