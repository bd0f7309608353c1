"""How a thread waits: for the session's lock, and for the server.

Python raises KeyboardInterrupt between any two steps of the main thread: between the sending of a call and the note
that it was sent, say, after which the two sides would no longer agree and the session would be lost.

Law 1: while the main thread has the lock, Ctrl-C is only remembered. It is raised when the lock is released, or where
       the thread sleeps: with `asleep`, at which the state is whole.
Law 2: what Ctrl-C does is the user's choice: the handler that was there is there again, and is called, afterwards.
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

from gt.transport.patience import Patience

LOCK_S = 0.05  #: How often a thread that waits for the lock looks whether it was interrupted.
#: How long an answer is looked for before the sleep. Where there is one CPU the server needs it.
LOOK_S = 400e-6 if len(os.sched_getaffinity(0)) > 1 else 0.0
LISTEN = 8  #: Looks at a mailbox before the channel is asked too: that takes as long as so many looks.
POLL_S = 0.25  #: The longest sleep of a waiting thread before it looks around.

_MAIN = threading.main_thread().ident
_number = int(SIGINT)


class SessionLock(RLock):  # type: ignore[misc,unused-ignore]  # may be subclassed, whatever the stubs say
    """See the file's header."""

    def __init__(self) -> None:
        self._depth = 0  #: How often the main thread has it, or is about to.
        self._handler: Any = None  #: What Ctrl-C does otherwise; None: it is not held back.
        self._came = False  #: It was remembered.

    def __enter__(self) -> bool:  # type: ignore[override]
        if get_ident() != _MAIN:
            return self.acquire()
        if not self._depth:
            self._hold_back()
        self._depth += 1
        while not self.acquire(timeout=LOCK_S):
            if self._came:
                self._depth -= 1
                self._let_come()  # which mostly raises
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
        """Around a sleep of a thread that may have the lock: here it may be interrupted."""
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
        if callable(handler):  # else it ends the process, or is ignored, or is another library's affair
            with suppress(ValueError):  # an interpreter that gets no signals
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

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self.fd, select.POLLIN)
        self._channel_fd = -1
        self._patience = Patience()

    def look(self, hear: Callable[[], None], ready: Callable[[], bool]) -> bool:
        """Look for what may come without a message, for a moment: to be woken takes longer than most calls. The time is
        used to `hear` what the server still has to say of what was answered before."""
        if self._channel_fd < 0 or not LOOK_S or not self._patience.wanted():
            return False
        found = False
        until_s = time.perf_counter() + LOOK_S
        while not found and time.perf_counter() < until_s:
            os.sched_yield()  # whoever has work goes first: it may be the one that answers
            hear()
            for _ in range(LISTEN):
                if found := ready():
                    break
                os.sched_yield()
        # Where others took this CPU meanwhile, to sleep is better: who is woken goes first.
        self._patience.looked(found and time.perf_counter() < until_s)
        return found

    def sleep(self, channel: Any) -> None:
        if self._channel_fd < 0:
            fileno = getattr(channel, "fileno", None)
            if fileno is None:
                channel.wait(POLL_S)  # one in memory: whoever owns it knows what happens next
                return
            self._channel_fd = fileno()
            self._poll.register(self._channel_fd, select.POLLIN)
        for fd, _ in self._poll.poll(POLL_S * 1000):
            if fd == self.fd:
                os.eventfd_read(fd)

    def __del__(self) -> None:
        os.close(self.fd)
