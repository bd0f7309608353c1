"""gt.fft and stft beside torch's, on the numpy engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gt
from gt.errors import ArgumentError, DTypeError, ShapeError
from tests.beside_torch import compare
from tests.client.mistakes import Mistakes, refused

pytestmark = [
    pytest.mark.usefixtures("session"),
    pytest.mark.filterwarnings("ignore:A window was not provided:UserWarning"),
]

RNG = np.random.default_rng(0)
REAL = RNG.normal(size=(2, 3, 4))
TURNING = REAL + 1j * RNG.normal(size=REAL.shape)
NORMS = (None, "backward", "ortho", "forward")


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("n", [None, 3, 6])
@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"])
def test_one_dimension(name: str, n: int | None, norm: str | None) -> None:
    data = REAL if name in ("rfft", "ihfft") else TURNING
    compare(lambda lib, x: getattr(lib.fft, name)(x, n, dim=1, norm=norm), data, second=n is None, rtol=1e-9)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ["fftn", "ifftn", "rfftn", "irfftn", "hfftn", "ihfftn"])
def test_several_dimensions(name: str, norm: str | None) -> None:
    data = REAL if name in ("rfftn", "ihfftn") else TURNING
    for more in ({}, {"s": (3, 5)}, {"dim": (0, -1)}, {"s": (-1, 4), "dim": (1, 0)}):
        compare(lambda lib, x, more=more: getattr(lib.fft, name)(x, norm=norm, **more), data, rtol=1e-9)
    two = name[:-1] + "2"
    compare(lambda lib, x: getattr(lib.fft, two)(x, norm=norm), data, rtol=1e-9)


def test_types() -> None:
    compare(lambda lib, x: (lib.fft.fft(x), lib.fft.rfft(x)), np.arange(5), rtol=1e-5)
    compare(lambda lib, x: (lib.fft.fft(x), lib.fft.irfft(x)), REAL.astype(np.float32), rtol=1e-5)


def test_frequencies() -> None:
    compare(lambda lib, x: (lib.fft.fftshift(x), lib.fft.ifftshift(x, dim=1), lib.fft.fftshift(x, (0, 2))), REAL)
    for n in (4, 5):
        compare(lambda lib, x, n=n: (lib.fft.fftfreq(n, 0.5), lib.fft.rfftfreq(n, dtype=lib.float64)), REAL, rtol=1e-6)


SIGNAL = RNG.normal(size=(2, 30))
WINDOW = RNG.uniform(0.5, 1, size=8)

SPECTRA: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "plain": (lambda lib, x: lib.stft(x, 8, return_complex=True), (SIGNAL,)),
    "window": (lambda lib, x, w: x.stft(8, 3, window=w, normalized=True, return_complex=True), (SIGNAL, WINDOW)),
    "short window": (lambda lib, x, w: lib.stft(x, 11, 4, 8, w, center=False, return_complex=True), (SIGNAL, WINDOW)),
    "both sides": (lambda lib, x: lib.stft(x[0], 8, onesided=False, return_complex=True), (SIGNAL,)),
    "complex": (lambda lib, x: lib.stft(x, 8), (SIGNAL + 1j,)),
    "edges": (lambda lib, x: lib.stft(x, 8, pad_mode="constant", return_complex=True), (SIGNAL,)),
    "there and back": (
        lambda lib, x, w: lib.istft(
            lib.stft(x, 8, 2, window=w.detach(), return_complex=True), 8, 2, window=w.detach(), length=29
        ),
        (SIGNAL, WINDOW),
    ),
    "back": (
        lambda lib, x: lib.istft(lib.stft(x[0], 9, 3, return_complex=True), 9, 3, normalized=True), (SIGNAL,)
    ),
}  # fmt: skip


@pytest.mark.parametrize(("f", "arrays"), SPECTRA.values(), ids=SPECTRA)
def test_spectra_of_windows(f: Any, arrays: Any) -> None:
    compare(f, *arrays, rtol=1e-8)


def test_a_signal_comes_back() -> None:
    x = gt.tensor(SIGNAL)
    spectra = gt.stft(x, 8, 2, return_complex=True)
    np.testing.assert_allclose(gt.istft(spectra, 8, 2, length=30).numpy(), SIGNAL, atol=1e-12)


MISTAKES: Mistakes = {
    "rfft": (lambda: gt.fft.rfft(gt.tensor([1j])), DTypeError, r"fft\.rfft: expected a real tensor, got complex64"),
    "norm": (lambda: gt.fft.fft(gt.ones(2), norm="x"), ArgumentError, r"fft\.fft: norm must be one of None,"),
    "n": (lambda: gt.fft.fft(gt.ones(2), 0), ShapeError, r"fft\.fft: expected at least 1 point in dimension 0 of"),
    "twice": (lambda: gt.fft.fftn(gt.ones(2, 2), dim=(0, -2)), IndexError, "contain a dimension twice"),
    "sizes": (lambda: gt.fft.fftn(gt.ones(2), s=(2, 2)), ShapeError, "2 sizes for a tensor of 1 dimensions"),
    "one point": (lambda: gt.fft.irfft(gt.ones(1)), ShapeError, r"fft\.irfft: the result needs at least 1 point in"),
    "stft": (lambda: gt.stft(gt.ones(20), 8), ArgumentError, "stft: pass return_complex=True, or False for a last"),
    "window": (lambda: gt.stft(gt.ones(20), 8, window=gt.ones(5)), ShapeError, r"stft: window must have shape \(8,\),"),
    "istft": (
        lambda: gt.istft(gt.ones(3, 3, dtype=gt.complex64), 8),
        ShapeError,
        "istft: n_fft=8 and onesided=True do not match 3 frequencies",
    ),
}


test_mistakes = refused(MISTAKES)
