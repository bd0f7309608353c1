"""The whole path on a real GPU: a private server with a CUDA worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt import errors, nn, optim
from gt.client.programs.pending import use
from gt.client.record import recorder
from gt.client.session import connecting
from gt.errors import IndexOutOfRange

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("fresh"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


BAD: dict[str, Callable[[Any, Any], Any]] = {
    "embedding": lambda x, i: gt.nn.functional.embedding(i, x),
    "gather": lambda x, i: gt.gather(x, 0, i.unsqueeze(1).expand(-1, 3)),
    "index_select": lambda x, i: gt.index_select(x, 0, i),
    "index_add": lambda x, i: gt.index_add(x, 0, i, gt.ones(len(i), 3)),
    "scatter_add": lambda x, i: gt.scatter_add(x, 0, i.unsqueeze(1).expand(-1, 3), gt.ones(len(i), 3)),
    "index": lambda x, i: x[i],
    "one_hot": lambda x, i: gt.nn.functional.one_hot(i, 5),
    "cross_entropy": lambda x, i: nn.functional.cross_entropy(gt.ones(len(i), 5), i),
    "nll_loss": lambda x, i: nn.functional.nll_loss(gt.ones(1, 5, len(i)), i.unsqueeze(0)),
    "scatter": lambda x, i: gt.scatter(x, 0, i.unsqueeze(1).expand(-1, 3), gt.ones(len(i), 3)),
    "scatter_reduce": lambda x, i: gt.scatter_reduce(x, 0, i.unsqueeze(1).expand(-1, 3), gt.ones(len(i), 3), "amax"),
    "index_copy": lambda x, i: gt.index_copy(x, 0, i, gt.ones(len(i), 3)),
    "index_fill": lambda x, i: gt.index_fill(x, 0, i, 2.0),
    "index_put": lambda x, i: gt.index_put(x, (i,), gt.ones(len(i), 3)),
    "index_reduce": lambda x, i: gt.index_reduce(x, 0, i, gt.ones(len(i), 3), "prod"),
    "take_along_dim": lambda x, i: gt.take_along_dim(x, i.unsqueeze(1), 0),
    "embedding_bag": lambda x, i: nn.functional.embedding_bag(i.unsqueeze(0), x),
    "select": lambda x, i: x[i[1]],
}


@pytest.mark.parametrize("name", list(BAD))
@pytest.mark.parametrize("bad", [5, 1 << 40, -7])
def test_a_bad_index_fails_only_its_call(name: str, bad: int) -> None:
    x = gt.tensor(np.arange(15.0, dtype=np.float32).reshape(5, 3))
    weight = gt.ones(3, requires_grad=True)
    opt = optim.AdamW([weight], lr=0.1)
    good = gt.tensor(np.array([0, 4, 2, 1]))
    before = weight.detach().numpy().copy()
    expected = BAD[name](x, good).numpy()

    index = gt.tensor(np.array([0, bad, 2, 1]))
    loss = BAD[name](x, index).sum() * weight.sum()
    loss.backward()
    with pytest.raises(IndexOutOfRange):  # from whichever of the two learns of it first
        opt.step(), loss.item()
    np.testing.assert_array_equal(weight.detach().numpy(), before)
    np.testing.assert_array_equal(BAD[name](x, good).numpy(), expected)
    np.testing.assert_array_equal(x.numpy(), np.arange(15.0, dtype=np.float32).reshape(5, 3))


def test_a_bad_assignment_changes_nothing() -> None:
    x = gt.zeros(5, 3)
    x.numpy()
    x[gt.tensor([7])] = 1.0
    with pytest.raises(IndexOutOfRange):
        x.numpy()
    np.testing.assert_array_equal(x.numpy(), np.zeros((5, 3), np.float32))


def test_a_bad_index_of_one_session_leaves_the_other_alone() -> None:
    gt.zeros(1).numpy()
    first = connecting.current()
    other = connecting._join(first.private.address, first.config)
    x = gt.ones(4)
    x.numpy()
    try:
        before = connecting.adopt(other)
        mine = use(recorder.new_recorder(other))
        with pytest.raises(IndexOutOfRange):
            gt.nn.functional.embedding(gt.tensor([9]), gt.ones(3, 2)).numpy()
    finally:
        connecting.adopt(before)
        use(mine)
        other.close()
    np.testing.assert_array_equal((x * 2).numpy(), np.full(4, 2, np.float32))


def test_out_of_memory_fails_only_its_call() -> None:
    x = gt.ones(8)
    x.numpy()
    free, _ = torch.cuda.mem_get_info()
    side = int((free * 0.7 / 4) ** 0.5)
    a = gt.ones(side, side)
    total = ((a + 1) * (a + 2) * (a + 3)).sum()
    with pytest.raises(errors.OutOfMemory):
        total.item()
    assert (x * 3).sum().item() == 24.0


def test_uploads_while_the_device_is_busy_are_what_was_sent() -> None:
    """Their memory is used again and again, and only once the device has read it."""
    a = gt.randn(4096, 4096)
    kept = []
    for i in range(60):
        a = (a @ a).tanh()
        kept.append(gt.tensor(np.full((256, 1024), i, np.float32)) + 1)  # 1 MiB each
        kept.append(gt.tensor(np.full(3, i, np.float32)) + 1)
    assert a.isfinite().all().item()
    for i, (large, small) in enumerate(zip(kept[::2], kept[1::2], strict=True)):
        assert large.min().item() == large.max().item() == i + 1
        assert small.tolist() == [i + 1] * 3


def test_precision_is_the_programs() -> None:
    """TF32 keeps 10 bits of the operands, float32 23."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((512, 512)), rng.standard_normal((512, 512))
    image, kernel = rng.standard_normal((8, 64, 32, 32)), rng.standard_normal((64, 64, 3, 3))
    product = x @ w
    conv = torch.nn.functional.conv2d(torch.tensor(image), torch.tensor(kernel)).numpy()

    def errors_of() -> tuple[bool, bool]:
        """Whether a product, and a convolution, are less exact than float32 is."""
        made = gt.tensor(x.astype(np.float32)) @ gt.tensor(w.astype(np.float32))
        filtered = nn.functional.conv2d(gt.tensor(image.astype(np.float32)), gt.tensor(kernel.astype(np.float32)))
        return bool(abs(made.numpy() - product).max() > 1e-3), bool(abs(filtered.numpy() - conv).max() > 1e-3)

    try:
        assert errors_of() == (False, True)  # torch's own choice
        gt.set_float32_matmul_precision("high")
        gt.backends.cudnn.allow_tf32 = False
        assert errors_of() == (True, False)
        gt.backends.cuda.matmul.allow_tf32 = False
        assert errors_of() == (False, False)
    finally:
        gt.set_float32_matmul_precision("highest")
        gt.backends.cudnn.allow_tf32 = True
