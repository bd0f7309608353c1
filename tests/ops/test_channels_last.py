"""The memory formats of pictures in torch: chosen where it pays, kept by what follows, and never seen in
the numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gt import dtypes
from gt.ops.record import TABLE
from gt.program import spec
from gt.worker.engines import load

FIRST, LAST = torch.contiguous_format, torch.channels_last
CONV = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
POOL = {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0), "ceil_mode": False}


def run(op: str, *operands: Any, **attrs: Any) -> Any:
    specs = [spec(tuple(a.shape), dtypes.BY_NAME[str(a.dtype).removeprefix("torch.")]) for a in operands]
    kernel = load("torch", "cpu").kernel(TABLE[op], attrs, specs)
    assert kernel is not None
    return kernel(*operands)


def made(*shape: int, order: Any = FIRST, dtype: Any = torch.float32) -> Any:
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + sum(shape)))
    return x.to(dtype).contiguous(memory_format=order)


def has_order(x: Any, order: Any) -> bool:
    """In this order, and not in the other."""
    return x.is_contiguous(memory_format=order) and not x.is_contiguous(memory_format=FIRST if order is LAST else LAST)


#: (channels, outputs, size, kernel): thin, thin by its input of one channel, wide, of large weights, of one pixel.
THIN, ONE, WIDE, HEAVY, PIXEL = (3, 8, 9, 3), (1, 20, 9, 3), (16, 20, 9, 3), (32, 32, 2, 3), (8, 20, 9, 1)


@pytest.mark.parametrize("order", [FIRST, LAST])
@pytest.mark.parametrize("case", [THIN, ONE, WIDE, HEAVY, PIXEL])
def test_a_convolution_and_its_gradients_are_torchs_in_any_order(case: tuple[int, int, int, int], order: Any) -> None:
    channels, outputs, size, kernel = case
    attrs = {**CONV, "padding": (kernel // 2,) * 2}
    x, w = made(4, channels, size, size, order=order), made(outputs, channels, kernel, kernel)
    y = run("conv", x, w, **attrs)
    g = made(*y.shape, order=order)
    dx, dw = run("conv_dx", g, w, sizes=(size, size), **attrs), run("conv_dw", g, x, kernel=(kernel, kernel), **attrs)
    biased = run("conv_dx", g, w, torch.arange(float(channels)), sizes=(size, size), **attrs)
    x2, w2 = x.double().requires_grad_(), w.double().requires_grad_()
    y2 = torch.nn.functional.conv2d(x2, w2, padding=kernel // 2)
    dx2, dw2 = torch.autograd.grad(y2, (x2, w2), g.double())
    for mine, exact in ((y, y2), (dx, dx2), (dw, dw2), (biased, dx2 + torch.arange(channels).view(-1, 1, 1))):
        torch.testing.assert_close(mine.double(), exact, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("order", [FIRST, LAST])
@pytest.mark.parametrize(("case", "wanted"), [(THIN, LAST), (ONE, LAST), (WIDE, None), (HEAVY, FIRST), (PIXEL, None)])
def test_thin_convolutions_put_channels_last_and_large_weights_first(case: Any, wanted: Any, order: Any) -> None:
    channels, outputs, size, kernel = case
    attrs = {**CONV, "padding": (kernel // 2,) * 2}
    x, w = made(4, channels, size, size, order=order), made(outputs, channels, kernel, kernel)
    y = run("conv", x, w, **attrs)
    assert has_order(y, wanted or order)
    g = made(*y.shape, order=order)
    assert channels == 1 or has_order(run("conv_dx", g, w, sizes=(size, size), **attrs), wanted or order)
    assert run("conv_dw", g, x, kernel=(kernel, kernel), **attrs).is_contiguous()  # as the optimizer wants it


def test_depthwise_convolutions_are_thin() -> None:
    x, w = made(2, 32, 9, 9), made(32, 1, 3, 3)
    y = run("conv", x, w, **{**CONV, "groups": 32})
    assert has_order(y, LAST)
    torch.testing.assert_close(y, torch.nn.functional.conv2d(x, w, padding=1, groups=32), rtol=1e-5, atol=1e-4)


def test_exact_types_are_left_alone() -> None:
    x, w = made(4, 3, 9, 9, dtype=torch.float64), made(8, 3, 3, 3, dtype=torch.float64)
    assert has_order(run("conv", x, w, **CONV), FIRST)


@pytest.mark.parametrize("order", [FIRST, LAST])
def test_pools_and_norms_leave_the_order(order: Any) -> None:
    x = made(2, 32, 6, 6, order=order)
    y, positions = run("max_pool", x, dilation=(1, 1), **POOL)
    mean = run("avg_pool", x, include_pad=True, divisor=None, **POOL)
    w, b = torch.randn(32), torch.randn(32)
    grouped, *stats = run("group_norm", x, w, b, groups=2, eps=1e-5)
    normed, *stats = run("batch_norm", x, w, b, running=False, eps=1e-5)
    dx, *_ = run("batch_norm_d", x, x, *stats, w, eps=1e-5)
    for result in (y, positions, mean, grouped, normed, dx):
        assert has_order(result, order)
    # A gradient may come in the other order: that of the input counts, where it is known.
    for g in (made(2, 32, 3, 3), made(2, 32, 3, 3, order=LAST)):
        back = run("max_pool_dx", g, positions, sizes=(6, 6), dilation=(1, 1), **POOL)
        assert has_order(back, order)
        torch.testing.assert_close(back.sum(), g.sum())
        plain = run("max_pool_dx", g.contiguous(), positions.contiguous(), sizes=(6, 6), dilation=(1, 1), **POOL)
        torch.testing.assert_close(back, plain)
        assert has_order(run("avg_pool_dx", g, sizes=(6, 6), include_pad=True, divisor=None, **POOL), channels_of(g))


def channels_of(x: Any) -> Any:
    return LAST if has_order(x, LAST) else FIRST


@pytest.mark.parametrize("groups", [2, 8])  # of 16 channels, which may come last, and of 4
@pytest.mark.parametrize("order", [FIRST, LAST])
@pytest.mark.parametrize("g_order", [FIRST, LAST])
def test_group_norm_and_its_gradient_are_torchs_in_any_order(groups: int, order: Any, g_order: Any) -> None:
    x, g, w = made(2, 32, 5, 5, order=order), made(2, 32, 5, 5, order=g_order), torch.randn(32)
    y, mean, rstd = run("group_norm", x, w, torch.zeros(32), groups=groups, eps=1e-5)
    assert has_order(y, order if groups == 2 else FIRST)
    dx, dw, db = run("group_norm_d", g, x, mean, rstd, w, groups=groups)
    x2, w2, b2 = x.double().requires_grad_(), w.double().requires_grad_(), torch.zeros(32).double().requires_grad_()
    y2 = torch.nn.functional.group_norm(x2, groups, w2, b2, 1e-5)
    for mine, exact in zip((y, dx, dw, db), (y2, *torch.autograd.grad(y2, (x2, w2, b2), g.double())), strict=True):
        torch.testing.assert_close(mine.double(), exact, rtol=1e-4, atol=1e-4)
