"""Servers and workers for the tests: whatever a test starts is gone when it ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.sessions import own_settings

from .running import Process, Serve, Server, Start, alive, children, environment


@pytest.fixture
def started() -> Iterator[list[Process]]:
    """What is in this list is ended after the test, with all its children."""
    processes: list[Process] = []
    yield processes
    for process in processes:
        for pid in [process.pid, *children(process.pid)]:
            if alive(pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        process.popen.communicate()


@pytest.fixture
def start(started: list[Process]) -> Start:
    """start("-m", "gt.server", ..., GT_TOKEN="x") -> Process."""

    def new(*arguments: str, **env: str) -> Process:
        started.append(Process(list(arguments), environment(**env)))
        return started[-1]

    return new


@pytest.fixture
def serve(started: list[Process]) -> Serve:
    """serve("--workers", "2") -> (process, "127.0.0.1:port"), ready."""

    def new(*arguments: str, **env: str) -> tuple[Server, str]:
        server = Server("--engine", "numpy", *arguments, **env)
        started.append(server)
        return server, server.address

    return new


@pytest.fixture(name="own_settings")
def _own_settings() -> Iterator[None]:
    with own_settings():
        yield
