"""What the ops' inference shares: checks of operands and attributes, and broadcasting.

Law 1: a check costs time in the number of dimensions, never in their sizes: strangers' programs
pass here before anyone knows whether they can be run.
Law 2: an error is one line that names the op, the sizes and, where there is one, the cure.

Attributes come from Python as tuples and from the wire as lists; both are taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gt import dtypes
from gt.dtypes import DType
from gt.errors import ArgumentError, DimError, DTypeError, ShapeError
from gt.program import SCALARS, Spec, spec

MAX_DIMS = 64
MAX_SIZE = 1 << 60

Shape = tuple[int, ...]


# -- operands --------------------------------------------------------------------------------


def tensor(op: str, *operands: Spec) -> Any:
    """Tensors, not numbers. Returns the first operand, if there is one; so do `floating`, `floats` and `index`."""
    for x in operands:
        if x.weak:
            raise ArgumentError(f"{op}: expected a tensor, got a number")
    return operands[0] if operands else None


def number(op: str, *operands: Spec) -> None:
    for x in operands:
        if not x.weak or x is SCALARS["d"]:
            raise ArgumentError(f"{op}: expected a number, got a tensor or bytes")


def integer(op: str, *operands: Spec) -> None:
    for x in operands:
        if x is not SCALARS["i"]:
            raise ArgumentError(f"{op}: expected a Python int, got a tensor or another number")


def either(op: str, *operands: Spec) -> None:
    """Tensors or numbers, at least one of them a tensor."""
    if all(x.weak for x in operands):
        raise ArgumentError(f"{op}: expected at least one tensor, got only numbers")
    if any(x is SCALARS["d"] for x in operands):
        raise ArgumentError(f"{op}: expected a number or a tensor, got bytes")


def floating(op: str, *operands: Spec) -> Any:
    for x in operands:
        if not x.dtype.is_floating_point:
            raise DTypeError(f"{op}: expected a floating-point dtype, got {x.dtype.name}; cast first, as in x.float()")
    return operands[0] if operands else None


def floats(op: str, *operands: Spec) -> Any:
    """Floating-point tensors."""
    tensor(op, *operands)
    return floating(op, *operands)


def not_bool(op: str, dtype: DType, cure: str = "cast first, as in x.int()") -> None:
    if dtype is dtypes.bool_:
        raise DTypeError(f"{op}: is not defined for bool; {cure}")


def not_complex(op: str, dtype: DType) -> None:
    if dtype.is_complex:
        raise DTypeError(f"{op}: is not defined for complex numbers; take x.real, x.imag or x.abs() first")


def same_dtype(op: str, a: Spec, b: Spec) -> None:
    if a.dtype is not b.dtype:
        raise DTypeError(f"{op}: expected one dtype, got {a.dtype.name} and {b.dtype.name}; cast one of them")


def index(op: str, *operands: Spec) -> Any:
    """Tensors that hold positions."""
    tensor(op, *operands)
    for x in operands:
        if x.dtype is not dtypes.int64 and x.dtype is not dtypes.int32:
            raise DTypeError(f"{op}: an index must be int64 or int32, got {x.dtype.name}; cast it, as in i.long()")
    return operands[0] if operands else None


# -- attributes ------------------------------------------------------------------------------


def shown(value: Any) -> str:
    """A stranger's value in a message, cut short."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def size(op: str, name: str, value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MAX_SIZE:
        raise ShapeError(f"{op}: {name} must be a size >= 0, got {shown(value)}")
    return value


def shape(op: str, value: Any, name: str = "shape") -> Shape:
    if not isinstance(value, list | tuple) or len(value) > MAX_DIMS:
        raise ShapeError(f"{op}: {name} must be a tuple of at most {MAX_DIMS} sizes, got {shown(value)}")
    for n in value:
        if type(n) is not int or not 0 <= n <= MAX_SIZE:
            raise ShapeError(f"{op}: {name} must hold sizes >= 0, got {shown(value)}")
    return tuple(value)


