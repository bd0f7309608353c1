"""`gt up --ray`. With Ray installed, on a real local cluster of two nodes; it is no part of the development tools."""

from __future__ import annotations

import importlib.util
import json
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from gt.cli.main import main
from gt.server import users
from gt.transport.identity import url

from .running import DEADLINE_S, Start

pytestmark = pytest.mark.processes

TRAIN = """
import json
import gt
from tests.client.mesh.sharded_training import WAYS, train

found = {}
for way, mesh in {"one": None, "data": {"x": 4}, "tensor": {"x": 4}, "both": {"x": 2, "y": 2}}.items():
    gt.connect(mesh=mesh)
    found[way] = train(4, *(WAYS[way] if mesh else (None, {})))[0]
    gt.disconnect()
print(json.dumps(found))
"""


def test_without_ray(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setitem(sys.modules, "ray", None)
    try:
        assert main(["up", "--ray"]) == 2
        with pytest.raises(SystemExit):
            main(["up"])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    said = capsys.readouterr().err
    assert said.startswith("gt up: gt up --ray needs Ray: pip install 'gt[ray]'\n")


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray")
def test_workers_are_ray_actors(tmp_path: Path, start: Start) -> None:
    from ray.cluster_utils import Cluster

    key = users.add(tmp_path, "ada")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=2)
        home = str(tmp_path)
        command = ("up", "--ray", "--ray-address", cluster.address, "-p", "0", "--workers", "4")
        up = start("-m", "gt.cli.main", *command, GT_CONFIG_DIR=home)
        port = up.line(deadline_s=4 * DEADLINE_S).partition(",")[0].rpartition(":")[2]
        assert up.line() == "gt: 4 workers as Ray actors"
        client = start("-c", TRAIN, GT_SERVER=url(f"127.0.0.1:{port}", key), GT_WORKER_TIMEOUT="60")
        code, out, err = client.end(4 * DEADLINE_S)
        assert code == 0, err
        losses = json.loads(out)
        for way in ("data", "tensor", "both"):
            np.testing.assert_allclose(losses[way], losses["one"], rtol=1e-9, err_msg=way)
        up.signal(signal.SIGTERM)
        assert up.end(4 * DEADLINE_S)[0] == 0
        assert [user.name for user in users.read(tmp_path).values()] == ["ada"], "the key of the workers is revoked"
    finally:
        cluster.shutdown()
