"""Tensors as text, in torch's format."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

PRECISION, THRESHOLD, EDGE, LINE = 4, 1000, 3, 80


def tensor_text(data: np.ndarray[Any, Any], dtype: str, suffixes: list[str]) -> str:
    """`tensor([1., 2.])`, with what follows the numbers.

    >>> tensor_text(np.array([1.0, 2.5]), "float32", [])
    'tensor([1.0000, 2.5000])'
    """
    prefix = "tensor("
    if dtype not in (("float32",) if data.size == 0 else ("float32", "int64", "bool")):
        suffixes = [f"dtype=gt.{dtype}", *suffixes]
    if data.size == 0:
        text = "[]"
        if data.ndim != 1:
            suffixes = [f"size={tuple(data.shape)}", *suffixes]
    else:
        wide = data.astype(np.float64) if dtype in ("bfloat16", "float16") else data
        shown = _edges(wide) if data.size > THRESHOLD else wide
        text = _block(wide, _Format(shown), len(prefix), data.size > THRESHOLD)
    text = prefix + text
    last = len(text) - text.rfind("\n") - 1
    for suffix in suffixes:
        if last + len(suffix) + 2 > LINE:
            text += ",\n" + " " * len(prefix) + suffix
            last = len(prefix) + len(suffix)
        else:
            text += ", " + suffix
            last += len(suffix) + 2
    return text + ")"


class _Format:
    """How to write the numbers of one tensor: all in one way, all of one width."""

    def __init__(self, data: np.ndarray[Any, Any]) -> None:
        self.real = data.dtype.kind not in "iub"
        self.whole = self.scientific = False
        flat = data.reshape(-1)
        if self.real:
            flat = flat[np.isfinite(flat) & (flat != 0)]  # what the format and the width are chosen by
            sizes = np.abs(flat.astype(np.float64))
            if sizes.size:
                self.whole = bool(np.all(sizes == np.ceil(sizes)))
                big, small = float(sizes.max()), float(sizes.min())
                self.scientific = big / small > 1000.0 or big > 1e8 or (not self.whole and small < 1e-4)
            else:
                self.whole = True
        self.width = max((len(self._bare(x)) for x in flat.tolist()), default=1)

    def _bare(self, x: Any) -> str:
        if not self.real or not math.isfinite(x):
            return str(x)
        if self.scientific:
            return f"{x:.{PRECISION}e}"
        return f"{x:.0f}." if self.whole else f"{x:.{PRECISION}f}"

    def __call__(self, x: Any) -> str:
        return self._bare(x).rjust(self.width)


def _edges(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The elements that a shortened tensor shows."""
    for d in range(x.ndim):
        if x.shape[d] > 2 * EDGE:
            x = np.concatenate([x.take(range(EDGE), d), x.take(range(x.shape[d] - EDGE, x.shape[d]), d)], d)
    return x


def _block(x: np.ndarray[Any, Any], form: _Format, indent: int, short: bool) -> str:
    if x.ndim == 0:
        return form(x.item())
    if x.ndim == 1:
        return _row(x, form, indent, short)
    if short and x.shape[0] > 2 * EDGE:
        parts = [_block(r, form, indent + 1, short) for r in x[:EDGE]]
        parts += ["..."]
        parts += [_block(r, form, indent + 1, short) for r in x[-EDGE:]]
    else:
        parts = [_block(r, form, indent + 1, short) for r in x]
    return "[" + ("," + "\n" * (x.ndim - 1) + " " * (indent + 1)).join(parts) + "]"


def _row(x: np.ndarray[Any, Any], form: _Format, indent: int, short: bool) -> str:
    per_line = max(1, (LINE - indent) // (form.width + 2))
    if short and x.size > 2 * EDGE:
        words = [form(v) for v in x[:EDGE].tolist()] + [" ..."] + [form(v) for v in x[-EDGE:].tolist()]
    else:
        words = [form(v) for v in x.tolist()]
    lines = [", ".join(words[i : i + per_line]) for i in range(0, len(words), per_line)]
    return "[" + (",\n" + " " * (indent + 1)).join(lines) + "]"
