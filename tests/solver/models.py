"""Training steps to plan, of any size: each function builds a model and its optimizer, and returns step and batch.

They are written as users write them, and run on paper (`gt.on_paper`) and live alike. The defaults are small.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import gt
from gt import nn
from gt.solver.recorded import RecordedStep, record_step

F = nn.functional


class Training(NamedTuple):
    """A model in training."""

    step: Callable[..., Any]
    batch: tuple[Any, ...]
    model: Any
    optimizer: Any


def trained(model: Any, loss_of: Callable[..., Any], *batch: Any, clip: float = 0.0, lr: float = 1e-3) -> Training:
    """The usual step: forward, backward, clipping if wanted, AdamW."""
    optimizer = gt.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr)

    def step(*batch: Any) -> Any:
        loss = loss_of(*batch)
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return Training(step, batch, model, optimizer)


def recorded_step(build: Callable[..., Training], **sizes: Any) -> RecordedStep:
    """The step of a model as it is recorded on paper."""
    with gt.on_paper():
        training = build(**sizes)
        return record_step(training.step, *training.batch)


def mlp(layers: int = 3, width: int = 16, rows: int = 8, clip: float = 0.0, dropout: float = 0.0) -> Training:
    """Linear layers with ReLU, and with dropout if wanted."""
    parts: list[Any] = []
    for _ in range(layers):
        parts += [nn.Linear(width, width), nn.ReLU(), *([nn.Dropout(dropout)] if dropout else [])]
    model = nn.Sequential(*parts[: -2 if dropout else -1])
    x = gt.ones(rows, width)
    return trained(model, lambda x: model(x).square().mean(), x, clip=clip)


class Block(nn.Module):
    """A transformer block with LayerNorm and GELU."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        rows, length, width = x.shape
        q, k, v = (
            t.view(rows, length, self.heads, -1).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def transformer_block(width: int = 16, heads: int = 2, rows: int = 2, length: int = 8) -> Training:
    """One block, by itself."""
    model = Block(width, heads)
    return trained(model, lambda x: model(x).square().mean(), gt.ones(rows, length, width))


class LanguageModel(nn.Module):
    """Embedding, blocks, and a head; a tied head has the embedding's weight."""

    def __init__(self, vocabulary: int, width: int, heads: int, layers: int, length: int, tied: bool) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, x: Any) -> Any:
        h = self.tokens(x) + self.positions(gt.arange(x.shape[1]))
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


def language_model(
    vocabulary: int = 33, width: int = 16, heads: int = 2, layers: int = 2, rows: int = 2, length: int = 8,
    tied: bool = True,
) -> Training:  # fmt: skip
    """A GPT."""
    model = LanguageModel(vocabulary, width, heads, layers, length, tied)
    x = gt.zeros(rows, length, dtype=gt.int64)
    y = gt.ones(rows, length, dtype=gt.int64)
    return trained(model, lambda x, y: F.cross_entropy(model(x).flatten(0, 1), y.flatten()), x, y)


class LlamaLayer(nn.Module):
    """RMSNorm, grouped-query attention with rotary positions, SwiGLU."""

    def __init__(self, width: int, heads: int, groups: int, hidden: int) -> None:
        super().__init__()
        self.size = width // heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.o = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, groups * self.size, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Any, cos: Any, sin: Any) -> Any:
        rows, length, _ = x.shape
        h = self.norm1(x)
        q, k, v = (w(h).view(rows, length, -1, self.size).transpose(1, 2) for w in (self.q, self.k, self.v))
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(mixed.transpose(1, 2).reshape(rows, length, -1))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def rotated(x: Any, cos: Any, sin: Any) -> Any:
    """Rotary positions: pairs of features are rotated by an angle that grows with the position."""
    a, b = x.chunk(2, dim=-1)
    return x * cos + gt.cat([-b, a], dim=-1) * sin


class Llama(nn.Module):
    """Embedding, layers, head."""

    def __init__(self, vocabulary: int, width: int, heads: int, groups: int, hidden: int, layers: int, length: int):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList([LlamaLayer(width, heads, groups, hidden) for _ in range(layers)])
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        size = width // heads
        angles = gt.outer(gt.arange(length).float(), 1.0 / 500_000 ** (gt.arange(0, size, 2).float() / size))
        self.register_buffer("cos", angles.cos().repeat(1, 2), persistent=False)
        self.register_buffer("sin", angles.sin().repeat(1, 2), persistent=False)

    def forward(self, x: Any) -> Any:
        h = self.tokens(x)
        for layer in self.layers:
            h = layer(h, self.cos, self.sin)
        return self.head(self.norm(h))


def llama(
    vocabulary: int = 32, width: int = 16, heads: int = 4, groups: int = 2, hidden: int = 24, layers: int = 2,
    rows: int = 2, length: int = 8, clip: float = 1.0, dtype: Any = gt.bfloat16,
) -> Training:  # fmt: skip
    """Float32 parameters and state, compute in `dtype` (None: as the parameters)."""
    model = Llama(vocabulary, width, heads, groups, hidden, layers, length)

    def loss_of(x: Any, y: Any) -> Any:
        if dtype is None:
            return F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        with gt.autocast(dtype=dtype):
            return F.cross_entropy(model(x).flatten(0, 1), y.flatten())

    x = gt.zeros(rows, length, dtype=gt.int64)
    y = gt.ones(rows, length, dtype=gt.int64)
    return trained(model, loss_of, x, y, clip=clip)


