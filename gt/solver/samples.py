"""A training step with the ops that most models have, of any size. Recorded on paper, probes.py times its ops;
rehearsal.py runs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gt
from gt import nn
from gt.solver.recorded import RecordedProgram, record_step

F = nn.functional
HEADS = 4


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(width, width)

    def forward(self, x: Any) -> Any:
        rows, length, _ = x.shape
        q, k, v = (t.view(rows, length, HEADS, -1).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        x = x + self.out(mixed)
        a, b = self.up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(F.gelu(a) * F.silu(b) + gt.tanh(a) * gt.sigmoid(b))


class _Net(nn.Module):
    def __init__(self, words: int, width: int, channels: int) -> None:
        super().__init__()
        self.words, self.block = nn.Embedding(words, width), _Block(width)
        self.head = nn.Linear(width, words, bias=False)
        self.first, self.norm = nn.Conv2d(3, channels, 3, padding=1), nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        self.group = nn.GroupNorm(4, channels)
        self.third = nn.ConvTranspose2d(channels, channels, 2, stride=2)

    def forward(self, words: Any, labels: Any, pictures: Any) -> Any:
        h = self.block(self.words(words))
        text = F.cross_entropy(self.head(h).flatten(0, 1), labels.flatten())
        scores = F.softmax(h, dim=-1).log().exp().sum()
        c = F.relu(self.norm(self.first(pictures)))
        c = F.relu(self.group(self.second(F.max_pool2d(c, 2))))
        c = gt.cat([self.third(c), pictures], dim=1)
        return text + scores + F.avg_pool2d(c, 2).square().mean()


def sample_step(scale: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The step and its arguments. With a scale of 1 it has next to nothing to do; the work of most ops grows with the
    square of the scale."""
    model = _Net(64 * scale, 16 * scale, max(8, scale))
    optimizer = gt.optim.AdamW(model.parameters(), lr=1e-3)

    def step(model: Any, optimizer: Any, words: Any, labels: Any, pictures: Any) -> Any:
        loss = model(words, labels, pictures)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    words, labels = (gt.full((4, 4 * scale), k, dtype=gt.int64) for k in (0, 1))
    return step, (model, optimizer, words, labels, gt.ones(4, 3, 4 * scale, 4 * scale))


def sample_program(scale: int) -> RecordedProgram:
    """The program of the step."""
    with gt.enable_grad(), gt.on_paper():
        step, arguments = sample_step(scale)
        return record_step(step, *arguments).largest
