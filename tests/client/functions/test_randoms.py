"""Random tensors: seeds, generators, and that the numbers are distributed as they should be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gt
from gt.client.session.session import Session
from gt.errors import ArgumentError, DTypeError, ShapeError
from tests.client.mistakes import Mistakes, refused

pytestmark = pytest.mark.usefixtures("session")

N = 20_000


@pytest.fixture(autouse=True)
def _seeded(session: Session) -> None:
    gt.manual_seed(1234)


def blank(dtype: Any = None, n: int = N) -> Any:
    return gt.zeros(n, dtype=dtype or gt.float32)


#: What is drawn, its mean, and its variance.
MOMENTS: dict[str, tuple[Callable[[], Any], float, float]] = {
    "rand": (lambda: gt.rand(N), 0.5, 1 / 12),
    "randn": (lambda: gt.randn(N), 0, 1),
    "randint": (lambda: gt.randint(10, (N,)), 4.5, 99 / 12),
    "randint_like": (lambda: gt.randint_like(blank(), 3, 6), 4, 8 / 12),
    "normal": (lambda: gt.normal(2.0, 3.0, (N,)), 2, 9),
    "normal by mean": (lambda: gt.normal(gt.full((N,), 2.0), 3.0), 2, 9),
    "normal by std": (lambda: gt.normal(2.0, gt.full((N,), 3.0)), 2, 9),
    "normal by both": (lambda: gt.normal(gt.full((N, 1), 2.0), gt.full((1,), 3.0)), 2, 9),
    "normal_": (lambda: blank().normal_(2, 3), 2, 9),
    "uniform_": (lambda: blank().uniform_(-1, 3), 1, 16 / 12),
    "uniform_ by name": (lambda: blank().uniform_(**{"from": 0, "to": 2}), 1, 4 / 12),
    "bernoulli": (lambda: gt.bernoulli(gt.full((N,), 0.3)), 0.3, 0.21),
    "bernoulli of p": (lambda: blank().bernoulli(0.3), 0.3, 0.21),
    "bernoulli_": (lambda: blank(gt.int64).bernoulli_(0.3), 0.3, 0.21),
    "bernoulli_ by a tensor": (lambda: blank().bernoulli_(gt.full((N,), 0.3)), 0.3, 0.21),
    "exponential_": (lambda: blank().exponential_(2.0), 0.5, 0.25),
    "geometric_": (lambda: blank(gt.int64).geometric_(0.25), 4, 12),
    "log_normal_": (lambda: blank().log_normal_(0.0, 0.5), np.exp(0.125), (np.exp(0.25) - 1) * np.exp(0.25)),
    "random_": (lambda: blank(gt.int64).random_(5, 15), 9.5, 99 / 12),
    "random_ to": (lambda: blank().random_(10), 4.5, 99 / 12),
    "random_ of bytes": (lambda: blank(gt.uint8).random_(), 127.5, (256**2 - 1) / 12),
    "random_ of bools": (lambda: blank(gt.bool).random_(), 0.5, 0.25),
    "poisson": (lambda: gt.poisson(gt.full((N,), 3.5)), 3.5, 3.5),
    "poisson of a large rate": (lambda: gt.poisson(gt.full((N,), 40.0)), 40, 40),
    "rand of complex numbers": (lambda: gt.rand(N, dtype=gt.complex64), 0.5 + 0.5j, 2 / 12),
    "randn of complex numbers": (lambda: gt.randn(N, dtype=gt.complex64), 0, 1),
}


@pytest.mark.parametrize(("draw", "mean", "variance"), MOMENTS.values(), ids=MOMENTS)
def test_mean_and_variance(draw: Any, mean: Any, variance: Any) -> None:
    x = draw().numpy().astype(np.complex128).reshape(-1)
    assert abs(x.mean() - mean) < 5 * np.sqrt(variance / N)
    apart = np.abs(x - mean) ** 2
    assert abs(apart.mean() - variance) <= 5 * apart.std() / np.sqrt(N)


@pytest.mark.parametrize("rate", [0.0, 0.5, 14.9, 15.1, 100.0])
def test_poisson_counts_have_their_frequencies(rate: float) -> None:
    counts = gt.poisson(gt.full((N,), rate, dtype=gt.float64)).numpy().astype(int)
    k = np.arange(int(rate + 8 * np.sqrt(rate) + 9))
    logs = k * np.log(rate) - rate - np.cumsum(np.log(np.maximum(k, 1))) if rate else np.where(k == 0, 0.0, -np.inf)
    expected = N * np.exp(logs)
    usual = expected > 20
    got = np.bincount(counts, minlength=len(k))[: len(k)]
    chi = ((got[usual] - expected[usual]) ** 2 / expected[usual]).sum()
    assert chi < usual.sum() + 5 * np.sqrt(2 * usual.sum())


def test_cauchy_has_its_quartiles() -> None:
    x = blank().cauchy_(1.0, 2.0).numpy()
    np.testing.assert_allclose(np.quantile(x, [0.25, 0.5, 0.75]), [-1, 1, 3], atol=0.15)


def test_a_permutation_has_every_number_once() -> None:
    p = gt.randperm(1000).numpy()
    assert p.dtype == np.int64
    assert sorted(p) == list(range(1000))
    assert abs(np.corrcoef(p, np.arange(1000))[0, 1]) < 0.15
    assert gt.randperm(0).shape == (0,)
    first = [int(gt.randperm(5)[0]) for _ in range(500)]
    assert np.bincount(first, minlength=5).min() > 60


@pytest.mark.parametrize("replacement", [True, False])
def test_multinomial_follows_the_weights(replacement: bool) -> None:
    weights = gt.tensor([[1.0, 2.0, 0.0, 5.0], [0.0, 1.0, 1.0, 0.0]])
    first = gt.multinomial(weights.repeat(N // 2, 1), 2, replacement)
    assert first.dtype is gt.int64
    assert first.shape == (N, 2)
    for row, (got, wanted) in enumerate(zip(first.numpy()[:, 0].reshape(-1, 2).T, weights.numpy(), strict=True)):
        shares = np.bincount(got, minlength=4) / (N // 2)
        np.testing.assert_allclose(shares, wanted / wanted.sum(), atol=0.025, err_msg=f"row {row}")
    if not replacement:
        assert (first[:, 0] != first[:, 1]).all()
    one = gt.multinomial(weights[0], 1)
    assert one.shape == (1,)
    assert int(one[0]) != 2


def test_a_seed_repeats_all() -> None:
    def draws() -> list[Any]:
        x = [gt.rand(3), gt.randn(3), gt.randint(9, (3,)), gt.randperm(5), gt.bernoulli(gt.full((9,), 0.5))]
        return [t.tolist() for t in x]

    gt.manual_seed(7)
    once, again = draws(), draws()
    assert once != again
    gt.manual_seed(7)
    assert draws() == once
    assert gt.initial_seed() == 7
    assert gt.seed() == gt.initial_seed() != 7


def test_forked_random_numbers_leave_the_others_alone() -> None:
    gt.random.manual_seed(3)
    plain = gt.rand(4).tolist() + gt.rand(4).tolist()
    gt.random.manual_seed(3)
    first = gt.rand(4).tolist()
    with gt.random.fork_rng():
        gt.random.manual_seed(7)
        gt.rand(4)
    assert first + gt.rand(4).tolist() == plain


def test_the_state_can_be_put_back() -> None:
    gt.rand(3)
    state = gt.get_rng_state()
    assert state.dtype is gt.uint8
    once = gt.rand(3).tolist()
    gt.set_rng_state(state)
    assert gt.rand(3).tolist() == once


def test_a_generator_stands_apart() -> None:
    a, b = gt.Generator().manual_seed(5), gt.Generator(device="cpu").manual_seed(5)
    gt.manual_seed(1)
    here = gt.rand(3).tolist()
    gt.manual_seed(1)
    mine = [gt.randn(3, generator=a).tolist(), gt.zeros(3).uniform_(generator=a).tolist()]
    assert gt.rand(3).tolist() == here
    state = b.get_state()
    assert [gt.randn(3, generator=b).tolist(), gt.zeros(3).uniform_(generator=b).tolist()] == mine
    assert gt.randn(3, generator=b.set_state(state)).tolist() == mine[0]
    assert a.initial_seed() == 5
    assert a.seed() == a.initial_seed() != 5
    assert gt.Generator().initial_seed() == 67280421310721
    assert gt.randperm(4, generator=gt.Generator().manual_seed(0)).shape == (4,)


def test_a_generator_goes_on_in_a_replay() -> None:
    source = gt.Generator().manual_seed(3)

    @gt.function
    def draw(x: Any) -> Any:
        return x + gt.rand(2, generator=source)

    traced = [draw(gt.zeros(2)).tolist() for _ in range(4)]
    source.manual_seed(3)
    assert traced == [gt.rand(2, generator=source).tolist() for _ in range(4)]


def test_a_loop_of_draws_is_one_program(session: Session) -> None:
    x = gt.zeros(4)
    for _ in range(3):
        x = x + gt.randn(4) * gt.bernoulli(gt.full((4,), 0.5)) + gt.randint(3, (4,))
        x.tolist()
    nodes = session.tree.nodes
    for _ in range(3):
        x = x + gt.randn(4) * gt.bernoulli(gt.full((4,), 0.5)) + gt.randint(3, (4,))
        x.tolist()
    assert session.tree.nodes == nodes


def test_dtypes_and_shapes() -> None:
    assert gt.rand(2, 3, dtype=gt.bfloat16).dtype is gt.bfloat16
    assert gt.rand_like(gt.ones(2, dtype=gt.float64)).dtype is gt.float64
    assert gt.randn(size=(2, 1)).shape == (2, 1)
    assert gt.randint(0, 5, (2,), dtype=gt.int8).dtype is gt.int8
    assert gt.randint(high=1, size=(2,)).tolist() == gt.randint(1, size=(2,)).tolist() == [0, 0]
    assert gt.randn(2, requires_grad=True).requires_grad
    x = blank(gt.float16, 1000).exponential_()
    assert x.dtype is gt.float16
    assert (x.float() >= 0).all()


ERRORS: Mistakes = {
    "randint": (lambda: gt.randint(3, 3, (2,)), ArgumentError, "randint: expected low < high, got 3 and 3"),
    "no size": (lambda: gt.randint(3), ArgumentError, r"randint: expected high and a size, as in randint\(10, \(2,"),
    "bernoulli": (lambda: gt.bernoulli(gt.ones(2).int()), DTypeError, "bernoulli: input must be floating-point, got"),
    "p": (lambda: gt.zeros(2).bernoulli_(1.5), ArgumentError, r"bernoulli_: p must be between 0 and 1, got 1\.5"),
    "uniform_": (lambda: gt.zeros(2).uniform_(3, 1), ArgumentError, "uniform_: from must be <= to, got 3 and 1"),
    "exponential_": (lambda: gt.zeros(2).exponential_(-1), ArgumentError, "exponential_: lambd must be > 0, got -1"),
    "ints": (lambda: gt.zeros(2, dtype=gt.int64).cauchy_(), DTypeError, "cauchy_: expected a floating-point tensor,"),
    "multinomial": (lambda: gt.multinomial(gt.ones(3), 4), ArgumentError, "multinomial: num_samples must be <= 3"),
    "weights": (lambda: gt.multinomial(gt.ones(2, 2, 2), 1), ShapeError, "multinomial: expected a vector or a matrix"),
    "state": (lambda: gt.set_rng_state(gt.zeros(3)), ArgumentError, "set_rng_state: expected a state that"),
    "normal": (lambda: gt.normal(1.0, 2.0), ArgumentError, "normal: expected a size, or a tensor as mean or std"),
}


test_mistakes = refused(ERRORS)
