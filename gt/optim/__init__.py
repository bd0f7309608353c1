"""Optimizers, named as in torch.optim."""

from gt.optim.adamw import Adam, AdamW
from gt.optim.optimizer import Optimizer
from gt.optim.sgd import SGD

__all__ = ["SGD", "Adam", "AdamW", "Optimizer"]
