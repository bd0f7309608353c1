"""Machines that are not there: network namespaces of this one, with a bridge between them.

They share the files and processes of this machine, and have interfaces, addresses and a loopback of their own. Making
them needs root.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from .running import Process, environment


def possible() -> bool:
    """Whether this kernel and user can make namespaces."""
    name = f"gt-{os.getpid()}-try"
    try:
        _ip("netns", "add", name)
    except (OSError, subprocess.CalledProcessError):
        return False
    _ip("netns", "del", name)
    return True


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class Machine:
    """One namespace."""

    def __init__(self, name: str, address: str, switch: Machine | None = None, port: str = "") -> None:
        self.name = name
        self.address = address
        self._switch, self._port = switch, port

    def start(self, *arguments: str, stdin: int = subprocess.DEVNULL, **env: str) -> Process:
        """Start a Python process there."""
        enter = ["-c", _ENTER, self.name, sys.executable, *arguments]
        return Process(enter, environment(**env), stdin)

    def ip(self, *arguments: str) -> None:
        _ip("-n", self.name, *arguments)

    def plug(self, is_in: bool) -> None:
        """Pull its network cable, or put it back."""
        assert self._switch is not None
        self._switch.ip("link", "set", self._port, "up" if is_in else "down")


#: Enters the namespace and becomes the command: its process id is that of the process that a test started.
_ENTER = """
import ctypes, os, sys
fd = os.open(f"/run/netns/{sys.argv[1]}", os.O_RDONLY)
assert ctypes.CDLL(None, use_errno=True).setns(fd, 0x40000000) == 0
os.close(fd)
os.execv(sys.argv[2], sys.argv[2:])
"""


@contextmanager
def machines(count: int) -> Iterator[list[Machine]]:
    """Machines 10.77.0.1, 10.77.0.2, ... of one network; they are gone afterwards."""
    tag = f"gt{os.getpid() % 100000}"
    switch = Machine(f"{tag}-0", "")
    found = [Machine(f"{tag}-{k}", f"10.77.0.{k}", switch, f"port{k}") for k in range(1, count + 1)]
    try:
        _ip("netns", "add", switch.name)
        switch.ip("link", "add", "bridge", "type", "bridge")
        switch.ip("link", "set", "bridge", "up")
        for k, machine in enumerate(found, 1):
            _ip("netns", "add", machine.name)
            machine.ip("link", "set", "lo", "up")
            switch.ip("link", "add", f"port{k}", "type", "veth", "peer", "name", "eth0", "netns", machine.name)
            switch.ip("link", "set", f"port{k}", "master", "bridge", "up")
            machine.ip("addr", "add", f"{machine.address}/24", "dev", "eth0")
            machine.ip("link", "set", "eth0", "up")
        yield found
    finally:
        for each in [*found, switch]:
            with suppress(subprocess.CalledProcessError):
                _ip("netns", "del", each.name)
