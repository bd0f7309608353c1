"""What holds for every op because it is in the table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from gt import dtypes
from gt.errors import DTypeError, IndexOutOfRange
from gt.ops import TABLE, Op
from gt.ops.evaluate import apply, expand, run
from gt.ops.trace import OpTrace
from gt.program import as_tuple, spec
from gt.worker.run.origins import end_of, kept_operands
from tests.ops.cases import (
    NUMPY,
    Written,
    as_dtype,
    calls_with,
    is_float,
    is_up,
    ops,
    samples,
    specs_of,
    to_engine,
    to_numpy,
    trying,
    vjps,
    wide,
)

#: Relative and absolute: how far two ways to compute the same may differ.
TOLERANCE = {"float64": (1e-9, 1e-10), "float32": (2e-4, 2e-5), "float16": (2e-2, 1e-2), "bfloat16": (1e-1, 8e-2)}


def close(a: Any, b: Any, dtype: str = "float64") -> None:
    rtol, atol = TOLERANCE[dtype]
    np.testing.assert_allclose(wide(a), wide(b), rtol=rtol, atol=atol)


def has_floats(args: tuple[Any, ...]) -> bool:
    return any(is_float(a) for a in args)


# -- records ---------------------------------------------------------------------------------


@pytest.mark.parametrize("op", TABLE.values(), ids=lambda op: op.name)
def test_a_record_is_whole(op: Op) -> None:
    assert op.doc.endswith(".")
    assert "\n" not in op.doc
    assert samples(op), "an op without samples is not tested"
    assert op.kernels or op.compose
    shapes = [a.shape for args, _ in samples(op) for a in args if isinstance(a, np.ndarray)]
    attrs = [tuple(v) for _, attrs in samples(op) for v in attrs.values() if isinstance(v, tuple)]
    sizes = [a["n"] for _, a in samples(op) if "n" in a]
    assert any(0 in s for s in (*shapes, *attrs)) or 0 in sizes, "no sample has no elements"
    if op.inplace:
        assert "torch_inplace" in op.kernels
    if op.put is not None:
        assert op.aliases


@ops(lambda op: op.ranges)
def test_indices_that_an_op_makes_are_in_range(op: Op) -> None:
    """What `ranges` says is not checked again before a kernel reads it."""
    assert op.ranges is not None
    for i, (args, attrs) in enumerate(samples(op)):
        with trying(f"sample {i}"):
            results = apply(op, args, specs_of(args), attrs, NUMPY.kernel)
            for k, n in op.ranges(*specs_of(args), **attrs).items():
                assert results[k].dtype in (np.int64, np.int32)
                assert ((results[k] >= 0) & (results[k] < n)).all()


@ops(lambda op: op.spans)
def test_indices_that_are_made_of_numbers_are_in_range(op: Op, engine: Any) -> None:
    assert op.spans is not None
    known = 0
    for i, (args, attrs) in enumerate(samples(op)):
        with trying(f"sample {i}"):
            specs = specs_of(args)
            numbers = [a for a in args if not isinstance(a, np.ndarray)]
            for k, end in op.spans(*specs, **attrs).items():
                for maker in (NUMPY, engine):
                    result = calls_with(maker, op, args, attrs)[k]
                    below = end_of(dtypes.dtype(result.dtype)) and result.size and end(*numbers)
                    if 0 < below <= end_of(dtypes.dtype(result.dtype)):
                        known += 1
                        assert ((result >= 0) & (result < below)).all()
    assert known


@ops(lambda op: op.keeps or op.moves)
def test_what_is_made_of_indices_in_range_is_in_range(op: Op, engine: Any) -> None:
    """What `keeps` says is not checked before a kernel reads it: on a GPU that would be an error of all its users."""
    rng, tried = np.random.default_rng(0), 0
    for i, (args, attrs) in enumerate(samples(op)):
        kept = kept_operands(op, specs_of(args), attrs)
        for dtype, n in (("int64", 1), ("int64", 5), ("int32", 3), ("uint8", 2)):
            drawn = [rng.integers(0, n, size=np.shape(a)) for a in args]
            mine = [
                a if k not in kept else drawn[k].astype(dtype) if isinstance(a, np.ndarray) else int(drawn[k])
                for k, a in enumerate(args)
            ]
            try:
                op.infer(*specs_of(mine), **attrs)
            except DTypeError:  # it takes no narrow indices
                assert dtype == "uint8"
                continue
            with trying(f"sample {i}, {dtype} below {n}"):
                ranges = {} if op.ranges is None else op.ranges(*specs_of(mine), **attrs)
                for maker in (NUMPY, engine):
                    for k, result in enumerate(calls_with(maker, op, mine, attrs)):
                        if k not in ranges and end_of(dtypes.dtype(result.dtype)):
                            tried += result.size
                            assert ((result >= 0) & (result < n)).all()
    assert tried


# -- kernels ---------------------------------------------------------------------------------


@ops()
def test_engines_agree(op: Op, engine: Any) -> None:
    """And make what `infer` says."""
    for i, (args, attrs) in enumerate(samples(op)):
        for dtype in TOLERANCE if has_floats(args) else ["float64"]:
            with trying(f"sample {i} in {dtype}"):
                _agree(op, as_dtype(args, dtype), attrs, dtype, engine)


def _agree(op: Op, args: Any, attrs: Any, dtype: str, engine: Any) -> None:
    specs = specs_of(args)
    inferred = as_tuple(op.infer(*specs, **attrs))
    ours = apply(op, args, specs, attrs, NUMPY.kernel)
    for s, a in zip(inferred, ours, strict=True):
        assert type(a) is np.ndarray
        assert spec(a.shape, dtypes.dtype(a.dtype)) is s

    arrays = to_engine(engine, args)
    theirs = apply(op, arrays, specs, attrs, engine.kernel)
    for s, a, b in zip(inferred, theirs, ours, strict=True):
        assert tuple(a.shape) == s.shape
        assert a.dtype is getattr(torch, s.dtype.name)
        assert a.device == torch.device(engine.device)
        made = "float32" if s.dtype is dtypes.complex64 else s.dtype.name
        coarse = max(dtype, made, key=lambda d: TOLERANCE.get(d, (0, 0)))
        mine = to_numpy(engine, a, s)
        if engine.deferred and op.name in ("linalg_eigh", "linalg_svd"):
            mine, b = np.abs(mine), np.abs(b)  # the signs of vectors are each library's choice
        close(mine, b, coarse)


@ops()
def test_torch_kernels_leave_their_operands_alone(op: Op, engine: Any) -> None:
    """Also operands that are not contiguous. And what is no view is new memory."""
    for i, (args, attrs) in enumerate(samples(op)):
        with trying(f"sample {i}"):
            specs = specs_of(args)
            arrays = to_engine(engine, args)
            plain = apply(op, arrays, specs, attrs, engine.kernel)
            strided = [_strided(a) if isinstance(a, torch.Tensor) else a for a in arrays]
            copies = [a.clone() if isinstance(a, torch.Tensor) else a for a in strided]
            results = apply(op, strided, specs, attrs, engine.kernel)
            for a, b in zip(strided, copies, strict=True):
                assert a is b or not isinstance(a, torch.Tensor) or torch.equal(a.nan_to_num(), b.nan_to_num())
            for a, b in zip(results, plain, strict=True):
                torch.testing.assert_close(a, b, equal_nan=True)
            if not op.aliases:
                own = {a.untyped_storage().data_ptr() for a in strided if isinstance(a, torch.Tensor) and a.numel()}
                assert not own & {r.untyped_storage().data_ptr() for r in results if r.numel()}


def _strided(x: torch.Tensor) -> torch.Tensor:
    """The same numbers, with gaps and the dimensions in another order in memory."""
    order = tuple(reversed(range(x.ndim)))
    holes = torch.zeros([*(x.shape[d] for d in order), 2], dtype=x.dtype, device=x.device)
    holes[..., 0] = x.permute(order)
    return holes[..., 0].permute(order)


@ops(lambda op: op.inplace)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_inplace_kernels_write_what_the_others_return(op: Op, dtype: str, engine: Any) -> None:
    for i, (sample, attrs) in enumerate(samples(op)):
        with trying(f"sample {i}"):
            args = as_dtype(sample, dtype)
            specs = specs_of(args)
            arrays = to_engine(engine, args)
            plain = apply(op, arrays, specs, attrs, engine.kernel)
            before = [a.clone() if isinstance(a, torch.Tensor) else a for a in arrays]
            kernel = engine.kernel(op, attrs, specs, inplace=True)
            results = kernel(*arrays)
            results = results if isinstance(results, tuple) else (results,)
            for k, r, p in zip(op.inplace, results, plain, strict=True):
                assert r is arrays[k]
                torch.testing.assert_close(r, p, rtol=0, atol=0)
            for k, (a, b) in enumerate(zip(arrays, before, strict=True)):
                if k not in op.inplace and isinstance(a, torch.Tensor):
                    assert torch.equal(a, b)


@ops(lambda op: op.compose)
def test_compositions_equal_kernels(op: Op, engine: Any) -> None:
    for i, (args, attrs) in enumerate(samples(op)):
        with trying(f"sample {i}"):
            specs = specs_of(args)
            arrays = to_engine(engine, args)
            trace, results = expand(op, specs, attrs)
            for s, r in zip(as_tuple(op.infer(*specs, **attrs)), results, strict=True):
                assert r.spec is s
            parts = run(trace, results, arrays, engine.kernel)
            for a, b in zip(parts, apply(op, arrays, specs, attrs, engine.kernel), strict=True):
                torch.testing.assert_close(a, b, equal_nan=True)


@ops()
def test_attributes_may_come_off_the_wire(op: Op, engine: Any) -> None:
    """MessagePack knows no tuples."""
    for i, (args, attrs) in enumerate(samples(op)):
        with trying(f"sample {i}"):
            wired = msgspec.msgpack.decode(msgspec.msgpack.encode(attrs))
            specs = specs_of(args)
            assert as_tuple(op.infer(*specs, **wired)) == as_tuple(op.infer(*specs, **attrs))
            for maker in (NUMPY, engine):
                for a, b in zip(calls_with(maker, op, args, wired), calls_with(maker, op, args, attrs), strict=True):
                    if getattr(maker, "deferred", False):  # a GPU adds up in any order
                        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
                    else:
                        np.testing.assert_array_equal(a, b)


# -- gradients -------------------------------------------------------------------------------


def differentiable(op: Op) -> bool:
    return op.vjp is not None


def with_gradients(op: Op) -> Iterator[tuple[str, Any, Any, Written]]:
    """(title, operands, attributes, gradients) of the samples whose slopes can be taken: in float64, where it is
    finite."""
    for i, (args, attrs) in enumerate(samples(op)):
        results = as_tuple(op.infer(*specs_of(args), **attrs))
        floats = [a for a in args if is_float(a)]
        if floats and np.all([np.isfinite(a).all() for a in floats]) and {s.dtype for s in results} == {dtypes.float64}:
            with trying(f"sample {i}"):
                written = Written(op, args, attrs)
                assert written.specs_fit
            yield f"sample {i}", args, attrs, written


def is_empty(written: Written) -> bool:
    return not all(a.size for a in written.inputs)


def compare_slopes(analytic: np.ndarray, numeric: np.ndarray) -> None:
    there = np.isfinite(numeric) & (np.abs(numeric) < 1e4)
    np.testing.assert_allclose(np.asarray(analytic)[there], numeric[there], rtol=1e-5, atol=1e-6)


@ops(differentiable)
def test_gradients_match_finite_differences(op: Op) -> None:
    if op.name == "ctc_loss":
        pytest.skip("its gradient is by what its operand is a log_softmax of: see tests/nn/test_losses.py")
    tried = False
    for title, _, _, written in with_gradients(op):
        with trying(title):
            tried = True
            pairs = list(zip(written.results, written.gs, strict=True))
            for (of, _), value in zip(written.first, written.values([d for _, d in written.first]), strict=True):
                assert value.shape == of.shape
                if not is_empty(written):
                    compare_slopes(value, written.slope(pairs, of))
    if not tried:
        pytest.skip("has no slopes")


@ops(differentiable)
def test_gradients_match_torch(op: Op, engine: Any) -> None:
    if op.name.startswith("torch_op"):
        pytest.skip("it is torch's own autograd")
    if engine.deferred and op.name in ("linalg_eigh", "linalg_svd"):
        pytest.skip("the gradient of vectors whose signs are each library's choice")
    tried = False
    for title, args, attrs, written in with_gradients(op):
        if not is_empty(written) and not attrs.get("dmask"):  # torch's kernel has no derivative by its mask
            with trying(title):
                tried |= _match_torch(op, args, attrs, written, engine)
    if not tried:
        pytest.skip("torch has no derivative of it")


def _torchs_own(op: Op, arrays: Sequence[Any], specs: Any, attrs: Any, kernel: Any) -> tuple[Any, ...]:
    """What torch's function makes of the operands of a recurrent op: no gradient flows through the op's own kernel,
    which writes in place."""
    states = 2 if op.name == "lstm" else 1
    x, first, weights = arrays[0], arrays[1 : 1 + states], arrays[1 + states :]
    layers = first[0].shape[0] // (2 if attrs["bidirectional"] else 1)
    about = weights, attrs["bias"], layers, 0.0, False, attrs["bidirectional"]
    hx = first if states == 2 else first[0]
    if attrs["sizes"]:
        return tuple(getattr(torch, op.name)(x, torch.tensor(attrs["sizes"]), hx, *about))
    return tuple(getattr(torch, op.name)(x, hx, *about, False))


def _match_torch(op: Op, args: Any, attrs: Any, written: Written, engine: Any) -> bool:
    """False if torch has nothing to compare with."""
    specs = specs_of(args)
    arrays = to_engine(engine, args)
    leaves = [a.requires_grad_() for a, v in zip(arrays, args, strict=True) if is_float(v)]
    with torch.enable_grad():
        results = (_torchs_own if "bidirectional" in attrs else apply)(op, arrays, specs, attrs, engine.kernel)
    for r, g in zip(results, written.gs, strict=True):
        if not r.requires_grad and any(x.requires_grad for x in results):  # torch keeps it for its backward only
            written.inputs[g.number] = np.zeros(g.shape)
    gs = [torch.from_numpy(written.inputs[g.number]).to(engine.device) for g in written.gs]
    there = [(r, g) for r, g in zip(results, gs, strict=True) if r.requires_grad]
    if not there:
        assert not any(np.any(d) for d in written.values([d for _, d in written.first])), "torch has none"
        return True
    if op.name in ("silu_dx", "mish_dx", "floor_divide", "nextafter") or (
        op.name == "remainder" and not isinstance(args[0], np.ndarray)
    ):
        return False
    theirs = torch.autograd.grad([r for r, _ in there], leaves, [g for _, g in there], allow_unused=True)
    symbols = [s for s in written.args if hasattr(s, "number") and s.dtype.is_floating_point]
    ours = {s.number: v for (s, _), v in zip(written.first, written.values([d for _, d in written.first]), strict=True)}
    for s, t in zip(symbols, theirs, strict=True):
        if t is None:
            assert s.number not in ours or not np.any(ours[s.number])
        else:
            np.testing.assert_allclose(
                ours.get(s.number, np.zeros(s.shape)), t.detach().cpu().numpy(force=True), rtol=1e-7, atol=1e-9
            )
    return True


@ops(differentiable)
def test_gradients_have_gradients(op: Op) -> None:
    tried = False
    for title, args, _, written in with_gradients(op):
        if op.name == "pow" and any(np.any(a == 0) for a in args if isinstance(a, np.ndarray)):
            continue  # the second derivative of a power at 0 is at most one-sided
        if op.name in ("maximum", "minimum") and np.any(np.equal(*args)):
            continue  # the gradient jumps at ties
        if is_empty(written):
            continue
        with trying(title):
            tried = True
            pairs = [(d, u) for (_, d), u in zip(written.first, written.us, strict=True)]
            twice = written.twice()
            values = iter(written.values([d for _, d in twice if d is not None]))
            for of, d in twice:
                compare_slopes(np.zeros(of.shape) if d is None else next(values), written.slope(pairs, of))
    if not tried:
        pytest.skip("has no slopes")


#: What a gradient needs to keep; the rest may die after the forward pass. (operands read, result read)
READS = {
    "exp": ((), True), "sigmoid": ((), True), "tanh": ((), True), "sqrt": ((), True), "relu": ((), True),
    "softmax": ((), True), "log_softmax": ((), True), "add": ((), False), "sub": ((), False), "sum": ((), False),
    "mean": ((), False), "reshape": ((), False), "permute": ((), False), "expand": ((), False), "cat": ((), False),
    "split": ((), False), "slice": ((), False), "cast": ((), False), "dropout": ((), False), "neg": ((), False),
    "mul": ((0, 1), False), "matmul": ((0, 1), False), "log": ((0,), False), "where": ((0,), False),
    "embedding": ((1,), False), "gather": ((1,), False), "nll_loss": ((1,), False), "cumsum": ((), False),
    "cross_entropy": ((1,), True),
    "linear": ((0, 1), False), "assign": ((), False), "slice_put": ((), False), "index": ((1,), False),
}  # fmt: skip


@pytest.mark.parametrize("name", READS)
def test_gradients_read_little(name: str) -> None:
    op = TABLE[name]
    args, attrs = samples(op)[0]
    trace = OpTrace()
    symbols = [trace.symbol(s) if isinstance(a, np.ndarray) else a for a, s in zip(args, specs_of(args), strict=True)]
    ys = tuple(trace.symbol(s) for s in as_tuple(op.infer(*specs_of(args), **attrs)))
    gs = tuple(trace.symbol(y.spec) for y in ys)
    vjps(op, gs, ys, symbols, attrs)
    reads = trace.reads()
    operands = tuple(k for k, s in enumerate(symbols) if getattr(s, "number", None) in reads)
    assert (operands, any(y.number in reads for y in ys)) == READS[name]


def test_a_number_needs_no_saved_tensor() -> None:
    trace = OpTrace()
    x, y, g = (trace.symbol(spec((2,), dtypes.float32)) for _ in range(3))
    TABLE["mul"].vjp[0](g, y, x, 3.0)  # type: ignore[index]
    assert trace.reads() == {g.number}


# -- views -----------------------------------------------------------------------------------


@ops(lambda op: op.put)
def test_what_is_put_is_read_again(op: Op) -> None:
    for i, (args, attrs) in enumerate(samples(op)):
        with trying(f"sample {i}"):
            _put_and_read(op, args, attrs)


def _put_and_read(op: Op, args: Any, attrs: Any) -> None:
    specs = specs_of(args)
    rng = np.random.default_rng(3)
    pieces = apply(op, args, specs, attrs, NUMPY.kernel)
    for k, piece in enumerate(pieces):
        trace = OpTrace()
        base, new = trace.symbol(specs[0]), trace.symbol(spec(piece.shape, dtypes.dtype(piece.dtype)))
        assert op.put is not None
        indices = [a for a in args[1:] if isinstance(a, np.ndarray)]
        others = [a if s.weak else trace.symbol(s) for a, s in zip(args[1:], specs[1:], strict=True)]
        out = op.put(base, new, k, *others, **attrs)
        assert out.spec is specs[0]
        fresh = rng.normal(size=piece.shape).astype(piece.dtype)
        (changed,) = run(trace, [out], [args[0], fresh, *indices], NUMPY.kernel)
        np.testing.assert_array_equal(apply(op, [changed, *args[1:]], specs, attrs, NUMPY.kernel)[k], fresh)
        (same,) = run(trace, [out], [args[0], piece, *indices], NUMPY.kernel)
        np.testing.assert_array_equal(same, args[0])


# -- indices ---------------------------------------------------------------------------------


@ops(lambda op: op.indices)
def test_bad_indices_are_found(op: Op, engine: Any) -> None:
    find_bad_indices(op, engine)


def find_bad_indices(op: Op, engine: Any) -> None:
    for i, (args, attrs) in enumerate(samples(op)):
        with trying(f"sample {i}"):
            _find_bad_indices(op, args, attrs, engine)


def _find_bad_indices(op: Op, args: Any, attrs: Any, engine: Any) -> None:
    specs = specs_of(args)
    assert op.indices is not None
    for k, (n, extra) in op.indices(*specs, **attrs).items():
        for maker in (NUMPY, engine):
            good = maker.from_bytes(args[k].tobytes(), specs[k])
            passed, flag = maker.check(op.name, good, n, extra, None)
            np.testing.assert_array_equal(to_numpy(maker, passed, specs[k]), args[k])
            assert not is_up(maker, flag) if maker.deferred and flag is not None else (passed is good and flag is None)
        for bad in (-1, n, 2**31 - 1, -(2**31)):
            if not args[k].size or bad == extra:
                continue
            wrong = args[k].copy()
            wrong[(-1,) * wrong.ndim] = bad
            with pytest.raises(IndexOutOfRange, match=rf"{op.name}: index {bad} is out of range for size {n}"):
                NUMPY.check(op.name, wrong, n, extra, None)
            there = engine.from_bytes(wrong.tobytes(), specs[k])
            if not engine.deferred:
                with pytest.raises(IndexOutOfRange, match=rf"{op.name}: index {bad} is out of range for size {n}"):
                    engine.check(op.name, there, n, extra, None)
                continue
            clamped, flag = engine.check(op.name, there, n, extra, None)
            assert is_up(engine, flag)
            fine, flag = engine.check(op.name, clamped, n, extra, flag)
            assert is_up(engine, flag), "a later good index must not lower the flag"
            arrays = to_engine(engine, args)
            arrays[k] = fine
            for r in apply(op, arrays, specs, attrs, engine.kernel):
                engine.to_bytes(r)  # the device has survived


def test_an_index_into_nothing_is_bad(engine: Any) -> None:
    index = engine.from_bytes(np.zeros(2, np.int64).tobytes(), spec((2,), dtypes.int64))
    for maker, array in ((engine, index), (NUMPY, np.zeros(2, np.int64))):
        with pytest.raises(IndexOutOfRange, match="embedding: index 0 is out of range for size 0"):
            maker.check("embedding", array, 0, None, None)
