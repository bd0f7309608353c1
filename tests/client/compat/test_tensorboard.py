"""SummaryWriter: the records of its files are read back by hand."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gt
from gt.errors import ArgumentError
from gt.utils.tensorboard import SummaryWriter, _checksum


def fields(data: bytes) -> list[tuple[int, Any]]:
    """The fields of a message of protocol buffers."""
    at, found = 0, []

    def varint() -> int:
        nonlocal at
        n = shift = 0
        while True:
            n |= (data[at] & 127) << shift
            at += 1
            if not data[at - 1] & 128:
                return n
            shift += 7

    while at < len(data):
        key = varint()
        kind, size = key & 7, {1: 8, 5: 4}.get(key & 7, 0)
        if kind == 0:
            value: Any = varint()
        else:
            size = size or varint()
            value = data[at : at + size]
            at += size
            value = struct.unpack("<d" if kind == 1 else "<f", value)[0] if kind in (1, 5) else value
        found.append((key >> 3, value))
    return found


def records(folder: Path) -> list[dict[int, Any]]:
    (path,) = folder.glob("events.out.tfevents.*")
    data, at, found = path.read_bytes(), 0, []
    while at < len(data):
        (n,) = struct.unpack("<Q", data[at : at + 8])
        body = data[at + 12 : at + 12 + n]
        assert data[at + 8 : at + 12] == _checksum(data[at : at + 8])
        assert data[at + 12 + n : at + 16 + n] == _checksum(body)
        found.append(dict(fields(body)))
        at += 16 + n
    return found


def value(record: dict[int, Any]) -> dict[int, Any]:
    return dict(fields(dict(fields(record[5]))[1]))


def test_what_is_written(tmp_path: Path) -> None:
    assert _checksum(b"123456789") == struct.pack(
        "<I", ((0xE3069283 >> 15 | 0xE3069283 << 17) + 0xA282EAD8) & 0xFFFFFFFF
    )
    with SummaryWriter(tmp_path) as writer:
        writer.add_scalar("loss", gt.tensor(0.5), 7)
        writer.add_histogram("h", gt.arange(100.0), 1)
        writer.add_image("picture", gt.ones(3, 8, 6), 2)
        writer.add_text("words", "hello", 3)
        writer.add_scalars("both", {"a": 1, "b": np.float32(2)}, 4)
    first, loss, histogram, picture, words = records(tmp_path)
    assert first[3] == b"brain.Event:2"
    assert (loss[2], value(loss)) == (7, {1: b"loss", 2: 0.5})
    counts = np.frombuffer(dict(fields(value(histogram)[5]))[7], "<f8")
    assert counts.sum() == 100
    image = dict(fields(value(picture)[4]))
    assert (image[1], image[2], image[3]) == (8, 6, 3)
    png = image[4]
    pixels = zlib.decompress(png[png.index(b"IDAT") + 4 : png.index(b"IEND") - 8])
    assert pixels == (b"\0" + b"\xff" * 18) * 8
    assert b"hello" in value(words)[8]
    assert value(records(tmp_path / "both_b")[1]) == {1: b"both", 2: 2.0}


def test_mistakes(tmp_path: Path) -> None:
    with SummaryWriter(tmp_path) as writer:
        with pytest.raises(ArgumentError, match="one number"):
            writer.add_scalar("x", gt.ones(2))
        with pytest.raises(ArgumentError, match="not CHW"):
            writer.add_image("x", gt.ones(2, 2))
        with pytest.warns(UserWarning, match="add_graph does nothing"):
            writer.add_graph(None)
