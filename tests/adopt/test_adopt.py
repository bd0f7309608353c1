"""What an adopted model can do: state, modes, hooks, optimizers, replay; and what raises."""

from __future__ import annotations

import copy
import io
import traceback
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

import gt
from gt.errors import AutogradError, DTypeError, StateError

from .test_optimizers import small

pytestmark = pytest.mark.processes


def same(a: Any, b: Any) -> bool:
    return np.allclose(a.detach().numpy(), b.detach().numpy(), atol=1e-6)


def test_it_stays_the_object_that_it_is() -> None:
    theirs = small()
    weight, optimizer = theirs[0].weight, torch.optim.SGD(theirs.parameters(), 0.1)
    model = gt.adopt(theirs)
    assert model is theirs
    assert model[0].weight is weight
    assert isinstance(weight, nn.Parameter)
    assert weight.shape == torch.Size([8, 4])
    assert weight.dtype is torch.float32
    assert [n for n, _ in model.named_parameters()] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    before = weight.torch()
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()  # it was created before: the parameters are the same objects
    assert not torch.equal(before, weight.torch())


def test_results_are_of_the_kind_of_the_arguments() -> None:
    model, plain = gt.adopt(small()), small()
    x = torch.randn(3, 4)
    assert isinstance(model(x), torch.Tensor)
    assert isinstance(model(gt.from_torch(x)), gt.Tensor)
    assert same(model(x), plain(x))
    assert same(model(gt.from_torch(x)), plain(x))
    assert isinstance(F.relu(gt.ones(2)), gt.Tensor)  # torch's functions take tensors of GT


def test_an_error_names_the_users_line() -> None:
    """And no line of torch's, whose functions call GT's."""
    model = gt.adopt(nn.Sequential(nn.Linear(4, 3), nn.Embedding(5, 2)))
    ids = torch.tensor([1, 7])
    for call in (lambda: model[1](ids), lambda: F.embedding(ids, model[1].weight)):
        with pytest.raises(IndexError, match="index 7") as info:
            call().tolist()
        said = "".join(traceback.format_exception_only(info.value))
        assert f"made by embedding at {__file__}:{call.__code__.co_firstlineno}" in said


def test_a_parameter_that_was_not_adopted_raises() -> None:
    with pytest.raises(AutogradError, match=r"mul: a torch Parameter of shape \(3,\) .* gt.adopt"):
        gt.ones(3) * nn.Parameter(torch.ones(3))
    model = gt.adopt(small())
    with pytest.raises(AutogradError, match="not adopted"):
        model(torch.ones(3, 4, requires_grad=True))
    with torch.no_grad():
        model(torch.ones(3, 4, requires_grad=True))
    assert (gt.ones(3) * torch.ones(3)).tolist() == [1, 1, 1]


def test_gradient_modes_of_both_count() -> None:
    model, x = gt.adopt(small()), torch.ones(1, 4)
    assert model(x).requires_grad
    with torch.no_grad():
        assert not model(x).requires_grad
        with torch.enable_grad():
            assert model(x).requires_grad
    with gt.no_grad():
        assert not model(x).requires_grad
    with torch.inference_mode():
        assert not (model(x) * 2).requires_grad


def test_autocast_of_torch() -> None:
    model, x = gt.adopt(small()), torch.ones(1, 4)
    with torch.autocast("cpu", torch.bfloat16):
        assert model(x).dtype is torch.bfloat16
        with torch.autocast("cpu", enabled=False):
            assert model(x).dtype is torch.float32
    assert model(x).dtype is torch.float32
    model.half()
    assert model[0].weight.dtype is torch.float16


def test_state_goes_in_and_out() -> None:
    model, other = gt.adopt(small()), nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file))  # ordinary tensors: whoever reads the file needs no GT
    x = torch.randn(2, 4)
    assert same(model(x), other(x))
    fresh = gt.adopt(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)))
    fresh.load_state_dict(other.state_dict())
    assert same(fresh(x), other(x))
    twin = copy.deepcopy(fresh)
    with torch.no_grad():
        twin[0].weight.zero_()
    assert same(fresh(x), other(x))
    assert not same(twin(x), other(x))


def test_meta_parameters_come_from_a_file(tmp_path: Any) -> None:
    plain = small()
    path = tmp_path / "weights.safetensors"
    gt.save({k: gt.from_torch(v) for k, v in plain.state_dict().items()}, path)
    with torch.device("meta"):
        empty = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    with pytest.raises(StateError, match=r"0\.weight is on the meta device"):
        gt.adopt(copy.deepcopy(empty))
    for weights in (path, plain.state_dict()):
        model = gt.adopt(copy.deepcopy(empty), weights=weights)
        assert same(model(torch.ones(2, 4)), plain(torch.ones(2, 4)))


