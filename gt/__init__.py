"""GT: tensors on a GPU cluster that many people share. Use it like torch.

>>> import gt
>>> x = gt.ones(2, 3, requires_grad=True)
>>> (x * 2).sum().backward()
>>> x.grad
tensor([[2., 2., 2.],
        [2., 2., 2.]])
"""

from importlib import import_module as _import_module
from typing import Any as _Any

from gt import amp, autograd, backends, cuda, debug, fft, func, linalg, nn, optim, random, signal, special, utils
from gt.adoption import adopt as adopt
from gt.client import methods as _methods
from gt.client.compat import arguments as _arguments, einops as _einops, fallback as _fallback
from gt.client.compat import outs as _outs, switches as _switches
from gt.client.compat.autocast import *
from gt.client.compat.devices import *
from gt.client.compat.fallback import *
from gt.client.compat.interop import *
from gt.client.compat.legacy import *
from gt.client.compat.switches import *
from gt.client.functions.activations import *
from gt.client.functions.arranging import *
from gt.client.functions.casts import *
from gt.client.functions.complexes import *
from gt.client.functions.creation import *
from gt.client.functions.diagonals import *
from gt.client.functions.einsum import *
from gt.client.functions.elementwise import *
from gt.client.functions.indexing import *
from gt.client.functions.inplace import *
from gt.client.functions.joining import *
from gt.client.functions.keeping import *
from gt.client.functions.linalg.factoring import *
from gt.client.functions.linalg.matrices import *
from gt.client.functions.linalg.norms import *
from gt.client.functions.linalg.solving import *
from gt.client.functions.masks import *
from gt.client.functions.padding import *
from gt.client.functions.pairs import *
from gt.client.functions.randoms import *
from gt.client.functions.reading import *
from gt.client.functions.reductions import *
from gt.client.functions.save import *
from gt.client.functions.scans import *
from gt.client.functions.scatter import *
from gt.client.functions.shapes import *
from gt.client.functions.sorting import *
from gt.client.functions.spectra import *
from gt.client.functions.statistics import *
from gt.client.functions.view_copies import *
from gt.client.functions.windows import (
    bartlett_window as bartlett_window, blackman_window as blackman_window, hamming_window as hamming_window,
    hann_window as hann_window, kaiser_window as kaiser_window)  # fmt: skip
from gt.client.grad.backward import grad as grad
from gt.client.grad.checkpoint import *
from gt.client.grad.modes import *
from gt.client.mesh.plans import *
from gt.client.mesh.sharding import *
from gt.client.record.paper import *
from gt.client.replay.traced import *
from gt.client.session.connecting import *
from gt.client.tensor import Parameter as Parameter, Tensor as Tensor
from gt.dtypes import *
from gt.dtypes import bool_ as _bool
from gt.errors import GTError as GTError
from gt.nn.functional.toplevel import *

__version__ = "0.1.0"
_assert = _switches._assert

bool = _bool
float, double, half, long, int = float32, float64, float16, int64, int32
cfloat, cdouble, short, dtype = complex64, complex128, int16, DType
_arguments.explain_all(globals(), _outs.write_out)


def __getattr__(name: str) -> _Any:
    """Names without a function of their own: in-place forms, public ops of the table, and functions that torch runs."""
    if name in _switches.NAMESPACES:
        return _import_module(f"gt.{name}")
    if name in _switches.LATER:
        return getattr(_import_module(_switches.LATER[name]), name)
    if name.endswith("_") and not name.startswith("_") and hasattr(Tensor, name):
        return getattr(Tensor, name)  # gt.relu_(x)
    if (found := _fallback.function(name)) is None:
        raise _switches.absent(name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_switches.NAMESPACES, *_switches.LATER, *_fallback.OPS})
