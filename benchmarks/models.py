"""The models that are trained: each one function of a library, torch or gt, and the same text for both.

`model("cnn", "cuda")` says what is trained there: the network, its data, its loss. Sizes for the CPU are small, so that
a step takes 1 to 30 ms on one thread. `Trainer` is the usual loop: AdamW, and batches cut out of arrays that lie on the
device, by a start that changes from step to step.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

NAMES = ("mlp", "cnn", "gpt-char", "gpt2-124m", "unet")
CUDA_ONLY = ("gpt2-124m",)
BATCHES = 32  #: There are so many before they come again.
LR = 3e-4

Arrays = tuple[np.ndarray[Any, Any], ...]


@dataclass(frozen=True)
class Model:
    """What is trained."""

    name: str
    text: str  #: its size, for a reader
    batch: int
    build: Callable[[Any], Any]  #: library -> network
    data: Callable[[np.random.Generator, int], Arrays]  #: so many rows of everything the loss reads
    loss: Callable[..., Any]  #: (library, network, *batch)
    bf16: bool = False  #: computes under autocast
    rtol: float = 1e-3  #: how far two libraries' losses may be apart in the first steps


def model(name: str, device: str) -> Model:
    """What is trained under this name on that kind of device."""
    cuda = device == "cuda"
    match name:
        case "mlp":
            return Model(name, "784-256-256-10, batch 64", 64, mlp, pictures(784, classes=10), classify)
        case "cnn" if cuda:
            # Convolutions round to tf32 there, in torch as in GT: the losses agree in fewer digits.
            widths = (64, 64, 128, 128, 256, 256)
            text = "6 conv+bn, 64 to 256 wide, 3x32x32, batch 128"
            return Model(name, text, 128, cnn(widths), pictures(3, 32, 32, classes=10), classify, rtol=1e-2)
        case "cnn":
            text = "6 conv+bn, 8 to 32 wide, 3x32x32, batch 16"
            return Model(name, text, 16, cnn((8, 8, 16, 16, 32, 32)), pictures(3, 32, 32, classes=10), classify)
        case "gpt-char" if cuda:
            return gpt_of(name, batch=64, bf16=True, layers=6, width=384, heads=6, length=256, vocabulary=65)
        case "gpt-char":
            return gpt_of(name, batch=8, layers=2, width=64, heads=4, length=64, vocabulary=65)
        case "gpt2-124m" if cuda:
            return gpt_of(name, batch=16, bf16=True, layers=12, width=768, heads=12, length=1024, vocabulary=50304)
        case "unet" if cuda:
            text = "3x32x32, 64 and 128 wide, batch 64"
            return Model(name, text, 64, unet(3, 64), noisy(3, 32), predict_noise, rtol=1e-2)
        case "unet":
            return Model(name, "1x16x16, 16 and 32 wide, batch 8", 8, unet(1, 16), noisy(1, 16), predict_noise)
    raise ValueError(f"no model {name!r} on {device}")


def names(device: str) -> list[str]:
    """The models that are trained on that kind of device."""
    return [name for name in NAMES if device == "cuda" or name not in CUDA_ONLY]


# --- one side of the race ----------------------------------------------------------------------------


class Trainer:
    """The training loop of one side. `lib` is torch or gt: the code of a step is the same."""

    def __init__(self, lib: Any, what: Model, network: Any, data: list[Any], optimizer: Any) -> None:
        self.lib, self.what, self.network, self.data, self.optimizer = lib, what, network, data, optimizer
        self.at = 0

    def loss(self, *batch: Any) -> Any:
        return self.what.loss(self.lib, self.network, *batch)

    def precision(self) -> Any:
        lib = self.lib
        return lib.autocast("cuda", dtype=lib.bfloat16) if self.what.bf16 else contextlib.nullcontext()

    def step(self) -> Any:
        start = self.at
        self.at = (start + self.what.batch) % (BATCHES * self.what.batch)
        return self.step_at(start)

    def step_at(self, start: Any) -> Any:
        batch = [x[start : start + self.what.batch] for x in self.data]
        with self.precision():
            loss = self.loss(*batch)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def torch_trainer(what: Model, device: str, mode: str | None = None) -> Trainer:
    """PyTorch: eager, or with the forward pass and the loss compiled in this mode ("default", "reduce-overhead")."""
    import torch

    network, arrays = _start(torch, what)
    network.to(device)
    data = [torch.from_numpy(a).to(device) for a in arrays]
    # Fused where that is what people use. On the CPU they leave AdamW as it comes.
    optimizer = torch.optim.AdamW(network.parameters(), lr=LR, fused=device == "cuda" or None)
    trainer = Trainer(torch, what, network, data, optimizer)
    if mode is not None:
        trainer.loss = torch.compile(trainer.loss, mode=mode)  # type: ignore[method-assign]  # as users wrap it
    return trainer


def gt_trainer(what: Model, replayed: bool = False) -> Trainer:
    """GT: a plain loop, or each step a call of a `@gt.function`."""
    import gt

    network, arrays = _start(gt, what)
    data = [gt.from_numpy(a) for a in arrays]
    trainer = Trainer(gt, what, network, data, gt.optim.AdamW(network.parameters(), lr=LR))
    if replayed:
        trainer.step_at = gt.function(trainer.step_at)  # type: ignore[method-assign]  # as users wrap it
    return trainer


def _start(lib: Any, what: Model) -> tuple[Any, Arrays]:
    """The network with its starting weights, and the data: the same for all sides. A client of GT needs no torch."""
    rng = np.random.default_rng(0)
    network = what.build(lib)
    with lib.no_grad():
        for name, p in network.named_parameters():
            if p.ndim > 1:
                scale = math.prod(p.shape[1:]) ** -0.5
                p.copy_(lib.from_numpy(rng.standard_normal(tuple(p.shape), np.float32) * np.float32(scale)))
            elif name.endswith("bias"):
                p.zero_()
    return network, what.data(rng, BATCHES * what.batch)


# --- classifiers -------------------------------------------------------------------------------------


def pictures(*shape: int, classes: int) -> Callable[[np.random.Generator, int], Arrays]:
    def data(rng: np.random.Generator, rows: int) -> Arrays:
        return rng.normal(size=(rows, *shape)).astype(np.float32), rng.integers(0, classes, size=rows)

    return data


def classify(lib: Any, network: Any, x: Any, y: Any) -> Any:
    return lib.nn.functional.cross_entropy(network(x), y)


def mlp(lib: Any) -> Any:
    nn = lib.nn
    return nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))


def cnn(widths: tuple[int, ...]) -> Callable[[Any], Any]:
    def build(lib: Any) -> Any:
        nn = lib.nn
        layers = []
        for k, (before, after) in enumerate(zip((3, *widths), widths, strict=False)):
            layers += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
            if k % 2:
                layers.append(nn.MaxPool2d(2))  # 32, 16, 8, 4
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 10))

    return build


# --- GPTs --------------------------------------------------------------------------------------------


def gpt_of(
    name: str, batch: int, layers: int, width: int, heads: int, length: int, vocabulary: int, bf16: bool = False
) -> Model:
    """A GPT of this size, and text for it in which letters come by chance."""

    def data(rng: np.random.Generator, rows: int) -> Arrays:
        text = rng.integers(0, vocabulary, size=(rows, length + 1))
        return np.ascontiguousarray(text[:, :-1]), np.ascontiguousarray(text[:, 1:])

    def next_letter(lib: Any, network: Any, x: Any, y: Any) -> Any:
        return lib.nn.functional.cross_entropy(network(x).view(-1, vocabulary), y.view(-1))

    text = f"{layers} layers, {width} wide, T={length}, batch {batch}" + (", bf16" if bf16 else "")
    build = gpt(layers, width, heads, length, vocabulary)
    return Model(name, text, batch, build, data, next_letter, bf16, rtol=2e-2 if bf16 else 1e-3)


def gpt(layers: int, width: int, heads: int, length: int, vocabulary: int) -> Callable[[Any], Any]:
    def build(lib: Any) -> Any:
        nn, F = lib.nn, lib.nn.functional

        class Block(nn.Module):  # type: ignore[misc]  # nn is torch's or GT's: Any
            def __init__(self) -> None:
                super().__init__()
                self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
                self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
                self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

            def forward(self, x: Any) -> Any:
                B, T, C = x.shape
                q, k, v = self.qkv(self.norm1(x)).chunk(3, dim=-1)  # (B, T, C) each
                q, k, v = (t.view(B, T, heads, C // heads).transpose(1, 2) for t in (q, k, v))  # (B, heads, T, C/heads)
                y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
                x = x + self.out(y.transpose(1, 2).contiguous().view(B, T, C))
                return x + self.down(F.gelu(self.up(self.norm2(x))))

        class GPT(nn.Module):  # type: ignore[misc]  # nn is torch's or GT's: Any
            def __init__(self) -> None:
                super().__init__()
                self.tokens = nn.Embedding(vocabulary, width)
                self.positions = nn.Parameter(lib.randn(length, width) * 0.02)
                self.blocks = nn.ModuleList([Block() for _ in range(layers)])
                self.norm = nn.LayerNorm(width)
                self.head = nn.Linear(width, vocabulary, bias=False)
                self.head.weight = self.tokens.weight  # tied, as in GPT-2

            def forward(self, i: Any) -> Any:
                x = self.tokens(i) + self.positions  # (B, T, C)
                for block in self.blocks:
                    x = block(x)
                return self.head(self.norm(x))  # (B, T, vocabulary)

        return GPT()

    return build


# --- a diffusion U-Net -------------------------------------------------------------------------------

TIMES = 100


def noisy(channels: int, size: int) -> Callable[[np.random.Generator, int], Arrays]:
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


def unet(channels: int, width: int) -> Callable[[Any], Any]:
    def build(lib: Any) -> Any:
        nn, F = lib.nn, lib.nn.functional

        class Stage(nn.Module):  # type: ignore[misc]  # nn is torch's or GT's: Any
            """Two convolutions beside a shortcut, told the time in between."""

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
                self.grow2 = nn.ConvTranspose2d(2 * width, 2 * width, 2, stride=2)
                self.grow1 = nn.ConvTranspose2d(width, width, 2, stride=2)
                self.up2, self.up1 = Stage(4 * width, width), Stage(2 * width, width)
                self.out = nn.Conv2d(width, channels, 1)

            def forward(self, x: Any, t: Any) -> Any:
                t = self.time(t)
                a = self.down1(x, t)  # (B, width, S, S)
                b = self.down2(F.avg_pool2d(a, 2), t)  # (B, 2 width, S/2, S/2)
                c = self.middle(F.avg_pool2d(b, 2), t)  # (B, 2 width, S/4, S/4)
                d = self.up2(lib.cat([self.grow2(c), b], dim=1), t)  # (B, width, S/2, S/2)
                return self.out(self.up1(lib.cat([self.grow1(d), a], dim=1), t))

        return UNet()

    return build
