"""The tensor: what the user holds. It has a value (often still pending), perhaps a history, perhaps shared memory.

This file is what a tensor is made of. It is at the bottom of the client, since recording (record/recorder.py) makes
tensors; so nothing here records, waits or reads data. What a tensor can do are functions of the files above, and
methods.py attaches them to the class. Those that GT's files or a type checker need to know are declared in it.

A tensor's `_fn` is where its gradient goes: a GradNode (it was computed), a Leaf (it was made with requires_grad), a
NodeResult (one of several results), or None. A user's own function (grad/custom.py) has a node of its own kind.

Law 1: the graph dies with the tensors; it has no reference cycles.
Law 2: a node keeps only the values its VJP reads; shapes are not values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from sys import getrefcount
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import msgspec
import numpy as np

from gt import dtypes
from gt.client.compat.dims import one_dim
from gt.client.programs.pending import Value
from gt.client.programs.tree import Kind, Node, Pullback
from gt.dtypes import DType
from gt.errors import AutogradError, DTypeError
from gt.ops.record import Op
from gt.program import Size, Spec

# --- the default dtype -------------------------------------------------------------------------------

_default: list[DType] = [dtypes.float32]  #: One entry: the default dtype of the process, as in PyTorch.


def default_dtype() -> DType:
    """The dtype of a new tensor of floats, if none is given."""
    return _default[0]


def change_default_dtype(dtype: DType) -> None:
    """What gt.set_default_dtype does first; see compat/autocast.py for the rest."""
    _default[0] = dtype


# --- history -----------------------------------------------------------------------------------------

Hook = Callable[[Any], Any]

#: Ops that torch has under another name.
_TORCHS = {"square": "pow"}


class GradFn(Protocol):
    """A node of the graph: a GradNode, or the node of a user's function."""

    hooks: dict[int, list[Hook]] | None  #: by result
    saved: Any  #: What backward needs; None once it has passed.

    @property
    def edges(self) -> tuple[Edge | None, ...]: ...

    @property
    def count(self) -> int: ...

    @property
    def where(self) -> tuple[str, int]: ...

    @property
    def next_functions(self) -> tuple[tuple[Any, int], ...]: ...

    def name(self) -> str: ...

    def part(self, index: int) -> NodeResult: ...


class RemovableHandle:
    """What registering a hook returns: `remove()` takes the hook away again."""

    __slots__ = ("_hooks", "_mine")

    def __init__(self, hooks: list[Any], hook: Any, prepend: bool = False) -> None:
        self._hooks = hooks
        self._mine = hook
        hooks.insert(0 if prepend else len(hooks), hook)

    def remove(self) -> None:
        """Take the hook away; a second time does nothing."""
        self._hooks[:] = [h for h in self._hooks if h is not self._mine]

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()


class Later:
    """Stands for saved values that were dropped: `values()` computes them again when backward asks for them."""

    __slots__ = ("values",)

    def __init__(self, values: Callable[[], tuple[Any, ...]]) -> None:
        self.values = values


class GradNode(msgspec.Struct, eq=False):  # a struct, because most ops make one
    """How to turn the gradient of an op's result into those of its operands."""

    node: Node  #: of the tree: op, attributes, operands' specs, the user's line
    pull: Pullback  #: which says what backward records
    edges: tuple[Edge | None, ...]  #: where each operand's gradient goes
    #: Operands and then the result, as far as the VJP reads them. None once backward has passed.
    #: Or something that computes them again.
    saved: tuple[Any, ...] | Later | None
    hooks: dict[int, list[Hook]] | None = None  #: by result

    def part(self, index: int) -> NodeResult:
        return NodeResult(self, index)

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
        return node_text(self)

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
                f"{self.where[0]}:{self.where[1]}: backward a second time, but the values of the graph were freed; "
                "call backward(retain_graph=True) the first time"
            )
        if isinstance(saved, Later):
            saved = self.saved = saved.values()
        return saved


class NodeResult:
    """One of several results of a graph node."""

    __slots__ = ("index", "whole")

    def __init__(self, whole: GradFn, index: int) -> None:
        self.whole = whole
        self.index = index


class Leaf:
    """The history of a tensor that was made with requires_grad: where its gradient adds up."""

    __slots__ = ("after", "grad", "hooks")

    def __init__(self) -> None:
        self.grad: Tensor | None = None
        self.hooks: list[Hook] | None = None
        self.after: list[Callable[[], None]] | None = None  #: Called when a gradient has been added.

    next_functions = ()

    def __repr__(self) -> str:
        return node_text(self)

    def name(self) -> str:
        """As torch calls it."""
        return "AccumulateGrad"


