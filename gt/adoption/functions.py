"""Which function of GT a function of torch calls.

torch hands over its function and the arguments (`__torch_function__`). In this order, the function is

1. one of those below, where GT's differs in its arguments;
2. GT's function or method of the same name and namespace;
3. torch's own, if it is written in Python: it calls other functions, which arrive here;
4. run by torch on the worker (`gt.torch_op`).

What was found is remembered, so the search happens once per function. Arguments are tensors of GT then, and results
adopted tensors. A tensor that the function returns as it was given (`x.add_(y)`, `x.to(x.dtype)`) is the same object.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch._library import custom_ops
from torch.utils import _pytree as pytree

import gt
from gt.adoption import batching
from gt.adoption.growing import longer
from gt.adoption.modes import FACTORIES, Inside, any_autocast, grad_enabled, mirrored, route
from gt.adoption.recurrent import is_packed, pack, pad, recurrent
from gt.adoption.scaling import unscale_, update_scale_
from gt.adoption.sparse import SPARSE
from gt.adoption.tensor import ADOPTED, OURS, TORCHS, Adopted, BatchMet, Computed, native, wrap
from gt.client.compat.fallback import find
from gt.client.compat.switches import channels_last, channels_last_3d, contiguous_format, preserve_format
from gt.client.functions.mapping import _grouped_mm
from gt.client.record.recorder import recorder
from gt.client.tensor import Parameter, Tensor
from gt.dtypes import DType
from gt.errors import ArgumentError
from gt.ops import TABLE

Call = Callable[..., Any]

_new: Callable[[type], Any] = torch._C.TensorBase.__new__

# --- arguments and results ---------------------------------------------------------------------------

#: Types that are passed on as they are.
_PLAIN = {int, float, bool, str, complex, type(None), type(Ellipsis), Tensor, Parameter, np.ndarray}
_FORMATS = {
    torch.channels_last: channels_last, torch.channels_last_3d: channels_last_3d,
    torch.contiguous_format: contiguous_format, torch.preserve_format: preserve_format,
}  # fmt: skip


def ours(x: Any) -> Any:
    """An argument of torch's as GT takes it."""
    kind = type(x)
    if kind in ADOPTED:
        return x._gt
    if kind in _PLAIN:
        return x
    convert = _CONVERT.get(kind)
    if convert is not None:
        return convert(x)
    if isinstance(x, torch.Tensor):
        return native(x)
    if isinstance(x, (list, tuple)):
        return _several(x)
    return x


def _several(x: Any) -> Any:
    made = [y if type(y) in _PLAIN else ours(y) for y in x]
    return made if isinstance(x, list) else tuple(made)


_CONVERT: dict[type, Callable[[Any], Any]] = {
    torch.dtype: lambda x: OURS.get(x, x),
    torch.Size: tuple,
    torch.Tensor: native,
    torch.nn.Parameter: native,
    list: _several,
    tuple: _several,
    slice: lambda x: slice(ours(x.start), ours(x.stop), ours(x.step)),
    torch.memory_format: _FORMATS.__getitem__,
    torch.layout: lambda x: None if x is torch.strided else x,
    torch.device: str,
}


def theirs(x: Any) -> Any:
    """A result of GT's as torch gives it."""
    kind = type(x)
    if kind is Tensor or kind is Parameter:
        return wrap(x)
    if kind in _PLAIN:
        return x
    if kind is tuple:
        return tuple([theirs(y) for y in x])
    if kind is list:
        return [theirs(y) for y in x]
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return kind(*[theirs(y) for y in x])
    if isinstance(x, Tensor):
        return wrap(x)
    return TORCHS[x] if kind is DType else x


def adapted(function: Call, method: str = "") -> Call:
    """A function of GT that takes torch's arguments and returns torch's results."""

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            given = [a._gt if type(a) in ADOPTED else a if type(a) in _PLAIN else ours(a) for a in args]
        except BatchMet:
            if not method:
                raise
            return batching.split(getattr(torch.Tensor, method), args, kwargs)
        if kwargs:
            if "out" in kwargs:
                return _into(kwargs.pop("out"), call, args, kwargs)
            kwargs = {k: ours(v) for k, v in kwargs.items()}
        if any_autocast() or (not grad_enabled() and recorder().grad):
            with mirrored():
                made = function(*given, **kwargs)
        else:
            made = function(*given, **kwargs)
        if type(made) is Tensor:
            if given and made is given[0] and type(args[0]) in ADOPTED:
                return args[0]
            t = _new(Computed)
            t._gt = made
            return t
        if given and made is given[0]:
            return args[0]
        return theirs(made)

    return call


