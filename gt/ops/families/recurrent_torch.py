"""torch's kernels of the recurrent ops: cuDNN on CUDA, oneDNN for an LSTM on the CPU, and steps by hand for the rest
(recurrent_steps.py).

Each way is a pair of functions. The first makes the results of an op and a list of tensors, `kept`; the second makes
gradients of them. A program that has both ops runs the pair; a gradient op alone runs both halves (`Op.resumes`).

Law 1: `kept` has one reader, which may overwrite it; it shares no memory with operands or results.
Law 2: no generator is used and no value is read on the host: all of it can be captured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gt import dtypes
from gt.ops.families.norm import NARROW
from gt.ops.families.recurrent_form import LayerForm, form_of
from gt.ops.families.recurrent_steps import KINDS, Weights
from gt.ops.record import Site

Tensors = Sequence[Any]
_MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}  #: torch's numbers


class Implementation(NamedTuple):
    """One implementation of a use of an op."""

    forward: Callable[..., tuple[list[Any], list[Any]]]  #: (operands) -> results, kept
    backward: Callable[..., list[Any]]  #: (gradients of the results, operands, results, kept) -> gradients


def forward(mode: str) -> Callable[..., Any]:
    """The kernel of an op."""

    def make(torch: Any, site: Site, **attrs: Any) -> Any:
        way = _choose(torch, site, form_of(mode, *site.specs, **attrs))
        return lambda *operands: tuple(way.forward(operands)[0])

    return make


def backward(mode: str) -> Callable[..., Any]:
    """The kernel of its gradient op."""

    def make(torch: Any, site: Site, **attrs: Any) -> Any:
        n = len(site.specs) - len(site.results)  # gradients come first, and each operand has a gradient
        own = Site(site.device, site.specs[n:], ())
        way = _choose(torch, own, form_of(mode, *own.specs, **attrs))

        def run(*operands: Any) -> Any:
            results, kept = way.forward(operands[n:])
            return tuple(way.backward(operands[:n], operands[n:], results, kept))

        return run

    return make


def pair(mode: str) -> Callable[..., Any]:
    """Both, where the second goes on with what the first has computed."""

    def make(torch: Any, site: Site, **attrs: Any) -> Any:
        form = form_of(mode, *site.specs, **attrs)
        way, n, m = _choose(torch, site, form), 1 + form.states, len(site.specs)

        def first(*operands: Any) -> Any:
            results, kept = way.forward(operands)
            return (*results, kept)

        def then(*operands: Any) -> Any:
            *results, kept = operands[n + m :]
            return tuple(way.backward(operands[:n], operands[n : n + m], results, kept))

        return first, then

    return make


def _choose(torch: Any, site: Site, form: LayerForm) -> Implementation:
    dtype = site.specs[0].dtype
    if site.device != "cpu":
        usable = form.batch and torch.backends.cudnn.is_available() and torch.backends.cudnn.enabled
        return _cudnn(torch, form) if usable else _widened(torch, _by_hand(torch, form), dtype)
    way = _onednn(torch, form) if _has_onednn(torch, form, dtype) else _by_hand(torch, form)
    return _widened(torch, way, dtype)


def _widened(torch: Any, way: Implementation, dtype: Any) -> Implementation:
    """Narrow numbers are computed in float32 and rounded once."""
    if dtype not in NARROW:
        return way
    own = getattr(torch, dtype.name)

    def forward(operands: Tensors) -> tuple[list[Any], list[Any]]:
        results, kept = way.forward([x.float() for x in operands])
        return [y.to(own) for y in results], [*kept, *results]

    def backward(g: Tensors, operands: Tensors, results: Tensors, kept: Tensors) -> list[Any]:
        n = len(results)
        grads = way.backward([d.float() for d in g], [x.float() for x in operands], kept[-n:], kept[:-n])
        return [d.to(own) for d in grads]

    return Implementation(forward, backward)


# -- cuDNN: all layers at once ---------------------------------------------------------------


def _cudnn(torch: Any, form: LayerForm) -> Implementation:
    f, df, n = torch.ops.aten._cudnn_rnn.default, torch.ops.aten._cudnn_rnn_backward.default, 1 + form.states
    size = form.hidden, form.out if form.projected else 0, form.layers
    #: Not batch first; dropout 0; training, as cuDNN keeps what backward needs only then.
    about = (_MODES[form.mode], *size, False, 0.0, True, form.directions == 2, list(form.packed), None)

    def ready(operands: Tensors) -> tuple[Any, Any, Any, list[Any]]:
        x, h, *rest = (t.contiguous() for t in operands)
        return x, h, rest[0] if n == 3 else None, rest[n - 2 :]

    def forward(operands: Tensors) -> tuple[list[Any], list[Any]]:
        x, h, c, weights = ready(operands)
        y, hn, cn, reserve, flat = f(x, weights, form.each, None, h, c, *about)
        return [y, hn, cn][:n], [reserve, flat]

    def backward(g: Tensors, operands: Tensors, results: Tensors, kept: Tensors) -> list[Any]:
        x, h, c, weights = ready(operands)
        gy, gh, *gc = (d.to(x.dtype).contiguous() for d in g)
        given = results[0].contiguous(), gy, gh, gc[0] if gc else None
        reserve, flat = kept
        dx, dh, dc, dweights = df(
            x, weights, form.each, flat, h, c, *given, *about, reserve, [True, True, form.states == 2, True]
        )
        # They may be views of one buffer, which would live as long as any of them.
        return [*[dx, dh, dc][:n], *(d.clone() for d in dweights)]

    return Implementation(forward, backward)


# -- oneDNN: an LSTM, a layer and direction at a time ----------------------------------------


def _has_onednn(torch: Any, form: LayerForm, dtype: Any) -> bool:
    if form.mode != "lstm" or form.packed or form.projected or not (form.batch and form.inputs):
        return False
    return (dtype is dtypes.float32 or dtype in NARROW) and bool(torch.backends.mkldnn.is_available())


def _onednn(torch: Any, form: LayerForm) -> Implementation:
    f, df = torch.ops.aten.mkldnn_rnn_layer.default, torch.ops.aten.mkldnn_rnn_layer_backward.default
    empty: list[int] = []
    both, last, rows = form.directions == 2, form.layers - 1, 4 * form.hidden

    def of(operands: Tensors, k: int) -> tuple[Any, ...]:
        """The weights and the first state of the k-th layer and direction."""
        mine = operands[3 + k * form.each : 3 + (k + 1) * form.each]
        if not form.bias:
            mine = *mine, *[operands[0].new_zeros(rows)] * 2
        return *[w.contiguous() for w in mine], operands[1][k : k + 1], operands[2][k : k + 1]

    def forward(operands: Tensors) -> tuple[list[Any], list[Any]]:
        x = operands[0].contiguous()
        kept: list[Any] = []
        lasts: list[Any] = []
        for layer in range(form.layers):
            ys = []
            for d in range(form.directions):
                mine = of(operands, len(lasts))
                with torch.enable_grad():  # without it, as in a compiled library, torch keeps nothing for backward
                    y, h, c, space = f(x, *mine, d == 1, empty, 2, form.hidden, 1, True, False, False, True)
                ys.append(y)
                lasts.append((h, c))
                # The result of the last layer is a result of the op, unless two make it.
                kept += [h, c, space] if layer == last and not both else [h, c, space, y]
            x = torch.cat(ys, 2) if both else ys[0]
            if both and layer < last:
                kept.append(x)
        return [x, *(torch.cat(s) for s in zip(*lasts, strict=True))], kept

    def backward(g: Tensors, operands: Tensors, results: Tensors, kept: Tensors) -> list[Any]:
        gy, gh, gc = (d.contiguous() for d in g)
        inputs, parts, at = [operands[0].contiguous()], [], 0
        for layer in range(form.layers):
            for _ in range(form.directions):
                have = kept[at : at + 4] if layer < last or both else (*kept[at : at + 3], results[0])
                parts.append(have)
                at += 4
            if layer < last:
                inputs.append(kept[at] if both else parts[-1][3])
                at += both
        grads: list[list[Any]] = [[] for _ in parts]
        firsts: list[Any] = [None] * len(parts)
        for layer in reversed(range(form.layers)):
            x, dx = inputs[layer], None
            for d in range(form.directions):
                k = layer * form.directions + d
                *weights, h, c = of(operands, k)
                hn, cn, space, y = parts[k]
                mine = gy[:, :, d * form.hidden : (d + 1) * form.hidden].contiguous() if both else gy
                states = y, hn, cn, mine, gh[k : k + 1], gc[k : k + 1]
                made = df(x, *weights, h, c, *states, d == 1, 2, form.hidden, 1, True, True, False, empty, False, space)
                dx = made[0] if dx is None else dx.add_(made[0])
                # Both biases have the same gradient, in one tensor.
                grads[k] = [*made[1:3], *((made[3], made[4].clone()) if form.bias else ())]
                firsts[k] = made[5:7]
            gy = dx
        return [gy, *(torch.cat(s) for s in zip(*firsts, strict=True)), *(d for each in grads for d in each)]

    return Implementation(forward, backward)


# -- by hand ---------------------------------------------------------------------------------


def _by_hand(torch: Any, form: LayerForm) -> Implementation:
    layer, wide = KINDS[form.mode](torch, form), form.out * form.directions

    def of(operands: Tensors, k: int) -> Weights:
        ih, hh, *more = operands[1 + form.states + k * form.each :][: form.each]
        b_ih, b_hh = more[:2] if form.bias else (None, None)
        return Weights(ih, hh, b_ih, b_hh, more[-1] if form.projected else None)

    def states(operands: Tensors, k: int) -> tuple[Any, ...]:
        return tuple(s[k] for s in operands[1 : 1 + form.states])

    def forward(operands: Tensors) -> tuple[list[Any], list[Any]]:
        x = operands[0].reshape(form.steps, form.inputs)
        kept: list[Any] = []
        lasts: list[Any] = []
        for number in range(form.layers):
            ys = []
            for d in range(form.directions):
                k = len(lasts)
                y, last, mine = layer.forward(x, states(operands, k), of(operands, k), d == 1)
                ys.append(y)
                lasts.append(last)
                kept += mine
            x = torch.cat(ys, 1) if len(ys) > 1 else ys[0]
            if number < form.layers - 1:
                kept.append(x)
        y = x.view(*operands[0].shape[:-1], wide)
        return [y, *(torch.stack(s) for s in zip(*lasts, strict=True))], kept

    def backward(g: Tensors, operands: Tensors, results: Tensors, kept: Tensors) -> list[Any]:
        each = layer.keeps * form.directions + 1  # of a layer; its result is last
        outs = [*[kept[(k + 1) * each - 1] for k in range(form.layers - 1)], results[0].reshape(form.steps, wide)]
        gy = g[0].reshape(form.steps, wide)
        n = form.layers * form.directions
        grads: list[list[Any]] = [[] for _ in range(n)]
        firsts: list[Any] = [None] * n
        for number in reversed(range(form.layers)):
            x = outs[number - 1] if number else operands[0].reshape(form.steps, form.inputs)
            dx = None
            for d in range(form.directions):
                k = number * form.directions + d
                mine = kept[number * each + d * layer.keeps :][: layer.keeps]
                part = slice(d * form.out, (d + 1) * form.out)
                incoming = gy[:, part], *(s[k] for s in g[1:])
                a, firsts[k], grads[k] = layer.backward(
                    incoming, x, states(operands, k), of(operands, k), outs[number][:, part], mine, d == 1
                )
                dx = a if dx is None else dx.add_(a)
            gy = dx
        first = [torch.stack(s) for s in zip(*firsts, strict=True)]
        return [gy.view(operands[0].shape), *first, *(d for each in grads for d in each)]

    return Implementation(forward, backward)
