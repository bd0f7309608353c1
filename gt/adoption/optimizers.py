"""torch's optimizers on adopted parameters: a step records GT's op for each parameter.

torch's object stays what it is: groups, hooks, schedulers and `state_dict` are torch's own, and the state has torch's
names and kinds, with counts on the host. GT's optimizer of the same name only says how one parameter is updated; it
reads torch's group, whose settings have the same names. The body of torch's `step` is changed, once; parameters that
are not adopted, and settings that GT's op does not know, pass through to torch's own.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch

from gt import optim
from gt.adoption.tensor import ADOPTED, native, wrap
from gt.client.grad.modes import set_grad
from gt.client.record.recorder import recorder
from gt.client.tensor import Leaf
from gt.optim.optimizer import Layout, Optimizer
from gt.optim.recording import decided

#: GT's optimizers by torch's. AdamW has Adam's step.
KINDS: dict[Any, type[Optimizer]] = {
    getattr(torch.optim, kind.__name__): kind
    for kind in (
        optim.SGD, optim.Adam, optim.NAdam, optim.RAdam, optim.Adamax, optim.ASGD, optim.RMSprop, optim.Rprop,
        optim.Adadelta, optim.Adagrad,
    )
}  # fmt: skip


class _TranslatedState(dict[str, Any]):
    """The state of a parameter as GT's optimizers take it, of torch's: tensors of GT, and counts as numbers. A count
    that is set is written to torch's tensor, too."""

    __slots__ = ("counts", "source", "tensors")

    def __init__(self, source: dict[str, Any]) -> None:
        self.source = source  #: torch's state, from which this one was made.
        self.counts: dict[str, Any] = {}  #: Views of torch's counts, by name.
        self.tensors: list[tuple[str, Any]] = []  #: torch's tensors.

    def __setitem__(self, name: str, value: Any) -> None:
        dict.__setitem__(self, name, value)
        view = self.counts.get(name)
        if view is not None:
            view[()] = value

    def current(self, theirs: dict[str, Any]) -> bool:
        """Whether torch's state has the same tensors still. Counts are read again."""
        if theirs is not self.source:
            return False
        for name, tensor in self.tensors:
            if theirs.get(name) is not tensor:
                return False
        for name, view in self.counts.items():
            dict.__setitem__(self, name, view.item())
        return True


class _Guide:
    """What GT keeps for an optimizer of torch's."""

    def __init__(self, kind: type[Optimizer], optimizer: Any) -> None:
        self.optimizer = kind.__new__(kind)  #: GT's, of which only the description of a step is used.
        self.optimizer.defaults = optimizer.defaults
        self.states: dict[Any, _TranslatedState] = {}  #: By torch's parameters.


def _made(guide: Optimizer, optimizer: Any, p: Any, layout: Layout) -> _TranslatedState:
    """The state of a parameter; what torch's state lacks is created."""
    theirs = optimizer.state[p]
    numbers, tensors = layout
    state = _TranslatedState(theirs)
    known = {name: theirs[name] for name in (*numbers, *tensors) if theirs.get(name) is not None}
    missing = guide._import(known).items() - known.items() if known else ()
    for name, value in known.items():
        if name in tensors and type(value) not in ADOPTED:
            value = wrap(native(value))  # it was saved, or created before the model was adopted
        known[name] = value
        state[name] = value._gt if name in tensors else float(value)
    for name, value in missing:
        state[name] = value
    guide._complete(p._gt, state, numbers, tensors)
    with torch._C.DisableTorchFunction():
        for name in numbers:
            if not name.startswith("_"):
                count = known.get(name)
                if not isinstance(count, torch.Tensor) or count.dtype not in (torch.float32, torch.float64):
                    count = torch.tensor(float(state[name]), dtype=torch.get_default_dtype())
                theirs[name] = count = count.cpu()
                state.counts[name] = count.numpy()
                state.tensors.append((name, count))
    for name in tensors:
        theirs[name] = known[name] if name in known else wrap(state[name])
        state.tensors.append((name, theirs[name]))
    return state


def _concerns(optimizer: Any) -> bool:
    """Whether GT's op does the same: all parameters are adopted, and no setting is about torch's own kernels."""
    if getattr(optimizer, "grad_scale", None) is not None or getattr(optimizer, "found_inf", None) is not None:
        return False
    for group in optimizer.param_groups:
        if group.get("differentiable") or group.get("capturable") or type(group.get("lr")) in ADOPTED:
            return False
        for p in group["params"]:
            if type(p) not in ADOPTED or p._gt.dtype.is_complex:
                return False
    return True


def _step(kind: type[Optimizer], optimizer: Any, closure: Callable[[], Any] | None) -> Any:
    """`step` of torch's optimizer, by GT's ops."""
    loss = None
    if closure is not None:
        with torch.enable_grad():
            loss = closure()
    groups = optimizer.param_groups
    decided(lambda: [len(g["params"]) for g in groups])
    kept = vars(optimizer).get("_gt_guide")
    if kept is None:
        kept = optimizer._gt_guide = _Guide(kind, optimizer)
    guide, states = kept.optimizer, kept.states
    untraced = recorder().trace is None  # a trace must record whose gradients are read
    with set_grad(False):
        for group in groups:
            update, layout = guide._updater(group), guide._layout(group)
            size = len(layout[0]) + len(layout[1])
            for p in group["params"]:
                t = p._gt
                g = t._fn.grad if untraced and type(t._fn) is Leaf else t.grad
                if g is None:
                    continue
                state: Any = {}
                if size:
                    state = states.get(p)
                    if state is None or len(state) < size or not state.current(optimizer.state[p]):
                        state = states[p] = _made(guide, optimizer, p, layout)
                update(t, g, state)
    return loss


def _carrier(self: Any, closure: Any = None) -> Any:
    """Only for its code, which becomes that of torch's `step`."""
    if _gt_concerns(self):  # type: ignore[name-defined]  # noqa: F821  # set where the code is used
        return _gt_step(_gt_kind, self, closure)  # type: ignore[name-defined]  # noqa: F821
    return _gt_before(self, closure)  # type: ignore[name-defined]  # noqa: F821


def install() -> None:
    """Change the body of `step`."""
    for theirs, kind in KINDS.items():
        body = theirs.step
        while hasattr(body, "__wrapped__"):  # torch's own wrappers: hooks, gradient mode
            body = body.__wrapped__
        before = FunctionType(body.__code__, body.__globals__, "step", body.__defaults__, body.__closure__)
        concerns = _same_state(theirs)
        body.__globals__.update(_gt_concerns=concerns, _gt_step=_step, _gt_kind=kind, _gt_before=before)
        # The code and not the attribute: a scheduler that was created before has bound it.
        body.__code__ = _carrier.__code__.replace(co_name="step")


def _same_state(theirs: Any) -> Callable[[Any], bool]:
    """Whether an optimizer is of this class, or of one that has changed nothing of its state."""
    own = theirs._init_group
    return lambda optimizer: type(optimizer)._init_group is own and _concerns(optimizer)