def _into(out: Any, call: Call, args: Any, kwargs: Any) -> Any:
    """`out=`: the result is written to a tensor, or several."""
    made = call(*args, **kwargs)
    if out is None:
        return made
    for target, result in zip(out, made, strict=True) if isinstance(out, (tuple, list)) else [(out, made)]:
        target.copy_(result)
    return out


# --- the search --------------------------------------------------------------------------------------

#: What was found, by the function of torch.
FOUND: dict[Any, Call] = {}


def call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call what stands for a function of torch."""
    try:
        found = FOUND[func]
    except KeyError:
        found = FOUND[func] = search(func)
    return found(*args, **kwargs)


#: GT's namespaces by torch's modules. Builtins have their namespace in their name, too: `linalg_norm`.
_SPACES = {
    "torch.nn.functional": gt.nn.functional, "torch._C._nn": gt.nn.functional, "torch.nn.init": gt.nn.init,
    "torch._C._linalg": gt.linalg, "torch._C._fft": gt.fft, "torch._C._special": gt.special,
    "torch.nn.utils.clip_grad": gt.nn.utils,
}  # fmt: skip
_PREFIXES = ("linalg_", "fft_", "special_")


def search(func: Any) -> Call:
    name = getattr(func, "__name__", "")
    if name == "__get__":
        attribute = func.__self__.__name__
        return lambda self: _attribute(self, attribute)
    if name == "__set__":
        attribute = func.__self__.__name__
        return lambda self, value: setattr(self, attribute, value)
    module = getattr(func, "__module__", None)
    written = custom_ops.OPDEFS.get(getattr(func, "_qualified_op_name", ""))
    if written is not None:
        return written._init_fn  # an operator that is defined in Python; GT differentiates what it calls
    if hasattr(func, "__objclass__") or getattr(func, "__qualname__", "").startswith("Tensor."):
        found = _method(name) or SPECIAL.get(name)
        if found is not None:
            return found
    else:
        own = SPECIAL.get(name)
        if own is not None:
            return own
        plain = name.removeprefix(next((p for p in _PREFIXES if name.startswith(p)), ""))
        # torch passes its function by name; where somebody put another in its place, as transformers does in
        # torch.nn.init, it is that one. It has called torch's, and has done what it adds.
        first = _SPACES.get(str(module), None if str(module).startswith("torch") else gt.nn.init)
        spaces = [s for s in (first, gt, gt.nn.functional) if s is not None]
        for space in spaces:
            found = named_in(space, plain)
            if found is not None:
                return adapted(found)
    if isinstance(func, FunctionType):
        return _unchecked(func)
    for path in (plain_path(module, name), name, f"nn.functional.{name}"):
        run = find(path)
        if run is not None:
            return adapted(run)
    raise ArgumentError(f"torch.{name}: GT has no such function, and torch cannot run it on a worker by name")


def plain_path(module: Any, name: str) -> str:
    """The name under which `gt.torch_op` knows a function: `linalg.norm`."""
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            return f"{prefix[:-1]}.{name.removeprefix(prefix)}"
    return f"nn.functional.{name}" if module == "torch._C._nn" else name


def named_in(space: Any, name: str) -> Call | None:
    """GT's own function in a namespace: none that torch would run on the worker."""
    found = vars(space).get(name)
    if found is not None:
        return found if inspect.isroutine(found) else None
    op = TABLE.get(name)
    if space is gt and op is not None and op.public:
        return getattr(gt, name)
    if space is gt and name.endswith("_") and name in vars(Tensor):
        return getattr(Tensor, name)
    return None


def _method(name: str) -> Call | None:
    """A method, of a tensor that may be an ordinary one of torch."""
    own = vars(Adopted).get(name)
    if own is None:
        return None
    writes = (name.endswith("_") and not name.endswith("__")) or name in _WRITES

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if type(self) in ADOPTED:
            return own(self, *args, **kwargs)
        if writes:  # a tensor of the host is written to: the others are read
            return getattr(self, name)(*[_host(a) for a in args], **{k: _host(a) for k, a in kwargs.items()})
        return own(wrap(native(self)), *args, **kwargs)

    return method


