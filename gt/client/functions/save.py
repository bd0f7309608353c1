"""Saving and loading, in the safetensors format. Never pickle.

A dict of tensors, such as a state_dict, is an ordinary safetensors file. For any other object, such as a checkpoint
with optimizer state and numbers, each tensor is stored under its path in the object, and the structure of the object
is stored as JSON in the header: other programs can still read every tensor. A checkpoint can also be a folder with one
file per worker: see mesh/sharded_files.py.
"""

from __future__ import annotations

import fnmatch
import itertools
import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from gt.client.functions.creation import from_numpy
from gt.client.functions.safetensors import STRUCTURE, begin, entry, read_array, read_header, write_whole
from gt.client.mesh import sharding
from gt.client.mesh.sharded_files import read_folder, write_folder
from gt.client.tensor import Tensor, own
from gt.errors import ArgumentError, GTError

__all__ = ["load", "save"]


def save(
    obj: Any, f: str | os.PathLike[str] | IO[bytes], pickle_module: Any = None, pickle_protocol: Any = None,
    *, sharded: bool = False,
) -> None:  # fmt: skip
    """Save tensors, or nested dicts, lists and plain values that contain tensors, to a safetensors file.

    With `sharded` it is a folder with one file per worker. At most one tensor at a time is in this process's memory,
    and any number of workers can load it.

    >>> import gt, tempfile, os
    >>> path = os.path.join(tempfile.mkdtemp(), "model.safetensors")
    >>> gt.save({"epoch": 3, "model": {"w": gt.arange(3)}}, path)
    >>> gt.load(path)
    {'epoch': 3, 'model': {'w': tensor([0, 1, 2])}}
    """
    found: dict[str, Any] = {}
    form = _taken_apart(obj, "", found)
    plain = isinstance(obj, Mapping) and all(isinstance(own(t), Tensor) for t in obj.values()) and [*obj] == [*found]
    if sharded:
        if not isinstance(f, (str, os.PathLike)):
            raise ArgumentError("save: sharded=True needs the path of a folder")
        write_folder(Path(f), found, None if plain else form)
        return
    header: dict[str, Any] = {}
    if not plain:
        header["__metadata__"] = {STRUCTURE: json.dumps(form)}
    arrays: list[np.ndarray[Any, Any]] = []
    at = 0
    for name, t in found.items():
        array = np.ascontiguousarray(t.detach().numpy() if isinstance(t, Tensor) else t)
        header[name] = entry(name, array.dtype.name, t.shape, at)
        at += array.nbytes
        arrays.append(array)
    pieces = itertools.chain([begin(header)], (array.tobytes() for array in arrays))
    if isinstance(f, (str, os.PathLike)):
        write_whole(Path(f), pieces)
    else:
        f.writelines(pieces)


def _taken_apart(x: Any, path: str, found: dict[str, Any]) -> Any:
    """The structure of an object as JSON; its tensors are added to `found`, by name."""
    x = own(x)
    if isinstance(x, (Tensor, np.ndarray)):
        name = path or "tensor"
        while name in found or name == "__metadata__":
            name += "_"
        found[name] = x
        return {"tensor" if isinstance(x, Tensor) else "array": name}
    if isinstance(x, np.generic):
        x = x.item()
    if x is None or isinstance(x, (bool, int, float, str)):
        return x
    below = f"{path}." if path else ""
    if isinstance(x, Mapping):
        rows = [[_taken_apart(k, path, found), _taken_apart(v, f"{below}{k}", found)] for k, v in x.items()]
        return {"dict": rows}
    if isinstance(x, (list, tuple, set)):
        kind = "list" if isinstance(x, list) else "tuple" if isinstance(x, tuple) else "set"
        return {kind: [_taken_apart(v, f"{below}{i}", found) for i, v in enumerate(x)]}
    cure = "save its state_dict()" if hasattr(x, "state_dict") else "expected tensors, dicts, lists and plain values"
    raise ArgumentError(f"save: {path or 'the object'} is a {type(x).__name__}; {cure}")


def load(
    f: str | os.PathLike[str] | IO[bytes], map_location: Any = None, pickle_module: Any = None,
    *, weights_only: bool = True, mmap: Any = None, layout: Mapping[str, Any] | None = None,
) -> Any:  # fmt: skip
    """Load an object that gt.save() wrote, or the tensors of any safetensors file as a dict.

    On several workers, `layout` maps patterns of tensor names to layouts: `{"*.weight": {0: "x"}}`. 0-dimensional
    tensors are not sharded. The tensors of a sharded checkpoint get the layouts that they were saved with, if the
    session has the meshes.
    """
    wishes = {} if layout is None else dict(layout)
    if not isinstance(f, (str, os.PathLike)):
        return _read(f, getattr(f, "name", "the file"), wishes)
    if os.path.isdir(f):
        tensors, form, layouts = read_folder(Path(f))
        return _put_back(os.fspath(f), form, tensors, wishes, layouts)
    with open(f, "rb") as file:
        return _read(file, os.fspath(f), wishes)


def _read(file: IO[bytes], path: Any, wishes: Mapping[str, Any]) -> Any:
    rows, text = read_header(file, path)
    try:
        form = None if text is None else json.loads(text)
    except (ValueError, TypeError, RecursionError):
        raise ArgumentError(f"load: {path} has an invalid safetensors header") from None
    return _put_back(path, form, {name: partial(read_array, file, row) for name, row in rows.items()}, wishes, {})


def _put_back(
    path: Any, form: Any, arrays: Mapping[str, Callable[[], Any]], wishes: Mapping[str, Any], layouts: Mapping[str, str]
) -> Any:
    """The saved object; each array is read when its tensor is created."""
    missing = [p for p in wishes if not any(fnmatch.fnmatchcase(name, p) for name in arrays)]
    if missing:
        raise ArgumentError(f"load: {path} has no tensor named {missing[0]!r}")

    def tensor(name: str) -> Any:
        array, text = arrays[name](), layouts.get(name)
        wish = next((w for p, w in wishes.items() if fnmatch.fnmatchcase(name, p)), None)
        if wish is not None and array.ndim:
            text = sharding.layout_text(f"load: {name}", array.shape, wish)
        return from_numpy(array, layout=text)

    if form is None:
        return {name: tensor(name) for name in arrays}
    try:
        return _put_together(form, tensor, arrays)
    except GTError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ArgumentError(f"load: the header of {path} does not match its tensors") from None


_LISTS: dict[str, Any] = {"list": list, "tuple": tuple, "set": set}


def _put_together(form: Any, tensor: Callable[[str], Any], arrays: Mapping[str, Callable[[], Any]]) -> Any:
    if not isinstance(form, dict):
        return form
    ((kind, inside),) = form.items()
    if kind == "tensor":
        return tensor(inside)
    if kind == "array":
        return arrays[inside]().copy()
    if kind == "dict":
        return {_put_together(k, tensor, arrays): _put_together(v, tensor, arrays) for k, v in inside}
    return _LISTS[kind](_put_together(v, tensor, arrays) for v in inside)
