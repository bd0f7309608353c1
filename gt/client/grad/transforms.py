"""Function transforms, as in torch.func: gradients, Jacobians, Hessians. Nothing is added to `.grad`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from gt.client.compat.arguments import rebuilt, shown
from gt.client.grad import backward
from gt.client.grad.modes import set_grad
from gt.client.programs import kinds
from gt.client.record.recorder import apply, recorder
from gt.client.tensor import Leaf, Tensor
from gt.errors import ArgumentError, AutogradError
from gt.ops import TABLE

__all__ = ["functional_call", "grad", "grad_and_value", "hessian", "jacrev", "jvp", "value_and_grad", "vjp"]


def _fresh(x: Any, nested: bool) -> Any:
    """An argument to differentiate with respect to; if transforms are nested, with its history."""
    if isinstance(x, (list, tuple)):
        return rebuilt(x, [_fresh(y, nested) for y in x])
    if isinstance(x, dict):
        return {k: _fresh(v, nested) for k, v in x.items()}
    if not isinstance(x, Tensor):
        return x
    if x.requires_grad and nested:
        return x.clone()
    return Tensor(x._v or x._read(), Leaf() if x.dtype.is_differentiable else None)


def _tensors(x: Any) -> list[Tensor]:
    if isinstance(x, Tensor):
        return [x]
    items = x.values() if isinstance(x, dict) else x if isinstance(x, (list, tuple)) else ()
    return [t for y in items for t in _tensors(y)]


def _like(x: Any, found: Any) -> Any:
    if isinstance(x, Tensor):
        return next(found)
    if isinstance(x, dict):
        return {k: _like(v, found) for k, v in x.items()}
    return rebuilt(x, [_like(y, found) for y in x]) if isinstance(x, (list, tuple)) else x


def _grads(outputs: list[Tensor], inputs: list[Tensor], seeds: list[Tensor | None], graph: bool) -> list[Tensor]:
    roots = [(o._fn, backward.seed_gradient(o, s)) for o, s in zip(outputs, seeds, strict=True) if o.requires_grad]
    if not roots:
        return [backward.zeros(t) for t in inputs]
    found = backward.run(roots, True, graph, [t._fn for t in inputs])
    return [backward.zeros(t) if g is None else g for g, t in zip(found, inputs, strict=True)]


def grad_and_value(func: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Any:
    """A function that returns the gradient of func by some of its arguments, and its value.

    >>> import gt
    >>> gt.func.grad_and_value(lambda x: x * x)(gt.tensor(3.0))
    (tensor(6.), tensor(9.))
    """

    @functools.wraps(func)
    def both(*args: Any, **kwargs: Any) -> Any:
        numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
        if any(not -len(args) <= n < len(args) for n in numbers):
            raise ArgumentError(f"grad: argnums {argnums} is out of range for {len(args)} arguments")
        numbers = tuple(n % len(args) for n in numbers)
        nested = bool(recorder().transforms) or any(t.requires_grad for t in _tensors(args))
        recorder().transforms += 1
        try:
            with set_grad(True):
                given = [_fresh(a, nested) if i in numbers else a for i, a in enumerate(args)]
                out = func(*given, **kwargs)
                value, aux = out if has_aux else (out, None)
                if not isinstance(value, Tensor) or value.numel() != 1:
                    raise AutogradError(f"grad: the function must return a tensor of one element, got {shown(value)}")
                wanted = [given[n] for n in numbers]
                found = iter(_grads([value], _tensors(wanted), [None], nested))
                grads = [_like(w, found) for w in wanted]
        finally:
            recorder().transforms -= 1
        if not nested:
            value, aux = value.detach(), _like(aux, iter([t.detach() for t in _tensors(aux)]))
        result = grads[0] if isinstance(argnums, int) else tuple(grads)
        return (result, (value, aux)) if has_aux else (result, value)

    return both


def _made_of(
    func: Callable[..., Any], argnums: int | Sequence[int], has_aux: bool, pick: Callable[[Any, Any], Any]
) -> Any:
    """A function that returns what is picked of the gradient and the value."""
    both = grad_and_value(func, argnums, has_aux)
    return functools.wraps(func)(lambda *args, **kwargs: pick(*both(*args, **kwargs)))


def grad(func: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Any:
    """A function that returns the gradient of func by some of its arguments.

    >>> import gt
    >>> gt.func.grad(gt.func.grad(lambda x: x ** 3))(gt.tensor(2.0))
    tensor(12.)
    """
    return _made_of(func, argnums, has_aux, lambda grads, value: (grads, value[1]) if has_aux else grads)


def value_and_grad(func: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Any:
    """A function that returns func's value and its gradient by some of its arguments.

    >>> import gt
    >>> gt.func.value_and_grad(lambda x: x * x)(gt.tensor(3.0))
    (tensor(9.), tensor(6.))
    """
    return _made_of(func, argnums, has_aux, lambda grads, value: (value, grads))


def vjp(func: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """The value of func, and a function from a gradient of it to the gradients of the primals."""
    nested = bool(recorder().transforms) or any(t.requires_grad for t in _tensors(primals))
    with set_grad(True):
        given = [_fresh(p, nested) for p in primals]
        out = func(*given)
    value, aux = out if has_aux else (out, None)

    def pull(*cotangents: Any) -> Any:
        seeds = _tensors(cotangents if len(cotangents) > 1 or not isinstance(value, Tensor) else cotangents[0])
        outs = _tensors(value)
        if len(seeds) != len(outs):
            raise ArgumentError(f"vjp: expected {len(outs)} gradients, one per result, got {len(seeds)}")
        found = iter(_grads(outs, _tensors(given), list(seeds), bool(nested or recorder().transforms)))
        return tuple(_like(g, found) for g in given)

    result = value if nested else _like(value, (t.detach() for t in _tensors(value)))
    return (result, pull, aux) if has_aux else (result, pull)


def jvp(func: Callable[..., Any], primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """The value of func, and its Jacobian times the tangents (as a gradient of a gradient)."""
    with set_grad(True):
        given = [_fresh(p, True) for p in primals]
        out = func(*given)
        outs = _tensors(out)
        dummies = [Tensor(backward.zeros(o)._v, Leaf()) for o in outs]  # made just now
        pulled = _grads(outs, _tensors(given), list(dummies), True)
        pushed = _grads(pulled, dummies, list(_tensors(tangents)), bool(recorder().transforms))
    detached = _like(out, (t.detach() for t in _tensors(out)))
    return (out if recorder().transforms else detached), _like(out, iter(pushed))


def jacrev(func: Callable[..., Any], argnums: int = 0) -> Callable[..., Any]:
    """A function that returns the Jacobian of func by one of its arguments: result sizes, then argument sizes."""

    @functools.wraps(func)
    def jacobian(*args: Any) -> Any:
        def one(x: Any) -> Any:
            return func(*args[:argnums], x, *args[argnums + 1 :])

        recorder().transforms += 1
        try:
            out, pull = vjp(one, args[argnums])
            steps = apply(kinds.arange[out.numel(), "int64"], (0, 1))
            identity = (steps.unsqueeze(1) == steps).to(out.dtype)
            grads = [pull(row.reshape(out.shape))[0].unsqueeze(0) for row in identity.unbind(0)]
        finally:
            recorder().transforms -= 1
        made = TABLE["cat"](*grads, dim=0).reshape(*out.shape, *args[argnums].shape)
        return made if recorder().transforms or args[argnums].requires_grad else made.detach()

    return jacobian


def hessian(func: Callable[..., Any], argnums: int = 0) -> Callable[..., Any]:
    """A function that returns the second derivatives of func, which has one result, by one of its arguments."""
    return jacrev(jacrev(func, argnums), argnums)


def functional_call(module: Any, parameters_and_buffers: dict[str, Any], args: Any, kwargs: Any = None) -> Any:
    """Call a module with these tensors in place of its parameters and buffers."""
    swapped: list[tuple[dict[str, Any], str, Any]] = []
    owners = dict(module.named_modules())
    try:
        for name, tensor in parameters_and_buffers.items():
            path, _, last = name.rpartition(".")
            store = owners[path]._parameters if last in owners[path]._parameters else owners[path]._buffers
            swapped.append((store, last, store[last]))
            store[last] = tensor
        given = args if isinstance(args, tuple) else (args,)
        return module(*given, **(kwargs or {}))
    finally:
        for store, last, old in reversed(swapped):
            store[last] = old
