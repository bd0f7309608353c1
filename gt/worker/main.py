"""The worker as a process: a few threads, and two connections to the dispatcher.

Law 1: the runner does the work and sends its results on a connection of its own.
Law 2: commands are always being read. The runner reads them while it has nothing else to do: then the thread that
       reads a call also runs it, and no thread has to be woken. While the runner is busy for
       longer than a moment, the reader (the main thread) reads for it, and does short work beside it (calls.py).
Law 3: a third thread copies uploads out of shared memory, a fourth moves tensors of idle sessions; none waits for them.
Law 4: the process never outlives its dispatcher, nor the parent named on its command line.
"""

from __future__ import annotations

import argparse
import gc
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from queue import SimpleQueue
from typing import Any, NoReturn

from gt import gpus
from gt.awake import Awake
from gt.command_line import Parser, nbytes
from gt.config import Config, engine_name, home, load, order_gpus, prepare_torch, replace
from gt.errors import GTError, ServerError, StartError
from gt.transport import connect, logins
from gt.transport import messages as msg
from gt.transport.addresses import endpoint
from gt.transport.channel import Channel, Patience
from gt.transport.identity import WORKER, Key
from gt.transport.messages import Buffer
from gt.worker import engines
from gt.worker.calls import EngineLost, Out
from gt.worker.core import POLL_S, WorkerCore
from gt.worker.heap import keep_freed_memory
from gt.worker.run.engine import Engine
from gt.worker.run.reach import Reach

SILENT_S = 7.0  #: After how long without a sign of life the server gives a worker up: others wait for it.
PORT = 12345  #: Of a server, if nobody says another one.
TICK_S = 0.25  #: How often an idle thread checks that its parent and its connection are still there.
SWITCH_S = 0.00005  #: How long a thread that computes may keep another one from using Python.
LOOK_S = 0.002  #: How often the reader checks whether it is needed, while the runner is at one piece of work,
IDLE_LOOK_S = 0.02  #: and while it has none, or gets on; and how often, at most, it checks whether it is still needed.

TOGETHER, TOGETHER_S = 8, 100e-6  #: So many outcomes of quick calls are sent as one, and those of so long.


class Commands:
    """The connection for commands. Either thread may use it, under `lock`."""

    def __init__(self, channel: Channel, core: WorkerCore, reach: Reach | None = None) -> None:
        self.channel = channel
        self.reach = reach
        self.core = core
        self.lock = threading.Lock()
        self.awake = Awake(core.config.awake_us)
        self.ending = False  #: The reader wants the lock for good: do not take it any more.

    def take_in(self, timeout_s: float) -> bool:
        """Pass all messages that have come to the core; False if none came in time."""
        came = self.channel.receive(timeout_s)
        if came is None:
            return False
        answers: list[tuple[msg.Message, Buffer | None]] = []
        while came is not None:
            message, payload = came
            if type(message) is msg.Peers and self.reach is not None:
                self.reach.know(message.addresses, message.secret)
            if type(message) is msg.Goodbye:
                _end(0)
            if type(message) is msg.Refused:
                raise ServerError(message.text)
            if type(message) is msg.Fetch:
                self.awake.exchanged()
            answers += self.core.receive(message, payload)
            came = self.channel.receive()
        if answers:
            self.channel.send_all(answers)
        return True


class Stop(Exception):
    """A signal asked the process to end."""


