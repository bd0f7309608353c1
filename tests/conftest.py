"""For all tests: nothing is compiled in the background unless a test wants it, each process has one thread, Python's
compiled files are kept, and what is parametrized has names that can be read."""

from __future__ import annotations

import gc
import inspect
import os
import sys
from typing import Any

import msgspec
import numpy as np
import pytest

os.environ.setdefault("GT_AUTO_COMPILE", "0")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # other tests run beside these, and tensors are tiny
# Else each of the many processes that tests start would compile all of GT again, for half a second.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with real processes come first: they wait much, and nobody shall be left alone with them at the end."""
    first = {item.path for item in items if item.get_closest_marker("processes")}
    items.sort(key=lambda item: item.path not in first)


def pytest_collection_finish() -> None:
    """Modules and tests stay: the garbage collector need not visit them again and again, which took a tenth of the
    time."""
    gc.collect()
    gc.freeze()


def pytest_make_parametrize_id(val: Any) -> str | None:
    """A name for a parameter of a test, where pytest would say `case0` or `<lambda>`; None where it has a good one."""
    named = isinstance(val, (str, bytes, int, float, complex, bool, type)) or val is None or inspect.ismodule(val)
    return None if named else shown(val)[:60] or None


def shown(x: Any) -> str:
    """A short text, the same in every process."""
    if inspect.isfunction(x) or inspect.isbuiltin(x):
        return x.__name__ if x.__name__ != "<lambda>" else " ".join(dict.fromkeys(x.__code__.co_names)) or "constant"
    if isinstance(x, (list, tuple)):
        return "(" + ", ".join(map(shown, x)) + ")"
    if isinstance(x, dict):
        return ", ".join(f"{shown(k)}={shown(v)}" for k, v in x.items()) or "nothing"
    if isinstance(x, msgspec.Struct):
        told = {name: getattr(x, name) for name in x.__struct_fields__}
        return f"{type(x).__name__}({shown({k: v for k, v in told.items() if v})})"
    if isinstance(x, np.ndarray):
        return f"{x.dtype}{list(x.shape)}" if x.size > 4 else str(x.tolist())
    text = ascii(x) if not isinstance(x, str) else x
    return type(x).__name__ if " at 0x" in text or "\n" in text else text
