"""The cache on disk and the compiler's process: with compilers that do well, crash, and talk nonsense."""

from __future__ import annotations

import os
import signal
import stat
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gt.config import compiler_environment
from gt.worker.engines import cpp, inductor
from gt.worker.run import compiling
from gt.worker.run.compiling import Compiler, is_whole, seal
from tests.processes.running import alive, until, until_gone
from tests.sessions import raising
from tests.worker.worker_building import Builder

#: What all compilers here begin with. `jobs()` gives the names of folders; `make` makes one.
BEGIN = """
import os, signal, subprocess, sys, time
from pathlib import Path
from gt.worker.run.compiling import seal
cache = Path(sys.argv[2])
with open(cache / "pids", "a") as f:
    f.write(f"{os.getpid()}\\n")
runs = len((cache / "pids").read_text().split())

def jobs():
    while line := sys.stdin.buffer.readline():
        size, name = line.decode().split()
        sys.stdin.buffer.read(int(size))
        yield name

def make(name):
    folder = cache / "compiled" / name
    folder.mkdir(exist_ok=True)
    (folder / "program.so").write_text("code")
    seal(folder)
    answer(f"done {name}")

def answer(text):
    print(text, flush=True)
"""

GOOD = "for name in jobs(): make(name)"

Start = Callable[..., Compiler]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """start(source) -> a Compiler whose process runs that."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    cache = tmp_path / "a cache"  # a blank in its name is nothing special

    def new(source: str = GOOD, about: str = "torch 1", device: str = "cpu", most: int = 1) -> Compiler:
        (tmp_path / "fake_compiler.py").write_text(BEGIN + source)
        return Compiler("fake_compiler", device, about, str(cache), lambda line: said(cache, line), most=most)

    yield new
    for pid in pids(cache):
        if alive(pid):
            os.kill(pid, signal.SIGKILL)
    until_gone(pids(cache), 10.0)


def said(cache: Path, line: str) -> None:
    raise AssertionError(line)


def pids(cache: Path) -> list[int]:
    """The processes that were started as compilers."""
    file = cache / "pids"
    return [int(p) for p in file.read_text().split()] if file.exists() else []


def program(n: int = 3, length: int = 1) -> object:
    b = Builder((n,))
    y = 0
    for _ in range(length):
        y = b.add("neg", y)
    return b.program([y])


def ask(compiler: Compiler, *sizes: int) -> list[str]:
    """Ask for programs that differ in size, and wait for the answers."""
    folders = [compiler.folder(program(n)) for n in sizes]
    for n, folder in zip(sizes, folders, strict=True):
        compiler.request(folder, program(n))
    until(lambda: not any(map(compiler.waits, folders)), "all answers")
    return folders


def ended(compiler: Compiler) -> None:
    until(lambda: not compiler._running, "the end of the compiler")


# --- the cache ------------------------------------------------------------------------------


def test_what_was_made_is_found_again(start: Start) -> None:
    compiler = start()
    folder = compiler.folder(program())
    assert not compiler.ready(folder)
    assert ask(compiler, 3) == [folder]
    assert compiler.ready(folder)
    assert not compiler.failed
    again = start()
    assert again.folder(program()) == folder
    assert again.ready(folder)


@pytest.mark.parametrize("left", ["", "co", None])
def test_what_was_cut_short_is_made_again(start: Start, left: str | None) -> None:
    """To load it would end the worker."""
    [folder] = ask(start(), 3)
    library = Path(folder) / "program.so"
    library.unlink() if left is None else library.write_text(left)
    again = start()
    assert not again.ready(folder)
    assert not is_whole(Path(folder))
    ask(again, 3)
    assert again.ready(folder)


def test_a_folder_is_for_one_program_one_device_one_version(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = {
        start().folder(program(3)), start().folder(program(4)), start().folder(program(3), True),
        start(about="torch 2").folder(program(3)), start(device="cuda:0").folder(program(3)),
    }  # fmt: skip
    monkeypatch.setattr(compiling, "_hash_of_code", lambda: "other code")
    assert len(folders | {start().folder(program(3))}) == 6


@pytest.mark.parametrize("where", ["", "compiled"])
def test_a_cache_that_others_can_write_is_refused(where: str, tmp_path: Path) -> None:
    """What is in it is run."""
    folder = tmp_path / where
    folder.mkdir(exist_ok=True)
    said: list[str] = []
    compiler = Compiler("fake_compiler", "cpu", "", str(tmp_path), said.append)
    there = Path(compiler.folder(program()))
    there.mkdir(parents=True)
    (there / "program.so").write_text("code")
    seal(there)
    assert compiler.ready(str(there))
    for mode in (0o777, 0o770, 0o702):
        folder.chmod(mode)
        compiler = Compiler("fake_compiler", "cpu", "", str(tmp_path), said.append)
        assert not compiler.ready(str(there))
        compiler.request("x", program())
        assert compiler.failed == {"x": "there is no cache folder"}
        assert not compiler.waits("x")
        assert said.pop() == f"nothing is compiled: other users can write to {tmp_path} (GT_CACHE_DIR)"
        assert not said, "once"


def test_a_cache_that_is_made_is_ours_alone(start: Start, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        assert start().usable
    finally:
        os.umask(before)
    for folder in (tmp_path / "a cache", tmp_path / "a cache" / "compiled"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_cache_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said: list[str] = []
    compiler = Compiler("fake_compiler", "cpu", "", str(tmp_path / "file" / "cache"), said.append)
    compiler.request("x", program())
    assert compiler.failed == {"x": "there is no cache folder"}
    assert len(said) == 1
    assert said[0].startswith("nothing is compiled: ")


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", raising(RuntimeError("Could not determine home directory.")))
    said: list[str] = []
    compiler = Compiler("fake_compiler", "cpu", "", "", said.append)
    assert not compiler.usable
    assert "no home folder" in said[0]


def test_what_was_used_longest_ago_makes_room(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = tmp_path / "a cache" / "compiled"
    compiled.mkdir(parents=True)
    for age, name in enumerate(["new", "middle", "old"]):
        (compiled / name).mkdir()
        (compiled / name / "program.so").write_bytes(b"x" * 98)
        seal(compiled / name)  # a file of two bytes
        os.utime(compiled / name, (1e9 - age, 1e9 - age))
    (compiled / "old.lock").write_text("")
    for path in (compiled.parent, compiled):
        path.chmod(0o700)
    monkeypatch.setattr(compiling, "CACHE_NBYTES", 300)
    compiler = start()
    assert compiler.ready(str(compiled / "old")), "all fit; and now it was used"
    monkeypatch.setattr(compiling, "CACHE_NBYTES", 250)
    assert start().usable
    assert sorted(p.name for p in compiled.iterdir() if p.is_dir()) == ["new", "old"]


# --- the process ----------------------------------------------------------------------------


def test_a_failure_has_its_reason(start: Start) -> None:
    compiler = start("for name in jobs(): answer(f'failed {name} ValueError: it is  no good')")
    (folder,) = ask(compiler, 3)
    assert compiler.failed == {folder: "ValueError: it is  no good"}


@pytest.mark.parametrize(
    ("crash", "code"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), signal.SIGSEGV)", -11), ("os._exit(0)", 0)]
)
def test_a_crash_costs_one_program(crash: str, code: int, start: Start, tmp_path: Path) -> None:
    """The one that it was at; a new compiler is asked for the rest. One that ends well without a word crashed too."""
    compiler = start(f"for name in jobs():\n    if runs == 1: {crash}\n    make(name)")
    first, *others = ask(compiler, 3, 4, 5)
    assert compiler.failed == {first: f"the compiler ended with {code}"}
    assert all(map(compiler.ready, others))
    assert len(pids(tmp_path / "a cache")) == 2


def test_crashes_come_to_an_end(start: Start, tmp_path: Path) -> None:
    compiler = start("sys.exit(1)")
    folders = ask(compiler, 3, 4)
    assert compiler.failed == dict.fromkeys(folders, "the compiler ended with 1")
    ended(compiler)
    assert len(pids(tmp_path / "a cache")) == 2


def test_what_a_crashed_compiler_had_started_ends_too(start: Start, tmp_path: Path) -> None:
    compiler = start(
        """