def ints(op: str, name: str, value: Any, count: int | None = None) -> Shape:
    if not isinstance(value, list | tuple) or not all(type(n) is int for n in value):
        raise ArgumentError(f"{op}: {name} must be a tuple of ints, got {shown(value)}")
    if count is not None and len(value) != count:
        raise ArgumentError(f"{op}: {name} must have {count} entries, got {len(value)}")
    return tuple(value)


def dim(op: str, value: Any, ndim: int) -> int:
    if type(value) is not int:
        raise ArgumentError(f"{op}: a dimension must be an int, got {shown(value)}")
    if not 0 <= value < ndim:
        raise DimError(f"{op}: dimension {value} is out of range for a tensor of {ndim} dimensions")
    return value


def dims(op: str, value: Any, ndim: int) -> Shape:
    checked = tuple(dim(op, d, ndim) for d in ints(op, "dims", value))
    if len(set(checked)) != len(checked):
        raise DimError(f"{op}: dimensions must be different, got {checked}")
    return checked


def flag(op: str, name: str, value: Any) -> bool:
    if type(value) is not bool:
        raise ArgumentError(f"{op}: {name} must be True or False, got {shown(value)}")
    return value


def choice(op: str, name: str, value: Any, options: Sequence[str]) -> str:
    if value not in options:
        raise ArgumentError(f"{op}: {name} must be one of {', '.join(options)}; got {shown(value)}")
    return str(value)


def dtype(op: str, name: Any) -> DType:
    found = dtypes.BY_NAME.get(name) if isinstance(name, str) else None
    if found is None:
        raise DTypeError(f"{op}: unknown dtype {shown(name)}; expected one of {', '.join(dtypes.BY_NAME)}")
    return found


# -- results ---------------------------------------------------------------------------------


def broadcast(op: str, *shapes: Shape) -> Shape:
    """The shape that all of them expand to.

    >>> broadcast("add", (2, 1, 3), (4, 1))
    (2, 4, 3)
    """
    first = shapes[0]
    if all(s == first for s in shapes):
        return first
    result = [1] * max(len(s) for s in shapes)
    for s in shapes:
        offset = len(result) - len(s)
        for i, n in enumerate(s):
            have = result[offset + i]
            if have == 1:
                result[offset + i] = n
            elif n != 1 and n != have:
                named = " and ".join(map(str, shapes))
                raise ShapeError(f"{op}: shapes {named} do not broadcast: sizes {have} and {n} differ")
    return tuple(result)


def expands(op: str, what: str, source: Shape, target: Shape) -> None:
    """`source` broadcasts to exactly `target`."""
    offset = len(target) - len(source)
    if offset < 0 or any(n not in (1, target[offset + i]) for i, n in enumerate(source)):
        raise ShapeError(f"{op}: {what} of shape {source} cannot be expanded to {target}")


def float_of(x: Spec) -> DType:
    """Where integers become floats: in torch's default type. Complex types stay."""
    return x.dtype if x.dtype.is_differentiable else dtypes.float32


def same(x: Spec) -> Spec:
    """A result like the operand."""
    return x if not x.weak else spec(x.shape, x.dtype)


# -- inference that many ops share -----------------------------------------------------------


def unary(
    name: str, to: str = "same", bools: bool = True, complexes: bool = True, integers: bool = True
) -> Callable[[Spec], Spec]:
    """The inference of an op on one tensor whose result has its shape. The result's dtype is the "same", or "float"
    (integers become float32), "real" or "bool". Without `bools`, `complexes` or `integers` such dtypes are refused."""

    def infer(x: Spec) -> Spec:
        tensor(name, x)
        if not integers and not (complexes and x.dtype.is_complex):
            floating(name, x)
        if not bools:
            not_bool(name, x.dtype)
        if not complexes:
            not_complex(name, x.dtype)
        if to == "same":
            return x
        return spec(x.shape, float_of(x) if to == "float" else dtypes.bool_ if to == "bool" else x.dtype.to_real())

    return infer
