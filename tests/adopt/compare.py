"""A model by torch and the same model adopted: outputs and gradients of the first step, losses of some steps, calls
and programs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

import gt

#: Called when torch is done, and the model is adopted.
WATCH: list[Callable[[], Any]] = []


class NotBuilt(Exception):
    """torch itself did not build or train the model."""


@dataclass
class Outcome:
    """What a comparison found."""

    losses: tuple[list[float], list[float]]  #: torch's and GT's
    outputs: float  #: The largest difference of an output, relative to the largest value of that output.
    worst: float  #: The largest difference of a gradient, relative to the largest gradient of the model.
    missing: set[str]  #: Parameters that have a gradient on one side only.
    steps: list[tuple[int, int]]  #: Calls, and programs sent, of each step after the first.

    @property
    def equal(self) -> bool:
        close = all(abs(a - b) <= 1e-5 + 1e-3 * abs(a) for a, b in zip(*self.losses, strict=True))
        return close and self.outputs < 1e-3 and self.worst < 1e-3 and not self.missing

    @property
    def reason(self) -> str:
        """What differs, in a line."""
        text = f"losses {self.losses}, outputs {self.outputs:.1e}, gradients {self.worst:.1e}"
        return text + (f", only on one side: {sorted(self.missing)[:3]}" if self.missing else "")


def first_loss(out: Any) -> Any:
    """A number to minimize: the model's own loss, or the mean square of its first result."""
    if getattr(out, "loss", None) is not None:
        return out.loss.mean()
    if not isinstance(out, torch.Tensor):
        out = next(t for t in tensors(out) if t.requires_grad or not torch.is_grad_enabled())
    return (out.abs() if out.is_complex() else out.float()).square().mean()


def tensors(out: Any) -> Iterator[Any]:
    """The tensors of floats in what a model returns."""
    if isinstance(out, torch.Tensor):
        if out.is_floating_point() or out.is_complex():
            yield out
    elif isinstance(out, dict):
        for value in out.values():
            yield from tensors(value)
    elif isinstance(out, (tuple, list)):
        for value in out:
            yield from tensors(value)


def without_dropout(model: Any) -> Any:
    """Random numbers differ between torch and GT, so nothing is dropped."""
    for module in model.modules():
        for name in ("p", "dropout", "dropout_p", "attention_dropout", "attn_dropout", "drop_prob", "layerdrop"):
            if isinstance(getattr(module, name, None), float) and ("rop" in type(module).__name__ or name != "p"):
                setattr(module, name, 0.0)
    return model


def compare(
    make: Callable[[], Any], batch: Callable[[int], dict[str, Any]], steps: int = 3,
    optimizer: Callable[[Any], Any] = lambda p: torch.optim.SGD(p, 1e-3), double: bool = False, still: bool = False,
) -> Outcome:  # fmt: skip
    """Train the model with torch, and adopted, on the same batches. `double`: in float64, where rounding is no reason
    for two results to differ. `still`: with the statistics of evaluation, as those of a tiny batch enlarge it."""
    kind = torch.float64 if double else torch.float32
    try:
        torch.manual_seed(0)
        theirs = without_dropout(make().train()).to(kind)
        given = _cast(batch, kind) if double else batch
        if still or _random(theirs, given):
            theirs.eval()
            if _random(theirs, given):
                raise NotBuilt("it draws random numbers in evaluation, too: GT's differ from torch's")
        ours = copy.deepcopy(theirs)
        expected, outs, grads, _ = _train(
            theirs, given, steps, optimizer(theirs.parameters()), lambda g: g.detach().clone()
        )
    except NotBuilt:
        raise
    except Exception as e:
        raise NotBuilt(f"torch: {type(e).__name__}: {e}") from e
    for started in WATCH:
        started()
    ours = gt.adopt(ours)
    found, mine, ours_grads, counts = _train(
        ours, given, steps, optimizer(ours.parameters()), lambda g: g.detach().torch()
    )
    both = grads.keys() & ours_grads.keys()
    largest = max((_largest(g) for g in grads.values()), default=0.0) or 1.0
    worst = max((_largest(grads[k] - ours_grads[k]) / largest for k in both), default=0.0)
    apart = max((_apart(a, b) for a, b in zip(outs, mine, strict=True)), default=0.0)
    return Outcome((expected, found), apart, worst, set(grads.keys() ^ ours_grads.keys()), counts)


def _cast(batch: Any, kind: Any) -> Any:
    def cast(x: Any) -> Any:
        return x.to(kind) if isinstance(x, torch.Tensor) and x.is_floating_point() else x

    return lambda i: {k: cast(v) for k, v in batch(i).items()}


def _random(model: Any, batch: Any) -> bool:
    """Whether the model gives other results with another seed: it then runs as in evaluation."""
    found = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        again = copy.deepcopy(model)
        with torch.no_grad():
            found.append(list(tensors(again(**batch(0)))))
    return any(_apart(a, b) > 1e-6 for a, b in zip(*found, strict=True))


def _largest(x: Any) -> float:
    return float(x.abs().max()) if x.numel() else 0.0


def _apart(a: Any, b: Any) -> float:
    """How far two outputs are apart; both may be infinite or not a number in the same places."""
    if a.shape != b.shape:
        return float("inf")
    same = (a == b) | (a.isnan() & b.isnan())
    difference = torch.where(same, 0, a - b)
    finite = a[a.isfinite()]
    return _largest(difference) / max(_largest(finite), 1e-6)


def _train(model: Any, batch: Any, steps: int, optimizer: Any, read: Any) -> Any:
    losses, counts, grads, outs, before = [], [], {}, [], (0, 0)
    for i in range(steps):
        out = model(**batch(i))
        loss = first_loss(out)
        optimizer.zero_grad()
        loss.backward()
        if i == 0:
            outs = [read(t) for t in tensors(out)]
            grads = {k: read(p.grad) for k, p in model.named_parameters() if p.grad is not None}
        optimizer.step()
        losses.append(loss.detach())
        del loss, out
        stats = gt.debug.get_client_stats()
        now = stats["calls"], stats["programs_sent"]
        counts.append((now[0] - before[0], now[1] - before[1]))
        before = now
    return [x.item() for x in losses], outs, grads, counts[1:]