child = subprocess.Popen(["sleep", "1000"])
(cache / "child").write_text(str(child.pid))
os.kill(os.getpid(), signal.SIGKILL)
"""
    )
    ask(compiler, 3)
    until_gone([int((tmp_path / "a cache" / "child").read_text())], 5.0)


def test_an_end_for_lack_of_work_is_no_failure(start: Start, tmp_path: Path) -> None:
    """A job that was on its way just then is asked for again."""
    compiler = start("for name in jobs():\n    make(name)\n    if runs == 1: os._exit(0)")
    folders = ask(compiler, 3, 4, 5)
    assert not compiler.failed
    assert all(map(compiler.ready, folders))
    assert len(pids(tmp_path / "a cache")) == 2


def test_after_an_end_a_new_one_is_started(start: Start, tmp_path: Path) -> None:
    compiler = start("for name in jobs():\n    make(name)\n    os._exit(0)")
    for n in (3, 4):
        ask(compiler, n)
        ended(compiler)
    assert not compiler.failed
    assert len(pids(tmp_path / "a cache")) == 2


# --- before there is a job, and several at once ----------------------------------------------

WAIT = """
def wait_for(name, n):
    while not (cache / name).exists() or len((cache / name).read_text().split()) < n:
        time.sleep(0.01)
