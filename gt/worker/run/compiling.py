"""Having programs compiled: the cache on disk, and the processes that fill it.

Law 1: no call waits. A program is asked for with `request`; later its `folder` has it, or `failed` says why not.
Law 2: what is in the cache was made by this user, from this program, by this code, for this device and torch.
Law 3: a compiler has one program at a time, and no other compiler has it. If a compiler crashes, that program failed,
       and no other one.
Law 4: compilers have low priority, and end with the worker, however that ends.

For a device a compiler is started with the worker, so that it is ready when a program has proved hot: it takes ten
seconds to import what it needs, and no memory of the device before it has a job. When it ends for lack of work, the
next one is started. On a CPU it would take the cores that the programs run on.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue

import msgspec

from gt.config import PACKAGE, cache_folder, compiler_environment
from gt.program import Program

JOBS = 32  #: Programs that wait to be compiled.
LEAVING = "leaving"  #: What a compiler says last when it ends for lack of work.
SEAL = "nbytes"  #: The file in a program's folder with the number of bytes of the others.
CORES = 4  #: There is one compiler for so many cores on a CPU, where programs need them too,
CORES_BESIDE = 2  #: and for so many beside a device;
MOST = 8  #: but never more than these: each holds memory of the device.
CACHE_NBYTES = 4 << 30  #: Compiled programs on disk; the least recently used are deleted first.


class _Process:
    """A compiler that runs."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self.popen = popen
        self.at = ""  #: The folder that it makes; "": none.
        self.since_s = 0.0  #: When it was given that.
        self.answers = 0
        self.left = False  #: It has said that it ends because there is nothing to do.
        self.jobs: SimpleQueue[str] = SimpleQueue()  #: What the thread that talks to it is to give to it; "": an end.


