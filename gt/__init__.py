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
from gt.client import methods as _methods
from gt.client.autograd import grad
from gt.client.autograd import set_grad as _set_grad
from gt.client.creation import *
from gt.client.elementwise import *
from gt.client.function import function
from gt.client.indexing import *
from gt.client.reductions import *
from gt.client.save import load, save
from gt.client.session import connect, disconnect
from gt.client.shapes import *
from gt.client.tensor import Parameter, Tensor
from gt.dtypes import (
    DType, bfloat16, complex64, complex128, float16, float32, float64, int8, int16, int32, int64, promote_types, uint8
)  # fmt: skip
from gt.dtypes import bool_ as bool
from gt.errors import GTError

__version__ = "0.1.0"

float, double, half, long, int = float32, float64, float16, int64, int32
cfloat, cdouble, short = complex64, complex128, int16


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
