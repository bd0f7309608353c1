"""The language of sharding rules: which dimensions of operands and results belong together.

A rule names each dimension of every operand and result by a factor. Whoever splits a factor splits all dimensions
of that name alike, and the op runs on the shards by itself.

    m k, k n -> m n         k is in operands only: contracted, each shard gives a partial sum
    a b -> a | b:max        ... or a partial max
    1                       a dimension of size one, never split
    !k                      k must be whole
    (h d)                   one dimension, row-major product of two factors; (h=3 d) where sizes do not tell
    v@ d, i -> i d          the shard is told where its part of v starts: v is split into contiguous parts
    n c h~, o c !k -> n o h this dimension of the operand is a window of the result's factor h (Op.window)
    b ... -> b ...          all further dimensions must be whole

A factor of results only is created: free to split. `bind` puts a rule together with the sizes of one use of an op.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from gt.dtypes import BOOL, INT, DType
from gt.errors import ProgramError
from gt.ops.record import TABLE, Op, op
from gt.program import Spec

Dim = tuple[str, ...]  #: the factors of one dimension, major first; () is a dimension of size one
_TOKEN = re.compile(r"\(([^()]*)\)|(\S+)")
_FACTOR = re.compile(r"(!?)([a-zA-Z]\w*)([@~]?)(?:=(\d+))?")


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule as it is written."""

    inputs: tuple[tuple[Dim, ...], ...]
    outputs: tuple[tuple[Dim, ...], ...]
    whole: frozenset[str]  #: never split
    at: frozenset[str]  #: split into contiguous parts, and the shard asks where its part is
    windows: frozenset[tuple[int, int]]  #: (operand, dimension)
    kinds: dict[str, str]  #: how a contracted factor is reduced, where not by a sum
    given: dict[str, int]  #: sizes that the rule itself says


@lru_cache(4096)
def parse(text: str) -> Rule:
    """The rule that a text says."""
    body, _, tail = text.partition("|")
    left, arrow, right = body.partition("->")
    if not arrow:
        raise ProgramError(f"rule {text!r}: expected an arrow")
    whole: set[str] = set()
    at: set[str] = set()
    windows: set[tuple[int, int]] = set()
    given: dict[str, int] = {}
    sides = []
    for side in (left, right):
        values = []
        for k, value in enumerate(side.split(",")):
            dims: list[Dim] = []
            for group, single in _TOKEN.findall(value):
                names = []
                for word in (group or single).split():
                    found = _FACTOR.fullmatch(word)
                    if found is None and word != "1":
                        raise ProgramError(f"rule {text!r}: {word!r} is not a factor")
                    if found is None:
                        continue
                    names.append(found[2])
                    if found[1]:
                        whole.add(found[2])
                    if found[3] == "@":
                        at.add(found[2])
                    if found[3] == "~":
                        windows.add((k, len(dims)))
                    if found[4]:
                        given[found[2]] = int(found[4])
                dims.append(tuple(names))
            values.append(tuple(dims))
        sides.append(tuple(values))
    kinds = dict(pair.split(":") for pair in tail.split())
    return Rule(sides[0], sides[1], frozenset(whole), frozenset(at), frozenset(windows), kinds, given)


class Bound:
    """A rule and the sizes of its factors in one use of an op."""

    __slots__ = (
        "_contracted",
        "contiguous",
        "covered",
        "inputs",
        "logical",
        "merged",
        "outputs",
        "rule",
        "sizes",
        "whole",
    )

    def __init__(
        self, rule: Rule, outputs: tuple[tuple[Dim, ...], ...], sizes: dict[str, int], logical: tuple[bool, ...],
        covered: bool, merged: str | None,
    ) -> None:  # fmt: skip
        self.rule = rule
        self.inputs = rule.inputs
        self.outputs = outputs  #: one per result
        self.sizes = sizes
        self.logical = logical  #: of each result: its type is bool, and a sum of shards means whether one is true
        self.covered = covered  #: whether the op has a rule; without one everything is whole
        self.merged = merged  #: the factor that may be split in two phases: Op.merge
        mine = {merged} if merged is not None else set()
        self.whole = rule.whole - mine  #: the factors that are never split
        #: The factors of which every shard has one range.
        self.contiguous = rule.at.union([f for k, d in rule.windows for f in rule.inputs[k][d]], mine)
        read = {f for value in rule.inputs for dim in value for f in dim}
        self._contracted = [f for f in sizes if f in read and not all(has(value, f) for value in outputs)]

    def contracted(self) -> list[str]:
        """The factors that some result does not have, though operands do."""
        return self._contracted

    def kind(self, factor: str) -> str:
        return self.rule.kinds.get(factor, "sum")

    def splittable(self) -> list[str]:
        """The factors that may be split, in the order of the rule."""
        return [f for f in self.sizes if f not in self.whole and self.sizes[f] > 1]


