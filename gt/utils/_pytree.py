"""The names of torch.utils._pytree: nested tuples, lists, dicts, named tuples and registered types as trees."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

__all__ = [
    "PyTree", "TreeSpec", "register_pytree_node", "tree_all", "tree_any", "tree_flatten", "tree_leaves", "tree_map",
    "tree_map_only", "tree_structure", "tree_unflatten",
]  # fmt: skip

PyTree = Any
Leaf = Callable[[Any], bool] | None


class ContainerType(NamedTuple):
    """How a type is taken apart, into children and the rest, and put together again."""

    flatten: Callable[[Any], tuple[list[Any], Any]]
    unflatten: Callable[[Iterable[Any], Any], Any]


class TreeSpec(NamedTuple):
    """The structure of a tree: its type, what is not a child, and the structures of the children. A leaf has none."""

    type: Any
    context: Any
    children_specs: tuple[TreeSpec, ...]

    @property
    def num_leaves(self) -> int:
        """The number of leaves."""
        return 1 if self.type is None else sum(child.num_leaves for child in self.children_specs)


LEAF = TreeSpec(None, None, ())
_KINDS: dict[type, ContainerType] = {
    tuple: ContainerType(lambda x: (list(x), None), lambda children, _: tuple(children)),
    list: ContainerType(lambda x: (list(x), None), lambda children, _: list(children)),
    dict: ContainerType(
        lambda x: (list(x.values()), tuple(x)), lambda children, keys: dict(zip(keys, children, strict=True))
    ),
    OrderedDict: ContainerType(
        lambda x: (list(x.values()), tuple(x)), lambda children, keys: OrderedDict(zip(keys, children, strict=True))
    ),
}


def register_pytree_node(cls: type, flatten_fn: Any, unflatten_fn: Any, **more: Any) -> None:
    """Make a type a node: flatten_fn(x) returns children and context, unflatten_fn(children, context) builds it."""
    _KINDS[cls] = ContainerType(flatten_fn, unflatten_fn)


_register_pytree_node = register_pytree_node


def _kind(x: Any) -> ContainerType | None:
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return ContainerType(lambda t: (list(t), type(t)), lambda children, made: made(*children))
    return _KINDS.get(type(x))


def tree_flatten(tree: Any, is_leaf: Leaf = None) -> tuple[list[Any], TreeSpec]:
    """The leaves of a tree, and its structure."""
    kind = None if is_leaf is not None and is_leaf(tree) else _kind(tree)
    if kind is None:
        return [tree], LEAF
    children, context = kind.flatten(tree)
    parts = [tree_flatten(child, is_leaf) for child in children]
    return [leaf for leaves, _ in parts for leaf in leaves], TreeSpec(type(tree), context, tuple(s for _, s in parts))


def tree_unflatten(leaves: Iterable[Any], treespec: TreeSpec) -> Any:
    """A tree of this structure with these leaves."""
    return _build(iter(leaves), treespec)


def _build(leaves: Any, spec: TreeSpec) -> Any:
    if spec.type is None:
        return next(leaves)
    children = [_build(leaves, child) for child in spec.children_specs]
    kind = _KINDS.get(spec.type)
    return spec.type(*children) if kind is None else kind.unflatten(children, spec.context)


def tree_leaves(tree: Any, is_leaf: Leaf = None) -> list[Any]:
    """The leaves of a tree."""
    return tree_flatten(tree, is_leaf)[0]


def tree_structure(tree: Any, is_leaf: Leaf = None) -> TreeSpec:
    """The structure of a tree."""
    return tree_flatten(tree, is_leaf)[1]


def tree_map(func: Callable[..., Any], tree: Any, *rests: Any, is_leaf: Leaf = None) -> Any:
    """The tree with func applied to every leaf, and to the leaves at the same places of other trees."""
    leaves, spec = tree_flatten(tree, is_leaf)
    others = [tree_leaves(rest, is_leaf) for rest in rests]
    return tree_unflatten([func(*each) for each in zip(leaves, *others, strict=True)], spec)


def tree_map_only(kinds: Any, func: Callable[..., Any], tree: Any, is_leaf: Leaf = None) -> Any:
    """The tree with func applied to the leaves of these types."""
    return tree_map(lambda x: func(x) if isinstance(x, kinds) else x, tree, is_leaf=is_leaf)


def tree_all(pred: Callable[[Any], bool], tree: Any) -> bool:
    """Whether pred holds for all leaves."""
    return all(map(pred, tree_leaves(tree)))


def tree_any(pred: Callable[[Any], bool], tree: Any) -> bool:
    """Whether pred holds for a leaf."""
    return any(map(pred, tree_leaves(tree)))
