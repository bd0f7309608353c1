"""Recurrent layers as ops: their dtypes, gradients of gradients, dropout, and what a training step of them records."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.client.record.recorder import recorder
from gt.client.session.placing import set_mesh
from gt.client.session.session import Session
from gt.errors import ShapeError
from gt.ops import TABLE, check
from gt.program import Program
from gt.worker.engines.torch import TorchEngine
from gt.worker.run.lowering import lower
from tests.beside_torch import arrays, nn_twins, same
from tests.client.functions.linalg.drawing import draws
from tests.sim.cluster import Cluster, using

KINDS = ("RNN", "LSTM", "GRU")
x, _ = draws(3)


def sent(session: Session) -> Program:
    """The program that was sent last."""
    return list(session.variants.values())[-1].program


@pytest.mark.parametrize(("dtype", "rtol"), [("float64", 1e-9), ("float32", 1e-4), ("bfloat16", 5e-2)])
@pytest.mark.parametrize("name", KINDS)
def test_every_dtype(name: str, dtype: str, rtol: float) -> None:
    theirs, ours = nn_twins(lambda nn: getattr(nn, name)(3, 4, 2))
    data, results = x(5, 2, 3), []
    for lib, module in ((torch, theirs), (gt, ours)):
        kind = getattr(lib, dtype)
        module.to(kind)
        t = lib.from_numpy(data.copy()).to(kind).requires_grad_()
        y, last = module(t)
        assert y.dtype == kind
        (y.float() ** 2).sum().backward()
        every = [y, last, t.grad, *(p.grad for p in module.parameters())]
        results.append(arrays([[v.float() if dtype == "bfloat16" else v for v in _flat(every)]]))
    same(results[1], results[0], rtol=rtol, atol=rtol)


def _flat(values: Any) -> list[Any]:
    return [v for value in values for v in (_flat(value) if isinstance(value, tuple) else [value])]


@pytest.mark.parametrize("name", KINDS)
def test_gradients_of_gradients(name: str) -> None:
    """They are recorded as the parts of the gradient op."""
    theirs, ours = nn_twins(lambda nn: getattr(nn, name)(3, 4, bidirectional=True))
    data, results = x(3, 2, 3), []
    for lib, module in ((torch, theirs), (gt, ours)):
        t = lib.from_numpy(data.copy()).requires_grad_()
        y, _ = module(t)
        (g,) = lib.autograd.grad((y * y).sum(), t, create_graph=True)
        (g * g).sum().backward()
        results.append(arrays([g, t.grad, *(p.grad for p in module.parameters())]))
    same(results[1], results[0], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", KINDS)
def test_a_graph_that_is_kept_gives_its_gradients_again(name: str) -> None:
    """The first gradient goes on with what forward has computed, and may overwrite it; the second must not see that."""
    layer = getattr(gt.nn, name)(3, 4, 2)
    t = gt.from_numpy(x(4, 2, 3).astype(np.float32)).requires_grad_()
    loss = (layer(t)[0] ** 2).sum()
    loss.backward(retain_graph=True)
    first = t.grad.numpy().copy()
    loss.backward()
    np.testing.assert_allclose(t.grad.numpy(), 2 * first, rtol=1e-5, atol=1e-6)


def test_one_weight_in_two_layers_has_both_gradients() -> None:
    theirs, ours = nn_twins(lambda nn: nn.GRU(4, 4, 2))
    data, results = x(3, 2, 4), []
    for lib, module in ((torch, theirs), (gt, ours)):
        module.weight_ih_l1 = module.weight_ih_l0
        t = lib.from_numpy(data.copy()).requires_grad_()
        (g,) = lib.autograd.grad((module(t)[0] ** 2).sum(), module.weight_ih_l0, create_graph=True)
        (g**2).sum().backward()
        results.append(arrays([g, t.grad, module.weight_ih_l0.grad]))
    same(results[1], results[0], rtol=1e-6, atol=1e-9)


def test_dropout_between_layers() -> None:
    """Of the first layer's result a share is dropped and the rest is scaled; another one each time, none in eval."""
    gt.manual_seed(0)
    layer = gt.nn.RNN(1, 400, 2, "relu", bias=False, dropout=0.25)
    with gt.no_grad():
        for p in layer.parameters():
            p.zero_()
        layer.weight_ih_l0.fill_(1.0)
        layer.weight_ih_l1.copy_(gt.eye(400))
    ones = gt.ones(20, 4, 1)
    y = layer(ones)[0].detach().numpy()
    assert set(np.unique(y)) <= {np.float32(0), np.float32(1 / 0.75)}
    assert abs((y == 0).mean() - 0.25) < 0.01  # of 32,000: 4 deviations
    assert (layer(ones)[0].detach().numpy() != y).any()
    gt.manual_seed(0)
    assert (layer.eval()(ones)[0].detach().numpy() == 1).all()


