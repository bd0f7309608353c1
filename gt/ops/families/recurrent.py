"""Recurrent layers: lstm, gru, rnn_tanh and rnn_relu, each a whole stack of layers over whole sequences.

Operands: x (time, batch, size); the first state of every layer and direction, (layers * directions, batch, size), for
lstm two of them; then for each layer and direction w_ih, w_hh, with `bias` b_ih and b_hh, and w_hr for an lstm whose h
is projected to another size than that of c. With `sizes`, x is packed: (steps, size), the longest sequence first;
sizes[t] sequences have a step t. The results are those of torch's functions.

A gradient op takes the gradients of all results, then the operands of its op, and computes anew what it needs of them.
Where both are in one program a kernel hands over what it has (`Op.resumes`), so that nothing is computed twice; and as
nothing of it is ever an operand, each engine may hand over what suits its library.

Dropout between layers is not part of these ops: with dropout there is one op per layer.
"""

from __future__ import annotations

from typing import Any

from gt.errors import ArgumentError, ShapeError
from gt.ops import reverse, rules
from gt.ops.families import recurrent_torch
from gt.ops.families.norm import cast, wide_dtype
from gt.ops.families.recurrent_form import LayerForm, Shape, form_of
from gt.ops.record import LOWER, TABLE, Autocast, Op, Rng, Sample, fill, op, ops
from gt.program import Spec, spec

MAX_STEPS = 1 << 16


def _check(name: str, mode: str, operands: tuple[Spec, ...], bidirectional: Any, bias: Any, sizes: Any) -> LayerForm:
    states = 2 if mode == "lstm" else 1
    if len(operands) < 2 + states:
        raise ArgumentError(f"{name}: expected an input, {states} state(s) and weights, got {len(operands)} operands")
    rules.floats(name, *operands)
    for other in operands[1:]:
        rules.same_dtype(name, operands[0], other)
    rules.flag(name, "bidirectional", bidirectional)
    rules.flag(name, "bias", bias)
    sizes = rules.ints(name, "sizes", sizes)
    x, firsts = operands[0], operands[1 : 1 + states]
    if x.ndim != (2 if sizes else 3):
        wanted = "(steps, size) for packed sequences" if sizes else "(time, batch, size)"
        raise ShapeError(f"{name}: expected an input {wanted}, got shape {x.shape}")
    if not x.shape[0]:
        raise ShapeError(f"{name}: expected sequences of at least one step, got shape {x.shape}")
    if sizes and (sizes[-1] < 1 or sum(sizes) != x.shape[0] or list(sizes) != sorted(sizes, reverse=True)):
        raise ArgumentError(
            f"{name}: sizes must be >= 1, descending and add up to {x.shape[0]}, got {rules.shown(sizes)}"
        )
    if (len(sizes) or x.shape[0]) > MAX_STEPS:
        raise ShapeError(f"{name}: expected at most {MAX_STEPS} steps, got {len(sizes) or x.shape[0]}")
    batch = sizes[0] if sizes else x.shape[1]
    n = firsts[0].shape[0] if firsts[0].ndim == 3 else 0
    if not n or n % (1 + bidirectional) or any(s.ndim != 3 or s.shape[:2] != (n, batch) for s in firsts):
        shown = " and ".join(str(s.shape) for s in firsts)
        raise ShapeError(f"{name}: a state must be (layers * directions, {batch}, size), got {shown}")
    form = form_of(mode, *operands, bidirectional=bidirectional, bias=bias, sizes=sizes)
    got = [w.shape for w in operands[1 + states :]]
    if len(got) != n * form.each:  # counted first: n is a stranger's
        raise ArgumentError(f"{name}: expected {form.each} weights for each of {n} layers, got {len(got)}")
    if got != form.weights():
        raise ShapeError(f"{name}: expected weights {rules.shown(form.weights())}, got {rules.shown(got)}")
    return form


def _results(form: LayerForm, x: Any, *states: Any) -> tuple[Spec, ...]:
    y = spec((*x.shape[:-1], form.out * form.directions), x.dtype)
    return (y, *(spec(s.shape, s.dtype) for s in states))


# -- in other ops ----------------------------------------------------------------------------


def _all(made: Any) -> tuple[Any, ...]:
    """The results of an op that may have one only."""
    return made if isinstance(made, tuple) else (made,)