_WRITES = {"__setitem__", *(f"__i{n}__" for n in "add sub mul truediv floordiv mod pow and or xor".split())}


def _host(x: Any) -> Any:
    if type(x) in ADOPTED:
        return x.torch()
    return type(x)([_host(y) for y in x]) if type(x) in (list, tuple) else x


def _attribute(self: Any, name: str) -> Any:
    """An attribute of torch's tensors that the class does not define."""
    if name.startswith("is_"):
        return False
    return theirs(getattr(native(self), name))


def _never(*_: Any) -> bool:
    return False


_CHECKS = dict.fromkeys(("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"), _never)


def _unchecked(func: FunctionType) -> Call:
    """torch's Python function without its check for tensors like ours, which led here."""
    again = FunctionType(func.__code__, func.__globals__ | _CHECKS, func.__name__, func.__defaults__, func.__closure__)
    again.__kwdefaults__ = func.__kwdefaults__
    if vars(func).get("__wrapped__") is not None or func.__closure__:
        raise ArgumentError(f"torch.{func.__name__}: GT has no such function")
    return again


# --- functions whose arguments differ ----------------------------------------------------------------


def _backward(tensors: Any, grad_tensors: Any = None, retain_graph: Any = None, create_graph: Any = False,
              grad_variables: Any = None, inputs: Any = None) -> None:  # fmt: skip
    seeds = grad_tensors if grad_variables is None else grad_variables
    gt.autograd.backward(ours(tensors), ours(seeds), retain_graph, create_graph, ours(inputs))


def _grad(outputs: Any, inputs: Any, grad_outputs: Any = None, **how: Any) -> Any:
    return theirs(gt.grad(ours(outputs), ours(inputs), ours(grad_outputs), **how))


def _assert(condition: Any, message: Any = "") -> None:
    if recorder().trace is None and not bool(condition):
        raise AssertionError(message)


def _assert_async(condition: Any, message: Any = "") -> None:
    """A check on the device; there is nothing to wait for here."""


