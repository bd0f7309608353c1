"""What GT costs beside the computing: the client's time per op, the way to a worker and back, the dispatcher, bytes.

Rivals: torch issuing the same ops on the CPU in the same Python loop; a bare ZeroMQ echo between two
processes; memcpy. `python benchmarks/overhead.py [--quick] [--json FILE]`. The worker does not compile what proves
hot (GT_AUTO_COMPILE=0): nothing here is about how fast programs run, and a compiler would take a CPU from the others.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import zmq
from measuring import Report, arguments, in_turn

os.environ.setdefault("GT_THREADS", "1")
os.environ["GT_AUTO_COMPILE"] = "0"

import gt
from gt.client.record.recorder import recorder
from gt.dispatcher.events import MessageCame, ProgramChecked, Send
from gt.dispatcher.machine import Machine
from gt.ops.check import check
from gt.program import Instruction, Program
from gt.transport import messages
from gt.transport.messages import VERSION, Call, CallDone, Chunk, ChunkAck, Define, Fetch, Hello, WorkerHello, pack_ids

OPS = 200  #: Ops in a program.
PROGRAMS = 20  #: Programs in a round: fewer than a session may have under way, so that nothing waits.
MIB = 1 << 20

Body = Callable[[Any, Any], Any]


# --- the client's time per op ------------------------------------------------------------------------

#: One op each, on 4 x 4 floats. `y` is the result so far, `x` the tensor it started from.
BODIES: dict[str, tuple[str, Body]] = {
    "add": ("y + x", lambda y, x: y + x),
    "mul_number": ("y * 0.5", lambda y, x: y * 0.5),
    "relu": ("y.relu()", lambda y, x: y.relu()),
    "matmul": ("y @ x", lambda y, x: y @ x),
}


def issue(body: Body, x: Any, end: Callable[[], None]) -> None:
    """A round: programs of OPS ops each, whose last value is kept until the program has ended."""
    for _ in range(PROGRAMS):
        y = x
        for _ in range(OPS):
            y = body(y, x)
        kept = y.detach()
        del y
        end()
    del kept


def per_op(rounds: int, body: Body, requires_grad: bool) -> tuple[float, float]:
    """Microseconds of CPU time per op, GT's and torch's.

    GT's is that of the whole process: recording, sending, and whatever threads it has. A program
    ends as optimizer.step() ends it; the next op sends it.
    """
    data = np.eye(4, dtype=np.float32)
    g = gt.tensor(data, requires_grad=requires_grad)
    t = torch.tensor(data, requires_grad=requires_grad)
    mark = recorder().mark

    def run_gt() -> float:
        start = time.process_time()
        issue(body, g, mark)
        used = time.process_time() - start
        (g.detach() + 0.0).numpy()  # the next round begins with nothing under way
        return used

    def run_torch() -> float:
        start = time.thread_time()
        issue(body, t, _nothing)
        return time.thread_time() - start

    in_turn(5, run_gt, run_torch)
    gt_s, torch_s = in_turn(rounds, run_gt, run_torch)
    n = OPS * PROGRAMS
    return gt_s / n * 1e6, torch_s / n * 1e6


def _nothing() -> None:
    pass


# --- there and back ----------------------------------------------------------------------------------

ECHOES = 7  #: Processes that echo, one after the other.


def echo(address: str) -> None:
    """The other process: sends back what it gets, until that is empty."""
    socket = zmq.Context.instance().socket(zmq.REP)
    socket.bind(address)
    while message := socket.recv():
        socket.send(message)
    socket.send(b"")
    socket.close()


@contextmanager
def echoing() -> Iterator[Callable[[bytes], bytes]]:
    """A function that sends bytes to another process and gets them back, over a Unix socket."""
    with tempfile.TemporaryDirectory(prefix="gt-") as directory:
        address = f"ipc://{directory}/echo"
        process = multiprocessing.get_context("spawn").Process(target=echo, args=(address,), daemon=True)
        process.start()
        socket = zmq.Context.instance().socket(zmq.REQ)
        socket.connect(address)

        def ask(message: bytes) -> bytes:
            socket.send(message)
            return socket.recv()

        try:
            yield ask
        finally:
            ask(b"")
            process.join()
            socket.close()


def request_bytes() -> bytes:
    """What a client sends for one known op and the fetch of its result."""
    call = messages.encode(Call(0, 1000, bytes(16), pack_ids([1]), (1.0,), 2000, pack_ids([1999]), 0))
    return b"".join([*call, *messages.encode(Fetch(0, 1000, 2000))])


def there_and_back(rounds: int) -> tuple[float, float]:
    """Microseconds for one op and the fetch of its result, and for an echo of the same bytes.

    An echo takes 50, 80 or 110 us for as long as its process lives, depending on where the system puts it: so there are
    several, one after the other, and the median counts.
    """
    x = gt.ones(4)
    request = request_bytes()
    n = 50
    found: list[tuple[float, float]] = []
    for _ in range(ECHOES):
        with echoing() as ask:

            def run_gt() -> float:
                start = time.perf_counter()
                for _ in range(n):
                    (x + 1.0).numpy()
                return time.perf_counter() - start

            def run_echo(ask: Callable[[bytes], bytes] = ask) -> float:
                start = time.perf_counter()
                for _ in range(n):
                    ask(request)
                return time.perf_counter() - start

            in_turn(3, run_gt, run_echo)
            gt_s, echo_s = in_turn(max(rounds // ECHOES, 3), run_gt, run_echo)
            found.append((gt_s, echo_s))
    gt_s, echo_s = (statistics.median(each) for each in zip(*found, strict=True))
    return gt_s / n * 1e6, echo_s / n * 1e6


def calls_per_second(rounds: int) -> float:
    """Calls of one op each, from one client through the dispatcher to one worker, without a sync."""
    x = gt.ones(4)
    mark = recorder().mark
    n = 2000

    def run() -> float:
        start = time.perf_counter()
        for _ in range(n):
            y = x + 1.0
            mark()
        y.numpy()
        return time.perf_counter() - start

    in_turn(1, run)
    return n / in_turn(rounds, run)[0]


# --- the dispatcher's time per call ------------------------------------------------------------------


class Settings:
    """What the dispatcher's machine reads of the configuration."""

    worker_timeout_s = 15.0
    cache_bytes = 256 << 20


