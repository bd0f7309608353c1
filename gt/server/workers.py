"""Worker processes that a server starts on its own machine, and ends with itself.

A worker that ends before it has joined is a failed start, and its last line on stderr says why. With
`relay`, this process reads the workers' stderr and passes it on; else they write to the server's stderr.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from gt import config
from gt.errors import StartError

END_S = 1.0  #: How long workers may take to end by themselves when the server ends.


def count_gpus() -> int:
    """How many GPUs workers could use, found without importing an array library."""
    visible = config.visible_gpus()
    if visible == []:
        return 0
    smi = shutil.which("nvidia-smi")
    nodes = [p for p in Path("/dev").glob("nvidia*") if p.name.removeprefix("nvidia").isdecimal()]
    if not nodes and smi is None:
        return 0
    there = len(nodes)
    if smi is not None:
        with suppress(OSError, subprocess.SubprocessError):
            listed = subprocess.run([smi, "-L"], capture_output=True, text=True, timeout=10, check=True).stdout
            there = sum(line.startswith("GPU ") for line in listed.splitlines())
    return there if visible is None else min(there, len(visible))


def choose_devices(engine: str, device: str, count: int = 0) -> list[str]:
    """The device of each of `count` workers, which take the GPUs in turn; 0: one worker per GPU. "": the worker chooses
    its device itself, as a single worker does, and any worker where there is no GPU."""
    gpus = count_gpus() if engine == "torch" and not device and count != 1 else 0
    count = count or max(1, gpus)
    return [f"cuda:{i % gpus}" if gpus and count > 1 else device for i in range(count)]


def share_of_threads(devices: list[str]) -> int:
    """How many CPU threads each worker's engine gets, so that together they use each CPU once; 0: its default."""
    together = sum(not device.startswith("cuda") for device in devices)
    return max(1, len(os.sched_getaffinity(0)) // together) if together > 1 else 0


class LocalWorkers:
    """The worker processes of one server."""

    def __init__(self, address: str, engine: str, devices: list[str], token: str, relay: bool = False) -> None:
        self._stderr_fd: int | None = None  #: Where the workers' stderr is read, if it is relayed.
        self._said = b""
        self._processes: list[subprocess.Popen[bytes]] = []
        write_fd: int | None = None
        if relay:
            self._stderr_fd, write_fd = os.pipe()
            os.set_blocking(self._stderr_fd, False)
        threads = config.load().threads or share_of_threads(devices)
        for device in devices:
            command = [sys.executable, "-m", "gt.worker", "--address", address, "--engine", engine]
            command += ["--device", device] if device else []
            command += ["--parent", str(os.getpid())]
            self._processes.append(
                subprocess.Popen(
                    command,
                    env=config.environment(token=token, threads=threads),  # other users could see arguments
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


def last_line(said: bytes) -> str:
    """The last line that is not empty, without the name of the program that wrote it."""
    lines = [line.strip() for line in said.decode(errors="replace").splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    for name in ("gt worker: ", "gt serve: ", "gt: "):
        last = last.removeprefix(name)
    return last
