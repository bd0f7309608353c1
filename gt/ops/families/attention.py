"""Attention: softmax(q k' * scale) v, without the matrix of weights in memory where torch has a kernel for it.

With the result comes the logarithm of the sum that softmax divides by, for every row: with it the gradient
makes the weights again, a block at a time. On CUDA the flash kernel takes half types without a mask (on Hopper, and
where the positions are whole blocks, cuDNN's does: it is written for that chip), the memory-efficient one most of the
rest; what none takes, and every other engine, uses the composition. All of them keep the same sums: the gradient need
not ask who made them.
A row whose every key is masked gives zeros.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gt import dtypes
from gt.errors import ArgumentError, DTypeError, ShapeError
from gt.ops import rules
from gt.ops.families.norm import cast, wide_dtype
from gt.ops.record import LOWER, TABLE, Rng, Sample, Site, fill, op, ops
from gt.ops.sharding import linear_op
from gt.program import Spec, spec

_HALVES = (dtypes.float16, dtypes.bfloat16)


def _check(name: str, q: Spec, k: Spec, v: Spec, mask: tuple[Spec, ...], causal: Any, scale: Any) -> None:
    rules.tensor(name, q, k, v, *mask)
    rules.floating(name, q)
    rules.flag(name, "causal", causal)
    for x in (k, v):
        rules.same_dtype(name, q, x)
    if type(scale) not in (int, float):
        raise ArgumentError(f"{name}: scale must be a number, got {rules.shown(scale)}")
    shapes = f"query {q.shape}, key {k.shape}, value {v.shape}"
    if not q.ndim == k.ndim == v.ndim == 4:
        raise ShapeError(f"{name}: expected query, key and value (batch, heads, positions, size), got {shapes}")
    if q.shape[:2] != k.shape[:2] or q.shape[:2] != v.shape[:2]:
        raise ShapeError(f"{name}: batch and heads must be equal, got {shapes}; use enable_gqa=True")
    if q.shape[3] != k.shape[3]:
        raise ShapeError(f"{name}: query and key must have one size, got {q.shape[3]} and {k.shape[3]} ({shapes})")
    if k.shape[2] != v.shape[2]:
        raise ShapeError(f"{name}: expected as many keys as values, got {k.shape[2]} and {v.shape[2]} ({shapes})")
    if len(mask) > 1:
        raise ArgumentError(f"{name}: expected at most one mask, got {len(mask)}")
    for m in mask:
        if m.dtype is not dtypes.bool_ and m.dtype is not q.dtype:
            raise DTypeError(f"{name}: the mask must be bool or {q.dtype.name}, got {m.dtype.name}")
        rules.expands(name, "a mask", m.shape, (*q.shape[:3], k.shape[2]))


def _infer(q: Spec, k: Spec, v: Spec, *mask: Spec, causal: Any, scale: Any, dmask: Any) -> tuple[Spec, Spec]:
    _check("attention", q, k, v, mask, causal, scale)
    if rules.flag("attention", "dmask", dmask) and not (mask and mask[0].dtype.is_floating_point):
        raise ArgumentError("attention: dmask needs a floating-point mask")
    return spec((*q.shape[:3], v.shape[3]), q.dtype), spec(q.shape[:3], wide_dtype(q.dtype))


def _infer_d(
    g: Spec, q: Spec, k: Spec, v: Spec, out: Spec, total: Spec, *mask: Spec, causal: Any, scale: Any
) -> tuple[Spec, Spec, Spec]:
    _check("attention_d", q, k, v, mask, causal, scale)
    rules.floats("attention_d", g, out, total)
    if not g.shape == out.shape == (*q.shape[:3], v.shape[3]) or total.shape != q.shape[:3]:
        raise ShapeError(f"attention_d: gradient {g.shape} and result {out.shape} do not fit query {q.shape}")
    return q, k, v


# -- in other ops ----------------------------------------------------------------------------


def _turned(x: Any) -> Any:
    return ops.permute(x, dims=(0, 1, 3, 2))


def _scores(q: Any, k: Any, mask: tuple[Any, ...], causal: bool, scale: float) -> Any:
    """q k' * scale, -inf where masked: (batch, heads, queries, keys)."""
    kind = wide_dtype(q.dtype)
    s = ops.matmul(cast(q, kind) * scale, _turned(cast(k, kind)))
    if causal:
        rows, columns = (
            q._apply(TABLE["arange"], (0, 1), {"n": n, "dtype": "int64"}) for n in (q.shape[2], k.shape[2])
        )
        s = ops.where(ops.le(columns, ops.reshape(rows, shape=(*rows.shape, 1))), s, -math.inf)
    for m in mask:
        s = ops.where(m, s, -math.inf) if m.dtype is dtypes.bool_ else s + cast(m, kind)
    return s


