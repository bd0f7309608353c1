"""Modules that call one function: the class declares its settings once, as the fields of a dataclass.

    @settings
    class LeakyReLU(Functional, function=F.leaky_relu):
        \"\"\"x where x > 0, else negative_slope * x.\"\"\"

        negative_slope: float = 0.01
        inplace: bool = False

This declares three things. The constructor `LeakyReLU(negative_slope=0.01, inplace=False)`, which type checkers and
`help()` show. `forward(input)`, which calls `F.leaky_relu(input, negative_slope=..., inplace=...)` with the attributes
of these names. And `extra_repr()`. A class that needs another forward or extra_repr defines it; `__post_init__` checks
and converts settings, as in a dataclass. A user's subclass is an ordinary Module: its annotations are not settings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar, dataclass_transform

from gt.nn.functional.spatial import per_dim
from gt.nn.module import Module

C = TypeVar("C", bound="type[Functional]")


class Functional(Module):
    """A module that calls one function with its settings."""

    _function: ClassVar[Callable[..., Any]]
    _settings: ClassVar[tuple[str, ...]] = ()  #: The names of the settings, which are attributes.
    _shown: ClassVar[tuple[str, ...] | None] = None  #: The settings that extra_repr shows; None shows all.
    _dims: ClassVar[int]  #: The number of spatial dimensions, in families of 1d, 2d and 3d.

    def __init_subclass__(
        cls, function: Callable[..., Any] | None = None, shown: tuple[str, ...] | None = None, dims: int | None = None,
        **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init_subclass__(**kwargs)
        if function is not None:
            cls._function = staticmethod(function)
        if shown is not None:
            cls._shown = shown
        if dims is not None:
            cls._dims = dims

    def __post_init__(self) -> None:
        super().__init__()

    def forward(self, *inputs: Any, **named: Any) -> Any:
        for name in self._settings:
            named[name] = getattr(self, name)
        return self._function(*inputs, **named)

    def extra_repr(self) -> str:
        names = self._shown
        if names is None:  # as in torch, inplace is shown only if it is True
            names = tuple(name for name in self._settings if name != "inplace" or getattr(self, name))
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)

    def _per_dim(self, *names: str) -> None:
        """Turn settings into tuples of one int per spatial dimension."""
        for name in names:
            setattr(self, name, per_dim(type(self).__name__, name, getattr(self, name), self._dims))


@dataclass_transform(eq_default=False)
def settings(cls: C) -> C:
    """Make the constructor of a Functional from its annotated names."""
    dataclass(eq=False, repr=False, match_args=False)(cls)
    cls._settings = tuple(f.name for f in fields(cls))  # type: ignore[arg-type]  # it is a dataclass now
    for name in cls.__annotations__:
        # As a class attribute, a default would hide the buffer or parameter of the same name.
        if name in cls.__dict__ and name in cls.__dataclass_fields__:  # type: ignore[attr-defined]
            delattr(cls, name)
    return cls
