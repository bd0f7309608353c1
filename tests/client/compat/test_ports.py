"""Programs as people write them for torch, run on torch and on GT: all values are equal.

Each port, in the ports_of_*.py beside this file, is a function of the library and does in short what a script does.
What cannot be compared, because GT has it in another way or not at all, is here.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import gt
from gt.client.session.session import Session
from tests.beside_torch import Story, agree, each, stories
from tests.client.compat import ports_of_models, ports_of_practice


@each([*stories(ports_of_models), *stories(ports_of_practice)])
def test_a_port_gives_what_it_gives_with_torch(story: Story, session: Session) -> None:
    agree(story, rtol=2e-4)


# --- what has no counterpart in a comparison -------------------------------------------------------------


def test_compile_gives_back_what_it_was_given(session: Session) -> None:
    model = gt.nn.Linear(2, 2)
    assert gt.compile(model, mode="reduce-overhead") is model

    @gt.compile
    def f(x: Any) -> Any:
        return x * 2

    @gt.compile(dynamic=True)
    def g(x: Any) -> Any:
        return x + 1

    assert g(f(gt.ones(1))).item() == 3


def test_batches_of_torchs_loader_are_taken(session: Session) -> None:
    data = torch.utils.data.TensorDataset(torch.ones(6, 4), torch.zeros(6, dtype=torch.long))
    model = gt.nn.Linear(4, 3)
    for x, y in torch.utils.data.DataLoader(data, batch_size=3):
        out = model(x.to("cpu"))
        gt.nn.CrossEntropyLoss()(out, y).backward()
        assert (out.argmax(1) == y).sum().item() in (0, 3)
        assert gt.stack([*x]).shape == gt.cat([x, out[:, :1]], 1)[:, :4].shape == (3, 4)


@pytest.mark.parametrize("name", ["export", "multiprocessing", "nested", "sparse", "sparse_coo_tensor"])
def test_missing_parts_of_torch_say_what_to_use(name: str) -> None:
    with pytest.raises(AttributeError, match=f"no attribute '{name}'; "):
        getattr(gt, name)


@pytest.mark.parametrize(("name", "value"), [("data", "a"), ("data", torch.ones(2)), ("grad", 3.0)])
def test_a_parameter_is_given_tensors(name: str, value: Any, session: Session) -> None:
    with pytest.raises(TypeError, match=f"{name}: expected a tensor"):
        setattr(gt.nn.Parameter(gt.ones(2)), name, value)


def test_modules_are_imported_as_torchs() -> None:
    """What stands at the head of scripts, with `torch` replaced."""
    import gt.backends.cudnn as cudnn
    from gt.autograd import Function, Variable, grad  # noqa: F401
    from gt.autograd.function import once_differentiable  # noqa: F401
    from gt.autograd.functional import hessian, jacobian  # noqa: F401
    from gt.cuda.amp import GradScaler, autocast  # noqa: F401
    from gt.nn.parameter import Parameter  # noqa: F401
    from gt.optim.lr_scheduler import LRScheduler, StepLR  # noqa: F401
    from gt.optim.optimizer import Optimizer  # noqa: F401
    from gt.utils.checkpoint import checkpoint  # noqa: F401

    assert cudnn is gt.backends.cudnn


def test_cuda_answers_for_the_worker(session: Session) -> None:
    x = gt.ones(4)
    gt.cuda.synchronize()
    gt.cuda.empty_cache()
    assert (gt.cuda.is_available(), gt.cuda.device_count(), gt.cuda.is_bf16_supported()) == (False, 0, False)
    assert gt.cuda.memory_allocated() == x.nbytes
    assert gt.get_default_device() == x.device == gt.device("cpu")
    free, there = gt.cuda.mem_get_info()
    assert 0 < free <= there
    with pytest.raises(RuntimeError, match="device: unknown device 'foo'"):
        gt.device("foo")


def test_out_of_memory_has_the_name_it_has_in_torch() -> None:
    assert gt.OutOfMemoryError is gt.cuda.OutOfMemoryError
    assert issubclass(gt.OutOfMemoryError, RuntimeError)
