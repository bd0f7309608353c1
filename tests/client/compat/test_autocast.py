"""Under autocast every function has the dtypes and values that torch's has, by torch's lists for CPUs and for CUDA.

Torch's own database of samples (tests/conformance) has the calls. Where there is no GPU, torch's list for CUDA is still
known: fake tensors have a device and a dtype, but no numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode

import gt
from gt.ops import TABLE
from gt.ops.record import Autocast
from tests.conformance.names import EXEMPT, RANDOM, find, sample_reason
from tests.conformance.running import _close, _flat, _samples, _shown, _twin, database
from tests.sessions import own_settings, session_on

DATABASE = database()
#: Functions that GT has itself. What torch runs on the worker is not under autocast.
NAMES = sorted(n for n in DATABASE if n not in EXEMPT and (found := find(n)) is not None and found[1])
LIMIT = 8  #: samples of each name and dtype

#: Names that differ, with the reason.
DIFFERENT = {
    "__rdiv__": "torch multiplies by the reciprocal, which is in float32; GT divides",
    "linalg.pinv": "the last product of torch's composition is in the lower precision; GT has one kernel",
    "nn.functional.linear_cross_entropy": "torch's form in chunks rounds elsewhere",
}
#: Names whose values are not compared, with the reason.
UNLIKE_VALUES = {"matrix_exp": "torch overflows in bfloat16"}


def left_out(name: str, sample: Any) -> bool:
    """torch casts the input of max_pool3d, but not if it returns indices too."""
    return name == "nn.functional.max_pool3d" and bool(sample.kwargs.get("return_indices"))


def changed(x: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """An argument with its tensors changed."""
    if isinstance(x, torch.Tensor):
        return change(x)
    if isinstance(x, (list, tuple)) and not hasattr(x, "_fields") and type(x) is not torch.Size:
        return type(x)(changed(y, change) for y in x)
    return {k: changed(v, change) for k, v in x.items()} if isinstance(x, dict) else x


def lowered(x: torch.Tensor) -> torch.Tensor:
    return x.bfloat16() if x.dtype is torch.float32 else x


def samples(name: str, info: Any, dtype: str, device: str) -> list[Any]:
    """Some samples in a dtype. Functions that torch lacks in bfloat16 have it on a CPU under autocast, by way of
    float32."""
    kind = getattr(torch, dtype)
    native = kind in info.supported_dtypes(device)
    if torch.float32 not in info.supported_dtypes(device) or (device == "cuda" and not native):
        return []
    found = []
    for sample in _samples(info, kind if native else torch.float32, False):
        if not native:
            for part in ("input", "args", "kwargs"):
                setattr(sample, part, changed(getattr(sample, part), lowered))
        if sample_reason(name, sample) is None and not left_out(name, sample):
            found.append(sample)
        if len(found) == LIMIT:
            break
    return found


def call_cpu(f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return f(*args, **kwargs)


def call_fake(f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """With CUDA tensors that have no numbers."""
    mode = FakeTensorMode()
    with mode:
        args, kwargs = changed((args, kwargs), lambda x: torch.empty(x.shape, dtype=x.dtype, device="cuda"))
    before = torch.get_autocast_dtype("cuda")
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    torch.set_autocast_enabled("cuda", True)
    try:
        with mode:
            return f(*args, **kwargs)
    finally:
        torch.set_autocast_enabled("cuda", False)
        torch.set_autocast_dtype("cuda", before)


def call_cuda(f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        args, kwargs = changed((args, kwargs), torch.Tensor.cuda)
        return changed(f(*args, **kwargs), torch.Tensor.cpu)


def dtypes_of(out: Any) -> list[str]:
    kind = torch.Tensor if any(isinstance(x, torch.Tensor) for x in _flat(out)) else gt.Tensor
    return [str(x.dtype).partition(".")[2] for x in _flat(out) if isinstance(x, kind)]


def compare(name: str, device: str, call: Callable[..., Any], values: bool) -> None:
    """All samples of a name, in float32 and bfloat16."""
    for info in DATABASE[name]:
        found = find(name, info.variant_test_name)
        assert found is not None
        for dtype in ("float32", "bfloat16"):
            for sample in samples(name, info, dtype, device):
                args, kwargs = (sample.input, *sample.args), dict(sample.kwargs)
                try:
                    theirs = call(info.op, args, kwargs)
                except Exception:
                    continue  # torch itself refuses it
                with gt.autocast(device, dtype=gt.bfloat16):
                    ours = found[0](*_twin(args, []), **_twin(kwargs, []))
                title = f"{name} {info.variant_test_name} {_shown(sample)}"
                assert dtypes_of(ours) == dtypes_of(theirs), title
                if not values or name in RANDOM or name in UNLIKE_VALUES:
                    continue
                for x, y in zip(_flat(ours), _flat(theirs), strict=True):
                    if isinstance(y, torch.Tensor):
                        _close(x, y, dtype, 1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [n for n in NAMES if n not in DIFFERENT])
def test_as_torch_on_a_cpu(name: str) -> None:
    with session_on("torch"):
        compare(name, "cpu", call_cpu, values=True)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [n for n in NAMES if n not in DIFFERENT])
def test_dtypes_as_torch_on_cuda(name: str) -> None:
    with session_on("torch"):
        compare(name, "cuda", call_fake, values=False)


@pytest.fixture(scope="module")
def cuda() -> Iterator[None]:
    """A private server whose worker has the GPU."""
    with own_settings():
        yield


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("name", [n for n in NAMES if n not in DIFFERENT])
def test_as_torch_on_cuda(name: str) -> None:
    compare(name, "cuda", call_cuda, values=True)


def test_what_records_say_is_known() -> None:
    rules = {"", "lower", "float32", "widest"}
    found = set()
    for op in TABLE.values():
        for _, attrs in op.samples(np.random.default_rng(0)):
            entry = op.autocast if isinstance(op.autocast, Autocast) else op.autocast(**attrs)
            found |= {entry.cpu, entry.cuda}
    assert found == rules


def test_an_explicit_dtype_takes_precedence() -> None:
    x = torch.ones(2, 3, dtype=torch.bfloat16)
    with session_on("torch"), gt.autocast("cuda"):
        for f in ("sum", "cumsum", "softmax", "log_softmax", "prod", "cumprod"):
            theirs = call_fake(getattr(torch, f), (x, 0), {"dtype": torch.bfloat16})
            ours = getattr(gt, f)(gt.tensor(x.float().numpy()).bfloat16(), 0, dtype=gt.bfloat16)
            assert dtypes_of(ours) == dtypes_of(theirs), f
