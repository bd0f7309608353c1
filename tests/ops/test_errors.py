"""The line a user gets for operands or attributes that do not fit; and strangers' attributes."""

from __future__ import annotations

import random
from typing import Any

import pytest

from gt import dtypes, errors
from gt.ops import TABLE, check
from gt.program import SCALARS, Instruction, Program, Spec, as_tuple, spec
from tests.ops.cases import samples, specs_of


def f(*shape: int) -> Spec:
    return spec(shape, dtypes.float32)


def i(*shape: int) -> Spec:
    return spec(shape, dtypes.int64)


def b(*shape: int) -> Spec:
    return spec(shape, dtypes.bool_)


INT, FLOAT, BYTES = SCALARS["i"], SCALARS["f"], SCALARS["d"]
NLL = {"reduction": "mean", "ignore_index": -100}

LINES: list[tuple[str, tuple[Spec, ...], dict[str, Any], type, str]] = [
    ("matmul", (f(4, 6), f(5, 2)), {}, errors.ShapeError, "matmul: (4, 6) @ (5, 2): inner sizes 6 and 5 differ"),
    ("matmul", (f(), f(2)), {}, errors.ShapeError,
     "matmul: () @ (2,): both need at least one dimension; use * for scalars"),
    ("matmul", (f(2, 3, 4), f(5, 4, 3)), {}, errors.ShapeError,
     "matmul: (2, 3, 4) @ (5, 4, 3): batches (2,) and (5,) do not broadcast"),
    ("matmul", (f(2, 2), i(2, 2)), {}, errors.DTypeError,
     "matmul: expected one dtype, got float32 and int64; cast one of them"),
    ("linear", (f(2, 3), f(4, 5)), {}, errors.ShapeError,
     "linear: the last sizes of input (2, 3) and weight (4, 5) must be equal"),
    ("add", (f(2, 3), f(4)), {}, errors.ShapeError,
     "add: shapes (2, 3) and (4,) do not broadcast: sizes 3 and 4 differ"),
    ("add", (f(2), BYTES), {}, errors.ArgumentError, "add: expected a number or a tensor, got bytes"),
    ("exp", (FLOAT,), {}, errors.ArgumentError, "exp: expected a tensor, got a number"),
    ("sub", (b(2), b(2)), {}, errors.DTypeError,
     "sub: is not defined for bool; use logical_xor, or logical_not for 1 - x"),
    ("neg", (b(2),), {}, errors.DTypeError, "neg: is not defined for bool; cast first, as in x.int()"),
    ("mean", (i(2),), {"dims": (0,), "keepdim": False}, errors.DTypeError,
     "mean: expected a floating-point dtype, got int64; cast first, as in x.float()"),
    ("sum", (f(2),), {"dims": (1,), "keepdim": False}, errors.DimError,
     "sum: dimension 1 is out of range for a tensor of 1 dimensions"),
    ("sum", (f(2),), {"dims": (0, 0), "keepdim": False}, errors.DimError,
     "sum: dimensions must be different, got (0, 0)"),
    ("sum", (f(2),), {"dims": (0,), "keepdim": 1}, errors.ArgumentError, "sum: keepdim must be True or False, got 1"),
    ("sum", (f(2),), {"dims": (0.0,), "keepdim": True}, errors.ArgumentError,
     "sum: dims must be a tuple of ints, got (0.0,)"),
    ("amax", (f(0, 2),), {"dims": (0,), "keepdim": False}, errors.DimError,
     "amax: expected at least one element, got shape (0, 2)"),
    ("argmax", (f(0),), {"dim": None, "keepdim": False}, errors.DimError,
     "argmax: expected at least one element, got shape (0,)"),
    ("softmax", (i(2),), {"dim": 0}, errors.DTypeError,
     "softmax: expected a floating-point dtype, got int64; cast first, as in x.float()"),
    ("where", (f(2), f(2), f(2)), {}, errors.DTypeError,
     "where: the condition must be bool, got float32; compare first, as in x > 0"),
    ("reshape", (f(2, 3),), {"shape": (4,)}, errors.ShapeError, "reshape: (2, 3) has 6 elements, but (4,) has 4"),
    ("reshape", (f(2, 3),), {"shape": (-1,)}, errors.ShapeError, "reshape: shape must hold sizes >= 0, got (-1,)"),
    ("permute", (f(2, 3),), {"dims": (0,)}, errors.ShapeError,
     "permute: expected an order of 2 dimensions for shape (2, 3), got (0,)"),
    ("expand", (f(2, 3),), {"shape": (2, 4)}, errors.ShapeError,
     "expand: a tensor of shape (2, 3) cannot be expanded to (2, 4)"),
    ("cat", (f(2, 3), f(2, 4)), {"dim": 0}, errors.ShapeError,
     "cat: shapes must be equal except in dimension 0, got (2, 3) and (2, 4)"),
    ("split", (f(5),), {"sizes": (2, 2), "dim": 0}, errors.ShapeError,
     "split: sizes must add up to 5, the size of dimension 0 of shape (5,)"),
    ("slice", (f(5), INT), {"dims": (0,), "lengths": (6,), "steps": (1,), "drop": ()}, errors.ShapeError,
     "slice: 6 elements, step 1, do not fit into size 5"),
    ("slice", (f(5), FLOAT), {"dims": (0,), "lengths": (1,), "steps": (1,), "drop": ()}, errors.ArgumentError,
     "slice: expected a Python int, got a tensor or another number"),
    ("slice_put", (f(5), f(3), INT), {"dims": (0,), "lengths": (2,), "steps": (1,), "drop": ()}, errors.ShapeError,
     "slice_put: expected a value of the slice's shape (2,), got (3,)"),
    ("assign", (f(2), f(3)), {}, errors.ShapeError, "assign: a value of shape (3,) cannot be expanded to (2,)"),
    ("tril", (f(3),), {"diagonal": 0}, errors.ShapeError, "tril: expected a matrix, got shape (3,)"),
    ("gather", (f(3, 4), f(3, 4)), {"dim": 0}, errors.DTypeError,
     "gather: an index must be int64 or int32, got float32; cast it, as in i.long()"),
    ("gather", (f(3, 4), i(3)), {"dim": 0}, errors.ShapeError,
     "gather: index (3,) must have as many dimensions as the tensor, 2"),
    ("gather", (f(3, 4), i(1, 5)), {"dim": 0}, errors.ShapeError,
     "gather: index (1, 5) is larger than (3, 4) in dimension 1"),
    ("index", (f(3, 4), i(2), i(3)), {"dims": (0, 1)}, errors.ShapeError,
     "index: shapes (2,) and (3,) do not broadcast: sizes 2 and 3 differ"),
    ("embedding", (f(3), i(2)), {}, errors.ShapeError, "embedding: the weight must be a matrix, got shape (3,)"),
    ("nll_loss", (f(4, 3), i(5)), NLL, errors.ShapeError,
     "nll_loss: scores (4, 3) need targets of shape (4,), got (5,)"),
    ("cast", (f(2),), {"dtype": "float128"}, errors.DTypeError,
     "cast: unknown dtype 'float128'; expected one of " + ", ".join(dtypes.BY_NAME)),
    ("dropout", (f(2), INT), {"p": 1.5}, errors.ArgumentError, "dropout: p must be from 0 to 1, got 1.5"),
    ("gelu", (f(2),), {"approximate": "fast"}, errors.ArgumentError,
     "gelu: approximate must be one of none, tanh; got 'fast'"),
    ("full", (FLOAT,), {"shape": (True,), "dtype": "float32"}, errors.ShapeError,
     "full: shape must hold sizes >= 0, got (True,)"),
    ("sgd", (f(2), f(3), FLOAT, FLOAT), {}, errors.ShapeError,
     "sgd: parameter, gradient and state must have one shape, got (2,) and (3,)"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "specs", "attrs", "error", "line"), LINES, ids=lambda x: x if isinstance(x, str) else ""
)
def test_lines(name: str, specs: Any, attrs: Any, error: type, line: str) -> None:
    with pytest.raises(errors.GTError) as caught:
        TABLE[name].infer(*specs, **attrs)
    assert type(caught.value) is error
    assert str(caught.value) == line


