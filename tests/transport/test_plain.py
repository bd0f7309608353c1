"""Connections on one machine: limits hold, strangers change nothing, a lost peer is noticed however it ended."""

from __future__ import annotations

import errno
import os
import resource
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gt.errors import ServerError, StartError
from gt.transport import connect, listen, messages, plain, plain_router
from gt.transport.frames import head_of
from gt.transport.messages import CHUNK, MAX_FRAME, MAX_FRAMES, Chunk, GetStats
from gt.transport.plain import PlainChannel
from gt.transport.plain_router import PlainRouter
from gt.transport.router import Router
from gt.transport.sockets import SocketChannel

from .wires import DEADLINE_S, KEY, Join, meet, next_message, ring, until, until_lost


@pytest.fixture(params=["tcp", "unix"])
def address(request: Any, tmp_path: Path) -> str:
    return "127.0.0.1:0" if request.param == "tcp" else f"ipc://{tmp_path}/s"


@pytest.fixture
def router(address: str) -> Iterator[PlainRouter]:
    made = PlainRouter(address)
    yield made
    made.close()


@pytest.fixture
def tcp() -> Iterator[PlainRouter]:
    made = PlainRouter("127.0.0.1:0")
    yield made
    made.close()


def stranger(router: PlainRouter) -> socket.socket:
    """A connection that may say anything."""
    if router.address.startswith("ipc://"):
        made = socket.socket(socket.AF_UNIX)
        made.connect(router.address.removeprefix("ipc://"))
    else:
        host, _, port = router.address.rpartition(":")
        made = socket.create_connection((host, int(port)))
    made.settimeout(DEADLINE_S)
    return made


def until_closed(router: PlainRouter, strangers: int) -> None:
    """Wait until the first connection alone is left. The others have said nothing: nobody has lost them."""

    def closed() -> bool:
        assert router.lost() == []
        return router._count == 1 + strangers and len(router._peers) == 1

    until(router, closed)


def child(router: PlainRouter) -> subprocess.Popen[bytes]:
    """A process that connects and speaks once it is given a line, and then waits to be killed."""
    code = (
        "import sys\n"
        "from gt.transport import connect\n"
        "from gt.transport.messages import GetStats\n"
        "sys.stdin.readline()\n"
        f"c = connect({router.address!r}); c.send(GetStats(1)); sys.stdin.read()"
    )
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)


