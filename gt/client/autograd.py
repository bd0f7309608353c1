"""Gradients: a graph that hangs off the tensors, and only makes more instructions.

Law 1: the graph dies with the tensors; it has no reference cycles.
Law 2: a node keeps only the values its VJP reads; shapes are not values.
Law 3: backward never waits, locks or touches data. It records ops, like any other code.

A tensor's `_fn` is where its gradient goes: a GradNode (it was computed), a Leaf (it was made with
requires_grad), a Part (one of several results), or None. A user's own function (functions.py) has a node of its
own kind, with the same attributes as a GradNode.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any

import msgspec

from gt.errors import ArgumentError, AutogradError, ShapeError
from gt.ops.record import TABLE
from gt.ops.trace import Trace
from gt.program import Spec

if TYPE_CHECKING:
    from gt.client.tensor import Tensor
    from gt.client.tree import Node

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


class GradNode(msgspec.Struct, eq=False):  # a struct, because most ops make one
    """How to turn the gradient of an op's result into those of its operands."""

    node: Node  #: of the tree: op, attributes, operands' specs, the user's line
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
    def name(self) -> str:
        assert self.node.kind is not None
        op = self.node.kind.op.name
        return "".join(w.capitalize() for w in _TORCHS.get(op, op).split("_")) + "Backward0"

    def backward(self, gs: list[Any], create_graph: bool) -> list[tuple[Edge, Any]]:
        """The operands' gradients, given those of the results (None: not used)."""
        from gt.client.recorder import Value
        from gt.client.tensor import Ghost, Tensor

        node = self.node
        if self.saved is None:
            raise AutogradError(
                f"{node.where[0]}:{node.where[1]}: backward a second time through a graph whose values are gone; "
                "call backward(retain_graph=True) the first time"
            )
        if isinstance(self.saved, Later):
            self.saved = self.saved.values()
        assert node.kind is not None
        op, attrs = node.kind.op, node.kind.attrs
        args: list[Any] = []
        for value, spec, edge in zip(self.saved, node.operands, self.edges, strict=False):
            if value is None:
                args.append(Ghost(spec))
            elif type(value) is Value:
                args.append(Tensor(value, edge if create_graph else None))
            else:
                args.append(value)  # a number
        y: Any = self.saved[-1]
        single = len(node.specs) == 1
        if single:
            y = Ghost(node.spec) if y is None else Tensor(y, self if create_graph else None)
        elif y is None:
            y = tuple(Ghost(s) for s in node.specs)
        else:
            y = tuple(Tensor(v, self.part(i) if create_graph else None) for i, v in enumerate(y))
        g = gs[0] if single else tuple(gs)
        if callable(op.vjp):
            grads = op.vjp(g, y, *args, **attrs)
            pairs = zip(self.edges, node.operands, grads, strict=True)
            return [(e, fit(d, s)) for e, s, d in pairs if e is not None and d is not None]
        assert op.vjp is not None
        result = []
        for edge, spec, f in zip(self.edges, node.operands, op.vjp, strict=False):
            if edge is not None and f is not None:
                d = f(g, y, *args, **attrs)
                if d is not None:
                    result.append((edge, fit(d, spec)))
        return result


class Part:
    """One of several results of a GradNode."""

    __slots__ = ("index", "whole")

    def __init__(self, whole: GradNode, index: int) -> None:
        self.whole = whole
        self.index = index

    @property
    def name(self) -> str:
        return self.whole.name


class Leaf:
    """A tensor that was made with requires_grad: where its gradient adds up."""

    __slots__ = ("after", "grad", "hooks")

    def __init__(self) -> None:
        self.grad: Tensor | None = None
        self.hooks: list[Hook] | None = None
        self.after: list[Callable[[], None]] | None = None  #: Called when a gradient has been added.

    def accumulate(self, g: Tensor, create_graph: bool) -> None:
        from gt.client.recorder import recorder
        from gt.client.tensor import Tensor

        trace = recorder().trace
        if trace is not None:
            trace.touch(self)
        if self.grad is None:
            # A tensor of its own: several leaves may get the same g, and each may be written in place.
            self.grad = Tensor(g._v or g._read(), g._fn if create_graph else None)
        elif create_graph:
            self.grad = self.grad + g
        else:
            self.grad._write(self.grad + g)
        for hook in list(self.after or ()):
            hook()


def fit(d: Any, spec: Spec) -> Any:
    """A gradient in its operand's shape and dtype: summed over broadcast dimensions, cast; of a real
    operand, the real part."""
    if d.shape != spec.shape:
        d = TABLE["sum_to"](d, shape=spec.shape)
    if d.dtype.is_complex and not spec.dtype.is_complex:
        d = TABLE["real"](d)
    if d.dtype is not spec.dtype:
        d = TABLE["cast"](d, dtype=spec.dtype.name)
    return d


