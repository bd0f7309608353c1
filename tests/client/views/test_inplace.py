"""In-place writes that are refused. Those that are allowed are in test_aliases.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.client.session.session import Session
from gt.errors import AutogradError
from tests.client.views.aliasing import base

Write = Callable[[Any], Any]

REFUSED: dict[str, Write] = {
    "leaf": lambda x: x.add_(1.0),
    "augmented": lambda x: x.__iadd__(1.0),
    "slice of a leaf": lambda x: x.__setitem__(0, 1.0),
    "view of a leaf": lambda x: x[0].mul_(2.0),
    "view of a view of a leaf": lambda x: x.t()[1].zero_(),
    "mask": lambda x: x.__setitem__(x > 0.0, 1.0),
    "copy_": lambda x: x.copy_(x.detach() * 2.0),
    "zero_": lambda x: x.zero_(),
}


@pytest.mark.parametrize("write", REFUSED.values(), ids=REFUSED.keys())
def test_writing_to_a_leaf_is_refused_and_changes_nothing(write: Write, session: Session) -> None:
    with pytest.raises(RuntimeError):
        write(base(torch, True))
    x = base(gt, True)
    with pytest.raises(AutogradError, match=r"in place; use gt\.no_grad\(\)"):
        write(x)
    np.testing.assert_array_equal(x.detach().numpy(), base(torch).numpy())
    (x * 2.0).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), np.full((4, 6), 2.0))


EXPANDED: dict[str, Write] = {
    "add_": lambda x: x.expand(3, 4, 6).add_(1.0),
    "assignment": lambda x: x[:1].expand(4, 6).__setitem__(0, 1.0),
    "view of it": lambda x: x[0].expand(2, 6)[0].mul_(2.0),
}


@pytest.mark.parametrize("write", EXPANDED.values(), ids=EXPANDED.keys())
def test_writing_to_an_expanded_tensor_is_refused_and_changes_nothing(write: Write, session: Session) -> None:
    x = base(gt)
    with pytest.raises(RuntimeError, match=r"several of its elements share memory; write to a clone\(\) of it"):
        write(x)
    np.testing.assert_array_equal(x.numpy(), base(torch).numpy())


def test_the_value_of_fill_has_no_dimensions(session: Session) -> None:
    with pytest.raises(RuntimeError, match=r"fill_: value must be a number or a tensor of 0 dimensions"):
        base(gt).fill_(gt.zeros(2))
