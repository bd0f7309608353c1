"""A private server: a dispatcher and its workers, started by and for one client process.

Law 1: it is reached over a Unix socket in a directory that only this user can enter, with a secret that
       only the two processes know.
Law 2: it ends with the client, however that ends, and its directory is removed.
Law 3: it starts completely or not at all: workers have joined when `start_private` returns, and a failure is
       one line that says why.

Every client imports this file, and few start a server. So `subprocess`, `tempfile` and `shutil`, which take several
milliseconds to load, are imported in the functions that use them.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import select
import signal
import sys
import time
from typing import IO, TYPE_CHECKING

from gt import config
from gt.config import Config
from gt.errors import StartError

if TYPE_CHECKING:
    import subprocess

END_S = 5.0  #: How long the server may take to end its workers and itself.


class PrivateServer:
    """A running private server; `start_private` makes it."""

    def __init__(self, process: subprocess.Popen[bytes], directory: str, token: str) -> None:
        self.address = f"ipc://{directory}/s"
        self.token = token
        self.pid = process.pid
        self._process = process
        self._directory = directory
        self._owner = os.getpid()

    def alive(self) -> bool:
        """Whether the server's process is still running."""
        return os.getpid() == self._owner and self._process.poll() is None

    def close(self) -> None:
        """End the server and its workers, and remove its directory. Does nothing in a forked child."""
        import shutil

        if os.getpid() != self._owner:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            if not _ended(self._process, END_S):
                self._process.kill()  # its workers notice that and end themselves
                self._process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)


def start_private(settings: Config) -> PrivateServer:
    """Start a server for this process and wait until its workers are there."""
    import subprocess
    import tempfile

    token = secrets.token_hex(16)
    directory = _make_directory()
    ready_r, ready_w = os.pipe()
    ready_w, user_stderr = _beside_streams(ready_w), _beside_streams(_user_stderr())
    with tempfile.TemporaryFile() as said:  # its stderr until it is ready; then it gets the user's
        command = [sys.executable, "-m", "gt.server", "--private", directory, "--parent", str(os.getpid())]
        command += ["--engine", settings.engine, "--workers", str(settings.workers)]
        command += ["--ready-fd", str(ready_w), "--stderr-fd", str(user_stderr)]
        try:
            process = subprocess.Popen(
                command,
                env=config.environment(token=token, device=settings.device, server=""),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                pass_fds=(ready_w, user_stderr),
                start_new_session=True,  # Ctrl-C in the terminal reaches the client alone
            )
        except OSError as e:
            os.close(ready_r)
            os.rmdir(directory)  # nothing is in it yet
            raise StartError(f"cannot start a private server: {e}") from None
        finally:
            os.close(ready_w)
            os.close(user_stderr)
        server = PrivateServer(process, directory, token)
        try:
            answer = _read_answer(ready_r, settings.start_timeout_s)
            if answer != "ready":
                raise StartError(f"cannot start a private server: {_reason(answer, process, said, settings)}")
        except BaseException:
            server.close()
            raise
        finally:
            os.close(ready_r)
    return server


def _make_directory() -> str:
    """A new directory for this user alone. Its path is short: that of a socket has at most 107 bytes."""
    import tempfile

    directory = tempfile.mkdtemp(prefix="gt-")
    if len(os.fsencode(directory)) > 100:
        os.rmdir(directory)
        directory = tempfile.mkdtemp(prefix="gt-", dir="/tmp")
    return directory


def _user_stderr() -> int:
    try:
        return os.dup(2)
    except OSError:  # closed, as in some daemons
        return os.open(os.devnull, os.O_WRONLY)


def _beside_streams(fd: int) -> int:
    """The same file under a descriptor >= 3: the standard streams are different files in the child."""
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(fd)
    return moved


def _read_answer(fd: int, timeout_s: float) -> str:
    """The line that the server writes when it is ready or has failed; empty if it wrote none."""
    deadline = time.monotonic() + timeout_s
    text = b""
    poll = select.poll()  # and not `select`, which knows the first 1024 files of a process only
    poll.register(fd, select.POLLIN)
    while not text.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            return "failed: time is up"
        data = os.read(fd, 4096)
        if not data:
            break
        text += data
    return text.decode(errors="replace").strip()


def _reason(answer: str, process: subprocess.Popen[bytes], said: IO[bytes], settings: Config) -> str:
    said.seek(0)
    tail = last_line(said.read()[-4096:])
    if answer == "failed: time is up":
        so_far = f"; its last line was: {tail}" if tail else ""
        return f"it was not ready after {settings.start_timeout_s:g} s (GT_START_TIMEOUT){so_far}"
    if answer:
        return answer.removeprefix("failed: ")
    _ended(process, 1.0)
    return tail or f"it ended with exit code {process.poll()}"


def _ended(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    """Wait for the process; whether it ended within the time."""
    import subprocess

    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def last_line(said: bytes) -> str:
    """The last line that is not empty, without the name of the program that wrote it."""
    lines = [line.strip() for line in said.decode(errors="replace").splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    for name in ("gt worker: ", "gt serve: ", "gt: "):
        last = last.removeprefix(name)
    return last
