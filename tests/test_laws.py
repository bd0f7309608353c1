"""The laws of the house: who imports whom, what a file may be, what is public.

They are read off the source, not off running code, so that a law holds for every line.
"""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import gt
from gt import config, nn, optim
from gt.client.compat import arguments, fallback, switches
from gt.nn import functional
from gt.ops.record import TABLE, attributes
from tests.lines import core

from . import packages
from .packages import within

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "gt"
FILES = sorted(PACKAGE.rglob("*.py"))


def name_of(file: Path) -> str:
    """`gt/client/tensor.py` -> `gt.client.tensor`"""
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


TEXTS = packages.sources()


def imported() -> dict[str, set[str]]:
    """Every module that a file imports, anywhere in it; of `from a import b` both `a` and `a.b`."""
    return {
        name: {i.module for i in packages.imports(text)} | {i.module for i in packages.imports(text, TEXTS)}
        for name, text in TEXTS.items()
    }


def reaches(importers: str, *parts: str) -> list[str]:
    """Which imports go from one part to another: `a -> b`."""
    return sorted(
        f"{name} -> {module}"
        for name, modules in imported().items()
        if within(name, importers)
        for module in modules
        if within(module, *parts)
    )


# --- who imports whom ------------------------------------------------------------------------------------------------


def test_the_law_sees_imports() -> None:
    """The reader itself: imports are found wherever they are written, and it is known which are inside of functions."""
    text = (
        "from typing import TYPE_CHECKING\nimport gt.config as c\nif TYPE_CHECKING:\n    import torch\n"
        "def f():\n    from gt.client import tensor\n    import importlib\n    importlib.import_module('jax')\n"
    )
    found = packages.imports(text, ["gt.client.tensor"])
    assert [(i.module, i.line) for i in found if not i.local] == [("typing", 1), ("gt.config", 2), ("torch", 4)]
    assert [(i.module, i.line) for i in found if i.local] == [("gt.client.tensor", 6), ("importlib", 7), ("jax", 8)]
    with pytest.raises(AssertionError, match="relative"):
        packages.imports("from . import a")


def test_the_law_sees_cycles() -> None:
    straight = {"gt.a": "import gt.b", "gt.b": "def f():\n    from gt import c", "gt.c": ""}
    assert packages.graph(straight) == {"gt.a": {"gt.b"}, "gt.b": {"gt.c"}, "gt.c": set()}
    assert packages.cycles(packages.graph(straight)) == []
    for back in ("import gt.a", "def f():\n    import gt.a", "if TYPE_CHECKING:\n    from gt import a"):
        assert packages.cycles(packages.graph({**straight, "gt.c": back})) == [["gt.a", "gt.b", "gt.c"]]
    assert packages.reached(packages.graph(straight), ["gt.b"]) == {"gt.b", "gt.c"}


ABOVE = [
    "gt.client", "gt.dispatcher", "gt.worker", "gt.transport", "gt.server", "gt.cli", "gt.nn", "gt.optim", "gt.solver",
]  # fmt: skip


@pytest.mark.parametrize("part", ["gt.ops", "gt.program", "gt.layout", "gt.dtypes", "gt.errors", "gt.chosen"])
def test_the_core_knows_nobody_above_it(part: str) -> None:
    assert reaches(part, *ABOVE, "gt.config") == []


def test_the_core_is_in_order() -> None:
    """errors, dtypes, program, layout, ops: each knows only those before it."""
    assert reaches("gt.errors", "gt") == []
    assert reaches("gt.dtypes", "gt.program", "gt.layout", "gt.ops") == []
    assert reaches("gt.program", "gt.layout", "gt.ops") == []
    assert reaches("gt.layout", "gt.ops") == []


@pytest.mark.parametrize("part", ["gt.client", "gt.dispatcher", "gt.worker"])
def test_client_dispatcher_and_worker_never_import_each_other(part: str) -> None:
    others = {"gt.client", "gt.dispatcher", "gt.worker"} - {part}
    assert reaches(part, *others) == []


def test_what_is_built_on_the_client_needs_the_client_alone() -> None:
    for part in ("gt.nn", "gt.optim"):
        assert reaches(part, "gt.dispatcher", "gt.worker", "gt.transport", "gt.server", "gt.cli") == []


