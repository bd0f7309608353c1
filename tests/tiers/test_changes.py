"""Programs of eight sessions move between tiers a thousand times while captures, compilations, libraries and
allocations fail at random: no value is wrong, and in the end every session is on the highest tier."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gt
from gt import config, nn
from gt.errors import OutOfMemory
from gt.worker.run.programs import Known
from gt.worker.run.tiers import Tiers
from tests.sim.cluster import Cluster, using
from tests.worker.pretend import Pretend
from tests.worker.worker_building import FakeCompiler

SESSIONS, CHANGES = 8, 1000


class Trouble:
    """Things that may fail do so at random."""

    def __init__(self, seed: int) -> None:
        self.rng, self.rate = random.Random(seed), 0.0
        self.seen: dict[str, int] = {}

    def strikes(self, what: str) -> bool:
        struck = self.rng.random() < self.rate
        self.seen[what] = self.seen.get(what, 0) + struck
        return struck


class Rough(Pretend):
    """A device on which captures, libraries and copies fail."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__()
        self.compiles_with = ("nobody", "")
        self.trouble = trouble

    def capture(self, f: Callable[[], list[Any]], changed: list[Any]) -> tuple[Any, list[Any]]:
        if self.trouble.strikes("capture"):
            raise self.trouble.rng.choice([RuntimeError("captured by another"), MemoryError("no room for a graph")])
        return super().capture(f, changed)

    def load_library(self, folder: str, graph: Any) -> Callable[..., Any]:
        if self.trouble.strikes("load"):
            raise OSError(f"{folder}: truncated")
        return graph.around(graph.pure)

    def own(self, array: Any) -> Any:
        if self.trouble.strikes("allocation"):
            raise MemoryError("no room for a copy")
        return super().own(array)


class RoughCompiler(FakeCompiler):
    def __init__(self, trouble: Trouble) -> None:
        super().__init__()
        self.trouble = trouble

    def request(self, folder: str, program: Any, trusted: bool) -> None:
        if self.trouble.strikes("compile"):
            self.failed[folder] = "the compiler was killed"
        else:
            self.there.add(folder)

    def waits(self, folder: str) -> bool:
        return False


class Training:
    """A network whose step has an index check, batch statistics and an optimizer, and nothing random."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.x = gt.from_numpy(rng.normal(size=(32, 6)))  # float64: rounding grows with the steps
        self.y = gt.from_numpy(rng.integers(0, 3, 300))  # more than comes by value
        gt.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)).double()
        self.optimizer = gt.optim.SGD(self.model.parameters(), lr=1e-4, momentum=0.9)

    def step(self, i: int) -> float:
        at = i * 4 % 28
        loss = nn.functional.cross_entropy(self.model(self.x[at : at + 4]), self.y[at : at + 4])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def test_a_thousand_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gt.worker.run.tiers.BUSY", 1e9)
    monkeypatch.setattr("gt.worker.run.tiers.SLOWER", 1e9)
    # Rests are over at the next call, or nearly so; and every program is hot.
    for name in ("tiers.FAILED_US", "tiers.HOT_US", "programs.REST_US"):
        monkeypatch.setattr(f"gt.worker.run.{name}", 1)
    monkeypatch.setattr("gt.worker.run.programs.FAILURES", 1e9)
    trouble = Trouble(1)
    compiler = RoughCompiler(trouble)
    monkeypatch.setattr("gt.worker.run.tiers.Compiler", lambda *given: compiler)
    ran: list[int] = []
    programs: dict[bytes, Known] = {}
    note = Tiers.note

    def noted(self: Tiers, known: Known, tier: int, *times: int) -> None:
        ran.append(tier)
        programs[known.hash] = known
        note(self, known, tier, *times)

    monkeypatch.setattr(Tiers, "note", noted)

    engine = Rough(trouble)
    cluster = Cluster(engine=engine, settings=config.replace(config.load(), auto_compile=True))
    clients = []
    for k in range(SESSIONS):
        with using(cluster.client()) as session:
            clients.append((session, Training(k)))
    changes, last, steps = 0, [0] * SESSIONS, [0] * SESSIONS
    losses: list[list[float]] = [[] for _ in clients]

    def step(k: int) -> None:
        """One step of a session; a step that failed for lack of memory is made again."""
        nonlocal changes
        session, training = clients[k]
        with using(session):
            ran.clear()
            try:
                losses[k].append(training.step(steps[k]))
                steps[k] += 1
            except OutOfMemory:
                return
        tier = max(ran, default=0)
        changes += last[k] != tier
        last[k] = tier

    while changes < CHANGES:
        trouble.rate = trouble.rng.choice([0.0, 0.1, 0.5, 0.5])
        for known in programs.values():  # now and then a tier is judged to be slower, or memory runs short
            standing = known.standing
            assert standing is not None
            standing.failures = 0
            if standing.tier > 1 and trouble.rng.random() < 0.5:
                standing.rest("slower", standing.tier, known.run_us)
                standing.rests.clear()  # or it would be tried again ever more rarely
                if trouble.rng.random() < 0.5:
                    compiler.there.clear()  # the cache on disk is emptied
        if trouble.rng.random() < 0.3:
            engine.captures.let_go()
        for _ in range(20):
            step(trouble.rng.randrange(SESSIONS))
    assert all(trouble.seen.get(what, 0) > 2 for what in ("capture", "load", "allocation", "compile")), trouble.seen

    trouble.rate = 0.0
    for _ in range(300):
        for k in range(SESSIONS):
            step(k)
        if min(last) == 3:
            break
    assert last == [3] * SESSIONS, "a session stays below the highest tier"
    for k in range(SESSIONS):
        with using(Cluster(engine="torch").client()):
            plain = Training(k)
            np.testing.assert_allclose(losses[k], [plain.step(i) for i in range(steps[k])], rtol=1e-6)
