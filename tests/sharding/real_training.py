"""Training on real workers: the models of tests/training, and a deep one that does all that a training script may do.

Each run is a function of a mesh and of the layouts of data and parameters, and gives numbers. On any mesh, in any
layout, they are those of one worker.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import gt
from gt.client.mesh.sharding import layout_text, set_layout
from tests.sharding.layouts import drawn
from tests.training.recipes import RECIPES, train

MODELS = ["mlp", "cnn", "unet", "gpt", "lstm"]

#: (shape, whether it is data of a batch) -> a layout as gt.shard takes it; None: as it comes.
Policy = Callable[[tuple[int, ...], bool], Any]


def data_split(seed: str) -> Policy:
    """As DDP: the batch over the first axis, everything else whole."""
    return lambda shape, data: {0: first_axis()} if data else None


def weights_split(seed: str) -> Policy:
    """As FSDP: the largest dimension of each parameter over the last axis."""
    return lambda shape, data: None if data else {int(np.argmax(shape)): last_axis()}


def both_split(seed: str) -> Policy:
    return lambda shape, data: (data_split if data else weights_split)(seed)(shape, data)


def drawn_split(seed: str) -> Policy:
    """Layouts drawn at random: axes in any order, nested or apart, strided pieces; equal ones for equal shapes."""
    return lambda shape, data: drawn(random.Random(f"{seed} {shape} {data}"), gt.mesh().grid, shape, ())


WAYS: dict[str, Callable[[str], Policy]] = {
    "data": data_split,
    "weights": weights_split,
    "both": both_split,
    "drawn": drawn_split,
}


def first_axis() -> str:
    return next(iter(gt.mesh().axes))


def last_axis() -> str:
    return next(reversed(gt.mesh().axes))


def placed(model: Any, policy: Policy | None) -> Any:
    """The model with its parameters sharded; the optimizer is made afterwards."""
    if policy is not None:
        for p in model.parameters():
            wish = policy(p.shape, False) if p.shape else None
            if wish is not None:
                gt.shard_(p, wish)
    return model


def uploader(policy: Policy | None, dtype: Any) -> Callable[[np.ndarray], Any]:
    """How a batch goes to the workers: of a size that no mesh divides, and floats in this precision."""

    def to(a: np.ndarray) -> Any:
        a = np.concatenate([a, a[:3]])
        a = a.astype(dtype) if a.dtype.kind == "f" else a
        wish = policy(a.shape, True) if policy is not None else None
        return gt.from_numpy(a) if wish is None else gt.from_numpy(a, layout=wish)

    return to


def losses(
    address: str, name: str, axes: dict[str, int] | None, way: str = "", steps: int = 3, dtype: Any = np.float64
) -> list[float]:
    """A model's losses on a mesh, sharded in one of the ways; without axes on one worker."""
    gt.connect(address, mesh=axes)
    gt.manual_seed(0)
    policy = WAYS[way](f"{name} {axes}") if axes else None
    model = RECIPES[name].model(gt)
    model = placed(model.double() if dtype is np.float64 else model, policy)
    found = train(gt, name, model, uploader(policy, dtype), steps)
    if axes is not None and way in ("weights", "both") and np.prod(list(axes.values())) > 1:
        assert not any(p.layout.is_whole for p in model.parameters() if p.shape), "parameters keep their layouts"
    return found


# -- a deep transformer ----------------------------------------------------------------------

WIDTH, LENGTH, HEADS = 12, 7, 2


class Block(gt.nn.Module):
    """Attention over positions, a network over the transposed positions, one over channels; all with dropout."""

    def __init__(self) -> None:
        super().__init__()
        nn = gt.nn
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(WIDTH) for _ in range(3))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mix = nn.Linear(LENGTH + 1, LENGTH + 1)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(0.2)

    def forward(self, x: Any) -> Any:
        B, T, C = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(B, T, 3, HEADS, -1).permute(2, 0, 3, 1, 4).unbind(0)
        y = gt.nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.drop(self.out(y.transpose(1, 2).reshape(B, T, C)))
        x = x + self.mix(self.norm2(x).transpose(1, 2)).transpose(1, 2)
        return x + self.drop(self.down(gt.nn.functional.gelu(self.up(self.norm3(x)))))


