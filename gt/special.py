"""The names of torch.special; a name that GT does not have is run by torch on the worker."""

from gt.client.functions.special import *
from gt.client.functions.special import __all__ as _names
from gt.client.functions.special import __getattr__ as __getattr__

__all__ = [*_names]
