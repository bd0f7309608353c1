"""Backward: gradients are propagated through the graph, from results to leaves.

Law: backward never waits, locks or touches data. It records ops, like any other code.

Usually the pullback of a node has the code of its gradient, and its ops are recorded on values, without a tensor for
each. If the gradients need a history themselves (create_graph), the ops of that code are recorded on tensors. If they
are checked or cast (anomaly mode, autocast), or a function is traced, the VJP of each op is run on tensors instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gt.client.compat.arguments import shown
from gt.client.programs import kinds
from gt.client.programs.pending import Value
from gt.client.programs.pullback import code_for, gradients
from gt.client.record.recorder import Recorder, apply, record_code, recorder
from gt.client.tensor import Edge, GradNode, Leaf, NodeResult, Tensor
from gt.dtypes import DType
from gt.errors import ArgumentError, AutogradError, DTypeError, ShapeError
from gt.ops.record import TABLE

_ADD = ((kinds.add, (0, 1)),)  #: The code of a sum.


def run(
    roots: Sequence[tuple[Edge | None, Tensor]],
    retain_graph: bool,
    create_graph: bool,
    wanted: Sequence[Edge | None] | None = None,
) -> list[Any]:
    """Propagate gradients from the roots through the graph. With `wanted`, return the gradients of those edges instead
    of adding gradients to the leaves."""
    rec = recorder()
    order = order_of([whole(e) for e, _ in roots])
    #: By node, for each result: a tensor, a value, or None as long as there is no gradient.
    grads: dict[Any, list[Any]] = {}
    place, rec.place = rec.place, None
    ahead, rec.ahead = rec.ahead, order
    for edge, g in roots:
        _add(rec, grads, edge, g)
    caught: dict[tuple[Any, int], Any] = {}
    keys = {(whole(e), getattr(e, "index", 0)) for e in wanted or ()}
    plain = rec.policy is None and rec.trace is None
    record = _record if not create_graph else _record_history if rec.anomaly is None else _record_nothing
    before, rec.grad = rec.grad, create_graph
    try:
        while order:
            fn = order.pop()
            gs = grads.pop(fn, None)
            if gs is None:
                continue
            if fn.hooks:
                _run_hooks(fn, gs)
            if keys:
                for i, g in enumerate(gs):
                    if g is not None and (fn, i) in keys:
                        caught[fn, i] = g
            if type(fn) is Leaf:
                if wanted is None:
                    accumulate(rec, fn, gs[0], create_graph)
                continue
            if not (plain and type(fn) is GradNode and record(rec, grads, fn, gs)):
                run_node = run_vjp if type(fn) is GradNode else type(fn).backward
                found = run_node(fn, _tensors(gs), create_graph)
                if rec.anomaly is not None:
                    rec.anomaly.gradients(fn, [d for _, d in found])
                for edge, d in found:
                    _add(rec, grads, edge, d)
            if not retain_graph and (type(fn) is not GradNode or fn.pull.frees):
                fn.saved = None
    finally:
        rec.grad, rec.place, rec.ahead = before, place, ahead
    if wanted is None:
        return []
    return _tensors([caught.get((whole(e), getattr(e, "index", 0))) for e in wanted])


def _record(rec: Recorder, grads: dict[Any, list[Any]], fn: GradNode, gs: list[Any]) -> bool:
    """Record the code of a node's gradient, and add the results to the gradients below. False if there is no code."""
    pull, specs = fn.pull, fn.node.specs
    code = code_for(pull, tuple([g is not None for g in gs])) if None in gs else pull.whole
    if code is None:
        return False
    values: list[Any] = []
    for g, spec in zip(gs, specs, strict=True):
        if g is not None and type(g) is not Value:
            g = g._v or g._read()
        if g is not None and g.spec is not spec:
            return False  # it was given by the user, or changed by a hook
        values.append(g)
    values += _saved(fn)
    constants, steps, found = code
    values += constants
    if steps:
        record_code(rec, steps, values)
    edges = fn.edges
    for operand, place in found:
        edge, d = edges[operand], values[place]
        if type(edge) is not NodeResult and edge not in grads:
            grads[edge] = [d]
        else:
            _add(rec, grads, edge, d)
    return True


def _saved(fn: GradNode) -> Sequence[Any]:
    """What a node has kept of its operands, and then of its results; None for what it has not."""
    saved = fn.saved
    if type(saved) is not tuple:
        saved = fn.values()
    count = len(fn.node.specs)
    return saved if count == 1 else (*saved[:-1], *(saved[-1] or (None,) * count))


