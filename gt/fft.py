"""torch.fft's names; those that GT has no record of, torch runs on the worker."""

from gt.client.functions.fft import *
from gt.client.functions.fft import __all__ as _names
from gt.client.functions.fft import __getattr__ as __getattr__

__all__ = [*_names]
