"""Whole models on a mesh: `gt.shard_` places the parameters of a module, `gt.use_plan` all that a plan wants placed,
and has the plan's choices followed.

A plan is any object with these attributes; `gt.plan` makes one.

    mesh      axis -> number of workers
    layouts   the name of an input (naming.py) -> its layout as text, "[4096@y]"
    ways      the index of an instruction -> gt.chosen.Chosen
    body      the name of the program that the indices are of: Program.body()

Law: a plan changes where values are and how programs run, and no number beyond rounding. What does not fit it, such as
     a program with another body, runs as it would without it.
"""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import msgspec

from gt import layout as layouts
from gt.chosen import Chosen
from gt.client.compat.arguments import shown
from gt.client.mesh.naming import Named, is_module, named_tensors, variables_of
from gt.client.mesh.sharding import apart, layout_text, set_layout
from gt.client.programs.tree import users_frame
from gt.client.record.recorder import recorder
from gt.client.session.placing import set_mesh
from gt.client.session.session import Session
from gt.client.tensor import Tensor, own
from gt.errors import ArgumentError, DTypeError, ShapeError
from gt.program import Spec
from gt.transport.messages import CHOICES_NBYTES, UsePlan, encode

__all__ = ["shard_", "use_plan"]
METHODS: list[str] = []

_encode = msgspec.msgpack.Encoder(order="deterministic").encode


def shard_(x: Any, layout: Any, mesh: Any = None) -> Any:
    """Shard a tensor in place, or the parameters and buffers of a module.

    For a module, `layout` maps patterns of parameter names to layouts; the first pattern that matches is used.
    Parameters without dimensions stay as they are. Call it before creating the optimizer, whose state has the layout
    of the parameters. With a plan as `layout` it is `use_plan` for this module.

    >>> import gt
    >>> model = gt.nn.Sequential(gt.nn.Linear(8, 32), gt.nn.ReLU(), gt.nn.Linear(32, 8))
    >>> model = gt.shard_(model, {"0.*": {0: "x"}, "2.weight": {1: "x"}})
    """
    if isinstance(own(x), Tensor):
        x = own(x)
        text = layout_text("shard_", x.shape, layout, mesh)
        with apart([x]):
            set_layout(x, text)
        return x
    if not hasattr(x, "named_parameters"):
        raise DTypeError(f"shard_: expected a tensor or a module, got {shown(x)}")
    if is_plan(layout):
        return _place_module(x, layout)
    if not isinstance(layout, Mapping) or not all(isinstance(k, str) for k in layout):
        raise DTypeError(
            f"shard_: for a module, layout must map names to layouts, like {{'*.weight': {{0: 'x'}}}}, "
            f"got {shown(layout)}"
        )
    named = {name: own(t) for name, t in (*x.named_buffers(), *x.named_parameters())}
    wanted = {name: next((p for p in layout if fnmatch.fnmatchcase(name, p)), None) for name in named}
    idle = [p for p in layout if not any(fnmatch.fnmatchcase(name, p) for name in named)]
    if idle:
        raise ArgumentError(f"shard_: no parameter matches {idle[0]!r}; the names are {', '.join([*named][:8])}")
    chosen = {name: p for name, p in wanted.items() if p is not None and named[name].shape}
    texts = {name: layout_text(f"shard_: {name}", named[name].shape, layout[p], mesh) for name, p in chosen.items()}
    with apart(named[name] for name in texts):
        for name, text in texts.items():
            set_layout(named[name], text)
    return x


class UsablePlan(Protocol):
    """What is used of a plan; see the file's header."""

    @property
    def mesh(self) -> Mapping[str, int]: ...

    @property
    def layouts(self) -> Mapping[str, str]: ...

    @property
    def ways(self) -> Mapping[int, Chosen]: ...

    @property
    def body(self) -> str: ...


def is_plan(x: Any) -> bool:
    """Whether an object has the attributes of a plan."""
    return all(hasattr(x, name) for name in ("mesh", "layouts", "ways", "body"))


def use_plan(plan: Any, step: Callable[..., Any] | None = None, /, *args: Any, **objects: Any) -> None:
    """Train as a plan says: create its mesh, put parameters, optimizer state and data where it wants them, and have its
    choices followed.

    The tensors are found by the names that the plan has for them: in the objects given by name
    (`gt.use_plan(plan, model=model, optimizer=optimizer)`), in the variables of the step that was planned
    (`gt.use_plan(plan, step, batch)`), or, if neither is given, in the variables where it is called. Later uploads of
    the shape and dtype of a batch that was found get its layout. Call it after the optimizer was created.
    """
    _checked(plan)
    if step is not None and not callable(step):
        raise DTypeError(f"use_plan: expected the step that was planned, got {shown(step)}")
    found = variables_of(step, args) if step is not None else {}
    found.update(objects)
    if not found:
        found = dict(_around(plan))
    named = {each.name: each for each in named_tensors(found)}
    modules = {name for name, x in found.items() if is_module(x)}
    missing = [n for n in plan.layouts if n not in named and _root(n) in modules and not n.endswith(".grad")]
    if missing:
        raise ArgumentError(
            f"use_plan: the plan has a layout for {missing[0]!r}, but {_root(missing[0])!r} does not contain it; "
            "was the plan made for another model?"
        )
    _follow(plan, {name: named[name] for name in plan.layouts if name in named})


