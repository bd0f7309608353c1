"""Counts of random events, out of a uniform and a normal number for each (random.py)."""

from __future__ import annotations

from typing import Any

import numpy as np

from gt.ops import rules
from gt.ops.families.random import rand, randn
from gt.ops.record import Kernel, PreparedKernel, Site, op
from gt.program import Spec


def _infer_poisson(rate: Spec, seed: Spec) -> Spec:
    rules.floats("poisson", rate)
    rules.integer("poisson", seed)
    return rate


_TERMS = 60  #: beyond this count a rate below 15 leaves less than 1e-16


def _poisson(lib: Any, rate: Any, u: Any, z: Any) -> Any:
    """In float64. Small rates: how many of the cumulated probabilities a uniform number passes. Large ones: the
    normal number's quantile, corrected for the skew (Cornish-Fisher), which is right to a part in a thousand."""
    small = lib.where(rate < 15, rate, rate * 0)
    p = lib.exp(-small)
    passed, count = p, rate * 0
    for k in range(1, _TERMS):
        count = count + (u >= passed)
        p = p * small / k
        passed = passed + p
    large = lib.where(rate < 15, rate * 0 + 15, rate)
    root = lib.sqrt(large)
    x = large + root * z + (z * z + 2) / 6 - (2 * z + z**3) / (72 * root)
    x = x + (-16 + 7 * z**2 + 3 * z**4) / (810 * large)
    return lib.where(rate < 15, count, lib.where(x < 0, x * 0, lib.floor(x)))


def _draws(engine: str) -> tuple[Kernel, Kernel]:
    return rand.kernels[engine], randn.kernels[engine]


def _poisson_numpy(np_: Any, rate: Any, seed: int) -> Any:
    shape = rate.shape
    u, z = (f(np, seed, shape=shape, dtype="float64") for f in _draws("numpy"))
    return np.asarray(_poisson(np, rate.astype(np.float64), u, z))


def _poisson_jax(xp: Any, rate: Any, seed: Any) -> Any:
    u, z = (f(xp, seed, shape=rate.shape, dtype="float64") for f in _draws("jax"))
    return _poisson(xp, rate.astype("float64"), u, z).astype(rate.dtype)


def _poisson_torch(torch: Any, site: Site) -> Any:
    draws = [make(torch, site, shape=site.specs[0].shape, dtype="float64") for make in _draws("torch")]

    def kernel(rate: Any, seed: int) -> Any:
        return _poisson(torch, rate.double(), *(draw(seed) for draw in draws)).to(rate.dtype)

    return kernel


def _poisson_graph(torch: Any, site: Site) -> PreparedKernel:
    shape = site.specs[0].shape
    uniform, normal = (make(torch, site, shape=shape, dtype="float64") for make in _draws("torch_graph"))

    def kernel(rate: Any, *key: Any) -> Any:
        split = len(uniform.kinds)
        return _poisson(torch, rate.double(), uniform.kernel(*key[:split]), normal.kernel(*key[split:])).to(rate.dtype)

    return PreparedKernel(lambda s: uniform.numbers(s) + normal.numbers(s), uniform.kinds + normal.kinds, kernel)


poisson = op(
    "poisson",
    "Random numbers from the Poisson distributions with the given rates.",
    infer=_infer_poisson,
    vjp=(lambda g, y, rate, seed: g * 0.0,),
    kernels={"numpy": _poisson_numpy, "jax": _poisson_jax, "torch": _poisson_torch, "torch_graph": _poisson_graph},
    samples=lambda rng: [
        ((rng.uniform(0, 10, size=(4, 5)), 11), {}),
        ((np.array([0.0, 14.0, 16.0, 400.0]), 12), {}),
        ((np.array(3.5), 13), {}),
        ((np.zeros((0, 3)), 14), {}),
    ],
)
