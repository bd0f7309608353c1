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
from gt import accelerator
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
    """What a loader or a file gives, on the workers: tensors, parameters, modules."""
    if isinstance(x, torch.nn.Module):
        model.upload(x)
        return x
    if not isinstance(x, torch.Tensor) or type(x) in ADOPTED or x.layout is not torch.strided or x.is_meta:
        return x
    if isinstance(x, torch.nn.Parameter):
        return _parameter(type(x), x, x.requires_grad)
    made = wrap(native(x.detach()))
    return made.requires_grad_() if x.requires_grad else made


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


#: Names of torch.cuda that are not about the session's workers, or that take and give tensors.
_STAYS = {"amp", "get_rng_state", "get_rng_state_all", "seed", "seed_all", "set_rng_state", "set_rng_state_all"}


def _accelerator(check_available: bool = False) -> Any:
    found = accelerator.current_accelerator(check_available)
    return None if found is None else torch.device(str(found))


_new_parameter = torch.nn.Parameter.__new__


def _parameter(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
    """A parameter of what torch.Tensor(2, 3) made, which is on the host, is adopted like all others."""
    if inside.active and cls is torch.nn.Parameter and isinstance(data, torch.Tensor):
        data = _upload(data.detach())
    return _new_parameter(cls, data, requires_grad)


def _variable(cls: Any, data: Any = None, requires_grad: bool = False, volatile: Any = None) -> Any:
    """torch.autograd.Variable: the tensor itself, as in torch."""
    return _upload(torch.empty(0) if data is None else data.detach()).requires_grad_(requires_grad)


def _settings() -> None:
    torch.manual_seed = torch.random.manual_seed = _also(torch.manual_seed, gt.manual_seed)
    torch.set_default_dtype = _also(torch.set_default_dtype, gt.set_default_dtype)
    torch.set_float32_matmul_precision = _also(torch.set_float32_matmul_precision, gt.set_float32_matmul_precision)
    torch.compile = torch.jit.script = _same
    for space, ours in ((torch.cuda, gt.cuda), (torch.accelerator, accelerator)):
        for name in ours.__all__:
            if hasattr(space, name) and name not in _STAYS:
                setattr(space, name, getattr(ours, name))
    torch.accelerator.current_accelerator = _accelerator
    torch.nn.Parameter.__new__ = staticmethod(_parameter)
    torch.autograd.Variable.__new__ = staticmethod(_variable)
    load = torch.load

    @functools.wraps(load)
    def uploaded(*args: Any, **kwargs: Any) -> Any:
        before, inside.active = inside.active, False  # a parameter may be made before its data is read
        try:
            with torch._C.DisableTorchFunction():
                made = load(*args, **kwargs)
        finally:
            inside.active = before
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
        if isinstance(value, (torch.utils.data.Dataset, torch.distributions.Distribution)):
            _to_host(value)
        elif isinstance(value, (torch.Tensor, list, tuple, dict)):
            try:
                setattr(dataset, name, pytree.tree_map(_download, value))
            except (AttributeError, GTError):
                continue  # read-only: it is read where it is used


def _download(x: Any) -> Any:
    return x.torch() if type(x) in ADOPTED else x
