"""Short-time Fourier transforms: spectra of overlapping windows of a signal, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gt.client.compat.autocast import autocasts
from gt.client.functions import elementwise as ew
from gt.client.functions import fft as transforms
from gt.client.functions import shapes
from gt.client.functions.complexes import view_as_real
from gt.client.functions.padding import pad
from gt.errors import ArgumentError, DTypeError, ShapeError
from gt.ops import TABLE
from gt.ops.record import FLOAT32_ON_CPU
from gt.program import spec

if TYPE_CHECKING:
    from gt.client.tensor import Tensor

__all__ = ["istft", "stft"]
METHODS = __all__


def _window(op: str, window: Any, win_length: int | None, n_fft: int, like: Any) -> Any:
    """The window in the middle of n_fft points, zero beside it."""
    from gt.client.functions.creation import ones

    length = n_fft if win_length is None else win_length
    if not 0 < length <= n_fft:
        raise ArgumentError(f"{op}: win_length is from 1 to n_fft={n_fft}, not {length}")
    if window is None:
        window = ones(length, dtype=like.dtype.to_real())
    if window.shape != (length,):
        raise ShapeError(f"{op}: the window has shape {window.shape}, not ({length},)")
    left = (n_fft - length) // 2
    return window if length == n_fft else pad(window, (left, n_fft - length - left))


@autocasts(FLOAT32_ON_CPU)
def stft(
    input: Any,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Any = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> Tensor:
    """The spectra of windows of n_fft points, hop_length apart: (batch, frequencies, windows)."""
    if input.ndim not in (1, 2) or not input.dtype.is_differentiable:
        raise ShapeError(f"stft: takes a signal or a batch of them, of floats, not {input.dtype.name} {input.shape}")
    if align_to_window is not None:
        raise ArgumentError("stft: align_to_window is not supported; pad the signal, or use center")
    hop = n_fft // 4 if hop_length is None else hop_length
    if hop < 1:
        raise ArgumentError(f"stft: hop_length is positive, not {hop}")
    x = shapes.unsqueeze(input, 0) if input.ndim == 1 else input
    if center:
        sides = (n_fft // 2, n_fft // 2)
        x = shapes.squeeze(pad(shapes.unsqueeze(x, 0), sides, mode=pad_mode), 0)
    if not 0 < n_fft <= x.shape[-1]:
        raise ArgumentError(f"stft: n_fft is from 1 to the {x.shape[-1]} points of the signal, not {n_fft}")
    shape = _window("stft", window, win_length, n_fft, input)
    turns = input.dtype.is_complex or shape.dtype.is_complex
    half = not turns if onesided is None else onesided
    if return_complex is None:
        if not turns:
            raise ArgumentError("stft: give return_complex=True, or False for real and imaginary parts apart")
        return_complex = True
    if half and turns:
        raise DTypeError("stft: onesided takes a real signal and a real window")
    frames = ew.mul(shapes.unfold(x, -1, n_fft, hop), shape)  # (batch, windows, n_fft)
    norm = "ortho" if normalized else "backward"
    y = shapes.transpose((transforms.rfft if half else transforms.fft)(frames, norm=norm), 1, 2)
    y = shapes.squeeze(y, 0) if input.ndim == 1 else y
    return y if return_complex else view_as_real(y)


def istft(
    input: Any,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Any = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> Tensor:
    """The signal with these spectra: the inverse of stft, where the windows leave no gap."""
    if input.ndim not in (2, 3) or not input.dtype.is_complex:
        raise ShapeError(f"istft: takes complex spectra and windows, not {input.dtype.name} {input.shape}")
    hop = n_fft // 4 if hop_length is None else hop_length
    if hop < 1:
        raise ArgumentError(f"istft: hop_length is positive, not {hop}")
    x = shapes.unsqueeze(input, 0) if input.ndim == 2 else input
    count, windows = x.shape[1:]
    half = count != n_fft if onesided is None else onesided
    if count != (n_fft // 2 + 1 if half else n_fft):
        raise ShapeError(f"istft: {count} frequencies do not go with n_fft={n_fft} and onesided={half}")
    if half and return_complex:
        raise ArgumentError("istft: return_complex takes a whole spectrum; give onesided=False")
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
    """Without the half window that centering added on each side."""
    end = min(total, edge + length) if length is not None else total - edge
    return y[:, edge:end], weights[:, edge:end]


def _overlapped(frames: Any, total: int, hop: int) -> Any:
    """Frames added up where they overlap: what the gradient of `unfold` does."""
    from gt.client.record.graph import Ghost

    whole = Ghost(spec((frames.shape[0], total), frames.dtype))
    vjp: Any = TABLE["unfold"].vjp
    return vjp[0](frames, None, whole, dim=1, size=frames.shape[-1], step=hop)
