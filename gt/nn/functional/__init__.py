"""The functions of torch.nn.functional, one file per family."""

from __future__ import annotations

import inspect as _inspect

from gt.client.functions.activations import (
    celu as celu, celu_ as celu_, elu as elu, elu_ as elu_, gelu as gelu, glu as glu, hardshrink as hardshrink,
    hardsigmoid as hardsigmoid, hardswish as hardswish, hardtanh as hardtanh, hardtanh_ as hardtanh_,
    leaky_relu as leaky_relu, leaky_relu_ as leaky_relu_, logsigmoid as logsigmoid, mish as mish, prelu as prelu,
    relu as relu, relu6 as relu6, relu_ as relu_, rrelu as rrelu, rrelu_ as rrelu_, selu as selu, selu_ as selu_,
    silu as silu, softplus as softplus, softshrink as softshrink, softsign as softsign, tanhshrink as tanhshrink,
    threshold as threshold, threshold_ as threshold_,
)  # fmt: skip
from gt.client.compat import arguments as _arguments
from gt.client.functions.elementwise import sigmoid as sigmoid, tanh as tanh
from gt.client.compat.fallback import namespace as _namespace
from gt.client.functions.padding import pad as pad
from gt.nn.functional.attention import *
from gt.nn.functional.conv import *
from gt.nn.functional.ctc import *
from gt.nn.functional.distance import *
from gt.nn.functional.dropout import *
from gt.nn.functional.linear import *
from gt.nn.functional.loss import *
from gt.nn.functional.margin import *
from gt.nn.functional.norm import *
from gt.nn.functional.pool import *
from gt.nn.functional.resize import *
from gt.nn.functional.softmax import *

# Every function imported above; the __all__ of each file lists its own.
__all__ = sorted(name for name, value in globals().items() if _inspect.isfunction(value) and name[0] != "_")

_arguments.explain_all(globals())

__getattr__ = _namespace("nn.functional")  # a name that GT does not have is run by torch on the worker
