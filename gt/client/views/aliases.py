"""Aliasing as in torch, on values that never change.

A tensor points to a cell, the cell to a value; `detach()` and `.data` share the cell, in-place ops
rebind it. (A tensor that shares with nobody keeps its value itself, `_v`, and has no cell yet.)
A view remembers its base and how it was taken. Writing to it records the write into the base;
reading a view whose base has changed takes it again. So users see shared memory and programs stay pure.
"""

from __future__ import annotations

import gc
from typing import Any

from gt.client.grad.modes import set_grad
from gt.client.programs import kinds
from gt.client.programs.pending import Pending, Value
from gt.client.programs.tree import Kind
from gt.client.record.recorder import Recorder, apply, recorder, unary
from gt.client.tensor import Alias, Cell, Leaf, Tensor
from gt.errors import AutogradError, ShapeError
from gt.ops import TABLE


def copied(t: Tensor) -> Value:
    """The tensor's value, for a copy of it: values never change, so nothing need be computed."""
    value = t._v or read(t)
    value.copied = True
    return value


def cells_of(value: Value) -> int:
    """The number of tensors and cells that have this value now."""
    if not value.copied:
        return 1
    holders = gc.get_referrers(value)
    return sum(h.value is value if type(h) is Cell else isinstance(h, Tensor) and h._v is value for h in holders)


def cell_of(t: Tensor) -> Cell:
    """The tensor's cell, up to date; it gets one if it had none."""
    alias = t._x
    if alias is None:
        assert t._v is not None
        t._x = alias = Alias(Cell(t._v))
        t._v = None
    elif alias.base is not None:
        read(t)
    return alias.cell


def root_cell(t: Tensor) -> Cell:
    """The cell of what this tensor is a view of, or its own."""
    while t._x is not None and t._x.base is not None:
        t = t._x.base
    return cell_of(t)


def take(kind: Kind, base: Tensor, args: tuple[Any, ...] = (), several: bool = False) -> Any:
    """Record a view op; its results (`several`: more than one) are views of `base`."""
    version, grad = cell_of(base).version, recorder().grad
    out: Any = apply(kind, (base, *args)) if args or several else unary(kind, base)
    under = base._x
    for i, t in enumerate(out if type(out) is tuple else (out,)):
        t._x = Alias(Cell(t._v), base, under, version, kind, args, i, grad)
        t._v = None
    return out