HOSTILE = [
    None, True, -1, 0, 2**60, 2**62, 2**200, -(2**63), 1.5, float("nan"), float("inf"), "", "float32", "x" * 1000, b"",
    [], [[]], [2**60], [2**60, 2**60], [-1], [0], [0, 0], [1, 0], [True], [1.0], [None], ["a"], [1] * 100, {}, {"a": 1},
]  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_strangers_attributes(name: str) -> None:
    """Inference answers or refuses at once, whatever it is asked, and what it lets pass are shapes."""
    op, rng = TABLE[name], random.Random(name)
    operands = [f(2, 3), f(), f(0), f(2**30, 2**30), i(2, 3), i(), b(2), INT, FLOAT, SCALARS["b"], BYTES]
    lines: list[str] = []
    for args, attrs in samples(op):
        own = specs_of(args)
        for _ in range(40):
            specs = [rng.choice(operands) if rng.random() < 0.3 else s for s in own]
            if rng.random() < 0.1:
                specs = specs[: rng.randrange(len(specs) + 1)] + rng.choices(operands, k=rng.randrange(2))
            mutated = {k: rng.choice(HOSTILE) if rng.random() < 0.5 else v for k, v in attrs.items()}
            if rng.random() < 0.1:
                mutated["surprise"] = rng.choice(HOSTILE)
            try:
                results = as_tuple(op.infer(*specs, **mutated))
            except errors.GTError as e:
                lines.append(str(e))
                continue
            except TypeError:
                continue  # wrong number of operands, unknown or missing attributes
            for s in results:
                assert not s.weak
                assert all(type(n) is int and n >= 0 for n in s.shape)
            if op.indices is not None:
                for k, (n, extra) in op.indices(*specs, **mutated).items():
                    assert not specs[k].weak
                    assert type(n) is int
                    assert extra is None or type(extra) is int
    assert all(len(line) < 500 and "\n" not in line for line in lines), max(lines, key=len)[:600]


def test_a_check_names_the_instruction() -> None:
    code = (Instruction("exp", (0,), {}), Instruction("matmul", (1, 1), {}))
    with pytest.raises(errors.ProgramError, match=r"instruction 1: matmul: \(2, 3\) @ \(2, 3\): inner sizes 3 and 2"):
        check(Program((((2, 3), "float32"),), "", code, (2,), (), ()))
