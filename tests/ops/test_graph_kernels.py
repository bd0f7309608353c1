"""Every op in a graph: traced with some numbers, then run with others.

A number that was written down in the graph gives the result of the first numbers, and fails. The tracing is the one
that captured and compiled programs go through (make_fx, on fake tensors), which refuses kernels that look at values.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from gt import dtypes
from gt.errors import ArgumentError, IndexOutOfRange
from gt.ops import TABLE, Op
from gt.ops.evaluate import apply, expand
from gt.ops.families import bits
from gt.ops.families.slice import Cut
from gt.ops.record import PreparedKernel
from gt.ops.trace import Symbol, scalar_kind
from gt.program import SCALARS, Spec, as_tuple, spec
from gt.worker.engines.graph_kernels import Unfit, graph_kernel
from gt.worker.engines.torch import TorchEngine
from tests.ops.cases import as_dtype, samples, specs_of, to_engine, to_numpy
from tests.ops.test_table import TOLERANCE, close, has_floats

ENGINE = TorchEngine("cpu")

#: Ops that no graph holds: they check values, factor matrices (which waits for a GPU), or are torch's own functions.
UNFIT = {
    "cholesky_solve", "linalg_check", "linalg_cholesky_ex", "linalg_cofactor", "linalg_det", "linalg_eig",
    "linalg_eigh", "linalg_inv_ex", "linalg_lu_factor_ex", "linalg_matrix_exp", "linalg_pinv", "linalg_qr",
    "linalg_slogdet", "linalg_solve_ex", "linalg_svd", "lu_permutation", "torch_call", "torch_op", "torch_op_dx",
    "torch_probe",
}  # fmt: skip


#: Operands and attributes of one use.
Case = tuple[Sequence[Any], dict[str, Any]]


class Scalar(NamedTuple):
    """A number operand of the op under test; a bare Python number is one that a composition wrote down."""

    k: int


class Graph:
    """One use of an op as a function of tensors: its own, then the numbers, which the host makes at every call."""

    def __init__(self, op: Op, attrs: dict[str, Any], specs: Sequence[Spec]) -> None:
        self.kinds = [_letter(s) for s in specs if s.weak]
        self.tensors = [k for k, s in enumerate(specs) if not s.weak]
        self.numbers: list[Callable[[Sequence[Any]], Any]] = []
        self.number_kinds = ""
        #: (kernel, operands, results): an operand is the number of a value, (k,) of a passed number, or itself.
        self.steps: list[tuple[Callable[..., Any], list[Any], list[int]]] = []
        self.specs: dict[int, Spec] = {k: s for k, s in enumerate(specs) if not s.weak}
        scalars = iter(range(len(self.kinds)))
        operands = [Value(k) if not s.weak else Scalar(next(scalars)) for k, s in enumerate(specs)]
        self.count = len(specs)
        self.results = self.emit(op, operands, attrs)

    def emit(self, op: Op, args: Sequence[Any], attrs: dict[str, Any]) -> list[Value]:
        specs = [self.spec(a) for a in args]
        numbers = [a for a in args if not isinstance(a, Value)]
        literal = bool(numbers) and not any(isinstance(a, Scalar) for a in numbers)
        kernel: Any = graph_kernel(ENGINE, op, attrs, specs, constant=literal)
        if kernel is None:
            trace, results = expand(op, specs, attrs)
            env: dict[int, Any] = dict(enumerate(args))
            for part, inner, part_attrs, made in trace.code:
                given = [env[a.number] if isinstance(a, Symbol) else a for a in inner]
                env.update(zip(made, self.emit(part, given, part_attrs), strict=True))
            return [env[r.number] for r in results]
        if isinstance(kernel, PreparedKernel):
            assert not literal
            first = len(self.numbers)
            for j in range(len(kernel.kinds)):
                self.numbers.append(_prepared(kernel, numbers, j))
            self.number_kinds += kernel.kinds
            passed = [Passed(first + j) for j in range(len(kernel.kinds))]
            kernel, args = kernel.kernel, [*(a for a in args if isinstance(a, Value)), *passed]
        elif not literal:
            args = [a if isinstance(a, Value) else self.passed(a) for a in args]
        made_specs = as_tuple(op.infer(*specs, **attrs))
        values = [Value(self.count + i) for i in range(len(made_specs))]
        self.count += len(values)
        self.specs.update({v.number: s for v, s in zip(values, made_specs, strict=True)})
        self.steps.append((kernel, list(args), [v.number for v in values]))
        return values

    def passed(self, number: Any) -> Passed:
        """One of the numbers of the use as it is, or a constant."""
        k = number.k if isinstance(number, Scalar) else None
        self.numbers.append(operator.itemgetter(k) if k is not None else lambda scalars: number)
        self.number_kinds += self.kinds[k] if k is not None else scalar_kind(number)
        return Passed(len(self.numbers) - 1)

    def spec(self, a: Any) -> Spec:
        if isinstance(a, Value):
            return self.specs[a.number]
        return SCALARS[self.kinds[a.k] if isinstance(a, Scalar) else scalar_kind(a)]

    def inputs(self, args: Sequence[Any]) -> list[torch.Tensor]:
        """What the function takes: the tensors among the operands, and what the host makes of the numbers."""
        scalars = [a for a in args if not isinstance(a, torch.Tensor)]
        numbers = [f(scalars) for f in self.numbers]
        return [
            *(a for a in args if isinstance(a, torch.Tensor)),
            *(_tensor(n, kind) for n, kind in zip(numbers, self.number_kinds, strict=True)),
        ]

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = dict(zip(self.tensors, inputs, strict=False))
        numbers = inputs[len(self.tensors) :]
        for kernel, args, results in self.steps:
            given = [
                values[a.number] if isinstance(a, Value) else numbers[a.number] if isinstance(a, Passed) else a
                for a in args
            ]
            made = kernel(*given)
            values.update(zip(results, made if isinstance(made, tuple | list) else (made,), strict=True))
        return tuple(values[r.number] for r in self.results)


class Value(NamedTuple):
    number: int


class Passed(NamedTuple):
    number: int


def _prepared(kernel: PreparedKernel, numbers: list[Any], j: int) -> Callable[[Sequence[Any]], Any]:
    return lambda scalars: kernel.numbers(*[scalars[n.k] if isinstance(n, Scalar) else n for n in numbers])[j]


def _letter(s: Spec) -> str:
    return next(letter for letter, scalar in SCALARS.items() if scalar is s)


def _tensor(number: Any, kind: str) -> torch.Tensor:
    if kind == "d":
        return torch.tensor(list(number), dtype=torch.uint8)
    return torch.tensor(number, dtype={"f": torch.float64, "i": torch.int64, "b": torch.bool}[kind])


# -- other numbers ---------------------------------------------------------------------------


def others(op: Op, args: Sequence[Any], attrs: dict[str, Any]) -> list[Any]:
    """The operands with other numbers of the same kinds."""
    given = [a for a in args if not isinstance(a, np.ndarray)]
    if op.name in ("slice", "slice_put", "slice_dx"):
        cut = Cut("slice", **{"shape": getattr(args[0], "shape", None), **attrs})
        new: list[Any] = [(s + 1) % n for s, n in zip(given, cut.limits, strict=True)]
    elif op.name == "randint":
        new = [given[0] + 1, given[1] + 1, given[2]]
    elif op.name == "data":
        flat = np.frombuffer(given[0], dtypes.BY_NAME[attrs["dtype"]].numpy)
        new = [np.flip(flat == 0 if attrs["dtype"] == "bool" else flat).tobytes()]
    else:
        new = [_other(n) for n in given]
    rest = iter(new)
    return [a if isinstance(a, np.ndarray) else next(rest) for a in args]


def _other(n: Any) -> Any:
    if isinstance(n, bool):
        return not n
    if isinstance(n, int):
        return n + 1 if n < 2**63 - 1 else n - 1
    return n * 0.75 + 0.01


# -- every op --------------------------------------------------------------------------------


class Uses:
    """Some uses of an op, traced together: one graph of many costs less time than many."""

    def __init__(self, op: Op, cases: Sequence[Case]) -> None:
        self.op = op
        self.graphs = [Graph(op, attrs, specs_of(args)) for args, attrs in cases]
        self.module = make_fx(self._run, tracing_mode="fake")(*chain.from_iterable(self._inputs(cases)))
        baked = [node.name for node in self.module.graph.nodes if node.op == "get_attr"]
        assert not baked, f"host data in the graph: {baked}"

    def _inputs(self, cases: Sequence[Case]) -> list[list[torch.Tensor]]:
        return [g.inputs(to_engine(ENGINE, args)) for g, (args, _) in zip(self.graphs, cases, strict=True)]

    def _run(self, *inputs: torch.Tensor) -> list[tuple[torch.Tensor, ...]]:
        rest = iter(inputs)
        return [g(*[next(rest) for _ in range(len(g.tensors) + len(g.numbers))]) for g in self.graphs]

    def compare(self, cases: Sequence[Case], dtype: str) -> None:
        """What the graph makes against the plain kernel."""
        inputs = self._inputs(cases)
        before = [[x.clone() for x in use] for use in inputs]
        made = self.module(*chain.from_iterable(inputs))
        for (args, attrs), results, used, untouched in zip(cases, made, inputs, before, strict=True):
            self._compare(args, attrs, results, dtype)
            for a, b in zip(used, untouched, strict=True):
                assert torch.equal(a, b) or torch.equal(a.nan_to_num(), b.nan_to_num())
            if not self.op.aliases:
                own = {x.untyped_storage().data_ptr() for x in used if x.numel()}
                assert not own & {r.untyped_storage().data_ptr() for r in results if r.numel()}

    def _compare(self, args: Sequence[Any], attrs: dict[str, Any], made: Any, dtype: str) -> None:
        specs = specs_of(args)
        plain = apply(self.op, to_engine(ENGINE, args), specs, attrs, ENGINE.kernel)
        for s, a, b in zip(as_tuple(self.op.infer(*specs, **attrs)), made, plain, strict=True):
            assert tuple(a.shape) == s.shape
            assert a.dtype is getattr(torch, s.dtype.name)
            if self.op.name in EXACT:
                assert torch.equal(a, b)
                continue
            coarse = max(dtype, s.dtype.name, key=lambda d: TOLERANCE.get(d, (0, 0)))
            close(to_numpy(ENGINE, a, s), to_numpy(ENGINE, b, s), coarse)


#: Their results are the same bits as the plain kernel's.
EXACT = ("rand", "randint", "randperm", "dropout", "slice", "slice_put", "slice_dx", "data", "full", "pad", "eq", "lt")

FIT = [op for op in TABLE.values() if op.name not in UNFIT]


def has_numbers(op: Op) -> bool:
    return any(s.weak for args, _ in samples(op) for s in specs_of(args))


DTYPES = [(op, d) for op in FIT for d in ("float32", "float64", "bfloat16") if d == "float32" or has_numbers(op)]


@pytest.mark.parametrize(("op", "dtype"), DTYPES, ids=lambda x: getattr(x, "name", x))
def test_a_graph_holds_no_number(op: Op, dtype: str) -> None:
    """Samples without numbers, or without floats, are traced once."""
    cases: list[Case] = [
        (as_dtype(args, dtype), attrs)
        for args, attrs in samples(op)
        if dtype == "float32" or (has_floats(args) and any(s.weak for s in specs_of(args)))
    ]
    uses = Uses(op, cases)
    uses.compare(cases, dtype)
    if has_numbers(op):
        uses.compare([(others(op, args, attrs), attrs) for args, attrs in cases], dtype)


def test_the_unfit_are_these() -> None:
    found = set()
    for op in TABLE.values():
        for args, attrs in samples(op):
            try:
                Graph(op, attrs, specs_of(args))
            except Unfit:
                found.add(op.name)
    assert found == UNFIT


def test_a_number_that_was_written_down_is_found() -> None:
    """The test above can fail."""
    kernels = {"torch": lambda torch, site: lambda x, s: x * s, "torch_graph": lambda torch, site: lambda x, s: x * 2.0}
    op = Op(name="bad", doc="", infer=lambda x, s: x, vjp=None, samples=lambda rng: [], kernels=kernels)
    case: Case = ((np.arange(3.0), 2.0), {})
    uses = Uses(op, [case])
    uses.compare([case], "float64")
    with pytest.raises(AssertionError):
        uses.compare([(others(op, *case), {})], "float64")


# -- what the samples do not reach -----------------------------------------------------------


def _run(name: str, args: Sequence[Any], dtype: str, **attrs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """An op's result in a graph, and by its plain kernel."""
    op, args = TABLE[name], as_dtype(args, dtype)
    arrays = to_engine(ENGINE, args)
    graph = Graph(op, attrs, specs_of(args))
    (made,) = graph(*graph.inputs(arrays))
    (plain,) = apply(op, arrays, specs_of(args), attrs, ENGINE.kernel)
    return made, plain


