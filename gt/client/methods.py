"""Which functions are methods of a tensor, and which have an in-place form (`add_`).

Each file of functions says so itself: `METHODS` are put on Tensor under their own names, `INPLACE` as methods
that write their result into the tensor, with an underscore.
"""

from __future__ import annotations

from gt.client import elementwise, indexing, inplace, reductions, shapes
from gt.client.tensor import Tensor

FAMILIES = (elementwise, reductions, shapes, indexing, inplace)

for family in FAMILIES:
    for name in family.METHODS:
        setattr(Tensor, name, getattr(family, name))
    for name in getattr(family, "INPLACE", ()):
        setattr(Tensor, name + "_", inplace.method(getattr(family, name), name + "_"))

#: `x += y` and its kin write in place, as in torch.
for name in ("add", "sub", "mul", "pow"):
    setattr(Tensor, f"__i{name}__", getattr(Tensor, name + "_"))
Tensor.__itruediv__ = Tensor.div_  # type: ignore[attr-defined]