def reshaped(base: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A view in another shape, also where torch's reshape would copy because of strides."""
    return take(kinds.reshape[shape], base)


def read(t: Tensor) -> Value:
    """The value of a tensor that has an Alias."""
    alias: Alias = t._x  # type: ignore[assignment]  # asked for only where `_v` is None
    base = alias.base
    if base is not None:
        if base._x is not alias.under:
            base = _stay(alias)
        version = cell_of(base).version
        if version != alias.seen:
            assert alias.kind is not None
            with set_grad(alias.grad):
                again = apply(alias.kind, (base, *alias.args))
            if type(again) is tuple:
                again = again[alias.part]
            if version != alias.seen:  # or another thread has taken it meanwhile
                alias.cell.value = again._v
                alias.cell.version += 1
                alias.seen = version
                if type(t._fn) is not Leaf:  # a parameter on the memory of a larger tensor stays a leaf
                    t._fn = again._fn
    return alias.cell.value


def _stay(alias: Alias) -> Tensor:
    """The base of a view was moved to other memory (`adopt`): give the view a base on the old memory."""
    assert alias.under is not None
    assert alias.base is not None
    alias.base = base = Tensor(alias.under.cell.value, alias.base._fn)  # its gradient still goes where it went
    base._v, base._x = None, alias.under
    return base


def write(t: Tensor, new: Tensor) -> None:
    """Rebind the tensor, in place, to `new`, which has its shape and dtype."""
    rec = recorder()
    if rec.grad:
        if type(t._fn) is Leaf:
            raise AutogradError(
                "a leaf tensor that requires grad cannot be written in place; use gt.no_grad(), or write to .data"
            )
    old = t._v or read(t)
    alias = t._x
    # As in torch, what was written over still requires grad, with a gradient of zeros.
    bare = rec.grad and t._fn is not None and new._fn is None
    if (bare or _may_change_layout(rec, old)) and (alias is None or alias.base is None):
        new = apply(kinds.assign, (t, new))
    if rec.pending.pins:
        new = _keep_layout(rec.pending, old, new)
    value = new._v or read(new)
    _note_replaced(rec.pending, old, value)
    if rec.trace is not None and (alias is None or alias.base is None):
        rec.trace.wrote(t, old)
    if alias is None:
        t._v = value
    else:
        base = alias.base
        if base is not None:
            write(base, _put(alias, base, new))
            alias.seen = cell_of(base).version
            if bare:
                alias.seen, alias.grad = -1, True  # its history is the base's: take it again when it is read
        alias.cell.value = value
        alias.cell.version += 1
    if rec.grad:
        t._fn = new._fn


def replace(rec: Recorder, t: Tensor, value: Value) -> None:
    """`write`, of a value without history, while none is recorded."""
    alias = t._x
    if rec.session.meshes.several or rec.trace is not None or (alias is not None and alias.base is not None):
        write(t, Tensor(value))
        return
    if alias is None:
        old: Any = t._v
        t._v = value
    else:
        cell = alias.cell
        old, cell.value = cell.value, value
        cell.version += 1
    _note_replaced(rec.pending, old, value)


def _may_change_layout(rec: Recorder, old: Value) -> bool:
    """Whether what is written was not made of `old` by the last op. On several workers it may then have another layout;
    but a tensor that is written to keeps its layout, so `old` has to be part of the program."""
    if not rec.session.meshes.several:
        return False
    p = rec.pending
    ref = old.num if old.owner is p else p.inputs.get(old)
    return ref is None or ref not in p.node.refs


def _keep_layout(p: Pending, old: Value, new: Tensor) -> Tensor:
    """`new`, which is written over `old`, with the layout that the user gave to `old` in this very program. (An input
    of the program has its layout already.) If the user gave a layout to `new`, that one holds."""
    told = p.pins.get(old.num) if old.owner is p else None
    value = new._v or read(new)
    if told is None or (value.owner is p and value.num in p.pins):
        return new
    return pinned(new, told)


def pinned(t: Tensor, layout: str) -> Tensor:
    """The same tensor with a layout that `sharding.layout_text` returned."""
    made = unary(kinds.shard[layout], t)
    value = made._v or read(made)
    if layout and value.owner is not None:
        value.owner.pins[value.num] = layout
    return made


def _put(alias: Alias, base: Tensor, new: Tensor) -> Tensor:
    """The base of a view after `new` was written to it."""
    assert alias.kind is not None
    op = alias.kind.op
    if op.put is not None:
        return op.put(base, new, alias.part, *alias.args, **alias.kind.attrs)
    if new.numel() != base.numel():
        raise ShapeError(
            f"a tensor of shape {new.shape}, expanded from {base.shape}, cannot be written in place: "
            "several of its elements share memory; write to a clone() of it"
        )
    return TABLE["reshape"](new, shape=base.shape)


def _note_replaced(p: Pending, old: Value, new: Value) -> None:
    """If the call fails, `new` gets the value of `old` again: note which input that is."""
    if new.owner is not p or old.spec is not new.spec:
        return
    if old.owner is p:
        new.replaces = old.replaces
    else:
        ref = p.inputs.get(old)
        new.replaces = None if ref is None else ~ref


def share(t: Tensor) -> Tensor:
    """Another tensor on the same memory, without history: what detach() returns."""
    cell = cell_of(t)
    alias = t._x
    assert alias is not None
    twin = Tensor(cell.value, None)
    twin._v = None
    if alias.base is None:
        twin._x = Alias(cell)
    else:
        base = share(alias.base)
        version = cell_of(base).version
        twin._x = Alias(Cell(cell.value), base, base._x, version, alias.kind, alias.args, alias.part)
    return twin


def adopt(t: Tensor, other: Tensor) -> None:
    """`t.data = other`: move t to the memory of other. Tensors that shared memory with t stay where they are."""
    if recorder().trace is not None:
        rebind(t, copied(other))  # a replay sets values, not who shares with whom
        return
    if _on_same_memory(t, other):
        return  # as `t.data -= x` ends: views of t stay views of it
    t._x = share(other)._x
    t._v = None


def _on_same_memory(t: Tensor, other: Tensor) -> bool:
    """Whether one was made of the other by `share`, and neither has moved since."""
    a, b = t._x, other._x
    if a is None or b is None:
        return False
    if a.base is None or b.base is None:
        return a.base is b.base and a.cell is b.cell
    taken = (a.kind, a.args, a.part) == (b.kind, b.args, b.part)
    return taken and a.base._x is a.under and b.base._x is b.under and _on_same_memory(a.base, b.base)


def rebind(t: Tensor, value: Value) -> None:
    """Point the tensor, and all that share its cell, to another value."""
    rec = recorder()
    if rec.trace is not None:
        rec.trace.wrote(t, t._v or read(t))
    if t._x is None:
        t._v = value
    else:
        t._x.base = None
        t._x.cell.value = value
        t._x.cell.version += 1
