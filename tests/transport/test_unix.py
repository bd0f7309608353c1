"""Unix sockets: streams are split into messages, strangers change nothing, addresses are checked."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from gt.errors import ServerError, StartError
from gt.transport import connect, listen, messages
from gt.transport.messages import CHUNK, MAX_FRAME, Chunk, GetStats
from gt.transport.unix import BUFFER, SMALL, SendBuffer, Stream, UnixChannel, UnixRouter, head_of

from .wires import Join, meet, until


@pytest.fixture
def router(tmp_path: Path) -> Iterator[UnixRouter]:
    made = listen(f"ipc://{tmp_path}/s")
    assert isinstance(made, UnixRouter)
    yield made
    made.close()


def test_a_stream_may_be_cut_anywhere() -> None:
    messages = [[b"a"], [b"bc", b"", b"x" * 100_000], [b"d" * 7]]
    data = b"".join(head_of([*map(len, frames)]) + b"".join(frames) for frames in messages)
    for step in (1, 3, 1000, 70_000, len(data)):
        stream = Stream()
        got = [f for i in range(0, len(data), step) for f in stream.feed(data[i : i + step])]
        assert [[bytes(x) for x in frames] for frames in got] == messages


def test_a_stream_asks_for_much_only_while_much_is_to_come() -> None:
    stream, size = Stream(), 3 * SMALL
    data = head_of([size]) + b"x" * size
    assert stream.room == SMALL
    assert stream.feed(data[:SMALL]) == []
    assert stream.room == BUFFER
    assert stream.feed(data[SMALL:-10]) == []
    assert stream.room == SMALL  # for ten bytes
    assert stream.feed(data[-10:]) == [[b"x" * size]]
    assert stream.room == SMALL


def test_an_interrupted_send_leaves_the_stream_whole() -> None:
    a, b = socket.socketpair()
    with a, b:
        a.setblocking(False)
        out = SendBuffer(a)
        big = b"y" * (4 << 20)
        out.send([b"first", big])
        out.send([b"second"])
        assert out.nbytes > 0
        stream, got = Stream(), []
        b.setblocking(False)
        while len(got) < 2:
            out.flush()
            got += stream.feed(b.recv(1 << 20))
        assert [bytes(f[0]) for f in got] == [b"first", b"second"]
        assert bytes(got[0][1]) == big
        assert out.nbytes == 0


@pytest.mark.parametrize(
    "garbage",
    [
        b"\0\0\0\0",
        struct.pack("<I", messages.MAX_FRAMES + 1),
        struct.pack("<II", 1, MAX_FRAME + 1),
        struct.pack("<6I", 5, *[MAX_FRAME] * 5),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_no_message_ends_only_its_connection(router: UnixRouter, join: Join, garbage: bytes) -> None:
    good = join()
    meet(router, good)
    with socket.socket(socket.AF_UNIX) as bad:
        bad.connect(router.address.removeprefix("ipc://"))
        bad.sendall(garbage)
        assert len(until(router, router.lost)) == 1
        assert bad.recv(1) == b""
    good.send(GetStats(2))
    assert messages.decode(until(router, router.receive)[1])[0] == GetStats(2)


def test_a_peer_that_does_not_read_is_cut_off(tmp_path: Path) -> None:
    router = UnixRouter(f"ipc://{tmp_path}/s", max_queued=1 << 20)
    channel = UnixChannel(router.address)
    peer = meet(router, channel)
    data = messages.encode(Chunk(0, 1, 0, CHUNK), bytes(CHUNK))
    for _ in range(64):  # more than the system's own buffer takes, by more than is allowed
        router.send(peer, data)
    assert until(router, router.lost) == [peer]
    channel.close()
    router.close()


def test_peers_that_do_not_read_share_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gt.transport.unix.SLOW", 1 << 20)
    router = UnixRouter(f"ipc://{tmp_path}/s", all_queued=48 << 20)
    channels = [UnixChannel(router.address) for _ in range(3)]
    peers = [meet(router, channel) for channel in channels]
    data = messages.encode(Chunk(0, 1, 0, CHUNK), bytes(CHUNK))
    for k, peer in enumerate(peers):
        for _ in range(160 if k == 1 else 80):  # 40 or 20 MiB, less what the system's own buffer takes
            router.send(peer, data)
    assert until(router, router.lost) == [peers[1]], "the one with most"
    for channel in channels:
        channel.close()
    router.close()


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