def test_hooks_run() -> None:
    model, seen = gt.adopt(small()), []
    model[0].register_forward_hook(lambda module, args, out: seen.append(("forward", tuple(out.shape))))
    model[2].register_full_backward_hook(lambda module, gi, go: seen.append(("backward", tuple(gi[0].shape))))
    model[0].weight.register_hook(lambda g: seen.append(("grad", tuple(g.shape))) or g * 0)
    model[0].bias.register_post_accumulate_grad_hook(lambda p: seen.append(("after", p is model[0].bias)))
    model(torch.ones(3, 4)).sum().backward()
    assert sorted(seen) == [("after", True), ("backward", (3, 8)), ("forward", (3, 8)), ("grad", (8, 4))]
    assert not model[0].weight.grad.torch().any()


class Twice(torch.autograd.Function):  # type: ignore[misc]  # torch is Any to the type checker
    @staticmethod
    def forward(ctx: Any, x: Any, k: float) -> Any:
        ctx.save_for_backward(x)
        ctx.k = k
        return x * k

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return g * ctx.k + 0 * x, None


twice = Twice.apply  # bound before anything is adopted


def test_functions_with_a_gradient_of_their_own() -> None:
    x = gt.adopt(torch.ones(3, requires_grad=True))
    twice(x, 4.0).sum().backward()
    assert x.grad.tolist() == [4, 4, 4]
    y = torch.ones(3, requires_grad=True)
    twice(y, 4.0).sum().backward()  # ordinary tensors pass as before
    assert y.grad.tolist() == [4, 4, 4]


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints(reentrant: bool) -> None:
    model, plain = gt.adopt(small()), small()
    x, y = gt.adopt(torch.ones(2, 4, requires_grad=True)), torch.ones(2, 4, requires_grad=True)
    checkpoint(lambda a: model(a).exp(), x, use_reentrant=reentrant).sum().backward()
    plain(y).exp().sum().backward()
    assert np.allclose(x.grad.numpy(), y.grad.numpy(), atol=1e-6)
    assert np.allclose(model[0].weight.grad.numpy(), plain[0].weight.grad.numpy(), atol=1e-6)


def test_torch_op_fetches_nothing() -> None:
    x = gt.ones(1000)
    gt.torch_op("special.airy_ai", x)  # asks once what comes out
    before = gt.debug.get_client_stats()["calls"]
    for _ in range(5):
        y = gt.torch_op("special.airy_ai", x)
    assert gt.debug.get_client_stats()["calls"] == before
    assert y.shape == (1000,)


def test_mixed_with_tensors_of_the_host() -> None:
    x, host = gt.adopt(torch.ones(3)), torch.zeros(3)
    assert (host + x).tolist() == [1, 1, 1]
    assert (host.numpy() + x.numpy()).tolist() == [1, 1, 1]
    host[1:] = x[1:]
    host += x
    assert type(host) is torch.Tensor
    assert host.tolist() == [1, 2, 2]
    out = torch.empty(3)
    assert torch.add(x, x, out=gt.adopt(out)) is out
    assert out.tolist() == [2, 2, 2]


def test_vmap_of_adopted_tensors() -> None:
    model, plain = gt.adopt(small()), small()
    x = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(0))
    ours = torch.vmap(lambda a: torch.vmap(model)(a).softmax(-1))(gt.adopt(x.clone()))
    theirs = torch.vmap(lambda a: torch.vmap(plain)(a).softmax(-1))(x)
    assert same(ours, theirs)
    ours[..., 0].sum().backward()
    theirs[..., 0].sum().backward()
    assert np.allclose(model[0].weight.grad.numpy(), plain[0].weight.grad.numpy(), atol=1e-6)
    allowed = gt.adopt(torch.tensor([[True, False], [True, True]]))
    pairs = torch.vmap(torch.vmap(lambda i, j: allowed[i, j] & (j <= i), in_dims=(None, 0)), in_dims=(0, None))
    assert pairs(gt.adopt(torch.arange(2)), gt.adopt(torch.arange(2))).tolist() == [[True, False], [True, True]]


@pytest.mark.parametrize("kind", ["Gamma", "Beta", "Dirichlet"])
def test_samples_of_torchs_distributions_have_gradients(kind: str) -> None:
    a = gt.adopt(torch.tensor([2.0, 3.0], requires_grad=True))
    made = (
        getattr(torch.distributions, kind)(a) if kind == "Dirichlet" else getattr(torch.distributions, kind)(a, a + 1)
    )
    x = made.rsample((500,))
    assert x.shape == (500, 2)
    assert abs((x.mean(0) - made.mean) / made.stddev).max().item() < 0.3
    x[:, 0].sum().backward()
    assert a.grad.isfinite().all()
    assert a.grad[0].item() != 0


def test_sizes_that_are_adopted_tensors() -> None:
    n = gt.adopt(torch.tensor(3))
    assert torch.arange(n).tolist() == [0, 1, 2]
    assert torch.full((2,), n + 0.5).tolist() == [3.5, 3.5]
    assert torch.arange(2).tolist() == [0, 1]


