"""A torch script as it is: every tensor that the script creates is an adopted one.

The script's `import torch` is torch, whose Python serves as it is: modules, optimizers, distributions, loaders. The
mode of adopted models (modes.py) is on from the first line to the last, so that GT records what torch would compute. A
function that GT does not have raises when it is called, not when it is imported.

Datasets stay on the host: items are made and collated by torch, in worker processes too, and a batch is uploaded when
it arrives. Settings of torch that have a counterpart in GT (seeds, devices, compilation) are passed on.
"""

from __future__ import annotations

import functools
import os
import runpy
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils.data
from torch.utils import _pytree as pytree
from torch.utils.data import dataloader

import gt
from gt.adoption import model
from gt.adoption.modes import Inside, inside
from gt.adoption.tensor import ADOPTED, native, wrap
from gt.errors import GTError


def run(arguments: list[str]) -> int:
    """Run a script, with its arguments; returns the exit code."""
    path, *rest = arguments
    if not os.path.exists(path):
        print(f"gt run: no such file: {path}", file=sys.stderr)
        return 2
    model.prepare()
    _settings()
    _loaders()
    sys.argv = [path, *rest]
    sys.path[0] = os.path.dirname(os.path.abspath(path))
    os.register_at_fork(after_in_child=_leave)
    inside.active = True
    with Inside():
        runpy.run_path(path, run_name="__main__")
    return 0


def _leave() -> None:
    """In a child process, such as a loader's worker: the connection is the parent's, so torch is itself again."""
    while torch._C._len_torch_function_stack():
        torch._C._pop_torch_function_stack()
    inside.active = False


def _upload(x: Any) -> Any:
    plain = isinstance(x, torch.Tensor) and type(x) not in ADOPTED
    return wrap(native(x)) if plain and x.layout is torch.strided else x


# --- settings ----------------------------------------------------------------------------------------


def _also(theirs: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    """A function of torch's that has the same effect in GT."""

    @functools.wraps(theirs)
    def both(*args: Any, **kwargs: Any) -> Any:
        ours(*args, **kwargs)
        return theirs(*args, **kwargs)

    return both


def _same(model: Any = None, *args: Any, **kwargs: Any) -> Any:
    """torch.compile and torch.jit.script: GT compiles what runs often by itself."""
    return _same if model is None else model


def _settings() -> None:
    torch.manual_seed = torch.random.manual_seed = _also(torch.manual_seed, gt.manual_seed)
    torch.set_default_dtype = _also(torch.set_default_dtype, gt.set_default_dtype)
    torch.set_float32_matmul_precision = _also(torch.set_float32_matmul_precision, gt.set_float32_matmul_precision)
    torch.compile = torch.jit.script = _same
    for name in ("device_count", "empty_cache", "is_available", "manual_seed", "manual_seed_all", "synchronize"):
        if hasattr(gt.cuda, name):
            setattr(torch.cuda, name, getattr(gt.cuda, name))
    load = torch.load

    @functools.wraps(load)
    def uploaded(*args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():
            made = load(*args, **kwargs)
        return pytree.tree_map(_upload, made)

    torch.load = uploaded


# --- loaders -----------------------------------------------------------------------------------------


def _loaders() -> None:
    """A loader's data stays on the host until a batch arrives."""
    init, following = torch.utils.data.DataLoader.__init__, dataloader._BaseDataLoaderIter.__next__
    iterate = torch.utils.data.DataLoader.__iter__

    @functools.wraps(init)
    def created(self: Any, dataset: Any, *args: Any, **kwargs: Any) -> None:
        _to_host(dataset)
        with torch._C.DisableTorchFunction():
            init(self, dataset, *args, **kwargs)

    @functools.wraps(iterate)
    def begun(self: Any) -> Iterator[Any]:
        with torch._C.DisableTorchFunction():
            return iterate(self)

    @functools.wraps(following)
    def arrived(self: Any) -> Any:
        with torch._C.DisableTorchFunction():
            batch = following(self)
        return pytree.tree_map(_upload, batch)

    torch.utils.data.DataLoader.__init__ = created
    torch.utils.data.DataLoader.__iter__ = begun
    dataloader._BaseDataLoaderIter.__next__ = arrived


def _to_host(dataset: Any) -> None:
    """Tensors that a dataset holds become ordinary ones: its items are made on the host."""
    if isinstance(dataset, list):
        dataset[:] = pytree.tree_map(_download, dataset)
        return
    try:
        held = vars(dataset)
    except TypeError:
        return
    for name, value in list(held.items()):
        if isinstance(value, torch.utils.data.Dataset):
            _to_host(value)
        elif isinstance(value, (torch.Tensor, list, tuple, dict)):
            try:
                setattr(dataset, name, pytree.tree_map(_download, value))
            except (AttributeError, GTError):
                continue  # read-only: it is read where it is used


def _download(x: Any) -> Any:
    return x.torch() if type(x) in ADOPTED else x
