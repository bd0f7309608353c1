"""From any layout to any other: right, by collectives that suffice, and not dearer than the obvious way."""

from __future__ import annotations

import random

import numpy as np
import pytest

from gt.dispatcher.planner.redistribute import nbytes_of, redistribute
from gt.layout import Layout, layout, mesh, parse, split
from tests.sharding.layouts import MESHES, drawn
from tests.sharding.simulate import moved, place, read

SHAPES = [(7,), (10, 11), (2, 3), (12, 6), (0, 4), (5, 1, 6), ()]


def kinds(source: Layout, target: Layout, shape: tuple[int, ...]) -> list[str]:
    return [s.kind for s in redistribute(source, target, shape, 8)]


@pytest.mark.parametrize("m", MESHES, ids=repr)
def test_any_two_layouts(m: object) -> None:
    rng, draws = random.Random(1), np.random.default_rng(1)
    for _ in range(60):
        shape = rng.choice(SHAPES)
        a, b = drawn(rng, m, shape), drawn(rng, m, shape)
        x = draws.normal(size=shape)
        value = moved(place(x, a, draws), b)
        assert value.layout is b
        np.testing.assert_allclose(read(value), x, rtol=1e-9, atol=1e-9, err_msg=f"{a!r} -> {b!r}")
        if not a.partial and not b.partial:
            # Never dearer than gathering everything.
            assert nbytes_of(redistribute(a, b, shape, 8)) <= nbytes_of(redistribute(a, layout(m), shape, 8))


def test_the_usual_ones() -> None:
    m = mesh(x=4)
    rows, columns, whole = split(m, (8, 8), {0: "x"}), split(m, (8, 8), {1: "x"}), layout(m)
    total = layout(m, (), {"x": "sum"})
    assert kinds(whole, rows, (8, 8)) == ["slice"]
    assert kinds(rows, whole, (8, 8)) == ["all_gather"]
    assert kinds(rows, columns, (8, 8)) == ["all_to_all"]
    assert kinds(total, whole, (8, 8)) == ["all_reduce"]
    assert kinds(total, columns, (8, 8)) == ["reduce_scatter"]
    assert kinds(whole, total, (8, 8)) == ["partial"]
    assert redistribute(rows, rows, (8, 8), 8) == ()
    assert [s.nbytes for s in redistribute(rows, whole, (8, 8), 8)] == [3 * 16 * 8]
    assert nbytes_of(redistribute(rows, columns, (8, 8), 8)) == 12 * 8
    assert nbytes_of(redistribute(total, whole, (8, 8), 8)) == 2 * 48 * 8
    assert nbytes_of(redistribute(total, rows, (8, 8), 8)) == 48 * 8


def test_nested_splits_move_only_what_they_must() -> None:
    m = mesh(x=2, y=2)
    both, major, minor = (split(m, (100,), {0: a}) for a in (("x", "y"), ("x",), ("y",)))
    assert kinds(major, both, (100,)) == ["slice"]
    assert kinds(both, major, (100,)) == ["all_gather"]
    assert redistribute(both, major, (100,), 8)[0].axes == ("y",)
    assert nbytes_of(redistribute(both, minor, (100,), 8)) <= 50 * 8
    assert kinds(both, split(m, (100,), {0: ("y", "x")}), (100,)) == ["permute"]


def test_a_fused_projection() -> None:
    """Heads of q, k and v together, from a plain split: less than all of it."""
    m = mesh(x=4)
    plain, fused = split(m, (24,), {0: "x"}), parse("[(3)(8@x)]", m)
    assert nbytes_of(redistribute(plain, fused, (24,), 4)) < nbytes_of(redistribute(plain, layout(m), (24,), 4))


@pytest.mark.parametrize("seed", range(8))
def test_between_meshes(seed: int) -> None:
    """Also between different workers, and different numbers of them."""
    rng, draws = random.Random(seed), np.random.default_rng(seed)
    meshes = [*MESHES, mesh([5, 6, 7], x=3), mesh([2], x=1)]
    for _ in range(20):
        shape = rng.choice(SHAPES)
        a, b = (drawn(rng, rng.choice(meshes), shape) for _ in range(2))
        x = draws.normal(size=shape)
        value = moved(place(x, a, draws), b)
        assert value.layout is b
        np.testing.assert_allclose(read(value), x, rtol=1e-9, atol=1e-9)
    far = redistribute(layout(mesh([0], x=1)), layout(mesh([1], x=1)), (3,), 8)
    assert [(s.kind, s.nbytes) for s in far] == [("permute", 24)]