"""


def test_a_compiler_for_a_device_is_started_before_there_is_a_job(start: Start, tmp_path: Path) -> None:
    compiler = start(device="cuda:0")
    for _ in range(2):
        compiler.get_ready()
    until(lambda: pids(tmp_path / "a cache"), "a compiler")
    assert not compiler.ready(compiler.folder(program()))
    ask(compiler, 3)
    assert compiler.ready(compiler.folder(program()))
    assert len(pids(tmp_path / "a cache")) == 1, "the same one"


def test_nothing_is_started_early_where_it_would_cost_something(start: Start, tmp_path: Path) -> None:
    for compiler in (start(device="cpu"), start(device="cuda:0")):
        ask(compiler, 3)
        for process in compiler._running:
            process.popen.kill()
        ended(compiler)
        started = pids(tmp_path / "a cache")
        assert compiler.ready(compiler.folder(program())), "from the cache"
        if compiler._device == "cpu":
            compiler.get_ready()
            assert not compiler.ready(compiler.folder(program(4)))
        assert not compiler._running
        assert pids(tmp_path / "a cache") == started


def test_one_that_leaves_for_lack_of_work_has_not_failed(start: Start, tmp_path: Path) -> None:
    """Even if it was given a job meanwhile, its first one."""
    source = """
if runs == 1:
    wait_for("asked", 1)
    answer("leaving")
    os._exit(0)
for name in jobs(): make(name)
"""
    compiler = start(WAIT + source, device="cuda:0")
    compiler.ready(compiler.folder(program()))
    until(lambda: pids(tmp_path / "a cache"), "a compiler")
    compiler.request(compiler.folder(program()), program())
    (tmp_path / "a cache" / "asked").write_text("yes")
    until(lambda: not compiler.waits(compiler.folder(program())), "an answer")
    assert compiler.ready(compiler.folder(program()))
    assert not compiler.failed
    assert len(pids(tmp_path / "a cache")) == 2


def test_after_one_that_leaves_for_lack_of_work_the_next_gets_ready(start: Start, tmp_path: Path) -> None:
    source = """
for name in jobs():
    make(name)
    answer("leaving")
    os._exit(0)
