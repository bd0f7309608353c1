"""Hooks of modules: functions that run before or after forward, backward, saving and loading.

A module without hooks has no Hooks object, and its calls do not run this code. Backward hooks are called by two
functions in the graph that pass gradients through: one at the module's inputs, one at its outputs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gt.client.compat.arguments import shown
from gt.client.grad.custom import Function
from gt.client.record.recorder import recorder
from gt.client.tensor import RemovableHandle, Tensor
from gt.errors import ArgumentError

if TYPE_CHECKING:
    from gt.nn.module import Module

Grads = tuple[Any, ...]


@dataclass(slots=True, eq=False)
class Hook:
    """A hook, whether it also takes keyword arguments, and whether it runs after an error too."""

    call: Callable[..., Any]
    with_kwargs: bool = False
    always: bool = False

    def after(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
        """Run it after forward."""
        return self.call(module, args, kwargs, out) if self.with_kwargs else self.call(module, args, out)


class Hooks:
    """All hooks of a module, each kind in calling order."""

    def __init__(self) -> None:
        self.around: list[Callable[[Module], Any]] = []  #: Each returns a context manager for forward.
        self.forward_pre: list[Hook] = []
        self.forward: list[Hook] = []
        self.backward_pre: list[Hook] = []
        self.backward: list[Hook] = []
        self.state_pre: list[Hook] = []
        self.state: list[Hook] = []
        self.load_pre: list[Hook] = []
        self.load_post: list[Hook] = []


def add(
    hooks: list[Hook], call: Callable[..., Any], with_kwargs: bool = False, prepend: bool = False, always: bool = False
) -> RemovableHandle:
    """Add a hook as the last, or as the first; `remove()` of the returned handle removes it."""
    return RemovableHandle(hooks, Hook(call, with_kwargs, always), prepend)


class Hookable:
    """What has hooks: the part of a Module that registers them."""

    _hooks: Hooks | None = None

    def _hooked(self) -> Hooks:
        mine: Hooks | None = self.__dict__.get("_hooks")
        if mine is None:
            mine = self._hooks = Hooks()
        return mine

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Call `hook(module, args)` before forward; it may return new arguments."""
        return add(self._hooked().forward_pre, hook, with_kwargs, prepend)

    def register_forward_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False, always_call: bool = False
    ) -> RemovableHandle:
        """Call `hook(module, args, output)` after forward; it may return a new output. With `always_call` it is called
        after an error too; if forward raised it, the output is None."""
        return add(self._hooked().forward, hook, with_kwargs, prepend, always_call)

    def register_full_backward_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Call `hook(module, grad_output)` with the gradients of the outputs; it may return new ones."""
        return add(self._hooked().backward_pre, hook, False, prepend)

    def register_full_backward_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Call `hook(module, grad_input, grad_output)` with the gradients of the inputs; it may return new ones."""
        return add(self._hooked().backward, hook, False, prepend)

    def register_backward_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """The old name of register_full_backward_hook."""
        return self.register_full_backward_hook(hook)

    def register_state_dict_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(module, prefix, keep_vars)` before state_dict()."""
        return add(self._hooked().state_pre, hook)

    def register_state_dict_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(module, state_dict, prefix, local_metadata)` after state_dict(); it may change the state."""
        return add(self._hooked().state, hook)

    _register_state_dict_hook = register_state_dict_post_hook

    def register_load_state_dict_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(module, state_dict, prefix, ...)` before the state of this module is loaded."""
        return add(self._hooked().load_pre, hook)

    def _register_load_state_dict_pre_hook(
        self, hook: Callable[..., Any], with_module: bool = False
    ) -> RemovableHandle:
        """Call `hook(state_dict, prefix, ...)` before the state of this module is loaded."""
        return add(self._hooked().load_pre, hook if with_module else lambda module, *args: hook(*args))

    def register_load_state_dict_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(module, incompatible_keys)` after a state was checked; it may change these lists."""
        return add(self._hooked().load_post, hook)


#: The hooks of all modules, which run before a module's own. It becomes `Hookable._hooks` with the first of them.
EVERY = Hooks()
_RUN = ("forward_pre", "forward", "backward_pre", "backward")


def _of_every(kind: str, hook: Callable[..., Any], with_kwargs: bool = False, always: bool = False) -> RemovableHandle:
    Hookable._hooks = EVERY
    return add(getattr(EVERY, kind), hook, with_kwargs, always=always)


def register_module_forward_pre_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Call `hook(module, args)` before forward of every module; it may return new arguments."""
    return _of_every("forward_pre", hook)


def register_module_forward_hook(
    hook: Callable[..., Any], *, with_kwargs: bool = False, always_call: bool = False
) -> RemovableHandle:
    """Call `hook(module, args, output)` after forward of every module; it may return a new output."""
    return _of_every("forward", hook, with_kwargs, always_call)


def register_module_full_backward_pre_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Call `hook(module, grad_output)` for every module; it may return new gradients."""
    return _of_every("backward_pre", hook)


def register_module_full_backward_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Call `hook(module, grad_input, grad_output)` for every module; it may return new gradients."""
    return _of_every("backward", hook)


register_module_backward_hook = register_module_full_backward_hook


def _with_those_of_every(hooks: Hooks) -> Hooks:
    """A module's own hooks, after those of all modules."""
    both = Hooks()
    both.around = hooks.around
    for kind in _RUN:
        setattr(both, kind, getattr(EVERY, kind) + getattr(hooks, kind))
    return both


def call(module: Module, hooks: Hooks, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call forward() and all hooks."""
    if hooks is not EVERY and Hookable._hooks is EVERY:
        hooks = _with_those_of_every(hooks)
    left, out = [*hooks.forward], [None]
    try:
        return _call(module, hooks, left, out, args, kwargs)
    except Exception:
        for hook in left:
            if hook.always:
                try:
                    hook.after(module, args, kwargs, out[0])
                except Exception as e:  # as in torch
                    warnings.warn(f"a forward hook raised an error after another one: {e}", stacklevel=2)
        raise


def _call(
    module: Module, hooks: Hooks, left: list[Hook], out: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call forward() and all hooks. `left`: forward hooks that have not been run; `out`: what forward has returned."""
    for hook in list(hooks.forward_pre):
        if hook.with_kwargs:
            made = hook.call(module, args, kwargs)
            if made is not None:
                if not isinstance(made, tuple) or len(made) != 2:
                    raise ArgumentError(
                        f"a forward pre-hook with kwargs must return None or (args, kwargs), got {shown(made)}"
                    )
                args, kwargs = made
        else:
            made = hook.call(module, args)
            if made is not None:
                args = made if isinstance(made, tuple) else (made,)
    passage = Passage(module, hooks) if hooks.backward or hooks.backward_pre else None
    if passage is not None:
        args = passage.enter(args)
    with ExitStack() as inside:
        for enter in hooks.around:
            inside.enter_context(enter(module))
        out[0] = module.forward(*args, **kwargs)
    while left:
        changed = left.pop(0).after(module, args, kwargs, out[0])
        if changed is not None:
            out[0] = changed
    return out[0] if passage is None else passage.leave(out[0])


# --- gradients ---------------------------------------------------------------------------------------


class Passage:
    """The backward pass through one call of a module: first the gradients of its outputs, then of its inputs."""

    def __init__(self, module: Module, hooks: Hooks) -> None:
        self.module = module
        self.hooks = hooks
        self.inputs: list[int] = []  #: The positions of the arguments that are tensors.
        self.results: list[int] = []
        self.counts = (0, 0)  #: The numbers of arguments and results.
        self.entered = False  #: Whether any input requires gradients.
        self.arrived: Grads | None = None  #: The gradients of the results.

    def enter(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        self.inputs = [i for i, a in enumerate(args) if isinstance(a, Tensor)]
        self.counts = (len(args), 0)
        self.entered = recorder().grad and any(args[i].requires_grad for i in self.inputs)
        return _through(_Enter, self, args, self.inputs) if self.entered else args

    def leave(self, out: Any) -> Any:
        outs = out if isinstance(out, tuple) else (out,)
        self.results = [i for i, a in enumerate(outs) if isinstance(a, Tensor)]
        self.counts = (self.counts[0], len(outs))
        if not recorder().grad or not any(outs[i].requires_grad for i in self.results):
            return out
        outs = _through(_Leave, self, outs, self.results)
        return outs if isinstance(out, tuple) else outs[0]

    def left(self, gs: Grads) -> Grads:
        """The gradients of the results, as hooks change them."""
        grads = _spread(gs, self.results, self.counts[1])
        for hook in list(self.hooks.backward_pre):
            grads = _changed("full_backward_pre_hook", hook.call(self.module, grads), grads)
        self.arrived = grads
        if not self.entered:
            self._run((None,) * self.counts[0])
        return tuple(grads[i] for i in self.results)

    def came(self, gs: Grads) -> Grads:
        """The gradients of the inputs, as hooks change them."""
        grads = self._run(_spread(gs, self.inputs, self.counts[0]))
        return tuple(grads[i] for i in self.inputs)

    def _run(self, grads: Grads) -> Grads:
        if self.arrived is None:
            return grads  # they did not come through the module's results
        for hook in list(self.hooks.backward):
            grads = _changed("full_backward_hook", hook.call(self.module, grads, self.arrived), grads)
        self.arrived = None
        return grads


def _through(function: type[Function], passage: Passage, values: tuple[Any, ...], places: list[int]) -> tuple[Any, ...]:
    made = list(values)
    for i, t in zip(places, function.apply(passage, *[values[i] for i in places]), strict=True):
        made[i] = t
    return tuple(made)


def _spread(gs: Grads, places: list[int], n: int) -> Grads:
    """A tuple of n with the gradients at their positions, None elsewhere."""
    found = dict(zip(places, gs, strict=True))
    return tuple(found.get(i) for i in range(n))


def _changed(kind: str, made: Any, grads: Grads) -> Grads:
    if made is None:
        return grads
    made = made if isinstance(made, tuple) else (made,)
    if len(made) != len(grads):
        raise ArgumentError(f"{kind}: expected a hook to return {len(grads)} gradients, got {len(made)}")
    return tuple(made)


class _Enter(Function):
    """The inputs of a module. Missing gradients are zeros, as in torch."""

    @staticmethod
    def forward(ctx: Any, passage: Passage, *tensors: Tensor) -> Any:
        ctx.passage = passage
        ctx.mark_non_differentiable(*[t for t in tensors if not t.requires_grad])
        return tensors

    @staticmethod
    def backward(ctx: Any, *gs: Any) -> Any:
        return (None, *ctx.passage.came(gs))


class _Leave(_Enter):
    """The results of a module. Missing gradients are None."""

    @staticmethod
    def forward(ctx: Any, passage: Passage, *tensors: Tensor) -> Any:
        ctx.set_materialize_grads(False)
        return _Enter.forward(ctx, passage, *tensors)

    @staticmethod
    def backward(ctx: Any, *gs: Any) -> Any:
        return (None, *ctx.passage.left(gs))
