"""Special functions: the namespace gt.special. Many are functions of the top level under another name."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from gt.client.compat import arguments as _arguments
from gt.client.compat.fallback import namespace
from gt.client.functions import elementwise as ew
from gt.client.functions.elementwise import erf, erfc, erfinv, exp2, expm1, i0, log1p, logit, polygamma, sinc, xlogy
from gt.client.functions.elementwise import lgamma as gammaln
from gt.client.functions.elementwise import mvlgamma as multigammaln
from gt.client.functions.elementwise import round as round
from gt.client.functions.elementwise import sigmoid as expit
from gt.client.functions.reductions import log_softmax, logsumexp, softmax
from gt.client.record.recorder import binary, unary
from gt.client.record.tree import Kind
from gt.ops import TABLE

if TYPE_CHECKING:
    from gt.client.tensor import Tensor

__all__ = [
    "digamma", "entr", "erf", "erfc", "erfcx", "erfinv", "exp2", "expit", "expm1", "gammaln", "i0", "i0e", "i1", "i1e",
    "log1p", "log_ndtr", "log_softmax", "logit", "logsumexp", "modified_bessel_i0", "modified_bessel_i1",
    "multigammaln", "ndtr", "ndtri", "polygamma", "psi", "round", "sinc", "softmax", "spherical_bessel_j0",
    "xlog1py", "xlogy", "zeta",
]  # fmt: skip

psi = digamma = ew.digamma
modified_bessel_i0 = i0

_ENTR, _ERFCX, _I0E, _I1, _I1E = (Kind(TABLE[n], {}) for n in ("entr", "erfcx", "i0e", "i1", "i1e"))
_LOG_NDTR, _NDTRI, _XLOG1PY, _ZETA = (Kind(TABLE[n], {}) for n in ("log_ndtr", "ndtri", "xlog1py", "zeta"))


def entr(input: Any) -> Tensor:
    """-input * log(input); 0 at 0, -inf for negative input."""
    return unary(_ENTR, input)


def erfcx(input: Any) -> Tensor:
    """exp(input ** 2) * erfc(input)."""
    return unary(_ERFCX, input)


def i0e(input: Any) -> Tensor:
    """i0(input) * exp(-abs(input))."""
    return unary(_I0E, input)


def i1(input: Any) -> Tensor:
    """The modified Bessel function of the first kind of order 1."""
    return unary(_I1, input)


modified_bessel_i1 = i1


def i1e(input: Any) -> Tensor:
    """i1(input) * exp(-abs(input))."""
    return unary(_I1E, input)


def ndtr(input: Any) -> Tensor:
    """The cumulative distribution function of the standard normal distribution."""
    return erfc(ew.mul(input, -math.sqrt(0.5))) * 0.5


def log_ndtr(input: Any) -> Tensor:
    """The logarithm of ndtr()."""
    return unary(_LOG_NDTR, input)


def ndtri(input: Any) -> Tensor:
    """The inverse of ndtr()."""
    return unary(_NDTRI, input)


def xlog1py(input: Any, other: Any) -> Tensor:
    """input * log1p(other); 0 where input is 0."""
    return binary(_XLOG1PY, input, other)


def zeta(input: Any, other: Any) -> Tensor:
    """The Hurwitz zeta function."""
    return binary(_ZETA, input, other)


def spherical_bessel_j0(input: Any) -> Tensor:
    """The spherical Bessel function of order 0: sin(input) / input, and 1 at 0."""
    zero = ew.eq(input, 0)
    safe = ew.where(zero, 1.0, input)
    return ew.where(zero, 1.0, ew.sin(safe) / safe)


_arguments.explain_all(globals())

#: torch runs the other functions: Bessel functions, polynomials, gammainc and gammaincc.
__getattr__ = namespace("special")
