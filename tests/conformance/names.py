"""How a name of torch's database is called here, and what of it is left out, with the reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import gt
from gt.ops import TABLE

INTERNAL = "torch-internal variant"
SPARSE = "sparse"
STRIDES = "explicit strides"

_LEFT_OUT = [
    (SPARSE, "sparse.sampled_addmm sparse.mm to_sparse"),
    (INTERNAL, "_softmax_backward_data _native_batch_norm_legit _batch_norm_with_update _upsample_bilinear2d_aa"),
    (INTERNAL, "_unsafe_masked_index _unsafe_masked_index_put_accumulate _chunk_cat _segment_reduce torch._scaled_mm"),
    (INTERNAL, "torch._scaled_mm_v2 torch.ops.aten._safe_softmax.default torch.ops.aten._flash_attention_forward"),
    (INTERNAL, "torch.ops.aten._efficient_attention_forward max_pool2d_with_indices_backward native_dropout_backward"),
    (INTERNAL, "native_batch_norm native_layer_norm jiterator_unary jiterator_binary jiterator_2inputs_2outputs"),
    (INTERNAL, "jiterator_4inputs_with_extra_args jiterator_binary_return_by_ref"),
    (STRIDES, "as_strided as_strided_copy as_strided_scatter empty_strided new_empty_strided resize_ resize_as_"),
    ("its result is uint64, which GT does not have", "hash_tensor"),
    ("its result is complex32, which GT does not have", "chalf"),
]
#: Whole names that are left out, and why.
EXEMPT: dict[str, str] = {name: reason for reason, names in _LEFT_OUT for name in names.split()}

#: Random: only shapes and dtypes are compared.
RANDOM = {
    "bernoulli", "cauchy", "empty", "empty_like", "empty_permuted", "exponential", "geometric", "log_normal",
    "multinomial", "native_dropout", "new_empty", "nn.functional.alpha_dropout", "nn.functional.dropout",
    "nn.functional.dropout2d", "nn.functional.dropout3d", "nn.functional.feature_alpha_dropout",
    "nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d", "nn.functional.gumbel_softmax",
    "nn.functional.rrelu", "normal", "pca_lowrank", "poisson", "rand_like", "randint", "randint_like", "randn",
    "randn_like", "svd_lowrank", "uniform",
}  # fmt: skip


def _method(name: str) -> Callable[..., Any]:
    return lambda x, *args, **kwargs: getattr(x, name)(*args, **kwargs)


def _property(name: str) -> Callable[..., Any]:
    return lambda x: getattr(x, name)


def _in_place(name: str) -> Callable[..., Any]:
    """These random names exist in place only."""
    return lambda x, *args, **kwargs: getattr(x.clone(), name)(*args, **kwargs)


#: Names that torch itself has as methods, properties or operators only.
SPECIAL: dict[str, Callable[..., Any]] = {
    **{n: _property(n) for n in ("T", "H", "mT", "mH")},
    **{n: _in_place(n + "_") for n in ("cauchy", "exponential", "geometric", "log_normal", "uniform")},
    "__getitem__": lambda x, *args: x[args[0]] if len(args) == 1 else x[args],
    **{
        n: _method(n)
        for n in (
            "item", "contiguous", "sum_to_size", "expand", "expand_as", "to", "__radd__", "__rmul__", "__rand__",
            "__ror__", "__rxor__", "__rmatmul__", "__rmod__", "__rpow__", "__rsub__", "reshape_as", "view", "view_as",
            "byte", "char", "new_zeros", "new_ones", "new_empty", "new_full", "unfold", "repeat", "bool", "double",
            "float", "half", "int", "long", "short", "bfloat16", "cfloat", "cdouble", "chalf", "type_as",
        )
    },
    # The database names the weight, or the tensor, first.
    "nn.functional.embedding": lambda w, i, **k: gt.nn.functional.embedding(i, w, **k),
    "nn.functional.embedding_bag": lambda w, i, *args, **k: gt.nn.functional.embedding_bag(i, w, *args, **k),
    "where": lambda x, condition, other, **k: gt.where(condition, x, other, **k),
    "slice": lambda x, dim=0, start=None, end=None, step=1: x[
        (slice(None),) * (dim % x.ndim) + (slice(start, end, step),)
    ],
    # The database gives it a module of torch's as the distance.
    "nn.functional.triplet_margin_with_distance_loss": lambda *args, distance_function=None, **k: (
        gt.nn.functional.triplet_margin_with_distance_loss(
            *args, distance_function=distance_function and gt.nn.functional.pairwise_distance, **k
        )
    ),
    "einsum": lambda tensors, equation: gt.einsum(equation, tensors),
    "zero_": lambda x: x.clone().zero_(),
    "__rdiv__": lambda x, other: other / x,
    "item": lambda x: x.item(),
}  # fmt: skip


def find(name: str, variant: str = "") -> tuple[Callable[..., Any], bool] | None:
    """GT's function of that name, and whether it is GT's own (not torch's, run on the worker)."""
    if name in SPECIAL:
        return SPECIAL[name], True
    if (name, variant) == ("normal", "in_place"):
        return (lambda x, *args, **kwargs: x.clone().normal_(*args, **kwargs)), True
    if (name, variant) == ("linalg.lstsq", "grad_oriented"):
        return (lambda a, b, driver: gt.linalg.lstsq(a, b, driver=driver)[:2]), True
    if name in ("pca_lowrank", "svd_lowrank") or (name, variant) == ("linalg.pinv", "singular"):
        whole = gt.linalg.pinv if name == "linalg.pinv" else getattr(gt, name)
        # The database gives these a matrix as the product of two.
        return (lambda a, b, **kwargs: whole(a @ b.mT, **kwargs)), name in vars(gt) or name == "linalg.pinv"
    place: Any = gt
    path = name.split(".")
    for part in path[:-1]:
        place = getattr(place, part, None)
    f = None if place is None else vars(place).get(path[-1])
    if f is not None:
        return f, True
    if len(path) == 1 and name in TABLE:
        return getattr(gt, name), True
    fallback = getattr(gt, "torch_op", None)
    if fallback is not None and _torch_has(name):
        return (lambda *args, **kwargs: fallback(name, *args, **kwargs)), False
    return None


def _torch_has(name: str) -> bool:
    place: Any = torch
    for part in name.split("."):
        place = getattr(place, part, None)
    return callable(place)


def sample_reason(name: str, sample: Any) -> str | None:
    """Why one sample is left out, or None."""
    if any(k in sample.kwargs for k in ("layout", "out")) and sample.kwargs.get("layout") not in (None, torch.strided):
        return SPARSE
    numbers = [a for a in sample.args if isinstance(a, float)]
    if sample.kwargs.get("dropout_p") or (name == "nn.functional.multi_head_attention_forward" and any(numbers)):
        return "values of random ops"
    leaves = [sample.input, *sample.args, *sample.kwargs.values()]
    if any(isinstance(x, torch.Tensor) and x.layout is not torch.strided for x in leaves):
        return SPARSE
    return None
