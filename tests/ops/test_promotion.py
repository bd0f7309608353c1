"""Which dtypes meet in which, and which ops take which: as in torch, for every pair."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from gt import dtypes
from gt.dtypes import ALL, DType
from gt.errors import DTypeError
from gt.ops import TABLE
from gt.program import SCALARS, Spec, as_tuple, spec
from gt.worker.engines.numpy import NumpyEngine
from gt.worker.engines.torch import TorchEngine

TORCH, NUMPY = TorchEngine("cpu"), NumpyEngine()
NUMBERS = {"f": 1.5, "i": 2, "b": True}

BINARY = """add sub mul div pow maximum minimum fmax fmin remainder fmod floor_divide eq ne lt le gt ge
    logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift
    gcd lcm atan2 hypot copysign logaddexp2 xlogy nextafter""".split()
UNARY = """neg abs sign sgn exp exp2 expm1 log log1p log2 log10 sqrt rsqrt square reciprocal sin cos tan asin acos atan
    sinh cosh tanh asinh acosh atanh sinc sigmoid relu silu mish hardswish erf erfc erfinv lgamma digamma i0
    floor ceil trunc round signbit logical_not bitwise_not isnan isinf isfinite""".split()
REDUCTIONS = "sum mean prod amax amin any all".split()


def tensor(d: DType, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.ones(shape, dtype=getattr(torch, d.name))


def operands(d: DType) -> list[tuple[Spec, Any]]:
    """A tensor of that dtype with dimensions, and one without."""
    return [(spec(s, d), tensor(d, s)) for s in ((2,), ())]


SCALAR_OPERANDS: list[tuple[Spec, Any]] = [(SCALARS[k], v) for k, v in NUMBERS.items()]


@pytest.mark.parametrize("a", ALL, ids=lambda d: d.name)
def test_promote_is_result_type(a: DType) -> None:
    everything = [o for d in ALL for o in operands(d)] + SCALAR_OPERANDS
    for (sa, ta), (sb, tb) in itertools.product(operands(a), everything):
        name = str(torch.result_type(ta, tb))
        expected = dtypes.dtype("complex64" if name == "torch.complex32" else name)  # which GT has not
        assert dtypes.promote((sa, sb)) is expected, (sa, sb)
        assert dtypes.promote((sb, sa)) is expected, (sa, sb)


def as_array(x: Any) -> Any:
    return np.ones(tuple(x.shape), dtypes.dtype(str(x.dtype)).numpy) if isinstance(x, torch.Tensor) else x


def check(name: str, specs: list[Spec], values: list[Any], **attrs: Any) -> None:
    """Inference takes what torch's kernel takes, and says what dtype comes out of both engines."""
    op = TABLE[name]
    try:
        inferred = as_tuple(op.infer(*specs, **attrs))[0]
    except DTypeError:
        if name == "pow" and values[1] is True:
            return  # torch has a short cut for this power, and for no other of bools
        with pytest.raises((RuntimeError, TypeError)):
            getattr(torch, name, getattr(torch.nn.functional, name, None))(*values)
        return
    kernel = TORCH.kernel(op, attrs, specs)
    assert kernel is not None
    assert dtypes.dtype(str(kernel(*values).dtype)) is inferred.dtype, (name, specs)
    ours = NUMPY.kernel(op, attrs, specs)
    if ours is not None:
        result = ours(*map(as_array, values))
        assert dtypes.dtype(result.dtype) is inferred.dtype, (name, specs)
        if not inferred.dtype.is_floating_point:
            np.testing.assert_array_equal(result, kernel(*values).numpy(), err_msg=f"{name} {specs}")


@pytest.mark.parametrize("name", BINARY)
def test_binary_ops(name: str) -> None:
    for a, b in itertools.product(ALL, ALL):
        for (sa, ta), (sb, tb) in itertools.product(operands(a), operands(b)):
            check(name, [sa, sb], [ta, tb])
    for d in ALL:
        for (s, t), (n, value) in itertools.product(operands(d), SCALAR_OPERANDS):
            check(name, [s, n], [t, value])
            check_left(name, n, value, s, t)


def check_left(name: str, n: Spec, value: Any, s: Spec, t: Any) -> None:
    op = TABLE[name]
    try:
        inferred = as_tuple(op.infer(n, s))[0]
    except DTypeError:
        return
    for engine, operand in ((TORCH, t), (NUMPY, as_array(t))):
        kernel = engine.kernel(op, {}, [n, s])
        assert kernel is not None
        assert dtypes.dtype(str(kernel(value, operand).dtype)) is inferred.dtype, (name, n, s)


@pytest.mark.parametrize("name", UNARY)
def test_unary_ops(name: str) -> None:
    for d in ALL:
        for s, t in operands(d):
            check(name, [s], [t])


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name: str) -> None:
    for d in ALL:
        check(name, [spec((2, 3), d)], [tensor(d, (2, 3))], dims=(0,), keepdim=False)
        check(name, [spec((), d)], [tensor(d, ())], dims=(), keepdim=False)


def test_where_and_cat_promote() -> None:
    condition = torch.ones(2, dtype=torch.bool)
    for a, b in itertools.product(ALL, ALL):
        specs, given = [spec((2,), a), spec((2,), b)], [tensor(a, (2,)), tensor(b, (2,))]
        check("where", [spec((2,), dtypes.bool_), *specs], [condition, *given])
        check("cat", specs, given, dim=0)
    for d in ALL:
        for n, value in SCALAR_OPERANDS:
            check("where", [spec((2,), dtypes.bool_), spec((2,), d), n], [condition, tensor(d, (2,)), value])


def test_casts() -> None:
    for a, b in itertools.product(ALL, ALL):
        check("cast", [spec((2,), a)], [tensor(a, (2,))], dtype=b.name)
