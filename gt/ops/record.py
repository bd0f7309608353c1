"""What an op is: one frozen record that holds everything GT knows of it.

A record in a file of this folder is all it takes to add an op: inference, gradient, kernels
for every engine, its place in views and in-place writes, and the inputs it is tested with.
`gt ops`, the docs and the tests follow from the table.

An op here is canonical: dimensions are non-negative, defaults are filled in, numbers that a
loop may change are scalar operands. The forms that users type are in `gt/client/`.

Calling a record (`mul(g, y)`) hands it to whoever made the operands: the client records it,
a Trace (trace.py) writes it down. So gradients and compositions are plain functions of ops.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from gt.dtypes import DType
from gt.errors import ProgramError
from gt.program import Spec

Rng: TypeAlias = "np.random.Generator"  #: quoted, or numpy.random would be loaded
#: Operands and attributes of one test case: numpy arrays or Python numbers, then keywords.
Sample = tuple[tuple[Any, ...], dict[str, Any]]
Infer = Callable[..., Spec | tuple[Spec, ...]]
Kernel = Callable[..., Any]
#: The gradient of one argument: f(g, y, *args, **attrs). `g` and `y` are tuples where the op has
#: several results (an entry of `g` is None if that result was not used).
ArgumentVJP = Callable[..., Any] | None


@dataclass(frozen=True, slots=True)
class Autocast:
    """What autocast does with the floating-point operands of an op or function, by the kind of device it is on for.

    "lower" casts them to autocast's dtype, "float32" to float32, "widest" to the widest dtype among them. "off" casts
    nothing, and a composed function is then computed as without autocast. "" says nothing: the operands stay as they
    are, and the parts of a composed function are treated one by one. PyTorch has a list for each kind of device.
    """

    cpu: str = ""
    cuda: str = ""  #: for every other kind of device, too


LOWER = Autocast("lower", "lower")
FLOAT32 = Autocast("float32", "float32")
FLOAT32_ON_CUDA = Autocast(cuda="float32")
FLOAT32_ON_CPU = Autocast(cpu="float32")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Op:
    """See the file's header. Fields without a default cannot be forgotten."""

    name: str
    doc: str  #: one sentence, shown by `gt ops`
    #: (specs of the operands, **attrs) -> spec(s) of the result; raises the user's error.
    infer: Infer
    #: One function per operand (None: no gradient), or one function that returns a gradient or
    #: None for every operand, or None where the op has no gradient. Written in ops. The caller
    #: sums a gradient over broadcast dimensions and casts it to the operand's dtype. A tuple may
    #: leave out trailing operands that never have a gradient (numbers, indices), and name optional ones.
    vjp: tuple[ArgumentVJP, ...] | Callable[..., tuple[Any, ...]] | None
    samples: Callable[[Rng], list[Sample]]
    #: By engine. "array" serves numpy and jax: f(xp, *operands, **attrs); "numpy" and "jax" have the
    #: same form and go before it; "jax_lib" is given the jax module itself. jax compiles them with numbers as
    #: operands: where numbers must be looked at, "numbers", f(specs, **attrs), returns a function of the numbers
    #: alone that raises the user's error. "torch" is called once per instruction, f(torch, site, **attrs), and
    #: returns the function of the operands alone: what attributes and specs decide costs nothing when
    #: it runs. Without it, torch's function of that name is used. "torch_inplace" has that form too;
    #: what it returns writes its results into the operands in `inplace`, in a commit.
    #: "torch_many", f(torch, device, **attrs), returns the same for many uses at once with equal numbers: a function
    #: of rows of arrays, and the numbers, that returns the results of all rows.
    #: "torch_graph" is for graphs that are captured or compiled, where no number may be written down: of the same
    #: form, but every number comes as a tensor without dimensions on site.device (float64 for "f", int64 for "i",
    #: bool for "b"; bytes as uint8 of one dimension). It returns such a function, or a PreparedKernel, or None where
    #: this use of the op cannot be part of a graph. Needed where numbers are not just cast (see graph_kernels.py in
    #: gt/worker/engines), and where the plain kernel looks at values.
    kernels: Mapping[str, Kernel] = field(default_factory=dict)
    #: The op written in other ops. Needs no kernels, no gradient of its own.
    compose: Callable[..., Any] | None = None
    #: Users may call the record itself, by its name: `gt.softplus(x, ...)`, `x.softplus(...)`. False: the name is
    #: public only if gt/client has a function or method of that name.
    public: bool = False
    autocast: Autocast | Callable[..., Autocast] = Autocast()  #: or (**attrs) -> it
    #: The floating-point operations of one use: (*specs, **attrs) -> their number, or how many for each element of the
    #: largest operand or result. None: derived from the record (work.py).
    flops: Callable[..., int] | int | None = None
    #: Operands meet in their common dtype (dtypes.promote), or in the result's if only that is
    #: floating; array kernels get them cast to it, torch does it by itself.
    promote: bool = False
    #: Its composition is an unrolled loop. In a graph it is one call that no compiler looks into; on shards, what its
    #: rule wants whole is gathered, and the op is not expanded.
    opaque: bool = False
    #: A gradient op names the op here whose work it may go on with. Its last operands are those of that op, with the
    #: same attributes. Its kernel "torch_pair", f(torch, site of that op, **attrs), returns two functions, or None: the
    #: first computes that op and returns one more result, which is whatever the second wants of it: a list of tensors.
    #: The second computes the gradient op; it gets, after its operands, all results of the first, and may overwrite
    #: the last. A worker uses them where both ops are in one program, with the same operands.
    resumes: str = ""
    #: (*specs, **attrs) -> {operand: (n, extra)}: every element of that operand must be in [0, n), or
    #: be `extra` if that is not None (an ignore_index). The worker checks this before the kernel runs,
    #: so no kernel meets a bad index.
    indices: Callable[..., dict[int, tuple[int, int | None]]] | None = None
    #: (*specs, **attrs) -> {result: n}: every element of that result is an index in [0, n), so that whoever
    #: uses it as one need not check it.
    ranges: Callable[..., dict[int, int]] | None = None
    #: (*specs, **attrs) -> {result: f}: the same where numbers decide. f(*the number operands, as Python numbers or
    #: bytes) is n, or -1 if nothing is known. Results of which `ranges` says nothing.
    spans: Callable[..., dict[int, Callable[..., int]]] | None = None
    #: Operands, or (*specs, **attrs) -> them: if all elements of these are in [0, n), so are all elements of every
    #: result of which `ranges` and `spans` say nothing, for every n > 0. Of an op that `moves`: all its tensors. So an
    #: index that was made of indices in range need not be checked. Integers that the result's dtype cannot hold do
    #: not count.
    keeps: tuple[int, ...] | Callable[..., Sequence[int]] = ()
    #: Makes the op a view of its first operand: put(base, new, k, *other operands, **attrs) is the base
    #: after `new` was written to the view (its result k).
    put: Callable[..., Any] | None = None
    #: The kernel may return memory of its first operand; where there is a `put`, it may always.
    aliases: bool = False
    #: Operand numbers that "torch_inplace" overwrites, one per result.
    inplace: tuple[int, ...] = ()
    # -- how it runs on shards; without any of these fields every operand must be whole (sharding.py has the language)
    #: The sharding rule, such as "m k, k n -> m n", or (*specs, **attrs) -> the rule, None where there is none. Every
    #: operand has its place in it, numbers too (an empty one); one place on the right serves all results.
    factors: str | Callable[..., str | None] | None = None
    #: Groups of operands in which the op is linear when the others stay: those of a group may be partial sums
    #: together, one group at a time. Or (*specs, **attrs) -> the groups.
    linear: tuple[tuple[int, ...], ...] | Callable[..., tuple[tuple[int, ...], ...]] = ()
    #: It only moves elements: if all operands are partial, of any kind, so are the results.
    moves: bool = False
    #: (*specs, **attrs) -> {factor: f(operand, lo, hi) -> (lo, hi, border)}: which part of an operand's `~` dimension
    #: the results at [lo, hi) of the factor need. Beyond the operand stand zeros (border "zero"), its other end
    #: ("wrap") or nothing ("clip").
    window: Callable[..., dict[str, Callable[[int, int, int], tuple[int, int, str]]]] | None = None
    #: (shard, *operands, **attrs) -> the results, in ops: what runs on a shard (shard.py) where that is not the op
    #: itself with the same attributes.
    local: Callable[..., Any] | None = None
    #: (*specs, **attrs) -> (factor, first, last): two phases over a factor that otherwise must be whole; None for
    #: uses without them. first(shard, *operands, **attrs) -> (kept, sent), two tuples; what all parts send
    #: is put together, in order, along a new first dimension; last(shard, kept, gathered, **attrs) -> the results.
    merge: Callable[..., tuple[str, Callable[..., Any], Callable[..., Any]] | None] | None = None
    #: Like compose, for shards only: the op in ops that have rules, for splits that its own rule does not take.
    parts: Callable[..., Any] | None = None
    #: The workers of its attribute `workers` run it together: see collective.py. Only the planner may write it.
    collective: bool = False
    #: Its attribute `layout` is the layout of its result on the session's mesh.
    pins: bool = False

    @property
    def expands(self) -> bool:
        """Whether it is run on shards as other ops, where its own rule does not take a split."""
        return self.parts is not None or (self.compose is not None and not self.opaque)

    def __call__(self, *args: Any, **attrs: Any) -> Any:
        for a in args:
            maker = getattr(a, "_apply", None)
            if maker is not None:
                return maker(self, args, attrs)
        raise TypeError(f"{self.name}: expected at least one tensor")

    def __repr__(self) -> str:
        return f"<op {self.name}>"


