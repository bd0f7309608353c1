"""`gt top`: the screen as a function of two overviews; a real one in a terminal; what it tells of others."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

import gt
from gt.cli.main import main
from gt.cli.top import KEYS, PLAIN, REVERSE, Rates, bar, screen
from gt.server import users
from gt.transport import logins
from gt.transport.identity import url
from gt.transport.messages import GetStats
from tests.processes.running import DEADLINE_S, Server, alive, environment, until_gone
from tests.sessions import own_settings
from tests.sim.cluster import Cluster, using


def worker(**changes: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "engine": "torch", "device": "cuda:0", "host": "node7", "memory": 80 << 30, "nbytes": 3 << 30, "sessions": 1,
        "under_way": 2, "answered": True, "calls": 100, "run_us": 500_000, "sent_to_peers": 0, "uploaded": 0,
        "fetched": 0, "compile_us": 0, "tiers": {"1": 100_000, "3": 400_000},
    }  # fmt: skip
    return {**row, **changes}


def session(name: str, **changes: Any) -> dict[str, Any]:
    row = {"name": name, "workers": [1], "tensors": 3, "nbytes": 1 << 20, "queue": 1, "calls": 50, "run_us": 1000}
    return {**row, **changes}


def program(lines: str, **changes: Any) -> dict[str, Any]:
    row = {"lines": lines, "instructions": 40, "calls": 9, "run_us": 90, "tier": 3, "workers": 1, "sessions": [1]}
    return {**row, **changes}


def overview(**tables: Any) -> dict[str, Any]:
    return {"now_s": 1.0, "calls": 10, "workers": {}, "sessions": {}, "programs": {}, **tables}


def bare(lines: list[str]) -> list[str]:
    return [re.sub(r"\x1b\[\d*m", "", line) for line in lines]


BUSY = overview(
    workers={"1": worker(), "2": worker(device="cpu", memory=0, answered=False, tiers={})},
    sessions={"1": session("ann/train.py-12"), "2": session("evil\x1b[2J\n" + "x" * 300, run_us=9000, calls=1)},
    programs={"0123abcd": program("train.py:3-9 net.py:4"), "89abcdef": program("a" * 300, run_us=5)},
)


@pytest.mark.parametrize("width", [60, 80, 119, 120, 160, 400])
@pytest.mark.parametrize("sort", KEYS.values())
def test_lines_fit_the_screen(width: int, sort: str) -> None:
    for rates in (Rates(BUSY, overview(), 2.0), Rates(BUSY, BUSY, 0.0), Rates(overview(), BUSY, 1.0)):
        lines = bare(screen(rates, "host:1", width, 30, sort))
        assert len(lines) <= 30
        assert max(map(len, lines[:-1])) <= width
        assert "\x1b" not in "".join(lines)
        assert not any(not c.isprintable() for line in lines for c in line)


@pytest.mark.parametrize("width", [60, 80, 160])
def test_what_a_session_waits_for_is_below_it(width: int) -> None:
    rows = {"3": session("ann/" + "long" * 40, waits="for memory, place 1 of 2"), "4": session("bob/train.py-7")}
    lines = bare(screen(Rates(overview(sessions=rows), overview(), 1.0), "host:1", width, 30, "name"))
    at = next(k for k, line in enumerate(lines) if "ann/long" in line)
    assert lines[at + 1].strip() == "waits for memory, place 1 of 2"
    assert " bob/" in lines[at + 2]


def test_the_figures_are_rates() -> None:
    before = overview(workers={"1": worker(calls=90, run_us=0, tiers={"1": 100_000, "3": 0})})
    lines = bare(screen(Rates(overview(calls=30, workers={"1": worker()}), before, 2.0), "host:1", 80, 24, "busy"))
    assert "10 calls/s" in lines[0]
    (row,) = [line for line in lines if "cuda:0" in line]
    assert row.split()[-2:] == ["5", "2"]  # calls per second, and under way
    assert "25%" in row
    assert "3.0G/80.0G" in row
    assert "  0%   0% 100%" in row  # of the time in between


def test_wide_screens_have_more_columns() -> None:
    narrow, wide = ("\n".join(screen(Rates(BUSY, BUSY, 1.0), "h:1", w, 24, "busy")) for w in (80, 160))
    assert "COMPILED" in wide
    assert "COMPILED" not in narrow
    assert "node7" in wide


def test_keys_change_the_order() -> None:
    def order(sort: str) -> list[str]:
        lines = bare(screen(Rates(BUSY, overview(), 1.0), "h:1", 80, 24, sort))
        at = next(i for i, line in enumerate(lines) if line.startswith("SESSION"))
        return [line.split()[0] for line in lines[at + 1 : at + 3]]

    assert order("busy") == ["2", "1"]
    assert order("calls") == ["1", "2"]
    assert order("name") == ["1", "2"]


def test_a_small_screen_says_that_there_is_more() -> None:
    many = overview(sessions={str(n): session(f"user{n}") for n in range(1, 300)})
    lines = bare(screen(Rates(many, many, 1.0), "h:1", 80, 24, "busy"))
    assert len(lines) <= 24
    assert any(re.fullmatch(r"\.\.\. \d+ more", line) for line in lines)
    assert "q quit" in lines[-1]


def test_bars() -> None:
    assert [bar(x, 4) for x in (-1, 0, 0.5, 1, 7)] == ["[    ]", "[    ]", "[||  ]", "[||||]", "[||||]"]


def test_an_overview_tells_names_and_counters_only() -> None:
    cluster = Cluster()
    with using(cluster.client()):
        secret = gt.full((3,), 41.5) * 2
        assert secret.sum().item() == 249
    with using(cluster.client()) as asker:
        data = asker.ask(lambda request: GetStats(request, True)).data
    assert set(data["sessions"]) == {"1"}  # not the one who asks
    assert data["sessions"]["1"]["calls"] == 1
    (found,) = data["programs"].values()
    assert found["lines"].startswith("test_top.py:")
    assert found["calls"] == 1

    def leaves(value: Any) -> Iterator[Any]:
        for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]:
            yield from leaves(each) if isinstance(each, dict | list) else [each]

    assert all(isinstance(leaf, int | float | str) for leaf in leaves(data))
    assert "41.5" not in repr(data)
    assert os.sep not in found["lines"]


def test_without_a_server(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with own_settings() as patch:
        patch.setenv("GT_CONFIG_DIR", str(tmp_path))
        assert main(["top", "--once"]) == 1
        assert "Pass --server HOST:PORT, set GT_SERVER, or run gt login" in capsys.readouterr().err
        assert main(["top", "--once", "--server", "nonsense"]) == 1
        assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.processes
@pytest.mark.parametrize("form", ["URL", "login"])
def test_a_server_with_keys(form: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The key is that of the URL or of the latest login, and is not shown."""
    key = users.add(tmp_path / "lab", "ada")
    server = Server("--engine", "numpy", "--keys", GT_CONFIG_DIR=str(tmp_path / "lab"))
    try:
        with own_settings() as patch:
            patch.setenv("GT_CONFIG_DIR", str(tmp_path / "mine"))
            if form == "URL":
                patch.setenv("GT_SERVER", url(server.address, key))
            else:
                logins.store(tmp_path / "mine", url(server.address, key))
            assert main(["top", "--once", "--interval", "0.1"]) == 0
            said = capsys.readouterr()
            assert f"gt top  {server.address}  0 workers" in said.out
            assert main(["top", "--once", "--server", url("127.0.0.1:1", key)]) == 1
            said = "".join((*said, *capsys.readouterr()))
            assert "no server at 127.0.0.1:1" in said
            assert url("", key).partition("-")[2] not in said
    finally:
        server.stop()


