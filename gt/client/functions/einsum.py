"""Einstein summation: `einsum("bij,bjk->bik", a, b)`.

The operands are contracted from left to right, two at a time, each pair by one matrix product. Letters that both
operands have are batch dimensions if they are needed later, and are summed over otherwise.
"""

from __future__ import annotations

import math
from typing import Any

from gt.client.compat.arguments import shown
from gt.client.compat.autocast import autocasts
from gt.client.functions import elementwise as ew
from gt.client.functions import reductions as red
from gt.client.functions import shapes
from gt.client.functions.diagonals import diagonal
from gt.client.functions.linalg.matrices import matmul
from gt.client.tensor import Tensor
from gt.errors import ArgumentError, ShapeError
from gt.ops.record import Autocast

__all__ = ["einsum"]

#: A letter, or the position of a dimension covered by "...", counted from the right: -1 is the last.
Label = str | int
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@autocasts(Autocast(cuda="lower"))
def einsum(*args: Any) -> Tensor:
    """The sum of products of the operands' elements, given as an equation in Einstein notation.

    >>> import gt
    >>> gt.einsum("ij,jk->ik", gt.ones(2, 3), gt.ones(3, 2))
    tensor([[3., 3.],
            [3., 3.]])
    """
    equation, operands = _equation(args)
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(operands):
        raise ArgumentError(f"einsum: {equation!r} expects {len(terms)} operands, got {len(operands)}")
    found = [_labels(equation, term, x) for term, x in zip(terms, operands, strict=True)]
    sizes: dict[Label, int] = {}
    for labels, x in zip(found, operands, strict=True):
        for k, n in zip(labels, x.shape, strict=True):
            have = sizes.get(k, 1)
            if n != have and 1 not in (n, have):
                what = f"{k!r}" if isinstance(k, str) else "a dimension of '...'"
                raise ShapeError(f"einsum: {equation!r}: {what} has sizes {have} and {n}")
            sizes[k] = max(n, have) if 0 not in (n, have) else 0
    out = _output(equation, right if arrow else None, found, sizes)
    pairs = [_once(x, labels) for x, labels in zip(operands, found, strict=True)]
    value, labels = pairs[0]
    for i, (x, its) in enumerate(pairs[1:], 1):
        later = {k for _, more in pairs[i + 1 :] for k in more}
        value, labels = _join(value, labels, x, its, later | set(out))
    value, labels = _sum_out(value, labels, set(out))
    order = [labels.index(k) for k in out if k in labels]
    if order != list(range(len(order))):
        value = shapes.permute(value, *order)
    return value


def _equation(args: tuple[Any, ...]) -> tuple[str, list[Any]]:
    """The equation and the operands. They may be given as operand, list of numbers, operand, list of numbers, ..."""
    if not args:
        raise ArgumentError(
            "einsum: expected an equation and its operands, as in einsum('ij,jk->ik', a, b); got no arguments"
        )
    if isinstance(args[0], str):
        rest = args[1:]
        several = len(rest) == 1 and isinstance(rest[0], (list, tuple))
        return args[0].replace(" ", ""), list(rest[0] if several else rest)
    terms = [_term(sub) for sub in args[1::2]]
    equation = ",".join(terms)
    if len(args) % 2:
        equation += "->" + _term(args[-1])
    return equation, list(args[0 : len(args) - len(args) % 2 : 2])


def _term(numbers: Any) -> str:
    try:
        return "".join("..." if k is Ellipsis else _LETTERS[k] for k in numbers)
    except (TypeError, IndexError):
        raise ArgumentError(f"einsum: subscripts must be ints from 0 to 51 or ..., got {shown(numbers)}") from None


def _labels(equation: str, term: str, x: Any) -> list[Label]:
    before, dots, after = term.partition("...")
    for c in before + after:
        if c not in _LETTERS:
            raise ArgumentError(f"einsum: {equation!r}: {c!r} is not a letter")
    free = x.ndim - len(before) - len(after)
    if free < 0 or (free and not dots):
        raise ShapeError(f"einsum: {equation!r}: {term!r} does not fit an operand of shape {x.shape}")
    return [*before, *range(-free, 0), *after] if dots else list(term)


