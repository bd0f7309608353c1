"""Which programs are compiled at once, or never: the user's choice. Without one a worker compiles what proves hot.

The choice travels with a program's text (messages.Define) and is none of its hash: the same program does the same.
"""

from __future__ import annotations

import functools
from typing import Any

from gt.client.record.recorder import recorder
from gt.errors import ArgumentError

__all__ = ["compile"]

CHOICES = {True: 1, None: 0, False: -1}  #: As messages.Define has them.


def compile(model: Any = None, *, disable: bool = False, **options: Any) -> Any:
    """Have workers compile at once what this module or function computes, instead of when it proves hot.

    GT compiles whole programs, mostly whole training steps: those in which a call of it begins or ends are marked.
    The work is done in the background, and nothing waits for it. A module is returned itself, a function wrapped.
    Options are taken and change nothing.

    >>> import gt
    >>> model = gt.compile(gt.nn.Linear(2, 3))
    >>> model(gt.ones(1, 2)).shape
    (1, 3)
    """
    if model is None:
        return lambda f: compile(f, disable=disable)
    if not callable(model):
        raise ArgumentError(f"compile: takes a module or a function, not {type(model).__name__}")
    if disable:
        return model
    from gt.client.record.traced import Function  # which is built on this

    if isinstance(model, Function):
        model.compile = True
        return model
    if hasattr(model, "register_forward_pre_hook"):
        model.register_forward_pre_hook(_module_begins)
        model.register_forward_hook(_module_ends)
        return model

    @functools.wraps(model)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        begins(1)
        result = model(*args, **kwargs)
        ends(1)
        return result

    return compiled


def begins(choice: int) -> None:
    """Something of which the user chose so records its first op next."""
    if choice:
        rec = recorder()
        if rec.pending.end is not None:
            rec.settle()  # as the next op would
        rec.pending.compile = choice


def ends(choice: int) -> None:
    """It has recorded its last."""
    p = recorder().pending
    if choice and (p.end is not None or p.node.depth):
        p.compile = choice


def _module_begins(module: Any, args: Any) -> None:
    begins(1)


def _module_ends(module: Any, args: Any, out: Any) -> None:
    ends(1)
