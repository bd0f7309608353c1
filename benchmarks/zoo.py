"""The networks that tests and benchmarks train, with data and losses for them.

Each network is a function of a library, torch or gt, and the same text for both. Data is a function of a random
generator and a number of rows: it makes the arrays that the loss reads. A loss is called with the library, the network
and a batch of each of these arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

Arrays = tuple[np.ndarray[Any, Any], ...]
Data = Callable[[np.random.Generator, int], Arrays]
Loss = Callable[..., Any]


# --- classifiers -------------------------------------------------------------------------------------


def mlp(lib: Any, sizes: tuple[int, ...], activations: tuple[str, ...] = ("ReLU",)) -> Any:
    """Linear layers with an activation behind each but the last. The activations take turns."""
    nn = lib.nn
    layers = []
    for k, (before, after) in enumerate(pairwise(sizes)):
        layers += [nn.Linear(before, after), getattr(nn, activations[k % len(activations)])()]
    return nn.Sequential(*layers[:-1])


def cnn(lib: Any, widths: tuple[int, ...], classes: int = 10) -> Any:
    """For pictures of 3x32x32: convolutions of 3x3, each with batch norm, and a pool behind every second one."""
    nn = lib.nn
    layers = []
    for k, (before, after) in enumerate(zip((3, *widths), widths, strict=False)):
        layers += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        if k % 2:
            layers.append(nn.MaxPool2d(2))  # 32, 16, 8, 4
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes))


def mixed_cnn(lib: Any, classes: int = 4) -> Any:
    """For pictures of 3x16x16: convolutions with and without bias, strides and groups, and two kinds of pools."""
    nn = lib.nn
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, stride=2, padding=1, groups=2), nn.BatchNorm2d(16), nn.GELU(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(16 * 2 * 2, classes),
    )  # fmt: skip


def labelled(*shape: int, classes: int, shift: float = 0.0) -> Data:
    """Noise and labels. With a shift the labels can be learned: they shift the mean."""

    def data(rng: np.random.Generator, rows: int) -> Arrays:
        x, y = rng.normal(size=(rows, *shape)), rng.integers(0, classes, size=rows)
        return (x + shift * y.reshape(-1, *[1] * len(shape))).astype(np.float32), y

    return data


def classify(lib: Any, network: Any, x: Any, y: Any) -> Any:
    return lib.nn.functional.cross_entropy(network(x), y)


# --- GPTs --------------------------------------------------------------------------------------------


def gpt(
    lib: Any, layers: int, width: int, heads: int, length: int, vocabulary: int, tied: bool = True, fused: bool = True
) -> Any:
    """A decoder for sequences of at most `length`. Weights are tied as in GPT-2; q, k and v are fused in one layer."""
    nn, F = lib.nn, lib.nn.functional

    class Block(nn.Module):  # type: ignore[misc]  # nn is torch's or GT's: Any
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            if fused:
                self.qkv = nn.Linear(width, 3 * width)
            else:
                self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
            self.out = nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            B, T, C = x.shape
            h = self.norm1(x)
            parts = self.qkv(h).chunk(3, dim=-1) if fused else (self.q(h), self.k(h), self.v(h))  # (B, T, C) each
            # The number of heads is left open: a rank of DTensor has some of them.
            q, k, v = (t.view(B, T, -1, C // heads).transpose(1, 2) for t in parts)  # (B, heads, T, C/heads)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).contiguous().view(B, T, -1))
            return x + self.down(F.gelu(self.up(self.norm2(x))))

    class GPT(nn.Module):  # type: ignore[misc]  # nn is torch's or GT's: Any
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(vocabulary, width)
            self.positions = nn.Parameter(lib.randn(length, width) * 0.02)
            self.blocks = nn.ModuleList([Block() for _ in range(layers)])
            self.norm = nn.LayerNorm(width)
            self.head = nn.Linear(width, vocabulary, bias=False)
            if tied:
                self.head.weight = self.tokens.weight

        def forward(self, i: Any) -> Any:
            T = i.shape[1]
            x = self.tokens(i) + (self.positions if T == length else self.positions[:T])  # (B, T, C)
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))  # (B, T, vocabulary)

    return GPT()


def letters(vocabulary: int, length: int) -> Data:
    """Text in which letters come by chance, and the same text one letter later."""

    def data(rng: np.random.Generator, rows: int) -> Arrays:
        return _shifted(rng.integers(0, vocabulary, size=(rows, length + 1)))

    return data


def counting(vocabulary: int, length: int) -> Data:
    """Sequences that count up from somewhere by some step: what comes next can be learned."""

    def data(rng: np.random.Generator, rows: int) -> Arrays:
        start, by = rng.integers(0, vocabulary, size=(rows, 1)), rng.integers(1, 4, size=(rows, 1))
        return _shifted((start + by * np.arange(length + 1)) % vocabulary)

    return data


def _shifted(text: np.ndarray[Any, Any]) -> Arrays:
    return np.ascontiguousarray(text[:, :-1]), np.ascontiguousarray(text[:, 1:])


def next_letter(lib: Any, network: Any, x: Any, y: Any) -> Any:
    logits = network(x)
    return lib.nn.functional.cross_entropy(logits.view(-1, logits.shape[-1]), y.view(-1))


# --- recurrent language models ------------------------------------------------------------------------


def recurrent(lib: Any, kind: str, layers: int, width: int, vocabulary: int) -> Any:
    """A language model of "LSTM", "GRU" or "RNN" layers."""
    nn = lib.nn

    class Language(nn.Module):  # type: ignore[misc]  # nn is torch's or GT's: Any
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(vocabulary, width)
            self.rnn = getattr(nn, kind)(width, width, num_layers=layers, batch_first=True)
            self.head = nn.Linear(width, vocabulary)

        def forward(self, i: Any) -> Any:
            y, _ = self.rnn(self.tokens(i))  # (B, T, width)
            return self.head(y)  # (B, T, vocabulary)

    return Language()


# --- a diffusion U-Net -------------------------------------------------------------------------------

TIMES = 100


def unet(lib: Any, channels: int, width: int, mixed: bool = False) -> Any:
    """Two levels of `width` and twice that. `mixed`: the levels are pooled and enlarged in two different ways."""
    nn, F = lib.nn, lib.nn.functional

    class Stage(nn.Module):  # type: ignore[misc]  # nn is torch's or GT's: Any
        """Two convolutions beside a shortcut; the time is added in between."""

        def __init__(self, before: int, after: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(before, after, 3, padding=1)
            self.conv2 = nn.Conv2d(after, after, 3, padding=1)
            self.norm1, self.norm2 = nn.GroupNorm(4, after), nn.GroupNorm(4, after)
            self.time = nn.Linear(width, after)
            self.short = nn.Conv2d(before, after, 1)

        def forward(self, x: Any, t: Any) -> Any:
            h = F.silu(self.norm1(self.conv1(x)) + self.time(t)[:, :, None, None])
            return F.silu(self.norm2(self.conv2(h))) + self.short(x)

    class UNet(nn.Module):  # type: ignore[misc]  # nn is torch's or GT's: Any
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("left", (1 - lib.linspace(1e-3, 0.12, TIMES)).cumprod(0))
            self.time = nn.Sequential(nn.Embedding(TIMES, width), nn.Linear(width, width), nn.SiLU())
            self.down1, self.down2 = Stage(channels, width), Stage(width, 2 * width)
            self.middle = Stage(2 * width, 2 * width)
            self.pool = nn.MaxPool2d(2) if mixed else nn.AvgPool2d(2)
            self.grow2 = nn.ConvTranspose2d(2 * width, 2 * width, 2, stride=2)
            self.grow1 = nn.Upsample(scale_factor=2) if mixed else nn.ConvTranspose2d(width, width, 2, stride=2)
            self.up2, self.up1 = Stage(4 * width, width), Stage(2 * width, width)
            self.out = nn.Conv2d(width, channels, 1)

        def forward(self, x: Any, t: Any) -> Any:
            t = self.time(t)
            a = self.down1(x, t)  # (B, width, S, S)
            b = self.down2(F.avg_pool2d(a, 2), t)  # (B, 2 width, S/2, S/2)
            c = self.middle(self.pool(b), t)  # (B, 2 width, S/4, S/4)
            d = self.up2(lib.cat([self.grow2(c), b], dim=1), t)  # (B, width, S/2, S/2)
            return self.out(self.up1(lib.cat([self.grow1(d), a], dim=1), t))

    return UNet()


def noisy(channels: int, size: int) -> Data:
    """Pictures of a wave, the noise to add to each, and how much of it."""

    def data(rng: np.random.Generator, rows: int) -> Arrays:
        phase = rng.uniform(0, 6, size=(rows, channels, 1, 1))
        x = np.sin(np.arange(size) + phase) * np.ones((rows, channels, size, 1))
        noise = rng.normal(size=x.shape)
        return x.astype(np.float32), noise.astype(np.float32), rng.integers(0, TIMES, size=rows)

    return data


def predict_noise(lib: Any, network: Any, x: Any, noise: Any, t: Any) -> Any:
    left = network.left[t].view(-1, 1, 1, 1)
    return lib.nn.functional.mse_loss(network(x * left.sqrt() + noise * (1 - left).sqrt(), t), noise)


# --- others ------------------------------------------------------------------------------------------


def lstm(lib: Any) -> Any:
    """Two layers that read a sequence of 5 numbers at a time, and one number for it."""
    nn = lib.nn

    class Reader(nn.Module):  # type: ignore[misc]  # nn is torch's or GT's: Any
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.LSTM(5, 12, num_layers=2, batch_first=True)
            self.out = nn.Linear(12, 1)

        def forward(self, x: Any) -> Any:
            y, _ = self.rnn(x)
            return self.out(y[:, -1]).squeeze(1)

    return Reader()


def sums(rng: np.random.Generator, rows: int) -> Arrays:
    """Sequences, and a function of the sum of each."""
    x = rng.normal(size=(rows, 6, 5)).astype(np.float32)
    return x, np.tanh(x.sum((1, 2)) / 3)


def squared_error(lib: Any, network: Any, x: Any, y: Any) -> Any:
    return lib.nn.functional.mse_loss(network(x), y)


def residual(lib: Any) -> Any:
    """A norm and two layers beside a shortcut, and a head: 10 numbers to 3."""
    nn, F = lib.nn, lib.nn.functional

    class Residual(nn.Module):  # type: ignore[misc]  # nn is torch's or GT's: Any
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(10)
            self.up, self.down = nn.Linear(10, 30), nn.Linear(30, 10)
            self.head = nn.Linear(10, 3)

        def forward(self, x: Any) -> Any:
            x = x + self.down(F.gelu(self.up(self.norm(x))))
            return self.head(x)

    return Residual()