def _step(mode: str, x: Any, state: tuple[Any, ...], hh: Any, bias: tuple[Any, ...], project: tuple[Any, ...]) -> Any:
    """The next state, from the input times its weight."""
    h = state[0]
    if mode == "gru":
        n = h.shape[-1]
        xr, xn = ops.split(x, sizes=(2 * n, n), dim=1)
        hr, hn = ops.split(ops.linear(h, hh, *bias), sizes=(2 * n, n), dim=1)
        r, z = ops.split(ops.sigmoid(xr + hr), sizes=(n, n), dim=1)
        new = ops.tanh(xn + r * hn)
        return (new + z * (h - new),)
    a = x + ops.linear(h, hh, *bias)
    if mode != "lstm":
        return (ops.tanh(a) if mode == "rnn_tanh" else ops.relu(a),)
    n = state[1].shape[-1]
    i, f, g, o = ops.split(a, sizes=(n,) * 4, dim=1)
    c = ops.sigmoid(f) * state[1] + ops.sigmoid(i) * ops.tanh(g)
    h = ops.sigmoid(o) * ops.tanh(c)
    return (ops.linear(h, project[0]) if project else h, c)


def _direction(form: LayerForm, x: Any, first: tuple[Any, ...], weights: tuple[Any, ...], backwards: bool) -> Any:
    """One layer in one direction over x (steps of all sequences, size): its results in that form, the last state.

    The state has a row for every sequence. A step changes those of the sequences that are long enough: in time the
    others have ended, in reverse they have not begun.
    """
    ih, hh, *more = weights
    bias, project = tuple(more[: 2 * form.bias]), tuple(more[2 * form.bias :])
    steps = _all(ops.split(ops.linear(x, ih, *bias[:1]), sizes=form.sizes, dim=0))
    order = range(form.time)[:: -1 if backwards else 1]
    state, ys, batch = first, [], form.batch
    for t in order:
        size = form.sizes[t]
        now, rest = state, None
        if size < batch:
            now, rest = zip(*(ops.split(s, sizes=(size, batch - size), dim=0) for s in state), strict=True)
        now = _step(form.mode, steps[t], now, hh, bias[1:], project)
        ys.append(now[0])
        state = now if rest is None else tuple(ops.cat(s, r, dim=0) for s, r in zip(now, rest, strict=True))
    return (ys[0] if len(ys) == 1 else ops.cat(*(ys[::-1] if backwards else ys), dim=0)), state


def _compose(mode: str) -> Any:
    def compose(x: Any, *rest: Any, **attrs: Any) -> tuple[Any, ...]:
        form, own, kind = form_of(mode, x, *rest, **attrs), x.dtype, wide_dtype(x.dtype)
        states, weights = rest[: form.states], [cast(w, kind) for w in rest[form.states :]]
        firsts = [_all(ops.unbind(cast(s, kind), dim=0)) for s in states]
        rows = ops.reshape(cast(x, kind), shape=(form.steps, form.inputs))
        lasts: list[Any] = []
        for _ in range(form.layers):
            ys = []
            for backwards in (False, True)[: form.directions]:
                k = len(lasts)
                mine = tuple(weights[k * form.each : (k + 1) * form.each])
                y, last = _direction(form, rows, tuple(f[k] for f in firsts), mine, backwards)
                ys.append(y)
                lasts.append(last)
            rows = ys[0] if len(ys) == 1 else ops.cat(*ys, dim=1)
        y = ops.reshape(rows, shape=(*x.shape[:-1], form.out * form.directions))
        return (cast(y, own), *(cast(ops.stack(*s, dim=0), own) for s in zip(*lasts, strict=True)))

    return compose


# -- on shards -------------------------------------------------------------------------------


def _places(form: LayerForm) -> tuple[str, str, str, str]:
    """How a rule calls the dimensions of x, of the result, of the states, of the weights: sequences may be split."""
    x, y = ("!n !i", "!n !q") if form.packed else ("!t b !i", "!t b !q")
    rows = "!b" if form.packed else "b"
    states = ", ".join((f"!l {rows} !p", f"!l {rows} !h")[: form.states])
    weights = [" ".join(f"!w{k}{'ab'[d]}" for d in range(len(shape))) for k, shape in enumerate(form.weights())]
    return x, y, states, ", ".join(weights)


# -- samples ---------------------------------------------------------------------------------


def _cases(mode: str, rng: Rng) -> list[Sample]:
    def case(
        layers: int = 1, both: bool = False, bias: bool = True, sizes: Shape = (), time: int = 3, batch: int = 2,
        hidden: int = 2, out: int = 2,
    ) -> Sample:  # fmt: skip
        n = layers * (1 + both)
        time, batch = (len(sizes), sizes[0]) if sizes else (time, batch)
        form = LayerForm(mode, layers, 1 + both, bias, 3, hidden, out, time, batch, sizes)
        x = rng.normal(size=(sum(sizes), 3) if sizes else (time, batch, 3))
        states = [rng.normal(size=(n, batch, size)) for size in (out, hidden)[: form.states]]
        weights = [rng.normal(size=shape) for shape in form.weights()]
        return (x, *states, *weights), {"bidirectional": both, "bias": bias, "sizes": sizes}

    cases = [case(), case(layers=2, both=True), case(bias=False, time=1), case(sizes=(3, 2, 2, 1), both=True)]
    if mode == "lstm":
        cases += [case(layers=2, hidden=3, out=2, time=2), case(hidden=3, out=1, sizes=(2, 1), bias=False)]
    return [*cases, case(batch=0)]


