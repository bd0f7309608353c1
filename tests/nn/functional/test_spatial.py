"""Convolution, pooling, resizing and sampling: torch's values, gradients, and gradients of gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gt
from gt.client.session.session import Session
from gt.errors import ArgumentError, DTypeError, IndexOutOfRange, ShapeError
from tests.beside_torch import agree, compare

_rng = np.random.default_rng(4)
IMAGES = _rng.normal(size=(2, 4, 6, 7))
GRID = _rng.uniform(-1.3, 1.3, size=(2, 3, 5, 2))
VOLUME = _rng.normal(size=(1, 2, 4, 5, 3))
W = _rng.normal(size=(6, 2, 3, 2))
Case = Callable[[Any, Any, Any], Any]

#: f(functional, images, weight): those of the two that it uses get a gradient.
CASES: dict[str, Case] = {
    "conv2d": lambda F, x, w: F.conv2d(x, w, groups=2),
    "conv2d, all of it": lambda F, x, w: F.conv2d(x, w, x[0, 0, 0, :6], (2, 1), (1, 2), (1, 2), 2),
    "conv2d, same": lambda F, x, w: F.conv2d(x, w, padding="same", groups=2, dilation=(1, 3)),
    "conv2d, valid": lambda F, x, w: F.conv2d(x, w, padding="valid", groups=2),
    "conv2d of one image": lambda F, x, w: F.conv2d(x[0], w, groups=2, stride=[2]),
    "conv1d": lambda F, x, w: F.conv1d(x[:, :, 0], w[:, :, :, 0], groups=2, padding=1),
    "conv3d": lambda F, x, w: F.conv3d(x[None], w[:, :, None], stride=(1, 2, 1), groups=1),
    "conv_transpose2d": lambda F, x, w: F.conv_transpose2d(x, w[:4], x[0, 0, 0, :4], 2, 1, (1, 0), 2, 1),
    "conv_transpose2d, one more": lambda F, x, w: F.conv_transpose2d(x, w[:4], None, (3, 2), (1, 2), (2, 3), 1, 4),
    "conv_transpose1d": lambda F, x, w: F.conv_transpose1d(x[0, :, 0], w[:4, :, 0], stride=2),
    "conv_tbc": lambda F, x, w: F.conv_tbc(x[0], w[0, 0, :, 0].expand(2, 7, 3), w[0, 0, :, 0], 1),
    "unfold": lambda F, x, w: F.unfold(x, (2, 3), dilation=(2, 1), padding=(1, 0), stride=2),
    "fold": lambda F, x, w: F.fold(x.reshape(2, 6, 28), (5, 7), (2, 1), stride=1),
    "linear": lambda F, x, w: F.linear(x, w.reshape(-1)[:14].reshape(2, 7), w[0, 0, 0, :2]),
    "bilinear": lambda F, x, w: F.bilinear(x[..., :2], x[..., 3:6], w.reshape(12, 2, 3), w.reshape(6, 12)[0]),
    "max_pool2d": lambda F, x, w: F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
    "max_pool2d, dilated": lambda F, x, w: F.max_pool2d(x, (2, 3), stride=1, dilation=(3, 1)),
    "max_pool1d": lambda F, x, w: F.max_pool1d(x[0], 2),
    "max_pool3d": lambda F, x, w: F.max_pool3d(x, 2, 1, 1),
    "max_pool2d and back": lambda F, x, w: F.max_unpool2d(
        *F.max_pool2d(x, 2, return_indices=True), 2, output_size=(6, 7)
    ),
    "avg_pool2d": lambda F, x, w: F.avg_pool2d(x, 3, 2, 1, True, False),
    "avg_pool2d, by a divisor": lambda F, x, w: F.avg_pool2d(x, (2, 3), divisor_override=5),
    "avg_pool1d": lambda F, x, w: F.avg_pool1d(x[0], 3, 2, 1),
    "avg_pool3d": lambda F, x, w: F.avg_pool3d(x, 2, 1, 1),
    "lp_pool2d": lambda F, x, w: F.lp_pool2d(x.abs(), 3.0, 2, ceil_mode=True),
    "lp_pool1d": lambda F, x, w: F.lp_pool1d(x[0].abs(), 2, 3, 2),
    "lp_pool3d": lambda F, x, w: F.lp_pool3d(x.abs(), 2, 2),
    "adaptive_avg_pool2d": lambda F, x, w: F.adaptive_avg_pool2d(x, (4, None)),
    "adaptive_avg_pool2d to one": lambda F, x, w: F.adaptive_avg_pool2d(x, 1),
    "adaptive_avg_pool1d": lambda F, x, w: F.adaptive_avg_pool1d(x[0], 5),
    "adaptive_avg_pool3d": lambda F, x, w: F.adaptive_avg_pool3d(x, (2, 4, 3)),
    "adaptive_max_pool2d": lambda F, x, w: F.adaptive_max_pool2d(x, (4, 5)),
    "adaptive_max_pool1d": lambda F, x, w: F.adaptive_max_pool1d(x[0], 5),
    "interpolate": lambda F, x, w: F.interpolate(x, scale_factor=1.7),
    "interpolate, exact": lambda F, x, w: F.interpolate(x, size=(4, 13), mode="nearest-exact"),
    "interpolate, linear": lambda F, x, w: F.interpolate(x[0], scale_factor=2.0, mode="linear"),
    "interpolate, bilinear": lambda F, x, w: F.interpolate(x, size=(9, 3), mode="bilinear", align_corners=True),
    "interpolate, by a factor": lambda F, x, w: F.interpolate(x, scale_factor=(1.3, 2.2), mode="bilinear"),
    "interpolate, recomputed": lambda F, x, w: F.interpolate(
        x, scale_factor=(1.3, 2.2), mode="bilinear", recompute_scale_factor=True
    ),
    "interpolate, bicubic": lambda F, x, w: F.interpolate(x, size=(9, 3), mode="bicubic"),
    "interpolate, antialiased": lambda F, x, w: F.interpolate(x, size=(3, 5), mode="bicubic", antialias=True),
    "interpolate, smooth": lambda F, x, w: F.interpolate(x, size=(3, 9), mode="bilinear", antialias=True),
    "interpolate, trilinear": lambda F, x, w: F.interpolate(x[None], size=(3, 5, 6), mode="trilinear"),
    "interpolate, area": lambda F, x, w: F.interpolate(x, size=4, mode="area"),
    "pixel_shuffle": lambda F, x, w: F.pixel_shuffle(x, 2),
    "pixel_unshuffle": lambda F, x, w: F.pixel_unshuffle(x[..., :6], 3),
    "channel_shuffle": lambda F, x, w: F.channel_shuffle(x, 2),
    "affine_grid": lambda F, x, w: F.affine_grid(x[:, 0, :2, :3], (2, 1, 3, 4), align_corners=False),
    "affine_grid of volumes": lambda F, x, w: F.affine_grid(x[:, 0, :3, :4], (2, 1, 3, 2, 2), align_corners=True),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Using padding='same'")  # torch's own
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_values_and_gradients_are_as_in_torch(case: Case, session: Session) -> None:
    compare(lambda lib, x, w: case(lib.nn.functional, x, w), IMAGES, W, second=True, atol=1e-9)


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align", [False, True], ids=["", "aligned"])
def test_sampling_is_as_in_torch(mode: str, padding_mode: str, align: bool, session: Session) -> None:
    compare(
        lambda lib, x, grid: lib.nn.functional.grid_sample(x, grid, mode, padding_mode, align), IMAGES, GRID, atol=1e-9
    )


def test_a_place_that_is_no_number_is_outside(session: Session) -> None:
    places = gt.full((1, 1, 2, 2), float("nan"))
    assert gt.nn.functional.grid_sample(gt.ones(1, 1, 3, 3), places, align_corners=False).tolist() == [[[[0.0, 0.0]]]]


@pytest.mark.parametrize("n", [2, 3])
def test_fractional_pools_by_given_numbers(n: int, session: Session) -> None:
    data = IMAGES if n == 2 else VOLUME
    samples = _rng.uniform(size=(data.shape[0], data.shape[1], n))
    name, out = f"fractional_max_pool{n}d", (3, 4) if n == 2 else (2, 3, 1)

    def pool(lib: Any) -> Any:
        x, given = lib.from_numpy(data), lib.from_numpy(samples)
        return getattr(lib.nn.functional, name)(x, 2, out, return_indices=True, _random_samples=given)

    agree(pool, rtol=0)
    halved = getattr(gt.nn.functional, name)(gt.from_numpy(data), 2, output_ratio=0.5)
    assert halved.shape[2:] == tuple(m // 2 for m in data.shape[2:])


def test_positions_of_the_largest(session: Session) -> None:
    x = np.full((1, 1, 4, 4), -np.inf)  # padding is as low, and yet never chosen
    for kernel in (2, 3):
        agree(lambda lib, k=kernel: lib.nn.functional.max_pool2d(lib.from_numpy(x), k, 2, 1, return_indices=True))


def test_other_names_of_torch(session: Session) -> None:
    x, w = (gt.from_numpy(a) for a in (IMAGES, W))
    values, places = gt.adaptive_max_pool1d(x[0], 3)
    assert values.shape == places.shape == (4, 6, 3)
    assert gt.conv2d(x, w, groups=2).shape == (2, 6, 4, 6)
    assert gt.nn.functional.max_pool2d_with_indices(x, 2)[1].dtype is gt.int64
    assert gt.grid_sampler_2d(x, gt.from_numpy(GRID), 0, 0, False).shape == (2, 4, 3, 5)
    with pytest.raises(ArgumentError, match="modes must be 0, 1 or 2, got 7 and 0"):
        gt.grid_sampler(x, gt.from_numpy(GRID), 7, 0, False)


WRONG: dict[str, tuple[Callable[[Any, Any], Any], type[Exception], str]] = {
    "channels": (
        lambda F, x: F.conv2d(x, gt.ones(8, 3, 3, 3)), ShapeError,
        r"conv2d: input has 4 channels, weight expects 3 \(weight shape \(8, 3, 3, 3\)\)",
    ),
    "channels in groups": (
        lambda F, x: F.conv2d(x, gt.ones(8, 1, 3, 3), groups=2), ShapeError,
        "input has 4 channels, weight expects 2 in 2 groups",
    ),
    "groups": (lambda F, x: F.conv2d(x, gt.ones(3, 2, 3, 3), groups=2), ShapeError, "3 channels cannot be divided"),
    "kernel": (
        lambda F, x: F.conv2d(x, gt.ones(8, 4, 9, 3)), ShapeError,
        r"a window of \(9, 3\) does not fit into an input of \(6, 7\) with padding \(0, 0\)",
    ),
    "bias": (lambda F, x: F.conv2d(x, gt.ones(8, 4, 1, 1), gt.ones(3)), ShapeError, r"a bias of 8 output channels"),
    "dimensions": (
        lambda F, x: F.conv2d(x[0, 0], gt.ones(8, 4, 1, 1)), ShapeError, "expected an input of 3 dimensions"
    ),
    "dtype": (lambda F, x: F.conv2d(x, gt.ones(8, 4, 1, 1).double()), DTypeError, "conv2d: expected one dtype"),
    "strided same": (
        lambda F, x: F.conv2d(x, gt.ones(8, 4, 1, 1), stride=2, padding="same"), ArgumentError, "requires stride 1"
    ),
    "named padding": (lambda F, x: F.conv2d(x, gt.ones(8, 4, 1, 1), padding="full"), ArgumentError, "got 'full'"),
    "stride": (lambda F, x: F.conv2d(x, gt.ones(8, 4, 1, 1), stride=0), ArgumentError, r"stride must be positive"),
    "strides": (
        lambda F, x: F.conv2d(x, gt.ones(8, 4, 1, 1), stride=(1, 2, 3)), ArgumentError, "stride must be an int or 2"
    ),
    "output padding": (
        lambda F, x: F.conv_transpose2d(x, gt.ones(4, 1, 2, 2), output_padding=1), ArgumentError, "must be smaller than"
    ),
    "pool padding": (lambda F, x: F.max_pool2d(x, 2, padding=2), ArgumentError, "at most half of the kernel"),
    "not a tensor": (lambda F, x: F.max_pool2d(3, 2), ArgumentError, "max_pool2d: input must be a tensor, got 3"),
    "columns": (lambda F, x: F.fold(gt.ones(1, 8, 3), (4, 4), 2), ShapeError, "have 9 windows, the input .* has 3"),
    "size and factor": (lambda F, x: F.interpolate(x, 3, 2.0), ArgumentError, "expected either size or scale_factor"),
    "mode": (lambda F, x: F.interpolate(x, 3, mode="linear"), ShapeError, "'linear' expects an input of 3"),
    "corners": (lambda F, x: F.interpolate(x, 3, align_corners=True), ArgumentError, "align_corners requires a linear"),
    "shuffle": (lambda F, x: F.pixel_shuffle(x, 3), ShapeError, "with C a multiple of 9"),
    "unpool": (
        lambda F, x: F.max_unpool2d(x, gt.zeros(2, 4, 6, 7).long() + 10_000, 2).sum().item(), IndexOutOfRange, "10000"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("call", "error", "text"), WRONG.values(), ids=WRONG.keys())
def test_arguments_that_do_not_fit_are_refused(call: Any, error: Any, text: str, session: Session) -> None:
    with pytest.raises(error, match=text):
        call(gt.nn.functional, gt.from_numpy(IMAGES.astype(np.float32)))
