"""torch.arange and the like with numbers that are adopted tensors.

torch's C++ looks at such a number before it asks whose tensor it is, and refuses it, and it never asks whose values a
sparse tensor has. So these functions are changed,
once, when the first model is adopted: with an adopted tensor among the arguments, GT's are called.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from gt.adoption.functions import call
from gt.adoption.tensor import ADOPTED

NAMES = ("arange", "full", "linspace", "logspace", "range", "sparse_coo_tensor")


def install() -> None:
    """Change them."""
    for name in NAMES:
        setattr(torch, name, _asking(getattr(torch, name)))


def _asking(function: Any) -> Any:
    @functools.wraps(function)
    def asked(*args: Any, **kwargs: Any) -> Any:
        for x in (*args, *kwargs.values()):
            if type(x) in ADOPTED:
                return call(function, args, kwargs)
        return function(*args, **kwargs)

    return asked
