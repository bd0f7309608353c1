"""ZeroMQ: limits hold, strangers change nothing, and a lost peer is noticed however it ended."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
import zmq

from gt.errors import ServerError, StartError
from gt.transport import messages, sockets
from gt.transport import messages as msg
from gt.transport.messages import CHUNK, MAX_FRAME, Chunk, GetStats
from gt.transport.router import SETTLE_S, Router
from gt.transport.sockets import SocketChannel
from tests.processes.running import Process, environment, until

from .wires import DEADLINE_S, Join, meet, next_message, until_lost


@pytest.fixture
def router() -> Iterator[Router]:
    r = Router("127.0.0.1:0")
    yield r
    r.close()


@contextmanager
def raw_dealer(router: Router, routing_id: bytes = b"") -> Iterator[zmq.Socket[bytes]]:
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        if routing_id:
            dealer.setsockopt(zmq.ROUTING_ID, routing_id)
        dealer.connect(f"tcp://{router.address}")
        yield dealer


def child(router: Router) -> subprocess.Popen[bytes]:
    """A process that connects and speaks once it is given a line, and then waits to be killed."""
    code = (
        "import sys\n"
        "from gt.transport.sockets import SocketChannel\n"
        "from gt.transport.messages import GetStats\n"
        "sys.stdin.readline()\n"
        f"c = SocketChannel({router.address!r}); c.send(GetStats(1)); sys.stdin.read()"
    )
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)


def speak(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.write(b"\n")
    process.stdin.flush()


def kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def test_a_frame_that_is_too_large_ends_that_connection_only(router: Router, join: Join) -> None:
    good = join()
    meet(router, good)
    with raw_dealer(router) as dealer:
        dealer.send(b"\x93")
        peer, _ = next_message(router)
        dealer.send(bytes(MAX_FRAME + 1))
        assert until_lost(router, peer) == [peer]
    good.send(GetStats(2))
    assert messages.decode(next_message(router)[1])[0] == GetStats(2)


@pytest.mark.parametrize("frames", [[b"", b"xx"], [b"a", b"b", b"c"], [b"a"] * 5000, [b"\xc1"], [b"", b"", b""]])
def test_wrong_frames_do_not_decode(router: Router, frames: list[bytes]) -> None:
    with raw_dealer(router) as dealer:
        dealer.send_multipart(frames)
        _, got = next_message(router)
    assert len(got) <= msg.MAX_FRAMES + 1
    with pytest.raises(msg.BadMessage):
        msg.decode(got)


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: Mozilla/5.0\r\nAccept: */*\r\n\r\n" * 9,
        b"\x16\x03\x01\x00\xf8\x01\x00\x00\xf4\x03\x03" + bytes(range(240)),  # TLS
        b"\n" * 100,
        b"\x01\x00\x03\x00hi",  # ZeroMQ's first protocol
        b"\xff" + bytes(8) + b"\x7f\x01\x05\x00\x00\x00\x02hi",  # and its second
    ],
    ids=["http", "tls", "lines", "first", "second"],
)
def test_what_speaks_another_protocol_ends_that_connection_only(router: Router, join: Join, said: bytes) -> None:
    host, _, port = router.address.rpartition(":")
    with socket.create_connection((host, int(port)), DEADLINE_S) as stranger:
        with suppress(ConnectionError):  # the server may have closed it at the first bytes
            stranger.sendall(said)
            with suppress(OSError):
                stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(1000):  # until it is closed there
                pass
    assert router.receive() is None
    join().send(GetStats(2))
    assert messages.decode(next_message(router)[1])[0] == GetStats(2)


def test_a_peer_that_names_itself_is_cut_off(router: Router) -> None:
    with raw_dealer(router, b"the dispatcher") as dealer:
        monitor = dealer.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        dealer.send_multipart(msg.encode(GetStats(1)))
        deadline = time.monotonic() + DEADLINE_S
        while not monitor.poll(10) and time.monotonic() < deadline:
            assert router.receive() is None
            assert router.lost() == []
        assert monitor.poll(0), "its connection was not closed"
        dealer.disable_monitor()
        monitor.close(0)


def test_loss_by_kill_and_a_descriptor_in_use_again(router: Router) -> None:
    first, second = child(router), child(router)
    speak(first)
    peer, _ = next_message(router)
    fd = router._peers[peer].fd
    kill(first)
    until(lambda: not os.path.exists(f"/proc/self/fd/{fd}"), "the end of the connection")
    # The next connection takes the descriptor before anything was asked about the first.
    speak(second)
    other, _ = next_message(router)
    assert router._peers[other].fd == fd
    lost = until_lost(router, peer)
    deadline = time.monotonic() + 2 * SETTLE_S
    while time.monotonic() < deadline:
        lost += router.lost()
        router.wait(0.05)
    assert lost == [peer], "the one that holds the descriptor now is alive"
    kill(second)
    assert until_lost(router, other) == [other]
    first.communicate()
    second.communicate()


def test_a_connection_that_is_torn_down_late(router: Router, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its peer was still there when the monitor had said for a while that it has ended."""
    monkeypatch.setattr("gt.transport.router.LATE_S", 2.0)
    process = child(router)
    speak(process)
    peer, _ = next_message(router)
    until(lambda: router.lost() or not router._new, "the look at a new peer")
    router._doubtful[peer] = time.monotonic()
    assert router.lost() == []
    kill(process)
    ends: list[tuple[int, int]] = []
    until(lambda: ends.extend(sockets.monitor_events(router._monitor)) or ends, "what the monitor says")
    assert until_lost(router, peer) == [peer]
    process.communicate()


