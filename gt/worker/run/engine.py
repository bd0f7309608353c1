"""What running programs asks of an array library: the interface `Engine`, and the forms in which a program runs.

Law 1: only an engine knows its library. Everything else handles arrays as opaque values (`Array`).
Law 2: nothing here imports an engine; gt/worker/engines/ has one file per library, loaded by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from gt.ops.check import Checked
from gt.ops.record import Op
from gt.program import Precision, Spec
from gt.transport.messages import Buffer
from gt.worker.run.store import Array, Entry

Scalars = tuple[Any, ...]  #: The numbers (and bytes) of one call.
Piece = np.ndarray[Any, Any]  #: Bytes in host memory; see `Engine.take_out`.
Mark = Any  #: A point in an engine's work: a CUDA event, or None where everything is done at once.


class Form(Protocol):
    """A program in a form that can run. executor.Runnable is one; compiled and captured programs are others."""

    takes: tuple[int, ...]  #: Inputs whose memory becomes that of a result. An array that others hold must be copied.
    checks: tuple[tuple[int, str], ...]  #: (instruction, op) of the index checks whose outcome is in the flag.
    ran: int  #: The tier that the last call ran on.
    lends: bool  #: Results may be in memory that the form will reuse: it must be told which entries hold them.

    #: (inputs, scalars) -> (results, flag). Of a program that several workers run together: (inputs, scalars,
    #: together) -> a generator of PeerResults that returns the same; see together.py.
    @property
    def run(self) -> Callable[..., Any]: ...

    def where(self, error: BaseException) -> tuple[int, bool]:
        """The instruction that raised this error (-1: none), and whether the commit had begun."""

    def lend(self, entries: Sequence[Entry]) -> None:
        """Which entries hold the results of the last call."""


class Graph(Protocol):
    """A program as one pure function with its numbers in a buffer, to be captured or compiled.

    See engines/graph_program.py, which also explains the attributes.
    """

    inputs: list[Spec]
    outputs: list[int]
    donate: tuple[int, ...]
    writes: list[tuple[int, int]]  #: (input, value): which input is overwritten with what.
    wants: list[int]  #: The values that the function returns; a flag follows if `flagged`.
    flagged: bool
    before: int  #: The slot that says whether the call before has failed; -1: there is none.
    slots: int  #: Of 8 bytes, in the buffer.

    def build(self, inputs: Sequence[Array], buffer: Array) -> list[Array]: ...

    def around(self, pure: Callable[..., list[Array]]) -> Callable[..., list[Array]]: ...

    def pack(self, scalars: Scalars, buffer: Any) -> None: ...

    def spec(self, value: int) -> Spec: ...


class CapturedProgram(Protocol):
    """A captured graph, as far as replays.py looks at it."""

    copied: list[int]  #: Inputs that are copied in: any array will do.
    stale: bool  #: An array that is part of the graph is gone.

    def fits(self, arrays: Sequence[Array | None]) -> bool:
        """Whether these arrays are the captured ones, where that matters."""


class Rest(NamedTuple):
    """A tier that could not be captured in a session, and is not used there for a while."""

    why: str
    times: int  #: How often it has failed.
    again_us: int  #: The program's run time from which on it is tried again.


class CaptureForm(Form, Protocol):
    """The form of a program that is captured as a graph; see engines/captures.py."""

    tier: int
    form: Graph
    why: str  #: Why the program is not captured any more; "": it is, or will be.
    noted: bool  #: tiers.py knows.
    rests: dict[int, Rest]  #: Tiers of the program that could not be captured in this session.

    @property
    def captured(self) -> CapturedProgram | None: ...

    def again(self, arrays: Sequence[Array | None], scalars: Scalars, continues: bool = False) -> list[Array] | None:
        """Replay on arrays that are known to fit; what the function returns. None if the numbers are wrong. With
        `continues` it fails if the last replay, whose outcome is not known yet, has failed."""

    def lent(self, entries: Sequence[Entry]) -> None:
        """Which entries hold the results of the last replay, in the order of what the function returns."""

    def lend_too(self, entry: Entry, new: Entry) -> None:
        """The new entry has the array of this one, which may be lent."""

    def hurry(self) -> None:
        """Capture at the next call: the program is known to be called again and again."""

    def let_go(self) -> None:
        """Free the graph's memory; it is captured again if it is called again."""


class KernelUse(Protocol):
    """A step of a program (lowering.Step), as far as an engine looks at it."""

    kernel: Any
    args: tuple[Any, ...]


class Coming(NamedTuple):
    """An array on its way from the device to the host."""

    host: Array
    mark: Mark  #: When this has passed the bytes are there.


class Room(NamedTuple):
    """Memory on the device for an array that comes back."""

    array: Array
    mark: Mark  #: When this has passed nothing else uses it.


