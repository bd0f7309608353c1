"""What a client's training moves between workers, counted in the programs that they are sent: gradients that are
accumulated are reduced once, and to clip them the workers meet once more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gt
from gt.dispatcher.events import Send
from gt.ops import TABLE, check
from gt.transport.messages import Call, Define
from tests.sessions import session_on
from tests.sim.cluster import Cluster


class Traffic:
    """All collectives that one worker ran, in order: (op, bytes that go in)."""

    def __init__(self, cluster: Cluster, worker: int) -> None:
        self._cluster, self._worker = cluster, worker
        self._programs: dict[bytes, list[tuple[str, int]]] = {}
        self.seen: list[tuple[str, int]] = []
        cluster.watch = self._watch

    def _watch(self, event: Any, actions: Any) -> None:
        control = self._cluster.machine.state.workers.get(self._worker)
        for action in actions:
            if control is None or not isinstance(action, Send) or action.peer != control.control:
                continue
            if isinstance(action.message, Define):
                program = action.message.program
                specs, number, found = check(program).specs, len(program.inputs), []
                for ins in program.code:
                    if TABLE[ins.op].collective:
                        found.append((ins.op, specs[ins.args[0]].nbytes))
                    number += ins.results
                self._programs[program.hash()] = found
            elif isinstance(action.message, Call):
                self.seen += self._programs[action.message.program]

    def taken(self) -> list[tuple[str, int]]:
        """What came since this was last asked."""
        seen, self.seen = self.seen, []
        return seen


@pytest.fixture
def traffic() -> Iterator[Traffic]:
    cluster = Cluster(workers=2)
    with session_on(cluster):
        gt.mesh(x=2)
        yield Traffic(cluster, gt.mesh().workers[0])


class Training:
    """Four weights, and steps of which each accumulates so many gradients."""

    def __init__(self, data: dict[int, str], weights: dict[str, Any]) -> None:
        gt.manual_seed(0)
        self.model = gt.nn.Sequential(gt.nn.Linear(20, 30), gt.nn.ReLU(), gt.nn.Linear(30, 20)).double()
        gt.shard_(self.model, weights)
        self.optimizer = gt.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.data = data
        self.nbytes = sum(p.numel() * 8 for p in self.model.parameters())

    def step(self, parts: int, clip: bool, look: bool) -> None:
        self.optimizer.zero_grad()
        for k in range(parts):
            x = gt.from_numpy(np.random.default_rng(k).normal(size=(31, 20)), layout=self.data)
            loss = self.model(x).square().mean() / parts
            loss.backward()
            if look:
                loss.item()
        if clip:
            gt.nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
        self.optimizer.step()
        self.model[0].bias.detach().sum().item()  # nothing is on its way any more


@pytest.mark.parametrize("parts", [1, 2, 5])
@pytest.mark.parametrize("look", [False, True], ids=["", "looking at every loss"])
def test_gradients_are_reduced_once(traffic: Traffic, parts: int, look: bool) -> None:
    training = Training({0: "x"}, {"*": {}})
    for _ in range(3):
        traffic.taken()
        training.step(parts, clip=False, look=look)
    moved = traffic.taken()
    gradients = [nbytes for _, nbytes in moved if nbytes > 8 * parts]
    assert {op for op, _ in moved} == {"all_reduce"}
    assert sum(gradients) - training.nbytes in range(8 * parts + 1), "every gradient once; losses may travel with them"
    assert sum(nbytes for _, nbytes in moved) - training.nbytes in range(8 * parts + 1), "and the losses"


def test_clipping_meets_once(traffic: Traffic) -> None:
    """Of sharded gradients: the workers meet once more, to reduce each parameter's sum of squares."""
    training = Training({}, {"0.*": {0: "x"}, "2.weight": {1: "x"}, "2.bias": {0: "x"}})
    moved = []
    for clip in (False, True):
        for _ in range(3):
            traffic.taken()
            training.step(1, clip=clip, look=False)
        moved.append(traffic.taken())
    without, clipping = moved
    for each in without:
        clipping.remove(each)
    ((op, nbytes),) = clipping
    assert op == "all_reduce"
    assert nbytes <= 8 * len([*training.model.parameters()])
