"""What inference has said of an op is remembered, for all programs of a process."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from gt import dtypes, errors
from gt.ops.check import check, infer
from gt.ops.record import TABLE
from gt.program import Instruction, Program, spec

checking: Any = importlib.import_module("gt.ops.check")  # `gt.ops.check` is a function
X, Y = spec((2, 3), dtypes.float32), spec((3, 4), dtypes.float32)


@pytest.fixture(autouse=True)
def nothing_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "_remembered", {})


def test_equal_uses_are_one() -> None:
    first = infer(TABLE["matmul"], {}, [X, Y])
    assert infer(TABLE["matmul"], {}, [X, Y]) is first
    assert first.results == (spec((2, 4), dtypes.float32),)
    assert infer(TABLE["sum"], {"dims": (0,), "keepdim": False}, [X]) is infer(
        TABLE["sum"], {"dims": [0], "keepdim": False}, [X]
    ), "as it is sent a tuple is a list"


def test_other_operands_and_attributes_are_other_uses() -> None:
    assert infer(TABLE["exp"], {}, [X]) is not infer(TABLE["exp"], {}, [Y])
    kept, dropped = (infer(TABLE["sum"], {"dims": [0], "keepdim": k}, [X]).results for k in (True, False))
    assert (kept[0].shape, dropped[0].shape) == ((1, 3), (3,))


def test_numbers_that_are_equal_may_be_other_attributes() -> None:
    """A dimension of True is refused, or not; but never because 1 was seen before."""
    seen = []
    for dim in (1, True, 1.0):
        try:
            seen.append(infer(TABLE["softmax"], {"dim": dim}, [X]))
        except Exception as e:
            seen.append(e)
    assert len({id(each) for each in seen}) == 3


def test_errors_are_raised_each_time() -> None:
    for _ in range(2):
        with pytest.raises(errors.ShapeError):
            infer(TABLE["matmul"], {}, [X, X])
    assert not checking._remembered


def test_it_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "REMEMBERED", 5)
    for n in range(20):
        infer(TABLE["exp"], {}, [spec((n,), dtypes.float32)])
        assert 0 < len(checking._remembered) <= 5
    before = len(checking._remembered)
    infer(TABLE["cat"], {"dim": 0}, [X] * 100)
    assert len(checking._remembered) == before, "a large use is not remembered"


def test_attributes_that_cannot_be_sent_are_refused_by_inference() -> None:
    with pytest.raises(errors.ArgumentError, match="keepdim"):
        infer(TABLE["sum"], {"dims": (0,), "keepdim": object()}, [X])


def test_a_second_program_of_known_ops_infers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(n: int) -> Program:
        code = tuple(Instruction("exp", (i,), {}) for i in range(n))
        return Program((((2, 3), "float32"),), "", code, (n,), (), ())

    specs = check(program(1)).specs
    monkeypatch.setattr(checking, "as_tuple", None)  # what inference has said goes through it
    assert check(program(5)).specs == specs[:1] * 6
