"""Signals: what is recorded in a named context is pinned as the configuration says, forward and backward."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gt
from gt import config
from gt.client.session import connecting
from gt.client.session.session import Session
from gt.client.session.signals import read
from gt.errors import ArgumentError, DTypeError
from gt.transport.messages import Define, MeshSet, SetMesh
from tests.client.mesh.scripting import Script
from tests.sessions import session_on
from tests.sim.cluster import Cluster, recorder_of


def code(script: Script, session: Session) -> list[str]:
    """Everything that was recorded so far: ops, and pins as their layouts."""
    session.settle(recorder_of(session).pending)
    found = [ins.attrs["layout"] if ins.op == "shard" else ins.op for d in script.of(Define) for ins in d.program.code]
    script.sent.clear()
    return found


# --- contexts -----------------------------------------------------------------------------------------


def test_results_inside_of_a_context_are_pinned(script: Script, session: Session) -> None:
    gt.signal.configure({"mesh": {"x": 2}, "signals": {"mlp": {"split": {0: "x"}}}})
    x, w = gt.ones(8, 4), gt.ones(4, 6)
    before = x * 2
    with gt.signal.context("mlp"):
        inside = (before @ w).relu()
    after = inside + 1
    kept = [before, inside, after]
    assert code(script, session) == ["full", "full", "mul", "matmul", "[8@x]", "relu", "[8@x]", "add"]
    assert [t.shape for t in kept] == [(8, 4), (8, 6), (8, 6)]


def test_views_and_new_tensors_are_not_pinned(script: Script, session: Session) -> None:
    gt.signal.configure({"mesh": {"x": 2}, "signals": {"a": {"split": {0: "x"}}}})
    x = gt.ones(8, 4)
    with gt.signal.context("a"):
        y = x.reshape(4, 8).transpose(0, 1) + gt.ones(4)
    assert y.shape == (8, 4)
    assert code(script, session) == ["full", "reshape", "permute", "full", "add", "[8@x]"]


def test_gradients_are_pinned_as_results(script: Script, session: Session) -> None:
    gt.signal.configure({"mesh": {"x": 2}, "signals": {"a": {"split": {0: "x"}}}})
    w = gt.ones(8, 4, requires_grad=True)
    with gt.signal.context("a"):
        y = w.exp()
    y.sum().backward()
    del y
    assert w.grad is not None
    found = code(script, session)
    assert found.count("[8@x]") == 1, "forward's result is read by its gradient before it is pinned; this is backward's"


def test_ops_can_be_named_and_dimensions_counted_from_the_end(script: Script, session: Session) -> None:
    gt.signal.configure({"mesh": {"x": 2}, "signals": {"up": {"ops": ["linear"], "split": {-1: "x"}}}})
    with gt.signal.context("up"):
        y = gt.nn.functional.linear(gt.ones(3, 4), gt.ones(6, 4)).exp()
    assert y.shape == (3, 6)
    assert code(script, session)[-3:] == ["linear", "[. 6@x]", "exp"]


def test_a_mesh_pins_scalars_too_and_a_split_only_existing_dimensions(script: Script, session: Session) -> None:
    workers = {"": (1, 2), "s": (2,)}
    script.rules[SetMesh] = lambda m: [(MeshSet(m.request, workers[m.name]), None)]
    stages = {"m": "s", "whole": {"split": {}}, "deep": {"split": {2: "x"}}}
    gt.signal.configure({"mesh": {"x": 2}, "meshes": {"s": {"y": 1, "workers": [1]}}, "signals": stages})
    assert [(m.name, m.members) for m in script.of(SetMesh)] == [("", ()), ("s", (1,))]
    x = gt.ones(4, 4)
    kept = []
    for name in stages:
        with gt.signal.context(name):
            kept.append(x.sum())
    assert code(script, session) == ["full", "sum", "s: []", "sum", "[]", "sum"]


def test_contexts_nest_and_the_inner_one_counts(script: Script, session: Session) -> None:
    signals = {"out": {"split": {0: "x"}}, "in": {"split": {1: "x"}, "ops": ["exp"]}}
    gt.signal.configure({"mesh": {"x": 2}, "signals": signals})
    x = gt.ones(4, 6)
    with gt.signal.context("out"):
        with gt.signal.context("in"), gt.signal.context("nothing is said of this"):
            y = x.exp().log()
        z = y.exp()
    assert z.shape == (4, 6)
    assert code(script, session) == ["full", "exp", "[. 6@x]", "log", "[4@x]", "exp", "[4@x]"]


def test_an_error_inside_ends_the_context(script: Script, session: Session) -> None:
    gt.signal.configure({"mesh": {"x": 2}, "signals": {"a": {"split": {0: "x"}}}})
    x, rec = gt.ones(4, 6), recorder_of(session)
    with pytest.raises(RuntimeError), gt.signal.context("a"):
        x @ x
    assert (rec.pin, rec.policy) == (None, None)
    y = x.exp()
    assert y.shape == (4, 6)
    assert code(script, session) == ["full", "exp"]


def test_autocast_and_signals_go_together(script: Script, session: Session) -> None:
    gt.signal.configure({"mesh": {"x": 2}, "signals": {"a": {"split": {0: "x"}}}})
    x, w = gt.ones(4, 6), gt.ones(6, 2)
    with gt.signal.context("a"), gt.autocast(dtype=gt.bfloat16):
        y = x @ w
    with gt.autocast(dtype=gt.bfloat16), gt.signal.context("a"):
        z = x @ w
    assert y.dtype is z.dtype is gt.bfloat16
    found = code(script, session)
    assert found.count("cast") == 4
    assert found.count("matmul") == 2


def test_a_decorator_names_a_function(script: Script, session: Session) -> None:
    gt.signal.configure({"mesh": {"x": 2}, "signals": {"a": {"split": {0: "x"}}}})

    @gt.signal.context("a")
    def f(x: Any) -> Any:
        return x.exp()

    y = f(gt.ones(4))
    assert y.shape == (4,)
    assert code(script, session) == ["full", "exp", "[4@x]"]


def test_a_traced_function_keeps_its_pins_and_sees_other_signals(script: Script, session: Session) -> None:
    gt.signal.configure({"mesh": {"x": 2}, "signals": {"a": {"split": {0: "x"}}}})

    @gt.function
    def f(x: Any) -> Any:
        with gt.signal.context("a"):
            return x.exp()

    x = gt.ones(4, 4)
    f(x)
    f(x)
    assert f.replays == 1
    code(script, session)
    gt.signal.configure({"signals": {"a": {"split": {1: "x"}}}})
    kept = f(x)
    assert kept.shape == (4, 4)
    assert f.replays == 1
    assert code(script, session) == ["exp", "[. 4@x]"]
    with gt.signal.context("a"):
        f(x)
    assert f.replays == 1, "it is another function where results are pinned"


def test_checkpoints_run_again_as_they_ran(cluster: Cluster) -> None:
    """On one worker pins change nothing, but they are there: the second run has the same instructions."""
    with session_on(cluster):
        gt.signal.configure({"signals": {"a": {"split": {0: "x"}}}})
        x = gt.tensor([1.0, 2.0], requires_grad=True)
        with gt.signal.context("a"):
            y = gt.checkpoint(lambda t: t.exp().sin(), x)
        y.sum().backward()
        assert x.grad is not None
        np.testing.assert_allclose(x.grad.numpy(), np.cos(np.exp([1.0, 2.0])) * np.exp([1.0, 2.0]), rtol=1e-6)


# --- models -------------------------------------------------------------------------------------------


class Block(gt.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = gt.nn.Linear(4, 8), gt.nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        return self.down(self.up(x).relu())


MODEL = {
    "mesh": {"x": 2},
    "parameters": {"*.up.*": {0: "x"}, "*.down.weight": {1: "x"}},
    "signals": {"*.up": {"split": {-1: "x"}, "ops": "linear"}, "*.down": {"split": {}, "ops": "linear"}},
}


def test_a_model_is_placed_without_a_change(script: Script, session: Session) -> None:
    gt.signal.configure(MODEL)
    model = gt.nn.Sequential(Block(), Block())
    assert gt.signal.place(model) is model
    placed = [p for p in code(script, session) if p.startswith("[")]
    assert sorted(placed) == sorted(["[8@x]", "[8@x]", "[. 8@x]"] * 2)
    y = gt.signal.place(model)(gt.ones(3, 4))  # twice is as good as once
    assert y.shape == (3, 4)
    block = ["linear", "[. 8@x]", "relu", "linear", "[]"]
    assert [op for op in code(script, session) if op in block][-10:] == block * 2
    twin = copy.deepcopy(model)
    assert twin(gt.ones(3, 4)).shape == (3, 4)


def test_nothing_is_placed_without_a_configuration(session: Session) -> None:
    with pytest.raises(ArgumentError, match="no configuration"):
        gt.signal.place(gt.nn.Linear(2, 2))


def test_a_placed_model_computes_the_same_on_one_worker(cluster: Cluster) -> None:
    with session_on(cluster):
        model = gt.nn.Sequential(Block(), Block())
        x = gt.randn(3, 4)
        expected = model(x).detach().numpy()
        gt.signal.configure({k: v for k, v in MODEL.items() if k != "mesh"})
        np.testing.assert_array_equal(gt.signal.place(model)(x).detach().numpy(), expected)


# --- configurations -----------------------------------------------------------------------------------

YAML = """
# two stages
mesh: {x: 4}
meshes:
  first: {x: 2, workers: [0, 1]}
  second:
    x: 2
    workers:
      - 2
      - 3
