"""torch.vmap of adopted tensors: torch's own rules say how an op is applied to a batch, GT records the op.

torch's rules are C++ and look at sizes, which an adopted tensor does not have there. While a function is mapped, its
tensors are `Sized`: they have the sizes, and what torch makes of a batch arrives in `__torch_dispatch__` as ops on
whole tensors. What goes in is made Sized, what comes out is an ordinary adopted tensor again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._functorch import eager_transforms, vmap
from torch.utils import _pytree as pytree

from gt.adoption.tensor import ADOPTED, TORCHS, TRANSFORMS, wrap
from gt.client.tensor import Tensor
from gt.errors import AutogradError


class Sized(torch.Tensor):  # type: ignore[misc]  # torch is Any to the type checker
    """An adopted tensor with its sizes in C++."""

    _gt: Tensor

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = pytree.tree_map(plain, (args, kwargs or {}))
        return pytree.tree_map(sized, dispatch[0](func, args, kwargs))


#: Calls what stands for an operator of torch; `install` puts it here.
dispatch: list[Callable[[Any, Any, Any], Any]] = []


def sized(x: Any) -> Any:
    """An adopted tensor with its sizes; anything else as it is."""
    if type(x) not in ADOPTED:
        return x
    t = x._gt
    made = torch.Tensor._make_wrapper_subclass(Sized, tuple(t.shape), dtype=TORCHS[t.dtype], device="cpu")
    made._gt = t
    return made


def plain(x: Any) -> Any:
    """The adopted tensor that a Sized one stands for; anything else as it is."""
    return wrap(x._gt) if type(x) is Sized else x


def split(func: Any, args: Any, kwargs: Any) -> Any:
    """Call a function of torch on tensors of which some are batches."""
    args, kwargs = pytree.tree_map(sized, (args, kwargs))
    with torch._C.DisableTorchFunctionSubclass():
        return pytree.tree_map(plain, func(*args, **kwargs))


def install(call_operator: Callable[[Any, Any, Any], Any]) -> None:
    """Change where torch.vmap takes its arguments and gives its results."""
    dispatch.append(call_operator)
    names = vars(vmap)
    begin, end = names["_create_batched_inputs"], names["_unwrap_batched"]

    def begun(dims: Any, args: Any, level: Any, spec: Any) -> Any:
        return begin(dims, [a if d is None else sized(a) for d, a in zip(dims, args, strict=True)], level, spec)

    def ended(outputs: Any, *rest: Any) -> Any:
        return pytree.tree_map(plain, end(pytree.tree_map(sized, outputs), *rest))

    names["_create_batched_inputs"], names["_unwrap_batched"] = begun, ended
    others = vars(eager_transforms)
    for name in ("_create_differentiable", "_wrap_all_tensors"):
        others[name] = _refusing(others[name])


def _refusing(function: Callable[..., Any]) -> Callable[..., Any]:
    """Where the other transforms of torch.func take their arguments: torch's gradients would be empty."""

    @functools.wraps(function)
    def taken(args: Any, *rest: Any, **named: Any) -> Any:
        if any(type(x) in ADOPTED for x in pytree.tree_leaves(args)):
            raise AutogradError(TRANSFORMS)
        return function(args, *rest, **named)

    return taken
