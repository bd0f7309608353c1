"""Sessions that together need more memory than a worker has: they take turns, and each sees only its own values."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gt
from gt import config
from gt.client.session import connecting
from gt.client.session.session import Session
from gt.errors import OutOfMemory
from tests.sim.cluster import using

from .running import Serve, Start, join, said_by_workers, until

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("own_settings")]

MEMORY = 1 << 20  #: Bytes of a worker.
PARTS = 12
SIZE = int(0.6 * MEMORY / PARTS / 4)  #: So many tensors of so many floats take 60% of it.


@pytest.fixture
def place(tmp_path: Path) -> dict[str, str]:
    """Settings of workers with little memory, whose tensors go to disk when they leave it."""
    return {"GT_WORKER_MEMORY": str(MEMORY), "GT_SPILL_MEMORY": "0", "GT_SPILL_DIR": str(tmp_path)}


@pytest.fixture
def users() -> Iterator[Callable[..., Session]]:
    """Sessions of several users, in this process. What they do, they do in `using(session)`."""
    made: list[Session] = []

    def new(address: str, workers: int = 1) -> Session:
        made.append(connecting._join(address, config.load()))
        if workers > 1:
            with using(made[-1]):
                gt.mesh(x=workers)
        return made[-1]

    yield new
    for session in made:
        session.close()


def spilled(session: Session) -> int:
    """Bytes of a session that are not on devices."""
    return int(session.stats()["session"]["spilled"])


class Notebook:
    """A session with 60% of a worker's memory, and what its tensors must be."""

    def __init__(self, session: Session, k: int, layout: Any = None, size: int = SIZE) -> None:
        self.session, self.k = session, k
        self.want = [np.arange(size, dtype=np.float32) / size + k + j for j in range(PARTS)]
        with using(session):
            self.tensors = [gt.from_numpy(w.copy(), layout=layout) for w in self.want]

    def work(self) -> None:
        """Change every tensor, one after the other."""
        with using(self.session):
            for j, x in enumerate(self.tensors):
                x.mul_(0.5).add_(self.k)
                self.want[j] = self.want[j] * np.float32(0.5) + np.float32(self.k)
                assert abs(x.mean().item() - self.want[j].mean()) < 1e-3

    def look(self) -> None:
        with using(self.session):
            for x, w in zip(self.tensors, self.want, strict=True):
                assert np.array_equal(x.numpy(), w)


@pytest.mark.parametrize(("workers", "memory"), [(1, 0), (2, MEMORY)])
def test_three_sessions_of_60_percent_alternate(
    serve: Serve, users: Callable[..., Session], place: dict[str, str], tmp_path: Path, workers: int, memory: int
) -> None:
    """With host memory for some of what leaves, and the disk for the rest."""
    server, address = serve("--workers", str(workers), **{**place, "GT_SPILL_MEMORY": str(memory)})
    layout = {0: "x"} if workers > 1 else None
    books = [Notebook(users(address, workers), k, layout, SIZE * workers) for k in (1, 2, 3)]
    for _ in range(2):
        for book in books:
            book.work()
            book.look()
    for book in books:
        book.look()
    out = [spilled(book.session) for book in books]
    held = PARTS * SIZE * workers * 4
    assert sum(out) >= 3 * held - MEMORY * workers, "more than the memory of the workers is on their devices"
    rows = said_by_workers(books[0].session.stats)
    assert all(row["moved_in"] > 3 * SIZE * 4 and row["moved_out"] > row["moved_in"] for row in rows)
    assert os.listdir(tmp_path) == []
    for book in books:
        book.session.close()
    (asker,) = [users(address)]
    until(lambda: _nothing_left(asker), "the end of what was spilled")
    server.stop()


def _nothing_left(session: Session) -> bool:
    return all(row["spilled_memory"] + row["spilled_disk"] == 0 for row in said_by_workers(session.stats))


def train(steps: int, state: Any = None) -> Any:
    """Some steps of AdamW; `state` is what an earlier call returned."""
    if state is None:
        gt.manual_seed(3)
        model = gt.nn.Sequential(gt.nn.Linear(64, 128), gt.nn.ReLU(), gt.nn.Linear(128, 64))
        state = model, gt.optim.AdamW(model.parameters(), lr=1e-2), gt.randn(32, 64)
    model, optimizer, x = state
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        loss.item()
    return state


def fill(session: Session) -> Any:
    """Need nearly all of a worker's memory: whoever is idle has to give way."""
    with using(session):
        tensors = [gt.full((SIZE,), float(k)) for k in range(17)]
        for x in tensors:
            assert x.sum().item() >= 0
    return tensors


