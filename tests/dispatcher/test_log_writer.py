"""The process that writes the log: what it is given is in the file, soon and all of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gt.dispatcher import log_writer
from gt.dispatcher.events import MessageCame
from gt.dispatcher.log import InstructionLog
from gt.dispatcher.log_writer import LogWriter
from gt.transport.messages import CallDone, CallFailed, Failure

DEADLINE_S = 20.0

#: Another test of this process may have started threads, or imported jax, which warns too. A server does neither.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning", "ignore:os.fork:RuntimeWarning")


def start(path: Path) -> LogWriter:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        return LogWriter(file)
    finally:
        os.close(file)


def wait_for_lines(path: Path, count: int) -> list[str]:
    end = time.monotonic() + DEADLINE_S
    while len(lines := path.read_text().splitlines()) < count:
        assert time.monotonic() < end, lines
        time.sleep(0.01)
    return lines


def test_lines_are_written_while_it_runs_and_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with start(path) as writer:
        log = InstructionLog(writer.write)
        log(MessageCame(b"p", CallDone(1, 1, 5)))
        log.flush()
        assert "#1 5 us" in wait_for_lines(path, 2)[1]
        for i in range(2, 5000):
            log(MessageCame(b"p", CallDone(1, i, 5)))
        log.flush()
    lines = path.read_text().splitlines()
    assert [f"#{i} 5 us" in line for i, line in enumerate(lines)] == [False] + [True] * 4999


def test_a_failure_is_written_at_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with start(path) as writer:
        log = InstructionLog(writer.write)
        log(MessageCame(b"p", CallDone(1, 1, 5)))
        log(MessageCame(b"p", CallFailed(1, 2, 2, Failure("ServerError", "out of coffee"))))
        assert "out of coffee" in wait_for_lines(path, 3)[2]


def test_what_was_given_is_written_when_the_server_is_gone(tmp_path: Path) -> None:
    """Of a server that was killed nothing is left but what is in the pipe."""
    path = tmp_path / "log"
    writer = start(path)
    os.kill(writer.pid, signal.SIGSTOP)
    log = InstructionLog(writer.write)
    log(MessageCame(b"p", CallDone(1, 1, 5)))
    log.flush()
    for fd in (writer._notes, writer._said):
        os.close(fd)
    # As a terminal does, also when it is closed, or a system that shuts down.
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCONT):
        os.kill(writer.pid, signum)
    os.waitpid(writer.pid, 0)
    assert len(path.read_text().splitlines()) == 2


def test_a_server_without_standard_files_ends(tmp_path: Path) -> None:
    """The pipe gets their numbers: the writer must not hold the end that it waits for."""
    code = """
import os, sys
from pathlib import Path
from gt.dispatcher.log_writer import LogWriter
from gt.dispatcher.log import InstructionLog
from gt.dispatcher.events import MessageCame
from gt.transport.messages import CallDone
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
os.closerange(0, 3)
with LogWriter(file) as writer:
    log = InstructionLog(writer.write)
    log(MessageCame(b"p", CallDone(1, 1, 5)))
    log.flush()
"""
    assert subprocess.run([sys.executable, "-c", code, tmp_path / "log"], timeout=DEADLINE_S).returncode == 0
    assert len((tmp_path / "log").read_text().splitlines()) == 2


def test_a_writer_that_falls_behind_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit, count = 1 << 20, 200_000
    monkeypatch.setattr(log_writer, "BACKLOG_NBYTES", limit)
    path = tmp_path / "log"
    with start(path) as writer:
        os.kill(writer.pid, signal.SIGSTOP)
        log = InstructionLog(writer.write)
        noted = 0

        def note_all() -> None:
            nonlocal noted
            for noted in range(1, count + 1):
                log(MessageCame(b"p", CallDone(1, noted, 5)))
            log.flush()

        thread = threading.Thread(target=note_all, daemon=True)
        thread.start()
        try:
            end = time.monotonic() + DEADLINE_S
            while writer._nbytes <= limit:
                assert time.monotonic() < end
                time.sleep(0.01)
            thread.join(0.5)
            assert thread.is_alive()
            assert writer._nbytes < limit + (1 << 18)
            assert noted < count
        finally:
            os.kill(writer.pid, signal.SIGCONT)
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
    last = path.read_text().splitlines()[-1]
    assert f"  {count + 1}  RECV" in last
    assert f"#{count} 5 us" in last


@pytest.mark.parametrize(("late_s", "least", "most"), [(0.0, 250, 1000), (60.0, 0, 0)])
def test_it_gives_way_unless_it_is_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late_s: float, least: int, most: int
) -> None:
    """Others poll and yield their core to it: it must not keep it for long."""
    yielded: list[int] = []
    monkeypatch.setattr(os, "sched_yield", lambda: yielded.append(1))
    monkeypatch.setattr(log_writer, "LATE_S", 30.0)
    packed: list[bytes] = []
    log = InstructionLog(packed.append, clock=lambda: time.time() - late_s)
    for i in range(1000):
        log(MessageCame(b"p", CallDone(1, i, 5)))
    log.flush()
    with open(tmp_path / "notes", "w+b") as notes, open(tmp_path / "log", "w+b") as file:
        for each in filter(None, packed):
            notes.write(len(each).to_bytes(log_writer.LENGTH_NBYTES, "little") + each)
        notes.seek(0)
        log_writer._write_all(notes.fileno(), file.fileno())
    assert len((tmp_path / "log").read_text().splitlines()) == 1001
    assert least <= len(yielded) <= most


def test_why_it_cannot_write() -> None:
    with start(Path("/dev/full")) as writer:
        log = InstructionLog(writer.write)
        log(MessageCame(b"p", CallDone(1, 1, 5)))
        log.flush()
        os.waitid(os.P_PID, writer.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(OSError, match="No space left on device"):
            log.flush()
        log(MessageCame(b"p", CallDone(1, 1, 5)))
        log.flush()  # it has ended: nothing is kept


def test_a_writer_that_was_killed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with start(tmp_path / "log") as writer:
        log = InstructionLog(writer.write)
        os.kill(writer.pid, signal.SIGKILL)
        os.waitid(os.P_PID, writer.pid, os.WEXITED | os.WNOWAIT)
    assert capsys.readouterr().err == "gt: logging stopped: OSError: its writer has ended\n"
    with start(tmp_path / "log") as writer:
        log = InstructionLog(writer.write)
        os.kill(writer.pid, signal.SIGKILL)
        os.waitid(os.P_PID, writer.pid, os.WEXITED | os.WNOWAIT)
        log(MessageCame(b"p", CallDone(1, 1, 5)))
        with pytest.raises(OSError, match="its writer has ended"):
            log.flush()
    assert capsys.readouterr().err == ""