FUNC = [
    lambda x: torch.func.grad(lambda a: a.square().sum())(x),
    lambda x: torch.func.grad_and_value(lambda a, b: (a * b).exp().sum(), argnums=(0, 1))(x, x + 1),
    lambda x: torch.func.jacrev(torch.exp)(x), lambda x: torch.func.jacfwd(lambda a: a.outer(a))(x),
    lambda x: torch.func.hessian(lambda a: (a**3).sum())(x), lambda x: torch.func.vjp(torch.sin, x)[1](x)[0],
    lambda x: torch.func.jvp(lambda a: a * a, (x,), (x + 1,)), lambda x: torch.func.linearize(torch.tanh, x)[1](x),
    lambda x: torch.vmap(torch.func.grad(lambda a: a.sin().sum()))(torch.stack([x, x * 2])),
    lambda x: torch.vmap(torch.func.jacrev(lambda a: a.outer(a)), in_dims=1, out_dims=1)(torch.stack([x, x * 2])),
    lambda x: torch.func.grad(lambda d: (d["a"] * d["b"]).sum())({"a": x, "b": x * 2})["b"],
    lambda x: torch.vmap(torch.exp)(x),
]  # fmt: skip


@pytest.mark.parametrize("use", FUNC)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:Attempted to insert:UserWarning")  # torch's own
def test_torch_func(use: Any) -> None:
    x = torch.tensor([0.5, -1.0, 2.0])
    theirs, ours = use(x), use(gt.adopt(x.clone()))
    for right, found in zip(*[pytree.tree_leaves(made) for made in (theirs, ours)], strict=True):
        assert type(found).__module__ == "gt.adoption.tensor"
        torch.testing.assert_close(found.torch(), right)


def test_gradients_by_a_models_parameters_as_a_function() -> None:
    def per_sample(model: Any, x: torch.Tensor) -> Any:
        def loss(p: Any, row: Any) -> Any:
            return torch.func.functional_call(model, p, (row.unsqueeze(0),)).square().sum()

        p = {k: v.detach() for k, v in model.named_parameters()}
        return torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(p, x)

    x = torch.randn(5, 4)
    theirs = per_sample(small(), x)
    for given in (gt.adopt(x.clone()), x):  # a tensor of the host is uploaded
        for name, g in per_sample(gt.adopt(small()), given).items():
            torch.testing.assert_close(g.torch(), theirs[name])


def test_derivatives_of_a_model_may_be_part_of_its_loss() -> None:
    def gradients(model: Any, x: Any) -> list[Any]:
        slopes = torch.vmap(torch.func.grad(lambda row: model(row.unsqueeze(0)).square().sum()))(x)
        (slopes.square().mean() + model(x).sum()).backward()
        return [p.grad for p in model.parameters()]

    x = torch.randn(5, 4)
    for right, found in zip(gradients(small(), x), gradients(gt.adopt(small()), gt.adopt(x.clone())), strict=True):
        torch.testing.assert_close(found.torch(), right)


def test_a_tensor_that_a_function_of_torch_func_reads_from_outside() -> None:
    x = gt.adopt(torch.ones(3))
    with pytest.raises(AutogradError, match=r"torch\.func"):
        torch.func.grad(lambda a: (a * x).sum())(torch.ones(3))


def test_sparse_tensors_are_stored_as_dense_ones() -> None:
    adjacency = (torch.arange(36).view(6, 6) % 5 == 0).float().to_sparse()
    plain, model, x = small(), gt.adopt(small()), torch.randn(6, 4)
    with pytest.warns(UserWarning, match="GT has no sparse tensors: this one is stored as a dense tensor"):
        made = torch.sparse.mm(adjacency, model(x))
    made.square().sum().backward()
    torch.sparse.mm(adjacency, plain(x)).square().sum().backward()
    torch.testing.assert_close(model[0].weight.grad.torch(), plain[0].weight.grad)
    for product in (torch.mm(adjacency, model(x)), adjacency @ model(x), torch.spmm(adjacency, model(x))):
        assert same(product, adjacency.to_dense() @ plain(x))
    where, values = torch.tensor([[0, 1, 1], [2, 0, 0]]), torch.tensor([1.0, 2.0, 3.0])
    expected = torch.sparse_coo_tensor(where, values, (2, 3), check_invariants=True)
    ours = torch.sparse_coo_tensor(where, gt.adopt(values.clone()), (2, 3))
    assert same(ours, expected.to_dense())
    assert ours.to_sparse() is ours.coalesce() is ours.to_dense() is ours
    assert torch.sparse_coo_tensor(where, gt.adopt(values.clone())).shape == expected.shape


def test_memory_is_not_shared_with_other_processes() -> None:
    with pytest.raises(DTypeError, match="share_memory_: the data of an adopted tensor is on a worker"):
        gt.adopt(small()).share_memory()
