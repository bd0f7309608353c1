"""A program: a list of pure instructions, numbered values in, numbered values out.

Values are numbered: the inputs first, then the results of the instructions in order. Numbers
that change from call to call (learning rates, seeds, slice starts, small host data) are not
part of a program: instructions name them as scalars s0, s1, ... and each call has their
values. A program is named by the hash of its content.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, SupportsIndex, overload
from weakref import WeakValueDictionary

import msgspec

from gt import dtypes
from gt.dtypes import DType


class Size(tuple[int, ...]):
    """The sizes of a tensor's dimensions: a tuple that knows the number of elements.

    >>> Size((2, 3, 4))[1:].numel()
    12
    """

    __slots__ = ()

    def numel(self) -> int:
        """The number of elements."""
        return math.prod(self)

    @overload
    def __getitem__(self, key: SupportsIndex) -> int: ...

    @overload
    def __getitem__(self, key: slice) -> Size: ...

    def __getitem__(self, key: Any) -> Any:
        found = tuple.__getitem__(self, key)
        return Size(found) if type(found) is tuple else found

    def __add__(self, other: Any) -> Any:
        return Size(tuple.__add__(self, other))


class Spec:
    """Shape and dtype of a value. Interned by `spec()`: equal specs are the same object."""

    __slots__ = ("__weakref__", "dtype", "nbytes", "shape", "size", "weak")

    def __init__(self, shape: tuple[int, ...], dtype: DType, weak: bool) -> None:
        self.shape = Size(shape)
        self.dtype = dtype
        self.weak = weak  #: A Python number: it does not widen the dtype of a tensor operand.
        self.size = math.prod(shape)
        self.nbytes = self.size * dtype.itemsize

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __repr__(self) -> str:
        return f"{self.dtype.short}[{','.join(map(str, self.shape))}]"


_SPECS: WeakValueDictionary[tuple[tuple[int, ...], DType, bool], Spec] = WeakValueDictionary()


def spec(shape: tuple[int, ...], dtype: DType, weak: bool = False) -> Spec:
    """The one Spec of this shape and dtype.

    >>> spec((2, 3), dtypes.float32) is spec((2, 3), dtypes.float32)
    True
    """
    key = (shape, dtype, weak)
    found = _SPECS.get(key)
    if found is None:
        # setdefault: two threads may make the same spec, but only one may be used.
        found = _SPECS.setdefault(key, Spec(shape, dtype, weak))
    return found


def as_tuple(specs: Spec | tuple[Spec, ...]) -> tuple[Spec, ...]:
    """What an op's `infer` returned, as a tuple whatever the number of results."""
    return specs if isinstance(specs, tuple) else (specs,)


#: The spec of a scalar operand for `infer`, by its kind: float, int, bool, host data.
SCALARS: dict[str, Spec] = {
    "f": spec((), dtypes.float32, weak=True),
    "i": spec((), dtypes.int64, weak=True),
    "b": spec((), dtypes.bool_, weak=True),
    "d": spec((), dtypes.uint8, weak=True),
}
SCALAR_TYPES: dict[str, type] = {"f": float, "i": int, "b": bool, "d": bytes}


#: How exactly products of float32 are computed: torch's names.
PRODUCTS = ("highest", "high", "medium")


class Precision(NamedTuple):
    """How exactly a program's float32 arithmetic is computed. torch has flags of the process for this; workers are
    shared, so here it is part of the program."""

    product: str = "highest"  #: Of matrix products: one of PRODUCTS.
    conv_tf32: bool = True  #: Whether convolutions may use TF32 on GPUs that have it, as in torch.

    def __str__(self) -> str:
        return f"precision {self.product}" + ("" if self.conv_tf32 else ", exact convolutions")


DEFAULT_PRECISION = Precision()  #: torch's default.


class Instruction(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One use of an op. Plain data, so the garbage collector need not look at it: there are many."""

    op: str
    args: tuple[int, ...]  #: a value's number, or ~k for scalar k
    attrs: dict[str, Any]  #: structure: axes, sizes, dtype names; plain data only
    results: int = 1


class Program(msgspec.Struct, frozen=True, array_like=True):
    """See the file's header."""

    inputs: tuple[tuple[tuple[int, ...], str], ...]  #: shape and dtype name of each input
    scalars: str  #: the kind of each scalar, a letter of SCALARS
    code: tuple[Instruction, ...]
    outputs: tuple[int, ...]  #: value numbers, none twice, none of them an input
    donate: tuple[int, ...]  #: inputs that are not read again after the call
    #: (position in outputs, input): that output replaces that input. If the call fails the
    #: output takes the input's value.
    updates: tuple[tuple[int, int], ...]
    precision: Precision = DEFAULT_PRECISION
    #: The workers that run one call together, each its own program, with collectives between them. Only the
    #: dispatcher's planner makes such programs; a client may not send one.
    workers: tuple[int, ...] = ()

    def numbered(self) -> Iterator[tuple[Instruction, range]]:
        """Every instruction, with the numbers of its results."""
        number = len(self.inputs)
        for ins in self.code:
            yield ins, range(number, number + ins.results)
            number += ins.results

    def text(self) -> str:
        """The program as readable text."""
        names = [f"%{i}: {spec(tuple(s), dtypes.BY_NAME[d])!r}" for i, (s, d) in enumerate(self.inputs)]
        names += [f"s{k}" for k in range(len(self.scalars))]
        lines = [f"program {self.hash().hex()[:8]}  ({', '.join(names)})"]
        if self.precision != DEFAULT_PRECISION:
            lines[0] += f"  {self.precision}"
        if self.workers:
            lines[0] += f"  with workers {' '.join(map(str, self.workers))}"
        for ins, made in self.numbered():
            left = ", ".join(f"%{v}" for v in made)
            right = " ".join([ins.op, *(f"%{a}" if a >= 0 else f"s{~a}" for a in ins.args)])
            attrs = " ".join(f"{k}={v}" for k, v in ins.attrs.items())
            lines.append(f"  {left} = {right}" + (f"  {{{attrs}}}" if attrs else ""))
        last = "  return " + " ".join(f"%{o}" for o in self.outputs)
        if self.donate:
            last += "   donate " + " ".join(f"%{i}" for i in self.donate)
        if self.updates:
            last += "   update " + " ".join(f"%{i}->%{self.outputs[o]}" for o, i in self.updates)
        return "\n".join([*lines, last])

    def hash(self) -> bytes:
        """A hash of the program's content, of 16 bytes."""
        return hashlib.sha256(_encoder.encode(self)).digest()[:16]

    def body(self) -> str:
        """A hash of what the program computes, in hexadecimal: inputs, scalars and code. Which results are kept, and
        which inputs are given away or replaced, makes another program, but not another body."""
        return hashlib.sha256(_encoder.encode((self.inputs, self.scalars, self.code))).hexdigest()[:32]


_encoder = msgspec.msgpack.Encoder(order="deterministic")


def input_spec(shape: Sequence[int], dtype: str) -> Spec:
    """The Spec of a program input as the wire carries it."""
    return spec(tuple(shape), dtypes.BY_NAME[dtype])
