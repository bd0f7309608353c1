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
    "LowRankMultivariateNormal": (
        {"loc": [0.5, -1.0, 0.2], "cov_factor": [[1.0], [0.3], [-0.5]], "cov_diag": B},
        {"loc": A, "cov_factor": [[0.2, 1.0], [0.3, 0.1], [0.5, 0.4]], "cov_diag": A},
        [[0.1, 0.2, 0.3], [1.0, -1.0, 2.0]],
    ),
    "Wishart": (
        {"df": [5.0], "covariance_matrix": COVARIANCE},
        {"df": [4.5], "scale_tril": [[1.0, 0.0], [0.3, 2.0]]},
        [[[2.0, 0.3], [0.3, 1.5]]],
    ),
    "LKJCholesky": ({"dim": 3, "concentration": [0.7, 2.0]}, {}, [[[1.0, 0.0, 0.0], [0.6, 0.8, 0.0], [0.0, 0.6, 0.8]]]),
    "RelaxedBernoulli": ({"temperature": [0.8], "probs": P}, {}, Q),
    "RelaxedBernoulli of logits": ({"temperature": [0.8], "logits": A}, {}, Q),
    "RelaxedOneHotCategorical": ({"temperature": [0.8], "probs": ROWS}, {}, OTHER_ROWS),
    "LogisticNormal": ({"loc": [A, B], "scale": [B, A]}, {}, [[0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1]]),
    "ContinuousBernoulli": ({"probs": P}, {"probs": Q}, [0.1, 0.5, 0.8]),
    "ContinuousBernoulli of logits": ({"logits": A}, {"logits": B}, [0.1, 0.5, 0.8]),
    "InverseGamma": ({"concentration": [3.5, 4.5, 6.0], "rate": B}, {"concentration": B, "rate": A}, B),
    "FisherSnedecor": ({"df1": A, "df2": [5.0, 9.0, 12.0]}, {}, B),
    "GeneralizedPareto": ({"loc": P, "scale": B, "concentration": [0.0, 0.3, -0.4]}, {}, [1.0, 2.0, 1.5]),
    "Kumaraswamy": ({"concentration1": A, "concentration0": B}, {}, P),
    "VonMises": ({"loc": A, "concentration": B}, {}, [0.1, -1.0, 3.0]),
}  # fmt: skip
HEAVY = {
    "StudentT", "Pareto", "LogNormal", "Weibull", "InverseGamma", "FisherSnedecor", "GeneralizedPareto",
}  # fmt: skip
#: Those with no mean and variance in torch, or with an infinite one, or with a circular one.
INFINITE = {
    "Cauchy", "HalfCauchy", "LKJCholesky", "RelaxedBernoulli", "RelaxedBernoulli of logits",
    "RelaxedOneHotCategorical", "LogisticNormal", "VonMises",
}  # fmt: skip


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
    if name == "Kumaraswamy":  # torch's is the logarithm of a negative number
        a, b = gt.tensor(A), gt.tensor(B)
        theirs["mode"] = gt.where((a > 1) & (b > 1), ((a - 1) / (a * b - 1)) ** (1 / a), gt.nan).numpy()
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
    if name not in HEAVY:  # heavy tails: their variance is found slowly
        np.testing.assert_allclose(spread, variance, rtol=0.12, atol=1e-3)


REPARAMETRIZED = (
    "Normal", "Laplace", "Uniform", "Exponential", "Gumbel", "MultivariateNormal", "LowRankMultivariateNormal",
    "Wishart", "RelaxedBernoulli", "RelaxedOneHotCategorical", "LogisticNormal", "ContinuousBernoulli", "Gamma", "Chi2",
    "Beta", "StudentT", "Dirichlet", "InverseGamma", "FisherSnedecor", "Kumaraswamy", "GeneralizedPareto",
)  # fmt: skip


@pytest.mark.parametrize("name", REPARAMETRIZED)
def test_gradients_flow_through_samples(name: str, session: Session) -> None:
    p, leaves = build(gt, name, CASES[name][0], grad=True)
    assert p.has_rsample
    p.rsample((5,)).sum().backward()
    assert all(leaf.grad is not None for leaf in leaves)