def _slice_of(x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    """torch.ops.aten.slice"""
    return x[(slice(None),) * (dim % x.ndim) + (slice(start, end, step),)]


def _weight_norm(v: Any, g: Any, dim: int = 0) -> Any:
    others = [d for d in range(v.ndim) if d != dim % v.ndim or dim == -1]
    return v * (g / gt.linalg.vector_norm(v, 2, others, keepdim=True))


def _gamma(alpha: Any, generator: Any = None) -> Any:
    from gt.distributions.continuous import gamma

    return gamma(alpha, alpha.shape)


def _dirichlet(alpha: Any, generator: Any = None) -> Any:
    from gt.distributions.continuous import dirichlet

    return dirichlet(alpha)


# Lengths and batch sizes of packed sequences are tensors of the host, as in torch: they decide what is recorded.


def _recurrent(mode: str) -> Call:
    run = adapted(recurrent(mode))

    def call(x: Any, second: Any, third: Any, fourth: Any, *settings: Any) -> Any:
        return run(x, tuple(second.tolist()) if is_packed(fourth) else second, third, fourth, *settings)

    return call


def _pack(input: Any, lengths: Any, batch_first: bool) -> Any:
    counts = np.array(lengths.tolist())
    steps = (counts > np.arange(counts.max())[:, None]).sum(1)
    return adapted(pack)(input, counts.tolist(), batch_first), torch.tensor(steps)


def _pad(data: Any, batch_sizes: Any, batch_first: bool, padding_value: float, total_length: int) -> Any:
    steps = np.array(batch_sizes.tolist())
    lengths = (steps > np.arange(steps[0])[:, None]).sum(1)
    return adapted(pad)(data, steps.tolist(), batch_first, padding_value, total_length), torch.tensor(lengths)


_joined = adapted(gt.cat)


def _cat(tensors: Any, dim: Any = 0, **how: Any) -> Any:
    made = None if how or grad_enabled() or recorder().trace is not None else longer(tensors, dim)
    return _joined(tensors, dim, **how) if made is None else made


SPECIAL: dict[str, Call] = {
    **dict.fromkeys(("cat", "concat", "concatenate"), _cat),
    "_has_compatible_shallow_copy_type": lambda x, y: type(x) in ADOPTED and type(y) in ADOPTED,
    "_is_all_true": adapted(lambda x: x.all()),
    "_is_any_true": adapted(lambda x: x.any()),
    "_grouped_mm": adapted(_grouped_mm),
    "_weight_norm": adapted(_weight_norm),
    "_standard_gamma": adapted(_gamma),
    "_sample_dirichlet": adapted(_dirichlet),
    "_softmax_backward_data": adapted(lambda g, y, dim, dtype=None: y * (g - (g * y).sum(dim, keepdim=True))),
    "log_sigmoid": adapted(gt.nn.functional.logsigmoid),
    "pad_sequence": adapted(gt.nn.utils.rnn.pad_sequence),
    "slice": adapted(_slice_of),
    "backward": _backward,
    "grad": _grad,
    "_assert": _assert,
    "_assert_async": _assert_async,
    "lstm": _recurrent("LSTM"),
    "gru": _recurrent("GRU"),
    "rnn_tanh": _recurrent("RNN_TANH"),
    "rnn_relu": _recurrent("RNN_RELU"),
    "_pack_padded_sequence": _pack,
    "_pad_packed_sequence": _pad,
    "_amp_foreach_non_finite_check_and_unscale_": unscale_,
    "_amp_update_scale_": update_scale_,
    **SPARSE,
}


# --- the class ---------------------------------------------------------------------------------------


def _torch_function(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    try:
        return call(func, args, kwargs or {})
    except BatchMet:
        return batching.split(func, args, kwargs or {})


def _of_ours(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """A function of torch's on tensors of GT, and on no adopted one: the results are tensors of GT."""
    return down(call(func, args, kwargs or {}))


def down(x: Any) -> Any:
    """A result with tensors of GT instead of adopted ones."""
    return pytree.tree_map(lambda y: y._gt if type(y) in ADOPTED else y, x)


def _inside(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A function that is called while an adopted model runs: one of no adopted tensor may make a tensor."""
    if _has_adopted(args) or (kwargs and _has_adopted(kwargs.values())):
        found = FOUND.get(func)
        if found is None:
            found = FOUND[func] = search(func)
        try:
            if type(found) is FunctionType and found.__globals__ is not _HERE:  # torch's own Python
                with Inside():
                    return found(*args, **kwargs)
            return found(*args, **kwargs)
        except BatchMet:
            return batching.split(func, args, kwargs)
    if getattr(func, "__name__", "") in FACTORIES and not hasattr(func, "__objclass__"):
        if kwargs.get("generator") is not None:
            return wrap(native(func(*args, **kwargs)))  # the user's own sequence of random numbers
        if not _for_host():
            return call(func, args if func.__name__ in _FROM_DATA else tuple(map(_size, args)), kwargs)
    return func(*args, **kwargs)


#: Factories whose argument is the data itself.
_FROM_DATA = {"as_tensor", "asarray", "from_numpy", "tensor"}


def _size(x: Any) -> Any:
    """A size that is a tensor of the host, as a number."""
    if isinstance(x, (list, tuple)):
        return [_size(y) for y in x]
    return x.item() if isinstance(x, torch.Tensor) else x


def _for_host() -> bool:
    """Whether code of torch's makes a tensor that decides what is recorded: an optimizer's count of steps, the lengths
    of packed sequences. It stays on the host."""
    return str(sys._getframe(3).f_globals.get("__name__", "")).startswith(("torch.optim", "torch.nn.utils.rnn"))


def _has_adopted(xs: Any) -> bool:
    for x in xs:
        kind = type(x)
        if kind in ADOPTED or isinstance(x, Tensor) or (kind in (list, tuple) and _has_adopted(x)):
            return True
    return False


_HERE = globals()
route.append(_inside)


def attach() -> None:
    """Give the class torch's methods, as far as GT has them, and its doors."""
    mine = vars(Adopted)
    for name in dir(torch.Tensor):
        if name in mine or (name.startswith("__") and name not in vars(Tensor)):
            continue
        there = vars(Tensor).get(name)
        if isinstance(there, property):
            setattr(Adopted, name, property(_reader(there)))
        elif callable(there):
            setattr(Adopted, name, adapted(there, name))
    Adopted.__torch_function__ = classmethod(_torch_function)
    Tensor.__torch_function__ = classmethod(_of_ours)  # type: ignore[attr-defined]  # torch asks for it


def _reader(there: property) -> Callable[[Any], Any]:
    read: Any = there.fget
    return lambda self: theirs(read(self._gt))


attach()
