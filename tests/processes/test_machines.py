"""Servers and workers on several machines, which are network namespaces here: they meet, or say why they do not.

The commands are those of docs/cluster.md and nothing else: `gt serve --host 0.0.0.0 --workers N` on one machine,
`gt worker -n N` on the others, after `gt user` and `gt login`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gt.server import users
from gt.transport import logins
from gt.transport.identity import CLIENT, WORKER, url

from .machines import Machine, machines, possible
from .running import DEADLINE_S, Process, Start, children, command

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not possible(), reason="needs root, to make network namespaces"),
]

#: As one worker, and as DP, Megatron and a mixture of both on six.
TRAIN = """
import json
import gt
from tests.client.mesh.sharded_training import WAYS, train

answers = {}
for way, mesh in {"one": None, "data": {"x": 6}, "tensor": {"x": 6}, "both": {"x": 3, "y": 2}}.items():
    gt.connect(mesh=mesh)
    losses, model, _ = train(4, *(WAYS[way] if mesh else (None, {})))
    answers[way] = losses + model.up.weight.detach().numpy().ravel().tolist()
    gt.disconnect()
print(json.dumps(answers))
"""


@pytest.fixture
def start(started: list[Process]) -> Start:
    """start(machine, home, "serve", ...): a gt command there."""

    def new(machine: Machine, home: Path, *arguments: str, **env: str) -> Process:
        gt = () if arguments[0].startswith("-") else ("-m", "gt.cli.main")
        started.append(machine.start(*gt, *arguments, GT_CONFIG_DIR=str(home), GT_DEVICE="cpu", **env))
        return started[-1]

    return new


@pytest.fixture
def homes(tmp_path: Path) -> tuple[Path, Path]:
    """The folders of the server's user, and of everybody else: keys for clients and for workers."""
    server, others = tmp_path / "server", tmp_path / "others"
    for name, role in (("ada", CLIENT), ("workers", WORKER)):
        logins.store(others, url("10.77.0.1:12345", users.add(server, name, role)))
    return server, others


def serving(start: Start, machine: Machine, home: Path, *arguments: str) -> Process:
    server = start(machine, home, "serve", "--host", "0.0.0.0", *arguments)
    assert server.line().startswith("gt: serving on 0.0.0.0:12345")
    return server


def joining(start: Start, machine: Machine, home: Path, count: int, **env: str) -> Process:
    workers = start(machine, home, "worker", "--host", "10.77.0.1", "-n", str(count), **env)
    for _ in range(count):
        line = workers.line("stderr")
        assert line.startswith("gt worker: joined 10.77.0.1:12345 as worker "), line
        assert line.endswith(" on cpu")
    return workers


@pytest.fixture
def three() -> Iterator[list[Machine]]:
    with machines(3) as made:
        yield made


def listening(pid: int) -> set[str]:
    """Where the machine of this process can be reached from others: host:port."""
    found = set()
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        address, state = line.split()[1], line.split()[3]
        host = ".".join(str(b) for b in reversed(bytes.fromhex(address.partition(":")[0])))
        if state == "0A" and not host.startswith("127."):
            found.add(f"{host}:{int(address.partition(':')[2], 16)}")
    for line in Path(f"/proc/{pid}/net/tcp6").read_text().splitlines()[1:]:
        if line.split()[3] == "0A":
            found.add(line.split()[1])
    return found


def doors(pid: int) -> list[int]:
    """The processes at the doors of the workers that this process has started."""
    found = [door for worker in children(pid) for door in children(worker)]
    return [door for door in found if b"tunnel.py" in command(door)]


def test_training_on_three_machines(three: list[Machine], homes: tuple[Path, Path], start: Start) -> None:
    """Six workers: what they compute together is what one computes. Between the machines only ports that ask for keys
    are open: that of the server, and one door for each worker."""
    server = serving(start, three[0], homes[0], "--workers", "2")
    parents = [server, *[joining(start, machine, homes[1], 2) for machine in three[1:]]]
    answers: dict[str, Any] = json.loads(start(three[2], homes[1], "-c", TRAIN).output(4 * DEADLINE_S))
    for name in ("data", "tensor", "both"):
        np.testing.assert_allclose(answers[name], answers["one"], rtol=1e-9, err_msg=name)
    for parent, own in zip(parents, (1, 0, 0), strict=True):
        assert len(doors(parent.pid)) == 2
        assert len(listening(parent.pid)) == own + 2, "a socket that other machines can reach"


def test_workers_that_cannot_meet_are_refused_at_the_mesh(
    three: list[Machine], homes: tuple[Path, Path], start: Start
) -> None:
    serving(start, three[0], homes[0])
    three[1].ip("route", "add", "blackhole", three[2].address)
    for machine in three[1:]:
        joining(start, machine, homes[1], 1, GT_ENGINE="numpy")
    code = "import gt; gt.connect(); print(gt.mesh(x=1)); gt.mesh(x=2)"
    ended, out, err = start(three[0], homes[1], "-c", code).end()
    assert ended == 1
    assert out.startswith("<mesh x=1: worker ")
    last = err.strip().splitlines()[-1]
    assert "a mesh of 2 workers: worker " in last
    assert " cannot reach worker " in last
    assert three[1].address in last
    assert three[2].address in last


def test_a_server_for_its_own_machine(three: list[Machine], homes: tuple[Path, Path], start: Start) -> None:
    """A worker elsewhere is told what the likely reason is."""
    server = start(three[0], homes[0], "serve")
    assert server.line().startswith("gt: serving on 127.0.0.1:12345")
    worker = start(three[1], homes[1], "worker", "--host", "10.77.0.1")
    code, _, err = worker.end()
    assert code == 1
    assert err == (
        "gt worker: no server at 10.77.0.1:12345; if one runs there, it listens for its own machine alone: "
        "start it with gt serve --host 0.0.0.0\n"
    )
