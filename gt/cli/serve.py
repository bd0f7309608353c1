"""`gt serve`: a dispatcher on a port, with workers on this machine if asked for.

A private server (see gt/server/local.py) is the same process with some options that `--help` does not show: it listens
on a Unix socket in a directory of its own, writes to a pipe when it is ready or why it is not, ends
with its parent, and removes its directory.
"""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import signal
import socket
import sys
from contextlib import ExitStack

from gt import config
from gt.awake import Awake
from gt.command_line import Parser, nbytes
from gt.dispatcher import events
from gt.dispatcher.log import InstructionLog
from gt.dispatcher.log_writer import LogWriter
from gt.dispatcher.machine import Machine
from gt.dispatcher.server import Observer, Server, print_arrivals, print_event
from gt.dispatcher.solving import Solving
from gt.errors import GTError, StartError
from gt.server.users import CurrentUsers, remember_address
from gt.server.workers import LocalWorkers, count_gpus, how_many
from gt.transport import listen
from gt.transport.addresses import is_loopback
from gt.transport.identity import url


def parser(prog: str, settings: config.Config) -> Parser:
    p = Parser(prog=prog, description="Start the dispatcher that clients and workers connect to.")
    p.add_argument("-p", "--port", type=int, default=12345, help="port to listen on; 0: any (default: %(default)s)")
    p.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s, this machine only)")
    p.add_argument("--address", help="address to listen on instead, such as ipc:///path/to/socket")
    p.add_argument(
        "--workers", default="0", metavar="N", help="also start N workers here; auto: one for each GPU (default: 0)"
    )
    p.add_argument(
        "--engine", type=config.engine_name, default=settings.engine,
        help="array library of those workers (default: %(default)s)",
    )  # fmt: skip
    p.add_argument(
        "--memory", type=nbytes, default=settings.worker_memory, metavar="SIZE",
        help="bytes each of its workers may use, such as 40G (default: GT_WORKER_MEMORY, or all of its device)",
    )  # fmt: skip
    p.add_argument("--keys", action="store_true", help="let nobody join without a key, on this machine either")
    p.add_argument("--token", default=settings.token, help="secret needed to join; better set GT_TOKEN (default: none)")
    p.add_argument(
        "--lease", type=seconds, default=settings.lease_s, metavar="SECONDS",
        help="how long what a named session keeps stays without a client (default: %(default)g)",
    )  # fmt: skip
    p.add_argument("--parent", type=int, metavar="PID", help="exit when this process, the parent, has ended")
    p.add_argument("--private", metavar="DIR", help=argparse.SUPPRESS)  # directory of a private server's socket
    p.add_argument("--ready-fd", type=int, help=argparse.SUPPRESS)  # where to say "ready" or "failed: why"
    p.add_argument("--stderr-fd", type=int, help=argparse.SUPPRESS)  # what becomes stderr once it is ready
    return p


def seconds(text: str) -> float:
    """A time that is not negative."""
    found = float(text)
    if not 0 <= found < float("inf"):
        raise argparse.ArgumentTypeError(f"expected seconds >= 0, got {text}")
    return found


def main(argv: list[str] | None = None, prog: str = "gt serve") -> int:
    """Run a server until it is told to stop; returns the exit code."""
    try:
        settings = config.load()
    except ValueError as e:
        print(f"gt: {e}", file=sys.stderr)
        return 2
    args = parser(prog, settings).parse_args(argv)
    settings = config.replace(settings, lease_s=args.lease)
    stopped = _Stop()  # before anything is started that would have to be ended
    try:
        _serve(args, settings, stopped)
    except GTError as e:
        _tell(args.ready_fd, f"failed: {e}\n")
        if args.ready_fd is None:
            print(f"gt: {e}", file=sys.stderr)
        return 2
    finally:
        if args.private:
            shutil.rmtree(args.private, ignore_errors=True)
    return 0


class _Stop:
    """Stops the server on SIGINT and SIGTERM; a signal that comes earlier is remembered."""

    def __init__(self) -> None:
        self.server: Server | None = None
        self.asked = False
        signal.signal(signal.SIGINT, self._ask)
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, *_: object) -> None:
        self.asked = True
        if self.server is not None:
            self.server.stop()


