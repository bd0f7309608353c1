"""Modules, losses and their functions, with the names and arguments of torch.nn."""

from importlib import import_module as _import_module
from types import FunctionType as _Function
from typing import Any as _Any

from gt.client.tensor import Parameter as Parameter
from gt.nn import functional as functional
from gt.nn import init as init
from gt.nn import utils as utils
from gt.nn.activation import *
from gt.nn.adaptive import *
from gt.nn.attention import *
from gt.nn.containers import *
from gt.nn.conv import *
from gt.nn.dropout import *
from gt.nn.layers import *
from gt.nn.lazy import *
from gt.nn.losses import *
from gt.nn.module import Buffer as Buffer
from gt.nn.module import Module as Module
from gt.nn.norm import *
from gt.nn.pooling import *
from gt.nn.recurrent import *
from gt.nn.shaping import *
from gt.nn.transformer import *

# Activations and losses that are also found as functions here: `nn.relu(x)`, `nn.mse_loss(y, target)`.
gelu, leaky_relu, relu, silu = functional.gelu, functional.leaky_relu, functional.relu, functional.silu
sigmoid, tanh, softmax, log_softmax = functional.sigmoid, functional.tanh, functional.softmax, functional.log_softmax
l1_loss, mse_loss, nll_loss = functional.l1_loss, functional.mse_loss, functional.nll_loss
cross_entropy_loss, binary_cross_entropy = functional.cross_entropy, functional.binary_cross_entropy
binary_cross_entropy_with_logits = functional.binary_cross_entropy_with_logits

# Every class and function above: the __all__ of each file lists its own.
_imported = [name for name, value in globals().items() if isinstance(value, (type, _Function)) and name[0] != "_"]
__all__ = sorted([*_imported, "functional", "init", "utils"])

#: Modules of gt.nn that are imported when they are first used.
_LATER = {"common_types", "einops", "modules", "parallel", "parameter"}
#: What is found here too, and where it is.
_ELSEWHERE = {"SGD": "gt.optim", "UninitializedBuffer": "gt.nn.parameter", "UninitializedParameter": "gt.nn.parameter"}


def __getattr__(name: str) -> _Any:
    if name in _ELSEWHERE:
        return getattr(_import_module(_ELSEWHERE[name]), name)
    if name in _LATER:
        return _import_module(f"gt.nn.{name}")
    raise AttributeError(f"module 'gt.nn' has no attribute {name!r}")
