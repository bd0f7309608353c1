"""Files of tensors."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt import nn
from gt.errors import ArgumentError


def test_a_state_dict_comes_back_as_it_was(session: Any, tmp_path: Path) -> None:
    model, other = nn.Linear(3, 2), nn.Linear(3, 2)
    gt.save(model.state_dict(), tmp_path / "m")
    other.load_state_dict(gt.load(tmp_path / "m"))
    np.testing.assert_array_equal(other.weight.detach().numpy(), model.weight.detach().numpy())
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "int64", "int8", "uint8", "bool"])
@pytest.mark.parametrize("shape", [(), (3,), (0, 2), (2, 3, 4)])
def test_every_dtype_and_shape(session: Any, tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    x = (gt.arange(int(np.prod(shape))) % 2).reshape(shape).to(dtype)
    gt.save({"x": x, "y": x}, tmp_path / "f")
    back = gt.load(tmp_path / "f")
    assert list(back) == ["x", "y"]
    assert (back["y"].dtype, back["y"].shape) == (x.dtype, shape)
    np.testing.assert_array_equal(back["y"].numpy(), x.numpy())


def test_the_header_is_what_safetensors_says(session: Any, tmp_path: Path) -> None:
    gt.save({"w": gt.ones(2, 2)}, tmp_path / "f")
    data = (tmp_path / "f").read_bytes()
    n = int.from_bytes(data[:8], "little")
    assert json.loads(data[8 : 8 + n]) == {"w": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}}
    assert np.frombuffer(data[8 + n :], np.float32).tolist() == [1, 1, 1, 1]


def _file(header: Any, body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 16,
        _file(b"{nonsense"),
        _file([1]),
        _file({"w": {"dtype": "F32"}}),
        _file({"w": {"dtype": "X9", "shape": [1], "data_offsets": [0, 4]}}, b"abcd"),
        _file({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, b"abcd"),
        _file({"w": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}}, b"abcd"),
        _file({"w": {"dtype": "F32", "shape": [3], "data_offsets": [0, 4]}}, b"abcd"),
    ],
)
def test_other_files_are_refused_in_one_line(session: Any, tmp_path: Path, data: bytes) -> None:
    (tmp_path / "f").write_bytes(data)
    with pytest.raises(ArgumentError, match="load: ") as e:
        gt.load(tmp_path / "f")
    assert "\n" not in str(e.value)


def test_a_checkpoint_comes_back_as_it_was(session: Any, tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    opt = gt.optim.AdamW(model.parameters(), lr=0.1)
    model(gt.ones(1, 3)).sum().backward()
    opt.step()
    saved = {
        "epoch": 3, "model": model.state_dict(), "opt": opt.state_dict(), "best": float("inf"), "name": None,
        "shape": (1, [True, "x"]), "rng": np.arange(3), 7: gt.ones(2), "seen": {1, 2},
    }  # fmt: skip
    gt.save(saved, tmp_path / "f")
    back = gt.load(tmp_path / "f", map_location="cpu", weights_only=True)
    assert list(back) == list(saved)
    for key in ("epoch", "best", "name", "shape", "seen"):
        assert back[key] == saved[key]
    assert (back["rng"] == saved["rng"]).all()
    assert isinstance(back["rng"], np.ndarray)
    assert back[7].tolist() == [1, 1]
    other = nn.Linear(3, 2)
    other.load_state_dict(back["model"])
    again = gt.optim.AdamW(other.parameters())
    again.load_state_dict(back["opt"])
    assert again.param_groups[0]["lr"] == 0.1
    for m, o in ((model, opt), (other, again)):
        o.zero_grad()
        m(gt.ones(1, 3)).sum().backward()
        o.step()
    assert other.weight.tolist() == model.weight.tolist()


def test_files_in_memory_and_single_tensors(session: Any) -> None:
    file = io.BytesIO()
    gt.save(gt.arange(3), file)
    file.seek(0)
    assert gt.load(file).tolist() == [0, 1, 2]


def test_two_ways_to_one_name(session: Any) -> None:
    file = io.BytesIO()
    gt.save({"a": {"b": gt.ones(1)}, "a.b": gt.zeros(1), "__metadata__": gt.ones(2)}, file)
    file.seek(0)
    back = gt.load(file)
    assert (back["a"]["b"].item(), back["a.b"].item(), back["__metadata__"].tolist()) == (1, 0, [1, 1])


@pytest.mark.parametrize(
    ("what", "text"), [({"m": nn.ReLU()}, "save its state_dict"), ({"a": [object()]}, "a.0 is a object")]
)
def test_objects_that_cannot_be_saved_are_refused(session: Any, tmp_path: Path, what: Any, text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        gt.save(what, tmp_path / "f")
    assert list(tmp_path.iterdir()) == []


def test_files_of_torch_are_known_by_their_content(session: Any, tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "f")
    assert gt.load(tmp_path / "f")["w"].tolist() == [1, 1]
