"""Ctrl-C, held back while a session's state is changed.

Python raises KeyboardInterrupt between any two steps of the main thread: between the sending of a call and the note
that it was sent, say, after which the two sides would no longer agree and the session would be lost.

Law 1: while the main thread has the lock, Ctrl-C is only remembered. It is raised when the lock is released, or where
       the thread sleeps: with `asleep`, at which the state is whole.
Law 2: what Ctrl-C does is the user's choice: the handler that was there is there again, and is called, afterwards.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # signal's own functions take ten times as long
import sys
import threading
from _thread import RLock, get_ident
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from signal import SIGINT
from typing import Any

LOOK_S = 0.05  #: How often one that waits for the lock looks whether it was interrupted.

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
        while not self.acquire(timeout=LOOK_S):
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
