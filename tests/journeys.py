"""Which files of gt/ a statement visits, in order: `python -m tests.journeys` prints the journeys of docs/map.md.

With `--functions` it also prints, for every file, the functions that ran: a file that is visited for one small function
may be the wrong place for that function.

A whole cluster runs in this process (tests/sim), so that one list has what the client, the dispatcher and the workers
do. A file is visited when one of its functions runs. Sockets and the loops of the three processes are not part of it:
messages pass in memory.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import gt
from gt.client.session.placing import set_mesh
from gt.config import PACKAGE

from .sim.cluster import Cluster, using


def visited(run: Callable[[], Any]) -> dict[str, list[str]]:
    """The files of gt/ with functions that are called meanwhile, and those functions, by first call."""
    found: dict[str, dict[str, None]] = {}
    start = str(PACKAGE) + "/"

    def watch(frame: FrameType, event: str, arg: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(start) and code.co_name != "<module>":
            found.setdefault(code.co_filename, {}).setdefault(code.co_qualname)

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        run()
    finally:
        sys.setprofile(before)
    return {str(Path(file).relative_to(PACKAGE.parent)): list(names) for file, names in found.items()}


def add() -> dict[str, list[str]]:
    """`c = a + b`, which was never recorded before: nothing is sent."""
    with using(Cluster().client()):
        a, b = gt.ones(2), gt.ones(2)
        str(a * b)
        return visited(lambda: a + b)


def show() -> dict[str, list[str]]:
    """`print(c)` of a new result, in a session that has printed something else before."""
    with using(Cluster().client()):
        a, b = gt.ones(2), gt.ones(2)
        str(a * b)
        return visited(lambda: str(a + b))


def backward() -> dict[str, list[str]]:
    """`loss.backward()`, of an op that had no gradient before."""
    with using(Cluster().client()):
        x = gt.ones(2, requires_grad=True)
        str(x * 2)
        loss = x.exp().sum()
        return visited(loss.backward)


def sharded_matmul() -> dict[str, list[str]]:
    """`(x @ w).numpy()` with x sharded over two workers, in a session that has computed something else before."""
    session = Cluster(2).client()
    with using(session):
        set_mesh(session, "", {"x": 2})
        x = gt.from_numpy(np.ones((64, 32), np.float32), layout={0: "x"})
        w = gt.ones(32, 8)
        (x + 1).numpy()
        return visited(lambda: (x @ w).numpy())


def failure() -> dict[str, list[str]]:
    """An error on a worker: an index out of range, seen when the result is read."""
    with using(Cluster().client()):
        x, k = gt.ones(3), gt.tensor([5])
        str(x * 2)

        def run() -> None:
            try:
                x[k].numpy()
            except gt.GTError:
                return
            raise AssertionError("no error")

        return visited(run)


JOURNEYS = {"add": add, "print": show, "backward": backward, "sharded matmul": sharded_matmul, "failure": failure}

if __name__ == "__main__":
    for name, journey in JOURNEYS.items():
        files = journey()
        print(f"{name}: {len(files)} files")
        for file, functions in files.items():
            print(f"  {file}", *functions if "--functions" in sys.argv else (), sep="\n      ")
