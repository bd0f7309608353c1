"""A program's function as the graph that Inductor compiles, and Inductor called with it.

Law 1: the graph is functional: nothing in it writes, except copies into inputs, which come last.
Law 2: it has only ops that Inductor has kernels for. AOTAutograd, which would see to both by tracing the graph again,
       for as long as the first time, is passed over.
Law 3: a result does not depend on which way a program took.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

aten, prims = torch.ops.aten, torch.ops.prims

Function = Callable[..., list[Any]]

#: Ops that read a number from the buffer, or prepare an operand: see `merge_readings`.
_READINGS = {
    aten.view.dtype, aten.select.int, aten.detach.default, aten.alias.default, aten._to_copy.default,
    prims.convert_element_type.default, aten.clone.default,
}  # fmt: skip
_CASTS = {aten._to_copy.default, prims.convert_element_type.default}


def compile_graph(f: Function, example: Callable[[], list[Any]], log: Callable[[str], None]) -> str:
    """Compile a function of tensors to a library; its path. `example` makes the tensors."""
    begin = time.monotonic()
    try:
        traced, given = trace(f, example)
        log(f"traced to {len(traced.graph.nodes)} nodes in {time.monotonic() - begin:.1f} s")
        return _compiled(traced, given, log)
    except Exception as e:
        # It asks for more than torch promises.
        log(f"traced again by AOTAutograd, because of {type(e).__name__}: {e}"[:500])
    traced, given = trace_plain(f, example)
    return _path(inductor_aot(traced, given))


def rehearse() -> None:
    """Trace something small on the CPU: much of torch is set up when it is used first. Inductor itself is not called,
    as it would make use of the GPU."""

    def step(x: torch.Tensor, weight: torch.Tensor, buffer: torch.Tensor) -> list[torch.Tensor]:
        y = torch.nn.functional.gelu(torch.nn.functional.layer_norm(x @ weight, (8,)))
        x.copy_(y * buffer.view(torch.float64)[0].to(torch.float32))
        return [torch.softmax(y, 1).sum(0)]

    trace(step, lambda: [torch.empty(8, 8), torch.empty(8, 8), torch.empty(1, dtype=torch.int64)])


def trace(f: Function, example: Callable[[], list[Any]]) -> tuple[GraphModule, list[Any]]:
    """The function as a graph that obeys the laws, and the tensors that it was traced with."""
    import torch._inductor.lowering  # some decompositions use it, and do not import it

    traced, given = _traced(f, example, select_decomp_table())
    if _writes(traced.graph):
        # A kernel that works in place. Seldom: each op costs more so.
        traced, given = _traced(torch.func.functionalize(f, remove="mutations"), example, select_decomp_table())
        if left := _writes(traced.graph):
            raise RuntimeError(f"{left[0].target} writes")
    _copy_last(traced.graph)
    merge_readings(traced.graph)
    traced.graph.eliminate_dead_code()
    traced.recompile()
    return traced, given


def trace_plain(f: Function, example: Callable[[], list[Any]]) -> tuple[GraphModule, list[Any]]:
    """The function as a graph for AOTAutograd."""
    traced, given = _traced(f, example, {})
    merge_readings(traced.graph)
    return traced, given


def _traced(f: Function, example: Callable[[], list[Any]], table: Any) -> tuple[GraphModule, list[Any]]:
    with FakeTensorMode(allow_non_fake_inputs=True):
        given = example()
        return make_fx(f, decomposition_table=table)(*given), given


def _is_copy(node: Node) -> bool:
    return node.target is aten.copy_.default and isinstance(to := node.args[0], Node) and to.op == "placeholder"


def _writes(graph: Graph) -> list[Node]:
    """The nodes that write, except copies into inputs."""
    ops = [node for node in graph.nodes if isinstance(node.target, torch._ops.OpOverload)]
    return [node for node in ops if node.target._schema.is_mutable and not _is_copy(node)]


def _copy_last(graph: Graph) -> None:
    """Move the copies into inputs behind all else. Nothing reads what they write: see GraphProgram's law 4."""
    (end,) = graph.find_nodes(op="output")
    for node in graph.find_nodes(op="call_function", target=aten.copy_.default):
        end.prepend(node)


def merge_readings(graph: Graph) -> None:
    """Read each number from the buffer once: all parameters of an optimizer read the same few, and every node costs
    Inductor time. And copy a transposed weight once for all of its readers."""
    seen: dict[tuple[str, str, str], Node] = {}
    for node in list(graph.nodes):
        if node.target not in _READINGS or any(user.op == "output" for user in node.users):
            continue  # results need memory of their own
        if node.target in _CASTS and node.meta["val"].numel() > 1:
            continue  # it would stay in memory from one reader to the next
        if node.target == aten.clone.default and (node.args[0].op != "placeholder" or not node.kwargs):
            continue
        first = seen.setdefault((str(node.target), str(node.args), str(node.kwargs)), node)
        if first is not node:
            node.replace_all_uses_with(first)
            graph.erase_node(node)


def inductor_aot(traced: GraphModule, given: list[Any]) -> Any:
    import torch._inductor

    return torch._inductor.aot_compile(traced, tuple(given))


def _compiled(traced: GraphModule, given: list[Any], log: Callable[[str], None]) -> str:
    """The library of a graph that obeys the laws."""
    with _without_export() as passed_over:
        path = inductor_aot(traced, given)
    if not passed_over:
        log("traced again by AOTAutograd, which this torch calls in another way")
    return _path(path)


@contextmanager
def _without_export() -> Iterator[list[bool]]:
    """A context in which Inductor's compilation ahead of time takes a graph as it is, instead of having it traced by
    AOTAutograd. All else stays what this version of torch does. Yields a list that has an element when that was done.
    """
    import torch._inductor.compile_fx as inductor

    done: list[bool] = []

    def export(model: GraphModule, *args: Any, **kwargs: Any) -> tuple[GraphModule, None]:
        done.append(True)
        return model, None

    def unlift(model: GraphModule, graph: GraphModule, signature: Any) -> GraphModule:
        return graph

    def no_passes(model: GraphModule, *args: Any) -> GraphModule:  # they are for ops as users call them
        return model

    new = {"aot_export_module": export, "_unlift_graph": unlift, "_recursive_pre_grad_passes": no_passes}
    old = {name: getattr(inductor, name) for name in new}
    try:
        for name, f in new.items():
            setattr(inductor, name, f)
        yield done
    finally:
        for name, f in old.items():
            setattr(inductor, name, f)


def _path(made: Any) -> str:
    assert isinstance(made, str)
    return made
