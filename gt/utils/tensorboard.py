"""`SummaryWriter`, as in torch.utils.tensorboard: numbers, histograms, images and texts for TensorBoard.

Needs neither torch nor TensorBoard. An event file is a row of records (length, checksum, bytes, checksum); the bytes
are an `Event` in the encoding of protocol buffers, which is written here by hand: a field is its number, its kind and
its value. Methods for videos, meshes, graphs and projections do nothing but warn once.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from gt.client.compat.interop import is_torch, torch_array
from gt.client.tensor import Tensor, own
from gt.errors import ArgumentError

__all__ = ["SummaryWriter"]


# --- the encoding ------------------------------------------------------------------------------------


def _varint(n: int) -> bytes:
    n &= (1 << 64) - 1
    made = bytearray()
    while n > 127:
        made.append(n & 127 | 128)
        n >>= 7
    made.append(n)
    return bytes(made)


def _int(field: int, n: int) -> bytes:
    return _varint(field << 3) + _varint(n)


def _double(field: int, x: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", x)


def _float(field: int, x: float) -> bytes:
    return _varint(field << 3 | 5) + struct.pack("<f", x)


def _bytes(field: int, data: bytes | str) -> bytes:
    data = data.encode() if isinstance(data, str) else data
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _doubles(field: int, xs: Any) -> bytes:
    return _bytes(field, np.asarray(xs, "<f8").tobytes())


def _table() -> list[int]:
    made = []
    for n in range(256):
        for _ in range(8):
            n = n >> 1 ^ (0x82F63B78 if n & 1 else 0)
        made.append(n)
    return made


_CRC = _table()


def _checksum(data: bytes) -> bytes:
    """The masked CRC-32C of some bytes."""
    crc = 0xFFFFFFFF
    for b in data:
        crc = _CRC[(crc ^ b) & 255] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _png(pixels: np.ndarray[Any, Any]) -> bytes:
    """An image (height, width, channels) of bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width, channels = pixels.shape
    kinds = {1: 0, 2: 4, 3: 2, 4: 6}
    head = struct.pack(">IIBBBBB", width, height, 8, kinds[channels], 0, 0, 0)
    rows = b"".join(b"\0" + row.tobytes() for row in np.ascontiguousarray(pixels))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def _array(x: Any) -> np.ndarray[Any, Any]:
    """A tensor of GT or torch, or an array or number, on the host. Waits for it."""
    x = own(x)
    if isinstance(x, Tensor):
        x = x.detach().numpy()
    elif is_torch(x):
        x = torch_array(x)
    array = np.asarray(x)
    return array.astype(np.float32) if array.dtype.kind not in "biufc" else array


# --- the writer --------------------------------------------------------------------------------------


