"""Rings: memory of one process that another opens, if it is what it is said to be."""

from __future__ import annotations

import fcntl
import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np
import pytest

from gt.transport.messages import Share
from gt.transport.plain import PlainChannel
from gt.transport.plain_router import PlainRouter
from gt.transport.shared import (
    BOXES,
    ORDERED,
    PIECE,
    SLOTS,
    SMALL,
    UPLOAD_SLOTS,
    Ring,
    make_ring,
    open_ring,
    ring_nbytes,
)
from tests.processes.running import open_files

NAME = f"gt-{'a' * 32}"
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


@pytest.fixture
def ring() -> Ring:
    made = make_ring(7)
    assert made is not None
    return made


def offer(ring: Ring, **changes: object) -> Share:
    given = {"session": 1, "ring": ring.number, "fd": ring.fd, "name": ring.name, "pid": os.getpid(), **changes}
    return Share(**given)  # type: ignore[arg-type]


@contextmanager
def memfd(name: str = NAME, size: int = ring_nbytes(), seals: int = SEALS, flags: int = 0) -> Iterator[int]:
    fd = os.memfd_create(name, os.MFD_ALLOW_SEALING | flags)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    yield fd
    os.close(fd)


def test_what_one_puts_the_other_reads(ring: Ring) -> None:
    other = open_ring(offer(ring))
    assert other.number == 7
    data = np.arange(1000, dtype=np.uint8)
    ring.put(3, data)
    other.put(SLOTS - 1, data[::-1])
    assert (other.slot(3, 1000) == data).all()
    assert (ring.slot(SLOTS - 1, 1000) == data[::-1]).all()
    assert len(ring.slot(3, PIECE)) == PIECE
    assert sorted(ring.free + ring.to_lend) == list(range(SLOTS))
    assert len(ring.free) == UPLOAD_SLOTS
    assert ring.idle


def test_mailboxes(ring: Ring) -> None:
    other = open_ring(offer(ring))
    assert other is not None
    assert len(ring.boxes) == BOXES * ORDERED
    data = np.arange(SMALL, dtype=np.uint8)
    for request, box in enumerate(range(SLOTS, SLOTS + BOXES), 1):
        for nbytes in (SMALL, 0, 4):
            ring.clear(box)
            assert ring.answer(box, request, nbytes) is None
            other.post(box, request, data[:nbytes].data)
            assert ring.answer(box, request + 1, nbytes) is None, "the answer to another request"
            assert ring.answer(box, request, nbytes + 8) is None, "not as long as it must be"
            got = ring.answer(box, request, nbytes)
            assert (got == data[:nbytes]).all()
    got[:] = 0  # a copy
    assert (ring.answer(box, request, 4) == data[:4]).all()
    assert not ring.slot(SLOTS - 1, PIECE).any()


def test_answers_that_belong_into_no_mailbox_change_nothing(ring: Ring) -> None:
    for box, request, nbytes in (
        (SLOTS - 1, 1, 8), (SLOTS + BOXES, 1, 8), (-1, 1, 8), (2**60, 1, 8), (SLOTS, 1, SMALL + 1), (SLOTS, -1, 8),
    ):  # fmt: skip
        ring.post(box, request, memoryview(bytes([7]) * nbytes))
    assert not ring._bytes.any()