def test_what_has_no_gradient_says_so(session: Session) -> None:
    with pytest.raises(NotImplementedError, match="Poisson: rsample is not available; use sample"):
        gt.distributions.Poisson(1.0).rsample()


@pytest.mark.parametrize("kind", ["Gamma", "Beta", "StudentT"])
def test_the_gradient_of_a_sample_is_that_of_its_mean(kind: str, session: Session) -> None:
    gt.manual_seed(5)
    a, b = gt.tensor(4.0, requires_grad=True), gt.tensor(3.0, requires_grad=True)
    p = getattr(gt.distributions, kind)(a, b)
    exact = gt.autograd.grad(p.variance + p.mean, [a, b])
    x = p.rsample((20_000,))
    found = gt.autograd.grad(((x - p.mean.detach()) ** 2).mean() + x.mean(), [a, b])
    np.testing.assert_allclose([g.item() for g in found], [g.item() for g in exact], rtol=0.1, atol=0.02)


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
        mixed.variance, wide.log_prob(lib.tensor(A)), event.expand((2,)).log_prob(lib.tensor(A)),
        mixed.expand((2,)).log_prob(lib.tensor([0.5, 1.0])),
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


WITH_A_CDF = (
    "Normal", "LogNormal", "HalfNormal", "Uniform", "Exponential", "Laplace", "Cauchy", "HalfCauchy", "Gumbel",
    "Weibull", "Pareto", "Gamma", "Chi2", "InverseGamma", "Kumaraswamy", "GeneralizedPareto", "ContinuousBernoulli",
)  # fmt: skip


