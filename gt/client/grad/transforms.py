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

__all__ = [
    "grad", "grad_and_value", "hessian", "jacfwd", "jacrev", "jvp", "linearize", "value_and_grad", "vjp",
]  # fmt: skip


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


def _linear(func: Callable[..., Any], primals: Sequence[Any], has_aux: bool = False) -> tuple[Any, Any, Any]:
    """The value of func, what else it returns, and a function from tangents of the primals, one for each tensor, to
    those of the results: the gradient of a gradient, which is linear in the one that it started with."""
    with set_grad(True):
        given = [_fresh(p, True) for p in primals]
        out = func(*given)
        value, aux = out if has_aux else (out, None)
        outs = _tensors(value)
        dummies = [Tensor(backward.zeros(o)._v, Leaf()) for o in outs]  # made just now
        pulled = _grads(outs, _tensors(given), list(dummies), True)

    def push(tangents: Sequence[Any]) -> list[Tensor]:
        return _grads(pulled, dummies, list(tangents), bool(recorder().transforms))

    return value, aux, push


def _settled(x: Any) -> Any:
    """A result; outside of all transforms it has no history."""
    return x if recorder().transforms else _like(x, (t.detach() for t in _tensors(x)))


def jvp(func: Callable[..., Any], primals: tuple[Any, ...], tangents: tuple[Any, ...], *, strict: bool = False,
        has_aux: bool = False) -> Any:  # fmt: skip
    """The value of func, and its Jacobian times the tangents (as a gradient of a gradient)."""
    value, aux, push = _linear(func, primals, has_aux)
    pushed = _like(value, iter(push(_tensors(tangents))))
    return (_settled(value), pushed, _settled(aux)) if has_aux else (_settled(value), pushed)


def linearize(func: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """The value of func at the primals, and a function from tangents to its Jacobian times these. func runs once.

    >>> import gt
    >>> value, push = gt.func.linearize(lambda x: x ** 2, gt.tensor([1.0, 3.0]))
    >>> push(gt.tensor([1.0, 1.0]))
    tensor([2., 6.])
    """
    value, _, push = _linear(func, primals)

    def pushed(*tangents: Any) -> Any:
        given, expected = _tensors(tangents), _tensors(primals)
        if [t.shape for t in given] != [p.shape for p in expected]:
            raise ArgumentError(
                f"linearize: expected tangents of the shapes {[tuple(p.shape) for p in expected]}, got "
                f"{[tuple(t.shape) for t in given]}"
            )
        return _like(value, iter(push(given)))

    return _settled(value), pushed


def _basis(x: Tensor) -> list[Any]:
    """Tensors like x of which each has one element that is 1; the others are 0."""
    steps = apply(kinds.arange[x.numel(), "int64"], (0, 1))
    identity = (steps.unsqueeze(1) == steps).to(x.dtype)
    return [row.reshape(x.shape) for row in identity.unbind(0)]


def _one_hot(tensors: list[Tensor]) -> list[list[list[Any]]]:
    """For each tensor the seeds of all: each element of its basis, with zeros for the other tensors."""
    zeros = [backward.zeros(t) for t in tensors]
    return [[[*zeros[:i], row, *zeros[i + 1 :]] for row in _basis(t)] for i, t in enumerate(tensors)]


def _jacobian_of(
    func: Callable[..., Any], argnums: int | Sequence[int], has_aux: bool, columns: Callable[..., Any]
) -> Callable[..., Any]:
    """A function that returns Jacobians: by result, and in it by argument. `columns` finds them for tensors."""

    @functools.wraps(func)
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
        if any(not -len(args) <= n < len(args) for n in numbers):
            raise ArgumentError(f"argnums {argnums} is out of range for {len(args)} arguments")
        wanted = [args[n] for n in numbers]

        def of(*xs: Any) -> Any:
            given = list(args)
            for n, x in zip(numbers, xs, strict=True):
                given[n] = x
            return func(*given, **kwargs)

        recorder().transforms += 1
        try:
            value, aux, found = columns(of, wanted, has_aux)
        finally:
            recorder().transforms -= 1
        free = not recorder().transforms and not any(t.requires_grad for t in _tensors(args))
        rows = []
        for leaves in found:
            by_argument = _like(wanted, iter([t.detach() if free else t for t in leaves]))
            rows.append(by_argument[0] if isinstance(argnums, int) else tuple(by_argument))
        made = _like(value, iter(rows))
        return (made, _settled(aux)) if has_aux else made

    return jacobian


def _joined(parts: list[Any], at: int, shape: tuple[int, ...]) -> Any:
    return TABLE["cat"](*[p.unsqueeze(at) for p in parts], dim=at).reshape(shape)


def jacrev(func: Callable[..., Any], argnums: int | Sequence[int] = 0, *, has_aux: bool = False,
           chunk_size: int | None = None) -> Callable[..., Any]:  # fmt: skip
    """A function that returns the Jacobian of func by some of its arguments: result sizes, then argument sizes. It
    takes a backward pass for each element of the results.

    >>> import gt
    >>> gt.func.jacrev(lambda x: x ** 2)(gt.tensor([1.0, 3.0]))
    tensor([[2., 0.],
            [0., 6.]])
    """

    def columns(of: Callable[..., Any], wanted: list[Any], has_aux: bool) -> Any:
        value, pull, *aux = vjp(of, *wanted, has_aux=has_aux)
        outs, ins = _tensors(value), _tensors(wanted)
        found = []
        for out, seeds in zip(outs, _one_hot(outs), strict=True):
            rows = [_tensors(pull(*seed)) for seed in seeds]
            by_leaf = zip(ins, zip(*rows, strict=True), strict=True)
            found.append([_joined(list(parts), 0, (*out.shape, *x.shape)) for x, parts in by_leaf])
        return value, (aux[0] if has_aux else None), found

    return _jacobian_of(func, argnums, has_aux, columns)


def jacfwd(func: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, *,
           randomness: str = "error") -> Callable[..., Any]:  # fmt: skip
    """The same as jacrev, with a pass for each element of the arguments: better if the results have more elements.

    >>> import gt
    >>> gt.func.jacfwd(lambda x: gt.stack([x, x ** 2]))(gt.tensor(3.0))
    tensor([1., 6.])
    """

    def columns(of: Callable[..., Any], wanted: list[Any], has_aux: bool) -> Any:
        value, aux, push = _linear(of, wanted, has_aux)
        outs, ins = _tensors(value), _tensors(wanted)
        found: list[list[Any]] = [[] for _ in outs]
        for x, seeds in zip(ins, _one_hot(ins), strict=True):
            pushed = [push(seed) for seed in seeds]
            for leaves, out, parts in zip(found, outs, zip(*pushed, strict=True), strict=True):
                leaves.append(_joined(list(parts), out.ndim, (*out.shape, *x.shape)))
        return value, aux, found

    return _jacobian_of(func, argnums, has_aux, columns)


def hessian(func: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """A function that returns the second derivatives of func by some of its arguments."""
    return jacrev(jacrev(func, argnums), argnums)