def speak(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.write(b"\n")
    process.stdin.flush()


def kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    process.communicate()


@pytest.mark.parametrize(
    "said",
    [
        b"\0\0\0\0",
        struct.pack("<I", MAX_FRAMES + 1),
        struct.pack("<II", 1, MAX_FRAME + 1),
        struct.pack("<6I", 5, *[MAX_FRAME] * 5),
        b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: Mozilla/5.0\r\nAccept: */*\r\n\r\n" * 9,
        b"\x16\x03\x01\x00\xf8\x01\x00\x00\xf4\x03\x03" + bytes(range(240)),  # TLS
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\n" * 100,
        b"\xff" + bytes(8) + b"\x7f\x03\x01NULL",  # ZeroMQ
        b"\x01",
    ],
    ids=["no frames", "many frames", "large frame", "large message", "http", "tls", "ssh", "lines", "zmq", "a byte"],
)
def test_what_is_no_message_ends_only_its_connection(router: PlainRouter, join: Join, said: bytes) -> None:
    good = join()
    meet(router, good)
    with stranger(router) as bad:
        with suppress(ConnectionError):  # the server may have closed it at the first bytes
            bad.sendall(said)
            if said == b"\x01":
                bad.shutdown(socket.SHUT_WR)
        until_closed(router, 1)
        with suppress(ConnectionError):
            assert bad.recv(1) == b""
    assert router.receive() is None
    good.send(GetStats(2))
    assert messages.decode(next_message(router)[1])[0] == GetStats(2)


def test_who_says_nothing_is_closed(router: PlainRouter, join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    good = join()
    meet(router, good)
    monkeypatch.setattr(plain_router, "SILENT_S", 0.2)
    with stranger(router) as silent, stranger(router) as half:
        half.sendall(b"\x01\0\0\0")
        until_closed(router, 2)
        assert silent.recv(1) == half.recv(1) == b""
    good.send(GetStats(2))
    assert messages.decode(next_message(router)[1])[0] == GetStats(2)


def test_of_many_who_say_nothing_the_oldest_gives_way(
    router: PlainRouter, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those who have spoken stay, however many come."""
    monkeypatch.setattr(plain_router, "SILENT", 3)
    good = [join() for _ in range(5)]
    peers = [meet(router, each) for each in good]
    silent = [stranger(router) for _ in range(6)]
    until(router, lambda: router._count == 11)
    assert [s.recv(1) for s in silent[:3]] == [b""] * 3
    assert len(router._peers) == 8
    for peer, each in zip(peers, good, strict=True):
        each.send(GetStats(2))
        assert next_message(router)[0] == peer
    assert router.lost() == []
    for each in silent:
        each.close()


def test_a_stranger_can_make_the_server_hold_little(router: PlainRouter, join: Join) -> None:
    """Until it has said something. Who has may send much."""
    good = join()
    meet(router, good)
    with stranger(router) as liar:
        liar.sendall(head_of([MAX_FRAME]))
        until_closed(router, 1)
        assert liar.recv(1) == b""
    good.send(Chunk(1, 1, 0, 1 << 20, (1 << 20,), "uint8"), bytes(1 << 20))
    assert len(next_message(router)[1][-1]) == 1 << 20


@pytest.mark.parametrize("frames", [[b"", b"xx"], [b"a", b"b", b"c"], [b"\xc1"], [b"", b"", b""]])
def test_wrong_frames_do_not_decode(router: PlainRouter, frames: list[bytes]) -> None:
    with stranger(router) as bad:
        bad.sendall(struct.pack(f"<{len(frames) + 1}I", len(frames), *map(len, frames)) + b"".join(frames))
        _, got = next_message(router)
    with pytest.raises(messages.BadMessage):
        messages.decode(got)


def test_loss_by_kill_and_a_descriptor_in_use_again(router: PlainRouter) -> None:
    first, second = child(router), child(router)
    speak(first)
    peer, _ = next_message(router)
    fd = router._by_name[peer].socket.fileno()
    kill(first)
    lost = until_lost(router, peer)
    speak(second)
    other, _ = next_message(router)
    assert router._by_name[other].socket.fileno() == fd
    assert lost + router.lost() == [peer], "the one that has the descriptor now is alive"
    kill(second)
    assert until_lost(router, other) == [other]


def test_sending_to_a_vanished_peer_reports_it_once(router: PlainRouter) -> None:
    process = child(router)
    speak(process)
    peer, _ = next_message(router)
    kill(process)
    until(router, lambda: router.send(peer, messages.encode(GetStats(1))) or router._lost)
    assert router.lost() == [peer]
    router.send(peer, messages.encode(GetStats(1)))
    assert router.lost() == []


def test_a_peer_that_does_not_read_is_cut_off(address: str) -> None:
    router = PlainRouter(address, max_queued=8 * CHUNK)
    reads, idles = PlainChannel(router.address), PlainChannel(router.address)
    try:
        reader, idler = (meet(router, channel) for channel in (reads, idles))
        frames = messages.encode(Chunk(0, 1, 0, CHUNK, (CHUNK,), "uint8"), bytes(CHUNK))
        for _ in range(128):  # more than the system's own buffers take, by more than is allowed
            router.send(idler, frames)
        assert until(router, router.lost) == [idler]
        for _ in range(128):  # as much, but read
            router.send(reader, frames)
            while reads.receive() is None:
                router.wait(0.01)
        assert router.lost() == []
    finally:
        reads.close()
        idles.close()
        router.close()


def test_peers_that_do_not_read_share_a_limit(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One user may have many connections: together they cannot fill the memory of the server."""
    monkeypatch.setattr(plain_router, "SLOW", 1 << 20)
    router = PlainRouter(address, all_queued=96 << 20)
    channels = [PlainChannel(router.address) for _ in range(3)]
    try:
        peers = [meet(router, channel) for channel in channels]
        data = messages.encode(Chunk(0, 1, 0, CHUNK), bytes(CHUNK))
        for k, peer in enumerate(peers):
            for _ in range(320 if k == 1 else 160):  # 80 or 40 MiB, less what the system's own buffers take
                router.send(peer, data)
        assert until(router, router.lost) == [peers[1]], "the one with most"
    finally:
        for channel in channels:
            channel.close()
        router.close()


def test_a_client_waits_for_a_server_that_reads_slowly(
    router: PlainRouter, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain, "STALL_S", 0.2)
    channel = join()
    meet(router, channel)
    many = [(Chunk(0, i, 0, CHUNK), bytes(CHUNK)) for i in range(128)]
    sender = threading.Thread(target=channel.send_all, args=(many,))
    sender.start()
    got: list[Any] = []
    while len(got) < len(many):
        time.sleep(0.005)  # altogether for longer than a server may read nothing at all
        got += messages.decode_all(next_message(router)[1])
    sender.join()
    assert [m.key for m, _ in got] == list(range(128))
    with pytest.raises(ServerError, match=r"has read nothing for 0\.2 s"):
        channel.send_all(many)


def test_without_room_for_descriptors_the_loop_rests(router: PlainRouter, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that cannot be accepted waits; it does not keep the loop awake."""
    listener = router._listener

    class Full:
        def accept(self) -> None:
            raise OSError(errno.EMFILE, "too many")

        def fileno(self) -> int:
            return listener.fileno()

        def close(self) -> None:
            listener.close()

    monkeypatch.setattr(router, "_listener", Full())
    with stranger(router):
        assert router._take_in(DEADLINE_S)
        assert not router._take_in(0.0)
        router.lost()
        monkeypatch.setattr(router, "_listener", listener)
        assert router._take_in(DEADLINE_S)
        assert len(router._peers) == 1


def test_without_room_for_descriptors_those_who_say_nothing_give_way(
    router: PlainRouter, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = join()
    meet(router, good)
    with stranger(router) as silent:
        until(router, lambda: router._count == 2)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        late = stranger(router)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            assert router._take_in(DEADLINE_S)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert silent.recv(1) == b""
        late.sendall(head_of([1]) + b"x")
        assert bytes(next_message(router)[1][0]) == b"x"
        late.close()


# --- who is at the other end -----------------------------------------------------------------------------------------


def test_a_process_of_this_machine_is_known(router: PlainRouter, join: Join) -> None:
    peer = meet(router, join())
    unix = router.address.startswith("ipc://")
    assert router.pid(peer) == (os.getpid() if unix else 0)
    for lie in (1, os.getppid(), 1 << 22, -5):
        assert router.pid(peer, lie) == (os.getpid() if unix else 0)
    assert router.pid(peer, os.getpid()) == os.getpid()
    assert router.pid(peer) == os.getpid()
    assert router.pid(b"nobody", os.getpid()) == 0


def test_who_says_many_wrong_numbers_is_not_listened_to(tcp: PlainRouter, monkeypatch: pytest.MonkeyPatch) -> None:
    """To look whether a number is right takes time."""
    looked: list[int] = []
    monkeypatch.setattr(plain_router, "pid_of", lambda _, said=0: looked.append(said) or 0)
    channel = PlainChannel(tcp.address)
    peer = meet(tcp, channel)
    looked.clear()
    for lie in range(1, 1000):
        assert tcp.pid(peer, lie) == 0
    assert looked == [*range(1, plain_router.GUESSES + 1)]
    channel.close()


def test_a_process_may_not_claim_to_be_another(tcp: PlainRouter) -> None:
    """Not even one that is connected to the same server."""
    channel = PlainChannel(tcp.address)
    mine = meet(tcp, channel)
    process = child(tcp)
    try:
        speak(process)
        theirs, _ = next_message(tcp)
        assert tcp.pid(mine, process.pid) == 0
        assert tcp.pid(theirs, os.getpid()) == 0
        assert tcp.pid(theirs, process.pid) == process.pid
    finally:
        kill(process)
        channel.close()


# --- those with keys and those without -------------------------------------------------------------------------------


def test_a_client_without_a_key_is_told_at_once(tmp_path: Path) -> None:
    router = Router("127.0.0.1:0", ring=ring())
    channel = connect(router.address)
    try:
        channel.send(GetStats(1))
        begun_s = time.monotonic()
        with pytest.raises(ServerError, match="needs a key: gt login URL stores one, with the URL"):
            channel.receive(DEADLINE_S)
        assert time.monotonic() - begun_s < 2
        assert router.receive() is None
    finally:
        channel.close()
        router.close()


def test_a_client_with_a_key_is_told_that_none_is_needed(tcp: PlainRouter) -> None:
    channel = SocketChannel(tcp.address, KEY)
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            tcp.wait(0.02)

    server = threading.Thread(target=serve)
    server.start()
    try:
        channel.send(GetStats(1))
        with pytest.raises(ServerError, match="another server, or one that needs no key"):
            channel.receive(DEADLINE_S)
    finally:
        stop.set()
        server.join()
        channel.close()
    assert tcp.receive() is None


def test_nothing_is_said_to_another_machine_without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as s:
        monkeypatch.setattr(plain, "is_loopback", lambda address: False)
        with pytest.raises(ServerError, match="is not a GT server, or it needs a key: gt login URL stores one"):
            connect(f"127.0.0.1:{s.getsockname()[1]}")
        there, _ = s.accept()
        with there:
            assert there.recv(1) == b""


@pytest.mark.parametrize("address", ["0.0.0.0:0", "192.0.2.1:0"])
def test_what_others_can_reach_is_not_served_without_keys(address: str) -> None:
    with pytest.raises(StartError, match="without keys: other machines can reach it"):
        listen(address)


# --- addresses -------------------------------------------------------------------------------------------------------


def test_port_in_use(tcp: PlainRouter) -> None:
    port = tcp.address.rpartition(":")[2]
    with pytest.raises(StartError, match=f"^port {port} on 127.0.0.1 is in use; choose another with -p$"):
        PlainRouter(tcp.address)


def test_no_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
    with pytest.raises(ServerError, match=r"^no server at 127.0.0.1:\d+; start one with: gt serve$"):
        connect(f"127.0.0.1:{port}")


def test_not_a_gt_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as s:
        channel = connect(f"127.0.0.1:{s.getsockname()[1]}")
        there, _ = s.accept()
        with there:
            there.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        with pytest.raises(ServerError, match=r"is not a GT server$"):
            channel.receive(DEADLINE_S)
        channel.close()
    with pytest.raises(ServerError, match=r"is not a GT server$"):
        channel.receive()


def test_addresses(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="no server at ipc:///nowhere/at/all"):
        connect("ipc:///nowhere/at/all")
    first = listen(f"ipc://{tmp_path}/s")
    with pytest.raises(StartError, match="in use"):
        listen(f"ipc://{tmp_path}/s")
    first.close()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(f"{tmp_path}/left")  # what a server leaves that was killed
    again = listen(f"ipc://{tmp_path}/left")
    again.close()
    with pytest.raises(StartError, match="cannot serve on ipc://: the path is empty"):
        listen("ipc://")


def test_only_a_socket_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    for path in (tmp_path, tmp_path / "notes", tmp_path / "notes" / "s"):
        with pytest.raises(StartError, match="cannot serve on ipc://"):
            listen(f"ipc://{path}")
    assert (tmp_path / "notes").read_text() == "mine"
