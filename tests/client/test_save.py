"""Files of tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

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
def test_what_is_no_such_file_is_refused_in_one_line(session: Any, tmp_path: Path, data: bytes) -> None:
    (tmp_path / "f").write_bytes(data)
    with pytest.raises(ArgumentError, match="load: ") as e:
        gt.load(tmp_path / "f")
    assert "\n" not in str(e.value)


def test_only_tensors_by_name(session: Any, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="lr is a float"):
        gt.save({"lr": 0.1}, tmp_path / "f")
    assert list(tmp_path.iterdir()) == []
