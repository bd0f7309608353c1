"""Gradients: a graph that hangs off the tensors, and only makes more instructions.

Law 1: the graph dies with the tensors; it has no reference cycles.
Law 2: a node keeps only the values its VJP reads; shapes are not values.
Law 3: backward (backward.py) never waits, locks or touches data. It records ops, like any other code.

A tensor's `_fn` is where its gradient goes: a GradNode (it was computed), a Leaf (it was made with
requires_grad), a Part (one of several results), or None. A user's own function (functions.py) has a node of its
own kind, with the same attributes as a GradNode.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any

import msgspec

from gt.client.record.pending import Value
from gt.client.record.pullback import Pullback, gradients, pullback
from gt.errors import AutogradError

if TYPE_CHECKING:
    from gt.client.record.tree import Node
    from gt.client.tensor import Tensor
    from gt.dtypes import DType
    from gt.program import Spec

Edge = Any  #: GradNode | Leaf | Part | None
Hook = Callable[[Any], Any]


class Handle:
    """What registering a hook returns: `remove()` takes the hook away again."""

    __slots__ = ("_hooks", "_mine")

    def __init__(self, hooks: list[Any], hook: Any) -> None:
        self._hooks = hooks
        self._mine = hook
        hooks.append(hook)

    def remove(self) -> None:
        """Take the hook away; a second time does nothing."""
        self._hooks[:] = [h for h in self._hooks if h is not self._mine]

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()


class Later:
    """Stands for saved values that were dropped: `values()` computes them again when backward asks for them."""

    __slots__ = ("values",)

    def __init__(self, values: Callable[[], tuple[Any, ...]]) -> None:
        self.values = values


#: Lists, by thread, that every new GradNode of that thread is appended to: see checkpoint.py.
watchers: dict[int, list[GradNode]] = {}


#: Ops that torch has under another name.
_TORCHS = {"square": "pow"}


class Ghost:
    """An operand of a gradient whose value nobody kept, since only its shape and dtype are asked for."""

    __slots__ = ("spec",)

    def __init__(self, spec: Spec) -> None:
        self.spec = spec

    @property
    def shape(self) -> tuple[int, ...]:
        return self.spec.shape

    @property
    def dtype(self) -> DType:
        return self.spec.dtype

    @property
    def ndim(self) -> int:
        return len(self.spec.shape)


class GradNode(msgspec.Struct, eq=False):  # a struct, because most ops make one
    """How to turn the gradient of an op's result into those of its operands."""

    node: Node  #: of the tree: op, attributes, operands' specs, the user's line
    pull: Pullback  #: which says what backward records
    edges: tuple[Edge, ...]  #: where each operand's gradient goes
    #: Operands and then the result, as far as the VJP reads them. None once backward has passed.
    #: Or something that computes them again.
    saved: tuple[Any, ...] | Later | None
    hooks: dict[int, list[Hook]] | None = None  #: by result

    def part(self, index: int) -> Part:
        return Part(self, index)

    @property
    def count(self) -> int:
        """How many results the op has."""
        return len(self.node.specs)

    @property
    def where(self) -> tuple[str, int]:
        """The user's file and line."""
        return self.node.where

    @property
    def next_functions(self) -> tuple[tuple[Any, int], ...]:
        """Where the operands' gradients go, as in torch: nodes, and of which of their results."""
        return followers(self.edges)

    def __repr__(self) -> str:
        return shown(self)

    def name(self) -> str:
        """As torch calls it."""
        assert self.node.kind is not None
        op = self.node.kind.op.name
        return "".join(w.capitalize() for w in _TORCHS.get(op, op).split("_")) + "Backward0"

    def values(self) -> tuple[Any, ...]:
        """What was saved, computed again if need be."""
        saved = self.saved
        if saved is None:
            raise AutogradError(
                f"{self.where[0]}:{self.where[1]}: backward a second time through a graph whose values are gone; "
                "call backward(retain_graph=True) the first time"
            )
        if type(saved) is Later:
            saved = self.saved = saved.values()
        return saved  # type: ignore[return-value]  # a Later's values are no Later

    def backward(self, gs: list[Any], create_graph: bool) -> list[tuple[Edge, Any]]:
        """The operands' gradients, given those of the results (None: not used), by running the VJP on tensors."""
        from gt.client.tensor import Tensor

        node, saved = self.node, self.values()
        assert node.kind is not None
        args: list[Any] = []
        for value, spec, edge in zip(saved, node.operands, self.edges, strict=False):
            if value is None:
                args.append(Ghost(spec))
            elif type(value) is Value:
                args.append(Tensor(value, edge if create_graph else None))
            else:
                args.append(value)  # a number
        y: Any = saved[-1]
        single = len(node.specs) == 1
        if single:
            y = Ghost(node.specs[0]) if y is None else Tensor(y, self if create_graph else None)
        elif y is None:
            y = tuple(Ghost(s) for s in node.specs)
        else:
            y = tuple(Tensor(v, self.part(i) if create_graph else None) for i, v in enumerate(y))
        g = gs[0] if single else tuple(gs)
        mask = sum([1 << i for i, e in enumerate(self.edges) if e is not None])
        return [(self.edges[i], d) for i, d in gradients(node.kind, mask, g, y, args, node.operands)]


class Part:
    """One of several results of a GradNode."""

    __slots__ = ("index", "whole")

    def __init__(self, whole: GradNode, index: int) -> None:
        self.whole = whole
        self.index = index


class Leaf:
    """A tensor that was made with requires_grad: where its gradient adds up."""

    __slots__ = ("after", "grad", "hooks")

    def __init__(self) -> None:
        self.grad: Tensor | None = None
        self.hooks: list[Hook] | None = None
        self.after: list[Callable[[], None]] | None = None  #: Called when a gradient has been added.

    next_functions = ()

    def __repr__(self) -> str:
        return shown(self)

    def name(self) -> str:
        """As torch calls it."""
        return "AccumulateGrad"


def followers(edges: tuple[Edge, ...]) -> tuple[tuple[Any, int], ...]:
    """The nodes behind edges, each with the number of its result; (None, 0) where no gradient goes."""
    return tuple((e.whole, e.index) if type(e) is Part else (e, 0) for e in edges)


def shown(fn: Any) -> str:
    """A node as text: never its edges, for these lead to the whole graph."""
    return f"<{fn.name()} object at {id(fn):#x}>"


def attach(node: Node, edges: tuple[Edge, ...], values: tuple[Any, ...], mask: int) -> GradNode | None:
    """The graph node of an op just recorded; None if no gradient passes through it. `values`: operands, result, None.
    `mask`: which operands have an edge, as bits."""
    try:
        pull = node.pulls[mask]
    except KeyError:
        assert node.kind is not None
        pull = node.pulls[mask] = pullback(node.kind, node.operands, node.specs, mask)
    if pull.saves < 0:
        return None
    made = GradNode(node, pull, edges, pull.pick(values))
    if watchers:
        mine = watchers.get(get_ident())
        if mine is not None:
            mine.append(made)
    return made
