"""The models that the benchmarks train: networks of zoo.py in the sizes that are measured.

`model("cnn", "cuda")` says what is trained there: the network, its data, its loss. Sizes for the CPU are small, so that
a step takes 1 to 30 ms on one thread. `Trainer` is the usual loop: AdamW, and batches that are slices of arrays on the
device. The start of the slice changes from step to step.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import zoo

NAMES = ("mlp", "cnn", "gpt-char", "gpt2-124m", "unet", "lstm", "gru")
CUDA_ONLY = ("gpt2-124m",)
BATCHES = 32  #: There are so many before they come again.
LR = 3e-4


@dataclass(frozen=True)
class Model:
    """What is trained."""

    name: str
    text: str  #: its size, for a reader
    batch: int
    build: Callable[[Any], Any]  #: library -> network
    data: zoo.Data
    loss: zoo.Loss
    bf16: bool = False  #: computes under autocast
    rtol: float = 1e-3  #: how far two libraries' losses may be apart in the first steps


def model(name: str, device: str) -> Model:
    """What is trained under this name on that kind of device."""
    cuda = device == "cuda"
    match name:
        case "mlp":
            build = partial(zoo.mlp, sizes=(784, 256, 256, 10))
            return Model(name, "784-256-256-10, batch 64", 64, build, zoo.labelled(784, classes=10), zoo.classify)
        case "cnn" if cuda:
            # Convolutions round to tf32 there, in torch as in GT: the losses agree in fewer digits.
            return _cnn(name, 128, widths=(64, 64, 128, 128, 256, 256), rtol=1e-2)
        case "cnn":
            return _cnn(name, 16, widths=(8, 8, 16, 16, 32, 32))
        case "gpt-char" if cuda:
            return _gpt(name, batch=64, bf16=True, layers=6, width=384, heads=6, length=256, vocabulary=65)
        case "gpt-char":
            return _gpt(name, batch=8, layers=2, width=64, heads=4, length=64, vocabulary=65)
        case "gpt2-124m" if cuda:
            return _gpt(name, batch=16, bf16=True, layers=12, width=768, heads=12, length=1024, vocabulary=50304)
        case "unet" if cuda:
            return _unet(name, 64, channels=3, size=32, width=64, rtol=1e-2)
        case "unet":
            return _unet(name, 8, channels=1, size=16, width=16)
        case "lstm" | "gru" if cuda:
            return _recurrent(name, batch=64, layers=2, width=512, length=64, vocabulary=10_000)
        case "lstm" | "gru":
            return _recurrent(name, batch=16, layers=2, width=64, length=32, vocabulary=65)
    raise ValueError(f"no model {name!r} on {device}")


def _cnn(name: str, batch: int, widths: tuple[int, ...], rtol: float = 1e-3) -> Model:
    text = f"6 conv+bn, {widths[0]} to {widths[-1]} wide, 3x32x32, batch {batch}"
    data = zoo.labelled(3, 32, 32, classes=10)
    return Model(name, text, batch, partial(zoo.cnn, widths=widths), data, zoo.classify, rtol=rtol)


def _gpt(
    name: str, batch: int, layers: int, width: int, heads: int, length: int, vocabulary: int, bf16: bool = False
) -> Model:
    """A GPT of this size, and text for it in which letters come by chance."""
    text = f"{layers} layers, {width} wide, T={length}, batch {batch}" + (", bf16" if bf16 else "")
    build = partial(zoo.gpt, layers=layers, width=width, length=length, heads=heads, vocabulary=vocabulary)
    data, rtol = zoo.letters(vocabulary, length), 2e-2 if bf16 else 1e-3
    return Model(name, text, batch, build, data, zoo.next_letter, bf16, rtol)


def _recurrent(name: str, batch: int, layers: int, width: int, length: int, vocabulary: int) -> Model:
    text = f"{layers} layers of {width}, T={length}, batch {batch}"
    build = partial(zoo.recurrent, kind=name.upper(), layers=layers, width=width, vocabulary=vocabulary)
    return Model(name, text, batch, build, zoo.letters(vocabulary, length), zoo.next_letter)


def _unet(name: str, batch: int, channels: int, size: int, width: int, rtol: float = 1e-3) -> Model:
    text = f"{channels}x{size}x{size}, {width} and {2 * width} wide, batch {batch}"
    build = partial(zoo.unet, channels=channels, width=width)
    return Model(name, text, batch, build, zoo.noisy(channels, size), zoo.predict_noise, rtol=rtol)


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


def _start(lib: Any, what: Model) -> tuple[Any, zoo.Arrays]:
    """The network with its starting weights, and the data: the same for all sides. A client of GT needs no torch."""
    rng = np.random.default_rng(0)
    network = what.build(lib)
    with lib.no_grad():
        for name, p in network.named_parameters():
            if p.ndim > 1:
                scale = math.prod(p.shape[1:]) ** -0.5
                p.copy_(lib.from_numpy(rng.standard_normal(tuple(p.shape), np.float32) * np.float32(scale)))
            elif "bias" in name.rsplit(".", 1)[-1]:  # an LSTM has a bias_ih_l0
                p.zero_()
    return network, what.data(rng, BATCHES * what.batch)
