"""`autograd.Function`: an op whose gradient its user writes.

`forward(ctx, ...)` runs without history; its results get a node whose gradient is `backward(ctx, ...)`. Saved tensors
keep their own history, except results: those are remade from their values, or the graph would be a cycle.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.client.grad.backward import filled
from gt.client.grad.modes import set_grad
from gt.client.programs.pending import Value
from gt.client.programs.tree import users_line
from gt.client.record.recorder import recorder
from gt.client.tensor import Edge, Hook, Leaf, NodeResult, Tensor, followers, node_text
from gt.errors import AutogradError
from gt.ops.reverse import fit

__all__ = ["Function"]


class Context:
    """What `forward` leaves for `backward`. Any attribute may be set on it."""

    def __init__(self, needs: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs
        self._saved: list[Any] = []  #: tensors as they are; results as (number, value)
        self._fixed: set[int] = set()  #: id() of results without gradient
        self._dirty: set[int] = set()  #: id() of inputs that were written to
        self._materialize = True
        self._node: FunctionNode | None = None

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep these for backward, which finds them in `saved_tensors`."""
        self._saved = list(tensors)

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """What was saved."""
        return tuple(self._again(*s) if type(s) is tuple else s for s in self._saved)

    def _again(self, index: int, value: Value) -> Tensor:
        node = _current.get(id(self))
        return Tensor(value, None if node is None else node.edge(index))

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """These results have no gradient."""
        self._fixed |= {id(t) for t in tensors}

    def mark_dirty(self, *tensors: Tensor) -> None:
        """These inputs were written to, and are returned."""
        self._dirty |= {id(t) for t in tensors}

    def set_materialize_grads(self, value: bool) -> None:
        """Whether backward gets zeros (or else None) for results without a gradient."""
        self._materialize = value


#: Contexts whose backward is running, by id(): saved results get their history there.
_current: dict[int, FunctionNode] = {}


class FunctionNode:
    """The graph node of a user's function; see GradNode."""

    __slots__ = ("context", "count", "edges", "function", "hooks", "inputs", "passed", "results", "where")

    def __init__(self, function: type[Function], context: Context, args: tuple[Any, ...]) -> None:
        self.function = function
        self.context = context
        self.edges: tuple[Edge | None, ...] = tuple(a._fn if isinstance(a, Tensor) else None for a in args)
        self.inputs = tuple(a._spec if isinstance(a, Tensor) else None for a in args)
        self.results: list[Any] = []  #: specs; None for results that are not tensors
        self.count = 1
        self.passed = False  #: whether backward has passed, and dropped what was saved
        self.hooks: dict[int, list[Hook]] | None = None
        self.where = users_line()

    @property
    def saved(self) -> Any:
        """What a GradNode has there: None once backward has passed."""
        return None if self.passed else ()

    @saved.setter
    def saved(self, value: Any) -> None:
        self.passed = value is None and bool(self.context._saved)
        if self.passed:
            self.context._saved = []

    @property
    def next_functions(self) -> tuple[tuple[Any, int], ...]:
        """Where the arguments' gradients go; see GradNode."""
        return followers(self.edges)

    def __repr__(self) -> str:
        return node_text(self)

    def name(self) -> str:
        """As torch calls it."""
        return f"{self.function.__name__}Backward"

    def part(self, index: int) -> NodeResult:
        return NodeResult(self, index)

    def edge(self, index: int) -> Edge:
        """Where the gradient of a result goes."""
        return self if self.count == 1 else self.part(index)

    def backward(self, gs: list[Any], create_graph: bool) -> list[tuple[Edge, Any]]:
        ctx, name = self.context, self.function.__name__
        if self.saved is None:
            raise AutogradError(f"{name}: backward a second time; call backward(retain_graph=True) the first time")
        if ctx._materialize:
            results = zip(gs, self.results, strict=True)  # results that are not tensors have no gradient
            gs = [filled(s.shape, 0.0, s.dtype) if g is None and s is not None else g for g, s in results]
        if create_graph:
            _current[id(ctx)] = self
        try:
            made = self.function.backward(ctx, *gs)
        finally:
            _current.pop(id(ctx), None)
        grads = made if isinstance(made, tuple) else (made,)
        count = len(self.edges)
        if len(grads) != count and (len(grads) < count or any(d is not None for d in grads[count:])):
            raise AutogradError(f"{name}.backward returned {len(grads)} gradients for {len(self.edges)} inputs")
        found = []
        for edge, spec, d in zip(
            self.edges, self.inputs, grads, strict=False
        ):  # trailing None for arguments with defaults
            if edge is None or d is None:
                continue
            assert spec is not None
            if not isinstance(d, Tensor):
                raise AutogradError(f"{name}.backward must return tensors or None, got {type(d).__name__}")
            found.append((edge, fit(d, spec)))
        return found


class Function:
    """An op with a gradient of your own: subclass it, write forward and backward, call `apply`.

    >>> import gt
    >>> class Double(gt.autograd.Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         return x * 2
    ...     @staticmethod
    ...     def backward(ctx, g):
    ...         return g * 2
    >>> x = gt.ones(2, requires_grad=True)
    >>> Double.apply(x).sum().backward()
    >>> x.grad
    tensor([2., 2.])
    """

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Any:
        """What the function computes."""
        raise AutogradError("autograd.Function: forward() is not defined")

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """The gradient of every input of forward, given those of its results."""
        raise AutogradError("autograd.Function: backward() is not defined")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Instead of a `ctx` in forward: what to keep of its inputs and output."""

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Run it on these arguments."""
        needs = tuple(isinstance(a, Tensor) and a.requires_grad for a in args)
        ctx = Context(needs)
        with set_grad(False):
            if cls.setup_context is not Function.setup_context:
                out = cls.forward(*args)
                cls.setup_context(ctx, args, out)
            else:
                out = cls.forward(ctx, *args)
        if not recorder().grad or not any(needs):
            return out
        return _with_history(cls, ctx, args, out)


def _with_history(cls: type[Function], ctx: Context, args: tuple[Any, ...], out: Any) -> Any:
    outs = list(out) if isinstance(out, (tuple, list)) else [out]
    node = FunctionNode(cls, ctx, args)
    node.count = len(outs)
    given = {id(a) for a in args}
    made: list[Any] = []
    for i, t in enumerate(outs):
        if not isinstance(t, Tensor):
            node.results.append(None)
            made.append(t)
            continue
        node.results.append(t._spec)
        if id(t) in ctx._fixed or not t.dtype.is_differentiable:
            made.append(t)
        elif id(t) in ctx._dirty:
            if type(t._fn) is Leaf:
                raise AutogradError(f"{cls.__name__}: a leaf that requires grad was written in place")
            t._fn = node.edge(i)
            made.append(t)
        else:
            made.append(Tensor(t._v or t._read(), node.edge(i)) if id(t) in given or t._fn is not None else t)
            made[-1]._fn = node.edge(i)
    numbers = {id(t): i for i, t in enumerate(outs) if isinstance(t, Tensor) and id(t) not in given}
    ctx._saved = [
        (numbers[id(t)], t._v or t._read()) if isinstance(t, Tensor) and id(t) in numbers else t for t in ctx._saved
    ]
    return (tuple(made) if isinstance(out, tuple) else made) if isinstance(out, (tuple, list)) else made[0]


def once_differentiable(f: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator for a backward that cannot be differentiated: its results have no history."""
    return set_grad(False)(f)
