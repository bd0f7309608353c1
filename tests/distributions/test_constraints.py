"""Constraints, the transforms to them, and distributions that users write: as torch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.client.session.session import Session
from tests.beside_torch import as_in_torch, same
from tests.distributions.test_distributions import CASES, build
from tests.sessions import session_fixture

session = session_fixture("numpy")

VECTOR = [[0.2, -0.7, 1.1], [0.5, 0.1, -2.0]]
#: A constraint by its name in torch, and values in it and out of it.
SETS: dict[str, tuple[str, Any]] = {
    "real": ("real", [1.0, float("nan")]),
    "positive": ("positive", [1.0, 0.0, -1.0]),
    "nonnegative": ("nonnegative", [1.0, 0.0, -1.0]),
    "unit interval": ("unit_interval", [0.0, 0.5, 1.0, 1.1]),
    "boolean": ("boolean", [0.0, 1.0, 0.5]),
    "whole": ("nonnegative_integer", [0.0, 2.0, 1.5, -1.0]),
    "counting": ("positive_integer", [0.0, 2.0, 1.5, -1.0]),
    "simplex": ("simplex", [[0.2, 0.8], [0.5, 0.6], [-0.5, 1.5]]),
    "one hot": ("one_hot", [[0.0, 1.0], [1.0, 1.0], [0.5, 0.5]]),
    "vectors": ("real_vector", [[0.0, 1.0], [1.0, float("nan")]]),
    "lower triangular": ("lower_triangular", [[[1.0, 0.0], [2.0, 3.0]], [[1.0, 1.0], [2.0, 3.0]]]),
    "lower cholesky": ("lower_cholesky", [[[1.0, 0.0], [2.0, 3.0]], [[1.0, 0.0], [2.0, -3.0]]]),
    "corr cholesky": ("corr_cholesky", [[[1.0, 0.0], [0.6, 0.8]], [[1.0, 0.0], [0.6, 0.6]]]),
    "square": ("square", [[[1.0, 2.0], [2.0, 3.0]]]),
    "symmetric": ("symmetric", [[[1.0, 2.0], [2.0, 3.0]], [[1.0, 1.0], [2.0, 3.0]]]),
    "positive definite": ("positive_definite", [[[2.0, 1.0], [1.0, 3.0]], [[1.0, 2.0], [2.0, 1.0]]]),
    "positive semidefinite": ("positive_semidefinite", [[[2.0, 1.0], [1.0, 3.0]], [[1.0, 2.0], [2.0, 1.0]]]),
}


@pytest.mark.parametrize("name", SETS)
def test_checks(name: str, session: Session) -> None:
    which, values = SETS[name]
    results = [getattr(lib.distributions.constraints, which).check(lib.tensor(values)) for lib in (gt, torch)]
    same(*results, atol=0)


@as_in_torch()
def test_constraints_with_arguments(lib: Any, session: Session) -> list[Any]:
    c = lib.distributions.constraints
    x = lib.tensor([[-1.0, 0.0, 1.0], [2.0, 2.5, 3.0]])
    made = [
        c.greater_than(0.0), c.greater_than_eq(0.0), c.less_than(2.5), c.interval(0.0, 2.0), c.integer_interval(0, 2),
        c.half_open_interval(0.0, 2.0), c.independent(c.positive, 1), c.multinomial(3),
        c.cat([c.positive, c.real], dim=-1, lengths=[2, 1]), c.stack([c.positive, c.real, c.real], dim=-1),
    ]  # fmt: skip
    about = [(one.event_dim, one.is_discrete) for one in made]
    with pytest.raises(ValueError, match="depend"):
        c.dependent.check(x)
    return [*(one.check(x) for one in made), about, c.is_dependent(c.dependent), c.is_dependent(c.real)]


@pytest.mark.parametrize("name", CASES)
def test_parameters_and_samples_are_in_their_sets(name: str, session: Session) -> None:
    p, _ = build(gt, name, CASES[name][0])
    theirs, _ = build(torch, name, CASES[name][0])
    assert set(p.arg_constraints) == set(theirs.arg_constraints)
    for of, constraint in p.arg_constraints.items():
        if not gt.distributions.constraints.is_dependent(constraint):
            assert constraint.check(getattr(p, of)).all(), of
    assert p.support.event_dim == theirs.support.event_dim == len(p.event_shape)
    assert p.support.is_discrete == theirs.support.is_discrete
    assert p.support.check(p.sample((50,))).all()


def transforms(lib: Any) -> dict[str, Any]:
    d = lib.distributions
    t = d.transforms
    return {
        "softmax": t.SoftmaxTransform(),
        "stick breaking": t.StickBreakingTransform(),
        "corr cholesky": t.CorrCholeskyTransform(),
        "reshape": t.ReshapeTransform((3,), (3, 1)),
        "independent": t.IndependentTransform(t.ExpTransform(), 1),
        "cat": t.CatTransform([t.ExpTransform(), t.identity_transform], dim=-1, lengths=[1, 2]),
        "stack": t.StackTransform([t.ExpTransform(), t.SigmoidTransform(), t.TanhTransform()], dim=-1),
        "absolute": t.AbsTransform(),
        "cdf": t.CumulativeDistributionTransform(d.Normal(0.5, 2.0)),
        "composed": t.ComposeTransform([t.AffineTransform(1.0, 2.0), t.StickBreakingTransform()]),
        "inverse": t.ComposeTransform([t.ExpTransform(), t.ExpTransform().inv, t.SigmoidTransform()]),
    }


@pytest.mark.parametrize("name", transforms(torch))
def test_transforms(name: str, session: Session) -> None:
    results = []
    for lib in (gt, torch):
        t = transforms(lib)[name]
        x = lib.tensor(VECTOR, requires_grad=True)
        y = t(x)
        y.square().sum().backward()
        found = [y, t.inv(y.detach()), x.grad, t.domain.event_dim, t.codomain.event_dim]
        found += [tuple(t.forward_shape((2, 3))), t.bijective]
        if name not in ("softmax", "absolute"):
            found.append(t.log_abs_det_jacobian(x, y))
        results.append(found)
    same(*results, rtol=2e-5, atol=1e-5)
    assert transforms(gt)["composed"] == transforms(gt)["composed"]
    assert transforms(gt)["composed"] != transforms(gt)["inverse"]


@as_in_torch(rtol=1e-5, atol=1e-6)
def test_matrices(lib: Any, session: Session) -> list[Any]:
    t = lib.distributions.transforms
    x = lib.tensor([[0.3, 2.0], [-1.0, 0.5]])
    return [y for one in (t.LowerCholeskyTransform(), t.PositiveDefiniteTransform()) for y in (one(x), one.inv(one(x)))]


@as_in_torch(rtol=1e-5, atol=1e-6)
def test_a_transform_to_a_set(lib: Any, session: Session) -> list[Any]:
    d = lib.distributions
    c, x = d.constraints, lib.tensor(VECTOR)
    sets = [
        c.real, c.positive, c.nonnegative, c.greater_than(1.5), c.less_than(-1.0), c.interval(-1.0, 3.0),
        c.unit_interval, c.simplex, c.corr_cholesky, c.independent(c.positive, 1), c.real_vector,
        c.stack([c.positive, c.unit_interval, c.real], dim=-1),
    ]  # fmt: skip
    made = [registry(one)(x) for registry in (d.transform_to, d.biject_to) for one in sets]
    normal = d.transform_to(d.Normal.arg_constraints["scale"])(x)

    class Above(c.Constraint):
        def check(self, value: Any) -> Any:
            return value > 7

    d.transform_to.register(Above, lambda constraint: d.transforms.AffineTransform(7.0, 2.0))
    for one in (c.nonnegative_integer, c.integer_interval(0, 3), c.boolean):
        with pytest.raises(NotImplementedError):
            d.biject_to(one)
    about = d.transform_to(c.real_vector).domain.event_dim
    return [*made, normal, d.transform_to(Above())(x), about]


@as_in_torch(rtol=1e-5)
def test_a_distribution_of_ones_own(lib: Any, session: Session) -> list[Any]:
    from importlib import import_module

    normal = import_module(f"{lib.__name__}.distributions.normal")
    kl = import_module(f"{lib.__name__}.distributions.kl")
    utils = import_module(f"{lib.__name__}.distributions.utils")
    c, d = lib.distributions.constraints, lib.distributions

    class Shifted(d.Distribution):
        arg_constraints = {"loc": c.real, "scale": c.positive}  # noqa: RUF012  # as users write it
        support = c.real
        has_rsample = True

        def __init__(self, loc: Any, scale: Any, validate_args: Any = None) -> None:
            self.loc, self.scale = utils.broadcast_all(loc, scale)
            super().__init__(self.loc.shape, validate_args=validate_args)

        def rsample(self, sample_shape: Any = ()) -> Any:
            return self.loc + self.scale * lib.ones(self._extended_shape(sample_shape))

        def log_prob(self, value: Any) -> Any:
            if self._validate_args:
                self._validate_sample(value)
            return -((value - self.loc) ** 2) / self.scale

    @kl.register_kl(Shifted, normal.Normal)
    def _divergence(p: Any, q: Any) -> Any:
        return p.loc - q.loc

    p = Shifted(lib.tensor([1.0, 2.0]), 0.5)
    moved = d.TransformedDistribution(p, d.transforms.ExpTransform())
    return [
        p.sample((3,)), p.rsample().sum(), p.log_prob(lib.tensor([0.5, 1.0])), moved.rsample((2,)),
        moved.log_prob(lib.tensor([0.5, 1.0])), d.kl_divergence(p, normal.Normal(0.0, 1.0)),
        d.Independent(p, 1).sample(),
    ]  # fmt: skip


@as_in_torch(rtol=1e-6)
def test_utils(lib: Any, session: Session) -> list[Any]:
    from importlib import import_module

    u = import_module(f"{lib.__name__}.distributions.utils")
    p = lib.tensor([0.0, 0.3, 1.0])
    v = lib.arange(6.0)
    made = [u.vec_to_tril_matrix(v), u.vec_to_tril_matrix(v, -1), u.tril_matrix_to_vec(u.vec_to_tril_matrix(v))]
    made += [u.probs_to_logits(p, True), u.logits_to_probs(p, True), u.probs_to_logits(p), u.logits_to_probs(p)]
    return [*made, u.clamp_probs(p)]


def test_angles_are_around_their_direction(session: Session) -> None:
    gt.manual_seed(2)
    p = gt.distributions.VonMises(gt.tensor([0.5, 3.0]), gt.tensor([2.0, 8.0]))
    x = p.sample((20_000,)).double().numpy()
    assert np.abs(x).max() <= np.pi + 1e-6
    mean = np.exp(1j * x).mean(0)
    np.testing.assert_allclose(np.angle(mean), [0.5, 3.0], atol=0.03)
    np.testing.assert_allclose(1 - np.abs(mean), p.variance.numpy(), rtol=0.06)
