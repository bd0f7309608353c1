"""Torch's own functions, for those that have no record here: run by torch on the worker, differentiated there.

A use names the function and describes its arguments as JSON (`call`): tensors by operand number, numbers and
flags as they are. What comes out is found by asking (`torch_probe`): the client has no torch, and neither has the
dispatcher. What was declared then is compared with what torch makes; if it differs the call fails.

Law 1: only functions of tensors can be named (torch_names.py); none that reads files, sets things or writes
       into its arguments. They work on copies: no operand changes, no result shares memory.
Law 2: on a GPU, a function that is given integers computes on the host. An index out of range there would
       end the GPU for everybody, and no check can be known for a function that has no record.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from gt.dtypes import BY_NAME
from gt.errors import ArgumentError, ProgramError
from gt.ops import rules
from gt.ops.families.torch_names import NAMES
from gt.ops.record import Op, Rng, Sample, Site, fill, op, unfit
from gt.program import Spec, spec

PROBE_NBYTES = 16384  #: The answer of a probe: JSON, padded with spaces.

# -- what can be named -------------------------------------------------------------------------


def _find(torch: Any, name: str) -> Callable[..., Any] | None:
    """Torch's function of that name, if it may be run and this torch has it."""
    if name not in NAMES:
        return None
    place: Any = torch
    for part in name.split("."):
        place = getattr(place, part, None)
    return place if callable(place) else None


# -- arguments as JSON -------------------------------------------------------------------------


def pack(x: Any, number: Callable[[Any], int | None]) -> Any:
    """An argument as plain data; `number` gives the operand number of a tensor, None for anything else."""
    k = number(x)
    if k is not None:
        return {"t": k}
    if x is None or isinstance(x, bool | int | float | str):
        return x
    if isinstance(x, complex):
        return {"c": [x.real, x.imag]}
    if isinstance(x, list | tuple):
        return [pack(y, number) for y in x]
    name = getattr(x, "name", None)
    if name in BY_NAME:
        return {"d": name}
    raise ArgumentError(f"torch_op: cannot pass an argument of type {type(x).__name__} to torch")


def _unpack(torch: Any, x: Any, tensors: list[Any]) -> Any:
    if isinstance(x, list):
        return [_unpack(torch, y, tensors) for y in x]
    if isinstance(x, dict):
        (kind, value) = next(iter(x.items()))
        if kind == "t":
            return tensors[value]
        if kind == "c":
            return complex(*value)
        return getattr(torch, BY_NAME[value].name)
    return x


def _read_call(name: str, call: Any, operands: int | None = None) -> tuple[list[Any], dict[str, Any]]:
    """The arguments described; raises if they are not described correctly."""
    try:
        args, kwargs = json.loads(call)
    except (TypeError, ValueError):
        raise ArgumentError(f"{rules.shown(name)}: the call does not describe arguments") from None
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise ArgumentError(f"{rules.shown(name)}: the call does not describe arguments")
    for refused in ("out", "inplace", "generator"):
        if kwargs.get(refused):
            raise ArgumentError(f"{name}: cannot pass {refused}= to torch")
    if operands is not None and any(not 0 <= k < operands for k in _numbers([args, *kwargs.values()])):
        raise ArgumentError(f"{name}: the call names an operand that does not exist")
    return args, kwargs


def _numbers(x: Any) -> list[int]:
    if isinstance(x, list):
        return [k for y in x for k in _numbers(y)]
    if isinstance(x, dict):
        if len(x) != 1 or not x.keys() <= {"t", "c", "d"} or ("t" in x and type(x["t"]) is not int):
            raise ArgumentError("torch_op: the call does not describe arguments")
        return [x["t"]] if "t" in x else []
    return []


# -- running -----------------------------------------------------------------------------------


def _flat(torch: Any, out: Any) -> list[Any]:
    if isinstance(out, torch.Tensor):
        return [out]
    return [t for x in out for t in _flat(torch, x)] if isinstance(out, list | tuple) else []


def _structure(torch: Any, out: Any) -> Any:
    """What came out, without the numbers in tensors."""
    if isinstance(out, torch.Tensor):
        if out.layout is not torch.strided or str(out.dtype).removeprefix("torch.") not in BY_NAME:
            raise ArgumentError(f"GT does not support its result: {out.dtype}, {out.layout}")
        return {"t": [list(out.shape), str(out.dtype).removeprefix("torch."), bool(out.requires_grad)]}
    if isinstance(out, list | tuple):
        return {"l": [_structure(torch, x) for x in out]}
    if out is None or isinstance(out, bool | int | float | str):
        return {"v": out}
    raise ArgumentError(f"expected a tensor as its result, got {type(out).__name__}")


