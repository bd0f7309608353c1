"""Meshes and layouts: how a tensor is spread over workers, and which worker holds what.

A mesh is a named grid of workers. A layout says for each dimension of a tensor how it is split: as a row-major product
of pieces `(size, axes)`, each split over some axes of the mesh, major axis first. It also says over which axes the
tensor is partial: its value is a sum, max or min over the workers of the axis that has not been taken yet. Along an
axis that a layout does not name, the tensor is replicated.

Law 1: shard i of p of n elements is [i * n // p, (i + 1) * n // p). No other formula splits anything. With it, for
       every size, a split over (x, y) refines the split over x: adding a minor axis is a local slice, and dropping it
       is an all-gather over that axis alone.
Law 2: an axis is used at most once in a layout, to split or as a partial axis. All partial axes are of one kind.
Law 3: equal layouts are the same object. Adjacent pieces merge where their bounds coincide, and axes of one worker and
       trailing whole dimensions are left out, so that there is one way to write a layout.

    [100@x . (3)(512@y)] sum z      100 rows over x; a whole dimension; 3 times 512, each 512 over y; a sum over z
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from weakref import WeakValueDictionary

from gt.errors import ArgumentError, ShapeError

Axes = tuple[str, ...]
Piece = tuple[int, Axes]
#: One dimension, major piece first. () is a whole dimension of any size.
Pieces = tuple[Piece, ...]
#: Positions [start, stop) along one dimension, in order, none empty.
Runs = tuple[tuple[int, int], ...]
Coordinate = tuple[int, ...]

KINDS = ("sum", "max", "min")


def bounds(i: int, n: int, p: int) -> tuple[int, int]:
    """The positions of shard i of p of n elements: Law 1.

    >>> [bounds(i, 10, 4) for i in range(4)]
    [(0, 2), (2, 5), (5, 7), (7, 10)]
    """
    return i * n // p, (i + 1) * n // p


# -- meshes ----------------------------------------------------------------------------------


class Mesh:
    """A named grid of workers, row-major. Made by `mesh()`: equal meshes are the same object."""

    __slots__ = ("__weakref__", "_groups", "axes", "coordinates", "place", "sizes", "workers")

    def __init__(self, axes: tuple[tuple[str, int], ...], workers: tuple[int, ...]) -> None:
        self.axes = axes
        self.workers = workers
        self.sizes: dict[str, int] = dict(axes)
        self.place: dict[str, int] = {name: k for k, (name, _) in enumerate(axes)}  #: of each axis in a coordinate
        #: Of each worker, in the order of `workers`: its index along every axis.
        self.coordinates: tuple[Coordinate, ...] = tuple(itertools.product(*(range(n) for _, n in axes)))
        self._groups: dict[tuple[tuple[str, ...], Coordinate], tuple[int, ...]] = {}

    def size(self, axes: Iterable[str]) -> int:
        """The number of workers along these axes."""
        n = 1
        for a in axes:
            n *= self.sizes[a]
        return n

    def index(self, axes: Iterable[str], at: Coordinate) -> int:
        """The index of the shard that the worker at a coordinate has over these axes, the first axis major."""
        i = 0
        for a in axes:
            i = i * self.sizes[a] + at[self.place[a]]
        return i

    def group(self, axes: Iterable[str], at: Coordinate) -> tuple[int, ...]:
        """The workers that differ from a coordinate along these axes only, as positions in `workers`, in order."""
        key = (tuple(axes), at)
        found = self._groups.get(key)
        if found is None:
            free = {self.place[a] for a in key[0]}
            found = self._groups[key] = tuple(
                k
                for k, other in enumerate(self.coordinates)
                if all(i in free or a == b for i, (a, b) in enumerate(zip(at, other, strict=True)))
            )
        return found

    def __repr__(self) -> str:
        return " ".join(f"{name}={n}" for name, n in self.axes) or f"worker {self.workers[0]}"


_MESHES: WeakValueDictionary[tuple[object, ...], Mesh] = WeakValueDictionary()


def mesh(workers: Sequence[int] | None = None, **axes: int) -> Mesh:
    """The mesh of these workers (0, 1, ... by default) with these axes, the first one major.

    >>> mesh(x=2, y=3).coordinates[4], mesh(x=2) is mesh(x=2)
    ((1, 1), True)
    """
    count = math.prod(axes.values())
    names = tuple(range(count)) if workers is None else tuple(workers)
    if any(n < 1 for n in axes.values()) or len(names) != count or len(set(names)) != count:
        raise ArgumentError(f"mesh: axes {axes} need {count} different workers, got {names}")
    if any(not re.fullmatch(r"[a-zA-Z_]\w*", a) for a in axes):
        raise ArgumentError(f"mesh: axis names must be identifiers, got {list(axes)}")
    key = (tuple(axes.items()), names)
    found = _MESHES.get(key)
    return found if found is not None else _MESHES.setdefault(key, Mesh(*key))


# -- layouts ---------------------------------------------------------------------------------


class Layout:
    """How a tensor is spread over a mesh. Made by `layout()`: equal layouts are the same object."""

    __slots__ = ("__weakref__", "_axes", "dims", "kind", "mesh", "partial", "pending")

    def __init__(self, mesh: Mesh, dims: tuple[Pieces, ...], partial: tuple[tuple[str, str], ...]) -> None:
        self.mesh = mesh
        #: Whole dimensions at the end are left out: use `pieces()`.
        self.dims = dims
        self.partial = partial  #: (axis, kind), in the mesh's order
        self.pending: Axes = tuple([a for a, _ in partial])  #: the partial axes
        self.kind: str | None = partial[0][1] if partial else None  #: the reduction over them: sum, max or min
        self._axes = frozenset([a for d in dims for _, axes in d for a in axes]).union(self.pending)

    def pieces(self, dim: int) -> Pieces:
        """How a dimension is split; () if it is whole."""
        return self.dims[dim] if dim < len(self.dims) else ()

    def dim_of(self, axis: str) -> int:
        """The dimension that an axis splits; -1 if it splits none."""
        return next((d for d, pieces in enumerate(self.dims) if any(axis in over for _, over in pieces)), -1)

    @property
    def is_whole(self) -> bool:
        """Whether every worker of the mesh holds all of the tensor."""
        return not self.dims and not self.partial

    def axes(self) -> frozenset[str]:
        """The axes that the layout uses."""
        return self._axes

    def __repr__(self) -> str:
        text = f"[{' '.join(_dim_text(d) for d in self.dims)}]"
        return text + (f" {self.kind} {','.join(self.pending)}" if self.partial else "")


def _dim_text(pieces: Pieces) -> str:
    if not pieces:
        return "."
    texts = [f"{n}@{','.join(axes)}" if axes else str(n) for n, axes in pieces]
    return texts[0] if len(texts) == 1 else "".join(f"({t})" for t in texts)


_LAYOUTS: WeakValueDictionary[tuple[object, ...], Layout] = WeakValueDictionary()


def layout(mesh: Mesh, dims: Iterable[Pieces] = (), partial: Mapping[str, str] | None = None) -> Layout:
    """The layout of these pieces per dimension, and these partial axes with their kinds.

    >>> layout(mesh(x=2, y=2), [((2, ("x",)), (6, ("y",)))])
    [12@x,y]
    """
    try:
        merged = [canonical(d, mesh) if d else () for d in dims]
    except KeyError as e:
        raise ArgumentError(f"layout: the mesh {mesh!r} has no axis {e}") from None
    while merged and not merged[-1]:
        merged.pop()
    kinds = partial or {}
    waiting = tuple([(a, kinds[a]) for a, n in mesh.axes if a in kinds and n > 1]) if kinds else ()
    key = (mesh, tuple(merged), waiting)
    found = _LAYOUTS.get(key)
    if found is None:
        _check(mesh, key[1], kinds)
        found = _LAYOUTS.setdefault(key, Layout(*key))
    return found


def _check(mesh: Mesh, dims: tuple[Pieces, ...], kinds: Mapping[str, str]) -> None:
    used = [a for d in dims for _, axes in d for a in axes] + list(kinds)
    for a in used:
        if a not in mesh.sizes:
            raise ArgumentError(f"layout: the mesh {mesh!r} has no axis '{a}'")
        if used.count(a) > 1:
            raise ArgumentError(f"layout: axis {a!r} is used twice; it can split one dimension, or be partial")
    if len(set(kinds.values())) > 1 or not set(kinds.values()) <= set(KINDS):
        raise ArgumentError(f"layout: partial axes must all be of one kind ({', '.join(KINDS)}), got {dict(kinds)}")


def canonical(pieces: Iterable[Piece], mesh: Mesh) -> Pieces:
    """The same pieces, merged where possible: Law 3.

    >>> canonical([(4, ("x",)), (3, ())], mesh(x=2))
    ((12, ('x',)),)
    """
    out: list[Piece] = []
    for n, given in pieces:
        if n == 0:
            return ()
        axes = tuple([a for a in given if mesh.sizes[a] != 1])
        if n == 1 and not axes:
            continue
        if out:
            k, major = out[-1]
            p = mesh.size(major)
            if (not axes and k % p == 0) or (axes and k == p):
                out[-1] = (k * n, major + axes)
                continue
        out.append((n, axes))
    if len(out) == 1:
        return tuple(out) if out[0][1] else ()
    return tuple(out) if any(axes for _, axes in out) else ()


def whole(worker: int) -> Layout:
    """The layout of a tensor that one worker holds.

    >>> whole(3).mesh.workers
    (3,)
    """
    return layout(mesh([worker]))


def split(
    mesh: Mesh, shape: Sequence[int], dims: Mapping[int, str | Axes], partial: Mapping[str, str] | None = None
) -> Layout:
    """The layout of a tensor of which these dimensions are split over these axes.

    >>> split(mesh(x=4, y=2), (100, 7, 6), {0: "x", 2: ("y",)})
    [100@x . 6@y]
    """
    over = {d: (a,) if isinstance(a, str) else tuple(a) for d, a in dims.items()}
    if any(not 0 <= d < len(shape) for d in over):
        raise ShapeError(f"layout: a tensor of shape {tuple(shape)} has no dimensions {sorted(over)}")
    return layout(mesh, [((n, over.get(d, ())),) for d, n in enumerate(shape)], partial)


def parse(text: str, mesh: Mesh) -> Layout:
    """The layout that prints as `text`.

    >>> parse("[100@x . (3)(512@y)] sum z", mesh(x=2, y=2, z=2)).dims[2]
    ((3, ()), (512, ('y',)))
    """
    found = re.fullmatch(r"\[([^\]]*)\](?: (\w+) ([\w,]+))?", text)
    if found is None:
        raise ArgumentError(f"layout: expected text like '[100@x . (3)(512@y)] sum z', got {text!r}")
    dims = []
    for token in found[1].split():
        pieces = re.findall(r"(\d+)(?:@([\w,]+))?", token)
        if token != "." and re.sub(r"[()]|\d+(?:@[\w,]+)?", "", token):
            raise ArgumentError(f"layout: expected a dimension like '.', '100@x' or '(3)(512@y)', got {token!r}")
        dims.append(tuple((int(n), tuple(axes.split(",")) if axes else ()) for n, axes in pieces))
    return layout(mesh, dims, dict.fromkeys(found[3].split(","), found[2]) if found[2] else None)


# -- who holds what --------------------------------------------------------------------------


def held(pieces: Pieces, n: int, mesh: Mesh, at: Coordinate) -> Runs:
    """The positions of a dimension of size n that the worker at a coordinate holds.

    >>> held(((2, ()), (5, ("x",))), 10, mesh(x=2), (1,))
    ((2, 5), (7, 10))
    """
    if not pieces:
        return ((0, n),) if n else ()
    runs = [(0, 1)]
    for k, axes in pieces:
        lo, hi = bounds(mesh.index(axes, at), k, mesh.size(axes))
        if lo == hi:
            return ()
        if hi - lo == k:
            runs = [(a * k, b * k) for a, b in runs]
        else:
            runs = [(i * k + lo, i * k + hi) for a, b in runs for i in range(a, b)]
    return tuple(runs)


def local_size(pieces: Pieces, n: int, mesh: Mesh, at: Coordinate) -> int:
    """The number of positions of a dimension that the worker at a coordinate holds."""
    size = 1 if pieces else n
    for k, axes in pieces:
        lo, hi = bounds(mesh.index(axes, at), k, mesh.size(axes))
        size *= hi - lo
    return size


def local_shape(layout: Layout, shape: Sequence[int], at: Coordinate) -> tuple[int, ...]:
    """The shape of the shard at a coordinate.

    >>> m = mesh(x=3)
    >>> [local_shape(split(m, (7,), {0: "x"}), (7,), at) for at in m.coordinates]
    [(2,), (2,), (3,)]
    """
    return tuple(local_size(layout.pieces(d), n, layout.mesh, at) for d, n in enumerate(shape))


def shards(layout: Layout, shape: Sequence[int]) -> dict[int, tuple[Runs, ...]]:
    """The positions of each dimension that each worker holds.

    >>> shards(split(mesh(x=2), (5, 3), {0: "x"}), (5, 3))
    {0: (((0, 2),), ((0, 3),)), 1: (((2, 5),), ((0, 3),))}
    """
    fits(layout, shape)
    m = layout.mesh
    return {
        worker: tuple(held(layout.pieces(d), n, m, at) for d, n in enumerate(shape))
        for worker, at in zip(m.workers, m.coordinates, strict=True)
    }


def largest(layout: Layout, shape: Sequence[int]) -> int:
    """The number of elements in the largest shard.

    >>> largest(split(mesh(x=3), (7, 2), {0: "x"}), (7, 2))
    6
    """
    count = 1
    for d, n in enumerate(shape):
        pieces = layout.pieces(d)
        count *= math.prod(-(-k // layout.mesh.size(axes)) for k, axes in pieces) if pieces else n
    return count


def fits(layout: Layout, shape: Sequence[int]) -> None:
    """Raise ShapeError if a tensor of this shape cannot have the layout."""
    sizes = [math.prod(n for n, _ in d) if d else None for d in layout.dims]
    if len(sizes) > len(shape) or any(k not in (None, n) for k, n in zip(sizes, shape, strict=False)):
        raise ShapeError(f"layout: {layout!r} does not fit a tensor of shape {tuple(shape)}")


# -- pieces ----------------------------------------------------------------------------------


def cut(pieces: Pieces, sizes: Sequence[int], mesh: Mesh) -> list[Pieces] | None:
    """The pieces of a dimension, cut up among the factors of these sizes whose row-major product it is. None if a
    shard ends in the middle of a factor.

    >>> cut(((12, ("x",)),), (4, 3), mesh(x=2))
    [((4, ('x',)),), ()]
    >>> cut(((12, ("x",)),), (3, 4), mesh(x=2)) is None
    True
    """
    if not pieces:
        return [()] * len(sizes)
    rest = list(pieces)
    result: list[Pieces] = []
    for need in sizes:
        mine: list[Piece] = []
        while need > 1 and rest:
            k, axes = rest.pop(0)
            if need % k == 0:
                mine.append((k, axes))
                need //= k
                continue
            parts = _halves(k, axes, need, mesh) if k % need == 0 else None
            if parts is None:
                return None
            mine.append(parts[0])
            rest.insert(0, parts[1])
            need = 1
        if need > 1:
            return None
        result.append(tuple(mine))
    if rest and result:  # pieces of size 1 that have axes
        result[-1] += tuple(rest)
    return [canonical(p, mesh) for p in result]


def _halves(k: int, axes: Axes, major: int, mesh: Mesh) -> tuple[Piece, Piece] | None:
    """A piece of size k as (major)(k // major), if the bounds of its shards allow it."""
    if major % mesh.size(axes) == 0:
        return (major, axes), (k // major, ())
    for j in range(len(axes)):
        if mesh.size(axes[:j]) == major:
            return (major, axes[:j]), (k // major, axes[j:])
    return None


def joined(parts: Iterable[tuple[int, Pieces]], mesh: Mesh) -> Pieces:
    """The pieces of a dimension that is the row-major product of factors, given (size, pieces) of each.

    >>> joined([(4, ((4, ("x",)),)), (3, ())], mesh(x=2))
    ((12, ('x',)),)
    """
    return canonical([p for n, pieces in parts for p in (pieces or ((n, ()),))], mesh)