class SummaryWriter:
    """Writes what TensorBoard shows to an event file in a folder, by default `runs/<date>_<host>`."""

    def __init__(
        self, log_dir: Any = None, comment: str = "", purge_step: int | None = None, max_queue: int = 10,
        flush_secs: int = 120, filename_suffix: str = "",
    ) -> None:  # fmt: skip
        if not log_dir:
            log_dir = Path("runs") / f"{time.strftime('%b%d_%H-%M-%S')}_{socket.gethostname()}{comment}"
        self.log_dir = os.fspath(log_dir)
        self._suffix, self._flush_s = filename_suffix, flush_secs
        self._file: Any = None
        self._parts: dict[str, SummaryWriter] = {}  #: Writers of add_scalars, by folder.
        self._lock = threading.Lock()
        self._flushed_s = time.monotonic()
        self._event(_bytes(3, "brain.Event:2"), None, None)

    def _event(self, what: bytes, step: Any, walltime: float | None) -> None:
        at = time.time() if walltime is None else walltime
        data = _double(1, at) + (b"" if step is None else _int(2, int(_array(step)))) + what
        length = struct.pack("<Q", len(data))
        with self._lock:
            if self._file is None:
                os.makedirs(self.log_dir, exist_ok=True)
                name = f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}{self._suffix}"
                self._file = open(os.path.join(self.log_dir, name), "ab")
            self._file.write(length + _checksum(length) + data + _checksum(data))
            if time.monotonic() - self._flushed_s > self._flush_s:
                self._file.flush()
                self._flushed_s = time.monotonic()

    def _summary(self, tag: str, value: bytes, step: Any, walltime: float | None) -> None:
        self._event(_bytes(5, _bytes(1, _bytes(1, str(tag)) + value)), step, walltime)

    def get_logdir(self) -> str:
        """The folder."""
        return self.log_dir

    def add_scalar(
        self, tag: str, scalar_value: Any, global_step: Any = None, walltime: float | None = None,
        new_style: bool = False, double_precision: bool = False,
    ) -> None:  # fmt: skip
        """Add a number. A tensor is waited for."""
        array = _array(scalar_value)
        if array.size != 1:
            raise ArgumentError(f"add_scalar: {tag} must be one number, got shape {array.shape}")
        self._summary(tag, _float(2, float(array.reshape(()))), global_step, walltime)

    def add_scalars(self, main_tag: str, tag_scalar_dict: Any, global_step: Any = None, walltime: Any = None) -> None:
        """Add several numbers to one diagram: each has a folder of its own."""
        for tag, value in tag_scalar_dict.items():
            folder = os.path.join(self.log_dir, f"{main_tag.replace('/', '_')}_{tag}")
            part = self._parts.get(folder)
            if part is None:
                part = self._parts[folder] = SummaryWriter(folder)
            part.add_scalar(main_tag, value, global_step, walltime)

    def add_histogram(
        self, tag: str, values: Any, global_step: Any = None, bins: Any = "tensorflow", walltime: Any = None,
        max_bins: int | None = None,
    ) -> None:  # fmt: skip
        """Add a histogram of values."""
        x = _array(values).astype(np.float64).reshape(-1)
        if not x.size:
            raise ArgumentError(f"add_histogram: {tag} has no values")
        counts, edges = np.histogram(x, bins=64 if bins == "tensorflow" else bins)
        data = _double(1, x.min()) + _double(2, x.max()) + _double(3, x.size) + _double(4, x.sum())
        data += _double(5, float(x @ x)) + _doubles(6, edges[1:]) + _doubles(7, counts)
        self._summary(tag, _bytes(5, data), global_step, walltime)

    def add_image(
        self, tag: str, img_tensor: Any, global_step: Any = None, walltime: Any = None, dataformats: str = "CHW"
    ) -> None:
        """Add an image: floats between 0 and 1, or bytes."""
        x = _array(img_tensor)
        order = dataformats.upper()
        if x.ndim != len(order) or sorted(order.replace("N", "")) not in (["C", "H", "W"], ["H", "W"]):
            raise ArgumentError(f"add_image: {tag} has shape {x.shape}, which is not {dataformats}")
        if "C" not in order:
            x, order = x[..., None], order + "C"
        if "N" in order:  # beside one another
            x = np.concatenate(list(np.moveaxis(x, order.index("N"), 0)), axis=order.replace("N", "").index("W"))
            order = order.replace("N", "")
        x = x.transpose([order.index(c) for c in "HWC"])
        if x.dtype != np.uint8:
            x = (np.clip(np.nan_to_num(x), 0, 1) * 255).astype(np.uint8)
        if x.shape[2] > 4:
            raise ArgumentError(f"add_image: {tag} has {x.shape[2]} channels; expected 1 to 4")
        data = _int(1, x.shape[0]) + _int(2, x.shape[1]) + _int(3, x.shape[2]) + _bytes(4, _png(x))
        self._summary(tag, _bytes(4, data), global_step, walltime)

    def add_images(
        self, tag: str, img_tensor: Any, global_step: Any = None, walltime: Any = None, dataformats: str = "NCHW"
    ) -> None:
        """Add a batch of images, beside one another."""
        self.add_image(tag, img_tensor, global_step, walltime, dataformats)

    def add_text(self, tag: str, text_string: str, global_step: Any = None, walltime: Any = None) -> None:
        """Add a text."""
        plugin = _bytes(9, _bytes(1, _bytes(1, "text")))  # metadata: the plugin that shows it
        tensor = _bytes(
            8, _int(1, 7) + _bytes(2, _bytes(2, _int(1, 1))) + _bytes(8, text_string)
        )  # strings, shape (1,)
        self._summary(f"{tag}/text_summary", plugin + tensor, global_step, walltime)

    def add_hparams(
        self, hparam_dict: Any, metric_dict: Any, hparam_domain_discrete: Any = None, run_name: Any = None,
        global_step: Any = None,
    ) -> None:  # fmt: skip
        """Add settings as a text, and what came of them as numbers."""
        rows = "\n".join(f"| {k} | {v} |" for k, v in hparam_dict.items())
        self.add_text("hparams", f"| setting | value |\n| --- | --- |\n{rows}", global_step)
        for tag, value in metric_dict.items():
            self.add_scalar(tag, value, global_step)

    def __getattr__(self, name: str) -> Any:
        if name not in _IGNORED:
            raise AttributeError(f"SummaryWriter has no attribute {name!r}")
        warnings.warn(f"SummaryWriter.{name} does nothing in GT", stacklevel=2)
        return lambda *args, **kwargs: None

    def flush(self) -> None:
        """Write what is buffered."""
        with self._lock:
            if self._file is not None:
                self._file.flush()
        for part in self._parts.values():
            part.flush()

    def close(self) -> None:
        """Write what is buffered, and close the files."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None
        for part in self._parts.values():
            part.close()

    def __enter__(self) -> SummaryWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


_IGNORED = {
    "add_audio", "add_custom_scalars", "add_custom_scalars_marginchart", "add_custom_scalars_multilinechart",
    "add_embedding", "add_figure", "add_graph", "add_mesh", "add_onnx_graph", "add_pr_curve", "add_video",
}  # fmt: skip
