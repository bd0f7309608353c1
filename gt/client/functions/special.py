"""gt.special: torch's special functions. Many are the functions of the top level by another name."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from gt.client.compat import arguments as _arguments
from gt.client.compat.fallback import namespace
from gt.client.functions import elementwise as ew
from gt.client.functions.elementwise import (
    digamma,
    erf,
    erfc,
    erfinv,
    exp2,
    expm1,
    i0,
    log1p,
    logit,
    polygamma,
    sinc,
    xlogy,
)
from gt.client.functions.reductions import log_softmax, logsumexp, softmax
from gt.client.programs.tree import Kind
from gt.client.record.recorder import binary, unary
from gt.ops import TABLE

if TYPE_CHECKING:
    from gt.client.tensor import Tensor

__all__ = [
    "digamma", "entr", "erf", "erfc", "erfcx", "erfinv", "exp2", "expit", "expm1", "gammaln", "i0", "i0e", "i1", "i1e",
    "log1p", "log_ndtr", "log_softmax", "logit", "logsumexp", "modified_bessel_i0", "modified_bessel_i1",
    "multigammaln", "ndtr", "ndtri", "polygamma", "psi", "round", "sinc", "softmax", "spherical_bessel_j0",
    "xlog1py", "xlogy", "zeta",
]  # fmt: skip

gammaln = ew.lgamma
multigammaln = ew.mvlgamma
psi = digamma
expit = ew.sigmoid
round = ew.round
modified_bessel_i0 = i0

_ENTR, _ERFCX, _I0E, _I1, _I1E = (Kind(TABLE[n], {}) for n in ("entr", "erfcx", "i0e", "i1", "i1e"))
_LOG_NDTR, _NDTRI, _XLOG1PY, _ZETA = (Kind(TABLE[n], {}) for n in ("log_ndtr", "ndtri", "xlog1py", "zeta"))


def entr(input: Any) -> Tensor:
    """-input * log(input); 0 at 0, -inf below."""
    return unary(_ENTR, input)


def erfcx(input: Any) -> Tensor:
    """exp(input ** 2) * erfc(input)."""
    return unary(_ERFCX, input)


def i0e(input: Any) -> Tensor:
    """i0(input) * exp(-abs(input))."""
    return unary(_I0E, input)


def i1(input: Any) -> Tensor:
    """The modified Bessel function of order 1."""
    return unary(_I1, input)


modified_bessel_i1 = i1


def i1e(input: Any) -> Tensor:
    """i1(input) * exp(-abs(input))."""
    return unary(_I1E, input)


def ndtr(input: Any) -> Tensor:
    """The normal distribution function."""
    return erfc(ew.mul(input, -math.sqrt(0.5))) * 0.5


def log_ndtr(input: Any) -> Tensor:
    """The logarithm of the normal distribution function."""
    return unary(_LOG_NDTR, input)


def ndtri(input: Any) -> Tensor:
    """The inverse of the normal distribution function."""
    return unary(_NDTRI, input)


def xlog1py(input: Any, other: Any) -> Tensor:
    """input * log1p(other); 0 where the input is 0."""
    return binary(_XLOG1PY, input, other)


def zeta(input: Any, other: Any) -> Tensor:
    """Hurwitz' zeta function."""
    return binary(_ZETA, input, other)


def spherical_bessel_j0(input: Any) -> Tensor:
    """sin(input) / input, and 1 at 0."""
    zero = ew.eq(input, 0)
    safe = ew.where(zero, 1.0, input)
    return ew.where(zero, 1.0, ew.sin(safe) / safe)


_arguments.explain_all(globals())

#: The rest is torch's: its other Bessel functions, its polynomials, gammainc and gammaincc.
__getattr__ = namespace("special")
