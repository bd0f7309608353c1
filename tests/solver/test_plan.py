"""`gt.plan` as users see it, on paper: what a plan says, shows and stores, and which errors it gives."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest

import gt
from gt.errors import ArgumentError
from gt.layout import mesh
from gt.ops.check import check
from gt.program import input_spec
from gt.solver import linear
from gt.solver import plan as plans
from gt.solver.hardware import HARDWARE
from gt.solver.process import SolveJob
from gt.solver.purposes import Purposes
from gt.solver.reasons import input_classes, reasons_of
from gt.solver.solve import Limits, MemoryTooSmall, solve_on

from . import models


def planned(name: str = "mlp", sizes: dict[str, Any] | None = None, **settings: Any) -> gt.Plan:
    with gt.on_paper():
        training = models.MODELS[name](**(sizes or {}))
        return gt.plan(training.step, *training.batch, **settings)


#: Large enough that communication is worth it.
WIDE = {"layers": 2, "width": 8192, "rows": 16}


@pytest.fixture(scope="module")
def wide() -> gt.Plan:
    """Weights are much larger than activations: they are split."""
    return planned("mlp", WIDE, mesh={"x": 4})


@pytest.fixture(scope="module")
def batched() -> gt.Plan:
    """Activations are much larger than weights: the batch is split."""
    return planned("mlp", {"layers": 2, "width": 512, "rows": 65536}, mesh={"x": 4})


# --- what a plan says --------------------------------------------------------------------------------------


def test_layouts_have_the_names_of_the_inputs(wide: gt.Plan) -> None:
    assert set(wide.layouts) >= {"batch.0", "model.0.weight", "model.2.bias", "optimizer.exp_avg:model.0.weight"}
    assert "@x" in wide.layouts["model.0.weight"]
    assert "@x" in wide.layouts["model.2.weight"]


def test_a_large_batch_is_split(batched: gt.Plan) -> None:
    assert batched.layouts["batch.0"] == "[65536@x]"
    assert batched.layouts["model.0.weight"] == "[]"
    assert batched.reasons.words[0] == "data parallel over x"


def test_explain_tells_the_plan_in_words_with_memory_and_collectives(wide: gt.Plan) -> None:
    text = wide.explain()
    for words in (*wide.reasons.words, "memory", "at the peak", "collectives", "all_reduce over x", "tensor parallel",
                  "model.0.weight", "model.2.weight.grad", "models.py:", "layouts", "h100", "->"):  # fmt: skip
        assert words in text, words
    assert max(map(len, text.splitlines())) <= 140
    assert len(text.splitlines()) <= 60


def test_explain_lists_as_many_classes_as_asked_for(wide: gt.Plan) -> None:
    assert len(wide.explain(most=2).splitlines()) < len(wide.explain(most=6).splitlines())


def test_gt_explain_is_the_text_of_the_plan() -> None:
    with gt.on_paper():
        training = models.mlp()
        text = gt.explain(training.step, *training.batch, mesh={"x": 2})
    assert text.startswith("<plan on x=2: ")


def test_the_times_of_all_classes_add_up_to_the_price() -> None:
    """Up to what is paid whatever is chosen."""
    recorded = models.recorded_step(models.language_model).largest
    hardware = HARDWARE["cpu-gloo"]  # nothing overlaps
    solved = solve_on(check(recorded.program), mesh(x=2), hardware, {}, Limits(use_search=False))
    problem, rest = solved.problem, []
    for assigned in [solved.assigned, [len(node.options) - 1 for node in problem.nodes]]:
        reasons = reasons_of(problem, assigned, solved.price, most=10_000)
        assert all(each.time_us >= each.moving_us >= 0 for each in reasons.classes)
        rest.append(problem.price(assigned) - sum(each.time_us for each in reasons.classes))
    assert rest[0] == pytest.approx(rest[1], abs=1e-3 * solved.objective_us)
    assert 0 <= rest[0] + 1e-6 < 0.1 * solved.objective_us


def test_instructions_are_known_by_the_parameters_that_they_are_for() -> None:
    recorded = models.recorded_step(models.llama, clip=1.0).largest  # casts, views and clipping are in between
    purposes = Purposes(recorded.program, [(each.name, each.role) for each in recorded.inputs])
    told: dict[str, set[str]] = {}
    for i, ins in enumerate(recorded.program.code):
        told.setdefault(purposes.of(i), set()).add(ins.op)
    weights = [each.name for each in recorded.inputs if each.role == "parameter" and each.name.endswith("up.weight")]
    assert len(weights) == 2
    for name in weights:
        assert {"linear", "matmul", "adamw"} <= told[name]
        assert "matmul" in told[f"{name}.grad"]
    assert "attention" in told[""]


def test_several_programs_are_said() -> None:
    with gt.on_paper():
        model = gt.nn.Linear(64, 64)
        first, second = (gt.optim.SGD([p], lr=0.1) for p in (model.weight, model.bias))

        def step(x: Any) -> None:
            for optimizer in (first, second):
                model(x).sum().backward()
                optimizer.step()
                model.zero_grad()

        found = gt.plan(step, gt.zeros(8, 64), mesh={"x": 2})
    if found.programs > 1:
        assert f"the step has {found.programs} programs" in found.explain()


def test_all_meshes_of_some_workers_are_tried(capsys: pytest.CaptureFixture[str]) -> None:
    found = planned("mlp", WIDE, workers=2, debug=True)
    assert [each.mesh for each in found.alternatives] == ["x=2", "x=1"]
    assert {"x=2: ", "x=1: "} <= {line[:5] for line in capsys.readouterr().out.splitlines()}
    assert "; x=1: " in found.explain()  # its time, or that it takes longer than that of x=2
    (two, one) = found.alternatives
    small = msgspec.structs.replace(found, alternatives=(two, msgspec.structs.replace(one, note="does not fit")))
    assert "it does not fit on x=1" in small.explain()


def test_inputs_that_are_alike_are_one_class() -> None:
    found = planned("llama", mesh={"x": 2})
    classes = {each.name: each for each in input_classes(found.inputs)}
    assert classes["model.layers.*.up.weight"].count == 2
    assert classes["model.layers.*.up.weight"].nbytes == 2 * 24 * 16 * 4
    assert not any(each.role == "state" for each in classes.values())


# --- other conditions --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pins",
    [
        {"model.*.weight": {0: "x"}}, {"model.0.weight": {1: "x"}}, {"batch.0": "[16@x]", "model.*": {0: "x"}},
        {"model.0.weight": ""},
    ],
)  # fmt: skip
def test_pins_are_kept_and_never_cheaper(wide: gt.Plan, pins: dict[str, Any]) -> None:
    other = wide.what_if(pins=pins)
    # The search may stop at a gap of one percent.
    assert other.best.objective_us >= wide.best.bound_us * (1 - 1e-9)
    assert other.time_us >= wide.time_us * 0.99
    if "model.0.weight" in pins:
        assert other.layouts["model.0.weight"] == ("[]" if not pins["model.0.weight"] else "[. 8192@x]")
    if "batch.0" in pins:
        assert other.layouts["batch.0"] == "[16@x]"


def test_pins_on_equal_layers_may_differ() -> None:
    found = planned("mlp", {"layers": 4}, mesh={"x": 2}, pins={"model.0.weight": {0: "x"}, "model.2.weight": {1: "x"}})
    assert (found.layouts["model.0.weight"], found.layouts["model.2.weight"]) == ("[16@x]", "[. 16@x]")


def test_pins_on_many_equal_layers_may_differ() -> None:
    """As Megatron splits them: in turn by columns and by rows. So many that the layers in between share a choice."""
    pins = {f"model.{2 * k}.weight": {k % 2: "x"} for k in range(24)}
    found = planned("mlp", {"layers": 24}, mesh={"x": 2}, pins=pins)
    assert [found.layouts[name] for name in pins] == ["[16@x]", "[. 16@x]"] * 12


def test_what_if_with_other_hardware_and_mesh(wide: gt.Plan) -> None:
    slower = wide.what_if(hardware="pcie")
    assert (slower.hardware, slower.memory_nbytes) == ("pcie", HARDWARE["pcie"].memory_nbytes)
    assert slower.time_us > wide.time_us
    assert wide.what_if(mesh={"x": 2}).mesh == {"x": 2}
    assert wide.what_if(memory="70GB").memory_nbytes == 70 * 10**9


def test_compare_shows_both_and_the_layouts_that_differ(wide: gt.Plan) -> None:
    other = wide.what_if(pins={"model.0.weight": ""})
    text = wide.compare(other)
    for word in ("time", "communication", "received", "memory", "in words"):
        assert any(line.startswith(word) for line in text.splitlines()), word
    (row,) = [line for line in text.splitlines() if line.startswith("model.0.weight ")]
    assert row.split()[1:] == [*wide.layouts["model.0.weight"].split(), "[]"]
    assert "model.0.weight" not in wide.compare(wide)


# --- pictures, files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "axes"), [("llama", {"x": 2}), ("conv net", {"x": 3}), ("mlp", {"x": 2, "y": 2})])
def test_pictures_are_svg(name: str, axes: dict[str, int], tmp_path: Path) -> None:
    found = planned(name, mesh=axes)
    path = found.picture(tmp_path / "plan.svg")
    root = ElementTree.parse(path).getroot()
    texts = ["".join(each.itertext()) for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert any(text.startswith("plan on ") for text in texts)
    assert set(found.reasons.words) <= set(texts)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for each in root.iter("{http://www.w3.org/2000/svg}rect"):
        assert float(each.get("x", 0)) + float(each.attrib["width"]) <= width
        assert float(each.get("y", 0)) + float(each.attrib["height"]) <= height


def test_texts_of_a_picture_do_not_overlap(wide: gt.Plan, tmp_path: Path) -> None:
    root = ElementTree.parse(wide.picture(tmp_path / "plan.svg")).getroot()
    boxes = []
    for each in root.iter("{http://www.w3.org/2000/svg}text"):
        x, y, size = float(each.attrib["x"]), float(each.attrib["y"]), float(each.attrib["font-size"])
        boxes.append((x, y - 0.8 * size, x + 0.62 * size * len("".join(each.itertext())), y))
    for k, (a, b, c, d) in enumerate(boxes):
        assert not any(a < g and e < c and b < h and f < d for e, f, g, h in boxes[:k])


def test_png_without_cairosvg_says_what_to_install(
    wide: gt.Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cairosvg", None)
    with pytest.raises(ArgumentError, match=r"PNG needs the package cairosvg .pip install cairosvg.; .*plan\.svg"):
        wide.picture(tmp_path / "plan.png")
    with pytest.raises(ArgumentError, match=r"expected a path that ends in \.svg or \.png, got 'plan\.pdf'"):
        wide.picture(tmp_path / "plan.pdf")
    assert list(tmp_path.iterdir()) == []


def test_saved_and_loaded_plans_are_equal(wide: gt.Plan, tmp_path: Path) -> None:
    wide.save(tmp_path / "plan.json")
    again = gt.Plan.load(tmp_path / "plan.json")
    assert (again.body, again.ways, again.layouts, again.mesh) == (wide.body, wide.ways, wide.layouts, wide.mesh)
    assert again.json() == wide.json()
    assert again.explain() == wide.explain()
    assert again.program.body() == wide.body
    assert again.what_if().ways == wide.ways


def test_what_is_not_a_plan_is_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    for text in ("", "[1, 2]", '{"mesh": {}}'):
        path.write_text(text)
        with pytest.raises(ArgumentError, match="is not a plan"):
            gt.Plan.load(path)


def test_json_is_plain_data(wide: gt.Plan) -> None:
    data = wide.json()
    assert json.loads(json.dumps(data)) == data
    assert data["ways"].keys() == {str(i) for i in wide.ways}
    assert data["mesh"] == {"x": 4}


# --- errors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, r"plan: give mesh=.* or workers=4"),
        ({"workers": 0}, "plan: workers must be an int >= 1, got 0"),
        ({"workers": 2.0}, "plan: workers must be an int >= 1, got 2.0"),
        ({"workers": True}, "plan: workers must be an int >= 1, got True"),
        ({"workers": 2, "mesh": {"x": 2}}, "plan: give mesh= or workers=, not both"),
        ({"mesh": {"x": 2}, "hardware": "h1000"}, "hardware: unknown 'h1000'; expected one of h100-ib, h100, "),
        ({"mesh": {"x": 2}, "hardware": 3}, "hardware: unknown 3; expected one of"),
        ({"mesh": {"x": 2}, "memory": "80 apples"}, "memory: expected bytes > 0 or a size such as '80GB', got '80 app"),
        ({"mesh": {"x": 2}, "memory": -1}, "memory: expected bytes > 0 or a size such as '80GB', got -1"),
        ({"mesh": {"x": 2}, "memory": "1.2.3GB"}, "memory: expected bytes > 0"),
        ({"mesh": {"x": 2}, "pins": {"modle.*": {0: "x"}}}, "no input matches the pin 'modle.*'; the names are "),
        ({"mesh": {"x": 2}, "pins": {"model.0.weight": {0: "z"}}}, "z"),
    ],
)  # fmt: skip
def test_bad_arguments_are_said(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        planned(**settings)


def test_a_step_that_is_no_function_or_records_nothing() -> None:
    with pytest.raises(ArgumentError, match="expected a function that does one step, got int"):
        gt.plan(3, workers=2)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="recorded nothing"):
        gt.plan(lambda: None, workers=2)


def test_memory_that_cannot_fit_says_what_is_missing_and_where() -> None:
    with pytest.raises(MemoryTooSmall, match=r"needs [\d.]+ GB of a worker, [\d.]+ GB more .* instruction \d+ \(\w+\)"):
        planned("mlp", WIDE, mesh={"x": 2}, memory="100MB")


def test_memory_shards_what_would_be_replicated() -> None:
    free = planned("mlp", {"layers": 4, "width": 1024, "rows": 65536}, mesh={"x": 4})
    replicated = free.what_if(pins={"model.*": "", "optimizer.*": ""})
    limit = int(0.93 * replicated.peak_nbytes)
    tight = free.what_if(memory=limit)
    assert tight.peak_nbytes <= limit
    assert tight.best.objective_us >= free.best.bound_us * (1 - 1e-9)
    assert any("@x" in text for name, text in tight.layouts.items() if "weight" in name)


def test_hardware_of_ones_own() -> None:
    mine = gt.Hardware("mine", 4, {4: 1e12}, 1e11, 1.0, HARDWARE["pcie"].inside, HARDWARE["pcie"].between, 10**9)
    found = planned("mlp", mesh={"x": 2}, hardware=mine)
    assert (found.hardware, found.memory_nbytes) == ("mine", 10**9)
    assert found.what_if(pins={"batch.0": {0: "x"}}, hardware=mine).hardware == "mine"


# --- without a search, and with a trace --------------------------------------------------------------------


def test_without_highspy_plans_are_propagated_and_that_is_said_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(linear, "available", lambda: False)
    for module in (plans, sys.modules["gt.solver.solve"]):
        monkeypatch.setattr(module, "available", lambda: False)
    monkeypatch.setattr(plans, "_said", [])
    first, second = planned(mesh={"x": 2}), planned(mesh={"x": 2})
    assert capsys.readouterr().out.count("gt.plan: highspy is not installed (pip install 'gt[solver]')") == 1
    assert first.best.note.startswith("propagated from ")
    assert first.best.bound_us == 0
    assert "not proven to be the best" in second.explain()


def test_debug_prints_seeds_rounds_and_the_fixed_point(capsys: pytest.CaptureFixture[str]) -> None:
    planned("transformer block", mesh={"x": 2}, debug=True)
    said = capsys.readouterr().out
    for words in ("x=2: ", "choices with ", "seed batch: ", "seed columns and rows: ", "at the fixed point after ",
                  " rounds", " changes", "bound ", "emitted "):  # fmt: skip
        assert words in said, words
    planned(mesh={"x": 2})
    assert capsys.readouterr().out == "", "nobody asked"


def test_jobs_are_data() -> None:
    recorded = models.recorded_step(models.mlp).largest
    job = SolveJob(recorded.program, (("x", 2),), HARDWARE["cpu-gloo"], {0: "[8@x]"}, Limits())
    assert job.pins == {0: "[8@x]"}
    assert repr(input_spec(*recorded.program.inputs[0])) == "f32[8,16]"