"""
    compiler = start(source, device="cuda:0")
    ask(compiler, 3)
    until(lambda: len(pids(tmp_path / "a cache")) == 2, "the next one")
    assert not compiler.failed
    assert not compiler.waiting


def test_one_that_crashes_without_a_job_fails_nothing(start: Start, tmp_path: Path) -> None:
    compiler = start("if runs == 1: sys.exit(1)\nfor name in jobs(): make(name)", device="cuda:0")
    compiler.ready(compiler.folder(program()))
    until(lambda: pids(tmp_path / "a cache"), "a compiler")
    ended(compiler)
    (folder,) = ask(compiler, 3)
    assert not compiler.failed
    assert compiler.ready(folder)


#: A compiler's loop over its jobs, of which each waits until three are being made.
MEET = """
for name in jobs():
    with open(cache / "at", "a") as f:
        f.write(f"{name} ")
    wait_for("at", 3)
"""


def test_several_compilers_share_the_jobs(start: Start, tmp_path: Path) -> None:
    """No more than there may be, and each program is made by one of them. They all work at the same time."""
    compiler = start(WAIT + MEET + "    make(name)\n", most=3)
    folders = ask(compiler, *range(3, 9))
    assert all(map(compiler.ready, folders))
    assert len(pids(tmp_path / "a cache")) == 3
    made = (tmp_path / "a cache" / "at").read_text().split()
    assert sorted(made) == sorted(Path(f).name for f in folders)
    assert compiler.waiting == 0


def test_a_crash_costs_one_program_where_there_are_several(start: Start, tmp_path: Path) -> None:
    which = "runs = (cache / 'pids').read_text().split().index(str(os.getpid())) + 1\n"
    compiler = start(WAIT + which + MEET + "    if runs == 2: sys.exit(3)\n    make(name)\n", most=3)
    folders = ask(compiler, *range(3, 9))
    assert list(compiler.failed.values()) == ["the compiler ended with 3"]
    assert sum(map(compiler.ready, folders)) == 5


def test_a_program_that_waits_is_not_made_twice(start: Start, tmp_path: Path) -> None:
    compiler = start(WAIT + "for name in jobs():\n    wait_for('twice', 1)\n    make(name)", most=2)
    folder = compiler.folder(program())
    for _ in range(2):
        compiler.request(folder, program())
    assert compiler.waiting == 1
    (tmp_path / "a cache" / "twice").write_text("asked")
    until(lambda: not compiler.waits(folder), "an answer")
    assert len(pids(tmp_path / "a cache")) == 1


def test_there_are_fewer_compilers_than_cores(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, on_cpu, beside in ((1, 1, 1), (2, 1, 1), (8, 2, 4), (16, 4, 8), (200, 8, 8)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, cores=cores: set(range(cores)))
        for device, most in (("cpu", on_cpu), ("cuda:0", beside)):
            assert Compiler("fake_compiler", device, "", "", print)._most == most


# --- what else may go wrong -------------------------------------------------------------------


def test_nonsense_is_not_listened_to(start: Start) -> None:
    compiler = start(
        """
sys.stdout.buffer.write(b"\\n \\xff\\xfe\\x00\\n")
for name in jobs():
    for text in ("done", "failed", "done unknown", "failed ../.. x", name, f"well {name}", f"done  {name}"):
        answer(text)
    make(name)
"""
    )
    folders = ask(compiler, 3, 4)
    assert not compiler.failed
    assert all(map(compiler.ready, folders))


def test_nobody_waits_for_a_compiler_that_does_not_read(start: Start, tmp_path: Path) -> None:
    """More than a pipe holds."""
    compiler = start("time.sleep(1000)")
    large = program(3, 20_000)
    folders = [compiler.folder(large), compiler.folder(program(4))]
    compiler.request(folders[0], large)
    compiler.request(folders[1], program(4))
    assert all(map(compiler.waits, folders))
    for k in range(2):
        until(lambda k=k: len(pids(tmp_path / "a cache")) > k, "a compiler")
        os.kill(pids(tmp_path / "a cache")[k], signal.SIGKILL)
    ended(compiler)
    assert compiler.failed == dict.fromkeys(folders, "the compiler ended with -9")


def test_no_process_can_be_started(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = start()
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    (folder,) = ask(compiler, 3)
    assert compiler.failed[folder].startswith("cannot start the compiler: ")


def test_two_workers_compile_a_program_once(start: Start, tmp_path: Path) -> None:
    """The second one waits for the first, and finds what that has made."""
    source = """