@pytest.mark.parametrize(("name", "cpu", "cuda"), [("LSTM", 1, 1), ("GRU", 0, 1), ("RNN", 1, 1)])
def test_autocast(name: str, cpu: int, cuda: int) -> None:
    """As torch's: on a CPU a GRU returns float32."""
    theirs, ours = nn_twins(lambda nn: getattr(nn, name)(3, 4))
    theirs, ours, data = theirs.float(), ours.float(), x(5, 2, 3).astype(np.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        want = theirs(torch.from_numpy(data))[0]
    assert want.dtype == (torch.bfloat16 if cpu else torch.float32)
    for device, narrow in (("cpu", cpu), ("cuda", cuda)):
        with gt.autocast(device, dtype=gt.bfloat16):
            y = ours(gt.from_numpy(data))[0]
        assert y.dtype == (gt.bfloat16 if narrow else gt.float32)
        np.testing.assert_allclose(y.float().detach().numpy(), want.float().detach().numpy(), atol=3e-2)


def test_sequences_without_steps_are_refused() -> None:
    with pytest.raises(ShapeError, match="lstm: expected sequences of at least one step"):
        gt.nn.LSTM(3, 4)(gt.ones(0, 2, 3))


@pytest.mark.parametrize("name", KINDS)
def test_a_training_step_is_one_small_program(name: str, session: Session) -> None:
    """With clipping and a schedule, too. Unrolled, 64 steps of two layers had been more than a program may hold."""
    model = getattr(gt.nn, name)(8, 8, num_layers=2)
    optimizer = gt.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = gt.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    data = gt.from_numpy(x(64, 2, 8).astype(np.float32))

    def step() -> Any:
        loss = (model(data)[0] ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        gt.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        return loss

    for _ in range(3):
        loss = step()
    loss.item()
    before = gt.debug.get_client_stats()
    for _ in range(5):
        loss = step()
    loss.item()
    after = gt.debug.get_client_stats()
    assert after["calls"] - before["calls"] == 5
    assert after["programs_sent"] == before["programs_sent"]
    program = sent(recorder().session)
    assert len(program.code) < 80
    steps = lower(check(program), TorchEngine("cpu")).steps
    ops = (TABLE[program_op(name)], TABLE[f"{program_op(name)}_d"])
    (first,), (then,) = ([s for s in steps if s.op is op] for op in ops)
    assert then.args[-len(first.results) :] == first.results, "the gradient goes on with what forward has computed"
    assert len(first.results) == 1 + (3 if name == "LSTM" else 2)


def program_op(name: str) -> str:
    return "rnn_tanh" if name == "RNN" else name.lower()


@pytest.mark.parametrize("name", KINDS)
def test_two_workers_train_as_one(name: str) -> None:
    """Sequences are split over the workers; the gradients of the weights are summed over both."""
    data, runs = x(5, 6, 3).astype(np.float32), []
    for workers in (1, 2):
        session = Cluster(workers, engine="torch").client()
        with using(session):
            gt.manual_seed(1)
            if workers > 1:
                set_mesh(session, "", {"x": 2})
            layer = getattr(gt.nn, name)(3, 4, 2, bidirectional=True)
            t = gt.from_numpy(data, layout={1: "x"}) if workers > 1 else gt.from_numpy(data)
            optimizer = gt.optim.SGD(layer.parameters(), lr=0.1)
            for _ in range(3):
                y, _ = layer(t)
                loss = (y**2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            if workers > 1:
                assert "x" in str(y.layout)
            runs.append([y.detach().numpy(), *(p.detach().numpy() for p in layer.parameters())])
        session.close()
    for one, two in zip(*runs, strict=True):
        np.testing.assert_allclose(two, one, rtol=1e-5, atol=1e-6)
