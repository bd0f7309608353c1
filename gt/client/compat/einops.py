"""einops on GT tensors: its backend is registered when einops is imported. GT does not import einops by itself.

`einops.rearrange(x, ...)` finds a backend by the type of x, among the subclasses of its AbstractBackend. The modules of
einops.layers are in `gt.nn.einops`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from gt.client.functions import creation
from gt.client.functions.einsum import einsum
from gt.client.functions.shapes import cat, stack
from gt.client.tensor import Tensor

BACKENDS = "einops._backends"


def register(backends: ModuleType) -> None:
    """Define the backend and keep it in einops' module: then it is found among the subclasses of AbstractBackend."""

    class GTBackend(backends.AbstractBackend):  # type: ignore[name-defined, misc]  # known when einops is imported
        """The operations of einops on GT tensors."""

        framework_name = "gt"

        def is_appropriate_type(self, tensor: Any) -> bool:
            return isinstance(tensor, Tensor)

        def from_numpy(self, x: Any) -> Tensor:
            return creation.from_numpy(x)

        def to_numpy(self, x: Tensor) -> Any:
            return x.detach().numpy()

        def arange(self, start: int, stop: int) -> Tensor:
            return creation.arange(start, stop)

        def reduce(self, x: Any, operation: str, reduced_axes: Any) -> Tensor:
            axes = tuple(reduced_axes)
            if operation == "prod":
                for axis in sorted(axes, reverse=True):
                    x = x.prod(dim=axis)
                return x
            method = {"min": "amin", "max": "amax"}.get(operation, operation)
            return getattr(x, method)(dim=axes)

        def transpose(self, x: Any, axes: Any) -> Tensor:
            return x.permute(tuple(axes))

        def stack_on_zeroth_dimension(self, tensors: list[Any]) -> Tensor:
            return stack(tensors)

        def tile(self, x: Any, repeats: Any) -> Tensor:
            return x.repeat(tuple(repeats))

        def add_axis(self, x: Any, new_position: int) -> Tensor:
            return x.unsqueeze(new_position)

        def add_axes(self, x: Any, n_axes: int, pos2len: dict[int, int]) -> Tensor:
            sizes = [-1] * n_axes
            for position, size in pos2len.items():
                x = x.unsqueeze(position)
                sizes[position] = size
            return x.expand(sizes)

        def concat(self, tensors: Any, axis: int) -> Tensor:
            return cat(list(tensors), dim=axis)

        def is_float_type(self, x: Any) -> bool:
            return bool(x.dtype.is_floating_point)

        def layers(self) -> ModuleType:
            return sys.modules["gt"].nn.einops

        def einsum(self, pattern: str, *x: Any) -> Tensor:
            return einsum(pattern, *x)

    backends.GTBackend = GTBackend  # type: ignore[attr-defined]  # likewise


class _Registering:  # not a Loader: importlib.abc would load modules that `import gt` does not need
    """Loads einops' backends, then registers GT's."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        register(module)


class _Watch:
    """Sees when einops is imported."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != BACKENDS:
            return None
        sys.meta_path.remove(self)  # it is imported once
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None:
            spec.loader = _Registering(spec.loader)  # type: ignore[assignment]  # it has what a loader needs
        return spec


if BACKENDS in sys.modules:
    register(sys.modules[BACKENDS])
else:
    sys.meta_path.insert(0, _Watch())