from gt.worker.engines.inductor import _alone
for name in jobs():
    with _alone(cache / "compiled" / name) as missing:
        with open(cache / "made", "a") as f:
            f.write(f"{missing} ")
        while len((cache / "pids").read_text().split()) < 2:
            time.sleep(0.01)
        make(name) if missing else answer(f"done {name}")
"""
    first, second = start(source), start(source)
    for compiler in (first, second):
        compiler.request(compiler.folder(program()), program())
    until(lambda: not (first.waits(first.folder(program())) or second.waits(second.folder(program()))), "both answers")
    assert first.ready(first.folder(program()))
    assert second.ready(second.folder(program()))
    assert not {**first.failed, **second.failed}
    assert (tmp_path / "a cache" / "made").read_text().split() == ["True", "False"]


def test_the_lock_is_held_until_the_folder_is_there(tmp_path: Path) -> None:
    folder, seen = tmp_path / "x", []

    def other() -> None:
        with inductor._alone(folder) as missing:
            seen.append(missing)

    thread = threading.Thread(target=other)
    with inductor._alone(folder) as missing:
        assert missing
        thread.start()
        thread.join(0.1)
        assert not seen
        folder.mkdir()
        (folder / "program.so").write_text("")
        seal(folder)
    thread.join(10)
    assert seen == [False]


def test_temporary_files_of_compilers_that_were_killed_go(tmp_path: Path) -> None:
    inductor._tidy(tmp_path / "home")
    scratch = tmp_path / "home" / "scratch"
    assert compiler_environment(str(tmp_path / "home"))["TMPDIR"] == str(scratch)
    for name in ("old.s", "new.s"):
        (scratch / name).write_text("code")
    (scratch / "folder").mkdir()
    for name in ("old.s", "folder"):
        os.utime(scratch / name, (1e9, 1e9))
    inductor._tidy(tmp_path / "home")
    assert [file.name for file in scratch.iterdir()] == ["new.s"]


# --- the C++ compiler -----------------------------------------------------------------------


def test_there_is_no_cxx_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "nothing")
    with pytest.raises(
        RuntimeError, match=r"^no usable C\+\+ compiler \(nothing: .*; g\+\+: .*\); install g\+\+ or set CXX$"
    ):
        cpp._choose_compiler(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_cxx_compiler_that_brings_its_own_library_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CXX comes first, but what it makes must ask for the system's library."""
    for name, makes in (("static", "code"), ("g++", "libstdc++.so.6")):
        script = tmp_path / name
        script.write_text(f'#!/bin/sh\nwhile [ "$1" != "-o" ]; do shift; done\necho {makes} > "$2"\n')
        script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "static -O1")
    assert cpp._choose_compiler(tmp_path) == "g++"
    (tmp_path / "static").write_text((tmp_path / "g++").read_text())
    assert cpp._choose_compiler(tmp_path) == "static -O1"


def test_the_cxx_compiler_is_chosen_by_one_thread_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe that another thread is writing could make the wrong one seem usable."""
    inside, most = [0], [0]
    choose = cpp._choose_compiler

    def chosen(home: Path) -> str:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        found = choose(home)
        inside[0] -= 1
        return found

    monkeypatch.setattr(cpp, "_choose_compiler", chosen)
    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(cpp._compiler, [tmp_path] * 8))) == 1
    assert most == [1]
    assert not list(tmp_path.iterdir())
