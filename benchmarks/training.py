"""The training loop of one side of a race: the same code for torch and gt.

A step is the usual one: a batch, the loss, its gradients, perhaps clipped, the optimizer, perhaps a schedule of its
learning rate. Where batches come from is one of `SOURCES`:

- `sliced`: slices of arrays on the device, at another start in each step;
- `same`: the same arrays on the device in every step;
- `rotating`: one of several sets of arrays on the device, in turn;
- `indexed`: rows of arrays on the device, `x[idx]`, in the order of a permutation;
- `uploaded`: the batch is made in numpy, and uploaded in every step, as from a DataLoader.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
import zoo
from models import Model

SOURCES = ("sliced", "same", "rotating", "indexed", "uploaded")
BATCHES = 32  #: There are so many before they come again,
ROTATING = 4  #: and so many sets of arrays of the kind `rotating`.
PERIOD = 1000  #: Steps of the schedule.


@dataclass(frozen=True)
class Loop:
    """What a step does besides the model's own work."""

    source: str = "sliced"
    clip: float = 0.0  #: The norm to which gradients are clipped; 0: they are not.
    scheduled: bool = False  #: The learning rate falls along a cosine.


REAL = Loop("rotating", clip=1.0, scheduled=True)  #: As most people's loops are.


class Trainer:
    """One side. `lib` is torch or gt."""

    def __init__(self, lib: Any, what: Model, loop: Loop, device: str = "", **how: Any) -> None:
        self.lib, self.what, self.loop, self._device = lib, what, loop, device
        self.network, self.arrays = start(lib, what)
        if device:
            self.network.to(device)
        self.optimizers = [what.optimizer(lib, m.parameters(), **how) for m in self.trained()]
        cosine = lib.optim.lr_scheduler.CosineAnnealingLR
        self.schedules = [cosine(o, PERIOD) for o in self.optimizers] if loop.scheduled else []
        #: On the device; for `uploaded` nothing is.
        self.data = [] if loop.source == "uploaded" else [self.upload(a) for a in self.arrays]
        self._keys = self._batches()

    def trained(self) -> list[Any]:
        """The parts of the network that have an optimizer each."""
        return [self.network]

    def upload(self, array: np.ndarray[Any, Any]) -> Any:
        made = self.lib.from_numpy(array)
        if self._device != "cuda":
            return made
        # As a DataLoader with pin_memory gives it, and as its users copy it.
        return made.pin_memory().to(self._device, non_blocking=True)

    # --- batches ---

    def _batches(self) -> Iterator[Any]:
        """What `step_at` is called with in each step: where a batch begins, or the batch."""
        size = self.what.batch
        starts = [size * k for k in range(BATCHES)]
        match self.loop.source:
            case "same":
                yield from cycle([tuple(x[:size].clone() for x in self.data)])
            case "rotating":
                sets = [tuple(x[at : at + size].clone() for x in self.data) for at in starts[:ROTATING]]
                yield from cycle(sets)
            case "uploaded":
                for at in cycle(starts):
                    yield tuple(self.upload(a[at : at + size]) for a in self.arrays)
            case "indexed":
                rng = np.random.default_rng(1)
                while True:
                    order = self.upload(rng.permutation(BATCHES * size))
                    yield from ((order, at) for at in starts)
            case _:
                yield from cycle(starts)

    def batch(self, key: Any) -> Any:
        """The batch that `_batches` said, taken inside the step."""
        size = self.what.batch
        match self.loop.source:
            case "sliced":
                return [x[key : key + size] for x in self.data]
            case "indexed":
                order, at = key
                rows = order[at : at + size]
                return [x[rows] for x in self.data]
        return key

    # --- a step ---

    def step(self) -> Any:
        loss = self.step_at(next(self._keys))
        for schedule in self.schedules:
            schedule.step()
        return loss

    def step_at(self, key: Any) -> Any:
        (optimizer,) = self.optimizers
        with self.precision():
            loss = self.loss(*self.batch(key))
        optimizer.zero_grad()
        loss.backward()
        self.clip(self.network)
        optimizer.step()
        return loss.detach()

    def loss(self, *batch: Any) -> Any:
        assert self.what.loss is not None
        return self.what.loss(self.lib, self.network, *batch)

    def precision(self) -> Any:
        lib = self.lib
        return lib.autocast("cuda", dtype=lib.bfloat16) if self.what.bf16 else contextlib.nullcontext()

    def clip(self, network: Any) -> None:
        if self.loop.clip:
            self.lib.nn.utils.clip_grad_norm_(network.parameters(), self.loop.clip)

    # --- with a compiler ---

    def compile(self, wrap: Callable[[Any], Any]) -> None:
        """What is differentiated runs under torch.compile."""
        self.loss = wrap(self.loss)  # type: ignore[method-assign]  # as users wrap it


class GanTrainer(Trainer):
    """A step of a GAN: the discriminator learns, then the generator, each with its own optimizer."""

    def trained(self) -> list[Any]:
        return [self.network.discriminator, self.network.generator]

    def step_at(self, key: Any) -> Any:
        d_optimizer, g_optimizer = self.optimizers
        generator, discriminator = self.network.generator, self.network.discriminator
        real, noise = self.batch(key)
        d_optimizer.zero_grad()
        fake = generator(noise)
        d_loss = self.judge(discriminator(real), 1.0) + self.judge(discriminator(fake.detach()), 0.0)
        d_loss.backward()
        self.clip(discriminator)
        d_optimizer.step()
        g_optimizer.zero_grad()
        g_loss = self.judge(discriminator(fake), 1.0)
        g_loss.backward()
        self.clip(generator)
        g_optimizer.step()
        return (d_loss + g_loss).detach()

    def judge(self, logits: Any, label: float) -> Any:
        target = self.lib.full_like(logits, label)
        return self.lib.nn.functional.binary_cross_entropy_with_logits(logits, target)

    def compile(self, wrap: Callable[[Any], Any]) -> None:
        self.network.generator = wrap(self.network.generator)
        self.network.discriminator = wrap(self.network.discriminator)


def _trainer(what: Model) -> type[Trainer]:
    return GanTrainer if what.loss is None else Trainer


def torch_trainer(what: Model, device: str, mode: str | None = None, loop: Loop | None = None) -> Trainer:
    """PyTorch: eager, or with the forward pass and the loss compiled in this mode ("default", "reduce-overhead")."""
    import torch

    # Fused where that is what people use. On the CPU they leave the optimizer as it comes.
    trainer = _trainer(what)(torch, what, loop or Loop(), device, fused=device == "cuda" or None)
    if mode is not None:
        trainer.compile(lambda f: torch.compile(f, mode=mode))
    return trainer


def gt_trainer(what: Model, replayed: bool = False, loop: Loop | None = None) -> Trainer:
    """GT: a plain loop, or each step a call of a `@gt.function`."""
    import gt

    trainer = _trainer(what)(gt, what, loop or Loop())
    if replayed:
        trainer.step_at = gt.function(trainer.step_at)  # type: ignore[method-assign]  # as users wrap it
    return trainer


def start(lib: Any, what: Model) -> tuple[Any, zoo.Arrays]:
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
