"""The compiler's process: it is started when there is something to compile, and nothing outlives its worker."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.processes.running import alive, children, until, until_gone
from tests.tiers.conftest import COMPILED_S, Server, folders, hits, programs, until_compiled
from tests.tiers.models import Mlp

pytestmark = [pytest.mark.processes, pytest.mark.timeout(COMPILED_S + 60)]
Serve = Callable[..., Server]


def below(pid: int) -> list[int]:
    """A process and all that it has started, and so on."""
    return [pid, *[p for child in children(pid) for p in below(child)]]


def compiling(server: Server, cache: Path) -> int:
    """The process id of the server's compiler, once it is at work."""
    until(lambda: list(cache.glob("compiled/*.lock")), "a compiler at work")
    (pid,) = server.compilers()
    return pid


def test_what_was_compiled_before_needs_no_compiler(cache: Path, long_lived: Server, serve: Serve) -> None:
    """A new server finds what another one has left in the cache, and runs it from the first call on."""
    serve()
    model = Mlp()
    until_compiled(lambda: model.losses(1))
    was = folders(cache)
    server = serve()
    want = Mlp(compile=False).losses(5)
    assert hits(3) == 0, "nobody asked for it"
    model = Mlp(compile=None)
    assert model.losses(5) == pytest.approx(want, rel=1e-5)
    assert hits(3) == 5
    assert server.compilers() == []
    assert folders(cache) == was


@pytest.mark.parametrize("choice", [None, False])
def test_nothing_is_compiled_that_shall_not_be(choice: bool | None, serve: Serve, tmp_path: Path) -> None:
    """GT_AUTO_COMPILE=0, and a function that says no: the same steps, never compiled, however hot they are."""
    server = serve(cache=tmp_path, GT_AUTO_COMPILE="0" if choice is None else "1")
    model = Mlp(compile=choice)
    model.losses(12)
    while max(p["run_us"] for p in programs().values()) < 300_000:
        model.losses(100)
    model.losses(12)
    assert hits(3) == 0
    assert not any(p["compiling"] or p["given_up"] for p in programs().values())
    assert server.compilers() == []
    assert not folders(tmp_path)


def test_kill_of_the_compiler(serve: Serve, tmp_path: Path) -> None:
    """The program stays on tier 1, and says why; the session goes on, and others are compiled by a new compiler."""
    server = serve(cache=tmp_path)
    model = Mlp()
    losses = model.losses(1)
    pids = below(compiling(server, tmp_path))
    os.kill(pids[0], signal.SIGKILL)
    until_gone(pids, 5.0)
    until(lambda: model.losses(1) and not any(p["compiling"] for p in programs().values()), "the news of it")
    reasons = [p["given_up"] for p in programs().values() if p["given_up"]]
    assert reasons == [{"3": "the compiler ended with -9"}]
    assert Mlp().losses(3)[:1] == losses
    assert hits(3) == 0
    assert server.compilers() == []


@pytest.mark.parametrize("victim", ["worker", "server"])
def test_a_kill_while_it_compiles(victim: str, serve: Serve, tmp_path: Path) -> None:
    server = serve(cache=tmp_path)
    Mlp().losses(1)
    pids = [server.worker, *below(compiling(server, tmp_path))]
    os.kill(server.worker if victim == "worker" else server.pid, signal.SIGKILL)
    until_gone(pids, 5.0)
    assert victim == "server" or alive(server.pid)
    assert not folders(tmp_path)
