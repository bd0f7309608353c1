"""Gradients that are written down once are those that the VJPs make when they are run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gt
from gt.client.grad import backward
from gt.client.programs import pending, pullback
from gt.client.programs.tree import Pullback
from gt.client.record.recorder import recorder
from gt.client.session.session import Session
from gt.client.tensor import GradNode, Tensor
from gt.errors import AutogradError
from gt.ops import TABLE, Op
from tests.ops.cases import ops, samples, trying


def differentiated(op: Op) -> Iterator[tuple[str, list[Any], list[Any], list[Tensor]]]:
    """(title, operands, results that have a history, gradients for them) of the samples that have any."""
    rng = np.random.default_rng(1)
    for i, (args, attrs) in enumerate(samples(op)):
        operands = [gt.from_numpy(a) if isinstance(a, np.ndarray) else a for a in args]
        for a in operands:
            if isinstance(a, Tensor) and a.dtype.is_differentiable:
                a.requires_grad_()
        if any(isinstance(a, Tensor) for a in operands):
            made = op(*operands, **attrs)
            outs = [t for t in (made if isinstance(made, tuple) else (made,)) if t.requires_grad]
            if outs:
                gs = [gt.from_numpy(rng.normal(size=t.shape)).to(t.dtype) for t in outs]
                yield f"sample {i}", operands, outs, gs


def gradients(operands: list[Any], outs: list[Any], gs: list[Tensor], graph: bool) -> list[Any]:
    """The operands' gradients as arrays; why there are none, where that is so."""
    wanted = [a._fn for a in operands if isinstance(a, Tensor) and a._fn is not None]
    try:
        found = backward.run([(t._fn, g) for t, g in zip(outs, gs, strict=True)], True, graph, wanted)
    except AutogradError as e:
        return [str(e)]
    return [None if d is None else d.detach().numpy() for d in found]


@ops(lambda op: op.vjp is not None)
def test_a_known_gradient_is_what_the_vjp_makes(session: Session, op: Op) -> None:
    tried = False
    for title, operands, outs, gs in differentiated(op):
        with trying(title):
            # All results have a gradient, and then each alone.
            for rows in [range(len(outs)), *[[k] for k in range(len(outs)) if len(outs) > 1]]:
                some = [outs[k] for k in rows], [gs[k] for k in rows]
                known, run = (gradients(operands, *some, graph) for graph in (False, True))
                for a, b in zip(known, run, strict=True):
                    tried = True
                    assert type(a) is type(b)
                    np.testing.assert_array_equal(a, b)
    if not tried:
        pytest.skip("its samples have no gradient")


def pulls(t: Tensor) -> Pullback:
    assert isinstance(t.grad_fn, GradNode)
    return t.grad_fn.pull


@pytest.fixture
def run_vjps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ops whose VJP backward runs, from now on."""
    ran: list[str] = []
    vjp = backward.run_vjp

    def noted(fn: GradNode, gs: list[Any], create_graph: bool) -> Any:
        assert fn.node.kind is not None
        ran.append(fn.node.kind.op.name)
        return vjp(fn, gs, create_graph)

    monkeypatch.setattr(backward, "run_vjp", noted)
    return ran


def test_a_known_backward_runs_no_vjp(session: Session, run_vjps: list[str]) -> None:
    x = gt.randn(4, 3, requires_grad=True)
    w = gt.randn(3, 3, requires_grad=True)
    for _ in range(3):
        y = (x @ w).relu() * 0.5 + x.sum(1, keepdim=True)
        y.chunk(3, 1)[0].mean().backward()
    assert run_vjps == []


def test_equal_layers_share_a_known_gradient(session: Session) -> None:
    x = gt.randn(4, 3, requires_grad=True)
    a = x.exp()
    assert pulls(a) is pulls(a.exp())
    assert pulls(a) is not pulls(gt.randn(2, requires_grad=True).exp())


def test_a_number_is_passed_on_and_not_fixed(session: Session, run_vjps: list[str]) -> None:
    x = gt.tensor([2.0], requires_grad=True)
    for k in (3.0, 5.0, -1.0):
        assert gt.autograd.grad(x * k, x)[0].tolist() == [k]
    assert run_vjps == []


def test_a_gradient_that_looks_at_a_number_is_run(session: Session, run_vjps: list[str]) -> None:
    x = gt.tensor([2.0], requires_grad=True)
    for k in (3.0, 2.0, 1.5):
        assert gt.autograd.grad(x**k, x)[0].tolist() == pytest.approx([k * 2.0 ** (k - 1)])


def test_a_gradient_is_worked_out_in_one_run_of_the_vjp(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which values it reads and what it records are seen in the same run; where there is a number, in two."""
    runs: list[str] = []
    run = pullback.gradients

    def counted(kind: Any, *rest: Any) -> Any:
        runs.append(kind.op.name)
        return run(kind, *rest)

    monkeypatch.setattr(pullback, "gradients", counted)
    x = gt.randn(13, 7, requires_grad=True)
    y = x.exp() @ gt.randn(7, 5)
    y * 3.5
    assert runs == ["exp", "matmul", "mul", "mul"]
    assert pulls(y).saves == 0b010  # the other operand, for the gradient of the one that needs it


