"""A program run by its graph as if it were captured or compiled, to be compared with the generated code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gt.errors import IndexOutOfRange
from gt.ops.check import Checked
from gt.worker.engines.graph_program import GraphProgram
from gt.worker.engines.torch import TorchEngine
from gt.worker.run.writing import compile_around, compile_program
from tests.worker.pretend import Pretend

PLAIN = TorchEngine("cpu")
DEVICE = Pretend()


def run_plain(checked: Checked, arrays: Sequence[Any], scalars: tuple[Any, ...] = ()) -> list[Any]:
    """What tier 1 makes; the arrays stay as they are."""
    return list(compile_program(checked, PLAIN).run([a.clone() for a in arrays], scalars)[0])


def run_around(checked: Checked, arrays: list[Any], scalars: tuple[Any, ...] = ()) -> list[Any]:
    """What a library on the CPU makes, with the graph in its place; given-away arrays may be written to."""
    graph = GraphProgram(checked, PLAIN)

    def pure(inputs: list[Any], scalars: tuple[Any, ...]) -> list[Any]:
        made = graph.build(inputs, packed(graph, scalars))
        if graph.flagged and made.pop().item():
            raise IndexOutOfRange("an index is out of range")
        assert_own_memory(made, inputs)
        return made

    return list(compile_around(checked, PLAIN, pure).run(list(arrays), scalars)[0])


def run_device(checked: Checked, arrays: list[Any], scalars: tuple[Any, ...] = ()) -> tuple[list[Any], bool]:
    """What a captured graph makes, and whether its flag is up; what is updated is written in place."""
    graph = GraphProgram(checked, DEVICE)
    made = graph.build(arrays, packed(graph, scalars))
    flag = bool(made.pop()) if graph.flagged else False
    assert_own_memory(made, arrays)
    values = {**dict(zip(graph.wants, made, strict=True)), **{value: arrays[i] for i, value in graph.writes}}
    return [values[o] for o in graph.outputs], flag


def packed(graph: GraphProgram, scalars: tuple[Any, ...]) -> Any:
    buffer = torch.full((max(graph.slots, 1),), -1, dtype=torch.int64)
    graph.pack(scalars, buffer.numpy().data.cast("B"))
    return buffer


def assert_own_memory(made: Sequence[Any], others: Sequence[Any]) -> None:
    """What a graph returns is contiguous, in memory that it shares with nobody."""
    taken = {a.untyped_storage().data_ptr() for a in others if a.numel()}
    for m in made:
        assert m.is_contiguous()
        if m.numel():
            assert m.untyped_storage().data_ptr() not in taken
            taken.add(m.untyped_storage().data_ptr())
