"""Streams are split into messages, wherever they are cut, and an interrupted send leaves them whole."""

from __future__ import annotations

import socket

import pytest

from gt.transport.frames import BUFFER, MANY, MAX_FIRST, SMALL, FrameReader, NotOurs, SendBuffer, head_of
from gt.transport.messages import BadMessage


def test_a_stream_may_be_cut_anywhere() -> None:
    messages = [[b"a"], [b"bc", b"", b"x" * 100_000], [b"d" * 7]]
    data = b"".join(head_of([*map(len, frames)]) + b"".join(frames) for frames in messages)
    for step in (1, 3, 1000, 70_000, len(data)):
        stream = FrameReader()
        got = [f for i in range(0, len(data), step) for f in stream.feed(data[i : i + step])]
        assert [[bytes(x) for x in frames] for frames in got] == messages


def test_a_stream_asks_for_much_only_while_much_is_to_come() -> None:
    stream, size = FrameReader(), 3 * SMALL
    data = head_of([size]) + b"x" * size
    assert stream.room == SMALL
    assert stream.feed(data[:SMALL]) == []
    assert stream.room == BUFFER
    assert stream.feed(data[SMALL:-10]) == []
    assert stream.room == SMALL  # for ten bytes
    assert stream.feed(data[-10:]) == [[b"x" * size]]
    assert stream.room == SMALL


def test_many_tiny_pieces_become_few() -> None:
    stream, size = FrameReader(), 20_000
    data = head_of([size]) + bytes(k % 251 for k in range(size))
    got = [f for i in range(0, len(data), 2) for f in stream.feed(data[i : i + 2]) or [len(stream._parts)]]
    assert got.pop() == [data[8:]]
    assert max(got) < 2 * MANY


def test_the_first_message_of_a_stranger_is_small() -> None:
    stream = FrameReader(MAX_FIRST)
    assert stream.feed(head_of([MAX_FIRST - 8])) == []
    more = bytes(MAX_FIRST)
    assert stream.feed(bytes(MAX_FIRST - 8) + head_of([len(more)]) + more)[1] == [more], "the second may be large"
    with pytest.raises(BadMessage, match=f"{MAX_FIRST + 1} bytes in one message; the limit is {MAX_FIRST}"):
        FrameReader(MAX_FIRST).feed(head_of([MAX_FIRST - 7]))


def test_an_interrupted_send_leaves_the_stream_whole() -> None:
    a, b = socket.socketpair()
    with a, b:
        a.setblocking(False)
        out = SendBuffer(a)
        big = b"y" * (4 << 20)
        out.send([b"first", big])
        out.send([b"second"])
        assert out.nbytes > 0
        stream, got = FrameReader(), []
        b.setblocking(False)
        while len(got) < 2:
            out.flush()
            got += stream.feed(b.recv(1 << 20))
        assert [bytes(f[0]) for f in got] == [b"first", b"second"]
        assert bytes(got[0][1]) == big
        assert out.nbytes == 0


@pytest.mark.parametrize("step", [1, 3, 64])
def test_zeromq_is_recognized_by_its_first_bytes(step: int) -> None:
    greeting = b"\xff" + bytes(8) + b"\x7f"
    stream, at = FrameReader(), 0
    while at + step < 8:
        assert stream.feed(greeting[at : at + step]) == []
        at += step
    with pytest.raises(NotOurs):
        stream.feed(greeting[at : at + step])


def test_a_message_of_as_many_frames_is_not_zeromq() -> None:
    frames = [b"x" * (256 * (k == 0) + k) for k in range(255)]
    data = head_of([*map(len, frames)]) + b"".join(frames)
    for step in (1, 10, len(data)):
        stream = FrameReader()
        got = [f for i in range(0, len(data), step) for f in stream.feed(data[i : i + step])]
        assert [[bytes(x) for x in f] for f in got] == [frames]