def bad_indices(index: Array, n: int, extra: int | None) -> Array:
    """Which elements are neither in [0, n) nor `extra`, as a mask."""
    bad = (index < 0) | (index >= n)
    return bad if extra is None else bad & (index != extra)


class Engine(ABC):
    """Turns op records into callables, and bytes into arrays and back.

    The defaults are those of a library that does everything at once: nothing is computed behind the host, and
    programs are neither captured nor compiled by GT. numpy is one; jax compiles by itself.
    """

    name: str
    device: str
    memory: int  #: Bytes there are on the device.
    #: True where an index check must not wait for the device (CUDA). Then `check` clamps the index and
    #: gathers what it saw in a flag on the device; else it raises IndexOutOfRange at once.
    deferred = False
    #: The module of the process that compiles for it, and what its results depend on besides the program. None: it
    #: has no such tiers, and `graph`, `load_library`, `load_segment` and `new_capture` are never called.
    compiles_with: tuple[str, str] | None = None
    #: So many calls of a program go through its lines; then these are written as Python. To write a line takes 11 us,
    #: and saves 0.5 us in each call.
    by_line = 15
    threads = 1  #: How many a call may use at most, where GT may choose: see threads.py. 1: there is nothing to choose.
    #: Whether programs may run in two threads at the same time; see gt/worker/calls.py. Where a device works behind the
    #: host's back they need not: the device runs them beside each other.
    beside = False

    # --- kernels -------------------------------------------------------------------------

    @abstractmethod
    def kernel(
        self, op: Op, attrs: dict[str, Any], operands: Sequence[Spec], inplace: bool = False
    ) -> Callable[..., Any] | None:
        """The op as a function of its operands alone (arrays, and Python numbers for scalars), or
        None if the engine has no kernel for it and its composition must be expanded. All that can be
        decided from attributes and specs is decided here, once. With `inplace`: the form that
        writes its results into the operands `op.inplace` and returns them; None if there is none."""

    def pair(
        self, op: Op, gradient: Op, attrs: dict[str, Any], operands: Sequence[Spec]
    ) -> tuple[Callable[..., Any], Callable[..., Any]] | None:
        """An op and its gradient op as functions of which the second goes on with what the first has computed (see
        `Op.resumes`). `operands` are those of the op. None: each has to do all of its work."""
        return None

    def many(self, op: Op, attrs: dict[str, Any]) -> Callable[..., Any] | None:
        """The in-place form for many uses at once: (rows of arrays, *numbers) -> all results, row by row."""
        return None

    @abstractmethod
    def whole(self, run: Callable[..., Any], steps: Sequence[KernelUse]) -> Callable[..., Any]:
        """The function of a whole program and its steps (see executor.py), as the engine wants it to be called: most
        return `run`, jax compiles what repeats. Where it fails it must raise from `run`, whose lines tell the
        instruction."""

    def set_precision(self, precision: Precision) -> None:
        """Set how exactly float32 is computed from here on. An engine may always be more exact."""
        return

    def use_threads(self, count: int) -> None:
        """Compute with so many threads from here on. Only where `threads` is more than 1."""
        return

    def enter_runner(self) -> None:
        """The calling thread is going to run programs. Called after `enter_beside`."""
        return

    def enter_beside(self) -> None:
        """The calling thread is going to run short programs beside those of the runner. Only where `beside` is set."""
        return

    @abstractmethod
    def check(self, op: str, index: Array, n: int, extra: int | None, flag: Array | None) -> tuple[Array, Array | None]:
        """The index, known to be in [0, n) or `extra`, and the new flag (None unless `deferred`)."""

    # --- arrays --------------------------------------------------------------------------

    def host_buffer(self, nbytes: int) -> np.ndarray[Any, Any]:
        """Bytes to receive an upload in, to be `given` to `from_bytes`. Not zeroed: where it is large, asking for it
        touches no memory. Any thread may ask."""
        return np.empty(nbytes, np.uint8)

    @abstractmethod
    def from_bytes(self, data: Buffer, spec: Spec, given: bool = False) -> Array:
        """A new array with a copy of these bytes. If they are `given`, they are not used again:
        an engine whose arrays are in host memory takes them as they are, a device may read them later."""

    @abstractmethod
    def to_bytes(self, array: Array, borrow: bool = False) -> memoryview:
        """A contiguous copy of the array in host memory, as bytes. With `borrow`: perhaps its own memory, which
        must not be written to before they were read."""

    @abstractmethod
    def own(self, array: Array) -> Array:
        """A contiguous copy of the array, in memory of its own."""

    @abstractmethod
    def dense(self, array: Array) -> Array:
        """The array itself if it is contiguous, else a contiguous copy. In-place kernels are given such arrays only:
        torch's fused ones read memory and never look at strides."""

    # --- what is done when ---------------------------------------------------------------

    @abstractmethod
    def mark(self) -> Mark:
        """A point in the engine's work; `passed(mark)` tells whether all work before it is done."""

    def stamp(self) -> Mark:
        """A mark at which the device notes the time; None if nothing is computed behind the host."""
        return None

    def between_us(self, before: Mark, after: Mark) -> int:
        """The device's time between two stamps that have passed."""
        raise NotImplementedError

    @abstractmethod
    def passed(self, mark: Mark, wait: bool = False) -> bool: ...

    @abstractmethod
    def use(self, session: int) -> None:
        """What follows is work of this session: on a device it has its own stream."""

    def leave(self, session: int) -> None:
        """This session has ended. Any thread may say so."""
        return

    def usage(self) -> dict[str, int]:
        """Bytes of memory on the device, for statistics."""
        return {}

    @abstractmethod
    def out_of_memory(self, error: BaseException) -> bool:
        """Whether this error means that memory ran out."""

    def release(self) -> None:
        """Give cached memory back, if the engine keeps any."""
        return

    # --- arrays that leave the device and come back (gt/worker/spilling.py) --------------
    # Where a thread of its own calls them is said; the defaults are those of arrays in host memory.

    def take_out(self, array: Array, mark: Mark, borrow: bool = False) -> Sequence[Piece]:
        """The bytes of an array in host memory, in memory of their own; with `borrow` perhaps in the array's. `mark` is
        a point after all work on it. By the thread that copies."""
        data: Piece = np.frombuffer(self.to_bytes(array, borrow=True), np.uint8)
        return [data if borrow else data.copy()]

    def host_pieces(self, nbytes: int) -> Sequence[Piece]:
        """Host memory to read bytes into, for `bring_in`. By any thread."""
        return [np.empty(nbytes, np.uint8)]

    def keep_pieces(self, pieces: Sequence[Piece]) -> Sequence[Piece]:
        """The same bytes in memory from which `bring_in` is fast. By the thread that copies."""
        return pieces

    def room_for(self, spec: Spec) -> Room | None:
        """Memory for an array that comes back; None: there is nothing to prepare. By the runner, for the session in
        use."""
        return None

    def bring_in(self, pieces: Sequence[Piece], spec: Spec, room: Room | None, given: bool) -> Array:
        """An array of these bytes, in that room. If they are `given` they are not used again. By any thread."""
        return self.from_bytes(pieces[0].data, spec, given)

    def let_pool_go(self) -> None:
        """The session in use has dropped its graphs: their memory is for others."""
        return

    def trim(self) -> None:
        """Many bytes have left: give what the allocator caches to others. By the thread that copies."""
        return

    # --- only where `deferred` -----------------------------------------------------------

    def start_fetch(self, array: Array) -> Coming:
        """Start copying the array to the host; `end_fetch` gives its bytes when the mark has passed."""
        raise NotImplementedError

    def end_fetch(self, coming: Coming) -> memoryview:
        raise NotImplementedError

    def send_flag(self, flag: Array) -> Any:
        """Start copying a flag to the host, for `raised`."""
        raise NotImplementedError

    def raised(self, flag: Any) -> bool:
        """Whether the flag is set, as `send_flag` returned it. Called after its mark has passed."""
        return False

    def select(self, flag: Array, old: Array, new: Array, into: bool = False) -> Array:
        """`old` if the flag is set, else `new`; on the device, and with `into` in the memory of `old`."""
        raise NotImplementedError

    def put(self, old: Array, new: Array) -> Array:
        """`old`, with the values of `new`."""
        old[...] = new
        return old

    # --- only where `compiles_with` is set -----------------------------------------------

    def graph(self, checked: Checked, trusted: bool, whole: Sequence[Any] = ()) -> Graph:
        """A program in the form in which it can be captured or compiled; raises where there is none. `trusted` and
        `whole` as in lowering.py; those are CapturedSegments."""
        raise NotImplementedError

    def load_library(self, folder: str, graph: Graph) -> Callable[..., Any]:
        """What was compiled: a function of inputs and scalars; where `deferred`, of inputs and a buffer of numbers."""
        raise NotImplementedError

    def load_segment(self, folder: str, graph: Graph) -> Callable[..., list[Array]]:
        """What was compiled of a program without checks: a function of inputs and scalars, on any device."""
        raise NotImplementedError

    def new_capture(self, graph: Graph, f: Callable[..., Any], plain: Form, tier: int) -> CaptureForm:
        """The form of a program of one session that is going to be captured; see captures.py. Only where `deferred`."""
        raise NotImplementedError
