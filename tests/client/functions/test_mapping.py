"""vmap, as_strided, masked functions, and types that are only stored: the values are torch's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import gt
from gt.errors import ArgumentError, DTypeError

A = torch.arange(15.0).reshape(5, 3) / 7
MASK = torch.tensor([[True, False, True], [False, False, False], [True, True, True], [False, True, True], [True] * 3])

MAPPED: dict[str, Any] = {
    "dot": lambda t, a: t.vmap(t.dot)(a, a),
    "in_dims": lambda t, a: t.vmap(lambda x, y: x * y.sum(), in_dims=(0, 1))(a, a.t()),
    "not mapped": lambda t, a: t.vmap(lambda x, y: x @ y, in_dims=(0, None))(a, a[:3]),
    "out_dims": lambda t, a: t.vmap(lambda x: (x, x.sum()), out_dims=(1, 0))(a)[0],
    "nested": lambda t, a: t.vmap(t.vmap(lambda x: x.exp()))(a),
    "dict": lambda t, a: t.vmap(lambda d: d["x"] + d["y"][0])({"x": a, "y": [a]}),
    "gradients": lambda t, a: t.func.vmap(t.func.grad(lambda w, x: (w * x).sin().sum()), in_dims=(None, 0))(a[0], a),
    "last": lambda t, a: t.vmap(lambda x: x.sum(), in_dims=-1)(a),
    "as_strided": lambda t, a: t.as_strided(a, (4, 2), (1, 3), 2),
    "as_strided of a turned tensor": lambda t, a: a.t().as_strided((2, 2), (1, 3), 1),
}


@pytest.mark.parametrize("name", MAPPED)
def test_values(name: str) -> None:
    theirs, ours = MAPPED[name](torch, A), MAPPED[name](gt, gt.from_torch(A))
    torch.testing.assert_close(ours.torch(), theirs)


def test_mistakes() -> None:
    a = gt.from_torch(A)
    for call, words in (
        (lambda: gt.vmap(lambda x, y: x)(a, a.t()), "one size"), (lambda: gt.vmap(lambda x: 1)(a), "return tensors"),
        (lambda: gt.vmap(lambda x: x, in_dims=None)(a), "no argument"),
        (lambda: gt.vmap(gt.exp)(gt.tensor(1.0)), "without"),
        (lambda: a[:, 1:].as_strided((2,), (1,)), "contiguous"),
        (lambda: a.as_strided((9, 9), (1, 1)), "reach element 16"),
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match=words):
            call()


def test_overlaps_add_their_gradients() -> None:
    x = gt.arange(4.0).requires_grad_()
    x.as_strided((3, 2), (1, 1)).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1, 2, 2, 1]


@pytest.mark.parametrize("name", [
    "amax", "amin", "argmax", "cumsum", "log_softmax", "logsumexp", "mean", "median", "norm", "normalize", "prod",
    "softmax", "std", "sum", "var",
])  # fmt: skip
def test_masked_functions(name: str) -> None:
    args = (2.0,) if name in ("norm", "normalize") else ()
    theirs = getattr(torch.masked, name)(A, *args, dim=1, mask=MASK)
    ours = getattr(gt.masked, name)(gt.from_torch(A), *args, dim=1, mask=gt.from_torch(MASK)).torch()
    if ours.shape == A.shape:  # what does not count is not defined
        theirs, ours = torch.where(MASK, theirs, 0), torch.where(MASK, ours, 0)
    torch.testing.assert_close(ours, theirs, equal_nan=True)


@pytest.mark.parametrize("name", ["uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2"])
def test_types_that_are_stored_and_cast(name: str) -> None:
    kind, theirs = getattr(gt, name), torch.tensor([0.0, 1.3, 2.7, 100.0]).to(getattr(torch, name))
    x = gt.tensor([0.0, 1.3, 2.7, 100.0]).to(kind)
    assert x.dtype is kind
    assert x.float().tolist() == theirs.float().tolist()
    for again in (gt.from_torch(theirs), gt.from_numpy(x.numpy()), gt.cat([x[:2], x[2:]]).reshape(2, 2).flatten()):
        assert again.dtype is kind
        assert torch.equal(again.torch().float(), theirs.float())
    info = gt.finfo(kind) if kind.is_floating_point else gt.iinfo(kind)
    assert info.max == (torch.finfo if kind.is_floating_point else torch.iinfo)(theirs.dtype).max
    with pytest.raises(DTypeError, match="no common type"):
        x + gt.ones(4, dtype=gt.int8)


def test_sparse_tensors_say_that_they_are_not_there() -> None:
    for call in (
        lambda: gt.sparse_coo_tensor,
        lambda: gt.sparse,
        lambda: gt.sparse_csr_tensor,
        lambda: gt.ones(2).to_sparse,
    ):
        with pytest.raises(AttributeError, match="GT has no sparse tensors"):
            call()


def test_versions_are_in_a_state() -> None:
    class Old(gt.nn.Linear):
        _version = 3

        def _load_from_state_dict(self, state: Any, prefix: str, local: Any, *rest: Any) -> None:
            seen.append(local.get("version"))
            super()._load_from_state_dict(state, prefix, local, *rest)

    seen: list[Any] = []
    model = gt.nn.Sequential(Old(1, 1), gt.nn.BatchNorm1d(1))
    state = model.state_dict()
    assert dict(state._metadata) == {"": {"version": 1}, "0": {"version": 3}, "1": {"version": 2}}
    model.load_state_dict(state)
    model.load_state_dict(dict(state))
    assert seen == [3, None]


def test_autocast_says_its_dtype() -> None:
    assert gt.get_autocast_dtype("cpu") is gt.bfloat16
    with gt.autocast("cuda", dtype=gt.float16):
        assert gt.get_autocast_gpu_dtype() is gt.float16
