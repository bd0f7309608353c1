"""Models of torch.nn, adopted: losses, gradients, and one call a step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from .compare import compare

pytestmark = pytest.mark.processes


class Reading(nn.Module):  # type: ignore[misc]  # torch is Any to the type checker
    """Creates tensors in its forward, and holds one that is neither parameter nor buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.register_buffer("scale", torch.full((8,), 0.5))
        self.constant = torch.linspace(0, 1, 600)

    def forward(self, input: Any) -> Any:
        n = input.shape[1]
        x = self.table(input) + torch.arange(8, device=input.device) * self.scale + self.constant[:8]
        hidden = torch.triu(torch.ones(n, n, dtype=torch.bool, device=input.device), 1)
        x, _ = self.attention(x, x, x, attn_mask=hidden)
        return F.cross_entropy(x.transpose(1, 2), input % 8)


class Recurrent(nn.Module):  # type: ignore[misc]  # likewise
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.LSTM(6, 8, 2, batch_first=True, bidirectional=True)
        self.b, self.c = nn.GRU(16, 5), nn.RNN(5, 4, bias=False)

    def forward(self, input: Any) -> Any:
        packed = nn.utils.rnn.pack_padded_sequence(input, [5, 3], batch_first=True)
        x, _ = nn.utils.rnn.pad_packed_sequence(self.a(packed)[0], batch_first=True)
        x, last = self.c(self.b(x)[0])
        return x + last.mean()


def noise(*shape: int) -> Any:
    return lambda i: {"input": torch.randn(*shape, generator=torch.Generator().manual_seed(i))}


def words(i: int) -> dict[str, Any]:
    return {"input": torch.randint(0, 11, (2, 5), generator=torch.Generator().manual_seed(i))}


def cnn() -> Any:
    first = (nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(inplace=True), nn.MaxPool2d(2))
    second = (nn.Conv2d(6, 4, 3, groups=2), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(4, 3))
    return nn.Sequential(*first, *second)


def encoder() -> Any:
    layer = nn.TransformerEncoderLayer(16, 2, 24, batch_first=True, norm_first=True, activation="gelu")
    return nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(16, 3))


MODELS: dict[str, tuple[Any, Any]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)), noise(5, 8)),
    "cnn": (cnn, noise(4, 3, 8, 8)),
    "encoder": (encoder, noise(2, 5, 16)),
    "attention": (Reading, words),
    "recurrent": (Recurrent, noise(2, 5, 6)),
}
OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, 1e-2),
}


@pytest.mark.parametrize("name", MODELS)
def test_losses_and_gradients_are_torchs(name: str) -> None:
    make, batch = MODELS[name]
    found = compare(make, batch, steps=4, optimizer=OPTIMIZERS["adamw" if name in ("mlp", "attention") else "sgd"])
    assert found.equal, found
    assert found.steps[-1] == (1, 0), "a loop settles to one call a step, and sends no new program"