def test_the_solver_stands_above_client_and_dispatcher() -> None:
    """It uses both. Neither of them, nor anything else that runs on a cluster, knows it."""
    for part in ("gt.client", "gt.dispatcher", "gt.worker", "gt.transport", "gt.server", "gt.nn", "gt.optim"):
        assert reaches(part, "gt.solver") == []
    assert reaches("gt.solver", "gt.worker", "gt.server", "gt.cli") == []


@pytest.mark.parametrize("part", ["functions", "compat", "mesh"])
def test_function_families_import_each_other_at_the_top(part: str) -> None:
    """An import of GT inside a function would hide a cycle."""
    for file in sorted((PACKAGE / "client" / part).rglob("*.py")):
        inside = {
            ast.unparse(node)
            for function in ast.walk(ast.parse(file.read_text()))
            if isinstance(function, ast.FunctionDef)
            for node in ast.walk(function)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gt")
        }
        assert inside == set(), file


def test_transport_knows_no_part() -> None:
    assert reaches("gt.transport", "gt.client", "gt.dispatcher", "gt.worker", "gt.nn", "gt.optim", "gt.server") == []


def test_engines_are_imported_where_they_run() -> None:
    """torch and jax: only where a worker's engines are; no kernel imports a library."""
    users = {line.split(" -> ")[0] for line in reaches("gt", "torch", "jax")}
    users -= {"gt.utils.data"}  # torch's own data loader, for those who have it
    users -= {"gt.client.compat.interop"}  # x.torch(): whoever asks for torch's tensors has it
    users = {user for user in users if not within(user, "gt.adoption")}  # gt.adopt and gt run: likewise
    assert all(within(user, "gt.worker.engines") for user in users), users
    assert "gt.worker.engines.torch" in users


def test_nothing_but_the_command_reaches_into_adoption() -> None:
    """Only `gt.adopt` itself is imported with gt; what needs torch is imported when it is called."""
    outside = [line for line in reaches("gt", "gt.adoption") if not line.startswith("gt.adoption")]
    assert outside == ["gt -> gt.adoption", "gt.run -> gt.adoption", "gt.run -> gt.adoption.script"]


def test_the_core_is_light() -> None:
    allowed = {"gt", "numpy", "ml_dtypes", "msgspec", "zmq", *sys.stdlib_module_names}
    for name, modules in imported().items():
        foreign = {m.split(".")[0] for m in modules} - allowed
        if name == "gt.nn.einops":
            foreign -= {"einops"}  # its layers, for those who have it
        if name == "gt.testing.fixtures":
            foreign -= {"pytest"}  # imported by those who use its fixtures
        if name == "gt.client.session.signals":
            foreign -= {"yaml"}  # optional: imported where a YAML file is read
        if name == "gt.solver.linear":
            foreign -= {"highspy"}  # optional: without it plans come from propagation
        if name == "gt.cli.up":
            foreign -= {"ray"}  # optional: imported where workers are started on Ray
        if name == "gt.drawing":
            foreign -= {"cairosvg"}  # optional: pictures as PNG
        if not within(name, "gt.worker.engines", "gt.client.compat.interop", "gt.utils.data", "gt.adoption"):
            assert foreign == set(), name


def test_hot_names_are_functions_and_methods() -> None:
    """The lists in compat/arguments.py name nothing that does not exist."""
    assert [n for n in arguments.HOT if not (hasattr(gt, n) or hasattr(functional, n))] == []
    assert [n for n in arguments.HOT_METHODS - arguments.HOT if n not in vars(gt.Tensor)] == []


