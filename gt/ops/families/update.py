"""Optimizer steps, one instruction per parameter; learning rate and step count come with the call.

The arithmetic is torch's, by its fused kernels: "torch_inplace" writes the new parameter and state
over the old ones, "torch" over copies of them. The fused kernels read memory in order and look at
no strides: their operands must be contiguous.

In a graph the same arithmetic is written out, in float32 for narrow types: it fuses with what is around it. What
depends on numbers alone is computed by the host, once for all parameters that share them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np

from gt import dtypes
from gt.errors import ArgumentError, ShapeError
from gt.ops import rules
from gt.ops.record import Op, PreparedKernel, Rng, Sample, Site
from gt.ops.sharding import pointwise_op
from gt.program import Spec


def same_tensors(name: str, p: Spec, *others: Spec) -> None:
    """A parameter, its gradient and its state: floating, of one dtype and shape."""
    rules.tensor(name, p, *others)
    rules.floating(name, p)
    for x in others:
        rules.same_dtype(name, p, x)
        if x.shape != p.shape:
            raise ShapeError(f"{name}: parameter, gradient and state must have one shape, got {p.shape} and {x.shape}")


def infer_step(name: str, tensors: int, numbers: int, *operands: Spec) -> Any:
    """The inference of a step whose tensors are the parameter, the gradient and the state, and whose results are the
    new parameter and state."""
    if len(operands) != tensors + numbers:
        raise ArgumentError(f"{name}: expected {tensors} tensors and {numbers} numbers, got {len(operands)} operands")
    same_tensors(name, *operands[:tensors])
    rules.number(name, *operands[tensors:])
    return (operands[0], *operands[2:tensors]) if tensors > 2 else operands[0]


def _inplace(fused: Any, written: tuple[int, ...], torch: Any, site: Site, **attrs: Any) -> Any:
    """The kernel that writes to its operands, and returns those."""
    if site.specs[0].size:
        return fused(torch, site, **attrs)
    # CUDA's kernel looks at the strides even of an empty tensor.
    return lambda *operands: tuple(operands[k] for k in written) if len(written) > 1 else operands[0]


def _copied(inplace: Any, tensors: int, written: tuple[int, ...], torch: Any, site: Site, **attrs: Any) -> Any:
    """The kernel that leaves its operands alone, out of the one that writes to them."""
    write, layout = inplace(torch, site, **attrs), torch.contiguous_format

    def kernel(*operands: Any) -> Any:
        own = list(operands)
        for k in range(tensors):
            own[k] = own[k].clone(memory_format=layout) if k in written else own[k].contiguous()
        return write(*own)

    return kernel


def _one(many: Any, tensors: int, torch: Any, site: Site, **attrs: Any) -> Any:
    """The kernel of one parameter, out of the one of many."""
    f = many(torch, site.device, **attrs)
    if tensors == 2:
        return lambda p, g, *numbers: f(((p, g),), *numbers)[0]
    return lambda *operands: tuple(f((operands[:tensors],), *operands[tensors:]))


def _step(name: str, doc: str, tensors: int, array: Any, graph: Any, fused: Any = None, **more: Any) -> Op:
    """A step of that many tensors: the parameter, the gradient and the state. All but the gradient are written. `many`
    is torch's kernel for many parameters at once, `fused` its kernel for one parameter where there is no `many`."""
    many, written = more.pop("many", None), (0, *range(2, tensors))
    inplace = partial(_inplace, fused or partial(_one, many, tensors), written)
    copied = partial(_copied, inplace, tensors, written)
    kernels = {"array": array, "torch": copied, "torch_inplace": inplace, "torch_graph": graph}
    if many is not None:
        kernels["torch_many"] = many
    return pointwise_op(name, doc, vjp=None, kernels=kernels, inplace=written, **more)


def _graph(
    numbers: Callable[..., tuple[float, ...]],
    count: int,
    formula: Callable[..., Any],
    torch: Any,
    site: Site,
    **attrs: Any,
) -> PreparedKernel:
    """The graph kernel of a formula, (torch, *tensors, *numbers, **attrs) -> the new parameter and state. `numbers`
    makes `count` of the op's numbers. They are cast as the tensors are: nothing is computed in float64."""
    dtype = site.specs[0].dtype
    own = getattr(torch, dtype.name)
    wide = torch.float32 if dtype in (dtypes.float16, dtypes.bfloat16) else own

    def kernel(*operands: Any) -> Any:
        made = formula(torch, *[a.to(wide) for a in operands], **attrs)
        return tuple(m.to(own) for m in made) if isinstance(made, tuple) else made.to(own)

    return PreparedKernel(numbers, "f" * count, kernel)