class Runner(threading.Thread):
    """The thread that computes. The engine is loaded in it, because a library may have settings per thread
    (CUDA's current device is one)."""

    def __init__(self, engine: str, device: str, threads: int) -> None:
        super().__init__(name="runner", daemon=True)
        self.begin: SimpleQueue[tuple[Commands, Channel]] = SimpleQueue()
        self.idle = False
        self.turns = 0  #: Pieces of work done.
        self.sending = threading.Lock()  #: Held while the connection for results is used.
        self._wanted = (engine, device, threads)
        self._engine: Engine | None = None
        self._error = ""
        self._loaded = threading.Event()
        self._patience = Patience()
        self._last_s = 0.0  #: When a command last came while a device was at work.

    def wait_for_engine(self, parent: int) -> Engine:
        while not self._loaded.wait(TICK_S):
            _check_parent(parent)
        if self._engine is None:
            raise StartError(self._error)
        return self._engine

    def run(self) -> None:
        try:
            self._engine = engines.load(*self._wanted)
        except GTError as e:
            self._error = str(e)
        except Exception as e:
            self._error = f"cannot load the {self._wanted[0]} engine: {type(e).__name__}: {e}"
        self._loaded.set()
        commands, results = self.begin.get()
        core = commands.core
        core.engine.enter_runner()
        for name, work in (("copier", core.copy), ("mover", core.move)):
            threading.Thread(target=self._copy, args=(work, results), name=name, daemon=True).start()
        try:
            self._serve(commands, results)
        except ServerError as e:
            _end(1, str(e))
        except EngineLost as e:
            _end(1, f"the device failed: {e}")
        except BaseException as e:
            _end(1, f"{type(e).__name__}: {e}")

    def _copy(self, work: Callable[[bool], Out | None], results: Channel) -> NoReturn:
        """A thread that copies while the others work: large uploads, or tensors of idle sessions."""
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)  # of this thread alone: the others go first
        try:
            while True:
                answers = work(True)
                if answers:
                    with self.sending:
                        results.send_all(answers)
        except BaseException as e:
            _end(1, f"{type(e).__name__}: {e}")

    def _serve(self, commands: Commands, results: Channel) -> NoReturn:
        core = commands.core
        held: Out = []  #: Outcomes that wait for the next one: see `_may_wait`.
        since_s = 0.0
        while True:
            out = core.step()
            self.turns += 1
            if out:
                if not held:
                    since_s = time.perf_counter()
                held += out
            if held and (not out or not core.next_is_quick or not _may_wait(held, since_s)):
                with self.sending:
                    results.send_all(held)
                held = []
            elif out is None:
                self.idle = True
                if not self._wait(commands):
                    with self.sending:
                        while results.receive() is not None:  # only the welcome is expected here
                            pass
                self.idle = False

    def _wait(self, commands: Commands) -> bool:
        """Wait until there may be something to do; False if nothing came in time."""
        core = commands.core
        if commands.ending or not commands.lock.acquire(blocking=False):
            return core.wait(TICK_S)  # the reader reads
        try:
            if not core.in_flight:
                # Poll for a moment before sleeping: to be woken costs more than most programs.
                for_s, patience = core.config.spin_us * 1e-6, self._patience
                left_s = commands.awake.left_s()
                if left_s > for_s and commands.awake.patience.wanted():
                    for_s, patience = left_s, commands.awake.patience
                elif not patience.wanted():
                    for_s = 0.0
                if for_s and not core.uploads.copying:
                    until_s = time.perf_counter() + for_s
                    found = self._look(commands, until_s)
                    # If others needed this CPU, sleep: the system runs a woken process first, one that yielded last.
                    patience.looked(found and time.perf_counter() < until_s)
                    if found:
                        return True
                return commands.take_in(TICK_S)
            # The device is busy, and does not wake us when it is done. Where calls are short the next one comes soon.
            if commands.take_in(0.0):
                self._last_s = time.perf_counter()
            elif core.waiting or time.perf_counter() - self._last_s < core.config.spin_us * 1e-6:
                os.sched_yield()
            else:
                time.sleep(POLL_S)
            return True
        finally:
            commands.lock.release()

    def _look(self, commands: Commands, until_s: float) -> bool:
        """Poll for commands until then; whether one came."""
        while time.perf_counter() < until_s and not commands.core.uploads.copying:
            if commands.take_in(0.0):
                return True
            os.sched_yield()  # processes that have work go first: one of them may send us ours
        return False


def _may_wait(held: Out, since_s: float) -> bool:
    """Whether these outcomes can wait for the next one, so as to be sent with it."""
    if len(held) >= TOGETHER or time.perf_counter() - since_s > TOGETHER_S:
        return False
    return type(held[-1][0]) is msg.CallDone


def main(argv: Sequence[str] | argparse.Namespace | None = None) -> NoReturn:
    """Run a worker until its dispatcher ends, and with it the process. Arguments may have been parsed already."""
    args = argv if isinstance(argv, argparse.Namespace) else arguments(load()).parse_args(argv)
    config = replace(load(), worker_memory=args.memory)
    keep_freed_memory()
    sys.setswitchinterval(SWITCH_S)
    order_gpus()
    prepare_torch(quiet=not config.debug_worker)
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    try:
        address, key = server_of(args, config)
        claim = gpus.take(args.slot) if args.engine != "numpy" and not args.device else None
        runner = Runner(args.engine, f"auto:{claim.gpu.number}" if claim is not None else args.device, config.threads)
        runner.start()
        engine = runner.wait_for_engine(args.parent)
        on = engine.device
        if claim is not None and on == claim.gpu.device:
            on = f"{claim.gpu}{', which other workers use too' if claim.shared else ''}"
        elif claim is not None:
            claim.give_back()  # a torch that cannot use GPUs
        _work(Joining(address, key, args.token, args.parent, on, args.quiet), engine, runner, config)
    except Stop:
        _end(0)
    except GTError as e:
        _end(1, str(e))


