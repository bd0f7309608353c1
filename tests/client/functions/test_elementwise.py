"""What works element by element, beside torch: values, dtypes, gradients, in-place forms, operators."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.client.functions import activations, elementwise, special
from gt.errors import ArgumentError, DTypeError, ShapeError
from tests.beside_torch import agree, as_in_torch, compare
from tests.client.mistakes import Mistakes, refused

pytestmark = pytest.mark.usefixtures("session")

RNG = np.random.default_rng(0)
A, B = RNG.normal(size=(3, 4)), RNG.normal(size=4)
Z = RNG.normal(size=5) + 1j * RNG.normal(size=5)
W = RNG.normal(size=5) + 1j * RNG.normal(size=5)
K = np.array([[-7, 0, 5], [2, 3, -1]])
J = np.array([2, 3, 1])
M = np.array([True, False, True])
TESTS = "isnan isinf isposinf isneginf isfinite isreal signbit".split()
ODD = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5, -2.5])


def in_place(name: str, *args: Any) -> Any:
    """f(lib): the method with an underscore, which must return the tensor it has written to."""

    def f(lib: Any) -> Any:
        given = [lib.tensor(a) if isinstance(a, np.ndarray) else a for a in args]
        assert getattr(given[0], name)(*given[1:]) is given[0]
        return given[0]

    return f


#: Written once, run with both libraries.
CASES: dict[str, Any] = {
    # alpha, value, rounding
    "add alpha": lambda lib: lib.add(lib.tensor(A), lib.tensor(B), alpha=2.5),
    "add alpha of ints": lambda lib: lib.add(lib.tensor(K), lib.tensor(J), alpha=3),
    "add alpha of bools": lambda lib: lib.add(lib.tensor(M), lib.tensor(M), alpha=2),
    "add alpha number": lambda lib: lib.add(lib.tensor(K), 2, alpha=3),
    "sub alpha": lambda lib: lib.tensor(A).sub(lib.tensor(B), alpha=0.5),
    "rsub": lambda lib: (lib.rsub(lib.tensor(K), 2, alpha=3), lib.rsub(lib.tensor(A), lib.tensor(B))),
    "numbers on the left": lambda lib: [getattr(lib, n)(2, lib.tensor(J)) for n in ("sub", "div", "pow", "mul")],
    "div floor": lambda lib: lib.div(lib.tensor(K), lib.tensor(J), rounding_mode="floor"),
    "div trunc": lambda lib: lib.div(lib.tensor(K), lib.tensor(J), rounding_mode="trunc"),
    "div trunc of large ints": lambda lib: lib.div(lib.tensor([-(2**62) - 1, 2**62 + 3]), 2, rounding_mode="trunc"),
    "div trunc of floats": lambda lib: lib.div(lib.tensor(A), lib.tensor(B), rounding_mode="trunc"),
    "addcmul": lambda lib: lib.addcmul(lib.tensor(A), lib.tensor(A), lib.tensor(B), value=0.5),
    "addcmul of ints": lambda lib: lib.addcmul(lib.tensor(K), lib.tensor(K), lib.tensor(J), value=1.9),
    "addcdiv": lambda lib: lib.addcdiv(lib.tensor(A), lib.tensor(A), lib.tensor(B), value=2),
    "lerp": lambda lib: (lib.lerp(lib.tensor(A), lib.tensor(B), 0.7), lib.tensor(A).lerp(lib.tensor(B), lib.tensor(B))),
    "float_power": lambda lib: (lib.float_power(lib.tensor(J), 2), lib.float_power(2, lib.tensor(J))),
    "ldexp": lambda lib: (lib.ldexp(lib.tensor(K), lib.tensor(J)), lib.ldexp(lib.tensor(A[0, :3]), lib.tensor(J))),
    "frexp": lambda lib: tuple(lib.frexp(lib.tensor(A))),
    "pow of bools": lambda lib: lib.tensor(M) ** 2,
    "heaviside": lambda lib: lib.heaviside(lib.tensor(ODD), lib.tensor(np.full(7, 0.5))),
    # limits
    "clamp numbers": lambda lib: (lib.clamp(lib.tensor(A), -0.5, 0.5), lib.tensor(A).clamp(min=0)),
    "clip": lambda lib: lib.tensor(K).clip(0, 2),
    "clamp ints by floats": lambda lib: lib.clamp(lib.tensor(K), max=0.5),
    "clamp tensors": lambda lib: lib.clamp(lib.tensor(A), lib.tensor(B), lib.tensor(B) + 1),
    "clamp one tensor": lambda lib: lib.clamp(lib.tensor(A), max=lib.tensor(B)),
    "clamp_min": lambda lib: lib.clamp_min(lib.tensor(K), lib.tensor(J)),
    "clamp_max of bools": lambda lib: lib.clamp_max(lib.tensor(M), lib.tensor(~M)),
    "nan_to_num": lambda lib: lib.nan_to_num(lib.tensor(ODD)),
    "nan_to_num by others": lambda lib: lib.nan_to_num(lib.tensor(ODD).float(), 1.0, 2.0, -3.0),
    "nan_to_num of ints": lambda lib: lib.nan_to_num(lib.tensor(K), nan=3.0),
    "round": lambda lib: (lib.round(lib.tensor(A), decimals=2), lib.tensor(A * 100).round(decimals=-1)),
    "round of ints": lambda lib: lib.round(lib.tensor(K)),
    "frac": lambda lib: lib.frac(lib.tensor(A * 5)),
    # tests
    "tests": lambda lib: [getattr(lib, n)(lib.tensor(ODD)) for n in TESTS],
    "tests of ints": lambda lib: [getattr(lib, n)(lib.tensor(K)) for n in TESTS],
    "isreal": lambda lib: lib.isreal(lib.tensor(np.array([1 + 0j, 2j]))),
    "isclose": lambda lib: lib.isclose(lib.tensor(ODD), lib.tensor(ODD) * (1 + 1e-9), equal_nan=True),
    "isclose of ints": lambda lib: lib.isclose(lib.tensor(K), lib.tensor(K) + 1, rtol=0.3),
    "isclose of bools": lambda lib: lib.isclose(lib.tensor(M), lib.tensor(~M)),
    "allclose": lambda lib: (lib.allclose(lib.tensor(A), lib.tensor(A)), lib.tensor(A).allclose(lib.tensor(A) + 1)),
    "equal": lambda lib: (lib.equal(lib.tensor(K), lib.tensor(K)), lib.equal(lib.tensor(K), lib.tensor(J))),
    # where and masks
    "where": lambda lib: lib.where(lib.tensor(A) > 0, lib.tensor(A), 0.0),
    "where alone": lambda lib: tuple(lib.where(lib.tensor(K) > 0)),
    "masked_fill": lambda lib: lib.masked_fill(lib.tensor(A[:, :3]), lib.tensor(M), -1),
    "masked_fill of ints": lambda lib: lib.tensor([2**62 + 1, 1, 2]).masked_fill(lib.tensor(~M), 1.7),
    "masked_fill by a tensor": lambda lib: lib.tensor(J).masked_fill(lib.tensor(M), lib.tensor(2.5)),
    "dist": lambda lib: (lib.dist(lib.tensor(A), lib.tensor(B)), lib.dist(lib.tensor(A), lib.tensor(B), 3)),
    # operators
    "bits": lambda lib: (lib.tensor(K) & 3, lib.tensor(K) | lib.tensor(J), 5 ^ lib.tensor(K), ~lib.tensor(K)),
    "bits of bools": lambda lib: (lib.tensor(M) & True, lib.tensor(M) | False, ~lib.tensor(M)),
    "bits of both": lambda lib: lib.tensor(M) ^ lib.tensor(J),
    "shifts": lambda lib: (lib.tensor(K) << 2, lib.tensor(K) >> 1, 1 << lib.tensor(J), 64 >> lib.tensor(J)),
    "far shifts": lambda lib: (lib.tensor(K) << 70, lib.tensor(K) >> 70, lib.tensor(K) << -1, lib.tensor(K) >> -3),
    "gcd": lambda lib: (lib.gcd(lib.tensor(K), lib.tensor(J)), lib.tensor(K).lcm(lib.tensor(J))),
    "whole division": lambda lib: (lib.tensor(K) // 3, 7 // lib.tensor(J), lib.tensor(A) // 0.3),
    "remainders": lambda lib: (lib.tensor(K) % 3, 7 % lib.tensor(J), lib.fmod(lib.tensor(K), 3)),
    "polygamma": lambda lib: (lib.polygamma(1, lib.tensor(A * A + 1)), lib.tensor(A * A + 1).polygamma(2)),
    "mvlgamma": lambda lib: lib.tensor(A * A + 3).mvlgamma(3),
    "logit": lambda lib: (lib.logit(lib.tensor(ODD)), lib.tensor(ODD).logit(0.1)),
    "angles of ints": lambda lib: (lib.deg2rad(lib.tensor(K)), lib.rad2deg(lib.tensor(K)), lib.sin(lib.tensor(M))),
    "positive": lambda lib: lib.positive(lib.tensor(K)),
    # in place
    "abs_": in_place("abs_", A),
    "exp_": in_place("exp_", A),
    "add_ alpha": lambda lib: lib.tensor(A).add_(lib.tensor(B), alpha=2),
    "addcmul_": in_place("addcmul_", A, A, B),
    "clamp_": in_place("clamp_", A, -0.5, 0.5),
    "lerp_": in_place("lerp_", A, A[::-1].copy(), 0.25),
    "eq_": in_place("eq_", K, 5),
    "logical_not_": in_place("logical_not_", K),
    "masked_fill_": in_place("masked_fill_", J, M, 9),
    "bitwise_and_": in_place("bitwise_and_", K, 3),
    "polygamma_": in_place("polygamma_", A * A + 1, 1),
    "nan_to_num_": in_place("nan_to_num_", ODD),
    "div_": lambda lib: lib.tensor(A).div_(lib.tensor(B), rounding_mode="floor"),
    "relu_": in_place("relu_", A),
    "celu_": lambda lib: lib.celu_(lib.tensor(A), 0.5),
    "threshold_": lambda lib: lib.threshold_(lib.tensor(A), 0.1, 20.0),
}  # fmt: skip


def test_where_takes_a_mask_of_bytes() -> None:
    """As torch does, with a warning: code from before there were bools has such masks."""
    mask, x = gt.tensor([1, 0, 2], dtype=gt.uint8), gt.tensor([1.0, 2.0, 3.0])
    assert gt.where(mask, x, 0.0).tolist() == x.where(mask, gt.zeros(3)).tolist() == [1.0, 0.0, 3.0]


@pytest.mark.parametrize("name", CASES)
def test_results_are_as_in_torch(name: str) -> None:
    agree(CASES[name], rtol=1e-6, atol=1e-7)


@as_in_torch(rtol=1e-6, atol=1e-7)
def test_operators_write_in_place(lib: Any) -> Any:
    x, b = lib.tensor(K), lib.tensor(M)
    seen, mask = x.view(-1), b.view(-1)
    x //= 2
    x %= 5
    x <<= 2
    x |= 1
    x ^= 3
    x &= 14
    x >>= 1
    b &= lib.tensor([True, True, False])
    return seen, mask


# -- complex numbers -------------------------------------------------------------------------

COMPLEX = """exp exp2 expm1 log log1p log2 log10 sqrt rsqrt reciprocal square sin cos tan asin acos atan sinh cosh tanh
    asinh acosh atanh sigmoid sinc neg abs sgn""".split()


@pytest.mark.parametrize("name", COMPLEX)
@as_in_torch(rtol=1e-5, atol=1e-7)
def test_complex_functions_and_gradients(lib: Any, name: str) -> Any:
    """First and second derivatives follow torch's convention: the conjugate."""
    z = lib.tensor(Z, requires_grad=True)
    y = getattr(lib, name)(z)
    g = lib.tensor(W) if name != "abs" else lib.tensor(W.real.copy())
    grad = lib.autograd.grad(y, z, g, create_graph=True)[0]
    if name == "neg":
        return y, grad
    return y, grad, lib.autograd.grad(grad, z, lib.tensor(W.conj().copy()))[0]


