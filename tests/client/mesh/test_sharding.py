"""A client whose session lives on several workers: what it sends, and what it makes of the answers.

The server is a script here: a channel that answers each message by a rule of the test. So the client's half is tested
by itself; whole clusters are in tests/sim, real processes in tests/processes/test_sharded.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gt
from gt import dtypes, layout
from gt.client.mesh.drawing import drawing
from gt.client.session.session import Session
from gt.client.session.transfers import assemble
from gt.errors import ArgumentError, DTypeError, FunctionError, ServerError, ShapeError, WorkerError
from gt.program import spec
from gt.transport import messages as msg
from tests.client.mesh.scripting import Script, pins, serve
from tests.sim.cluster import recorder_of

# --- meshes -------------------------------------------------------------------------------------------


def test_a_mesh_is_asked_for_and_says_its_workers(script: Script, session: Session) -> None:
    m = gt.mesh(x=2, y=2)
    assert script.of(msg.SetMesh) == [msg.SetMesh(1, "", (("x", 2), ("y", 2)))]
    assert (m.axes, m.workers, repr(m)) == ({"x": 2, "y": 2}, (1, 2, 3, 4), "<mesh x=2 y=2: workers 1 2 3 4>")
    assert gt.mesh() is m
    script.rules[msg.SetMesh] = lambda m: [(msg.MeshSet(m.request, (3, 4)), None)]
    stage = gt.mesh("stage1", x=2, workers=[2, 3])
    assert script.of(msg.SetMesh)[1] == msg.SetMesh(2, "stage1", (("x", 2),), (2, 3))
    assert repr(stage) == "<mesh 'stage1' x=2: workers 3 4>"


def test_programs_recorded_before_a_mesh_are_sent_before_it(script: Script, session: Session) -> None:
    x = gt.ones(3)
    gt.mesh(x=2)
    assert [type(m) for m, _ in script.sent] == [msg.Hello, msg.Define, msg.Call, msg.SetMesh]
    assert x.shape == (3,)


def test_a_mesh_is_not_changed_under_calls_that_name_its_axes(script: Script, session: Session) -> None:
    """The server plans a call when its turn comes: a mesh that it hears of before would be that of the call."""
    gt.mesh(x=2)
    done: list[bool] = []
    answer = script.rules[msg.SetMesh]
    script.rules[msg.SetMesh] = lambda m: [done.append(session.done == session.seq == 1), *answer(m)][1:]
    x = gt.shard(gt.ones(4), {0: "x"})
    gt.mesh(y=2)
    assert done == [True]
    assert x.shape == (4,)


def test_a_refused_mesh_says_why_and_changes_nothing(script: Script, session: Session) -> None:
    script.rules[msg.SetMesh] = lambda m: [(msg.MeshSet(m.request, (), "4 workers are asked for, 1 has joined"), None)]
    script.rules[msg.GetStats] = lambda m: [(msg.Stats(m.request, {"workers": {"1": {}}}), None)]
    with pytest.raises(ArgumentError, match="mesh: 4 workers are asked for, 1 has joined"):
        gt.mesh(x=4)
    script.rules[msg.SetMesh] = lambda m: [(msg.MeshSet(m.request, (), "more than 16 meshes"), None)]
    with pytest.raises(ArgumentError, match=r"more than 16 meshes$"):  # more workers are no cure
        gt.mesh(x=1)
    assert session.meshes.by_name == {}


def test_a_private_server_without_enough_workers_is_not_waited_for(script: Script, session: Session) -> None:
    session.private = object()
    script.rules[msg.GetStats] = lambda m: [(msg.Stats(m.request, {"workers": {"1": {}}}), None)]
    with pytest.raises(ArgumentError, match="mesh: needs 4 workers, but this server has 1"):
        gt.mesh(x=4)
    assert not script.of(msg.SetMesh)


@pytest.mark.parametrize(
    ("arguments", "axes", "said"),
    [
        ((), {"x": 0}, "mesh: the size of axis x must be an int >= 1, got 0"),
        ((), {"x": 2.0}, r"mesh: the size of axis x must be an int >= 1, got 2\.0"),
        (("a b",), {"x": 2}, "mesh: the name must be a valid identifier, got 'a b'"),
        ((), {"x": 2, "workers": [0, 1]}, r"mesh: workers= needs a named mesh, as in gt\.mesh\('first', x=2,"),
        (("s",), {"x": 2, "workers": [0]}, r"mesh: axes \{'x': 2\} need 2 different workers, got \[0\]"),
        (("s",), {"workers": [0]}, r"mesh: expected at least one axis, as in gt\.mesh\(x=4\)"),
        (("s",), {}, "layout: unknown mesh 's'"),
        ((), {}, "layout: this session has no default mesh"),
    ],
)
def test_wrong_meshes(session: Session, arguments: Any, axes: Any, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        gt.mesh(*arguments, **axes)


def test_no_mesh_is_made_inside_of_a_traced_function(session: Session) -> None:
    @gt.function
    def f(x: Any) -> Any:
        gt.mesh(x=2)
        return x * 2

    with pytest.raises(FunctionError, match=r"f: call gt\.mesh\(\) outside of the @gt\.function"):
        f(gt.ones(2))


def test_no_memory_is_shared_with_several_workers(script: Script, session: Session) -> None:
    session.transfers.may_share = True
    gt.from_numpy(np.zeros(1 << 20))
    assert script.of(msg.Share)
    gt.mesh(x=2)
    script.sent.clear()
    gt.from_numpy(np.zeros(1 << 20))
    assert not script.of(msg.Share)
    assert all(m.slot < 0 for m in script.of(msg.Chunk))


# --- layouts as users write them ----------------------------------------------------------------------


def test_layouts_are_text_axes_or_another_layout(script: Script, session: Session) -> None:
    gt.mesh(x=2, y=2)
    script.rules[msg.SetMesh] = lambda m: [(msg.MeshSet(m.request, (3, 4)), None)]
    stage = gt.mesh("stage1", x=2, workers=[2, 3])
    x = gt.ones(10, 4)
    other = layout.parse("[10@x]", session.meshes.find("stage1"))
    made = [
        gt.shard(x, "[10@x .]"),
        gt.shard(x, {0: "x", -1: ["y"]}),
        gt.shard(x, {0: ("x", "y")}),
        gt.shard(x, "stage1: [. 4@x]"),
        gt.shard(x, {0: "x"}, mesh="stage1"),
        gt.shard(x, {0: "x"}, mesh=stage),
        gt.shard(x, other),
        gt.shard(x, "stage1:"),
        gt.replicate(x),
        gt.replicate(x, mesh=stage),
    ]
    session.settle(recorder_of(session).pending)
    assert len(made) == 10
    assert pins(script) == [
        "[10@x]", "[10@x 4@y]", "[10@x,y]", "stage1: [. 4@x]", "stage1: [10@x]", "stage1: [10@x]", "stage1: [10@x]",
        "stage1: []", "[]", "stage1: []",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("wish", "error", "said"),
    [
        ({2: "x"}, ArgumentError, "shard: dimension 2 is out of range for a tensor of 2 dimensions"),
        ({0: "z"}, ArgumentError, "no axis 'z'"),
        ({0: "x", 1: "x"}, ArgumentError, "'x' is used twice"),
        ({0: "x", -2: "y"}, ArgumentError, "a dimension twice"),
        ({0: 1}, DTypeError, "shard: the axes of a dimension must be a name or a tuple of names, got 1"),
        ({"x": 0}, DTypeError, "shard: dimensions must be ints, got 'x'"),
        ("[11@x]", ShapeError, r"does not fit a tensor of shape \(10, 4\)"),
        ("[10@x] sum y", ArgumentError, r"shard: \[10@x\] sum y is the layout of a partial result"),
        ("10@x", ArgumentError, r"shard: expected a layout like '\[100@x \.\]' or 'stage1: \[100@x \.\]', got '10@x'"),
        ("stage9: [10@x]", ArgumentError, "layout: unknown mesh 'stage9'"),
        (7, DTypeError, r"shard: layout must be a string like '\[100@x \.\]' or a dict like \{0: 'x'\}, got 7"),
    ],
)
def test_wrong_layouts(session: Session, wish: Any, error: type[Exception], said: str) -> None:
    gt.mesh(x=2, y=2)
    with pytest.raises(error, match=said):
        gt.shard(gt.ones(10, 4), wish)


def test_on_one_worker_a_layout_changes_nothing(script: Script, session: Session) -> None:
    y = gt.shard(gt.ones(10, 4), {0: "x"})
    session.settle_value(y._v)
    assert pins(script) == [""]


def test_a_gradient_is_pinned_as_its_tensor(script: Script, session: Session) -> None:
    gt.mesh(x=2)
    w = gt.ones(10, 4, requires_grad=True)
    gt.shard(w, {0: "x"}).sum().backward()
    session.settle_value(w.grad._v)
    assert pins(script) == ["[10@x]"], "the result of forward is dead, and so is its pin"


def test_a_parameter_is_laid_out_in_place(script: Script, session: Session) -> None:
    gt.mesh(x=2)
    model = gt.nn.Sequential(gt.nn.Linear(4, 6), gt.nn.BatchNorm1d(6))
    weight = model[0].weight
    weight.sum().backward()
    leaf, grad = weight._fn, weight.grad
    assert gt.shard_(model, {"0.weight": {0: "x"}, "1.*": {0: "x"}}) is model
    assert model[0].weight is weight
    assert (weight._fn, weight.grad) == (leaf, grad)
    assert weight.is_leaf
    session.settle(recorder_of(session).pending)
    # weight and its gradient; weight, bias, mean and variance of the norm, but not its count, which has no dimensions
    assert sorted(pins(script)) == ["[6@x]"] * 6
    with pytest.raises(ArgumentError, match=r"shard_: no parameter matches '2\.\*'"):
        gt.shard_(model, {"2.*": {0: "x"}})
    with pytest.raises(DTypeError, match="expected a tensor or a module"):
        gt.shard_(3, {0: "x"})


def test_a_tensor_that_is_written_at_once_has_the_layout_it_was_given(script: Script, session: Session) -> None:
    """Before it is an input of a program in that layout."""
    gt.mesh(x=2)
    w = gt.nn.Parameter(gt.ones(4, 2))
    optimizer = gt.optim.SGD([w], lr=0.1)
    gt.shard_(w, {1: "x"})
    gt.shard_(w, {0: "x"})
    w.square().sum().backward()
    optimizer.step()
    small = gt.tensor([[1.0, 2.0]], layout={1: "x"})
    small[:, 1] -= 1.0
    fresh = gt.ones(6, 2)
    gt.shard_(fresh, {1: "x"})
    gt.shard_(fresh, {0: "x"})
    fresh[:, 1] -= 1.0
    session.settle(recorder_of(session).pending)
    made = [d.program.code[o - len(d.program.inputs)] for d in script.of(msg.Define) for o in d.program.outputs]
    placed = [ins.attrs["layout"] for ins in made if ins.op == "shard"]
    # What exists is placed by programs of their own; the parameter is then an input that has its layout.
    assert placed == ["[. 2@x]", "[4@x]", "[. 2@x]", "[6@x]"]


def test_the_state_of_an_optimizer_has_the_layout_of_its_parameter(script: Script, session: Session) -> None:
    gt.mesh(x=2)
    w = gt.shard_(gt.nn.Parameter(gt.ones(4, 2)), {0: "x"})
    session.settle(recorder_of(session).pending)
    script.sent.clear()
    optimizer = gt.optim.Adam([w])
    session.settle(recorder_of(session).pending)
    (define,) = script.of(msg.Define)
    assert len(optimizer.state[w]) == 3
    assert define.program.inputs == (((4, 2), "float32"),), "it is made of the parameter, and so has its layout"


# --- uploads ------------------------------------------------------------------------------------------


def test_an_upload_brings_its_wish_with_the_first_chunk(script: Script, session: Session) -> None:
    gt.mesh(x=2)
    a = np.arange(1 << 17, dtype=np.float64).reshape(1 << 10, 1 << 7)
    gt.from_numpy(a, layout={0: "x"})
    gt.tensor(a, layout="[. 128@x]")
    gt.from_numpy(a, layout="")
    gt.from_numpy(a)
    first = [m.layout for m in script.of(msg.Chunk) if m.offset == 0]
    assert first == ["[1024@x]", "[. 128@x]", "[]", ""]
    assert {m.layout for m in script.of(msg.Chunk) if m.offset} == {""}
    assert b"".join(data for m, data in script.sent if isinstance(m, msg.Chunk) and m.key == 1 and data) == a.tobytes()


def test_a_small_upload_is_sent_by_value_and_pinned(script: Script, session: Session) -> None:
    gt.mesh(x=2)
    session.settle_value(gt.tensor([1.0, 2.0], layout={0: "x"})._v)
    assert pins(script) == ["[2@x]"]


def test_other_creations_name_the_cure(session: Session) -> None:
    with pytest.raises(ArgumentError, match=r"zeros\(\) takes no layout="):
        gt.zeros(3, layout="[3@x]")
    assert gt.zeros(3, layout=gt.strided).shape == (3,)


# --- fetches ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "axes", "shape", "parts"),
    [
        ("[7@x]", {"x": 3}, (7, 2), [0, 1, 2]),
        ("[2@x]", {"x": 3}, (2,), [0, 1, 2]),  # the first holds nothing
        ("[7@x 5@y]", {"x": 2, "y": 2}, (7, 5), [0, 1, 2, 3]),
        ("[. 5@y]", {"x": 2, "y": 2}, (7, 5), [2, 3]),  # of copies one is fetched
        ("[(3)(4@x)]", {"x": 2}, (12, 3), [0, 1]),
        ("[]", {"x": 2}, (3, 3), [1]),
        ("[]", {"x": 2}, (), [0]),
        ("[4@x]", {"x": 2}, (4, 0), [0, 1]),
        ("[100@x]", {"x": 2}, (100, 3000), [0, 1]),  # several chunks each
    ],
)
def test_a_fetch_puts_the_parts_together(
    script: Script, session: Session, text: str, axes: dict[str, int], shape: tuple[int, ...], parts: list[int]
) -> None:
    gt.mesh(**axes)
    value = np.random.default_rng(0).normal(size=shape)
    serve(script, text, axes, value, parts)
    got = gt.zeros(*shape, dtype=gt.float64).numpy()
    assert got.dtype == value.dtype
    np.testing.assert_array_equal(got, value)
    assert not session.transfers.fetches
    acked = [(m.key, m.part) for m in script.of(msg.ChunkAck)]
    many = value.nbytes > 2 * msg.CHUNK
    assert bool(acked) == many, "every chunk but the last of a part is acknowledged"
    assert {part for _, part in acked} == ({0, 1} if many else set())


def test_a_failed_part_fails_the_fetch(script: Script, session: Session) -> None:
    gt.mesh(x=2)
    value = np.ones((4, 2))
    serve(script, "[4@x]", {"x": 2}, value, [0, 1])
    answer = script.rules[msg.Fetch]

    def half(m: msg.Fetch) -> list[tuple[Any, bytes | None]]:
        said = answer(m)[:2]
        return [
            *said,
            (msg.FetchFailed(0, m.request, msg.Failure("WorkerError", "that part is gone")), None),
            *answer(m)[2:],
        ]

    script.rules[msg.Fetch] = half
    x = gt.zeros(4, 2, dtype=gt.float64)
    with pytest.raises(WorkerError, match="that part is gone"):
        x.numpy()
    script.rules[msg.Fetch] = answer
    np.testing.assert_array_equal(x.numpy(), value)  # what came late of the first does no harm


def test_a_fetch_that_fails_with_its_call_is_one_error(script: Script, session: Session) -> None:
    lost = msg.Failure("LostError", "the worker is gone")
    script.rules[msg.Call] = lambda m: []
    script.rules[msg.Fetch] = lambda m: [
        (msg.FetchFailed(0, m.request, msg.Failure("LostError", "so is its result")), None),
        None,
        (msg.CallFailed(0, 1, 1, lost), None),
        (msg.CallDone(0, 1), None),
    ]
    x = gt.ones(3)
    with pytest.raises(WorkerError, match="the worker is gone"):
        x.numpy()
    assert not session.failures


def test_a_fetch_in_parts_that_is_given_up_is_cancelled(script: Script, session: Session) -> None:
    gt.mesh(x=2)
    serve(script, "[4@x]", {"x": 2}, np.ones((4, 2)), [0, 1])
    answer = script.rules[msg.Fetch]
    script.rules[msg.Fetch] = lambda m: answer(m)[:2]  # the second part never comes
    with pytest.raises(AssertionError, match="the client waits"):
        gt.zeros(4, 2, dtype=gt.float64).numpy()
    assert script.of(msg.Cancel) == [msg.Cancel(0, script.of(msg.Fetch)[0].request)]
    assert not session.transfers.fetches


def test_the_layout_of_a_tensor(script: Script, session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    gt.mesh(x=2)
    serve(script, "[4@x]", {"x": 2}, np.ones((4, 2), np.float32), [0, 1])
    x = gt.zeros(4, 2)
    assert repr(x.layout) == "[4@x]"
    assert x.layout is layout.parse("[4@x]", session.meshes.find(""))
    assert all(m.layout for m in script.of(msg.Fetch))
    gt.visualize_layout(x)
    assert "worker 1" in capsys.readouterr().out
    script.rules[msg.Fetch] = lambda m: [(msg.FetchFailed(0, m.request, msg.Failure("LostError", "it is gone")), None)]
    with pytest.raises(WorkerError, match="it is gone"):
        _ = x.layout


# --- putting together ---------------------------------------------------------------------------------


def assembled(text: str, axes: dict[str, int], shards: dict[int, Any]) -> Any:
    return assemble(layout.parse(text, layout.mesh(**axes)), next(iter(shards.values())).shape, shards)


def test_partial_values_are_reduced() -> None:
    one, two = np.array([1.0, -5.0]), np.array([3.0, 4.0])
    np.testing.assert_array_equal(assembled("[] sum x", {"x": 2}, {0: one, 1: two}), [4, -1])
    np.testing.assert_array_equal(assembled("[] max x", {"x": 2}, {0: one, 1: two}), [3, 4])
    np.testing.assert_array_equal(assembled("[] min x", {"x": 2}, {0: one, 1: two}), [1, -5])
    for kind in ("max", "min"):
        for k in (0, 1):  # a nan survives, whoever has it
            got = assembled(f"[] {kind} x", {"x": 2}, {k: np.array([np.nan]), 1 - k: np.array([1.0])})
            assert np.isnan(got).all()


def test_copies_of_addends_are_added_once() -> None:
    shards = {k: np.array([float(1 + k // 2)]) for k in range(4)}  # along y they are copies
    np.testing.assert_array_equal(assembled("[] sum x", {"x": 2, "y": 2}, shards), [3.0])


def test_narrow_floats_are_added_wide() -> None:
    for dtype in (dtypes.float16.numpy, dtypes.bfloat16.numpy):
        addends = {k: np.full(1, 1.0 if k == 0 else 2.0**-11, dtype) for k in range(5)}
        got = assembled("[] sum x", {"x": 5}, addends)
        assert got.dtype == dtype
        assert got[0] == np.float32(1 + 4 * 2.0**-11).astype(dtype)


def test_a_missing_part_is_noticed() -> None:
    with pytest.raises(ServerError, match="shards are missing"):
        assemble(layout.parse("[4@x]", layout.mesh(x=2)), (4,), {0: np.ones(2)})
    with pytest.raises(ServerError, match="shards are missing"):
        assemble(layout.parse("[] sum x", layout.mesh(x=2)), (4,), {0: np.ones(4)})


# --- drawings -----------------------------------------------------------------------------------------

DRAWN = {
    ("[10@x]", (10,)): """
