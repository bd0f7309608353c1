"""GT: tensors on a GPU cluster that many people share. Use it like torch.

>>> import gt
>>> x = gt.ones(2, 3, requires_grad=True)
>>> (x * 2).sum().backward()
>>> x.grad
tensor([[2., 2., 2.],
        [2., 2., 2.]])
"""

from gt import nn, optim
from gt.client import debug
from gt.client.autograd import grad
from gt.client.autograd import set_grad as _set_grad
from gt.client.creation import (
    arange, as_tensor, empty, empty_like, eye, from_numpy, full, full_like, linspace, manual_seed, ones, ones_like,
    rand, rand_like, randint, randn, randn_like, tensor, zeros, zeros_like,
)  # fmt: skip
from gt.client.elementwise import (
    abs, add, ceil, clamp, cos, div, eq, erf, exp, expm1, floor, floor_divide, ge, gelu, gt, isfinite, isinf, isnan,
    le, lerp, log, log1p, log2, logical_and, logical_not, logical_or, logical_xor, lt, masked_fill, maximum,
    minimum, mul, ne, neg, pow, reciprocal, relu, remainder, round, rsqrt, sigmoid, sign, silu, sin, sqrt, square,
    sub, tanh, where,
)  # fmt: skip
from gt.client.function import function
from gt.client.indexing import embedding, gather, index_add, index_select, narrow, one_hot, scatter_add, select
from gt.client.reductions import (
    all, amax, amin, any, argmax, argmin, cumsum, log_softmax, logsumexp, max, mean, min, norm, prod, softmax, std,
    sum, var,
)  # fmt: skip
from gt.client.save import load, save
from gt.client.session import connect, disconnect
from gt.client.shapes import (
    broadcast_to, cat, chunk, flatten, flip, movedim, permute, repeat, reshape, split, squeeze, stack, t, transpose,
    tril, triu, unbind, unflatten, unsqueeze,
)  # fmt: skip
from gt.client.tensor import Parameter, Tensor
from gt.dtypes import DType, bfloat16, float16, float32, float64, int8, int16, int32, int64, promote_types, uint8
from gt.dtypes import bool_ as bool
from gt.errors import GTError

__version__ = "0.1.0"

float, double, half, long, int = float32, float64, float16, int64, int32
clip, swapaxes = clamp, transpose


def matmul(input: Tensor, other: Tensor) -> Tensor:
    """The matrix product, with torch's rules for vectors and batches."""
    return input @ other


mm = bmm = mv = dot = matmul


def no_grad() -> _set_grad:
    """Record no history: a context manager and a decorator."""
    return _set_grad(False)


def enable_grad() -> _set_grad:
    """Record history again: a context manager and a decorator."""
    return _set_grad(True)


def is_grad_enabled() -> object:
    """Whether ops record history in this thread."""
    from gt.client.recorder import recorder

    return recorder().grad


def numel(input: Tensor) -> object:
    """The number of elements."""
    return input.numel()


def __getattr__(name: str) -> object:
    """Ops that have no function written out are found in the table, by their plain form: `gt.softplus(x)`."""
    from gt.ops import TABLE

    if name not in TABLE:
        raise AttributeError(f"module 'gt' has no attribute {name!r}")
    op = TABLE[name]

    def plain(*args: object, **attrs: object) -> object:
        return Tensor._apply(op, args, attrs)

    plain.__name__, plain.__doc__ = name, op.doc
    return plain
