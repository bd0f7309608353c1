"""Compiled programs for the CPU: other threads use Python while they run, and they leave the process when unused."""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gt.worker.engines import cpp
from gt.worker.engines.library import Library
from tests.processes.running import until

#: A program of one input and one output, which is the input. `RUN` is what it does before.
SOURCE = """
#include <unistd.h>
extern "C" {
int flag = 0;
int AOTInductorModelContainerCreateWithDevice(void **made, unsigned long, const char *, const char *) {
    *made = &flag;
    return CREATED;
}
int AOTInductorModelContainerDelete(void *) { return 0; }
int AOTInductorModelContainerGetNumOutputs(void *, unsigned long *n) { *n = 1; return 0; }
int AOTInductorModelContainerRun(void *, void **given, unsigned long, void **made, unsigned long, void *, void *) {
    RUN
    made[0] = given[0];
    return 0;
}
}
"""
Make = Callable[..., str]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """make(what the program does) -> its folder"""

    def make(run: str = "", created: str = "0") -> str:
        source = tmp_path / "program.cpp"
        source.write_text(SOURCE.replace("RUN", run).replace("CREATED", created))
        cpp._build(cpp._compiler(tmp_path), source, tmp_path / "program.so")
        cpp.compile_caller(tmp_path, tmp_path / "call.so")
        return str(tmp_path)

    return make


def test_other_threads_use_python_while_it_runs(make: Make) -> None:
    """The program waits for an answer from Python. It would wait in vain if nobody else could use Python."""
    waits = "flag = 1; for (int i = 0; *(volatile int *)&flag == 1; i++) { if (i == 100000) return 1; usleep(100); }"
    folder = make(waits)
    f = Library(folder)
    flag = ctypes.c_int.in_dll(ctypes.CDLL(f"{folder}/program.so"), "flag")

    def answer() -> None:
        until(lambda: flag.value == 1, "the program")
        flag.value = 2

    thread = threading.Thread(target=answer)
    thread.start()
    x = torch.ones(3)
    [y] = f([x])
    thread.join()
    assert y.data_ptr() == x.data_ptr()


def test_a_program_that_fails_says_so(make: Make) -> None:
    f = Library(make("return 1;"))
    with pytest.raises(RuntimeError, match="a compiled program failed"):
        f([torch.ones(3)])


def test_a_library_that_cannot_be_used_is_refused(make: Make) -> None:
    with pytest.raises(RuntimeError, match=r"program\.so cannot be used"):
        Library(make(created="1"))


def test_it_leaves_the_process_with_its_last_user(make: Make) -> None:
    folder = make()
    f = Library(folder)
    assert f([torch.ones(2)])[0].tolist() == [1, 1]
    assert f"{folder}/program.so" in Path("/proc/self/maps").read_text()
    del f
    gc.collect()
    assert folder not in Path("/proc/self/maps").read_text()
