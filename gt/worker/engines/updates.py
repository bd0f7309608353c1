"""Optimizer steps of a captured program: one CUDA kernel that overwrites many arrays, made from the op's formula.

Law 1: the formula is the op's own graph kernel. It is called once with `Term`s, which write down what is done to them
       in C; NVRTC, which comes with torch, compiles that. No op is named here.
Law 2: the numbers of a call are read from the buffer on the device, as everything in a graph reads them.
Law 3: if the flag of a call is set, nothing is written.

So optimizer steps need not be compiled with each program: a kernel is made once in a worker, in a fraction of a second,
and serves all programs.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch

from gt import dtypes
from gt.ops.record import Op, PreparedKernel, Site
from gt.program import Spec, as_tuple

THREADS = 256
TABLE_NBYTES = 4000  #: Kernels take at most 4 KiB of arguments: so many arrays go into one launch.
BLOCKS = 2048  #: Enough to keep a device busy. Larger arrays have larger chunks,
CHUNK = 1024, 65536  #: between these numbers of elements for a block.

#: C types in memory, and the functions that read and write them as the type that is computed with.
_TYPES = {
    dtypes.float32: ("float", "float"),
    dtypes.float64: ("double", "double"),
    dtypes.float16: ("Half", "float"),
    dtypes.bfloat16: ("Brain", "float"),
}

_SOURCE = """
struct Half { unsigned short bits; };
struct Brain { unsigned short bits; };
__device__ float read(float x) { return x; }
__device__ double read(double x) { return x; }
__device__ float read(Half x) { float y; asm("cvt.f32.f16 %%0, %%1;" : "=f"(y) : "h"(x.bits)); return y; }
__device__ float read(Brain x) { return __uint_as_float((unsigned int)x.bits << 16); }
__device__ void write(float& y, float x) { y = x; }
__device__ void write(double& y, double x) { y = x; }
__device__ void write(Half& y, float x) { asm("cvt.rn.f16.f32 %%0, %%1;" : "=h"(y.bits) : "f"(x)); }
__device__ void write(Brain& y, float x) {
  unsigned int bits = __float_as_uint(x);
  y.bits = x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;  // to nearest even
}
// As torch: a nan stays one.
__device__ float larger(float a, float b) { return a != a || a > b ? a : b; }
__device__ double larger(double a, double b) { return a != a || a > b ? a : b; }

typedef %(memory)s Memory;
typedef %(wide)s Wide;
struct alignas(4 * sizeof(Memory)) Four { Memory x[4]; };
struct Table {
  void* at[%(tensors)d][%(rows)d];
  long long size[%(rows)d];
  int first[%(rows)d];  // the first block of each row
  int rows, chunk, aligned;
};

__device__ void formula(%(parameters)s) {
%(body)s
}

extern "C" __global__ void __launch_bounds__(%(threads)d) update(
    const Table table, const double* numbers, const bool* flag) {
  if (flag != nullptr && *flag) return;
  int row = 0, last = table.rows - 1;
  while (row < last) {
    const int middle = (row + last + 1) / 2;
    if (table.first[middle] <= (int)blockIdx.x) row = middle; else last = middle - 1;
  }
  const long long begin = (long long)((int)blockIdx.x - table.first[row]) * table.chunk;
  const long long end = min(table.size[row], begin + table.chunk);
%(pointers)s
  for (long long i = begin + 4 * threadIdx.x; i < end; i += 4 * %(threads)d) {
    Four %(fours)s;
    const int count = (int)min(end - i, 4LL);
    if (table.aligned && count == 4) {
%(load)s
    } else {
      for (int k = 0; k < count; k++) { %(load_one)s }
    }
    for (int k = 0; k < 4; k++) {
      Wide %(wides)s;
%(compute)s
    }
    if (table.aligned && count == 4) {
%(store)s
    } else {
      for (int k = 0; k < count; k++) { %(store_one)s }
    }
  }
}
"""


class NoFormula(Exception):
    """The op's graph kernel does something that is not known in C."""


