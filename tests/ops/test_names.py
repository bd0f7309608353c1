"""Op names stand in the records. Where code outside gt/ops has one as a string, there is an op of that name.

A list of names beside the records goes wrong unseen: an op is renamed, and the list names nothing any more.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import gt
import gt.ops
from gt.client.tensor import Tensor
from gt.ops import TABLE
from gt.ops.families.torch_names import NAMES

ROOT = Path(gt.__file__).parent
FILES = [p for p in sorted(ROOT.rglob("*.py")) if p.relative_to(ROOT).parts[0] != "ops"]
#: Where the names of public functions are.
PUBLIC = (gt, Tensor, gt.nn, gt.nn.functional, gt.linalg, gt.special)
#: Files and folders with lists of functions, by which they become methods, or are looked up in torch.
LIBRARY = (
    "client/functions",
    "client/methods.py",
    "client/compat/arguments.py",
    "nn",
    "adoption",
    "linalg.py",
    "masked.py",
)

#: Files that look at torch's own graphs, whose nodes have these kinds and call aten's functions.
OF_TORCH_GRAPHS = ("recompute.py", "traced.py")
NODES = ("placeholder", "get_attr", "call_function", "output")


def strings(node: ast.AST) -> list[str]:
    """The strings in a collection that is written down, or in a string that is split into one."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="split"), args=[]):
            return text.split()
        case ast.Dict():
            elements: list[ast.expr | None] = list(node.keys)
        case _:
            elements = getattr(node, "elts", [])
    return [e.value for e in elements if isinstance(e, ast.Constant) and isinstance(e.value, str)]


def constants(tree: ast.Module) -> dict[str, list[str]]:
    """The collections of strings with a name: of the module, of a class, of a function."""
    found: dict[str, list[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            words = [w for inner in ast.walk(node.value) for w in strings(inner)]
            found.update({name: words for t in targets if words and (name := last_of(t))})
    return found


def last_of(node: ast.AST) -> str:
    """`a` and `x.a` -> "a" """
    return getattr(node, "attr", getattr(node, "id", ""))


#: Of all files: a list may be used in another file than its own.
CONSTANTS = {name: words for path in FILES for name, words in constants(ast.parse(path.read_text())).items()}


def names_an_op(node: ast.AST) -> bool:
    """Whether an expression is the name of an op: `ins.op`, `op.name`, `kind.op.name`."""
    if not isinstance(node, ast.Attribute):
        return False
    return node.attr == "op" or (node.attr == "name" and last_of(node.value) == "op")


def compared(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every string that the name of an op is compared with or looked up in, itself or in a collection or constant."""
    known = CONSTANTS | constants(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Compare():
                parts = [node.left, *node.comparators]
            case ast.Subscript():
                parts = [node.value, node.slice]
            case ast.Call(func=ast.Attribute(value=owner, attr="get")):
                parts = [owner, *node.args]
            case ast.Match():
                parts = [node.subject, *(p.value for p in ast.walk(node) if isinstance(p, ast.MatchValue))]
            case _:
                continue
        if not any(map(names_an_op, parts)):
            continue
        for part in parts:
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield part.lineno, part.value
            yield from ((part.lineno, word) for inner in ast.walk(part) for word in strings(inner))
            if not names_an_op(part):
                yield from ((part.lineno, word) for word in known.get(last_of(part), ()))


def is_public(name: str) -> bool:
    return any(name in vars(place) or hasattr(place, name) for place in PUBLIC)


def is_atens(name: str) -> bool:
    import torch._inductor.inductor_prims  # registers the compiler's own; slow to import

    return any(hasattr(space, name) for space in (torch.ops.aten, torch.ops.prims))


def unknown(tree: ast.Module, library: bool = False, torchs: bool = False) -> list[str]:
    """Names that stand where those of ops do, and are none."""
    found = [(line, name) for line, name in compared(tree) if not (torchs and name in NODES)]
    for node in ast.walk(tree):
        words = strings(node)
        if sum(w in TABLE for w in words) < 3 or (library and isinstance(node, (ast.Dict, ast.Call))):
            continue
        found += [
            (getattr(node, "lineno", 0), word)
            for word in words
            if not (library and is_public(word)) and not (torchs and is_atens(word))
        ]
    return [f"line {line}: {name!r}" for line, name in found if name not in TABLE]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_name_is_that_of_an_op(path: Path) -> None:
    inside = path.relative_to(ROOT)
    library = any(inside.is_relative_to(part) for part in LIBRARY)
    assert unknown(ast.parse(path.read_text()), library, path.name in OF_TORCH_GRAPHS) == []


@pytest.mark.parametrize(
    "text",
    [
        'LOWER = frozenset(["matmul", "linear", "einsum"])\ndef f(op):\n    return op.name in LOWER',
        'LOWER = frozenset(["matmul", "linear", "conv", "einsum"])',
        'LOWER = set("matmul linear conv einsum".split())',
        'COST = {"matmul": 1, "linear": 2, "conv": 3, "einsum": 4}',
        'class A:\n    COST = {"matmul": 1, "einsum": 4}\n    def f(self, ins):\n        return self.COST[ins.op]',
        'def f(op):\n    cost = dict(matmul=1) | {"einsum": 4}\n    return cost.get(op.name)',
        'def f(kind):\n    return kind.op.name == "einsum"',
        'def f(ins):\n    match ins.op:\n        case "matmul" | "einsum":\n            return 1',
    ],
)
def test_a_wrong_name_is_seen(text: str) -> None:
    """`gt.einsum` is a function, and no op."""
    assert {said.split(": ")[1] for said in unknown(ast.parse(text))} == {"'einsum'"}


@pytest.mark.parametrize("name", TABLE)
def test_only_public_ops_are_found_by_name(name: str) -> None:
    """Gradients, optimizer steps and other internal ops are neither functions nor methods."""
    op, x = TABLE[name], gt.Tensor.__new__(gt.Tensor)
    if op.public:
        assert hasattr(gt, name)
        assert hasattr(x, name)
        assert not op.inplace
        assert not op.collective
        spaces = (torch, torch.Tensor, torch.nn.functional, torch.special)
        assert any(hasattr(space, name) for space in spaces), "users know it by this name"
    elif name not in NAMES:  # else torch runs it, on the worker
        assert hasattr(gt, name) == (name in vars(gt))
        assert name in vars(Tensor) or not hasattr(x, name)
