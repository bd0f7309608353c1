"""Special functions: the namespace gt.special. Many are functions of the top level under another name."""

from __future__ import annotations

import math
from typing import Any

from gt.client.compat import arguments as _arguments
from gt.client.compat.fallback import namespace
from gt.client.compat.outs import write_out as _write_out
from gt.client.functions import elementwise as ew
from gt.client.functions.elementwise import erf, erfc, erfinv, exp2, expm1, i0, log1p, logit, polygamma, sinc, xlogy
from gt.client.functions.elementwise import lgamma as gammaln
from gt.client.functions.elementwise import mvlgamma as multigammaln
from gt.client.functions.elementwise import round as round
from gt.client.functions.elementwise import sigmoid as expit
from gt.client.functions.reductions import log_softmax, logsumexp, softmax
from gt.client.tensor import Tensor

__all__ = [
    "digamma", "entr", "erf", "erfc", "erfcx", "erfinv", "exp2", "expit", "expm1", "gammaln", "i0", "i0e", "i1", "i1e",
    "log1p", "log_ndtr", "log_softmax", "logit", "logsumexp", "modified_bessel_i0", "modified_bessel_i1",
    "multigammaln", "ndtr", "ndtri", "polygamma", "psi", "round", "sinc", "softmax", "spherical_bessel_j0",
    "xlog1py", "xlogy", "zeta",
]  # fmt: skip

psi = digamma = ew.digamma
modified_bessel_i0 = i0

entr, erfcx, i0e, i1, i1e = map(ew.unary_function, ("entr", "erfcx", "i0e", "i1", "i1e"))
log_ndtr, ndtri = map(ew.unary_function, ("log_ndtr", "ndtri"))
xlog1py, zeta = map(ew.binary_function, ("xlog1py", "zeta"))
modified_bessel_i1 = i1


def ndtr(input: Any) -> Tensor:
    """The cumulative distribution function of the standard normal distribution."""
    return erfc(ew.mul(input, -math.sqrt(0.5))) * 0.5


def spherical_bessel_j0(input: Any) -> Tensor:
    """The spherical Bessel function of order 0: sin(input) / input, and 1 at 0."""
    zero = ew.eq(input, 0)
    safe = ew.where(zero, 1.0, input)
    return ew.where(zero, 1.0, ew.sin(safe) / safe)


_arguments.explain_all(globals(), _write_out)

#: torch runs the other functions: Bessel functions, polynomials, gammainc and gammaincc.
__getattr__ = namespace("special")