def test_import_gt_loads_no_engine_and_starts_nothing() -> None:
    """`gt.server` itself is loaded: of it, the few functions that start a private server, without what they need."""
    code = (
        "import sys, threading, numpy, ml_dtypes, msgspec\n"
        "before = set(sys.modules)\n"
        "import gt\n"
        "names = ['torch', 'jax', 'scipy', 'highspy', 'gt.adoption.tensor', 'gt.solver', 'gt.worker']\n"
        "names += ['gt.dispatcher', 'gt.server.workers', 'gt.cli', 'gt.gpus', 'zmq']\n"
        "names += ['subprocess', 'tempfile', 'shutil', 'socket']\n"
        "heavy = [m for m in names if m in sys.modules and m not in before]\n"
        "print(heavy, threading.active_count())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.stderr == ""
    assert done.stdout.strip() == "[] 1"


# --- the engine room of the client -----------------------------------------------------------------------------------

#: What records, sends and differentiates; the function library is built on it.
ROOM = tuple(f"gt.client.{part}" for part in "programs tensor session record grad views replay".split())
#: Files of the library that it may use: they know nothing of tensors.
FOUNDATIONS = ("gt.client.compat.arguments", "gt.client.compat.dims")


def room(texts: dict[str, str]) -> dict[str, str]:
    return {name: text for name, text in texts.items() if within(name, *ROOM)}


def strangers(texts: dict[str, str]) -> list[str]:
    """What the engine room imports of the client, directly or not, that is not part of it."""
    found = packages.reached(packages.graph(texts), room(texts))
    known = (*ROOM, *FOUNDATIONS)
    return sorted(m for m in found if within(m, "gt.client", "gt.nn", "gt.optim") and not within(m, *known))


def local_imports(texts: dict[str, str]) -> list[tuple[str, str]]:
    """Imports of GT's own modules inside of functions."""
    return [
        (name, i.module)
        for name, text in room(texts).items()
        for i in packages.imports(text, texts)
        if i.local and within(i.module, "gt")
    ]


def test_the_engine_room_imports_no_function_family() -> None:
    assert strangers(TEXTS) == []
    assert all(not packages.reached(packages.graph(TEXTS), [f]) & set(room(TEXTS)) for f in FOUNDATIONS)


def test_the_engine_room_has_no_cycle() -> None:
    graph = packages.graph(TEXTS)
    found = packages.reached(graph, room(TEXTS))
    assert packages.cycles({name: graph[name] & found for name in found if within(name, "gt.client")}) == []


def test_the_packages_of_the_engine_room_have_no_cycle() -> None:
    part = {name: ".".join(name.split(".")[:3]) for name in room(TEXTS)}
    assert packages.cycles(packages.grouped(packages.graph(TEXTS), part)) == []


def test_the_engine_room_imports_at_the_top() -> None:
    assert local_imports(TEXTS) == []


@pytest.mark.parametrize("form", ["{}", "def f():\n    {}", "if TYPE_CHECKING:\n    {}"])
@pytest.mark.parametrize(
    "line", ["from gt.client.functions import shapes", "from gt.client.mesh.sharding import shard"]
)
def test_the_law_of_the_engine_room_is_not_blind(form: str, line: str) -> None:
    """A violation that is planted in its lowest file is found, in whatever form it is written."""
    name = "gt.client.programs.numbers"
    planted = {**TEXTS, name: TEXTS[name] + "\n" + form.format(line) + "\n"}
    assert strangers(planted) != []
    assert packages.cycles(packages.graph(planted)) != packages.cycles(packages.graph(TEXTS))
    assert (local_imports(planted) != []) == form.startswith("def")


# --- ops and workers -------------------------------------------------------------------------------------------------


def test_kinds_are_named_after_ops() -> None:
    """They are looked up when they are first used, so a wrong name must not wait for that."""
    users = [TEXTS[name] for name, modules in imported().items() if "gt.client.programs.kinds" in modules]
    used = {name for text in users for name in re.findall(r"\bkinds\.(\w+)", text)}
    assert len(used) > 100
    for name in used:
        assert name in TABLE, name
        attributes(TABLE[name])


def test_what_an_op_is_knows_no_op() -> None:
    core = "record rules sharding shard trace operators check evaluate engines".split()
    assert [line for part in core for line in reaches(f"gt.ops.{part}", "gt.ops.families")] == []


@pytest.mark.parametrize(("part", "known"), [("run", ()), ("engines", ("run",))])
def test_messages_stand_above_what_runs_programs_and_engines_beside_it(part: str, known: tuple[str, ...]) -> None:
    """Of the worker, `run` imports nothing but itself; the engines import `run` too."""
    allowed = [f"gt.worker.{name}" for name in (part, *known)]
    others = [name for name in TEXTS if within(name, "gt.worker") and not within(name, *allowed)]
    assert reaches(f"gt.worker.{part}", *[name for name in others if name != "gt.worker"]) == []


def test_worker_and_transport_have_no_cycle() -> None:
    graph = packages.graph(TEXTS)
    parts = {name for name in graph if within(name, "gt.worker", "gt.transport")}
    assert packages.cycles({name: graph[name] & parts for name in parts}) == []


# --- the picture -----------------------------------------------------------------------------------------------------


def test_the_picture_of_the_packages_is_current() -> None:
    """`python -m tests.packages` draws it anew."""
    assert packages.PICTURE.read_text() == packages.picture(TEXTS)


def test_arrows_in_the_picture_lead_down() -> None:
    edges = {"a": {"b", "c"}, "b": {"c"}, "c": {"d"}, "d": {"c", "e"}, "e": set()}
    assert packages.reduced(edges) == {"a": {"b"}, "b": {"c"}, "c": set(), "d": {"e"}, "e": set()}
    assert packages.layers(edges) == {"a": 0, "b": 1, "c": 2, "d": 2, "e": 3}
    real = packages.grouped(packages.graph(TEXTS), packages.box_of(TEXTS))
    layer = packages.layers(real)
    assert all(layer[a] < layer[b] for a, targets in packages.reduced(real).items() for b in targets)


# --- settings --------------------------------------------------------------------------------------------------------


def test_only_the_config_reads_the_environment() -> None:
    reads = re.compile(r"\benviron\b|\bgetenv\b|\bputenv\b")
    assert [name_of(f) for f in FILES if reads.search(f.read_text())] == ["gt.config"]


def test_every_variable_that_is_written_of_exists() -> None:
    known = {variable for variable, _, _ in config.settings()}
    texts = [*FILES, ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*")]
    texts += [*(ROOT / "benchmarks").rglob("*.py"), ROOT / "Makefile", ROOT / ".ci" / "run"]
    for file in texts:
        if file.is_file() and file.suffix not in (".pyc",):
            used = set(re.findall(r"\bGT_[A-Z][A-Z_]*[A-Z]\b", file.read_text()))
            assert used <= known, f"{file}: {sorted(used - known)}"


def test_every_setting_says_what_it_does() -> None:
    for variable, _, doc in config.settings():
        assert variable.startswith("GT_")
        assert len(doc) > 10


def test_a_tensor_is_known_by_its_type() -> None:
    """`hasattr(x, "_v")` would be true of other objects too. Only what may not know tensors asks so."""
    found = [name for name, text in TEXTS.items() if re.search(r"""hasattr\(.*["']_v["']\)""", text)]
    assert found == ["gt.client.compat.arguments"]


# --- names ---------------------------------------------------------------------------------------------------------

#: Classes of one name that are the same thing in different processes, or that PyTorch calls so.
SAME = {
    "DataLoader": ("gt.utils.data", "gt.utils.loading"),  # torch's, where it is installed, and its replacement
    "Download": ("gt.client.session.transfers", "gt.dispatcher.session"),
    "Identity": ("gt.nn.layers", "gt.nn.utils.prune"),  # torch.nn.Identity, torch.nn.utils.prune.Identity
    "Session": ("gt.client.session.session", "gt.dispatcher.session"),
    "Tensor": ("gt.client.tensor", "gt.dispatcher.session"),
    "Upload": ("gt.client.session.transfers", "gt.dispatcher.session"),
    "device": ("gt.client.compat.devices", "gt.cuda"),  # torch.device, torch.cuda.device
}


def classes(texts: dict[str, str]) -> dict[str, tuple[str, ...]]:
    """Class names that several files define, and those files."""
    found: dict[str, list[str]] = {}
    for name, text in texts.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(name)
    return {name: tuple(files) for name, files in found.items() if len(files) > 1}


def test_a_class_name_means_one_thing() -> None:
    assert classes({"gt.a": "class A: ...", "gt.b": "def f():\n    class A: ..."}) == {"A": ("gt.a", "gt.b")}
    assert classes(TEXTS) == SAME


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", FILES, ids=lambda f: name_of(f))
def test_a_file_is_one_concept(file: Path) -> None:
    text = file.read_text()
    assert text.count("\n") < 600
    tree = ast.parse(text)
    assert ast.get_docstring(tree), f"{file} does not say what it is"
    assert file.stem not in ("utils", "util", "helpers", "helper", "common", "misc", "base", "manager", "handler")
    assert not re.search(r"\b(TODO|FIXME|XXX|HACK)\b", text)


def test_the_core_is_as_large_as_the_readme_says() -> None:
    """A stranger reads the core in a weekend; the number in README.md is a promise that it does not grow unnoticed."""
    (said,) = re.findall(r"The core has ([\d,]+) lines", (ROOT / "README.md").read_text())
    promised = int(said.replace(",", ""))
    assert 0.97 * promised <= core() <= promised


def test_docs_are_named_as_they_are_linked() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"


# --- what is public --------------------------------------------------------------------------------------------------


def public(module: ModuleType) -> dict[str, Any]:
    return {k: v for k, v in vars(module).items() if not k.startswith("_") and not isinstance(v, ModuleType)}


@pytest.mark.parametrize("module", [nn, functional, optim], ids=lambda m: m.__name__)
def test_all_is_sorted_and_whole(module: ModuleType) -> None:
    names = list(module.__all__)
    assert names in (sorted(names), sorted(names, key=order))  # computed, or written in ruff's order
    assert len(set(names)) == len(names)
    assert all(hasattr(module, n) for n in names)
    if module is not functional:
        assert set(public(module)) <= set(names)


@pytest.mark.parametrize("module", [gt, nn, functional, optim, gt.debug], ids=lambda m: m.__name__)
def test_public_functions_are_documented(module: ModuleType) -> None:
    names = getattr(module, "__all__", None) or list(public(module))
    undocumented = [
        n for n in names
        if (inspect.isfunction(v := getattr(module, n)) or inspect.isclass(v)) and not inspect.getdoc(v)
    ]  # fmt: skip
    assert undocumented == []


def test_the_package_file_holds_the_public_names_and_little_else() -> None:
    """Names in the order that ruff keeps: constants, classes, functions."""
    text = (PACKAGE / "__init__.py").read_text()
    assert text.count("\n") < 100
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            names = [a.name for a in node.names]
            assert names == sorted(names, key=order), node.module


def test_completion_offers_what_is_found_when_it_is_used() -> None:
    """`gt.plan`, `gt.testing`, `gt.silu`: no variables of the package, and in `dir(gt)` all the same."""
    later = {*switches.NAMESPACES, *switches.LATER, *fallback.OPS}
    assert "plan" in later - set(vars(gt))
    assert later <= set(dir(gt))
    assert all(callable(getattr(gt, name)) for name in (*switches.LATER, *fallback.OPS))


def order(name: str) -> Any:
    parts = [int(t) if t.isdigit() else t for t in re.split(r"(\d+)", name)]
    return not (name.isupper() and len(name) > 1), not name[0].isupper(), parts


def test_names_are_torchs() -> None:
    """A name that torch does not know at that place would be a trap for those who come from there."""
    torch = pytest.importorskip("torch")
    own = {
        "DType", "GTError", "Parameter", "adopt", "checkpoint", "checkpoint_sequential", "connect",
        "cross_entropy_loss", "disconnect", "drop", "from_torch", "function", "get", "gpu_workers", "grad", "keep",
        "kept", "mesh", "on_paper", "publish", "published", "replicate", "shard", "shard_", "torch_op", "unpublish",
        "use_plan", "visualize_layout",
    }  # fmt: skip
    tensors = {"repeat"}  # methods in torch, functions as well here
    for module, theirs in ((gt, torch), (functional, torch.nn.functional), (nn, torch.nn), (optim, torch.optim)):
        names = getattr(module, "__all__", None) or public(module)
        known = lambda n, theirs=theirs: hasattr(theirs, n) or hasattr(torch.nn.functional, n)  # noqa: E731
        assert {n for n in names if not known(n)} <= own | tensors, module.__name__
