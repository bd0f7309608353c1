"""A configuration of signals: the layouts that parts of a computation get, by name; mesh/signals.py has its format.

Here it is read and checked. placing.py gives it to a session, and mesh/signals.py uses it while ops are recorded.
"""

from __future__ import annotations

import fnmatch
import json
import runpy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gt import layout as layouts
from gt.client.compat.arguments import shown
from gt.client.programs.tree import Kind
from gt.client.session.meshes import Meshes
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

    def text(self, meshes: Meshes, shape: tuple[int, ...]) -> str | None:
        """The layout of a tensor of this shape; None if it is unrestricted. Dimensions beyond the shape are ignored."""
        ndim = len(shape)
        dims: dict[int, tuple[str, ...]] = {}
        for d, axes in self.split:
            if -ndim <= d < ndim:
                dims.setdefault(d % ndim, axes)
        if not dims and not self.mesh and not self.whole:
            return None
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
