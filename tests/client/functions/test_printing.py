"""Tensors print as torch's do."""

from __future__ import annotations

from collections.abc import Callable
from operator import methodcaller
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.client.session.session import Session

_rng = np.random.default_rng(7)
NAN, INF = float("nan"), float("inf")

#: name: (data, dtype)
TENSORS: dict[str, tuple[Any, str]] = {
    "whole floats": ([1.0, 2.0, 3.0], "float32"),
    "floats": ([0.5, -1.25, 3.14159], "float32"),
    "rounding": ([0.00005, 0.99995, 1.00004999], "float32"),
    "a matrix": (_rng.normal(size=(3, 4)), "float32"),
    "three dimensions": (_rng.normal(size=(2, 3, 4)), "float32"),
    "four dimensions": (_rng.normal(size=(2, 1, 2, 3)), "float32"),
    "ints": ([[1, -20], [300, 4]], "int64"),
    "small ints": ([1, 2, 3], "int8"),
    "bytes": ([1, 255], "uint8"),
    "int32": ([[1], [2]], "int32"),
    "int16": ([-1, 2], "int16"),
    "bools": ([[True, False], [False, True]], "bool"),
    "one bool": (True, "bool"),
    "zero dimensions": (3.14159, "float32"),
    "a whole number without dimensions": (3.0, "float32"),
    "an int without dimensions": (7, "int64"),
    "large": ([1e9, 2.5e9], "float32"),
    "large whole": ([123456789.0, 1.0], "float64"),
    "small": ([1e-5, 2e-6], "float32"),
    "a wide range": ([1e-3, 1.0, 12345.0], "float32"),
    "a wide range of whole numbers": ([1.0, 100000.0], "float32"),
    "just scientific": ([1.0, 1001.5], "float32"),
    "not yet scientific": ([1.0, 999.5], "float32"),
    "nan": ([1.0, NAN, 2.5], "float32"),
    "inf": ([1.0, INF, -INF], "float32"),
    "only nan": ([NAN, NAN], "float32"),
    "only inf": (-INF, "float32"),
    "inf among scientific": ([1e-8, INF, 1.0], "float32"),
    "negative zero": ([-0.0, 0.0], "float32"),
    "zeros": (np.zeros((2, 2)), "float32"),
    "zeros and one small": ([0.0, 1e-7], "float32"),
    "double": (_rng.normal(size=3), "float64"),
    "half": (_rng.normal(size=3), "float16"),
    "bfloat16": (_rng.normal(size=3), "bfloat16"),
    "empty": ([], "float32"),
    "empty ints": ([], "int64"),
    "empty bools": ([], "bool"),
    "empty matrix": (np.zeros((0, 3)), "float32"),
    "empty double matrix": (np.zeros((2, 0)), "float64"),
    "many in a row": (np.arange(60.0) / 7, "float32"),
    "many ints in a row": (np.arange(60) * 37, "int64"),
    "many bools in a row": (np.arange(40) % 3 == 0, "bool"),
    "wide rows": (_rng.normal(size=(3, 30)), "float32"),
    "just below the limit": (np.arange(1000.0), "float32"),
    "shortened": (np.arange(1001.0), "float32"),
    "shortened ints": (np.arange(5000), "int64"),
    "shortened matrix": (_rng.normal(size=(100, 100)), "float32"),
    "shortened on one side": (_rng.normal(size=(4, 400)), "float32"),
    "shortened rows": (_rng.normal(size=(400, 4)), "float32"),
    "shortened three dimensions": (_rng.normal(size=(20, 20, 20)), "float32"),
    "shortened double": (_rng.normal(size=2000), "float64"),
    "shortened scientific": (np.logspace(-6, 6, 2000), "float32"),
    "hidden numbers do not count": (np.where(np.arange(2000) == 1000, 1e9, 1.0), "float32"),
}


