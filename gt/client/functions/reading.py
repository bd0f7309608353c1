"""Printing tensors in torch's format."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np

from gt.client.compat.checks import one_of
from gt.client.programs import hosted
from gt.client.programs.pending import Value, keep
from gt.client.record.recorder import Recorder, recorder
from gt.client.tensor import Tensor, default_dtype
from gt.errors import ArgumentError, AutogradError, GTError, ShapeError

__all__ = ["set_printoptions"]
METHODS = [
    "__array__", "__bool__", "__complex__", "__float__", "__format__", "__index__", "__int__", "__reduce_ex__",
    "__repr__", "_fetch", "item", "numpy", "tolist",
]  # fmt: skip


def numpy(self: Tensor, *, force: bool = False) -> np.ndarray[Any, Any]:
    """The data as a numpy array of its own; force: also if it requires grad. Waits for it."""
    if self._fn is not None and not force:
        raise AutogradError("numpy() of a tensor that requires grad; use tensor.detach().numpy()")
    return self._fetch()


def _fetch(self: Tensor) -> np.ndarray[Any, Any]:
    rec = recorder()
    rec.refuse_sync()
    return _data(rec, self)


def _data(rec: Recorder, t: Tensor, index: bool = False) -> np.ndarray[Any, Any]:
    """The data of a tensor, for reading: computed here from what is known, or fetched. `index`: see `_computed`."""
    v = t._v or t._read()
    alias = t._x
    if v.host is not None or rec.session.on_paper or (alias is None and v.spec.dtype.is_differentiable):
        return rec.session.fetch(v)  # of what is rounded there is one computation, the worker's
    if _computed(rec, v, index):
        return rec.session.fetch(v)
    if alias is None or alias.base is None or not hosted.small_view(alias.base._spec, v.spec, alias.kind, alias.args):
        if not _computed(rec, v, index, fetching=True):
            return rec.session.fetch(v)
    else:  # other parts of what it is a view of will be read too
        reported = rec.session.reported
        try:
            whole = _data(rec, alias.base)
        except GTError:
            if rec.session.reported > reported:
                raise  # a call failed, which the user has not been told yet
            return rec.session.fetch(v)  # the rest of the base is lost
        base = alias.base._v or alias.base._read()
        keep(base, whole, whole=True)
        if v.host is None and not _computed(rec, v, index):
            assert alias.kind is not None
            v.host = hosted.view(alias.kind, base.spec, base.host, alias.args)[alias.part]
    return rec.session.fetch(v)


def _computed(rec: Recorder, v: Value, index: bool, fetching: bool = False) -> bool:
    """Compute a pending value here; False if it cannot be, or not without `fetching` something.

    An `index` becomes part of what is recorded next, and the program goes on as if it had been a Python number. Other
    reads end it: Python will do one thing or another."""
    p = rec.pending
    steps = hosted.steps_to(p, v, fetching) if v.owner is p else None
    if steps is None or (steps.missing and not fetching):
        return False
    for missing in steps.missing:
        missing.host = rec.session.fetch(missing)
    if v.owner is not p or rec.pending is not p:
        return False  # the timer has ended it meanwhile
    hosted.compute(p, steps)
    if index:
        hosted.take_back(p)
    else:
        rec.settle()
    return True


def known_data(tensors: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    """The data of tensors that the host knows or has given, and that no gradient needs; empty if there is another among
    them."""
    rec = recorder()
    if rec.tracing or rec.session.meshes.several or rec.session.on_paper:
        return []
    known = []
    for t in tensors:
        data = _known(t) if isinstance(t, Tensor) and t._fn is None else None
        if data is None:
            return []
        known.append(data)
    return known


def _known(t: Tensor) -> np.ndarray[Any, Any] | None:
    """The data of a tensor, if the host knows it or has given it, or what it is a view of."""
    v, alias = t._v or t._read(), t._x
    if v.host is not None:
        return v.host
    if v.given is None and alias is not None and (base := alias.base) is not None:
        if hosted.small_view(base._spec, v.spec, alias.kind, alias.args) and (data := _known(base)) is not None:
            assert alias.kind is not None
            v.given = hosted.view(alias.kind, base._spec, data, alias.args)[alias.part]
    return v.given


def between_programs(tensors: Sequence[Any]) -> bool:
    """Whether no program is begun, and these tensors have no history: an op on them may be a program of its own."""
    rec = recorder()
    p = rec.pending
    if rec.tracing or rec.session.on_paper or (p.end is None and p.node.depth):
        return False
    return all(isinstance(t, Tensor) and t._fn is None for t in tensors)


def item(self: Tensor) -> Any:
    """The only element, as a Python number. Waits for it."""
    if self._spec.size != 1:
        raise ShapeError(f"item: expected a tensor of one element, got shape {self.shape}")
    rec = recorder()
    rec.refuse_sync()
    return _data(rec, self).reshape(()).item()


def tolist(self: Tensor) -> Any:
    """The data as nested lists of Python numbers. Waits for it."""
    return self._fetch().tolist()


def __array__(self: Tensor, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
    if copy is False:
        raise ValueError("copy=False: the data of a tensor is on a worker, so an array of it is always a copy")
    data = self.numpy()
    return data if dtype is None else data.astype(dtype)


def _single(self: Tensor) -> Any:
    """The only element, for float() and the like, which raise another error than item(), as in torch."""
    if self._spec.size != 1:
        raise ArgumentError(f"only a tensor of one element can become a number, got shape {self.shape}")
    return self.item()


def __float__(self: Tensor) -> float:
    return float(_single(self))


def __complex__(self: Tensor) -> complex:
    return complex(_single(self))


def __int__(self: Tensor) -> int:
    return int(_single(self))


def __index__(self: Tensor) -> int:
    if self.dtype.is_differentiable or self._spec.size != 1:
        raise TypeError(
            f"index: expected an integer tensor of one element, got {self.dtype.name} of shape {self.shape}"
        )
    rec = recorder()
    rec.refuse_sync()
    return int(_data(rec, self, index=True).reshape(()).item())


def __bool__(self: Tensor) -> bool:
    if self._spec.size != 1:
        count = "several elements" if self._spec.size else "no elements"
        raise ShapeError(f"the truth of a tensor with {count} is ambiguous; use any() or all()")
    return bool(self.item())


def __repr__(self: Tensor) -> str:
    try:
        data = self._fetch()
    except GTError as e:
        return f"<tensor {self._spec!r}: {e}>"
    suffixes = []
    if self.grad_fn is not None:
        suffixes.append(f"grad_fn=<{self.grad_fn.name()}>")
    elif self.requires_grad:
        suffixes.append("requires_grad=True")
    return tensor_text(data, self.dtype.name, suffixes)


def __format__(self: Tensor, form: str) -> str:
    number = not self.shape or (form and self._spec.size == 1)
    return format(self.item(), form) if number else repr(self)


def __reduce_ex__(self: Tensor, protocol: Any) -> NoReturn:
    raise TypeError("a GT tensor cannot be pickled; use gt.save(), or pickle tensor.numpy()")


# --- as text -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Options:
    """The options of set_printoptions()."""

    precision: int = 4  #: Digits after the decimal point.
    threshold: int = 1000  #: Tensors with more elements are summarized.
    edgeitems: int = 3  #: Elements that a summary shows at each end of a dimension.
    linewidth: int = 80
    sci_mode: bool | None = None  #: Scientific notation; None: if the range of the numbers is large.


_PROFILES = {"default": Options(), "short": Options(precision=2, edgeitems=2), "full": Options(threshold=2**63)}
_set = [Options()]  #: One entry: the current options.


def set_printoptions(
    precision: int | None = None, threshold: int | None = None, edgeitems: int | None = None,
    linewidth: int | None = None, profile: str | None = None, sci_mode: bool | None = None,
) -> None:  # fmt: skip
    """Set how tensors are printed. Options that are not given keep their value; sci_mode=None chooses automatically."""
    one_of("set_printoptions", "profile", profile, None, *_PROFILES)
    given = {"precision": precision, "threshold": threshold, "edgeitems": edgeitems, "linewidth": linewidth}
    options = _PROFILES[profile] if profile is not None else _set[0]
    threshold = given["threshold"] = None if threshold is None else int(min(threshold, 2**63))
    _set[0] = replace(options, sci_mode=sci_mode, **{k: v for k, v in given.items() if v is not None})


def tensor_text(data: np.ndarray[Any, Any], dtype: str, suffixes: list[str]) -> str:
    """The text of a tensor, such as `tensor([1., 2.])`, with suffixes after the numbers.

    >>> tensor_text(np.array([1.0, 2.5]), "float32", [])
    'tensor([1.0000, 2.5000])'
    """
    prefix = "tensor("
    usual = default_dtype()
    if dtype not in ((usual.name,) if data.size == 0 else (usual.name, usual.to_complex().name, "int64", "bool")):
        suffixes = [f"dtype=gt.{dtype}", *suffixes]
    if data.size == 0:
        text = "[]"
        if data.ndim != 1:
            suffixes = [f"size={tuple(data.shape)}", *suffixes]
    else:
        wide = data.astype(np.float64) if dtype in ("bfloat16", "float16") or dtype.startswith("float8") else data
        shown = _edges(wide) if data.size > _set[0].threshold else wide
        form = _ComplexFormat(shown) if data.dtype.kind == "c" else _Format(shown)
        text = _block(wide, form, len(prefix), data.size > _set[0].threshold)
    text = prefix + text
    last = len(text) - text.rfind("\n") - 1
    for suffix in suffixes:
        if last + len(suffix) + 2 > _set[0].linewidth:
            text += ",\n" + " " * len(prefix) + suffix
            last = len(prefix) + len(suffix)
        else:
            text += ", " + suffix
            last += len(suffix) + 2
    return text + ")"


class _Format:
    """The format of a tensor's numbers: the same notation and width for all of them."""

    def __init__(self, data: np.ndarray[Any, Any]) -> None:
        self.real = data.dtype.kind not in "iub"
        self.whole = self.scientific = False
        flat = data.reshape(-1)
        if self.real:
            flat = flat[np.isfinite(flat) & (flat != 0)]  # these determine the notation and the width
            sizes = np.abs(flat.astype(np.float64))
            if sizes.size:
                self.whole = bool(np.all(sizes == np.ceil(sizes)))
                big, small = float(sizes.max()), float(sizes.min())
                self.scientific = big / small > 1000.0 or big > 1e8 or (not self.whole and small < 1e-4)
                if _set[0].sci_mode is not None:
                    self.scientific = _set[0].sci_mode
            else:
                self.whole = True
        self.width = max((len(self._bare(x)) for x in flat.tolist()), default=1)

    def _bare(self, x: Any) -> str:
        if not self.real or not math.isfinite(x):
            return str(x)
        if self.scientific:
            return f"{x:.{_set[0].precision}e}"
        return f"{x:.0f}." if self.whole else f"{x:.{_set[0].precision}f}"

    def __call__(self, x: Any) -> str:
        return self._bare(x).rjust(self.width)


