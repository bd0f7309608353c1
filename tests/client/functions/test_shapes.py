"""Shapes, joining, cutting, padding: which tensors share memory, and forms that torch's own database leaves out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.client.session.session import Session
from gt.errors import ArgumentError, DimError, ShapeError
from tests.beside_torch import agree, compare
from tests.client.mistakes import Mistakes, refused

pytestmark = pytest.mark.usefixtures("session")

Case = Callable[[Any, Any], Any]


def base(lib: Any, *shape: int) -> Any:
    return (lib.arange(int(np.prod(shape)), dtype=lib.float64) * 1.0).reshape(*shape)


COPIES = ("flip", "roll", "rot90", "clone", "repeat", "tile", "rows by a tensor", "rows by a list", "another type")
#: What is taken of a (4, 6) tensor. Writing to it shows whether it shares memory.
TAKEN: dict[str, Callable[[Any], Any]] = {
    "reshape": lambda x: x.reshape(3, 8),
    "reshape of a transpose": lambda x: x.t().reshape(24),
    "reshape of a transpose that can": lambda x: x.t().reshape(6, 2, 2),
    "reshape of a slice": lambda x: x[:, :3].reshape(12),
    "reshape of rows": lambda x: x[1:3].reshape(12),
    "reshape of every other row": lambda x: x[::2].reshape(2, 3, 2),
    "view of rows": lambda x: x[1:3].view(12),
    "flatten": lambda x: x.flatten(),
    "flatten of a transpose": lambda x: x.t().flatten(),
    "ravel of a column": lambda x: x[:, 0].ravel(),
    "contiguous": lambda x: x.contiguous(),
    "contiguous of a transpose": lambda x: x.t().contiguous(),
    "contiguous of a column": lambda x: x[:, 1].contiguous(),
    "contiguous of a row": lambda x: x[1].contiguous(),
    "contiguous of a vector with ones": lambda x: x[:1].t().contiguous(),
    "permute": lambda x: x.permute(1, 0),
    "movedim": lambda x: x.movedim(0, 1),
    "T": lambda x: x.T,
    "mT": lambda x: x.mT,
    "swapaxes": lambda x: x.swapaxes(0, 1),
    "squeeze": lambda x: x[:1].squeeze(),
    "squeeze of two": lambda x: x[None, :, :1].squeeze((0, 2)),
    "unsqueeze": lambda x: x.unsqueeze(-1),
    "unflatten": lambda x: x.unflatten(1, (2, -1)),
    "unfold": lambda x: x.unfold(1, 2, 2),
    "unfold of a column": lambda x: x.unfold(0, 2, 2)[:, 3],
    "split": lambda x: x.split(2)[1],
    "chunk": lambda x: x.chunk(2, dim=1)[1],
    "unbind": lambda x: x.unbind(1)[2],
    "tensor_split": lambda x: x.tensor_split([1, 3])[1],
    "hsplit": lambda x: x.hsplit(2)[0],
    "narrow": lambda x: x.narrow(1, 2, 3),
    "view_as": lambda x: x.view_as(x.reshape(24)),
    "data": lambda x: x.data,
    "detach": lambda x: x.detach(),
    "one place of a flat view": lambda x: x.view(-1)[3],
    "a slice of columns": lambda x: x[:, 1:3],
    "the whole slice": lambda x: x[:],
    "a slice with steps": lambda x: x[::2, 1::3],
    "ellipsis": lambda x: x[..., 0],
    "a new dimension": lambda x: x[None, 1],
    "unsqueeze and squeeze": lambda x: x.unsqueeze(0).squeeze(0)[1],
    "a row of a transpose": lambda x: x.transpose(0, 1)[0],
    "select": lambda x: x.select(0, 3),
    "diagonal": lambda x: x.diagonal(),
    "the same type": lambda x: x.double(),
    "another type": lambda x: x.float(),
    "rows by a tensor": lambda x: x[x[:, 0].long() * 0],
    "rows by a list": lambda x: x[[0, 1]],
    "clone": lambda x: x.clone(),
    "flip": lambda x: x.flip(0),
    "roll": lambda x: x.roll(1, 0),
    "repeat": lambda x: x.repeat(1, 1),
    "rot90": lambda x: x.rot90(),
    "tile": lambda x: x.tile(1),
}


@pytest.mark.parametrize("cap", [1, None], ids=["each op a program", ""])
@pytest.mark.parametrize("how", TAKEN)
def test_memory_is_shared_where_torch_shares_it(how: str, cap: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if cap is not None:
        monkeypatch.setattr("gt.client.record.recorder.LONGEST", cap)

    def write(lib: Any) -> Any:
        x = base(lib, 4, 6)
        y = TAKEN[how](x)
        y += 100.0
        x *= 2.0
        return x, y, y is x

    agree(write, rtol=0)


@pytest.mark.parametrize("how", [h for h in TAKEN if h not in COPIES])
def test_strides_are_as_in_torch(how: str) -> None:
    mine, theirs = (TAKEN[how](base(lib, 4, 6)) for lib in (gt, torch))
    assert mine.is_contiguous() == theirs.is_contiguous()
    both = zip(mine.stride(), theirs.stride(), mine.shape, strict=True)
    assert all(a == b for a, b, n in both if n != 1)


CASES: dict[str, Case] = {
    "view as another type": lambda lib, x: x.view(lib.int64),
    "view as a smaller type": lambda lib, x: x.view(lib.int32),
    "view as a larger type": lambda lib, x: x.to(lib.int16).view(lib.int64) if x.shape[-1] % 4 == 0 else x,
    "reshape by name": lambda lib, x: lib.reshape(x, shape=(2, -1)),
    "permute by name": lambda lib, x: lib.permute(x, dims=(1, 0)),
    "expand by name": lambda lib, x: x[:1].expand(size=(3, -1)),
    "broadcast_to": lambda lib, x: (x[:1].broadcast_to(3, x.shape[1]), lib.broadcast_to(x[:1], (3, x.shape[1]))),
    "flip by name": lambda lib, x: x.flip(dims=(0, 1)),
    "tile by name": lambda lib, x: x.tile(dims=(2,)),
    "cat by axis": lambda lib, x: lib.cat([x, x], axis=1),
    "cat skips the empty": lambda lib, x: lib.cat([lib.zeros(0), x.to(lib.int64)], 1),
    "cat promotes": lambda lib, x: lib.cat([x.to(lib.float16), x.to(lib.bfloat16), x.to(lib.int64)]),
    "concat": lambda lib, x: (lib.concat((x, x)), lib.concatenate((x, x), 1)),
    "stack promotes numbers": lambda lib, x: lib.stack([lib.tensor(1, dtype=lib.int8), lib.tensor(2.5)]),
    "stack by axis": lambda lib, x: lib.stack([x, x], axis=-1),
    "split by name": lambda lib, x: lib.split(x, split_size_or_sections=[1, 3], dim=0),
    "chunk of nothing": lambda lib, x: x[:0].chunk(3),
    "split of nothing": lambda lib, x: x[:0].split(3),
    "tensor_split out of order": lambda lib, x: x.tensor_split([3, 1, -1]),
    "tensor_split by a tensor": lambda lib, x: x.tensor_split(lib.tensor([1, 2])),
    "tensor_split by name": lambda lib, x: x.tensor_split(sections=3, dim=1),
    "unbind of a vector": lambda lib, x: x[0].unbind(),
    "iteration": lambda lib, x: list(x),
    "meshgrid xy": lambda lib, x: lib.meshgrid(x[0], x[:, 0], x[1, :2], indexing="xy"),
    "meshgrid of a list": lambda lib, x: lib.meshgrid([x[0], x[:, 0]], indexing="ij"),
    "meshgrid of a number": lambda lib, x: lib.meshgrid(x[0, 0], x[0], indexing="ij"),
    "atleast": lambda lib, x: (lib.atleast_3d(x, x[0], x[0, 0]), lib.atleast_2d([x, x[0]])),
    "broadcast_tensors": lambda lib, x: lib.broadcast_tensors(x, x[0], x[:, :1]),
    "repeat_interleave": lambda lib, x: x.repeat_interleave(2, 1),
    "repeat_interleave by a tensor": lambda lib, x: x.repeat_interleave(lib.tensor([0, 2, 1, 3]), dim=0),
    "repeat_interleave flat": lambda lib, x: lib.repeat_interleave(x, 3, output_size=72),
    "repeat_interleave of repeats": lambda lib, x: lib.repeat_interleave(lib.tensor([1, 0, 2])),
    "roll twice along one dimension": lambda lib, x: x.roll((1, 2), (1, 1)),
    "roll flat": lambda lib, x: x.roll(5),
    "movedim of several": lambda lib, x: lib.moveaxis(x[None, :, :, None], (0, 3), (-1, 0)),
    "squeeze of no dimension": lambda lib, x: x[None].squeeze(()),
    "unravel_index": lambda lib, x: lib.unravel_index(lib.tensor([[7, 23], [0, 11]]), (4, 6)),
    "column_stack": lambda lib, x: lib.column_stack([x, x[:, 0]]),
    "row_stack": lambda lib, x: lib.vstack([x, x[0]]),
    "narrow_copy": lambda lib, x: x.narrow_copy(0, 1, 2),
    "numel": lambda lib, x: (lib.numel(x), x.numel(), lib.is_same_size(x, x.t())),
    "pad left out": lambda lib, x: lib.nn.functional.pad(x, (1, 2, -1, 0), value=7),
    "pad around": lambda lib, x: lib.nn.functional.pad(x[None], (2, 1), mode="circular"),
    "pad by mirror": lambda lib, x: lib.nn.functional.pad(x[None], (2, 1), "reflect"),
    "pad by edge": lambda lib, x: lib.nn.functional.pad(x[None], (2, 0), "replicate"),
    "clone of bools with history": lambda lib, x: (x > 3).clone(),
    "casts": lambda lib, x: (x.byte(), x.char(), x.short(), x.int(), x.half(), x.cfloat(), x.type_as(x.bool())),
    "to and copy": lambda lib, x: (x.to(lib.float32), x.to("cpu"), x.to(x.int()), x.to(dtype=lib.float64, copy=True)),
}


@pytest.mark.parametrize("how", CASES)
def test_forms_are_as_in_torch(how: str) -> None:
    agree(lambda lib: CASES[how](lib, base(lib, 4, 6)), rtol=0)


GRADIENTS: dict[str, Case] = {
    "overlapping windows": lambda lib, x: x.unfold(1, 3, 1) ** 2,
    "mirrored edges": lambda lib, x: lib.nn.functional.pad(x[None], (3, 3), "reflect") ** 2,
    "a stack of some": lambda lib, x: lib.stack([x[0], x[2], x[0]]) ** 2,
    "one of the slices": lambda lib, x: x.unbind(1)[2] ** 2,
    "repeats": lambda lib, x: x.repeat_interleave(lib.tensor([0, 2, 1, 3]), dim=0) ** 2,
    "a clone": lambda lib, x: x.clone() ** 2,
    "a copy of a transpose": lambda lib, x: x.t().contiguous().reshape(3, 8) ** 2,
    "a joined and cut": lambda lib, x: lib.cat(lib.split(x, [1, 2, 1])[::2], 1) ** 2,
    "rolled": lambda lib, x: x.roll((1, -2), (0, 1))[1:] ** 2,
    "cropped": lambda lib, x: lib.nn.functional.pad(x, (-1, 2)) ** 2,
}


@pytest.mark.parametrize("how", GRADIENTS)
def test_gradients_are_as_in_torch(how: str) -> None:
    compare(GRADIENTS[how], np.arange(24.0).reshape(4, 6))


def test_an_array_without_history_is_cloned_for_nothing(session: Session) -> None:
    x = gt.ones(3)
    y = x.clone()
    y += 1.0
    assert x.tolist() == [1.0, 1.0, 1.0]
    assert y.tolist() == [2.0, 2.0, 2.0]


ERRORS: Mistakes = {
    "reshape": (lambda: gt.ones(2, 3).reshape(4, -1), ShapeError, r"reshape: a tensor of shape \(2, 3\) \(6"),
    "view": (lambda: gt.ones(2, 3).view(5), ShapeError, r"view: a tensor of shape \(2, 3\) \(6 elements\) cannot have"),
    "cat": (lambda: gt.cat([]), ArgumentError, "cat: expected at least one tensor"),
    "cat of one": (lambda: gt.cat(gt.ones(2)), ArgumentError, "cat: expected a list or tuple of tensors, got one"),
    "cat of numbers": (lambda: gt.cat([gt.tensor(1.0)]), ShapeError, "cat: 0-dimensional tensors cannot be"),
    "cat of others": (lambda: gt.cat([1, 2]), ArgumentError, "cat: expected tensors, got 1"),
    "stack": (lambda: gt.stack([gt.ones(2), gt.ones(3)]), ShapeError, "stack: all tensors must have one shape"),
    "split": (lambda: gt.ones(4).split([1, 2]), ShapeError, r"split: sizes \(1, 2\) must sum to 4, the size of dim 0"),
    "unfold": (lambda: gt.ones(4).unfold(0, 5, 1), ShapeError, "unfold: a window of 5 is larger"),
    "movedim": (lambda: gt.ones(2, 3).movedim((0, 1), 0), DimError, "movedim: expected as many different dimensions"),
    "repeat": (lambda: gt.ones(2, 3).repeat(2), ShapeError, "repeat: expected at least 2 repeats, one per dimension,"),
    "pad": (lambda: gt.nn.functional.pad(gt.ones(2), (1, 2, 3, 4)), ArgumentError, "pad must have two sizes for each"),
    "mirror": (lambda: gt.nn.functional.pad(gt.ones(1, 2), (2, 0), "reflect"), ShapeError, "pad: reflect cannot pad"),
    "pad mode": (lambda: gt.nn.functional.pad(gt.ones(2), (1, 0), "fold"), ArgumentError, "pad: mode must be one of"),
    "view type": (lambda: gt.ones(3).view(gt.float64), ShapeError, "cannot be read as float64"),
    "named": (lambda: gt.ones(3).reshape(size=(3,)), ArgumentError, "reshape: expected only shape, got size"),
    "hsplit": (lambda: gt.ones(2, 3).hsplit(2), ArgumentError, "hsplit: the size of dimension 1, 3, must be a"),
}


test_mistakes = refused(ERRORS)