f32[10] as [10@x] on x=2 y=2: workers 0 1 2 3
        0:5           5:10
   ┌─────────────┬─────────────┐
   │ workers 0 1 │ workers 2 3 │
   └─────────────┴─────────────┘""",
    ("[7@x 4@y]", (7, 4)): """
f32[7,4] as [7@x 4@y] on x=2 y=2: workers 0 1 2 3
          0:2        2:4
      ┌──────────┬──────────┐
  0:3 │ worker 0 │ worker 1 │
      ├──────────┼──────────┤
  3:7 │ worker 2 │ worker 3 │
      └──────────┴──────────┘""",
    ("[7@x] sum y", (7, 4, 2)): """
f32[7,4,2] as [7@x] sum y on x=2 y=2: workers 0 1 2 3
               dim 1 0:4
            ┌───────────────┐
  dim 0 0:3 │ workers 0 + 1 │
            ├───────────────┤
  dim 0 3:7 │ workers 2 + 3 │
            └───────────────┘
dimension 2 is whole""",
    ("[] max x", ()): """
f32[] as [] max x on x=2 y=2: workers 0 1 2 3
  worker 0: all, a part of the max
  worker 1: all, a part of the max
  worker 2: all, a part of the max
  worker 3: all, a part of the max""",
}


@pytest.mark.parametrize(("text", "shape"), DRAWN)
def test_drawings(text: str, shape: tuple[int, ...]) -> None:
    lay = layout.parse(text, layout.mesh(x=2, y=2))
    assert "\n" + drawing(lay, spec(shape, dtypes.float32)) == DRAWN[text, shape]


def test_a_layout_of_many_pieces_is_listed() -> None:
    lay = layout.parse("[(20)(2@x)]", layout.mesh(x=2))
    lines = drawing(lay, spec((40,), dtypes.float32)).splitlines()
    assert len(lines) == 3
    assert lines[1].startswith("  worker 0: [0:1+2:3+")
