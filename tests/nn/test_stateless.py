"""Calling a module with other tensors in place of its own."""

from __future__ import annotations

import numpy as np
import pytest

import gt
from gt import nn
from gt.errors import ArgumentError
from gt.func import functional_call


def test_functional_call_uses_the_given_tensors() -> None:
    model = gt.nn.Linear(3, 1)
    other = {"weight": gt.ones(1, 3), "bias": gt.zeros(1)}
    before = model.weight.detach().numpy()
    out = functional_call(model, other, (gt.ones(2, 3),))
    np.testing.assert_array_equal(out.detach().numpy(), np.full((2, 1), 3.0))
    np.testing.assert_array_equal(model.weight.detach().numpy(), before)
    grads = gt.func.grad(lambda p: functional_call(model, p, (gt.ones(2, 3),)).sum())(other)
    np.testing.assert_array_equal(grads["weight"].numpy(), np.full((1, 3), 2.0))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(4, 3), nn.Linear(3, 4, bias=False)
        self.out.weight = self.embed.weight
        self.norm = nn.BatchNorm1d(3)

    def forward(self, i: gt.Tensor) -> gt.Tensor:
        return self.out(self.norm(self.embed(i)))


def test_what_has_several_names_is_replaced_under_all_of_them() -> None:
    model, i = Tied().eval(), gt.tensor([1, 3])
    parameters = dict(model.named_parameters())
    assert "out.weight" not in parameters
    new = {name: gt.full_like(p, 2.0) for name, p in parameters.items()}
    seen = functional_call(model, new, i)
    np.testing.assert_allclose(seen.detach().numpy(), np.full((2, 4), 36.0), rtol=1e-4)  # (2 * 2 + 2) * 2, three times
    alone = functional_call(model, new, (i,), tie_weights=False)
    own = model.embed.weight.detach().numpy()
    np.testing.assert_allclose(alone.detach().numpy(), np.broadcast_to(6 * own.sum(1), (2, 4)), rtol=1e-3)
    functional_call(model, {**new, "out.weight": new["embed.weight"]}, i)
    with pytest.raises(ArgumentError, match="another tensor is given"):
        functional_call(model, {**new, "out.weight": gt.zeros(4, 3)}, i)
    assert model.out.weight is model.embed.weight


def test_parameters_and_buffers_may_come_in_dicts_of_their_own() -> None:
    model, i = Tied(), gt.tensor([0, 1, 2])
    parameters, buffers = dict(model.named_parameters()), {k: b.clone() for k, b in model.named_buffers()}
    functional_call(model, (parameters, buffers), (i,), strict=True)
    assert buffers["norm.num_batches_tracked"].item() == 1
    assert model.norm.num_batches_tracked.item() == 0
    for wrong, says in [
        ((parameters, parameters), "in more than one dict"),
        ({"nowhere": gt.zeros(1)}, "no parameter or buffer 'nowhere'"),
    ]:
        with pytest.raises(ArgumentError, match=says):
            functional_call(model, wrong, (i,))
    with pytest.raises(ArgumentError, match="expected 'norm"):
        functional_call(model, parameters, (i,), strict=True)
