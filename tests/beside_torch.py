"""The same code run with torch and with GT: results and gradients are compared.

A *story* is a function of the library: `story(torch)` says what is right, `story(gt)` must give the same. `agree` runs
a story with both, and `as_in_torch` makes a test of one. `compare` does so for a plain function of tensors and compares
its gradients too. `twins` and `compare_modules` do so for modules with the same weights. All of them compare results by
`same`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import gt

Story = Callable[..., Any]
Build = Callable[[Any], Any]  #: a module, built with one of the libraries
Array = np.ndarray[Any, Any]

# --- results ----------------------------------------------------------------------------------------------


def flat(result: Any, path: str = "") -> list[tuple[str, Any]]:
    """Everything in a result with the path to it: in lists, tuples, dicts and the states of modules."""
    if isinstance(result, (torch.nn.Module, gt.nn.Module)):
        result = dict(result.state_dict())
    if isinstance(result, dict):
        return [row for k, v in result.items() for row in flat(v, f"{path}.{k}")]
    if isinstance(result, (list, tuple)):
        return [row for i, v in enumerate(result) for row in flat(v, f"{path}[{i}]")]
    return [(path, result)]


def array(x: Any) -> Array:
    """A tensor of either library, an array or a number as an array; bfloat16 as float32."""
    if isinstance(x, torch.Tensor):
        x = x.detach().resolve_conj().resolve_neg()
        return (x.float() if x.dtype is torch.bfloat16 else x).numpy(force=True)
    if isinstance(x, gt.Tensor):
        return (x.float() if x.dtype is gt.bfloat16 else x).detach().numpy()
    return np.asarray(x)


def arrays(result: Any) -> list[Array]:
    """Everything in a result as arrays, in order; what is None is left out."""
    return [array(x) for _, x in flat(result) if x is not None]


def dtype_name(x: Any) -> str:
    return str(x.dtype).rpartition(".")[2]


def same(ours: Any, theirs: Any, rtol: float = 1e-7, atol: float | None = None) -> None:
    """Two results have the same structure, shapes, dtypes and values. Without `atol` it is `rtol`; 0 means equal."""
    mine, wanted = flat(ours), flat(theirs)
    assert [path for path, _ in mine] == [path for path, _ in wanted]
    for (path, x), (_, y) in zip(mine, wanted, strict=True):
        if isinstance(y, (torch.Tensor, gt.Tensor)):
            assert (tuple(x.shape), dtype_name(x)) == (tuple(y.shape), dtype_name(y)), path
            assert x.requires_grad == y.requires_grad, path
        elif not isinstance(y, (float, complex, np.ndarray)):
            assert str(x).replace("gt.", "torch.") == str(y).replace("gt.", "torch."), path
            continue
        a, b = array(x), array(y)
        assert a.dtype == b.dtype, path
        if b.dtype.kind in "biu":
            np.testing.assert_array_equal(a, b, err_msg=path)
        else:
            np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol if atol is None else atol, err_msg=path)


# --- stories ----------------------------------------------------------------------------------------------


def leaf(lib: Any, a: Any) -> Any:
    """An array as a tensor; it requires a gradient if it can have one. Anything else stays as it is."""
    if not isinstance(a, np.ndarray):
        return a
    x = lib.tensor(a)
    return x.requires_grad_() if x.dtype.is_floating_point or x.dtype.is_complex else x


def agree(story: Story, *given: Any, rtol: float = 1e-7, atol: float | None = None) -> None:
    """story(lib, *leaves) gives the same with GT as with torch, and leaves the same gradients at the leaves."""

    def told(lib: Any) -> Any:
        leaves = [leaf(lib, a) for a in given]
        return story(lib, *leaves), [getattr(x, "grad", None) for x in leaves]

    same(told(gt), told(torch), rtol, atol)


def as_in_torch(*given: Any, rtol: float = 1e-7, atol: float | None = None) -> Callable[[Story], Callable[..., None]]:
    """A test of the story below. What it asks for behind the library and the leaves are the test's arguments."""

    def test_of(story: Story) -> Callable[..., None]:
        asked = list(inspect.signature(story).parameters.values())[1 + len(given) :]

        def test(**arguments: Any) -> None:
            agree(lambda lib, *leaves: story(lib, *leaves, **arguments), *given, rtol=rtol, atol=atol)

        made: Any = test
        made.__name__, made.__doc__, made.__module__ = story.__name__, story.__doc__, story.__module__
        made.__signature__ = inspect.Signature(asked)
        return test

    return test_of


def stories(module: ModuleType) -> list[Story]:
    """The functions that a module of stories defines, in order; those with an underscore are its own."""
    return [
        f
        for name, f in vars(module).items()
        if inspect.isfunction(f) and f.__module__ == module.__name__ and not name.startswith("_")
    ]