def _record_history(rec: Recorder, grads: dict[Any, list[Any]], fn: GradNode, gs: list[Any]) -> bool:
    """The same as `_record`, with a history of what is recorded."""
    pull, specs = fn.pull, fn.node.specs
    code = code_for(pull, tuple([g is not None for g in gs])) if None in gs else pull.whole
    if code is None or any(g is not None and g._spec is not spec for g, spec in zip(gs, specs, strict=True)):
        return False
    count = len(specs)
    edges = (*fn.edges, *([fn] if count == 1 else [fn.part(i) for i in range(count)]))
    places = [*gs]
    for x, edge in zip(_saved(fn), edges, strict=True):
        places.append(Tensor(x, edge) if type(x) is Value else x)
    places += code.constants
    for kind, takes in code.steps:
        op, args = kind.op, tuple([places[i] for i in takes])
        if op.vjp is None and op.compose is not None and any(type(a) is Tensor and a._fn is not None for a in args):
            made = op.compose(*args, **kind.attrs)  # its parts have the gradients
        else:
            made = apply(kind, args)
        if type(made) is tuple:
            places += made
        else:
            places.append(made)
    for operand, place in code.gradients:
        _add(rec, grads, fn.edges[operand], places[place])
    return True


def _record_nothing(*_: Any) -> bool:
    """Every gradient is looked at."""
    return False


def run_vjp(fn: GradNode, gs: list[Any], create_graph: bool) -> list[tuple[Edge | None, Any]]:
    """The gradients of the operands, given those of the results (None: not used), by running the VJP on tensors. Of an
    operand or result whose value was not kept the VJP reads only shape and dtype: its spec has them."""
    node, saved = fn.node, fn.values()
    assert node.kind is not None
    args: list[Any] = []
    for value, spec, edge in zip(saved, node.operands, fn.edges, strict=False):
        if value is None:
            args.append(spec)
        elif type(value) is Value:
            args.append(Tensor(value, edge if create_graph else None))
        else:
            args.append(value)  # a number
    y: Any = saved[-1]
    single = len(node.specs) == 1
    if single:
        y = node.specs[0] if y is None else Tensor(y, fn if create_graph else None)
    elif y is None:
        y = tuple(node.specs)
    else:
        y = tuple(Tensor(v, fn.part(i) if create_graph else None) for i, v in enumerate(y))
    g = gs[0] if single else tuple(gs)
    mask = sum([1 << i for i, e in enumerate(fn.edges) if e is not None])
    return [(fn.edges[i], d) for i, d in gradients(node.kind, mask, g, y, args, node.operands)]


def _add(rec: Recorder, grads: dict[Any, list[Any]], edge: Edge | None, g: Any) -> None:
    index, count, node = 0, 1, edge
    if isinstance(edge, NodeResult):
        node, index, count = edge.whole, edge.index, edge.whole.count
    have = grads.get(node)
    if have is None:
        have = grads[node] = [None] * count
    there = have[index]
    if there is None:
        have[index] = g
    elif type(there) is Value and type(g) is Value:
        values = [there, g]
        record_code(rec, _ADD, values)
        have[index] = values[2]
    else:
        a, b = _tensors([there, g])
        have[index] = a + b


def _tensors(gs: list[Any]) -> list[Any]:
    """Values as tensors; the others as they are."""
    return [Tensor(g, None) if type(g) is Value else g for g in gs]


def accumulate(rec: Recorder, leaf: Leaf, g: Any, create_graph: bool) -> None:
    """Add a gradient, a tensor or value, to the gradient of a leaf."""
    if rec.trace is not None:
        rec.trace.touch(leaf)
    if leaf.grad is None:
        # A tensor of its own: several leaves may get the same g, and each may be written in place.
        if type(g) is Value:
            leaf.grad = Tensor(g, None)
        else:
            leaf.grad = Tensor(g._v or g._read(), g._fn if create_graph else None)
    else:
        total = leaf.grad + (Tensor(g, None) if type(g) is Value else g)
        if create_graph:
            leaf.grad = total
        else:
            leaf.grad._write(total)
    if leaf.after:
        for hook in list(leaf.after):
            hook()


