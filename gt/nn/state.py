"""Saving and loading the state of a module: its parameters and buffers by name.

Loading checks everything before it writes anything: a state that does not match changes nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gt.client.compat.interop import from_torch, is_torch
from gt.client.functions.creation import from_numpy
from gt.client.functions.inplace import copy_
from gt.client.grad.modes import set_grad
from gt.client.tensor import Parameter, Tensor
from gt.client.tensor import own as itself
from gt.errors import DTypeError, ShapeError, StateError

if TYPE_CHECKING:
    from gt.nn.module import Module

EXTRA = "_extra_state"


class IncompatibleKeys(NamedTuple):
    """What load_state_dict returns: names missing in the state, and names unknown to the module."""

    missing_keys: list[str]
    unexpected_keys: list[str]

    def __repr__(self) -> str:
        if not self.missing_keys and not self.unexpected_keys:
            return "<All keys matched successfully>"
        return f"_IncompatibleKeys(missing_keys={self.missing_keys}, unexpected_keys={self.unexpected_keys})"


def own(module: Module) -> dict[str, Tensor]:
    """The module's own parameters and persistent buffers."""
    found: dict[str, Any] = dict(module._parameters)
    found.update({k: b for k, b in module._buffers.items() if k not in module._non_persistent_buffers_set})
    return {k: t for k, t in found.items() if t is not None}


def save(module: Module, into: dict[str, Any], prefix: str, keep_vars: bool) -> dict[str, Any]:
    """Add the state of a module and its submodules to a dict."""
    hooks, local = module._hooks, {"version": module._version}
    metadata = getattr(into, "_metadata", None)
    if metadata is not None:
        metadata[prefix[:-1]] = local
    for hook in list(hooks.state_pre) if hooks else ():
        hook.call(module, prefix, keep_vars)
    module._save_to_state_dict(into, prefix, keep_vars)
    for name, child in module._modules.items():
        if child is not None:
            child.state_dict(destination=into, prefix=f"{prefix}{name}.", keep_vars=keep_vars)
    for hook in list(hooks.state) if hooks else ():
        made = hook.call(module, into, prefix, local)
        into = into if made is None else made
    return into


def load(module: Module, state: Any, strict: bool, assign: bool) -> IncompatibleKeys:
    """Load a state into a module and its submodules."""
    if not isinstance(state, Mapping):
        raise DTypeError(f"load_state_dict: expected a dict of tensors by name, got {type(state).__name__}")
    missing: list[str] = []
    unexpected: list[str] = []
    errors: list[str] = []
    writes: list[Callable[[], None]] = []
    keys = IncompatibleKeys(missing, unexpected)

    versions = getattr(state, "_metadata", None) or {}
    metadata = {"assign_to_params_buffers": assign, "writes": writes}
    _load_all(module, OrderedDict(state), "", metadata, versions, keys, errors)
    if strict and (missing or unexpected):
        names = f"missing {sorted(missing)}, unexpected {sorted(unexpected)}"
        raise StateError("; ".join([f"load_state_dict: {names}", *errors]))
    if errors:
        raise ShapeError(f"load_state_dict: {'; '.join(errors)}")
    with set_grad(False):
        for write in writes:
            write()
    return keys


def _load_all(
    module: Module, state: dict[str, Any], prefix: str, metadata: dict[str, Any], versions: Mapping[str, Any],
    keys: IncompatibleKeys, errors: list[str],
) -> None:  # fmt: skip
    """Check the state of a module and of its submodules, and collect the writes."""
    local = {**versions.get(prefix[:-1], {}), **metadata}
    module._load_from_state_dict(state, prefix, local, True, keys.missing_keys, keys.unexpected_keys, errors)
    for name, child in module._modules.items():
        if child is not None:
            inner = f"{prefix}{name}."
            part = OrderedDict((k, v) for k, v in state.items() if k.startswith(inner))
            _load_all(child, part, inner, metadata, versions, keys, errors)
    for hook in list(module._hooks.load_post) if module._hooks else ():
        hook.call(module, keys)


def load_own(
    module: Module, state: dict[str, Any], prefix: str, metadata: dict[str, Any], strict: bool, missing: list[str],
    unexpected: list[str], errors: list[str],
) -> None:  # fmt: skip
    """Check the state of a module itself, without its submodules."""
    for hook in list(module._hooks.load_pre) if module._hooks else ():
        hook.call(module, state, prefix, metadata, strict, missing, unexpected, errors)
    mine = own(module)
    writes: list[Callable[[], None]] = []
    for name, t in mine.items():
        key = prefix + name
        if key in state:
            new = itself(state[key])
            if not isinstance(new, (Tensor, np.ndarray, np.generic)) and not is_torch(new):
                errors.append(f"{key} must be a tensor or an array, got {type(new).__name__}")
            elif tuple(new.shape) != t.shape and not (t.shape == () and tuple(new.shape) == (1,)):
                errors.append(f"{key} must have shape {t.shape}, got {tuple(new.shape)}")
            else:
                assign = metadata.get("assign_to_params_buffers", False)
                writes.append(_write(module, name, t, new, assign))
        elif strict:
            missing.append(key)
    if module._has_extra_state():
        if prefix + EXTRA in state:
            extra = state[prefix + EXTRA]
            writes.append(lambda: module.set_extra_state(extra))
        elif strict:
            missing.append(prefix + EXTRA)
        mine = {**mine, EXTRA: mine.get(EXTRA)}  # type: ignore[dict-item]  # only the name counts
    if strict:
        for key in state:
            first, dot, _ = key.removeprefix(prefix).partition(".")
            if key.startswith(prefix) and first not in (module._modules if dot else mine):
                unexpected.append(key)
    if "writes" in metadata:
        metadata["writes"] += writes
        return
    with set_grad(False):
        for write in writes:
            write()


def _write(module: Module, name: str, t: Tensor, new: Any, assign: bool) -> Callable[[], None]:
    def write() -> None:
        if isinstance(new, Tensor):
            made = new.detach()
        else:
            made = from_torch(new) if is_torch(new) else from_numpy(np.asarray(new))
        if made.shape != t.shape:
            made = made.reshape(())
        if not assign:
            copy_(t, made)
        elif isinstance(t, Parameter):
            setattr(module, name, Parameter(made, requires_grad=t.requires_grad))
        else:
            setattr(module, name, made)

    return write