def _serve(args: argparse.Namespace, settings: config.Config, stop: _Stop) -> None:
    count = how_many(args.workers, args.engine, settings.device, "--workers")
    if args.private and not count:
        count = how_many("auto", args.engine, settings.device, "--workers")
    if args.parent is not None and os.getppid() != args.parent:
        return  # it has already ended
    if args.keys and args.address and args.address.startswith("ipc://"):
        raise StartError("--keys is for a server on a port; who can open the socket decides who joins it")
    address = args.address or (f"ipc://{args.private}/s" if args.private else f"{args.host}:{args.port}")
    watch = CurrentUsers(config.home(settings)) if args.keys or is_open(address) else None
    with ExitStack() as ending:
        _run(args, settings, stop, address, ending, count, watch)


def _observers(settings: config.Config) -> list[Observer]:
    """The observers of the dispatcher's messages that the settings ask for."""
    observers: list[Observer] = []
    if settings.verbose:
        observers.append(print_arrivals)
    if settings.debug_dispatcher:
        observers.append(print_event)
    return observers


def _log_writer(settings: config.Config, ending: ExitStack) -> LogWriter | None:
    """What writes the instruction log, if the settings ask for one."""
    if not settings.instruction_log:
        return None
    try:
        file = os.open(settings.instruction_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    except OSError as e:
        raise StartError(f"GT_INSTRUCTION_LOG={settings.instruction_log}: {e.strerror}") from None
    try:
        return ending.enter_context(LogWriter(file))
    finally:
        os.close(file)


def is_open(address: str) -> bool:
    """Whether other machines can reach this address."""
    return not address.startswith("ipc://") and not is_loopback(address)


def _run(
    args: argparse.Namespace,
    settings: config.Config,
    stop: _Stop,
    address: str,
    ending: ExitStack,
    count: int,
    watch: CurrentUsers | None,
) -> None:
    writer = _log_writer(settings, ending)  # first: it is forked, and there must be no threads yet
    router = listen(address, watch.ring if watch is not None else None)
    join = "" if args.private else _join_command(router.address)
    machine = Machine(settings, args.token, join, watch.secret if watch is not None else "")
    near = router.address.replace("0.0.0.0:", "127.0.0.1:")
    observers = _observers(settings)
    log = None if writer is None else InstructionLog(writer.write, held=machine.state)
    solving = Solving(near if watch is None else url(near, watch.planner_key), args.token)
    server = Server(router, machine, observers if log is None else [*observers, log], solving, Awake(settings.awake_us))
    server.flush_log = None if log is None else log.flush
    key = watch.key if watch is not None else None
    private = bool(args.private)
    quiet = private or count_gpus() == 0  # which GPU a worker has is worth a line; that it has none is not
    workers = LocalWorkers(near, args.engine, settings.device, count, args.token, private, key, quiet, args.memory)
    if watch is not None:
        remember_address(config.home(settings), _outside(router.address))
    starting = True

    def look_around() -> None:
        nonlocal starting
        workers.pump()
        if watch is not None and watch.changed():
            server.tell(events.UsersChanged(watch.ring.users, watch.secret))
        if args.parent is not None and os.getppid() != args.parent:
            server.stop()
        elif starting:
            if server.joined() >= count:
                starting = False
                _announce(args, router.address)
            else:
                workers.check_start()
        else:
            workers.reap()

    server.on_tick = look_around
    stop.server = server
    if stop.asked:
        server.stop()
    # Loaded modules stay, and messages form no cycles: the garbage collector need not run so often.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    try:
        server.run()
    finally:
        workers.end()


def _announce(args: argparse.Namespace, address: str) -> None:
    if args.ready_fd is not None:
        if args.stderr_fd is not None:
            os.dup2(args.stderr_fd, 2)
            os.close(args.stderr_fd)
        _tell(args.ready_fd, "ready\n")
        return
    print(f"gt: serving on {address}, start workers with: {_join_command(address)}", flush=True)


def _join_command(address: str) -> str:
    if address.startswith("ipc://"):
        return f"gt worker --address {address}"
    host, _, port = _outside(address).rpartition(":")
    return f"gt worker --host {host} -p {port}"


def _outside(address: str) -> str:
    """The address as other machines name it."""
    return address.replace("0.0.0.0:", f"{socket.gethostname()}:")


def _tell(fd: int | None, text: str) -> None:
    if fd is None:
        return
    try:
        os.write(fd, text.encode())
        os.close(fd)
    except OSError:
        pass  # the parent is gone, which ends this process too
