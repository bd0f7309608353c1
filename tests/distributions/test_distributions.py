"""Every distribution agrees with torch's: log_prob, entropy, mean, variance, KL divergence, gradients; and its samples
have its mean and variance.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.client.session.session import Session
from tests.beside_torch import as_in_torch, same
from tests.sessions import session_fixture

session = session_fixture("numpy")

A, B = [0.7, 1.5, 3.2], [1.3, 0.4, 2.1]
P, Q = [0.2, 0.5, 0.9], [0.4, 0.3, 0.7]
ROWS, OTHER_ROWS = [[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]], [[0.3, 0.3, 0.4], [0.1, 0.8, 0.1]]
COVARIANCE = [[2.0, 0.5], [0.5, 1.0]]
COUNTS = [0.0, 2.0, 1.0]

#: Name -> the arguments of one, those of another, and a value.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], Any]] = {
    "Normal": ({"loc": A, "scale": B}, {"loc": B, "scale": A}, [0.1, -1.0, 4.0]),
    "LogNormal": ({"loc": P, "scale": Q}, {"loc": Q, "scale": P}, A),
    "HalfNormal": ({"scale": A}, {"scale": B}, B),
    "Uniform": ({"low": [0.0, -1.0, 2.0], "high": [1.0, 2.0, 5.0]}, {"low": -2.0, "high": 6.0}, [0.5, 1.9, 4.0]),
    "Exponential": ({"rate": A}, {"rate": B}, B),
    "Laplace": ({"loc": A, "scale": B}, {"loc": B, "scale": A}, [0.1, -1.0, 4.0]),
    "Cauchy": ({"loc": A, "scale": B}, {"loc": B, "scale": A}, [0.1, -1.0, 4.0]),
    "HalfCauchy": ({"scale": A}, {}, B),
    "Gumbel": ({"loc": A, "scale": B}, {"loc": B, "scale": A}, [0.1, -1.0, 4.0]),
    "Weibull": ({"scale": A, "concentration": B}, {}, B),
    "Pareto": ({"scale": A, "alpha": [3.0, 4.0, 5.0]}, {"scale": 0.5, "alpha": [2.5, 3.0, 3.5]}, [1.0, 2.0, 4.0]),
    "Gamma": ({"concentration": A, "rate": B}, {"concentration": B, "rate": A}, B),
    "Chi2": ({"df": A}, {"df": B}, B),
    "Beta": ({"concentration1": A, "concentration0": B}, {"concentration1": B, "concentration0": A}, P),
    "StudentT": ({"df": [3.0, 4.5, 9.0], "loc": A, "scale": B}, {}, [0.1, -1.0, 4.0]),
    "Bernoulli": ({"probs": P}, {"probs": Q}, [1.0, 0.0, 1.0]),
    "Bernoulli of logits": ({"logits": A}, {"logits": B}, [1.0, 0.0, 1.0]),
    "Geometric": ({"probs": P}, {"probs": Q}, COUNTS),
    "Poisson": ({"rate": A}, {"rate": B}, COUNTS),
    "Binomial": ({"total_count": 4, "probs": P}, {"total_count": 4, "probs": Q}, COUNTS),
    "NegativeBinomial": ({"total_count": 4, "probs": P}, {}, COUNTS),
    "Categorical": ({"probs": ROWS}, {"probs": OTHER_ROWS}, [0, 2]),
    "Categorical of logits": ({"logits": ROWS}, {"logits": OTHER_ROWS}, [0, 2]),
    "OneHotCategorical": ({"probs": ROWS}, {"probs": OTHER_ROWS}, [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]),
    "Multinomial": ({"total_count": 4, "probs": ROWS}, {}, [[1.0, 1.0, 2.0], [4.0, 0.0, 0.0]]),
    "Dirichlet": ({"concentration": ROWS}, {"concentration": OTHER_ROWS}, ROWS),
    "MultivariateNormal": (
        {"loc": [0.5, -1.0], "covariance_matrix": COVARIANCE},
        {"loc": [0.0, 0.0], "scale_tril": [[1.0, 0.0], [0.3, 2.0]]},
        [[0.1, 0.2], [1.0, -1.0]],
    ),
}  # fmt: skip
INFINITE = {"Cauchy", "HalfCauchy"}


def build(lib: Any, name: str, arguments: dict[str, Any], grad: bool = False) -> tuple[Any, list[Any]]:
    made = {k: lib.tensor(v, requires_grad=grad) if isinstance(v, list) else v for k, v in arguments.items()}
    kind = getattr(lib.distributions, name.split()[0])
    return kind(**made), [v for v in made.values() if hasattr(v, "grad")]


def facts(lib: Any, name: str) -> dict[str, Any]:
    first, second, value = CASES[name]
    p, leaves = build(lib, name, first, grad=True)
    found: dict[str, Any] = {"batch": tuple(p.batch_shape), "event": tuple(p.event_shape)}
    log_prob = p.log_prob(lib.tensor(value))
    found["log_prob"] = log_prob
    lib.where(log_prob.isfinite(), log_prob, lib.zeros_like(log_prob)).sum().backward()
    found["gradients"] = [leaf.grad for leaf in leaves]
    for what in ("entropy", "mean", "mode", "variance", "stddev"):
        try:
            got = getattr(p, what)
            found[what] = got() if callable(got) else got
        except NotImplementedError:
            found[what] = None
    if second:
        found["kl"] = lib.distributions.kl_divergence(p, build(lib, name, second)[0])
    return found


@pytest.mark.parametrize("name", CASES)
def test_as_torch(name: str, session: Session) -> None:
    ours, theirs = facts(gt, name), facts(torch, name)
    for what, right in theirs.items():
        if right is not None:
            same(ours[what], right, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", [n for n in CASES if n not in INFINITE])
def test_samples_have_the_mean_and_the_variance(name: str, session: Session) -> None:
    n = 20_000
    gt.manual_seed(3)
    p, _ = build(gt, name, CASES[name][0])
    draws = p.sample((n,))
    assert tuple(draws.shape) == (n, *p.batch_shape, *p.event_shape)
    assert not draws.requires_grad
    if name.startswith("Categorical"):
        shares = np.stack([(draws == k).float().mean(0).numpy() for k in range(3)], -1)
        np.testing.assert_allclose(shares, p.probs.numpy(), atol=0.02)
        return
    mean, variance = p.mean.numpy(), p.variance.numpy()
    found, spread = draws.double().mean(0).numpy(), draws.double().var(0).numpy()
    np.testing.assert_allclose(found, mean, atol=float(6 * np.sqrt(variance.max() / n)))
    if name not in ("StudentT", "Pareto", "LogNormal", "Weibull"):  # heavy tails: their variance is found slowly
        np.testing.assert_allclose(spread, variance, rtol=0.12, atol=1e-3)


@pytest.mark.parametrize("name", ["Normal", "Laplace", "Uniform", "Exponential", "Gumbel", "MultivariateNormal"])
def test_gradients_flow_through_samples(name: str, session: Session) -> None:
    p, leaves = build(gt, name, CASES[name][0], grad=True)
    assert p.has_rsample
    p.rsample((5,)).sum().backward()
    assert all(leaf.grad is not None for leaf in leaves)


def test_what_has_no_gradient_says_so(session: Session) -> None:
    with pytest.raises(NotImplementedError, match="Gamma: rsample is not available; use sample"):
        gt.distributions.Gamma(1.0, 1.0).rsample()


@as_in_torch(rtol=1e-4)
def test_independent_mixtures_and_expand(lib: Any, session: Session) -> list[Any]:
    D = lib.distributions
    normal = D.Normal(lib.tensor(A), lib.tensor(B))
    event = D.Independent(normal, 1)
    mixed = D.MixtureSameFamily(D.Categorical(lib.tensor(P)), normal)
    wide = normal.expand((2, 3))
    shapes = [event.batch_shape, event.event_shape, mixed.batch_shape, wide.batch_shape, wide.sample((4,)).shape]
    values = [
        event.log_prob(lib.tensor(A)), event.entropy(), mixed.log_prob(lib.tensor([0.5, 1.0])), mixed.mean,
        mixed.variance, wide.log_prob(lib.tensor(A)),
        D.kl_divergence(event, D.Independent(D.Normal(lib.tensor(B), lib.tensor(A)), 1)),
    ]  # fmt: skip
    return [*map(tuple, shapes), mixed.sample((7,)).shape[0], *values]


def test_a_policy_gradient(session: Session) -> None:
    """What reinforcement learning does with a Categorical."""
    logits = gt.zeros(4, 3, requires_grad=True)
    policy = gt.distributions.Categorical(logits=logits)
    action = policy.sample()
    (-policy.log_prob(action) * gt.ones(4)).sum().backward()
    assert logits.grad.shape == (4, 3)
    assert 0 <= action[0].item() < 3
    with pytest.raises(gt.GTError, match="give either probs or logits"):
        gt.distributions.Bernoulli()
