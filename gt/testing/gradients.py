"""`gradcheck` and `gradgradcheck`: gradients beside differences of the function's values.

Complex inputs and results are compared as pairs of real numbers. All values that are needed are recorded before the
first of them is read.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gt.client.functions.complexes import view_as_complex, view_as_real
from gt.client.functions.creation import tensor
from gt.client.functions.randoms import rand, randn_like
from gt.client.grad import backward
from gt.client.grad.modes import set_grad
from gt.client.tensor import Tensor

__all__ = ["GradcheckError", "gradcheck", "gradgradcheck"]

Array = np.ndarray[Any, Any]
Function = Callable[..., Any]


class GradcheckError(RuntimeError):
    """A gradient differs from the function's values."""


def _checked(x: Any) -> bool:
    return isinstance(x, Tensor) and x.requires_grad


def _several(x: Any) -> tuple[Any, ...]:
    return tuple(x) if isinstance(x, (tuple, list)) else (x,)


class _Real:
    """A function of several tensors as a function of those that require grad, as real numbers."""

    def __init__(self, func: Function, inputs: Sequence[Any]) -> None:
        self._func, self._inputs = func, inputs
        self.places = [i for i, x in enumerate(inputs) if _checked(x)]

    def start(self) -> list[Any]:
        """The arguments to begin with."""
        chosen = [self._inputs[i].detach() for i in self.places]
        return [view_as_real(x) if x.is_complex() else x for x in chosen]

    def __call__(self, xs: Sequence[Any]) -> list[Any]:
        """The results that can have gradients."""
        given = list(self._inputs)
        for i, x in zip(self.places, xs, strict=True):
            given[i] = view_as_complex(x) if self._inputs[i].is_complex() else x
        made = [y for y in _several(self._func(*given)) if isinstance(y, Tensor)]
        made = [y for y in made if y.is_floating_point() or y.is_complex()]
        return [view_as_real(y) if y.is_complex() else y for y in made]


def _differences(f: _Real, xs: list[Any], i: int, directions: Array, eps: float) -> list[list[Any]]:
    """For each direction in which argument i may change, the change of each result."""
    rows = []
    with set_grad(True):  # the function may be a gradient itself
        for direction in directions:
            step = tensor(eps * direction, dtype=xs[i].dtype)
            up = f([*xs[:i], xs[i] + step, *xs[i + 1 :]])
            down = f([*xs[:i], xs[i] - step, *xs[i + 1 :]])
            rows.append([(a - b) / (2 * eps) for a, b in zip(up, down, strict=True)])
    return rows


def _basis(shape: tuple[int, ...]) -> Array:
    n = int(np.prod(shape))
    return np.eye(n).reshape(n, *shape)


def _read(x: Any) -> Array:
    found: Array = x.detach().numpy()
    return found


def gradcheck(
    func: Function, inputs: Any, *, eps: float = 1e-6, atol: float = 1e-5, rtol: float = 1e-3,
    raise_exception: bool = True, nondet_tol: float = 0.0, check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False, check_batched_grad: bool = False, check_batched_forward_grad: bool = False,
    check_forward_ad: bool = False, check_backward_ad: bool = True, fast_mode: bool = False, masked: bool | None = None,
) -> bool:  # fmt: skip
    """Whether the gradients of func by the inputs that require grad agree with differences of its values; if not, raise
    GradcheckError. Inputs should be of float64. With fast_mode one direction is compared instead of each element.

    >>> import gt
    >>> gt.autograd.gradcheck(gt.tanh, gt.tensor([0.5, 2.0], dtype=gt.float64, requires_grad=True))
    True
    """
    given = _several(inputs)
    f = _Real(func, given)
    if not f.places:
        raise ValueError("gradcheck: expected at least one input that requires grad; call requires_grad_() on it")
    for i in f.places:
        if given[i].dtype.itemsize < (16 if given[i].is_complex() else 8):
            warnings.warn(f"gradcheck: input {i} has less than double precision: differences are inexact", stacklevel=2)
    try:
        _check(f, eps, atol, rtol, nondet_tol, fast_mode)
    except GradcheckError:
        if raise_exception:
            raise
        return False
    return True