def _weights(s: Any, total: Any) -> Any:
    """The rows of s as softmax has them, given the logarithm of each row's sum."""
    return ops.exp(s - ops.reshape(total, shape=(*total.shape, 1)))


def _attention(q: Any, k: Any, v: Any, *mask: Any, causal: bool, scale: float, dmask: bool) -> Any:
    s = _scores(q, k, mask, causal, scale)
    total = ops.logsumexp(s, dims=(3,), keepdim=False)
    total = ops.where(ops.eq(total, -math.inf), 0.0, total)  # all masked: the weights shall be zero, not nan
    return cast(ops.matmul(_weights(s, total), cast(v, s.dtype)), q.dtype), total


def _parts(
    g: Any, q: Any, k: Any, v: Any, out: Any, total: Any, *mask: Any, causal: bool, scale: float, gtotal: Any = None
) -> tuple[Any, Any]:
    """The weights, and the gradient of the scores. `gtotal`: that of `total`."""
    kind = wide_dtype(q.dtype)
    p = _weights(_scores(q, k, mask, causal, scale), cast(total, kind))
    away = ops.sum(cast(g, kind) * cast(out, kind), dims=(3,), keepdim=True)
    if gtotal is not None:
        away = away - ops.reshape(gtotal, shape=away.shape)
    return p, p * (ops.matmul(cast(g, kind), _turned(cast(v, kind))) - away)


def _attention_d(g: Any, q: Any, k: Any, v: Any, *rest: Any, scale: float, **more: Any) -> Any:
    kind = wide_dtype(q.dtype)
    p, ds = _parts(g, q, k, v, *rest, scale=scale, **more)
    dq, dk = ops.matmul(ds, cast(k, kind)) * scale, ops.matmul(_turned(ds), cast(q, kind)) * scale
    return tuple(cast(d, q.dtype) for d in (dq, dk, ops.matmul(_turned(p), cast(g, kind))))


def _vjp(g: Any, y: Any, q: Any, k: Any, v: Any, *mask: Any, dmask: bool, **attrs: Any) -> tuple[Any, ...]:
    (gout, gtotal), (out, total) = g, y
    operands = out * 0.0 if gout is None else gout, q, k, v, out, total, *mask
    if gtotal is None:
        grads = ops.attention_d(*operands, **attrs)
    else:  # for gradients of gradients only
        grads = _attention_d(*operands, gtotal=gtotal, **attrs)
    return *grads, *(_parts(*operands, gtotal=gtotal, **attrs)[1] if dmask else None for _ in mask)


# -- torch's kernels -------------------------------------------------------------------------

_ALIGN = 32  #: The memory-efficient kernel keeps sums of so many rows at once.
_BLOCK = 128  #: cuDNN works on so many positions at once; it has been wrong where the last block was not full.


def _choose(torch: Any, site: Site, q: Spec, k: Spec, v: Spec, mask: tuple[Spec, ...], causal: bool) -> str | None:
    """Which of torch's kernels takes these operands; None: their composition is used."""
    if not (q.size and k.size and v.size) or (mask and causal):
        return None
    if site.device == "cpu":
        return "cpu" if q.shape[3] == v.shape[3] else None
    bytes_wide = 16 // q.dtype.itemsize  # kernels load so many numbers at once
    if q.dtype is dtypes.float64 or q.shape[3] % bytes_wide or v.shape[3] % bytes_wide:
        return None
    same = q.shape[3] == v.shape[3] <= 256 and (not causal or q.shape[2] == k.shape[2])
    if q.dtype not in _HALVES or mask or not same:
        return "efficient"
    blocks = q.shape[2] % _BLOCK == k.shape[2] % _BLOCK == 0 and q.shape[3] in (64, 128)
    return "cudnn" if blocks and torch.cuda.get_device_capability(site.device)[0] == 9 else "flash"


