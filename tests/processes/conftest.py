"""Servers and workers for the tests: whatever a test starts is gone when it ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from .running import Process, alive, children, environment


@pytest.fixture
def start() -> Iterator[Callable[..., Process]]:
    """start("-m", "gt.server", ..., GT_TOKEN="x") -> Process."""
    started: list[Process] = []

    def new(*arguments: str, **env: str) -> Process:
        started.append(Process(list(arguments), environment(**env)))
        return started[-1]

    yield new
    for process in started:
        below = children(process.pid)
        for pid in [process.pid, *below]:
            if alive(pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        process.popen.communicate()


@pytest.fixture
def serve(start: Callable[..., Process]) -> Callable[..., tuple[Process, str]]:
    """serve("--workers", "2") -> (process, "127.0.0.1:port"), ready."""

    def new(*arguments: str, **env: str) -> tuple[Process, str]:
        process = start("-m", "gt.server", "-p", "0", "--engine", "numpy", *arguments, **env)
        line = process.line()
        assert line.startswith("gt: serving on "), line
        return process, line.removeprefix("gt: serving on ").partition(",")[0]

    return new
