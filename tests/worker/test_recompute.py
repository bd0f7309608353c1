"""Values that are made again after the peak: less memory, the same bits, nothing expensive twice."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import fx
from torch._inductor import memory
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from gt.worker.engines import recompute as module
from gt.worker.engines.recompute import Bounds, Buffers, estimate, recompute, recomputing
from gt.worker.engines.traced import merge_readings

ALL = Bounds(peak=0, least=0, spend=1.0)
LAYERS, ROWS, WIDTH, WORDS = 4, 64, 32, 128
HEAVY = {"mm", "addmm", "bmm", "convolution", "convolution_backward", "_scaled_dot_product_flash_attention_for_cpu"}


def train(x: Any, y: Any, head: Any, *weights: Any) -> list[Any]:
    """A step of training: norms, matmuls in bfloat16 and gelus beside a residual, logits, and a step of SGD."""
    with torch.enable_grad():
        parameters = [p.detach().requires_grad_() for p in (head, *weights)]
        for up, down in zip(parameters[1::2], parameters[2::2], strict=True):
            h = torch.nn.functional.layer_norm(x, (WIDTH,)).bfloat16() @ up.bfloat16()
            x = x + torch.nn.functional.gelu(h) @ down.bfloat16()
        logits = (x.bfloat16() @ parameters[0].bfloat16()).float()
        loss = torch.nn.functional.cross_entropy(logits, y)
        gradients = torch.autograd.grad(loss, parameters)
    for p, g in zip((head, *weights), gradients, strict=True):
        p.copy_(p - 0.1 * g)
    return [loss.detach()]


def operands() -> list[Any]:
    torch.manual_seed(0)
    weights = [w for _ in range(LAYERS) for w in (torch.randn(WIDTH, 4 * WIDTH), torch.randn(4 * WIDTH, WIDTH))]
    return [torch.randn(ROWS, WIDTH), torch.randint(0, WORDS, (ROWS,)), torch.randn(WIDTH, WORDS), *weights]


@cache
def _traced() -> fx.GraphModule:
    made: fx.GraphModule = make_fx(train, decomposition_table=select_decomp_table())(*operands())
    made.graph.eliminate_dead_code()
    return made


def traced() -> fx.GraphModule:
    """The step as Inductor has it when it comes to passes like this one."""
    return copy.deepcopy(_traced())


def graph_of(f: Callable[..., Any], *shapes: tuple[int, ...]) -> fx.GraphModule:
    made: fx.GraphModule = make_fx(f)(*[torch.ones(s) for s in shapes])
    return made


def heavy(graph: fx.Graph) -> Counter[str]:
    names = [n.target.overloadpacket.__name__ for n in graph.nodes if isinstance(n.target, torch._ops.OpOverload)]
    return Counter(n for n in names if n in HEAVY)


# --- the whole ------------------------------------------------------------------------------


def test_the_peak_falls_and_results_are_the_same_bits() -> None:
    plain, changed = traced(), traced()
    report = recompute(changed.graph, ALL)
    changed.graph.lint()
    changed.recompile()
    assert report.before == estimate(plain.graph)
    assert report.after == estimate(changed.graph)
    assert report.after < 0.75 * report.before
    assert heavy(changed.graph) == heavy(plain.graph)
    assert heavy(plain.graph)["mm"] == 3 * (2 * LAYERS + 1) - 1, "the data has no gradient"
    ours, theirs = operands(), operands()
    for a, b in zip([*changed(*ours), *ours], [*plain(*theirs), *theirs], strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(ours[2], operands()[2]), "it has learnt"


def test_activations_and_norms_and_casts_are_made_again() -> None:
    """Of each layer: what its two matmuls read, and the weight that its gradient goes through."""
    step = traced()
    nodes = {node.name: node for node in step.graph.nodes}
    remade = Counter(tuple(nodes[name].meta["val"].shape) for name in recompute(step.graph, ALL).remade)
    assert remade[ROWS, 4 * WIDTH] >= 3
    assert remade[ROWS, WIDTH] >= 3
    assert remade[4 * WIDTH, WIDTH] >= 3


@pytest.mark.parametrize("bounds", [Bounds(peak=1 << 20, least=0, spend=1.0), Bounds(peak=0, least=1 << 20, spend=1.0)])
def test_what_is_small_is_left_alone(bounds: Bounds) -> None:
    step = traced()
    assert recompute(step.graph, bounds).remade == []
    assert estimate(step.graph) < 1 << 20
    assert [str(n) for n in step.graph.nodes] == [str(n) for n in traced().graph.nodes]


def test_only_so_much_is_spent() -> None:
    """Bytes that are moved to make values again, of all that are moved: what the rest is worth decides."""
    moved = Buffers(traced().graph).moved()
    peaks = []
    for spend in (0.0, 0.05, 1.0):
        report = recompute(traced().graph, Bounds(0, 0, spend))
        assert report.spent <= spend * moved
        peaks.append(report.after)
    assert peaks[0] == estimate(traced().graph)
    assert peaks[0] > peaks[1] > peaks[2]


@pytest.mark.timeout(60)
def test_a_large_graph_takes_few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time goes into looking at all nodes. That is done once for all values that are not made of each other."""
    graph, aten = fx.Graph(), torch.ops.aten
    value = torch.empty(64, 64, device="meta")

    def add(target: Any, *args: Any) -> fx.Node:
        node = graph.call_function(target, args)
        node.meta["val"] = value
        return node

    x = graph.placeholder("x")
    activated, linear = [x], []
    for _ in range(100):
        y = linear_y = add(aten.mm.default, activated[-1], x)
        for _ in range(23):
            y = add(aten.tanh.default, y)
        linear.append(linear_y)
        activated.append(y)
    g = activated.pop()
    for y, before in zip(reversed(activated), reversed(linear), strict=True):
        weight = add(aten.mm.default, y, g)  # its gradient
        g = add(aten.mm.default, g, x)
        for _ in range(25):
            g = add(aten.mul.Tensor, g, before)
        g = add(aten.add.Tensor, g, weight)
    graph.output(g)
    assert len(graph.nodes) > 5000
    looked: list[int] = []
    monkeypatch.setattr(module, "Buffers", lambda graph: looked.append(1) or Buffers(graph))
    report = recompute(graph, ALL)
    graph.lint()
    assert len(report.remade) > 95
    assert report.after < 0.6 * report.before
    assert len(looked) <= 4


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # torch's, of torch
def test_inductors_own_estimate_falls_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """It decides by itself what is a buffer, which kernels become one, and their order."""

    class Seen(Exception):
        pass

    peaks: list[int] = []
    reorder = memory.reorder_for_peak_memory

    def look(nodes: Any, buffers: Any, fused: Any, inputs: Any, outputs: Any) -> None:
        order = reorder(nodes, buffers, fused, inputs, outputs)
        peaks.append(memory.prepare_planning_info(order, buffers, fused, inputs, outputs)[0])
        raise Seen

    monkeypatch.setattr(memory, "reorder_for_peak_memory", look)
    reports: list[Any] = []
    with FakeTensorMode(allow_non_fake_inputs=True):
        given = operands()
        step = make_fx(train)(*given)
    with pytest.raises(Exception, match="Seen"):
        torch._inductor.aot_compile(step, tuple(given))
    with recomputing(reports.append, ALL), pytest.raises(Exception, match="Seen"):
        torch._inductor.aot_compile(step, tuple(given))
    assert peaks[1] < 0.8 * peaks[0]
    assert peaks[1] == pytest.approx(reports[0].after, rel=0.3)


