"""The safetensors format: an 8-byte length, a header in JSON, the bytes of the tensors.

Used by save.py for single files and by mesh/sharded_files.py for folders.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from gt import dtypes
from gt.errors import ArgumentError

_NAMES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool", "C64": "complex64", "C128": "complex128",
    "U16": "uint16", "U32": "uint32", "U64": "uint64", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
}  # fmt: skip
_CODES = {name: code for code, name in _NAMES.items()}
STRUCTURE = "gt.structure"  #: The entry of the header's metadata with the structure of the saved object, as JSON.
MAX_HEADER = 100 << 20


def entry(name: str, dtype: str, shape: tuple[int, ...], at: int) -> dict[str, Any]:
    """The header's entry of a tensor whose bytes begin at `at`, counted from the end of the header."""
    if dtype not in _CODES:
        raise ArgumentError(f"save: {name} is an array of dtype {dtype}, which is not supported")
    nbytes = math.prod(shape) * dtypes.BY_NAME[dtype].itemsize
    return {"dtype": _CODES[dtype], "shape": list(shape), "data_offsets": [at, at + nbytes]}


def begin(header: dict[str, Any]) -> bytes:
    """The first bytes of a file: the length of the header and the header."""
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that is written atomically: it is complete, or not there at all."""
    # Written beside the file and then renamed: until then, readers see the old file, also after a crash.
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(beside, "wb") as file:
            yield file
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def read_header(file: IO[bytes], path: Any) -> tuple[dict[str, tuple[str, tuple[int, ...], int, int]], str | None]:
    """By tensor: dtype, shape, first and last byte in the file; and the structure of the saved object, as text."""
    start = file.tell()
    size = file.seek(0, os.SEEK_END) - start
    file.seek(start)
    prefix = file.read(8)
    length = int.from_bytes(prefix, "little")
    if not 2 <= length <= min(MAX_HEADER, size - 8):
        raise ArgumentError(f"load: {path} is not a safetensors file")
    try:
        header = json.loads(file.read(length))
        rows = {
            k: (_NAMES[v["dtype"]], tuple(v["shape"]), *v["data_offsets"])
            for k, v in header.items()
            if k != "__metadata__"
        }
        form = header.get("__metadata__", {}).get(STRUCTURE)
        first = start + 8 + length
        for name, (dtype, shape, a, b) in rows.items():
            nbytes = math.prod(shape) * dtypes.BY_NAME[dtype].itemsize
            if not (0 <= a <= b <= size - 8 - length and b - a == nbytes):
                raise ArgumentError(f"load: {path}: the data of {name} is outside the file or has the wrong size")
        return {k: (dtype, shape, first + a, first + b) for k, (dtype, shape, a, b) in rows.items()}, form
    except ArgumentError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ArgumentError(f"load: {path} has an invalid safetensors header") from None


def read_array(file: IO[bytes], row: tuple[str, tuple[int, ...], int, int]) -> np.ndarray[Any, Any]:
    """Read one tensor of a file."""
    dtype, shape, start, end = row
    file.seek(start)
    return np.frombuffer(file.read(end - start), dtypes.BY_NAME[dtype].numpy).reshape(shape)
