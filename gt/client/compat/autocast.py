"""What changes dtypes without being asked for at every op: autocast, and the default dtype.

While either is in force the recorder hands each op's operands to `Policy.__call__`, which casts some of them.
The casts are ops like any other: gradients pass through them, programs contain them.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from gt import dtypes
from gt.client.programs.tree import Kind
from gt.client.record.recorder import unary
from gt.client.record.thread import choose_default_policy, choose_policy
from gt.dtypes import DType
from gt.errors import ArgumentError, DTypeError
from gt.ops import TABLE
from gt.ops.record import Op
from gt.program import SCALARS

__all__ = ["autocast", "get_default_dtype", "is_autocast_enabled", "set_default_dtype"]

#: Ops that autocast computes in the narrow type: where the time goes, and sums are made in float32 anyway.
NARROW = frozenset(
    ["matmul", "linear", "conv", "conv_transpose", "bilinear", "scaled_dot_product_attention", "einsum", "attention"]
)
#: Ops that autocast computes in float32, because their range or their sums need it.
WIDE = frozenset(
    [
        "acos", "asin", "cosh", "sinh", "tan", "exp", "expm1", "log", "log10", "log1p", "log2", "pow", "reciprocal",
        "rsqrt", "erfinv", "cumsum", "cumprod", "sum", "mean", "prod", "var", "norm", "logsumexp", "softmax",
        "log_softmax", "nll_loss", "cross_entropy", "mse_loss", "binary_cross_entropy",
        "binary_cross_entropy_with_logits", "layer_norm", "group_norm", "rms_norm", "softplus", "cdist",
    ]
)  # fmt: skip
_HALVES = (dtypes.float16, dtypes.bfloat16)


class Policy:
    """Which operands are cast, and to what."""

    __slots__ = ("_casts", "default", "kinds", "narrow")

    def __init__(self, default: DType, narrow: DType | None) -> None:
        self.default = default  #: what Python's floats and functions of integers become
        self.narrow = narrow  #: autocast's type; None: it is off
        self.kinds = {d: Kind(TABLE["cast"], {"dtype": d.name}) for d in (default, narrow, dtypes.float32) if d}
        self._casts: dict[Op, dict[DType, Kind] | None] = {}  #: By op, once it was met: what autocast does to operands.

    def __call__(self, kind: Kind, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The operands as the op shall see them."""
        op = kind.op
        try:
            casts = self._casts[op]
        except KeyError:
            casts = self._casts[op] = self._autocasts(op)
        if casts is not None:
            return self._cast(args, casts)
        if self.default is not dtypes.float32 and op.promote and op.name != "cast" and self._makes_float(kind, args):
            to = self.kinds[self.default]
            return self._cast(args, {d: to for d in dtypes.BY_NAME.values() if not d.is_differentiable})
        return args

    def _autocasts(self, op: Op) -> dict[DType, Kind] | None:
        """By an operand's dtype: the cast that autocast makes of it; None if it leaves this op alone."""
        if self.narrow is None or op.name not in NARROW | WIDE:
            return None
        to = self.narrow if op.name in NARROW else dtypes.float32
        return {d: self.kinds[to] for d in (dtypes.float32, *_HALVES) if d is not to}

    def _cast(self, args: tuple[Any, ...], casts: dict[DType, Kind]) -> tuple[Any, ...]:
        made = []
        for a in args:
            if hasattr(a, "_v"):
                kind = casts.get(a.dtype)
                if kind is not None:
                    a = unary(kind, a)
            made.append(a)
        return tuple(made)

    def _makes_float(self, kind: Kind, args: tuple[Any, ...]) -> bool:
        """Whether integers become floats here."""
        if any(hasattr(a, "_v") and a.dtype.is_differentiable for a in args):
            return False
        specs = [a._spec if hasattr(a, "_v") else SCALARS[_letter(a)] for a in args]
        result = kind.op.infer(*specs, **kind.attrs)
        return getattr(result, "dtype", None) is dtypes.float32


def _letter(x: Any) -> str:
    known = {bool: "b", int: "i", float: "f", bytes: "d"}.get(type(x))
    return str(x._letter) if known is None else known


class _State(threading.local):
    narrow: DType | None = None


_state = _State()
_defaults: list[DType] = [dtypes.float32]  #: one entry; the process's default dtype, as in torch


def current() -> Policy | None:
    """The policy of this thread; None while nothing is to be cast."""
    if _state.narrow is None and _defaults[0] is dtypes.float32:
        return None
    return _policy(_defaults[0], _state.narrow)


@functools.cache
def _policy(default: DType, narrow: DType | None) -> Policy:
    return Policy(default, narrow)


def enforce() -> None:
    """Record with this thread's policy from now on."""
    choose_policy(current())


def default_dtype() -> DType:
    """What a tensor of floats is made of when nothing is said."""
    return _defaults[0]


def get_default_dtype() -> DType:
    """The dtype of new tensors of floats."""
    return _defaults[0]


def set_default_dtype(d: Any) -> None:
    """Make this the dtype of new tensors of floats, in this thread and in those that begin later."""
    d = dtypes.dtype(d)
    if not d.is_floating_point:
        raise DTypeError(f"set_default_dtype: a floating type, not {d.name}")
    _defaults[0] = d
    choose_default_policy(None if d is dtypes.float32 else _policy(d, None))
    enforce()


def is_autocast_enabled(device_type: str = "") -> bool:
    """Whether autocast is on in this thread."""
    return _state.narrow is not None


class autocast:
    """Compute matrix products and convolutions in a narrow type, sums and exponentials in float32.

    A context manager and a decorator. Which device a worker has is the server's affair: `device_type` changes nothing.

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
            dtype = device_type
        self._dtype = dtypes.bfloat16 if dtype is None else dtypes.dtype(dtype)
        if self._dtype not in (*_HALVES, dtypes.float32):
            raise ArgumentError(f"autocast: dtype is bfloat16, float16 or float32, not {self._dtype.name}")
        self._enabled = enabled
        self._before: list[DType | None] = []

    def __enter__(self) -> autocast:
        self._before.append(_state.narrow)
        _state.narrow = self._dtype if self._enabled and self._dtype is not dtypes.float32 else None
        enforce()
        return self

    def __exit__(self, *exc: object) -> None:
        _state.narrow = self._before.pop()
        enforce()

    def __call__(self, f: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(f)
        def inner(*args: Any, **kwargs: Any) -> Any:
            with self:
                return f(*args, **kwargs)

        return inner
