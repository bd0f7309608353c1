"""The names of torch.linalg; a name that GT does not have is run by torch on the worker."""

from gt.client.functions.linalg.namespace import *
from gt.client.functions.linalg.namespace import __all__ as _names
from gt.client.functions.linalg.namespace import __getattr__ as __getattr__

__all__ = [*_names]
