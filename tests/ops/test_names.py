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

#: Files that look at torch's own graphs, whose nodes have these kinds and call aten's functions.
OF_TORCH_GRAPHS = ("recompute.py", "traced.py")
NODES = ("placeholder", "get_attr", "call_function", "output")


def strings(node: ast.AST) -> list[str]:
    """The strings in a collection that is written down."""
    elements = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", [])
    return [e.value for e in elements if isinstance(e, ast.Constant) and isinstance(e.value, str)]


def constants(tree: ast.Module) -> dict[str, list[str]]:
    """The module's constants that are collections of strings."""
    found: dict[str, list[str]] = {}
    for node in tree.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            words = [w for inner in ast.walk(node.value) for w in strings(inner)]
            found.update({t.id: words for t in targets if isinstance(t, ast.Name)})
    return found


def names_an_op(node: ast.expr) -> bool:
    """Whether an expression is the name of an op: `ins.op`, `op.name`, `kind.op.name`."""
    if not isinstance(node, ast.Attribute):
        return False
    if node.attr == "op":
        return True
    owner = node.value
    return node.attr == "name" and getattr(owner, "attr", getattr(owner, "id", "")) == "op"


def compared(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every string that the name of an op is compared with, itself or in a collection or constant."""
    known = constants(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Compare) or not any(map(names_an_op, (node.left, *node.comparators))):
            continue
        for inner in ast.walk(node):
            if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                yield node.lineno, inner.value
            elif isinstance(inner, ast.Name):
                yield from ((node.lineno, word) for word in known.get(inner.id, ()))


def is_public(name: str) -> bool:
    return any(name in vars(place) or hasattr(place, name) for place in PUBLIC)


def is_atens(name: str) -> bool:
    import torch._inductor.inductor_prims  # registers the compiler's own; slow to import

    return any(hasattr(space, name) for space in (torch.ops.aten, torch.ops.prims))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_name_is_that_of_something(path: Path) -> None:
    tree = ast.parse(path.read_text())
    torchs = path.name in OF_TORCH_GRAPHS
    found = [(line, name) for line, name in compared(tree) if not (torchs and name in NODES)]
    wrong = [f"line {line}: {name!r}" for line, name in found if name not in TABLE]
    assert not wrong, "compared with the name of an op, and no op"
    for node in ast.walk(tree):
        words = strings(node)
        if sum(w in TABLE for w in words) < 3 or isinstance(node, ast.Dict):
            continue
        wrong = [w for w in words if w not in TABLE and not is_public(w) and not (torchs and is_atens(w))]
        assert not wrong, f"line {getattr(node, 'lineno', '?')}: neither ops nor functions"


def test_a_wrong_name_is_seen() -> None:
    text = 'LOWER = frozenset(["matmul", "linear", "einsum"])\ndef f(op):\n    return op.name in LOWER'
    assert [name for _, name in compared(ast.parse(text)) if name not in TABLE] == ["einsum"]


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
