"""Constructors have torch's arguments, and modules that are one function keep their settings as attributes."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt import amp, nn, optim
from gt.nn.settings import Functional


def arguments(kind: Any) -> list[tuple[str, Any, Any]]:
    """Name, kind and default of each argument; functions by name."""
    found = inspect.signature(kind).parameters.values()
    return [(p.name, p.kind, getattr(p.default, "__name__", p.default)) for p in found]


def constructors(ours: Any, theirs: Any) -> list[Any]:
    """The classes and functions of a module whose counterpart in torch states its arguments."""
    names = [n for n in ours.__all__ if hasattr(theirs, n)]  # torch.nn does not have the functions of gt.nn
    found = {n: c for n in names if inspect.isclass(c := getattr(ours, n)) or inspect.isfunction(c)}

    def stated(name: str) -> bool:
        return all(p.kind is not p.VAR_POSITIONAL for p in inspect.signature(getattr(theirs, name)).parameters.values())

    return [pytest.param(c, getattr(theirs, n), id=n) for n, c in found.items() if stated(n)]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        *(p for p in constructors(nn, torch.nn) if p.id not in ("Buffer", "Parameter")),  # these need data here
        *constructors(optim, torch.optim),
        *constructors(optim.lr_scheduler, torch.optim.lr_scheduler),
        *constructors(optim.swa_utils, torch.optim.swa_utils),
        pytest.param(amp.GradScaler, torch.amp.GradScaler, id="GradScaler"),
    ],
)
def test_constructors_have_torchs_arguments(ours: Any, theirs: Any) -> None:
    assert arguments(ours) == arguments(theirs)


FUNCTIONALS = [c for n in nn.__all__ if inspect.isclass(c := getattr(nn, n)) and issubclass(c, Functional)]


@pytest.mark.parametrize("kind", FUNCTIONALS, ids=lambda c: c.__name__)
def test_defaults_are_not_attributes_of_the_class(kind: Any) -> None:
    """One there would hide a buffer of that name."""
    assert not set(inspect.signature(kind).parameters) & set(vars(kind))


def test_settings_are_attributes() -> None:
    leaky = nn.LeakyReLU(0.5)
    assert (leaky.negative_slope, leaky.inplace) == (0.5, False)
    leaky.negative_slope = 0.25
    assert repr(leaky) == "LeakyReLU(negative_slope=0.25)"
    assert leaky(gt.tensor([-4.0, 1.0])).tolist() == [-1.0, 1.0]
    for made in (copy.deepcopy(leaky), pickle.loads(pickle.dumps(leaky))):
        assert vars(made) == vars(leaky)
    with pytest.raises(TypeError, match="unexpected keyword argument 'slope'"):
        nn.LeakyReLU(slope=1.0)  # type: ignore[call-arg]


def test_users_subclass_them_as_any_module() -> None:
    class Scaled(nn.MSELoss):
        scale: float  # an annotation is no setting here

        def __init__(self, scale: float) -> None:
            super().__init__(reduction="sum")
            self.scale = scale

        def forward(self, input: Any, target: Any) -> Any:
            return super().forward(input, target) * self.scale

    loss = Scaled(3.0)
    assert loss(input=gt.ones(2), target=gt.zeros(2)).item() == 6.0
    assert list(inspect.signature(Scaled).parameters) == ["scale"]


def test_tensors_among_the_settings_are_buffers() -> None:
    loss = nn.BCEWithLogitsLoss(gt.ones(3), pos_weight=nn.Parameter(gt.ones(3)))
    assert list(loss.state_dict()) == ["weight", "pos_weight"]
    assert not list(loss.parameters())
    assert nn.NLLLoss().weight is None
    loss.load_state_dict({"weight": np.full(3, 2.0, np.float32), "pos_weight": np.ones(3, np.float32)})
    assert loss.weight.tolist() == [2.0, 2.0, 2.0]


def test_a_distance_may_be_a_module() -> None:
    loss = nn.TripletMarginWithDistanceLoss(distance_function=nn.PairwiseDistance(p=1.0))
    assert [name for name, _ in loss.named_modules()] == ["", "distance_function"]
    assert nn.TripletMarginWithDistanceLoss().distance_function is nn.functional.pairwise_distance
