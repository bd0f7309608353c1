"""One name of the database: its samples through torch and through GT, values and gradients compared."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

import gt
from gt.client.session.session import Session
from tests.conformance.names import EXEMPT, RANDOM, find, sample_reason
from tests.sessions import session_on

DTYPES = ("float32", "float64", "int64", "bool", "bfloat16")

#: Relative and absolute, by the dtype of the sample.
TOLERANCE = {"float64": (1e-7, 1e-7), "float32": (2e-4, 2e-5), "bfloat16": (4e-2, 2e-2), "complex64": (2e-4, 2e-5)}


class Off(AssertionError):
    """Numbers that differ too much; shapes, dtypes and histories are as they should be."""


@dataclass
class Result:
    """What became of one name."""

    name: str
    native: bool = False
    missing: bool = False
    passed: int = 0
    applicable: int = 0
    exempt: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.missing and self.passed == self.applicable


def database() -> dict[str, list[Any]]:
    """The entries of torch's database by name (a name may have variants)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal import common_utils
        from torch.testing._internal.common_methods_invocations import op_db
        from torch.testing._internal.opinfo import core
    # torch's tests forbid to set its global flags; other tests here do as users do.
    torch.backends.flags_frozen.__globals__["__allow_nonbracketed_mutation_flag"] = True
    # For each sample torch looks through the stack for a test of its own, and seeds all kinds of devices, writing the
    # stack down for each: most of the time that a sample takes. There is no such test, and only the CPU is asked.
    common_utils.extract_test_fn = core.extract_test_fn = lambda: None
    common_utils.set_rng_seed = _seed
    found: dict[str, list[Any]] = {}
    for info in op_db:
        found.setdefault(info.name, []).append(info)
    return found


def _seed(seed: int = 1234) -> None:
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def run(
    name: str, infos: list[Any], dtypes: tuple[str, ...] = DTYPES, limit: int = 0, gradients: bool = True
) -> Result:
    """All samples of a name (at most `limit` for each dtype)."""
    result = Result(name)
    if name in EXEMPT:
        result.exempt[EXEMPT[name]] = 1
        return result
    for info in infos:
        found = find(name, info.variant_test_name)
        if found is None:
            result.missing = True
            continue
        f, result.native = found
        for dtype in dtypes:
            _run_dtype(result, info, f, dtype, limit, gradients)
    return result


def _run_dtype(result: Result, info: Any, f: Any, dtype: str, limit: int, gradients: bool) -> None:
    kind = getattr(torch, dtype)
    if kind not in info.supported_dtypes("cpu"):
        return
    differentiable = gradients and info.supports_autograd and kind in info.supported_backward_dtypes("cpu")
    with warnings.catch_warnings(), session_on("torch") as session:
        warnings.simplefilter("ignore")
        for i, sample in enumerate(_samples(info, kind, differentiable)):
            if limit and i >= limit:
                break
            _run_sample(result, info, f, sample, dtype, f"{info.variant_test_name} {dtype} sample {i}", session)


def _samples(info: Any, kind: Any, differentiable: bool) -> Iterator[Any]:
    torch.default_generator.manual_seed(0)
    yield from info.sample_inputs("cpu", kind, requires_grad=differentiable)


def _run_sample(result: Result, info: Any, f: Any, sample: Any, dtype: str, title: str, session: Session) -> None:
    reason = sample_reason(info.name, sample)
    if reason is not None:
        result.exempt[reason] = result.exempt.get(reason, 0) + 1
        return
    twins: list[tuple[Any, Any]] = []
    mine = [_twin(x, twins) for x in (sample.input, tuple(sample.args), dict(sample.kwargs))]
    try:
        theirs = info.op(sample.input, *sample.args, **sample.kwargs)
    except Exception:
        return  # torch itself refuses it
    result.applicable += 1
    try:
        ours = f(mine[0], *mine[1], **mine[2])
        try:
            _compare(info, sample, ours, theirs, dtype)
            _compare_gradients(info, sample, ours, theirs, twins, dtype)
        except Off:
            if not _is_right(info, sample, ours, twins, dtype):
                raise
    except Exception as e:
        text = f"{type(e).__name__}: {e}".strip().replace("\n", " ")[:300]
        result.failures.append(f"{title}: {text} | {_shown(sample)}")
    else:
        result.passed += 1


