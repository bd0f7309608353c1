"""Tensors made of numbers and host data: what the other families build on.

`creation` has the same for users, with torch's keywords. This file imports no other family.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gt import dtypes
from gt.client.mesh import sharding
from gt.client.programs import kinds
from gt.client.record import recorder as recording
from gt.client.record.recorder import apply
from gt.client.tensor import Tensor
from gt.client.views.aliases import pinned
from gt.dtypes import DType
from gt.errors import DTypeError
from gt.program import spec

BY_VALUE_NBYTES = 1024  #: Host data up to this size is sent with the call that uses it.


def filled(shape: tuple[int, ...], value: Any, dtype: DType) -> Tensor:
    """A tensor whose elements are all the same number."""
    return apply(kinds.full[shape, dtype.name], (value,))


def upload(op: str, array: np.ndarray[Any, Any], layout: Any = None) -> Tensor:
    """A tensor with a copy of an array; with a layout (see `gt.shard`) each worker receives only its part."""
    try:
        dtype = dtypes.dtype(array.dtype)
    except DTypeError:
        raise DTypeError(f"{op}: elements of type {array.dtype} are not supported") from None
    shape = tuple(array.shape)
    text = "" if layout is None else sharding.layout_text(op, shape, layout)
    if array.nbytes <= BY_VALUE_NBYTES:
        made = apply(kinds.data[shape, dtype.name], (array.tobytes(),))
        made._v.given = array.copy()
        return made if layout is None else pinned(made, text)
    session, made_of = recording.recorder().session, spec(shape, dtype)
    return Tensor(
        session.upload(array, made_of, text if layout is not None else session.meshes.uploads.get(made_of, ""))
    )
