"""What an op is: one frozen record that holds everything GT knows of it.

A record in a file of this folder is all it takes to add an op: inference, gradient, kernels
for every engine, its place in views and in-place writes, and the inputs it is tested with.
`gt ops`, the docs and the tests follow from the table.

An op here is canonical: dimensions are non-negative, defaults are filled in, numbers that a
loop may change are scalar operands. The forms that users type are in `gt/client/`.

Calling a record (`mul(g, y)`) hands it to whoever made the operands: the client records it,
a Trace (trace.py) writes it down. So gradients and compositions are plain functions of ops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gt.dtypes import DType
from gt.errors import ProgramError
from gt.program import Spec

#: Operands and attributes of one test case: numpy arrays or Python numbers, then keywords.
Sample = tuple[tuple[Any, ...], dict[str, Any]]
Infer = Callable[..., Spec | tuple[Spec, ...]]
Kernel = Callable[..., Any]
#: The gradient of one argument: f(g, y, *args, **attrs). `g` and `y` are tuples where the op has
#: several results (an entry of `g` is None if that result was not used).
ArgumentVJP = Callable[..., Any] | None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Op:
    """See the file's header. Fields without a default cannot be forgotten."""

    name: str
    doc: str  #: one sentence, shown by `gt ops`
    #: (specs of the operands, **attrs) -> spec(s) of the result; raises the user's error.
    infer: Infer
    #: One function per operand (None: no gradient), or one function that returns a gradient or
    #: None for every operand, or None where the op has no gradient. Written in ops. The caller
    #: sums a gradient over broadcast dimensions and casts it to the operand's dtype. A tuple may
    #: leave out trailing operands that never have a gradient (numbers, indices), and name optional ones.
    vjp: tuple[ArgumentVJP, ...] | Callable[..., tuple[Any, ...]] | None
    samples: Callable[[np.random.Generator], list[Sample]]
    #: By engine. "array" serves numpy and jax: f(xp, *operands, **attrs); "numpy" and "jax" have the
    #: same form and go before it; "jax_lib" is given the jax module itself. jax compiles them with numbers as
    #: operands: where numbers must be looked at, "numbers", f(specs, **attrs), returns a function of the numbers
    #: alone that raises the user's error. "torch" is called once per instruction, f(torch, site, **attrs), and
    #: returns the function of the operands alone: what attributes and specs decide costs nothing when
    #: it runs. Without it, torch's function of that name is used. "torch_inplace" has that form too;
    #: what it returns writes its results into the operands in `inplace`, in a commit.
    kernels: Mapping[str, Kernel] = field(default_factory=dict)
    #: The op written in other ops. Needs no kernels, no gradient of its own.
    compose: Callable[..., Any] | None = None
    #: Operands meet in their common dtype (dtypes.promote), or in the result's if only that is
    #: floating; array kernels get them cast to it, torch does it by itself.
    promote: bool = False
    #: (*specs, **attrs) -> {operand: (n, extra)}: every element of that operand must lie in [0, n), or
    #: be `extra` if that is not None (an ignore_index). The worker checks this before the kernel runs,
    #: so no kernel meets a bad index.
    indices: Callable[..., dict[int, tuple[int, int | None]]] | None = None
    #: (*specs, **attrs) -> {result: n}: every element of that result is an index in [0, n), so that whoever
    #: uses it as one need not check it.
    ranges: Callable[..., dict[int, int]] | None = None
    #: Makes the op a view of its first operand: put(base, new, k, *other operands, **attrs) is the base
    #: after `new` was written to the view (its result k).
    put: Callable[..., Any] | None = None
    #: The kernel may return memory of its first operand.
    aliases: bool = False
    #: Operand numbers that "torch_inplace" overwrites, one per result.
    inplace: tuple[int, ...] = ()

    def __call__(self, *args: Any, **attrs: Any) -> Any:
        for a in args:
            maker = getattr(a, "_apply", None)
            if maker is not None:
                return maker(self, args, attrs)
        raise TypeError(f"{self.name}: no operand is a tensor")

    def __repr__(self) -> str:
        return f"<op {self.name}>"


@dataclass(frozen=True, slots=True)
class Site:
    """Where a torch kernel is going to run, and on what."""

    device: str
    specs: tuple[Spec, ...]  #: of the operands
    results: tuple[Spec, ...]


TABLE: dict[str, Op] = {}


class _Names:
    """`ops.mul` is the record of that name, looked up when used: families may need each other."""

    def __getattr__(self, name: str) -> Op:
        try:
            return TABLE[name]
        except KeyError:
            raise AttributeError(f"no op {name!r}") from None


ops = _Names()


def op(name: str, doc: str, **fields: Any) -> Op:
    """Make a record and enter it in the table. Called at import, never later."""
    if name in TABLE:
        raise ProgramError(f"op {name} is defined twice")
    record = Op(name=name, doc=doc, **fields)
    TABLE[name] = record
    return record


def fill(like: Any, value: float, shape: tuple[int, ...], dtype: DType) -> Any:
    """A new constant, recorded by whoever made `like`; nothing of `like` is read."""
    return like._apply(TABLE["full"], (value,), {"shape": shape, "dtype": dtype.name})


def conj(x: Any) -> Any:
    """The complex conjugate; x itself where it is real, or a number. Gradients of complex ops are written with it."""
    dtype = getattr(x, "dtype", None)
    return TABLE["conj"](x) if dtype is not None and dtype.is_complex else x


def as_tuple(specs: Spec | tuple[Spec, ...]) -> tuple[Spec, ...]:
    """What `infer` returned, as a tuple whatever the number of results."""
    return specs if isinstance(specs, tuple) else (specs,)


def tensors(args: Iterable[Any]) -> list[Any]:
    """The operands that are tensors, whoever made them."""
    return [a for a in args if hasattr(a, "_apply")]
