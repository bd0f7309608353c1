"""Every layer beside torch's: text, names, results, gradients, buffers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.errors import ArgumentError, ShapeError
from tests.beside_torch import Build, compare_modules
from tests.client.mistakes import Mistakes, refused

_rng = np.random.default_rng(0)


def x(*shape: int) -> np.ndarray[Any, Any]:
    return _rng.normal(size=shape)


def ints(high: int, *shape: int) -> np.ndarray[Any, Any]:
    return _rng.integers(0, high, shape)


#: Name: the module, and its inputs.
CASES: dict[str, tuple[Build, tuple[Any, ...]]] = {
    "identity": (lambda nn: nn.Identity(54, unused=1), (x(3),)),
    "linear": (lambda nn: nn.Linear(5, 3), (x(2, 4, 5),)),
    "linear without bias": (lambda nn: nn.Linear(5, 3, bias=False, device="cpu"), (x(4, 5),)),
    "bilinear": (lambda nn: nn.Bilinear(4, 5, 3), (x(2, 4), x(2, 5))),
    "bilinear without bias": (lambda nn: nn.Bilinear(4, 5, 3, False), (x(2, 4), x(2, 5))),
    "embedding": (lambda nn: nn.Embedding(6, 3), (ints(6, 2, 4),)),
    "embedding with padding": (lambda nn: nn.Embedding(6, 3, padding_idx=-2), (np.array([4, 1, 4, 5]),)),
    "embedding with a norm": (lambda nn: nn.Embedding(6, 3, max_norm=1.0, norm_type=1.0), (ints(6, 4),)),
    "embedding by frequency": (lambda nn: nn.Embedding(6, 3, scale_grad_by_freq=True), (np.array([1, 1, 2]),)),
    "embedding bag": (lambda nn: nn.EmbeddingBag(6, 3), (ints(6, 2, 4),)),
    "embedding bag with offsets": (lambda nn: nn.EmbeddingBag(6, 3, mode="sum"), (ints(6, 5), np.array([0, 2]))),
    "embedding bag, largest": (lambda nn: nn.EmbeddingBag(6, 3, mode="max", padding_idx=1), (ints(6, 2, 4),)),
    "cosine similarity": (lambda nn: nn.CosineSimilarity(), (x(3, 4), x(3, 4))),
    "pairwise distance": (lambda nn: nn.PairwiseDistance(p=1.0, keepdim=True), (x(3, 4), x(3, 4))),
    # shapes
    "flatten": (lambda nn: nn.Flatten(), (x(2, 3, 4),)),
    "flatten some": (lambda nn: nn.Flatten(0, 1), (x(2, 3, 4),)),
    "unflatten": (lambda nn: nn.Unflatten(1, (2, 3)), (x(2, 6, 4),)),
    "unfold": (lambda nn: nn.Unfold(2, padding=1), (x(2, 3, 4, 4),)),
    "fold": (lambda nn: nn.Fold((4, 5), (2, 3), stride=1), (x(2, 12, 9),)),
    "pixel shuffle": (lambda nn: nn.PixelShuffle(2), (x(1, 8, 2, 3),)),
    "pixel unshuffle": (lambda nn: nn.PixelUnshuffle(2), (x(1, 2, 4, 6),)),
    "channel shuffle": (lambda nn: nn.ChannelShuffle(2), (x(1, 4, 2, 2),)),
    "upsample": (lambda nn: nn.Upsample(scale_factor=2), (x(1, 2, 3, 3),)),
    "upsample to a size": (lambda nn: nn.Upsample(size=(5, 7), mode="bilinear"), (x(1, 2, 3, 3),)),
    "upsample by two": (lambda nn: nn.Upsample(scale_factor=(2, 1.5), mode="bicubic"), (x(1, 2, 4, 4),)),
    "upsampling nearest": (lambda nn: nn.UpsamplingNearest2d(scale_factor=2), (x(1, 2, 3, 3),)),
    "upsampling bilinear": (lambda nn: nn.UpsamplingBilinear2d(size=5), (x(1, 2, 3, 3),)),
    # convolutions
    "conv1d": (lambda nn: nn.Conv1d(4, 6, 3), (x(2, 4, 9),)),
    "conv1d same": (lambda nn: nn.Conv1d(4, 6, 4, padding="same", dilation=2), (x(2, 4, 9),)),
    "conv1d circular": (lambda nn: nn.Conv1d(4, 6, 3, padding=2, padding_mode="circular"), (x(2, 4, 9),)),
    "conv2d": (lambda nn: nn.Conv2d(3, 4, 3, stride=2, padding=1), (x(2, 3, 7, 6),)),
    "conv2d of one image": (lambda nn: nn.Conv2d(3, 4, (3, 2), bias=False), (x(3, 7, 6),)),
    "conv2d in groups": (lambda nn: nn.Conv2d(4, 6, 3, groups=2, dilation=(1, 2)), (x(2, 4, 7, 6),)),
    "conv2d reflecting": (lambda nn: nn.Conv2d(2, 3, 3, padding=(1, 2), padding_mode="reflect"), (x(1, 2, 5, 6),)),
    "conv2d same, replicating": (
        lambda nn: nn.Conv2d(2, 3, 4, padding="same", padding_mode="replicate"), (x(1, 2, 5, 6),)
    ),
    "conv2d valid": (lambda nn: nn.Conv2d(2, 3, 2, padding="valid", padding_mode="reflect"), (x(1, 2, 5, 6),)),
    "conv3d": (lambda nn: nn.Conv3d(2, 3, 2, padding=(0, 1, 1)), (x(1, 2, 4, 4, 3),)),
    "conv transpose 1d": (lambda nn: nn.ConvTranspose1d(3, 4, 3, stride=2, output_padding=1), (x(2, 3, 5),)),
    "conv transpose 2d": (lambda nn: nn.ConvTranspose2d(4, 6, 3, 2, 1, groups=2), (x(2, 4, 5, 4),)),
    "conv transpose 2d to a size": (lambda nn: nn.ConvTranspose2d(2, 3, 3, 2, 1), (x(1, 2, 4, 4), [8, 7])),
    "conv transpose 3d": (lambda nn: nn.ConvTranspose3d(2, 3, 2, bias=False, dilation=2), (x(1, 2, 3, 3, 3),)),
    # pools
    "max pool 1d": (lambda nn: nn.MaxPool1d(3, stride=2), (x(2, 3, 9),)),
    "max pool 2d": (lambda nn: nn.MaxPool2d((2, 3), padding=1, dilation=2, stride=2), (x(2, 3, 9, 9),)),
    "max pool 2d, indices": (lambda nn: nn.MaxPool2d(2, return_indices=True, ceil_mode=True), (x(1, 2, 5, 5),)),
    "max pool 3d": (lambda nn: nn.MaxPool3d(2), (x(1, 2, 4, 4, 4),)),
    "max unpool 2d": (
        lambda nn: nn.MaxUnpool2d(2), (x(1, 1, 2, 2), np.array([[[[0, 3], [12, 15]]]]))
    ),
    "max unpool 1d to a size": (lambda nn: nn.MaxUnpool1d(2, stride=2), (x(1, 1, 2), np.array([[[1, 2]]]), [1, 1, 5])),
    "avg pool 1d": (lambda nn: nn.AvgPool1d(3, 2, 1), (x(2, 3, 8),)),
    "avg pool 2d": (lambda nn: nn.AvgPool2d(3, 2, 1, count_include_pad=False), (x(2, 3, 8, 8),)),
    "avg pool 3d": (lambda nn: nn.AvgPool3d((2, 2, 1), divisor_override=3), (x(1, 2, 4, 4, 4),)),
    "lp pool 1d": (lambda nn: nn.LPPool1d(2, 3), (np.abs(x(2, 3, 9)),)),
    "lp pool 2d": (lambda nn: nn.LPPool2d(3.0, (2, 3), stride=(1, 2)), (np.abs(x(2, 3, 6, 7)),)),
    "lp pool 3d": (lambda nn: nn.LPPool3d(2, 2), (np.abs(x(1, 2, 4, 4, 4)),)),
    "adaptive avg pool 1d": (lambda nn: nn.AdaptiveAvgPool1d(3), (x(2, 3, 8),)),
    "adaptive avg pool 2d": (lambda nn: nn.AdaptiveAvgPool2d((3, None)), (x(2, 3, 8, 7),)),
    "adaptive avg pool 2d to one": (lambda nn: nn.AdaptiveAvgPool2d(1), (x(2, 3, 8, 7),)),
    "adaptive avg pool 3d": (lambda nn: nn.AdaptiveAvgPool3d(2), (x(1, 2, 5, 4, 3),)),
    "adaptive max pool 1d": (lambda nn: nn.AdaptiveMaxPool1d(3, return_indices=True), (x(2, 3, 8),)),
    "adaptive max pool 2d": (lambda nn: nn.AdaptiveMaxPool2d((3, 2)), (x(2, 3, 8, 7),)),
    "adaptive max pool 3d": (lambda nn: nn.AdaptiveMaxPool3d(2), (x(1, 2, 5, 4, 3),)),
    # norms
    "batch norm": (lambda nn: nn.BatchNorm1d(4), (x(5, 4),)),
    "batch norm of sequences": (lambda nn: nn.BatchNorm1d(4, eps=1e-3, momentum=0.3), (x(5, 4, 3),)),
    "batch norm, plain average": (lambda nn: nn.BatchNorm2d(3, momentum=None), (x(2, 3, 4, 4),)),
    "batch norm without weights": (lambda nn: nn.BatchNorm2d(3, affine=False), (x(2, 3, 4, 4),)),
    "batch norm without bias": (lambda nn: nn.BatchNorm2d(3, bias=False), (x(2, 3, 4, 4),)),
    "batch norm without memory": (lambda nn: nn.BatchNorm2d(3, track_running_stats=False), (x(2, 3, 4, 4),)),
    "batch norm 3d": (lambda nn: nn.BatchNorm3d(2), (x(2, 2, 3, 3, 3),)),
    "batch norm, not training": (lambda nn: nn.BatchNorm2d(3).eval(), (x(2, 3, 4, 4),)),
    "batch norm without memory, not training": (
        lambda nn: nn.BatchNorm1d(3, track_running_stats=False).eval(), (x(4, 3),)
    ),
    "instance norm": (lambda nn: nn.InstanceNorm1d(3), (x(2, 3, 5),)),
    "instance norm of one": (lambda nn: nn.InstanceNorm1d(3, affine=True), (x(3, 5),)),
    "instance norm with memory": (
        lambda nn: nn.InstanceNorm2d(3, affine=True, track_running_stats=True), (x(2, 3, 4, 4),)
    ),
    "instance norm, not training": (
        lambda nn: nn.InstanceNorm2d(3, track_running_stats=True).eval(), (x(2, 3, 4, 4),)
    ),
    "instance norm 3d": (lambda nn: nn.InstanceNorm3d(2), (x(2, 2, 3, 3, 3),)),
    "layer norm": (lambda nn: nn.LayerNorm(5), (x(3, 5),)),
    "layer norm of two": (lambda nn: nn.LayerNorm([4, 5], eps=1e-3, bias=False), (x(3, 4, 5),)),
    "layer norm without weights": (lambda nn: nn.LayerNorm(5, elementwise_affine=False), (x(3, 5),)),
    "rms norm": (lambda nn: nn.RMSNorm(5), (x(3, 5),)),
    "rms norm of two": (lambda nn: nn.RMSNorm((4, 5), eps=1e-3, elementwise_affine=False), (x(3, 4, 5),)),
    "group norm": (lambda nn: nn.GroupNorm(2, 4), (x(2, 4, 3, 3),)),
    "group norm without weights": (lambda nn: nn.GroupNorm(4, 4, affine=False), (x(2, 4, 3),)),
    "local response norm": (lambda nn: nn.LocalResponseNorm(3, alpha=0.1), (x(2, 5, 3, 3),)),
    # dropout, where it does nothing
    **{
        name: (lambda nn, name=name: getattr(nn, name)(0.3).eval(), (x(2, 3, 4),))
        for name in ("Dropout", "Dropout1d", "AlphaDropout", "FeatureAlphaDropout")
    },
    "Dropout2d": (lambda nn: nn.Dropout2d(0.3).eval(), (x(2, 3, 4, 4),)),
    "Dropout3d": (lambda nn: nn.Dropout3d(0.3, inplace=True).eval(), (x(2, 3, 4, 4, 4),)),
    # activations
    **{
        name: (lambda nn, name=name: getattr(nn, name)(), (x(3, 4),))
        for name in (
            "Sigmoid", "Tanh", "LogSigmoid", "Softsign", "Tanhshrink", "ReLU", "ReLU6", "SiLU", "Mish", "SELU",
            "Hardsigmoid", "Hardswish", "ELU", "CELU", "LeakyReLU", "Hardtanh", "Hardshrink", "Softshrink", "Softplus",
            "GELU", "GLU", "PReLU",
        )
    },
    "elu": (lambda nn: nn.ELU(0.5), (x(3, 4),)),
    "celu": (lambda nn: nn.CELU(0.5), (x(3, 4),)),
    "leaky relu": (lambda nn: nn.LeakyReLU(0.2), (x(3, 4),)),
    "rrelu": (lambda nn: nn.RReLU(0.1, 0.3).eval(), (x(3, 4),)),
    "threshold": (lambda nn: nn.Threshold(0.1, 20), (x(3, 4),)),
    "hardtanh": (lambda nn: nn.Hardtanh(-2, 0.5), (x(3, 4),)),
    "softplus": (lambda nn: nn.Softplus(2, 1.0), (x(3, 4),)),
    "gelu": (lambda nn: nn.GELU("tanh"), (x(3, 4),)),
    "glu": (lambda nn: nn.GLU(0), (x(4, 3),)),
    "prelu": (lambda nn: nn.PReLU(3, 0.1), (x(2, 3, 4),)),
    "softmax": (lambda nn: nn.Softmax(1), (x(3, 4),)),
    "log softmax": (lambda nn: nn.LogSoftmax(dim=-1), (x(3, 4),)),
    "softmin": (lambda nn: nn.Softmin(0), (x(3, 4),)),
    "softmax2d": (lambda nn: nn.Softmax2d(), (x(2, 3, 4, 4),)),
    # together
    "relu in place": (lambda nn: nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 2)), (x(3, 4),)),
    "data parallel": (lambda nn: nn.DataParallel(nn.Linear(4, 2)), (x(3, 4),)),
    "a small network": (
        lambda nn: nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3)
        ),
        (x(2, 1, 4, 4),),
    ),
}  # fmt: skip

for kind in ("Zero", "Reflection", "Replication", "Circular"):
    CASES |= {
        f"{kind}Pad1d": (lambda nn, k=kind: getattr(nn, f"{k}Pad1d")(1), (x(2, 3, 4),)),
        f"{kind}Pad2d": (lambda nn, k=kind: getattr(nn, f"{k}Pad2d")((1, 0, 2, 1)), (x(1, 2, 4, 4),)),
        f"{kind}Pad3d": (lambda nn, k=kind: getattr(nn, f"{k}Pad3d")(1), (x(1, 2, 3, 3, 3),)),
    }
for n in (1, 2, 3):
    CASES[f"ConstantPad{n}d"] = (lambda nn, n=n: getattr(nn, f"ConstantPad{n}d")(1, 3.5), (x(1, 2, *(3,) * n),))


@pytest.mark.parametrize(("build", "args"), CASES.values(), ids=CASES)
def test_layers_are_torchs(build: Any, args: Any) -> None:
    compare_modules(build, args)


IN_PLACE = ["ReLU", "ReLU6", "SiLU", "Mish", "SELU", "Hardsigmoid", "Hardswish", "ELU", "CELU", "LeakyReLU", "Hardtanh"]


@pytest.mark.parametrize("name", IN_PLACE)
def test_activations_write_into_their_input(name: str) -> None:
    module = getattr(gt.nn, name)(inplace=True)
    assert repr(module) == repr(getattr(torch.nn, name)(inplace=True))
    t = gt.from_numpy(x(3, 4))
    want = getattr(gt.nn, name)()(t).numpy()
    assert module(t) is t
    np.testing.assert_array_equal(t.numpy(), want)


@pytest.mark.parametrize("name", ["Dropout", "Dropout1d", "Dropout2d", "Dropout3d"])
def test_dropout_drops(name: str) -> None:
    gt.manual_seed(0)
    shape = (50, 40, 2, 2, 2)[: {"Dropout1d": 3, "Dropout2d": 4}.get(name, 5)]
    y = getattr(gt.nn, name)(0.25)(gt.ones(*shape)).numpy()
    assert set(np.unique(y)) == {np.float32(0.0), np.float32(1 / 0.75)}
    assert (y == 0).mean() == pytest.approx(0.25, abs=0.04)
    whole = (y == 0).reshape(50, 40, -1)
    assert (whole.all(-1) == whole.any(-1)).all() == (name != "Dropout")


@pytest.mark.parametrize("name", ["AlphaDropout", "FeatureAlphaDropout"])
def test_alpha_dropout_keeps_mean_and_variance(name: str) -> None:
    gt.manual_seed(1)
    y = getattr(gt.nn, name)(0.3)(gt.randn(300, 300)).numpy()
    assert y.mean() == pytest.approx(0.0, abs=0.02)
    assert y.std() == pytest.approx(1.0, abs=0.02)


def test_fractional_pools_take_elements_of_the_input() -> None:
    t = gt.from_numpy(x(1, 2, 6, 6))
    y, where = gt.nn.FractionalMaxPool2d(2, output_size=3, return_indices=True)(t)
    flat = t.numpy().reshape(2, 36)
    np.testing.assert_array_equal(np.take_along_axis(flat, where.numpy().reshape(2, 9), 1), y.numpy().reshape(2, 9))
    assert gt.nn.FractionalMaxPool3d(2, output_ratio=0.5)(gt.randn(1, 1, 4, 4, 4)).shape == (1, 1, 2, 2, 2)


def test_random_slopes_lie_between_their_bounds() -> None:
    y = gt.nn.RReLU(0.1, 0.3)(-gt.ones(1000)).numpy()
    assert -0.3 <= y.min() < -0.28
    assert -0.12 < y.max() <= -0.1


def test_tables_that_are_given() -> None:
    table = gt.tensor([[1.0, 2.0], [3.0, 4.0]])
    layer = gt.nn.Embedding.from_pretrained(table)
    assert not layer.weight.requires_grad
    assert layer(gt.tensor([1])).tolist() == [[3.0, 4.0]]
    assert gt.nn.Embedding.from_pretrained(table, freeze=False, padding_idx=0).weight.requires_grad
    bag = gt.nn.EmbeddingBag.from_pretrained(table, mode="sum")
    assert bag(gt.tensor([[0, 1]])).tolist() == [[4.0, 6.0]]
    assert gt.nn.Embedding(4, 2, padding_idx=1).weight[1].tolist() == [0.0, 0.0]


def test_running_values_move_and_are_forgotten() -> None:
    ours, theirs = gt.nn.BatchNorm1d(3), torch.nn.BatchNorm1d(3)
    for _ in range(3):
        a = x(4, 3).astype(np.float32)
        ours(gt.from_numpy(a))
        theirs(torch.from_numpy(a))
    for name, want in theirs.state_dict().items():
        np.testing.assert_allclose(ours.state_dict()[name].numpy(), want.numpy(), rtol=1e-5)
    ours.reset_running_stats()
    assert ours.running_mean.tolist() == [0.0] * 3
    assert ours.num_batches_tracked.item() == 0


MISTAKES: Mistakes = {
    "groups": (
        lambda nn: nn.Conv2d(3, 4, 3, groups=2),
        ArgumentError,
        "3 and 4 channels must be multiples of 2 groups",
    ),
    "padding": (lambda nn: nn.Conv2d(3, 4, 3, padding="full"), ArgumentError, "ints, 'same' or 'valid', got 'full'"),
    "same": (lambda nn: nn.Conv2d(3, 4, 3, 2, "same"), ArgumentError, "padding='same' requires stride 1"),
    "mode": (lambda nn: nn.Conv2d(3, 4, 3, padding_mode="zero"), ArgumentError, "must be one of 'zeros', 'reflect'"),
    "kernel": (lambda nn: nn.Conv2d(3, 4, (3, 3, 3)), ArgumentError, "kernel_size must be an int or 2 ints"),
    "group norm": (lambda nn: nn.GroupNorm(3, 4), ArgumentError, "num_channels must be a multiple of 3, got 4"),
    "dropout": (lambda nn: nn.Dropout(2), ArgumentError, "p must be a probability between 0 and 1, got 2"),
    "row": (lambda nn: nn.Embedding(3, 2, padding_idx=5), ArgumentError, "must be a row index below 3, got 5"),
    "dimensions": (lambda nn: nn.BatchNorm2d(3)(gt.ones(2, 3)), ShapeError, "an input of 4 dimensions, got shape"),
    "channels": (lambda nn: nn.InstanceNorm1d(3, affine=True)(gt.ones(2, 4, 5)), ShapeError, "3 channels, got 4"),
    "size": (lambda nn: nn.ConvTranspose1d(1, 1, 3, 2)(gt.ones(1, 1, 3), [20]), ShapeError, r"\(7,\) and \(8,\)"),
    "softmax2d": (lambda nn: nn.Softmax2d()(gt.ones(2, 3)), ShapeError, r"expected an input \(C, H, W\)"),
}
test_mistakes = refused(MISTAKES, lambda: gt.nn)
