"""Whole models on a real GPU: torch's losses there, and the fused kernels against their compositions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import gt
from tests.beside_torch import twins
from tests.sessions import own_settings
from tests.training.recipes import RECIPES, train

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.fixture(autouse=True, scope="module")
def _cuda() -> Iterator[None]:
    """A private server whose worker has the GPU."""
    with own_settings():
        yield


@pytest.mark.parametrize("name", RECIPES)
def test_losses_are_torchs(name: str) -> None:
    theirs, ours = twins(RECIPES[name].model)
    cuda = theirs.cuda()
    # The recipes make a tensor here and there: those shall be on the GPU too.
    with torch.device("cuda"):
        want = train(torch, name, cuda, lambda a: torch.from_numpy(a).cuda())
    have = train(gt, name, ours)
    np.testing.assert_allclose(have, want, rtol=1e-3)
    (worker,) = gt.debug.get_worker_stats()["workers"].values()
    assert worker["device"].startswith("cuda")


def near(ours: Any, exact: Any, limit: float, scale: float = 0.0) -> None:
    """The error is small beside the exact numbers, or beside those that they are made of."""
    mine, want = ours.detach().double().numpy(), exact.detach().numpy()
    assert np.linalg.norm(mine - want) / max(np.linalg.norm(want), scale) < limit


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("length", [16, 33, 128])
def test_attention_and_its_gradients(dtype: str, causal: bool, masked: bool, length: int) -> None:
    """Whichever kernel is taken, beside torch in float64 on the CPU."""
    if causal and masked:
        pytest.skip("torch refuses both at once")
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(2, 3, length, 64)).astype(np.float32) for _ in range(3)]
    mask = rng.normal(size=(2, 1, length, length)).astype(np.float32) if masked else None
    leaves = [gt.tensor(a).to(dtype).requires_grad_() for a in arrays]
    exact = [t.detach().float().torch().double().requires_grad_() for t in leaves]
    ours = gt.nn.functional.scaled_dot_product_attention(
        *leaves, attn_mask=None if mask is None else gt.tensor(mask).to(dtype), is_causal=causal
    )
    theirs = torch.nn.functional.scaled_dot_product_attention(
        *exact, attn_mask=None if mask is None else torch.tensor(mask).double(), is_causal=causal
    )
    g = rng.normal(size=theirs.shape).astype(np.float32)
    ours.backward(gt.tensor(g).to(dtype))
    theirs.backward(torch.tensor(g).double())
    limit = {"bfloat16": 2e-2, "float16": 4e-3, "float32": 1e-3}[dtype]
    for a, b in [(ours, theirs), *[(x.grad, t.grad) for x, t in zip(leaves, exact, strict=True)]]:
        near(a, b, limit)


@pytest.mark.parametrize("length", [64, 256])
def test_attention_on_parts_of_one_matrix(length: int) -> None:
    """q, k and v as a transformer has them: pieces of one product, turned around; so are their gradients."""
    rng = np.random.default_rng(0)
    array = rng.normal(size=(2, length, 3 * 4 * 64)).astype(np.float32)

    def attend(x: Any, F: Any) -> Any:
        q, k, v = (p.view(2, length, 4, 64).transpose(1, 2) for p in x.split(4 * 64, 2))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(2, length, 4 * 64)

    ours = gt.tensor(array).bfloat16().requires_grad_()
    exact = ours.detach().float().torch().double().requires_grad_()
    g = rng.normal(size=(2, length, 4 * 64)).astype(np.float32)
    y, want = attend(ours, gt.nn.functional), attend(exact, torch.nn.functional)
    y.backward(gt.tensor(g).bfloat16())
    want.backward(torch.tensor(g).double())
    for a, b in [(y, want), (ours.grad, exact.grad)]:
        near(a, b, 2e-2)


def _norms(F: Any, x: Any, w: Any, b: Any) -> list[Any]:
    return [
        F.layer_norm(x, (8,), w, b),
        F.group_norm(x, 2, w, b),
        F.rms_norm(x, (8,), w),
        F.batch_norm(x, None, None, w, b, training=True),
        F.instance_norm(x),
    ]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_norms_and_their_gradients(dtype: str) -> None:
    rng = np.random.default_rng(0)
    x, w, b, g = rng.normal(size=(4, 8, 8)), rng.normal(size=8), rng.normal(size=8), rng.normal(size=(4, 8, 8))
    leaves = [gt.tensor(a).to(dtype).requires_grad_() for a in (x, w, b)]
    exact = [t.detach().double().torch().requires_grad_() for t in leaves]
    limit = {"bfloat16": 3e-2, "float16": 5e-3, "float32": 1e-4}[dtype]
    ours, theirs = _norms(gt.nn.functional, *leaves), _norms(torch.nn.functional, *exact)
    for a, c in zip(ours, theirs, strict=True):
        for t in (*leaves, *exact):
            t.grad = None
        a.backward(gt.tensor(g).to(dtype))
        c.backward(torch.tensor(g))
        for mine, want in [(a, c), *[(p.grad, q.grad) for p, q in zip(leaves, exact, strict=True)]]:
            if want is not None:
                near(mine, want, limit, scale=float(np.linalg.norm(x)))  # some gradients are all but zero


@pytest.mark.parametrize(
    "name", ["SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "NAdam", "RAdam", "Adamax", "Adadelta", "ASGD", "Rprop"]
)
def test_optimizers_are_torchs(name: str) -> None:
    rng = np.random.default_rng(0)
    start, gs = rng.normal(size=(4, 3)), rng.normal(size=(6, 4, 3))
    found = []
    for lib in (gt, torch):
        p = lib.nn.Parameter(lib.tensor(start))
        opt = getattr(lib.optim, name)([p], lr=0.05)
        for g in gs:
            p.grad = lib.tensor(g)
            opt.step()
        found.append(p.detach().numpy())
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6)  # torch counts some of its steps in float32


def test_a_function_of_torchs_with_integers_computes_on_the_host() -> None:
    """An index out of range would end the GPU for everybody; it is an error of this call alone."""
    x = gt.arange(4.0)
    with pytest.raises(gt.GTError):
        gt.torch_op("index_select", x, 0, gt.tensor([9])).numpy()
    assert gt.torch_op("index_select", x, 0, gt.tensor([3])).tolist() == [3.0]
    assert (x * 2).sum().item() == 12.0


@pytest.mark.parametrize("name", ["mlp", "gpt"])
def test_autocast_trains(name: str) -> None:
    _, ours = twins(RECIPES[name].model)
    with gt.autocast(dtype=gt.bfloat16):
        losses = train(gt, name, ours)
    assert np.mean(losses[-5:]) < 0.95 * np.mean(losses[:5])
