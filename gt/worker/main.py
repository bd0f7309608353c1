"""The worker as a process: a few threads, and two connections to the dispatcher.

Law 1: the runner does the work and sends its results on a connection of its own.
Law 2: commands are always being read. The runner reads them while it has nothing else to do: then the thread that
       reads a call also runs it, and no thread has to be woken. While the runner is busy for
       longer than a moment, the reader (the main thread) reads for it.
Law 3: a third thread copies uploads out of shared memory, and no other thread waits for it.
Law 4: the process never outlives its dispatcher, nor the parent named on its command line.
"""

from __future__ import annotations

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
from queue import SimpleQueue
from typing import Any, NoReturn

from gt.command_line import Parser
from gt.config import Config, engine_name, load, prepare_torch
from gt.errors import GTError, ServerError, StartError
from gt.transport import connect
from gt.transport.channel import Channel, Patience
from gt.transport.messages import VERSION, Buffer, Goodbye, Message, Refused, WorkerHello, WorkerWelcome
from gt.transport.sockets import endpoint
from gt.worker import engines
from gt.worker.calls import EngineLost
from gt.worker.core import POLL_S, WorkerCore
from gt.worker.heap import keep_freed_memory
from gt.worker.run.engine import Engine

TICK_S = 0.25  #: How often an idle thread checks that its parent and its connection are still there.
LOOK_S = 0.002  #: How often the reader checks whether it is needed, while the runner has work,
IDLE_LOOK_S = 0.02  #: and while it has none; and how often, at most, it checks whether it is still needed.


