"""The language of rules, which ops have one, which ways are tried; and that mistakes planted in a rule are caught.

Whether the rules of all ops are right is tested in test_ways.py.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gt.dispatcher.planner.ways import all_splits, all_ways, use_of
from gt.errors import ArgumentError, ProgramError
from gt.layout import canonical, layout, mesh, split
from gt.ops import TABLE, Op
from gt.ops.record import ops
from gt.ops.sharding import bind, parse
from gt.program import as_tuple
from tests.sharding.cases import OPS, bound_of, large, uses
from tests.sharding.checking import Example, mistakes
from tests.sharding.layouts import MESHES
from tests.sharding.simulate import spec_of

# -- planted mistakes ------------------------------------------------------------------------


def found(op: Op, *args: Any, **attrs: Any) -> list[str]:
    """What the tests of all ways would say of a record."""
    rng, example = random.Random(1), Example(op, args, attrs)
    return [line for m in MESHES for line in mistakes(example, m, rng)]


def test_a_bias_that_is_added_n_times_is_caught() -> None:
    rng = np.random.default_rng(0)
    x, w, b = rng.normal(size=(7, 10)), rng.normal(size=(3, 10)), rng.normal(size=3)
    assert found(TABLE["linear"], x, w, b) == []
    assert found(replace(TABLE["linear"], linear=((0,), (1,))), x, w, b)
    assert found(TABLE["add"], x, b[:1]) == []
    assert found(replace(TABLE["add"], linear=((0,), (1,))), x, b[:1])


def test_a_mean_of_means_is_caught() -> None:
    x = np.random.default_rng(0).normal(size=(7, 10))
    attrs: dict[str, Any] = {"dims": (0,), "keepdim": False}
    assert found(TABLE["mean"], x, **attrs) == []
    assert found(replace(TABLE["mean"], local=None), x, **attrs)

    def means(shard: Any, x: Any, **attrs: Any) -> Any:
        share = 1.0 / round(shard.sizes["a"] / shard.size("a"))
        return ops.mean(x, **attrs) * share

    assert found(replace(TABLE["mean"], local=means), x, **attrs)


def test_relu_on_a_partial_is_caught() -> None:
    x = np.random.default_rng(0).normal(size=(7, 10))
    assert found(TABLE["relu"], x) == []
    assert found(replace(TABLE["relu"], linear=((0,),)), x)


def test_an_axis_that_is_used_twice_is_caught() -> None:
    m = mesh(x=2, y=2)
    with pytest.raises(ArgumentError, match="used twice"):
        split(m, (7, 10), {0: "x", 1: "x"})
    # A rule by which the rows of both operands of a product are split together would need it.
    rng = np.random.default_rng(0)
    twice = replace(TABLE["matmul"], factors="m k, k m -> m m")
    wrong = found_or_raised(twice, rng.normal(size=(10, 7)), rng.normal(size=(7, 10)))
    assert "used twice" in wrong


def found_or_raised(op: Op, *args: Any) -> str:
    try:
        return "".join(found(op, *args))
    except ArgumentError as e:
        return str(e)


def test_a_rule_without_its_windows_border_is_caught() -> None:
    x = np.random.default_rng(0).normal(size=(7,))
    roll = TABLE["roll"]
    assert found(roll, x, shifts=(3,), dims=(0,)) == []
    clipped = replace(roll, window=lambda x, **attrs: {"a": lambda k, lo, hi: (lo - 3, hi - 3, "zero")})
    assert found(clipped, x, shifts=(3,), dims=(0,))


# -- the language ----------------------------------------------------------------------------


def test_the_language() -> None:
    rule = parse("n (g=2 c) h~, (g o) !k v@ -> n (g o) h | c:max")
    assert rule.inputs == ((("n",), ("g", "c"), ("h",)), (("g", "o"), ("k",), ("v",)))
    assert (rule.whole, rule.at, rule.windows, rule.kinds, rule.given) == (
        {"k"}, {"v"}, {(0, 2)}, {"c": "max"}, {"g": 2}
    )  # fmt: skip
    for text in ["a b", "a -> b c?", "a ->, %"]:
        with pytest.raises(ProgramError, match="rule"):
            parse(text)


def test_a_rule_that_does_not_fit_its_op_is_refused() -> None:
    x = spec_of(np.zeros((4, 6)))
    for factors, said in [
        ("a -> a", "does not fit"),
        ("a a -> a a", "gives a size 4"),
        ("(a=5 b) c -> (a b) c", "needs a dimension"),
        ("(a b) c -> (a b) c", "does not determine"),
        ("a b, a -> a b", "does not fit"),
    ]:
        with pytest.raises(ProgramError, match=said):
            bind(replace(TABLE["relu"], factors=factors), [x], [x], {})


def test_every_way_is_tried() -> None:
    """Both axes in both orders and strided, partial sums, and nothing: what a matmul allows on two axes."""
    a, b = spec_of(np.zeros((7, 10))), spec_of(np.zeros((10, 11)))
    every = list(all_ways(use_of(TABLE["matmul"], [a, b], {}), mesh(x=2, y=2)))
    texts = {repr(way) for way in every}
    assert {
        "[7@x] [] -> [7@x]",
        "[. 10@x,y] [10@x,y] -> [] sum x,y",
        "[. 10@y,x] [10@y,x] -> [] sum x,y",
        "[. (2)(5@x)] [(2)(5@x)] -> [] sum x",
        "[. (5)(2@y,x)] [(5)(2@y,x)] -> [] sum x,y",
        "[. (5@x)(2@y)] [(5@x)(2@y)] -> [] sum x,y",
        "[. (5@y)(2)] [(5@y)(2)] -> [] sum y",
        "[7@x] [. 11@y] -> [7@x 11@y]",
        "[7@y] sum x [] -> [7@y] sum x",
        "[] [. 11@y] sum x -> [. 11@y] sum x",
    } <= texts
    assert len(texts) == len(every)
    once = {canonical(s["k"], mesh(x=2, y=3)) for s in all_splits({"k": ["x", "y"]}, {"k": 10}, 2)}
    assert len(once) == 2 + 2 * 6 - 1  # in one piece; at 2 and at 5; (2@x)(5@y) is 10@x,y


def test_windows_are_fetched_or_cut() -> None:
    x, w = spec_of(np.zeros((3, 4, 11))), spec_of(np.zeros((5, 4, 3)))
    attrs: dict[str, Any] = {"stride": (1,), "padding": (1,), "dilation": (1,), "groups": 1}
    every = [
        f"{way.wants[0]!r} -> {way.gives[0]!r}" for way in all_ways(use_of(TABLE["conv"], [x, w], attrs), mesh(x=2))
    ]
    assert {"[. . 11@x] -> [. . 11@x]", "[] -> [. . 11@x]"} <= set(every)


def test_sizes_that_no_mesh_divides_are_tried_with_every_op() -> None:
    without, never_small = set(), set()
    for op in OPS:
        bounds = [bound_of(op, sample) for sample in uses(op)]
        free = [b.sizes[f] for b in bounds for f in b.splittable()]
        if free and not any(large(op, sample) for sample in uses(op)):
            without.add(op.name)
        if free and min(free) >= 4:
            never_small.add(op.name)
    assert without == set()
    assert never_small == {"arange", "randint"}  # of 5 and more, below 2x3


def test_indices_are_not_checked_before_they_are_whole() -> None:
    """A part of an index need not be in range, though the index is."""
    for op in (op for op in OPS if op.indices is not None):
        for args, attrs in uses(op):
            specs = [spec_of(a) for a in args]
            for way in all_ways(use_of(op, specs, attrs), mesh(x=2)):
                wants = [way.wants[k] for k in op.indices(*specs, **attrs)]
                assert not any(one is not None and one.partial for one in wants), f"{op.name} {way.wants}"


def test_rules_are_everywhere_they_can_be() -> None:
    """Ops without any rule are few, and named here: each needs all of its operands on every worker."""
    without = set()
    for op in OPS:
        args, attrs = op.samples(np.random.default_rng(0))[0]
        specs = [spec_of(a) for a in args]
        bound = bind(op, specs, as_tuple(op.infer(*specs, **attrs)), attrs)
        if not bound.covered and op.parts is None and op.compose is None:
            without.add(op.name)
    assert without == {"data", "flatnonzero", "lexsort", "linalg_check", "poisson", "randperm"}


def test_a_whole_layout_needs_nothing() -> None:
    m = mesh(x=2)
    assert layout(m).is_whole
    x = spec_of(np.zeros((4, 6)))
    assert next(all_ways(use_of(TABLE["relu"], [x], {}), m)).wants == (layout(m),)