def _d_cases(mode: str, rng: Rng) -> list[Sample]:
    made = []
    for operands, attrs in _cases(mode, rng):
        form = form_of(mode, *operands, **attrs)
        y = (*operands[0].shape[:-1], form.out * form.directions)
        shapes = [y, *(s.shape for s in operands[1 : 1 + form.states])]
        made.append(((*(rng.normal(size=s) for s in shapes), *operands), attrs))
    return made


# -- records ---------------------------------------------------------------------------------


def _products(form: LayerForm) -> int:
    """The work: for each step of a sequence the product with all weights, about a dozen operations per gate."""
    return form.steps * sum(2 * w[0] * w[-1] if len(w) > 1 else 12 * w[0] for w in form.weights())


def _define(mode: str, doc: str, autocast: Autocast) -> tuple[Op, Op]:
    name = f"{mode}_d"
    states = 2 if mode == "lstm" else 1

    def infer(*operands: Spec, bidirectional: Any, bias: Any, sizes: Any) -> tuple[Spec, ...]:
        form = _check(mode, mode, operands, bidirectional, bias, sizes)
        return _results(form, *operands[: 1 + form.states])

    def infer_d(*operands: Spec, bidirectional: Any, bias: Any, sizes: Any) -> tuple[Spec, ...]:
        g, own = operands[: 1 + states], operands[1 + states :]
        form = _check(name, mode, own, bidirectional, bias, sizes)
        rules.tensor(name, *g)
        for d in g:
            rules.same_dtype(name, own[0], d)
        wanted = [s.shape for s in _results(form, *own[: 1 + states])]
        if [s.shape for s in g] != wanted:
            raise ShapeError(f"{name}: expected gradients {wanted}, got {[s.shape for s in g]}")
        return own

    def factors(*operands: Spec, **attrs: Any) -> str:
        x, y, first, weights = _places(form_of(mode, *operands, **attrs))
        return f"{x}, {first}, {weights} -> {y}, {first}"

    def factors_d(*operands: Spec, **attrs: Any) -> str:
        """Sequences are in no weight: each shard's gradients of the weights are addends."""
        x, y, first, weights = _places(form_of(mode, *operands[1 + states :], **attrs))
        return f"{y}, {first}, {x}, {first}, {weights} -> {x}, {first}, {weights}"

    def vjp(g: Any, y: Any, *operands: Any, **attrs: Any) -> tuple[Any, ...]:
        x = operands[0]
        given = [fill(x, 0.0, s.shape, s.dtype) if d is None else d for d, s in zip(g, y, strict=True)]
        return TABLE[name](*given, *operands, **attrs)

    def compose_d(*operands: Any, **attrs: Any) -> tuple[Any, ...]:
        return reverse.gradients(TABLE[mode], operands[: 1 + states], operands[1 + states :], attrs)

    forward = op(
        mode,
        doc,
        infer=infer,
        factors=factors,
        vjp=vjp,
        compose=_compose(mode),
        kernels={"torch": recurrent_torch.forward(mode)},
        opaque=True,
        flops=lambda *operands, **attrs: _products(form_of(mode, *operands, **attrs)),
        autocast=autocast,
        samples=lambda rng: _cases(mode, rng),
    )
    backward = op(
        name,
        f"The gradients of {mode} with respect to all its operands, given those of its results.",
        infer=infer_d,
        factors=factors_d,
        linear=(tuple(range(1 + states)),),
        vjp=None,
        compose=compose_d,
        kernels={"torch": recurrent_torch.backward(mode), "torch_pair": recurrent_torch.pair(mode)},
        opaque=True,
        resumes=mode,
        flops=lambda *operands, **attrs: 2 * _products(form_of(mode, *operands[1 + states :], **attrs)),
        samples=lambda rng: _d_cases(mode, rng),
    )
    return forward, backward


lstm, lstm_d = _define("lstm", "Layers of long short-term memory over sequences: the results, the last h and c.", LOWER)
# torch's list for CPUs has the product in it, but not what makes a gru of it: its results are float32 there.
gru, gru_d = _define(
    "gru", "Layers of gated recurrent units over sequences: the results, the last h.", Autocast(cuda="lower")
)
rnn_tanh, rnn_tanh_d = _define(
    "rnn_tanh", "Layers h = tanh(w_ih x + w_hh h) over sequences: the results, the last h.", LOWER
)
rnn_relu, rnn_relu_d = _define(
    "rnn_relu", "Layers h = relu(w_ih x + w_hh h) over sequences: the results, the last h.", LOWER
)