signals:
  embed: first
  "block*": {mesh: second, split: {0: x, -1: [y, z]}, ops: [linear, 'matmul']}   # a comment
  'head':
    split: {}
"""
TOML = """
mesh = {x = 4}
meshes.first = {x = 2, workers = [0, 1]}
meshes.second = {x = 2, workers = [2, 3]}
[signals]
embed = "first"
"block*" = {mesh = "second", split = {0 = "x", -1 = ["y", "z"]}, ops = ["linear", "matmul"]}
head = {split = {}}
"""
MEANT = {
    "mesh": {"x": 4},
    "meshes": {"first": {"x": 2, "workers": [0, 1]}, "second": {"x": 2, "workers": [2, 3]}},
    "signals": {
        "embed": "first",
        "block*": {"mesh": "second", "split": {0: "x", -1: ["y", "z"]}, "ops": ["linear", "matmul"]},
        "head": {"split": {}},
    },
}


def test_yaml_json_toml_and_python_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(YAML)
    (tmp_path / "a.json").write_text(json.dumps(MEANT))
    (tmp_path / "a.toml").write_text(TOML)
    (tmp_path / "a.py").write_text(f"signals = {MEANT!r}")
    assert read(str(tmp_path / "a.yaml")) == MEANT
    assert json.dumps(read(str(tmp_path / "a.json"))) == json.dumps(MEANT)
    assert json.dumps(read(str(tmp_path / "a.toml"))) == json.dumps(MEANT)
    assert read(str(tmp_path / "a.py")) == MEANT
    (tmp_path / "a.yaml").write_text("# nothing")
    assert read(str(tmp_path / "a.yaml")) == {}


def test_without_pyyaml_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    (tmp_path / "a.yaml").write_text(YAML)
    with pytest.raises(ArgumentError, match=r"a.yaml: reading YAML needs PyYAML.*pip install pyyaml"):
        read(str(tmp_path / "a.yaml"))


def test_every_session_reads_the_file_of_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "s.yaml"
    monkeypatch.setenv("GT_SIGNALS", str(file))
    file.write_text("mesh: {x: 2}\nsignals: {a: {split: {0: x}}}")
    session = connecting.begin(Session(Script(), config.load()))
    assert session.signals.find("a") is not None
    assert session.meshes.several
    file.write_text("mesh: {")
    other = Session(Script(), config.load())
    with pytest.raises(ArgumentError, match="line 1"):
        connecting.begin(other)
    assert other.closed, "nobody else knows of it"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("s.yaml", "a: {b: 1", "line 1: expected ',' or '}'"),
        ("s.yaml", "a: 1\n   b: 2", "line 2: mapping values are not allowed here"),
        ("s.yaml", "\ta: 1", "line 1: found character '\\t' that cannot start any token"),
        ("s.json", "{", "Expecting property name"),
        ("s.toml", "a", "Expected '=' after a key"),
    ],
)
def test_wrong_yaml_names_the_line(name: str, text: str, said: str, tmp_path: Path, session: Session) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(ArgumentError) as raised:
        gt.signal.configure(file)
    assert f"{file}: {said}" in str(raised.value)


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        (3, DTypeError, "a configuration must be a mapping"),
        ({"signal": {}}, ArgumentError, "unknown section 'signal'; expected one of"),
        ({"signals": {"a": 3}}, DTypeError, "signals: a must be the name of a mesh or a mapping"),
        ({"signals": {"a": {"shard": 0}}}, ArgumentError, "got 'shard'"),
        ({"signals": {"a": {}}}, ArgumentError, "got an empty mapping"),
        ({"signals": {"a": {"ops": ["linear"]}}}, ArgumentError, "needs a mesh or a split"),
        ({"signals": {"a": {"split": {0: "x"}, "ops": ["liner"]}}}, ArgumentError, "unknown op 'liner'"),
        ({"signals": {"a": {"split": "x"}}}, DTypeError, "split must map dimensions to axes"),
        ({"mesh": {"x": 2}, "signals": {"a": {"split": {0: "z"}}}}, ArgumentError, "signals: a: .* no axis 'z'"),
        ({"mesh": {"x": 2}, "signals": {"a": "s"}}, ArgumentError, "signals: a: unknown mesh 's'"),
        ("nowhere.yaml", ArgumentError, "nowhere.yaml: No such file"),
    ],
)
def test_wrong_configurations(session: Session, given: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        gt.signal.configure(given)
    assert session.signals is None