def arguments(config: Config) -> Parser:
    parser = Parser(prog="gt worker", description="Start a worker and join it to a server.")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("-p", "--port", type=int, help=f"port of the server (default: {PORT})")
    where.add_argument("--address", help="address of the server, instead of host and port, such as ipc:///path")
    parser.add_argument("--host", help="host of the server (default: that of GT_SERVER or gt login, or this machine)")
    parser.add_argument("--token", default=config.token, help="secret of a server on this machine (default: GT_TOKEN)")
    parser.add_argument(
        "--engine", type=engine_name, default=config.engine, help="torch, numpy or jax (default: GT_ENGINE)"
    )
    parser.add_argument("--device", default=config.device, help="device, such as cpu or cuda:0 (default: GT_DEVICE)")
    parser.add_argument(
        "--memory", type=nbytes, default=config.worker_memory, metavar="SIZE",
        help="bytes it may use, such as 40G (default: GT_WORKER_MEMORY, or all of its device)",
    )  # fmt: skip
    parser.add_argument("--parent", type=int, default=0, help="exit when this process is no longer the parent")
    parser.add_argument("--slot", type=int, default=-1, help=argparse.SUPPRESS)  # which of those started together it is
    parser.add_argument("--quiet", action="store_true", help=argparse.SUPPRESS)  # say nothing if all is well
    return parser


def server_of(args: argparse.Namespace, config: Config) -> tuple[str, Key | None]:
    """The server that the arguments name, and the key for it, if it needs one."""
    if args.address:
        return logins.find(home(config), args.address, WORKER)
    if args.host or args.port:
        address = f"{args.host or '127.0.0.1'}:{args.port or PORT}"
        return logins.find(home(config), address, WORKER, config.server)
    address, key = logins.find(home(config), config.server, WORKER)
    return address or f"127.0.0.1:{PORT}", key


@dataclass(frozen=True)
class Joining:
    """What a worker joins, and as what."""

    address: str
    key: Key | None
    token: str = field(repr=False)
    parent: int
    on: str  #: its device, in words
    quiet: bool


def _stop(number: int, frame: object) -> NoReturn:
    for s in (signal.SIGTERM, signal.SIGINT):
        signal.signal(s, signal.SIG_IGN)  # once is enough
    raise Stop


def say(line: str) -> None:
    """Print one line for the process that started the worker."""
    with suppress(OSError):  # it may be gone, and the terminal with it
        print(f"gt worker: {line}", file=sys.stderr, flush=True)


def _end(code: int, line: str = "") -> NoReturn:
    """End the process now, from any thread, whatever the others do."""
    if line:
        say(line)
    with suppress(OSError):
        sys.stdout.flush()
    os._exit(code)