def _check(f: _Real, eps: float, atol: float, rtol: float, nondet_tol: float, fast: bool) -> None:
    with set_grad(True):
        xs = [x.requires_grad_() for x in f.start()]
        ys = f(xs)
    if not ys:
        raise ValueError("gradcheck: func returned no floating-point tensor")

    def pulled(k: int, seeds: Array) -> list[list[Any]]:
        """For each seed of result k, the gradients of all arguments."""
        if not ys[k].requires_grad:
            return [[None] * len(xs) for _ in seeds]
        tensors = [tensor(seed, dtype=ys[k].dtype) for seed in seeds]
        return [list(backward.grad([ys[k]], xs, [seed], True, False, allow_unused=True)) for seed in tensors]

    draw = np.random.default_rng(0)
    outs = [draw.random((1, *y.shape)) if fast else _basis(tuple(y.shape)) for y in ys]
    ins = [draw.random((1, *x.shape)) if fast else _basis(tuple(x.shape)) for x in xs]
    backwards = [pulled(k, seeds) for k, seeds in enumerate(outs)]
    again = [pulled(k, seeds) for k, seeds in enumerate(outs)]
    forwards = [_differences(f, xs, i, directions, eps) for i, directions in enumerate(ins)]
    for k, seeds in enumerate(outs):
        for i, directions in enumerate(ins):
            size = directions.shape[0]
            flat = directions.reshape(size, -1)
            rows = [np.zeros(flat.shape[1]) if g[i] is None else _read(g[i]).reshape(-1) for g in backwards[k]]
            second = [np.zeros(flat.shape[1]) if g[i] is None else _read(g[i]).reshape(-1) for g in again[k]]
            analytical = flat @ np.stack(rows, 1) if rows else np.zeros((size, 0))
            numerical = np.stack([_read(d[k]).reshape(-1) for d in forwards[i]]) if size else np.zeros((0, len(rows)))
            numerical = numerical @ seeds.reshape(len(rows), -1).T if rows else np.zeros((size, 0))
            if not np.allclose(analytical, numerical, rtol, atol):
                raise GradcheckError(
                    f"Jacobian mismatch for output {k} with respect to input {f.places[i]},\nnumerical:{numerical}\n"
                    f"analytical:{analytical}\n"
                )
            if rows and not np.allclose(np.stack(rows), np.stack(second), 0.0, nondet_tol):
                raise GradcheckError(
                    f"Backward is not reentrant: it gave different gradients of output {k} by input {f.places[i]} when "
                    "it was run twice"
                )


def gradgradcheck(
    func: Function, inputs: Any, grad_outputs: Any = None, *, eps: float = 1e-6, atol: float = 1e-5, rtol: float = 1e-3,
    gen_non_contig_grad_outputs: bool = False, raise_exception: bool = True, nondet_tol: float = 0.0,
    check_undefined_grad: bool = True, check_grad_dtypes: bool = False, check_batched_grad: bool = False,
    check_fwd_over_rev: bool = False, check_rev_over_rev: bool = True, fast_mode: bool = False, masked: bool = False,
) -> bool:  # fmt: skip
    """The same for second gradients: the gradients of func's gradients."""
    given = _several(inputs)
    if grad_outputs is None:
        with set_grad(False):
            made = [y for y in _several(func(*given)) if isinstance(y, Tensor)]
        made = [y for y in made if y.is_floating_point() or y.is_complex()]
        seeds = [(randn_like(y) if y.is_complex() else rand(*y.shape, dtype=y.dtype)).requires_grad_() for y in made]
    else:
        seeds = list(_several(grad_outputs))
    places = [i for i, x in enumerate(given) if _checked(x)]

    def gradient(*args: Any) -> tuple[Any, ...]:
        xs, gs = args[: len(given)], args[len(given) :]
        outs = [y for y in _several(func(*xs)) if isinstance(y, Tensor) and y.requires_grad]
        found = backward.grad(outs, [xs[i] for i in places], list(gs), True, True, allow_unused=True)
        return tuple(g for g in found if g is not None and g.requires_grad)

    return gradcheck(
        gradient, (*given, *seeds), eps=eps, atol=atol, rtol=rtol, raise_exception=raise_exception,
        nondet_tol=nondet_tol, fast_mode=fast_mode,
    )  # fmt: skip