def both(data: Any, dtype: str) -> tuple[Any, Any]:
    array = np.asarray(data)
    t = torch.tensor(array.tolist(), dtype=getattr(torch, dtype)).reshape(array.shape)
    return t, gt.tensor(array, dtype=dtype)


def as_gt(text: str) -> str:
    return text.replace("torch.", "gt.")


@pytest.mark.parametrize(("data", "dtype"), TENSORS.values(), ids=TENSORS.keys())
def test_text_is_as_in_torch(data: Any, dtype: str, session: Session) -> None:
    t, g = both(data, dtype)
    assert repr(g) == as_gt(repr(t))


HISTORIES: dict[str, Callable[[Any], Any]] = {
    "a leaf": lambda x: x,
    "add": lambda x: x + 1.0,
    "mul": lambda x: x * x,
    "div": lambda x: x / 2.0,
    "pow": lambda x: x**2,
    **{name: methodcaller(name) for name in ("sum", "mean", "relu", "exp", "tanh")},
}


@pytest.mark.parametrize("f", HISTORIES.values(), ids=HISTORIES.keys())
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_history_is_shown(f: Callable[[Any], Any], dtype: str, session: Session) -> None:
    t, g = both([[1.0, 2.5], [3.0, -1.0]], dtype)
    assert repr(f(g.requires_grad_())) == as_gt(repr(f(t.requires_grad_())))


def test_history_moves_to_a_line_of_its_own_when_the_row_is_full(session: Session) -> None:
    t, g = both(_rng.normal(size=(2, 8)), "float64")
    assert repr(g.requires_grad_() + 1.0) == as_gt(repr(t.requires_grad_() + 1.0))


def test_parameters_say_what_they_are(session: Session) -> None:
    t, g = both([1.0, 2.0], "float32")
    assert repr(gt.nn.Parameter(g)) == repr(torch.nn.Parameter(t))


@pytest.mark.parametrize(
    "options",
    [
        {"precision": 2, "sci_mode": False},
        {"sci_mode": True},
        {"threshold": 5, "edgeitems": 1, "linewidth": 40},
        {"profile": "short"},
        {"profile": "full", "precision": 6},
        {"threshold": float("inf")},
    ],
)
def test_options(options: dict[str, Any], session: Session) -> None:
    data = [both(d, "float32") for d in ([1e-8, 1.0, 300.0], _rng.normal(size=(4, 30)), _rng.normal(size=(40, 40)))]
    try:
        for lib in (torch, gt):
            lib.set_printoptions(**options)
        for t, g in data:
            assert repr(g) == repr(t)
    finally:
        for lib in (torch, gt):
            lib.set_printoptions(profile="default")


@pytest.mark.parametrize("name", ["float64", "float16"])
def test_the_default_dtype_is_not_said(name: str, session: Session) -> None:
    try:
        for lib in (torch, gt):
            lib.set_default_dtype(getattr(lib, name))
        for dtype in ("float16", "float32", "float64", "complex64", "complex128", "int64"):
            for data in ([1, 2], []):
                t, g = both(data, dtype)
                assert repr(g) == as_gt(repr(t))
    finally:
        for lib in (torch, gt):
            lib.set_default_dtype(lib.float32)


def test_format(session: Session) -> None:
    t, g = both(3.14159, "float32")
    assert f"{g:.2f} {g:8.3e}" == f"{t:.2f} {t:8.3e}"
    assert f"{g}" == f"{t.item()}" == f"{t}"
    t, g = both([1.0, 2.0], "float32")
    assert f"{g}" == f"{t}"
    assert str(g) == str(t)


def test_printing_reads_but_does_not_raise(session: Session) -> None:
    """In a debugger, or a log line in an except block, a tensor that failed says why."""
    bad = gt.arange(3).gather(0, gt.tensor([7]))
    assert repr(bad).startswith("<tensor i64[1]: ")
    assert "out of range" in repr(bad) or "7" in repr(bad)