#: Llama 3 of 8 billion parameters, with a batch for 72 GPUs.
LLAMA_8B = {
    "vocabulary": 128_256, "width": 4096, "heads": 32, "groups": 8, "hidden": 14_336, "layers": 32, "rows": 72,
    "length": 4096,
}  # fmt: skip


class Experts(nn.Module):
    """A mixture of experts: all of them at once, weighted by a router's softmax over the best two."""

    def __init__(self, width: int, hidden: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(gt.randn(experts, width, hidden) / width**0.5)
        self.down = nn.Parameter(gt.randn(experts, hidden, width) / hidden**0.5)

    def forward(self, x: Any) -> Any:
        scores = self.router(x)  # (rows, experts)
        least = scores.topk(2, dim=-1).values[:, -1:]
        weights = scores.masked_fill(scores < least, float("-inf")).softmax(dim=-1)
        each = F.relu(gt.einsum("rd,edh->erh", x, self.up))  # (experts, rows, hidden)
        return gt.einsum("erh,ehd,re->rd", each, self.down, weights)


def experts(width: int = 16, hidden: int = 32, count: int = 8, rows: int = 8) -> Training:
    """Eight experts."""
    model = Experts(width, hidden, count)
    return trained(model, lambda x: model(x).square().mean(), gt.ones(rows, width))


def conv_net(channels: int = 8, classes: int = 5, rows: int = 4, size: int = 8) -> Training:
    """Convolutions with batch norm, for pictures of 3 channels."""
    model = nn.Sequential(
        nn.Conv2d(3, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(),
        nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1), nn.BatchNorm2d(2 * channels), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * channels, classes),
    )  # fmt: skip
    x, y = gt.ones(rows, 3, size, size), gt.zeros(rows, dtype=gt.int64)
    return trained(model, lambda x, y: F.cross_entropy(model(x), y), x, y)


def batch_norm_net(width: int = 16, layers: int = 4, rows: int = 8) -> Training:
    """Linear layers with batch norm, whose statistics are those of the whole batch wherever it is split."""
    parts = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU())]
    model = nn.Sequential(*parts)
    return trained(model, lambda x: model(x).square().mean(), gt.ones(rows, width))


class Diamond(nn.Module):
    """One value goes two ways, which meet again."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem, self.left, self.right = (nn.Linear(width, width) for _ in range(3))
        self.join = nn.Linear(width, width)

    def forward(self, x: Any) -> Any:
        h = self.stem(x)
        return self.join(F.relu(self.left(h)) * gt.sigmoid(self.right(h)) + h)


def diamond(width: int = 16, rows: int = 8) -> Training:
    """A product and a sum of two branches."""
    model = Diamond(width)
    return trained(model, lambda x: model(x).square().mean(), gt.ones(rows, width))


class Adapted(nn.Module):
    """A linear layer that does not learn, beside a product of two thin ones that do."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.base = nn.Linear(width, width, bias=False)
        self.base.weight.requires_grad_(False)
        self.down, self.up = nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=False)

    def forward(self, x: Any) -> Any:
        return self.base(x) + self.up(self.down(x))


def adapters(width: int = 16, rank: int = 4, layers: int = 2, rows: int = 8) -> Training:
    """Frozen weights with adapters."""
    model = nn.Sequential(*[part for _ in range(layers) for part in (Adapted(width, rank), nn.ReLU())])
    return trained(model, lambda x: model(x).square().mean(), gt.ones(rows, width))


def accumulated(layers: int = 4, width: int = 12, rows: int = 4, batches: int = 2) -> Training:
    """Gradients of several batches are added up before the optimizer's step."""
    model = nn.Sequential(*[nn.Linear(width, width) for _ in range(layers)])
    optimizer = gt.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step(x: Any) -> Any:
        losses = [model(x[k]).square().mean() for k in range(batches)]
        for loss in losses:
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return sum(losses).detach()

    return Training(step, (gt.ones(batches, rows, width),), model, optimizer)


class Translation(nn.Module):
    """An encoder and a decoder, with one embedding for both."""

    def __init__(self, vocabulary: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.both = nn.Transformer(width, heads, layers, layers, 4 * width, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, x: Any, y: Any) -> Any:
        return self.head(self.both(self.words(x), self.words(y)))


def translation(
    vocabulary: int = 24, width: int = 16, heads: int = 4, layers: int = 1, rows: int = 4, length: int = 6
) -> Training:
    """An encoder and a decoder, each with attention; gradients are clipped."""
    model = Translation(vocabulary, width, heads, layers)
    words = gt.zeros(rows, length, dtype=gt.int64)

    def loss_of(x: Any, y: Any) -> Any:
        return F.cross_entropy(model(x, y).flatten(0, 1), y.flatten())

    return trained(model, loss_of, words, words + 1, clip=1.0)


MODELS: dict[str, Callable[..., Training]] = {
    "mlp": mlp, "transformer block": transformer_block, "language model": language_model, "llama": llama,
    "experts": experts, "conv net": conv_net,
}  # fmt: skip
