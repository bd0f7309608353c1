"""The documents are true: their Python runs and prints what they show, what they name exists.

In README.md and docs/ a ```python block is run, in one namespace per document, on a cluster in this process.
A ```text block right below it is what it prints. Blocks of other kinds are not run.
"""

from __future__ import annotations

import ast
import contextlib
import doctest
import importlib
import inspect
import io
import itertools
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import gt
from gt import config
from gt.client.compat.arguments import bare
from gt.ops import TABLE
from tests.sessions import session_on

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
#: Kind and text of each fenced block.
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def client(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run the test as a client of a cluster of its own; ops that it adds are taken out again."""
    table = dict(TABLE)
    with session_on(getattr(request, "param", "numpy"), workers=4):
        yield
    TABLE.clear()
    TABLE.update(table)


def name(path: Any) -> str:
    return path.name if isinstance(path, Path) else str(path)


# --- what documents show ------------------------------------------------------------------------------


def snippets(path: Path) -> list[tuple[str, int, str | None]]:
    """(code, its line, what it prints if the document says so) of each Python block."""
    text = path.read_text()
    blocks = list(FENCE.finditer(text))
    found: list[tuple[str, int, str | None]] = []
    for block, after in itertools.zip_longest(blocks, blocks[1:]):
        if block[1] == "python":
            line = text[: block.start(2)].count("\n")
            adjacent = after is not None and after[1] == "text" and not text[block.end() : after.start()].strip()
            found.append((block[2], line, after[2] if adjacent and after is not None else None))
    return found


WITH_CODE = [path for path in DOCUMENTS if snippets(path)]


@pytest.mark.parametrize("client", ["torch"], indirect=True)
@pytest.mark.parametrize("path", WITH_CODE, ids=name)
def test_snippets_run(path: Path, client: None) -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for code, line, shown in snippets(path):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile("\n" * line + code, str(path), "exec"), namespace)
        if shown is not None:
            assert out.getvalue() == shown, f"{path.name}:{line}"


def test_most_documents_have_code_that_runs() -> None:
    pages = ["architecture", "autograd", "failures", "interop", "ops", "recording", "torch-differences", "wire"]
    assert {"README.md", *(f"{page}.md" for page in pages)} <= set(map(name, WITH_CODE))


# --- doctests -----------------------------------------------------------------------------------------


def doctests() -> list[Any]:
    finder = doctest.DocTestFinder(exclude_empty=True)
    names = ["gt", *(m.name for m in pkgutil.walk_packages(gt.__path__, "gt.") if not m.name.endswith("__main__"))]
    found = []
    names.remove("gt.nn.einops")  # needs einops
    for module in map(importlib.import_module, names):
        found += [t for t in finder.find(module, module.__name__) if t.examples]
    return [pytest.param(t, id=t.name) for t in {t.name: t for t in found}.values()]


@pytest.mark.parametrize("test", doctests())
def test_doctest(test: doctest.DocTest, client: None) -> None:
    said = io.StringIO()
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
    runner.run(test, out=said.write)
    assert not runner.failures, said.getvalue()


# --- what documents name ------------------------------------------------------------------------------


def settings_table() -> str:
    rows = [f"| `{name}` | {f'`{default}`' if default else ''} | {doc} |" for name, default, doc in config.settings()]
    return "\n".join(["| variable | default | what it does |", "| --- | --- | --- |", *rows]) + "\n"


def test_settings_are_those_of_the_code() -> None:
    assert (ROOT / "docs/settings.md").read_text().endswith("\n\n" + settings_table())


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_names_exist(path: Path) -> None:
    """Links, files, settings and ops."""
    text = path.read_text()
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert (path.parent / link).exists(), link
    for file in re.findall(r"\b(?:gt|tests|examples|benchmarks|docs)/[\w/]*\w\.(?:py|md)\b", text):
        assert (ROOT / file).exists(), file
    for folder in re.findall(r"`((?:gt|tests|examples|benchmarks|docs)/(?:\w+/)*)`", text):
        assert (ROOT / folder).is_dir(), folder
    variables = {variable for variable, _, _ in config.settings()}
    assert set(re.findall(r"\bGT_[A-Z_]+\b", text)) <= variables


#: Files of users in examples, and files of the other projects that the tests write.
NOT_OURS = {"train.py", "net.py"}


def test_files_that_docstrings_name_exist() -> None:
    files = [*(ROOT / "gt").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    names = {file.name for file in files}
    for file in files:
        if ROOT / "gt" in file.parents:
            named = set(re.findall(r"\b\w+\.py\b", file.read_text()))
            assert named - NOT_OURS <= names, file


@pytest.mark.parametrize(
    ("text", "folder"), [("docs/sharding.md", "gt/dispatcher/planner"), ("gt/solver/__init__.py", "gt/solver")]
)
def test_lists_of_files_are_whole(text: str, folder: str) -> None:
    listed = set(re.findall(r"\b(\w+\.py)\b", (ROOT / text).read_text()))
    assert {file.name for file in (ROOT / folder).glob("*.py")} - {"__init__.py"} <= listed


def test_generated_files_are_up_to_date() -> None:
    """In a process of its own: which names the package has depends on nothing that other tests do."""
    done = subprocess.run([sys.executable, "docs/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr[-2000:]


def test_the_stub_has_the_signatures_of_the_class() -> None:
    """Independently of its generator: each method of the stub is one of the class, with the same parameters."""
    tree = ast.parse((ROOT / "gt/client/tensor.pyi").read_text())
    (stub,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Tensor")
    functions = {node.name: node for node in stub.body if isinstance(node, ast.FunctionDef)}
    public_names = {n for n in dir(gt.Tensor) if not n.startswith("_")}
    annotated = {ast.unparse(n.target) for n in stub.body if isinstance(n, ast.AnnAssign)}
    others = [ast.unparse(node).split(" = ") for node in stub.body if isinstance(node, ast.Assign)]
    assert public_names <= {*functions, *annotated, *(name for name, _ in others)}
    assert len(public_names) > 500
    for name, other in others:  # that takes what the other one takes: it is the same function, or writes its result
        one, two = (bare(inspect.getattr_static(gt.Tensor, each)) for each in (name, other))
        assert other in functions or other in dict(others), name
        assert one is two or one.__name__ == f"{other}_", name
    for method in public_names & set(functions):
        value = inspect.getattr_static(gt.Tensor, method)
        if inspect.isfunction(value):
            args = functions[method].args
            given = [a.arg for a in (*args.posonlyargs, *args.args, *args.kwonlyargs)][1:]
            there = [
                p.name
                for p in inspect.signature(value).parameters.values()
                if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
            ]
            assert given == there[1:] or given == there, method


def test_counts_are_about_right() -> None:
    def public(module: ModuleType) -> int:
        names = getattr(module, "__all__", None) or [n for n in vars(module) if not n.startswith("_")]
        return sum(inspect.isfunction(v) or inspect.isclass(v) for v in (getattr(module, n) for n in names))

    methods = sum(not n.startswith("_") for n in dir(gt.Tensor))
    true = {
        r"[Aa]bout (\d+) functions of `gt`": public(gt), r"about (\d+) methods": methods,
        r"about (\d+); \[docs": len(TABLE),
        r"About (\d+) functions of `gt.nn.f": public(gt.nn.functional), r"and (\d+) modules": public(gt.nn),
    }  # fmt: skip
    text = (ROOT / "README.md").read_text()
    for pattern, count in true.items():
        said = re.search(pattern, text)
        assert said is not None, pattern
        assert abs(int(said[1]) - count) < 0.1 * count, (pattern, count)


def test_limits_are_those_of_the_code() -> None:
    text = (ROOT / "docs/wire.md").read_text()
    rows = re.findall(r"^\| (\d+)(?: ([KMG]iB))? \|.*`(gt\.[\w.]+)\.(\w+)` \|$", text, re.MULTILINE)
    assert len(rows) >= 10
    for number, unit, module, constant in rows:
        size = int(number) << {"": 0, "KiB": 10, "MiB": 20, "GiB": 30}[unit]
        assert getattr(importlib.import_module(module), constant) == size, constant


def test_code_that_is_quoted_is_there() -> None:
    source = (ROOT / "gt/ops/families/activation.py").read_text()
    for path in (ROOT / "README.md", ROOT / "docs/ops.md"):
        quoted = [b[2] for b in FENCE.finditer(path.read_text()) if b[1] == "py" and not b[2].startswith(">>>")]
        assert quoted
        assert all(code in source for code in quoted)
