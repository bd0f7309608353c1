"""Sequences of different lengths: padded to one tensor, or packed without padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gt.client.compat.checks import one_of
from gt.client.functions import creation
from gt.client.functions import elementwise as ew
from gt.client.functions.padding import constant_pad_nd
from gt.client.functions.reading import between_programs, known_data
from gt.client.functions.shapes import stack
from gt.client.record.recorder import recorder
from gt.client.tensor import Tensor
from gt.errors import ArgumentError, ShapeError

__all__ = [
    "PackedSequence", "pack_padded_sequence", "pack_sequence", "pad_packed_sequence", "pad_sequence",
    "unpack_sequence", "unpad_sequence",
]  # fmt: skip


class PackedSequence(NamedTuple):
    """The elements of sequences ordered by time step; within a step the longest sequences first."""

    data: Tensor
    batch_sizes: Tensor  #: The number of sequences at each step.
    sorted_indices: Tensor | None = None  #: The order of the sequences, longest first.
    unsorted_indices: Tensor | None = None  #: The inverse of sorted_indices.


def _lengths(lengths: Any) -> np.ndarray[Any, Any]:
    return np.asarray(lengths.tolist() if hasattr(lengths, "tolist") else lengths, np.int64)


def pack_padded_sequence(
    input: Tensor, lengths: Any, batch_first: bool = False, enforce_sorted: bool = True
) -> PackedSequence:
    """Pack a padded batch of sequences (time, batch, ...) with these lengths."""
    sizes = _lengths(lengths)
    x = input.transpose(0, 1) if batch_first else input
    if x.ndim < 2 or sizes.shape != (x.shape[1],):
        raise ShapeError(f"pack_padded_sequence: {sizes.size} lengths do not match input {tuple(input.shape)}")
    if sizes.size and (sizes.min() <= 0 or sizes.max() > x.shape[0]):
        raise ArgumentError(f"pack_padded_sequence: lengths must be between 1 and {x.shape[0]}, got {sizes.tolist()}")
    order = np.argsort(-sizes, kind="stable")
    if enforce_sorted and (np.diff(sizes) > 0).any():
        raise ArgumentError("pack_padded_sequence: lengths must be sorted, longest first; or pass enforce_sorted=False")
    sizes = sizes[order]
    steps = np.array([(sizes > t).sum() for t in range(int(sizes[0]))], np.int64)
    if not enforce_sorted:
        back = np.argsort(order, kind="stable")
        forth: Any = creation.from_numpy(order.astype(np.int64))
        x = x.index_select(1, forth)
    places = np.concatenate([t * x.shape[1] + np.arange(n) for t, n in enumerate(steps)])
    flat = x.reshape(-1, *x.shape[2:]).index_select(0, creation.from_numpy(places))
    if enforce_sorted:
        return PackedSequence(flat, creation.from_numpy(steps))
    return PackedSequence(flat, creation.from_numpy(steps), forth, creation.from_numpy(back.astype(np.int64)))


def pad_packed_sequence(
    sequence: PackedSequence, batch_first: bool = False, padding_value: float = 0.0, total_length: int | None = None
) -> tuple[Tensor, Tensor]:
    """Packed sequences as a padded batch (time, batch, ...), and their lengths."""
    steps = _lengths(sequence.batch_sizes)
    time, batch = len(steps), int(steps[0])
    if total_length is not None:
        if total_length < time:
            raise ArgumentError(f"pad_packed_sequence: total_length must be >= {time}, got {total_length}")
        steps = np.concatenate([steps, np.zeros(total_length - time, np.int64)])
    within = np.arange(batch) < steps[:, None]  # (time, batch)
    places = np.where(within, np.cumsum(within).reshape(within.shape) - 1, 0)
    data = sequence.data
    x = data.index_select(0, creation.from_numpy(places.reshape(-1))).reshape(*within.shape, *data.shape[1:])
    there = creation.from_numpy(within.reshape(*within.shape, *(1,) * (data.ndim - 1)))
    x = ew.where(there, x, padding_value)
    lengths = creation.from_numpy(within.sum(0).astype(np.int64))
    if sequence.unsorted_indices is not None:
        x = x.index_select(1, sequence.unsorted_indices)
        lengths = lengths.index_select(0, sequence.unsorted_indices)
    return (x.transpose(0, 1) if batch_first else x), lengths


def pad_sequence(
    sequences: Sequence[Tensor], batch_first: bool = False, padding_value: float = 0.0, padding_side: str = "right"
) -> Tensor:
    """Pad sequences (length, ...) to the longest and stack them.

    What each of them is padded by is part of a program. Batches of data in any order would be a new program each time:
    so what the host knows is padded here, and what workers have in a program for each sequence, if no other is begun.
    """
    one_of("pad_sequence", "padding_side", padding_side, "left", "right")
    longest, left = max(s.shape[0] for s in sequences), padding_side == "left"
    rooms = [longest - s.shape[0] for s in sequences]
    known = known_data(sequences) if any(rooms) else []
    if known and len({(s.dtype, s.shape[1:]) for s in known}) == 1:
        sides = [((r, 0) if left else (0, r), *((0, 0),) * (s.ndim - 1)) for r, s in zip(rooms, known, strict=True)]
        rows = [np.pad(s, side, constant_values=padding_value) for s, side in zip(known, sides, strict=True)]
        return creation.from_numpy(np.stack(rows, 0 if batch_first else 1))
    apart = between_programs(sequences)
    padded = []
    for s, room in zip(sequences, rooms, strict=True):
        if room:
            s = constant_pad_nd(s, (*(0, 0) * (s.ndim - 1), *((room, 0) if left else (0, room))), padding_value)
            if apart:
                recorder().settle()
        padded.append(s)
    return stack(padded, 0 if batch_first else 1)


def unpad_sequence(padded_sequences: Tensor, lengths: Any, batch_first: bool = False) -> list[Tensor]:
    """The sequences of a padded tensor, without padding."""
    x = padded_sequences if batch_first else padded_sequences.transpose(0, 1)
    return [x[i, :n] for i, n in enumerate(_lengths(lengths).tolist())]


def pack_sequence(sequences: Sequence[Tensor], enforce_sorted: bool = True) -> PackedSequence:
    """Pack sequences (length, ...)."""
    lengths = [s.shape[0] for s in sequences]
    return pack_padded_sequence(pad_sequence(sequences), lengths, enforce_sorted=enforce_sorted)


def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """The sequences of a PackedSequence."""
    padded, lengths = pad_packed_sequence(packed_sequences, batch_first=True)
    return unpad_sequence(padded, lengths, batch_first=True)
