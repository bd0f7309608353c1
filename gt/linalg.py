"""torch.linalg's names; those that GT has no record of, torch runs on the worker."""

from gt.client.functions.linalg.namespace import *
from gt.client.functions.linalg.namespace import __all__ as _names
from gt.client.functions.linalg.namespace import __getattr__ as __getattr__

__all__ = [*_names]
