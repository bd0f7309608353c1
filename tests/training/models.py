"""Five models and how they are trained, written once: `lib` is gt or torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

STEPS = 50
Batch = tuple[np.ndarray[Any, Any], ...]


@dataclass(frozen=True)
class Recipe:
    """What it takes to train one of them."""

    model: Callable[[Any], Any]
    data: Callable[[np.random.Generator], Iterator[Batch]]
    loss: Callable[[Any, Any, list[Any]], Any]  #: (library, model, batch)
    optimizer: Callable[[Any, Any], Any]
    schedule: Callable[[Any, Any], Any] | None = None
    clip: float = 0.0


# --- a plain network -----------------------------------------------------------------------------


def mlp(lib: Any) -> Any:
    nn = lib.nn
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4))


def labelled(rng: np.random.Generator, *shape: int, classes: int = 4) -> Iterator[Batch]:
    """Inputs whose class can be learned: it shifts their mean."""
    while True:
        y = rng.integers(0, classes, size=shape[0])
        shift = y.reshape(-1, *[1] * (len(shape) - 1)) * 0.4
        yield (rng.normal(size=shape) + shift).astype(np.float32), y


def classify(lib: Any, model: Any, batch: list[Any]) -> Any:
    return lib.nn.functional.cross_entropy(model(batch[0]), batch[1])


# --- convolutions, batch norm, pooling -----------------------------------------------------------


def cnn(lib: Any) -> Any:
    nn = lib.nn
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, stride=2, padding=1, groups=2), nn.BatchNorm2d(16), nn.GELU(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(16 * 2 * 2, 4),
    )  # fmt: skip


# --- a small U-Net as a diffusion model ----------------------------------------------------------

TIMES = 20


def unet(lib: Any) -> Any:
    nn, F = lib.nn, lib.nn.functional

    class Stage(nn.Module):  # type: ignore[misc]
        def __init__(self, before: int, after: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(before, after, 3, padding=1)
            self.conv2 = nn.Conv2d(after, after, 3, padding=1)
            self.norm = nn.GroupNorm(2, after)
            self.time = nn.Linear(16, after)

        def forward(self, x: Any, t: Any) -> Any:
            h = F.silu(self.norm(self.conv1(x)) + self.time(t)[:, :, None, None])
            return F.silu(self.conv2(h))

    class UNet(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.time = nn.Sequential(nn.Embedding(TIMES, 16), nn.Linear(16, 16), nn.SiLU())
            self.down1, self.down2 = Stage(1, 8), Stage(8, 16)
            self.middle = Stage(16, 16)
            self.up2, self.up1 = Stage(32, 8), Stage(16, 8)
            self.grow = nn.ConvTranspose2d(16, 16, 2, stride=2)
            self.out = nn.Conv2d(8, 1, 1)

        def forward(self, x: Any, t: Any) -> Any:
            t = self.time(t)
            a = self.down1(x, t)  # (B, 8, 8, 8)
            b = self.down2(F.avg_pool2d(a, 2), t)  # (B, 16, 4, 4)
            c = self.middle(F.max_pool2d(b, 2), t)  # (B, 16, 2, 2)
            d = self.up2(lib.cat([self.grow(c), b], dim=1), t)  # (B, 8, 4, 4)
            e = self.up1(lib.cat([F.interpolate(d, scale_factor=2, mode="nearest"), a], dim=1), t)
            return self.out(e)

    return UNet()


def noisy(rng: np.random.Generator) -> Iterator[Batch]:
    """Pictures of a wave, noise for them, and times."""
    while True:
        phase = rng.uniform(0, 6, size=(8, 1, 1, 1))
        x = np.sin(np.arange(8) + phase) * np.ones((8, 1, 8, 1))
        yield x.astype(np.float32), rng.normal(size=x.shape).astype(np.float32), rng.integers(0, TIMES, size=8)


def predict_noise(lib: Any, model: Any, batch: list[Any]) -> Any:
    x, noise, t = batch
    left = (1 - lib.linspace(1e-3, 0.2, TIMES)).cumprod(0)[t].view(-1, 1, 1, 1)
    return lib.nn.functional.mse_loss(model(x * left.sqrt() + noise * (1 - left).sqrt(), t), noise)


# --- a GPT ---------------------------------------------------------------------------------------

LETTERS, CONTEXT, WIDTH, HEADS = 17, 12, 16, 2


def gpt(lib: Any) -> Any:
    nn, F = lib.nn, lib.nn.functional

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.mlp = nn.Sequential(
                nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.0)
            )

        def forward(self, x: Any) -> Any:
            B, T, C = x.shape
            q, k, v = (t.view(B, T, HEADS, -1).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, dim=-1))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).contiguous().view(B, T, C))
            return x + self.mlp(self.norm2(x))

    class GPT(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(LETTERS, WIDTH)
            self.positions = nn.Parameter(lib.randn(1, CONTEXT + 4, WIDTH) * 0.02)
            self.drop = nn.Dropout(0.0)
            self.blocks = nn.ModuleList([Block(), Block()])
            self.norm = nn.LayerNorm(WIDTH)
            self.head = nn.Linear(WIDTH, LETTERS, bias=False)
            self.head.weight = self.tokens.weight

        def forward(self, i: Any) -> Any:
            x = self.drop(self.tokens(i) + self.positions[:, : i.shape[1]])
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    return GPT()


def counting(rng: np.random.Generator) -> Iterator[Batch]:
    """Sequences that count up from somewhere by some step."""
    while True:
        start, by = rng.integers(0, LETTERS, size=(8, 1)), rng.integers(1, 4, size=(8, 1))
        yield ((start + by * np.arange(CONTEXT + 1)) % LETTERS,)


def next_letter(lib: Any, model: Any, batch: list[Any]) -> Any:
    line = batch[0]
    logits = model(line[:, :-1])
    return lib.nn.functional.cross_entropy(logits.reshape(-1, LETTERS), line[:, 1:].reshape(-1))


def decay_groups(lib: Any, model: Any) -> Any:
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return lib.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95))


# --- an LSTM -------------------------------------------------------------------------------------


def lstm(lib: Any) -> Any:
    nn = lib.nn

    class Reader(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.LSTM(5, 12, num_layers=2, batch_first=True)
            self.out = nn.Linear(12, 1)

        def forward(self, x: Any) -> Any:
            y, _ = self.rnn(x)
            return self.out(y[:, -1]).squeeze(1)

    return Reader()


def sums(rng: np.random.Generator) -> Iterator[Batch]:
    while True:
        x = rng.normal(size=(8, 6, 5)).astype(np.float32)
        yield x, np.tanh(x.sum((1, 2)) / 3)


def fit_number(lib: Any, model: Any, batch: list[Any]) -> Any:
    return lib.nn.functional.mse_loss(model(batch[0]), batch[1])


RECIPES: dict[str, Recipe] = {
    "mlp": Recipe(
        mlp, lambda rng: labelled(rng, 16, 20), classify, lambda lib, m: lib.optim.AdamW(m.parameters(), lr=3e-3)
    ),
    "cnn": Recipe(
        cnn, lambda rng: labelled(rng, 8, 3, 16, 16), classify,
        lambda lib, m: lib.optim.SGD(m.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-3),
    ),
    "unet": Recipe(unet, noisy, predict_noise, lambda lib, m: lib.optim.Adam(m.parameters(), lr=2e-3)),
    "gpt": Recipe(
        gpt, counting, next_letter, decay_groups,
        lambda lib, o: lib.optim.lr_scheduler.CosineAnnealingLR(o, STEPS, eta_min=3e-4), clip=0.5,
    ),
    "lstm": Recipe(
        lstm, sums, fit_number, lambda lib, m: lib.optim.Adam(m.parameters(), lr=1e-2),
        lambda lib, o: lib.optim.lr_scheduler.LambdaLR(o, lambda k: 0.5 * (1 + math.cos(k / 30))), clip=1.0,
    ),
}  # fmt: skip


def train(
    lib: Any, name: str, model: Any, to: Callable[[np.ndarray[Any, Any]], Any], steps: int = STEPS
) -> list[float]:
    """The losses of so many steps."""
    recipe = RECIPES[name]
    optimizer = recipe.optimizer(lib, model)
    schedule = recipe.schedule(lib, optimizer) if recipe.schedule else None
    batches = recipe.data(np.random.default_rng(1))
    losses = []
    for _ in range(steps):
        loss = recipe.loss(lib, model, [to(a) for a in next(batches)])
        optimizer.zero_grad()
        loss.backward()
        if recipe.clip:
            lib.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        optimizer.step()
        if schedule is not None:
            schedule.step()
        losses.append(loss.detach())
    return [float(x) for x in losses]
