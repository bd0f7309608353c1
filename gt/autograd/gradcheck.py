"""The names of torch.autograd.gradcheck. A function has the same name as this file, so the file can be called."""

import sys
from types import ModuleType
from typing import Any

from gt.testing.gradients import GradcheckError, gradcheck, gradgradcheck

__all__ = ["GradcheckError", "gradcheck", "gradgradcheck"]


class _CallableFile(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> bool:
        return gradcheck(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableFile
