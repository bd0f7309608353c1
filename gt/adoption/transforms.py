"""torch.func with adopted tensors: grad, vjp, jvp, jacrev, jacfwd, hessian and linearize are those of gt.func.

torch's transforms wrap tensors in C++, where adopted ones have no data. So their entrances are changed, once, when the
first model is adopted: with an adopted tensor among the arguments, GT's transform of the same name is called, which
differentiates GT's graph. torch.vmap stays torch's own (batching.py), unless the mapped function differentiates: then
it is GT's, which runs the function for each example.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch.utils import _pytree as pytree

from gt import func as transforms
from gt.adoption.batching import Sized
from gt.adoption.modes import entered, inside
from gt.adoption.tensor import ADOPTED, is_batched, is_transformed, native, wrap
from gt.client.tensor import Tensor

Call = Callable[..., Any]

#: Transforms of a function that return a function, and those that take the arguments at once.
_OF_FUNCTIONS = ("grad", "grad_and_value", "jacrev", "jacfwd", "hessian")
_OF_ARGUMENTS = ("vjp", "jvp", "linearize")


class Differentiated(Exception):
    """A function that torch.vmap maps calls a transform of adopted tensors."""


def _meets(x: Any) -> bool:
    """Whether a value has adopted tensors. Those that torch.vmap maps cannot be differentiated, nor can others beside
    tensors of the host that it maps."""
    adopted = mapped = False
    for leaf in pytree.tree_leaves(x):
        if type(leaf) in ADOPTED or isinstance(leaf, Tensor):
            adopted = True
        elif isinstance(leaf, torch.Tensor) and is_batched(leaf):
            inner = leaf
            while is_transformed(inner):
                inner = torch._C._functorch.get_unwrapped(inner)
            mapped, adopted = True, adopted or type(inner) is Sized
        elif isinstance(leaf, torch.Tensor):
            adopted = adopted or inside.active  # a script's own tensors of the host are uploaded where they are used
    if mapped and adopted:
        raise Differentiated
    return adopted


def _down(x: Any) -> Any:
    return pytree.tree_map(lambda y: native(y) if isinstance(y, torch.Tensor) else y, x)


def _up(x: Any) -> Any:
    return pytree.tree_map(lambda y: wrap(y) if isinstance(y, Tensor) else y, x)


def _bridge(function: Call) -> Call:
    """A function of torch's tensors as one of GT's."""
    run = entered(function)

    @functools.wraps(function)
    def on_ours(*args: Any, **kwargs: Any) -> Any:
        return _down(run(*_up(args), **_up(kwargs)))

    return on_ours


def _function(before: Call, ours: Call) -> Call:
    def transform(function: Call, *settings: Any, **named: Any) -> Any:
        theirs, known = before(function, *settings, **named), inspect.signature(ours).parameters
        accepted = {k: v for k, v in named.items() if k in known}
        mine = ours(_bridge(function), *settings, **accepted)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if _meets((args, kwargs)):
                return _up(mine(*_down(args), **_down(kwargs)))
            return theirs(*args, **kwargs)

        return call

    return transform


def _at(before: Call, ours: Call) -> Call:
    def transform(function: Call, *args: Any, **named: Any) -> Any:
        if not _meets(args):
            return before(function, *args, **named)
        return pytree.tree_map(_pulled, _up(ours(_bridge(function), *_down(args), **named)))

    return transform


def _pulled(x: Any) -> Any:
    """A function that a transform returns, on torch's tensors."""
    if not isinstance(x, FunctionType):
        return x

    def pull(*args: Any, **settings: Any) -> Any:
        return _up(x(*_down(args)))

    return pull


def _mapping(before: Call, ours: Call) -> Call:
    def transform(function: Call, *settings: Any, **named: Any) -> Any:
        theirs = before(function, *settings, **named)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return theirs(*args, **kwargs)
            except Differentiated:
                mapped = ours(_bridge(function), *settings, **named)
                return _up(mapped(*_down(args), **_down(kwargs)))

        return call

    return transform


def _carrier(*args: Any, **kwargs: Any) -> Any:
    """Only for its code, with the name of a transform."""
    return _gt_transforms["NAME"](*args, **kwargs)  # type: ignore[name-defined]  # noqa: F821  # set where it is used


def install() -> None:
    """Change the entrances."""
    kinds = [(name, _function) for name in _OF_FUNCTIONS] + [(name, _at) for name in _OF_ARGUMENTS]
    for name, kind in [*kinds, ("vmap", _mapping)]:
        theirs: Any = getattr(torch.func, name)
        before = FunctionType(
            theirs.__code__, theirs.__globals__, name, theirs.__defaults__, theirs.__closure__
        )  # fmt: skip
        before.__kwdefaults__ = theirs.__kwdefaults__
        theirs.__globals__.setdefault("_gt_transforms", {})[name] = kind(before, getattr(transforms, name))
        # The code and not the attribute: `from torch.func import grad` may have been run before.
        code = _carrier.__code__
        constants = tuple([name if c == "NAME" else c for c in code.co_consts])
        theirs.__code__ = code.replace(co_consts=constants, co_name=name)
        theirs.__defaults__ = theirs.__kwdefaults__ = None
