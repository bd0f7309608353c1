"""The models that the benchmarks train: networks of zoo.py and the files beside it, in the sizes that are measured.

`model("cnn", "cuda")` says what is trained there: the network, its data, its loss, its optimizer. Sizes for the CPU are
small, so that a step takes 1 to 30 ms on one thread. training.py has the loops.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import zoo
import zoo_others
import zoo_pictures
import zoo_text

LR = 3e-4


def adamw(lib: Any, parameters: Any, **how: Any) -> Any:
    return lib.optim.AdamW(parameters, lr=LR, **how)


def adam(lib: Any, parameters: Any, **how: Any) -> Any:
    return lib.optim.Adam(parameters, lr=LR, betas=(0.5, 0.999), **how)


def sgd(lib: Any, parameters: Any, **how: Any) -> Any:
    return lib.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=5e-4, nesterov=True, **how)


@dataclass(frozen=True)
class Model:
    """What is trained."""

    name: str
    text: str  #: its size, for a reader
    batch: int
    build: Callable[[Any], Any]  #: library -> network
    data: zoo.Data
    loss: zoo.Loss | None  #: None: a GAN, whose two losses belong to its loop
    optimizer: Callable[..., Any] = adamw  #: library, parameters -> optimizer
    bf16: bool = False  #: computes under autocast
    rtol: float = 1e-3  #: how far two libraries' losses may be apart in the first steps


# Convolutions on CUDA round to tf32, in torch as in GT: there the losses agree in fewer digits.
TF32 = {"rtol": 1e-2}


def _mlp(cuda: bool) -> Model:
    build = partial(zoo.mlp, sizes=(784, 256, 256, 10))
    return Model("mlp", "784-256-256-10, batch 64", 64, build, zoo.labelled(784, classes=10), zoo.classify)


def _cnn(cuda: bool) -> Model:
    batch, widths = (128, (64, 64, 128, 128, 256, 256)) if cuda else (16, (8, 8, 16, 16, 32, 32))
    text = f"6 conv+bn, {widths[0]} to {widths[-1]} wide, 3x32x32, batch {batch}"
    data = zoo.labelled(3, 32, 32, classes=10)
    return Model("cnn", text, batch, partial(zoo.cnn, widths=widths), data, zoo.classify, **(TF32 if cuda else {}))


def _resnet(cuda: bool) -> Model:
    batch, width = (128, 64) if cuda else (4, 8)
    build, data = partial(zoo_pictures.resnet18, width=width), zoo.labelled(3, 32, 32, classes=10)
    text = f"{width} to {8 * width} wide, 3x32x32, batch {batch}"
    return Model("resnet18", text, batch, build, data, zoo.classify, sgd, rtol=5e-2 if cuda else 1e-3)


def _vit(cuda: bool) -> Model:
    batch, sizes = (128, (8, 384, 6)) if cuda else (4, (2, 64, 4))
    layers, width, heads = sizes
    build = partial(zoo_pictures.vit, layers=layers, width=width, heads=heads, size=32, patch=4)
    text = f"{layers} layers, {width} wide, 65 patches, batch {batch}"
    return Model("vit", text, batch, build, zoo.labelled(3, 32, 32, classes=10), zoo.classify, **(TF32 if cuda else {}))


def _mixer(cuda: bool) -> Model:
    batch, layers, width = (128, 8, 512) if cuda else (8, 2, 64)
    build = partial(zoo_pictures.mixer, layers=layers, width=width, size=32, patch=4)
    text = f"{layers} layers, {width} wide, 64 patches, batch {batch}"
    data = zoo.labelled(3, 32, 32, classes=10)
    return Model("mixer", text, batch, build, data, zoo.classify, **(TF32 if cuda else {}))


def _unet(cuda: bool) -> Model:
    batch, channels, size, width = (64, 3, 32, 64) if cuda else (8, 1, 16, 16)
    build = partial(zoo.unet, channels=channels, width=width)
    text = f"{channels}x{size}x{size}, {width} and {2 * width} wide, batch {batch}"
    data = zoo.noisy(channels, size)
    return Model("unet", text, batch, build, data, zoo.predict_noise, **(TF32 if cuda else {}))


def _vae(cuda: bool) -> Model:
    batch, hidden = (128, 400) if cuda else (32, 200)
    build = partial(zoo_pictures.vae, pixels=784, hidden=hidden, latent=20)
    data = zoo_pictures.pixels_and_noise(784, 20)
    return Model("vae", f"784-{hidden}-20, batch {batch}", batch, build, data, zoo_pictures.evidence, adam)


def _dcgan(cuda: bool) -> Model:
    batch, width = (128, 64) if cuda else (8, 8)
    build, data = partial(zoo_pictures.dcgan, width=width, latent=64), zoo_pictures.pictures_and_noise(3, 32, 64)
    text = f"{width} to {4 * width} wide, 3x32x32, batch {batch}, two optimizers"
    return Model("dcgan", text, batch, build, data, None, adam, **(TF32 if cuda else {}))


def _audio(cuda: bool) -> Model:
    batch, width, samples = (128, 128, 16000) if cuda else (8, 16, 4000)
    build, data = partial(zoo_pictures.audio, width=width), zoo.labelled(1, samples, classes=35)
    text = f"4 conv1d+bn, {width} and {2 * width} wide, {samples} samples, batch {batch}"
    loss = zoo_pictures.negative_log_likelihood
    return Model("audio", text, batch, build, data, loss, **(TF32 if cuda else {}))


def _gpt(name: str, batch: int, bf16: bool, layers: int, width: int, heads: int, length: int, vocabulary: int) -> Model:
    """A GPT of this size, and text for it in which letters come by chance."""
    text = _sequences(layers, width, length, batch, bf16)
    build = partial(zoo.gpt, layers=layers, width=width, length=length, heads=heads, vocabulary=vocabulary)
    data, rtol = zoo.letters(vocabulary, length), 2e-2 if bf16 else 1e-3
    return Model(name, text, batch, build, data, zoo.next_letter, bf16=bf16, rtol=rtol)


def _gpt_char(cuda: bool) -> Model:
    return _gpt("gpt-char", 64, True, 6, 384, 6, 256, 65) if cuda else _gpt("gpt-char", 8, False, 2, 64, 4, 64, 65)


def _gpt2(cuda: bool) -> Model:
    # On the CPU a twelfth of its width and a few of its layers; the shape of it is the same.
    sizes = (12, 768, 12, 1024, 50304) if cuda else (3, 64, 4, 64, 2048)
    return _gpt("gpt2-124m", 16 if cuda else 2, cuda, *sizes)


def _llama(cuda: bool) -> Model:
    batch, layers, width, heads, groups, length, vocabulary = (
        (16, 8, 512, 8, 2, 512, 32000) if cuda else (4, 2, 64, 4, 2, 64, 256)
    )
    build = partial(
        zoo_text.llama, layers=layers, width=width, heads=heads, groups=groups, hidden=width * 8 // 3 // 16 * 16,
        length=length, vocabulary=vocabulary,
    )  # fmt: skip
    text, rtol = _sequences(layers, width, length, batch, cuda), 2e-2 if cuda else 1e-3
    return Model("llama", text, batch, build, zoo.letters(vocabulary, length), zoo.next_letter, bf16=cuda, rtol=rtol)


def _bert(cuda: bool) -> Model:
    batch, layers, width, heads, length, vocabulary = (32, 12, 768, 12, 128, 30522) if cuda else (4, 2, 64, 4, 64, 512)
    build = partial(zoo_text.bert, layers=layers, width=width, heads=heads, length=length, vocabulary=vocabulary)
    text, rtol = _sequences(layers, width, length, batch, cuda), 2e-2 if cuda else 1e-3
    data = zoo_text.masked_text(vocabulary, length)
    return Model("bert", text, batch, build, data, zoo_text.hidden_tokens, bf16=cuda, rtol=rtol)


def _moe(cuda: bool) -> Model:
    batch, layers, width, heads, experts, length, vocabulary = (
        (16, 6, 512, 8, 8, 256, 8192) if cuda else (4, 2, 64, 4, 4, 32, 65)
    )
    build = partial(
        zoo_text.moe, layers=layers, width=width, heads=heads, experts=experts, top_k=2, length=length,
        vocabulary=vocabulary,
    )  # fmt: skip
    text = f"{layers} layers, {width} wide, 2 of {experts} experts, T={length}, batch {batch}"
    data = zoo.letters(vocabulary, length)
    # A token whose two experts are nearly alike may go to another one after rounding.
    rtol = 5e-2 if cuda else 1e-3
    return Model("moe", text, batch, build, data, zoo_text.next_letter_and_balance, rtol=rtol)


def _graph(cuda: bool) -> Model:
    batch, layers, width, nodes, edges = (128, 4, 256, 32, 128) if cuda else (16, 3, 32, 16, 48)
    build = partial(zoo_others.graph_network, layers=layers, features=16, width=width)
    text = f"{layers} layers, {width} wide, {batch} graphs of {nodes} nodes and {edges} edges"
    data = zoo_others.graphs(nodes, edges, 16)
    return Model("graph", text, batch, build, data, zoo_others.classify_graphs)


def _actor_critic(cuda: bool) -> Model:
    batch, width = (256, 256) if cuda else (64, 64)
    build = partial(zoo_others.actor_critic, observed=8, width=width, actions=4)
    text = f"8-{width}-{width}-4 and 1, batch {batch}"
    return Model("actor-critic", text, batch, build, zoo_others.experience(8, 4), zoo_others.clipped_policy, adam)


def _recurrent(name: str, cuda: bool) -> Model:
    batch, width, length, vocabulary = (64, 512, 64, 10_000) if cuda else (16, 64, 32, 65)
    build = partial(zoo.recurrent, kind=name.upper(), layers=2, width=width, vocabulary=vocabulary)
    text = f"2 layers of {width}, T={length}, batch {batch}"
    return Model(name, text, batch, build, zoo.letters(vocabulary, length), zoo.next_letter)


def _sequences(layers: int, width: int, length: int, batch: int, bf16: bool) -> str:
    return f"{layers} layers, {width} wide, T={length}, batch {batch}" + (", bf16" if bf16 else "")


MODELS: dict[str, Callable[[bool], Model]] = {
    "mlp": _mlp,
    "cnn": _cnn,
    "gpt-char": _gpt_char,
    "gpt2-124m": _gpt2,
    "unet": _unet,
    "resnet18": _resnet,
    "vit": _vit,
    "mixer": _mixer,
    "vae": _vae,
    "dcgan": _dcgan,
    "audio": _audio,
    "llama": _llama,
    "bert": _bert,
    "moe": _moe,
    "lstm": partial(_recurrent, "lstm"),
    "gru": partial(_recurrent, "gru"),
    "graph": _graph,
    "actor-critic": _actor_critic,
}
NAMES = tuple(MODELS)
FIRST = ("mlp", "cnn", "gpt-char", "gpt2-124m", "unet")  #: What is measured if nobody says what.


def model(name: str, device: str) -> Model:
    """What is trained under this name on that kind of device."""
    if name not in MODELS:
        raise ValueError(f"no model {name!r}; expected one of {', '.join(NAMES)}")
    return MODELS[name](device == "cuda")
