"""What a client tells of itself: statistics with lines and totals, debug output, and no secrets anywhere."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import gt
from gt import config
from gt.client.session.telling import name_of_process
from tests.processes.running import Server, output_of
from tests.sessions import session_on
from tests.sim.cluster import Cluster, using

TOTALS = {
    "total_instructions", "hot_instructions", "unique_sequences", "hot_sequences", "calls", "run_us", "bytes_moved",
    "run_us_by_tier", "compile_us", "nbytes", "uploaded", "fetched", "sent_to_peers",
}  # fmt: skip


def test_what_is_pending_is_sent_and_counted() -> None:
    with session_on():
        x = gt.ones(4)
        y = (x * 3).relu()
        totals = gt.debug.get_worker_stats()["totals"]
        assert set(totals) == TOTALS
        assert (totals["calls"], totals["unique_sequences"]) == (1, 1)
        assert totals["total_instructions"] == 3
        assert (totals["hot_instructions"], totals["hot_sequences"]) == (0, 0)
        assert totals["nbytes"] == 2 * 16
        assert set(totals["run_us_by_tier"]) == {"1"}
        assert y.numpy().tolist() == [3, 3, 3, 3]
        gt.from_numpy(x.numpy()).sum().item()
        after = gt.debug.get_worker_stats()["totals"]
        assert after["calls"] == 2
        assert after["uploaded"] >= 0
        assert after["fetched"] == 16 + 16 + 4
        assert after["bytes_moved"] == after["uploaded"] + after["fetched"]


def test_failures_stay_for_the_next_read() -> None:
    with session_on():
        bad = gt.ones(300, 2)[gt.tensor([1, 999])]
        assert gt.debug.get_worker_stats()["totals"]["total_instructions"] == 0
        with pytest.raises(IndexError):
            bad.numpy()


def test_programs_have_the_users_lines() -> None:
    with session_on():
        (gt.ones(4) * 3).sum().item()
        (worker,) = gt.debug.get_worker_stats()["workers"].values()
        (row,) = worker["programs"].values()
        assert re.fullmatch(r"test_telling\.py:\d+", row["lines"])


def test_lines_and_totals_of_several_workers() -> None:
    cluster = Cluster(workers=2)
    with using(cluster.client()):
        gt.mesh(x=2)
        gt.shard(gt.ones(8, 4), {0: "x"}).sum().item()
        stats = gt.debug.get_worker_stats()
        rows = [row for worker in stats["workers"].values() for row in worker["programs"].values()]
        assert len(rows) == 2
        assert all(re.fullmatch(r"test_telling\.py:\d+", row["lines"]) for row in rows)
        assert stats["totals"]["calls"] == 2
        assert stats["totals"]["sent_to_peers"] > 0


def test_others_lines_are_not_told() -> None:
    cluster = Cluster()
    with using(cluster.client()):
        (gt.ones(4) * 3).sum().item()
    with using(cluster.client()):
        (worker,) = gt.debug.get_worker_stats()["workers"].values()
        assert worker["programs"] == {}
        assert "test_telling" not in repr(worker)


def test_debug_output_tells_ops_and_connections(capsys: pytest.CaptureFixture[str]) -> None:
    settings = config.replace(config.load(), debug_client=True)
    with using(Cluster(settings=settings).client()) as session:
        y = (gt.ones(4) * 3).relu()
        y.numpy()
        with pytest.raises(IndexError):
            gt.ones(3)[gt.tensor([7])].numpy()
        session.close()
    said = capsys.readouterr().err
    assert re.search(r"call 1 [0-9a-f]{8} \(full mul relu\) at test_telling\.py:\d+: inputs \[\], results from 1", said)
    assert re.search(r"fetch of tensor 1: f32\[4\], numpy at .*test_telling\.py:\d+", said)
    assert "call 2 failed: IndexOutOfRange: index: index 7 is out of range for size 3" in said
    assert "session 1 is closed after 2 calls" in said


def test_the_name_has_the_user_and_the_process() -> None:
    user, _, rest = name_of_process().partition("/")
    assert user
    assert rest.endswith(f"-{os.getpid()}")


@pytest.mark.processes
def test_secrets_are_in_no_output(tmp_path: Path) -> None:
    """The token of a server: not in the log, not in debug output of any process, not in gt log, top and trace."""
    secret, log, trace = "open sesame", tmp_path / "log", tmp_path / "trace.json"
    loud = {f"GT_DEBUG_{part}": "1" for part in ("CLIENT", "DISPATCHER", "WORKER")} | {"GT_VERBOSE": "1"}
    server = Server("--engine", "numpy", "--workers", "1", GT_TOKEN=secret, GT_INSTRUCTION_LOG=str(log), **loud)
    try:
        script = (
            "import os, sys, gt\n"
            "os.dup2(1, 2)\n"
            f"gt.connect({server.address!r})\n"
            "print((gt.ones(3) + 1).sum().item())\n"
            "try:\n    gt.connect('127.0.0.1:1', token='another secret')\n"
            "except gt.errors.ServerError as e:\n    print(e)\n"
            "from gt.cli.main import main\n"
            f"main(['top', '--once', '--interval', '0.1', '--server', {server.address!r}])\n"
            f"main(['trace', '-s', '0.1', '-o', {str(trace)!r}, '--server', {server.address!r}])\n"
            f"main(['log', {str(log)!r}, '--session', '1'])\n"
        )
        said = output_of(["-c", script], GT_TOKEN=secret, GT_CONNECT_TIMEOUT="0.5", **loud)
        assert f"gt client: connected to {server.address} as session 1" in said
        assert "6.0" in said
        assert "WORKER" in said
        assert "spans of" in said
        assert "Call " in said
    finally:
        server.popen.terminate()
        _, out, err = server.end()
    everything = said + out + err + log.read_text() + trace.read_text()
    assert "sesame" not in everything
    assert "another secret" not in everything
    assert "Hello" in err  # the dispatcher's debug output did print the message with the secret
