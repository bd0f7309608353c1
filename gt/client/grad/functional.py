"""torch.autograd.functional: derivatives of a function of tensors, at given inputs.

Inputs and results are one tensor or a tuple of them; what comes back is shaped after them. Without `create_graph` it
has no history.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.client.compat.arguments import shown
from gt.client.grad import backward
from gt.client.grad.backward import filled, zeros
from gt.client.grad.modes import set_grad
from gt.client.tensor import Tensor
from gt.errors import ArgumentError, AutogradError
from gt.ops import TABLE

__all__ = ["hessian", "hvp", "jacobian", "jvp", "vhp", "vjp"]


def _run(
    name: str, func: Callable[..., Any], inputs: Any, graph: bool
) -> tuple[tuple[Any, ...], tuple[Any, ...], bool]:
    """The inputs to differentiate by, the results, and whether they are a tuple."""
    given = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    if not all(isinstance(x, Tensor) for x in given):
        raise ArgumentError(f"{name}: inputs must be a tensor or a tuple of tensors, got {shown(inputs)}")
    ins = tuple([x.view_as(x) if graph and x.requires_grad else x.detach().requires_grad_() for x in given])
    made = func(*ins)
    outs = tuple(made) if isinstance(made, (tuple, list)) else (made,)
    if not all(isinstance(y, Tensor) for y in outs):
        raise ArgumentError(f"{name}: the function must return a tensor or a tuple of tensors, got {shown(made)}")
    return ins, outs, isinstance(made, (tuple, list))


def _pull(outs: Any, ins: Any, seeds: Any, graph: bool, strict: bool) -> tuple[Any, ...]:
    """The gradients of the results; zeros where there are none."""
    rows = [(y, s) for y, s in zip(outs, seeds, strict=True) if y.requires_grad]
    found: Any = [None] * len(ins)
    if rows:
        found = backward.grad([y for y, _ in rows], ins, [s for _, s in rows], True, graph, allow_unused=True)
    if strict and any(g is None for g in found):
        raise AutogradError("autograd.functional: a result does not depend on an input; strict=False returns zeros")
    return tuple([zeros(x) if g is None else g for g, x in zip(found, ins, strict=True)])


def _seeds(name: str, v: Any, like: tuple[Any, ...]) -> tuple[Any, ...]:
    """The gradients to start with: v, or 1 for a single element."""
    if v is None:
        if len(like) != 1 or like[0].numel() != 1:
            raise AutogradError(
                f"{name}: v is required unless there is one tensor of one element, got shapes {[x.shape for x in like]}"
            )
        return (filled(like[0].shape, 1.0, like[0].dtype),)
    given = tuple(v) if isinstance(v, (tuple, list)) else (v,)
    if [x.shape for x in given] != [x.shape for x in like]:
        raise AutogradError(f"{name}: v must have the shapes {[x.shape for x in like]}, got {[x.shape for x in given]}")
    return given


def _shown(values: tuple[Any, ...], many: bool, graph: bool) -> Any:
    kept = values if graph else tuple([x.detach() for x in values])
    return kept if many else kept[0]


def jacobian(
    func: Callable[..., Any], inputs: Any, create_graph: bool = False, strict: bool = False, vectorize: bool = False,
    strategy: str = "reverse-mode",
) -> Any:  # fmt: skip
    """The derivatives of all elements of the result with respect to all elements of the inputs."""
    several = isinstance(inputs, (tuple, list))
    with set_grad(True):
        ins, outs, many = _run("jacobian", func, inputs, create_graph)
        table = []
        for y in outs:
            flat = y.reshape(-1)
            rows = [_pull((flat[k],), ins, (None,), create_graph, strict) for k in range(y.numel())]
            columns = []
            for i, x in enumerate(ins):
                sizes = (*y.shape, *x.shape)
                columns.append(
                    TABLE["stack"](*[r[i] for r in rows], dim=0).reshape(sizes) if rows else x.new_zeros(sizes)
                )
            table.append(_shown(tuple(columns), several, create_graph))
    return tuple(table) if many else table[0]


def hessian(
    func: Callable[..., Any], inputs: Any, create_graph: bool = False, strict: bool = False, vectorize: bool = False,
    outer_jacobian_strategy: str = "reverse-mode",
) -> Any:  # fmt: skip
    """The second derivatives of a function whose result has one element."""
    several = isinstance(inputs, (tuple, list))

    def slope(*ins: Any) -> Any:
        y = func(*ins)
        if not isinstance(y, Tensor) or y.numel() != 1:
            raise AutogradError(f"hessian: the function must return a tensor of one element, got {shown(y)}")
        first = _pull((y.reshape(()),), ins, (None,), True, strict)
        return first if several else first[0]

    return jacobian(slope, inputs, create_graph, strict)


def vjp(func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False) -> Any:
    """The result, and v times the Jacobian."""
    with set_grad(True):
        ins, outs, many = _run("vjp", func, inputs, create_graph)
        found = _pull(outs, ins, _seeds("vjp", v, outs), create_graph, strict)
    return _shown(outs, many, create_graph), _shown(found, isinstance(inputs, (tuple, list)), create_graph)


def jvp(func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False) -> Any:
    """The result, and the Jacobian times v (as a gradient of a gradient)."""
    with set_grad(True):
        ins, outs, many = _run("jvp", func, inputs, create_graph)
        along = _seeds("jvp", v, ins)
        probes = tuple([zeros(y).requires_grad_() for y in outs])
        pulled = _pull(outs, ins, probes, True, strict)
        found = _pull(pulled, probes, along, create_graph, False)
    return _shown(outs, many, create_graph), _shown(found, many, create_graph)


def vhp(func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False) -> Any:
    """The result, of one element, and v times its Hessian."""
    with set_grad(True):
        ins, outs, many = _run("vhp", func, inputs, create_graph)
        if len(outs) != 1 or outs[0].numel() != 1:
            raise AutogradError(f"vhp: the function must return a tensor of one element, got {shown(outs)}")
        along = _seeds("vhp", v, ins)
        first = _pull((outs[0].reshape(()),), ins, (None,), True, strict)
        products = [(g * a).sum() for g, a in zip(first, along, strict=True)]
        found = _pull(products, ins, [None] * len(products), create_graph, False)
    return _shown(outs, many, create_graph), _shown(found, isinstance(inputs, (tuple, list)), create_graph)


hvp = vhp  # second derivatives are symmetric
