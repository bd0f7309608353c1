"""einops on GT tensors: values and gradients are those of einops on numpy arrays and on torch tensors."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import gt

einops = pytest.importorskip("einops")

X = np.arange(48, dtype=np.float32).reshape(2, 3, 8) / 7

CALLS: dict[str, Any] = {
    "rearrange": lambda x: einops.rearrange(x, "b c (h w) -> (b h) w c", h=2),
    "new axis": lambda x: einops.rearrange(x, "b c n -> b 1 c n 1"),
    "list": lambda x: einops.rearrange([x, x + 1], "two b c n -> b (two c) n"),
    "ellipsis": lambda x: einops.rearrange(x, "b ... -> ... b"),
    "mean": lambda x: einops.reduce(x, "b c (n k) -> b n", "mean", k=4),
    "max": lambda x: einops.reduce(x, "b c n -> c", "max"),
    "min": lambda x: einops.reduce(x, "b c n -> ", "min"),
    "prod": lambda x: einops.reduce(x / 4, "b c n -> b n", "prod"),
    "repeat": lambda x: einops.repeat(x, "b c n -> b (c k) n r", k=2, r=3),
    "einsum": lambda x: einops.einsum(x, x, "b c n, b d n -> b c d"),
    "pack": lambda x: einops.pack([x, x[:, 0]], "b * n")[0],
    "unpack": lambda x: einops.unpack(x, [[1], [2]], "b * n")[1],
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_values_and_gradients(call: Any) -> None:
    x = gt.tensor(X, requires_grad=True)
    y = call(x)
    assert isinstance(y, gt.Tensor)
    np.testing.assert_allclose(y.detach().numpy(), call(X), rtol=1e-5)
    y.square().sum().backward()
    step = np.zeros_like(X, dtype=np.float64)
    step[1, 2, 5] = 1e-4
    wide = X.astype(np.float64)
    slope = (np.square(call(wide + step)).sum() - np.square(call(wide - step)).sum()) / 2e-4
    assert x.grad is not None
    np.testing.assert_allclose(x.grad[1, 2, 5].item(), slope, rtol=1e-3, atol=1e-4)


def test_shapes_are_parsed_and_mistakes_are_einops_own() -> None:
    x = gt.tensor(X)
    assert einops.parse_shape(x, "b _ n") == {"b": 2, "n": 8}
    assert einops.asnumpy(x).tolist() == X.tolist()
    with pytest.raises(einops.EinopsError, match="rearrange"):
        einops.rearrange(x, "b c -> c b")


def test_layers_are_modules_of_gt() -> None:
    from gt.nn.einops import EinMix, Rearrange, Reduce

    gt.manual_seed(0)
    mix = EinMix("b c n -> b c m", weight_shape="n m", bias_shape="m", n=8, m=4)
    model = gt.nn.Sequential(mix, Rearrange("b c (h k) -> b h c k", h=2), Reduce("b h c k -> b h", "max"))
    y = model(gt.tensor(X))
    assert y.shape == (2, 2)
    assert sorted(name for name, _ in model.named_parameters()) == ["0.bias", "0.weight"]
    y.sum().backward()
    assert mix.weight.grad.shape == (8, 4)
    expected = X @ mix.weight.detach().numpy() + mix.bias.detach().numpy()
    np.testing.assert_allclose(
        y.detach().numpy(), expected.reshape(2, 3, 2, 2).transpose(0, 2, 1, 3).max((2, 3)), rtol=1e-5
    )


@pytest.mark.parametrize("order", ["import einops; import gt", "import gt; import einops"])
def test_either_is_imported_first(order: str) -> None:
    code = f"{order}\nassert 'torch' not in __import__('sys').modules\n"
    code += "with gt.on_paper():\n    print(tuple(einops.rearrange(gt.zeros(2, 3), 'a b -> b a').shape))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "(3, 2)\n"), done.stderr
