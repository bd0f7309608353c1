"""Optimizers, with the names and arguments of torch.optim."""

from gt.optim import lr_scheduler, swa_utils
from gt.optim.adam import Adam, Adamax, AdamW, NAdam, RAdam
from gt.optim.lbfgs import LBFGS
from gt.optim.optimizer import Optimizer
from gt.optim.sgd import ASGD, SGD, Rprop
from gt.optim.squares import Adadelta, Adagrad, RMSprop

__all__ = [
    "ASGD", "LBFGS", "SGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "Optimizer", "RAdam", "RMSprop",
    "Rprop", "lr_scheduler", "swa_utils",
]  # fmt: skip
