"""The tensor: what the user holds. It has a value (often still pending) and perhaps a history.

Its arithmetic is recorder.py's, its aliasing views.py's, its gradients autograd.py's. Most methods are
functions of the files beside this one under their own names: methods.py puts them here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np

from gt import dtypes
from gt.client import autograd, indexing, printing, recorder, shapes, views
from gt.client import elementwise as ew
from gt.client.autograd import GradNode, Leaf, Part
from gt.client.recorder import Value, apply, binary, unary
from gt.client.tree import Kind
from gt.dtypes import DType
from gt.errors import AutogradError, DTypeError, GTError, ShapeError
from gt.ops import TABLE
from gt.ops.record import Op
from gt.program import Spec

_ADD, _SUB, _MUL, _DIV = (Kind(TABLE[n], {}) for n in ("add", "sub", "mul", "div"))
_POW, _MATMUL, _NEG = (Kind(TABLE[n], {}) for n in ("pow", "matmul", "neg"))
_EQ, _NE, _LT, _LE, _GT, _GE = (Kind(TABLE[n], {}) for n in ("eq", "ne", "lt", "le", "gt", "ge"))

_KINDS: dict[Any, Kind] = {}


def _kind(op: Op, attrs: dict[str, Any]) -> Kind:
    """The kind of an op called from a gradient or a composition."""
    key = (op, *attrs.items())
    kind = _KINDS.get(key)
    if kind is None:
        if len(_KINDS) > 10_000:
            _KINDS.clear()
        kind = _KINDS[key] = Kind(op, attrs)
    return kind


class Tensor:
    """A tensor on the cluster; use it like torch's."""

    # _v: the value, or None if it shares memory; then _x says with whom (views.py). _fn: autograd.py.
    __slots__ = ("__dict__", "__weakref__", "_fn", "_v", "_x")

    def __init__(self, value: Value, fn: Any = None) -> None:
        self._v: Value | None = value
        self._fn = fn
        self._x: views.Alias | None = None

    def _read(self) -> Value:
        return views.read(self)

    def _write(self, new: Tensor) -> Tensor:
        views.write(self, new)
        return self

    @staticmethod
    def _apply(op: Op, args: tuple[Any, ...], attrs: dict[str, Any]) -> Any:
        """Record an op; see `Op.__call__`."""
        if op.compose is not None and op.vjp is None and recorder.recorder().grad:
            if any(getattr(a, "_fn", None) is not None for a in args):
                return op.compose(*args, **attrs)  # its parts have the gradients
        return apply(_kind(op, attrs), args)

    def __getattr__(self, name: str) -> Any:
        """Ops that have no method written out here are found in the table: `x.softplus()`."""
        op = TABLE.get(name)
        if op is None:
            raise AttributeError(f"a tensor has no attribute {name!r}")
        return lambda *args, **attrs: Tensor._apply(op, (self, *args), attrs)

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
        return self._spec.shape

    @property
    def dtype(self) -> DType:
        return self._spec.dtype

    @property
    def ndim(self) -> int:
        return len(self._spec.shape)

    @property
    def nbytes(self) -> int:
        return self._spec.nbytes

    @property
    def itemsize(self) -> int:
        return self._spec.dtype.itemsize

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        return self.ndim

    def numel(self) -> int:
        return self._spec.size

    def element_size(self) -> int:
        return self.itemsize

    def is_floating_point(self) -> bool:
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

    def numpy(self) -> np.ndarray[Any, Any]:
        """The data as a numpy array of its own. Waits for it."""
        if self._fn is not None:
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
        return self._fetch().tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        data = self.numpy()
        return data if dtype is None else data.astype(dtype)

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        if self.dtype.is_differentiable or self._spec.size != 1:
            raise TypeError("only an integer tensor of one element can be an index")
        return int(self.item())

    def __bool__(self) -> bool:
        if self._spec.size != 1:
            raise ShapeError("the truth of a tensor with several elements is ambiguous; use any() or all()")
        return bool(self.item())

    def __contains__(self, element: Any) -> bool:
        return bool((self == element).any())

    def __repr__(self) -> str:
        try:
            data = self._fetch()
        except GTError as e:
            return f"<tensor {self._spec!r}: {e}>"
        suffixes = []
        if self.grad_fn is not None:
            suffixes.append(f"grad_fn=<{self.grad_fn.name}>")
        elif self.requires_grad:
            suffixes.append("requires_grad=True")
        return printing.tensor_text(data, self.dtype.name, suffixes)

    def __format__(self, form: str) -> str:
        number = not self.shape or (form and self._spec.size == 1)
        return format(self.item(), form) if number else repr(self)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("a GT tensor cannot be pickled; use gt.save(), or pickle tensor.numpy()")

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if self._fn is not None and type(self._fn) is not Leaf:
            raise AutogradError("deepcopy of a tensor with a history; copy tensor.detach() instead")
        twin = type(self)(views.copied(self))
        if type(self._fn) is Leaf:
            twin._fn = Leaf()
            if self._fn.grad is not None:
                twin._fn.grad = self._fn.grad.__deepcopy__(memo)
        memo[id(self)] = twin
        return twin

    # --- gradients ---

    @property
    def requires_grad(self) -> bool:
        if self._x is not None:
            self._read()
        return self._fn is not None

    @requires_grad.setter
    def requires_grad(self, on: bool) -> None:
        self.requires_grad_(on)

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
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
        return self._fn is None or type(self._fn) is Leaf

    @property
    def grad_fn(self) -> GradNode | Part | None:
        if self._x is not None:
            self._read()
        return None if self.is_leaf else self._fn

    @property
    def grad(self) -> Tensor | None:
        if type(self._fn) is Leaf:
            _touch(self._fn)
            return self._fn.grad
        return self.__dict__.get("_grad")

    @grad.setter
    def grad(self, g: Tensor | None) -> None:
        if g is not None and g.shape != self.shape:
            raise ShapeError(f"grad: a gradient of shape {g.shape} for a tensor of shape {self.shape}")
        if type(self._fn) is Leaf:
            _touch(self._fn)
            self._fn.grad = g
        else:
            self.__dict__["_grad"] = g

    def backward(
        self, gradient: Tensor | None = None, retain_graph: bool | None = None, create_graph: bool = False
    ) -> None:
        """Add the gradients of this tensor to the `.grad` of the leaves it came from."""
        if self.requires_grad is False:
            raise AutogradError("backward: this tensor does not require grad and has no history")
        autograd.run(
            [(self._fn, autograd.seed_gradient(self, gradient))],
            create_graph if retain_graph is None else retain_graph,
            create_graph,
        )

    def register_hook(self, hook: Callable[[Tensor], Tensor | None]) -> Callable[[], None]:
        """Call `hook(grad)` when this tensor's gradient is computed; what it returns, if anything, is
        used instead. Returns a function that removes the hook."""
        fn = self._fn
        if fn is None:
            raise AutogradError("register_hook: this tensor does not require grad")
        if type(fn) is Leaf:
            fn.hooks = hooks = fn.hooks or []
        else:
            whole, index = (fn.whole, fn.index) if type(fn) is Part else (fn, 0)
            whole.hooks = by_result = whole.hooks or {}
            hooks = by_result.setdefault(index, [])
        hooks.append(hook)
        return lambda: hooks.remove(hook) if hook in hooks else None

    def retain_grad(self) -> None:
        """Keep the gradient of this tensor, which is not a leaf, in `.grad`."""
        if not self.is_leaf:
            keep = self.__dict__

            def hook(g: Tensor) -> None:
                keep["_grad"] = Tensor(g._v or g._read(), g._fn)  # others may have g too

            self.register_hook(hook)

    def detach(self) -> Tensor:
        """A tensor on the same memory, without history."""
        return views.share(self)

    def detach_(self) -> Tensor:
        self._fn = None
        return self

    @property
    def data(self) -> Tensor:
        return views.share(self)

    @data.setter
    def data(self, other: Tensor) -> None:
        views.rebind(self, views.copied(other))

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
        return binary(_POW, self, other)

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
        if self.dtype is not dtypes.bool_:
            raise DTypeError(f"~: bool tensors only, not {self.dtype.name}")
        return ew.logical_not(self)

    def __and__(self, other: Any) -> Tensor:
        return ew.logical_and(*_bools("&", self, other))

    def __or__(self, other: Any) -> Tensor:
        return ew.logical_or(*_bools("|", self, other))

    def __xor__(self, other: Any) -> Tensor:
        return ew.logical_xor(*_bools("^", self, other))

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    def __eq__(self, other: Any) -> Tensor:  # type: ignore[override]  # element by element, as in torch
        return binary(_EQ, self, other) if _comparable(other) else NotImplemented

    def __ne__(self, other: Any) -> Tensor:  # type: ignore[override]
        return binary(_NE, self, other) if _comparable(other) else NotImplemented

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

    # --- types ---

    def to(self, *args: Any, dtype: Any = None, **ignored: Any) -> Tensor:
        """The tensor as another dtype. Devices are the server's affair: naming one changes nothing."""
        for a in args:
            if hasattr(a, "_v"):
                dtype = a.dtype
            elif isinstance(a, (DType, np.dtype, type)) or str(a) in dtypes.BY_NAME or "torch." in str(a):
                dtype = a
        return self if dtype is None else ew.cast(self, dtype)

    type = to
    cast = ew.cast

    def type_as(self, other: Tensor) -> Tensor:
        return ew.cast(self, other.dtype)

    def float(self) -> Tensor:
        return ew.cast(self, dtypes.float32)

    def double(self) -> Tensor:
        return ew.cast(self, dtypes.float64)

    def half(self) -> Tensor:
        return ew.cast(self, dtypes.float16)

    def bfloat16(self) -> Tensor:
        return ew.cast(self, dtypes.bfloat16)

    def long(self) -> Tensor:
        return ew.cast(self, dtypes.int64)

    def int(self) -> Tensor:
        return ew.cast(self, dtypes.int32)

    def bool(self) -> Tensor:
        return ew.cast(self, dtypes.bool_)

    def cpu(self) -> Tensor:
        return self

    def clone(self) -> Tensor:
        """A copy in memory of its own, with history."""
        rec = recorder.recorder()
        if rec.trace is not None or (self._fn is not None and rec.grad):
            return ew.mul(self, 1)  # in a trace, a value has one owner
        return Tensor(views.copied(self))

    def contiguous(self) -> Tensor:
        return self

    @property
    def T(self) -> Tensor:
        return shapes.permute(self, *range(self.ndim)[::-1])

    @property
    def mT(self) -> Tensor:
        return shapes.transpose(self, -2, -1)

    def view_as(self, other: Tensor) -> Tensor:
        return shapes.view(self, other.shape)

    def reshape_as(self, other: Tensor) -> Tensor:
        return shapes.reshape(self, other.shape)

    def matmul(self, other: Any) -> Tensor:
        return binary(_MATMUL, self, other)

    mm = bmm = mv = dot = matmul

    def embedding(self, index: Any) -> Tensor:
        return indexing.embedding(index, self)

    def where(self, condition: Any, other: Any) -> Tensor:
        return ew.where(condition, self, other)