class Dispatching:
    """A dispatcher without sockets, one client and one worker, that knows a program of so many instructions and inputs.

    Ids grow from call to call, as a client's do, and each call frees the result of the one before.
    """

    def __init__(self, instructions: int, inputs: int) -> None:
        code = tuple(Instruction("add", (i % inputs, -i % inputs), {}) for i in range(instructions))
        program = Program((((4,), "float32"),) * inputs, "", code, (inputs + instructions - 1,), (), ())
        self.machine = Machine(Settings(), "")
        for control in (True, False):
            self.take(b"c" if control else b"r", WorkerHello(VERSION, "", "link", control, memory=1 << 40))
        self.take(b"k", Hello(VERSION, "", "client"))
        self.take(b"k", Define(program))
        self.machine.handle(ProgramChecked(program.hash(), check(program)))
        for i in range(1, inputs + 1):
            self.take(b"k", Chunk(0, i, 0, 16, (4,), "float32"), bytes(16))
            self.take(b"r", ChunkAck(1, i, True))
        self.program = program.hash()
        self.inputs = pack_ids(range(1, inputs + 1))
        self.seq = 0
        self.made = inputs

    def take(self, peer: bytes, message: Any, payload: bytes | None = None) -> None:
        self.pass_on(peer, messages.encode(message, payload))

    def pass_on(self, peer: bytes, frames: list[Any]) -> None:
        """What the dispatcher does with a message: decode it, handle it, encode what is to be sent."""
        for message, payload in messages.decode_all(frames):
            for action in self.machine.handle(MessageCame(peer, message, payload)):
                if isinstance(action, Send):
                    messages.encode(action.message, action.payload)

    def run(self, calls: int) -> float:
        """Seconds of CPU time for so many calls, there and back."""
        wire = []
        for _ in range(calls):
            self.seq += 1
            frees = pack_ids([self.made]) if self.seq > 1 else b""
            self.made += 1
            call = Call(0, self.seq, self.program, self.inputs, (), self.made, frees, 0)
            wire.append((messages.encode(call), messages.encode(CallDone(1, self.seq, 10))))
        start = time.thread_time()
        for there, back in wire:
            self.pass_on(b"k", there)
            self.pass_on(b"r", back)
        return time.thread_time() - start