def has(value: tuple[Dim, ...], factor: str) -> bool:
    """Whether an operand or result has a dimension of this factor."""
    for dim in value:  # asked so often that a generator would cost too much
        if factor in dim:
            return True
    return False


def bind(op: Op, specs: Sequence[Spec], results: Sequence[Spec], attrs: dict[str, Any]) -> Bound:
    """The rule of one use of an op: given its operands, results and attributes."""
    text = op.factors if isinstance(op.factors, str) or op.factors is None else op.factors(*specs, **attrs)
    rule = parse(_filled(text, specs, results) if text is not None else all_whole(specs, results))
    outputs = rule.outputs * len(results) if len(rule.outputs) == 1 else rule.outputs
    values = [*zip(rule.inputs, specs, strict=False), *zip(outputs, results, strict=False)]
    counts = (len(rule.inputs), len(outputs))
    if counts != (len(specs), len(results)) or any(len(v) != s.ndim for v, s in values):
        shapes = f"{[s.shape for s in specs]} -> {[s.shape for s in results]}"
        raise ProgramError(f"{op.name}: its rule {text!r} does not fit the shapes {shapes}")
    equations = []
    for k, (value, s) in enumerate(values):
        for d, (dim, n) in enumerate(zip(value, s.shape, strict=True)):
            if k >= len(specs) or (k, d) not in rule.windows:
                equations.append((dim, n))
    logical = tuple(s.dtype.category == BOOL for s in results)
    phases = op.merge(*specs, **attrs) if op.merge is not None else None
    sizes = _sizes(op.name, equations, rule.given)
    return Bound(rule, outputs, sizes, logical, text is not None, phases[0] if phases is not None else None)


def _filled(text: str, specs: Sequence[Spec], results: Sequence[Spec]) -> str:
    """The rule with its `...` written out."""
    if "..." not in text:
        return text
    body, bar, tail = text.partition("|")
    sides = []
    for name, side, given in zip("io", body.split("->"), (specs, results), strict=True):
        values = side.split(",")
        values = values * len(given) if len(values) == 1 else values  # one place serves all results
        for k, value in enumerate(values):
            if "..." in value:
                n = given[k].ndim - len(_TOKEN.findall(value)) + 1
                values[k] = value.replace("...", " ".join(f"!{name}{k}_{i}" for i in range(n)))
        sides.append(",".join(values))
    return "->".join(sides) + bar + tail


def _sizes(name: str, equations: list[tuple[Dim, int]], given: dict[str, int]) -> dict[str, int]:
    """What each factor must be for every dimension to be the product of its factors."""
    sizes = dict(given)
    while equations:
        rest = []
        for dim, n in equations:
            if len(dim) == 1 and dim[0] not in sizes:  # most are like this
                sizes[dim[0]] = n
                continue
            unknown = [f for f in dim if f not in sizes]
            known = math.prod(sizes[f] for f in dim if f in sizes)
            if len(unknown) > 1:
                rest.append((dim, n))
            elif not unknown:
                if known != n:
                    raise ProgramError(f"{name}: its rule gives {' '.join(dim)} size {known}, got {n}")
            else:
                sizes[unknown[0]] = n // known if known else 0
                if known and n % known:
                    raise ProgramError(f"{name}: its rule needs a dimension divisible by {known}, got size {n}")
        if len(rest) == len(equations):
            raise ProgramError(f"{name}: its rule does not determine the sizes of {' '.join(rest[0][0])}")
        equations = rest
    return sizes


# -- linear operands -------------------------------------------------------------------------


def groups(op: Op, specs: Sequence[Spec], attrs: dict[str, Any]) -> list[tuple[int, ...]]:
    """The groups of operands that may be partial sums together. A number cannot be: it would be added by everyone.
    Nor can bools, and integers so short that a part of a sum may not fit."""
    said = op.linear(*specs, **attrs) if callable(op.linear) else op.linear
    present = [tuple(k for k in group if k < len(specs)) for group in said]
    return [g for g in present if g and all(not specs[k].weak and _adds(specs[k].dtype) for k in g)]