@pytest.mark.skipif(not ORDERED, reason="no mailboxes on this processor")
def test_an_answer_is_whole_as_soon_as_it_is_seen(ring: Ring) -> None:
    """Another process answers as fast as it can; whatever is seen is complete."""
    code = (
        "import os, sys, numpy as np\n"
        "from gt.transport.messages import Share\n"
        "from gt.transport.shared import SLOTS, open_ring\n"
        "ring = open_ring(Share(1, 7, int(sys.argv[1]), sys.argv[2], os.getppid()))\n"
        "for request in range(1, 3001):\n"
        "    while ring.slot(0, 8).view(np.int64)[0] != request: os.sched_yield()\n"
        "    ring.post(SLOTS, request, np.full(512, request).data.cast('B'))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(ring.fd), ring.name]) as other:
        for request in range(1, 3001):
            ring.clear(SLOTS)
            ring.slot(0, 8).view(np.int64)[0] = request  # now it may write
            while (got := ring.answer(SLOTS, request, 4096)) is None:
                assert other.poll() is None
                os.sched_yield()
            assert (got.view(np.int64) == request).all()
    assert other.returncode == 0


def test_memory_that_is_not_used_is_given_back(ring: Ring) -> None:
    other = open_ring(offer(ring))
    assert other is not None
    for k in range(SLOTS):
        ring.put(k, np.ones(PIECE, np.uint8))
    assert os.fstat(ring.fd).st_blocks * 512 >= SLOTS * PIECE
    ring.rest()
    assert os.fstat(ring.fd).st_blocks == 0
    ring.put(2, np.full(10, 5, np.uint8))
    assert (other.slot(2, 10) == 5).all()
    assert not other.slot(1, PIECE).any()


def test_nothing_is_left_behind() -> None:
    def rings() -> list[str]:
        mapped = Path("/proc/self/maps").read_text().splitlines()
        return [text for text in (*mapped, *open_files(os.getpid()).values()) if "memfd:gt-" in text]

    gc.collect()  # sessions that other tests left have rings too, and some may go now
    before = rings()
    ring = make_ring(1)
    assert ring is not None
    other = open_ring(offer(ring))
    other.put(0, np.ones(5, np.uint8))
    piece = other.slot(0, 5)
    assert open_ring(offer(ring, name=NAME)) is None
    del ring, other
    assert piece.all(), "who still reads has the memory"
    del piece
    assert rings() == before


@pytest.mark.parametrize(
    "changes",
    [
        {"pid": 0}, {"pid": -1}, {"pid": 1}, {"pid": 2**22 + 1}, {"fd": -1}, {"fd": 0}, {"fd": 10**6}, {"name": ""},
        {"name": NAME}, {"name": "../../etc/passwd"}, {"name": "gt-" + "A" * 32}, {"name": NAME + "\n"},
    ],
)  # fmt: skip
def test_what_is_announced_wrongly_is_refused(ring: Ring, changes: dict[str, object]) -> None:
    assert open_ring(offer(ring)) is not None
    assert open_ring(offer(ring, **changes)) is None


def test_another_process_of_that_number_has_no_such_file(ring: Ring) -> None:
    """As after the death of the client: its process number goes to another, that has files of its own."""
    code = "import os, sys; sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, pass_fds=(ring.fd,)) as heir:
        assert open_ring(offer(ring, pid=heir.pid)) is not None, "it has inherited that one"
        with memfd() as another:
            assert open_ring(offer(ring, pid=heir.pid, fd=another, name=NAME)) is None
        heir.communicate()
    assert open_ring(offer(ring, pid=heir.pid)) is None


@pytest.mark.parametrize(
    ("what", "wanted"),
    [
        (lambda: memfd(), True),
        (lambda: memfd(seals=0), False),
        (lambda: memfd(seals=fcntl.F_SEAL_GROW), False),  # it could shrink under its reader
        (lambda: memfd(seals=SEALS | fcntl.F_SEAL_WRITE), False),
        (lambda: memfd(size=ring_nbytes() - 1), False),
        (lambda: memfd(size=0), False),
        (lambda: memfd(name="gt-own"), False),
    ],
)
def test_only_a_ring_is_opened(ring: Ring, what: Callable[[], AbstractContextManager[int]], wanted: bool) -> None:
    with what() as fd:
        assert (open_ring(offer(ring, fd=fd, name=NAME)) is not None) == wanted


def test_other_files_are_not_even_opened(ring: Ring, tmp_path: Path) -> None:
    read, write = os.pipe()
    os.mkfifo(tmp_path / "fifo")
    fifo = os.open(tmp_path / "fifo", os.O_RDWR)  # who opened it to write would change it, to read would wait
    trick = tmp_path / f"memfd:{NAME} (deleted)"
    trick.write_bytes(bytes(100))
    os.truncate(trick, ring_nbytes())
    file = os.open(trick, os.O_RDWR)
    try:
        for fd in (read, write, fifo, file):
            assert open_ring(offer(ring, fd=fd, name=NAME)) is None
    finally:
        for fd in (read, write, fifo, file):
            os.close(fd)


def test_the_router_knows_the_process(tmp_path: Path) -> None:
    router = PlainRouter(f"ipc://{tmp_path}/s")
    try:
        mine = PlainChannel(router.address)
        code = (
            "import sys; from gt.transport.plain import PlainChannel; c = PlainChannel(sys.argv[1]); sys.stdin.read()"
        )
        with subprocess.Popen([sys.executable, "-c", code, router.address], stdin=subprocess.PIPE) as other:
            while len(router._by_name) < 2:
                router.wait(0.1)
            assert {router.pid(peer) for peer in router._by_name} == {os.getpid(), other.pid}
            other.communicate()
        mine.close()
        assert router.pid(b"nobody") == 0
    finally:
        router.close()