def _call(torch: Any, name: str, call: str, tensors: list[Any]) -> Any:
    f = _find(torch, name)
    if f is None:
        raise ArgumentError("the worker's torch has no such function")
    args, kwargs = _read_call(name, call, len(tensors))
    return f(*_unpack(torch, args, tensors), **{k: _unpack(torch, v, tensors) for k, v in kwargs.items()})


def _infer_probe(*tensors: Spec, name: Any, call: Any, needs: Any) -> Spec:
    if tensors:
        rules.tensor("torch_probe", *tensors)
    _check("torch_probe", name, call, needs)
    return spec((PROBE_NBYTES,), BY_NAME["uint8"])


def _check(op: str, name: Any, call: Any, needs: Any) -> None:
    if name not in NAMES:
        raise ArgumentError(f"{op}: torch has no function {rules.shown(name)} that can be run on a worker")
    if not isinstance(call, str):
        raise ArgumentError(f"{op}: call must be a string")
    rules.ints(op, "needs", needs)


def _probe_torch(torch: Any, site: Site, *, name: str, call: str, needs: Any) -> Any:
    def kernel(*tensors: Any) -> Any:
        try:
            answer = _try(torch, name, call, tensors, needs)
        except Exception as e:  # whatever torch has to say goes to the user
            answer = {"error": f"{name}: {e}"[:2000]}
        text = json.dumps(answer).encode()
        if len(text) > PROBE_NBYTES:
            text = json.dumps({"error": f"{name}: too many results"}).encode()
        data = np.frombuffer(text.ljust(PROBE_NBYTES), np.uint8).copy()
        return torch.from_numpy(data).to(site.device)

    return kernel


def _try(torch: Any, name: str, call: str, tensors: tuple[Any, ...], needs: Any) -> dict[str, Any]:
    """What the function makes of these. Without numbers if that is enough, so that it holds for all of them."""
    for device in ("meta", "cpu"):
        leaves = [t.detach().to(device, copy=True) for t in tensors]
        for k in needs:
            leaves[k].requires_grad_()
        try:
            with torch.enable_grad():
                return {"result": _structure(torch, _call(torch, name, call, leaves)), "always": device == "meta"}
        except Exception:  # not every function can do without numbers
            if device == "cpu":
                raise
    raise AssertionError


probe: Op = op(
    "torch_probe",
    "The shapes and dtypes that a function of torch returns for these operands, as JSON.",
    infer=_infer_probe,
    vjp=None,
    kernels={"torch": _probe_torch, "torch_graph": unfit},
    samples=lambda rng: [
        ((x,), {"name": name, "call": '[[{"t": 0}], {}]', "needs": (0,)})
        for x in (rng.normal(size=(2, 3)), np.zeros((0, 3)))
        for name in ("special.i0", "linalg.inv")
    ],
)


def _declared(results: Any) -> tuple[tuple[Spec, bool], ...]:
    """The results of the function itself, and which of them have a gradient."""
    made = []
    for r in results if isinstance(results, list | tuple) else ():
        if not isinstance(r, list | tuple) or len(r) != 3 or type(r[2]) is not bool:
            raise ArgumentError("torch_op: a result must be a shape, a dtype, and whether it has a gradient")
        made.append((spec(rules.shape("torch_op", r[0]), rules.dtype("torch_op", r[1])), r[2]))
    if not made:
        raise ArgumentError("torch_op: expected at least one declared result")
    return tuple(made)


def _infer_op(
    *operands: Spec, name: Any, call: Any, n: Any, needs: Any, results: Any, order: Any
) -> Spec | tuple[Spec, ...]:
    if operands:
        rules.tensor("torch_op", *operands)
    _check("torch_op", name, call, needs)
    if type(order) is not int or not 0 <= order <= 8:
        raise ArgumentError(f"torch_op: order must be an int >= 0, got {rules.shown(order)}")
    declared = _declared(results)
    forms = Forms(rules.size("torch_op", "n", n), tuple(needs), sum(grad for _, grad in declared), order)
    if forms.sizes[-1] != len(operands) or any(not 0 <= k < len(operands) for k in forms.needs[-1]):
        raise ProgramError(f"torch_op: the number of operands does not fit the call, got {len(operands)}")
    if order == 0:
        made = tuple(s for s, _ in declared)
    else:
        made = tuple(operands[k] for k in forms.needs[-2])
    if not made or (order and not all(s.dtype.is_differentiable for s in made)):
        raise ProgramError("torch_op: no operand has a gradient")
    return made if len(made) > 1 else made[0]


