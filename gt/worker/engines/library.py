"""Loading a compiled program: a shared library that inductor.py has left in a folder."""

from __future__ import annotations

import _ctypes
import ctypes
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gt.errors import IndexOutOfRange
from gt.worker.run.engine import Graph

_AOTI: Any = torch._C._aoti


class Library:
    """A program for the CPU. While it runs, other threads use Python: torch's own runner keeps them waiting."""

    def __init__(self, folder: str) -> None:
        library, caller = ctypes.CDLL(f"{folder}/program.so"), ctypes.PyDLL(f"{folder}/call.so")
        self._program = ctypes.c_void_p()
        make = library.AOTInductorModelContainerCreateWithDevice
        weakref.finalize(self, _unload, library, caller, self._program).atexit = False
        if make(ctypes.byref(self._program), ctypes.c_size_t(1), b"cpu", folder.encode()):
            raise RuntimeError(f"{folder}/program.so cannot be used")
        outputs = ctypes.c_size_t()
        library.AOTInductorModelContainerGetNumOutputs(self._program, ctypes.byref(outputs))
        self._outputs = outputs.value
        self._run = ctypes.cast(library.AOTInductorModelContainerRun, ctypes.c_void_p)
        self._call = caller.call
        self._call.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.py_object, ctypes.c_long]
        self._call.restype = ctypes.py_object

    def __call__(self, inputs: list[Any]) -> list[Any]:
        given = _AOTI.unsafe_alloc_void_ptrs_from_tensors(inputs)
        made = self._call(self._run, self._program, given, self._outputs)
        if len(made) != self._outputs:
            raise RuntimeError("a compiled program failed")
        return list(_AOTI.alloc_tensors_by_stealing_from_void_ptrs(made))


def _unload(library: ctypes.CDLL, caller: ctypes.CDLL, program: ctypes.c_void_p) -> None:
    if program:
        library.AOTInductorModelContainerDelete(program)
    for each in (library, caller):
        _ctypes.dlclose(each._handle)


def load(folder: str, graph: Graph, device: str) -> Callable[..., Any]:
    """Its function. On a CPU of inputs and scalars, for compile_around; else of inputs and the buffer of
    numbers, for a capture. Nothing of the compiler is imported for it."""
    if device != "cpu":
        # The last argument: one thread at a time, without events of its own. A capture allows nothing else.
        runner = _AOTI.AOTIModelContainerRunnerCuda(f"{folder}/program.so", 1, device, folder, True)
        return lambda inputs, buffer: list(runner.run([*inputs, buffer]))
    if os.path.exists(f"{folder}/program.json"):  # torch's runner finds the ops that are no kernels of Inductor's
        run = _AOTI.AOTIModelContainerRunnerCpu(f"{folder}/program.so", 1).run
    else:
        run = Library(folder)
    buffer = torch.zeros(max(graph.slots, 1), dtype=torch.int64)
    view = buffer.numpy().data.cast("B")

    def pure(inputs: Sequence[Any], scalars: tuple[Any, ...]) -> list[Any]:
        graph.pack(scalars, view)
        made: list[Any] = run([*[a.contiguous() for a in inputs], buffer])
        if graph.flagged and made.pop().item():
            raise IndexOutOfRange("an index is out of range")
        return made

    return pure


def load_segment(folder: str, graph: Graph, device: str) -> Callable[..., list[Any]]:
    """Its function of inputs and scalars, on any device."""
    f = load(folder, graph, device)
    if device == "cpu":
        return f
    nothing = torch.zeros(1, dtype=torch.int64, device=device)

    def pure(inputs: Sequence[Any], scalars: tuple[Any, ...]) -> list[Any]:
        buffer = nothing
        if graph.slots:
            numbers = torch.empty(graph.slots, dtype=torch.int64, pin_memory=True)
            graph.pack(scalars, numbers.numpy().data.cast("B"))
            buffer = numbers.to(device, non_blocking=True)
        return f([a.contiguous() for a in inputs], buffer)

    return pure
