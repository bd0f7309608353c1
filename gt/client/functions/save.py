"""Tensors in files, in the safetensors format: a length, a header in JSON, the bytes. Never pickle.

A state_dict is written as it is, for everybody who reads that format. Of anything else, such as a checkpoint with
optimizer state and numbers, the tensors are written under the names that lead to them, and how they lie in it as text
in the header: whoever knows only the format still finds every tensor. A checkpoint of many workers may be a folder
instead, with a file for each worker: see sharded_files.py.
"""

from __future__ import annotations

import fnmatch
import itertools
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from gt import dtypes
from gt.client.functions.creation import from_numpy
from gt.client.mesh import sharding
from gt.client.tensor import Tensor
from gt.errors import ArgumentError, GTError

_NAMES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool", "C64": "complex64", "C128": "complex128",
}  # fmt: skip
_CODES = {name: code for code, name in _NAMES.items()}
_FORM = "gt.structure"  #: The text in the header's metadata that says how the tensors lie in what was saved.
MAX_HEADER = 100 << 20


def save(
    obj: Any, f: str | os.PathLike[str] | IO[bytes], pickle_module: Any = None, pickle_protocol: Any = None,
    *, sharded: bool = False,
) -> None:  # fmt: skip
    """Write tensors, or dicts, lists and plain values with tensors in them, to a file that safetensors can read.

    With `sharded` it is a folder: each worker's shards are in a file of their own, one tensor at a time is in this
    process's memory, and any number of workers can read it back.

    >>> import gt, tempfile, os
    >>> path = os.path.join(tempfile.mkdtemp(), "model.safetensors")
    >>> gt.save({"epoch": 3, "model": {"w": gt.arange(3)}}, path)
    >>> gt.load(path)
    {'epoch': 3, 'model': {'w': tensor([0, 1, 2])}}
    """
    found: dict[str, Any] = {}
    form = _taken_apart(obj, "", found)
    plain = isinstance(obj, Mapping) and all(isinstance(t, Tensor) for t in obj.values()) and [*obj] == [*found]
    if sharded:
        from gt.client.mesh.sharded_files import write_folder  # which is built on this

        if not isinstance(f, (str, os.PathLike)):
            raise ArgumentError("save: a sharded checkpoint is a folder, given by its path")
        write_folder(Path(f), found, None if plain else form)
        return
    header: dict[str, Any] = {}
    if not plain:
        header["__metadata__"] = {_FORM: json.dumps(form)}
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


def entry(name: str, dtype: str, shape: tuple[int, ...], at: int) -> dict[str, Any]:
    """A tensor in a header; its bytes are the file's from `at` on, counted behind the header."""
    if dtype not in _CODES:
        raise ArgumentError(f"save: {name} is an array of {dtype}; GT has no such type")
    nbytes = math.prod(shape) * dtypes.BY_NAME[dtype].itemsize
    return {"dtype": _CODES[dtype], "shape": list(shape), "data_offsets": [at, at + nbytes]}


def begin(header: dict[str, Any]) -> bytes:
    """What a file begins with."""
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def write_whole(path: Path, pieces: Iterable[bytes]) -> None:
    """Write a file that is there as a whole, or not at all."""
    # Beside the file and then in its place: whoever reads meanwhile, or a crash, meets the old one whole.
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(beside, "wb") as file:
            file.writelines(pieces)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def _taken_apart(x: Any, path: str, found: dict[str, Any]) -> Any:
    """What is saved as plain JSON; tensors go to `found`, by name."""
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
    cure = (
        "save its state_dict()" if hasattr(x, "state_dict") else "a file holds tensors, dicts, lists and plain values"
    )
    raise ArgumentError(f"save: {path or 'the object'} is a {type(x).__name__}; {cure}")


