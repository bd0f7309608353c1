"""Graphs for Inductor: what is traced once is what AOTAutograd would have made of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from gt.worker.engines import traced as module  # noqa: E402
from gt.worker.engines.traced import compile_graph, trace, trace_plain  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # torch's, of torch
aten = torch.ops.aten


def gather(x: Any, index: Any) -> list[Any]:
    """Works in place on what it has made itself, through a view too."""
    sums = x.new_zeros(4, 3).index_add_(0, index, x)
    sums[1:].mul_(2.0)
    return [sums.sin_(), torch.nn.functional.gelu(x)]


def update(x: Any, y: Any, flag: Any) -> list[Any]:
    """Writes into inputs, as programs do: each is written with what the others were, one between two reads."""
    new = [y.clone(), x + y]
    x.copy_(torch.where(flag.any(), x, new[0]))
    y.copy_(torch.where(flag.any(), y, new[1]))
    return [new[1] * 2]


def numbers(x: Any, buffer: Any) -> list[Any]:
    """Reads one number for each of its values."""
    return [x * buffer.view(torch.float64)[1].to(torch.float32) + k for k in range(5)]


def made_for(f: Callable[..., list[Any]]) -> list[Any]:
    if f is gather:
        return [torch.linspace(-1, 1, 18).reshape(6, 3), torch.tensor([0, 3, 1, 1, 2, 0])]
    if f is update:
        return [torch.arange(6.0), torch.linspace(0, 1, 6), torch.tensor([False, False])]
    return [torch.arange(6.0), torch.tensor([3, 4607182418800017408])]  # the second are the bits of 1.0


def like(given: list[Any]) -> Callable[[], list[Any]]:
    return lambda: [torch.empty_like(a, device="cpu") for a in given]


EACH = pytest.mark.parametrize("f", [gather, update, numbers], ids=lambda f: f.__name__)


@EACH
def test_a_traced_function_makes_and_writes_the_same(f: Any) -> None:
    graph, _ = trace(f, like(made_for(f)))
    mine, theirs = made_for(f), made_for(f)
    for a, b in zip([*graph(*mine), *mine], [*f(*theirs), *theirs], strict=True):
        torch.testing.assert_close(a, b)


@EACH
def test_nothing_in_it_writes_but_copies_into_inputs_at_its_end(f: Any) -> None:
    graph, _ = trace(f, like(made_for(f)))
    nodes = [n for n in graph.graph.nodes if n.op == "call_function"]
    writing = [i for i, n in enumerate(nodes) if getattr(n.target, "_schema", None) and n.target._schema.is_mutable]
    assert len(writing) == (2 if f is update else 0)
    assert writing == list(range(len(nodes) - len(writing), len(nodes)))
    assert all(nodes[i].target is aten.copy_.default and nodes[i].args[0].op == "placeholder" for i in writing)


def test_a_number_is_read_once() -> None:
    graph, _ = trace(numbers, like(made_for(numbers)))
    for op in (aten.view.dtype, aten.select.int, torch.ops.prims.convert_element_type.default):
        assert len(graph.graph.find_nodes(op="call_function", target=op)) == 1, op


def reached(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs that come to what of Inductor follows AOTAutograd. It goes no further."""
    import torch._inductor.compile_fx as inductor

    graphs: list[Any] = []

    def stop(graph: Any, *args: Any, **kwargs: Any) -> Any:
        graphs.append(graph)
        raise NotImplementedError("stopped here")

    monkeypatch.setattr(inductor, "compile_fx_forward", stop)
    return graphs


@EACH
def test_inductor_gets_what_autograd_would_have_given_it(f: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._inductor.compile_fx as inductor

    graphs = reached(monkeypatch)
    exported = inductor.aot_export_module
    traced, given = trace(f, like(made_for(f)))
    for direct in (True, False):
        with pytest.raises(NotImplementedError):
            module._compiled(traced, given, print) if direct else module.inductor_aot(*trace_plain(f, like(given)))
        assert inductor.aot_export_module is exported
    assert graphs[0] is traced, "nothing has traced it again"
    ours, theirs = ([str(n.target) for n in g.graph.nodes if n.op == "call_function"] for g in graphs)
    nothing = {"aten.alias.default", "aten.copy.default"}  # that one is of what is then copied into an input
    assert sorted(t for t in ours if t not in nothing) == sorted(t for t in theirs if t not in nothing)


def test_what_cannot_be_taken_as_it_is_is_traced_again(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    compiled: list[Any] = []
    monkeypatch.setattr(module, "inductor_aot", lambda graph, given: compiled.append(graph) or "path")

    def refuse(*args: Any) -> Any:
        raise AttributeError("another torch")

    with monkeypatch.context() as patch:
        patch.setattr(module, "_without_export", refuse)
        assert compile_graph(gather, like(made_for(gather)), said.append) == "path"
    assert "traced again by AOTAutograd, because of AttributeError: another torch" in said
    (graph,) = compiled
    assert graph.graph.find_nodes(op="call_function", target=aten.index_add_.default), "as a user would have it"


def test_a_torch_that_calls_autograd_in_another_way_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(module, "inductor_aot", lambda graph, given: "path")
    assert compile_graph(numbers, like(made_for(numbers)), said.append) == "path"
    assert said[-1] == "traced again by AOTAutograd, which this torch calls in another way"