# --- in a real terminal ----------------------------------------------------------------------------------------------


#: Makes the terminal that is its standard input its own, and becomes the process that is named. (To fork this process,
#: which has threads, would not do.) Ctrl-C has its effect, also where the tests run in the background of a shell.
IN_TERMINAL = """
import fcntl, os, signal, sys, termios
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


class Terminal:
    """A process in a terminal of its own."""

    all: ClassVar[list[Terminal]] = []

    def __init__(self, arguments: list[str], columns: int, env: dict[str, str]) -> None:
        self.fd, inner = pty.openpty()
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        command = [sys.executable, "-c", IN_TERMINAL, *arguments]
        self.process = subprocess.Popen(command, env=env, stdin=inner, stdout=inner, stderr=inner)
        os.close(inner)
        self.text = ""
        self.all.append(self)

    def until(self, pattern: str) -> str:
        """Read until this appears; what was read up to it."""
        deadline_s = time.monotonic() + 2 * DEADLINE_S
        while not (found := re.search(pattern, self.text)):
            ready, _, _ = select.select([self.fd], [], [], DEADLINE_S)
            assert ready, f"{pattern!r} is not in {self.text!r}"
            assert time.monotonic() < deadline_s, f"{pattern!r} is not in {self.text[-4000:]!r}"
            try:
                self.text += os.read(self.fd, 1 << 16).decode(errors="replace")
            except OSError as e:  # it has closed its end
                raise AssertionError(f"{pattern!r} is not in {self.text!r}") from e
        read, self.text = self.text[: found.end()], self.text[found.end() :]
        return read

    def press(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    def end(self) -> int:
        code = self.process.wait(DEADLINE_S)
        os.close(self.fd)
        return code


@pytest.mark.processes
def test_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server("--engine", "numpy", "--workers", "1", GT_TOKEN="a secret token")
    try:
        with own_settings() as patch:
            patch.setenv("GT_TOKEN", "a secret token")
            gt.connect(server.address)
            (gt.ones(4) @ gt.ones(4)).item()
            arguments = ["-m", "gt.cli.main", "top", "--server", server.address, "--interval", "0.2"]
            terminal = Terminal(arguments, 100, environment(GT_TOKEN="a secret token", TERM="xterm"))
            first = terminal.until("sorted by busy")
            assert first.startswith("\x1b[?1049h")  # the screen before comes back later
            shown = terminal.until("sorted by busy")
            assert "1 worker  1 session" in shown
            assert f"/{os.path.basename(sys.argv[0])}-{os.getpid()}" in shown
            assert re.search(r"test_top\.py:\d+", shown)
            assert "a secret token" not in first + shown
            terminal.press("m")
            terminal.until("sorted by memory")
            fcntl.ioctl(terminal.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 160, 0, 0))
            terminal.until("COMPILED")
            terminal.press("q")
            terminal.until(re.escape("\x1b[?25h\x1b[?1049l"))
            assert terminal.end() == 0

            interrupted = Terminal(arguments, 80, environment(GT_TOKEN="a secret token", TERM="xterm"))
            interrupted.until("sorted by busy")
            interrupted.press("\x03")
            interrupted.until(re.escape("\x1b[?1049l"))
            assert interrupted.end() == 0
            gt.disconnect()
    finally:
        for terminal in Terminal.all:
            terminal.process.kill()
            terminal.process.wait()
        Terminal.all.clear()
        server.stop()
    assert not alive(server.pid)
    until_gone([server.pid], DEADLINE_S)


def test_headings_are_marked() -> None:
    lines = screen(Rates(BUSY, BUSY, 1.0), "h:1", 80, 24, "busy")
    assert sum(line.startswith(REVERSE) and line.endswith(PLAIN) for line in lines) == 3
