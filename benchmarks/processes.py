"""The processes that a benchmark starts: rivals, each alone with its memory and its failures, and a server.

Law 1: whatever was started here is gone when its `with` ends, and also when the benchmark itself is killed.
Law 2: no answer is waited for without a limit; a rival that fails or dies is a `Failed`, and the others go on.

A rival makes something in a new process and then does what it is told: `Rival(make, arguments).ask("method", ...)`
calls that method of what `make` made. It waits without computing while others have their turn.
"""

from __future__ import annotations

import multiprocessing
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

LIMIT_S = 900.0  #: The longest that anything may take. Compiling a large model takes minutes.
END_S = 10.0  #: How long a process may take to end by itself.


class Failed(Exception):
    """A rival could not do what it was asked; the text is one line."""


class Rival:
    """A process with something in it. Not ready before the first answer."""

    def __init__(self, make: Callable[..., Any], arguments: tuple[Any, ...] = (), **env: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, env, make, arguments))
        self._process.start()
        self.pid = self._process.pid or 0
        theirs.close()  # so that its end can be seen

    def send(self, method: str, *arguments: Any) -> None:
        """Tell it to call this method; `answer` waits for the result."""
        try:
            self._connection.send((method, arguments))
        except OSError:
            self._died()

    def answer(self, limit_s: float = LIMIT_S) -> Any:
        try:
            if not self._connection.poll(limit_s):
                raise Failed(f"no answer within {limit_s:g} s")
            good, result = self._connection.recv()
        except (EOFError, OSError):
            self._died()
        if not good:
            raise Failed(result)
        return result

    def ready(self) -> bool:
        """Whether `answer` would return at once."""
        return self._connection.poll()

    def ask(self, method: str, *arguments: Any, limit_s: float = LIMIT_S) -> Any:
        """What this method returns over there."""
        self.send(method, *arguments)
        return self.answer(limit_s)

    def _died(self) -> None:
        self._process.join(END_S)
        raise Failed(f"its process ended with code {self._process.exitcode}") from None

    def close(self) -> None:
        """End it: it stops at the end of its pipe, or is made to."""
        self._connection.close()
        for push in (None, self._process.terminate, self._process.kill):
            if push is not None:
                push()
            self._process.join(END_S)
            if self._process.exitcode is not None:
                return

    def __enter__(self) -> Rival:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _serve(connection: Connection, env: dict[str, str], make: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """The other process: makes the thing and calls its methods, until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the benchmark's: it ends us
    os.environ.update(env)
    try:
        made = make(*arguments)
        while True:
            method, given = connection.recv()
            connection.send((True, getattr(made, method)(*given)))
    except (EOFError, BrokenPipeError):
        return
    except Exception as e:
        traceback.print_exc()
        with suppress(OSError):
            connection.send((False, f"{type(e).__name__}: {e}".split("\n")[0]))


@contextmanager
def serving(device: str, workers: int = 1, tcp: bool = False, keys: bool = False, **env: str) -> Iterator[str]:
    """A server with so many workers on this machine; its address. It also ends when this process does. It listens on a
    Unix socket, or on a port; there it may know its users by their keys."""
    with tempfile.TemporaryDirectory(prefix="gt-") as directory:
        where = ["-p", "0"] if tcp or keys else ["--address", f"ipc://{directory}/s"]
        where += ["--workers", str(workers), "--engine", "torch", *(["--keys"] if keys else [])]
        process = subprocess.Popen(
            [sys.executable, "-m", "gt.server", *where, "--parent", str(os.getpid())],
            env={**os.environ, "GT_DEVICE": device, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,  # it serves the clients until they have ended, also after a Ctrl-C
        )
        try:
            assert process.stdout is not None
            ready, _, _ = select.select([process.stdout], [], [], 120)
            line = process.stdout.readline().decode() if ready else ""
            if not line.startswith("gt: serving on "):
                raise Failed("the server did not start")
            yield line.removeprefix("gt: serving on ").partition(",")[0]
        finally:
            process.terminate()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_until(at: float) -> None:
    """Return at this time of `time.monotonic`, which is the same for all processes of a machine."""
    while (left := at - time.monotonic()) > 0:
        time.sleep(left)


def threads(device: str) -> dict[str, str]:
    """The environment of a GT rival: on the CPU its worker computes with one thread."""
    return {"GT_THREADS": "1"} if device == "cpu" else {}
