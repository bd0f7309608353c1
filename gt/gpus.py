"""The GPUs of this machine, and which of them a worker takes.

Law 1: a worker takes a GPU that no other worker of this machine has, while there is one. Whoever started the other:
       the claim is a lock on a file that everybody on the machine can open, and it ends with the process.
Law 2: only GPUs that CUDA_VISIBLE_DEVICES allows, or without it Slurm, are taken.
Law 3: a GPU is known by its UUID, because the numbers of one GPU differ between jobs. No array library is imported.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gt import config

_LINE = re.compile(r"GPU (\d+): (.*) \(UUID: ([^)]+)\)")


@dataclass(frozen=True)
class Gpu:
    """A GPU that this process may use."""

    number: int  #: as torch numbers it: cuda:0 is the first one that this process may use
    uuid: str
    name: str = ""

    @property
    def device(self) -> str:
        return f"cuda:{self.number}"

    def __str__(self) -> str:
        about = ", ".join(text for text in (self.name, self.uuid) if text)
        return f"{self.device} ({about})"


def of_machine() -> list[Gpu]:
    """All GPUs that are there, by their number on the machine."""
    smi = shutil.which("nvidia-smi")
    if smi is not None:
        with suppress(OSError, subprocess.SubprocessError):
            listed = subprocess.run([smi, "-L"], capture_output=True, text=True, timeout=10, check=True).stdout
            found = [m for line in listed.splitlines() if (m := _LINE.match(line))]
            return [Gpu(int(m[1]), m[3], m[2]) for m in found]
    nodes = [p.name.removeprefix("nvidia") for p in Path("/dev").glob("nvidia*")]
    return [Gpu(n, f"nvidia{n}") for n in sorted(int(text) for text in nodes if text.isdecimal())]


def visible() -> list[Gpu]:
    """The GPUs that this process may use, as torch numbers them."""
    allowed = config.visible_gpus()
    if allowed == []:
        return []
    there = of_machine()
    if allowed is None:
        given = [gpu for gpu in there if str(gpu.number) in config.slurm_gpus()]
        # Without CUDA_VISIBLE_DEVICES torch sees them all, and so these keep their numbers.
        return given or there
    found: list[Gpu] = []
    for name in allowed:
        match = next((g for g in there if name == str(g.number) or g.uuid.startswith(name)), None)
        if match is None and name.startswith("MIG-") and there:
            match = Gpu(0, name, "a part of a GPU")
        if match is None:
            break  # as CUDA does: what follows a bad entry is ignored
        found.append(Gpu(len(found), match.uuid, match.name))
    return found


class Claim:
    """A GPU that this process has taken, until it ends."""

    def __init__(self, gpu: Gpu, fd: int, shared: bool) -> None:
        self.gpu = gpu
        self.shared = shared  #: other workers have it too: there was none that was free
        self._fd = fd

    def give_back(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def take(slot: int = -1, folder: str = "") -> Claim | None:
    """Take a GPU; None if there is none. If several are free, `slot` chooses: the number of this worker among those
    that were started together (default: Slurm's)."""
    gpus = visible()
    if not gpus:
        return None
    slot = slot if slot >= 0 else config.slurm_local_id()
    gpus = gpus[slot % len(gpus) :] + gpus[: slot % len(gpus)]
    for gpu in gpus:
        fd = _lock(gpu, folder or tempfile.gettempdir())
        if fd >= 0:
            return Claim(gpu, fd, shared=False)
    return Claim(gpus[0], -1, shared=True)


def _lock(gpu: Gpu, folder: str) -> int:
    """A descriptor that holds the lock of this GPU; -1: another process has it."""
    name = hashlib.sha256(gpu.uuid.encode()).hexdigest()[:16]
    path = os.path.join(folder, f"gt-gpu-{name}.lock")
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        try:
            # Not O_CREAT: in a folder that all may write to, the system refuses it for a file of another user.
            fd = os.open(path, flags)
        except FileNotFoundError:
            with suppress(FileExistsError):
                os.close(os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o644))
            fd = os.open(path, flags)
    except OSError:
        return -1
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return -1
    return fd
