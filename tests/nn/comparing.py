"""The same module in torch and in GT, on the same weights and inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import gt

Build = Callable[[Any], Any]  #: a module, made with `torch.nn` or `gt.nn`


def arrays(made: Any) -> list[np.ndarray[Any, Any]]:
    """All tensors of a result, in order."""
    if isinstance(made, (tuple, list)):
        return [a for item in made for a in arrays(item)]
    return [] if made is None else [made.detach().numpy()]


def both(build: Build) -> tuple[Any, Any]:
    """The module in torch and in GT, in doubles, with torch's weights."""
    torch.manual_seed(0)
    theirs, ours = build(torch.nn).double(), build(gt.nn).double()
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def given(lib: Any, x: Any) -> Any:
    """An input for one of the two; floating arrays require a gradient."""
    if isinstance(x, np.ndarray):
        t = lib.from_numpy(x.copy())
        return t.requires_grad_() if x.dtype.kind == "f" else t
    if isinstance(x, (tuple, list)):
        return type(x)(given(lib, item) for item in x)
    if isinstance(x, dict):
        return {k: given(lib, v) for k, v in x.items()}
    return x


def leaves(x: Any) -> list[Any]:
    """All tensors among the inputs."""
    if isinstance(x, dict):
        return [t for v in x.values() for t in leaves(v)]
    if isinstance(x, (tuple, list)):
        return [t for v in x for t in leaves(v)]
    return [x] if hasattr(x, "requires_grad") else []


def outcome(lib: Any, module: Any, args: Any, kwargs: Any) -> tuple[list[Any], list[Any]]:
    """What the module makes of its inputs, and the gradients of inputs and parameters."""
    args, kwargs = given(lib, args), given(lib, kwargs)
    out = module(*args, **kwargs)
    total: Any = 0
    for k, t in enumerate(leaves(out)):
        if t.requires_grad:
            total = total + (t * (t + (k + 1))).sum()
    trained = [*leaves((args, kwargs)), *module.parameters()]
    if hasattr(total, "backward"):
        total.backward()
    return arrays(out), [t.grad for t in trained]


def compare(build: Build, args: Any = (), kwargs: Any = None, state: bool = True) -> None:
    """Results, gradients, text, names and buffers are the same."""
    theirs, ours = both(build)
    assert repr(ours) == repr(theirs).replace("torch.", "gt.")
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for got, want in zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True):
        assert got.shape == tuple(want.shape)
        assert str(got.dtype).split(".")[-1] == str(want.dtype).split(".")[-1]
    want, want_grads = outcome(torch, theirs, args, kwargs or {})
    got, got_grads = outcome(gt, ours, args, kwargs or {})
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9)
    for ours_, theirs_ in zip(got_grads, want_grads, strict=True):
        assert (ours_ is None) == (theirs_ is None)
        if ours_ is not None:
            np.testing.assert_allclose(ours_.numpy(), theirs_.numpy(), rtol=1e-6, atol=1e-9)
    if state:
        for name, t in theirs.state_dict().items():
            np.testing.assert_allclose(ours.state_dict()[name].numpy(), t.numpy(), rtol=1e-6, atol=1e-9)