NEAR = np.linspace(-3, 3, 601)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["mul", "div"])
def test_a_number_is_not_rounded_to_a_narrow_type(name: str, dtype: str) -> None:
    assert torch.equal(*_run(name, (NEAR, 1.1), dtype))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge", "remainder", "fmod", "floor_divide", "nextafter"])
def test_a_number_that_decides_is_rounded_as_torch_does(name: str, dtype: str) -> None:
    near = np.array([1.1, -1.1, 2.2, *NEAR])
    for args in ((near, 1.1), (1.1, near[near != 0])):
        assert torch.equal(*_run(name, args, dtype))


def test_the_host_refuses_wrong_numbers() -> None:
    x = spec((4,), dtypes.float32)
    attrs = {"dims": (0,), "lengths": (2,), "steps": (1,), "drop": ()}
    kernel = graph_kernel(ENGINE, TABLE["slice"], attrs, [x, SCALARS["i"]])
    assert isinstance(kernel, PreparedKernel)
    assert kernel.numbers(2) == (2,)
    with pytest.raises(IndexOutOfRange, match="slice: 2 elements from 3 exceed dimension 0 of size 4"):
        kernel.numbers(3)
    kernel = graph_kernel(ENGINE, TABLE["randint"], {"shape": (2,), "dtype": "int64"}, [SCALARS["i"]] * 3)
    assert isinstance(kernel, PreparedKernel)
    with pytest.raises(ArgumentError, match="low must be < high, got 5 and 5"):
        kernel.numbers(1, 5, 5)


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_a_step_of_zero_is_no_error_of_the_host(name: str) -> None:
    p = spec((2,), dtypes.float32)
    kernel = graph_kernel(ENGINE, TABLE[name], {}, [p] * 4 + [SCALARS["f"]] * 5 + [SCALARS["i"]])
    assert isinstance(kernel, PreparedKernel)
    assert len(kernel.numbers(0.1, 0.9, 0.99, 1e-8, 0.0, 0)) == len(kernel.kinds)


def test_random_bits_of_more_positions_than_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """With small blocks: 2 ** 31 numbers would take a while."""
    monkeypatch.setattr(bits, "BLOCK", 8)
    for n in (8, 9, 24, 30):
        keys = [_tensor(k, "i") for k in bits.key_numbers(n, 5, 2)]
        assert len(keys) == len(bits.key_kinds(n, 2))
        for stream in (0, 1):
            plain = bits.bits_torch(torch, n, 5, "cpu", stream)
            assert torch.equal(bits.bits_graph(torch, n, keys, "cpu", stream), plain)
