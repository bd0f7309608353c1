"""Scaled dot-product attention, and the forward pass of a multi-head attention layer."""

from __future__ import annotations

import math
from typing import Any

from gt import dtypes
from gt.client.compat.autocast import autocasts
from gt.client.functions import creation
from gt.client.functions import elementwise as ew
from gt.client.functions.reductions import softmax
from gt.client.programs import kinds
from gt.client.record.recorder import apply
from gt.client.tensor import Tensor
from gt.errors import ArgumentError, DTypeError, ShapeError
from gt.nn.functional.dropout import dropout
from gt.nn.functional.linear import linear
from gt.ops import ops, rules
from gt.ops.record import LOWER

__all__ = ["multi_head_attention_forward", "scaled_dot_product_attention"]


@autocasts(LOWER)
def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """softmax(query @ key.T * scale) @ value. A bool mask is True where attention is allowed; a float mask is added."""
    op = "scaled_dot_product_attention"
    if min(query.ndim, key.ndim, value.ndim) < 2:
        raise ShapeError(f"{op}: query, key and value must have at least two dimensions (..., positions, size)")
    if attn_mask is not None and is_causal:
        raise ArgumentError(f"{op}: expected attn_mask or is_causal=True, got both")
    if enable_gqa:
        key, value = _for_each_query_head(op, query, key), _for_each_query_head(op, query, value)
    batch = rules.broadcast(op, *(tuple(x.shape[:-2]) for x in (query, key, value)))
    whole = (*batch, query.shape[-2], key.shape[-2])
    if attn_mask is not None:
        if attn_mask.dtype is not dtypes.bool_ and not attn_mask.dtype.is_floating_point:
            raise DTypeError(f"{op}: attn_mask must be bool or {query.dtype.name}, got {attn_mask.dtype.name}")
        rules.expands(op, "attn_mask", tuple(attn_mask.shape), whole)
    if scale is None:
        scale = 1.0 / math.sqrt(query.shape[-1]) if query.shape[-1] else 1.0
    if dropout_p > 0.0:
        weights = _weights(query, key, attn_mask, is_causal, scale)
        return dropout(weights, dropout_p) @ value
    lead = (1,) * (2 - len(batch)) + batch if len(batch) < 3 else (math.prod(batch[:-1]), batch[-1])
    q, k, v = (_as(x, batch, lead) for x in (query, key, value))
    mask: tuple[Any, ...] = ()
    if attn_mask is not None:
        mask = (attn_mask if attn_mask.ndim <= 4 and len(batch) < 3 else _as(attn_mask, batch, lead),)
    trained = attn_mask is not None and attn_mask.requires_grad
    out: Tensor = apply(kinds.attention[is_causal, float(scale), trained], (q, k, v, *mask))[0]
    return out if lead == batch else out.reshape(*batch, *out.shape[-2:])


def _as(x: Tensor, batch: tuple[int, ...], lead: tuple[int, ...]) -> Tensor:
    """The tensor expanded to the batch, with its leading dimensions reshaped to `lead`."""
    last = tuple(x.shape[-2:])
    if tuple(x.shape[:-2]) != batch:
        x = x.expand(*batch, *last)
    return x if lead == batch else x.reshape(*lead, *last)


def _for_each_query_head(op: str, query: Tensor, x: Tensor) -> Tensor:
    """Keys or values with every head repeated for the query heads that share it (grouped-query attention)."""
    if query.ndim < 3 or x.ndim < 3 or not x.shape[-3] or query.shape[-3] % x.shape[-3]:
        raise ShapeError(
            f"{op}: the heads of query {tuple(query.shape)} must be a multiple of those of {tuple(x.shape)}"
        )
    times = query.shape[-3] // x.shape[-3]
    if times == 1:
        return x
    *batch, heads, n, size = x.shape
    wide = x.reshape(*batch, heads, 1, n, size).expand(*batch, heads, times, n, size)
    return wide.reshape(*batch, heads * times, n, size)


def _weights(query: Tensor, key: Tensor, mask: Any, is_causal: bool, scale: float) -> Tensor:
    """The attention weights (..., queries, keys)."""
    scores = (query * scale) @ key.transpose(-2, -1)
    if is_causal:
        rows, columns = creation.arange(scores.shape[-2]), creation.arange(scores.shape[-1])
        mask = columns <= rows.unsqueeze(1)
    if mask is None:
        return softmax(scores, -1)
    scores = ew.where(mask, scores, -math.inf) if mask.dtype is dtypes.bool_ else scores + mask
    blank = (scores == -math.inf).all(-1, keepdim=True)  # such rows get weights 0, not nan
    return ew.where(blank, 0.0, softmax(ew.where(blank, 0.0, scores), -1))


# --- a whole layer ------------------------------------------------------------------------------------


