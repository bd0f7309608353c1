"""autograd.Function: gradients that a user writes, beside torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gt
from gt.errors import AutogradError
from tests.beside_torch import as_in_torch

pytestmark = pytest.mark.usefixtures("session")

X = np.array([[0.5, -1.0, 2.0], [1.5, 0.25, -0.75]])


def function(lib: Any, forward: Callable[..., Any], backward: Callable[..., Any], **more: Any) -> Any:
    """A function of this library with these methods."""
    methods = {"forward": forward, "backward": backward, **more}
    return type("Own", (lib.autograd.Function,), {name: staticmethod(f) for name, f in methods.items()})


def cube(lib: Any) -> Any:
    class Cube(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, scale: float) -> Any:
            y = x * x * x * scale
            ctx.save_for_backward(x, y)
            ctx.scale = scale
            return y

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            x, _ = ctx.saved_tensors
            assert ctx.needs_input_grad == (True, False)
            return g * x * x * (3 * ctx.scale), None

    return Cube


@as_in_torch(X, rtol=1e-6)
def test_a_function_has_its_own_gradient_which_has_a_gradient(lib: Any, x: Any) -> Any:
    y = cube(lib).apply(x, 2.0)
    (g,) = lib.autograd.grad(y.sum(), x, create_graph=True)
    (y.sum() + (g * g).sum()).backward()
    return y, g


@as_in_torch(X, rtol=1e-6)
def test_a_function_of_several_results(lib: Any, x: Any) -> Any:
    def forward(ctx: Any, x: Any) -> Any:
        sign = x > 0
        ctx.mark_non_differentiable(sign)
        return x * 2, sign, x * 3

    parts = function(lib, forward, lambda ctx, a, b, c: a * 2 + c * 3)  # c is zeros: nobody used it
    a, sign, _ = parts.apply(x)
    (a * a).sum().backward()
    return a, sign.requires_grad


@as_in_torch(X, rtol=1e-6)
def test_a_function_may_return_values_that_are_not_tensors(lib: Any, x: Any) -> Any:
    def backward(ctx: Any, a: Any, b: Any, c: Any) -> Any:
        assert (b, c) == (None, None)
        return a * 2

    a, nothing, name = function(lib, lambda ctx, x: (x * 2, None, "twice"), backward).apply(x)
    (a * a).sum().backward()
    return a, nothing, name


@as_in_torch(X, rtol=1e-6)
def test_setup_context_instead_of_ctx(lib: Any, x: Any) -> Any:
    sin = function(
        lib,
        lambda x: x.sin(),
        lambda ctx, g: g * ctx.saved_tensors[0].cos(),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
    )
    y = sin.apply(x)
    y.sum().backward()
    return y


def test_a_function_that_returns_too_few_gradients() -> None:
    x = gt.ones(2, requires_grad=True)
    with pytest.raises(AutogradError, match=r"Own\.backward returned 1 gradients for 2 inputs"):
        function(gt, lambda ctx, x, y: x + y, lambda ctx, g: g).apply(x, x).sum().backward()


def test_backward_drops_what_a_function_saved() -> None:
    x = gt.ones(2, requires_grad=True)
    y = cube(gt).apply(x, 2.0)
    saved = y.grad_fn.context
    y.sum().backward(retain_graph=True)
    assert len(saved.saved_tensors) == 2
    y.sum().backward()
    assert saved.saved_tensors == ()
    with pytest.raises(AutogradError, match="Cube: backward a second time"):
        y.sum().backward()


@as_in_torch(X, rtol=1e-6)
def test_defaults_of_forward_may_have_gradients_of_none(lib: Any, x: Any) -> Any:
    def forward(ctx: Any, x: Any, by: float = 2.0, add: float = 1.0) -> Any:
        ctx.by = by
        return x * by + add

    scale = function(lib, forward, lambda ctx, g: (g * ctx.by, None, None))
    y = scale.apply(x) + scale.apply(x, 3.0)
    y.sum().backward()
    return y


def test_a_function_without_history_is_plain() -> None:
    assert not cube(gt).apply(gt.ones(2), 1.0).requires_grad
    with gt.no_grad():
        assert not cube(gt).apply(gt.ones(2, requires_grad=True), 1.0).requires_grad


# --- looking at the graph ----------------------------------------------------------------------------


@as_in_torch(X, rtol=1e-6)
def test_a_node_shows_its_name_and_leads_on(lib: Any, x: Any) -> Any:
    y = cube(lib).apply((x * 2.0).exp(), 1.0).unbind(0)[1].sum()
    names, fn = [], y.grad_fn
    while fn.next_functions:
        names.append(fn.name())
        assert f"{fn.name()} object at 0x" in repr(fn)
        fn = fn.next_functions[0][0]
    assert names == ["SumBackward0", "UnbindBackward0", "CubeBackward", "ExpBackward0", "MulBackward0"]
    assert "AccumulateGrad" in fn.name()
    return (y,)


def test_the_tape_shows_functions_and_checkpoints() -> None:
    x = gt.ones(2, requires_grad=True)
    y = cube(gt).apply(gt.checkpoint(lambda t: t.exp(), x), 1.0)
    lines = gt.debug.tape(y).splitlines()
    assert lines[0].startswith("Cube -> f32[2]  keeps 2  ")
    assert lines[1].startswith("exp -> f32[2]  computed again  ")
    y.sum().backward()
    assert gt.debug.tape(y).startswith("Cube -> f32[2]  released  ")