def load(
    f: str | os.PathLike[str] | IO[bytes],
    map_location: Any = None,
    pickle_module: Any = None,
    *,
    weights_only: bool = True,
    mmap: Any = None,
    layout: Mapping[str, Any] | None = None,
) -> Any:
    """What was saved; of a safetensors file of others, the tensors by name.

    On several workers, `layout` says how tensors shall lie, by patterns of their names: `{"*.weight": {0: "x"}}`. What
    has no dimensions stays whole. A sharded checkpoint lies as it did when it was saved, as far as it can.
    """
    wishes = {} if layout is None else dict(layout)
    if not isinstance(f, (str, os.PathLike)):
        return _read(f, getattr(f, "name", "the file"), wishes)
    if os.path.isdir(f):
        from gt.client.mesh.sharded_files import read_folder

        tensors, form, laid = read_folder(Path(f))
        return _put_back(os.fspath(f), form, tensors, wishes, laid)
    with open(f, "rb") as file:
        return _read(file, os.fspath(f), wishes)


def read_header(file: IO[bytes], path: Any) -> tuple[dict[str, tuple[str, tuple[int, ...], int, int]], str | None]:
    """By name: dtype, shape, and the bytes of the file where it lies; and how they lie in what was saved, as text."""
    start = file.tell()
    size = file.seek(0, os.SEEK_END) - start
    file.seek(start)
    prefix = file.read(8)
    length = int.from_bytes(prefix, "little")
    if prefix[:4] == b"PK\x03\x04":
        raise ArgumentError(
            f"load: {path} is a file of torch's; read it with torch.load: load_state_dict() takes torch's tensors"
        )
    if not 2 <= length <= min(MAX_HEADER, size - 8):
        raise ArgumentError(f"load: {path} is not a safetensors file")
    try:
        header = json.loads(file.read(length))
        rows = {
            k: (_NAMES[v["dtype"]], tuple(v["shape"]), *v["data_offsets"])
            for k, v in header.items()
            if k != "__metadata__"
        }
        form = header.get("__metadata__", {}).get(_FORM)
        first = start + 8 + length
        for name, (dtype, shape, a, b) in rows.items():
            nbytes = math.prod(shape) * dtypes.BY_NAME[dtype].itemsize
            if not (0 <= a <= b <= size - 8 - length and b - a == nbytes):
                raise ArgumentError(f"load: {path}: {name} lies outside the file, or has another size than it says")
        return {k: (dtype, shape, first + a, first + b) for k, (dtype, shape, a, b) in rows.items()}, form
    except ArgumentError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ArgumentError(f"load: the header of {path} is not one of a safetensors file") from None


def read_array(file: IO[bytes], row: tuple[str, tuple[int, ...], int, int]) -> np.ndarray[Any, Any]:
    """One tensor of a file, as its header says."""
    dtype, shape, start, end = row
    file.seek(start)
    return np.frombuffer(file.read(end - start), dtypes.BY_NAME[dtype].numpy).reshape(shape)


def _read(file: IO[bytes], path: Any, wishes: Mapping[str, Any]) -> Any:
    rows, text = read_header(file, path)
    try:
        form = None if text is None else json.loads(text)
    except (ValueError, TypeError, RecursionError):
        raise ArgumentError(f"load: the header of {path} is not one of a safetensors file") from None
    return _put_back(path, form, {name: partial(read_array, file, row) for name, row in rows.items()}, wishes, {})


def _put_back(
    path: Any, form: Any, arrays: Mapping[str, Callable[[], Any]], wishes: Mapping[str, Any], laid: Mapping[str, str]
) -> Any:
    """What was saved, out of its arrays, which are read when their turn comes."""
    missing = [p for p in wishes if not any(fnmatch.fnmatchcase(name, p) for name in arrays)]
    if missing:
        raise ArgumentError(f"load: {path} has no tensor named {missing[0]!r}")

    def tensor(name: str) -> Any:
        array, text = arrays[name](), laid.get(name)
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
        raise ArgumentError(f"load: the header of {path} does not fit its tensors") from None


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
