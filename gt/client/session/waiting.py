"""Waiting for the session's lock, and for the server.

Python raises KeyboardInterrupt between any two steps of the main thread. If that were between sending a call and
counting it, client and server would no longer agree, and the session would be lost.

Law 1: while the main thread has the lock, Ctrl-C is only noted. It is raised when the lock is released, or where the
       thread sleeps (`asleep`): there the state is consistent.
Law 2: the user's own handler of Ctrl-C is restored, and called, afterwards.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # signal's own functions take ten times as long
import os
import select
import sys
import threading
import time
from _thread import RLock, get_ident
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from signal import SIGINT
from typing import Any

from gt.awake import Awake
from gt.transport.channel import Patience

LOCK_S = 0.05  #: How often a thread that waits for the lock checks for Ctrl-C.
#: How long an answer is polled for before the sleep, at least. Not on a single CPU: the server needs it.
LOOK_S = 400e-6 if len(os.sched_getaffinity(0)) > 1 else 0.0
LISTEN = 8  #: Polls of a mailbox for each poll of the channel, which costs as much.
POLL_S = 0.25  #: The longest sleep of a waiting thread.

_MAIN = threading.main_thread().ident
_number = int(SIGINT)


class SessionLock(RLock):  # type: ignore[misc,unused-ignore]  # may be subclassed, whatever the stubs say
    """A reentrant lock that defers Ctrl-C; see the file's header."""

    def __init__(self) -> None:
        self._depth = 0  #: How many times the main thread has acquired it, or is about to.
        self._handler: Any = None  #: The user's handler; None while Ctrl-C is not deferred.
        self._came = False  #: Ctrl-C was pressed meanwhile.

    def __enter__(self) -> bool:  # type: ignore[override]
        if get_ident() != _MAIN:
            return self.acquire()
        if not self._depth:
            self._hold_back()
        self._depth += 1
        while not self.acquire(timeout=LOCK_S):
            if self._came:
                self._depth -= 1
                self._let_come()  # which usually raises
                self._hold_back()
                self._depth += 1
        return True

    def __exit__(self, *_: object) -> None:
        self.release()
        if get_ident() == _MAIN:
            self._depth -= 1
            if not self._depth:
                self._let_come()

    @contextmanager
    def asleep(self) -> Iterator[None]:
        """Allow Ctrl-C during a sleep, also of a thread that has the lock."""
        if not self._depth or get_ident() != _MAIN:
            yield
            return
        self._let_come()
        try:
            yield
        finally:
            self._hold_back()

    def _hold_back(self) -> None:
        self._came = False
        handler = _signal.getsignal(_number)
        if callable(handler):  # else Ctrl-C ends the process, or is ignored, or is handled in C
            with suppress(ValueError):  # an interpreter that does not handle signals
                _signal.signal(_number, self._remember)
                self._handler = handler

    def _remember(self, *_: object) -> None:
        self._came = True

    def _let_come(self) -> None:
        handler, self._handler = self._handler, None
        if handler is not None:
            _signal.signal(_number, handler)
            if self._came:
                self._came = False
                handler(_number, sys._getframe())


class Sleeper:
    """How one thread waits: for the channel, or to be woken by another thread."""

    def __init__(self, awake_us: int = 0) -> None:
        """For `awake_us` see `gt.awake.Awake`."""
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self.fd, select.POLLIN)
        self._channel_fd = -1
        self._patience = Patience()
        self._awake_us = awake_us
        self._awake: Awake | None = None  #: Not before it is needed: it looks at the machine.

    def look(self, hear: Callable[[], None], ready: Callable[[], bool]) -> bool:
        """Poll `ready` for a moment: being woken takes longer than most calls. Meanwhile `hear` handles messages."""
        if self._channel_fd < 0 or not LOOK_S or not self._patience.wanted():
            return False
        if self._awake is None:
            self._awake = Awake(self._awake_us)
        self._awake.exchanged()
        found = False
        until_s = time.perf_counter() + max(LOOK_S, self._awake.left_s())
        while not found and time.perf_counter() < until_s:
            os.sched_yield()  # other processes first: one of them may be the one that answers
            hear()
            for _ in range(LISTEN):
                if found := ready():
                    break
                os.sched_yield()
        # If others needed this CPU, sleeping is better: a thread that is woken goes first.
        self._patience.looked(found and time.perf_counter() < until_s)
        return found

    def sleep(self, channel: Any) -> None:
        if self._channel_fd < 0:
            fileno = getattr(channel, "fileno", None)
            if fileno is None:
                channel.wait(POLL_S)  # in memory, in tests
                return
            self._channel_fd = fileno()
            self._poll.register(self._channel_fd, select.POLLIN)
        for fd, _ in self._poll.poll(POLL_S * 1000):
            if fd == self.fd:
                os.eventfd_read(fd)

    def __del__(self) -> None:
        os.close(self.fd)
