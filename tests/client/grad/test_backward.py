"""Gradients: composite functions against torch, and how the graph behaves."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import gt
from gt.client.programs.pending import alone
from gt.client.record.recorder import recorder
from gt.client.session.session import Session
from gt.errors import AutogradError, DTypeError, ShapeError
from tests.beside_torch import Array, Story, agree, as_in_torch, compare, each, leaf, stories
from tests.client.grad import graphs
from tests.client.grad.graphs import A, B, C, V, W
from tests.client.mistakes import Mistakes, refused
from tests.sessions import raising

TARGET = np.array([2, 0, 4, 1])


def layer_norm_by_hand(lib: Any, x: Any, scale: Any) -> Any:
    mean = x.mean(-1, keepdim=True)
    var = ((x - mean) ** 2).mean(-1, keepdim=True)
    return (x - mean) / (var + 1e-5).sqrt() * scale


def attention(lib: Any, x: Any) -> Any:
    scores = x @ x.transpose(-2, -1) / 5**0.5
    mask = lib.ones(4, 4, dtype=lib.float64).tril() == 0
    return scores.masked_fill(mask, float("-inf")).softmax(-1) @ x


def _indexed(lib: Any, x: Any) -> Any:
    rows = lib.from_numpy(np.array([3, 1, 1]))
    return x[rows] * x[0, 1:3].sum() + x[:, 2][rows].unsqueeze(1)


#: name: (function of the library and leaves, the leaves' values)
FUNCTIONS: dict[str, tuple[Story, tuple[Array, ...]]] = {
    "layer norm by hand": (layer_norm_by_hand, (A, C)),
    "layer norm": (lambda lib, x, w, b: lib.nn.functional.layer_norm(x, (5,), w, b), (A, C, C + 1)),
    "row scaling": (lambda lib, x: x / (x * x).sum(1, keepdim=True).sqrt(), (A,)),
    "column means": (lambda lib, x: (x - x.mean(0)) / (x.std(0) + 0.1), (A,)),
    "broadcast vector": (lambda lib, x, c: (x * c + c).tanh(), (A, C)),
    "broadcast scalar tensor": (lambda lib, x, c: x * c[0] + c[1] / x, (A, C)),
    "broadcast both ways": (lambda lib, a, c: a.unsqueeze(1) * c.unsqueeze(0).unsqueeze(2), (C, C)),
    "matmul": (lambda lib, x, w: x @ w, (A, W)),
    "batched matmul": (lambda lib, v, w: v @ w, (V, W)),
    "batches on both sides": (lambda lib, v, a: v @ a.t(), (V, A)),
    "matrix and vector": (lambda lib, x, c: (x @ c).exp(), (A, C)),
    "dot": (lambda lib, a, c: a @ c, (C, C + 1)),
    "attention": (attention, (V,)),
    "cross entropy": (lambda lib, x: lib.nn.functional.cross_entropy(x, lib.from_numpy(TARGET)), (A,)),
    "cross entropy of probabilities": (
        lambda lib, x, p: lib.nn.functional.cross_entropy(x, p.softmax(1).detach()),
        (A, B),
    ),
    "log softmax": (lambda lib, x: x.log_softmax(1)[:, 2], (A,)),
    "logsumexp": (lambda lib, x: x.logsumexp(0), (A,)),
    "indexing": (_indexed, (A,)),
    "embedding": (lambda lib, w: lib.nn.functional.embedding(lib.from_numpy(np.array([[1, 3], [3, 0]])), w) ** 2, (A,)),
    "gather": (lambda lib, x: x.gather(1, lib.from_numpy(TARGET[:, None])) ** 3, (A,)),
    "where": (lambda lib, x, y: lib.where(x > y, x * y, y**2), (A, B)),
    "maximum": (lambda lib, x, y: lib.maximum(x, y) - lib.minimum(x, 0.5 * y), (A, B)),
    "max along a dim": (lambda lib, x: x.max(1).values * x.min(0).values.sum(), (A,)),
    "amax": (lambda lib, x: x.amax((0, 1)) + x.amin(1).sum(), (A,)),
    "clamp": (lambda lib, x: x.clamp(-0.5, 0.7) * x, (A,)),
    "powers": (lambda lib, x: (x * x + 0.1) ** 1.5 + x**3 + 2.0 ** (x / 3), (A,)),
    "tensor power": (lambda lib, x, y: (x.abs() + 0.1) ** y, (A, B)),
    "cat and stack": (lambda lib, x, y: lib.cat([x, y * 2, x]).sum(0) * lib.stack([x, y], 1)[:, 0], (A, B)),
    "split": (lambda lib, x: x.split([2, 3], dim=1)[1].prod(1), (A,)),
    "permutations": (lambda lib, v: (v.permute(2, 0, 1) * v.transpose(0, 2).transpose(1, 2)).flatten(1), (V,)),
    "cumsum": (lambda lib, x: x.cumsum(1) * x, (A,)),
    "norm": (lambda lib, x: x.norm() * x.norm(dim=1), (A,)),
    "gelu": (lambda lib, x: lib.nn.functional.gelu(x) + lib.nn.functional.silu(x) + x.sigmoid(), (A,)),
    "reused": (lambda lib, x: (x + x) * x - (x * 2).exp() * x, (A,)),
    "variance": (lambda lib, x: x.var(1) + x.std(), (A,)),
    "triangle": (lambda lib, x: x.tril() @ x.triu().t(), (A,)),
    "expand": (lambda lib, c: c.expand(3, 5).sum(0) * c.repeat(2)[2:7], (C,)),
    "bce": (lambda lib, x, y: lib.nn.functional.binary_cross_entropy_with_logits(x, y.sigmoid().detach()), (A, B)),
}


@pytest.mark.parametrize(("f", "values"), FUNCTIONS.values(), ids=FUNCTIONS)
def test_first_and_second_gradients_are_as_in_torch(f: Any, values: Any, session: Session) -> None:
    compare(f, *values, second=True, rtol=1e-8, atol=1e-9)


def test_third_derivative(session: Session) -> None:
    x = gt.tensor([1.0, 2.0], dtype=gt.float64, requires_grad=True)
    y = (x**5).sum()
    for _ in range(3):
        (g,) = gt.grad(y, x, create_graph=True)
        y = g.sum()
    np.testing.assert_allclose(g.detach().numpy(), 60 * np.array([1.0, 4.0]))


@each(stories(graphs))
def test_the_graph_behaves_as_in_torch(story: Story, session: Session) -> None:
    agree(story, A, B, rtol=1e-9, atol=1e-11)


# --- errors, and what the graph keeps ------------------------------------------------------------------------


@as_in_torch()
def test_what_saves_nothing_is_shared_by_several_losses(lib: Any, session: Session) -> list[Any]:
    """As in torch, only what a gradient needs is freed: two losses may share ops that need nothing."""

    class Double(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * 2

    x = lib.tensor([1.0, 2.0, 3.0], requires_grad=True)
    shared = Double.apply(lib.cat([x + 1, x - 3])[1:].expand(2, 5).t())
    shared.sum().backward()
    (shared * 2).sum().backward()
    squared = x * x
    squared.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        squared.sum().backward()
    return [x.grad]


def test_a_second_backward_names_the_line(session: Session) -> None:
    x = leaf(gt, A)
    y = (x * x).sum()
    y.backward()
    with pytest.raises(AutogradError, match=r"test_backward\.py:\d+: backward a second time.*retain_graph=True"):
        y.backward()
    np.testing.assert_allclose(x.grad.numpy(), 2 * A)


MISTAKES: Mistakes = {
    "no graph": (lambda x: gt.ones(3).sum().backward(), AutogradError, "does not require grad"),
    "no number": (lambda x: (x * 2.0).backward(), AutogradError, r"shape \(4, 5\) needs backward\(gradient="),
    "shape": (lambda x: (x * 2.0).backward(gt.ones(5)), ShapeError, r"the shape \(4, 5\) of the tensor, got \(5,\)"),
    "unused": (lambda x: gt.grad((x * 2.0).sum(), [x, leaf(gt, B)]), AutogradError, "allow_unused=True"),
    "ints": (lambda x: gt.arange(3).requires_grad_(), DTypeError, "floating-point tensors can require grad, not int64"),
    "result": (lambda x: (x * 2.0).requires_grad_(False), AutogradError, "set to False for leaf tensors only"),
    "numpy": (lambda x: x.numpy(), AutogradError, r"tensor\.detach\(\)\.numpy\(\)"),
    "hook": (lambda x: gt.ones(3).register_hook(print), AutogradError, "hook: this tensor does not require grad"),
}
test_mistakes = refused(MISTAKES, lambda: leaf(gt, A))


def test_a_hook_that_raises_leaves_the_mode_and_the_session_right(session: Session) -> None:
    x = leaf(gt, A)
    x.register_hook(raising(KeyError("mine")))
    with pytest.raises(KeyError):
        (x * 2.0).sum().backward()
    assert gt.is_grad_enabled()
    assert (x * 2.0).requires_grad
    np.testing.assert_allclose((x * 2.0).detach().numpy(), 2 * A)


def test_the_graph_keeps_only_what_gradients_read(session: Session) -> None:
    """add, mul by a number and sum read no value, exp its result: nothing else outlives the program."""
    x = leaf(gt, A)
    recorder().settle()
    y = ((x + 1.0) * 2.0).exp().sum()
    recorder().settle()
    program = next(reversed(session.variants.values())).program
    names = [ins.op for ins in program.code]
    assert names == ["add", "mul", "exp", "sum"]
    assert [names[o - len(program.inputs)] for o in program.outputs] == ["exp", "sum"]
    y.backward()
    np.testing.assert_allclose(x.grad.numpy(), 2 * np.exp(2 * (A + 1)))


def test_the_graph_dies_with_its_tensors_without_the_collector(session: Session) -> None:
    gc.disable()
    try:
        x = leaf(gt, A)
        y = (x.tanh() @ gt.from_numpy(W)).softmax(1).sum()
        y.backward()
        node = weakref.ref(y)
        values = list(recorder().pending.values)
        recorder().settle()
        del y
        assert node() is None
        free = alone(values)
        held = [v for k, v in enumerate(values) if k not in free]
        assert {id(v) for v in held} == {id(x._v), id(x.grad._v)}
    finally:
        gc.enable()


def test_a_deep_graph(session: Session) -> None:
    """No recursion: a chain of thousands of ops goes backward and dies."""
    x = gt.tensor(1.0, dtype=gt.float64, requires_grad=True)
    y = x
    for _ in range(3000):
        y = y * 1.0005
    y.backward()
    assert x.grad.item() == pytest.approx(1.0005**3000)
    del y


def test_a_hook_that_returns_no_tensor(session: Session) -> None:
    y = gt.ones(2, requires_grad=True) * 2
    y.register_hook(lambda g: 5)  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match="a hook must return a tensor or None, got 5"):
        y.sum().backward()


def test_showing_a_node_does_not_show_the_graph(session: Session) -> None:
    y = gt.ones(2, requires_grad=True)
    for _ in range(100):  # 2 ** 100 ways to the leaf
        y = y + y
    assert len(repr(y.grad_fn)) < 80


def _gradients_of_gradients(x: Any, w: Any, v: Any) -> Any:
    """Ops with numbers, with several results, and with gradients that are compositions or are not differentiable."""
    a, b = (gt.nn.functional.layer_norm(x @ w, (5,)) * 1.5).split([2, 3], 1)
    top, _ = b.topk(2, 1)
    y = (a.exp() - top) / (1 + v[:2] ** 2) + gt.nn.functional.gelu(a).clamp(-1.0, 0.5)
    first = gt.autograd.grad(y.sigmoid().sum(), [x, w, v], create_graph=True)
    return [*first, *gt.autograd.grad(sum((d * d).sum() for d in first), [x, w, v])]


def test_a_gradient_with_a_history_is_that_of_the_functions(session: Session) -> None:
    """In anomaly mode every gradient is run on tensors."""
    rng = np.random.default_rng(0)
    leaves = [gt.from_numpy(rng.normal(size=s)).requires_grad_() for s in [(4, 5), (5, 5), (5,)]]
    found = [d.detach().numpy() for d in _gradients_of_gradients(*leaves)]
    with gt.autograd.detect_anomaly():
        wanted = [d.detach().numpy() for d in _gradients_of_gradients(*leaves)]
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_gradient_with_a_history_may_be_changed_by_hooks(session: Session) -> None:
    x = gt.tensor([1.0, 2.0], requires_grad=True)
    y = x * x
    y.register_hook(lambda g: g * x)
    (d,) = gt.autograd.grad((y * 3.0).sum(), x, create_graph=True)
    assert d.tolist() == [6.0, 24.0]  # 6 x^2
    assert gt.autograd.grad(d.sum(), x)[0].tolist() == [12.0, 24.0]
