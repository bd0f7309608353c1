"""View functions that return copies: `transpose_copy` is a copy of `transpose`, and so on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.client.compat.arguments import called
from gt.client.functions import shapes
from gt.client.functions.indexing import narrow, select
from gt.client.functions.joining import split_with_sizes

__all__ = [
    "alias_copy", "detach_copy", "expand_copy", "narrow_copy", "permute_copy", "select_copy", "split_copy",
    "split_with_sizes_copy", "squeeze_copy", "t_copy", "transpose_copy", "unbind_copy", "unfold_copy",
    "unsqueeze_copy", "view_copy",
]  # fmt: skip
METHODS = ["narrow_copy"]


def _copying(view: Any, name: str = "") -> Callable[..., Any]:
    name = f"{name or view.__name__}_copy"

    def function(input: Any, *args: Any, **kwargs: Any) -> Any:
        out = view(input, *args, **kwargs)
        return tuple(x.clone() for x in out) if isinstance(out, tuple) else out.clone()

    return called(function, name, f"Same as {name.removesuffix('_copy')}(), but returns a copy.")


alias_copy = _copying(lambda x: x, "alias")
detach_copy = _copying(lambda x: x.detach(), "detach")
narrow_copy, select_copy, split_with_sizes_copy = map(_copying, (narrow, select, split_with_sizes))
expand_copy, permute_copy, unfold_copy, view_copy = map(
    _copying, (shapes.expand, shapes.permute, shapes.unfold, shapes.view)
)
split_copy, squeeze_copy, unbind_copy, unsqueeze_copy = map(
    _copying, (shapes.split, shapes.squeeze, shapes.unbind, shapes.unsqueeze)
)
t_copy, transpose_copy = map(_copying, (shapes.t, shapes.transpose))