# --- what is a buffer -----------------------------------------------------------------------


def names(buffers: Buffers) -> list[str]:
    return [n.name for n, real, nbytes in zip(buffers.nodes, buffers.real, buffers.nbytes, strict=True)
            if real and nbytes]  # fmt: skip


def test_pointwise_values_are_no_buffers_unless_an_outside_kernel_reads_them() -> None:
    def f(x: Any) -> Any:
        return ((x + 1).exp().t() @ x.tanh()).relu().sum()

    assert names(Buffers(graph_of(f, (8, 8)).graph)) == ["exp", "tanh", "mm", "sum_1"]


def test_a_value_that_reads_too_much_is_a_buffer() -> None:
    def f(*xs: Any) -> Any:
        y = sum(xs[1:], xs[0])
        return (y.exp() + y.tanh()).sum()

    assert names(Buffers(graph_of(f, *[(8, 8)] * 4).graph)) == ["sum_1"]
    assert names(Buffers(graph_of(f, *[(8, 8)] * 5).graph)) == ["add_3", "sum_1"]


def test_who_is_alive_when() -> None:
    def f(x: Any) -> Any:
        a = x @ x
        b = a @ x
        return (a + b) @ x, b.sum()

    buffers = Buffers(graph_of(f, (8, 8)).graph)
    at = {n.name: i for i, n in enumerate(buffers.nodes)}
    assert buffers.start[at["mm"]] == at["mm"]
    assert buffers.end[at["mm"]] == at["add"] - 1, "the sum takes its place"
    assert buffers.end[at["mm_1"]] == at["sum_1"]
    assert buffers.end[at["mm_2"]] == at["output"]
    assert estimate(graph_of(f, (8, 8)).graph) == 3 * 8 * 8 * 4