def _output(equation: str, right: str | None, found: list[list[Label]], sizes: dict[Label, int]) -> list[Label]:
    dots = sorted(k for k in sizes if isinstance(k, int))
    if right is None:
        every = [k for labels in found for k in labels if isinstance(k, str)]
        return [*dots, *sorted(k for k in set(every) if every.count(k) == 1)]
    before, there, after = right.partition("...")
    for c in before + after:
        if c not in sizes:
            raise ArgumentError(f"einsum: {equation!r}: {c!r} is in the output but in no operand")
        if right.count(c) > 1:
            raise ArgumentError(f"einsum: {equation!r}: {c!r} is in the output twice")
    return [*before, *(dots if there else []), *after]


def _once(x: Any, labels: list[Label]) -> tuple[Any, list[Label]]:
    """Replace dimensions with the same letter by their diagonal."""
    labels = list(labels)
    for k in dict.fromkeys(labels):
        while labels.count(k) > 1:
            i = labels.index(k)
            j = labels.index(k, i + 1)
            if x.shape[i] != x.shape[j]:
                raise ShapeError(f"einsum: {k!r} has sizes {x.shape[i]} and {x.shape[j]} in one operand {x.shape}")
            x = diagonal(x, 0, i, j)
            labels = [*labels[:i], *labels[i + 1 : j], *labels[j + 1 :], k]
    return x, labels


def _sum_out(x: Any, labels: list[Label], keep: set[Label]) -> tuple[Any, list[Label]]:
    gone = [i for i, k in enumerate(labels) if k not in keep]
    if not gone:
        return x, labels
    return red.sum(x, gone), [k for k in labels if k in keep]


def _drop(x: Any, labels: list[Label], gone: set[Label]) -> tuple[Any, list[Label]]:
    """Remove dimensions of size 1."""
    if gone.isdisjoint(labels):
        return x, labels
    shape = [n for n, k in zip(x.shape, labels, strict=True) if k not in gone]
    return shapes.reshape(x, shape), [k for k in labels if k not in gone]


def _join(a: Any, la: list[Label], b: Any, lb: list[Label], keep: set[Label]) -> tuple[Any, list[Label]]:
    """Contract two operands into one, with the letters that are still needed."""
    of_a, of_b = dict(zip(la, a.shape, strict=True)), dict(zip(lb, b.shape, strict=True))
    # A dimension of size 1 broadcasts against the other operand's, so it can be removed.
    a, la = _drop(a, la, {k for k in la if k in of_b and of_a[k] == 1 != of_b[k]})
    b, lb = _drop(b, lb, {k for k in lb if k in of_a and of_b[k] == 1 != of_a[k]})
    a, la = _sum_out(a, la, keep | set(lb))
    b, lb = _sum_out(b, lb, keep | set(la))
    inside = [k for k in la if k in lb and k not in keep]
    batch = [k for k in la if k in lb and k in keep]
    rows, columns = [k for k in la if k not in lb], [k for k in lb if k not in la]
    labels = [*batch, *rows, *columns]
    sizes = {**dict(zip(la, a.shape, strict=True)), **dict(zip(lb, b.shape, strict=True))}
    a, b = _arrange(a, la, batch, rows, inside), _arrange(b, lb, batch, inside, columns)
    made = matmul(a, b) if inside else ew.mul(a, b)  # (..., rows, 1) * (..., 1, columns)
    shape = tuple(sizes[k] for k in labels)
    return made if made.shape == shape else shapes.reshape(made, shape), labels


def _arrange(x: Any, labels: list[Label], batch: list[Label], first: list[Label], second: list[Label]) -> Any:
    """Reshape to a batch of matrices: (batch..., product of first, product of second)."""
    order = [labels.index(k) for k in (*batch, *first, *second)]
    if order != list(range(len(order))):
        x = shapes.permute(x, *order)
    n, m = len(batch), len(first)
    shape = (*x.shape[:n], math.prod(x.shape[n : n + m]), math.prod(x.shape[n + m :]))
    return x if x.shape == shape else shapes.reshape(x, shape)