class Compiler:
    """The worker's side. `module` is the compiler's; `about` is what its results depend on besides the program."""

    def __init__(
        self, module: str, device: str, about: str, cache: str, log: Callable[[str], None], loud: bool = False,
        most: int = 0,
    ) -> None:  # fmt: skip
        self._module, self._device, self._log = module, device, log
        self._loud = loud  #: Show what the compilers print.
        self._root = cache_folder(cache)
        self._about = about
        self._code = ""  #: A hash of the code that programs are compiled with.
        self._usable: bool | None = None
        cores = CORES if device == "cpu" else CORES_BESIDE
        self._most = most or max(1, min(MOST, len(os.sched_getaffinity(0)) // cores))
        self._lock = threading.Lock()
        self._running: list[_Process] = []
        self._asked: dict[str, bytes] = {}  #: Folders that are not there yet, and their programs,
        self._queue: deque[str] = deque()  #: and those of them that no compiler has.
        self.failed: dict[str, str] = {}  #: Folders that could not be made, and why.
        self.compile_us = 0  #: What compiling took so far, of all compilers together.

    def folder(self, program: Program, trusted: bool = False) -> str:
        """Where a program's library is, or will be; `trusted` as in lowering.py."""
        if not self._code:
            self._code = _hash_of_code()
        about = f"{self._about} {self._device} {self._code} {trusted}"
        return str(self._root / "compiled" / hashlib.sha256(program.hash() + about.encode()).hexdigest()[:32])

    def ready(self, folder: str) -> bool:
        """Whether the library is there. This counts as a use of it."""
        if not self.usable:
            return False
        if not is_whole(Path(folder)):
            if folder not in self.failed:
                self.get_ready()
            return False
        with suppress(OSError):  # another worker may just have deleted it
            os.utime(folder)
        return True

    @property
    def full(self) -> bool:
        """Whether too many programs wait: further ones have to be asked for again later."""
        return len(self._asked) >= JOBS

    def waits(self, folder: str) -> bool:
        """Whether it was asked for and not answered yet."""
        return folder in self._asked

    @property
    def waiting(self) -> int:
        """How many programs are being compiled, or wait for that."""
        return len(self._asked)

    @property
    def usable(self) -> bool:
        """Whether there is a folder that only this user can write to: a library in it is code that is run."""
        if self._usable is None:
            try:
                self._usable = all(map(_ours, (self._root, self._root / "compiled")))
                if not self._usable:
                    self._log(f"nothing is compiled: other users can write to {self._root} (GT_CACHE_DIR)")
                else:
                    self._tidy()
            except OSError as e:
                self._log(f"nothing is compiled: {e}")
                self._usable = False
        return self._usable

    def request(self, folder: str, program: Program, trusted: bool = False) -> None:
        """Have a program compiled."""
        if not self.usable:
            self.failed[folder] = "there is no cache folder"
            return
        with self._lock:
            if folder not in self._asked:
                self._asked[folder] = msgspec.msgpack.encode((program, trusted))
                self._queue.append(folder)
                self._share_out()

    def get_ready(self) -> None:
        """Programs may have to be compiled later: for a device, start a compiler, if there is none."""
        with self._lock:
            if self._device != "cpu" and not self._running and self.usable:
                with suppress(OSError):  # `_share_out` tells
                    self._start()

    def _share_out(self) -> None:
        """Give what waits to compilers that have nothing to do, or to new ones. The caller holds the lock."""
        while self._queue:
            process = next((p for p in self._running if not p.at), None)
            if process is None and len(self._running) < self._most:
                try:
                    process = self._start()
                except OSError as e:
                    if not self._running:
                        self.failed.update(dict.fromkeys(self._queue, f"cannot start the compiler: {e}"))
                        self._queue.clear()
                        self._asked.clear()
            if process is None:
                return
            process.at = self._queue.popleft()
            process.since_s = time.monotonic()
            process.jobs.put(process.at)

    def _start(self) -> _Process:
        popen = subprocess.Popen(
            [sys.executable, "-m", self._module, self._device, str(self._root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if self._loud else subprocess.DEVNULL,
            env=compiler_environment(str(self._root / "inductor")),
            start_new_session=True,  # it leads the group of all it starts
        )
        process = _Process(popen)
        self._running.append(process)
        for work in (self._talk, self._listen):
            threading.Thread(target=work, args=(process,), name="compiler", daemon=True).start()
        return process

    def _talk(self, process: _Process) -> None:
        """Give it jobs, as fast as it takes them. Nothing else waits for that."""
        stdin = process.popen.stdin
        assert stdin is not None
        with suppress(OSError), stdin:  # it has ended: `_listen` handles that
            while folder := process.jobs.get():
                data = self._asked.get(folder, b"")  # empty: it has crashed at this one
                stdin.write(f"{len(data)} {Path(folder).name}\n".encode() + data)
                stdin.flush()

    def _listen(self, process: _Process) -> None:
        """Take its answers until it ends."""
        popen = process.popen
        assert popen.stdout is not None
        watch = threading.Thread(target=_end_all, args=(popen.pid,), name="compiler", daemon=True)
        watch.start()
        with popen.stdout:
            for line in popen.stdout:
                self._take(process, *[*line.decode(errors="replace").strip().split(" ", 2), "", ""][:3])
        watch.join()
        code = popen.wait()
        with self._lock:
            self._running.remove(process)
            process.jobs.put("")
            if process.at and (code or not (process.answers or process.left)):  # it crashed, at that job
                del self._asked[process.at]
                self.failed[process.at] = f"the compiler ended with {code}"
            elif process.at:
                self._queue.appendleft(process.at)
            self._share_out()
        if process.left and process.answers:
            self.get_ready()

    def _take(self, process: _Process, word: str, name: str, reason: str) -> None:
        """An answer of a compiler. Other lines are ignored."""
        process.left = process.left or word == LEAVING
        with self._lock:
            if word not in ("done", "failed") or process.at != str(self._root / "compiled" / name):
                return
            if word == "failed":
                self.failed[process.at] = reason or "no reason given"
            del self._asked[process.at]
            self.compile_us += round((time.monotonic() - process.since_s) * 1e6)
            process.at = ""
            process.answers += 1
            self._share_out()

    def _tidy(self) -> None:
        """Keep the cache below CACHE_NBYTES."""
        sized = []
        for folder in (self._root / "compiled").iterdir():
            with suppress(OSError):  # other workers do this too
                if folder.is_dir():
                    sized.append((folder.stat().st_mtime, sum(p.stat().st_size for p in folder.iterdir()), folder))
        total = sum(nbytes for _, nbytes, _ in sized)
        for _, nbytes, folder in sorted(sized):
            if total <= CACHE_NBYTES:
                break
            shutil.rmtree(folder, ignore_errors=True)
            total -= nbytes


def seal(folder: Path) -> None:
    """Record how many bytes are in the folder of a compiled program."""
    (folder / SEAL).write_text(str(_nbytes(folder)))


def is_whole(folder: Path) -> bool:
    """Whether everything is there that was sealed. A library that was truncated, by a power cut or a bad disk, would
    crash every process that loads it."""
    try:
        return int((folder / SEAL).read_text()) == _nbytes(folder)
    except (OSError, ValueError):
        return False


def _nbytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir() if file.name != SEAL)


def _end_all(pid: int) -> None:
    """When this process has ended, end what it had started. Until the caller waits for the process, the system does not
    reuse the number of its group."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _ours(path: Path) -> bool:
    """Whether only this user can write there; the folder is made if it is missing."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    about = path.stat()
    return about.st_uid == os.getuid() and not about.st_mode & 0o022


def _hash_of_code() -> str:
    """A hash of the code that decides what a program compiles to: the ops, and how graphs are made of them."""
    files = [*(PACKAGE / "ops").rglob("*.py"), *(PACKAGE / "worker").rglob("*.py"), PACKAGE / "program.py"]
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
