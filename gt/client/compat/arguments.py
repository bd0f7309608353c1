"""Wrong arguments, said in one sentence: which argument of which function, what it is, what it should be.

Functions read what they are given (`input.shape`, `p < 0`) without asking first what it is. When Python then
refuses, `explained` looks at the arguments and says what is wrong with them. So a call that works pays for no
checks, and no function needs lines for them. An error that no argument explains stays as it is: that is a bug.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gt.dtypes import DType
from gt.errors import DTypeError, GTError

#: Functions where a fraction of a microsecond counts: they look at their arguments by themselves.
HOT = {
    "add", "cat", "clamp", "div", "dropout", "embedding", "gelu", "linear", "log_softmax", "matmul", "pow", "relu",
    "silu", "softmax", "stack", "sub", "where",
}  # fmt: skip
#: Methods likewise: of these the first argument is a tensor for sure.
HOT_METHODS = HOT | {
    "amax", "amin", "argmax", "bool", "contiguous", "expand", "flatten", "float", "long", "masked_fill", "max", "mean",
    "min", "permute", "reshape", "squeeze", "sum", "t", "to", "transpose", "unbind", "unsqueeze", "view",
}  # fmt: skip

#: What Python raises where an argument is not what the code takes it for.
RAW = (AttributeError, TypeError, ValueError, KeyError)


def explained(function: Callable[..., Any], method: bool = False) -> Callable[..., Any]:
    """The function, with errors in the words of its arguments; a method's first argument is the tensor itself."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except RAW as e:
            said = explain(function, args, kwargs, e, method)
            if said is None:
                raise
            raise DTypeError(said) from None

    return call


_CODE = explained(print).__code__  #: what all of these have in common


def bare(function: Any) -> Any:
    """The function inside of one that explains itself; any other as it is."""
    return function.__wrapped__ if getattr(function, "__code__", None) is _CODE else function


def explain_all(namespace: dict[str, Any]) -> None:
    """Have the public functions of a module explain themselves, but for those that call the user's own functions."""
    for name, function in list(namespace.items()):
        if inspect.isfunction(function) and not name.startswith("_") and not looks_itself(name, function, HOT):
            namespace[name] = explained(function)


def looks_itself(name: str, function: Any, hot: set[str]) -> bool:
    """Whether it needs no explaining: it is hot, or hands what it is given straight to the recorder, which looks
    itself, or to the user's code."""
    if name in hot or bare(function) is not function:
        return True  # the latter was seen to where it comes from
    calls_back = any("Callable" in str(a) for a in function.__annotations__.values())
    return calls_back or function.__code__.co_names in (("unary",), ("binary",))


def explain(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception, method: bool = False
) -> str | None:
    """What is wrong with the arguments of a call that raised this; None if nothing seems to be."""
    if isinstance(error, GTError):
        return None  # it says so itself
    signature = inspect.signature(function)
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError:
        return None  # too many, or an unknown name: Python says so itself
    name, parameters = function.__name__, signature.parameters
    if method:
        given.pop(next(iter(parameters)), None)
    lacking = getattr(error, "obj", None) if isinstance(error, AttributeError) else None
    if isinstance(error, AttributeError):
        for parameter, value in given.items():
            if value is lacking and hasattr(value, "_v"):
                return f"{name}: {parameter} cannot be {shown(value)}"
            if value is lacking:
                return f"{name}: {parameter} must be a tensor, not {shown(value)}"
            if isinstance(value, (list, tuple)) and any(x is lacking for x in value):
                return f"{name}: {parameter} must hold tensors, not {shown(lacking)}"
    for parameter, value in given.items():
        p = parameters[parameter]
        wanted = _wanted(p, value)
        if wanted is not None:
            return f"{name}: {parameter} must be {wanted}, not {shown(value)}"
        if _strange(value, p):
            return f"{name}: {parameter} cannot be {shown(value)}"
    return None


def shown(x: Any) -> str:
    """An argument as an error names it: short, and without reading a tensor."""
    if x is None or isinstance(x, (bool, int, float, complex, str)):
        text = repr(x)
    elif hasattr(x, "_v"):
        return f"a tensor of shape {x.shape}"
    elif isinstance(x, (list, tuple)):
        text = ", ".join(map(shown, x[:4])) + (", ..." if len(x) > 4 else "")
        text = f"[{text}]" if isinstance(x, list) else f"({text}{',' * (len(x) == 1)})"
    elif type(x).__name__ == "Tensor":
        text = f"a tensor of {type(x).__module__}"
    else:
        text = f"{'an' if type(x).__name__[0] in 'aeiouAEIOU' else 'a'} {type(x).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."


#: How an annotation's types are called, and which values are of them.
_TYPES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "int": ("an int", lambda x: hasattr(x, "__index__") or hasattr(x, "_letter")),
    "float": ("a number", lambda x: hasattr(x, "__float__") or hasattr(x, "_letter")),
    "bool": ("a bool", lambda x: isinstance(x, (bool, int, np.bool_)) or hasattr(x, "_letter")),
    "str": ("a string", lambda x: isinstance(x, str)),
    "None": ("None", lambda x: x is None),
}


def _wanted(p: inspect.Parameter, value: Any) -> str | None:
    """What the parameter's annotation asks for, if the value is not that."""
    kinds = [_TYPES.get(part.strip()) for part in str(p.annotation).split("|")]
    known = [kind for kind in kinds if kind is not None]
    if len(known) < len(kinds) or any(fits(value) for _, fits in known):
        return None
    return " or ".join(text for text, _ in known)


def _strange(x: Any, p: inspect.Parameter) -> bool:
    """Whether hardly a function takes that: None where it is no default, text that is no name, foreign objects."""
    if x is None:
        return p.default is not None
    if isinstance(x, str):
        return not isinstance(p.default, str)
    if isinstance(x, (list, tuple)):
        return any(y is None or isinstance(y, str) or _strange(y, p) for y in x)
    if isinstance(x, (float, int)):
        return math.isnan(x)
    usual = (complex, np.generic, np.ndarray, np.dtype, DType, slice, dict, type, type(Ellipsis))
    return not (isinstance(x, usual) or hasattr(x, "_v") or hasattr(x, "_letter") or callable(x))
