"""torch's own functions, run on a worker: on every engine, with gradients, and nothing that could do harm."""

from __future__ import annotations

import importlib.util
import logging
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.errors import ArgumentError, ProgramError
from gt.ops import TABLE
from gt.ops.families.torch_names import NAMES
from gt.program import spec
from tests.sessions import session_fixture

ENGINES = ["torch", "numpy"] + (["jax"] if importlib.util.find_spec("jax") else [])


session = session_fixture(*ENGINES)


def test_values_and_gradients_are_as_in_torch(session: Any) -> None:
    a = np.array([0.5, 1.5, 2.5])
    x, t = gt.tensor(a, requires_grad=True), torch.tensor(a, requires_grad=True)
    ours, theirs = gt.special.i0e(gt.torch_op("special.i1", x)), torch.special.i0e(torch.special.i1(t))
    np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy())
    (g,) = gt.grad(ours.sum(), x, create_graph=True)
    (h,) = torch.autograd.grad(theirs.sum(), t, create_graph=True)
    np.testing.assert_allclose(g.detach().numpy(), h.detach().numpy())
    g.sum().backward()
    h.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), t.grad.numpy())


def test_several_results_structures_and_numbers(session: Any) -> None:
    m = np.array([[4.0, 1.0], [1.0, 3.0]])
    ld, pivots = gt.linalg.ldl_factor(gt.tensor(m))
    want = torch.linalg.ldl_factor(torch.tensor(m))
    np.testing.assert_allclose(ld.numpy(), want[0].numpy())
    np.testing.assert_array_equal(pivots.numpy(), want[1].numpy())
    assert gt.torch_op("is_floating_point", gt.ones(2)) is True
    counts, edges = gt.torch_op("histogram", gt.tensor([1.0, 2.0, 1.0]), bins=3)
    assert (counts.tolist(), edges.shape) == ([2.0, 0.0, 1.0], (4,))


def test_methods_and_top_level_names_are_found(session: Any) -> None:
    assert gt.tensor([0.5]).igamma(gt.tensor([1.0])).shape == (1,)
    assert not hasattr(gt, "nonsense")
    assert not hasattr(gt.ones(1), "nonsense")
    assert not hasattr(gt.linalg, "nonsense")


def test_a_known_form_is_asked_for_once(session: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="gt"):
        for i in range(3):
            gt.torch_op("special.airy_ai", gt.full((2,), float(i))).numpy()
    (record,) = caplog.records
    assert record.message == "torch.special.airy_ai is not implemented in GT; torch runs it on the worker"


def test_errors_of_torch_are_raised_at_the_users_line(session: Any) -> None:
    with pytest.raises(ArgumentError, match=r"linalg\.ldl_factor: .*at least 2 dimensions"):
        gt.linalg.ldl_factor(gt.ones(3))
    with pytest.raises(ArgumentError, match="cannot pass an argument of type object"):
        gt.torch_op("cumsum", gt.ones(3), object())


HARMFUL = [
    "load", "save", "hub.load", "ops.load_library", "from_file", "set_num_threads", "exp_", "nn.functional._threshold",
    "_C._cuda_init", "manual_seed", "os.system",
]  # fmt: skip


@pytest.mark.parametrize("name", HARMFUL)
def test_nothing_else_can_be_named(session: Any, name: str) -> None:
    assert name not in NAMES
    with pytest.raises(ArgumentError, match="torch_op: torch has no function '"):
        gt.torch_op(name, gt.ones(2))
    attrs = {"name": name, "call": "[[], {}]", "n": 1, "needs": (), "results": (((2,), "float32", False),), "order": 0}
    with pytest.raises(ArgumentError):
        TABLE["torch_call"].infer(spec((2,), gt.float32), **attrs)


def test_a_false_claim_about_the_results_fails_the_call_alone(session: Any) -> None:
    attrs = {"name": "exp", "call": '[[{"t": 0}], {}]', "n": 1, "needs": (), "order": 0}
    wrong = gt.Tensor._apply(TABLE["torch_call"], (gt.ones(2),), {**attrs, "results": (((3,), "float32", False),)})
    with pytest.raises(ProgramError, match="expected the result"):
        wrong.numpy()
    assert gt.ones(2).sum().item() == 2.0


def test_torch_lists_nothing_that_is_not_known_here() -> None:
    """The names are those of the newest torch that GT takes."""
    if not torch.__version__.startswith("2.13"):
        pytest.skip("the names are those of torch 2.13")
    listed = torch.overrides.get_overridable_functions()
    ours = {id(f) for n in NAMES if (f := _resolve(n)) is not None}
    for place in (torch.linalg, torch.fft, torch.special):
        assert [f.__name__ for f in listed[place] if id(f) not in ours] == []
    assert [n for n in NAMES if _resolve(n) is None] == []


def _resolve(name: str) -> Any:
    place: Any = torch
    for part in name.split("."):
        place = getattr(place, part, None)
    return place
