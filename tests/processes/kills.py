"""A worker is killed while tensors move to the layouts of a new plan: `python -m tests.processes.kills [TIMES]`.

Each time a plain loop runs on two workers; as soon as the first move is on its way, one of them is killed. The client
must be told, what the survivor has must be a value that the loop has had, and a new mesh must work. If all has moved
when the worker dies, the step that is under way then loses what it was to replace, as always.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LOOP = """
import os, sys, numpy as np, gt
from gt import nn
from gt.client.session.connecting import current

gt.manual_seed(0)
model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512))
optimizer = gt.optim.SGD(model.parameters(), lr=1e-2)
x = gt.from_numpy(np.random.default_rng(0).standard_normal((32, 512)).astype(np.float32))
bias = model[2].bias  # it is replicated: its survivor has all of it
steps = int(sys.argv[1])
print("workers", *[about["pid"] for about in current().stats()["workers"].values()], flush=True)
try:
    for step in range(steps):
        (model(x) - 1).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if os.environ.get("EVERY"):
            print("bias", f"{bias.sum().item():.5f}")
        elif step % 50 == 0:
            model[0].weight.sum().item()
except gt.GTError as e:
    print("told", type(e).__name__)
    try:
        print("bias", f"{bias.detach().numpy().sum():.5f}")
    except gt.GTError:
        print("bias lost")
    gt.mesh(x=1)
    print("goes on", gt.ones(3).sum().item())
"""


def _loop(steps: int, **settings: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", LOOP, str(steps)], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "GT_AUTO_COMPILE": "0", **settings},
    )  # fmt: skip


def biases() -> set[float]:
    """What the bias is after each step of the loop."""
    with _loop(4000, GT_WORKERS="1", EVERY="1") as process:
        assert process.stdout is not None
        return {float(line.split()[1]) for line in process.stdout if line.startswith("bias")}


def kill_once(known: set[float], rng: random.Random) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        log.touch()
        settings = {"GT_CACHE_DIR": folder, "GT_INSTRUCTION_LOG": str(log), "GT_HARDWARE": "h100", "GT_WORKERS": "2"}
        with _loop(100_000, GT_AUTO_SHARD="1", GT_PLAN_AFTER="0.05", **settings) as process:
            assert process.stdout is not None
            _, *pids = process.stdout.readline().split()
            deadline = time.monotonic() + 60
            with log.open() as lines:
                while not any("WORKER_SEND" in line and " #-1 " in line for line in lines):
                    assert time.monotonic() < deadline, "nothing has moved"
            time.sleep(rng.choice([0.0, 0.0, 0.001, 0.003, 0.01]))
            os.kill(int(rng.choice(pids)), signal.SIGKILL)
            out = process.stdout.read()
            assert process.wait(60) == 0, out
        before = re.split(r"DISCONNECT +worker", log.read_text())[0]
    said = dict(line.split(maxsplit=1) for line in out.splitlines() if not line.startswith("goes"))
    assert said["told"] == "LostError", out
    assert "goes on 3.0" in out, out
    if said["bias"] == "lost":  # all had moved, and the next step was under way
        assert "Rename" in before, out
        return
    near = min(abs(float(said["bias"]) - each) for each in known)
    assert near < 2e-4, f"{said['bias']} was never the bias"


def main() -> None:
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    known, rng = biases(), random.Random(0)
    for k in range(times):
        kill_once(known, rng)
        print(f"{k + 1} of {times}: told, intact, goes on", flush=True)


if __name__ == "__main__":
    main()
