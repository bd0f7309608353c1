"""Pruning: entries of a parameter are set to zero by a mask, and stay so while it is trained.

A pruned parameter `weight` is the product of the parameter `weight_orig` and the buffer `weight_mask`, computed before
each call of its module. What is pruned again loses a part of what is left; how much is left is read from the worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from gt.client.functions import creation, randoms, shapes
from gt.client.functions.linalg.norms import norm
from gt.client.functions.sorting import topk
from gt.client.grad.modes import set_grad
from gt.client.tensor import Tensor
from gt.errors import ArgumentError, ShapeError
from gt.nn.module import Module

__all__ = [
    "BasePruningMethod", "CustomFromMask", "Identity", "L1Unstructured", "LnStructured", "PruningContainer",
    "RandomStructured", "RandomUnstructured", "custom_from_mask", "global_unstructured", "identity", "is_pruned",
    "l1_unstructured", "ln_structured", "random_structured", "random_unstructured", "remove",
]  # fmt: skip


def _count(op: str, amount: Any, size: int) -> int:
    """How many of so many to prune: a number of them, or a part."""
    if not isinstance(amount, (int, float)) or isinstance(amount, bool) or amount < 0:
        raise ArgumentError(f"{op}: amount must be an integer >= 0 or a float from 0 to 1, got {amount!r}")
    if isinstance(amount, float) and amount > 1:
        raise ArgumentError(f"{op}: amount must be between 0.0 and 1.0, got {amount}")
    if isinstance(amount, int) and amount > size:
        raise ArgumentError(f"{op}: amount must be at most {size}, the number of what is left, got {amount}")
    return amount if isinstance(amount, int) else round(amount * size)


class BasePruningMethod:
    """A way to prune; a subclass has compute_mask(t, default_mask), the new mask for importance scores t."""

    PRUNING_TYPE = "unstructured"  #: "structured" if whole slices along `dim` are pruned; "global" sees pruned entries.
    _tensor_name = ""

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no compute_mask")

    def __call__(self, module: Module, inputs: Any) -> None:
        setattr(module, self._tensor_name, self.apply_mask(module))

    def apply_mask(self, module: Module) -> Tensor:
        """The pruned tensor."""
        mask, whole = (getattr(module, self._tensor_name + end) for end in ("_mask", "_orig"))
        return mask.to(whole.dtype) * whole

    def prune(self, t: Tensor, default_mask: Tensor | None = None, importance_scores: Tensor | None = None) -> Tensor:
        """A pruned copy of a tensor that is no parameter of a module."""
        mask = creation.ones_like(t) if default_mask is None else default_mask
        return t * self.compute_mask(t if importance_scores is None else importance_scores, mask)

    @classmethod
    def apply(
        cls, module: Module, name: str, *args: Any, importance_scores: Tensor | None = None, **kwargs: Any
    ) -> BasePruningMethod:
        """Prune a parameter of a module by this method, after those that it was pruned by before."""
        method = cls(*args, **kwargs)
        method._tensor_name = name
        found = list(_methods(module, name))
        if not found and module._parameters.get(name) is None:
            raise ArgumentError(f"prune: {type(module).__name__} has no parameter {name!r}")
        whole = getattr(module, name + "_orig") if found else module._parameters[name]
        assert whole is not None
        with set_grad(False):
            mask = getattr(module, name + "_mask") if found else creation.ones_like(whole)
            scores = importance_scores
            if scores is None:
                scores = getattr(module, name)  # as in torch: as the last call of the module has computed it
            elif tuple(scores.shape) != tuple(whole.shape):
                raise ShapeError(f"prune: importance_scores must have shape {whole.shape}, got {scores.shape}")
            container = PruningContainer(*[m for each in found for m in _parts(each)], method)
            container._tensor_name = name
            mask = container.compute_mask(scores.detach(), mask)
        for each in found:
            _take_off(module, each)
        if not found:
            del module._parameters[name]
            module.register_parameter(name + "_orig", whole)
        module.register_buffer(name + "_mask", mask)
        hook = container if found else method
        hook(module, None)
        module.register_forward_pre_hook(hook)
        return hook

    def remove(self, module: Module) -> None:
        """Make the pruned tensor an ordinary parameter."""
        name = self._tensor_name
        with set_grad(False):
            pruned = self.apply_mask(module)
        whole = module._parameters.pop(name + "_orig")
        module._buffers.pop(name + "_mask")
        delattr(module, name)
        assert whole is not None
        whole.data = pruned
        module.register_parameter(name, whole)


class PruningContainer(BasePruningMethod):
    """Several methods, one after the other; each prunes a part of what the others have left."""

    def __init__(self, *methods: BasePruningMethod) -> None:
        self._pruning_methods = tuple(methods)
        if methods:
            self._tensor_name = methods[-1]._tensor_name

    def add_pruning_method(self, method: BasePruningMethod) -> None:
        self._pruning_methods = (*self._pruning_methods, method)

    def __len__(self) -> int:
        return len(self._pruning_methods)

    def __iter__(self) -> Iterator[BasePruningMethod]:
        return iter(self._pruning_methods)

    def __getitem__(self, index: Any) -> Any:
        return self._pruning_methods[index]

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Any:
        """The mask after the last method."""
        method = self._pruning_methods[-1]
        mask = default_mask.to(t.dtype)
        if method.PRUNING_TYPE == "global":
            return method.compute_mask(t, mask)
        if method.PRUNING_TYPE == "unstructured":
            left: Any = mask.reshape(-1) != 0
            flat = mask.reshape(-1).clone()
            flat[left] = method.compute_mask(t.reshape(-1)[left], flat[left])
            return flat.reshape(mask.shape)
        dim = getattr(method, "dim", 0) % t.ndim
        kept: Any = mask.sum([d for d in range(t.ndim) if d != dim]) != 0
        at: Any = (*[slice(None)] * dim, kept)
        made = mask.clone()
        made[at] = method.compute_mask(t[at], mask[at])
        return made


class Identity(BasePruningMethod):
    """Prunes nothing."""

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Any:
        return default_mask


class RandomUnstructured(BasePruningMethod):
    """Prunes entries at random."""

    def __init__(self, amount: Any) -> None:
        self.amount = amount

    def _importance(self, t: Tensor) -> Any:
        return randoms.rand(t.numel())

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Any:
        count = _count("prune", self.amount, t.numel())
        mask = default_mask.clone().reshape(-1)
        if count:
            mask[topk(self._importance(t), count, largest=False)[1]] = 0
        return mask.reshape(default_mask.shape)


class L1Unstructured(RandomUnstructured):
    """Prunes the entries with the smallest absolute values."""

    def _importance(self, t: Tensor) -> Any:
        return t.reshape(-1).abs()


class RandomStructured(BasePruningMethod):
    """Prunes slices along a dimension at random."""

    PRUNING_TYPE = "structured"

    def __init__(self, amount: Any, dim: int = -1) -> None:
        self.amount, self.dim = amount, dim

    def _importance(self, t: Tensor, dim: int) -> Any:
        return randoms.rand(t.shape[dim])

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Any:
        dim = self.dim % t.ndim
        count = _count("prune", self.amount, t.shape[dim])
        mask = default_mask.clone()
        if count:
            mask[(*[slice(None)] * dim, topk(self._importance(t, dim), count, largest=False)[1])] = 0
        return mask


class LnStructured(RandomStructured):
    """Prunes the slices along a dimension with the smallest norms."""

    def __init__(self, amount: Any, n: Any, dim: int = -1) -> None:
        super().__init__(amount, dim)
        self.n = n

    def _importance(self, t: Tensor, dim: int) -> Any:
        return norm(t, self.n, [d for d in range(t.ndim) if d != dim])


class CustomFromMask(BasePruningMethod):
    """Prunes what a mask says, as far as it is left."""

    PRUNING_TYPE = "global"

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Any:
        return default_mask * self.mask.to(default_mask.dtype)


# --- functions -----------------------------------------------------------------------------------------


def identity(module: Module, name: str) -> Module:
    """Prune nothing, but have the names of a pruned parameter."""
    Identity.apply(module, name)
    return module


def random_unstructured(module: Module, name: str, amount: Any) -> Module:
    """Prune entries at random: so many, or this part of them."""
    RandomUnstructured.apply(module, name, amount)
    return module


def l1_unstructured(module: Module, name: str, amount: Any, importance_scores: Tensor | None = None) -> Module:
    """Prune the entries with the smallest absolute values, or scores."""
    L1Unstructured.apply(module, name, amount, importance_scores=importance_scores)
    return module


def random_structured(module: Module, name: str, amount: Any, dim: int) -> Module:
    """Prune slices along a dimension at random."""
    RandomStructured.apply(module, name, amount, dim)
    return module


def ln_structured(
    module: Module, name: str, amount: Any, n: Any, dim: int, importance_scores: Tensor | None = None
) -> Module:
    """Prune the slices along a dimension with the smallest n-norms."""
    LnStructured.apply(module, name, amount, n, dim, importance_scores=importance_scores)
    return module


def custom_from_mask(module: Module, name: str, mask: Tensor) -> Module:
    """Prune what is 0 in a mask."""
    CustomFromMask.apply(module, name, mask)
    return module


def global_unstructured(
    parameters: Iterable[tuple[Module, str]], pruning_method: Any, importance_scores: Any = None, **kwargs: Any
) -> None:
    """Prune several parameters, (module, name), as if they were one."""
    pairs, given = list(parameters), importance_scores or {}
    method = pruning_method(**kwargs)
    if method.PRUNING_TYPE != "unstructured":
        raise TypeError(f"global_unstructured: {pruning_method.__name__} is not unstructured")
    with set_grad(False):
        tensors = [getattr(module, name) for module, name in pairs]
        scores = [given.get(pair, t).detach().reshape(-1) for pair, t in zip(pairs, tensors, strict=True)]
        masks = [getattr(module, name + "_mask", None) for module, name in pairs]
        left = [creation.ones_like(s) if m is None else m.reshape(-1) for m, s in zip(masks, scores, strict=True)]
        mask = PruningContainer(method).compute_mask(shapes.cat(scores), shapes.cat(left))
        at = 0
        for (module, name), t in zip(pairs, tensors, strict=True):
            custom_from_mask(module, name, mask[at : at + t.numel()].reshape(t.shape))
            at += t.numel()


def remove(module: Module, name: str) -> Module:
    """Make a pruned tensor an ordinary parameter; what was pruned is 0."""
    for method in _methods(module, name):
        _take_off(module, method)
        method.remove(module)
        return module
    raise ArgumentError(f"remove: {name!r} of {type(module).__name__} is not pruned")


def is_pruned(module: Module) -> bool:
    """Whether a parameter of the module, or of one inside it, is pruned."""
    return any(True for m in module.modules() for _ in _methods(m))


def _methods(module: Module, name: str = "") -> Iterator[BasePruningMethod]:
    for hook in list(module._hooks.forward_pre) if module._hooks is not None else []:
        if isinstance(hook.call, BasePruningMethod) and name in ("", hook.call._tensor_name):
            yield hook.call


def _parts(method: BasePruningMethod) -> tuple[BasePruningMethod, ...]:
    return method._pruning_methods if isinstance(method, PruningContainer) else (method,)


def _take_off(module: Module, method: BasePruningMethod) -> None:
    assert module._hooks is not None
    module._hooks.forward_pre[:] = [h for h in module._hooks.forward_pre if h.call is not method]