@dataclass(frozen=True, slots=True)
class Site:
    """Where a torch kernel is going to run, and on what."""

    device: str
    specs: tuple[Spec, ...]  #: of the operands
    results: tuple[Spec, ...]


@dataclass(frozen=True, slots=True)
class PreparedKernel:
    """A graph kernel whose numbers are worked on by the host first, at every call."""

    #: The op's number operands in order (Python numbers, bytes) -> the numbers that the kernel gets; raises the
    #: user's error if they are wrong.
    numbers: Callable[..., tuple[Any, ...]]
    kinds: str  #: of those numbers: letters of program.SCALARS ("f", "i", "b")
    kernel: Kernel  #: (the op's tensor operands in order, *those numbers as tensors without dimensions) -> result(s)


def unfit(torch: Any, site: Site, **attrs: Any) -> None:
    """The "torch_graph" of an op whose kernel looks at values or waits for the device: no graph can hold it."""


TABLE: dict[str, Op] = {}


class _Names:
    """`ops.mul` is the record of that name, looked up when used: families may need each other."""

    def __getattr__(self, name: str) -> Op:
        try:
            return TABLE[name]
        except KeyError:
            raise AttributeError(f"no op {name!r}") from None


ops = _Names()


def op(name: str, doc: str, **fields: Any) -> Op:
    """Make a record and enter it in the table. Called at import, never later."""
    if name in TABLE:
        raise ProgramError(f"op {name} is defined twice")
    record = Op(name=name, doc=doc, **{"aliases": "put" in fields, **fields})
    TABLE[name] = record
    return record