def _place_module(module: Any, plan: Any) -> Any:
    """What `gt.shard_(model, plan)` does: use the plan, with the parameters and buffers of this module alone."""
    _checked(plan)
    named = {each.name: each for each in named_tensors({"": module})}
    whole = [n for n in plan.layouts if ":" not in n]
    heads = Counter(n[: -len(own) - 1] for own in named for n in whole if n.endswith(f".{own}"))
    if not heads:
        raise ArgumentError(f"shard_: the plan has no layout for {next(iter(named), 'this module')!r} of this module")
    (head, most), *others = heads.most_common(2)
    if others and others[0][1] == most:
        raise ArgumentError(
            f"shard_: the plan may mean {head!r} or {others[0][0]!r}; use gt.use_plan(plan, {head}=...)"
        )
    _follow(plan, {f"{head}.{n}": each for n, each in named.items() if f"{head}.{n}" in plan.layouts})
    return module


def _checked(plan: Any) -> None:
    if not is_plan(plan):
        raise DTypeError(f"use_plan: expected a plan with mesh, layouts, ways and body, got {shown(plan)}")


def _root(name: str) -> str:
    """The variable that a name begins with: "optimizer.exp_avg:model.weight" -> "optimizer"."""
    return name.split(".")[0]


def _around(plan: UsablePlan) -> Iterator[tuple[str, Any]]:
    """The variables with names of the plan where the user called it."""
    frame = users_frame()
    for root in dict.fromkeys(_root(n) for n in plan.layouts):
        for variables in (frame.f_locals, frame.f_globals):
            if root in variables:
                yield root, variables[root]
                break


def _follow(plan: UsablePlan, named: Mapping[str, Named]) -> None:
    rec = recorder()
    rec.refuse_sync()
    session = rec.session
    message = _message(plan)
    _bring_mesh(session, plan.mesh)
    mesh = session.meshes.find("")
    texts: dict[str, str] = {}
    for name, (_, _, t) in named.items():
        try:
            one = layouts.parse(plan.layouts[name] or "[]", mesh)
            if not one.partial:  # a gradient that is to be added to: it comes as it is
                layouts.fits(one, t.shape)
                texts[name] = session.meshes.text(one)
        except (ArgumentError, ShapeError) as e:
            raise ArgumentError(f"use_plan: {name}: {str(e).removeprefix('layout: ')}") from None
    with apart(named[name].tensor for name in texts):
        for name, text in texts.items():
            set_layout(named[name].tensor, text)
    rec.mark()  # a program of its own: the step must be the one that was planned
    data: dict[Spec, set[str]] = {}
    for name, text in texts.items():
        if named[name].role == "data":
            data.setdefault(named[name].tensor._spec, set()).add(text)
    with session.lock:
        session.check_usable()
        session.meshes.uploads.update({spec: text for spec, (text, *more) in data.items() if not more})
        session.send(message)


def _bring_mesh(session: Session, axes: Mapping[str, int]) -> None:
    """The session's mesh has these axes, or is made anew."""
    own = session.meshes.by_name.get("")
    if own is None or own.grid.axes != tuple(axes.items()):
        set_mesh(session, "", axes)


def _message(plan: UsablePlan) -> UsePlan:
    """A plan's choices as they are sent, each once."""
    choices: dict[bytes, Chosen] = {}
    number: dict[bytes, int] = {}
    ways: dict[int, int] = {}
    for i, chosen in plan.ways.items():
        if not isinstance(chosen, Chosen) or type(i) is not int:
            raise DTypeError(f"use_plan: ways must map ints to gt.chosen.Chosen, got {shown(i)}: {shown(chosen)}")
        key = _encode(chosen)
        choices.setdefault(key, chosen)
        ways[i] = number.setdefault(key, len(number))
    made = UsePlan(str(plan.body), tuple(plan.mesh.items()), tuple(choices.values()), ways)
    nbytes = len(encode(made)[0])
    if nbytes > CHOICES_NBYTES:
        raise ArgumentError(f"use_plan: the choices of the plan have {nbytes} bytes; the limit is {CHOICES_NBYTES}")
    return made
