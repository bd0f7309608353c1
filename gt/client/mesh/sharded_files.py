"""Sharded checkpoints: a folder with one safetensors file per worker and an index.

    index.json                      which file holds which shard of each tensor, and the structure of the saved object
    3f2a-worker1.safetensors        the shards that worker 1 held, under the tensors' names
    3f2a-whole.safetensors          tensors that were not sharded, and arrays of this process

Law 1: at most one tensor at a time is in this process's memory.
Law 2: the index is replaced last, atomically. So the folder always holds one complete checkpoint, also while the next
       one is being written; the files of the previous one are deleted afterwards.
Law 3: a checkpoint can be read on any number of workers: shards are assembled to tensors, which are sharded again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from gt import layout
from gt.client.functions.safetensors import begin, entry, read_array, read_header, whole_file
from gt.client.record.recorder import recorder
from gt.client.session.transfers import assemble, index_of
from gt.client.tensor import Tensor
from gt.errors import ArgumentError, GTError
from gt.layout import Layout

INDEX = "index.json"
VERSION = 1

Array = np.ndarray[Any, Any]
Place = tuple[layout.Runs, ...]


class _Written:
    """A file that is being written: its header and its size so far."""

    def __init__(self) -> None:
        self.header: dict[str, Any] = {}
        self.nbytes = 0

    def reserve(self, name: str, dtype: str, shape: tuple[int, ...]) -> None:
        row = self.header[name] = entry(name, dtype, shape, self.nbytes)
        self.nbytes = row["data_offsets"][1]


def write_folder(folder: Path, tensors: dict[str, Any], form: Any) -> None:
    """Write named tensors and arrays as a checkpoint; `form` is the structure of the saved object."""
    folder.mkdir(parents=True, exist_ok=True)
    token = os.urandom(4).hex()
    files: dict[str, _Written] = {}
    index: dict[str, Any] = {}
    #: The file of each shard, by tensor name and place in the tensor.
    places: dict[str, dict[Place, str]] = {}
    for name, t in tensors.items():
        lay = _layout(t)
        dtype = t.dtype.name
        row = index[name] = {"dtype": dtype, "shape": list(t.shape)}
        if lay is None:
            whole = f"{token}-whole.safetensors"
            files.setdefault(whole, _Written()).reserve(name, dtype, tuple(t.shape))
            row["file"] = whole
            continue
        mesh = lay.mesh
        row |= {"mesh": _mesh_name(lay), "axes": dict(mesh.axes), "layout": repr(lay), "files": {}}
        places[name] = {}
        for k, at in enumerate(mesh.coordinates):
            place = _place(lay, t.shape, at)
            if place in places[name]:
                continue  # a replica of a shard that is written already
            file = places[name][place] = f"{token}-worker{mesh.workers[k]}.safetensors"
            files.setdefault(file, _Written()).reserve(name, dtype, layout.local_shape(lay, t.shape, at))
            row["files"][str(k)] = file
    try:
        _fill(folder, files, tensors, places)
        text = json.dumps({"gt": VERSION, "structure": form, "tensors": index}).encode()
        before = _files_of(folder)
        with whole_file(folder / INDEX) as whole_index:
            whole_index.write(text)
    except BaseException:
        for file in files:
            (folder / file).unlink(missing_ok=True)
        raise
    for file in before - files.keys():
        (folder / file).unlink(missing_ok=True)


def _fill(
    folder: Path, files: dict[str, _Written], tensors: dict[str, Any], places: dict[str, dict[Place, str]]
) -> None:
    with ExitStack() as opened:
        out: dict[str, IO[bytes]] = {}
        for file, written in files.items():
            out[file] = opened.enter_context(open(folder / file, "wb"))
            out[file].write(begin(written.header))
        # Every file's header lists its tensors in the order of `tensors`, so the data is written in that order.
        for name, t in tensors.items():
            if name not in places:
                array = t.detach().numpy() if isinstance(t, Tensor) else t
                (file,) = (f for f, w in files.items() if name in w.header)
                out[file].write(np.ascontiguousarray(array).tobytes())
                continue
            for place, shard in _shards(t, places[name]):
                out[places[name][place]].write(np.ascontiguousarray(shard).tobytes())


def _layout(t: Any) -> Layout | None:
    """The layout of a sharded tensor; None if it is whole, is an array of this process, or is a partial result."""
    if not isinstance(t, Tensor) or not recorder().session.meshes.several:
        return None
    lay: Layout = t.layout
    return lay if lay.dims and not lay.partial else None


def _mesh_name(lay: Layout) -> str:
    meshes = recorder().session.meshes.by_name
    return next((name for name, m in meshes.items() if m.grid is lay.mesh), "")


def _place(lay: Layout, shape: tuple[int, ...], at: tuple[int, ...]) -> Place:
    return tuple(layout.held(lay.pieces(d), n, lay.mesh, at) for d, n in enumerate(shape))


def _shards(t: Tensor, places: Iterable[Place]) -> list[tuple[Place, Array]]:
    """Fetch a tensor, cut at these places; each shard with its place. Empty shards may be missing."""
    parts = recorder().session.download(t._v or t._read()).parts
    if parts is not None:
        lay = parts.layout
        found = {_place(lay, t.shape, lay.mesh.coordinates[k]): shard for k, shard in parts.by_position().items()}
        if not lay.partial and found.keys() <= set(places):
            return [*found.items()]
    # Its plan has changed since its layout was asked for, under a loop of another thread or calls under way.
    whole = t.detach().numpy()
    return [(place, whole[index_of(place)]) for place in places]


# --- reading ------------------------------------------------------------------------------------------


def read_folder(folder: Path) -> tuple[dict[str, Callable[[], Array]], Any, dict[str, str]]:
    """Readers of the tensors, by name; the structure of the saved object; the layouts that can be restored, by name."""
    index = _index(folder)
    arrays: dict[str, Callable[[], Array]] = {}
    layouts: dict[str, str] = {}
    try:
        for name, row in index["tensors"].items():
            shape = tuple(row["shape"])
            if "file" in row:
                arrays[name] = partial(_read_one, folder, row["file"], name, row["dtype"], shape)
                continue
            lay = layout.parse(row["layout"], layout.mesh(**row["axes"]))
            layout.fits(lay, shape)
            files = {int(k): str(file) for k, file in row["files"].items()}
            arrays[name] = partial(_read_parts, folder, files, name, row["dtype"], shape, lay)
            text = _again(row["mesh"], row["layout"], shape)
            if text is not None:
                layouts[name] = text
        return arrays, index["structure"], layouts
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise ArgumentError(f"load: {folder / INDEX} is not the index of a sharded checkpoint ({e})") from None


def _again(mesh: str, text: str, shape: tuple[int, ...]) -> str | None:
    """The layout that a tensor had, if this session has a mesh of that name that it fits."""
    made = recorder().session.meshes.by_name.get(mesh)
    try:
        if made is not None:
            layout.fits(layout.parse(text, made.grid), shape)
            return f"{mesh}: {text}" if mesh else text
    except GTError:
        pass
    return None


def _index(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / INDEX).read_text())
        if found["gt"] != VERSION:
            raise ArgumentError(f"load: {folder} has checkpoint version {found['gt']}; this GT reads version {VERSION}")
    except OSError:
        raise ArgumentError(f"load: {folder} has no {INDEX}, so it is not a sharded checkpoint") from None
    except (ValueError, KeyError, TypeError, RecursionError) as e:
        if isinstance(e, GTError):
            raise
        raise ArgumentError(f"load: {folder / INDEX} is not the index of a sharded checkpoint") from None
    return found


def _files_of(folder: Path) -> set[str]:
    """The files of the checkpoint in a folder; empty if there is none."""
    try:
        rows = _index(folder)["tensors"].values()
        named = {f for row in rows for f in (row.get("files") or {"": row["file"]}).values()}
    except (GTError, KeyError, AttributeError):
        return set()
    return {f for f in named if isinstance(f, str) and os.path.basename(f) == f}


def _read_one(folder: Path, file: str, name: str, dtype: str, shape: tuple[int, ...]) -> Array:
    """Read one array of a file, after checking its dtype and shape."""
    if os.path.basename(file) != file:
        raise ArgumentError(f"load: {folder / INDEX} names a file outside the folder: {file!r}")
    try:
        with open(folder / file, "rb") as opened:
            rows, _ = read_header(opened, folder / file)
            if name not in rows or rows[name][:2] != (dtype, shape):
                raise ArgumentError(f"load: {folder / file} does not hold the shard of {name} that the index lists")
            return read_array(opened, rows[name])
    except OSError as e:
        raise ArgumentError(f"load: {folder / file}: {e.strerror}") from None


def _read_parts(
    folder: Path, files: dict[int, str], name: str, dtype: str, shape: tuple[int, ...], lay: Layout
) -> Array:
    coordinates = lay.mesh.coordinates
    shards = {
        k: _read_one(folder, file, name, dtype, layout.local_shape(lay, shape, coordinates[k]))
        for k, file in files.items()
    }
    return assemble(lay, shape, shards)
