"""Functions that GT does not implement: `gt.torch_op("NAME", ...)` runs torch's function on the worker.

`gt.NAME`, `gt.linalg.NAME`, `x.NAME()` and so on use it for names that GT does not have. The worker is asked for the
shapes and dtypes of the results once per form of the arguments; if they depend on the values of tensors, at each call.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from gt import dtypes
from gt.client.compat.arguments import called
from gt.client.compat.interop import is_torch
from gt.client.compat.operands import coerce
from gt.client.grad.modes import set_grad
from gt.client.programs.tree import Kinds
from gt.client.record.recorder import apply, recorder
from gt.client.session.session import Session
from gt.client.tensor import Tensor
from gt.errors import ArgumentError
from gt.ops import TABLE
from gt.ops.families.fallback import pack
from gt.ops.families.torch_names import NAMES

__all__ = ["torch_op"]

LIMIT = 1000  #: Forms whose results are cached, per session.

#: The ops that users call by name.
OPS = {name: op for name, op in TABLE.items() if op.public}

_OP = Kinds(TABLE["torch_op"], "name", "call", "n", "needs", "results", "order")
_CALL = Kinds(TABLE["torch_call"], "name", "call", "n", "needs", "results", "order")


#: The results of a function by the form of its arguments, as the worker answered.
_forms: WeakKeyDictionary[Session, OrderedDict[Any, Any]] = WeakKeyDictionary()


def torch_op(name: str, *args: Any, **kwargs: Any) -> Any:
    """Run a function of torch by name, such as "linalg.lu" or "nn.functional.ctc_loss", on the worker.

    >>> import gt
    >>> gt.torch_op("special.bessel_j0", gt.zeros(2))
    tensor([1., 1.])
    """
    if name not in NAMES:
        raise ArgumentError(f"torch_op: torch has no function {name!r} that can run on a worker")
    tensors: list[Any] = []

    def number(x: Any) -> int | None:
        if isinstance(x, np.ndarray) or is_torch(x):
            x = coerce(name, x)
        if not isinstance(x, Tensor):
            return None
        tensors.append(x)
        return len(tensors) - 1

    kwargs = {k: v for k, v in kwargs.items() if v is not None and k not in ("device", "layout", "pin_memory")}
    call = json.dumps([pack(_plain(list(args)), number), {k: pack(_plain(v), number) for k, v in kwargs.items()}])
    graded = recorder().grad
    needs = tuple(k for k, t in enumerate(tensors) if graded and t.requires_grad)
    made = _results(name, call, tensors, needs)
    specs = tuple((tuple(shape), dtype, grad) for shape, dtype, grad in _leaves(made))
    if not specs:
        return _rebuild(made, iter(()))
    kind = (_OP if any(grad for _, _, grad in specs) else _CALL)[name, call, len(tensors), needs, specs, 0]
    out = apply(kind, tuple(tensors)) if tensors else Tensor._apply(kind.op, (), kind.attrs)
    return _rebuild(made, iter(out if isinstance(out, tuple) else (out,)))


def find(name: str) -> Callable[..., Any] | None:
    """torch's function of this name, to run on the worker; None if there is none."""
    if name not in NAMES:
        return None

    def function(*args: Any, **kwargs: Any) -> Any:
        return torch_op(name, *args, **kwargs)

    return called(function, name, f"torch.{name}, run by torch on the worker.")


def function(name: str) -> Callable[..., Any] | None:
    """A function that no file of functions has: a public op of the table, or else a function of torch."""
    op = OPS.get(name)
    if op is None:
        return None if name.startswith("_") else find(name)

    def plain(*args: Any, **attrs: Any) -> Any:
        return Tensor._apply(op, args, attrs)

    return called(plain, name, op.doc)


def find_method(self: Tensor, name: str) -> Any:
    """A method that no file of functions has: an op of the table (`x.softplus`), or else a function of torch."""
    op = OPS.get(name)
    if op is not None:
        return lambda *args, **attrs: Tensor._apply(op, (self, *args), attrs)
    found = None if name.startswith("_") else find(name)
    if found is None:
        cure = "; GT has no sparse tensors" if "sparse" in name else ""
        raise AttributeError(f"a tensor has no attribute {name!r}{cure}")
    return lambda *args, **kwargs: found(self, *args, **kwargs)


def namespace(prefix: str) -> Callable[[str], Any]:
    """A module's `__getattr__` that finds missing names in torch."""

    def attribute(name: str) -> Any:
        found = find(f"{prefix}.{name}")
        if found is None:
            raise AttributeError(f"module 'gt.{prefix}' has no attribute {name!r}")
        return found

    return attribute


def _results(name: str, call: str, tensors: list[Any], needs: tuple[int, ...]) -> Any:
    forms = _forms.setdefault(recorder().session, OrderedDict())
    form = (name, call, needs, *[t._spec for t in tensors])
    made = forms.get(form)
    if made is not None:
        forms.move_to_end(form)
        return made
    answer = _ask(name, call, tuple(tensors), needs)
    if "error" in answer:
        raise ArgumentError(answer["error"])
    import logging  # only here, so that `import gt` does not load it

    logging.getLogger("gt").info("torch.%s is not implemented in GT; torch runs it on the worker", name)
    if answer["always"]:
        forms[form] = answer["result"]
        if len(forms) > LIMIT:
            forms.popitem(last=False)
    return answer["result"]


def _ask(name: str, call: str, tensors: tuple[Any, ...], needs: tuple[int, ...]) -> Any:
    with set_grad(False):
        answer = Tensor._apply(TABLE["torch_probe"], tensors, {"name": name, "call": call, "needs": needs})
    return json.loads(answer._fetch().tobytes())


def _plain(x: Any) -> Any:
    """Dtypes of NumPy and torch as GT's, NumPy's numbers as Python's."""
    if isinstance(x, (list, tuple)):
        return [_plain(y) for y in x]
    if isinstance(x, np.generic):
        return x.item()
    if isinstance(x, (type, np.dtype)) or (type(x).__module__, type(x).__name__) == ("torch", "dtype"):
        return dtypes.dtype(x)
    return x


def _leaves(made: Any) -> list[Any]:
    if "t" in made:
        return [made["t"]]
    return [leaf for x in made["l"] for leaf in _leaves(x)] if "l" in made else []


def _rebuild(made: Any, tensors: Any) -> Any:
    if "t" in made:
        tensor = next(tensors)
        if not made["t"][2]:
            tensor._fn = None  # other results have a gradient, this one has none
        return tensor
    if "l" in made:
        return tuple(_rebuild(x, tensors) for x in made["l"])
    return made["v"]
