"""The names of torch.jit, for code that uses them: nothing is scripted, and functions and modules run as they are.

Workers compile what runs often. Saving and loading scripts is not possible and says so.
"""

from __future__ import annotations

from typing import Any, Final, NoReturn

from gt.nn.module import Module

__all__ = [
    "Final", "ScriptModule", "annotate", "export", "freeze", "ignore", "interface", "is_scripting", "is_tracing",
    "load", "optimize_for_inference", "save", "script", "script_if_tracing", "script_method", "trace", "trace_module",
    "unused",
]  # fmt: skip

ScriptModule = RecursiveScriptModule = Module


def script(obj: Any, *args: Any, **kwargs: Any) -> Any:
    """The function or module itself."""
    return obj


def trace(func: Any, *args: Any, **kwargs: Any) -> Any:
    """The function or module itself; the example inputs are not used."""
    return func


trace_module = trace


class ScriptFunction:
    """For `isinstance`, which is never true: nothing is scripted."""


class TracerWarning(Warning):
    """Never given: nothing is traced."""


export = script_method = script_if_tracing = interface = freeze = optimize_for_inference = script
_overload = _overload_method = wait = Attribute = script


def fork(func: Any, *args: Any, **kwargs: Any) -> Any:
    """The function's result: ops do not wait for one another anyway."""
    return func(*args, **kwargs)


def set_fusion_strategy(strategy: Any) -> list[Any]:
    """Does nothing: workers choose what they fuse."""
    return []


def ignore(drop: Any = False, **kwargs: Any) -> Any:
    """A decorator without effect."""
    return drop if callable(drop) else script


unused = ignore


def annotate(the_type: Any, the_value: Any) -> Any:
    """The value itself."""
    return the_value


def is_scripting() -> bool:
    """Always False."""
    return False


is_tracing = is_scripting


def save(m: Any, f: Any, **kwargs: Any) -> NoReturn:
    """Not possible: there is no script to save."""
    raise NotImplementedError("jit.save: GT has no scripts; save the parameters with gt.save(model.state_dict(), file)")


def load(f: Any, **kwargs: Any) -> NoReturn:
    """Not possible: GT cannot run a script."""
    raise NotImplementedError("jit.load: GT cannot run scripts; build the model in Python and load its state_dict")
