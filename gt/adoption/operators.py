"""Operators of torch's C++ on adopted tensors: what reaches it all the same, and what torch.vmap makes of a function.

An operator is GT's function or method of the same name, or one of those below, where names or arguments differ.
"""

from __future__ import annotations

from typing import Any

import gt
from gt.adoption.functions import FOUND, Call, adapted, named_in, search
from gt.adoption.tensor import Adopted


def _index(x: Any, indices: Any) -> Any:
    """torch.ops.aten.index"""
    return x[tuple([slice(None) if i is None else i for i in indices])]


def _same_tensor(x: Any) -> Any:
    return x.view(x.shape)


def _native_layer_norm(x: Any, shape: Any, weight: Any, bias: Any, eps: float) -> Any:
    dims = list(range(x.ndim - len(shape), x.ndim))
    scale = (x.var(dims, correction=0, keepdim=True) + eps).rsqrt()
    return gt.nn.functional.layer_norm(x, shape, weight, bias, eps), x.mean(dims, keepdim=True), scale


def _convolution(x: Any, w: Any, b: Any, stride: Any, padding: Any, dilation: Any, transposed: Any, extra: Any,
                 groups: int) -> Any:  # fmt: skip
    dims = x.ndim - 2
    f = gt.nn.functional
    if transposed:
        return getattr(f, f"conv_transpose{dims}d")(x, w, b, stride, padding, extra, groups, dilation)
    return getattr(f, f"conv{dims}d")(x, w, b, stride, padding, dilation, groups)


#: Operators of torch's C++ whose names or arguments differ from those of functions.
OPERATORS: dict[str, Call] = {
    "_log_softmax": adapted(lambda x, dim, half: x.log_softmax(dim)),
    "_softmax": adapted(lambda x, dim, half: x.softmax(dim)),
    "_to_copy": adapted(lambda x, *, dtype=None, **how: x.clone() if dtype is None else x.to(dtype, copy=True)),
    "_unsafe_view": adapted(lambda x, size: x.reshape(size)),
    "alias": adapted(_same_tensor),
    "index": adapted(_index),
    "convolution": adapted(_convolution),
    "lift_fresh": adapted(_same_tensor),
    "native_layer_norm": adapted(_native_layer_norm),
}


def call_operator(func: Any, args: Any, kwargs: Any) -> Any:
    """Call what stands for an operator."""
    packet = func.overloadpacket
    found = FOUND.get(packet)
    if found is None:
        name = packet.__name__
        method = None if named_in(gt, name) is not None else vars(Adopted).get(name)
        found = FOUND[packet] = OPERATORS.get(name) or method or search(packet)
    return found(*args, **kwargs)


Adopted.__torch_dispatch__ = classmethod(
    lambda cls, func, types, args=(), kwargs=None: call_operator(func, args, kwargs or {})
)
