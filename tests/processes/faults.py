"""Workers are killed, stopped, cut off in the middle of collectives: `python -m tests.processes.faults [TIMES [SEED]]`.

Three machines (network namespaces): the server and its clients, and two with a worker each. One client runs collectives
on both workers, and uploads; two others run small calls on one of them each. Then one of the workers, the one where
they meet or the other, is killed, stopped for 20 s, or its cable is pulled for 20 s. The first client must be told in
time, and keep what the survivor has; who uses the survivor must not notice; the worker that comes back must end; a new
worker must join and be used. Needs root.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

from gt.server import users
from gt.transport.identity import WORKER, url

from .machines import Machine, machines
from .running import Process, alive, until

KINDS = ("kill", "stop", "cut")
AWAY_S = 20.0
TOLD_S = {"kill": 1.0, "stop": 10.0, "cut": 10.0}  #: Within which the client must be told,
LONGER_S = 1.0  #: and how much longer than before the other one may wait.

TRAINER = """
import sys, time, gt
import numpy as np
from gt.client.session.connecting import current

data = np.ones(1 << 20)
while True:
    gt.mesh(x=2)
    a = gt.shard(gt.ones(256, 256) / 256, {0: "x"})
    whole = gt.replicate(gt.arange(100.0))
    assert whole.sum().item() == 4950
    print("on", *[about["pid"] for about in current().stats()["workers"].values() if about["yours"]], flush=True)
    try:
        for step in range(10**9):
            a = a @ a  # a gather
            if step % 10 == 0:
                assert abs(a.sum().item() - 256) < 1e-2
                up = gt.from_numpy(data, layout={0: "x"})
    except gt.GTError as e:
        print("told", time.monotonic(), type(e).__name__, flush=True)
    del a
    up = None
    print("intact", whole.numpy().sum() == 4950, flush=True)
    sys.stdin.readline()
"""

BYSTANDER = """
import time, gt
from gt.client.session.connecting import current

gt.mesh(x=1)  # it stays on its worker
x = gt.arange(1000.0)
x.sum().item()
print("on", *[about["pid"] for about in current().stats()["workers"].values() if about["yours"]], flush=True)
step = longest = 0
shown = time.monotonic()
while True:
    step += 1
    began = time.monotonic()
    assert (x + step % 1000).sum().item() == 499500 + 1000 * (step % 1000)
    longest = max(longest, time.monotonic() - began)
    if time.monotonic() > shown + 0.2:
        print("longest", longest, flush=True)
        shown, longest = time.monotonic(), 0
    time.sleep(0.002)  # what somebody does between two lines of a notebook: it must not keep the machine busy
"""


class Client:
    """A process that talks to this one line by line."""

    def __init__(self, at: Machine, script: str, server: str) -> None:
        self.process = at.start("-c", script, stdin=subprocess.PIPE, GT_SERVER=server)

    def said(self, word: str, deadline_s: float = 60.0) -> list[str]:
        """The rest of the next line that begins with this word."""
        end_s = time.monotonic() + deadline_s
        while True:
            line = self.process.line(deadline_s=max(0.1, end_s - time.monotonic()))
            assert line, self.process.end()[2]
            if line.split()[0] == word:
                return line.split()[1:]

    def go_on(self) -> None:
        pipe: IO[bytes] | None = self.process.popen.stdin
        assert pipe is not None
        pipe.write(b"\n")

    def end(self) -> None:
        self.process.popen.kill()
        self.process.popen.communicate()

    def longest_s(self, until_s: float) -> float:
        """The longest that a call took until then."""
        longest = 0.0
        while time.monotonic() < until_s:
            longest = max(longest, float(self.said("longest")[0]))
        return longest


class Lab:
    """The processes of all cases."""

    def __init__(self, places: list[Machine], home: Path) -> None:
        self.here, *self.places = places
        key, self.worker_key = users.add(home, "ada"), users.add(home, "workers", WORKER)
        self.server = self.here.start("-m", "gt.server", "--host", "0.0.0.0", "-p", "7000", GT_CONFIG_DIR=str(home))
        assert self.server.line().startswith("gt: serving on")
        self.address = f"{self.here.address}:7000"
        self.workers: dict[int, tuple[Process, Machine]] = {}
        for place in self.places:
            self.add_worker(place)
        self.user = url(self.address, key)
        self.bystanders: dict[int, Client] = {}  #: by the worker that they use
        for _ in self.places:
            self.add_bystander()
        self.trainer = Client(self.here, TRAINER, self.user)

    def add_worker(self, at: Machine) -> None:
        worker = at.start("-m", "gt.worker", GT_SERVER=url(self.address, self.worker_key), GT_THREADS="1")
        assert "joined" in worker.line("stderr")
        self.workers[worker.pid] = worker, at

    def add_bystander(self) -> None:
        """Somebody who uses the worker that nobody else of them does."""
        made = Client(self.here, BYSTANDER, self.user)
        (pid,) = map(int, made.said("on"))
        assert pid not in self.bystanders
        self.bystanders[pid] = made

    def fault(self, kind: str, rng: random.Random) -> str:
        """One case; what was seen."""
        meeting, *_ = there = [*map(int, self.trainer.said("on"))]
        victim = rng.choice(there)
        worker, at = self.workers[victim]
        (bystander,) = [each for pid, each in self.bystanders.items() if pid != victim]
        before_s = bystander.longest_s(time.monotonic() + 1.0 + rng.random())
        began_s = time.monotonic()
        if kind == "cut":
            at.plug(False)
        else:
            os.kill(victim, signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
        when_s, name = self.trainer.said("told")
        told_s = float(when_s) - began_s
        assert name == "LostError", name
        assert self.trainer.said("intact") == ["True"]
        longest_s = bystander.longest_s(time.monotonic() + 1.0)
        self.bystanders.pop(victim).end()
        which = "the first" if victim == meeting else "the second"
        seen = f"{kind} {which}: told after {told_s:.2f} s; the other waited {longest_s:.2f} s, before {before_s:.2f} s"
        assert told_s <= TOLD_S[kind], seen
        assert longest_s <= before_s + LONGER_S, seen
        if kind != "kill":
            bystander.longest_s(began_s + AWAY_S)
            at.plug(True) if kind == "cut" else os.kill(victim, signal.SIGCONT)
        until(lambda: not alive(victim), f"{kind}: the end of the worker that came back", 60.0)
        worker.popen.communicate()
        del self.workers[victim]
        self.add_worker(at)
        self.add_bystander()
        self.trainer.go_on()
        return seen

    def end(self) -> None:
        for client in (self.trainer, *self.bystanders.values()):
            client.end()
        for process in (*[w for w, _ in self.workers.values()], self.server):
            process.popen.kill()
            process.popen.communicate()


def main() -> None:
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    rng = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    with tempfile.TemporaryDirectory() as folder, machines(3) as places:
        lab = Lab(places, Path(folder) / "home")
        try:
            for k in range(times):
                print(f"{k + 1} of {times}: {lab.fault(rng.choice(KINDS), rng)}", flush=True)
        finally:
            lab.end()


if __name__ == "__main__":
    main()