#: Where a gradient goes.
Edge = GradFn | Leaf | NodeResult


def followers(edges: tuple[Edge | None, ...]) -> tuple[tuple[Any, int], ...]:
    """The nodes behind edges, each with the number of its result; (None, 0) where no gradient goes."""
    return tuple((e.whole, e.index) if isinstance(e, NodeResult) else (e, 0) for e in edges)


def node_text(fn: GradFn | Leaf) -> str:
    """A node as text: never its edges, for these lead to the whole graph."""
    return f"<{fn.name()} object at {id(fn):#x}>"


# --- shared memory -----------------------------------------------------------------------------------


class Cell:
    """Where tensors that share memory find their value; see views/aliases.py."""

    __slots__ = ("value", "version")

    def __init__(self, value: Value) -> None:
        self.value = value
        self.version = 0  #: Grows with every write.


class Alias(msgspec.Struct, eq=False):  # a struct, because every view has one
    """What a tensor that shares memory has instead of a value of its own."""

    cell: Cell
    base: Tensor | None = None  #: For a view: what it is a view of ...
    under: Alias | None = None  #: ... the memory of that when the view was taken: see `aliases.adopt` ...
    seen: int = 0  #: ... at which version of the base's cell it was taken ...
    kind: Kind | None = None  #: ... and how: this op, these numbers, that one of its results.
    args: tuple[Any, ...] = ()
    part: int = 0
    grad: bool = False  #: Whether it was taken with history, and so is taken again.


# --- the tensor --------------------------------------------------------------------------------------


class Tensor:
    """A tensor on the cluster; use it like torch's."""

    #: _v: the value, or None if it shares memory; then _x says with whom. _fn: its history.
    __slots__ = ("__dict__", "__weakref__", "_fn", "_v", "_x")

    __array_priority__ = 1000  #: `array * tensor` and `np.sqrt(2) * tensor` are the tensor's to compute.

    def __init__(self, value: Any = None, fn: Edge | None = None, *sizes: int) -> None:
        if type(value) is not Value:
            value, fn = Tensor._first_value([a for a in (value, fn, *sizes) if a is not None]), None
        self._v: Value | None = value
        self._fn: Edge | None = fn
        self._x: Alias | None = None

    _apply: ClassVar[Callable[[Op, tuple[Any, ...], dict[str, Any]], Any]]  #: Record an op; see `Op.__call__`.
    _coerce: ClassVar[Callable[..., Any]]  #: An operand made of something that is not a tensor or a plain number.
    _first_value: ClassVar[Callable[[list[Any]], Value]]  #: What `gt.Tensor(data)` and `gt.Tensor(2, 3)` hold.
    _find: ClassVar[Callable[[Tensor, str], Any]]  #: A method that is not written out anywhere: `x.softplus`.

    if TYPE_CHECKING:  # Attached by methods.py. Other methods are of type Any, see __getattr__.
        data: Tensor
        grad: Tensor | None

        # fmt: off
        def _read(self) -> Value: ...
        def _write(self, new: Tensor) -> None: ...
        def _fetch(self) -> np.ndarray[Any, Any]: ...
        def __add__(self, other: Any) -> Tensor: ...
        def __radd__(self, other: Any) -> Tensor: ...
        def __sub__(self, other: Any) -> Tensor: ...
        def __rsub__(self, other: Any) -> Tensor: ...
        def __mul__(self, other: Any) -> Tensor: ...
        def __rmul__(self, other: Any) -> Tensor: ...
        def __truediv__(self, other: Any) -> Tensor: ...
        def __rtruediv__(self, other: Any) -> Tensor: ...
        def __floordiv__(self, other: Any) -> Tensor: ...
        def __mod__(self, other: Any) -> Tensor: ...
        def __pow__(self, other: Any) -> Tensor: ...
        def __rpow__(self, other: Any) -> Tensor: ...
        def __matmul__(self, other: Any) -> Tensor: ...
        def __and__(self, other: Any) -> Tensor: ...
        def __or__(self, other: Any) -> Tensor: ...
        def __lt__(self, other: Any) -> Tensor: ...
        def __le__(self, other: Any) -> Tensor: ...
        def __gt__(self, other: Any) -> Tensor: ...
        def __ge__(self, other: Any) -> Tensor: ...
        def __eq__(self, other: Any) -> Tensor: ...  # type: ignore[override]  # element by element, as in torch
        def __ne__(self, other: Any) -> Tensor: ...  # type: ignore[override]  # likewise
        def __neg__(self) -> Tensor: ...
        def __invert__(self) -> Tensor: ...
        def __getitem__(self, index: Any) -> Tensor: ...
        def __setitem__(self, index: Any, value: Any) -> None: ...
        def __iter__(self) -> Iterator[Tensor]: ...
        def __float__(self) -> float: ...
        def __int__(self) -> int: ...
        # fmt: on

    def __getattr__(self, name: str) -> Any:
        """Methods that are written out nowhere are found when they are asked for."""
        return Tensor._find(self, name)

    # --- what it is ---

    @property
    def _spec(self) -> Spec:
        v = self._v
        if v is None:
            assert self._x is not None
            v = self._x.cell.value  # a write keeps shape and dtype: no need to take a view again
        return v.spec

    @property
    def shape(self) -> Size:
        """The sizes of the dimensions: a tuple that also has numel()."""
        v = self._v  # `_spec` written out, here and below: these are asked for all the time
        return (self._x.cell.value if v is None else v).spec.shape  # type: ignore[union-attr]  # one of them is there

    @property
    def dtype(self) -> DType:
        """The type of the elements."""
        v = self._v
        return (self._x.cell.value if v is None else v).spec.dtype  # type: ignore[union-attr]  # likewise

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        v = self._v
        return len((self._x.cell.value if v is None else v).spec.shape)  # type: ignore[union-attr]  # likewise

    @property
    def nbytes(self) -> int:
        """The bytes of its elements."""
        return self._spec.nbytes

    @property
    def itemsize(self) -> int:
        """The bytes of one element."""
        return self._spec.dtype.itemsize

    def size(self, dim: int | None = None) -> Any:
        """The sizes, or that of one dimension."""
        return self.shape if dim is None else self.shape[one_dim("size", dim, self.ndim)]

    def dim(self) -> int:
        """The number of dimensions."""
        return self.ndim

    def numel(self) -> int:
        """The number of elements."""
        return self._spec.size

    def element_size(self) -> int:
        """The bytes of one element."""
        return self.itemsize

    def is_floating_point(self) -> bool:
        """Whether the elements are floating-point numbers."""
        return self.dtype.is_floating_point

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a tensor of 0 dimensions")
        return self.shape[0]

    @property
    def requires_grad(self) -> bool:
        """Whether gradients flow to it or through it."""
        if self._x is not None:
            self._read()
        return self._fn is not None

    @requires_grad.setter
    def requires_grad(self, on: bool) -> None:
        self.requires_grad_(on)

    @property
    def is_leaf(self) -> bool:
        """Whether it has no history: it was made by the user, or requires no gradient."""
        return self._fn is None or type(self._fn) is Leaf

    @property
    def grad_fn(self) -> GradFn | None:
        """The op that made it, in the graph of gradients; None of a leaf."""
        if self._x is not None:
            self._read()
        fn = self._fn
        if fn is None or isinstance(fn, Leaf):
            return None
        return fn.whole if isinstance(fn, NodeResult) else fn

    @property
    def retains_grad(self) -> bool:
        """Whether retain_grad() was called for this tensor, which is not a leaf."""
        return not self.is_leaf and "_retains" in self.__dict__


def own(x: Any) -> Any:
    """The tensor that an adopted torch tensor stands for (see gt/adoption); anything else as it is."""
    return x if isinstance(x, Tensor) else getattr(x, "_gt", x)


class _Counted:
    def __init__(self, data: Any) -> None:
        self.references = getrefcount(data)


#: What a constructor counts on an argument that the caller has no name for: sharing memory with that is idle.
UNNAMED = _Counted(object()).references


class Parameter(Tensor):
    """A tensor that a module trains."""

    __slots__ = ()

    def __init__(self, data: Tensor | Value, requires_grad: bool = True) -> None:
        leaf = Leaf() if requires_grad else None
        dtype = data.spec.dtype if isinstance(data, Value) else data.dtype
        if requires_grad and not dtype.is_differentiable:
            raise DTypeError(f"only floating-point tensors can require grad, not {dtype.name}; use requires_grad=False")
        if isinstance(data, Value):
            super().__init__(data, leaf)
        elif data._x is None and getrefcount(data) <= UNNAMED:
            assert data._v is not None
            data._v.copied = True  # values never change, so nothing need be computed
            super().__init__(data._v, leaf)
        else:
            super().__init__(data._v or data._read(), leaf)
            self.data = data  # as in torch, it is on the memory of the tensor it is made of

    def __repr__(self) -> str:
        return "Parameter containing:\n" + super().__repr__()
