"""Optimizers, with the names and arguments of torch.optim."""

from importlib import import_module as _import_module
from typing import Any as _Any

from gt.optim import lr_scheduler, swa_utils
from gt.optim.adam import Adam, Adamax, AdamW, NAdam, RAdam
from gt.optim.lbfgs import LBFGS
from gt.optim.optimizer import Optimizer
from gt.optim.sgd import ASGD, SGD, Rprop
from gt.optim.squares import Adadelta, Adagrad, RMSprop

__all__ = [
    "ASGD", "LBFGS", "SGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Muon", "NAdam",
    "Optimizer", "RAdam", "RMSprop", "Rprop", "lr_scheduler", "swa_utils",
]  # fmt: skip


def __getattr__(name: str) -> _Any:
    if name in ("Adafactor", "Muon"):  # imported when they are used
        return getattr(_import_module("gt.optim.factored"), name)
    raise AttributeError(f"module 'gt.optim' has no attribute {name!r}")
