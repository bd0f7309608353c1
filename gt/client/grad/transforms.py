"""Function transforms, as in torch.func: gradients, Jacobians, Hessians. Nothing is added to `.grad`.

Law: a result has a history if gradients are on where the transform is called, and it depends on more tensors that
     require grad than those that the transform makes for its arguments: on an argument that did before, on a tensor
     that the function uses (a weight of a model), or on an argument of a transform around it.
"""

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
from gt.errors import ArgumentError, AutogradError, DTypeError
from gt.ops import TABLE

__all__ = [
    "grad", "grad_and_value", "hessian", "jacfwd", "jacrev", "jvp", "linearize", "value_and_grad", "vjp",
]  # fmt: skip


def _fresh(x: Any, outer: bool) -> Any:
    """An argument to differentiate with respect to; with its history, if gradients are on (`outer`)."""
    if isinstance(x, (list, tuple)):
        return rebuilt(x, [_fresh(y, outer) for y in x])
    if isinstance(x, dict):
        return {k: _fresh(v, outer) for k, v in x.items()}
    if not isinstance(x, Tensor):
        return x
    if not x.dtype.is_differentiable:
        raise DTypeError(f"gt.func: cannot differentiate by a tensor of {x.dtype.name}; cast it first, as in x.float()")
    return x.clone() if x.requires_grad and outer else Tensor(x._v or x._read(), Leaf())


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


def _depends(results: list[Tensor], own: list[Tensor]) -> bool:
    """Whether results depend on more tensors that require grad than on these."""
    leaves = {t._fn for t in own}
    return any(type(n) is Leaf and n not in leaves for n in backward.order_of([backward.whole(t._fn) for t in results]))


def _settled(x: Any, own: list[Tensor], outer: bool) -> Any:
    """A result for whoever has called the transform: see the law."""
    return _like(x, iter([t if outer and _depends([t], own) else t.detach() for t in _tensors(x)]))


def _grads(outputs: list[Tensor], inputs: list[Tensor], seeds: list[Tensor | None], graph: bool) -> list[Tensor]:
    roots = [(o._fn, backward.seed_gradient(o, s)) for o, s in zip(outputs, seeds, strict=True) if o.requires_grad]
    if not roots:
        return [backward.zeros(t) for t in inputs]
    graph = graph or (recorder().grad and any(s is not None and s.requires_grad for s in seeds))
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
        outer = recorder().grad
        with set_grad(True):
            given = [_fresh(a, outer) if i in numbers else a for i, a in enumerate(args)]
            out = func(*given, **kwargs)
            value, aux = out if has_aux else (out, None)
            if not isinstance(value, Tensor) or value.numel() != 1:
                raise AutogradError(f"grad: the function must return a tensor of one element, got {shown(value)}")
            wanted = [given[n] for n in numbers]
            own = _tensors(wanted)
            lasting = outer and _depends([value], own)
            found = iter(_grads([value], own, [None], lasting))
            grads = [_like(w, found) for w in wanted]
        result = grads[0] if isinstance(argnums, int) else tuple(grads)
        value, aux = value if lasting else value.detach(), _settled(aux, own, outer)
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
    outer = recorder().grad
    with set_grad(True):
        given = [_fresh(p, outer) for p in primals]
        out = func(*given)
    value, aux = out if has_aux else (out, None)
    own = _tensors(given)
    lasting = outer and _depends(_tensors(value), own)

    def pull(*cotangents: Any) -> Any:
        seeds = _tensors(cotangents if len(cotangents) > 1 or not isinstance(value, Tensor) else cotangents[0])
        outs = _tensors(value)
        if len(seeds) != len(outs):
            raise ArgumentError(f"vjp: expected {len(outs)} gradients, one per result, got {len(seeds)}")
        found = iter(_grads(outs, own, list(seeds), lasting))
        return tuple(_like(g, found) for g in given)

    result, aux = _settled(value, own, lasting), _settled(aux, own, outer)
    return (result, pull, aux) if has_aux else (result, pull)


def _linear(func: Callable[..., Any], primals: Sequence[Any], has_aux: bool = False) -> tuple[Any, Any, Any]:
    """The value of func, what else it returns, and a function from tangents of the primals, one for each tensor, to
    those of the results: the gradient of a gradient, which is linear in the one that it started with."""
    outer = recorder().grad
    with set_grad(True):
        given = [_fresh(p, outer) for p in primals]
        out = func(*given)
        value, aux = out if has_aux else (out, None)
        outs, own = _tensors(value), _tensors(given)
        dummies = [Tensor(backward.zeros(o)._v, Leaf()) for o in outs]  # made just now
        pulled = _grads(outs, own, list(dummies), True)
        lasting = outer and _depends(pulled, own + dummies)

    def push(tangents: Sequence[Any]) -> list[Tensor]:
        return _grads(pulled, dummies, list(tangents), lasting)

    value, aux = _settled((value, aux), own, outer)
    return value, aux, push


def jvp(func: Callable[..., Any], primals: tuple[Any, ...], tangents: tuple[Any, ...], *, strict: bool = False,
        has_aux: bool = False) -> Any:  # fmt: skip
    """The value of func, and its Jacobian times the tangents (as a gradient of a gradient)."""
    value, aux, push = _linear(func, primals, has_aux)
    pushed = _like(value, iter(push(_tensors(tangents))))
    return (value, pushed, aux) if has_aux else (value, pushed)


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

    return value, pushed


def _basis(x: Tensor) -> list[Any]:
    """For each element of x a tensor that is 1 there and 0 elsewhere."""
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
            raise ArgumentError(f"gt.func: argnums {argnums} is out of range for {len(args)} arguments")
        wanted = [args[n] for n in numbers]

        def of(*xs: Any) -> Any:
            given = list(args)
            for n, x in zip(numbers, xs, strict=True):
                given[n] = x
            return func(*given, **kwargs)

        value, aux, found = columns(of, wanted, has_aux)
        rows = []
        for leaves in found:
            by_argument = _like(wanted, iter(leaves))
            rows.append(by_argument[0] if isinstance(argnums, int) else tuple(by_argument))
        made = _like(value, iter(rows))
        return (made, aux) if has_aux else made

    return jacobian


def _joined(parts: list[Any], at: int, shape: tuple[int, ...], like: Tensor) -> Any:
    if not parts:
        return backward.filled(shape, 0.0, like.dtype)
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
            found.append([_joined([row[i] for row in rows], 0, (*out.shape, *x.shape), x) for i, x in enumerate(ins)])
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
            for i, (leaves, out) in enumerate(zip(found, outs, strict=True)):
                leaves.append(_joined([each[i] for each in pushed], out.ndim, (*out.shape, *x.shape), out))
        return value, aux, found

    return _jacobian_of(func, argnums, has_aux, columns)


def hessian(func: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """A function that returns the second derivatives of func by some of its arguments."""
    return jacrev(jacrev(func, argnums), argnums)
