"""What changes dtypes without being asked for at every op: autocast, and the default dtype.

While either is on, the recorder hands the operands of each op to `Policy.__call__`, which casts some of them. The casts
are ops like any other: gradients pass through them, programs contain them.

What autocast does with an op stands in the op's record (`Op.autocast`). A function that is composed of several ops, but
is one entry in PyTorch's lists, says it where it is defined: `@autocasts(FLOAT32)`.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

from gt import dtypes
from gt.client.compat.arguments import rebuilt, shown
from gt.client.compat.devices import device
from gt.client.programs.tree import Kind
from gt.client.record.contexts import choose_default_policy, choose_policy
from gt.client.record.recorder import unary
from gt.client.tensor import Tensor, change_default_dtype, default_dtype
from gt.dtypes import DType
from gt.errors import ArgumentError, DTypeError
from gt.ops import TABLE
from gt.ops.record import Autocast
from gt.program import SCALARS

__all__ = [
    "autocast", "get_autocast_cpu_dtype", "get_autocast_dtype", "get_autocast_gpu_dtype", "get_default_dtype",
    "is_autocast_cache_enabled", "is_autocast_cpu_enabled", "is_autocast_enabled", "set_default_dtype",
]  # fmt: skip

_HALVES = (dtypes.float16, dtypes.bfloat16)
_CAST = (dtypes.float32, *_HALVES)  #: The dtypes that autocast casts. Others stay: float64, integers, complex numbers.
_TO = {d: Kind(TABLE["cast"], {"dtype": d.name}) for d in dtypes.BY_NAME.values()}

F = TypeVar("F", bound=Callable[..., Any])


class Policy:
    """Which operands are cast, and to what."""

    __slots__ = ("default", "device", "narrow")

    def __init__(self, default: DType, narrow: DType | None, device: str) -> None:
        self.default = default  #: The dtype of Python floats, and of functions of integers that return floats.
        self.narrow = narrow  #: autocast's dtype; None while it is off
        self.device = device  #: whose list autocast follows: "cpu" or "cuda"

    def __call__(self, kind: Kind, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The operands as the op shall see them."""
        op = kind.op
        entry = op.autocast
        rule = self.rule(entry if isinstance(entry, Autocast) else entry(**kind.attrs))
        if rule:
            to = self.target(rule, args)
            return tuple([cast_to(a, to) if isinstance(a, Tensor) and a.dtype in _CAST else a for a in args])
        if self.default is not dtypes.float32 and op.promote and op.name != "cast" and self._makes_float(kind, args):
            to = self.default
            return tuple(
                [cast_to(a, to) if isinstance(a, Tensor) and not a.dtype.is_differentiable else a for a in args]
            )
        return args

    def rule(self, entry: Autocast) -> str:
        """What to do with operands: "lower", "float32", "widest", "off", or "" for nothing."""
        return "" if self.narrow is None else entry.cpu if self.device == "cpu" else entry.cuda

    def target(self, rule: str, args: Any) -> DType:
        """The dtype that a rule casts these operands to."""
        assert self.narrow is not None
        if rule == "lower" or (rule == "widest" and not any(getattr(a, "dtype", 0) is dtypes.float32 for a in args)):
            return self.narrow
        return dtypes.float32

    def _makes_float(self, kind: Kind, args: tuple[Any, ...]) -> bool:
        """Whether the op turns integers into floats here."""
        if any(isinstance(a, Tensor) and a.dtype.is_differentiable for a in args):
            return False
        specs = [a._spec if isinstance(a, Tensor) else SCALARS[_letter(a)] for a in args]
        result = kind.op.infer(*specs, **kind.attrs)
        return getattr(result, "dtype", None) is dtypes.float32


def cast_to(x: Any, dtype: DType) -> Any:
    """A tensor in another dtype; the same tensor if it has that dtype already."""
    return x if x.dtype is dtype else unary(_TO[dtype], x)


def _letter(x: Any) -> str:
    known = {bool: "b", int: "i", float: "f", bytes: "d"}.get(type(x))
    return str(x._letter) if known is None else known


