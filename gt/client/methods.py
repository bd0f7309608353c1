"""Which functions are methods of a tensor, and which have an in-place form (`add_`).

Each file of functions says so itself: `METHODS` are put on Tensor under their own names, `INPLACE` as methods
that write their result into the tensor, with an underscore; `PROPERTIES` are attributes.
"""

from __future__ import annotations

from gt.client.compat import devices, interop
from gt.client.compat.arguments import HOT_METHODS, explained, looks_itself
from gt.client.functions import (
    activations,
    arranging,
    casts,
    complexes,
    creation,
    diagonals,
    elementwise,
    indexing,
    joining,
    masks,
    padding,
    randoms,
    reductions,
    scans,
    scatter,
    shapes,
    sorting,
    spectra,
    statistics,
    view_copies,
)
from gt.client.functions.linalg import factoring, matrices, norms, solving
from gt.client.mesh import sharding
from gt.client.tensor import Tensor
from gt.client.views import inplace

FAMILIES = (
    complexes,
    devices,
    diagonals,
    matrices,
    factoring,
    norms,
    solving,
    spectra,
    elementwise,
    activations,
    reductions,
    statistics,
    sorting,
    scans,
    shapes,
    arranging,
    joining,
    padding,
    view_copies,
    indexing,
    masks,
    scatter,
    inplace,
    interop,
    casts,
    creation,
    randoms,
    sharding,
)

for family in FAMILIES:
    for name in family.METHODS:
        function = getattr(family, name)
        plain = looks_itself(name, function, HOT_METHODS)
        setattr(Tensor, name, function if plain else explained(function, method=True))
    for name in getattr(family, "INPLACE", ()):
        setattr(Tensor, name + "_", inplace.method(getattr(family, name), name + "_"))
    for name, attribute in getattr(family, "PROPERTIES", {}).items():
        setattr(Tensor, name, attribute)

#: `x += y` and its kin write in place, as in torch.
_OPERATORS = {
    "add": "add", "sub": "sub", "mul": "mul", "pow": "pow", "truediv": "div", "floordiv": "floor_divide",
    "mod": "remainder", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
    "lshift": "bitwise_left_shift", "rshift": "bitwise_right_shift",
}  # fmt: skip
for operator, name in _OPERATORS.items():
    setattr(Tensor, f"__i{operator}__", getattr(Tensor, name + "_"))
