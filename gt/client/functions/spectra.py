"""Short-time Fourier transforms and their inverse."""

from __future__ import annotations

from typing import Any

from gt.client.compat.autocast import autocasts
from gt.client.compat.checks import positive
from gt.client.functions import elementwise as ew
from gt.client.functions import fft as transforms
from gt.client.functions import shapes
from gt.client.functions.complexes import view_as_real
from gt.client.functions.creation import ones
from gt.client.functions.padding import pad
from gt.client.tensor import Tensor
from gt.errors import ArgumentError, DTypeError, ShapeError
from gt.ops import TABLE
from gt.ops.record import FLOAT32_ON_CPU
from gt.program import spec

__all__ = ["istft", "stft"]
METHODS = __all__


def _window(op: str, window: Any, win_length: int | None, n_fft: int, like: Any) -> Any:
    """The window, padded with zeros on both sides to n_fft points."""
    length = n_fft if win_length is None else win_length
    if not 0 < length <= n_fft:
        raise ArgumentError(f"{op}: win_length must be from 1 to n_fft={n_fft}, got {length}")
    if window is None:
        window = ones(length, dtype=like.dtype.to_real())
    if window.shape != (length,):
        raise ShapeError(f"{op}: window must have shape ({length},), got {window.shape}")
    left = (n_fft - length) // 2
    return window if length == n_fft else pad(window, (left, n_fft - length - left))


@autocasts(FLOAT32_ON_CPU)
def stft(
    input: Any, n_fft: int, hop_length: int | None = None, win_length: int | None = None, window: Any = None,
    center: bool = True, pad_mode: str = "reflect", normalized: bool = False, onesided: bool | None = None,
    return_complex: bool | None = None, align_to_window: bool | None = None,
) -> Tensor:  # fmt: skip
    """The short-time Fourier transform: spectra of windows of n_fft points, hop_length apart."""
    if input.ndim not in (1, 2) or not input.dtype.is_differentiable:
        got = f"{input.dtype.name} of shape {input.shape}"
        raise ShapeError(f"stft: expected a floating-point or complex vector or matrix, got {got}")
    if align_to_window is not None:
        raise ArgumentError("stft: align_to_window is not supported; pad the signal, or use center")
    hop = n_fft // 4 if hop_length is None else hop_length
    positive("stft", "hop_length", hop)
    x = shapes.unsqueeze(input, 0) if input.ndim == 1 else input
    if center:
        sides = (n_fft // 2, n_fft // 2)
        x = shapes.squeeze(pad(shapes.unsqueeze(x, 0), sides, mode=pad_mode), 0)
    if not 0 < n_fft <= x.shape[-1]:
        raise ArgumentError(f"stft: n_fft must be from 1 to {x.shape[-1]}, the length of the signal, got {n_fft}")
    shape = _window("stft", window, win_length, n_fft, input)
    turns = input.dtype.is_complex or shape.dtype.is_complex
    half = not turns if onesided is None else onesided
    if return_complex is None:
        if not turns:
            raise ArgumentError("stft: pass return_complex=True, or False for a last dimension of size 2")
        return_complex = True
    if half and turns:
        raise DTypeError("stft: onesided=True needs a real signal and a real window")
    frames = ew.mul(shapes.unfold(x, -1, n_fft, hop), shape)  # (batch, windows, n_fft)
    norm = "ortho" if normalized else "backward"
    y = shapes.transpose((transforms.rfft if half else transforms.fft)(frames, norm=norm), 1, 2)
    y = shapes.squeeze(y, 0) if input.ndim == 1 else y
    return y if return_complex else view_as_real(y)


def istft(
    input: Any, n_fft: int, hop_length: int | None = None, win_length: int | None = None, window: Any = None,
    center: bool = True, normalized: bool = False, onesided: bool | None = None, length: int | None = None,
    return_complex: bool = False,
) -> Tensor:  # fmt: skip
    """The inverse of stft(): the signal with the given spectra."""
    if input.ndim not in (2, 3) or not input.dtype.is_complex:
        got = f"{input.dtype.name} of shape {input.shape}"
        raise ShapeError(f"istft: expected a complex tensor of 2 or 3 dimensions, got {got}")
    hop = n_fft // 4 if hop_length is None else hop_length
    positive("istft", "hop_length", hop)
    x = shapes.unsqueeze(input, 0) if input.ndim == 2 else input
    count, windows = x.shape[1:]
    half = count != n_fft if onesided is None else onesided
    if count != (n_fft // 2 + 1 if half else n_fft):
        raise ShapeError(f"istft: n_fft={n_fft} and onesided={half} do not match {count} frequencies")
    if half and return_complex:
        raise ArgumentError("istft: return_complex=True needs onesided=False")
    shape = _window("istft", window, win_length, n_fft, input)
    x, norm = shapes.transpose(x, 1, 2), "ortho" if normalized else "backward"
    frames = transforms.ifft(x, norm=norm) if return_complex else _real_frames(x, n_fft, norm)
    total = n_fft + hop * (windows - 1)
    y = _overlapped(ew.mul(frames, shape), total, hop)
    weights = shapes.expand(ew.mul(shape, shape), (1, windows, n_fft))
    y = ew.div(*_cut(y, _overlapped(weights, total, hop), n_fft // 2 if center else 0, total, length))
    if length is not None and y.shape[-1] < length:
        y = pad(y, (0, length - y.shape[-1]))
    return shapes.squeeze(y, 0) if input.ndim == 2 else y


def _real_frames(x: Any, n_fft: int, norm: str) -> Tensor:
    half = n_fft // 2 + 1
    return transforms.irfft(x if x.shape[-1] == half else x[..., :half], n_fft, norm=norm)


def _cut(y: Any, weights: Any, edge: int, total: int, length: int | None) -> tuple[Any, Any]:
    """Remove the half window that centering added on each side."""
    end = min(total, edge + length) if length is not None else total - edge
    return y[:, edge:end], weights[:, edge:end]


def _overlapped(frames: Any, total: int, hop: int) -> Any:
    """Add up overlapping frames: the gradient of `unfold`."""
    whole = spec((frames.shape[0], total), frames.dtype)
    vjp: Any = TABLE["unfold"].vjp
    return vjp[0](frames, None, whole, dim=1, size=frames.shape[-1], step=hop)
