"""The names of torch.func: transforms that return the gradient of a function as a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.client.grad.transforms import grad, grad_and_value, hessian, jacfwd, jacrev, jvp, linearize, value_and_grad, vjp
from gt.nn.utils.stateless import functional_call

__all__ = [
    "functional_call", "grad", "grad_and_value", "hessian", "jacfwd", "jacrev", "jvp", "linearize",
    "replace_all_batch_norm_modules_", "value_and_grad", "vjp",
]  # fmt: skip

vmap: Callable[..., Any]


def __getattr__(name: str) -> Any:
    if name == "vmap":
        from gt.client.functions.mapping import vmap  # not loaded by `import gt`

        return vmap
    if name == "stack_module_state":
        return _stack_module_state
    raise AttributeError(f"module 'gt.func' has no attribute {name!r}")


def _stack_module_state(models: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameters and buffers of several modules of one kind, stacked by name."""
    from gt.client.functions.shapes import stack

    def stacked(parts: list[dict[str, Any]]) -> dict[str, Any]:
        return {name: stack([part[name].detach() for part in parts]) for name in parts[0]}

    models = list(models)
    parameters = stacked([dict(m.named_parameters()) for m in models])
    for p in parameters.values():
        p.requires_grad_()
    return parameters, stacked([dict(m.named_buffers()) for m in models])


def replace_all_batch_norm_modules_(root: Any) -> Any:
    """Let every batch norm of a module use the statistics of the batch only, and keep none: a function of them may then
    be mapped or differentiated."""
    from gt.nn.norm import _Running

    for module in root.modules():
        if isinstance(module, _Running):
            module.running_mean = module.running_var = module.num_batches_tracked = None
            module.track_running_stats = False
    return root