class _ComplexFormat:
    """The same for complex numbers: one format for the real and one for the imaginary parts."""

    def __init__(self, data: np.ndarray[Any, Any]) -> None:
        self.real, self.imag = _Format(data.real), _Format(data.imag)
        self.width = self.real.width + self.imag.width + 1

    def __call__(self, x: Any) -> str:
        imag = self.imag(x.imag).lstrip() + "j"
        return self.real(x.real) + (imag if imag[0] in "+-" else "+" + imag)


_AnyFormat = _Format | _ComplexFormat


def _edges(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The elements that a summary shows."""
    edge = _set[0].edgeitems
    for d in range(x.ndim):
        if x.shape[d] > 2 * edge:
            x = np.concatenate([x.take(range(edge), d), x.take(range(x.shape[d] - edge, x.shape[d]), d)], d)
    return x


def _block(x: np.ndarray[Any, Any], form: _AnyFormat, indent: int, short: bool) -> str:
    if x.ndim == 0:
        return form(x.item())
    if x.ndim == 1:
        return _row(x, form, indent, short)
    edge = _set[0].edgeitems
    if short and x.shape[0] > 2 * edge:
        parts = [_block(r, form, indent + 1, short) for r in x[:edge]]
        parts += ["..."]
        parts += [_block(r, form, indent + 1, short) for r in x[-edge:]]
    else:
        parts = [_block(r, form, indent + 1, short) for r in x]
    return "[" + ("," + "\n" * (x.ndim - 1) + " " * (indent + 1)).join(parts) + "]"


def _row(x: np.ndarray[Any, Any], form: _AnyFormat, indent: int, short: bool) -> str:
    per_line = max(1, (_set[0].linewidth - indent) // (form.width + 2))
    edge = _set[0].edgeitems
    if short and x.size > 2 * edge:
        words = [form(v) for v in x[:edge].tolist()] + [" ..."] + [form(v) for v in x[-edge:].tolist()]
    else:
        words = [form(v) for v in x.tolist()]
    lines = [", ".join(words[i : i + per_line]) for i in range(0, len(words), per_line)]
    return "[" + (",\n" + " " * (indent + 1)).join(lines) + "]"