class Term:
    """A number in a C function that is being written."""

    def __init__(self, lines: list[str], text: str) -> None:
        self._lines, self.text = lines, text

    def _new(self, text: str) -> Term:
        name = f"t{len(self._lines)}"
        self._lines.append(f"  const Wide {name} = {text};")
        return Term(self._lines, name)

    def to(self, dtype: str) -> Term:
        return self  # computed in the wide type, and cast when it is stored

    def __add__(self, other: Any) -> Term:
        return self._new(f"{self.text} + {_c(other)}")

    def __radd__(self, other: Any) -> Term:
        return self._new(f"{_c(other)} + {self.text}")

    def __sub__(self, other: Any) -> Term:
        return self._new(f"{self.text} - {_c(other)}")

    def __rsub__(self, other: Any) -> Term:
        return self._new(f"{_c(other)} - {self.text}")

    def __mul__(self, other: Any) -> Term:
        return self._new(f"{self.text} * {_c(other)}")

    def __rmul__(self, other: Any) -> Term:
        return self._new(f"{_c(other)} * {self.text}")

    def __truediv__(self, other: Any) -> Term:
        return self._new(f"{self.text} / {_c(other)}")

    def __rtruediv__(self, other: Any) -> Term:
        return self._new(f"{_c(other)} / {self.text}")

    def call(self, function: str, *others: Any) -> Term:
        return self._new(f"{function}({', '.join([self.text, *map(_c, others)])})")


def _c(x: Any) -> str:
    if isinstance(x, Term):
        return x.text
    if isinstance(x, int | float):
        return f"(Wide){float(x)!r}"
    raise NoFormula(f"a {type(x).__name__} in a formula")


class _Functions:
    """What formulas use of torch."""

    float16, float32, float64, bfloat16 = "float16", "float32", "float64", "bfloat16"

    @staticmethod
    def sqrt(x: Term) -> Term:
        return x.call("sqrt")

    @staticmethod
    def maximum(x: Term, y: Term) -> Term:
        return x.call("larger", y)

    def __getattr__(self, name: str) -> Any:
        raise NoFormula(f"torch.{name} in a formula")


def source(op: Op, attrs: dict[str, Any], operands: Sequence[Spec]) -> tuple[str, PreparedKernel]:
    """The C of an op's kernel, and how its numbers are made of those of a call. Raises NoFormula."""
    make = op.kernels.get("torch_graph")
    arrays = [s for s in operands if not s.weak]
    if make is None or not arrays or arrays[0].dtype not in _TYPES:
        raise NoFormula(f"{op.name}: has no formula")
    if any(s.dtype is not arrays[0].dtype or s.shape != arrays[0].shape for s in arrays):
        raise NoFormula(f"{op.name}: its arrays have several dtypes or shapes")
    prepared = make(_Functions(), Site("cuda", tuple(operands), as_tuple(op.infer(*operands, **attrs))), **attrs)
    if not isinstance(prepared, PreparedKernel) or set(prepared.kinds) - {"f"}:
        raise NoFormula(f"{op.name}: its numbers are not prepared")
    n, k = len(arrays), len(prepared.kinds)
    lines: list[str] = []
    terms = [Term(lines, f"a{i}") for i in range(n)] + [Term(lines, f"s{i}") for i in range(k)]
    made = prepared.kernel(*terms)
    results = made if isinstance(made, tuple) else (made,)
    lines += [f"  *r{i} = {result.text};" for i, result in enumerate(results)]
    written = list(zip(op.inplace, range(len(results)), strict=True))  # (operand, result)
    memory, wide = _TYPES[arrays[0].dtype]
    parameters = [f"Wide a{i}" for i in range(n)] + [f"Wide s{i}" for i in range(k)]
    given = [f"read(v{i}.x[k])" for i in range(n)] + [f"s{i}" for i in range(k)] + [f"&w{r}" for _, r in written]
    stored = "".join(f" write(v{i}.x[k], w{r});" for i, r in written)
    text = _SOURCE % {
        "memory": memory, "wide": wide, "tensors": n, "rows": rows_of(n), "threads": THREADS,
        "parameters": ", ".join(parameters + [f"Wide* r{r}" for _, r in written]),
        "body": "\n".join(lines),
        "pointers": "\n".join(
            [f"  Memory* p{i} = (Memory*)table.at[{i}][row];" for i in range(n)]
            + [f"  const Wide s{i} = (Wide)numbers[{i}];" for i in range(k)]
        ),
        "fours": ", ".join(f"v{i}" for i in range(n)),
        "wides": ", ".join(f"w{r}" for _, r in written),
        "load": "\n".join(f"      v{i} = *(const Four*)(p{i} + i);" for i in range(n)),
        "load_one": " ".join(f"v{i}.x[k] = p{i}[i + k];" for i in range(n)),
        "compute": f"      formula({', '.join(given)});\n     {stored}",
        "store": "\n".join(f"      *(Four*)(p{i} + i) = v{i};" for i, _ in written),
        "store_one": " ".join(f"p{i}[i + k] = v{i}.x[k];" for i, _ in written),
    }  # fmt: skip
    return text, prepared


