"""The process that writes the instruction log: the dispatcher gives it notes (log.py), it makes the lines (lines.py).

It is forked from the server before the server has threads, sockets or files of others: a fork takes no time. It ends
when its pipe ends, after it has written what was in the pipe; so also when the server is killed.

Law 1: the dispatcher does not wait for it, unless it is BACKLOG_NBYTES behind: nothing is left out of a log, and
       nothing grows without limit.
Law 2: if it cannot write, it says why and ends. The server goes on without a log.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import sys
import time
from collections import deque
from contextlib import suppress
from typing import NoReturn

from gt.dispatcher.lines import LogLines

BACKLOG_NBYTES = 64 << 20  #: What may wait in the dispatcher, beside what is in the pipe.
PIPE_NBYTES = 1 << 20
NICE = 10  #: Clients and workers come first, where there are too few cores.
LATE_S = 1.0  #: Lines that are later than this do not give way: on a machine that is busy it may take long to be back.
LENGTH_NBYTES = 4
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  #: What ends the server, and the writer only after it.


class LogWriter:
    """The dispatcher's end. Use it as a context: at its end everything is written."""

    def __init__(self, file: int) -> None:
        """Start it, for a file that is open for writing."""
        self._waiting: deque[memoryview] = deque()
        self._nbytes = 0
        self._ended = False
        notes_r, self._notes = os.pipe()
        self._said, said_w = os.pipe()
        with suppress(OSError):  # the system may allow less
            fcntl.fcntl(self._notes, fcntl.F_SETPIPE_SZ, PIPE_NBYTES)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
        self.pid = os.fork()
        if self.pid == 0:
            _run(notes_r, file, said_w)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._room = select.poll()
        self._room.register(self._notes, select.POLLOUT)
        os.close(notes_r)
        os.close(said_w)
        os.set_blocking(self._notes, False)

    def write(self, packed: bytes) -> None:
        """More notes. With b"" it is given them, as many as it takes now. Raises OSError if it cannot write."""
        if packed:
            self._waiting.append(memoryview(len(packed).to_bytes(LENGTH_NBYTES, "little") + packed))
            self._nbytes += LENGTH_NBYTES + len(packed)
            if self._nbytes <= BACKLOG_NBYTES:  # it is woken rarely
                return
        elif not self._waiting and any(what & select.POLLERR for _, what in self._room.poll(0)):  # it has ended
            raise self._problem()
        try:
            self._give()
            while self._nbytes > BACKLOG_NBYTES:
                self._wait()
        except BrokenPipeError:
            self._waiting.clear()
            raise self._problem() from None

    def _give(self) -> None:
        """As much as there is room for in the pipe."""
        with suppress(BlockingIOError):
            while self._waiting:
                given = os.write(self._notes, self._waiting[0])
                self._nbytes -= given
                if given == len(self._waiting[0]):
                    self._waiting.popleft()
                else:
                    self._waiting[0] = self._waiting[0][given:]

    def _wait(self) -> None:
        self._room.poll()
        self._give()

    def _problem(self) -> OSError:
        """Why it has ended."""
        self._ended = True
        number, _, text = os.read(self._said, 4096).decode(errors="replace").partition(" ")
        return OSError(int(number), text) if number.isdecimal() else OSError(text or "its writer has ended")

    def __enter__(self) -> LogWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        with suppress(BrokenPipeError):
            while self._waiting:
                self._wait()
        os.close(self._notes)
        _, status = os.waitpid(self.pid, 0)
        if status and not self._ended:
            problem = self._problem()
            with suppress(OSError):
                print(f"gt: logging stopped: {type(problem).__name__}: {problem}", file=sys.stderr, flush=True)
        os.close(self._said)


def _run(notes: int, file: int, said: int) -> NoReturn:
    """The process itself."""
    status = 1
    try:
        for fd in map(int, os.listdir("/proc/self/fd")):
            if fd not in (notes, file, said):  # not even the first three: a pipe may have got their numbers
                with suppress(OSError):
                    os.close(fd)
        os.nice(NICE)
        _write_all(notes, file)
        status = 0
    except OSError as e:
        os.write(said, f"{e.errno or ''} {e.strerror or e}".encode())
    except BaseException as e:
        os.write(said, f"- {type(e).__name__}: {e}".encode())
    finally:
        os._exit(status)


def _write_all(notes: int, file: int) -> None:
    """Lines of all notes, until the pipe ends."""
    lines, got = LogLines(_give_way), bytearray()
    while data := os.read(notes, PIPE_NBYTES):
        got += data
        first = 0
        while len(got) >= first + LENGTH_NBYTES:
            begin = first + LENGTH_NBYTES
            end = begin + int.from_bytes(got[first:begin], "little")
            if len(got) < end:
                break
            text = memoryview(lines.text(bytes(got[begin:end])).encode())
            while text:
                text = text[os.write(file, text) :]
            first = end
        del got[:first]


def _give_way(noted_s: float) -> None:
    """Let others have this core, unless these lines are late. Client, dispatcher and worker yield while they poll: to a
    process that does not yield in its turn they would lose the core for milliseconds, however low its priority is."""
    if time.time() - noted_s < LATE_S:
        os.sched_yield()