def test_what_a_known_gradient_records_is_inferred_before(session: Session) -> None:
    x = gt.randn(17, 7, requires_grad=True)
    y = x.softmax(1)
    g, before = gt.ones(17, 7), {**pending._inferred}
    gt.autograd.grad(y, x, g)
    assert [uses for uses in pending._inferred if uses not in before] == []


LOOKS: dict[str, Any] = {
    "==": lambda b: b == 0, "+": lambda b: b + 1, "/": lambda b: 1 / b, "bool": bool, "float": float,
    "-": lambda b: -b, "hash": hash, "in a dict": lambda b: {b: 1}, "str": str,
}  # fmt: skip


@pytest.mark.parametrize("looks", LOOKS.values(), ids=LOOKS)
def test_a_hole_shows_that_it_was_looked_at(looks: Any) -> None:
    for kind in (float, int):
        with pytest.raises(pullback._LookedAt):
            looks(pullback._HOLES[kind](2))


def test_numbers_that_c_code_reads_are_seen_too(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """math.sqrt asks a float nothing: the second stand-in shows that the gradient depends on it."""
    import math

    op = TABLE["mul"]
    fields = {name: getattr(op, name) for name in op.__slots__}
    for f, known in ((lambda g, y, a, b: g * math.sqrt(b), False), (lambda g, y, a, b: g * b, True)):
        kind = gt.client.programs.tree.Kind(Op(**{**fields, "vjp": (f, None)}), {})
        x = gt.ones(2)._spec
        number = gt.program.SCALARS["f"]
        assert (pullback.pullback(kind, (x, number), (x,), 1).whole is not None) == known


def test_gradients_that_are_not_needed_are_not_recorded(session: Session) -> None:
    """Of a VJP that makes all gradients at once only those are recorded that somebody wants."""
    x, w = gt.randn(4, 3), gt.randn(5, 3, requires_grad=True)
    y = gt.nn.functional.linear(x, w)
    code = pulls(y).whole
    assert code is not None
    assert [operand for operand, _ in code.gradients] == [1]
    assert len([kind for kind, _ in code.steps if kind.op.name == "matmul"]) == 1


def test_a_gradient_of_another_dtype_is_not_taken_for_a_known_one(session: Session, run_vjps: list[str]) -> None:
    x = gt.ones(2, requires_grad=True)
    (x * 2.0).backward(gt.ones(2, dtype=gt.float64))
    assert run_vjps == ["mul"]
    assert x.grad is not None
    assert x.grad.dtype is gt.float32
    assert x.grad.tolist() == [2.0, 2.0]
    y = x.exp()
    z = y * 3.0
    z.register_hook(lambda g: g.double())
    y.register_hook(lambda g: g.half())
    run_vjps.clear()
    z.sum().backward()
    assert run_vjps == ["mul", "exp"]


def test_a_hook_may_write_to_the_gradient_it_is_given(session: Session) -> None:
    x = gt.ones(2, requires_grad=True)
    y = x * 2.0
    z = y * 3.0

    def double(g: Tensor) -> None:
        g.mul_(2.0)

    y.register_hook(double)
    (z + y.detach()).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [12.0, 12.0]


def test_gradients_that_are_asked_for_are_tensors_of_their_own(session: Session) -> None:
    x, y = gt.ones(2, requires_grad=True), gt.ones(2, requires_grad=True)
    a, b = gt.autograd.grad((x + y).sum(), (x, y))
    with gt.no_grad():
        a.add_(1.0)
    assert (a.tolist(), b.tolist()) == ([2.0, 2.0], [1.0, 1.0])


def test_backward_under_autocast_casts_as_the_vjps_would(session: Session, run_vjps: list[str]) -> None:
    x, w = gt.randn(2, 3, requires_grad=True), gt.randn(3, 2, requires_grad=True)
    y = (x @ w).sum()
    with gt.autocast(dtype=gt.bfloat16):
        y.backward()
    assert "matmul" in run_vjps
    names = [n.kind.op.name for n in recorder().pending.node.path() if n.kind is not None]
    assert "cast" in names


def test_a_backward_that_is_cut_in_two_goes_on(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program ends in the middle of a gradient: what was saved and computed is then an input of the next."""
    x, w = gt.randn(2, 3), gt.randn(4, 3, requires_grad=True)

    def grad() -> Any:
        w.grad = None
        gt.nn.functional.linear(x, w).exp().sum().backward()
        assert w.grad is not None
        return w.grad.tolist()

    whole = grad()
    monkeypatch.setattr("gt.client.record.recorder.LONGEST", 1)
    assert grad() == grad() == whole