class Forms:
    """What each order takes. Order 0 is the function itself, of n operands. Order k + 1 takes what k takes and a
    gradient for each of its results that has one; it gives a gradient for each operand of k that needs one."""

    def __init__(self, n: int, needs: tuple[int, ...], results: int, order: int) -> None:
        self.sizes = [n]  #: operands
        self.needs = [needs]  #: those that need a gradient
        for _ in range(order):
            size, before = self.sizes[-1], self.needs[-1]
            self.sizes.append(size + results)
            self.needs.append((*before, *range(size, size + results)))
            results = len(before)


def _op_torch(torch: Any, site: Site, *, name: str, call: str, n: int, needs: Any, results: Any, order: int) -> Any:
    graded = [k for k, (_, grad) in enumerate(_declared(results)) if grad]
    forms = Forms(n, tuple(needs), len(graded), order)
    host = site.device != "cpu" and any(not s.dtype.is_differentiable for s in site.specs)
    wanted = [(s.shape, getattr(torch, s.dtype.name)) for s in site.results]

    def level(k: int, tensors: list[Any]) -> list[Any]:
        if k == 0:
            return _flat(torch, _call(torch, name, call, tensors))
        inner, gs = tensors[: forms.sizes[k - 1]], tensors[forms.sizes[k - 1] :]
        leaves = [inner[i] for i in forms.needs[k - 1]]
        made = level(k - 1, inner)
        outs = [made[i] for i in graded] if k == 1 else made
        pairs = [(o, g) for o, g in zip(outs, gs, strict=True) if o.requires_grad]
        grads: Any = (None,) * len(leaves)
        if pairs:
            grads = torch.autograd.grad(
                [o for o, _ in pairs],
                leaves,
                [g.to(o.dtype) for o, g in pairs],
                allow_unused=True,
                create_graph=k < order,
            )
        return [torch.zeros_like(t) if g is None else g for t, g in zip(leaves, grads, strict=True)]

    def kernel(*tensors: Any) -> Any:
        copies = [t.detach().cpu() if host else t.detach().clone() for t in tensors]
        if order:
            for i in forms.needs[-2]:
                copies[i].requires_grad_()
        with torch.set_grad_enabled(order > 0):
            made = [t.detach().to(site.device) for t in level(order, copies)]
        found = [(tuple(t.shape), t.dtype) for t in made]
        if found != wanted:
            raise ProgramError(f"{name}: expected the result {wanted}, got {found}")
        own = [t.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format) for t in made]
        return tuple(own) if len(own) > 1 else own[0]

    return kernel


def _op_vjp(
    g: Any, y: Any, *operands: Any, n: int, needs: Any, results: Any, order: int, **attrs: Any
) -> tuple[Any, ...]:
    gs, ys = (g, y) if isinstance(g, tuple) else ((g,), (y,))
    some = next(x for x in gs if x is not None)
    graded = [k for k, (_, grad) in enumerate(_declared(results)) if grad]
    with_gradient = graded if order == 0 else range(len(ys))
    incoming = [fill(some, 0.0, ys[k].shape, ys[k].dtype) if gs[k] is None else gs[k] for k in with_gradient]
    above = {**attrs, "n": n, "needs": needs, "results": results, "order": order + 1}
    grads = some._apply(back, (*operands, *incoming), above)
    made = iter(grads if isinstance(grads, tuple) else (grads,))
    wanted = Forms(n, tuple(needs), len(graded), order).needs[-1]
    return tuple(next(made) if k in wanted else None for k in range(len(operands)))


def _samples(order: int, rng: Rng) -> list[Sample]:
    # In float64 whatever it is given: what comes out is declared.
    call = '[[{"t": 0}, 0], {"dtype": {"d": "float64"}}]'
    attrs = {"name": "softmax", "call": call, "n": 1, "needs": (0,), "order": order}
    return [
        (tuple(rng.normal(size=shape) for _ in range(order + 1)), {**attrs, "results": ((shape, "float64", True),)})
        for shape in ((2, 3), (), (0, 3))
    ]


def _of_torch(name: str, doc: str, vjp: Any, order: int = 0) -> Op:
    kernels = {"torch": _op_torch, "torch_graph": unfit}
    return op(name, doc, infer=_infer_op, vjp=vjp, kernels=kernels, samples=lambda rng: _samples(order, rng))


torch_op = _of_torch("torch_op", "A function of torch, run by torch on the worker.", _op_vjp)
#: The gradient is the same op of a higher order; a record of its own only so that programs are easy to read.
back = _of_torch("torch_op_dx", "The gradients of a function of torch, computed by torch's autograd.", _op_vjp, order=1)
torch_call = _of_torch("torch_call", "A function of torch that has no gradient, run by torch on the worker.", None)
