"""The modules of torch.nn.modules by torch's file names: `from gt.nn.modules.batchnorm import BatchNorm2d`."""

from __future__ import annotations

import sys
from importlib import import_module as _import_module
from typing import Any as _Any

from gt import nn as _nn

#: torch's file -> GT's.
_FILES = {
    "activation": "activation", "batchnorm": "norm", "container": "containers", "conv": "conv", "distance": "layers",
    "dropout": "dropout", "flatten": "shaping", "fold": "shaping", "instancenorm": "norm", "linear": "layers",
    "loss": "losses", "module": "module", "normalization": "norm", "padding": "shaping", "pixelshuffle": "shaping",
    "pooling": "pooling", "rnn": "recurrent", "sparse": "layers", "transformer": "transformer", "upsampling": "shaping",
    "utils": "modules.sizes",
}  # fmt: skip
for _name, _file in _FILES.items():
    sys.modules[f"{__name__}.{_name}"] = globals()[_name] = _import_module(f"gt.nn.{_file}")


def __getattr__(name: str) -> _Any:
    return getattr(_nn, name)
