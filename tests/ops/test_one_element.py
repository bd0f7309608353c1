"""Large tensors and tensors of one element: on a device they meet in torch's kernels for lists of tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from gt import dtypes
from gt.ops import TABLE
from gt.ops.families.binary import LARGE
from gt.ops.record import Site
from gt.program import spec

SHAPE = (LARGE // 64, 64)


def kernel(name: str, a: Any, b: Any, device: str = "cuda:0") -> Any:
    """The op's kernel for a device, which runs on the host just as well."""
    specs = [spec(tuple(t.shape), dtypes.BY_NAME[str(t.dtype).removeprefix("torch.")]) for t in (a, b)]
    return TABLE[name].kernels["torch"](torch, Site(device, tuple(specs), (TABLE[name].infer(*specs),)))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["add", "mul", "div"])
def test_the_bits_are_those_of_the_plain_kernel(name: str, dtype: str) -> None:
    torch.manual_seed(0)
    x, one = torch.randn(SHAPE).to(getattr(torch, dtype)), torch.tensor(0.3).to(getattr(torch, dtype))
    for a, b in ((x, one), (one, x), (x.t(), one), (x[:1].expand(SHAPE), one)):
        made = kernel(name, a, b)(a, b)
        assert torch.equal(made, getattr(torch, name)(a, b))
        assert made.dtype == x.dtype


@pytest.mark.parametrize("name", ["add", "mul", "div"])
def test_it_is_chosen_where_bytes_count(name: str) -> None:
    x, one = torch.ones(SHAPE), torch.tensor(2.0)
    chosen = kernel(name, x, one)
    assert chosen is not getattr(torch, name)
    for a, b, device in (
        (x, one, "cpu"), (x[:3], one, "cuda:0"), (x, one[None], "cuda:0"), (x, x, "cuda:0"),
        (x, one.double(), "cuda:0"), (x.int(), one.int(), "cuda:0"),
    ):  # fmt: skip
        assert kernel(name, a, b, device) is getattr(torch, name)
    assert kernel("div", one, x) is torch.div
    assert kernel("mul", one, x) is not torch.mul


def test_a_compiler_gets_the_plain_op(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would not fuse a kernel for lists with what comes before and after."""
    monkeypatch.setattr(torch, "_foreach_mul", lambda *given: pytest.fail("traced"))
    with FakeTensorMode():
        x, one = torch.ones(SHAPE), torch.tensor(2.0)
        assert kernel("mul", x, one)(x, one).shape == SHAPE
