"""Convolution over any number of dimensions, by its input and by its weight.

The three are one bilinear map seen from three sides: conv(x, w) is a correlation, conv_dx its transpose by x (which
is what people call a transposed convolution), conv_dw its transpose by w. So the gradients of each are the other two.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from gt.errors import ArgumentError, ShapeError
from gt.ops import rules
from gt.ops.families import windows
from gt.ops.families.channels_last import FAST, choose, empty, order_of, put
from gt.ops.record import LOWER, Rng, Site, conj, op, ops
from gt.program import Spec, spec

Sizes = tuple[int, ...]


def _names(x: Spec) -> str:
    return f"conv{x.ndim - 2}d" if 3 <= x.ndim <= 5 else "conv"


def _attributes(name: str, n: int, stride: Any, padding: Any, dilation: Any, groups: Any) -> tuple[Sizes, Sizes, Sizes]:
    if type(groups) is not int or groups < 1:
        raise ArgumentError(f"{name}: groups must be an int > 0, got {rules.shown(groups)}")
    return (
        windows.positive(name, "stride", stride, n),
        windows.padding(name, padding, n),
        windows.positive(name, "dilation", dilation, n),
    )


def _check(name: str, x: Spec, weight: Spec) -> int:
    """The number of dimensions that windows slide over."""
    rules.tensor(name, x, weight)
    rules.not_bool(name, x.dtype)
    rules.same_dtype(name, x, weight)
    if x.ndim < 3:
        raise ShapeError(f"{name}: expected an input (batch, channels, sizes...), got shape {x.shape}")
    if weight.ndim != x.ndim:
        raise ShapeError(f"{name}: weight {weight.shape} has {weight.ndim} dimensions, input {x.shape} has {x.ndim}")
    if any(k < 1 for k in weight.shape[2:]):
        raise ShapeError(f"{name}: the kernel of a weight of shape {weight.shape} has no elements")
    return x.ndim - 2


def _groups(name: str, outputs: int, groups: int) -> None:
    if outputs % groups or not outputs:
        raise ShapeError(f"{name}: {outputs} channels cannot be divided into {groups} groups")


def _bias(name: str, bias: tuple[Spec, ...], x: Spec, channels: int) -> None:
    if len(bias) > 1:
        raise ArgumentError(f"{name}: expected at most one bias, got {len(bias)}")
    for b in bias:
        rules.tensor(name, b)
        rules.same_dtype(name, x, b)
        if b.shape != (channels,):
            raise ShapeError(f"{name}: expected a bias of {channels} output channels, got shape {b.shape}")


def _infer(x: Spec, weight: Spec, *bias: Spec, stride: Any, padding: Any, dilation: Any, groups: Any) -> Spec:
    name = _names(x)
    n = _check(name, x, weight)
    stride, padding, dilation = _attributes(name, n, stride, padding, dilation, groups)
    if x.shape[1] != weight.shape[1] * groups:
        of = f" in {groups} groups" if groups > 1 else ""
        raise ShapeError(
            f"{name}: input has {x.shape[1]} channels, weight expects {weight.shape[1] * groups}{of} "
            f"(weight shape {weight.shape})"
        )
    _groups(name, weight.shape[0], groups)
    _bias(name, bias, x, weight.shape[0])
    outs = windows.counts(name, x.shape[2:], weight.shape[2:], stride, padding, dilation)
    return spec((x.shape[0], weight.shape[0], *outs), x.dtype)


def _fits(name: str, g: Spec, sizes: Sizes, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes) -> None:
    outs = windows.counts(name, sizes, kernel, stride, padding, dilation)
    if g.shape[2:] != outs:
        raise ShapeError(f"{name}: a gradient of sizes {outs} belongs to an input of sizes {sizes}, got {g.shape[2:]}")


def _infer_dx(
    g: Spec, weight: Spec, *bias: Spec, sizes: Any, stride: Any, padding: Any, dilation: Any, groups: Any
) -> Spec:
    name = f"conv_transpose{g.ndim - 2}d" if 3 <= g.ndim <= 5 else "conv_transpose"
    n = _check(name, g, weight)
    stride, padding, dilation = _attributes(name, n, stride, padding, dilation, groups)
    if g.shape[1] != weight.shape[0]:
        raise ShapeError(
            f"{name}: input has {g.shape[1]} channels, weight expects {weight.shape[0]} (weight shape {weight.shape})"
        )
    _groups(name, g.shape[1], groups)
    channels = weight.shape[1] * groups
    _bias(name, bias, g, channels)
    sizes = rules.shape(name, rules.ints(name, "sizes", sizes, n))
    _fits(name, g, sizes, weight.shape[2:], stride, padding, dilation)
    return spec((g.shape[0], channels, *sizes), g.dtype)


def _infer_dw(g: Spec, x: Spec, *, kernel: Any, stride: Any, padding: Any, dilation: Any, groups: Any) -> Spec:
    n = _check("conv_dw", x, g)
    stride, padding, dilation = _attributes("conv_dw", n, stride, padding, dilation, groups)
    kernel = windows.positive("conv_dw", "kernel", kernel, n)
    if g.shape[0] != x.shape[0] or x.shape[1] % groups:
        raise ShapeError(f"conv_dw: gradient {g.shape} and input {x.shape} do not fit {groups} groups")
    _groups("conv_dw", g.shape[1], groups)
    _fits("conv_dw", g, x.shape[2:], kernel, stride, padding, dilation)
    return spec((g.shape[1], x.shape[1] // groups, *kernel), g.dtype)


# -- array kernels ---------------------------------------------------------------------------


def _grouped(x: Any, groups: int) -> Any:
    """(batch, channels, sizes ...) as (batch, groups, channels of a group, places)."""
    return x.reshape(x.shape[0], groups, x.shape[1] // groups, math.prod(x.shape[2:]))


def _biased(y: Any, bias: tuple[Any, ...]) -> Any:
    return y + bias[0].reshape(-1, *(1,) * (y.ndim - 2)) if bias else y


def _conv_array(
    xp: Any, x: Any, w: Any, *bias: Any, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int
) -> Any:
    kernel = w.shape[2:]
    outs = windows.counts("conv", x.shape[2:], kernel, stride, padding, dilation)
    frame = windows.framed(xp, x, outs, kernel, stride, padding, dilation, 0)
    per = w.shape[0] // groups
    total = xp.zeros((x.shape[0], groups, per, math.prod(outs)), x.dtype)
    for at in windows.offsets(x.shape[2:], outs, kernel, stride, padding, dilation):
        part = _grouped(windows.taken(frame, at, outs, stride, dilation), groups)
        total = total + xp.matmul(w[(..., *at)].reshape(groups, per, w.shape[1]), part)
    return _biased(total.reshape(x.shape[0], w.shape[0], *outs), bias)


def _dx_array(
    xp: Any, g: Any, w: Any, *bias: Any, sizes: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int
) -> Any:
    outs, kernel = g.shape[2:], w.shape[2:]
    per = w.shape[0] // groups
    parts = _grouped(g, groups)
    total = xp.zeros((g.shape[0], w.shape[1] * groups, *sizes), g.dtype)
    for at in windows.offsets(sizes, outs, kernel, stride, padding, dilation):
        wk = xp.swapaxes(w[(..., *at)].reshape(groups, per, w.shape[1]), 1, 2)
        part = xp.matmul(wk, parts).reshape(g.shape[0], w.shape[1] * groups, *outs)
        total = total + windows.spread(xp, part, at, sizes, stride, padding, dilation)
    return _biased(total, bias)


def _dw_array(
    xp: Any, g: Any, x: Any, *, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int
) -> Any:
    outs, channels = g.shape[2:], x.shape[1] // groups
    frame = windows.framed(xp, x, outs, kernel, stride, padding, dilation, 0)
    parts = _grouped(g, groups)
    live = set(windows.offsets(x.shape[2:], outs, kernel, stride, padding, dilation))
    rows = []
    for at in np.ndindex(*kernel):
        if at not in live:
            rows.append(xp.zeros((g.shape[1], channels), g.dtype))
            continue
        part = _grouped(windows.taken(frame, at, outs, stride, dilation), groups)
        rows.append(xp.matmul(parts, xp.swapaxes(part, 2, 3)).sum(0).reshape(g.shape[1], channels))
    return xp.stack(rows, -1).reshape(g.shape[1], channels, *kernel)


# -- jax: its own convolution, and that function's transposes --------------------------------


def _conv_jax(jax: Any, x: Any, w: Any, *bias: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Any:
    pads = [(p, p) for p in padding]
    y = jax.lax.conv_general_dilated(x, w, stride, pads, rhs_dilation=dilation, feature_group_count=groups)
    return _biased(y, bias)


def _dx_jax(jax: Any, g: Any, w: Any, *bias: Any, sizes: Sizes, groups: int, **attrs: Any) -> Any:
    like = jax.ShapeDtypeStruct((g.shape[0], w.shape[1] * groups, *sizes), g.dtype)
    (y,) = jax.linear_transpose(lambda x: _conv_jax(jax, x, w, groups=groups, **attrs), like)(g)
    return _biased(y, bias)


def _dw_jax(jax: Any, g: Any, x: Any, *, kernel: Sizes, groups: int, **attrs: Any) -> Any:
    like = jax.ShapeDtypeStruct((g.shape[1], x.shape[1] // groups, *kernel), g.dtype)
    (y,) = jax.linear_transpose(lambda w: _conv_jax(jax, x, w, groups=groups, **attrs), like)(g)
    return y


# -- torch -----------------------------------------------------------------------------------


def _by_parts(torch: Any, f: Any) -> Any:
    """A bilinear function of complex tensors, out of three products of real ones (torch convolves those alone)."""

    def run(a: Any, b: Any, bias: Any) -> Any:
        real, imaginary = f(a.real, b.real, None), f(a.imag, b.imag, None)
        both = f(a.real + a.imag, b.real + b.imag, None)
        return _biased(torch.complex(real - imaginary, both - real - imaginary), () if bias is None else (bias,))

    return run


def _call(torch: Any, site: Site, f: Any) -> Any:
    """f(a, b, bias) as a function of the operands there are."""
    if site.results[0].dtype.is_complex:
        f = _by_parts(torch, f)
    return f if len(site.specs) == 3 else lambda a, b: f(a, b, None)


def _of_weight(site: Site, order: Any) -> Any:
    """The order in which a weight is given. A CPU's library turns it around by itself, block by block; on a GPU it is
    turned where a compiler sees it: once for both directions."""
    return None if site.device == "cpu" else order


def _conv_torch(torch: Any, site: Site, *, stride: Any, padding: Any, dilation: Any, groups: int) -> Any:
    f, none = torch.convolution, (0,) * len(stride)
    order = choose(torch, site.device, site.specs[0], site.specs[1], site.results[0])
    turned = _of_weight(site, order)

    def run(x: Any, w: Any, b: Any) -> Any:
        # The result is put in order too: an x of one channel is in both, and torch may take it for the other.
        return put(f(put(x, order), put(w, turned), b, stride, padding, dilation, False, none, groups), order)

    return _call(torch, site, run)


def _dx_torch(torch: Any, site: Site, *, sizes: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Any:
    (g, w), x = site.specs[:2], site.results[0]
    order = choose(torch, site.device, x, w, g)
    turned = _of_weight(site, order)
    if len(site.specs) == 2 and _as_autograd(torch, site, order):
        back, none, which = torch.ops.aten.convolution_backward.default, [0] * len(sizes), [True, False, False]

        def run(g: Any, w: Any) -> Any:
            like = empty(torch, g, x.shape, order or order_of(torch, g))  # torch asks for x
            g, w = put(g, order), put(w, turned)
            return put(back(g, like, w, None, stride, padding, dilation, False, none, groups, which)[0], order)

        return run
    least = zip(g.shape[2:], w.shape[2:], stride, padding, dilation, strict=True)
    extra = [n - ((m - 1) * s - 2 * p + d * (k - 1) + 1) for n, (m, k, s, p, d) in zip(sizes, least, strict=True)]
    f = torch.convolution

    def transposed(g: Any, w: Any, b: Any) -> Any:
        return put(f(put(g, order), put(w, turned), b, stride, padding, dilation, True, extra, groups), order)

    return _call(torch, site, transposed)


def _as_autograd(torch: Any, site: Site, order: Any) -> bool:
    """Whether what torch's autograd calls for the input is faster than the transposed form. On a GPU it has a kernel
    for depthwise weights, on a CPU for those of one pixel."""
    kernel, dtype = site.specs[1].shape[2:], site.results[0].dtype
    if site.device != "cpu":
        return dtype.is_floating_point
    return order is torch.channels_last or (dtype in FAST and set(kernel) == {1})


def _dw_torch(torch: Any, site: Site, *, kernel: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Any:
    f, none, shape = torch.ops.aten.convolution_backward.default, [0] * len(kernel), site.results[0].shape
    which = [False, True, False]
    order = choose(torch, site.device, site.specs[1], site.results[0], site.specs[0])
    # In the memory format of the weight, with which it is used next.
    plain = torch.contiguous_format if site.device == "cpu" or order else None

    def run(g: Any, x: Any, bias: None) -> Any:
        g, x = put(g, order), put(x, order)
        like = x.new_empty(shape)  # torch asks for the weight, and looks at its shape alone
        return put(f(g, x, like, None, stride, padding, dilation, False, none, groups, which)[1], plain)

    return _call(torch, site, run)


# -- samples ---------------------------------------------------------------------------------


def _cases(rng: Rng) -> list[tuple[Any, Any, dict[str, Any]]]:
    """(input, weight, attributes)."""
    rows: list[tuple[Sizes, Sizes, Sizes, Sizes, Sizes, int]] = [
        ((2, 3, 7), (4, 3, 3), (1,), (0,), (1,), 1),
        ((1, 4, 8), (6, 2, 2), (3,), (2,), (2,), 2),
        ((1, 2, 5, 4), (3, 2, 3, 2), (2, 1), (1, 0), (1, 2), 1),
        ((2, 2, 4, 4), (2, 1, 3, 3), (1, 1), (1, 1), (1, 1), 2),
        ((1, 1, 2, 2), (1, 1, 1, 1), (2, 3), (2, 0), (1, 1), 1),
        ((1, 2, 3, 3, 2), (2, 2, 2, 2, 1), (1, 2, 1), (0, 1, 0), (1, 1, 1), 1),
        ((0, 2, 5, 4), (3, 2, 3, 2), (1, 1), (0, 0), (1, 1), 1),
    ]
    cases = [
        (rng.normal(size=x), rng.normal(size=w), {"stride": s, "padding": p, "dilation": d, "groups": groups})
        for x, w, s, p, d, groups in rows
    ]
    x, w, a = cases[1]
    return [*cases, (x + 1j * rng.normal(size=x.shape), w - 1j * rng.normal(size=w.shape), a)]


def _sample_g(rng: Rng, x: Any, w: Any, a: dict[str, Any]) -> Any:
    outs = windows.counts("conv", x.shape[2:], w.shape[2:], a["stride"], a["padding"], a["dilation"])
    g = rng.normal(size=(x.shape[0], w.shape[0], *outs))
    return g + 1j * rng.normal(size=g.shape) if np.iscomplexobj(x) else g


# -- records ---------------------------------------------------------------------------------


def _dbias(g: Any, *rest: Any, **attrs: Any) -> Any:
    return ops.sum(g, dims=(0, *range(2, len(g.shape))), keepdim=False)


def _without_sizes(attrs: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in attrs.items() if k != "sizes"}


# -- on shards -------------------------------------------------------------------------------


def _rule(left: str, right: str, n: int, groups: int, biases: int = 0, bias: str = "") -> str:
    """A rule out of {o}utputs, {c}hannels, and the dimensions h and k, which there are n of each."""
    text = left + f", {bias}" * biases + " -> " + right
    wide = {"o": f"(g={groups} o)", "c": f"(g={groups} c)"} if groups > 1 else {"o": "o", "c": "c"}
    text = text.format(**wide)
    for name in ("h~", "!k", "h"):
        stem = name.strip("~!")
        every = " ".join(name.replace(stem, f"{stem}{i}") for i in range(n))
        text = re.sub(rf"(?<![\w!]){re.escape(name)}(?![\w~])", every, text)
    return text


def _windows(kernel: Sizes, *, stride: Sizes, padding: Sizes, dilation: Sizes, **attrs: Any) -> dict[str, Any]:
    return windows.parts(kernel, stride, padding, dilation, "zero")


def _dx_first(lo: int, k: int, stride: int, padding: int, dilation: int) -> tuple[int, int]:
    """The first window that may touch position lo, and how far before lo it begins: a padding that fits it."""
    first = (lo + padding - dilation * (k - 1)) // stride
    return first, lo + padding - first * stride


def _dx_window(g: Spec, w: Spec, *bias: Spec, stride: Sizes, padding: Sizes, dilation: Sizes, **attrs: Any) -> Any:
    def along(i: int) -> Any:
        k, s, d = w.shape[2 + i], stride[i], dilation[i]

        def part(operand: int, lo: int, hi: int) -> tuple[int, int, str]:
            first, pad = _dx_first(lo, k, s, padding[i], d)
            return first, first + windows.count(hi - lo, k, s, pad, d), "zero"

        return part

    return {f"h{i}": along(i) for i in range(len(stride))}


def _padded(shard: Any, padding: Sizes) -> Sizes:
    """No padding where a window was cut out: it is there already."""
    return tuple(0 if shard.split(f"h{i}") else p for i, p in enumerate(padding))


def _in_group(shard: Any, groups: int) -> int:
    return shard.size("g") if groups > 1 else 1


def _bias_alone(shard: Any, bias: Any) -> Any:
    """What is left of a convolution where this shard has none of the channels that are added up."""
    shape = shard.results[0].shape
    return ops.expand(ops.reshape(bias, shape=(shape[1], *(1,) * (len(shape) - 2))), shape=shape)


def _local(shard: Any, x: Any, w: Any, *bias: Any, padding: Sizes, groups: int, **attrs: Any) -> Any:
    if bias and not shard.size("c"):
        return _bias_alone(shard, bias[0])
    return shard.again(x, w, *bias, padding=_padded(shard, padding), groups=_in_group(shard, groups), **attrs)


def _dx_local(
    shard: Any, g: Any, w: Any, *bias: Any,
    sizes: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int,
) -> Any:  # fmt: skip
    if bias and not shard.size("o"):
        return _bias_alone(shard, bias[0])
    rows = enumerate(zip(w.shape[2:], stride, padding, dilation, strict=True))
    pads = tuple(
        _dx_first(shard.start(f"h{i}"), k, s, p, d)[1] if shard.split(f"h{i}") else p for i, (k, s, p, d) in rows
    )
    more = {"stride": stride, "padding": pads, "dilation": dilation, "groups": _in_group(shard, groups)}
    return shard.again(g, w, *bias, sizes=shard.results[0].shape[2:], **more)


def _products(g: Spec, weight: Sizes, *bias: Spec) -> int:
    """The work of a convolution, given its result (or the gradient of it) and the shape of its weight."""
    return 2 * g.size * math.prod(weight[1:]) + sum(g.size for _ in bias)


conv = op(
    "conv",
    "The convolution of an input (batch, channels, sizes...) with a weight (outputs, channels, kernel...).",
    infer=_infer,
    factors=lambda x, w, *b, groups, **attrs: _rule("n {c} h~, {o} c !k", "n {o} h", x.ndim - 2, groups, len(b), "{o}"),
    linear=((0, 2), (1, 2)),
    window=lambda x, w, *bias, **attrs: _windows(w.shape[2:], **attrs),
    local=_local,
    flops=lambda x, w, *b, **attrs: _products(_infer(x, w, *b, **attrs), w.shape, *b),
    vjp=(
        lambda g, y, x, w, *b, **attrs: ops.conv_dx(g, conj(w), sizes=x.shape[2:], **attrs),
        lambda g, y, x, w, *b, **attrs: ops.conv_dw(g, conj(x), kernel=w.shape[2:], **attrs),
        _dbias,
    ),
    kernels={"array": _conv_array, "jax_lib": _conv_jax, "torch": _conv_torch},
    samples=lambda rng: [
        ((x, w, *(rng.normal(size=w.shape[0]).astype(x.dtype) for _ in range(b))), a)
        for i, (x, w, a) in enumerate(_cases(rng))
        for b in ((0, 1) if i % 2 else (0,))
    ],
    autocast=LOWER,
)

conv_dx = op(
    "conv_dx",
    "A transposed convolution, the gradient of conv with respect to its input; plus an optional bias.",
    infer=_infer_dx,
    factors=lambda g, w, *b, groups, **attrs: _rule("n {o} h~, {o} c !k", "n {c} h", g.ndim - 2, groups, len(b), "{c}"),
    linear=((0, 2), (1, 2)),
    window=_dx_window,
    local=_dx_local,
    flops=lambda g, w, *b, sizes, groups, **attrs: (
        _products(g, w.shape) + len(b) * g.shape[0] * w.shape[1] * groups * math.prod(sizes)
    ),
    vjp=(
        lambda u, z, g, w, *b, **attrs: ops.conv(u, conj(w), **_without_sizes(attrs)),
        lambda u, z, g, w, *b, **attrs: ops.conv_dw(conj(g), u, kernel=w.shape[2:], **_without_sizes(attrs)),
        _dbias,
    ),
    kernels={"array": _dx_array, "jax_lib": _dx_jax, "torch": _dx_torch},
    samples=lambda rng: [
        (
            (_sample_g(rng, x, w, a), w, *(rng.normal(size=x.shape[1]).astype(x.dtype) for _ in range(b))),
            {"sizes": x.shape[2:], **a},
        )
        for i, (x, w, a) in enumerate(_cases(rng))
        for b in ((0, 1) if i % 2 else (0,))
    ],
    autocast=LOWER,
)

conv_dw = op(
    "conv_dw",
    "The gradient of conv with respect to a weight with a kernel of the given sizes.",
    infer=_infer_dw,
    factors=lambda g, x, *, groups, **attrs: _rule("n {o} h, n {c} h~", "{o} c !k", x.ndim - 2, groups),
    linear=((0,), (1,)),
    window=lambda g, x, *, kernel, **attrs: _windows(kernel, **attrs),
    local=lambda shard, g, x, *, padding, groups, **attrs: shard.again(
        g, x, padding=_padded(shard, padding), groups=_in_group(shard, groups), **attrs
    ),
    flops=lambda g, x, *, kernel, groups, **attrs: _products(g, (g.shape[1], x.shape[1] // groups, *kernel)),
    vjp=(
        lambda u, z, g, x, *, kernel, **attrs: ops.conv(conj(x), u, **attrs),
        lambda u, z, g, x, *, kernel, **attrs: ops.conv_dx(conj(g), u, sizes=x.shape[2:], **attrs),
    ),
    kernels={"array": _dw_array, "jax_lib": _dw_jax, "torch": _dw_torch},
    samples=lambda rng: [((_sample_g(rng, x, w, a), x), {"kernel": w.shape[2:], **a}) for x, w, a in _cases(rng)],
)
