"""The compiler: a process of its own that turns programs into shared libraries by torch's Inductor.

`python -m gt.worker.engines.inductor DEVICE CACHE` reads jobs on stdin and answers each with a line (the other side is
run/compiling.py, in the worker). It is a process because a compiler in a thread would stall all programs of the worker.
It makes libraries ahead of time because loading one takes a millisecond and imports nothing.

Law 1: a job's folder appears complete or not at all: it is made under another name and renamed.
Law 2: the process and all it has started end when its stdin does, whatever they are doing.
Law 3: no compiled kernel traps on a bad index: the program itself checks indices.
"""

from __future__ import annotations

import fcntl
import importlib
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, NoReturn

from gt import config
from gt.worker.engines.cpp import choose_settings, compile_caller, make_headers
from gt.worker.run.compiling import LEAVING, is_whole, seal

if TYPE_CHECKING:  # they are imported when there is something to compile
    from gt.worker.engines.graph_program import GraphProgram
    from gt.worker.engines.torch import TorchEngine

IDLE_S = 30.0  #: It ends after so long without a job,
IDLE_GPU_S = 5.0  #: on a GPU sooner: since its first job it holds memory there.
SCRATCH_S = 3600.0  #: Older temporary files were left by compilers that were killed.
INDUCTOR_NBYTES = 4 << 30  #: If Inductor's own cache is larger, it is deleted.

#: What a job imports,
_USED = (
    "torch._inductor.compile_fx", "torch._inductor.lowering", "gt.ops.check", "gt.worker.engines.recompute",
    "gt.worker.engines.traced", "gt.worker.engines.torch",
)  # fmt: skip
#: and what Inductor imports on the way, in most versions.
_USED_BY_INDUCTOR = (
    "triton", "triton.compiler", "torch._inductor.codegen.triton", "torch._inductor.codegen.cuda_combined_scheduling",
    "torch._inductor.codegen.cpp_wrapper_gpu", "torch._inductor.runtime.triton_heuristics",
    "torch._inductor.fx_passes.fuse_attention", "torch._inductor.fx_passes.post_grad", "torch._export.utils",
)  # fmt: skip


def main(device: str, cache: str) -> NoReturn:
    """Do jobs until stdin ends, or no job comes for a while."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # compilers print to stdout, which must have only answers
    jobs: SimpleQueue[tuple[str, bytes]] = SimpleQueue()
    threading.Thread(target=_read, args=(jobs,), daemon=True).start()
    os.nice(max(0, config.load().compile_nice))
    home = Path(cache) / "inductor"
    _tidy(home)
    if device != "cpu":
        get_ready(device, home, jobs.empty)
    used = device == "cpu"  # an idle one ends; for a device only after its first job, which takes memory there
    while True:
        try:
            name, program = jobs.get(timeout=IDLE_S if device == "cpu" else IDLE_GPU_S)
        except Empty:
            if not used:
                continue
            answers.write(f"{LEAVING}\n")
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.killpg(0, signal.SIGTERM)  # processes that Inductor keeps for later
            os._exit(0)
        used = True
        folder = Path(cache) / "compiled" / name
        try:
            with _alone(folder) as missing:
                if missing:
                    compile_into(folder, program, device, home)
            answers.write(f"done {name}\n")
        except BaseException as e:
            reason = f"{type(e).__name__}: {e}".replace("\n", " ")[:500]
            answers.write(f"failed {name} {reason}\n")


@contextmanager
def _alone(folder: Path) -> Iterator[bool]:
    """Hold the lock of this folder: workers of one machine share the cache. Yields whether the folder is missing."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_suffix(".lock"), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield not is_whole(folder)


def _read(jobs: SimpleQueue[tuple[str, bytes]]) -> NoReturn:
    """Jobs as they come: a line with the program's size and its folder's name, then the program."""
    stream = sys.stdin.buffer
    while line := stream.readline():
        size, _, name = line.decode().rstrip("\n").partition(" ")
        jobs.put((name, stream.read(int(size))))
    os.killpg(0, signal.SIGKILL)  # the compilers that it has started, and itself: it leads its process group
    os._exit(1)


def _tidy(home: Path) -> None:
    nbytes = 0
    for folder, _, files in os.walk(home):
        for file in files:
            with suppress(OSError):  # another compiler may be using it
                nbytes += os.lstat(os.path.join(folder, file)).st_size
    if nbytes > INDUCTOR_NBYTES:
        shutil.rmtree(home, ignore_errors=True)
    scratch = home / "scratch"  # TMPDIR: see compiler_environment
    scratch.mkdir(parents=True, exist_ok=True)
    for left in scratch.iterdir():
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > SCRATCH_S:
                shutil.rmtree(left) if left.is_dir() else left.unlink()