def _is_right(info: Any, sample: Any, ours: Any, twins: list[tuple[Any, Any]], dtype: str) -> bool:
    """Whether GT agrees with torch in float64 where it differs from torch in a narrow type: then torch is off."""
    if dtype not in ("float32", "bfloat16"):
        return False
    wide = {id(t): t.detach().to(torch.float64).requires_grad_() for t, _ in twins}

    def widen(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return wide[id(x)] if id(x) in wide else x.to(torch.float64) if x.dtype.is_floating_point else x
        if isinstance(x, (list, tuple)) and not hasattr(x, "_fields"):
            return type(x)(widen(y) for y in x)
        return {k: widen(v) for k, v in x.items()} if isinstance(x, dict) else x

    try:
        truth = info.op(widen(sample.input), *widen(sample.args), **widen(sample.kwargs))
        for x, y in zip(_flat(ours), _flat(truth), strict=True):
            if isinstance(y, torch.Tensor):
                assert tuple(x.shape) == tuple(y.shape)
                _close(x, y, dtype, 1)
        _compare_gradients(info, sample, ours, truth, [(wide[id(t)], g) for t, g in twins], dtype)
    except Exception:
        return False
    return True


def _twin(x: Any, twins: list[tuple[Any, Any]]) -> Any:
    """The same argument for GT."""
    if isinstance(x, torch.Tensor):
        t = _to_gt(x)
        if x.requires_grad:
            t.requires_grad_()
            twins.append((x, t))
        return t
    if isinstance(x, torch.Size):
        return tuple(x)
    if isinstance(x, (tuple, list)):
        items = [_twin(y, twins) for y in x]
        return type(x)(*items) if hasattr(x, "_fields") else type(x)(items)
    if isinstance(x, dict):
        return {k: _twin(v, twins) for k, v in x.items()}
    if isinstance(x, torch.dtype):
        return getattr(gt, str(x).removeprefix("torch."), x)
    return x


def _to_gt(x: torch.Tensor) -> Any:
    x = x.detach().resolve_conj().resolve_neg()
    if x.dtype is torch.bfloat16:
        return gt.tensor(x.to(torch.float32).numpy()).to(gt.bfloat16)
    return gt.tensor(x.numpy())


def _flat(out: Any) -> list[Any]:
    if isinstance(out, (tuple, list)):
        return [y for x in out for y in _flat(x)]
    if isinstance(out, dict):
        return [y for k in sorted(out) for y in _flat(out[k])]
    return [out]


def _compare(info: Any, sample: Any, ours: Any, theirs: Any, dtype: str) -> None:
    a, b = _flat(ours), _flat(theirs)
    if len(a) != len(b):
        raise AssertionError(f"{len(a)} results, torch has {len(b)}")
    for x, y in zip(a, b, strict=True):
        if not isinstance(y, torch.Tensor):
            if isinstance(y, torch.dtype):
                assert f"gt.{str(y).removeprefix('torch.')}" == repr(x), (x, y)
            elif isinstance(y, float):
                np.testing.assert_allclose(float(x), y, rtol=1e-4, equal_nan=True)
            else:
                assert x == y, f"{x!r}, torch has {y!r}"
            continue
        if y.layout is not torch.strided:
            raise AssertionError("a sparse result")
        assert tuple(x.shape) == tuple(y.shape), f"shape {tuple(x.shape)}, torch has {tuple(y.shape)}"
        assert x.dtype.name == str(y.dtype).removeprefix("torch."), f"dtype {x.dtype.name}, torch has {y.dtype}"
        assert x.requires_grad == y.requires_grad or info.name in RANDOM, f"requires_grad {x.requires_grad}"
        if info.name not in RANDOM:
            _close(x, y, dtype, 1)
    if info.name not in RANDOM:
        return
    for x in a:
        if hasattr(x, "_fetch"):
            x._fetch()


def _close(x: Any, y: torch.Tensor, dtype: str, factor: float) -> None:
    mine = x.detach()._fetch()
    ref = y.detach().resolve_conj().resolve_neg()
    theirs = ref.to(torch.float32).numpy(force=True) if ref.dtype is torch.bfloat16 else ref.numpy(force=True)
    if x.dtype.name == "bfloat16":
        mine = mine.astype(np.float32)
    coarse = "bfloat16" if "bfloat16" in (dtype, x.dtype.name) else x.dtype.name if dtype == "float32" else dtype
    rtol, atol = TOLERANCE.get(coarse if coarse in TOLERANCE else "float32", (0.0, 0.0))
    finite = np.abs(theirs[np.isfinite(theirs)])
    scale = max(1.0, float(finite.max())) if finite.size else 1.0
    try:
        if theirs.dtype.kind in "biu":
            np.testing.assert_array_equal(mine, theirs)
        else:
            np.testing.assert_allclose(mine, theirs, rtol=rtol * factor, atol=atol * factor * scale, equal_nan=True)
    except AssertionError as e:
        raise Off(str(e)) from None


def _compare_gradients(
    info: Any, sample: Any, ours: Any, theirs: Any, twins: list[tuple[Any, Any]], dtype: str
) -> None:
    if not twins or info.name in RANDOM:
        return
    process = sample.output_process_fn_grad
    pairs = zip(_flat(process(ours)), _flat(process(theirs)), strict=True)
    pairs = [(x, y) for x, y in pairs if isinstance(y, torch.Tensor) and y.requires_grad]
    if not pairs:
        return
    rng = np.random.default_rng(0)
    gs = []
    for _, y in pairs:
        draw = torch.from_numpy(np.asarray(rng.normal(size=tuple(y.shape))))
        if y.dtype.is_complex:
            draw = torch.complex(draw, torch.from_numpy(np.asarray(rng.normal(size=tuple(y.shape)))))
        narrow = getattr(torch, dtype) if not y.dtype.is_complex else y.dtype
        gs.append(draw.to(narrow).to(y.dtype))  # the same numbers whatever type they are in
    try:
        leaves = [t for t, _ in twins]
        wanted = torch.autograd.grad([y for _, y in pairs], leaves, gs, retain_graph=True, allow_unused=True)
    except RuntimeError:
        return  # torch has no gradient here
    seeds = [_to_gt(g).to(x.dtype) for g, (x, _) in zip(gs, pairs, strict=True)]
    grads = gt.grad([x for x, _ in pairs], [t for _, t in twins], seeds, retain_graph=True, allow_unused=True)
    for i, (mine, want) in enumerate(zip(grads, wanted, strict=True)):
        if want is None or mine is None:
            missing = want if mine is None else torch.from_numpy(np.asarray(mine.float().numpy()))
            assert missing is None or not missing.to(torch.float32).any() or missing.numel() == 0, (
                f"gradient {i} is {'missing' if mine is None else 'not None'}"
            )
            continue
        try:
            assert tuple(mine.shape) == tuple(want.shape)
            _close(mine, want, dtype, 5)
        except AssertionError as e:
            raise type(e)(f"gradient {i}: {e}") from None


def _shown(sample: Any) -> str:
    def show(x: Any) -> str:
        if isinstance(x, torch.Tensor):
            return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"
        if isinstance(x, (tuple, list)):
            return "(" + ", ".join(map(show, x)) + ")"
        return repr(x)

    named = "".join(f", {k}={show(v)}" for k, v in sample.kwargs.items())
    return (show(sample.input) + "".join(f", {show(a)}" for a in sample.args) + named)[:300]
