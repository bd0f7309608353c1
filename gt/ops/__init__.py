"""What an op is, and all of them: one record per op, one file per family.

Pure: nothing here imports an array library except numpy (for samples), or anything above layout.py.
"""

from __future__ import annotations

from importlib import import_module

from gt.ops.check import Checked, check
from gt.ops.record import TABLE, Op, ops

#: The files of gt/ops/families with records. Importing one enters its ops in the table.
FAMILIES = tuple(
    import_module(f"gt.ops.families.{name}")
    for name in """
        create random poisson elementwise binary assign ternary bitwise activation special complex conv pool resize
        columns matmul linalg factor matrix_functions fft reduce scan sort vector_norm norm batch_norm attention
        recurrent softmax loss ctc shape join pad slice index scatter embedding update descent collective fallback
    """.split()
)

__all__ = ["FAMILIES", "TABLE", "Checked", "Op", "check", "ops"]