def each(found: list[Story]) -> Any:
    """A test for each of these stories, under its name."""
    return pytest.mark.parametrize("story", found, ids=lambda story: story.__name__)


# --- functions and their gradients ------------------------------------------------------------------------


def compare(f: Story, *given: Any, second: bool = False, rtol: float = 1e-7, atol: float | None = None) -> None:
    """f(lib, *leaves): the results, their gradients and, on request, the gradients of those are torch's."""
    agree(lambda lib: with_gradients(lib, f, given, second), rtol=rtol, atol=atol)


def with_gradients(lib: Any, f: Story, given: tuple[Any, ...], second: bool) -> Any:
    """The results, detached, and all gradients that there are."""
    leaves = [leaf(lib, a) for a in given]
    wanted = [x for x in leaves if getattr(x, "requires_grad", False)]
    outs = [y for _, y in flat(f(lib, *leaves))]
    rng = np.random.default_rng(5)
    found = [_gradients(lib, outs, wanted, rng, second)]
    if second:
        found.append(_gradients(lib, found[0], wanted, rng, False))
    return [detached(y) for y in outs], [detached(g) for gs in found for g in gs]


def _gradients(lib: Any, outs: list[Any], wanted: list[Any], rng: np.random.Generator, again: bool) -> list[Any]:
    """The gradients of a real number that depends on every element of the results. One that is missing is zero."""
    parts = []
    for y in outs:
        if getattr(y, "requires_grad", False):
            made = (y + y * y) * lib.tensor(np.asarray(rng.normal(size=tuple(y.shape))))
            parts.append((made.real + made.imag * 2 if made.dtype.is_complex else made).sum())
    if not wanted or not parts:
        return []
    found = lib.autograd.grad(sum(parts[1:], parts[0]), wanted, create_graph=again, allow_unused=True)
    return [lib.zeros_like(x) if g is None else g for x, g in zip(wanted, found, strict=True)]


def detached(x: Any) -> Any:
    return x.detach() if isinstance(x, (torch.Tensor, gt.Tensor)) else x


# --- modules ----------------------------------------------------------------------------------------------


def twins(build: Build) -> tuple[Any, Any]:
    """A module built with torch and with GT, with torch's weights in both: (torch's, GT's)."""
    torch.manual_seed(0)
    theirs, ours = build(torch), build(gt)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def nn_twins(build: Build) -> tuple[Any, Any]:
    """The same for a module of torch.nn or gt.nn, in doubles."""
    return twins(lambda lib: build(lib.nn).double())


def agree_as_twins(seen: Callable[[Any, Any], Any], build: Build) -> None:
    """seen(lib, module) is the same with GT as with torch, if both begin with the same weights."""
    theirs, ours = nn_twins(build)
    same(seen(gt, ours), seen(torch, theirs), rtol=1e-6, atol=1e-9)


def given_to(lib: Any, x: Any) -> Any:
    """Inputs for one of the two: the arrays among them as leaves."""
    if isinstance(x, (tuple, list)):
        return type(x)(given_to(lib, item) for item in x)
    if isinstance(x, dict):
        return {k: given_to(lib, v) for k, v in x.items()}
    return leaf(lib, x)


def tensors(x: Any) -> list[Any]:
    """The tensors among inputs or results."""
    return [t for _, t in flat(x) if hasattr(t, "requires_grad")]


def outcome(lib: Any, module: Any, args: Any, kwargs: Any) -> Any:
    """What the module makes of its inputs, and the gradients of inputs and parameters."""
    args, kwargs = given_to(lib, args), given_to(lib, kwargs)
    out = module(*args, **kwargs)
    total: Any = sum((t * (t + (k + 1))).sum() for k, t in enumerate(tensors(out)) if t.requires_grad)
    if hasattr(total, "backward"):
        total.backward()
    return out, [t.grad for t in (*tensors((args, kwargs)), *module.parameters())]


def compare_modules(build: Build, args: Any = (), kwargs: Any = None, state: bool = True) -> None:
    """A module of torch.nn or gt.nn, in doubles: its text, names, results, gradients and buffers are torch's."""
    theirs, ours = nn_twins(build)
    assert repr(ours) == repr(theirs).replace("torch.", "gt.")
    assert list(ours.state_dict()) == list(theirs.state_dict())
    same(ours, theirs, rtol=0)
    same(outcome(gt, ours, args, kwargs or {}), outcome(torch, theirs, args, kwargs or {}), rtol=1e-6, atol=1e-9)
    if state:
        same(ours, theirs, rtol=1e-6, atol=1e-9)
