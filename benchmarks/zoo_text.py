"""Networks for text: one like Llama, one like BERT, and a mixture of experts. The same text serves torch and gt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from zoo import Arrays, Data

# --- a decoder like Llama ----------------------------------------------------------------------------


def llama(lib: Any, layers: int, width: int, heads: int, groups: int, hidden: int, length: int, vocabulary: int) -> Any:
    """Rotary positions, RMS norm, SwiGLU, and `groups` heads of keys and values for `heads` heads of queries."""
    nn, F = lib.nn, lib.nn.functional
    size = width // heads

    class RMSNorm(nn.Module):  # type: ignore[misc]  # nn is torch's or GT's: Any
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(lib.ones(width))

        def forward(self, x: Any) -> Any:
            h = x.float()
            h = h * lib.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
            return self.weight * h.to(x.dtype)

    def rotate_half(x: Any) -> Any:
        x1, x2 = x[..., : size // 2], x[..., size // 2 :]
        return lib.cat((-x2, x1), dim=-1)

    class Attention(nn.Module):  # type: ignore[misc]  # nn is torch's or GT's: Any
        def __init__(self) -> None:
            super().__init__()
            self.q_proj = nn.Linear(width, heads * size, bias=False)
            self.k_proj = nn.Linear(width, groups * size, bias=False)
            self.v_proj = nn.Linear(width, groups * size, bias=False)
            self.o_proj = nn.Linear(heads * size, width, bias=False)

        def forward(self, x: Any, cos: Any, sin: Any) -> Any:
            B, T, _ = x.shape
            q = self.q_proj(x).view(B, T, heads, size).transpose(1, 2)  # (B, heads, T, size)
            k = self.k_proj(x).view(B, T, groups, size).transpose(1, 2)  # (B, groups, T, size)
            v = self.v_proj(x).view(B, T, groups, size).transpose(1, 2)
            q = q * cos + rotate_half(q) * sin
            k = k * cos + rotate_half(k) * sin
            k = k.repeat_interleave(heads // groups, dim=1)
            v = v.repeat_interleave(heads // groups, dim=1)
            # Rotary tables are float32: under autocast q and k would otherwise have another dtype than v.
            y = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v, is_causal=True)
            return self.o_proj(y.transpose(1, 2).reshape(B, T, heads * size))

    class MLP(nn.Module):  # type: ignore[misc]  # nn is torch's or GT's: Any
        def __init__(self) -> None:
            super().__init__()
            self.gate_proj = nn.Linear(width, hidden, bias=False)
            self.up_proj = nn.Linear(width, hidden, bias=False)
            self.down_proj = nn.Linear(hidden, width, bias=False)

        def forward(self, x: Any) -> Any:
            return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))

    class Block(nn.Module):  # type: ignore[misc]  # nn is torch's or GT's: Any
        def __init__(self) -> None:
            super().__init__()
            self.input_norm, self.attention_norm = RMSNorm(), RMSNorm()
            self.attention, self.mlp = Attention(), MLP()

        def forward(self, x: Any, cos: Any, sin: Any) -> Any:
            x = x + self.attention(self.input_norm(x), cos, sin)
            return x + self.mlp(self.attention_norm(x))

    class Llama(nn.Module):  # type: ignore[misc]  # nn is torch's or GT's: Any
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(vocabulary, width)
            self.layers = nn.ModuleList([Block() for _ in range(layers)])
            self.norm = RMSNorm()
            self.head = nn.Linear(width, vocabulary, bias=False)
            inverse = 1.0 / (10000 ** (lib.arange(0, size, 2).float() / size))
            angles = lib.outer(lib.arange(length).float(), inverse)  # (length, size / 2)
            angles = lib.cat((angles, angles), dim=-1)
            self.register_buffer("cos", angles.cos(), persistent=False)
            self.register_buffer("sin", angles.sin(), persistent=False)

        def forward(self, i: Any) -> Any:
            T = i.shape[1]
            cos, sin = self.cos[:T], self.sin[:T]
            x = self.tokens(i)  # (B, T, width)
            for layer in self.layers:
                x = layer(x, cos, sin)
            return self.head(self.norm(x))

    return Llama()


# --- an encoder like BERT ----------------------------------------------------------------------------

PAD, MASK, IGNORED = 0, 1, -100


def bert(lib: Any, layers: int, width: int, heads: int, length: int, vocabulary: int) -> Any:
    """nn.TransformerEncoder over tokens, positions and a mask of what is padding. No dropout: its random numbers differ
    between libraries."""
    nn = lib.nn

    class Bert(nn.Module):  # type: ignore[misc]  # nn is torch's or GT's: Any
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(vocabulary, width, padding_idx=PAD)
            self.positions = nn.Embedding(length, width)
            self.norm = nn.LayerNorm(width)
            layer = nn.TransformerEncoderLayer(
                width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True
            )
            self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
            self.transform = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
            self.decoder = nn.Linear(width, vocabulary)
            self.register_buffer("position_ids", lib.arange(length).unsqueeze(0))

        def forward(self, i: Any) -> Any:
            padding = i == PAD  # (B, T)
            x = self.norm(self.tokens(i) + self.positions(self.position_ids[:, : i.shape[1]]))
            x = self.encoder(x, src_key_padding_mask=padding)
            return self.decoder(self.transform(x))  # (B, T, vocabulary)

    return Bert()


def masked_text(vocabulary: int, length: int) -> Data:
    """Texts of different lengths, padded, in which a sixth of the tokens is hidden; and the tokens that were hidden."""

    def data(rng: np.random.Generator, rows: int) -> Arrays:
        text = rng.integers(2, vocabulary, size=(rows, length))
        lengths = rng.integers(length // 2, length + 1, size=(rows, 1))
        padding = np.arange(length) >= lengths
        hidden = (rng.random((rows, length)) < 1 / 6) & ~padding
        hidden[:, 0] = True  # in each text at least one
        labels = np.where(hidden, text, IGNORED)
        return np.where(padding, PAD, np.where(hidden, MASK, text)), labels

    return data


def hidden_tokens(lib: Any, network: Any, x: Any, y: Any) -> Any:
    logits = network(x)
    return lib.nn.functional.cross_entropy(logits.view(-1, logits.shape[-1]), y.view(-1), ignore_index=IGNORED)


# --- a mixture of experts ----------------------------------------------------------------------------


def moe(lib: Any, layers: int, width: int, heads: int, experts: int, top_k: int, length: int, vocabulary: int) -> Any:
    """A decoder whose feed-forward layers are mixtures of experts. An expert has room for a fixed number of tokens;
    tokens for which there is no room skip it, as in GShard and the Switch Transformer."""
    nn, F = lib.nn, lib.nn.functional
    hidden = 2 * width

    class Experts(nn.Module):  # type: ignore[misc]  # nn is torch's or GT's: Any
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(width, experts, bias=False)
            self.up = nn.Parameter(lib.randn(experts, width, hidden) * width**-0.5)
            self.down = nn.Parameter(lib.randn(experts, hidden, width) * hidden**-0.5)

        def forward(self, x: Any) -> tuple[Any, Any]:
            B, T, C = x.shape
            tokens = x.reshape(-1, C)  # (N, C)
            N = tokens.shape[0]
            room = (N * top_k * 5) // (experts * 4)
            logits = self.gate(tokens).float()
            probs = F.softmax(logits, dim=-1)
            weights, chosen = lib.topk(probs, top_k, dim=-1)  # (N, top_k)
            weights = weights / weights.sum(dim=-1, keepdim=True)
            one_hot = F.one_hot(chosen, experts).transpose(0, 1).reshape(top_k * N, experts)  # first choices go first
            place = ((one_hot.cumsum(0) - 1) * one_hot).sum(-1).view(top_k, N).t()  # (N, top_k): its number there
            fits = place < room
            slot = chosen * room + place.clamp(max=room - 1)  # (N, top_k)
            # To the experts, through them, and back.
            sent = tokens.unsqueeze(1).expand(N, top_k, C) * fits.unsqueeze(-1)
            buffer = lib.zeros(experts * room, C, dtype=sent.dtype, device=x.device)
            buffer = buffer.index_add(0, slot.reshape(-1), sent.reshape(-1, C))
            h = F.silu(lib.bmm(buffer.view(experts, room, C), self.up))
            out = lib.bmm(h, self.down).reshape(experts * room, C)
            back = out[slot.reshape(-1)].view(N, top_k, C) * (weights * fits).unsqueeze(-1)
            # The gate is to use all experts alike.
            share = one_hot.float().mean(0)
            balance = experts * (share * probs.mean(0)).sum()
            return back.sum(1).view(B, T, C).to(x.dtype), balance

    class Block(nn.Module):  # type: ignore[misc]  # nn is torch's or GT's: Any
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.experts = Experts()

        def forward(self, x: Any) -> tuple[Any, Any]:
            B, T, C = x.shape
            parts = self.qkv(self.norm1(x)).split(C, dim=2)
            q, k, v = (t.view(B, T, heads, C // heads).transpose(1, 2) for t in parts)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(B, T, C))
            mixed, balance = self.experts(self.norm2(x))
            return x + mixed, balance

    class MoE(nn.Module):  # type: ignore[misc]  # nn is torch's or GT's: Any
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
            self.blocks = nn.ModuleList([Block() for _ in range(layers)])
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

        def forward(self, i: Any) -> tuple[Any, Any]:
            x = self.tokens(i) + self.positions(lib.arange(i.shape[1], device=i.device))
            balance = 0.0
            for block in self.blocks:
                x, more = block(x)
                balance = balance + more
            return self.head(self.norm(x)), balance

    return MoE()


def next_letter_and_balance(lib: Any, network: Any, x: Any, y: Any) -> Any:
    logits, balance = network(x)
    return lib.nn.functional.cross_entropy(logits.view(-1, logits.shape[-1]), y.view(-1)) + 0.01 * balance
