"""A module that a user writes: its attributes, modes and gradients."""

from __future__ import annotations

from typing import Any

import pytest

import gt


class Net(gt.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = gt.nn.Parameter(gt.ones(2))
        self.inner = gt.nn.Sequential(gt.nn.Linear(2, 2), gt.nn.LayerNorm(2))

    def forward(self, x: Any) -> Any:
        return self.inner(x) * self.w


def test_attributes() -> None:
    net = Net()
    assert len(list(net.parameters())) == 5
    net.w = gt.nn.Parameter(gt.zeros(2))
    assert net.w.tolist() == [0.0, 0.0]
    net.inner = None
    assert [n for n, _ in net.named_parameters()] == ["w"]
    del net.w
    assert list(net.parameters()) == []
    with pytest.raises(AttributeError, match="Net has no attribute 'w'"):
        net.w  # noqa: B018

    class Early(gt.nn.Module):
        def __init__(self) -> None:
            self.w = gt.nn.Parameter(gt.ones(2))

    with pytest.raises(AttributeError, match=r"call super\(\).__init__\(\) before setting w"):
        Early()
    with pytest.raises(NotImplementedError, match=r"Module has no forward\(\)"):
        gt.nn.Module()(1)


def test_modes_freezing_and_apply() -> None:
    model = Net()
    model.eval()
    assert not any(m.training for m in model.modules())
    model.train()
    assert all(m.training for m in model.modules())
    model.requires_grad_(False)
    assert not model(gt.ones(1, 2)).requires_grad
    model.requires_grad_()
    seen: list[str] = []
    model.apply(lambda m: seen.append(type(m).__name__))
    assert seen == ["Linear", "LayerNorm", "Sequential", "Net"]
    model(gt.ones(1, 2)).sum().backward()
    model.zero_grad(set_to_none=False)
    assert float(model.w.grad.abs().sum()) == 0.0
    model.zero_grad()
    assert model.w.grad is None


def test_imports_from_both_places() -> None:
    from gt.client import nn, optim

    assert (nn, optim) == (gt.nn, gt.optim)
    assert all(hasattr(nn, name) for name in nn.__all__)
