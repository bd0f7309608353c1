"""The engine on jax. The only file that imports jax.

Law 1: XLA compiles every kernel once: attributes are constants, numbers are operands, so a learning
       rate that changes compiles nothing anew. A program that repeats is compiled as a whole, in the background.
Law 2: no kernel gets a bad index. jax would clamp it silently, so it is checked first; in a whole
       program the check runs along with the rest, and if an index is bad the results are dropped.

A kernel that needs the value of a number cannot be compiled: it runs eagerly, and so do the programs that use it.
Arrays are immutable: nothing is overwritten, and a donated input is freed when its last reader is done.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import jax.nn
import jax.numpy as jnp
import jax.scipy.special
import numpy as np

from gt.errors import GTError, IndexOutOfRange, StartError
from gt.ops.record import Op
from gt.program import Spec, as_tuple
from gt.transport.messages import Buffer
from gt.worker.engines.borrowing import borrow
from gt.worker.engines.numpy import casts
from gt.worker.run.engine import Engine, bad_indices

HOT = 3  #: A program is compiled as a whole at this run.
KERNELS = 2048  #: Kernels that are kept for other programs.

#: What tracing raises where a kernel needs the value of a number, or gets bytes.
_LOOKED = (jax.errors.JAXTypeError, jax.errors.JAXIndexError, TypeError)


class JaxEngine(Engine):
    """See `gt.worker.run.engine.Engine`."""

    name = "jax"
    by_line = 1  #: It compiles what was written.

    def __init__(self, device: str = "") -> None:
        jax.config.update("jax_enable_x64", True)
        jax.config.update("jax_default_matmul_precision", "highest")  # float32 is float32, as in torch
        jax.config.update("jax_cpu_enable_async_dispatch", False)  # a call that has returned is done
        kind, _, number = device.partition(":")
        if kind == "auto":  # that GPU, if jax can use one
            kind, number = ("", number) if jax.default_backend() == "gpu" else ("cpu", "0")
        try:
            self._device = jax.devices({"": None, "cuda": "gpu"}.get(kind, kind))[int(number or 0)]
        except (RuntimeError, ValueError, IndexError):
            raise StartError(f"device {device!r}: jax has no such device; use --device cpu") from None
        jax.config.update("jax_default_device", self._device)
        self._on_host = self._device.platform == "cpu"
        self.device = "cpu" if self._on_host else f"cuda:{self._device.id}"
        stats = {} if self._on_host else self._device.memory_stats() or {}
        self.memory: int = stats.get("bytes_limit") or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self._kernels: dict[Any, Callable[..., Any] | None] = {}
        #: Compiles whole programs, one at a time.
        self.compiler = ThreadPoolExecutor(1, thread_name_prefix="xla")
        #: `bad`: what checks have found, in a thread that traces a program.
        self._tracing = threading.local()

    def kernel(
        self, op: Op, attrs: dict[str, Any], operands: Sequence[Spec], inplace: bool = False
    ) -> Callable[..., Any] | None:
        if inplace:
            return None
        key = (op, repr(attrs), *operands)
        if key not in self._kernels:
            while len(self._kernels) >= KERNELS:
                del self._kernels[next(iter(self._kernels))]
            self._kernels[key] = _make_kernel(op, attrs, operands)
        return self._kernels[key]

    def whole(self, run: Callable[..., Any], steps: Sequence[Any]) -> Callable[..., Any]:
        return WholeProgram(self, run, steps)

    def trace(self, run: Callable[..., Any], arrays: Sequence[Any], scalars: Sequence[Any]) -> tuple[Any, Any]:
        """A program's results, and whether an index in it is bad. Called by jax's tracer."""
        bad: list[Any] = []
        self._tracing.bad = bad
        results, _ = run(list(arrays), tuple(scalars))
        return results, jnp.stack(bad).any() if bad else False

    def from_bytes(self, data: Buffer, spec: Spec, given: bool = False) -> Any:
        array = np.frombuffer(data, spec.dtype.numpy).reshape(spec.shape)
        return jax.device_put(array if given else array.copy())  # which may use the memory without a copy

    def to_bytes(self, array: Any, borrow: bool = False) -> memoryview:
        # Perhaps the array's own memory: it is immutable.
        return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data

    def own(self, array: Any) -> Any:
        return array  # it is immutable

    def dense(self, array: Any) -> Any:
        return array

    def check(self, op: str, index: Any, n: int, extra: int | None, flag: Any) -> tuple[Any, Any]:
        traced = isinstance(index, jax.core.Tracer)
        seen = index if traced else np.asarray(index)
        bad = bad_indices(seen, n, extra)
        if traced:
            self._tracing.bad.append(bad.any())
        elif bad.any():
            raise IndexOutOfRange(f"{op}: index {seen[bad].flat[0]} is out of range for size {n}")
        return index, None

    def mark(self) -> Any:
        # A device works in order: when a number made now is there, everything before it is.
        return None if self._on_host else jnp.add(0, 1)

    def passed(self, mark: Any, wait: bool = False) -> bool:
        if mark is None:
            return True
        if wait:
            mark.block_until_ready()
        return bool(mark.is_ready())

    def use(self, session: int) -> None:
        return

    def out_of_memory(self, error: BaseException) -> bool:
        if isinstance(error, MemoryError):
            return True
        return isinstance(error, RuntimeError) and "RESOURCE_EXHAUSTED" in str(error)


# --- kernels ---------------------------------------------------------------------------------------------------------


def _make_kernel(op: Op, attrs: dict[str, Any], operands: Sequence[Spec]) -> Callable[..., Any] | None:
    sources = (("jax", jnp), ("jax_lib", jax), ("array", jnp))
    library, f = next(((lib, op.kernels[name]) for name, lib in sources if name in op.kernels), (None, None))
    if f is None:
        borrowed = borrow(op, attrs, operands)
        return None if borrowed is None else lambda *args: jax.tree.map(jnp.asarray, borrowed(*args))
    results = [s.dtype.numpy for s in as_tuple(op.infer(*operands, **attrs))]
    cast = casts(op, operands, results)
    attrs = {k: tuple(v) if isinstance(v, list) else v for k, v in attrs.items()}

    def run(*args: Any) -> Any:
        if cast is not None:
            args = tuple(a if c is None else jnp.asarray(a).astype(c) for a, c in zip(args, cast, strict=True))
        made = f(library, *args, **attrs)
        if len(results) == 1:
            return jnp.asarray(made, results[0])
        return tuple(jnp.asarray(m, d) for m, d in zip(made, results, strict=True))

    compiled = jax.jit(run, inline=True)  # inline: it can be fused in a whole program
    if not any(s.weak for s in operands):
        return compiled
    look = op.kernels.get("numbers")
    return Numbered(run, compiled, operands, None if look is None else look(tuple(operands), **attrs))


class Numbered:
    """A kernel that takes numbers: compiled, if that is possible without their values."""

    def __init__(
        self,
        plain: Callable[..., Any],
        compiled: Callable[..., Any],
        operands: Sequence[Spec],
        look: Callable[..., Any] | None,
    ) -> None:
        self.look = look  #: Raises if the numbers are wrong.
        self.numbers = [i for i, s in enumerate(operands) if s.weak]  #: Positions of the operands that it checks.
        self._plain = plain
        self._compiled: Callable[..., Any] | None = compiled

    def __call__(self, *args: Any) -> Any:
        if any(isinstance(a, jax.core.Tracer) for a in args):
            return self._plain(*args)  # part of a whole program, which has checked the numbers
        if self.look is not None:
            self.look(*[args[i] for i in self.numbers])
        args = with_bytes(args)
        if self._compiled is not None:
            try:
                return self._compiled(*args)
            except GTError:
                raise
            except _LOOKED:
                self._compiled = None
        return self._plain(*args)


# --- programs --------------------------------------------------------------------------------------------------------


class WholeProgram:
    """A program: step by step at first, and compiled by XLA as one function when it has run a few times.

    If the one function fails, the steps are run instead: their lines tell which one failed.
    """

    def __init__(self, engine: JaxEngine, plain: Callable[..., Any], steps: Sequence[Any]) -> None:
        self.compiling: Future[None] | None = None
        self._engine = engine
        self._plain = plain
        self._runs = 0
        self._compiled: Callable[..., Any] | None = None
        #: Functions that check numbers, and which ones: ~k for scalar k, or a literal.
        self._looks = [
            (s.kernel.look, [s.args[i] for i in s.kernel.numbers]) for s in steps if getattr(s.kernel, "look", None)
        ]

    def __call__(self, arrays: list[Any], scalars: tuple[Any, ...]) -> tuple[tuple[Any, ...], Any]:
        if self._compiled is None:
            self._runs += 1
            if self._runs == HOT:
                shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays]
                self.compiling = self._engine.compiler.submit(self._compile, shapes, with_bytes(scalars))
            return self._plain(arrays, scalars)
        try:
            for look, numbers in self._looks:
                look(*[scalars[~a] if isinstance(a, int) else a.value for a in numbers])
            results, bad = self._compiled(arrays, with_bytes(scalars))
            if not bad:
                arrays.clear()
                return tuple(results), None
        except Exception:
            pass  # the steps fail as well, or they succeed with less memory
        return self._plain(arrays, scalars)

    def _compile(self, shapes: list[Any], scalars: tuple[Any, ...]) -> None:
        compiled = jax.jit(lambda arrays, scalars: self._engine.trace(self._plain, arrays, scalars))
        try:
            compiled.lower(shapes, scalars).compile()
        except Exception:
            return  # a kernel needs the value of a number, or XLA cannot compile it: it goes on step by step
        self._compiled = compiled


def with_bytes(scalars: tuple[Any, ...]) -> tuple[Any, ...]:
    """The scalars with host data as arrays of bytes, which jax accepts."""
    return tuple(np.frombuffer(s, np.uint8) if isinstance(s, bytes) else s for s in scalars)