def _rows(x: Any) -> Any:
    """With the last dimension in order in memory, as every kernel wants it."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _bias(torch: Any, q: Spec, mask: tuple[Spec, ...], n: int, pad: bool) -> Any:
    """A function that makes of the mask (or of none) what is added to the scores."""
    if not mask:
        return lambda m: None
    kind, is_bool, shape = getattr(torch, q.dtype.name), mask[0].dtype is dtypes.bool_, (*q.shape[:3], n)

    def make(m: Any) -> Any:
        m = torch.zeros_like(m, dtype=kind).masked_fill_(~m, -math.inf) if is_bool else m
        if pad and n % 16:  # its rows must begin at multiples of 16 bytes
            m = torch.nn.functional.pad(m.expand(*m.shape[:-1], n), (0, 16 - n % 16))[..., :n]
        return m.expand(shape)

    return make


def _torch(torch: Any, site: Site, *, causal: bool, scale: float, dmask: bool) -> Any:
    q, k, v, *mask = site.specs
    which, aten = _choose(torch, site, q, k, v, tuple(mask), causal), torch.ops.aten
    bias = _bias(torch, q, tuple(mask), k.shape[2], which == "efficient")
    if which == "cpu":
        f = aten._scaled_dot_product_flash_attention_for_cpu.default
        return lambda q, k, v, m=None: f(_rows(q), _rows(k), _rows(v), 0.0, causal, attn_mask=bias(m), scale=scale)
    if which == "flash":
        f = aten._scaled_dot_product_flash_attention.default
        return lambda q, k, v: f(_rows(q), _rows(k), _rows(v), 0.0, causal, False, scale=scale)[:2]
    if which == "cudnn":
        f = aten._scaled_dot_product_cudnn_attention.default

        def cudnn(q: Any, k: Any, v: Any) -> Any:
            out, total, *_ = f(_rows(q), _rows(k), _rows(v), None, True, 0.0, causal, False, scale=scale)
            return out, total.squeeze(3)

        return cudnn
    if which == "efficient":
        f, n = aten._scaled_dot_product_efficient_attention.default, q.shape[2]

        def efficient(q: Any, k: Any, v: Any, m: Any = None) -> Any:
            out, total, *_ = f(_rows(q), _rows(k), _rows(v), bias(m), True, 0.0, causal, scale=scale)
            return out, total[:, :, :n].contiguous()

        return efficient
    return None


def _d_torch(torch: Any, site: Site, *, causal: bool, scale: float) -> Any:
    q, k, v, _, _, *mask = site.specs[1:]
    which, aten = _choose(torch, site, q, k, v, tuple(mask), causal), torch.ops.aten
    bias = _bias(torch, q, tuple(mask), k.shape[2], which == "efficient")
    own, wide, rows = getattr(torch, q.dtype.name), getattr(torch, wide_dtype(q.dtype).name), q.shape[2]

    def ready(g: Any, q: Any, k: Any, v: Any, out: Any, total: Any) -> tuple[Any, ...]:
        return *map(_rows, (g.to(own), q, k, v, out.to(own))), total.to(wide).contiguous()

    def nothing(kind: Any) -> Any:
        """The seed or offset of a dropout that does not happen. A tensor of its own: from an element of another tensor,
        at an address that is not aligned, Inductor would conclude that no result is aligned."""
        return torch.zeros((), dtype=kind, device=site.device)

    if which == "cpu":
        f = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
        return lambda *a: f(*ready(*a[:6]), 0.0, causal, attn_mask=bias(*a[6:] or (None,)), scale=scale)
    if which == "flash":
        f, keys = aten._scaled_dot_product_flash_attention_backward.default, k.shape[2]

        def flash(*a: Any) -> Any:
            state = torch.zeros(2, dtype=torch.uint64, device=site.device), nothing(torch.uint64)
            return f(*ready(*a), None, None, rows, keys, 0.0, causal, *state, scale=scale)

        return flash
    if which == "cudnn":
        f, keys = aten._scaled_dot_product_cudnn_attention_backward.default, k.shape[2]

        def cudnn(*a: Any) -> Any:
            *operands, total = ready(*a)
            more = total.unsqueeze(3), nothing(torch.int64), nothing(torch.int64), None, None, None, rows, keys
            return f(*operands, *more, 0.0, causal, scale=scale)

        return cudnn
    if which == "efficient":
        f = aten._scaled_dot_product_efficient_attention_backward.default

        def efficient(*a: Any) -> Any:
            g, q, k, v, out, total = ready(*a[:6])
            total = torch.nn.functional.pad(total, (0, -rows % _ALIGN), value=math.inf)
            grads = f(
                g, q, k, v, bias(*a[6:] or (None,)), out, total, nothing(torch.int64), nothing(torch.int64), 0.0,
                [True, True, True, False], causal, scale=scale,
            )  # fmt: skip
            return grads[:3]

        return efficient
    return None


# -- the records -----------------------------------------------------------------------------


def _cases(rng: Rng) -> list[Sample]:
    def draw(*shape: int) -> Any:
        return rng.normal(size=shape)

    b, h, n, m, e = 2, 2, 3, 4, 2
    qkv = draw(b, h, n, e), draw(b, h, m, e), draw(b, h, m, e)
    square = draw(1, h, n, e), draw(1, h, n, e), draw(1, h, n, e)
    holes = rng.random((n, m)) < 0.6
    holes[:, 0] = True
    blank = np.ones((n, m), bool)
    blank[1] = False
    cases: list[Sample] = [
        (qkv, {"causal": False, "scale": 0.7}),
        (qkv, {"causal": True, "scale": 0.5}),
        (square, {"causal": True, "scale": 1.0}),
        ((*qkv, holes), {"causal": False, "scale": 0.7}),
        ((*qkv, draw(b, 1, n, m)), {"causal": False, "scale": 0.7}),
        ((*qkv, holes), {"causal": True, "scale": 0.7}),
        ((*qkv, blank), {"causal": False, "scale": 0.7}),
        ((*qkv[:2], draw(b, h, m, 3)), {"causal": False, "scale": 0.7}),
        ((draw(0, 2, 3, 2), draw(0, 2, 4, 2), draw(0, 2, 4, 2)), {"causal": False, "scale": 0.7}),
    ]
    return [(args, {**attrs, "dmask": len(args) > 3 and args[3].dtype == np.float64}) for args, attrs in cases]


def _d_cases(rng: Rng) -> list[Sample]:
    made: list[Sample] = []
    for (q, k, v, *mask), attrs in _cases(rng):
        shape = (*q.shape[:3], v.shape[3])
        total = rng.uniform(1.0, 3.0, size=q.shape[:3])
        attrs = {name: attrs[name] for name in ("causal", "scale")}
        made.append(((rng.normal(size=shape), q, k, v, rng.normal(size=shape), total, *mask), attrs))
    return made


def _rule(q: Spec, k: Spec, v: Spec, *mask: Spec, causal: bool, **attrs: Any) -> str:
    """By batch, head and query; split keys are for the composition. A causal mask counts queries from the first."""
    rows = "!q" if causal else "q"
    masks = "".join(", " + _mask_rule(m, ("b", "h", rows, "!k")) for m in mask)
    return f"b h {rows} !e, b h !k !e, b h !k !f{masks} -> b h {rows} !f, b h {rows}"


def _mask_rule(mask: Spec, names: tuple[str, ...]) -> str:
    return " ".join("1" if n == 1 else a for n, a in zip(mask.shape, names[4 - mask.ndim :], strict=True))


def _d_rule(g: Spec, q: Spec, k: Spec, v: Spec, out: Spec, total: Spec, *mask: Spec, causal: bool, scale: float) -> str:
    """The sums of each row are known: dq adds up over keys, dk and dv over queries."""
    rows, keys = ("!q", "!k") if causal else ("q", "k")
    masks = "".join(", " + _mask_rule(m, ("b", "h", rows, keys)) for m in mask)
    query, key, value, there = f"b h {rows} !e", f"b h {keys} !e", f"b h {keys} !f", f"b h {rows} !f"
    return f"{there}, {query}, {key}, {value}, {there}, b h {rows}{masks} -> {query}, {key}, {value}"


def _keys_first(shard: Any, q: Any, k: Any, v: Any, **attrs: Any) -> Any:
    if shard.size("k"):
        return (), shard.again(q, k, v, **attrs)
    kind = wide_dtype(q.dtype)
    return (), (fill(q, 0.0, (*q.shape[:3], v.shape[3]), q.dtype), fill(q, -math.inf, q.shape[:3], kind))


def _keys_last(shard: Any, kept: Any, gathered: Any, **attrs: Any) -> Any:
    """Each part's result counts by its share of the sum in each row."""
    out, total = gathered  # (parts, batch, heads, queries, size), (parts, batch, heads, queries)
    top = ops.amax(total, dims=(0,), keepdim=True)
    share = ops.exp(total - top)
    every = ops.sum(share, dims=(0,), keepdim=True)
    share = ops.reshape(share / every, shape=(*share.shape, 1))
    made = ops.sum(cast(out, total.dtype) * share, dims=(0,), keepdim=False)
    return cast(made, out.dtype), ops.reshape(top + ops.log(every), shape=total.shape[1:])


attention = op(
    "attention",
    "softmax(q @ k.T * scale) @ v for each head, and the log-sum-exp of each row of the scores.",
    infer=_infer,
    # Keys in parts. Not with a mask: a row whose keys are all masked in one part tells nothing of its weight.
    merge=lambda q, k, v, *mask, causal, **attrs: None if causal or mask else ("k", _keys_first, _keys_last),
    factors=_rule,
    vjp=_vjp,
    compose=_attention,
    kernels={"torch": _torch},
    samples=_cases,
    autocast=LOWER,
)

attention_d = linear_op(
    "attention_d",
    "The gradients of attention with respect to q, k and v, given its result and log-sum-exp.",
    infer=_infer_d,
    factors=_d_rule,
    vjp=None,
    compose=_attention_d,
    kernels={"torch": _d_torch},
    samples=_d_cases,
)
