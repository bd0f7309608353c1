"""Errors about wrong arguments: which argument of which function, what was expected, what was given.

Functions use their arguments (`input.shape`, `p < 0`) without checking types first. When Python then raises an error,
`explained` looks for the wrong argument and raises a DTypeError that names it: "cdist: p must be a number, got 'a'".
So a correct call pays for no checks, and functions contain none. An error that no argument explains is a bug in GT,
and is raised as it is.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from gt.dtypes import DType
from gt.errors import DTypeError, GTError

F = TypeVar("F", bound=Callable[..., Any])

#: Functions where a fraction of a microsecond counts: they check their arguments themselves.
HOT = {
    "add", "cat", "clamp", "div", "dropout", "embedding", "gelu", "linear", "log_softmax", "matmul", "pow", "relu",
    "silu", "softmax", "stack", "sub", "where",
}  # fmt: skip
#: Those of them that take `out=` as functions of gt, and pay for it.
WITH_OUT = {"add", "cat", "clamp", "div", "matmul", "pow", "softmax", "log_softmax", "stack", "sub", "where"}
#: The same for methods, whose first argument is known to be a tensor.
HOT_METHODS = HOT | {
    "amax", "amin", "argmax", "bool", "contiguous", "expand", "flatten", "float", "long", "masked_fill", "max", "mean",
    "min", "permute", "reshape", "squeeze", "sum", "t", "to", "transpose", "unbind", "unsqueeze", "view",
}  # fmt: skip

#: The errors that Python raises for an argument of the wrong type.
RAW = (AttributeError, TypeError, ValueError, KeyError)


def explained(
    function: Callable[..., Any], method: bool = False, write_out: Callable[[str, Any, Any], Any] | None = None
) -> Callable[..., Any]:
    """The function, with errors that name the wrong argument. A method's first argument is the tensor itself. With
    `write_out`, the function also takes `out=`, which is what its result is written to."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        out = None
        if kwargs and write_out is not None:
            out = kwargs.pop("out", None)
        try:
            made = function(*args, **kwargs)
        except RAW as e:
            said = explain(function, args, kwargs, e, method)
            if said is None:
                raise
            raise DTypeError(said) from None
        return made if out is None or write_out is None else write_out(function.__name__, made, out)

    return call


_CODE = explained(print).__code__  #: The code of every function that `explained` returns.


def bare(function: Any) -> Any:
    """The function that `explained` wrapped; any other function as it is."""
    return function.__wrapped__ if getattr(function, "__code__", None) is _CODE else function


def explain_all(namespace: dict[str, Any], write_out: Callable[[str, Any, Any], Any] | None = None) -> None:
    """Wrap the public functions of a module with `explained`; see there for `write_out`."""
    for name, function in list(namespace.items()):
        if not inspect.isfunction(function) or name.startswith("_"):
            continue
        takes_out = write_out is not None and (name in WITH_OUT or hasattr(function, "recorded"))
        if takes_out or not looks_itself(name, function, HOT):
            namespace[name] = explained(function, write_out=write_out)


def recorded(function: F) -> F:
    """Mark a function that only passes its arguments to the recorder, which checks them."""
    function.recorded = True  # type: ignore[attr-defined]
    return function


def called(function: F, name: str, doc: str) -> F:
    """Set the name and docstring of a function that another function made."""
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


def looks_itself(name: str, function: Any, hot: set[str]) -> bool:
    """Whether a function needs no `explained`: it is hot, wrapped already, only records, or calls the user's code."""
    if name in hot or bare(function) is not function or hasattr(function, "recorded"):
        return True
    return any("Callable" in str(a) for a in function.__annotations__.values())


def explain(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception, method: bool = False
) -> str | None:
    """The message about the wrong argument of a call that raised this error; None if no argument seems wrong."""
    if isinstance(error, GTError):
        return None  # its message is about the arguments already
    signature = inspect.signature(function)
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError:
        return None  # too many arguments, or an unknown name: Python's own message is clear
    name, parameters = function.__name__, signature.parameters
    if method:
        given.pop(next(iter(parameters)), None)
    lacking = getattr(error, "obj", None) if isinstance(error, AttributeError) else None
    if isinstance(error, AttributeError):
        for parameter, value in given.items():
            if value is lacking and hasattr(value, "_v"):
                return f"{name}: {parameter} cannot be {shown(value)}"
            if value is lacking:
                return f"{name}: {parameter} must be a tensor, got {shown(value)}"
            if isinstance(value, (list, tuple)) and any(x is lacking for x in value):
                return f"{name}: {parameter} must contain only tensors, got {shown(lacking)}"
    for parameter, value in given.items():
        p = parameters[parameter]
        wanted = _wanted(p, value)
        if wanted is not None:
            return f"{name}: {parameter} must be {wanted}, got {shown(value)}"
        if _strange(value, p):
            return f"{name}: {parameter} cannot be {shown(value)}"
    return None


def shown(x: Any) -> str:
    """An argument as error messages show it: short, and without fetching a tensor."""
    if x is None or isinstance(x, (bool, int, float, complex, str)):
        text = repr(x)
    elif hasattr(x, "_v"):
        return f"a tensor of shape {x.shape}"
    elif isinstance(x, (list, tuple)):
        text = ", ".join(map(shown, x[:4])) + (", ..." if len(x) > 4 else "")
        text = f"[{text}]" if isinstance(x, list) else f"({text}{',' * (len(x) == 1)})"
    elif type(x).__name__ == "Tensor":
        text = f"a {type(x).__module__} tensor"
    else:
        text = f"{'an' if type(x).__name__[0] in 'aeiouAEIOU' else 'a'} {type(x).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."


#: For the types in annotations: how a message calls them, and whether a value is of that type.
_TYPES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "int": ("an int", lambda x: hasattr(x, "__index__") or hasattr(x, "_letter")),
    "float": ("a number", lambda x: hasattr(x, "__float__") or hasattr(x, "_letter")),
    "bool": ("a bool", lambda x: isinstance(x, (bool, int, np.bool_)) or hasattr(x, "_letter")),
    "str": ("a string", lambda x: isinstance(x, str)),
    "None": ("None", lambda x: x is None),
}


def rebuilt(x: list[Any] | tuple[Any, ...], items: list[Any]) -> Any:
    """A list or tuple like `x`, named tuples included, with these items."""
    return type(x)(*items) if hasattr(x, "_fields") else type(x)(items)


def _wanted(p: inspect.Parameter, value: Any) -> str | None:
    """The types that the parameter's annotation allows, if the value has none of them."""
    kinds = [_TYPES.get(part.strip()) for part in str(p.annotation).split("|")]
    known = [kind for kind in kinds if kind is not None]
    if len(known) < len(kinds) or any(fits(value) for _, fits in known):
        return None
    return " or ".join(text for text, _ in known)


def _strange(x: Any, p: inspect.Parameter) -> bool:
    """Whether a value is unusual for any parameter: None or a string where the default is neither, foreign objects."""
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