def get_ready(device: str, home: Path, idle: Callable[[], bool]) -> None:
    """Do what the first program would wait for. Nothing here uses the device: so this process has no memory there until
    it has a job."""
    loud = config.load().debug_compile

    def headers() -> None:
        clock = _Clock()
        try:
            choose_settings(device, False, home)
            make_headers(device)
            clock.lap("headers made")
        except Exception as e:
            clock.lap(f"headers not made, because of {type(e).__name__}: {e}")
        if loud:
            print(f"gt: {clock}", file=sys.stderr, flush=True)

    clock = _Clock()
    try:
        for module in _USED:
            importlib.import_module(module)
        clock.lap("imported")
        for module in _USED_BY_INDUCTOR:
            with suppress(ImportError):
                importlib.import_module(module)
        clock.lap("imported what Inductor will")
        choose_settings(device, False, home)
        threading.Thread(target=headers, name="headers", daemon=True).start()
        from torch._inductor.async_compile import AsyncCompile

        AsyncCompile.warm_pool()  # processes that compile Triton kernels
        AsyncCompile.wakeup()
        clock.lap("started compilers of kernels")
        if idle():
            from gt.worker.engines.traced import rehearse

            rehearse()
            clock.lap("rehearsed")
    except Exception as e:  # the first job may do without it
        clock.lap(f"stopped by {type(e).__name__}: {e}")
    if loud:
        print(f"gt: the compiler got ready: {clock}", file=sys.stderr, flush=True)


def compile_into(folder: Path, program: bytes, device: str, home: Path) -> None:
    """Compile a program into the folder; a worker can then load it from there."""
    clock = _Clock()
    import msgspec

    from gt.ops.check import check
    from gt.program import Program
    from gt.worker.engines.graph_program import GraphProgram
    from gt.worker.engines.library import load
    from gt.worker.engines.torch import TorchEngine

    clock.lap("imported")
    settings = config.load()
    engine = TorchEngine(device, settings.threads)
    decoded, trusted = msgspec.msgpack.decode(program, type=tuple[Program, bool])
    engine.set_precision(decoded.precision)
    graph = GraphProgram(check(decoded), engine, trusted)
    library = Path(_compile(graph, engine, home, clock))
    made = folder.with_name(folder.name + f".{os.getpid()}")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    shutil.copy(library, made / "program.so")
    # Of ops that are no kernels of Inductor's. The library reads it from its own folder.
    calls = library.with_suffix(".json")
    if calls.exists():
        shutil.copy(calls, made / "program.json")
    if device == "cpu":
        compile_caller(home, made / "call.so")
    for cubin in library.parent.glob("*.cubin"):
        shutil.copy(cubin, made)
    clock.lap("copied")
    load(str(made), graph, device)  # if loading crashes, it should crash this process
    seal(made)
    shutil.rmtree(folder, ignore_errors=True)  # one that is not complete
    made.rename(folder)
    clock.lap("loaded")
    if settings.debug_compile:
        print(f"gt: {folder.name}: {len(decoded.code)} instructions: {clock}", file=sys.stderr, flush=True)


def _compile(graph: GraphProgram, engine: TorchEngine, home: Path, clock: _Clock) -> str:
    from torch._dynamo.utils import compilation_time_metrics

    from gt.worker.engines.recompute import recomputing
    from gt.worker.engines.traced import compile_graph

    device = engine.device
    choose_settings(device, engine.threads > 1, home)
    clock.lap("prepared")
    compilation_time_metrics.clear()
    # A host has enough memory, and on a CPU recomputing is not hidden by memory traffic.
    with nullcontext() if device == "cpu" else recomputing(clock.note):
        path = compile_graph(lambda *given: graph.pure(given[:-1], given[-1]), graph.example, clock.note)
    for what, key in _PHASES.items():
        clock.note(f"{what} {sum(compilation_time_metrics.get(key, [])):.1f} s")
    clock.lap("compiled")
    return path


#: Phases of Inductor, and its names for them. The C++ compiler is also used to find the machine's features.
_PHASES = {
    "passes": "_recursive_post_grad_passes", "lowered": "GraphLowering.run", "scheduled": "Scheduler.__init__",
    "generated": "Scheduler.codegen", "waited for kernels": "async_compile.wait", "C++": "compile_file",
}  # fmt: skip


class _Clock:
    """Measures phases, and prints them as a line of text."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._laps: list[str] = []
        self._notes: list[str] = []  #: About the lap that has begun.

    def lap(self, what: str) -> None:
        now = time.monotonic()
        notes = f" ({', '.join(self._notes)})" if self._notes else ""
        self._laps.append(f"{what} in {now - self._last:.1f} s{notes}")
        self._last, self._notes = now, []

    def note(self, what: object) -> None:
        self._notes.append(str(what))

    def __str__(self) -> str:
        return ", ".join(self._laps)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
