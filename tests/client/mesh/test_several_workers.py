"""A client on a whole cluster of several workers in this process: layouts, training, checkpoints, signals.

Values and losses are those of one worker. Real processes are in tests/processes/test_sharded.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gt
from benchmarks import zoo
from gt import config
from gt.client.session.placing import set_mesh
from gt.client.session.session import Session
from gt.errors import OutOfMemory
from tests.beside_torch import same
from tests.client.mesh.sharded_training import WAYS, train
from tests.sessions import session_fixture, session_on
from tests.sim.cluster import using

ROWS = np.random.default_rng(0).normal(size=(101, 40))

session = session_fixture("numpy", workers=4)


# --- tensors ------------------------------------------------------------------------------------------

LAYOUTS = ["[101@x]", "[. 40@x]", "[101@x 40@y]", "[101@y,x]", "[. (4)(10@x)]", "[]"]


@pytest.mark.parametrize("text", LAYOUTS)
def test_uploads_and_fetches(session: Session, text: str) -> None:
    gt.mesh(x=2, y=2)
    for dtype in (np.float64, np.int32):
        a = (ROWS * 100).astype(dtype)
        x = gt.from_numpy(a, layout=text)
        assert repr(x.layout) == text
        np.testing.assert_array_equal(x.numpy(), a)
        for other in LAYOUTS:
            y = gt.shard(x, other)
            assert repr(y.layout) == other
            np.testing.assert_array_equal(y.numpy(), a)


def test_random_numbers_do_not_depend_on_the_workers(session: Session) -> None:
    gt.manual_seed(3)
    expected = gt.randn(101, 7).numpy()
    gt.mesh(x=3)
    gt.manual_seed(3)
    x = gt.shard(gt.randn(101, 7), {0: "x"})
    np.testing.assert_array_equal(x.numpy(), expected)


# --- training -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def expected() -> list[float]:
    """The losses of one worker."""
    with session_on():
        losses: list[float] = train(4, None, {})[0]
    return losses


@pytest.mark.parametrize("way", WAYS)
def test_training_gives_the_losses_of_one_worker(session: Session, way: str, expected: list[float]) -> None:
    gt.mesh(x=2, y=2)
    batch, layouts = WAYS[way]
    losses, model, optimizer = train(4, batch, layouts, checkpoint=way == "both")
    np.testing.assert_allclose(losses, expected, rtol=1e-9)
    for name, p in model.named_parameters():
        state = optimizer.state[p]
        assert state["exp_avg"].layout is p.layout, name
    if way == "fully":
        assert repr(model.up.weight.layout) == "[30@x,y]"


def test_three_workers_and_uneven_shards(session: Session, expected: list[float]) -> None:
    gt.mesh(x=3)
    losses, _, _ = train(4, {0: "x"}, {"up.weight": {0: "x"}, "head.*": {0: "x"}})
    np.testing.assert_allclose(losses, expected, rtol=1e-9)


def test_a_tensor_that_is_written_in_place_keeps_its_layout(session: Session) -> None:
    gt.mesh(x=2)
    model = gt.shard_(zoo.residual(gt), {"up.weight": {0: "x"}})
    w = model.up.weight
    state = {k: v.numpy() * 0 + 2 for k, v in model.state_dict().items()}
    model.load_state_dict({k: gt.from_numpy(v) for k, v in state.items()})
    assert repr(w.layout) == "[30@x]"
    np.testing.assert_array_equal(w.detach().numpy(), state["up.weight"])
    other = gt.shard_(
        zoo.residual(gt), {"up.weight": {0: "x"}}
    )  # all of it in one program, and what is loaded has another layout
    other.load_state_dict({k: gt.from_numpy(v, layout={0: "x"} if v.ndim == 1 else {1: "x"}) for k, v in state.items()})
    assert repr(other.up.weight.layout) == "[30@x]"
    gt.nn.init.normal_(w)
    assert repr(w.layout) == "[30@x]"
    with gt.no_grad():
        w.zero_()
        w += 1
    assert repr(w.layout) == "[30@x]"
    np.testing.assert_array_equal(w.detach().numpy(), np.ones((30, 10)))


def test_checkpoints_move_between_numbers_of_workers(session: Session, tmp_path: Path) -> None:
    gt.mesh(x=4)
    _, model, optimizer = train(2, {0: "x"}, {"*": {0: "x"}})
    gt.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "c", sharded=True)
    assert len(list((tmp_path / "c").glob("*-worker*.safetensors"))) == 4
    expected = {k: v.numpy() for k, v in model.state_dict().items()}
    moments = [optimizer.state[p]["exp_avg"].numpy() for p in model.parameters()]
    for mesh in ({"x": 3}, {"x": 2, "y": 2}, None):
        with using(session.channel.cluster.client()) as other:
            set_mesh(other, "", mesh) if mesh is not None else None
            got = gt.load(tmp_path / "c")
            twin = zoo.residual(gt).double()
            if mesh is not None:
                assert repr(got["model"]["up.weight"].layout) == "[30@x]"
                gt.shard_(twin, {"up.weight": {1: "x"}})
            again = gt.optim.AdamW(twin.parameters(), lr=1e-2)
            twin.load_state_dict(got["model"])
            again.load_state_dict(got["optimizer"])
            for name, value in twin.state_dict().items():
                np.testing.assert_array_equal(value.numpy(), expected[name])
            for p, value in zip(twin.parameters(), moments, strict=True):
                np.testing.assert_array_equal(again.state[p]["exp_avg"].numpy(), value)
        other.close()


def test_signals_place_a_model_on_sub_meshes(session: Session) -> None:
    gt.mesh(x=4)
    gt.manual_seed(0)
    model = gt.nn.Sequential(zoo.residual(gt), gt.nn.Linear(3, 5)).double()
    x = gt.from_numpy(np.random.default_rng(0).normal(size=(13, 10)))
    loss = model(x).square().mean()
    loss.backward()
    expected = [loss.item(), *(p.grad.numpy() for p in model.parameters())]
    model.zero_grad()
    gt.signal.configure(
        {
            "meshes": {"first": {"x": 2, "workers": [0, 1]}, "second": {"x": 2, "workers": [2, 3]}},
            "parameters": {"0.up.weight": {"mesh": "first", "split": {0: "x"}}, "0.*": "first", "1.*": "second"},
            "signals": {"0": {"mesh": "first", "split": {0: "x"}}, "1": {"mesh": "second", "split": {0: "x"}}},
        }
    )
    gt.signal.place(model)
    out = model(x)
    assert out.layout.mesh is gt.mesh("second").grid
    assert repr(out.layout) == "[13@x]"
    loss = out.square().mean()
    loss.backward()
    got = [loss.item(), *(p.grad.numpy() for p in model.parameters())]
    same(got, expected, rtol=1e-9, atol=1e-12)
    assert {p.layout.mesh for p in model[0].parameters()} == {gt.mesh("first").grid}


def test_a_traced_function_is_replayed_on_shards(session: Session) -> None:
    gt.mesh(x=2)
    model = gt.shard_(zoo.residual(gt).double(), {"up.*": {0: "x"}})
    optimizer = gt.optim.SGD(model.parameters(), lr=0.1)

    @gt.function
    def step(x: Any) -> Any:
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    x = gt.from_numpy(np.random.default_rng(0).normal(size=(13, 10)))
    losses = [step(x).item() for _ in range(6)]
    assert losses == sorted(losses, reverse=True)
    assert step.replays >= 3


def test_no_new_program_is_sent_by_a_loop(session: Session) -> None:
    gt.mesh(x=2)
    w = gt.shard_(gt.nn.Parameter(gt.ones(10, 4)), {0: "x"})
    optimizer = gt.optim.SGD([w], lr=0.1)
    seen = []
    for _ in range(6):
        w.square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(gt.debug.get_client_stats()["programs_sent"])
    assert seen[2] == seen[-1]


# --- failures -----------------------------------------------------------------------------------------


def test_out_of_memory_on_workers_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GT_FAKE_MEMORY", str(1 << 22))
    with session_on(workers=2, settings=config.load()):
        gt.mesh(x=2)
        w = gt.shard_(gt.nn.Parameter(gt.ones(64, 64)), {0: "x"})
        before = w.detach().numpy()
        with gt.no_grad():
            w.add_((gt.ones(64, 20000) @ gt.ones(20000, 64)).sum())
        with pytest.raises(OutOfMemory):
            w.detach().numpy()
        np.testing.assert_array_equal(w.detach().numpy(), before)
        assert repr(w.layout) == "[64@x]"
        assert (w * 2).sum().item() == 2 * 64 * 64