def test_sending_to_a_vanished_peer_reports_it_once(router: Router) -> None:
    process = child(router)
    speak(process)
    peer, _ = next_message(router)
    kill(process)
    until(lambda: router.send(peer, messages.encode(GetStats(1))) or router._lost, "the loss of the peer")
    assert router.lost() == [peer]
    router.send(peer, messages.encode(GetStats(1)))
    assert router.lost() == []
    process.communicate()


def test_a_peer_that_does_not_read_is_cut_off() -> None:
    router = Router("127.0.0.1:0", max_queued=8 * CHUNK)
    reads, idles = SocketChannel(router.address), SocketChannel(router.address)
    try:
        reader, idler = (meet(router, channel) for channel in (reads, idles))
        frames = messages.encode(Chunk(0, 1, 0, CHUNK, (CHUNK,), "uint8"), bytes(CHUNK))
        for _ in range(8):
            router.send(idler, frames)
        assert router.lost() == [idler]
        for i in range(40):  # five times the limit, but read
            router.send(reader, frames)
            assert reads.receive(DEADLINE_S) is not None
            if i % 2:
                reads.send(GetStats(i))  # follows the report of what was read
                assert next_message(router)[0] == reader
        assert router.lost() == []
    finally:
        reads.close()
        idles.close()
        router.close()


def test_peers_that_do_not_read_share_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """One user may have many connections: together they cannot fill the memory of the server."""
    monkeypatch.setattr("gt.transport.router.SLOW", CHUNK)
    router = Router("127.0.0.1:0", all_queued=8 * CHUNK)
    channels = [SocketChannel(router.address) for _ in range(4)]
    try:
        peers = [meet(router, channel) for channel in channels]
        frames = messages.encode(Chunk(0, 1, 0, CHUNK, (CHUNK,), "uint8"), bytes(CHUNK))
        for k, peer in enumerate(peers):
            for _ in range(2 + (k == 1)):  # more than 8 together with the last one
                router.send(peer, frames)
        assert router.lost() == [peers[1]], "the one with most"
    finally:
        for channel in channels:
            channel.close()
        router.close()


def test_port_in_use(router: Router) -> None:
    port = router.address.rpartition(":")[2]
    with pytest.raises(StartError, match=f"^port {port} on 127.0.0.1 is in use; choose another with -p$"):
        Router(router.address)


LEAVING = """
import atexit, sys

@atexit.register
def leave():  # after all that is registered later, as the session's own end does
    print("leaving", flush=True)
    sys.stdin.readline()
    channel.close()

import numpy as np
from gt.transport.messages import CHUNK, Chunk
from gt.transport.sockets import SocketChannel

channel = SocketChannel(sys.argv[1])
for k in range(64):
    channel.send(Chunk(0, 1, k * CHUNK, 64 * CHUNK), np.full(CHUNK, k, np.uint8).data)
"""


def test_what_is_under_way_when_a_process_ends_arrives_as_it_was() -> None:
    """Its memory is still in use then. The connection's own thread hands it back, and must not wait for that."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as slow:
        slow.linger = 0
        slow.rcvhwm, slow.rcvbuf = 1, 1 << 16  # most of it stays with the sender until it is read
        port = slow.bind_to_random_port("tcp://127.0.0.1")
        process = Process(["-c", LEAVING, f"127.0.0.1:{port}"], environment(), stdin=subprocess.PIPE)
        try:
            assert process.line() == "leaving"
            for k in range(64):
                assert slow.poll(1000 * DEADLINE_S)
                _, *frames = slow.recv_multipart()
                ((message, payload),) = messages.decode_all(frames)
                assert message == Chunk(0, 1, k * CHUNK, 64 * CHUNK)
                assert payload == bytes([k]) * CHUNK
            speak(process.popen)
            assert process.end() == (0, "", "")
        finally:
            kill(process.popen)


def test_foreign_host() -> None:
    with pytest.raises(StartError, match=r"^host 192.0.2.1 is not an address of this machine$"):
        Router("192.0.2.1:0")


def test_no_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
    channel = SocketChannel(f"127.0.0.1:{port}")
    channel.send(GetStats(1))
    with pytest.raises(ServerError, match=r"no server at .*; start one with: gt serve"):
        channel.receive(DEADLINE_S)
    channel.close()


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
