"""What does not fit is refused by inference, in one sentence; what it lets pass, every engine can do.

For each sample of each op the operands and attributes are changed one at a time. No worker-side error may come of
something that inference could see; only the data itself (an index, a singular matrix) may fail there. (Of torch's own
functions, which have no record, inference knows nothing: they are asked on the worker first.)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from gt import dtypes, errors
from gt.errors import ArgumentError, IndexOutOfRange, LinAlgError
from gt.ops import TABLE, Op
from gt.program import Spec, as_tuple, spec
from gt.worker.engines.torch import TorchEngine
from tests.ops.cases import NUMPY, calls_with, samples, specs_of

DTYPES = ("float32", "int64", "bool", "bfloat16", "complex64", "uint8")
LARGEST = 100_000  #: elements of a result that a test computes

Mutant = tuple[str, tuple[Any, ...], dict[str, Any]]


def shapes(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    found = [(*shape, 2)]
    if shape:
        found += [shape[:-1], (*shape[:-1], shape[-1] + 1), (shape[0] + 1, *shape[1:]), (0, *shape[1:]), ()]
    return found


def values(v: Any) -> list[Any]:
    """Other values for an attribute: of its kind, and of other kinds."""
    if isinstance(v, bool):
        return [not v, None, "x"]
    if isinstance(v, int):
        return [v + 1, v - 1, 0, 99, -7, None, 1.5, "x"]
    if isinstance(v, float):
        return [-v - 1.0, 0.0, float("nan"), None, "x"]
    if isinstance(v, str):
        return ["nonsense", "", None, 3]
    if isinstance(v, tuple):
        more = [(*v, v[-1]), v[:-1], (*v[:-1], 99), (*v[:-1], -1)] if v else [(0,), (5,)]
        return [*more, (), None, "x", 1, (1.5,)]
    return [0, 1.5, "x"]


def mutants(args: tuple[Any, ...], attrs: dict[str, Any]) -> Iterator[Mutant]:
    for k, a in enumerate(args):

        def other(new: Any, k: int = k) -> tuple[Any, ...]:
            return (*args[:k], new, *args[k + 1 :])

        if not isinstance(a, np.ndarray):
            yield f"operand {k} a tensor", other(np.ones(2)), attrs
            continue
        for shape in shapes(a.shape):
            resized = np.resize(a, shape) if a.size else np.zeros(shape, a.dtype)
            yield f"operand {k} of shape {shape}", other(resized), attrs
        for name in DTYPES:
            if dtypes.dtype(a.dtype).name != name:
                with np.errstate(all="ignore"):
                    cast = np.asarray(np.nan_to_num(a)).astype(dtypes.dtype(name).numpy)
                yield f"operand {k} in {name}", other(cast), attrs
        yield f"operand {k} a number", other(1.5), attrs
    for name, v in attrs.items():
        for new in values(v):
            if new != v or type(new) is not type(v):
                yield f"{name}={new!r}", args, {**attrs, name: new}


def small(specs: tuple[Spec, ...]) -> bool:
    return all(s.size <= LARGEST for s in specs)


def bad_index(op: Op, args: tuple[Any, ...], attrs: dict[str, Any]) -> bool:
    """Whether the worker's check of the data would refuse it."""
    if op.indices is None:
        return False
    for k, (n, extra) in op.indices(*specs_of(args), **attrs).items():
        i = np.asarray(args[k])
        if np.any(((i < 0) | (i >= n)) & (i != extra if extra is not None else True)):
            return True
    return False


@pytest.mark.filterwarnings("ignore")  # of the data, which is any
@pytest.mark.parametrize("op", [o for o in TABLE.values() if not o.name.startswith("torch_")], ids=lambda op: op.name)
def test_what_inference_lets_pass_can_be_done(op: Op) -> None:
    engine = TorchEngine("cpu")
    wrong: list[str] = []
    for args, attrs in samples(op)[:4]:
        for title, new, changed in mutants(args, attrs):
            try:
                results = as_tuple(op.infer(*specs_of(new), **changed))
            except errors.GTError as e:
                text = str(e)
                if "\n" in text or not 10 < len(text) < 300:
                    wrong.append(f"{title}: {text!r} is not one sentence")
                continue
            except Exception as e:
                wrong.append(f"{title}: inference raised {type(e).__name__}: {e}")
                continue
            if not small(results):
                continue
            if bad_index(op, new, changed):
                continue
            for which in (engine, NUMPY):
                try:
                    made = calls_with(which, op, new, changed)
                except (IndexOutOfRange, LinAlgError, ArgumentError):
                    continue  # the data, or what only the device tells
                except Exception as e:
                    shown = f"{type(e).__name__}: {e}".split("\n")[0][:150]
                    wrong.append(f"{title}: passed inference, then {which.name} raised {shown}")
                    continue
                for s, m in zip(results, made, strict=True):
                    if spec(m.shape, dtypes.dtype(m.dtype)) is not s:
                        wrong.append(f"{title}: {which.name} made {m.shape} {m.dtype}, inference said {s!r}")
    assert not wrong, f"{len(wrong)} wrong:\n" + "\n".join(wrong[:12])