def attributes(op: Op) -> tuple[str, ...]:
    """The names of an op's attributes, in the order in which its inference takes them, or else its composition."""
    for f in (op.infer, op.compose):
        code = getattr(f, "__code__", None)
        if code is not None and not code.co_flags & inspect.CO_VARKEYWORDS:  # a plain function: this is quicker
            names: tuple[str, ...] = code.co_varnames
            return names[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
        parameters = inspect.signature(f).parameters.values() if f is not None else ()
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            return tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)
    raise AttributeError(f"{op.name}: neither its inference nor its composition names its attributes")


def each_of(*cases: Any, **attrs: Any) -> list[Sample]:
    """Samples with the same attributes. A case is the operand, or a tuple of operands."""
    return [(case if isinstance(case, tuple) else (case,), dict(attrs)) for case in cases]


def fill(like: Any, value: float, shape: tuple[int, ...], dtype: DType) -> Any:
    """A new constant, recorded by whoever made `like`; nothing of `like` is read."""
    return like._apply(TABLE["full"], (value,), {"shape": shape, "dtype": dtype.name})


def zeros(like: Any) -> Any:
    """Zeros of the shape and dtype of `like`."""
    return fill(like, 0.0, like.shape, like.dtype)


def conj(x: Any) -> Any:
    """The complex conjugate; x itself where it is real, or a number. Gradients of complex ops are written with it."""
    dtype = getattr(x, "dtype", None)
    return TABLE["conj"](x) if dtype is not None and dtype.is_complex else x


def tensors(args: Iterable[Any]) -> list[Any]:
    """The operands that are tensors, whoever made them."""
    return [a for a in args if hasattr(a, "_apply")]
