"""A kernel as one node of a graph, which no compiler looks into: for kernels that are loops, or a library's.

torch knows one op for all of them, gt::kernel(operands, use). `use` names the kernel: it is a text of the op, its
attributes and the specs of its operands. The process that compiles a program and the worker that runs the library both
make its kernels first, and a call of the library finds its own by that name.

Law 1: a kernel lives as long as a graph that it is part of.
Law 2: a kernel's results share no memory with its operands, nor with each other.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from gt.ops.record import Op
from gt.program import Spec, as_tuple


class _Node:
    """A kernel and the shapes of what it returns, in a flat list."""

    def __init__(self, use: str, f: Callable[[list[Any]], list[Any]], shapes: Callable[[Any], list[Any]]) -> None:
        self.use, self.f = use, f
        self._shapes = shapes
        self._known: list[Any] | None = None

    def __call__(self, operands: Sequence[Any]) -> list[Any]:
        return torch.ops.gt.kernel(list(operands), self.use)

    def empty(self, operands: Sequence[Any]) -> list[Any]:
        """Tensors without values in place of the results."""
        if self._known is None:
            self._known = self._shapes(operands[0].device)
        return [operands[0].new_empty(shape, dtype=dtype) for shape, dtype in self._known]


_nodes: weakref.WeakValueDictionary[str, _Node] = weakref.WeakValueDictionary()

_library = torch.library.Library("gt", "FRAGMENT")
_library.define("kernel(Tensor[] operands, str use) -> Tensor[]")
_library.impl(
    # A compiler counts on the order in memory that it was told.
    "kernel", lambda operands, use: [t.contiguous() for t in _nodes[use].f(list(operands))], "CompositeExplicitAutograd"
)  # fmt: skip
torch.library.register_fake("gt::kernel", lambda operands, use: _nodes[use].empty(operands), lib=_library)


def _node(use: str, f: Callable[[list[Any]], list[Any]], shapes: Callable[[Any], list[Any]]) -> _Node:
    made = _nodes.get(use)
    if made is None:
        made = _nodes[use] = _Node(use, f, shapes)
    return made


def _use(op: Op, attrs: dict[str, Any], operands: Sequence[Spec], how: str) -> str:
    shown = " ".join(f"{s.dtype.name}{list(s.shape)}" for s in operands)
    wired = sorted((k, list(v) if isinstance(v, tuple) else v) for k, v in attrs.items())  # as attributes come
    return f"{op.name} {how} {wired} {shown}"


def _shapes(specs: Sequence[Spec]) -> list[Any]:
    return [(s.shape, getattr(torch, s.dtype.name)) for s in specs]


def opaque(op: Op, attrs: dict[str, Any], operands: Sequence[Spec], kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel of an op of tensors alone, as one node."""
    results = as_tuple(op.infer(*operands, **attrs))
    single = len(results) == 1
    node = _node(
        _use(op, attrs, operands, "alone"),
        lambda given: [kernel(*given)] if single else list(kernel(*given)),
        lambda device: _shapes(results),
    )
    return lambda *given: node(given)[0] if single else tuple(node(given))


def opaque_pair(
    op: Op, gradient: Op, attrs: dict[str, Any], operands: Sequence[Spec], first: Callable[..., Any],
    then: Callable[..., Any],
) -> tuple[Callable[..., Any], Callable[..., Any]]:  # fmt: skip
    """An op and its gradient op, as a node each; what the first hands to the second are tensors between them."""
    results = as_tuple(op.infer(*operands, **attrs))
    n = len(results)

    def flat(given: list[Any]) -> list[Any]:
        *made, kept = first(*given)
        return [*made, *kept]

    def shapes(device: Any) -> list[Any]:
        # What a library keeps has the size that it says: seen by running it once.
        with _disable_current_modes():
            made = flat([torch.zeros(shape, dtype=dtype, device=device) for shape, dtype in _shapes(operands)])
            return [(tuple(t.shape), t.dtype) for t in made]

    forward = _node(_use(op, attrs, operands, f"for {gradient.name}"), flat, shapes)

    def run_forward(*given: Any) -> Any:
        made = forward(given)
        return (*made[:n], made[n:])

    def backward(given: list[Any]) -> list[Any]:
        at = n + len(operands) + n  # gradients of the results, the operands, the results
        return list(then(*given[:at], given[at:]))

    makes = as_tuple(gradient.infer(*results, *operands, **attrs))
    after = _node(_use(gradient, attrs, operands, f"after {op.name}"), backward, lambda device: _shapes(makes))

    def run_backward(*given: Any) -> Any:
        *tensors, kept = given
        return tuple(after([*tensors, *kept]))

    return run_forward, run_backward
