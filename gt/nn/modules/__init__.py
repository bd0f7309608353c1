"""The modules of torch.nn.modules by torch's file names: `from gt.nn.modules.batchnorm import BatchNorm2d`."""

from __future__ import annotations

import sys
from importlib import import_module as _import_module
from types import ModuleType as _ModuleType
from typing import Any as _Any

from gt import nn as _nn
from gt.nn import hooks as _hooks
from gt.nn.state import IncompatibleKeys as _IncompatibleKeys  # noqa: F401  # a name of torch.nn.modules.module

#: torch's file -> GT's.
_FILES = {
    "activation": "activation", "adaptive": "adaptive", "batchnorm": "norm", "channelshuffle": "shaping",
    "container": "containers", "conv": "conv", "distance": "layers", "dropout": "dropout", "flatten": "shaping",
    "fold": "shaping", "instancenorm": "norm", "lazy": "lazy", "linear": "layers", "loss": "losses",
    "module": "module", "normalization": "norm", "padding": "shaping", "pixelshuffle": "shaping",
    "pooling": "pooling", "rnn": "recurrent", "sparse": "layers", "transformer": "transformer",
    "upsampling": "shaping", "utils": "modules.sizes",
}  # fmt: skip
#: torch's names of base classes, for `isinstance` and subclasses, and GT's.
_BASES = {
    "LazyModuleMixin": "_Lazy", "NonDynamicallyQuantizableLinear": "Linear", "_ConvNd": "_Conv",
    "_DropoutNd": "_Dropout", "_LazyNormBase": "_LazyNorm",
    "_MaxPoolNd": "_MaxPool", "_NormBase": "_Running",
}  # fmt: skip

#: Functions that register hooks of all modules.
_OF_ALL = {name: f for name, f in vars(_hooks).items() if name.startswith("register_module_")}


class _File(_ModuleType):
    """A file of torch.nn.modules: what GT's file has, private names too, and all that gt.nn has."""

    def __init__(self, name: str, source: _Any) -> None:
        super().__init__(f"{__name__}.{name}", f"The names of torch.nn.modules.{name}.")
        self._source = source

    def __getattr__(self, name: str) -> _Any:
        for place in (vars(self._source), vars(_nn), globals(), _OF_ALL):
            found = place.get(name, place.get(_BASES.get(name, name)))
            if found is not None:
                return found
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")


for _name, _file in _FILES.items():
    sys.modules[f"{__name__}.{_name}"] = globals()[_name] = _File(_name, _import_module(f"gt.nn.{_file}"))


def __getattr__(name: str) -> _Any:
    return getattr(_nn, name)
