"""The tensor: what the user holds. It has a value (often still pending) and perhaps a history.

Its arithmetic is recorder.py's, its aliasing views.py's, its gradients autograd.py's. Most methods are
functions of the files beside this one under their own names: methods.py puts them here.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator
from sys import getrefcount
from typing import Any, NoReturn

import numpy as np

from gt.client.compat.arguments import shown
from gt.client.compat.dims import one_dim
from gt.client.compat.operands import coerce, comparable
from gt.client.functions import elementwise as ew
from gt.client.functions import indexing, printing, shapes
from gt.client.grad import backward
from gt.client.record import recorder
from gt.client.record.graph import GradNode, Handle, Leaf, Part
from gt.client.record.pending import Value
from gt.client.record.recorder import apply, binary, unary
from gt.client.record.tree import Kind, kind_of
from gt.client.views import aliases as views
from gt.dtypes import DType
from gt.errors import AutogradError, DTypeError, GTError, ShapeError
from gt.ops import TABLE
from gt.ops.record import Op
from gt.program import Spec

_ADD, _SUB, _MUL, _DIV = (Kind(TABLE[n], {}) for n in ("add", "sub", "mul", "div"))
_POW, _MATMUL, _NEG = (Kind(TABLE[n], {}) for n in ("pow", "matmul", "neg"))
_EQ, _NE, _LT, _LE, _GT, _GE = (Kind(TABLE[n], {}) for n in ("eq", "ne", "lt", "le", "gt", "ge"))
_new: Callable[[type], Any] = object.__new__


class Tensor:
    """A tensor on the cluster; use it like torch's."""

    # _v: the value, or None if it shares memory; then _x says with whom (views.py). _fn: autograd.py.
    __slots__ = ("__dict__", "__weakref__", "_fn", "_v", "_x")

    __array_priority__ = 1000  #: `array * tensor` and `np.sqrt(2) * tensor` are the tensor's to compute.

    def __init__(self, value: Any = None, fn: Any = None, *sizes: int) -> None:
        if type(value) is not Value:
            from gt.client.compat.legacy import first_value

            value, fn = first_value([a for a in (value, fn, *sizes) if a is not None]), None
        self._v: Value | None = value
        self._fn = fn
        self._x: views.Alias | None = None

    _read = views.read

    def _write(self, new: Tensor) -> Tensor:
        views.write(self, new)
        return self

    @staticmethod
    def _apply(op: Op, args: tuple[Any, ...], attrs: dict[str, Any]) -> Any:
        """Record an op; see `Op.__call__`."""
        if op.compose is not None and op.vjp is None and recorder.recorder().grad:
            if any(getattr(a, "_fn", None) is not None for a in args):
                return op.compose(*args, **attrs)  # its parts have the gradients
        return apply(kind_of(op, attrs), args)

    def __getattr__(self, name: str) -> Any:
        """Public ops without a method of their own are found in the table: `x.softplus(...)`."""
        op = TABLE.get(name)
        if op is not None and op.public:
            return lambda *args, **attrs: Tensor._apply(op, (self, *args), attrs)
        if not name.startswith("_"):
            from gt.client.compat.fallback import find

            torchs = find(name)
            if torchs is not None:
                return lambda *args, **kwargs: torchs(self, *args, **kwargs)
        raise AttributeError(f"a tensor has no attribute {name!r}")

    # --- what it is ---

    @property
    def _spec(self) -> Spec:
        v = self._v
        if v is None:
            assert self._x is not None
            v = self._x.cell.value  # a write keeps shape and dtype: no need to take a view again
        return v.spec

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the dimensions, a plain tuple."""
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
            raise TypeError("len() of a tensor without dimensions")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        if not self.shape:
            raise TypeError("iteration over a tensor without dimensions")
        return iter(shapes.unbind(self))

    __hash__ = object.__hash__

    # --- reading it ---

    def numpy(self, *, force: bool = False) -> np.ndarray[Any, Any]:
        """The data as a numpy array of its own; force: also if it requires grad. Waits for it."""
        if self._fn is not None and not force:
            raise AutogradError("numpy() of a tensor that requires grad; use tensor.detach().numpy()")
        return self._fetch()

    def _fetch(self) -> np.ndarray[Any, Any]:
        rec = recorder.recorder()
        if rec.trace is not None:
            rec.trace.refuse_sync()
        return rec.session.fetch(self._v or self._read())

    def item(self) -> Any:
        """The only element, as a Python number. Waits for it."""
        if self._spec.size != 1:
            raise ShapeError(f"item: a tensor of one element, not {self.shape}")
        return self._fetch().reshape(()).item()

    def tolist(self) -> Any:
        """The data as nested lists of Python numbers. Waits for it."""
        return self._fetch().tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if copy is False:
            raise ValueError("a tensor's data is on a worker: an array of it is always a copy")
        data = self.numpy()
        return data if dtype is None else data.astype(dtype)

    def __float__(self) -> float:
        return float(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        if self.dtype.is_differentiable or self._spec.size != 1:
            raise TypeError("only an integer tensor of one element can be an index")
        return int(self.item())

    def __bool__(self) -> bool:
        if self._spec.size != 1:
            count = "several elements" if self._spec.size else "no elements"
            raise ShapeError(f"the truth of a tensor with {count} is ambiguous; use any() or all()")
        return bool(self.item())

    def __contains__(self, element: Any) -> bool:
        if not comparable(element):
            raise DTypeError(f"in: a tensor holds numbers, not {shown(element)}")
        return bool((self == element).any())

    def __repr__(self) -> str:
        try:
            data = self._fetch()
        except GTError as e:
            return f"<tensor {self._spec!r}: {e}>"
        suffixes = []
        if self.grad_fn is not None:
            suffixes.append(f"grad_fn=<{self.grad_fn.name()}>")
        elif self.requires_grad:
            suffixes.append("requires_grad=True")
        return printing.tensor_text(data, self.dtype.name, suffixes)

    def __format__(self, form: str) -> str:
        number = not self.shape or (form and self._spec.size == 1)
        return format(self.item(), form) if number else repr(self)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("a GT tensor cannot be pickled; use gt.save(), or pickle tensor.numpy()")

    def __copy__(self) -> Tensor:
        """Another tensor on the same memory, a leaf."""
        twin = self.detach()
        twin = twin if type(self) is Tensor else type(self)(twin)
        return twin.requires_grad_(self._fn is not None)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if self._fn is not None and type(self._fn) is not Leaf:
            raise AutogradError("deepcopy of a tensor with a history; copy tensor.detach() instead")
        twin = _new(type(self))
        twin._v, twin._x, twin._fn = views.copied(self), None, None if self._fn is None else Leaf()
        memo[id(self)] = twin
        if not isinstance(self, Parameter):  # whose copies have no gradient in torch: to train one begins anew
            twin.__dict__.update(copy.deepcopy(self.__dict__, memo))
            if self._fn is not None and self._fn.grad is not None:
                twin._fn.grad = self._fn.grad.__deepcopy__(memo)
        return twin

    # --- gradients ---

    @property
    def requires_grad(self) -> bool:
        """Whether gradients flow to it or through it."""
        if self._x is not None:
            self._read()
        return self._fn is not None

    @requires_grad.setter
    def requires_grad(self, on: bool) -> None:
        self.requires_grad_(on)

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Have it require gradients, or not, from now on."""
        if requires_grad and self._fn is None:
            if not self.dtype.is_differentiable:
                raise DTypeError(f"only floating-point tensors can require grad, not {self.dtype.name}")
            self._fn = Leaf()
        elif not requires_grad:
            if not self.is_leaf:
                raise AutogradError("requires_grad can be switched off only for leaves; use detach()")
            self._fn = None
        return self

    @property
    def is_leaf(self) -> bool:
        """Whether it has no history: it was made by the user, or requires no gradient."""
        return self._fn is None or type(self._fn) is Leaf

    @property
    def grad_fn(self) -> GradNode | None:
        """The op that made it, in the graph of gradients; None of a leaf."""
        if self._x is not None:
            self._read()
        return None if self.is_leaf else backward.whole(self._fn)

    @property
    def grad(self) -> Tensor | None:
        """What backward() has added up for this leaf, or for a tensor after retain_grad()."""
        if type(self._fn) is Leaf:
            _touch(self._fn)
            return self._fn.grad
        return self.__dict__.get("_grad")

    @grad.setter
    def grad(self, g: Tensor | None) -> None:
        if g is not None and not isinstance(g, Tensor):
            raise DTypeError(f"grad: takes a tensor or None, not {shown(g)}")
        if g is not None and g.shape != self.shape:
            raise ShapeError(f"grad: a gradient of shape {g.shape} for a tensor of shape {self.shape}")
        if type(self._fn) is Leaf:
            _touch(self._fn)
            self._fn.grad = g
        else:
            self.__dict__["_grad"] = g

    def backward(
        self,
        gradient: Tensor | None = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Any = None,
    ) -> None:
        """Add the gradients of this tensor to the `.grad` of the leaves it came from, or of the inputs named."""
        backward.backward((self,), (gradient,), retain_graph, create_graph, inputs)

    def register_hook(self, hook: Callable[[Tensor], Tensor | None]) -> Handle:
        """Call `hook(grad)` when this tensor's gradient is computed; what it returns, if anything, is
        used instead. `remove()` of what is returned takes the hook away."""
        fn = self._fn
        if fn is None:
            raise AutogradError("register_hook: this tensor does not require grad")
        if type(fn) is Leaf:
            fn.hooks = hooks = fn.hooks or []
        else:
            whole, index = (fn.whole, fn.index) if type(fn) is Part else (fn, 0)
            whole.hooks = by_result = whole.hooks or {}
            hooks = by_result.setdefault(index, [])
        return Handle(hooks, hook)

    def register_post_accumulate_grad_hook(self, hook: Callable[[Tensor], None]) -> Handle:
        """Call `hook(tensor)` each time a gradient has been added to this leaf's `.grad`."""
        fn = self._fn
        if type(fn) is not Leaf:
            raise AutogradError("register_post_accumulate_grad_hook: only a leaf that requires grad has one")
        fn.after = hooks = fn.after or []
        me = weakref.ref(self)  # the leaf is the tensor's own: a cycle would keep both alive

        def call() -> None:
            tensor = me()
            if tensor is not None:
                hook(tensor)

        return Handle(hooks, call)

    def retain_grad(self) -> None:
        """Keep the gradient of this tensor, which is not a leaf, in `.grad`."""
        if not self.is_leaf and not self.retains_grad:
            keep = self.__dict__
            keep["_retains"] = True

            def hook(g: Tensor) -> None:
                have = keep.get("_grad")
                keep["_grad"] = Tensor(g._v or g._read(), g._fn) if have is None else have + g  # others may have g too

            hook.keeps = True  # type: ignore[attr-defined]
            self.register_hook(hook)

    @property
    def retains_grad(self) -> bool:
        """Whether retain_grad() was called for this tensor, which is not a leaf."""
        return not self.is_leaf and "_retains" in self.__dict__

    def detach(self) -> Tensor:
        """A tensor on the same memory, without history."""
        return views.share(self)

    def detach_(self) -> Tensor:
        """Forget its history."""
        self._fn = None
        return self

    @property
    def data(self) -> Tensor:
        """A tensor on the same memory, without history; set it to point to another's memory."""
        return views.share(self)

    @data.setter
    def data(self, other: Tensor) -> None:
        if not isinstance(other, Tensor):
            raise DTypeError(f"data: takes a tensor, not {shown(other)}")
        views.adopt(self, other)

    # --- arithmetic ---

    def __add__(self, other: Any) -> Tensor:
        return binary(_ADD, self, other)

    def __radd__(self, other: Any) -> Tensor:
        return binary(_ADD, self, other)

    def __sub__(self, other: Any) -> Tensor:
        return binary(_SUB, self, other)

    def __rsub__(self, other: Any) -> Tensor:
        return apply(_SUB, (other, self))

    def __mul__(self, other: Any) -> Tensor:
        return binary(_MUL, self, other)

    def __rmul__(self, other: Any) -> Tensor:
        return binary(_MUL, self, other)

    def __truediv__(self, other: Any) -> Tensor:
        return binary(_DIV, self, other)

    def __rtruediv__(self, other: Any) -> Tensor:
        return apply(_DIV, (other, self))

    def __floordiv__(self, other: Any) -> Tensor:
        return ew.floor_divide(self, other)

    def __rfloordiv__(self, other: Any) -> Tensor:
        return ew.floor_divide(other, self)

    def __mod__(self, other: Any) -> Tensor:
        return ew.remainder(self, other)

    def __rmod__(self, other: Any) -> Tensor:
        return ew.remainder(other, self)

    def __pow__(self, other: Any) -> Tensor:
        return ew.pow(self, other)

    def __rpow__(self, other: Any) -> Tensor:
        return apply(_POW, (other, self))

    def __matmul__(self, other: Any) -> Tensor:
        return binary(_MATMUL, self, other)

    def __rmatmul__(self, other: Any) -> Tensor:
        return apply(_MATMUL, (other, self))

    def __neg__(self) -> Tensor:
        return unary(_NEG, self)

    def __pos__(self) -> Tensor:
        return self

    def __abs__(self) -> Tensor:
        return ew.abs(self)

    def __invert__(self) -> Tensor:
        return ew.bitwise_not(self)

    def __and__(self, other: Any) -> Tensor:
        return ew.bitwise_and(self, other)

    def __or__(self, other: Any) -> Tensor:
        return ew.bitwise_or(self, other)

    def __xor__(self, other: Any) -> Tensor:
        return ew.bitwise_xor(self, other)

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    def __lshift__(self, other: Any) -> Tensor:
        return ew.bitwise_left_shift(self, other)

    def __rlshift__(self, other: Any) -> Tensor:
        return ew.bitwise_left_shift(other, self)

    def __rshift__(self, other: Any) -> Tensor:
        return ew.bitwise_right_shift(self, other)

    def __rrshift__(self, other: Any) -> Tensor:
        return ew.bitwise_right_shift(other, self)

    def __eq__(self, other: Any) -> Tensor:  # type: ignore[override]  # element by element, as in torch
        return binary(_EQ, self, other) if comparable(other) else NotImplemented

    def __ne__(self, other: Any) -> Tensor:  # type: ignore[override]  # likewise
        return binary(_NE, self, other) if comparable(other) else NotImplemented

    def __lt__(self, other: Any) -> Tensor:
        return binary(_LT, self, other)

    def __le__(self, other: Any) -> Tensor:
        return binary(_LE, self, other)

    def __gt__(self, other: Any) -> Tensor:
        return binary(_GT, self, other)

    def __ge__(self, other: Any) -> Tensor:
        return binary(_GE, self, other)

    __getitem__ = indexing.getitem
    __setitem__ = indexing.setitem

    def where(self, condition: Any, other: Any) -> Tensor:
        """This tensor where the condition holds, else the other."""
        return ew.where(condition, self, other)


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
            super().__init__(views.copied(data), leaf)
        else:
            super().__init__(data._v or data._read(), leaf)
            views.adopt(self, data)  # as in torch, it is on the memory of the tensor it is made of

    def __repr__(self) -> str:
        return "Parameter containing:\n" + super().__repr__()


def _touch(leaf: Leaf) -> None:
    """A traced function must know whose gradients it used."""
    trace = recorder.recorder().trace
    if trace is not None:
        trace.touch(leaf)


recorder.make = Tensor
recorder.coerce = coerce