#: By the number of operands: what a node keeps whose gradient reads nothing.
_NOTHING: tuple[tuple[Any, ...], ...] = tuple([(None,) * (n + 1) for n in range(4)])


def attach(node: Node, edges: tuple[Edge, ...], values: tuple[Any, ...], mask: int) -> GradNode | None:
    """The graph node of an op just recorded; None if no gradient passes through it."""
    try:
        saves = node.saves[mask]
    except KeyError:
        saves = node.saves[mask] = find_saves(node, mask)
    if saves < 0:
        return None
    n = len(edges)
    if not saves:
        saved = _NOTHING[n] if n < len(_NOTHING) else (None,) * (n + 1)
    elif n == 1:
        a, y = values
        saved = (a if saves & 1 else None, y if saves & 2 else None)
    elif n == 2:
        a, b, y = values
        saved = (a if saves & 1 else None, b if saves & 2 else None, y if saves & 4 else None)
    else:
        saved = tuple([v if saves >> i & 1 else None for i, v in enumerate(values)])
    made = GradNode(node, edges, saved)
    if watchers:
        mine = watchers.get(get_ident())
        if mine is not None:
            mine.append(made)
    return made


def find_saves(node: Node, mask: int) -> int:
    """Which values the VJP reads, as bits: operands, then the result. -1: there is no gradient.

    Found by running the VJP on symbols and looking at what it did with them.
    """
    assert node.kind is not None
    op, attrs = node.kind.op, node.kind.attrs
    assert op.vjp is not None or op.compose is None, (
        f"{op.name}: record its parts (Tensor._apply), they have the gradient"
    )
    if op.vjp is None or not any(s.dtype.is_differentiable for s in node.specs):
        return -1
    if not any(mask >> i & 1 and s.dtype.is_differentiable for i, s in enumerate(node.operands)):
        return -1
    if not callable(op.vjp) and not any(mask >> i & 1 and f is not None for i, f in enumerate(op.vjp)):
        return -1
    trace = Trace()
    g = tuple(trace.symbol(s) for s in node.specs)
    y = tuple(trace.symbol(s) for s in node.specs)
    args: list[Any] = [_NUMBERS[s.dtype.name] if s.weak else trace.symbol(s) for s in node.operands]
    one_g: Any = g if len(g) > 1 else g[0]
    one_y: Any = y if len(y) > 1 else y[0]
    try:
        if callable(op.vjp):
            returned = op.vjp(one_g, one_y, *args, **attrs)
        else:
            pairs = enumerate(op.vjp)
            returned = tuple(f(one_g, one_y, *args, **attrs) if f and mask >> i & 1 else None for i, f in pairs)
    except AutogradError:
        return 0  # there is no gradient in this case: which backward will say, if it comes here
    reads = trace.reads() | {r.number for r in returned if r is not None and hasattr(r, "number")}
    bits = sum(1 << i for i, a in enumerate(args) if not hasattr(a, "number") or a.number in reads)
    if any(s.number in reads for s in y):
        bits |= 1 << len(args)
    return bits


_NUMBERS: dict[str, Any] = {"float32": 1.5, "int64": 2, "bool": True, "uint8": b""}


# --- backward ----------------------------------------------------------------------------------------


def run(
    roots: Sequence[tuple[Edge, Tensor]], retain_graph: bool, create_graph: bool, wanted: Sequence[Edge] | None = None
) -> list[Any]:
    """Send gradients from the roots down the graph. With `wanted`, return the gradients that arrive
    there instead of adding them to the leaves."""
    from gt.client.recorder import recorder

    order = _order([_whole(e) for e, _ in roots])
    grads: dict[int, list[Any]] = {}
    for edge, g in roots:
        _add(grads, edge, g)
    caught: dict[tuple[int, int], Any] = {}
    keys = {(id(_whole(e)), getattr(e, "index", 0)) for e in wanted} if wanted is not None else set()
    rec = recorder()
    before, rec.grad = rec.grad, create_graph
    try:
        while order:
            fn = order.pop()
            gs = grads.pop(id(fn), None)
            if gs is None:
                continue
            _run_hooks(fn, gs)
            for i, g in enumerate(gs):
                if (id(fn), i) in keys and g is not None:
                    caught[id(fn), i] = g
            if type(fn) is Leaf:
                if wanted is None:
                    fn.accumulate(gs[0], create_graph)
                continue
            found = fn.backward(gs, create_graph)
            if rec.anomaly is not None:
                rec.anomaly.gradients(fn, [d for _, d in found])
            for edge, d in found:
                _add(grads, edge, d)
            if not retain_graph:
                fn.saved = None
    finally:
        rec.grad = before
    if wanted is None:
        return []
    return [caught.get((id(_whole(e)), getattr(e, "index", 0))) for e in wanted]


