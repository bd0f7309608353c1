"""Tensors in files, in the safetensors format: a length, a header in JSON, the bytes. Never pickle.

A state_dict is written as it is, for everybody who reads that format. Of anything else, such as a checkpoint with
optimizer state and numbers, the tensors are written under the names that lead to them, and how they lie in it as text
in the header: whoever knows only the format still finds every tensor.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from gt import dtypes
from gt.client.creation import from_numpy
from gt.client.tensor import Tensor
from gt.errors import ArgumentError

_NAMES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool", "C64": "complex64", "C128": "complex128",
}  # fmt: skip
_CODES = {name: code for code, name in _NAMES.items()}
_FORM = "gt.structure"  #: The text in the header's metadata that says how the tensors lie in what was saved.
MAX_HEADER = 100 << 20


def save(
    obj: Any, f: str | os.PathLike[str] | IO[bytes], pickle_module: Any = None, pickle_protocol: Any = None
) -> None:
    """Write tensors, or dicts, lists and plain values with tensors in them, to a file that safetensors can read.

    >>> import gt, tempfile, os
    >>> path = os.path.join(tempfile.mkdtemp(), "model.safetensors")
    >>> gt.save({"epoch": 3, "model": {"w": gt.arange(3)}}, path)
    >>> gt.load(path)
    {'epoch': 3, 'model': {'w': tensor([0, 1, 2])}}
    """
    found: dict[str, Any] = {}
    form = _taken_apart(obj, "", found)
    header: dict[str, Any] = {}
    if not (isinstance(obj, Mapping) and all(isinstance(t, Tensor) for t in obj.values()) and [*obj] == [*found]):
        header["__metadata__"] = {_FORM: json.dumps(form)}
    arrays: list[np.ndarray[Any, Any]] = []
    at = 0
    for name, t in found.items():
        array = np.ascontiguousarray(t.detach().numpy() if isinstance(t, Tensor) else t)
        if array.dtype.name not in _CODES:
            raise ArgumentError(f"save: {name} is an array of {array.dtype}; GT has no such type")
        header[name] = {
            "dtype": _CODES[array.dtype.name], "shape": list(t.shape), "data_offsets": [at, at + array.nbytes]
        }  # fmt: skip
        at += array.nbytes
        arrays.append(array)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)

    def write(file: IO[bytes]) -> None:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in arrays:
            file.write(array.tobytes())

    if isinstance(f, (str, os.PathLike)):
        _write_whole(Path(f), write)
    else:
        write(f)


def _write_whole(path: Path, write: Callable[[IO[bytes]], None]) -> None:
    # Beside the file and then in its place: whoever reads meanwhile, or a crash, meets the old one whole.
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(beside, "wb") as file:
            write(file)
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
) -> Any:
    """What was saved; of a safetensors file of others, the tensors by name."""
    if not isinstance(f, (str, os.PathLike)):
        return _read(f, getattr(f, "name", "the file"))
    with open(f, "rb") as file:
        return _read(file, os.fspath(f))


def _read(file: IO[bytes], path: Any) -> Any:
    begin = file.tell()
    size = file.seek(0, os.SEEK_END) - begin
    file.seek(begin)
    first = file.read(8)
    length = int.from_bytes(first, "little")
    if first[:4] == b"PK\x03\x04":
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
        form = None if form is None else json.loads(form)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ArgumentError(f"load: the header of {path} is not one of a safetensors file") from None
    arrays = {}
    for name, (dtype, shape, start, end) in rows.items():
        kind = dtypes.BY_NAME[dtype].numpy
        if not (0 <= start <= end <= size - 8 - length and end - start == int(np.prod(shape)) * kind.itemsize):
            raise ArgumentError(f"load: {path}: {name} lies outside the file, or has another size than it says")
        file.seek(begin + 8 + length + start)
        arrays[name] = np.frombuffer(file.read(end - start), kind).reshape(shape)
    if form is None:
        return {name: from_numpy(array) for name, array in arrays.items()}
    try:
        return _put_together(form, arrays)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ArgumentError(f"load: the header of {path} does not fit its tensors") from None


_LISTS: dict[str, Any] = {"list": list, "tuple": tuple, "set": set}


def _put_together(form: Any, arrays: dict[str, Any]) -> Any:
    if not isinstance(form, dict):
        return form
    ((kind, inside),) = form.items()
    if kind == "tensor":
        return from_numpy(arrays[inside])
    if kind == "array":
        return arrays[inside].copy()
    if kind == "dict":
        return {_put_together(k, arrays): _put_together(v, arrays) for k, v in inside}
    return _LISTS[kind](_put_together(v, arrays) for v in inside)
