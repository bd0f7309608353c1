"""Checkpoints of many workers: a folder with a file for each of them, that any number of workers reads back."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import gt
from gt import config
from gt.client.functions.save import begin, entry
from gt.client.mesh import sharded_files
from gt.client.mesh.sharding import layout_text
from gt.client.session.placing import set_mesh
from gt.client.session.session import Session
from gt.errors import ArgumentError, GTError
from tests.client.mesh.scripting import Array, Store
from tests.sim.cluster import using

RNG = np.random.default_rng(0)
ROWS, COLUMNS, WHOLE = RNG.normal(size=(101, 7)), RNG.normal(size=(40, 30)).astype(np.float32), RNG.normal(size=300)
LAYOUTS: dict[str, Any] = {"rows": {0: "x"}, "columns": {1: "x"}, "whole": ""}
ARRAYS: dict[str, Array] = {"rows": ROWS, "columns": COLUMNS, "whole": WHOLE}


def on(store: Store) -> Session:
    session = Session(store, config.load())
    if store.axes:
        set_mesh(session, "", store.axes)
    return session


def written(folder: Path, store: Store) -> None:
    with using(on(store)):
        state = {name: gt.from_numpy(a, layout=LAYOUTS[name]) for name, a in ARRAYS.items()}
        gt.save({"model": state, "step": 7, "host": np.arange(3)}, folder, sharded=True)


def names(folder: Path) -> list[str]:
    return sorted(f.name.partition("-")[2] or f.name for f in folder.iterdir())


def test_every_worker_has_a_file_and_an_index_says_how_they_fit(tmp_path: Path) -> None:
    written(tmp_path, Store(x=2))
    assert names(tmp_path) == ["index.json", "whole.safetensors", "worker1.safetensors", "worker2.safetensors"]
    index = json.loads((tmp_path / "index.json").read_text())
    row = index["tensors"]["model.rows"]
    assert (row["layout"], row["axes"], row["shape"]) == ("[101@x]", {"x": 2}, [101, 7])
    with using(on(Store())):  # whoever knows only the format reads a worker's file
        part = gt.load(tmp_path / row["files"]["1"])
        np.testing.assert_array_equal(part["model.rows"].numpy(), ROWS[50:])
        np.testing.assert_array_equal(part["model.columns"].numpy(), COLUMNS[:, 15:])


@pytest.mark.parametrize("axes", [{}, {"x": 2}, {"x": 3}, {"x": 2, "y": 2}, {"z": 2}], ids=str)
def test_any_number_of_workers_reads_it_back(axes: dict[str, int], tmp_path: Path) -> None:
    written(tmp_path, Store(x=2))
    store = Store(**axes)
    with using(on(store)):
        got = gt.load(tmp_path)
        assert got["step"] == 7
        np.testing.assert_array_equal(got["host"], np.arange(3))
        for name, a in ARRAYS.items():
            np.testing.assert_array_equal(got["model"][name].numpy(), a)
    again = "[101@x]" if "x" in axes else ""  # as it was, where there is such an axis
    assert store.layout(1) == again


def test_a_state_dict_comes_back_as_one_and_layouts_can_be_chosen(tmp_path: Path) -> None:
    with using(on(Store(x=2))):
        gt.save({name: gt.from_numpy(a, layout={0: "x"}) for name, a in ARRAYS.items()}, tmp_path, sharded=True)
    store = Store(x=2)
    with using(on(store)):
        got = gt.load(tmp_path, layout={"c*": {1: "x"}, "rows": ""})
        assert list(got) == list(ARRAYS)
        for name, a in ARRAYS.items():
            np.testing.assert_array_equal(got[name].numpy(), a)
        assert [store.layout(k) for k in sorted(store.uploads)] == ["[]", "[. 30@x]", "[300@x]"]
        with pytest.raises(ArgumentError, match="has no tensor named 'nothing'"):
            gt.load(tmp_path, layout={"nothing": ""})


def test_a_plain_file_is_read_into_any_layout(tmp_path: Path) -> None:
    path = tmp_path / "plain.safetensors"
    with using(on(Store())):
        gt.save({name: gt.from_numpy(a) for name, a in ARRAYS.items()}, path)
    store = Store(x=2)
    with using(on(store)):
        got = gt.load(path, layout={"rows": {0: "x"}, "*": ""})
        np.testing.assert_array_equal(got["rows"].numpy(), ROWS)
    assert [store.layout(k) for k in sorted(store.uploads)] == ["[101@x]", "[]", "[]"]


def test_a_layout_for_all_that_is_in_a_file(tmp_path: Path) -> None:
    """A number, such as an optimizer's count of steps, stays whole; a tensor that cannot have the layout is named."""
    path, step = tmp_path / "state.safetensors", np.array(7.0)
    header = {"rows": entry("rows", "float64", ROWS.shape, 0), "step": entry("step", "float64", (), ROWS.nbytes)}
    path.write_bytes(begin(header) + ROWS.tobytes() + step.tobytes())
    store = Store(x=2)
    with using(on(store)):
        gt.load(path, layout={"*": {0: "x"}})
        with pytest.raises(ArgumentError, match="load: rows: dimension 2 is out of range for a tensor of 2 dimensions"):
            gt.load(path, layout={"*": {2: "x"}})
    assert [store.layout(k) for k in sorted(store.uploads)] == ["[101@x]"]


