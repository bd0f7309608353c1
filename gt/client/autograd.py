"""Gradients: a graph that hangs off the tensors, and only makes more instructions.

Law 1: the graph dies with the tensors; it has no reference cycles.
Law 2: a node keeps only the values its VJP reads; shapes are not values.
Law 3: backward never waits, locks or touches data. It records ops, like any other code.

A tensor's `_fn` is where its gradient goes: a GradNode (it was computed), a Leaf (it was made with
requires_grad), a Part (one of several results), or None.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from gt.errors import AutogradError, ShapeError
from gt.ops.record import TABLE
from gt.ops.trace import Trace
from gt.program import Spec

if TYPE_CHECKING:
    from gt.client.tensor import Tensor
    from gt.client.tree import Node

Edge = Any  #: GradNode | Leaf | Part | None
Hook = Callable[[Any], Any]


class GradNode:
    """How to turn the gradient of an op's result into those of its operands."""

    __slots__ = ("edges", "hooks", "node", "saved")

    def __init__(self, node: Node, edges: tuple[Edge, ...], saved: tuple[Any, ...]) -> None:
        self.node = node  #: of the tree: op, attributes, operands' specs, the user's line
        self.edges = edges  #: where each operand's gradient goes
        #: Operands and then the result, as far as the VJP reads them. None once backward has passed.
        self.saved: tuple[Any, ...] | None = saved
        self.hooks: dict[int, list[Hook]] | None = None  #: by result

    def part(self, index: int) -> Part:
        return Part(self, index)

    @property
    def name(self) -> str:
        assert self.node.kind is not None
        op = self.node.kind.op.name
        return "".join(w.capitalize() for w in op.split("_")) + "Backward0"

    def backward(self, gs: list[Any], create_graph: bool) -> Iterable[tuple[Edge, Any]]:
        """The operands' gradients, given those of the results (None: not used)."""
        from gt.client.recorder import Value
        from gt.client.tensor import Ghost, Tensor

        node = self.node
        if self.saved is None:
            raise AutogradError(
                f"{node.where[0]}:{node.where[1]}: backward a second time through a graph whose values are gone; "
                "call backward(retain_graph=True) the first time"
            )
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

    __slots__ = ("grad", "hooks")

    def __init__(self) -> None:
        self.grad: Tensor | None = None
        self.hooks: list[Hook] | None = None

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


def attach(node: Node, edges: tuple[Edge, ...], values: tuple[Any, ...], mask: int) -> GradNode | None:
    """The graph node of an op just recorded; None if no gradient passes through it."""
    saves = node.saves.get(mask)
    if saves is None:
        saves = node.saves[mask] = find_saves(node, mask)
    if saves < 0:
        return None
    n = len(values)
    if n == 2:
        saved: tuple[Any, ...] = (values[0] if saves & 1 else None, values[1] if saves & 2 else None)
    elif n == 3:
        a, b, y = values
        saved = (a if saves & 1 else None, b if saves & 2 else None, y if saves & 4 else None)
    else:
        saved = tuple([v if saves >> i & 1 else None for i, v in enumerate(values)])
    return GradNode(node, edges, saved)


def find_saves(node: Node, mask: int) -> int:
    """Which values the VJP reads, as bits: operands, then the result. -1: there is no gradient.

    Found by running the VJP on symbols and looking at what it did with them.
    """
    assert node.kind is not None
    op, attrs = node.kind.op, node.kind.attrs
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
    if callable(op.vjp):
        returned = op.vjp(one_g, one_y, *args, **attrs)
    else:
        returned = tuple(
            f(one_g, one_y, *args, **attrs) if f is not None and mask >> i & 1 else None for i, f in enumerate(op.vjp)
        )
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
            for edge, d in fn.backward(gs, create_graph):
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
        n = len(edge.node.specs) if type(edge) is GradNode else 1
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
        if type(fn) is GradNode:
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
    allow_unused: bool = False,
) -> tuple[Tensor | None, ...]:
    """The gradients of the outputs with respect to the inputs; nothing is added to `.grad`."""
    from gt.client.tensor import Tensor

    outs = (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)
    ins = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    seeds = (grad_outputs,) if hasattr(grad_outputs, "_v") else grad_outputs or (None,) * len(outs)
    for t in (*outs, *ins):
        if not t.requires_grad:
            raise AutogradError("grad: one of the tensors does not require grad and has no history")
    roots = [(t._fn, seed_gradient(t, s)) for t, s in zip(outs, seeds, strict=True)]
    retain = create_graph if retain_graph is None else retain_graph
    found = run(roots, retain, create_graph, [t._fn for t in ins])
    if not allow_unused and any(g is None for g in found):
        raise AutogradError("grad: an input was not used for the outputs; pass allow_unused=True if that is meant")
    return tuple(found)


class set_grad:
    """Gradients on or off, as a context manager or a decorator."""

    __slots__ = ("_before", "_mode")

    def __init__(self, mode: bool) -> None:
        self._mode = mode
        self._before: list[bool] = []

    def __enter__(self) -> None:
        from gt.client.recorder import recorder

        rec = recorder()
        self._before.append(rec.grad)
        rec.grad = self._mode

    def __exit__(self, *exc: object) -> None:
        from gt.client.recorder import recorder

        recorder().grad = self._before.pop()

    def __call__(self, f: Callable[..., Any]) -> Callable[..., Any]:
        import functools

        @functools.wraps(f)
        def inner(*args: Any, **kwargs: Any) -> Any:
            with set_grad(self._mode):
                return f(*args, **kwargs)

        return inner
