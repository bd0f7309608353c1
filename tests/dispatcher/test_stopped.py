"""Workers that were stopped: how long they may be, and which states of a process count."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from gt.dispatcher.stopped import LOOK_S, STOPPED_S, Stopped, is_stopped


def test_only_a_stop_that_lasts_counts() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert not is_stopped(process.pid)
        stopped, look = Stopped(), {b"a": process.pid, b"b": os.getpid(), b"c": 0}.__getitem__
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert is_stopped(process.pid)
        assert stopped.look(100.0, (b"a", b"b", b"c"), look) == []
        assert stopped.look(100.0 + STOPPED_S - 0.1, (b"a", b"b", b"c"), look) == []
        assert stopped.look(101.0 + STOPPED_S, (b"a", b"b", b"c"), look) == [b"a"]
        process.send_signal(signal.SIGCONT)
        os.waitid(os.P_PID, process.pid, os.WCONTINUED | os.WNOWAIT)
        assert stopped.look(102.0 + STOPPED_S, (b"a",), look) == []
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert stopped.look(102.0 + STOPPED_S + LOOK_S, (b"a",), look) == [], "it begins anew"
    finally:
        process.kill()
        process.communicate()
    assert not is_stopped(process.pid)