def dispatching(rounds: int, report: Report) -> None:
    """The dispatcher's CPU time per call of a known plan: by the program's length, and by its inputs."""
    n = 200
    made = [Dispatching(*size) for size in ((10, 1), (1000, 1), (10, 20), (10, 450))]
    in_turn(2, *[lambda d=d: d.run(n) for d in made])
    short, long, some, many = (s / n * 1e6 for s in in_turn(rounds, *[lambda d=d: d.run(n) for d in made]))
    what = "dispatcher's CPU time per call, 1,000 instructions over 10"
    report.compare("dispatcher_instructions", what, long, short, "us", target=1.1, digits=1)
    for inputs, us in ((1, short), (20, some), (450, many)):
        key, text = f"dispatcher_us_{inputs}", f"dispatcher's CPU time per call with {inputs} inputs"
        report.figure(key, text, us, "us", digits=1)
    report.figure("dispatcher_ns_per_input", "the same per further input", (many - short) / 449 * 1e3, "ns")


# --- bytes -------------------------------------------------------------------------------------------


def call_bytes(inputs: int) -> int:
    """The size of a call with so many inputs and two numbers by value."""
    ids = pack_ids(range(100_000, 100_000 + inputs))
    return sum(map(len, messages.encode(Call(0, 1000, bytes(16), ids, (1e-3, 1000), 200_000, b"", 0))))


def bandwidth(rounds: int, report: Report) -> None:
    data = np.ones(64 * MIB // 4, dtype=np.float32)
    target = np.empty_like(data)
    there = gt.from_numpy(data)
    there[0].item()

    def copy() -> float:
        start = time.perf_counter()
        np.copyto(target, data)
        return time.perf_counter() - start

    def fetch() -> float:
        start = time.perf_counter()
        there.numpy()
        return time.perf_counter() - start

    def upload() -> float:
        start = time.perf_counter()
        gt.from_numpy(data)[0].item()  # that one element is there when all of it is
        return time.perf_counter() - start

    in_turn(1, fetch, upload, copy)
    fetch_s, upload_s, copy_s = in_turn(rounds, fetch, upload, copy)
    report.compare("fetch_over_memcpy", "fetch 64 MiB, over memcpy", fetch_s * 1e3, copy_s * 1e3, "ms")
    report.compare("upload_over_memcpy", "upload 64 MiB, over memcpy", upload_s * 1e3, copy_s * 1e3, "ms")


def main() -> None:
    args = arguments(__doc__).parse_args()
    torch.set_num_threads(1)
    report = Report("overhead")
    rounds = 5 if args.quick else 40
    for name, (text, body) in BODIES.items():
        for grad in (False, True):
            gt_us, torch_us = per_op(rounds, body, grad)
            key = f"op_{name}" + ("_grad" if grad else "")
            what = f"CPU time per op, {text}" + (", with grad" if grad else "")
            report.compare(key, what, gt_us, torch_us, "us", target=1.0)
    gt_us, echo_us = there_and_back(rounds)
    report.compare("op_and_fetch", "one op and fetch, over a zmq echo", gt_us, echo_us, "us", target=3.5, digits=0)
    dispatching(rounds, report)
    bandwidth(2 if args.quick else 7, report)
    report.figure(
        "calls_per_s", "calls per second, one client, no syncs", calls_per_second(2 if args.quick else 7), "/s"
    )
    for n in (1, 20, 450):
        report.figure(f"call_bytes_{n}", f"size of a call with {n} inputs", call_bytes(n), "bytes")
    report.finish(args.json)


if __name__ == "__main__":
    main()
