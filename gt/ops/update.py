"""Optimizer steps, one instruction per parameter; learning rate and step count come with the call.

The arithmetic is torch's, by its fused kernels: "torch_inplace" writes the new parameter and state
over the old ones, "torch" over copies of them. The fused kernels read memory as it lies and look at
no strides: their operands must be contiguous.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gt.errors import ArgumentError, ShapeError
from gt.ops import rules
from gt.ops.record import Op, Sample, Site, op
from gt.program import Spec

Rng = np.random.Generator


def same_tensors(name: str, p: Spec, *others: Spec) -> None:
    """A parameter, its gradient and its state: floating, of one dtype and shape."""
    rules.tensor(name, p, *others)
    rules.floating(name, p)
    for x in others:
        rules.same_dtype(name, p, x)
        if x.shape != p.shape:
            raise ShapeError(f"{name}: parameter {p.shape} and its gradient or state {x.shape} differ")


def _inplace(fused: Any, written: tuple[int, ...]) -> Any:
    """The kernel that writes to its operands, and returns those."""

    def make(torch: Any, site: Site, **attrs: Any) -> Any:
        if site.specs[0].size:
            return fused(torch, site, **attrs)
        # CUDA's kernel minds even how nothing lies in memory.
        return lambda *operands: tuple(operands[k] for k in written) if len(written) > 1 else operands[written[0]]

    return make


def _copied(inplace: Any, tensors: int, written: tuple[int, ...]) -> Any:
    """The kernel that leaves its operands alone, out of the one that writes to them."""

    def make(torch: Any, site: Site, **attrs: Any) -> Any:
        write, layout = inplace(torch, site, **attrs), torch.contiguous_format

        def kernel(*operands: Any) -> Any:
            own = list(operands)
            for k in range(tensors):
                own[k] = own[k].clone(memory_format=layout) if k in written else own[k].contiguous()
            return write(*own)

        return kernel

    return make


def _kernels(array: Any, fused: Any, tensors: int, written: tuple[int, ...]) -> dict[str, Any]:
    inplace = _inplace(fused, written)
    return {"array": array, "torch": _copied(inplace, tensors, written), "torch_inplace": inplace}


# -- sgd -------------------------------------------------------------------------------------


def _infer_sgd(p: Spec, g: Spec, lr: Spec, weight_decay: Spec) -> Spec:
    same_tensors("sgd", p, g)
    rules.number("sgd", lr, weight_decay)
    return p


def _sgd_array(xp: Any, p: Any, g: Any, lr: float, weight_decay: float) -> Any:
    return p - lr * (g + weight_decay * p)


def _sgd_fused(torch: Any, site: Site) -> Any:
    f = torch._fused_sgd_

    def kernel(p: Any, g: Any, lr: float, weight_decay: float) -> Any:
        f([p], [g], [], weight_decay=weight_decay, momentum=0.0, lr=lr, dampening=0.0,
          nesterov=False, maximize=False, is_first_step=False)  # fmt: skip
        return p

    return kernel


sgd = op(
    "sgd",
    "One step of gradient descent.",
    infer=_infer_sgd,
    vjp=None,
    kernels=_kernels(_sgd_array, _sgd_fused, 2, (0,)),
    inplace=(0,),
    samples=lambda rng: [
        ((rng.normal(size=s), rng.normal(size=s), 0.1, wd), {}) for s in [(3, 4), (), (0, 2)] for wd in (0.0, 0.01)
    ],
)


def _infer_momentum(
    p: Spec, g: Spec, buf: Spec, lr: Spec, weight_decay: Spec, momentum: Spec, dampening: Spec, *, nesterov: Any
) -> tuple[Spec, Spec]:
    same_tensors("sgd_momentum", p, g, buf)
    rules.number("sgd_momentum", lr, weight_decay, momentum, dampening)
    rules.flag("sgd_momentum", "nesterov", nesterov)
    return p, buf


def _momentum_array(
    xp: Any, p: Any, g: Any, buf: Any,
    lr: float, weight_decay: float, momentum: float, dampening: float, *, nesterov: bool,
) -> Any:  # fmt: skip
    g = g + p * weight_decay
    buf = buf * momentum + g * (1 - dampening)
    return p - (g + buf * momentum if nesterov else buf) * lr, buf


def _momentum_fused(torch: Any, site: Site, *, nesterov: bool) -> Any:
    f = torch._fused_sgd_

    def kernel(p: Any, g: Any, buf: Any, *numbers: float) -> Any:
        lr, weight_decay, momentum, dampening = numbers
        f([p], [g], [buf], weight_decay=weight_decay, momentum=momentum, lr=lr, dampening=dampening,
          nesterov=nesterov, maximize=False, is_first_step=False)  # fmt: skip
        return p, buf

    return kernel


sgd_momentum = op(
    "sgd_momentum",
    "One step of gradient descent with momentum: the new parameter and buffer.",
    infer=_infer_momentum,
    vjp=None,
    kernels=_kernels(_momentum_array, _momentum_fused, 3, (0, 2)),
    inplace=(0, 2),
    samples=lambda rng: [
        ((*(rng.normal(size=s) for _ in range(3)), 0.1, 0.01, 0.9, d), {"nesterov": n})
        for s in [(3, 4), (), (0, 2)]
        for d, n in [(0.0, False), (0.5, False), (0.0, True)]
    ],
)

# -- adam ------------------------------------------------------------------------------------


def _adam(name: str, doc: str, decoupled: bool, amsgrad: bool) -> Op:
    """One of the four: weight decay apart from the gradient or added to it, with or without the largest moment."""
    tensors = 5 if amsgrad else 4  # parameter, gradient, first and second moment, the largest second moment so far
    written = (0, 2, 3, 4) if amsgrad else (0, 2, 3)

    def infer(*operands: Spec) -> tuple[Spec, ...]:
        if len(operands) != tensors + 6:
            raise ArgumentError(f"{name}: takes {tensors} tensors and 6 numbers, not {len(operands)} operands")
        same_tensors(name, *operands[:tensors])
        rules.number(name, *operands[tensors:])
        return tuple(operands[k] for k in written)

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

    def fused(torch: Any, site: Site) -> Any:
        f = torch._fused_adamw_ if decoupled else torch._fused_adam_
        device, float32 = site.device, torch.float32

        def kernel(*operands: Any) -> Any:
            p, g, m, v, *top = operands[:tensors]
            lr, beta1, beta2, eps, weight_decay, step = operands[tensors:]
            count = torch.full((), step, dtype=float32, device=device)
            f([p], [g], [m], [v], top, [count], lr=lr, beta1=beta1, beta2=beta2, weight_decay=weight_decay,
              eps=eps, amsgrad=amsgrad, maximize=False)  # fmt: skip
            return p, m, v, *top

        return kernel

    def samples(rng: Rng) -> list[Sample]:
        cases: list[Sample] = []
        for size in [(3, 4), (), (0, 2)]:
            for step in (1, 10):
                p, g, m = (rng.normal(size=size) for _ in range(3))
                moments = [np.asarray(rng.uniform(0, 0.1, size)) for _ in range(tensors - 3)]
                cases.append(((p, g, m, *moments, 0.01, 0.9, 0.999, 1e-8, 0.01, step), {}))
        return cases

    return op(
        name, doc, infer=infer, vjp=None, kernels=_kernels(array, fused, tensors, written), inplace=written,
        samples=samples,
    )  # fmt: skip


adamw = _adam("adamw", "One step of AdamW: the new parameter, first and second moment.", True, False)
adamw_amsgrad = _adam(
    "adamw_amsgrad", "One step of AdamW by the largest second moment so far: also the new one of these.", True, True
)
adam = _adam("adam", "One step of Adam: the new parameter, first and second moment.", False, False)
adam_amsgrad = _adam(
    "adam_amsgrad", "One step of Adam by the largest second moment so far: also the new one of these.", False, True
)

# -- adagrad ---------------------------------------------------------------------------------


def _infer_adagrad(p: Spec, g: Spec, total: Spec, lr: Spec, weight_decay: Spec, eps: Spec) -> tuple[Spec, Spec]:
    same_tensors("adagrad", p, g, total)
    rules.number("adagrad", lr, weight_decay, eps)
    return p, total


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


adagrad = op(
    "adagrad",
    "One step of Adagrad: the new parameter and sum of squares.",
    infer=_infer_adagrad,
    vjp=None,
    kernels=_kernels(_adagrad_array, _adagrad_fused, 3, (0, 2)),
    inplace=(0, 2),
    samples=lambda rng: [
        ((rng.normal(size=s), rng.normal(size=s), np.asarray(rng.uniform(0.1, 1, s)), 0.1, wd, 1e-10), {})
        for s in [(3, 4), (), (0, 2)]
        for wd in (0.0, 0.01)
    ],
)
