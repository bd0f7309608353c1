"""The plain interpreter, and compositions written down."""

from __future__ import annotations

import numpy as np
import pytest

from gt import dtypes
from gt.errors import ProgramError
from gt.ops import TABLE, check
from gt.ops.evaluate import evaluate, expand
from gt.program import Instruction, Program, spec
from tests.ops.cases import NUMPY


def test_a_program_runs() -> None:
    code = (
        Instruction("matmul", (0, 1), {}),
        Instruction("mul", (2, ~0), {}),
        Instruction("softmax", (3,), {"dim": 1}),  # composed, on numpy
        Instruction("split", (4,), {"sizes": [1, 2], "dim": 1}, 2),
    )
    program = Program((((2, 4), "float64"), ((4, 3), "float64")), "f", code, (6, 5), (), ())
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 4)), rng.normal(size=(4, 3))
    right, left = evaluate(check(program), [a, b], [0.5], NUMPY.kernel)
    e = np.exp(a @ b * 0.5)
    np.testing.assert_allclose(np.concatenate([left, right], axis=1), e / e.sum(1, keepdims=True))


def test_a_composition_is_written_down() -> None:
    trace, (out,) = expand(TABLE["silu"], [spec((3,), dtypes.float32)], {})
    assert [op.name for op, *_ in trace.code] == ["sigmoid", "mul"]
    assert out.shape == (3,)
    with pytest.raises(ProgramError, match="exp: has neither a kernel for this engine nor a composition"):
        expand(TABLE["exp"], [spec((3,), dtypes.float32)], {})