# --- what is not made again -----------------------------------------------------------------


def kept(f: Callable[..., Any], *shapes: tuple[int, ...]) -> bool:
    """Whether nothing is made again, though `f` keeps something over a peak."""
    return recompute(graph_of(f, *shapes).graph, ALL).remade == []


def large_product(y: Any) -> Any:
    """Made of `y`, by way of a moment at which much is in memory."""
    large = (y.repeat(1, 16) @ y.repeat(16, 1)).repeat(1, 16)
    return large @ large.t()


def peak_between(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Two matmuls read what is made, one before and one after a moment at which much is in memory."""

    def f(x: Any) -> Any:
        y = make(x)
        return large_product(y @ x) @ y

    return f


def test_a_chain_of_cheap_ops_is_made_again() -> None:
    assert not kept(peak_between(lambda x: x.tanh() * 2), (8, 8))


@pytest.mark.parametrize(
    "make",
    [lambda x: x @ x, lambda x: x.cumsum(0), lambda x: torch.sort(x)[0], torch.bernoulli, torch.rand_like,
     lambda x: torch.scatter(x, 0, torch.zeros(8, 8, dtype=torch.int64), x)],
)  # fmt: skip
def test_nothing_else_is(make: Callable[[Any], Any]) -> None:
    assert kept(peak_between(make), (8, 8))


def written_in_between(x: Any) -> Any:
    y = x.tanh()
    first = y @ y
    last = large_product(first)
    x.copy_(first)
    return last @ y


def narrow(x: Any) -> Any:
    """A value of one byte an element, made of one with four that nobody else needs later: more would stay alive."""
    y = (x @ x).to(torch.bfloat16)
    return large_product(y @ y) @ y


def returned(x: Any) -> Any:
    y = x.tanh()
    return large_product(y @ x), y


@pytest.mark.parametrize("f", [written_in_between, narrow, returned])
def test_what_can_no_longer_be_read_or_would_keep_more_alive_is_not(f: Callable[[Any], Any]) -> None:
    assert kept(f, (8, 8))


# --- the numbers of a call ------------------------------------------------------------------


def test_each_number_is_read_once() -> None:
    def f(buffer: Any, *xs: Any) -> list[Any]:
        return [x * buffer.view(torch.float64)[1].to(torch.float32) + buffer[0].to(torch.float32) for x in xs]

    def g(buffer: Any, *xs: Any) -> list[Any]:
        return [*f(buffer, *xs), buffer[0].to(torch.float32), buffer[0].to(torch.float32)]

    given = [torch.arange(4), *[torch.ones(3)] * 5]
    for function, readings in ((f, 5), (g, 6)):
        step = make_fx(function)(*given)
        want = step(*given)
        merge_readings(step.graph)
        step.graph.lint()
        step.recompile()
        for a, b in zip(want, step(*given), strict=True):
            assert torch.equal(a, b)
        count = Counter(n.target for n in step.graph.nodes)
        aten = torch.ops.aten
        assert (count[aten.select.int], count[aten.view.dtype]) == (2, 1)
        assert count[aten._to_copy.default] == readings - 3 + (function is g)
    assert len(set(next(iter(reversed(step.graph.nodes))).args[0])) == 7, "results are not shared"
