"""torch.autograd.Function, torch.utils.checkpoint and the hooks of modules, in GT's graph.

torch runs these in C++, which sees nothing of an adopted tensor; so their Python entrances are changed, once, when the
first model is adopted. Ordinary tensors pass through them as before.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
import torch.utils.checkpoint

from gt.adoption.functions import ours, theirs
from gt.adoption.modes import entered, inside
from gt.adoption.tensor import ADOPTED, native, wrap
from gt.client.compat.arguments import rebuilt
from gt.client.grad.checkpoint import Region
from gt.client.grad.custom import Context, Function, FunctionNode
from gt.client.record.recorder import recorder
from gt.client.tensor import Tensor

# --- torch.autograd.Function -------------------------------------------------------------------------


class TorchContext:
    """The `ctx` of a torch.autograd.Function, on top of GT's."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.needs_input_grad = context.needs_input_grad

    def save_for_backward(self, *tensors: Any) -> None:
        self._context.save_for_backward(*ours(tensors))

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        return theirs(self._context.saved_tensors)

    def save_for_forward(self, *tensors: Any) -> None:
        pass

    def mark_non_differentiable(self, *tensors: Any) -> None:
        self._context.mark_non_differentiable(*ours(tensors))

    def mark_dirty(self, *tensors: Any) -> None:
        self._context.mark_dirty(*ours(tensors))

    def set_materialize_grads(self, value: bool) -> None:
        self._context.set_materialize_grads(value)


class NodeView:
    """The graph node of such a function, as torch's code uses it."""

    def __init__(self, node: FunctionNode) -> None:
        self._node = node

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)

    def register_hook(self, hook: Callable[[Any, Any], Any]) -> None:
        """Call `hook(grad_inputs, grad_outputs)` after the node's backward."""
        vars(self._node.context).setdefault("hooks", []).append(hook)

    def register_prehook(self, hook: Callable[[Any], Any]) -> None:
        """Call `hook(grad_outputs)` before the node's backward."""
        vars(self._node.context).setdefault("prehooks", []).append(hook)


def _down(x: Any) -> Any:
    """The tensors of GT in a result or gradient; other values as they are."""
    if isinstance(x, (tuple, list)):
        return rebuilt(x, [_down(y) for y in x])
    return native(x) if isinstance(x, torch.Tensor) else x


@functools.cache
def _bridge(cls: Any) -> type[Function]:
    """A function of GT with forward and backward of torch's."""

    def forward(ctx: Context, *args: Any) -> Any:
        given = [wrap(a) if isinstance(a, Tensor) else a for a in args]
        context = vars(ctx)["torchs"] = TorchContext(ctx)
        with torch.no_grad():
            if cls.setup_context is not torch.autograd.Function.setup_context:
                made = cls.forward(*given)
                cls.setup_context(context, tuple(given), made)
            else:
                made = cls.forward(context, *given)
        return _down(made)

    def backward(ctx: Context, *grads: Any) -> Any:
        given: Any = tuple([wrap(g) if isinstance(g, Tensor) else g for g in grads])
        rec = recorder()
        again, rec.grad = rec.grad, True  # torch's gradient mode decides in here
        try:
            with torch.set_grad_enabled(again):
                for hook in vars(ctx).get("prehooks", ()):
                    given = hook(given) or given
                made = cls.backward(vars(ctx)["torchs"], *given)
                made = made if isinstance(made, tuple) else (made,)
                for hook in vars(ctx).get("hooks", ()):
                    made = hook(made, given) or made
        finally:
            recorder().grad = again
        return _down(made)

    members = {"forward": staticmethod(forward), "backward": staticmethod(backward), "seen": NodeView}
    return type(cls.__name__, (Function,), members)


def _apply(cls: Any, args: tuple[Any, ...]) -> Any:
    if cls is torch.utils.checkpoint.CheckpointFunction:
        function, _, *inputs = args
        return checkpoint(function, tuple(inputs), {})
    made = _bridge(cls).apply(*[a._gt if type(a) in ADOPTED else a for a in args])
    if isinstance(made, (tuple, list)):
        return rebuilt(made, [wrap(t) if isinstance(t, Tensor) else t for t in made])
    return wrap(made) if isinstance(made, Tensor) else made


def _concerns(args: Any) -> bool:
    return any(type(a) in ADOPTED for a in args)


class _Carrier(torch.autograd.Function):  # type: ignore[misc]  # torch is Any to the type checker
    """Only for the code of its `apply`, which refers to its class as torch's does."""

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        if _gt_concerns(args):  # type: ignore[name-defined]  # noqa: F821  # set where the code is used
            return _gt_apply(cls, args)  # type: ignore[name-defined]  # noqa: F821
        return _gt_before(cls, *args, **kwargs)  # type: ignore[name-defined]  # noqa: F821
        super()


# --- checkpoints -------------------------------------------------------------------------------------


def _region(function: Callable[..., Any], args: Any, kwargs: Any) -> Region:
    """A checkpointed function, with what torch's modes are now."""
    run = entered(function) if inside.active else function
    modes = [(d, torch.get_autocast_dtype(d)) for d in ("cpu", "cuda") if torch.is_autocast_enabled(d)]

    def again(*given: Any, **named: Any) -> Any:
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            for device, dtype in modes:
                stack.enter_context(torch.autocast(device, dtype))
            return run(*theirs(given), **{k: theirs(v) for k, v in named.items()})

    given = [a._gt if type(a) in ADOPTED else a for a in args]
    return Region(again, tuple(given), {k: a._gt if type(a) in ADOPTED else a for k, a in kwargs.items()})


def checkpoint(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """torch.utils.checkpoint with use_reentrant=True."""
    if not (torch.is_grad_enabled() and recorder().grad):
        return function(*args, **kwargs)
    region = _region(function, args, kwargs)
    with region.watched() as (nodes, seeds):
        made = function(*args, **kwargs)
    region.drop(nodes, seeds)
    return made


def _watching(before: Callable[..., Any]) -> Callable[..., Any]:
    """What torch.utils.checkpoint runs around a function with use_reentrant=False."""

    def generator(
        fn: Any, preserve: Any, contexts: Any, check: Any, debug: Any, early: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if not _concerns([*args, *kwargs.values()]) or not (torch.is_grad_enabled() and recorder().grad):
            yield from before(fn, preserve, contexts, check, debug, early, *args, **kwargs)
            return
        region = _region(fn, args, kwargs)
        with region.watched() as (nodes, seeds):
            yield
        region.drop(nodes, seeds)

    return generator


def install() -> None:
    """Change the entrances."""
    apply = torch.autograd.Function.apply.__func__
    before = FunctionType(apply.__code__, apply.__globals__, "apply", apply.__defaults__, apply.__closure__)
    apply.__globals__.update(_gt_concerns=_concerns, _gt_apply=_apply, _gt_before=before)
    # The code and not the attribute: `f = MyFunction.apply`, bound when a module was imported, must see it.
    carrier: Any = _Carrier.apply
    apply.__code__ = carrier.__func__.__code__
    names = vars(torch.utils.checkpoint)
    names["_checkpoint_without_reentrant_generator"] = _watching(names["_checkpoint_without_reentrant_generator"])
