"""Meshes and layouts: the one split formula, the one way to write a layout, and which worker holds what."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from gt.errors import ArgumentError, ShapeError
from gt.layout import (
    Layout,
    Mesh,
    Pieces,
    bounds,
    canonical,
    cut,
    held,
    joined,
    largest,
    layout,
    local_shape,
    mesh,
    parse,
    shards,
    split,
    whole,
)

MESHES = [mesh(x=2), mesh(x=3), mesh(x=8), mesh(x=2, y=2), mesh(x=3, y=2), mesh(x=2, y=1, z=3)]


def positions(pieces: Pieces, n: int, m: Mesh, at: tuple[int, ...]) -> list[int]:
    return [i for a, b in held(pieces, n, m, at) for i in range(a, b)]


def drawn(rng: random.Random, m: Mesh, n: int) -> Pieces:
    """Some pieces of a dimension of size n, in no particular form."""
    sizes, rest = [], n
    while rest > 1 and rng.random() < 0.6:
        k = rng.choice([d for d in range(1, rest + 1) if rest % d == 0])
        sizes.append(k)
        rest //= k
    sizes.append(rest)
    axes = rng.sample(list(m.sizes), len(m.sizes))
    pieces = []
    for k in sizes:
        take = rng.randrange(len(axes) + 1)
        pieces.append((k, tuple(axes[:take])))
        axes = axes[take:]
    return tuple(pieces)


def plain(pieces: Pieces, m: Mesh, at: tuple[int, ...]) -> list[int]:
    """The positions held, straight from the definition: mixed radix, each digit in its own bounds."""
    ranges = [range(*bounds(m.index(axes, at), k, m.size(axes))) for k, axes in pieces]
    found = []
    for digits in itertools.product(*ranges):
        i = 0
        for d, (k, _) in zip(digits, pieces, strict=True):
            i = i * k + d
        found.append(i)
    return found


def test_a_minor_axis_refines_for_every_size() -> None:
    """Law 1: a shard over (x, y) is within the shard over x, for all sizes, also below that of the mesh."""
    for n, p, q in itertools.product(range(40), (1, 2, 3, 5, 8), (1, 2, 3, 4)):
        for i in range(p):
            lo, hi = bounds(i, n, p)
            parts = [bounds(i * q + j, n, p * q) for j in range(q)]
            assert parts[0][0] == lo
            assert parts[-1][1] == hi
            assert all(a[1] == b[0] for a, b in itertools.pairwise(parts))


def test_sizes_of_shards_differ_by_at_most_one() -> None:
    sizes = [b - a for a, b in (bounds(i, 100, 8) for i in range(8))]
    assert sum(sizes) == 100
    assert set(sizes) == {12, 13}


@pytest.mark.parametrize("seed", range(20))
def test_the_canonical_form_holds_the_same(seed: int) -> None:
    rng = random.Random(seed)
    for m in MESHES:
        for n in (1, 2, 5, 7, 10, 12, 24, 36):
            pieces = drawn(rng, m, n)
            form = canonical(pieces, m)
            assert canonical(form, m) == form
            for at in m.coordinates:
                assert positions(form, n, m, at) == plain(pieces, m, at), (pieces, form)


def test_equal_layouts_are_one_object() -> None:
    m = mesh(x=2, y=2)
    one = layout(m, [((12, ("x", "y")),)])
    assert layout(m, [((2, ("x",)), (6, ("y",)))]) is one
    assert layout(m, [((2, ("x",)), (2, ("y",)), (3, ()))]) is one
    assert split(m, (12, 5), {0: ("x", "y")}) is one
    assert split(m, (12, 5), {0: ("y", "x")}) is not one
    assert layout(m, [(), ((4, ()), (2, ()))]) is layout(m)
    assert layout(mesh(x=1, y=2), [((4, ("x",)),)]) is layout(mesh(x=1, y=2))
    assert layout(m, [((0, ("x",)),)]) is layout(m)  # nothing is nowhere
    assert mesh(x=2, y=2) is m
    assert mesh([4, 5, 6, 7], x=2, y=2) is not m


@pytest.mark.parametrize("seed", range(10))
def test_every_element_is_held_once_per_replica(seed: int) -> None:
    rng = random.Random(seed)
    for m in MESHES:
        shape = (rng.choice([0, 1, 3, 7]), rng.choice([5, 10, 12]))
        d = rng.randrange(2)
        one = layout(m, [drawn(rng, m, n) if k == d else () for k, n in enumerate(shape)])
        replicas = len(m.workers) // m.size(one.axes())
        count: Counter[tuple[int, ...]] = Counter()
        for (_, dims), at in zip(shards(one, shape).items(), m.coordinates, strict=True):
            sets = [[i for a, b in runs for i in range(a, b)] for runs in dims]
            assert tuple(map(len, sets)) == local_shape(one, shape, at)
            assert len(sets[0]) * len(sets[1]) <= largest(one, shape)
            count.update(itertools.product(*sets))
        assert all(count[i] == replicas for i in itertools.product(*map(range, shape)))


def test_uneven_small_and_nested() -> None:
    m = mesh(x=2, y=3)
    sizes = [local_shape(split(m, (4,), {0: ("x", "y")}), (4,), at)[0] for at in m.coordinates]
    assert sizes == [0, 1, 1, 0, 1, 1]
    assert shards(split(mesh(x=3), (2,), {0: "x"}), (2,)) == {0: ((),), 1: (((0, 1),),), 2: (((1, 2),),)}
    fused = parse("[(3)(8@x)]", mesh(x=2))
    assert shards(fused, (24,))[1] == (((4, 8), (12, 16), (20, 24)),)


def test_text() -> None:
    m = mesh(x=2, y=2, z=2)
    for text in ["[]", "[100@x . (3)(512@y)] sum z", "[. 7@y,x]", "[] max x,y", "[(4@x)(6@y) . 5@z]"]:
        assert repr(parse(text, m)) == text
    for text in ["100@x", "[100@]", "[a]", "[] sum", "[100@x/y]"]:
        with pytest.raises(ArgumentError, match="layout"):
            parse(text, m)


def test_invalid_layouts_are_refused() -> None:
    m = mesh(x=2, y=2)
    with pytest.raises(ArgumentError, match="'x' is used twice"):
        split(m, (4, 4), {0: "x", 1: "x"})
    with pytest.raises(ArgumentError, match="'x' is used twice"):
        split(m, (4, 4), {0: "x"}, {"x": "sum"})
    with pytest.raises(ArgumentError, match="no axis 'w'"):
        split(m, (4,), {0: "w"})
    with pytest.raises(ArgumentError, match="one kind"):
        layout(m, (), {"x": "sum", "y": "max"})
    with pytest.raises(ArgumentError, match="one kind"):
        layout(m, (), {"x": "mean"})
    with pytest.raises(ShapeError, match="no dimensions"):
        split(m, (4,), {1: "x"})
    with pytest.raises(ShapeError, match="does not fit a tensor"):
        shards(split(m, (4,), {0: "x"}), (5,))
    with pytest.raises(ArgumentError, match="need 2 different workers"):
        mesh([0, 0], x=2)


@pytest.mark.parametrize("seed", range(20))
def test_cutting_and_joining(seed: int) -> None:
    """Factors of a dimension, where bounds allow, hold exactly what the dimension holds."""
    rng = random.Random(seed)
    cuts = 0
    for m in MESHES:
        for sizes in [(2, 6), (4, 3), (3, 2, 4), (1, 8), (6, 1, 2)]:
            n = sizes[0] * sizes[1] * (sizes[2] if len(sizes) > 2 else 1)
            pieces = canonical(drawn(rng, m, n), m)
            parts = cut(pieces, sizes, m)
            if parts is None:
                continue
            cuts += 1
            assert joined(zip(sizes, parts, strict=True), m) == pieces
    assert cuts > 5


def test_whole_is_a_mesh_of_one() -> None:
    assert whole(3) is whole(3)
    assert whole(3).is_whole
    assert isinstance(whole(3), Layout)
    assert shards(whole(3), (2, 5)) == {3: (((0, 2),), ((0, 5),))}
