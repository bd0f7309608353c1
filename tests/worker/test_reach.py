"""The doors of workers: who proves to be a worker of the same server gets in, and nobody else gets anything."""

from __future__ import annotations

import queue
import secrets
import socket
import threading
from collections.abc import Iterator

import pytest

from gt.errors import PeerFailed
from gt.worker.run import tunnel
from gt.worker.run.reach import HIGHER, Reach, Route, own_addresses
from tests.processes.running import knock

SECRET = secrets.token_hex(32)
DEADLINE_S = 20.0


class Ends:
    """Workers with their doors, and what they found out about each other."""

    def __init__(self, *numbers: int) -> None:
        self.news: queue.SimpleQueue[tuple[int, int, str]] = queue.SimpleQueue()
        self.of = {n: Reach("127.0.0.1:1") for n in numbers}
        for n, reach in self.of.items():
            reach.me = n
            reach.begin(lambda worker, error, n=n: self.news.put((n, worker, error)))  # type: ignore[misc]
        #: Not the loopback address, so that they go through their doors.
        self.addresses = {n: self.door(n, "127.0.0.2") for n in numbers}

    def door(self, n: int, host: str = "127.0.0.1") -> str:
        return f"{host}:{self.of[n].addresses.split()[0].rpartition(':')[2]}"

    def know(self, secret: str = SECRET) -> dict[tuple[int, int], str]:
        """Tell all of all; returns what they find: (who, whom) -> what went wrong."""
        for reach in self.of.values():
            reach.know(self.addresses, secret)
        found: dict[tuple[int, int], str] = {}
        while len(found) < len(self.of) * (len(self.of) - 1):
            who, whom, error = self.news.get(timeout=DEADLINE_S)
            found[who, whom] = error
        return found

    def close(self) -> None:
        for reach in self.of.values():
            reach.close()


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ends]:
    monkeypatch.setattr("gt.worker.run.reach.NEAR", ("127.0.0.1:",))  # 127.0.0.2 is another machine
    ends = Ends(1, 2)
    yield ends
    ends.close()


def connected(ends: Ends) -> tuple[socket.socket, socket.socket]:
    """A connection of worker 2 to the store of worker 1, both ends."""
    near = socket.create_connection(ends.of[2].store_of(1), DEADLINE_S)
    ends.of[1].listening.settimeout(DEADLINE_S)
    far, _ = ends.of[1].listening.accept()
    far.settimeout(DEADLINE_S)
    return near, far


def test_bytes_go_both_ways_and_ends_are_passed_on(two: Ends) -> None:
    assert two.know() == {(1, 2): "", (2, 1): ""}
    near, far = connected(two)
    data = secrets.token_bytes(3_000_000)
    threading.Thread(target=near.sendall, args=(data,)).start()
    assert tunnel.receive(far, len(data)) == data
    far.sendall(b"enough")
    far.close()
    assert near.recv(100) == b"enough"
    assert near.recv(100) == b""
    near.close()


def test_a_worker_on_the_same_machine_is_reached_directly() -> None:
    ends = Ends(1, 2)
    ends.addresses = {n: reach.addresses for n, reach in ends.of.items()}
    try:
        ends.know()
        assert ends.of[2].store_of(1) == ends.of[1].listening.getsockname()
    finally:
        ends.close()


def test_addresses_of_gloo_are_translated(two: Ends) -> None:
    two.know()
    one, other = two.of[1], two.of[2]
    port = one.listening.getsockname()[1].to_bytes(2, "big")
    blob = b"before\x02\x00" + port + socket.inet_aton(tunnel.home(1)) + b"after"
    told = one.told(blob)
    assert one.heard(told) == blob
    heard = other.heard(told)
    assert heard.startswith(b"before\x02\x00")
    assert heard.endswith(socket.inet_aton(tunnel.LOWER) + b"after"), "the higher number connects to the lower one"
    assert socket.inet_aton(HIGHER) in one.heard(other.told(blob.replace(b"\x7f\x64\x00\x01", b"\x7f\x64\x00\x02")))
    assert one.told(b"nothing of that kind") == b"nothing of that kind"


