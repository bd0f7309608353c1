"""Ctrl-C at any line of the client's: the session, its tensors and what they hold stay as they were or go on."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import gt
from gt.client.session.session import Session
from gt.client.session.waiting import SessionLock

CLIENT = str(Path(gt.__file__).parent / "client")
STRIDE = 5  #: Every line would take long; a loop's next pass is cut at other ones.


@pytest.fixture(autouse=True)
def _pythons_handler() -> Iterator[None]:
    """In the background of a shell Ctrl-C is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def cut(work: Callable[[], object], line: int) -> bool:
    """Do the work, with Ctrl-C at that line of the client's, counted from its beginning; False: it has fewer."""
    left = line

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal left
        code = frame.f_code
        if event == "line" and code.co_filename.startswith(CLIENT) and code.co_name != "__del__":  # lost there
            left -= 1
            if left == 0:
                signal.raise_signal(signal.SIGINT)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return left <= 0


def cut_everywhere(work: Callable[[], object], check: Callable[[], None]) -> None:
    line = 1
    while cut(work, line):
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        check()
        line += STRIDE
    assert line > 20 * STRIDE, "so few lines are none"


def test_uploads_and_fetches(session: Session) -> None:
    data = np.arange(400_000, dtype=np.float32)  # several chunks
    kept = gt.from_numpy(data)

    def check() -> None:
        assert not session.broken
        assert kept[-2:].tolist() == [399_998, 399_999]

    cut_everywhere(lambda: gt.from_numpy(data).numpy(), check)


def test_updates(session: Session) -> None:
    w = gt.zeros(3)
    seen = [0.0]

    def work() -> None:
        for _ in range(3):
            w.add_(gt.ones(3) * 2.0)
        w.sum().item()

    def check() -> None:
        now = w.tolist()
        assert now[0] == now[1] == now[2]
        assert now[0] - seen[-1] in (0.0, 2.0, 4.0, 6.0)
        seen.append(now[0])

    cut_everywhere(work, check)
    assert seen[-1] > 6.0


def test_it_is_held_back_while_the_lock_is_held() -> None:
    lock = SessionLock()
    with pytest.raises(KeyboardInterrupt), lock:  # noqa: PT012
        with lock:
            signal.raise_signal(signal.SIGINT)
        done = True
    assert done
    with pytest.raises(KeyboardInterrupt), lock, lock.asleep():
        signal.raise_signal(signal.SIGINT)
    with lock:
        pass
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_of_the_users_is_called_once() -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        lock = SessionLock()
        with lock:
            signal.raise_signal(signal.SIGINT)
            assert not came
        assert came == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)


def test_who_waits_for_the_lock_can_be_interrupted() -> None:
    lock = SessionLock()
    has, end = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            has.set()
            end.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    has.wait(30)
    main = threading.get_ident()
    threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt), lock:
        raise AssertionError("it does not get it")
    end.set()
    thread.join()
    with lock:
        pass
