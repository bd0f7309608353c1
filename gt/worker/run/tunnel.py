"""The worker's door to other machines: a process of its own that carries the bytes of its groups. Run as a script.

Law 1: it is the only process of a worker that listens where other machines can reach it, and it answers nobody who has
       not proved to be a worker of the same server. A stranger gets random bytes and then the end of the connection.
Law 2: a proof is worth one connection: both sides choose a number for it, and the proof covers both.
Law 3: it connects others to those ports of its worker that it was told, and to no other.
Law 4: it ends with its worker. If an end of a connection closes, so does the other end; a machine that vanished is
       noticed within LOST_S.

It knows nothing of torch or GT, and imports the standard library alone. Its worker tells it things on stdin and hears
of them on stdout, one JSON value per line:

    {"me": 2, "secret": "..", "peers": {"1": ["127.0.0.1:4000", ..]}, "store": 5001}   who is there, and what to use
    {"allow": 5002}                         others may connect to this port of 127.0.0.1 (or of its home)
    {"open": 1, "port": 5003, "id": 7}      -> {"id": 7, "port": 6001}: LOWER:6001 here is now 5003 of worker 1
    (unasked)                               -> {"reached": 1, "route": "10.0.0.1:4000", "store": 5001, "error": ""}

How two of them meet: the listener sends 32 random bytes. The caller sends MAGIC, 32 of its own, its number, the number
that it wants to reach, the port (0: it only asks), and an HMAC of all of this and of the listener's bytes. The listener
answers OK, the port of its store and an HMAC of everything; then bytes go both ways as they come. They are not
encrypted.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import os
import secrets
import socket
import struct
import sys
import threading
import time
from contextlib import suppress
from typing import Any

MAGIC = b"GT-TUNNEL-1\n"
LOWER = "127.50.50.127"  #: Where this process listens for its own worker: below all homes.
ASK = struct.Struct("!12s32sQQH")
ANSWER = struct.Struct("!BH32s")
TRY_S = 3.0  #: How long an address may take to answer.
AGAIN_S = 5.0  #: After this time an address that did not answer is tried again.
MEET_S = 5.0  #: How long a stranger may take to prove who it is.
LOST_S = 10  #: When a machine that does not answer counts as lost.
WAITING = 128  #: Connections that have not proved anything yet; the oldest gives way to another.
PIPE_NBYTES = 1 << 20


def home(worker: int) -> str:
    """Where gloo of a worker listens, on its own machine. The higher its number, the higher the address.

    >>> home(1), home(258)
    ('127.100.0.1', '127.100.1.2')
    """
    return f"127.100.{worker >> 8 & 0xFF}.{worker & 0xFF}"


def proof(secret: bytes, *parts: bytes) -> bytes:
    return hmac.new(secret, b"".join(parts), hashlib.sha256).digest()


def receive(s: socket.socket, nbytes: int) -> bytes:
    """So many bytes; raises ConnectionError if the connection ends before."""
    found = b""
    while len(found) < nbytes:
        data = s.recv(nbytes - len(found))
        if not data:
            raise ConnectionError("it closed the connection")
        found += data
    return found


def settle(s: socket.socket) -> None:
    """Options of a connection between machines."""
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 3), (socket.TCP_KEEPINTVL, 2), (socket.TCP_KEEPCNT, 3)):
        s.setsockopt(socket.IPPROTO_TCP, option, value)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, LOST_S * 1000)


class Stranger(ConnectionError):
    """Somebody answers who does not prove to be the worker that was called."""


class Closed(ConnectionError):
    """The other worker does not let anybody connect to this port."""


class Tunnel:
    """See the file's header."""

    def __init__(self, listening: socket.socket) -> None:
        self.listening = listening
        self.me = 0
        self.secret = b""
        self.store = 0
        self.peers: dict[int, list[str]] = {}
        self.routes: dict[int, str] = {}  #: By worker: its address that answered.
        self.allowed: set[int] = set()
        self.doors: dict[tuple[int, int], socket.socket] = {}  #: By worker and port.
        self.lock = threading.Lock()
        self.waiting: dict[socket.socket, None] = {}  #: Connections that have proved nothing yet.
        self.news = threading.Event()

    # --- what the worker says ---------------------------------------------------------------

    def listen_to_worker(self) -> None:
        for line in sys.stdin:
            order = json.loads(line)
            if "peers" in order:
                self.know(order)
            elif "allow" in order:
                self.allowed.add(order["allow"])
            else:
                self.open(order)

    def know(self, order: dict[str, Any]) -> None:
        peers = {int(n): addresses for n, addresses in order["peers"].items() if int(n) != order["me"]}
        with self.lock:
            self.me, self.secret, self.store = order["me"], bytes.fromhex(order["secret"]), order["store"]
            self.routes = {n: route for n, route in self.routes.items() if self.peers.get(n) == peers.get(n)}
            self.peers = peers
            for gone in [key for key in self.doors if key[0] not in peers]:
                self.doors.pop(gone).close()
        self.news.set()

    def open(self, order: dict[str, Any]) -> None:
        worker, port = order["open"], order["port"]
        with self.lock:
            door = self.doors.get((worker, port))
            if door is None:
                door = self.doors[worker, port] = socket.create_server((LOWER, 0), backlog=128)
                threading.Thread(target=self.carry_from, args=(door, worker, port), daemon=True).start()
        say(id=order["id"], port=door.getsockname()[1])

    # --- trying -------------------------------------------------------------------------------

    def try_others(self) -> None:
        """Try the addresses of the others, all at once, and again where none answered."""
        said: dict[int, tuple[str, str]] = {}
        trying: set[int] = set()

        def attempt(worker: int, addresses: list[str]) -> None:
            route, store, error = self.ask(worker, addresses)
            with self.lock:
                trying.discard(worker)
                if self.peers.get(worker) != addresses:
                    self.news.set()
                    return  # it is gone, or is somewhere else
                if route:
                    self.routes[worker] = route
                if said.get(worker) != (route, error):
                    said[worker] = (route, error)
                    say(reached=worker, route=route, store=store, error=error)

        while True:
            with self.lock:
                for gone in set(said) - set(self.peers):
                    del said[gone]
                todo = {n: a for n, a in self.peers.items() if n not in self.routes and n not in trying}
                trying.update(todo)
            for worker, addresses in todo.items():
                threading.Thread(target=attempt, args=(worker, addresses), daemon=True).start()
            self.news.wait(AGAIN_S)
            self.news.clear()

    def ask(self, worker: int, addresses: list[str]) -> tuple[str, int, str]:
        """The first address that answers, the port of its store there, and else what went wrong with each."""
        until_s = time.monotonic() + MEET_S
        while True:
            wrong, strange = [], False
            for address in addresses:
                try:
                    s, store = self.call(worker, address, 0)
                    s.close()
                    return address, store, ""
                except Stranger as e:
                    strange = True
                    wrong.append(f"{address} ({e})")
                    if time.monotonic() < until_s:
                        break  # maybe it is the right one, and has not yet heard of this worker
                except OSError as e:
                    if not address.startswith("127."):  # this machine: one of several workers on it
                        wrong.append(f"{address} ({why(e)})")
            if not strange or time.monotonic() > until_s or self.peers.get(worker) != addresses:
                return "", 0, ", ".join(wrong) or "it has no address that other machines can use"
            time.sleep(0.05)

    def call(self, worker: int, address: str, port: int) -> tuple[socket.socket, int]:
        """A connection to a port of another worker, and the port of its store; both sides have proved who they are."""
        host, _, text = address.rpartition(":")
        s = socket.create_connection((host, int(text)), TRY_S)
        try:
            settle(s)
            secret, mine = self.secret, secrets.token_bytes(32)
            try:
                theirs = receive(s, 32)
                asked = ASK.pack(MAGIC, mine, self.me, worker, port)
                s.sendall(asked + proof(secret, b"caller", theirs, asked))
                ok, store, proved = ANSWER.unpack(receive(s, ANSWER.size))
            except ConnectionError:
                raise Stranger("who listens there is not this worker") from None
            if not hmac.compare_digest(proved, proof(secret, b"listener", theirs, asked, bytes([ok]))):
                raise Stranger("who listens there is not a worker of this server")
            if not ok:
                raise Closed("it has no such port")
            s.settimeout(None)
            return s, store
        except BaseException:
            s.close()
            raise

    # --- carrying -----------------------------------------------------------------------------

    def carry_from(self, door: socket.socket, worker: int, port: int) -> None:
        """Connections of this process's own worker to a port of another one."""
        while True:
            try:
                near, source = door.accept()
            except OSError:
                return  # closed: the other worker is gone
            if ours(source, door.getsockname()):
                threading.Thread(target=self.connect, args=(near, worker, port), daemon=True).start()
            else:
                near.close()

    def connect(self, near: socket.socket, worker: int, port: int) -> None:
        until_s = time.monotonic() + MEET_S
        while True:
            try:
                far, _ = self.call(worker, self.routes.get(worker, ""), port)
                break
            except (OSError, ValueError) as e:
                # A new secret becomes known to the two machines at different moments.
                if isinstance(e, Closed) or time.monotonic() > until_s or worker not in self.peers:
                    near.close()
                    return
                time.sleep(0.05)
        carry(near, far)

    def listen_to_others(self) -> None:
        while True:
            try:
                s, _ = self.listening.accept()
            except OSError as e:
                if self.listening.fileno() < 0:
                    raise SystemExit(0) from e
                time.sleep(0.05)  # no descriptors left, say
                continue
            with self.lock:
                if len(self.waiting) >= WAITING:
                    with suppress(OSError):
                        next(iter(self.waiting)).shutdown(socket.SHUT_RDWR)  # its thread then ends
                self.waiting[s] = None
            threading.Thread(target=self.admit, args=(s,), daemon=True).start()

    def admit(self, far: socket.socket) -> None:
        """Let in who proves to be a worker of this server."""
        try:
            near = self.check(far)
        except (OSError, struct.error):
            near = None
            far.close()
        finally:
            with self.lock:
                self.waiting.pop(far, None)
        if near is not None:
            carry(near, far)

    def check(self, far: socket.socket) -> socket.socket | None:
        """The port of this worker that was asked for; None if the other one only wanted to know who is here."""
        settle(far)
        deadline_s = time.monotonic() + MEET_S
        mine = secrets.token_bytes(32)
        far.settimeout(MEET_S)
        far.sendall(mine)
        text = b""
        while len(text) < ASK.size + 32:
            far.settimeout(max(0.01, deadline_s - time.monotonic()))
            data = far.recv(ASK.size + 32 - len(text))
            if not data or time.monotonic() > deadline_s:
                raise ConnectionError
            text += data
        asked, proved = text[: ASK.size], text[ASK.size :]
        magic, _, _, wanted, port = ASK.unpack(asked)
        secret = self.secret
        good = bool(secret) and hmac.compare_digest(proved, proof(secret, b"caller", mine, asked))
        if not good or magic != MAGIC or wanted != self.me:
            raise ConnectionError
        near = None
        if port in self.allowed:
            with suppress(OSError):
                near = socket.create_connection((home(self.me) if port != self.store else "127.0.0.1", port), MEET_S)
                near.settimeout(None)
                near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ok = bytes([port == 0 or near is not None])
        far.settimeout(MEET_S)
        far.sendall(ANSWER.pack(ok[0], self.store, proof(secret, b"listener", mine, asked, ok)))
        far.settimeout(None)
        if near is None:
            far.close()
        return near


