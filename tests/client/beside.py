"""One function, written once, run with torch and with GT: values, first and second gradients compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import gt


def flat(out: Any) -> list[Any]:
    return [y for x in out for y in flat(x)] if isinstance(out, (tuple, list)) else [out]


def is_real(x: Any) -> bool:
    return not x.dtype.is_complex


def total(lib: Any, outs: list[Any], weights: list[Any]) -> Any:
    """A real number that depends on every element of the results."""
    parts = []
    for y, w in zip(outs, weights, strict=True):
        made = y * w
        parts.append((made if is_real(made) else made.real + made.imag * 2).sum())
    return sum(parts[1:], parts[0])


def gradients(lib: Any, f: Callable[..., Any], arrays: tuple[Any, ...], second: bool) -> tuple[list[Any], list[Any]]:
    """The results, and all gradients that there are."""
    make = torch.tensor if lib is torch else gt.tensor
    leaves = [make(a) for a in arrays]
    leaves = [x.requires_grad_() if x.dtype.is_floating_point or not is_real(x) else x for x in leaves]
    outs = flat(f(lib, *leaves))
    grad = torch.autograd.grad if lib is torch else gt.grad
    wanted = [x for x in leaves if x.requires_grad]
    if not wanted or not any(y.requires_grad for y in outs):
        return outs, []
    rng = np.random.default_rng(5)
    kept = [y for y in outs if y.requires_grad]
    weights = [make(np.asarray(rng.normal(size=tuple(y.shape)))) for y in kept]
    first = grad(total(lib, kept, weights), wanted, create_graph=second, allow_unused=True)
    found = [g for g in first if g is not None]
    again = [g for g in found if second and g.requires_grad]
    if again:
        weights = [make(np.asarray(rng.normal(size=tuple(g.shape)))) for g in again]
        found += [g for g in grad(total(lib, again, weights), wanted, allow_unused=True) if g is not None]
    return outs, found


def compare(f: Callable[..., Any], *arrays: Any, second: bool = False, rtol: float = 1e-7) -> None:
    """What f gives with GT is what it gives with torch."""
    ours, theirs = gradients(gt, f, arrays, second), gradients(torch, f, arrays, second)
    for mine, reference in zip(ours, theirs, strict=True):
        assert len(mine) == len(reference)
        for x, y in zip(mine, reference, strict=True):
            assert tuple(x.shape) == tuple(y.shape)
            assert x.dtype.name == str(y.dtype).removeprefix("torch.")
            want = y.detach().resolve_conj().resolve_neg().numpy()
            np.testing.assert_allclose(x.detach().numpy(), want, rtol=rtol, atol=rtol)
