"""Recurrent layers by hand in torch: one layer in one direction, forward and backward, step by step.

The inputs are multiplied by their weight for all steps at once, and so are the gradients of the weights. What is left
for each step is one product with the state and a few elementwise functions, which write where the result is kept. In
backward everything but the incoming gradient is multiplied for all steps at once first (`factor`): a step multiplies it
by the gradient, and that by the weight.

x and all results are rows: the steps of all sequences, one step after the other. A state has a row for each sequence. A
step works on its first rows, the sequences that are long enough: in time the others have ended and keep their last
state, in reverse they have not begun and have their first one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from gt.ops.families.recurrent_form import LayerForm

States = tuple[Any, ...]  #: (h,) or (h, c)


class Weights(NamedTuple):
    """The weights of one layer in one direction; None for one that the layer does not have."""

    ih: Any
    hh: Any
    bias_ih: Any
    bias_hh: Any
    hr: Any


class Steps:
    """What all kinds of layers share."""

    keeps = 0  #: The tensors that `forward` keeps for `backward`.

    def __init__(self, torch: Any, form: LayerForm) -> None:
        self.torch, self.form = torch, form
        begins = [0, *accumulate(form.sizes)]
        self.rows = [slice(a, b) for a, b in pairwise(begins)]  #: Of each step.

    def forward(self, x: Any, first: States, w: Weights, backwards: bool) -> tuple[Any, States, list[Any]]:
        """The rows of h, the last state, and what is kept."""
        raise NotImplementedError

    def backward(
        self, g: States, x: Any, first: States, w: Weights, y: Any, kept: Sequence[Any], backwards: bool
    ) -> tuple[Any, States, list[Any]]:
        """The gradients of x, the first state and the weights there are; `g` are those of y and the last state."""
        raise NotImplementedError

    # --- parts ---------------------------------------------------------------------------------------------------

    def steps(self, backwards: bool) -> list[tuple[int, slice]]:
        """The number of sequences and the rows of each step, in the order of computation."""
        return list(zip(self.form.sizes, self.rows, strict=True))[:: -1 if backwards else 1]

    def product(self, x: Any, weight: Any, bias: Any = None) -> Any:
        """Of rows and a weight."""
        return self.torch.mm(x, weight.t()) if bias is None else self.torch.addmm(bias, x, weight.t())

    def advance(self, state: Any, new: Any) -> Any:
        """The state after a step that has made these rows of it."""
        if not self.form.packed:
            return new
        state[: new.shape[0]] = new
        return state

    def begin(self, first: Any) -> Any:
        return first.clone() if self.form.packed else first

    def before(self, first: Any, rows: Any, backwards: bool) -> Any:
        """The state before each step, in rows, from the rows of the states after."""
        cat, n = self.torch.cat, self.form.batch
        if not self.form.packed:
            return cat([rows[n:], first] if backwards else [first, rows[: rows.shape[0] - n]])
        made: list[list[Any]] = []
        state, have = None, 0
        for size, at in self.steps(backwards):
            known = min(have, size)
            made.append(([] if state is None else [state[:known]]) + [first[known:size]])
            state, have = rows[at], size
        return cat([part for parts in (made[::-1] if backwards else made) for part in parts])

    def of_weights(self, d: Any, dh: Any, x: Any, before: Any, w: Weights) -> list[Any]:
        """The gradients of the weights, given those of the products with x and with the state."""
        both = d is dh
        made = [d.t() @ x, dh.t() @ before]
        if w.bias_ih is not None:
            sums = d.sum(0)
            made += [sums, sums.clone() if both else dh.sum(0)]
        return made


class _Plain(Steps):
    """h = f(w_ih x + w_hh h)."""

    def forward(self, x: Any, first: States, w: Weights, backwards: bool) -> tuple[Any, States, list[Any]]:
        torch, relu = self.torch, self.form.mode == "rnn_relu"
        y, turned = self.product(x, w.ih, None if w.bias_ih is None else w.bias_ih + w.bias_hh), w.hh.t()
        h = self.begin(first[0])
        for size, at in self.steps(backwards):
            a = y[at].addmm_(h[:size], turned)
            h = self.advance(h, torch.relu_(a) if relu else a.tanh_())
        return y, (h,), []

    def backward(
        self, g: States, x: Any, first: States, w: Weights, y: Any, kept: Sequence[Any], backwards: bool
    ) -> tuple[Any, States, list[Any]]:
        torch = self.torch
        factor = (y > 0).to(y.dtype) if self.form.mode == "rnn_relu" else 1 - y * y
        d, dh = torch.empty_like(factor), g[1].clone()
        for size, at in reversed(self.steps(backwards)):
            now = torch.add(g[0][at], dh[:size], out=d[at]).mul_(factor[at])
            torch.mm(now, w.hh, out=dh[:size])
        return d @ w.ih, (dh,), self.of_weights(d, d, x, self.before(first[0], y, backwards), w)


class _GRU(Steps):
    """r, z = sigmoid(w x + w h), n = tanh(w x + r * (w h)), h = n + z * (h - n). Kept: r, z, n; the products with h."""

    keeps = 2

    def forward(self, x: Any, first: States, w: Weights, backwards: bool) -> tuple[Any, States, list[Any]]:
        torch, n = self.torch, self.form.hidden
        gates, turned = self.product(x, w.ih, w.bias_ih), w.hh.t()
        products, y = torch.empty_like(gates), x.new_empty(x.shape[0], n)
        h = self.begin(first[0])
        for size, at in self.steps(backwards):
            a, p, now = gates[at], products[at], h[:size]
            torch.mm(now, turned, out=p) if w.bias_hh is None else torch.addmm(w.bias_hh, now, turned, out=p)
            rz, new = a[:, : 2 * n], a[:, 2 * n :]
            rz.add_(p[:, : 2 * n]).sigmoid_()
            new.addcmul_(rz[:, :n], p[:, 2 * n :]).tanh_()
            h = self.advance(h, torch.lerp(new, now, rz[:, n:], out=y[at]))
        return y, (h,), [gates, products]

    def backward(
        self, g: States, x: Any, first: States, w: Weights, y: Any, kept: Sequence[Any], backwards: bool
    ) -> tuple[Any, States, list[Any]]:
        torch, n, (gates, products) = self.torch, self.form.hidden, kept
        before = self.before(first[0], y, backwards)
        r, z, new = gates.split(n, 1)
        by_new = (1 - z).mul_(1 - new * new)  # the gradient of what tanh is taken of, for each of h
        factor = gates.new_empty(gates.shape[0], 3, n)
        torch.mul(by_new, r, out=factor[:, 2])  # of the product with h in it
        torch.mul(factor[:, 2], products[:, 2 * n :], out=factor[:, 0]).mul_(1 - r)
        torch.mul(before - new, z, out=factor[:, 1]).mul_(1 - z)
        d, dhs, dh = torch.empty_like(factor), torch.empty_like(by_new), g[1].clone()
        for size, at in reversed(self.steps(backwards)):
            now, incoming = d[at], torch.add(g[0][at], dh[:size], out=dhs[at])
            torch.mul(factor[at], incoming.unsqueeze(1), out=now)
            torch.mul(incoming, z[at], out=dh[:size]).addmm_(now.view(size, 3 * n), w.hh)
        of_h = d.view(-1, 3 * n)
        grads = torch.mm(of_h.t(), before)
        sums = of_h.sum(0) if w.bias_hh is not None else None
        torch.mul(dhs, by_new, out=d[:, 2])  # from here on those of the products with x
        made = [of_h.t() @ x, grads, *([] if sums is None else [of_h.sum(0), sums])]
        return of_h @ w.ih, (dh,), made


class _LSTM(Steps):
    """c = f * c + i * g, h = o * tanh(c), projected if there is a weight for that. Kept: i, f, g, o; c; tanh(c)."""

    keeps = 3

    def forward(self, x: Any, first: States, w: Weights, backwards: bool) -> tuple[Any, States, list[Any]]:
        torch, n = self.torch, self.form.hidden
        gates, turned = self.product(x, w.ih, None if w.bias_ih is None else w.bias_ih + w.bias_hh), w.hh.t()
        cs, tanhs = x.new_empty(x.shape[0], n), x.new_empty(x.shape[0], n)
        y = x.new_empty(x.shape[0], self.form.out)
        h, c = (self.begin(s) for s in first)
        for size, at in self.steps(backwards):
            a = gates[at].addmm_(h[:size], turned)
            a[:, : 2 * n].sigmoid_()
            a[:, 2 * n : 3 * n].tanh_()
            a[:, 3 * n :].sigmoid_()
            new = torch.mul(a[:, n : 2 * n], c[:size], out=cs[at]).addcmul_(a[:, :n], a[:, 2 * n : 3 * n])
            out = torch.tanh(new, out=tanhs[at])
            if w.hr is None:
                made = torch.mul(a[:, 3 * n :], out, out=y[at])
            else:
                made = torch.mm(a[:, 3 * n :] * out, w.hr.t(), out=y[at])
            h, c = self.advance(h, made), self.advance(c, new)
        return y, (h, c), [gates, cs, tanhs]

    def backward(
        self, g: States, x: Any, first: States, w: Weights, y: Any, kept: Sequence[Any], backwards: bool
    ) -> tuple[Any, States, list[Any]]:
        torch, n, (gates, cs, tanhs) = self.torch, self.form.hidden, kept
        i, f, new, o = gates.split(n, 1)
        by_h = (1 - tanhs * tanhs).mul_(o)  # the gradient of c, for each of h
        factor = gates.new_empty(gates.shape[0], 4, n)
        torch.mul(new, i, out=factor[:, 0]).mul_(1 - i)
        torch.mul(self.before(first[1], cs, backwards), f, out=factor[:, 1]).mul_(1 - f)
        torch.mul(i, 1 - new * new, out=factor[:, 2])
        torch.mul(tanhs, o, out=factor[:, 3]).mul_(1 - o)
        d, dh, dc = torch.empty_like(factor), g[1].clone(), g[2].clone()
        dys = None if w.hr is None else torch.empty_like(y)
        for size, at in reversed(self.steps(backwards)):
            now, incoming, running = d[at], g[0][at] + dh[:size], dc[:size]
            if dys is not None:
                dys[at] = incoming
                incoming = incoming @ w.hr
            running.addcmul_(incoming, by_h[at])
            torch.mul(factor[at, :3], running.unsqueeze(1), out=now[:, :3])
            torch.mul(factor[at, 3], incoming, out=now[:, 3])
            running.mul_(f[at])
            torch.mm(now.view(size, 4 * n), w.hh, out=dh[:size])
        rows = d.view(-1, 4 * n)
        made = self.of_weights(rows, rows, x, self.before(first[0], y, backwards), w)
        if dys is not None:
            made.append(dys.t() @ (o * tanhs))
        return rows @ w.ih, (dh, dc), made


KINDS: dict[str, type[Steps]] = {"rnn_tanh": _Plain, "rnn_relu": _Plain, "gru": _GRU, "lstm": _LSTM}