class Parameter(Tensor):
    """A tensor that a module trains."""

    __slots__ = ()

    def __init__(self, data: Tensor | Value, requires_grad: bool = True) -> None:
        value = data if isinstance(data, Value) else views.copied(data)
        super().__init__(value, Leaf() if requires_grad else None)

    def __repr__(self) -> str:
        return "Parameter containing:\n" + super().__repr__()


class Ghost:
    """An operand of a gradient whose value nobody kept, since only its shape and dtype are asked for."""

    __slots__ = ("spec",)

    def __init__(self, spec: Any) -> None:
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


def _touch(leaf: Leaf) -> None:
    """A traced function must know whose gradients it used."""
    trace = recorder.recorder().trace
    if trace is not None:
        trace.touch(leaf)


def _comparable(other: Any) -> bool:
    return hasattr(other, "_v") or isinstance(other, (bool, int, float, np.ndarray, np.generic))


def _bools(op: str, a: Tensor, b: Any) -> tuple[Tensor, Any]:
    if a.dtype is not dtypes.bool_ or (hasattr(b, "dtype") and b.dtype is not dtypes.bool_):
        raise DTypeError(f"{op}: bool tensors only")
    return a, b


def _coerce(op: str, x: Any) -> Any:
    """An operand made of something that is none: a numpy number or array, a 0-d anything."""
    if hasattr(x, "_letter"):
        return x  # a number that a traced function was given
    if isinstance(x, np.ndarray):
        from gt.client.creation import from_numpy

        return from_numpy(x)
    if isinstance(x, (np.generic, int, float)):
        number = x.item() if isinstance(x, np.generic) else x
        for kind in (bool, int, float):
            if isinstance(number, kind):
                return kind(number)
    raise DTypeError(f"{op}: expected a tensor or a number, got {type(x).__name__}")


recorder.make = Tensor
recorder.coerce = _coerce
