"""Loading a compiled program: a shared library that inductor.py has left in a folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from gt.errors import IndexOutOfRange
from gt.worker.run.engine import Graph


def load(folder: str, graph: Graph, device: str) -> Callable[..., Any]:
    """Its function. On a CPU of inputs and scalars, for compile_around; else of inputs and the buffer of
    numbers, for a capture. Nothing of the compiler is imported for it."""
    runners: Any = torch._C._aoti
    if device != "cpu":
        # The last argument: one thread at a time, without events of its own. A capture allows nothing else.
        runner = runners.AOTIModelContainerRunnerCuda(f"{folder}/program.so", 1, device, folder, True)
        return lambda inputs, buffer: list(runner.run([*inputs, buffer]))
    runner = runners.AOTIModelContainerRunnerCpu(f"{folder}/program.so", 1)
    buffer = torch.zeros(max(graph.slots, 1), dtype=torch.int64)
    view = buffer.numpy().data.cast("B")

    def pure(inputs: Sequence[Any], scalars: tuple[Any, ...]) -> list[Any]:
        graph.pack(scalars, view)
        made: list[Any] = runner.run([*[a.contiguous() for a in inputs], buffer])
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
