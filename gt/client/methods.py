"""Attaching to Tensor what it can do: operators, reading, history, and the methods of the function families.

Tensor itself (tensor.py) is at the bottom of the client, the functions are at the top; this file is above both. Each
file of functions says what it has: `METHODS` become methods under their own names, `INPLACE` methods that write their
result into the tensor, with an underscore; `PROPERTIES` become attributes.
"""

from __future__ import annotations

from importlib import import_module

from gt.client.compat import devices, fallback, interop, legacy, operands
from gt.client.compat.arguments import HOT_METHODS, explained, looks_itself
from gt.client.functions import history, inplace, operators, reading
from gt.client.mesh import sharding
from gt.client.record.recorder import apply_op
from gt.client.tensor import Tensor
from gt.client.views import aliases

#: What the client's own files call on a tensor; see its declarations.
OWN = {
    "_apply": staticmethod(apply_op),
    "_coerce": staticmethod(operands.coerce),
    "_find": staticmethod(fallback.find_method),
    "_first_value": staticmethod(legacy.first_value),
    "__torch_function__": classmethod(interop.torch_function),
    "_read": aliases.read,
    "_write": aliases.write,
}
for name, function in OWN.items():
    setattr(Tensor, name, function)

for basic in (operators, reading, history):  # as they are: they explain wrong arguments themselves
    for name in basic.METHODS:
        setattr(Tensor, name, getattr(basic, name))
for name, attribute in history.PROPERTIES.items():
    setattr(Tensor, name, attribute)

#: The other files of functions.
FAMILIES = (
    devices, interop, legacy, sharding,
    *(
        import_module(f"gt.client.functions.{name}")
        for name in """
            activations arranging casts complexes creation diagonals elementwise indexing inplace joining masks padding
            randoms reductions scans scatter shapes sorting spectra statistics view_copies
            linalg.factoring linalg.matrices linalg.norms linalg.solving
        """.split()
    ),
)  # fmt: skip

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
