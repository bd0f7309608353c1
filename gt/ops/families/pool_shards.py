"""Pooling on shards: windows that reach into the neighbour's part, positions that count through the whole channel.

A shard of the result gets all elements that its windows see (a halo). Elements outside the whole input are padding,
which is added here: the op itself runs without padding along a split dimension. Gradients add up in windows that
overlap between shards:
each shard spreads its own part into zeros, and the sum over shards is the gradient.
"""

from __future__ import annotations

from typing import Any

from gt.ops.families.windows import parts
from gt.ops.record import ops
from gt.ops.shard import least
from gt.program import Spec

Sizes = tuple[int, ...]


def _names(n: int) -> list[str]:
    return [f"h{i}" for i in range(n)]


def rule(x: Spec, **attrs: Any) -> str:
    """The dimensions that windows slide over are windows of the result's."""
    names = _names(x.ndim - 2)
    return f"n c {' '.join(a + '~' for a in names)} -> n c {' '.join(names)}"


def gradient_rule(*specs: Spec, **attrs: Any) -> str:
    """Windows are contracted: each may add to any element of the whole."""
    value = f"n c {' '.join(a + '@' for a in _names(specs[0].ndim - 2))}"
    return f"{', '.join([value] * len(specs))} -> n c ..."


def _spans(shard: Any, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes) -> list[tuple[int, int] | None]:
    """Of every dimension: the positions that this shard's windows reach; None where it is not split."""
    rows = enumerate(zip(kernel, stride, padding, dilation, strict=True))
    spans: list[tuple[int, int] | None] = []
    for i, (k, s, p, d) in rows:
        if not shard.split(f"h{i}"):
            spans.append(None)
            continue
        first = shard.start(f"h{i}") * s - p
        spans.append((first, first + (shard.size(f"h{i}") - 1) * s + d * (k - 1) + 1))
    return spans


def windows(x: Spec, *, kernel: Sizes, stride: Sizes, padding: Sizes, **attrs: Any) -> dict[str, Any]:
    return parts(kernel, stride, padding, attrs.get("dilation", (1,) * len(kernel)), "clip")


def _framed(x: Any, spans: list[tuple[int, int] | None], value: Any) -> Any:
    """With a value where windows reach beyond the whole."""
    pads = [0, 0, 0, 0]
    for span, n in zip(spans, x.shape[2:], strict=True):
        before = 0 if span is None else max(0, -span[0])
        pads += [before, 0 if span is None else span[1] - span[0] - n - before]
    return ops.pad(x, value, pads=tuple(pads)) if any(pads) else x


def _inner(padding: Sizes, spans: list[tuple[int, int] | None]) -> Sizes:
    return tuple(p if span is None else 0 for p, span in zip(padding, spans, strict=True))


def max_local(
    shard: Any, x: Any, *, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, **attrs: Any
) -> Any:
    spans = _spans(shard, kernel, stride, padding, dilation)
    whole = shard.specs[0].shape[2:]
    frame = _framed(x, spans, least("max", x.dtype))
    more = {"kernel": kernel, "stride": stride, "padding": _inner(padding, spans), "dilation": dilation, **attrs}
    values, positions = shard.again(frame, **more)
    return values, _counted_through(positions, frame.shape[2:], whole, spans)


def _counted_through(positions: Any, here: Sizes, whole: Sizes, spans: list[tuple[int, int] | None]) -> Any:
    """Positions in a shard's frame as positions in the whole."""
    if all(span is None for span in spans):
        return positions
    total, step = None, 1
    for n, m, span in reversed(list(zip(here, whole, spans, strict=True))):
        place = ops.remainder(positions, n)
        positions = ops.floor_divide(positions, n)
        if span is not None:  # padding is chosen only where all is as low; it must not lead outside
            place = ops.clamp(place + span[0], 0, m - 1)
        total = place * step if total is None else total + place * step
        step *= m
    return total


def max_dx_local(shard: Any, g: Any, positions: Any, *, sizes: Sizes, **attrs: Any) -> Any:
    if not any(shard.split(a) for a in _names(len(sizes))):
        return shard.again(g, positions, sizes=sizes, **attrs)
    return shard.op.compose(g, positions, sizes=sizes, **attrs)


def _shares(shard: Any, x: Any, sizes: Sizes, attrs: dict[str, Any]) -> Any:
    """x, one element per window, over the number of elements that count in each."""
    if attrs["divisor"] is not None:
        return x / float(attrs["divisor"])
    rows = enumerate(zip(sizes, attrs["kernel"], attrs["stride"], attrs["padding"], strict=True))
    for i, (n, k, s, p) in rows:
        first = shard.start(f"h{i}") * s - p
        start = shard.apply(ops.arange, first, s, n=x.shape[2 + i], dtype="int64")
        end = ops.clamp_max(start + k, n + p)  # with ceil_mode a window may reach beyond the padding
        if not attrs["include_pad"]:
            start, end = ops.clamp_min(start, 0), ops.clamp_max(end, n)
        count = ops.cast(end - start, dtype=x.dtype.name)
        x = x / ops.reshape(count, shape=(x.shape[2 + i], *(1,) * (len(sizes) - 1 - i)))
    return x


def avg_local(shard: Any, x: Any, **attrs: Any) -> Any:
    kernel, stride, padding = attrs["kernel"], attrs["stride"], attrs["padding"]
    spans = _spans(shard, kernel, stride, padding, (1,) * len(kernel))
    if all(span is None for span in spans):
        return shard.again(x, **attrs)
    whole = shard.specs[0].shape[2:]
    total = shard.again(_framed(x, spans, 0.0), **{**attrs, "padding": _inner(padding, spans), "divisor": 1})
    return _shares(shard, total, whole, attrs)


def avg_dx_local(shard: Any, g: Any, *, sizes: Sizes, **attrs: Any) -> Any:
    kernel, stride, padding = attrs["kernel"], attrs["stride"], attrs["padding"]
    spans = _spans(shard, kernel, stride, padding, (1,) * len(kernel))
    if all(span is None for span in spans):
        return shard.again(g, sizes=sizes, **attrs)
    frame = tuple(n if span is None else span[1] - span[0] for n, span in zip(sizes, spans, strict=True))
    more = {**attrs, "padding": _inner(padding, spans), "divisor": 1}
    spread = shard.again(_shares(shard, g, sizes, attrs), sizes=frame, **more)
    pads = [0, 0, 0, 0]
    for n, span in zip(sizes, spans, strict=True):
        pads += [0, 0] if span is None else [span[0], n - span[1]]
    return ops.pad(spread, 0.0, pads=tuple(pads))