def autocasts(entry: Autocast) -> Callable[[F], F]:
    """Have autocast treat a function as one op: its tensors are cast before it runs, and nothing is cast inside.
    As in PyTorch, an explicit `dtype=` takes precedence: then nothing is cast."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if _state.narrow is None:
                return function(*args, **kwargs)
            policy = _policy(default_dtype(), _state.narrow, _state.device)
            rule = policy.rule(entry)
            if not rule:
                return function(*args, **kwargs)
            if rule != "off" and kwargs.get("dtype") is None:
                to = policy.target(rule, _tensors([args, list(kwargs.values())]))
                args = tuple([_cast_all(a, to) for a in args])
                kwargs = {k: _cast_all(a, to) for k, a in kwargs.items()}
            with autocast(enabled=False):
                return function(*args, **kwargs)

        return cast(F, call)

    return decorate


def _tensors(x: Any) -> list[Any]:
    """The tensors among arguments and in lists of them."""
    if isinstance(x, (list, tuple)):
        return [t for y in x for t in _tensors(y)]
    return [x] if isinstance(x, Tensor) else []


def _cast_all(x: Any, to: DType) -> Any:
    if isinstance(x, (list, tuple)) and _tensors(x):
        return rebuilt(x, [_cast_all(y, to) for y in x])
    return cast_to(x, to) if isinstance(x, Tensor) and x.dtype in _CAST else x


class _State(threading.local):
    narrow: DType | None = None
    device: str = "cuda"


_state = _State()


def current() -> Policy | None:
    """The policy of this thread; None while nothing has to be cast."""
    default = default_dtype()
    if _state.narrow is None and default is dtypes.float32:
        return None
    return _policy(default, _state.narrow, _state.device)


@functools.cache
def _policy(default: DType, narrow: DType | None, device: str) -> Policy:
    return Policy(default, narrow, device)


def enforce() -> None:
    """Record with this thread's policy from now on."""
    choose_policy(current())


def get_default_dtype() -> DType:
    """Return the dtype of new tensors of floats."""
    return default_dtype()


def set_default_dtype(d: Any) -> None:
    """Set the dtype of new tensors of floats, in this thread and in threads that start later."""
    d = dtypes.dtype(d)
    if not d.is_floating_point:
        raise DTypeError(f"set_default_dtype: expected a floating-point dtype, got {d.name}")
    change_default_dtype(d)
    choose_default_policy(None if d is dtypes.float32 else _policy(d, None, "cuda"))
    enforce()


def is_autocast_enabled(device_type: str = "") -> bool:
    """Return whether autocast is on in this thread."""
    return _state.narrow is not None


def get_autocast_dtype(device_type: str = "cuda") -> DType:
    """The dtype that autocast computes in, or would compute in by default."""
    if not isinstance(device_type, str):
        raise DTypeError(f"get_autocast_dtype: device_type must be a string, got {shown(device_type)}")
    device(device_type)  # raises for an unknown one
    return _state.narrow or dtypes.bfloat16


def get_autocast_gpu_dtype() -> DType:
    """The same as get_autocast_dtype("cuda")."""
    return get_autocast_dtype("cuda")


def get_autocast_cpu_dtype() -> DType:
    """The same as get_autocast_dtype("cpu")."""
    return get_autocast_dtype("cpu")


def is_autocast_cpu_enabled() -> bool:
    """Return whether autocast is on in this thread."""
    return is_autocast_enabled("cpu")


def is_autocast_cache_enabled() -> bool:
    """Whether casts are kept: a worker computes equal casts of one program once."""
    return True


class autocast:
    """Compute matrix products and convolutions in a lower precision, and what needs the range of float32 in float32.

    A context manager and a decorator. `device_type` chooses the list of ops: "cpu" is PyTorch's list for CPUs, anything
    else, and the default, PyTorch's list for CUDA. Both work on every worker.

    >>> import gt
    >>> x, w = gt.randn(2, 3), gt.randn(3, 4)
    >>> with gt.autocast(dtype=gt.bfloat16):
    ...     y = x @ w
    >>> y.dtype
    gt.bfloat16
    """

    def __init__(
        self, device_type: Any = None, dtype: Any = None, enabled: bool = True, cache_enabled: bool | None = None
    ) -> None:
        if isinstance(device_type, DType) and dtype is None:
            device_type, dtype = None, device_type
        self._device = "cpu" if str(device_type).startswith("cpu") else "cuda"
        self._dtype = dtypes.bfloat16 if dtype is None else dtypes.dtype(dtype)
        if self._dtype not in (*_HALVES, dtypes.float32):
            raise ArgumentError(f"autocast: dtype must be bfloat16, float16 or float32, got {self._dtype.name}")
        self._enabled = enabled
        self._before: list[tuple[DType | None, str]] = []

    def __enter__(self) -> autocast:
        self._before.append((_state.narrow, _state.device))
        _state.device = self._device
        _state.narrow = self._dtype if self._enabled and self._dtype is not dtypes.float32 else None
        enforce()
        return self

    def __exit__(self, *exc: object) -> None:
        _state.narrow, _state.device = self._before.pop()
        enforce()

    def __call__(self, f: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(f)
        def inner(*args: Any, **kwargs: Any) -> Any:
            with self:
                return f(*args, **kwargs)

        return inner
