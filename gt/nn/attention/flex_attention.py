"""Attention whose scores a function changes, and masks that are functions: torch.nn.attention.flex_attention.

The functions are called once, on tensors of indices that broadcast against the scores; so a function of elements, or
one that indexes tensors with them, means the same as in torch, which maps it over single numbers. Masks are stored
whole: a BlockMask says which blocks are empty, and nothing is skipped because of it.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from gt.client.functions.creation import arange, full
from gt.client.functions.elementwise import where
from gt.client.functions.padding import pad
from gt.client.functions.shapes import broadcast_to
from gt.client.tensor import Tensor
from gt.errors import ArgumentError
from gt.nn.functional import scaled_dot_product_attention

__all__ = [
    "AuxOutput", "AuxRequest", "BlockMask", "and_masks", "create_block_mask", "create_mask", "flex_attention",
    "noop_mask", "or_masks",
]  # fmt: skip

MaskMod = Callable[[Any, Any, Any, Any], Any]
ScoreMod = Callable[[Any, Any, Any, Any, Any], Any]


class AuxRequest(NamedTuple):
    """What flex_attention returns besides the result."""

    lse: bool = False
    max_scores: bool = False


class AuxOutput(NamedTuple):
    """For each query the logarithm of the sum of exp(score), and the largest score."""

    lse: Tensor | None = None
    max_scores: Tensor | None = None


def noop_mask(batch: Any, head: Any, token_q: Any, token_kv: Any) -> Any:
    """A mask_mod that masks nothing."""
    return (token_q >= 0) & (token_kv >= 0)


def or_masks(*mask_mods: MaskMod) -> MaskMod:
    """A mask_mod: what any of these lets through."""
    return lambda b, h, q, kv: functools.reduce(lambda x, y: x | y, [mod(b, h, q, kv) for mod in mask_mods])


def and_masks(*mask_mods: MaskMod) -> MaskMod:
    """A mask_mod: what all of these let through."""
    return lambda b, h, q, kv: functools.reduce(lambda x, y: x & y, [mod(b, h, q, kv) for mod in mask_mods])


def _indices(shape: tuple[int, ...]) -> list[Any]:
    """For each dimension the indices along it, as tensors that broadcast to the shape."""
    return [arange(n).reshape([n if d == k else 1 for k in range(len(shape))]) for d, n in enumerate(shape)]


def create_mask(
    mod_fn: Callable[..., Any], B: int | None, H: int | None, Q_LEN: int, KV_LEN: int, device: Any = None
) -> Tensor:
    """What a function of (batch, head, query, key) lets through, as a mask of bools; of a function of (score, batch,
    ...) which scores it does not make -inf."""
    shape = (B or 1, H or 1, Q_LEN, KV_LEN)
    needed = [p for p in inspect.signature(mod_fn).parameters.values() if p.default is p.empty]
    if len(needed) == 5:
        return broadcast_to(mod_fn(full(shape, 0.0), *_indices(shape)) != -math.inf, shape)
    return _mask(mod_fn, shape)


def _mask(mask_mod: MaskMod, shape: tuple[int, ...]) -> Tensor:
    return broadcast_to(mask_mod(*_indices(shape)).bool(), shape)


class BlockMask:
    """A mask, and which of its blocks are empty."""

    def __init__(self, mask: Tensor, mask_mod: MaskMod, block_size: tuple[int, int]) -> None:
        self.mask, self.mask_mod, self.BLOCK_SIZE = mask, mask_mod, block_size
        self.seq_lengths = (int(mask.shape[-2]), int(mask.shape[-1]))

    shape = property(lambda self: tuple(self.mask.shape))

    def numel(self) -> int:
        """How many elements the mask has."""
        return math.prod(self.shape)

    def to_dense(self) -> Tensor:
        """1 for each block that is not empty."""
        b, h, q, kv = self.shape
        rows, columns = self.BLOCK_SIZE
        padded = pad(self.mask.int(), (0, -kv % columns, 0, -q % rows))
        blocks = padded.reshape(b, h, -(-q // rows), rows, -(-kv // columns), columns)
        return blocks.amax((3, 5))

    def sparsity(self) -> float:
        """How many percent of the mask are in empty blocks. Waits for it."""
        rows, columns = self.BLOCK_SIZE
        return 100 * (1 - self.to_dense().sum().item() * rows * columns / self.numel())

    def to(self, device: Any) -> BlockMask:
        """The mask itself."""
        return self

    def __getitem__(self, index: Any) -> BlockMask:
        """Some of the batches and heads, or of the blocks of queries."""
        parts = index if isinstance(index, tuple) else (index,)
        parts = tuple([slice(p, p + 1 or None) if isinstance(p, int) else p for p in parts])
        mask, rows = self.mask[parts[:2]], self.BLOCK_SIZE[0]
        if len(parts) > 2:
            chosen: Any = range(-(-self.seq_lengths[0] // rows))[parts[2]]
            mask = mask[:, :, chosen[0] * rows : (chosen[-1] + 1) * rows]
        return BlockMask(mask, self.mask_mod, self.BLOCK_SIZE)

    def __repr__(self) -> str:
        return f"BlockMask(shape={self.shape}, BLOCK_SIZE={self.BLOCK_SIZE})"


def create_block_mask(
    mask_mod: MaskMod, B: int | None, H: int | None, Q_LEN: int, KV_LEN: int, device: Any = None,
    BLOCK_SIZE: int | tuple[int, int] = 128, _compile: bool = False,
) -> BlockMask:  # fmt: skip
    """The mask that a function of (batch, head, query, key) describes; B and H may be None if it reads neither."""
    size = (BLOCK_SIZE, BLOCK_SIZE) if isinstance(BLOCK_SIZE, int) else BLOCK_SIZE
    return BlockMask(_mask(mask_mod, (B or 1, H or 1, Q_LEN, KV_LEN)), mask_mod, (size[0], size[1]))


def flex_attention(
    query: Any, key: Any, value: Any, score_mod: ScoreMod | None = None, block_mask: BlockMask | None = None,
    scale: float | None = None, enable_gqa: bool = False, return_lse: bool = False, kernel_options: Any = None, *,
    return_aux: AuxRequest | None = None,
) -> Any:  # fmt: skip
    """Attention with scores that score_mod(score, batch, head, query, key) changes, where block_mask lets through."""
    b, h, q, kv = query.shape[0], query.shape[1], query.shape[2], key.shape[2]
    if key.shape[1] != h and not enable_gqa:
        raise ArgumentError(
            f"flex_attention: query has {h} heads, key {key.shape[1]}; pass enable_gqa=True to share them"
        )
    mask = None if block_mask is None else block_mask.mask
    if mask is not None and (mask.shape[-2] < q or mask.shape[-1] < kv):
        raise ArgumentError(f"flex_attention: the mask is for {tuple(mask.shape[-2:])} queries and keys, got {(q, kv)}")
    mask = None if mask is None else mask[..., :q, :kv]
    if score_mod is None and not return_lse and return_aux is None:
        return scaled_dot_product_attention(query, key, value, mask, scale=scale, enable_gqa=enable_gqa)
    if key.shape[1] != h:
        key, value = (t.repeat_interleave(h // key.shape[1], 1) for t in (key, value))
    exact = query.float() if query.dtype.itemsize < 4 else query
    scores = (exact @ key.to(exact.dtype).mT) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if score_mod is not None:
        scores = score_mod(scores, *_indices((b, h, q, kv)))
    if mask is not None:
        scores = where(mask, scores, -math.inf)
    largest = scores.amax(-1, keepdim=True)
    weights = (scores - where(largest == -math.inf, 0.0, largest)).exp()
    total = weights.sum(-1, keepdim=True)
    made = ((weights / where(total == 0, 1.0, total)) @ value.to(exact.dtype)).to(query.dtype)
    lse = (total.log() + largest).squeeze(-1)
    if return_aux is not None:
        return made, AuxOutput(lse if return_aux.lse else None, largest.squeeze(-1) if return_aux.max_scores else None)
    return (made, lse) if return_lse else made
