"""Inductor's C++ compiler: how it is called, and the work of it that is the same for all programs.

Each library reads all of torch's headers. Inductor precompiles them, which takes several seconds: they are kept with
the compiled programs, and for a device they are made before there is a program.
"""

from __future__ import annotations

import inspect
import os
import shlex
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any

from gt import config


def choose_settings(device: str, dynamic_threads: bool, home: Path) -> None:
    """Settings of Inductor for this device. Some versions of torch have settings of their own for each thread."""
    import torch
    from torch._inductor import codecache
    from torch._inductor import config as settings

    settings.cpp.cxx = (None, _compiler(home))
    settings.assert_indirect_indexing = False
    settings.aot_inductor.compile_wrapper_opt_level = "O0"  # it only launches kernels
    if hasattr(settings.aot_inductor, "enable_line_tables"):
        settings.aot_inductor.enable_line_tables = False  # they are half of a library
    if hasattr(settings, "max_fusion_buffer_group_pairwise_attempts"):
        # How many of a value's later readers a kernel is tried to be fused with, in each round. With 64, which is
        # usual, that takes half of the scheduler's time, and no program that was measured has a kernel less for it.
        settings.max_fusion_buffer_group_pairwise_attempts = 16
    settings.triton.cudagraphs = False
    if device == "cpu":
        settings.cpp.threads = torch.get_num_threads()
        settings.cpp.dynamic_threads = dynamic_threads  # the worker chooses how many: see run/threads.py
    else:
        # Otherwise it builds and loads a test library for each vector instruction set, in every process.
        settings.cpp.vec_isa_ok = False
    if hasattr(codecache, "_HEADER_LOCK_DIR"):  # else they are among temporary files
        codecache._HEADER_DIR = str(home / "headers")
        codecache._HEADER_LOCK_DIR = str(home / "headers" / "locks")
    _look_once()


def _look_once() -> None:
    """Look up whether a header has changed once in a process, not for each program."""
    from torch._inductor import codecache

    make = codecache._precompile_header
    if make.__module__ == __name__:
        return  # it does so already
    made: dict[str, str] = {}

    def precompile_header(*args: Any, **kwargs: Any) -> str:
        key = f"{args} {sorted(kwargs.items())}"
        if key not in made or not os.path.exists(made[key]):  # another compiler may have deleted Inductor's cache
            made[key] = make(*args, **kwargs)
        return made[key]

    codecache._precompile_header = precompile_header


def make_headers(device: str) -> None:
    """Precompile the headers that a library for this device needs, as Inductor would for the first one. The compiler of
    a program that needs them earlier waits for that."""
    from torch._inductor import codecache
    from torch._inductor.cpp_builder import CppBuilder, CppTorchDeviceOptions
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    kind = device.split(":")[0]
    known = inspect.signature(CppTorchDeviceOptions.__init__).parameters
    options = {
        "aot_mode": True, "device_type": kind, "use_mmap_weights": False, "use_mmap_weights_external": False,
        "use_relative_path": False, "vec_isa": pick_vec_isa(),
    }  # fmt: skip
    options = {name: value for name, value in options.items() if name in known}
    few = {name: value for name, value in options.items() if name in ("aot_mode", "device_type", "vec_isa")}
    command = repr(CppBuilder(name="o", sources="i", BuildOption=CppTorchDeviceOptions(**few)).get_command_line())
    header = codecache._get_cpp_wrapper_header(kind, aot_mode=True)
    codecache._precompile_header(header, command, min_optimize=True, **options)


#: Calls a program's library while other threads use Python: see library.py. Inputs and outputs are handles in capsules;
#: no outputs mean that it failed. It includes no headers, so it is compiled in a moment.
_CALLER = """
extern "C" {
struct _object; typedef _object PyObject;
void *PyCapsule_GetPointer(PyObject *, const char *);
PyObject *PyCapsule_New(void *, const char *, void (*)(PyObject *));
long PyList_Size(PyObject *);
PyObject *PyList_GetItem(PyObject *, long);
PyObject *PyList_New(long);
int PyList_SetItem(PyObject *, long, PyObject *);
void *PyEval_SaveThread();
void PyEval_RestoreThread(void *);
typedef int (*Run)(void *, void **, unsigned long, void **, unsigned long, void *, void *);

PyObject *call(Run run, void *program, PyObject *inputs, long n_outputs) {
    long n_inputs = PyList_Size(inputs);
    void **given = (void **)__builtin_alloca((n_inputs + n_outputs + 1) * sizeof(void *));
    void **made = given + n_inputs;
    for (long i = 0; i < n_inputs; i++) given[i] = PyCapsule_GetPointer(PyList_GetItem(inputs, i), nullptr);
    void *thread = PyEval_SaveThread();
    int failed = run(program, given, n_inputs, made, n_outputs, nullptr, nullptr);
    PyEval_RestoreThread(thread);
    if (failed) return PyList_New(0);
    PyObject *outputs = PyList_New(n_outputs);
    for (long i = 0; i < n_outputs; i++) PyList_SetItem(outputs, i, PyCapsule_New(made[i], nullptr, nullptr));
    return outputs;
}
}
"""


def compile_caller(home: Path, made: Path) -> None:
    """Compile the function that calls a program's library to this file."""
    source = made.with_suffix(".cpp")
    source.write_text(_CALLER)
    _build(_compiler(home), source, made)
    source.unlink()


def _build(compiler: str, source: Path, made: Path) -> None:
    command = [*shlex.split(compiler), "-O1", "-shared", "-fPIC", "-o", str(made), str(source)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60)


_choosing = threading.Lock()  #: A job may come while the headers are made in another thread.
_chosen: dict[Path, str] = {}


def _compiler(home: Path) -> str:
    with _choosing:
        if home not in _chosen:
            _chosen[home] = _choose_compiler(home)
        return _chosen[home]


def _choose_compiler(home: Path) -> str:
    """A C++ compiler that links to the system's C++ library dynamically. A library with parts of another C++ library in
    it crashes a process that has torch's."""
    folder = Path(tempfile.mkdtemp(prefix="probe.", dir=home))
    source, made = folder / "probe.cpp", folder / "probe.so"
    source.write_text("#include <string>\nstd::string probe(int n) { return std::to_string(n); }\n")
    reasons: list[str] = []
    try:
        for compiler in dict.fromkeys([config.cxx() or "g++", "g++", "c++", "clang++"]):
            try:
                _build(compiler, source, made)
                shared = made.read_bytes()
                if b"libstdc++.so" in shared or b"libc++.so" in shared:
                    return compiler
                reasons.append(f"{compiler} links its library statically")
            except (OSError, subprocess.SubprocessError) as e:
                reasons.append(f"{compiler}: {e}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    raise RuntimeError(f"no usable C++ compiler ({'; '.join(reasons)}); install g++ or set CXX")