def _as_they_are(*numbers: float) -> tuple[float, ...]:
    return numbers


# -- sgd -------------------------------------------------------------------------------------


def _sgd_array(xp: Any, p: Any, g: Any, lr: float, weight_decay: float) -> Any:
    return p - lr * (g + weight_decay * p)


def _sgd_many(torch: Any, device: str, *, nesterov: bool = False) -> Any:
    f = torch._fused_sgd_

    def kernel(rows: Any, lr: float, weight_decay: float, momentum: float = 0.0, dampening: float = 0.0) -> Any:
        ps, gs, *bufs = (list(column) for column in zip(*rows, strict=True))
        f(ps, gs, *(bufs or [[]]), weight_decay=weight_decay, momentum=momentum, lr=lr, dampening=dampening,
          nesterov=nesterov, maximize=False, is_first_step=False)  # fmt: skip
        return [x for row in zip(ps, *bufs, strict=True) for x in row] if bufs else ps

    return kernel


sgd = _step(
    "sgd",
    "One step of gradient descent.",
    2,
    _sgd_array,
    partial(_graph, _as_they_are, 2, _sgd_array),
    many=_sgd_many,
    infer=partial(infer_step, "sgd", 2, 2),
    samples=lambda rng: [
        ((rng.normal(size=s), rng.normal(size=s), 0.1, wd), {}) for s in [(3, 4), (), (0, 2)] for wd in (0.0, 0.01)
    ],
    flops=4,
)


def _infer_momentum(*operands: Spec, nesterov: Any) -> Any:
    rules.flag("sgd_momentum", "nesterov", nesterov)
    return infer_step("sgd_momentum", 3, 4, *operands)


def _momentum_numbers(lr: float, weight_decay: float, momentum: float, dampening: float) -> tuple[float, ...]:
    return lr, weight_decay, momentum, 1 - dampening


def _momentum(
    xp: Any, p: Any, g: Any, buf: Any, lr: Any, weight_decay: Any, momentum: Any, share: Any, *, nesterov: bool
) -> Any:
    g = g + p * weight_decay
    buf = buf * momentum + g * share
    return p - (g + buf * momentum if nesterov else buf) * lr, buf


sgd_momentum = _step(
    "sgd_momentum",
    "One step of gradient descent with momentum: the new parameter and buffer.",
    3,
    lambda xp, p, g, buf, *numbers, **attrs: _momentum(xp, p, g, buf, *_momentum_numbers(*numbers), **attrs),
    partial(_graph, _momentum_numbers, 4, _momentum),
    many=_sgd_many,
    infer=_infer_momentum,
    flops=lambda p, *rest, nesterov: (9 if nesterov else 7) * p.size,
    samples=lambda rng: [
        ((*(rng.normal(size=s) for _ in range(3)), 0.1, 0.01, 0.9, d), {"nesterov": n})
        for s in [(3, 4), (), (0, 2)]
        for d, n in [(0.0, False), (0.5, False), (0.0, True)]
    ],
)

# -- adam ------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _adam_numbers(
    decoupled: bool, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, step: int
) -> tuple[float, ...]:
    """What the formula multiplies with."""
    try:
        size, grow = lr / (1 - beta1**step), 1 / math.sqrt(1 - beta2**step)
    except (ArithmeticError, ValueError, TypeError):  # a step of 0, say: nan, as on the device, and no error
        with np.errstate(all="ignore"):
            bias1, bias2 = (1 - np.power(np.float64(b), step) for b in (beta1, beta2))
            size, grow = float(lr / bias1), float(1 / np.sqrt(bias2))
    return 1 - lr * weight_decay if decoupled else weight_decay, 1 - beta1, beta2, 1 - beta2, eps, size, grow


