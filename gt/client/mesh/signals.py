"""Signals: names for parts of a computation, and a configuration that says where those parts run.

`with gt.signal.context("name"):` names the ops that are recorded inside. The configuration gives the results of those
ops a layout: a mesh, and the dimensions that are sharded. The layout is set by an instruction (`shard`) that gives the
gradient the same layout, so the backward pass runs on the same workers. `gt.signal.place(model)` uses the names of the
modules as contexts and gives the parameters their layouts: the model's code stays as it is. Outside of contexts there
is no cost.

    mesh: {x: 4}                          the session's default mesh
    meshes:
      first: {x: 2, workers: [0, 1]}      a named mesh of some of its workers, given by their positions
    parameters:                           of a placed model; the first pattern that matches is used
      "blocks.*.up.weight": {0: x}
    signals:                              by the name of a context or module
      stage1: {mesh: first, split: {0: x}}
      "blocks.*.down": {split: {}, ops: [linear]}
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gt.client.compat import autocast as policy
from gt.client.compat.arguments import shown
from gt.client.mesh import sharding
from gt.client.programs.tree import Kind
from gt.client.record.recorder import apply, recorder
from gt.client.session.placing import configure_session
from gt.client.session.session import Session
from gt.client.session.signals import Placement, placement_for
from gt.client.tensor import Tensor
from gt.client.views.aliases import pinned
from gt.errors import ArgumentError, DTypeError


def configure(config: Any) -> None:
    """Set where named parts of the computation run; config is a mapping or a file (YAML, JSON, TOML or Python).

    It replaces the session's previous configuration. The setting GT_SIGNALS names a file for every session.
    """
    configure_session(recorder().session, config)


# --- contexts -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pin:
    """The placements of the contexts that a thread is in, innermost first. The recorder calls it like a policy."""

    placements: tuple[Placement, ...]

    def __call__(self, kind: Kind, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The policy's cast: none."""
        return args

    def record(self, kind: Kind, args: tuple[Any, ...]) -> Any:
        """Record an op and give its results their layout."""
        rec = recorder()
        rec.policy = rec.pin = None  # the ops below are recorded without policy and pin
        try:
            out = apply(kind, args)
            placement = next((p for p in self.placements if p.covers(kind)), None)
            if placement is None or not any(isinstance(a, Tensor) for a in args):
                return out  # a new tensor gets the layout of its first use
            made = [_pinned(rec.session, placement, t) for t in (out if isinstance(out, tuple) else (out,))]
            return tuple(made) if isinstance(out, tuple) else made[0]
        finally:
            rec.pin = self
            policy.enforce()


def _pinned(session: Session, placement: Placement, t: Any) -> Any:
    text = placement.text(session.meshes, t.shape)
    return t if text is None else pinned(t, text)


class context:
    """Name the ops recorded inside; the configuration sets where they run. A context manager and a decorator.

    >>> import gt
    >>> gt.signal.configure({"signals": {"mlp": {"split": {0: "x"}}}})
    >>> with gt.signal.context("mlp"):
    ...     y = gt.ones(4, 3) * 2  # on a mesh with an axis x, its rows are sharded
    """

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise DTypeError(f"signal: the name of a context must be a string, got {shown(name)}")
        self.name = name
        self._before: list[Any] = []

    def __enter__(self) -> context:
        rec = recorder()
        signals = rec.session.signals
        if rec.trace is not None:
            session = rec.session
            rec.trace.guards.append((lambda args: session.signals, signals))  # traced again when the signals change
        found = None if signals is None else signals.find(self.name)
        self._before.append(rec.pin)
        if found is not None:
            rec.pin = Pin((found, *(rec.pin.placements if rec.pin is not None else ())))
            policy.enforce()
        return self

    def __exit__(self, *exc: object) -> None:
        rec = recorder()
        rec.pin = self._before.pop()
        policy.enforce()

    def __call__(self, f: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(f)
        def inner(*args: Any, **kwargs: Any) -> Any:
            with context(self.name):
                return f(*args, **kwargs)

        return inner


# --- models -------------------------------------------------------------------------------------------


def place(model: Any) -> Any:
    """Place a model as configured: give its parameters and buffers their layouts, and run every module whose name
    matches a signal in the context of that name. Returns the model. Call it before creating the optimizer."""
    session = recorder().session
    signals = session.signals
    if signals is None:
        raise ArgumentError("signal: no configuration; call gt.signal.configure() first, or set GT_SIGNALS")
    for name, t in [*model.named_buffers(), *model.named_parameters()]:
        found = placement_for(signals.parameters, name)
        text = None if found is None else found.text(session.meshes, t.shape)
        if text is not None:
            sharding.set_layout(t, text)
    for name, module in model.named_modules():
        if name and signals.find(name) is not None:
            enter = _InContext(name)
            around = module._hooked().around
            if enter not in around:
                around.append(enter)
    return model


@dataclass(frozen=True)
class _InContext:
    """Enters the context named after a module."""

    name: str

    def __call__(self, module: Any) -> context:
        return context(self.name)