class Deep(gt.nn.Module):
    """A learnable token before the sequence, learnable positions of which the first are sliced, noise, and blocks."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.embed = gt.nn.Embedding(11, WIDTH)
        self.first = gt.nn.Parameter(gt.randn(1, 1, WIDTH))
        self.positions = gt.nn.Parameter(gt.randn(1, LENGTH + 5, WIDTH) * 0.1)
        self.blocks = gt.nn.ModuleList([Block() for _ in range(blocks)])
        self.head = gt.nn.Linear(WIDTH, 5)

    def forward(self, ids: Any) -> Any:
        x = self.embed(ids)
        x = gt.cat([self.first.expand(len(ids), -1, -1), x], dim=1)
        x = x + self.positions[:, : x.shape[1]]
        if self.training:
            x = x + 0.01 * gt.randn_like(x)
        for block in self.blocks:
            x = gt.checkpoint(block, x) if self.training else block(x)
        return self.head(x[:, 0])


class Script:
    """A whole training script: accumulation, clipping, SGD with momentum, `item()` and an evaluation in every step."""

    def __init__(self, policy: Policy | None, blocks: int = 2) -> None:
        gt.manual_seed(5)
        self.policy = policy
        self.model = placed(Deep(blocks).double(), policy)
        self.optimizer = gt.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
        self.rng = np.random.default_rng(7)

    def batch(self) -> tuple[Any, Any]:
        ids = self.rng.integers(0, 11, size=(10, LENGTH))
        to = uploader(self.policy, np.float64)
        return to(ids), to(ids.sum(1) % 5)

    def skip(self, steps: int) -> None:
        """Go past the batches of so many steps."""
        for _ in range(3 * steps):
            self.rng.integers(0, 11, size=(10, LENGTH))

    def step(self) -> list[float]:
        """Numbers of one step: losses, the norm of the gradients, and how good the model is then."""
        self.model.train()
        self.optimizer.zero_grad()
        seen = []
        for _ in range(2):
            x, y = self.batch()
            loss = gt.nn.functional.cross_entropy(self.model(x), y) / 2
            loss.backward()
            seen.append(loss.item())
        seen.append(gt.nn.utils.clip_grad_norm_(self.model.parameters(), 0.5).item())
        self.optimizer.step()
        self.model.eval()
        with gt.no_grad():
            x, y = self.batch()
            logits = self.model(x)
            seen += [gt.nn.functional.cross_entropy(logits, y).item(), (logits.argmax(1) == y).double().mean().item()]
        return seen

    def run(self, steps: int) -> list[float]:
        return [number for _ in range(steps) for number in self.step()]

    def values(self) -> dict[str, np.ndarray]:
        """All that the script holds on the workers."""
        found = {name: t.detach().numpy() for name, t in self.model.state_dict().items()}
        for name, p in self.model.named_parameters():
            if p in self.optimizer.state:
                found[f"{name} momentum"] = self.optimizer.state[p]["momentum_buffer"].numpy()
        return found

    def lay_out(self, policy: Policy, mesh: str = "") -> None:
        """Give parameters and the optimizer's state other layouts."""
        self.policy = policy
        for p in self.model.parameters():
            wish = policy(p.shape, False) if p.shape else None
            text = layout_text("shard_", p.shape, "" if wish is None else wish, mesh)
            for t in (p, *self.optimizer.state.get(p, {}).values()):
                if isinstance(t, gt.Tensor):
                    set_layout(t, text)


def same(have: Sequence[float], want: Sequence[float], rtol: float = 1e-8) -> None:
    assert np.isfinite(want).all()
    assert len(set(want)) > len(want) // 2, "it learns, so that there is something to compare"
    np.testing.assert_allclose(have, want, rtol=rtol, atol=rtol)


# -- all of it -------------------------------------------------------------------------------


def check_models(
    address: str, meshes: Sequence[dict[str, int]], names: Sequence[str] = MODELS, ways: Sequence[str] = tuple(WAYS),
    steps: int = 30, rtol: float = 1e-8,
) -> int:  # fmt: skip
    """How many of these runs give other losses than one worker. In double precision, the GPT in single too."""
    wrong = 0
    for name in names:
        for dtype, limit in ((np.float64, rtol), (np.float32, 1e-4))[: 2 if name == "gpt" else 1]:
            began = time.monotonic()
            expected = losses(address, name, None, steps=steps, dtype=dtype)
            worst = 0.0
            for axes in (*meshes, {"x": 1}):
                for way in ways:
                    found = losses(address, name, axes, way, steps, dtype)
                    off = float(np.max(np.abs(np.subtract(found, expected)) / np.abs(expected)))
                    worst = max(worst, off)
                    if not off <= limit:
                        wrong += 1
                        print(f"{name} {dtype.__name__} {axes} {way}: off by {off:.1e}", flush=True)
            seconds = time.monotonic() - began
            print(f"{name} {dtype.__name__}: {steps} steps, at most off by {worst:.1e}, {seconds:.0f} s", flush=True)
    return wrong


def check_scripts(
    address: str, meshes: Sequence[dict[str, int]], ways: Sequence[str] = tuple(WAYS), steps: int = 15,
    rtol: float = 1e-8,
) -> int:  # fmt: skip
    """The same of the script, with six blocks."""
    gt.connect(address)
    wrong, began, expected = 0, time.monotonic(), Script(None, 6).run(steps)
    for axes in meshes:
        for way in ways:
            gt.connect(address, mesh=axes)
            try:
                same(Script(WAYS[way](f"script {axes}"), 6).run(steps), expected, rtol)
            except AssertionError as e:
                wrong += 1
                print(f"script {axes} {way}: {e}", flush=True)
    print(f"script: {steps} steps, {wrong} wrong, {time.monotonic() - began:.0f} s", flush=True)
    return wrong