def _adam(name: str, doc: str, decoupled: bool, amsgrad: bool) -> Op:
    """One of the four: weight decay apart from the gradient or added to it, with or without the largest moment."""
    tensors = 5 if amsgrad else 4  # parameter, gradient, first and second moment, the largest second moment so far

    def array(xp: Any, p: Any, g: Any, m: Any, v: Any, *rest: Any) -> Any:
        lr, beta1, beta2, eps, weight_decay, step = rest[-6:]
        if decoupled:
            p = p * (1 - lr * weight_decay)
        else:
            g = g + p * weight_decay
        m = m + (g - m) * (1 - beta1)
        v = v * beta2 + g * g * (1 - beta2)
        top = xp.maximum(rest[0], v) if amsgrad else v
        size = lr / (1 - beta1**step)
        scale = xp.sqrt(top) / xp.sqrt(1 - beta2**step) + eps  # not a power: of a negative number that is complex
        new = p - m / scale * size
        return (new, m, v, top) if amsgrad else (new, m, v)

    def formula(torch: Any, p: Any, g: Any, m: Any, v: Any, *rest: Any) -> Any:
        decay, rest1, beta2, rest2, eps, size, grow = rest[-7:]
        if decoupled:
            p = p * decay
        else:
            g = g + p * decay
        m = m + (g - m) * rest1
        v = v * beta2 + g * g * rest2
        top = torch.maximum(rest[0], v) if amsgrad else v
        new = p - m * size / (torch.sqrt(top) * grow + eps)
        return (new, m, v, top) if amsgrad else (new, m, v)

    def many(torch: Any, device: str) -> Any:
        f = torch._fused_adamw_ if decoupled else torch._fused_adam_
        float32 = torch.float32

        def kernel(rows: Any, *numbers: Any) -> Any:
            lr, beta1, beta2, eps, weight_decay, step = numbers
            count = torch.full((), step, dtype=float32, device=device)
            ps, gs, ms, vs, *tops = (list(column) for column in zip(*rows, strict=True))
            f(ps, gs, ms, vs, *(tops or [[]]), [count] * len(ps), lr=lr, beta1=beta1, beta2=beta2,
              weight_decay=weight_decay, eps=eps, amsgrad=amsgrad, maximize=False)  # fmt: skip
            return [x for row in zip(ps, ms, vs, *tops, strict=True) for x in row]

        return kernel

    def samples(rng: Rng) -> list[Sample]:
        cases: list[Sample] = []
        for size in [(3, 4), (), (0, 2)]:
            for step in (1, 10):
                p, g, m = (rng.normal(size=size) for _ in range(3))
                moments = [np.asarray(rng.uniform(0, 0.1, size)) for _ in range(tensors - 3)]
                cases.append(((p, g, m, *moments, 0.01, 0.9, 0.999, 1e-8, 0.01, step), {}))
        return cases

    graph = partial(_graph, partial(_adam_numbers, decoupled), 7, formula)
    infer, flops = partial(infer_step, name, tensors, 6), 14 + (not decoupled) + amsgrad
    return _step(name, doc, tensors, array, graph, many=many, infer=infer, flops=flops, samples=samples)


adamw = _adam("adamw", "One step of AdamW: the new parameter, first and second moment.", True, False)
adamw_amsgrad = _adam(
    "adamw_amsgrad",
    "One step of AdamW with AMSGrad: the new parameter, first and second moment, and largest second moment.",
    True,
    True,
)
adam = _adam("adam", "One step of Adam: the new parameter, first and second moment.", False, False)
adam_amsgrad = _adam(
    "adam_amsgrad",
    "One step of Adam with AMSGrad: the new parameter, first and second moment, and largest second moment.",
    False,
    True,
)

# -- adagrad ---------------------------------------------------------------------------------


def _adagrad_array(xp: Any, p: Any, g: Any, total: Any, lr: float, weight_decay: float, eps: float) -> Any:
    g = g + p * weight_decay
    total = total + g * g
    return p - g / (xp.sqrt(total) + eps) * lr, total


def _adagrad_fused(torch: Any, site: Site) -> Any:
    f, device, float32 = torch._fused_adagrad_, site.device, torch.float32

    def kernel(p: Any, g: Any, total: Any, lr: float, weight_decay: float, eps: float) -> Any:
        count = torch.ones((), dtype=float32, device=device)  # the learning rate has decayed already
        f([p], [g], [total], [count], lr=lr, lr_decay=0.0, weight_decay=weight_decay, eps=eps, maximize=False)
        return p, total

    return kernel


adagrad = _step(
    "adagrad",
    "One step of Adagrad: the new parameter and sum of squares.",
    3,
    _adagrad_array,
    partial(_graph, _as_they_are, 3, _adagrad_array),
    _adagrad_fused,
    infer=partial(infer_step, "adagrad", 3, 3),
    samples=lambda rng: [
        ((rng.normal(size=s), rng.normal(size=s), np.asarray(rng.uniform(0.1, 1, s)), 0.1, wd, 1e-10), {})
        for s in [(3, 4), (), (0, 2)]
        for wd in (0.0, 0.01)
    ],
    flops=9,
)
