"""Having programs compiled: the cache on disk, and the process that fills it.

Law 1: no call waits. A program is asked for with `request`; later its `folder` has it, or `failed` says why not.
Law 2: what is in the cache was made by this user, from this program, by this code, for this device and torch.
Law 3: one compiler at a time, at low priority; it ends with the worker, however that ends.
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
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue

import msgspec

from gt.config import PACKAGE, cache_folder, compiler_environment
from gt.program import Program

JOBS = 32  #: Programs that wait to be compiled.
SEAL = "nbytes"  #: The file in a program's folder with the number of bytes of the others.
CACHE_NBYTES = 4 << 30  #: Compiled programs on disk; the least recently used are deleted first.


class Compiler:
    """The worker's side. `module` is the compiler's; `about` is what its results depend on besides the program."""

    def __init__(
        self, module: str, device: str, about: str, cache: str, log: Callable[[str], None], loud: bool = False
    ) -> None:
        self._module, self._device, self._log = module, device, log
        self._loud = loud  #: Show what the compilers print.
        self._root = cache_folder(cache)
        self._about = about
        self._code = ""  #: A hash of the code that programs are compiled with.
        self._usable: bool | None = None
        self._jobs: SimpleQueue[str] | None = None  #: Folders for the compiler that runs; None: there is none.
        self._lock = threading.Lock()
        self._asked: dict[str, bytes] = {}  #: Folders that are being made, and their programs.
        self.failed: dict[str, str] = {}  #: Folders that could not be made, and why.
        self.compile_us = 0  #: What compiling took so far.
        self._since_s = 0.0  #: When the compiler began what it does now: when it was asked, or after the last answer.

    def folder(self, program: Program, trusted: bool = False) -> str:
        """Where a program's library is, or will be; `trusted` as in lowering.py."""
        if not self._code:
            self._code = _hash_of_code()
        about = f"{self._about} {self._device} {self._code} {trusted}"
        return str(self._root / "compiled" / hashlib.sha256(program.hash() + about.encode()).hexdigest()[:32])

    def ready(self, folder: str) -> bool:
        """Whether the library is there. This counts as a use of it."""
        if not self.usable or not is_whole(Path(folder)):
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
            if not self._asked:
                self._since_s = time.monotonic()
            self._asked[folder] = msgspec.msgpack.encode((program, trusted))
            if self._jobs is None:
                self._start()
            else:
                self._jobs.put(folder)

    def _start(self) -> None:
        """Start a compiler, and give it all programs that were asked for."""
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", self._module, self._device, str(self._root)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=None if self._loud else subprocess.DEVNULL,
                env=compiler_environment(str(self._root / "inductor")),
                start_new_session=True,  # it leads the group of all it starts
            )
        except OSError as e:
            self.failed.update(dict.fromkeys(self._asked, f"cannot start the compiler: {e}"))
            self._asked.clear()
            return
        jobs = self._jobs = SimpleQueue()
        for folder in self._asked:
            jobs.put(folder)
        for work in (self._talk, self._listen):
            threading.Thread(target=work, args=(process, jobs), name="compiler", daemon=True).start()

    def _talk(self, process: subprocess.Popen[bytes], jobs: SimpleQueue[str]) -> None:
        """Give it jobs, as fast as it takes them. Nothing else waits for that."""
        assert process.stdin is not None
        with suppress(OSError), process.stdin:  # it has ended: `_listen` handles that
            while folder := jobs.get():
                data = self._asked.get(folder, b"")  # empty: it has crashed at this one
                process.stdin.write(f"{len(data)} {Path(folder).name}\n".encode() + data)
                process.stdin.flush()

    def _listen(self, process: subprocess.Popen[bytes], jobs: SimpleQueue[str]) -> None:
        """Take its answers until it ends."""
        assert process.stdout is not None
        watch = threading.Thread(target=_end_all, args=(process.pid,), name="compiler", daemon=True)
        watch.start()
        answers = 0
        with process.stdout:
            for line in process.stdout:
                word, name, reason = [*line.decode(errors="replace").strip().split(" ", 2), "", ""][:3]
                folder = str(self._root / "compiled" / name)
                with self._lock:
                    if word in ("done", "failed") and self._asked.pop(folder, None) is not None:
                        answers += 1
                        now_s = time.monotonic()
                        self.compile_us += round((now_s - self._since_s) * 1e6)
                        self._since_s = now_s
                        if word == "failed":
                            self.failed[folder] = reason or "no reason given"
        watch.join()
        process.wait()
        with self._lock:
            jobs.put("")
            self._jobs = None
            if self._asked and (process.returncode or not answers):  # it crashed, at the first job
                first = next(iter(self._asked))
                del self._asked[first]
                self.failed[first] = f"the compiler ended with {process.returncode}"
            if self._asked:
                self._start()

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
