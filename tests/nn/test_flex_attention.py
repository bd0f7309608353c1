"""flex_attention and its masks, beside torch's."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import pytest

import gt
from gt.client.session.session import Session
from tests.beside_torch import as_in_torch
from tests.sessions import session_fixture

session = session_fixture("numpy")

RNG = np.random.default_rng(2)
Q, K, V = (RNG.normal(size=(2, 4, n, 8)).astype(np.float32) for n in (10, 12, 12))
DOCUMENTS = np.array([0] * 5 + [1] * 7)
SLOPES = np.array([0.5, 0.25, 0.125, 0.0625], np.float32)


def mods(lib: Any) -> dict[str, Any]:
    slopes = lib.from_numpy(SLOPES)
    return {
        "none": None,
        "alibi": lambda score, b, h, q, kv: score + slopes[h] * (kv - q),
        "soft cap": lambda score, b, h, q, kv: 5 * (score / 5).tanh(),
        "causal": lambda score, b, h, q, kv: lib.where(q >= kv, score, -float("inf")),
    }


def masks(lib: Any, flex: Any) -> dict[str, Any]:
    documents = lib.from_numpy(DOCUMENTS)

    def causal(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return q >= kv

    def same_document(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return documents[q] == documents[kv]

    def late(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return kv > q + h  # the last queries of the last heads see nothing

    return {
        "causal": causal, "documents": flex.and_masks(causal, same_document), "late": late, "all": flex.noop_mask,
        "either": flex.or_masks(causal, same_document),
    }  # fmt: skip


def flex_of(lib: Any) -> Any:
    return import_module(f"{lib.__name__}.nn.attention.flex_attention")


@pytest.mark.parametrize("mask", [None, "causal", "documents", "late", "all", "either"])
@pytest.mark.parametrize("mod", ["none", "alibi", "soft cap", "causal"])
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning", "ignore::FutureWarning")
@as_in_torch(rtol=2e-5, atol=2e-5)
def test_results(lib: Any, mask: str | None, mod: str, session: Session) -> list[Any]:
    flex = flex_of(lib)
    q, k, v = (lib.from_numpy(a) for a in (Q, K, V))
    block = mask and flex.create_block_mask(masks(lib, flex)[mask], 2, 4, 10, 12, device="cpu", BLOCK_SIZE=4)
    if mask == "late":  # what sees nothing: torch's values of lse and gradients are its own
        return [flex.flex_attention(q, k, v, mods(lib)[mod], block)]
    made, lse = flex.flex_attention(q, k, v, mods(lib)[mod], block, return_lse=True, scale=0.3)
    return [made, lse, flex.flex_attention(q, k, v, mods(lib)[mod], block)]


@as_in_torch(rtol=1e-5, atol=1e-6)
def test_masks(lib: Any, session: Session) -> list[Any]:
    flex = flex_of(lib)
    causal = masks(lib, flex)["causal"]
    block = flex.create_block_mask(causal, 2, None, 10, 12, device="cpu", BLOCK_SIZE=4)
    dense = flex.create_mask(causal, None, None, 10, 12, device="cpu")
    found = [tuple(block.shape), block.numel(), block.sparsity(), block.to_dense(), tuple(block.BLOCK_SIZE)]
    parts = [block[0], block[0, :, 1], block[:, 0, 1:]]
    return [*found, dense, tuple(block.seq_lengths), [part.to_dense() for part in parts]]


class Window:
    def __call__(self, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return self.near(2, b, h, q, kv)

    def near(self, width: int, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return (q - kv).abs() <= width


@as_in_torch()
def test_masks_that_are_no_plain_functions(lib: Any, session: Session) -> list[Any]:
    flex = flex_of(lib)
    mods: list[Any] = [
        Window(), partial(Window().near, 1), lambda b, h, q, kv, width=3: (q - kv).abs() <= width,
        lambda score, b, h, q, kv: lib.where(q >= kv, score, -float("inf")),
    ]  # fmt: skip
    found = [flex.create_mask(mod, 1, 1, 8, 8, device="cpu") for mod in mods]
    return [*found, flex.create_block_mask(mods[1], 1, 1, 8, 8, device="cpu", BLOCK_SIZE=2).to_dense()]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
@as_in_torch(rtol=1e-5, atol=1e-6)
def test_shared_heads(lib: Any, session: Session) -> list[Any]:
    flex = flex_of(lib)
    q, k, v = (lib.from_numpy(a) for a in (Q, K[:, :2], V[:, :2]))
    with pytest.raises(ValueError, match="enable_gqa"):
        flex.flex_attention(q, k, v)
    return [flex.flex_attention(q, k, v, mods(lib)[m], enable_gqa=True) for m in ("none", "alibi")]


def test_gradients(session: Session) -> None:
    flex = flex_of(gt)
    block = flex.create_block_mask(masks(gt, flex)["documents"], None, None, 10, 12, BLOCK_SIZE=4)
    grads = []
    for mod in (None, lambda score, b, h, q, kv: score * 1.0):
        leaves = [gt.from_numpy(a).requires_grad_() for a in (Q, K, V)]
        flex.flex_attention(*leaves, mod, block).square().sum().backward()
        grads.append([leaf.grad.numpy() for leaf in leaves])
    for plain, modified in zip(*grads, strict=True):
        np.testing.assert_allclose(plain, modified, rtol=1e-4, atol=1e-5)
