"""A client of load.py: `python -m tests.processes.load_client KIND SEED WORKERS [NAME]`, its server in GT_SERVER.

It works until it gets SIGTERM, or is killed, and compares everything that it gets with numpy's result: to the last bit
where no sum is rounded, else to rounding. A line on stdout is what it has done since the line before: "KIND CHECKS
SECONDS". What is wrong, and every error that it did not ask for, ends it with a traceback.

KIND is "mixed": one piece of work after another, of random kinds; "once": each of them once; or "greedy": the same
long call again and again, of which there are always some at the server.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from itertools import combinations

import numpy as np

import gt
from gt import nn
from gt.client.record.recorder import recorder
from gt.client.session.connecting import disconnect
from gt.errors import ArgumentError, GTError, IndexOutOfRange, OutOfMemory, ShapeError

DTYPES = ("float32", "float64", "int64", "int32", "uint8", "bool")
GREEDY = 480  #: Rows and columns of the matrices of a greedy client: a call takes about 10 ms,
AHEAD = 20  #: and so many of them are at the server.
HEAVY = 4 << 20  #: Elements of a tensor that others' have to make room for.


class Wrong(AssertionError):
    """A result is not what numpy gets."""


class Client:
    """See the file's header."""

    def __init__(self, seed: int, workers: int, name: str) -> None:
        self.rng = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.workers = workers
        self.name = name  #: Of its named session: a client that comes after it has the same.
        self.checks = 0
        self.stopping = False
        self.is_new = True  #: It has not looked yet what a client before it has kept.
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, *_: object) -> None:
        self.stopping = True

    # --- comparing ---

    def same(self, got: object, expected: object, what: str) -> None:
        """To the last bit."""
        a, b = np.asarray(got), np.asarray(expected)
        self.checks += 1
        if a.shape != b.shape or a.dtype != b.dtype or a.tobytes() != b.tobytes():
            raise Wrong(f"{what}: got {a.dtype}{a.shape} {a!s:.300}, expected {b.dtype}{b.shape} {b!s:.300}")

    def near(self, got: object, expected: object, what: str) -> None:
        """To rounding, in float64."""
        a, b = np.asarray(got), np.asarray(expected)
        self.checks += 1
        if a.shape != b.shape or not np.allclose(a, b, rtol=1e-9, atol=1e-11):
            raise Wrong(f"{what}: got {a!s:.300}, expected {b!s:.300}")

    def fails(self, error: type[GTError], action: Callable[[], object], what: str) -> None:
        self.checks += 1
        try:
            action()
        except error:
            return
        raise Wrong(f"{what}: no {error.__name__}")

    def whole(self, *shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        """Small whole numbers: their sums and products are exact in any order."""
        return self.numbers.integers(-8, 9, shape).astype(np.float64)

    # --- kinds of work ---

    def train(self) -> None:
        """Steps of SGD with momentum, on batches that change in content and size."""
        rng, n, hidden = self.numbers, 12, self.rng.choice([8, 16])
        W, V = rng.normal(size=(hidden, n)) / n, rng.normal(size=(1, hidden)) / hidden
        model = nn.Sequential(nn.Linear(n, hidden, bias=False), nn.Tanh(), nn.Linear(hidden, 1, bias=False)).double()
        with gt.no_grad():
            model[0].weight.copy_(gt.from_numpy(W))
            model[2].weight.copy_(gt.from_numpy(V))
        optimizer = gt.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        dW, dV = np.zeros_like(W), np.zeros_like(V)
        for step in range(self.rng.randrange(4, 25)):
            X = rng.normal(size=(self.rng.choice([8, 16, 24]), n))
            Y = X[:, :1] * X[:, 1:2]
            optimizer.zero_grad()
            loss = (model(gt.from_numpy(X)) - gt.from_numpy(Y)).square().mean()
            loss.backward()
            optimizer.step()
            H = np.tanh(X @ W.T)
            E = H @ V.T - Y
            G = 2 * E / len(X)
            gV, gW = G.T @ H, ((G @ V) * (1 - H * H)).T @ X
            dW, dV = 0.9 * dW + gW, 0.9 * dV + gV
            W, V = W - 0.05 * dW, V - 0.05 * dV
            if step % 3 == 0:
                self.near(loss.item(), (E * E).mean(), f"the loss of step {step}")
        self.near(model[0].weight.detach().numpy(), W, "the first weight")
        self.near(model[2].weight.detach().numpy(), V, "the last weight")

    def transfer(self) -> None:
        """Uploads and fetches, from one byte to some MiB, and parts of them."""
        there = []
        for _ in range(self.rng.randrange(1, 6)):
            n = int(10 ** self.rng.uniform(0, 6))
            a = (self.numbers.random(n) * 200 - 20).astype(self.rng.choice(DTYPES))
            there.append((a, gt.from_numpy(a.copy())))
        for a, t in there:
            i = self.rng.randrange(len(a))
            self.same(t[i:].numpy(), a[i:], "a part of an upload")
        self.rng.shuffle(there)
        for a, t in there:
            self.same(t.numpy(), a, "an upload")

    def interact(self) -> None:
        """Small ops one by one, each waited for, with pauses as a person makes."""
        x, y = gt.arange(100), np.arange(100)
        for _ in range(self.rng.randrange(5, 40)):
            k = self.rng.randrange(1, 50)
            match self.rng.randrange(4):
                case 0:
                    x, y = x * k % 1009, y * k % 1009
                case 1:
                    x, y = x.flip(0) + k, y[::-1] + k
                case 2:
                    self.same((x[k:].sum() - k).numpy(), np.asarray(y[k:].sum() - k), "a sum")
                case _:
                    self.same(x.max().item(), y.max().item(), "a maximum")
            time.sleep(self.rng.choice([0, 0, 0.001, 0.02]))  # the person looks at the result
        self.same(x.numpy(), y, "a vector")

    def mesh(self) -> None:
        """On several workers: products of sharded matrices, changes of layouts, a step of training."""
        n = self.rng.randrange(2, self.workers + 1)
        if self.rng.random() < 0.3 and n == 4:
            gt.mesh(x=2, y=2)
        else:
            gt.mesh(x=n)
        A, B = self.whole(24, 36), self.whole(36, 12)
        for split_a, split_b in ((0, 1), (1, 0), (0, 0)):
            a, b = gt.shard(gt.from_numpy(A), {split_a: "x"}), gt.shard(gt.from_numpy(B), {split_b: "x"})
            self.same((a @ b).numpy(), A @ B, "a product of sharded matrices")
            self.same(gt.shard(a, {1 - split_a: "x"}).numpy(), A, "a matrix in another layout")
        w = gt.shard(gt.from_numpy(B), {0: "x"}).requires_grad_()
        loss = (gt.shard(gt.from_numpy(A), {0: "x"}) @ w).square().sum()
        loss.backward()
        self.same(loss.item(), ((A @ B) ** 2).sum(), "a sharded loss")
        assert w.grad is not None
        self.same(w.grad.numpy(), 2 * A.T @ (A @ B), "a sharded gradient")
        disconnect()

    def every_group(self) -> None:
        """Each two of the workers meet, and each sends something large. What they need for that, they have from then
        on."""
        if self.workers > 1:
            gt.mesh(x=self.workers)
            large = self.whole(self.workers, 1 << 16)
            self.same(gt.shard(gt.from_numpy(large), {0: "x"}).numpy(), large, "a large sharded tensor")
            for pair in combinations(range(self.workers), 2):
                for k, two in enumerate((pair, pair[::-1])):
                    on = gt.mesh(f"m{two[0]}_{two[1]}", x=2, workers=list(two))
                    a = gt.shard(gt.from_numpy(self.whole(4, 4)), {k: "x"}, on)
                    gt.shard(a, {1 - k: "x"}, on).numpy()
            disconnect()

    def named(self) -> None:
        """A session with a name: what it keeps is what this client, or one before it that was killed, has kept."""
        gt.connect(os.environ["GT_SERVER"], session=self.name)
        for _ in range(self.rng.randrange(1, 5)):
            w, step = gt.arange(64), 0
            if "state" in gt.kept():
                state = gt.kept("state")
                w, step = state["w"], state["step"]
                self.same(w.numpy(), self.after(step), f"what was kept after step {step}")
                if self.is_new:
                    print("reattach 1 0", flush=True)  # to what a client that was killed has kept
            self.is_new = False
            for _ in range(self.rng.randrange(1, 4)):
                w = w * 3 + step
                step += 1
            gt.keep("state", {"w": w, "step": step})
            if self.rng.random() < 0.5:
                w.add_(100)  # it is a snapshot
            self.same(gt.kept("state")["w"].numpy(), self.after(step), f"what is kept after step {step}")
            if self.rng.random() < 0.5:  # leave, and come back
                disconnect()
                gt.connect(os.environ["GT_SERVER"], session=self.name)
        if self.rng.random() < 0.1:
            gt.drop()
        disconnect()

    @staticmethod
    def after(steps: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        w = np.arange(64)
        for step in range(steps):
            w = w * 3 + step  # it overflows, everywhere in the same way
        return w

    def publish(self) -> None:
        """What a client has published, others read; and it is what its number says."""
        number = self.rng.getrandbits(30)
        gt.connect(os.environ["GT_SERVER"], session=f"{self.name} publishes")
        gt.publish(self.name, {"number": number, "t": gt.from_numpy(self.published(number))})
        others = gt.published()
        for name in self.rng.sample(others, min(2, len(others))):
            try:
                found = gt.get(name)
                self.same(found["t"].numpy(), self.published(found["number"]), f"what is published as {name}")
            except ArgumentError as e:  # its publisher has ended meanwhile, or it is on workers that are not here
                if "nothing is published" not in str(e) and "on other workers" not in str(e):
                    raise
        if self.rng.random() < 0.3:
            gt.unpublish(self.name)
        disconnect()

    @staticmethod
    def published(number: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        return np.random.default_rng(number).random(1000)

    def err(self) -> None:
        """Errors on purpose: each is told, and the session is as it was."""
        A = self.whole(6, 6)
        a = gt.from_numpy(A)
        self.same(a.numpy(), A, "a matrix")  # it is made now, and not by the call that fails
        for _ in range(self.rng.randrange(1, 4)):
            match self.rng.randrange(4):
                case 0:
                    index = gt.from_numpy(np.full((6, 6), 6))
                    self.fails(IndexOutOfRange, lambda: gt.gather(a, 0, index).numpy(), "gather")  # noqa: B023
                case 1:
                    self.fails(ShapeError, lambda: a @ a[1:], "matmul")
                case 2:
                    self.fails(OutOfMemory, lambda: (gt.zeros(1 << 22, 1 << 17) + 1).sum().item(), "zeros")
                case _:
                    self.fails(ArgumentError, lambda: gt.get(f"nobody/{self.rng.random()}"), "get")
            self.same((a @ a).numpy(), A @ A, "a product after an error")

    def carry(self) -> None:
        """Much memory, not used for a while: it has to make room for that of others, and comes back."""
        v = self.rng.randrange(1000)
        t = gt.arange(HEAVY) + v
        total = HEAVY * (HEAVY - 1) // 2 + HEAVY * v
        for _ in range(2):
            self.same(t.sum().item(), total, "the sum of a large tensor")
            time.sleep(self.rng.random() / 2)  # idle: others may need the memory meanwhile
        i = self.rng.randrange(HEAVY - 10)
        self.same(t[i : i + 10].numpy(), np.arange(i, i + 10) + v, "a part of a large tensor")

    # --- what it does ---

    def mixed(self) -> None:
        while not self.stopping:
            kind = self.rng.choices(list(KINDS), list(KINDS.values()))[0]
            begin_s, before = time.monotonic(), self.checks
            getattr(self, kind)()
            print(kind, self.checks - before, f"{time.monotonic() - begin_s:.3f}", flush=True)
            if self.rng.random() < 0.3:
                disconnect()  # the next tensor connects again

    def once(self) -> None:
        self.every_group()
        for kind in KINDS:
            getattr(self, kind)()
            disconnect()

    def greedy(self) -> None:
        """Products with a matrix that only exchanges columns: exact, and easy to say what they are."""
        gt.mesh(x=1)  # it stays on the worker whose time is measured
        shuffle = self.numbers.permutation(GREEDY)
        P = np.zeros((GREEDY, GREEDY), np.float32)
        P[shuffle, np.arange(GREEDY)] = 1
        X = self.numbers.random((GREEDY, GREEDY), np.float32)
        p, x = gt.from_numpy(P), gt.from_numpy(X)
        columns = np.arange(GREEDY)
        marks: deque[tuple[gt.Tensor, np.float32]] = deque()
        (mine,) = [number for number, w in gt.debug.get_worker_stats()["workers"].items() if w["yours"]]
        print("on", mine, flush=True)
        begin_s, calls = time.monotonic(), 0
        while not self.stopping:
            x = x @ p @ p @ p
            for _ in range(3):
                columns = columns[shuffle]
            marks.append((x[0, 0] + 0, X[0, columns[0]]))
            recorder().mark()  # as the end of a step of training does
            calls += 1
            if len(marks) > AHEAD:
                mark, expected = marks.popleft()
                self.same(np.float32(mark.item()), expected, f"a number after {calls} calls")
            if time.monotonic() > begin_s + 1.0:
                print("greedy", self.checks, f"{time.monotonic() - begin_s:.3f}", flush=True)
                begin_s, self.checks = time.monotonic(), 0
        self.same(x.numpy(), X[:, columns], f"a matrix after {calls} calls")


#: Kinds of work, and how often each is done.
KINDS = {
    "train": 6, "transfer": 5, "interact": 6, "mesh": 3, "named": 4, "publish": 3, "err": 3, "carry": 1
}  # fmt: skip


def main() -> None:
    kind, seed, workers, *name = sys.argv[1:]
    getattr(Client(int(seed), int(workers), *name or [""]), kind)()


if __name__ == "__main__":
    main()
