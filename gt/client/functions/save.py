"""Saving and loading, in the safetensors format; and in torch's, see torch_files.py. Nothing that is read is executed.

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
from contextlib import nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import IO, Any

import numpy as np

from gt.client.functions.creation import from_numpy
from gt.client.functions.safetensors import STRUCTURE, begin, entry, read_array, read_header, whole_file
from gt.client.mesh import sharding
from gt.client.mesh.sharded_files import read_folder, write_folder
from gt.client.tensor import Tensor, own
from gt.errors import ArgumentError, GTError

__all__ = ["load", "save"]


def save(
    obj: Any, f: str | os.PathLike[str] | IO[bytes], pickle_module: Any = None, pickle_protocol: Any = None,
    *, sharded: bool = False,
) -> None:  # fmt: skip
    """Save tensors, or nested dicts, lists and plain values that contain tensors, to a safetensors file; to a file that
    torch.load reads, if its name ends with .pt, .pth, .bin, .ckpt or .tar.

    With `sharded` it is a folder with one file per worker. At most one tensor at a time is in this process's memory,
    and any number of workers can load it.

    >>> import gt, tempfile, os
    >>> path = os.path.join(tempfile.mkdtemp(), "model.safetensors")
    >>> gt.save({"epoch": 3, "model": {"w": gt.arange(3)}}, path)
    >>> gt.load(path)
    {'epoch': 3, 'model': {'w': tensor([0, 1, 2])}}
    """
    named = f if isinstance(f, (str, os.PathLike)) else getattr(f, "name", "")
    if not sharded and isinstance(named, (str, os.PathLike)) and Path(named).suffix in _TORCHS:
        import_module(_TORCH_FILES).write(obj, f)
        return
    found: dict[str, Any] = {}
    form = taken_apart(obj, "", found)
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
    with whole_file(Path(f)) if isinstance(f, (str, os.PathLike)) else nullcontext(f) as file:
        file.writelines(pieces)


_TORCHS = (".pt", ".pth", ".bin", ".ckpt", ".tar")  #: Names of files in torch's format.
_TORCH_FILES = "gt.client.functions.torch_files"  #: Imported with the first of them: `import gt` stays fast.


def taken_apart(x: Any, path: str, found: dict[str, Any], do: str = "save") -> Any:
    """The structure of an object as JSON; its tensors are added to `found`, by name. `do` is what it is wanted for."""
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
        rows = [[taken_apart(k, path, found, do), taken_apart(v, f"{below}{k}", found, do)] for k, v in x.items()]
        return {"dict": rows}
    if type(x).__name__ == "Namespace" and type(x).__module__ == "argparse":
        return {"namespace": [[k, taken_apart(v, f"{below}{k}", found, do)] for k, v in vars(x).items()]}
    if isinstance(x, (list, tuple, set)):
        kind = "list" if isinstance(x, list) else "tuple" if isinstance(x, tuple) else "set"
        return {kind: [taken_apart(v, f"{below}{i}", found, do) for i, v in enumerate(x)]}
    cure = f"{do} its state_dict()" if hasattr(x, "state_dict") else "expected tensors, dicts, lists and plain values"
    raise ArgumentError(f"{do}: {path or 'the object'} is a {type(x).__name__}; {cure}")


def load(
    f: str | os.PathLike[str] | IO[bytes], map_location: Any = None, pickle_module: Any = None,
    *, weights_only: bool = True, mmap: Any = None, layout: Mapping[str, Any] | None = None,
) -> Any:  # fmt: skip
    """Load an object that gt.save() or torch.save() wrote, or the tensors of any safetensors file as a dict.

    Nothing in a file is executed, whatever `weights_only` is: a file with other objects than tensors, NumPy arrays and
    plain values raises; see `gt.serialization.add_safe_globals`. With `weights_only=False` it may be or contain modules
    whose classes are defined here: their attributes are read from the file, and __init__ is not called.

    On several workers, `layout` maps patterns of tensor names to layouts: `{"*.weight": {0: "x"}}`. 0-dimensional
    tensors are not sharded. The tensors of a sharded checkpoint get the layouts that they were saved with, if the
    session has the meshes.
    """
    wishes = {} if layout is None else dict(layout)
    if not isinstance(f, (str, os.PathLike)):
        return _read(f, getattr(f, "name", "the file"), wishes, not weights_only)
    if os.path.isdir(f):
        tensors, form, layouts = read_folder(Path(f))
        return _put_back(os.fspath(f), form, tensors, wishes, layouts)
    with open(f, "rb") as file:
        return _read(file, os.fspath(f), wishes, not weights_only)


def _read(file: IO[bytes], path: Any, wishes: Mapping[str, Any], modules: bool) -> Any:
    first = file.read(4)
    file.seek(-len(first), os.SEEK_CUR)
    if first == b"PK\x03\x04" or (first[:1] == b"\x80" and first[2:] == b"\x8a\x0a"):
        return _read_torchs(file, path, wishes, modules)
    rows, text = read_header(file, path)
    try:
        form = None if text is None else json.loads(text)
    except (ValueError, TypeError, RecursionError):
        raise ArgumentError(f"load: {path} has an invalid safetensors header") from None
    return _put_back(path, form, {name: partial(read_array, file, row) for name, row in rows.items()}, wishes, {})


def _read_torchs(file: IO[bytes], path: Any, wishes: Mapping[str, Any], modules: bool) -> Any:
    """The object in a file that torch.save wrote."""
    left = set(wishes)

    def make(name: str, array: Any) -> Tensor:
        wish = next((p for p in wishes if fnmatch.fnmatchcase(name, p)), None)
        if wish is None:
            return from_numpy(array)
        left.discard(wish)
        text = sharding.layout_text(f"load: {name}", array.shape, wishes[wish]) if array.ndim else None
        return from_numpy(array, layout=text)

    found = import_module(_TORCH_FILES).read(file, path, make, modules)
    if left:
        raise ArgumentError(f"load: {path} has no tensor named {min(left)!r}")
    return found


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
        return put_together(form, tensor, arrays)
    except GTError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ArgumentError(f"load: the header of {path} does not match its tensors") from None


_LISTS: dict[str, Any] = {"list": list, "tuple": tuple, "set": set}


def put_together(form: Any, tensor: Callable[[str], Any], arrays: Mapping[str, Callable[[], Any]]) -> Any:
    """The object of this structure, with these tensors and arrays."""
    if not isinstance(form, dict):
        return form
    ((kind, inside),) = form.items()
    if kind == "tensor":
        return tensor(inside)
    if kind == "array":
        return arrays[inside]().copy()
    if kind == "dict":
        return {put_together(k, tensor, arrays): put_together(v, tensor, arrays) for k, v in inside}
    if kind == "namespace":
        from argparse import Namespace

        return Namespace(**{k: put_together(v, tensor, arrays) for k, v in inside})
    return _LISTS[kind](put_together(v, tensor, arrays) for v in inside)