def rows_of(tensors: int) -> int:
    """How many rows of so many arrays fit into one launch."""
    return TABLE_NBYTES // (8 * tensors + 12)


class Update:
    """The kernel of an op: overwrites rows of arrays that are contiguous, of one dtype, and on the device."""

    def __init__(self, text: str, tensors: int) -> None:
        self._rows = rows_of(tensors)
        self._run = load(text)

        class Table(ctypes.Structure):
            _fields_ = (
                ("at", ctypes.c_void_p * self._rows * tensors),
                ("size", ctypes.c_longlong * self._rows),
                ("first", ctypes.c_int * self._rows),
                ("rows", ctypes.c_int), ("chunk", ctypes.c_int), ("aligned", ctypes.c_int),
            )  # fmt: skip

        self._table = Table

    def __call__(self, rows: Sequence[Sequence[Any]], numbers: int, flag: Any) -> None:
        """Launch it. `numbers`: the address of the first of its numbers; `flag`: a tensor on the device, or None."""
        rows = [row for row in rows if row[0].numel()]
        for start in range(0, len(rows), self._rows):
            self._launch(rows[start : start + self._rows], numbers, 0 if flag is None else flag.data_ptr())

    def _launch(self, rows: Sequence[Sequence[Any]], numbers: int, flag: int) -> None:
        table, blocks, aligned = self._table(), 0, True
        share = -(-sum(row[0].numel() for row in rows) // BLOCKS)
        low, high = CHUNK
        chunk = min(max(-(-share // low) * low, low), high)
        alignment = 4 * rows[0][0].element_size()
        for k, row in enumerate(rows):
            size = row[0].numel()
            for i, array in enumerate(row):
                at = array.data_ptr()
                assert array.is_contiguous()
                assert array.numel() == size
                table.at[i][k] = at
                aligned = aligned and at % alignment == 0
            table.size[k], table.first[k] = size, blocks
            blocks += -(-size // chunk)
        table.rows, table.chunk, table.aligned = len(rows), chunk, aligned
        self._run(table, blocks, numbers, flag)


_made: dict[str, Update] = {}


def update(text: str, tensors: int) -> Update:
    """The kernel of this source. Made once."""
    if text not in _made:
        _made[text] = Update(text, tensors)
    return _made[text]


# --- CUDA ---------------------------------------------------------------------------------------


@functools.cache
def available() -> bool:
    """Whether kernels can be made here: torch brings the compiler, but a system may lack the driver's library."""
    try:
        return torch.version.cuda is not None and bool(_driver() and _compiler())
    except OSError:
        return False


@functools.cache
def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")


@functools.cache
def _compiler() -> Any:
    with suppress(OSError):  # it knows where the other one is
        ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libcaffe2_nvrtc.so"))
    major = str(torch.version.cuda).partition(".")[0]
    return ctypes.CDLL(f"libnvrtc.so.{major}")


def _succeeded(code: int) -> None:
    if code:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(code, ctypes.byref(text))
        raise RuntimeError(f"CUDA: {(text.value or b'unknown error').decode()}")


def load(text: str) -> Callable[[ctypes.Structure, int, int, int], None]:
    """Compile a source: a function of its table, how many blocks it needs, and where its numbers and its flag are."""
    torch.cuda.current_stream()  # the context exists from here on
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    _succeeded(_driver().cuModuleLoadData(ctypes.byref(module), _compile(text)))
    _succeeded(_driver().cuModuleGetFunction(ctypes.byref(function), module, b"update"))

    def run(table: ctypes.Structure, blocks: int, numbers: int, flag: int) -> None:
        arguments = [table, ctypes.c_void_p(numbers), ctypes.c_void_p(flag)]
        pointers = (ctypes.c_void_p * 3)(*[ctypes.addressof(a) for a in arguments])
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        _succeeded(_driver().cuLaunchKernel(function, blocks, 1, 1, THREADS, 1, 1, 0, stream, pointers, None))

    return run


def _compile(text: str) -> Any:
    nvrtc = _compiler()
    major, minor = torch.cuda.get_device_capability()
    options: list[bytes] = [f"--gpu-architecture=sm_{major}{minor}".encode(), b"--std=c++17"]
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    made = nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"update.cu", 0, None, None)
    if not made:
        made = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    if made:
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value or 1)
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError(f"NVRTC: {log.value.decode(errors='replace')}")
    nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    binary = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(program, binary)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return binary
