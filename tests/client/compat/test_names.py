"""Names of torch that libraries use: they are there, do what little they can, and say what they cannot."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import gt
from gt.utils import _pytree, loading
from tests.beside_torch import same
from tests.sim.cluster import Cluster, using

pytestmark = pytest.mark.usefixtures("session")


def test_nothing_is_scripted_or_compiled() -> None:
    def double(x: Any) -> Any:
        return x * 2

    jit = gt.jit
    for wrap in (jit.script, jit.ignore, jit.unused, jit.export, gt.compiler.disable, gt._dynamo.disable, gt.fx.wrap):
        assert wrap(double) is double
    assert gt.jit.trace(double, gt.ones(1)) is double
    assert gt.jit.ignore(drop=True)(double) is gt._dynamo.disable()(double) is double
    assert [gt.jit.is_scripting(), gt.jit.is_tracing(), gt.compiler.is_compiling()] == [False] * 3
    with pytest.raises(NotImplementedError, match=r"gt\.save"):
        gt.jit.save(double, "file")
    with pytest.raises(NotImplementedError, match=r"onnx\.export: .* gt\.save"):
        gt.onnx.export(double, gt.ones(1), "file")


def test_one_rank_of_one() -> None:
    dist = gt.distributed
    dist.init_process_group("nccl")
    assert (dist.is_initialized(), dist.get_rank(), dist.get_world_size()) == (True, 0, 1)
    x = gt.ones(2)
    dist.all_reduce(x, op=dist.ReduceOp.SUM)
    out = [gt.zeros(2)]
    dist.all_gather(out, x)
    assert x.tolist() == out[0].tolist() == [1, 1]
    dist.destroy_process_group()
    with pytest.raises(NotImplementedError, match=r"rank 1 of 8; .* gt\.mesh"):
        dist.init_process_group(world_size=8, rank=1)
    with pytest.raises(AttributeError, match=r"gt\.mesh"):
        dist.rpc  # noqa: B018
    model = gt.nn.parallel.DistributedDataParallel(gt.nn.Linear(2, 1))
    with model.no_sync():
        model(gt.ones(1, 2)).sum().backward()
    assert list(model.state_dict()) == ["module.weight", "module.bias"]


def test_collectives_of_one_rank() -> None:
    dist, x = gt.distributed, gt.ones(2)
    work = dist.all_reduce(x, async_op=True)
    assert work is not None
    assert work.wait()
    whole, part, objects = gt.zeros(1, 2), gt.zeros(2), [None]
    dist.all_gather_into_tensor(whole, x)
    dist.reduce_scatter_tensor(part, x)
    dist.all_gather_object(objects, "mine")
    assert (whole.tolist(), part.tolist(), objects) == ([[1, 1]], [1, 1], ["mine"])


def test_places_of_one_process_or_several() -> None:
    from gt.utils.data.distributed import DistributedSampler
    from gt.utils.data.sampler import RandomSampler

    data = list(range(10))
    assert list(DistributedSampler(data, shuffle=False)) == data
    sampler = DistributedSampler(data, shuffle=True, seed=1)
    first = list(sampler)
    sampler.set_epoch(1)
    assert sorted(first) == sorted(sampler) == data
    assert first != list(sampler)
    for drop_last, expected in ((False, [0, 4, 8, 2]), (True, [0, 4])):
        theirs = torch.utils.data.DistributedSampler(data, 4, 0, shuffle=False, drop_last=drop_last)
        mine = DistributedSampler(data, 4, 0, shuffle=False, drop_last=drop_last)
        assert len(list(mine)) == len(mine) == len(theirs)
        assert list(mine) == list(theirs)[: len(expected)] == expected[: len(mine)]
    drawn = [list(RandomSampler(data, generator=gt.Generator().manual_seed(3))) for _ in range(2)]
    assert drawn[0] == drawn[1]
    parts = gt.utils.data.random_split(data, [7, 3], generator=gt.Generator().manual_seed(0))
    assert sorted([*parts[0], *parts[1]]) == data


def test_files_are_downloaded_once(tmp_path: Any) -> None:
    gt.save({"w": gt.ones(2)}, tmp_path / "there-0123abcd.pt")
    url, folder = (tmp_path / "there-0123abcd.pt").as_uri(), str(tmp_path / "cache")
    with pytest.raises(gt.GTError, match="SHA-256"):
        gt.hub.load_state_dict_from_url(url, folder, check_hash=True)
    assert gt.hub.load_state_dict_from_url(url, folder)["w"].tolist() == [1, 1]
    (tmp_path / "there-0123abcd.pt").unlink()
    assert gt.utils.model_zoo.load_url(url, folder)["w"].tolist() == [1, 1]


def test_a_parameter_of_torchs_does_not_become_a_constant() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    for meet in (lambda: parameter * gt.ones(2), lambda: gt.ones(2) * parameter):
        with pytest.raises(gt.GTError, match=r"a torch Parameter of shape \(2,\) requires grad and was not adopted"):
            meet()


def test_batches_of_torchs_meet_tensors() -> None:
    x, theirs = gt.ones(3, 2), torch.ones(2, 3, dtype=torch.float64)
    assert x.view_as(theirs).shape == x.view(theirs.shape).shape == (2, 3)
    assert x.to(theirs).dtype is gt.float64


def test_the_old_way_to_set_the_default_dtype() -> None:
    try:
        for t, dtype in (("torch.cuda.DoubleTensor", gt.float64), (gt.HalfTensor, gt.float16)):
            gt.set_default_tensor_type(t)
            assert gt.zeros(1).dtype is dtype
    finally:
        gt.set_default_tensor_type("torch.FloatTensor")
    with pytest.raises(gt.GTError, match="expected a type such as"):
        gt.set_default_tensor_type("float")


def test_names_of_old_and_small_modules() -> None:
    from gt.autograd.grad_mode import no_grad
    from gt.autograd.graph import Node, register_multi_grad_hook, save_on_cpu
    from gt.autograd.variable import Variable
    from gt.nn.common_types import _size_2_t  # noqa: F401  # an annotation
    from gt.nn.utils.stateless import functional_call
    from gt.types import Number  # noqa: F401  # an annotation

    assert no_grad is gt.autograd.no_grad
    assert gt.nn.utils.skip_init(gt.nn.Linear, 2, 3).weight.shape == (3, 2)
    assert functional_call is gt.func.functional_call
    x, y = Variable(gt.ones(2), requires_grad=True), gt.ones(2, requires_grad=True)
    seen: list[Any] = []
    handle = register_multi_grad_hook([x, y], lambda gs: seen.append([g.tolist() for g in gs]))
    register_multi_grad_hook([x, y], lambda g: seen.append("any"), mode="any").remove()
    with save_on_cpu():
        z = x * 2 + y * 3
    assert isinstance(z.grad_fn, Node)
    z.sum().backward()
    handle.remove()
    (x * y).sum().backward()
    assert seen == [[[2.0, 2.0], [3.0, 3.0]]]


@pytest.mark.parametrize("mode", ["all", "any"])
def test_hooks_of_several_gradients(mode: str) -> None:
    from gt.autograd.graph import register_multi_grad_hook

    def story(lib: Any, register: Any) -> list[Any]:
        seen: list[Any] = []
        x, y, z = (lib.ones(2, requires_grad=True) for _ in range(3))
        a, b = (x * 2).chunk(2)
        register([a, b, y, z], lambda g: seen.append(g), mode=mode)
        used = [a + b + y, y, z, a + b + y + z]  # not all of them in each backward
        for loss in used:
            loss.sum().backward(retain_graph=True)
        return seen if mode == "all" else [len(seen)]

    same(story(gt, register_multi_grad_hook), story(torch, torch.autograd.graph.register_multi_grad_hook))


def test_a_data_set_of_tensors_is_collated() -> None:
    from gt.utils.data import Dataset
    from gt.utils.data.dataloader import DataLoader

    class Words(Dataset):  # type: ignore[misc]  # torch's
        def __len__(self) -> int:
            return 4

        def __getitem__(self, i: int) -> Any:
            return gt.full((2,), i), {"next": gt.tensor(i + 1), "name": str(i)}

    (x, more), (_, last) = DataLoader(Words(), batch_size=3)
    assert x.tolist() == [[0, 0], [1, 1], [2, 2]]
    assert more["next"].tolist() == [1, 2, 3]
    assert last["name"] == ["3"]


def test_modules_by_file() -> None:
    from gt.nn.modules.activation import MultiheadAttention
    from gt.nn.modules.batchnorm import BatchNorm2d, _BatchNorm, _NormBase
    from gt.nn.modules.linear import LazyLinear, NonDynamicallyQuantizableLinear
    from gt.nn.modules.utils import _pair

    from gt.nn.parameter import Parameter

    assert MultiheadAttention is gt.nn.MultiheadAttention
    assert LazyLinear is gt.nn.LazyLinear
    assert NonDynamicallyQuantizableLinear is gt.nn.Linear
    assert issubclass(gt.nn.BatchNorm1d, _BatchNorm)
    assert issubclass(gt.nn.InstanceNorm1d, _NormBase)
    state = {"module.w": 1, "other": 2}
    gt.nn.modules.utils.consume_prefix_in_state_dict_if_present(state, "module.")
    assert state == {"w": 1, "other": 2}
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        gt.nn.modules.linear.Nonsense  # noqa: B018
    assert BatchNorm2d is gt.nn.BatchNorm2d
    assert gt.nn.modules.conv.Conv2d is gt.nn.modules.Conv2d is gt.nn.Conv2d
    assert gt.nn.modules.module.Module is gt.nn.Module
    assert Parameter is gt.nn.Parameter
    assert (_pair(3), _pair((1, 2))) == ((3, 3), (1, 2))


class Point(NamedTuple):
    x: Any
    y: Any


TREES = [1, [1, (2, 3)], {"a": [1], "b": {}}, Point(1, [2, 3]), [], None]


@pytest.mark.parametrize("tree", TREES)
def test_trees_as_in_torch(tree: Any) -> None:
    import torch.utils._pytree as theirs

    leaves, spec = _pytree.tree_flatten(tree)
    assert leaves == theirs.tree_flatten(tree)[0]
    assert _pytree.tree_unflatten(leaves, spec) == tree
    grown = lambda x: x if x is None else x + 1  # noqa: E731
    assert _pytree.tree_map(grown, tree) == theirs.tree_map(grown, tree)
    assert spec.num_leaves == len(leaves)


def test_small_names() -> None:
    gt._assert(True, "no")
    with pytest.raises(AssertionError, match="no"):
        gt._assert(False, "no")
    assert gt.version.__version__ == gt.__version__
    assert gt.accelerator.current_accelerator() is None
    assert gt.utils.hooks.RemovableHandle
    with gt.serialization.safe_globals([]), gt.nn.attention.sdpa_kernel(gt.nn.attention.SDPBackend.MATH):
        pass
    with gt.profiler.profile(activities=[gt.profiler.ProfilerActivity.CPU]) as p, gt.profiler.record_function("step"):
        gt.ones(2).sum().item()
    assert "us total" in p.key_averages().table(sort_by="cuda_time_total")
    with gt.cuda.stream(gt.cuda.Stream()):
        assert gt.cuda.get_device_capability() == (0, 0)
    assert gt.cuda.get_device_properties().total_memory > 0


DATA = np.arange(20, dtype=np.float32).reshape(10, 2)


@pytest.mark.parametrize("source", ["torch", "numpy", "gt"])
@pytest.mark.parametrize("loader", ["torch", "own"])
def test_batches_are_gt_tensors(source: str, loader: str) -> None:
    make = {"torch": torch.from_numpy, "numpy": np.asarray, "gt": gt.from_numpy}[source]
    dataset = gt.utils.data.TensorDataset(make(DATA), make(np.arange(10)))
    DataLoader = gt.utils.data.DataLoader if loader == "torch" else loading.DataLoader
    batches = list(DataLoader(dataset, batch_size=4))
    assert len(batches) == len(DataLoader(dataset, batch_size=4)) == 3
    assert [np.asarray(x).tolist() for x, _ in batches] == [DATA[i : i + 4].tolist() for i in (0, 4, 8)]
    assert [np.asarray(y).tolist() for _, y in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    if loader == "torch":
        assert all(isinstance(t, gt.Tensor) for batch in batches for t in batch)
    shuffled = DataLoader(dataset, batch_size=3, shuffle=True, drop_last=True)
    assert len({i for _, y in shuffled for i in np.asarray(y).tolist()}) == 9


@pytest.mark.parametrize("source", ["torch", "numpy", "gt"])
@pytest.mark.parametrize("loader", ["torch", "own"])
def test_a_dataset_around_tensors_and_a_collate_function_see_its_elements(source: str, loader: str) -> None:
    make = {"torch": torch.from_numpy, "numpy": np.asarray, "gt": gt.from_numpy}[source]
    data = gt.utils.data if loader == "torch" else loading

    class Doubled(loading.TensorDataset):
        def __getitem__(self, index: Any) -> Any:
            x, y = super().__getitem__(index)
            return x * 2, y

    arrays = make(DATA), make(np.arange(10))
    dataset, part = loading.TensorDataset(*arrays), data.Subset(loading.TensorDataset(*arrays), range(5, 10))
    for each, wanted in ((part, DATA[5:]), (Doubled(*arrays), 2 * DATA)):
        found = [np.asarray(x).tolist() for x, _ in data.DataLoader(each, batch_size=4)]
        assert [row for batch in found for row in batch] == wanted.tolist()
    loads = data.DataLoader(dataset, batch_size=4, collate_fn=lambda batch: [len(batch), *(int(y) for _, y in batch)])
    assert list(loads) == [[4, 0, 1, 2, 3], [4, 4, 5, 6, 7], [2, 8, 9]]


def test_torchs_loader_with_a_dataset_of_ones_own() -> None:
    class Squares(gt.utils.data.Dataset):  # type: ignore[name-defined, misc]
        def __len__(self) -> int:
            return 5

        def __getitem__(self, i: int) -> Any:
            return {"x": torch.tensor([float(i)]), "name": f"n{i}", "y": i * i}

    (batch,) = gt.utils.data.DataLoader(Squares(), batch_size=5)
    assert batch["x"].shape == (5, 1)
    assert isinstance(batch["y"], gt.Tensor)
    assert batch["y"].tolist() == [0, 1, 4, 9, 16]
    assert batch["name"] == [f"n{i}" for i in range(5)]
    (own,) = loading.DataLoader([(np.float32(i), i) for i in range(4)], batch_size=4)
    assert [part.tolist() for part in own] == [[0, 1, 2, 3], [0, 1, 2, 3]]
    assert sorted(len(part) for part in loading.random_split(range(10), [0.75, 0.25])) == [2, 8]


def test_secrets_are_not_printed() -> None:
    from gt.transport.messages import Hello, WorkerHello

    assert "sesame" not in repr([Hello(1, "sesame", "me"), WorkerHello(1, "sesame", "sesame", True)])


def test_a_client_can_be_used_after_all_that() -> None:
    with using(Cluster().client()):
        assert gt.ones(2).sum().item() == 2
