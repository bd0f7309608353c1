"""The names of torch.nn.utils.stateless."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gt.errors import ArgumentError

__all__ = ["functional_call"]

Place = tuple[dict[str, Any], str]  #: The parameters or the buffers of a module, and a name there.


def functional_call(
    module: Any, parameter_and_buffer_dicts: Mapping[str, Any] | Sequence[Mapping[str, Any]], args: Any = None,
    kwargs: dict[str, Any] | None = None, *, tie_weights: bool = True, strict: bool = False,
) -> Any:  # fmt: skip
    """Call a module with these tensors, of one dict or of several, in place of its parameters and buffers. With
    `tie_weights` what the module has under several names is replaced under all of them; with `strict` all parameters
    and buffers must be given."""
    several = parameter_and_buffer_dicts
    dicts = [several] if isinstance(several, Mapping) else list(several)
    given = [(name, tensor) for d in dicts for name, tensor in d.items()]
    places = _places(module)
    names = {name for name, _ in given}
    if len(names) < len(given):
        raise ArgumentError("functional_call: a name appears in more than one dict")
    if unknown := names - places.keys():
        raise ArgumentError(f"functional_call: the module has no parameter or buffer {min(unknown)!r}")
    tied: dict[int, list[Place]] = {}
    for store, last in places.values():
        tied.setdefault(id(store[last]), []).append((store, last))
    new: dict[tuple[int, str], tuple[Place, Any]] = {}
    for name, tensor in given:
        store, last = places[name]
        for place in tied[id(store[last])] if tie_weights else [(store, last)]:
            _, other = new.setdefault((id(place[0]), place[1]), (place, tensor))
            if other is not tensor:
                raise ArgumentError(f"functional_call: another tensor is given for what {name!r} is tied to")
    if strict and (missing := [name for name, (store, last) in places.items() if (id(store), last) not in new]):
        raise ArgumentError(f"functional_call: expected {missing[0]!r} too, because of strict=True")
    before = [(store, last, store[last]) for (store, last), _ in new.values()]
    try:
        for (store, last), tensor in new.values():
            store[last] = tensor
        return module(*(() if args is None else args if isinstance(args, tuple) else (args,)), **(kwargs or {}))
    finally:
        for store, last, old in before:
            store[last] = old


def _places(module: Any) -> dict[str, Place]:
    """Where the parameters and buffers of a module are, by name; those with several names by each of them."""
    found: dict[str, Place] = {}
    for prefix, part in module.named_modules(remove_duplicate=False):
        for store in (part._parameters, part._buffers):
            for last, tensor in store.items():
                if tensor is not None:
                    found[f"{prefix}.{last}" if prefix else last] = store, last
    return found
