"""torch.special's names; those that GT has no record of, torch runs on the worker."""

from gt.client.special import *
from gt.client.special import __all__ as _names
from gt.client.special import __getattr__ as __getattr__

__all__ = [*_names]