def test_an_optimizer_that_was_left_over_lunch_goes_on_bit_for_bit(
    serve: Serve, users: Callable[..., Session], place: dict[str, str], tmp_path: Path
) -> None:
    """Its state leaves twice. Views, fetches and files of what is away are what they were."""
    _, address = serve("--workers", "1", **place)
    alone, notebook, other = users(address), users(address), users(address)
    with using(alone):
        want = {name: p.numpy() for name, p in train(8)[0].state_dict().items()}
    alone.close()
    with using(notebook):
        state = train(4)
        view = state[2][4:6]
    held = fill(other)
    until(lambda: spilled(notebook) > 0, "the state to leave")
    with using(notebook):
        before = spilled(notebook)
        saved = {name: p.detach().numpy() for name, p in state[0].named_parameters()}
        gt.save(state[0].state_dict(), tmp_path / "model.safetensors")
        loaded = gt.load(tmp_path / "model.safetensors")
        assert all(np.array_equal(loaded[name].numpy(), saved[name]) for name in saved)
        del loaded
        assert spilled(notebook) >= before - 1, "reading needs no memory of the device"
        train(2, state)
    with using(other):
        held[0].add_(1.0)
        assert held[0].mean().item() == 1.0
        held.clear()
    fill(other)
    with using(notebook):
        x = state[2].numpy()
        assert np.array_equal(view.numpy(), x[4:6])
        train(2, state)
        got = {name: p.numpy() for name, p in state[0].state_dict().items()}
        assert all(np.array_equal(got[name], want[name]) for name in want)
        view.zero_()  # in place, through a view of what has come back
        assert state[2][3:7].abs().sum(dim=1).gt(0).tolist() == [True, False, False, True]


def test_a_loop_that_runs_all_the_time_keeps_its_tensors(
    serve: Serve, users: Callable[..., Session], place: dict[str, str]
) -> None:
    _, address = serve("--workers", "1", **place)
    loop = users(address)
    books = [Notebook(users(address), k) for k in (1, 2)]
    with using(loop):
        state = train(1)
    for _ in range(2):
        for book in books:
            for j in range(PARTS):
                with using(book.session):
                    book.tensors[j].neg_()
                    book.tensors[j].sum().item()
                    book.want[j] = -book.want[j]
                with using(loop):
                    train(1, state)
                assert spilled(loop) == 0
    for book in books:
        book.look()


def test_a_call_that_cannot_fit_is_refused_with_the_numbers_and_the_session_is_whole(
    serve: Serve, users: Callable[..., Session], place: dict[str, str]
) -> None:
    _, address = serve("--workers", "1", **place)
    book = Notebook(users(address), 1)
    other = Notebook(users(address), 2)
    other.work()
    with using(book.session):
        with pytest.raises(OutOfMemory, match=r"needs .* on worker 1, which can have .* free of 1.0 MiB; this session"):
            gt.zeros(MEMORY // 4).sum().item()
        with pytest.raises(OutOfMemory, match=r"an upload of 800.0 KiB on worker 1, which can have .* free of 1.0 MiB"):
            gt.from_numpy(np.zeros(800 << 10, np.uint8)).sum().item()
    book.work()
    book.look()
    other.look()


USER = """
import sys
import numpy as np
import gt
size, parts = int(sys.argv[1]), int(sys.argv[2])
tensors = [gt.from_numpy(np.ones(size, np.float32)) for _ in range(parts)]
try:
    while True:
        for x in tensors:
            x.add_(1.0)
            x.sum().item()
        print("round", flush=True)
except gt.errors.LostError as e:
    print("lost:", e, flush=True)
"""


@pytest.mark.parametrize("moment", ["Spill ", "Spilled ", "Return "])
def test_a_worker_dies_in_the_middle_of_a_spill(serve: Serve, start: Start, tmp_path: Path, moment: str) -> None:
    """Two loops exchange the memory of a worker, which is killed: both hear of the loss, and a new worker is used."""
    log, folder = tmp_path / "log", tmp_path / "spilled"
    folder.mkdir()
    memory = 64 << 20
    settings = {"GT_WORKER_MEMORY": str(memory), "GT_SPILL_DIR": str(folder)}
    _, address = serve(GT_INSTRUCTION_LOG=str(log), **settings)
    worker = join(start, address, **settings)
    size = str(SIZE * (memory // MEMORY))
    loops = [start("-c", USER, size, str(PARTS), GT_SERVER=address) for _ in range(2)]
    until(lambda: any(f" {moment}" in line for line in log.read_text().splitlines()), moment)
    worker.signal(signal.SIGKILL)
    worker.end()
    assert os.listdir(folder) == [], "files have no names"
    for loop in loops:
        while (line := loop.line()) == "round":
            pass
        assert line.startswith("lost:"), line
        assert loop.end() == (0, "", "")
    join(start, address, **settings)
    after = start("-c", "import gt; print(gt.ones(3).sum().item())", GT_SERVER=address)
    assert after.end() == (0, "3.0\n", "")
