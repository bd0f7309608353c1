"""Utilities for gradients, parameters and sequences, named as in torch.nn.utils."""

from importlib import import_module
from typing import Any

from gt.nn.utils import parametrizations, parametrize, prune, rnn
from gt.nn.utils.clip_grad import clip_grad_norm_, clip_grad_value_, clip_grads_with_norm_, get_total_norm
from gt.nn.utils.convert_parameters import parameters_to_vector, vector_to_parameters
from gt.nn.utils.weight_hooks import remove_spectral_norm, remove_weight_norm, spectral_norm, weight_norm

__all__ = [
    "clip_grad_norm", "clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "get_total_norm",
    "parameters_to_vector", "parametrizations", "parametrize", "prune", "remove_spectral_norm", "remove_weight_norm",
    "rnn", "skip_init", "spectral_norm", "vector_to_parameters", "weight_norm",
]  # fmt: skip

#: Names that are imported when they are used, and where they are.
_LATER = dict.fromkeys(
    ("fuse_conv_bn_eval", "fuse_conv_bn_weights", "fuse_linear_bn_eval", "fuse_linear_bn_weights"), "fusion"
)


def __getattr__(name: str) -> Any:
    if name in ("fusion", "stateless"):
        return import_module(f"gt.nn.utils.{name}")
    if name in _LATER:
        return getattr(import_module(f"gt.nn.utils.{_LATER[name]}"), name)
    raise AttributeError(f"module 'gt.nn.utils' has no attribute {name!r}")


def skip_init(module_cls: Any, *args: Any, **kwargs: Any) -> Any:
    """A module of this class, for parameters that are set next. Nothing is skipped: to record an initialization that is
    overwritten costs no computation."""
    return module_cls(*args, **kwargs)


clip_grad_norm = clip_grad_norm_  # its old name