PAIRS: dict[str, Any] = {
    "add": lambda lib, a, b: a + b, "sub": lambda lib, a, b: a - b, "mul": lambda lib, a, b: a * b,
    "div": lambda lib, a, b: a / b, "pow": lambda lib, a, b: a**b, "pow 2": lambda lib, a, b: a**2 * b,
    "where": lambda lib, a, b: lib.where(lib.tensor(np.arange(5) > 2), a, b),
    "lerp": lambda lib, a, b: lib.lerp(a, b, a * b),
    "addcmul": lambda lib, a, b: lib.addcmul(a, a, b, value=2), "addcdiv": lambda lib, a, b: lib.addcdiv(a, b, a),
    "real part": lambda lib, a, b: (a * b).real * a.abs(), "numbers": lambda lib, a, b: a * (1 + 2j) - 3j / b,
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
@as_in_torch(rtol=1e-5, atol=1e-7)
def test_complex_pairs_and_gradients(lib: Any, name: str) -> Any:
    a, b = lib.tensor(Z, requires_grad=True), lib.tensor(W, requires_grad=True)
    y = PAIRS[name](lib, a, b)
    g = lib.tensor(A[0, 0] * Z) if name != "real part" else lib.tensor(A[0, 0] * Z.real)
    y.backward(g)
    return y, a.grad, a.grad if b.grad is None else b.grad


@as_in_torch(rtol=1e-6, atol=1e-7)
def test_a_real_operand_beside_complex_ones_has_a_real_gradient(lib: Any) -> Any:
    x, z = lib.tensor(A[0], requires_grad=True), lib.tensor(Z[:4])
    (x * z + z / x).abs().sum().backward()
    return x.grad


# -- activations -----------------------------------------------------------------------------

ACTIVATIONS: dict[str, tuple[Any, ...]] = {
    "relu": (), "relu6": (), "leaky_relu": (0.2,), "elu": (0.7,), "selu": (), "celu": (1.3,), "gelu": (), "silu": (),
    "mish": (), "softplus": (2.0, 1.5), "softsign": (), "hardtanh": (-0.4, 0.6), "hardsigmoid": (), "hardswish": (),
    "logsigmoid": (), "tanhshrink": (), "softshrink": (0.3,), "hardshrink": (0.3,), "threshold": (0.1, 5.0),
    "rrelu": (0.1, 0.3), "glu": (1,),
}  # fmt: skip
#: With the kinks of most of them.
KINKS = np.array(
    [[-6.0, -3.0, -1.0, -0.4, -0.3, 0.0], [0.1, 0.3, 0.6, 1.0, 3.0, 6.0], [-0.5, 0.5, 30.0, -30.0, 2.0, 9.0]]
)


@pytest.mark.parametrize("name", ACTIVATIONS)
@as_in_torch(rtol=1e-6, atol=1e-7)
def test_activations_and_their_gradients(lib: Any, name: str) -> Any:
    function = getattr(activations if lib is gt else torch.nn.functional, name)
    x = lib.tensor(KINKS, requires_grad=True)
    y = function(x, *ACTIVATIONS[name])
    (y * y).sum().backward()
    return y, x.grad


def test_prelu_has_a_weight_for_each_channel() -> None:
    for n in (1, 3):
        compare(lambda lib, x, w: lib.nn.functional.prelu(x, w), A.reshape(2, 3, 2), B[:n])


@pytest.mark.parametrize(
    "name", [n for n in ACTIVATIONS if "inplace" in inspect.signature(getattr(activations, n)).parameters]
)
@as_in_torch(rtol=1e-6, atol=1e-7)
def test_activations_in_place(lib: Any, name: str) -> Any:
    function = getattr(activations if lib is gt else torch.nn.functional, name)
    x = lib.tensor(KINKS, requires_grad=True)
    z = x * 1
    y = function(z, *ACTIVATIONS[name], inplace=True)
    assert y is z
    y.sum().backward()
    return y, x.grad


# -- names -----------------------------------------------------------------------------------


def test_names_are_where_torch_has_them() -> None:
    names = [*elementwise.__all__, *activations.__all__]
    assert not [n for n in names if not hasattr(torch, n)]
    methods = {n for n in names if hasattr(torch.Tensor, n)}
    assert not [n for n in methods if n not in vars(gt.Tensor)]
    assert not [n for n in names if hasattr(torch.Tensor, n + "_") and n + "_" not in vars(gt.Tensor)]
    assert not [n for n in special.__all__ if not hasattr(torch.special, n)]


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_signatures_are_as_in_torch(name: str) -> None:
    try:
        theirs = inspect.signature(getattr(torch.nn.functional, name)).parameters.values()
    except ValueError:
        pytest.skip("torch's is not written in Python")
    mine = inspect.signature(getattr(activations, name)).parameters.values()
    assert [(p.name, p.default) for p in mine] == [(p.name, p.default) for p in theirs]


# -- special functions -----------------------------------------------------------------------

POINTS = np.array([-30.0, -3.3, -1.5, -1.0, -0.25, 0.0, 1e-8, 0.3, 1.0, 2.5, 8.0, 30.0, 80.0, np.inf, np.nan])


@pytest.mark.parametrize("name", [*"entr erfcx i0e i1e ndtr log_ndtr ndtri gammaln psi sinc expit erfinv".split()])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_special_functions_far_out(name: str, dtype: str) -> None:
    """The numpy engine computes them itself."""
    mine = getattr(gt.special, name)(gt.tensor(POINTS).to(dtype)).numpy()
    theirs = getattr(torch.special, name)(torch.tensor(POINTS).to(getattr(torch, dtype))).numpy()
    np.testing.assert_allclose(mine, theirs, rtol=1e-9 if dtype == "float64" else 1e-5, atol=1e-30)


def test_zeta_and_polygamma_of_negative_numbers() -> None:
    q = np.array([-20.3, -1.5, -0.2, 0.7, 12.0, 1e4])
    for n in (1, 2, 5):
        agree(lambda lib, n=n: (lib.polygamma(n, lib.tensor(q)), lib.special.zeta(n + 1, lib.tensor(q))), rtol=1e-6)
    agree(lambda lib: lib.special.zeta(lib.tensor([0.5, 1.0, 1.1, 3.7], dtype=lib.float64), 0.5), rtol=1e-6)


# -- mistakes --------------------------------------------------------------------------------

MISTAKES: Mistakes = {
    "alpha": (lambda: gt.add(gt.tensor(K), gt.tensor(J), alpha=0.5), ArgumentError, "add: alpha must be an int for"),
    "negative power": (lambda: gt.tensor(K) ** -1, ArgumentError, "pow: the exponent of integers must be >= 0, got -1"),
    "mixed limits": (lambda: gt.clamp(gt.tensor(A), gt.tensor(B), 1), ArgumentError, "clamp: the limits must be both"),
    "no limits": (lambda: gt.clamp(gt.tensor(A)), ArgumentError, "clamp: expected min, max or both"),
    "rounding": (lambda: gt.div(gt.tensor(A), 2, rounding_mode="up"), ArgumentError, "div: rounding_mode must be one"),
    "bits of floats": (lambda: gt.tensor(A) & 1, DTypeError, "bitwise_and: expected integers or bools, got float64"),
    "shift of floats": (lambda: gt.tensor(A) << 1, DTypeError, "bitwise_left_shift: expected integers, got float64"),
    "frac of ints": (lambda: gt.frac(gt.tensor(K)), DTypeError, "frac: expected a floating-point tensor, got int64"),
    "order": (lambda: gt.tensor(Z) < 1, DTypeError, "lt: is not defined for complex numbers"),
    "lerp": (lambda: gt.lerp(gt.tensor(A), gt.tensor(B).float(), 0.5), DTypeError, "lerp: expected one dtype"),
    "decimals": (
        lambda: gt.round(gt.tensor(K), decimals=1),
        DTypeError,
        "round: expected a floating-point dtype, got int64",
    ),
    "shapes": (
        lambda: gt.atan2(gt.tensor(A), gt.tensor(J)),
        ShapeError,
        r"atan2: shapes \(3, 4\) and \(3,\) do not broadcast",
    ),
    "glu": (lambda: activations.glu(gt.tensor(A), 0), ShapeError, "glu: the size of dimension 0 must be even, got"),
    "prelu": (lambda: activations.prelu(gt.tensor(A), gt.tensor(B[:2])), ShapeError, "prelu: weight must have 1 or 4"),
    "gelu": (lambda: activations.gelu(gt.tensor(A), "fast"), ArgumentError, "gelu: approximate must be one of"),
    "mask": (lambda: gt.masked_fill(gt.tensor(A), gt.tensor(A), 1.0), DTypeError, "where: the condition must be bool"),
    "elu of ints": (
        lambda: activations.elu(gt.tensor(K)),
        DTypeError,
        "elu: expected a floating-point dtype, got int64",
    ),
}


test_mistakes = refused(MISTAKES)