def _adds(dtype: DType) -> bool:
    return dtype.is_differentiable or (dtype.category == INT and dtype.itemsize >= 4)


def added(op: Op, bound: Bound, specs: Sequence[Spec], attrs: dict[str, Any], factor: str) -> list[int]:
    """The operands that are added to what is contracted over a factor. They share a group with an operand
    that has the factor, and lack it themselves."""
    said = op.linear(*specs, **attrs) if callable(op.linear) else op.linear
    for group in said:
        mine = [k for k in group if k < len(specs)]
        if any(has(bound.inputs[k], factor) for k in mine):
            return [k for k in mine if not has(bound.inputs[k], factor)]
    return []


# -- rules that many ops share ---------------------------------------------------------------


def letters(n: int, skip: Iterable[str] = ()) -> list[str]:
    """So many names for factors: a, b, c, ...

    >>> letters(3)
    ['a', 'b', 'c']
    """
    if not skip and n <= 26:
        return list("abcdefghijklmnopqrstuvwxyz"[:n])
    taken = set(skip)
    names = (chr(97 + i % 26) + (str(i // 26) if i >= 26 else "") for i in range(n + len(taken) + 26))
    return [name for name in names if name not in taken][:n]


def spelled(text: str, n: int, skip: Iterable[str] = ()) -> str:
    """A rule with so many names in place of each `*`.

    >>> spelled("* k, n k -> * n", 2, "kn")
    'a b k, n k -> a b n'
    """
    return text.replace("*", " ".join(letters(n, skip)))


def all_whole(specs: Sequence[Spec], results: Sequence[Spec]) -> str:
    """The rule of an op that has none."""
    names = iter(letters(sum(s.ndim for s in (*specs, *results))))
    sides = [", ".join(" ".join("!" + next(names) for _ in s.shape) for s in side) for side in (specs, results)]
    return " -> ".join(sides)


def pointwise(*specs: Spec, **attrs: Any) -> str:
    """Operands that broadcast, and results of their common shape: each dimension is one factor."""
    n = max(s.ndim for s in specs)
    sizes = [1] * n
    for s in specs:
        for i, m in enumerate(s.shape, n - s.ndim):
            sizes[i] = m if m != 1 else sizes[i]
    names = letters(n)
    values = [
        " ".join(names[i] if m == sizes[i] != 1 else "1" for i, m in enumerate(s.shape, n - s.ndim)) for s in specs
    ]
    return f"{', '.join(values)} -> {' '.join(a if m != 1 else '1' for a, m in zip(names, sizes, strict=True))}"


#: Makes the record of an op with this rule.
pointwise_op = partial(op, factors=pointwise)


def along(*names: str) -> Any:
    """Operands and results of one shape, of which the dimensions in these attributes must be whole."""

    def rule(*specs: Spec, **attrs: Any) -> str:
        given = [attrs[name] for name in names]
        kept = {d for value in given for d in (value if isinstance(value, list | tuple) else (value,))}
        dims = " ".join(("!" if i in kept else "") + a for i, a in enumerate(letters(specs[0].ndim)))
        return f"{', '.join(dims if s.ndim else '' for s in specs)} -> {dims}"

    return rule


def beside(*names: str) -> Any:
    """One operand, of which the dimensions in these attributes must be whole and have another size in the results, or
    (keepdim false) none."""

    def rule(x: Spec, *, keepdim: bool = True, **attrs: Any) -> str:
        given = [attrs[name] for name in names]
        gone = {d for value in given for d in (value if isinstance(value, list | tuple) else (value,))}
        left = [("!" if d in gone else "") + a for d, a in enumerate(letters(x.ndim))]
        right = [f"!o{d}" if d in gone else a for d, a in enumerate(left) if keepdim or d not in gone]
        return f"{' '.join(left)} -> {' '.join(right)}"

    return rule


def leading(count: int) -> Any:
    """All but the last `count` dimensions of the first operand are batches, the same in every operand and result."""

    def rule(*specs: Spec, **attrs: Any) -> str | None:
        n = specs[0].ndim - count
        batch = " ".join(letters(n))
        if any(not s.weak and (s.ndim not in (n, n + count) or s.shape[:n] != specs[0].shape[:n]) for s in specs):
            return None
        return f"{', '.join('' if s.weak else f'{batch} ...' for s in specs)} -> {batch} ..."

    return rule


#: Makes the record of an op that is linear in its first operand, as every gradient is in g.
linear_op = partial(op, linear=((0,),))
#: Makes the record of an op on matrices: batches may be split, matrices must be whole.
matrix_op = partial(op, factors=leading(2))


def reducing(kind: str) -> Any:
    """The dimensions in `dims` are taken away, or left with size one: by a sum, max or min of shards, or ("whole")
    only where they are whole."""

    def rule(x: Spec, *, dims: Sequence[int], keepdim: bool, **attrs: Any) -> str:
        gone = set(dims)
        names = ["1" if n == 1 else a for a, n in zip(letters(x.ndim), x.shape, strict=True)]
        left = " ".join("1" if d in gone else a for d, a in enumerate(names) if keepdim or d not in gone)
        mine = [names[d] for d in dims if names[d] != "1"]
        if kind == "whole":
            names = ["!" + a if a in mine else a for a in names]
        tail = " ".join(f"{a}:{kind}" for a in mine) if kind in ("max", "min") else ""
        return f"{' '.join(names)} -> {left}" + (f" | {tail}" if tail else "")

    return rule


def created(*specs: Spec, shape: Sequence[int], **attrs: Any) -> str:
    """A tensor out of numbers: every dimension is free."""
    return f"{', ' * (len(specs) - 1)} -> {' '.join(letters(len(shape)))}"


def with_place(names: Sequence[str], dim: int, mine: str) -> str:
    """The names of dimensions, with another one at `dim`."""
    return " ".join([*names[:dim], mine, *names[dim + 1 :]])


def masked(inside: Any, x: Any) -> Any:
    """For `local`: x where a condition holds, else zero."""
    return TABLE["where"](inside, x, 0 if x.dtype.category else False)


def within(index: Any, start: int, size: int) -> tuple[Any, Any]:
    """For `local`: which elements of an index are in a shard's part, and their positions in it (0 for the others)."""
    inside = TABLE["logical_and"](TABLE["ge"](index, start), TABLE["lt"](index, start + size))
    return inside, masked(inside, index - start)


def same_shape(shard: Any, *operands: Any, shape: Sequence[int], **attrs: Any) -> Any:
    """For `local`: an op whose attribute `shape` is that of its result."""
    return shard.again(*operands, shape=shard.results[0].shape, **attrs)


def reshaping(source: Sequence[int], target: Sequence[int]) -> str:
    """The same elements in another shape: the common factors of both, major first. Where sizes of the two have no
    common factor, dimensions up to the next common bound must be whole.

    >>> reshaping((4, 6, 5), (24, 5)), reshaping((2, 6), (3, 4))
    ('a=4 b=6 c=5 -> (a=4 b=6) c=5', '(!a=2) (!c=6) -> (!b=3) (!d=4)')
    """
    if 0 in source:
        return "... -> ..."
    names = iter(letters(2 * sum(max(n, 2).bit_length() for n in (*source, *target))))
    sides: tuple[list[list[str]], list[list[str]]] = ([[] for _ in source], [[] for _ in target])
    left = [[n, k] for k, n in enumerate(source) if n > 1]
    right = [[n, k] for k, n in enumerate(target) if n > 1]
    while left and right:
        common = math.gcd(left[0][0], right[0][0])
        if common > 1:
            f = f"{next(names)}={common}"
            for queue, side in zip((left, right), sides, strict=True):
                side[queue[0][1]].append(f)
                queue[0][0] //= common
        else:  # to the next bound that both have, each side by itself
            sizes = [0, 0]
            while sizes[0] == 0 or sizes[0] != sizes[1]:
                i = int(sizes[0] > sizes[1])
                queue, side = (left, right)[i], sides[i]
                n, k = queue.pop(0)
                side[k].append(f"!{next(names)}={n}")
                sizes[i] = max(sizes[i], 1) * n
        left, right = ([q for q in queue if q[0] > 1] for queue in (left, right))
    texts = [" ".join(_compound(dim) for dim in side) for side in sides]
    return " -> ".join(texts)


def _compound(dim: list[str]) -> str:
    return "1" if not dim else dim[0] if len(dim) == 1 and dim[0][0] != "!" else f"({' '.join(dim)})"