def multi_head_attention_forward(
    query: Tensor, key: Tensor, value: Tensor, embed_dim_to_check: int, num_heads: int, in_proj_weight: Any,
    in_proj_bias: Any, bias_k: Any, bias_v: Any, add_zero_attn: bool, dropout_p: float, out_proj_weight: Tensor,
    out_proj_bias: Any, training: bool = True, key_padding_mask: Any = None, need_weights: bool = True,
    attn_mask: Any = None, use_separate_proj_weight: bool = False, q_proj_weight: Any = None, k_proj_weight: Any = None,
    v_proj_weight: Any = None, static_k: Any = None, static_v: Any = None, average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """The forward pass of nn.MultiheadAttention, for inputs (positions, batch, embedding)."""
    op = "multi_head_attention_forward"
    batched = query.ndim == 3
    if query.ndim not in (2, 3) or key.ndim != query.ndim or value.ndim != query.ndim:
        raise ShapeError(f"{op}: query, key and value must be (positions, batch, size) or (positions, size)")
    if not batched:
        query, key, value = query.unsqueeze(1), key.unsqueeze(1), value.unsqueeze(1)
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
    n, batch, size = query.shape
    if size != embed_dim_to_check or size % num_heads:
        raise ShapeError(
            f"{op}: expected an embedding of {embed_dim_to_check}, divisible by {num_heads} heads, got {size}"
        )
    if is_causal and attn_mask is None:
        raise ArgumentError(f"{op}: is_causal=True is a hint about attn_mask and requires attn_mask")
    is_causal = is_causal and key_padding_mask is None and not need_weights
    mask = None if is_causal else _added(op, "attn_mask", attn_mask, query)
    padding = _added(op, "key_padding_mask", key_padding_mask, query)
    if mask is not None:
        mask = _per_head(op, mask, batch, num_heads, n, key.shape[0])

    if use_separate_proj_weight:
        matrices = (q_proj_weight, k_proj_weight, v_proj_weight)
    else:
        matrices = tuple(in_proj_weight.chunk(3))
    biases = (None,) * 3 if in_proj_bias is None else in_proj_bias.chunk(3)
    if not use_separate_proj_weight and query is key and key is value:
        q, k, v = linear(query, in_proj_weight, in_proj_bias).chunk(3, -1)
    else:
        pairs = zip((query, key, value), matrices, biases, strict=True)
        q, k, v = (linear(x, w, b) for x, w, b in pairs)

    more = 0  # added keys, which are visible to all queries
    if bias_k is not None and bias_v is not None:
        k, v = (ops.cat(x, b.expand(1, batch, size), dim=0) for x, b in ((k, bias_k), (v, bias_v)))
        more += 1
    elif bias_k is not None or bias_v is not None:
        raise ArgumentError(f"{op}: expected both bias_k and bias_v, or neither")
    q, k, v = (x.reshape(x.shape[0], batch, num_heads, size // num_heads).permute(1, 2, 0, 3) for x in (q, k, v))
    if static_k is not None:
        k = static_k.reshape(batch, num_heads, *static_k.shape[1:])
    if static_v is not None:
        v = static_v.reshape(batch, num_heads, *static_v.shape[1:])
    if add_zero_attn:
        k, v = (ops.cat(x, creation.zeros((*x.shape[:2], 1, x.shape[3]), dtype=x.dtype), dim=2) for x in (k, v))
        more += 1
    if padding is not None:
        padding = padding.reshape(batch, 1, 1, -1)
    mask, padding = (None if m is None else _widened(m, more) for m in (mask, padding))
    if padding is not None:
        mask = padding if mask is None else mask + padding

    dropout_p = dropout_p if training else 0.0
    weights: Any = None
    if need_weights:
        scores = (q * math.sqrt(1.0 / q.shape[-1])) @ k.transpose(-2, -1)  # (batch, heads, n, keys)
        weights = dropout(softmax(scores if mask is None else scores + mask.to(scores.dtype), -1), dropout_p)
        out = weights @ v
    else:
        out = scaled_dot_product_attention(q, k, v, mask, dropout_p, is_causal)
    out = linear(out.permute(2, 0, 1, 3).reshape(n, batch, size), out_proj_weight, out_proj_bias)
    if need_weights and average_attn_weights:
        weights = weights.mean(1)
    if not batched:
        out, weights = out.squeeze(1), None if weights is None else weights.squeeze(0)
    return out, weights


def _added(op: str, name: str, mask: Any, query: Tensor) -> Any:
    """A mask as values to add to the scores: -inf where a bool mask is True, which means masked here."""
    if mask is None or mask.dtype.is_floating_point:
        return mask
    if mask.dtype is not dtypes.bool_:
        raise DTypeError(f"{op}: {name} must be bool or floating point, got {mask.dtype.name}")
    return creation.zeros(tuple(mask.shape), dtype=query.dtype).masked_fill(mask, -math.inf)


def _per_head(op: str, mask: Tensor, batch: int, heads: int, queries: int, keys: int) -> Tensor:
    if tuple(mask.shape) == (queries, keys):
        return mask.reshape(1, 1, queries, keys)
    if tuple(mask.shape) == (batch * heads, queries, keys):
        return mask.reshape(batch, heads, queries, keys)
    wanted = f"{(queries, keys)} or {(batch * heads, queries, keys)}"
    raise ShapeError(f"{op}: attn_mask must have shape {wanted}, got {tuple(mask.shape)}")


def _widened(mask: Tensor, more: int) -> Tensor:
    """The mask with columns of zeros for the added keys, which are visible to all queries."""
    if not more:
        return mask
    return ops.cat(mask, creation.zeros((*mask.shape[:-1], more), dtype=mask.dtype), dim=mask.ndim - 1)
