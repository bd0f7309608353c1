"""The distributions of torch.distributions: log_prob, entropy, mean, variance, sample, and kl_divergence."""

from gt.distributions.continuous import *
from gt.distributions.discrete import *
from gt.distributions.distribution import Distribution as Distribution
from gt.distributions.divergence import *
from gt.distributions.joint import *
from gt.distributions.transforms import *

# Every class and function imported above: the __all__ of each file lists its own.
__all__ = sorted(name for name, value in globals().items() if callable(value) and name[0] != "_")