def ours(source: tuple[str, int], door: tuple[str, int]) -> bool:
    """Whether a connection on this machine was made by a process of the same user."""
    wanted = (_in_table(*source), _in_table(*door))
    for name, before in (("tcp", ""), ("tcp6", "0000000000000000FFFF0000")):  # torch's sockets speak both protocols
        with suppress(OSError), open(f"/proc/net/{name}") as table:
            for line in table:
                fields = line.split()
                if (fields[1], fields[2]) == (before + wanted[0], before + wanted[1]):
                    return int(fields[7]) == os.getuid()
    return False


def _in_table(host: str, port: int) -> str:
    """An address as /proc/net/tcp writes it."""
    return f"{struct.unpack('=I', socket.inet_aton(host))[0]:08X}:{port:04X}"


def carry(a: socket.socket, b: socket.socket) -> None:
    """Carry the bytes of two connections both ways until one of them ends; then both are closed."""
    a.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    other = threading.Thread(target=pour, args=(b, a), daemon=True)
    other.start()
    pour(a, b)
    other.join()
    a.close()
    b.close()


def pour(source: socket.socket, sink: socket.socket) -> None:
    """Move bytes in the kernel, without looking at them."""
    read_fd, write_fd = os.pipe()
    ends: tuple[socket.socket, ...] = (source, sink)
    try:
        with suppress(OSError):  # more than a user may have: then the pipe stays small
            fcntl.fcntl(write_fd, fcntl.F_SETPIPE_SZ, PIPE_NBYTES)
        while n := os.splice(source.fileno(), write_fd, PIPE_NBYTES):
            while n:
                n -= os.splice(read_fd, sink.fileno(), n)
        ends = ()  # it has said everything, and may still listen
    except OSError:
        pass
    finally:
        os.close(read_fd)
        os.close(write_fd)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
        for s in ends:
            with suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)


def why(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {TRY_S:g} s"
    return (error.strerror or str(error) or type(error).__name__).lower()


_saying = threading.Lock()


def say(**what: Any) -> None:
    with _saying:
        os.write(1, json.dumps(what).encode() + b"\n")


def main() -> None:
    tunnel = Tunnel(socket.socket(fileno=int(sys.argv[1])))
    for target in (tunnel.try_others, tunnel.listen_to_others):
        threading.Thread(target=target, daemon=True).start()
    with suppress(OSError, ValueError, KeyboardInterrupt):
        tunnel.listen_to_worker()
    os._exit(0)  # its worker is gone


if __name__ == "__main__":
    main()