@pytest.mark.parametrize("found_by", [(), (1,), (2,), (1, 2)], ids=str)
def test_one_of_two_workers_connects_whoever_has_found_the_other_on_this_machine(
    two: Ends, found_by: tuple[int, ...]
) -> None:
    two.know()
    for n in found_by:
        two.of[n]._routes[3 - n] = Route(True, two.of[n]._routes[3 - n].store)
    port = two.of[1].listening.getsockname()[1].to_bytes(2, "big")
    own = {n: b"\x02\x00" + port + socket.inet_aton(tunnel.home(n)) for n in (1, 2)}
    connects = [n for n in (1, 2) if own[n][4:] > two.of[n].heard(two.of[3 - n].told(own[3 - n]))[4:]]
    assert connects == [2]  # gloo lets the one connect whose own address is higher, and waits on both sides if none is


def ended(s: socket.socket) -> bytes:
    """All that comes until the connection ends."""
    s.settimeout(DEADLINE_S)
    got = b""
    try:
        while data := s.recv(1000):
            got += data
    except ConnectionError:
        pass
    return got


@pytest.mark.parametrize(
    "said",
    [b"", b"GET / HTTP/1.1\r\n\r\n", bytes(200), tunnel.MAGIC + bytes(200), secrets.token_bytes(5000)],
    ids=["nothing", "http", "zeros", "magic", "noise"],
)
def test_a_stranger_gets_random_bytes_and_the_end(two: Ends, said: bytes) -> None:
    two.know()
    assert len(knock(two.door(1), said)) <= 32
    near, far = connected(two)  # and everybody else is served
    near.close()
    far.close()


def test_what_was_heard_once_is_worth_nothing(two: Ends) -> None:
    """Somebody between the two machines records a connection, and says the same again."""
    said: list[bytes] = []
    between = socket.create_server(("127.0.0.2", 0))

    def relay() -> None:
        host, _, port = two.door(1).rpartition(":")
        caller, _ = between.accept()
        listener = socket.create_connection((host, int(port)))
        caller.sendall(tunnel.receive(listener, 32))
        said.append(tunnel.receive(caller, tunnel.ASK.size + 32))
        listener.sendall(said[0])
        caller.sendall(tunnel.receive(listener, tunnel.ANSWER.size))
        caller.close()
        listener.close()

    thread = threading.Thread(target=relay)
    thread.start()
    two.addresses[1] = f"127.0.0.2:{between.getsockname()[1]}"
    assert two.know()[2, 1] == ""
    thread.join()
    host, _, port = two.door(1).rpartition(":")
    with socket.create_connection((host, int(port)), DEADLINE_S) as s:
        tunnel.receive(s, 32)
        s.sendall(said[0])
        assert ended(s) == b""
    between.close()


def test_a_worker_of_another_server_is_refused(two: Ends) -> None:
    two.of[1].know(two.addresses, SECRET)
    two.of[2].know(two.addresses, secrets.token_hex(32))
    found = [two.news.get(timeout=DEADLINE_S) for _ in range(2)]
    assert sorted(pair for *pair, _ in found) == [[1, 2], [2, 1]]
    assert all("who listens there is not this worker" in error for *_, error in found)
    with pytest.raises(PeerFailed, match="worker 1 has not answered"):
        two.of[2].store_of(1)


def test_only_ports_of_groups_are_reached(two: Ends) -> None:
    """Who knows the secret does not get at other services of the machine."""
    two.know()
    service = socket.create_server(("127.0.0.1", 0))
    near = socket.create_connection((tunnel.LOWER, two.of[2]._open(1, service.getsockname()[1])), DEADLINE_S)
    assert ended(near) == b""
    near.close()
    service.close()


def test_many_half_open_connections_keep_nobody_out(two: Ends) -> None:
    two.know()
    host, _, port = two.door(1).rpartition(":")
    idle = [socket.create_connection((host, int(port)), DEADLINE_S) for _ in range(tunnel.WAITING + 50)]
    near, far = connected(two)
    near.sendall(b"x")
    assert far.recv(1) == b"x"
    for s in (*idle, near, far):
        s.close()


def test_own_addresses_are_for_other_machines() -> None:
    assert not any(a.startswith("127.") or a == "0.0.0.0" for a in own_addresses("127.0.0.1:1"))
