"""Learning-rate schedulers, named as in torch.optim.lr_scheduler.

>>> import gt
>>> from gt.optim.lr_scheduler import StepLR
>>> opt = gt.optim.SGD([gt.ones(2, requires_grad=True)], lr=1.0)
>>> schedule = StepLR(opt, step_size=2, gamma=0.5)
>>> for _ in range(3):
...     opt.step()
...     schedule.step()
>>> schedule.get_last_lr()
[0.5]
"""

from gt.optim.lr_scheduler.cycles import CosineAnnealingWarmRestarts, CyclicLR, OneCycleLR
from gt.optim.lr_scheduler.decays import (
    ConstantLR,
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiplicativeLR,
    MultiStepLR,
    PolynomialLR,
    StepLR,
)  # fmt: skip
from gt.optim.lr_scheduler.plateau import ReduceLROnPlateau
from gt.optim.lr_scheduler.schedule import LRScheduler
from gt.optim.lr_scheduler.sequences import ChainedScheduler, SequentialLR

_LRScheduler = LRScheduler  # its old name, which much code still uses

__all__ = [
    "ChainedScheduler", "ConstantLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts", "CyclicLR", "ExponentialLR",
    "LRScheduler", "LambdaLR", "LinearLR", "MultiStepLR", "MultiplicativeLR", "OneCycleLR", "PolynomialLR",
    "ReduceLROnPlateau", "SequentialLR", "StepLR",
]  # fmt: skip
