"""Worker processes that a server starts on its own machine, and ends with itself.

A worker that ends before it has joined is a failed start, and its last line on stderr says why. With
`relay`, this process reads the workers' stderr and passes it on; else they write to the server's stderr.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress

from gt import config, gpus
from gt.errors import StartError
from gt.server.local import last_line
from gt.transport.identity import Key, url

END_S = 1.0  #: How long workers may take to end by themselves when the server ends.


def count_gpus() -> int:
    """How many GPUs workers could use, found without importing an array library."""
    return len(gpus.visible())


def how_many(asked: str, engine: str, device: str, option: str) -> int:
    """The number of workers that a command line asks for; "auto": one for each GPU, and one without GPUs."""
    if asked == "auto":
        return max(1, count_gpus()) if engine != "numpy" and not device else 1
    if not asked.isdecimal() or not asked.isascii() or len(asked) > 4:
        raise StartError(f"{option} {asked}: expected a number or auto")
    return int(asked)


def share_of_threads(engine: str, device: str, count: int) -> int:
    """How many CPU threads the engine of each of some workers gets, so that together they use each CPU once; 0: its
    default."""
    on_gpus = device.startswith("cuda") or (not device and engine != "numpy" and count_gpus() > 0)
    return max(1, len(os.sched_getaffinity(0)) // count) if count > 1 and not on_gpus else 0


class LocalWorkers:
    """The worker processes of one server."""

    def __init__(
        self,
        address: str,
        engine: str,
        device: str,
        count: int,
        token: str,
        relay: bool = False,
        key: Key | None = None,
        quiet: bool = False,
        memory: int = 0,
    ) -> None:
        self._stderr_fd: int | None = None  #: Where the workers' stderr is read, if it is relayed.
        self._said = b""
        self._processes: list[subprocess.Popen[bytes]] = []
        write_fd: int | None = None
        if relay:
            self._stderr_fd, write_fd = os.pipe()
            os.set_blocking(self._stderr_fd, False)
        threads = config.load().threads or share_of_threads(engine, device, count)
        # Not among the arguments, which other users could see.
        env = config.environment(token=token, threads=threads, device="", server=url(address, key) if key else "")
        if memory:
            env |= config.only(worker_memory=memory)
        for slot in range(count):
            command = [sys.executable, "-m", "gt.worker", "--engine", engine, "--slot", str(slot)]
            command += ["--device", device] if device else []
            command += ["--address", address] if key is None else []  # with a key it is in the URL
            command += ["--parent", str(os.getpid()), *(["--quiet"] if quiet else [])]
            self._processes.append(
                subprocess.Popen(
                    command,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=2 if write_fd is None else write_fd,  # a server's stdout has only its ready line
                    stderr=write_fd,
                    start_new_session=True,  # Ctrl-C reaches the server alone, which then ends them
                )
            )
        if write_fd is not None:
            os.close(write_fd)

    def pump(self) -> None:
        """Pass on what the workers wrote to stderr."""
        if self._stderr_fd is None:
            return
        with suppress(BlockingIOError):
            while data := os.read(self._stderr_fd, 65536):
                self._said = (self._said + data)[-4096:]
                with suppress(OSError):
                    os.write(2, data)

    def check_start(self) -> None:
        """Raise StartError if a worker has ended. To be called until all have joined."""
        for process in self._processes:
            code = process.poll()
            if code is not None:
                self.pump()
                raise StartError(last_line(self._said) or f"a worker ended with exit code {code} before it joined")

    def running(self) -> bool:
        """Whether one of them has not ended."""
        return any(process.poll() is None for process in self._processes)

    def ended_well(self) -> bool:
        """Whether all of them have ended as they were asked to."""
        return all(process.poll() == 0 for process in self._processes)

    def terminate(self) -> None:
        """Ask all of them to end."""
        for process in self._processes:
            if process.poll() is None:
                process.terminate()

    def reap(self) -> None:
        """Reap workers that have ended, so that they do not stay as zombies."""
        for process in self._processes:
            process.poll()

    def end(self) -> None:
        """End them all; those that got a Goodbye have a moment to end by themselves."""
        deadline = time.monotonic() + END_S
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        self.pump()
        if self._stderr_fd is not None:
            os.close(self._stderr_fd)
            self._stderr_fd = None
