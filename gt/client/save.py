"""Tensors in files, in the safetensors format: a length, a header in JSON, the bytes. Never pickle."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gt import dtypes
from gt.client.creation import from_numpy
from gt.client.tensor import Tensor
from gt.errors import ArgumentError

_NAMES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
_CODES = {name: code for code, name in _NAMES.items()}
MAX_HEADER = 100 << 20


def save(tensors: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write tensors by name, such as a state_dict, to a file that safetensors can read anywhere.

    >>> import gt, tempfile, os
    >>> path = os.path.join(tempfile.mkdtemp(), "model.safetensors")
    >>> gt.save({"w": gt.arange(3)}, path)
    >>> gt.load(path)["w"]
    tensor([0, 1, 2])
    """
    header: dict[str, Any] = {}
    arrays: list[np.ndarray[Any, Any]] = []
    at = 0
    for name, t in tensors.items():
        if not isinstance(t, Tensor):
            raise ArgumentError(f"save: {name} is a {type(t).__name__}; a file holds tensors by name")
        array = np.ascontiguousarray(t.detach().numpy())
        header[name] = {
            "dtype": _CODES[t.dtype.name], "shape": list(t.shape), "data_offsets": [at, at + array.nbytes]
        }  # fmt: skip
        at += array.nbytes
        arrays.append(array)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    # Beside the file and then in its place: whoever reads meanwhile, or a crash, meets the old one whole.
    path = Path(path)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(beside, "wb") as f:
            f.write(len(text).to_bytes(8, "little") + text)
            for array in arrays:
                f.write(array.tobytes())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def load(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The tensors of a safetensors file, by name."""
    with open(path, "rb") as f:
        size = os.fstat(f.fileno()).st_size
        length = int.from_bytes(f.read(8), "little")
        if not 2 <= length <= min(MAX_HEADER, size - 8):
            raise ArgumentError(f"load: {path} is not a safetensors file")
        try:
            header = json.loads(f.read(length))
            rows = {
                k: (_NAMES[v["dtype"]], tuple(v["shape"]), *v["data_offsets"])
                for k, v in header.items()
                if k != "__metadata__"
            }
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ArgumentError(f"load: the header of {path} is not one of a safetensors file") from None
        tensors = {}
        for name, (dtype, shape, start, end) in rows.items():
            kind = dtypes.BY_NAME[dtype].numpy
            if not (0 <= start <= end <= size - 8 - length and end - start == int(np.prod(shape)) * kind.itemsize):
                raise ArgumentError(f"load: {path}: {name} lies outside the file, or has another size than it says")
            f.seek(8 + length + start)
            tensors[name] = from_numpy(np.frombuffer(f.read(end - start), kind).reshape(shape))
        return tensors