@pytest.mark.parametrize("name", WITH_A_CDF)
def test_cdf_and_its_inverse(name: str, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", False)  # it checks rounded values too
    results = []
    for lib in (gt, torch):
        p, _ = build(lib, name, CASES[name][0])
        found = [p.cdf(lib.tensor(CASES[name][2]))]
        if not name.endswith(("Gamma", "Chi2")):
            found.append(p.icdf(lib.tensor([0.1, 0.5, 0.9])))
        results.append(found)
    same(*results, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("alpha", [1e-1, 1e-3])
def test_samples_of_small_concentrations_are_numbers(alpha: float, session: Session) -> None:
    d = gt.distributions
    gt.manual_seed(1)
    a = gt.full((2_000,), alpha, requires_grad=True)
    one_of_two, one_of_three = d.Beta(a, a).rsample(), d.Dirichlet(gt.full((2_000, 3), alpha)).sample()
    for x, n in ((one_of_two, 2), (one_of_three.T[0], 3)):
        assert ((x > 0) & (x < 1)).all()
        assert abs(x.mean().item() - 1 / n) < 0.05
        assert alpha > 1e-2 or ((x - 0.5).abs() > 0.4).float().mean() > 0.95  # nearly all of them are close to 0 or 1
    one_of_two.sum().backward()
    assert a.grad.isfinite().all()
    assert (d.Gamma(a, 1.0).sample() > 0).all()
    assert d.FisherSnedecor(a, a).sample().isfinite().all()


@as_in_torch(rtol=1e-5)
def test_batches_of_parameters_and_one_value(lib: Any, session: Session) -> list[Any]:
    d, t, inf = lib.distributions, lib.tensor, float("inf")
    covariance = t(COVARIANCE)
    wishart = d.Wishart(t([3.0, 4.5]), covariance_matrix=covariance)
    relaxed = d.RelaxedOneHotCategorical(t(0.5), probs=t(ROWS[0])).expand((4,))
    plain = d.Normal(t(0.0), t(1.0), validate_args=False)
    mixed = d.MixtureSameFamily(d.Categorical(t([0.3, 0.7])), d.Normal(t([0.0, 1.0]), t([1.0, 2.0])))
    sharp = d.RelaxedBernoulli(t(0.1), logits=t([-60.0, 0.0, 60.0]))
    return [
        wishart.log_prob(covariance), wishart.expand((3, 2)).log_prob(covariance), relaxed.log_prob(t(ROWS[0])),
        [*relaxed.sample((2,)).shape], mixed.cdf(t(A)), sharp.log_prob(t([0.0, 0.5, 1.0])),
        d.TransformedDistribution(plain, d.AffineTransform(1.0, 2.0), validate_args=False).log_prob(t([-inf, inf])),
        d.kl_divergence(d.LogisticNormal(t(A), t(B)), d.LogisticNormal(t(B), t(A))),
    ]  # fmt: skip


def transformed(lib: Any, kind: str) -> tuple[Any, Any, Any]:
    """A transformed distribution, its parameter and a value."""
    d, t = lib.distributions, lib.distributions.transforms
    loc = lib.tensor([[0.1, -0.5, 0.3], [1.0, 2.0, -1.0]], requires_grad=True)
    base = d.Normal(loc, 0.7)
    value = lib.tensor([[0.2, 0.9, 0.5], [0.6, 0.3, 0.7]])
    made = {
        "tanh": lambda: d.TransformedDistribution(base, t.TanhTransform(cache_size=1)),
        "events": lambda: d.TransformedDistribution(d.Independent(base, 1), [t.TanhTransform(), t.ExpTransform()]),
        "decreasing": lambda: d.TransformedDistribution(base, [t.AffineTransform(0.5, -2.0), t.SigmoidTransform()]),
        "a vector": lambda: d.TransformedDistribution(
            base, [t.AffineTransform(0.0, lib.tensor([1.0, 2.0, -3.0]), event_dim=1), t.SigmoidTransform()]
        ),
        "powers": lambda: d.TransformedDistribution(base, [t.ExpTransform(), t.PowerTransform(-2.0)]),
        "composed": lambda: d.TransformedDistribution(
            base, t.ComposeTransform([t.SoftplusTransform(), t.AffineTransform(0.1, 0.5)])
        ),
        "inverse": lambda: d.TransformedDistribution(base, [t.SigmoidTransform(), t.ExpTransform().inv]),
    }[kind]()
    return made, loc, -value if kind == "inverse" else value + 1.0 if kind == "events" else value


@pytest.mark.parametrize("kind", ["tanh", "events", "decreasing", "a vector", "powers", "composed", "inverse"])
def test_transformed_distributions(kind: str, session: Session) -> None:
    results = []
    for lib in (torch, gt):
        made, loc, value = transformed(lib, kind)
        log_prob = made.log_prob(value)
        log_prob.sum().backward()
        sizes = [tuple(made.batch_shape), tuple(made.event_shape), tuple(made.rsample((4,)).shape)]
        sizes.append(tuple(made.expand((5, *made.batch_shape)).sample().shape))
        found = [log_prob.detach().numpy(), loc.grad.numpy()]
        if not made.event_shape:
            found += [made.cdf(value).detach().numpy(), made.icdf(value.abs().clamp(max=0.9)).detach().numpy()]
        results.append((sizes, found, made.has_rsample))
    assert results[0][0] == results[1][0]
    assert results[0][2] == results[1][2]
    for theirs, ours in zip(results[0][1], results[1][1], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-6)


def test_a_transform_remembers_what_a_sample_was_made_of(session: Session) -> None:
    tanh = gt.distributions.transforms.TanhTransform(cache_size=1)
    x = gt.full((3,), 20.0)
    assert tanh.inv(tanh(x)).tolist() == [20.0] * 3  # atanh(1) is infinite
    assert gt.distributions.TanhTransform().inv(tanh(x)).tolist() == [float("inf")] * 3


def test_gradients_pass_straight_through_one_hot_samples(session: Session) -> None:
    logits = gt.tensor([[0.1, 0.5, -0.3]], requires_grad=True)
    made = gt.distributions.OneHotCategoricalStraightThrough(logits=logits)
    x = made.rsample((4,))
    assert x.sum(-1).tolist() == [[1.0]] * 4
    (x * gt.arange(3)).sum().backward()
    p = torch.tensor([[0.1, 0.5, -0.3]], requires_grad=True)
    (4 * p.softmax(-1) * torch.arange(3)).sum().backward()
    np.testing.assert_allclose(logits.grad.numpy(), p.grad.numpy(), rtol=1e-5)