class Commands:
    """The connection for commands. Either thread may use it, under `lock`."""

    def __init__(self, channel: Channel, core: WorkerCore) -> None:
        self.channel = channel
        self.core = core
        self.lock = threading.Lock()
        self.ending = False  #: The reader wants the lock for good: do not take it any more.

    def take_in(self, timeout_s: float) -> bool:
        """Pass all messages that have come to the core; False if none came in time."""
        came = self.channel.receive(timeout_s)
        if came is None:
            return False
        answers: list[tuple[Message, Buffer | None]] = []
        while came is not None:
            message, payload = came
            if type(message) is Goodbye:
                _end(0)
            if type(message) is Refused:
                raise ServerError(message.text)
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
        threading.Thread(target=self._copy, args=(commands.core, results), name="copier", daemon=True).start()
        try:
            self._serve(commands, results)
        except ServerError as e:
            _end(1, str(e))
        except EngineLost as e:
            _end(1, f"the device failed: {e}")
        except BaseException as e:
            _end(1, f"{type(e).__name__}: {e}")

    def _copy(self, core: WorkerCore, results: Channel) -> NoReturn:
        """The copier's thread: copies large uploads while the other threads work."""
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)  # of this thread alone: the others go first
        try:
            while True:
                answers = core.copy(wait=True)
                if answers:
                    with self.sending:
                        results.send_all(answers)
        except BaseException as e:
            _end(1, f"{type(e).__name__}: {e}")

    def _serve(self, commands: Commands, results: Channel) -> NoReturn:
        core = commands.core
        while True:
            out = core.step()
            self.turns += 1
            if out:
                with self.sending:
                    results.send_all(out)
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
                if self._patience.wanted() and not core.copying:
                    found = self._look(commands, core.config.spin_us * 1e-6)
                    self._patience.looked(found)
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

    def _look(self, commands: Commands, for_s: float) -> bool:
        """Poll for commands; whether one came in that time."""
        until_s = time.perf_counter() + for_s
        while time.perf_counter() < until_s and not commands.core.copying:
            if commands.take_in(0.0):
                return True
            os.sched_yield()  # processes that have work go first: one of them may send us ours
        return False


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run a worker until its dispatcher ends, and with it the process."""
    config = load()
    args = _arguments(config).parse_args(argv)
    keep_freed_memory()
    prepare_torch(quiet=not config.debug_worker)
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    runner = Runner(args.engine, args.device, config.threads)
    try:
        runner.start()
        engine = runner.wait_for_engine(args.parent)
        _work(args.address or f"{args.host}:{args.port}", args.token, args.parent, engine, runner, config)
    except Stop:
        _end(0)
    except GTError as e:
        _end(1, str(e))


def _arguments(config: Config) -> Parser:
    parser = Parser(prog="gt worker", description="Start a worker and join it to a server.")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("-p", "--port", type=int, help="port of the server")
    where.add_argument("--address", help="address of the server, instead of host and port, such as ipc:///path")
    parser.add_argument("--host", default="127.0.0.1", help="host of the server (default: this machine)")
    parser.add_argument("--token", default=config.token, help="secret of the server (default: GT_TOKEN)")
    parser.add_argument(
        "--engine", type=engine_name, default=config.engine, help="torch, numpy or jax (default: GT_ENGINE)"
    )
    parser.add_argument("--device", default=config.device, help="device, such as cpu or cuda:0 (default: GT_DEVICE)")
    parser.add_argument("--parent", type=int, default=0, help="exit when this process is no longer the parent")
    return parser


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


def _work(address: str, token: str, parent: int, engine: Engine, runner: Runner, config: Config) -> NoReturn:
    commands, results = connect(address), connect(address)
    link = secrets.token_hex(16)
    memory = config.worker_memory or engine.memory
    listening = _open_to_others(address)
    peers = "" if listening is None else "{}:{}".format(*listening.getsockname())
    reading: Commands | None = None
    about = (engine.name, engine.device, memory, socket.gethostname(), os.getpid(), peers)
    for channel, control in ((commands, True), (results, False)):
        channel.send(WorkerHello(VERSION, token, link, control, *about))
    try:
        number = _wait_for_welcome(commands, parent, config.connect_timeout_s)
        if config.verbose:
            say(f"joined {address} as worker {number} ({engine.name} on {engine.device})")
        core = WorkerCore(engine, config, say, _network(listening, engine, config))
        core.receive(WorkerWelcome(VERSION, number))
        # Imported modules stay: the garbage collector need not visit them while programs run.
        gc.collect()
        gc.freeze()
        reading = Commands(commands, core)
        runner.begin.put((reading, results))
        _read(reading, runner, parent)
    except Stop:
        if reading is not None:
            reading.ending = True
        if reading is None or reading.lock.acquire(timeout=4 * TICK_S):
            commands.send(Goodbye())
            commands.close()
        _end(0)
    except ServerError as e:
        _end(1, str(e))


def _open_to_others(address: str) -> socket.socket | None:
    """A socket where other workers meet this one, at the address from which it reaches the server. None: it cannot."""
    if not engines.can_meet_others():
        return None
    mine = "127.0.0.1"
    if not address.startswith("ipc://"):
        host, _, port = endpoint(address).removeprefix("tcp://").rpartition(":")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, int(port)))  # sends nothing
            mine = probe.getsockname()[0]
    return socket.create_server((mine, 0), backlog=128)


def _network(listening: socket.socket | None, engine: Engine, config: Config) -> Callable[[], Any] | None:
    if listening is None:
        return None
    device = engine.device if engine.name == "torch" else "cpu"  # arrays of other engines go through host memory
    return lambda: engines.network(listening, config.peer_timeout_s, device)


def _wait_for_welcome(commands: Channel, parent: int, timeout_s: float) -> int:
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        _check_parent(parent)
        came = commands.receive(TICK_S)
        if came is None:
            continue
        match came[0]:
            case WorkerWelcome(version=version, worker=worker):
                if version != VERSION:
                    raise ServerError(f"the server has protocol version {version}, this worker has {VERSION}")
                return worker
            case Refused(text=text):
                raise ServerError(f"the server refused this worker: {text}")
            case other:
                raise ServerError(f"expected a welcome from the server, got {type(other).__name__}")
    raise ServerError(f"the server did not answer within {timeout_s:g} s")


def _check_parent(parent: int) -> None:
    if parent and os.getppid() != parent:
        _end(1)


def _read(commands: Commands, runner: Runner, parent: int) -> NoReturn:
    """The reader: if the runner is still at the same piece of work, reads commands for it."""
    turns = -1
    look_at_parent_s = 0.0
    while True:
        time.sleep(IDLE_LOOK_S if runner.idle else LOOK_S)
        now_s = time.monotonic()
        if now_s > look_at_parent_s:
            look_at_parent_s = now_s + TICK_S
            _check_parent(parent)
        if runner.idle or runner.turns != turns:
            turns = runner.turns
            continue
        with commands.lock:
            wait_s = LOOK_S
            while runner.turns == turns and not runner.idle:
                commands.take_in(wait_s)
                wait_s = min(2 * wait_s, IDLE_LOOK_S)  # long work: each wake-up costs the runner time
        commands.core.ring()  # the runner may sleep because this thread reads: now it has to read again
