"""Multi-head attention as a module."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any

from gt.client.functions import creation
from gt.client.tensor import Parameter, Tensor
from gt.errors import ArgumentError
from gt.nn import functional as F
from gt.nn import init
from gt.nn.layers import Linear
from gt.nn.module import Module

__all__ = ["MultiheadAttention"]


class NonDynamicallyQuantizableLinear(Linear):
    """A Linear with the class name that torch's repr of a MultiheadAttention shows."""


class MultiheadAttention(Module):
    """Multi-head scaled dot-product attention."""

    def __init__(
        self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True, add_bias_kv: bool = False,
        add_zero_attn: bool = False, kdim: int | None = None, vdim: int | None = None, batch_first: bool = False,
        device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if embed_dim <= 0 or num_heads <= 0 or embed_dim % num_heads:
            raise ArgumentError(f"MultiheadAttention: embed_dim must be a multiple of {num_heads}, got {embed_dim}")
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.kdim, self.vdim = embed_dim if kdim is None else kdim, embed_dim if vdim is None else vdim
        self.dropout, self.batch_first, self.add_zero_attn = dropout, batch_first, add_zero_attn
        self._qkv_same_embed_dim = self.kdim == embed_dim and self.vdim == embed_dim
        same = self._qkv_same_embed_dim
        # In torch's order.
        separate = {"q_proj_weight": embed_dim, "k_proj_weight": self.kdim, "v_proj_weight": self.vdim}
        if same:
            self._weight("in_proj_weight", (3 * embed_dim, embed_dim), dtype)
        for name, size in separate.items():
            self._weight(name, None if same else (embed_dim, size), dtype)
        if not same:
            self._weight("in_proj_weight", None, dtype)
        self._weight("in_proj_bias", (3 * embed_dim,) if bias else None, dtype)
        self.out_proj = NonDynamicallyQuantizableLinear(embed_dim, embed_dim, bias, dtype=dtype)
        for name in ("bias_k", "bias_v"):
            self._weight(name, (1, 1, embed_dim) if add_bias_kv else None, dtype)
        self._reset_parameters()

    def _weight(self, name: str, size: Any, dtype: Any) -> None:
        self.register_parameter(name, None if size is None else Parameter(creation.empty(size, dtype=dtype)))

    def _reset_parameters(self) -> None:
        for name in ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"):
            if self._parameters[name] is not None:
                init.xavier_uniform_(getattr(self, name))
        if self.in_proj_bias is not None:
            init.zeros_(self.in_proj_bias)
            init.zeros_(self.out_proj.bias)
        for name in ("bias_k", "bias_v"):
            if self._parameters[name] is not None:
                init.xavier_normal_(getattr(self, name))

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Any = None, need_weights: bool = True,
        attn_mask: Any = None, average_attn_weights: bool = True, is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        turned = self.batch_first and query.ndim == 3
        if turned:
            # Inputs that are the same tensor stay the same tensor: one product then makes queries, keys and values.
            first, same_key, same_value = query, key is query, value is key
            query = query.transpose(0, 1)
            key = query if same_key else key.transpose(0, 1)
            value = key if same_value else query if value is first else value.transpose(0, 1)
        out, weights = F.multi_head_attention_forward(
            query, key, value, self.embed_dim, self.num_heads, self.in_proj_weight, self.in_proj_bias, self.bias_k,
            self.bias_v, self.add_zero_attn, self.dropout, self.out_proj.weight, self.out_proj.bias, self.training,
            key_padding_mask, need_weights, attn_mask, not self._qkv_same_embed_dim, self.q_proj_weight,
            self.k_proj_weight, self.v_proj_weight, average_attn_weights=average_attn_weights, is_causal=is_causal,
        )  # fmt: skip
        return (out.transpose(0, 1) if turned else out), weights


class SDPBackend(Enum):
    """The kernels of scaled_dot_product_attention; the worker chooses one."""

    ERROR, MATH, FLASH_ATTENTION, EFFICIENT_ATTENTION, CUDNN_ATTENTION = range(-1, 4)


@contextmanager
def sdpa_kernel(backends: Any, set_priority: bool = False) -> Iterator[None]:
    """A context without effect: the worker chooses the kernel of attention."""
    yield
