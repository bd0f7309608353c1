"""How a worker is found by workers of other machines, and finds them: its addresses, and the process at its door.

Law 1: a worker of a server that other machines can reach has one open port, at the door (tunnel.py). Its store and
       gloo listen on loopback addresses.
Law 2: before a group is made, each worker has tried the addresses of the others. A worker that answers on
       a loopback address is on the same machine, and is connected to directly; others through the two doors.

A worker of a server on loopback or on a Unix socket needs none of this: all are on one machine.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gt import config
from gt.errors import PeerFailed
from gt.worker.run import tunnel

HIGHER = "127.200.200.127"  #: Above all homes; nothing listens there.
NEAR = ("127.",)  #: Addresses that mean: the same machine.
OPEN_S = 10.0  #: How long the process at the door may take to open a port.
_SIOCGIFADDR = 0x8915
#: An address of gloo as it is in memory: family, port, IPv4 address. Before it is told to others, the address is
#: replaced by MARK and the last two bytes of the worker's number.
_MARK = b"\x7f\x65"
_TOLD = re.compile(rb"\x02\x00(..)" + re.escape(_MARK) + rb"(..)", re.DOTALL)


def own_addresses(server: str) -> list[str]:
    """The IPv4 addresses of this machine but loopback ones, that of the way to the server first."""
    found: list[str] = []
    with suppress(OSError, ValueError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        host, _, port = server.removeprefix("tcp://").rpartition(":")
        probe.connect((host, int(port)))  # sends nothing
        found.append(probe.getsockname()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # an interface without an address
                answer = fcntl.ioctl(s.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                found.append(socket.inet_ntoa(answer[20:24]))
    return [a for a in dict.fromkeys(found) if not a.startswith("127.") and a != "0.0.0.0"]


@dataclass(frozen=True)
class Route:
    """How another worker is reached."""

    direct: bool  #: it is on this machine
    store: int  #: port of its store, on its machine


class Reach:
    """See the file's header."""

    def __init__(self, server: str) -> None:
        door = socket.create_server(("0.0.0.0", 0), backlog=128)
        port = door.getsockname()[1]
        #: Where the store of this worker listens.
        self.listening = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.me = 0
        self.addresses = " ".join(f"{a}:{port}" for a in ["127.0.0.1", *own_addresses(server)])
        #: Called with a worker and what went wrong ("": it answers), in a thread of its own.
        self.report: Callable[[int, str], None] | None = None
        self.ended: Callable[[], None] | None = None  #: Called when the process at the door has ended.
        self._early: list[tuple[int, str]] = []  #: What became known before somebody wanted to know.
        self._routes: dict[int, Route] = {}
        self._peers: dict[int, str] = {}
        self._opened: dict[int, int] = {}  #: By number of the question: the port.
        self._asked = 0
        self._changed = threading.Condition()
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(Path(tunnel.__file__)), str(door.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(door.fileno(),),
            env=config.environment(token="", server=""),  # their secrets are not meant for this process
            start_new_session=True,
        )
        door.close()
        self._order(allow=self.listening.getsockname()[1])
        self._listener = threading.Thread(target=self._hear, name="door", daemon=True)
        self._listener.start()

    def know(self, addresses: Mapping[int, str], secret: str) -> None:
        """The addresses of the workers now, and what they prove to each other that they know."""
        with self._changed:
            self._peers = dict(addresses)
            self._routes = {n: r for n, r in self._routes.items() if n in addresses}
        store = self.listening.getsockname()[1]
        others = {str(n): text.split() for n, text in addresses.items()}
        self._order(me=self.me, secret=secret.encode().hex(), peers=others, store=store)

    def begin(self, report: Callable[[int, str], None]) -> None:
        """From now on, report what becomes known."""
        with self._changed:
            self.report, early = report, self._early
            self._early = []
        for each in early:
            report(*each)

    def close(self) -> None:
        """End the process at the door."""
        self.ended = None
        self._process.kill()
        self._process.wait()
        self._listener.join()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self.listening.close()

    def store_of(self, worker: int) -> tuple[str, int]:
        """The address of another worker's store, on this machine."""
        route = self._route(worker)
        return ("127.0.0.1", route.store) if route.direct else (tunnel.LOWER, self._open(worker, route.store))

    # --- addresses of gloo ---------------------------------------------------------------------

    def told(self, value: bytes) -> bytes:
        """What this worker tells others, with its own address marked."""

        def mark(found: re.Match[bytes]) -> bytes:
            self._order(allow=int.from_bytes(found[1], "big"))
            return b"\x02\x00" + found[1] + _MARK + (self.me & 0xFFFF).to_bytes(2, "big")

        mine = re.escape(socket.inet_aton(tunnel.home(self.me)))
        return re.sub(rb"\x02\x00(..)" + mine, mark, value, flags=re.DOTALL)

    def heard(self, value: bytes) -> bytes:
        """What another worker told, with its address as this worker can use it. Of two workers the one with the higher
        number connects, for gloo lets the one connect that has the higher address. Both must see it so, also if only
        one of them has reached the other on this machine."""

        def unmark(found: re.Match[bytes]) -> bytes:
            told, port = int.from_bytes(found[2], "big"), int.from_bytes(found[1], "big")
            worker = next((n for n in self._peers if n & 0xFFFF == told), 0)
            host = tunnel.home(told)
            if worker != self.me and not self._route(worker).direct:
                if worker < self.me:
                    host, port = tunnel.LOWER, self._open(worker, port)
                else:
                    host = HIGHER
            return b"\x02\x00" + port.to_bytes(2, "big") + socket.inet_aton(host)

        return _TOLD.sub(unmark, value)

    # --- the process at the door ----------------------------------------------------------------

    def _route(self, worker: int) -> Route:
        route = self._routes.get(worker)
        if route is None:
            why = "has not answered at any address" if worker in self._peers else "is gone"
            raise PeerFailed(f"worker {worker} {why}")
        return route

    def _open(self, worker: int, port: int) -> int:
        with self._changed:
            self._asked += 1
            number = self._asked
        self._order(open=worker, port=port, id=number)
        with self._changed:
            if not self._changed.wait_for(lambda: number in self._opened, OPEN_S):
                raise PeerFailed("the process at this worker's door does not answer")
            return self._opened.pop(number)

    def _order(self, **what: Any) -> None:
        assert self._process.stdin is not None
        line = json.dumps(what).encode() + b"\n"
        with self._changed:
            try:
                os.write(self._process.stdin.fileno(), line)
            except OSError:
                raise PeerFailed("the process at this worker's door has ended; start the worker again") from None

    def _hear(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            if "id" in said:
                with self._changed:
                    self._opened[said["id"]] = said["port"]
                    self._changed.notify_all()
                continue
            worker, found = said["reached"], (said["reached"], said["error"])
            with self._changed:
                if not said["error"]:
                    self._routes[worker] = Route(said["route"].startswith(NEAR), said["store"])
                report = self.report
                if report is None:
                    self._early.append(found)
            if report is not None:
                report(*found)
        if self.ended is not None:
            self.ended()