def _run_hooks(fn: Any, gs: list[Any]) -> None:
    gs[:] = _tensors(gs)
    by_result: dict[int, Any] = {0: fn.hooks} if type(fn) is Leaf else fn.hooks
    for i, hooks in by_result.items():
        for hook in sorted(hooks, key=lambda h: hasattr(h, "keeps")):  # retain_grad() comes last
            if gs[i] is not None:
                changed = hook(gs[i])
                if changed is None:
                    continue
                if not isinstance(changed, Tensor):
                    raise DTypeError(f"register_hook: a hook must return a tensor or None, got {shown(changed)}")
                gs[i] = changed


def whole(edge: Edge | None) -> Any:
    """The node that an edge leads to."""
    return edge.whole if type(edge) is NodeResult else edge


def order_of(roots: list[Any]) -> list[Any]:
    """Every graph node below the roots, each after those that it depends on."""
    order: list[Any] = []
    seen: set[Any] = set()
    stack = [r for r in roots if r is not None]
    while stack:
        fn = stack.pop()
        if fn is None:  # all below it are done
            order.append(stack.pop())
        elif fn not in seen:
            seen.add(fn)
            if type(fn) is Leaf:
                order.append(fn)
                continue
            stack += (fn, None)
            for edge in fn.edges:
                if edge is not None:
                    below = edge.whole if type(edge) is NodeResult else edge
                    if below not in seen:
                        stack.append(below)
    return order


def filled(shape: tuple[int, ...], value: float, dtype: DType) -> Tensor:
    """A new tensor with one number everywhere."""
    return apply(kinds.full[shape, dtype.name], (value,))


def zeros(like: Tensor) -> Tensor:
    """A new tensor of zeros, of the shape and dtype of another."""
    return filled(like.shape, 0.0, like.dtype)


def seed_gradient(t: Tensor, gradient: Tensor | None) -> Tensor:
    """The gradient to start with: the one given, or 1 for a tensor of one element."""
    if gradient is None:
        if math.prod(t.shape) != 1:
            raise AutogradError(
                f"backward: a tensor of shape {t.shape} needs backward(gradient=...); one of one element needs none"
            )
        if t.dtype.is_complex:
            raise AutogradError(
                f"backward: a {t.dtype.name} tensor needs backward(gradient=...); only a real tensor needs none"
            )
        return filled(t.shape, 1.0, t.dtype)
    if gradient.shape != t.shape:
        raise ShapeError(f"backward: gradient must have the shape {t.shape} of the tensor, got {gradient.shape}")
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
    if is_grads_batched:
        rows = list(zip(*([grad_outputs] if isinstance(grad_outputs, Tensor) else grad_outputs), strict=True))
        more = create_graph, only_inputs, allow_unused, False, materialize_grads
        # The graph is needed again, so it is freed, if at all, by the last one.
        keep = [*[True] * (len(rows) - 1), retain_graph]
        each = [grad(outputs, inputs, row, kept, *more) for row, kept in zip(rows, keep, strict=True)]
        return tuple([None if ds[0] is None else TABLE["stack"](*ds, dim=0) for ds in zip(*each, strict=True)])
    if materialize_grads and allow_unused is False:
        raise ArgumentError("grad: materialize_grads=True needs allow_unused=True or None, got False")

    outs = (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)
    ins = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    seeds = (grad_outputs,) if isinstance(grad_outputs, Tensor) else grad_outputs or (None,) * len(outs)
    for t in (*outs, *ins):
        if not t.requires_grad:
            raise AutogradError("grad: one of the tensors does not require grad and has no history")
    roots = [(t._fn, seed_gradient(t, s)) for t, s in zip(outs, seeds, strict=True)]
    retain = create_graph if retain_graph is None else retain_graph
    found = run(roots, retain, create_graph, [t._fn for t in ins])
    if materialize_grads:
        return tuple([filled(t.shape, 0.0, t.dtype) if g is None else g for g, t in zip(found, ins, strict=True)])
    if not allow_unused and any(g is None for g in found):
        raise AutogradError("grad: the outputs do not depend on one of the inputs; allow_unused=True returns None")
    return tuple(found)


def backward(
    tensors: Tensor | Sequence[Tensor],
    grad_tensors: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    """Add the gradients of several tensors to the `.grad` of the leaves they came from, in one pass."""
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
    if not all(t.requires_grad for t in leaves):
        raise AutogradError("backward: one of the inputs does not require grad and has no history")
    for t, g in zip(leaves, run(roots, retain, create_graph, [t._fn for t in leaves]), strict=True):
        if g is not None and type(t._fn) is Leaf:
            accumulate(recorder(), t._fn, g, create_graph)
        elif g is not None:
            t.grad = g if t.grad is None else t.grad + g