def _whole(edge: Edge) -> Any:
    return edge.whole if type(edge) is Part else edge


def _add(grads: dict[int, list[Any]], edge: Edge, g: Any) -> None:
    index = 0
    if type(edge) is Part:
        edge, index = edge.whole, edge.index
    have = grads.get(id(edge))
    if have is None:
        n = 1 if type(edge) is Leaf else edge.count
        have = grads[id(edge)] = [None] * n
    have[index] = g if have[index] is None else have[index] + g


def _run_hooks(fn: Any, gs: list[Any]) -> None:
    if not fn.hooks:
        return
    by_result = {0: fn.hooks} if type(fn) is Leaf else fn.hooks
    for i, hooks in by_result.items():
        for hook in list(hooks):
            if gs[i] is not None:
                changed = hook(gs[i])
                if changed is not None:
                    gs[i] = changed


def _order(roots: list[Any]) -> list[Any]:
    """Every graph node below the roots, each after all that it depends on."""
    order: list[Any] = []
    seen: set[int] = set()
    stack: list[tuple[Any, bool]] = [(r, False) for r in roots if r is not None]
    while stack:
        fn, done = stack.pop()
        if done:
            order.append(fn)
            continue
        if id(fn) in seen:
            continue
        seen.add(id(fn))
        stack.append((fn, True))
        if type(fn) is not Leaf:
            for edge in fn.edges:
                if edge is not None:
                    below = _whole(edge)
                    if id(below) not in seen:
                        stack.append((below, False))
    return order


def seed_gradient(t: Tensor, gradient: Tensor | None) -> Tensor:
    """What backward starts from: the gradient given, or one for a tensor of one element."""
    if gradient is None:
        if math.prod(t.shape) != 1:
            raise AutogradError(
                f"backward: a tensor of shape {t.shape} needs backward(gradient); only one element needs none"
            )
        if t.dtype.is_complex:
            raise AutogradError(
                f"backward: a {t.dtype.name} tensor needs backward(gradient); only a real one needs none"
            )
        from gt.client.creation import full

        return full(t.shape, 1.0, dtype=t.dtype)
    if gradient.shape != t.shape:
        raise ShapeError(f"backward: a gradient of shape {gradient.shape} for a tensor of shape {t.shape}")
    return gradient


def grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Tensor | None, ...]:
    """The gradients of the outputs with respect to the inputs; nothing is added to `.grad`."""
    from gt.client.tensor import Tensor

    if is_grads_batched:
        raise ArgumentError("grad: is_grads_batched is not supported; call grad once per gradient, or gt.func.jacrev")
    if materialize_grads and allow_unused is False:
        raise ArgumentError("grad: materialize_grads=True makes zeros of what allow_unused=False forbids")

    outs = (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)
    ins = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    seeds = (grad_outputs,) if hasattr(grad_outputs, "_v") else grad_outputs or (None,) * len(outs)
    for t in (*outs, *ins):
        if not t.requires_grad:
            raise AutogradError("grad: one of the tensors does not require grad and has no history")
    roots = [(t._fn, seed_gradient(t, s)) for t, s in zip(outs, seeds, strict=True)]
    retain = create_graph if retain_graph is None else retain_graph
    found = run(roots, retain, create_graph, [t._fn for t in ins])
    if materialize_grads:
        from gt.client.creation import zeros_like

        return tuple([zeros_like(t) if g is None else g for g, t in zip(found, ins, strict=True)])
    if not allow_unused and any(g is None for g in found):
        raise AutogradError("grad: an input was not used for the outputs; pass allow_unused=True if that is meant")
    return tuple(found)


def backward(
    tensors: Tensor | Sequence[Tensor],
    grad_tensors: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    """Add the gradients of several tensors to the `.grad` of the leaves they came from, in one pass."""
    from gt.client.tensor import Tensor

    outs = (tensors,) if isinstance(tensors, Tensor) else tuple(tensors)
    seeds = (grad_tensors,) if isinstance(grad_tensors, Tensor) else grad_tensors or (None,) * len(outs)
    for t in outs:
        if not t.requires_grad:
            raise AutogradError("backward: this tensor does not require grad and has no history")
    roots = [(t._fn, seed_gradient(t, s)) for t, s in zip(outs, seeds, strict=True)]
    retain = create_graph if retain_graph is None else retain_graph
    if inputs is None:
        run(roots, retain, create_graph)
        return
    leaves = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    for t, g in zip(leaves, run(roots, retain, create_graph, [t._fn for t in leaves]), strict=True):
        if g is not None:
            (t._fn if type(t._fn) is Leaf else Leaf()).accumulate(g, create_graph)
