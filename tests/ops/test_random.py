"""Random numbers: the same everywhere, and random."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from gt.errors import ArgumentError
from gt.ops import TABLE, Op
from gt.ops.families import bits as random
from gt.ops.record import Site
from gt.program import SCALARS, as_tuple
from gt.worker.engines.torch import TorchEngine
from tests.ops.cases import NUMPY, calls_with

N = 1 << 17
SEEDS = [0, 1, 2, -1, 2**63 - 1, -(2**63), 2**64 - 1, 123456789012345]


def draw(name: str, *scalars: int, n: int = N, dtype: str = "float32", engine: Any = NUMPY) -> np.ndarray:
    return calls_with(engine, TABLE[name], scalars, {"shape": (n,), "dtype": dtype})[0]


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.corrcoef(a.astype(np.float64), b.astype(np.float64))[0, 1])


#: Five standard deviations of a mean of N independent numbers of variance 1.
FIVE_SIGMA = 5 / np.sqrt(N)


class AsOnDevice:
    """torch by its own kernels, as on a GPU. (On "cpu" numpy draws for it.)"""

    device = "cpu:0"

    def __init__(self) -> None:
        self.inner = TorchEngine("cpu")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def kernel(self, op: Op, attrs: dict[str, Any], operands: Any, inplace: bool = False) -> Any:
        site = Site(self.device, tuple(operands), as_tuple(op.infer(*operands, **attrs)))
        return op.kernels["torch"](torch, site, **attrs)


@pytest.mark.parametrize("seed", SEEDS)
def test_engines_draw_the_same_bits(seed: int, engine: Any) -> None:
    draws_what_numpy_draws(engine, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_torchs_own_kernels_draw_the_same_bits(seed: int) -> None:
    draws_what_numpy_draws(AsOnDevice(), seed)


@pytest.mark.parametrize("seed", [s for s in SEEDS if s < 2**63])  # what jax takes as a number; clients send 63 bits
def test_jax_draws_the_same_bits(seed: int, jax_engine: Any) -> None:
    draws_what_numpy_draws(jax_engine, seed)


def draws_what_numpy_draws(engine: Any, seed: int) -> None:
    for dtype in ("float32", "float64", "float16", "bfloat16"):
        ours, theirs = draw("rand", seed, n=1001, dtype=dtype), draw("rand", seed, n=1001, dtype=dtype, engine=engine)
        assert ours.tobytes() == theirs.tobytes()
        normal = draw("randn", seed, n=1001, dtype=dtype), draw("randn", seed, n=1001, dtype=dtype, engine=engine)
        narrow = dtype in ("float16", "bfloat16")
        np.testing.assert_allclose(*(x.astype(np.float64) for x in normal), rtol=1e-2 if narrow else 1e-4, atol=2e-6)
    for low, high in ((0, 10), (-5, 5), (0, 2**31 - 1), (-(2**62), 2**62 - 1), (7, 8)):
        ours = draw("randint", seed, low, high, n=1001, dtype="int64")
        assert ours.tobytes() == draw("randint", seed, low, high, n=1001, dtype="int64", engine=engine).tobytes()
        assert ours.min() >= low
        assert ours.max() < high
    x = np.ones(1001, np.float32)
    masks = [calls_with(e, TABLE["dropout"], (x, seed), {"p": 0.3})[0] for e in (NUMPY, engine)]
    assert masks[0].tobytes() == masks[1].tobytes()
    orders = [calls_with(e, TABLE["randperm"], (seed,), {"n": 1001, "dtype": "int32"})[0] for e in (NUMPY, engine)]
    assert orders[0].tobytes() == orders[1].tobytes()
    assert sorted(orders[0]) == list(range(1001))
    rates = np.linspace(0, 40, 1001)
    counts = [calls_with(e, TABLE["poisson"], (rates, seed), {})[0] for e in (NUMPY, engine)]
    assert (counts[0] != counts[1]).mean() < 0.001  # where a normal lies on the edge of two counts


def test_a_number_depends_on_its_position_alone() -> None:
    whole = draw("rand", 5, n=1000)
    np.testing.assert_array_equal(draw("rand", 5, n=10), whole[:10])
    np.testing.assert_array_equal(draw("randn", 5, n=11), draw("randn", 5, n=1000)[:11])
    matrix = calls_with(NUMPY, TABLE["rand"], (5,), {"shape": (20, 50), "dtype": "float32"})[0]
    np.testing.assert_array_equal(matrix.reshape(-1), whole)


def test_positions_beyond_one_block_have_keys_of_their_own(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    monkeypatch.setattr(random, "BLOCK", 64)
    ours = random.bits_numpy(200, 9)
    np.testing.assert_array_equal(random.bits_torch(torch, 200, 9, device).cpu().numpy(), ours)
    assert len(np.unique(ours.reshape(-1)[:192].reshape(3, 64), axis=0)) == 3


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_uniforms(seed: int, dtype: str) -> None:
    u = draw("rand", seed, dtype=dtype).astype(np.float64)
    assert u.min() >= 0
    assert u.max() < 1
    scaled = (u - 0.5) * np.sqrt(12)  # variance 1
    assert abs(scaled.mean()) < FIVE_SIGMA
    assert abs((scaled**2).mean() - 1) < FIVE_SIGMA
    counts = np.bincount((u * 256).astype(int), minlength=256)
    expected = N / 256
    chi = ((counts - expected) ** 2 / expected).sum()
    assert abs(chi - 255) < 5 * np.sqrt(2 * 255)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_uniforms_stay_below_one(dtype: str) -> None:
    u = draw("rand", 3, dtype=dtype).astype(np.float64)
    assert 0 <= u.min()
    assert u.max() < 1
    assert abs(u.mean() - 0.5) < 0.01


@pytest.mark.parametrize("seed", SEEDS)
def test_normals(seed: int) -> None:
    z = draw("randn", seed).astype(np.float64)
    assert np.isfinite(z).all()
    assert abs(z.mean()) < FIVE_SIGMA
    assert abs((z**2).mean() - 1) < FIVE_SIGMA * np.sqrt(2)
    assert abs((z**3).mean()) < FIVE_SIGMA * np.sqrt(15)
    assert abs((z**4).mean() - 3) < FIVE_SIGMA * np.sqrt(96)
    assert abs((np.abs(z) < 1).mean() - 0.682689) < FIVE_SIGMA
    assert 3.5 < np.abs(z).max() < 6.5


@pytest.mark.parametrize("name", ["rand", "randn"])
def test_neighbours_are_strangers(name: str) -> None:
    x = draw(name, 42)
    for lag in (1, 2, 3, 4, 16, 256, 1024):
        assert abs(correlation(x[:-lag], x[lag:])) < FIVE_SIGMA
    for seed in (0, 41, 43, 42 + 2**32, -42, 42 ^ (1 << 63)):
        other = draw(name, seed)
        assert abs(correlation(x, other)) < FIVE_SIGMA
        assert abs(correlation(x[1:], other[:-1])) < FIVE_SIGMA
        assert abs(correlation(x**2, other**2)) < FIVE_SIGMA
    pairs = x[: N // 2 * 2].reshape(-1, 2)
    assert abs(correlation(pairs[:, 0], pairs[:, 1])) < FIVE_SIGMA
    assert abs(correlation(pairs[:, 0] ** 2, pairs[:, 1] ** 2)) < FIVE_SIGMA


def test_each_bit_is_fair_and_each_seed_bit_counts() -> None:
    base = random.bits_numpy(N, 7).view(np.uint32)
    for bit in range(32):
        assert abs((base >> np.uint32(bit) & 1).mean() * 2 - 1) < FIVE_SIGMA
    for bit in range(64):  # any change of the seed changes half of all bits
        changed = np.bitwise_count(base[: N // 8] ^ random.bits_numpy(N // 8, 7 ^ (1 << bit)).view(np.uint32))
        assert abs(changed.mean() - 16) < 5 * np.sqrt(8 / (N // 8))


def test_seeds_are_no_shifts_of_each_other() -> None:
    seen = random.bits_numpy(N, 0)
    for seed in range(1, 20):
        common = np.intersect1d(seen, random.bits_numpy(N, seed)).size
        assert abs(common - N * N / 2**32) < 5 * np.sqrt(N * N / 2**32) + 5


def test_integers_are_fair() -> None:
    counts = np.bincount(draw("randint", 1, 0, 10, dtype="int64"), minlength=10)
    assert ((counts - N / 10) ** 2 / (N / 10)).sum() < 9 + 5 * np.sqrt(18)


def test_an_empty_range_is_refused(engine: Any) -> None:
    attrs = {"shape": (2,), "dtype": "int64"}
    for maker in (NUMPY, engine):
        kernel = maker.kernel(TABLE["randint"], attrs, [SCALARS["i"]] * 3)
        with pytest.raises(ArgumentError, match="randint: low must be < high, got 3 and 3"):
            kernel(1, 3, 3)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_drops_p(p: float) -> None:
    (y,) = calls_with(NUMPY, TABLE["dropout"], (np.ones(N), 3), {"p": p})
    assert abs((y == 0).mean() - p) < FIVE_SIGMA
    np.testing.assert_allclose(y[y != 0], 1 / (1 - p))
