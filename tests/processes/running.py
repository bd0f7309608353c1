"""Real processes for the tests: watched by their ids, with their output at hand."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import IO, Any, NoReturn

from gt.transport import connect
from gt.transport.channel import Channel
from gt.transport.messages import VERSION, Hello, Message

DEADLINE_S = 30.0  #: For what a loaded machine may do slowly; nothing waits that long when all is well.


def environment(**changes: str) -> dict[str, str]:
    """This process's environment without GT's settings, and these changes."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("GT_")}
    return {**kept, "PYTHONUNBUFFERED": "1", **changes}


def alive(pid: int) -> bool:
    """Whether the process runs. One that has ended and was not waited for does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def children(pid: int) -> list[int]:
    """The process ids of the children of a process; not of its forks, such as the one that writes a server's log."""
    found, own = [], command(pid)
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[1]) == pid and command(int(entry.name)) != own:
                    found.append(int(entry.name))
    return found


def command(pid: int) -> bytes:
    """The command line of a process; nothing if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def open_files(pid: int) -> dict[int, str]:
    """What a process has open, by descriptor. It may close one, or end, while it is asked."""
    found = {}
    with suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                found[int(link.name)] = os.readlink(link)
    return found


def until(condition: Callable[[], object], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Wait for a condition that other processes bring about."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {deadline_s:g} s: {what}"
        select.select([], [], [], 0.01)


def said_by_workers(stats: Callable[[], dict[str, Any]]) -> list[dict[str, Any]]:
    """What each worker says; `stats` asks for it. One that is busy for long may not answer at once."""
    found: list[dict[str, Any]] = []

    def answered() -> bool:
        found[:] = stats()["workers"].values()
        return all(worker["answered"] for worker in found)

    until(answered, "an answer of every worker")
    return found


def until_gone(pids: list[int], deadline_s: float) -> None:
    until(lambda: not any(alive(p) for p in pids), f"the end of {pids}", deadline_s)


def exit_with(problems: list[str]) -> NoReturn:
    """End a command that has looked for problems: print them; the exit code is 1 if there are some."""
    for problem in problems:
        print(f"WRONG: {problem}", file=sys.stderr)
    print(f"{len(problems)} problems")
    sys.exit(bool(problems))


def output_of(arguments: list[str], deadline_s: float = 2 * DEADLINE_S, **env: str) -> str:
    """What a Python process prints that goes well and has nothing to complain of."""
    process = Process(arguments, environment(**env))
    try:
        return process.output(deadline_s)
    finally:
        process.popen.kill()


def greet(address: str, token: str = "", version: int = VERSION) -> Message:
    """What a server answers to a client's first message."""
    with closing(connect(address)) as channel:
        channel.send(Hello(version, token, "test"))
        return answer(channel)


def answer(channel: Channel) -> Message:
    """The next message on a connection."""
    got = channel.receive(DEADLINE_S)
    assert got is not None, "no answer"
    return got[0]


def knock(address: str, said: bytes, wait_s: float = 0.0) -> bytes:
    """Say something to a port, as a stranger; what comes back until the connection ends, which it must. With `wait_s`
    it need not, nor must there be anybody: what comes back until nothing comes for so long."""
    host, _, port = address.rpartition(":")
    got = b""
    with suppress(*[OSError] * bool(wait_s)), socket.create_connection((host, int(port)), DEADLINE_S) as s:
        s.settimeout(wait_s or DEADLINE_S)
        with suppress(OSError):  # the other side may have hung up already
            s.sendall(said)
            s.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            while data := s.recv(4096):
                got += data
    return got


class Process:
    """A GT process with its output at hand."""

    def __init__(
        self,
        arguments: list[str],
        env: dict[str, str],
        stdin: int = subprocess.DEVNULL,
        stderr: int | IO[bytes] = subprocess.PIPE,
    ) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, *arguments],
            env=env,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=stderr,
            bufsize=0,  # else a line could wait in a buffer where select does not see it
            start_new_session=True,
        )
        self.pid = self.popen.pid

    def line(self, stream: str = "stdout", deadline_s: float = DEADLINE_S) -> str:
        """The next line on its stdout or stderr; empty at its end."""
        pipe: IO[bytes] = getattr(self.popen, stream)
        ready, _, _ = select.select([pipe], [], [], deadline_s)
        assert ready, f"it wrote nothing to {stream}"
        return pipe.readline().decode().rstrip("\n")

    def signal(self, number: int) -> None:
        self.popen.send_signal(number)

    def end(self, deadline_s: float = DEADLINE_S) -> tuple[int, str, str]:
        """Wait for its end: exit code, the rest of stdout, stderr."""
        out, err = self.popen.communicate(timeout=deadline_s)
        return self.popen.returncode, out.decode(), err.decode()

    def output(self, deadline_s: float = DEADLINE_S) -> str:
        """The rest of stdout, at its end, which must be a good one without complaints."""
        code, out, err = self.end(deadline_s)
        assert (code, err) == (0, ""), out + err
        return out

    def stop(self) -> None:
        """Ask it to end; it does so in order."""
        self.signal(signal.SIGTERM)
        assert self.end() == (0, "", "")


class Server(Process):
    """A server that is ready. `python -m gt.server` with these arguments, on a free port unless they say otherwise."""

    def __init__(self, *arguments: str, **env: str) -> None:
        where = [] if "--address" in arguments else ["-p", "0"]
        super().__init__(["-m", "gt.server", *where, *arguments], environment(**env))
        line = self.line()
        assert line.startswith("gt: serving on "), line
        self.address = line.removeprefix("gt: serving on ").partition(",")[0]

    @property
    def workers(self) -> list[int]:
        """The process ids of the workers that it has started."""
        return children(self.pid)


#: The fixtures of these names: start("-m", "gt.server", ..., GT_TOKEN="x"), and serve("--workers", "2").
Start = Callable[..., Process]
Serve = Callable[..., tuple[Server, str]]


def join(start: Start, address: str, *arguments: str, **env: str) -> Process:
    """A worker started by hand, once it has joined."""
    host, _, port = address.rpartition(":")
    where = ("--host", host, "-p", port, "--engine", "numpy")
    worker = start("-m", "gt.worker", *where, *arguments, GT_VERBOSE="1", **env)
    line = worker.line("stderr")
    assert "joined" in line, line
    return worker
