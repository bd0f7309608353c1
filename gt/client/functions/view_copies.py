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


def _copying(view: Callable[..., Any], name: str) -> Callable[..., Any]:
    def function(input: Any, *args: Any, **kwargs: Any) -> Any:
        out = view(input, *args, **kwargs)
        return tuple(x.clone() for x in out) if isinstance(out, tuple) else out.clone()

    return called(function, name, f"Same as {name.removesuffix('_copy')}(), but returns a copy.")


alias_copy = _copying(lambda x: x, "alias_copy")
detach_copy = _copying(lambda x: x.detach(), "detach_copy")
expand_copy = _copying(shapes.expand, "expand_copy")
narrow_copy = _copying(narrow, "narrow_copy")
permute_copy = _copying(shapes.permute, "permute_copy")
select_copy = _copying(select, "select_copy")
split_copy = _copying(shapes.split, "split_copy")
split_with_sizes_copy = _copying(split_with_sizes, "split_with_sizes_copy")
squeeze_copy = _copying(shapes.squeeze, "squeeze_copy")
t_copy = _copying(shapes.t, "t_copy")
transpose_copy = _copying(shapes.transpose, "transpose_copy")
unbind_copy = _copying(shapes.unbind, "unbind_copy")
unfold_copy = _copying(shapes.unfold, "unfold_copy")
unsqueeze_copy = _copying(shapes.unsqueeze, "unsqueeze_copy")
view_copy = _copying(shapes.view, "view_copy")
