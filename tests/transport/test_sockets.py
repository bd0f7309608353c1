"""Sockets: limits hold, strangers change nothing, a lost peer is noticed however it ended, addresses are checked."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gt.errors import ServerError, StartError
from gt.transport import connect, listen, messages
from gt.transport import router as routers
from gt.transport.messages import CHUNK, MAX_FRAME, MAX_FRAMES, Chunk, GetStats
from gt.transport.router import Router
from gt.transport.sockets import SocketChannel, endpoint

from .wires import DEADLINE_S, Join, next_message, until, until_lost


@pytest.fixture(params=["tcp", "unix"])
def address(request: Any, tmp_path: Path) -> str:
    return "127.0.0.1:0" if request.param == "tcp" else f"ipc://{tmp_path}/s"


@pytest.fixture
def router(address: str) -> Iterator[Router]:
    made = listen(address)
    yield made
    made.close()


@pytest.fixture
def tcp() -> Iterator[Router]:
    made = listen("127.0.0.1:0")
    yield made
    made.close()


def stranger(router: Router) -> socket.socket:
    """A connection that may say anything."""
    if router.address.startswith("ipc://"):
        made = socket.socket(socket.AF_UNIX)
        made.connect(router.address.removeprefix("ipc://"))
    else:
        host, _, port = router.address.rpartition(":")
        made = socket.create_connection((host, int(port)))
    made.settimeout(DEADLINE_S)
    return made


def child(router: Router) -> subprocess.Popen[bytes]:
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
def test_what_is_no_message_ends_only_its_connection(router: Router, join: Join, said: bytes) -> None:
    good = join()
    good.send(GetStats(1))
    next_message(router)
    with stranger(router) as bad:
        with suppress(ConnectionError):  # the server may have closed it at the first bytes
            bad.sendall(said)
            bad.shutdown(socket.SHUT_WR)
        assert len(until(router, router.lost)) == 1
        with suppress(ConnectionError):
            assert bad.recv(1) == b""
    assert router.receive() is None
    good.send(GetStats(2))
    assert messages.decode(next_message(router)[1])[0] == GetStats(2)


def test_who_says_nothing_is_closed(router: Router, join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routers, "SILENT_S", 0.0)
    good = join()
    good.send(GetStats(1))
    next_message(router)
    with stranger(router) as silent:
        assert len(until(router, router.lost)) == 1
        assert silent.recv(1) == b""
    good.send(GetStats(2))
    assert messages.decode(next_message(router)[1])[0] == GetStats(2)


@pytest.mark.parametrize("frames", [[b"", b"xx"], [b"a", b"b", b"c"], [b"\xc1"], [b"", b"", b""]])
def test_wrong_frames_do_not_decode(router: Router, frames: list[bytes]) -> None:
    with stranger(router) as bad:
        bad.sendall(struct.pack(f"<{len(frames) + 1}I", len(frames), *map(len, frames)) + b"".join(frames))
        _, got = next_message(router)
    with pytest.raises(messages.BadMessage):
        messages.decode(got)


def test_loss_by_kill_and_a_descriptor_in_use_again(router: Router) -> None:
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


def test_sending_to_a_vanished_peer_reports_it_once(router: Router) -> None:
    process = child(router)
    speak(process)
    peer, _ = next_message(router)
    kill(process)
    deadline = time.monotonic() + DEADLINE_S
    while not router._lost and time.monotonic() < deadline:
        router.send(peer, messages.encode(GetStats(1)))
    assert router.lost() == [peer]
    router.send(peer, messages.encode(GetStats(1)))
    assert router.lost() == []


def test_a_peer_that_does_not_read_is_cut_off(address: str) -> None:
    router = Router(address, max_queued=8 * CHUNK)
    reads, idles = connect(router.address), connect(router.address)
    try:
        reads.send(GetStats(1))
        reader, _ = next_message(router)
        idles.send(GetStats(1))
        idler, _ = next_message(router)
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


def test_only_a_process_of_this_machine_is_known(router: Router, join: Join) -> None:
    channel = join()
    channel.send(GetStats(1))
    peer, _ = next_message(router)
    assert router.pid(peer) == (os.getpid() if router.address.startswith("ipc://") else 0)


# --- addresses ---------------------------------------------------------------------------------------


def test_port_in_use(tcp: Router) -> None:
    port = tcp.address.rpartition(":")[2]
    with pytest.raises(StartError, match=f"^port {port} on 127.0.0.1 is in use; choose another with -p$"):
        Router(tcp.address)


def test_foreign_host() -> None:
    with pytest.raises(StartError, match=r"^host 192.0.2.1 is not an address of this machine$"):
        Router("192.0.2.1:0")


def test_no_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
    with pytest.raises(ServerError, match=r"no server at .*; start one with: gt serve"):
        SocketChannel(f"127.0.0.1:{port}")


def test_not_a_gt_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as s:
        channel = SocketChannel(f"127.0.0.1:{s.getsockname()[1]}")
        there, _ = s.accept()
        with there:
            there.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 8)
        with pytest.raises(ServerError, match="is not a GT server"):
            channel.receive(DEADLINE_S)
        channel.close()
    with pytest.raises(ServerError, match="closed"):
        channel.receive()


@pytest.mark.parametrize(
    "address",
    ["", "localhost", ":12", "localhost:port", "localhost:70000", "http://x:1", "ipc://", "ipc://" + "x" * 108],
)
def test_bad_addresses(address: str) -> None:
    with pytest.raises(ServerError, match="address"):
        endpoint(address)


def test_names_are_looked_up() -> None:
    assert endpoint("localhost:80") == endpoint("tcp://localhost:80") == "tcp://127.0.0.1:80"


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
