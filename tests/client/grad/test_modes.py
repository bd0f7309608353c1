"""Anomaly mode, hooks, gradients that are retained, and modes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.errors import AutogradError
from tests.beside_torch import as_in_torch

pytestmark = pytest.mark.usefixtures("session")

X = np.array([[0.5, -1.0, 2.0], [1.5, 0.25, -0.75]])


def test_anomaly_names_the_line_that_made_a_nan() -> None:
    x = gt.tensor([-1.0], requires_grad=True)
    with pytest.raises(AutogradError, match=r"test_modes\.py:\d+: Sqrt made a nan"), gt.autograd.detect_anomaly():
        (x.sqrt() * 2).sum()
    with (
        pytest.raises(AutogradError, match=r"test_modes\.py:\d+: SqrtBackward0 made a nan in backward"),
        gt.autograd.detect_anomaly(),
    ):
        ((x + 1).sqrt() * 0).sum().backward()
    gt.autograd.set_detect_anomaly(True)
    try:
        with pytest.raises(AutogradError, match="Log made a nan"):
            x.log() + 1
    finally:
        gt.autograd.set_detect_anomaly(False)
    assert np.isnan((x.log() + 1).detach().numpy()).all()


# --- hooks and modes ---------------------------------------------------------------------------------


def test_hooks_are_removed_by_their_handle() -> None:
    x = gt.ones(2, requires_grad=True)
    seen: list[int] = []
    handle = x.register_hook(lambda g: seen.append(1))
    x.sum().backward()
    handle.remove()
    handle.remove()
    x.sum().backward()
    assert seen == [1]
    with x.register_hook(lambda g: seen.append(2)):
        x.sum().backward()
    x.sum().backward()
    assert seen == [1, 2]


def test_hooks_after_accumulation_see_the_gradient() -> None:
    x = gt.ones(2, requires_grad=True)
    sums: list[float] = []
    x.register_post_accumulate_grad_hook(lambda t: sums.append(t.grad.sum().item()))
    (x * 3).sum().backward()
    (x * 3).sum().backward()
    assert sums == [6.0, 12.0]
    with pytest.raises(AutogradError, match="must be a leaf"):
        (x * 2).register_post_accumulate_grad_hook(print)


@as_in_torch(X, rtol=1e-6)
def test_retained_gradients_add_up_after_all_hooks(lib: Any, x: Any) -> Any:
    y = x * 2
    assert not y.retains_grad
    y.retain_grad()
    y.retain_grad()
    y.register_hook(lambda g: g * 3)
    assert y.retains_grad
    (y * y).sum().backward(retain_graph=True)
    y.sum().backward()
    return (y.grad,)


@as_in_torch(X, X + 1, rtol=1e-6)
def test_backward_to_some_inputs(lib: Any, x: Any, y: Any) -> Any:
    z = x * y
    (z * z).sum().backward(inputs=[x], retain_graph=True)
    assert y.grad is None
    (z * z).sum().backward(inputs=(x, z))
    z.retain_grad()
    return (z.grad,)


def test_backward_to_an_input_without_a_gradient() -> None:
    x = gt.ones(2, requires_grad=True)
    with pytest.raises(AutogradError, match="one of the inputs does not require grad"):
        (x * 2).sum().backward(inputs=[gt.ones(2)])


def test_grad_modes() -> None:
    x = gt.ones(2, requires_grad=True)
    with gt.set_grad_enabled(False):
        assert not (x * 2).requires_grad
        with gt.enable_grad():
            assert (x * 2).requires_grad
    assert gt.is_grad_enabled()
    gt.set_grad_enabled(False)
    assert not gt.is_grad_enabled()
    gt.set_grad_enabled(True)
    with gt.inference_mode():
        assert not (x * 2).requires_grad

    @gt.no_grad()
    def f(t: Any) -> Any:
        return t * 2

    assert not f(x).requires_grad
    assert gt.is_grad_enabled()


def modes(lib: Any) -> list[Any]:
    """Whether gradients are on, in and beside functions and generators that switch them off."""
    mode, log = lib.is_grad_enabled, []
    for decorator in (lib.no_grad, lib.no_grad(), lib.inference_mode, lib.set_grad_enabled(False)):
        log += [decorator(mode)(), mode()]

    @lib.no_grad()
    def steps() -> Any:
        try:
            got = yield mode()
            yield got, mode()
        except KeyError:
            yield "caught", mode()
        finally:
            log.append(mode())
        return "end"

    def outer() -> Any:
        log.append((yield from steps()))

    turns = steps()
    log += [next(turns), mode(), turns.send(5), mode()]
    log += [turns.throw(KeyError()), mode()]
    turns.close()
    return [*log, mode(), list(outer())]


# torch's own decorator throws an exception's type, value and traceback into a generator: Python 3.12 warns of that.
@pytest.mark.filterwarnings("ignore:the .type, exc, tb. signature of throw:DeprecationWarning")
def test_grad_modes_as_decorators() -> None:
    assert modes(gt) == modes(torch)


@as_in_torch(X, X + 1, rtol=1e-6)
def test_backward_of_several_tensors_and_to_some_inputs(lib: Any, x: Any, y: Any) -> Any:
    lib.autograd.backward([(x * y).sum(), (x * 2).sum()], inputs=[x])
    assert y.grad is None
    return ()
