"""Sparse tensors of torch, stored as dense ones: GT has no others.

A script that keeps a small graph as a sparse matrix gives torch's results. What takes as much memory as a dense matrix
says so, once.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

import gt
from gt.adoption.tensor import ADOPTED, from_sparse, native, wrap

_said: list[bool] = []


def dense(x: Any) -> Any:
    """A sparse tensor of the host as a dense one. It is uploaded once, until somebody writes to it."""
    known = getattr(x, "_gt_dense", None)
    if known is not None and known[0] == x._version:
        return known[1]
    _say()
    made = native(x.detach().to_dense())
    x._gt_dense = (x._version, made)
    return made


def _say() -> None:
    if not _said:
        _said.append(True)
        warnings.warn("GT has no sparse tensors: this one is stored as a dense tensor", stacklevel=2)


def _same(x: Any, *args: Any, **kwargs: Any) -> Any:
    """An adopted tensor of any layout is dense."""
    if type(x) not in ADOPTED:
        x = wrap(native(x))
    _say()
    return x


def _coo(indices: Any, values: Any, size: Any = None, *, dtype: Any = None, requires_grad: bool = False,
         **how: Any) -> Any:  # fmt: skip
    """torch.sparse_coo_tensor: values at the same place are added."""
    _say()
    at = native(torch.as_tensor(indices)).long()
    given = native(values if dtype is None else torch.as_tensor(values).to(dtype))
    if size is None:
        size = [n + 1 for n in at.max(1).values.tolist()] + list(given.shape[1:])
    made = gt.zeros(tuple(size), dtype=given.dtype).index_put(tuple(at.unbind(0)), given, accumulate=True)
    return wrap(made.requires_grad_() if requires_grad else made)


def _product(a: Any, b: Any, *args: Any) -> Any:
    return wrap(native(a) @ native(b))


SPARSE: dict[str, Any] = {
    **dict.fromkeys(("coalesce", "to_sparse", "to_sparse_coo", "to_sparse_csc", "to_sparse_csr"), _same),
    **dict.fromkeys(("_sparse_mm", "dsmm", "hspmm", "smm", "spmm"), _product),
    "is_coalesced": lambda x: True,
    "sparse_coo_tensor": _coo,
    "to_dense": lambda x, *args, **kwargs: x,
}

from_sparse.append(dense)
