"""The names of torch.fft; a name that GT does not have is run by torch on the worker."""

from gt.client.functions.fft import *
from gt.client.functions.fft import __all__ as _names
from gt.client.functions.fft import __getattr__ as __getattr__

__all__ = [*_names]