def _work(to: Joining, engine: Engine, runner: Runner, config: Config) -> NoReturn:
    address, parent = to.address, to.parent
    commands, results = connect(address, to.key, SILENT_S), connect(address, to.key, SILENT_S)
    link = secrets.token_hex(16)
    memory = config.worker_memory or engine.memory
    reach: Reach | None = None
    listening: socket.socket | None = None
    if find_spec("torch") is not None:  # and with it torch.distributed
        # Where keys are needed there may be workers on other machines.
        reach = Reach(endpoint(address)) if to.key is not None else None
        listening = reach.listening if reach is not None else socket.create_server(("127.0.0.1", 0), backlog=128)
    peers = reach.addresses if reach is not None else "{}:{}".format(*listening.getsockname()) if listening else ""
    reading: Commands | None = None
    about = (engine.name, engine.device, memory, socket.gethostname(), os.getpid(), peers, reach is not None)
    for channel, control in ((commands, True), (results, False)):
        channel.send(msg.WorkerHello(msg.VERSION, to.token, link, control, *about))
    try:
        number = _wait_for_welcome(commands, parent, config.connect_timeout_s)
        if config.verbose or not to.quiet:
            say(f"joined {address} as worker {number}, {engine.name} on {to.on}")
        if to.key is not None:
            signs = connect(address, to.key, SILENT_S)
            signs.send(msg.Alive(link))
        core = WorkerCore(engine, config, say, _network(listening, engine, config, reach))
        core.receive(msg.WorkerWelcome(msg.VERSION, number))
        if reach is not None:
            _begin_trying(reach, number, runner, results)
        # Imported modules stay, and programs form no cycles: the garbage collector need not run so often.
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 50)
        reading = Commands(commands, core, reach)
        if engine.beside:
            engine.enter_beside()
        runner.begin.put((reading, results))
        _read(reading, runner, results, parent)
    except Stop:
        if reading is not None:
            reading.ending = True
        if reading is None or reading.lock.acquire(timeout=4 * TICK_S):
            commands.send(msg.Goodbye())
            commands.close()
        _end(0)
    except ServerError as e:
        _end(1, str(e))


def _begin_trying(reach: Reach, number: int, runner: Runner, results: Channel) -> None:
    """Let the worker tell the dispatcher which of the others it reaches."""

    def report(worker: int, error: str) -> None:
        try:
            with runner.sending:
                results.send(msg.Reached(worker, error))
        except ServerError as e:
            _end(1, str(e))

    reach.me = number
    reach.ended = lambda: _end(1, "the process at its door has ended")
    reach.begin(report)


def _network(
    listening: socket.socket | None, engine: Engine, config: Config, reach: Reach | None
) -> Callable[[], Any] | None:
    if listening is None:
        return None
    device = engine.device if engine.name == "torch" else "cpu"  # arrays of other engines go through host memory
    return lambda: engines.network(listening, config.peer_timeout_s, device, reach)


def _wait_for_welcome(commands: Channel, parent: int, timeout_s: float) -> int:
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        _check_parent(parent)
        came = commands.receive(TICK_S)
        if came is None:
            continue
        match came[0]:
            case msg.WorkerWelcome(version=version, worker=worker):
                if version != msg.VERSION:
                    raise ServerError(f"the server has protocol version {version}, this worker has {msg.VERSION}")
                return worker
            case msg.Refused(text=text):
                raise ServerError(f"the server refused this worker: {text}")
            case other:
                raise ServerError(f"expected a welcome from the server, got {type(other).__name__}")
    raise ServerError(f"the server did not answer within {timeout_s:g} s")


def _check_parent(parent: int) -> None:
    if parent and os.getppid() != parent:
        _end(1)


def _read(commands: Commands, runner: Runner, results: Channel, parent: int) -> NoReturn:
    """The reader: if the runner is still at the same piece of work, or at one that takes long, reads commands for it,
    and does what is short."""
    turns, wait_s = -1, LOOK_S
    look_at_parent_s = 0.0
    desk = commands.core.desk
    while True:
        desk.wait_until_called(wait_s)
        now_s = time.monotonic()
        if now_s > look_at_parent_s:
            look_at_parent_s = now_s + TICK_S
            _check_parent(parent)
        if runner.idle or (runner.turns != turns and not desk.long):
            turns = runner.turns
            wait_s = min(2 * wait_s, IDLE_LOOK_S)  # it gets on: each wake-up would cost it time
            continue
        with commands.lock:
            wait_s = LOOK_S
            while not runner.idle and (runner.turns == turns or desk.long):
                if commands.take_in(wait_s) or commands.core.has_short:
                    _help(commands.core, runner, results)
                if time.monotonic() > look_at_parent_s:
                    look_at_parent_s = time.monotonic() + TICK_S
                    _check_parent(parent)
                # Long work: each wake-up costs the runner time.
                wait_s = LOOK_S if commands.core.has_short else min(2 * wait_s, IDLE_LOOK_S)
        wait_s = LOOK_S
        commands.core.ring()  # the runner may sleep because this thread reads: now it has to read again


def _help(core: WorkerCore, runner: Runner, results: Channel) -> None:
    """Do the short work that there is, while the runner computes."""
    try:
        while core.has_short and (out := core.step(beside=True)) is not None:
            if out:
                with runner.sending:
                    results.send_all(out)
    except EngineLost as e:
        _end(1, f"the device failed: {e}")