def test_shards_without_elements_are_written_too(tmp_path: Path) -> None:
    small = RNG.normal(size=(2, 200))
    with using(on(Store(x=3))):
        gt.save({"small": gt.from_numpy(small, layout={0: "x"})}, tmp_path, sharded=True)
    with using(on(Store())):
        np.testing.assert_array_equal(gt.load(tmp_path)["small"].numpy(), small)


@pytest.mark.parametrize("changed", [{1: "x"}, ""], ids=str)
def test_a_plan_may_change_between_the_question_for_layouts_and_the_data(
    changed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask_and_move(t: Any) -> Any:
        found = layout_of(t)
        text = layout_text("", t.shape, changed)
        store.uploads = {k: (msgspec.structs.replace(m, layout=text), data) for k, (m, data) in store.uploads.items()}
        return found

    layout_of, store = sharded_files._layout, Store(x=3)
    monkeypatch.setattr(sharded_files, "_layout", ask_and_move)
    with using(on(store)):
        gt.save({"rows": gt.from_numpy(ROWS, layout={0: "x"})}, tmp_path, sharded=True)
    index = json.loads((tmp_path / "index.json").read_text())
    assert index["tensors"]["rows"]["layout"] == "[101@x]"
    with using(on(Store())):
        np.testing.assert_array_equal(gt.load(tmp_path)["rows"].numpy(), ROWS)


def test_a_new_checkpoint_replaces_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not GT's")
    written(tmp_path, Store(x=3))
    before = set(os.listdir(tmp_path))
    written(tmp_path, Store(x=2))
    after = set(os.listdir(tmp_path))
    assert before & after == {"index.json", "notes.txt"}
    assert len(after) == 5


def test_a_failed_one_leaves_the_old_one_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, Store(x=2))
    before = {f.name: f.read_bytes() for f in tmp_path.iterdir()}
    store = Store(x=2)
    monkeypatch.setattr(Session, "download", lambda self, v: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        written(tmp_path, store)
    assert {f.name: f.read_bytes() for f in tmp_path.iterdir()} == before


#: What is done to an index, and to one of its rows; and what is said of it.
WRONG: dict[Callable[[Any, Any], Any], str] = {
    lambda index, row: row.update(layout="[99@x]"): "does not fit a tensor",
    lambda index, row: row.update(dtype="float32"): "does not hold the shard of model.rows",
    lambda index, row: row["files"].update({"0": "../secret"}): "a file outside the folder",
    lambda index, row: row["files"].pop("0"): "shards are missing",
    lambda index, row: row.pop("axes"): "not the index of a sharded checkpoint",
    lambda index, row: index.update(gt=2): "checkpoint version 2",
    lambda index, row: index.pop("gt"): "not the index of a sharded checkpoint",
}


def test_folders_that_are_not_checkpoints(tmp_path: Path) -> None:
    with using(on(Store())):
        with pytest.raises(ArgumentError, match=r"has no index\.json"):
            gt.load(tmp_path)
        with pytest.raises(ArgumentError, match="sharded=True needs the path of a folder"):
            gt.save({}, io.BytesIO(), sharded=True)
    written(tmp_path, Store(x=2))
    good = (tmp_path / "index.json").read_text()
    for change, said in WRONG.items():
        index = json.loads(good)
        change(index, index["tensors"]["model.rows"])
        (tmp_path / "index.json").write_text(json.dumps(index))
        with using(on(Store())), pytest.raises(GTError, match=said):
            gt.load(tmp_path)
    (tmp_path / "index.json").write_text(good)
    next(tmp_path.glob("*worker1*")).unlink()
    with using(on(Store())), pytest.raises(ArgumentError, match="No such file"):
        gt.load(tmp_path)
