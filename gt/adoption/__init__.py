"""`gt.adopt`: a `torch.nn.Module`, whoever wrote it, runs on the session's workers.

torch is imported by the first call of `adopt`, not by `import gt`. The files:

- `tensor.py`: the torch tensor that stands for a tensor of GT.
- `functions.py`: which function of GT a function of torch calls.
- `operators.py`: the same for operators of torch's C++.
- `modes.py`: torch's gradient mode and autocast; what a model creates.
- `autograd.py`: `torch.autograd.Function`, checkpoints and hooks in GT's graph.
- `optimizers.py`: steps of `torch.optim`, by GT's ops.
- `sparse.py`: torch's sparse tensors, as dense ones.
- `growing.py`: sequences that get longer by one.
- `scaling.py`: `torch.amp.GradScaler`.
- `batching.py`: `torch.vmap`.
- `factories.py`: sizes that are adopted tensors.
- `model.py`: the parameters of a module are replaced.
"""

from __future__ import annotations

from typing import Any


def adopt(model: Any, weights: Any = None) -> Any:
    """Run a torch.nn.Module, or a torch tensor, on the session's workers.

    The module is changed in place and returned: its parameters and buffers are uploaded, one by one, and replaced by
    tensors that GT computes with. It is called with tensors of torch or of GT, and returns the same kind. What it
    computes is recorded like any other code of GT.

    `weights`: where the values of parameters on the meta device come from: a safetensors file, a list of them, or a
    dict of tensors. Each value is read when it is uploaded.

    >>> import gt, torch
    >>> model = gt.adopt(torch.nn.Linear(3, 2))
    >>> loss = model(gt.ones(4, 3)).square().mean()
    >>> loss.backward()
    >>> model.weight.grad.shape
    torch.Size([2, 3])
    """
    from gt.adoption.model import adopt

    return adopt(model, weights)
