"""What an op is, and all of them: one record per op, one file per family.

Pure: nothing here imports an array library but numpy (for samples), or anything above program.py.
"""

from __future__ import annotations

from gt.ops import (
    binary,
    create,
    elementwise,
    embedding,
    index,
    loss,
    matmul,
    random,
    reduce,
    shape,
    slice,
    softmax,
    update,
)
from gt.ops.check import Checked, check
from gt.ops.record import TABLE, Op, ops

#: The files that entered their ops in the table when they were imported just now.
FAMILIES = (create, random, elementwise, binary, matmul, reduce, softmax, loss, shape, slice, index, embedding, update)

__all__ = ["FAMILIES", "TABLE", "Checked", "Op", "check", "ops"]
