"""What all connections promise: messages arrive in order and complete, and a lost peer is noticed."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gt.errors import ServerError
from gt.transport import listen, messages
from gt.transport.messages import CHUNK, Chunk, GetStats, Refused, Stats

from .wires import DEADLINE_S, AnyRouter, Join, meet, next_message, ring, until_lost


@pytest.fixture(params=["tcp", "unix", "keys"])
def router(request: Any, tmp_path: Path) -> Iterator[AnyRouter]:
    address = f"ipc://{tmp_path}/s" if request.param == "unix" else "127.0.0.1:0"
    made = listen(address, ring() if request.param == "keys" else None)
    yield made
    made.close()


def test_messages_pass_both_ways_in_order(router: AnyRouter, join: Join) -> None:
    channel = join()
    assert channel.receive() is None
    for i in range(100):
        channel.send(GetStats(i))
    for i in range(100):
        peer, frames = next_message(router)
        assert messages.decode(frames) == (GetStats(i), None)
        router.send(peer, messages.encode(Stats(i, {"n": i})))
    for i in range(100):
        assert channel.receive(DEADLINE_S) == (Stats(i, {"n": i}), None)
    assert channel.receive() is None
    assert router.lost() == []


def test_more_than_may_be_sent_as_one_is_sent_as_several(router: AnyRouter, join: Join) -> None:
    many = [(GetStats(i), None) if i % 3 else (Chunk(0, i, 0, 1), b"x") for i in range(2 * messages.MAX_FRAMES)]
    join().send_all(many)  # type: ignore[arg-type]
    got: list[Any] = []
    while len(got) < len(many):
        got += messages.decode_all(next_message(router)[1])
    assert got == many


@pytest.mark.parametrize("size", [0, 10, CHUNK])
def test_a_payload_is_relayed_untouched(router: AnyRouter, join: Join, size: int) -> None:
    sender, receiver = join(), join()
    there = meet(router, receiver)
    meet(router, sender)
    payload = os.urandom(size)
    sender.send(Chunk(0, 7, 0, size, (size,), "uint8"), payload)
    message, data = messages.decode(next_message(router)[1])
    router.send(there, messages.encode(message, data))
    got = receiver.receive(DEADLINE_S)
    assert got[0] == message
    assert bytes(got[1] or b"") == payload


def test_payloads_larger_than_any_buffer_arrive_complete(router: AnyRouter, join: Join) -> None:
    channel = join()
    peer = meet(router, channel)
    data = bytes(range(256)) * (CHUNK // 256)
    for i in range(32):  # 8 MiB, far more than a socket takes at once: the rest waits in the router
        router.send(peer, messages.encode(Chunk(0, i, 0, CHUNK, (CHUNK,), "uint8"), data))
    got: list[Any] = []
    while len(got) < 32:
        came = channel.receive(0.0)
        if came is None:
            router.wait(0.01)
        else:
            got.append(came)
    assert [m.key for m, _ in got] == list(range(32))
    assert all(bytes(p) == data for _, p in got)


def test_a_disconnected_peer_gets_the_last_messages_then_the_end(router: AnyRouter, join: Join) -> None:
    channel = join()
    peer = meet(router, channel)
    router.send(peer, messages.encode(Refused("go away")))
    router.disconnect(peer)
    router.send(peer, messages.encode(Refused("never sent")))
    ended = threading.Event()

    def serve() -> None:
        while not ended.is_set():
            assert router.receive() is None
            assert router.lost() == []
            router.wait(0.02)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        channel.send(GetStats(2))  # is not read
        assert channel.receive(DEADLINE_S) == (Refused("go away"), None)
        with pytest.raises(ServerError, match=r"the connection to the server at .* is lost"):
            channel.receive(DEADLINE_S)
        with pytest.raises(ServerError, match="is lost"):
            channel.send(GetStats(3))
    finally:
        ended.set()
        thread.join()


def test_loss_by_close(router: AnyRouter, join: Join) -> None:
    stays, goes = join(), join()
    peer = meet(router, goes)
    meet(router, stays)
    goes.close()
    assert until_lost(router, peer) == [peer]


def test_the_end_of_a_connection_comes_after_its_last_message(router: AnyRouter, join: Join) -> None:
    channel = join()
    channel.send(GetStats(1))
    channel.close()  # its end is known here before the message is read
    peer, frames = next_message(router)
    assert messages.decode(frames)[0] == GetStats(1)
    assert until_lost(router, peer) == [peer]
