"""Programs with equal layers: how they are cut, and that their layers together do what the whole program did."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from worker_building import FakeCompiler

import gt
from gt import config, nn
from gt.ops.check import Checked, check
from gt.transport.messages import Define
from gt.worker.run import layers
from gt.worker.run.layers import cut_layers
from gt.worker.run.programs import Known
from tests.sessions import session_on
from tests.sim.cluster import Cluster
from tests.worker.pretend import Pretend


class Device(Pretend):
    """A device whose compiled programs are their graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.compiles_with = ("nobody", "")
        self.loaded: list[str] = []

    def load_library(self, folder: str, graph: Any) -> Callable[..., Any]:
        self.loaded.append(folder)
        return graph.around(graph.pure)


class Block(nn.Module):
    """A layer of a transformer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + 0.5 * self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Training:
    """A language model with that many layers, in a loop as people write it. `extra` happens in the middle layer."""

    def __init__(self, depth: int, extra: Callable[[Any], Any] = lambda x: x, bf16: bool = False) -> None:
        rng = np.random.default_rng(0)
        self.tokens = gt.from_numpy(rng.integers(0, 50, (40, 9)))
        gt.manual_seed(0)
        self.embedding, self.head = nn.Embedding(50, 16), nn.Linear(16, 50)
        self.blocks = nn.ModuleList([Block(16) for _ in range(depth)])
        self.model = nn.ModuleList([self.embedding, self.head, self.blocks])
        self.optimizer = gt.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.schedule = gt.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 100)
        self.extra, self.bf16 = extra, bf16

    def step(self, i: int) -> Any:
        batch = self.tokens[4 * (i % 10) : 4 * (i % 10) + 4]
        with gt.autocast("cuda", dtype=gt.bfloat16, enabled=self.bf16):
            x = self.embedding(batch[:, :-1])
            for k, block in enumerate(self.blocks):
                x = block(self.extra(x) if k == len(self.blocks) // 2 else x)
            loss = nn.functional.cross_entropy(self.head(x).flatten(0, 1).float(), batch[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        return loss.detach()


def program(**how: Any) -> Checked:
    """The program of a step."""
    seen: dict[bytes, Checked] = {}
    cluster = Cluster()
    cluster.watch = lambda event, actions: (
        seen.update({m.program.hash(): check(m.program)})
        if isinstance(m := getattr(event, "message", None), Define)
        else None
    )
    with session_on(cluster):
        training = Training(**how)
        for i in range(3):
            training.step(i)
        training.step(0).item()
    return max(seen.values(), key=lambda checked: len(checked.program.code))


@pytest.mark.parametrize("bf16", [False, True])
def test_equal_layers_are_one_program(bf16: bool) -> None:
    few, many = cut_layers(program(depth=5, bf16=bf16)), cut_layers(program(depth=9, bf16=bf16))
    assert len(many) > len(few) > 10
    texts = [{s.checked.program.hash() for s in found} for found in (few, many)]
    assert len(texts[0]) == len(texts[1]) <= 9
    assert len(texts[0] & texts[1]) >= 4  # the layers themselves; what is between them knows how many there are


def test_each_instruction_is_in_one_segment_and_no_optimizer_step_is() -> None:
    checked = program(depth=5)
    found = cut_layers(checked)
    replaced = [i for s in found for i in s.replaces]
    assert len(replaced) == len(set(replaced))
    assert "adamw" not in {checked.program.code[i].op for i in replaced}
    last = {v: max(s.replaces) for s in found for v in s.results}
    assert all(last[v] < min(s.replaces) for s in found for v in s.args if v in last)  # each reads what was made before


def test_layers_begin_at_products() -> None:
    checked = program(depth=6)
    products = {"linear", "matmul", "attention", "attention_d"}
    begins = [
        checked.program.code[min(s.replaces)].op
        for s in cut_layers(checked)[1:]
        if products & {ins.op for ins in s.checked.program.code}
    ]
    assert len(begins) > 10
    assert set(begins) <= products


@pytest.mark.parametrize(
    ("how", "least"),
    [({"depth": 2}, layers.SHORT), ({"depth": 6}, 10_000), ({"depth": 1}, 1)],
    ids=["few", "short", "one"],
)
def test_what_does_not_repeat_is_compiled_as_a_whole(
    how: dict[str, Any], least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "SHORT", least)
    assert cut_layers(program(**how)) == []


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """Everything is compiled at once, and stays so."""
    monkeypatch.setattr("gt.worker.run.tiers.BUSY", 1e9)
    monkeypatch.setattr("gt.worker.run.tiers.SLOWER", 1e9)
    monkeypatch.setattr("gt.worker.run.tiers.HOT_US", 1)
    return Device()


def train(engine: Any, steps: int, **how: Any) -> tuple[list[float], dict[bytes, Known]]:
    """The losses, and the programs that the worker knows."""
    cluster = Cluster(engine=engine, settings=config.replace(config.load(), auto_compile=True))
    with session_on(cluster):
        training = Training(**how)
        losses = [training.step(i) for i in range(steps)]
        numbers = [loss.item() for loss in losses]
    (worker,) = cluster.workers
    return numbers, {k.hash: k for k in worker.core.programs}


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("extra", ["nothing", "a number", "noise"])
def test_layers_train_as_the_whole_program_does(
    bf16: bool, extra: str, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = {
        "nothing": lambda x: x,
        "a number": lambda x: x * 0.75 + 0.1,
        "noise": lambda x: nn.functional.dropout(x, 0.1),
    }[extra]
    compiler = FakeCompiler(quick=True)
    monkeypatch.setattr("gt.worker.run.tiers.Compiler", lambda *given: compiler)
    how: dict[str, Any] = {"depth": 9, "bf16": bf16, "extra": change}
    losses, known = train(device, 40, **how)
    step = max(known.values(), key=lambda k: k.instructions)
    assert step.standing is not None
    assert step.standing.layered is not None
    assert step.standing.hits[3] > 5
    assert not step.standing.refused
    assert len(device.loaded) == len(set(device.loaded)) < len(step.standing.jobs or ())
    wanted, _ = train("torch", 40, **how)
    np.testing.assert_allclose(losses, wanted, rtol=0.02 if bf16 else 1e-4)


def test_a_layer_that_cannot_be_compiled(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next try is the whole program."""
    compiler = FakeCompiler()
    monkeypatch.setattr("gt.worker.run.tiers.Compiler", lambda *given: compiler)
    monkeypatch.setattr("gt.worker.run.programs.REST_US", 1)
    request = compiler.request

    def fail_first(folder: str, *given: Any) -> None:
        request(folder, *given)
        if len(compiler.asked) == 3:
            compiler.failed[folder] = "out of memory"
        else:
            compiler.there.add(folder)

    monkeypatch.setattr(compiler, "request", fail_first)
    losses, known = train(device, 40, depth=5)
    step = max(known.values(), key=lambda k: k.instructions)
    assert step.standing is not None
    assert step.standing.layered is None
    assert step.standing.hits[3] > 5
    np.testing.assert_allclose(losses, train("torch", 40, depth=5)[0], rtol=1e-4)
