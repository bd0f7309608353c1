"""`gt worker`: one worker in this process, or several with this process as their parent."""

from __future__ import annotations

import signal
import sys
import threading
import time

from gt import config
from gt.errors import GTError, StartError
from gt.server.workers import LocalWorkers, how_many
from gt.worker.main import arguments, server_of
from gt.worker.main import main as work

LOOK_S = 0.1  #: How often the parent looks after its workers.


def main(argv: list[str] | None = None) -> int:
    """Start the workers that the arguments ask for; returns the exit code when they have ended."""
    try:
        settings = config.load()
        parser = arguments(settings)
        parser.add_argument(
            "-n", "--number", default="1", metavar="N", help="workers to start; auto: one for each GPU (default: 1)"
        )
        args = parser.parse_args(argv)
        if args.number == "1":
            work(args)
        count = how_many(args.number, args.engine, args.device, "-n")
        address, key = server_of(args, settings)
        return _watch(LocalWorkers(address, args.engine, args.device, count, args.token, key=key, memory=args.memory))
    except (GTError, ValueError) as e:
        print(f"gt worker: {e}", file=sys.stderr)
        return 2 if isinstance(e, StartError | ValueError) else 1


def _watch(workers: LocalWorkers) -> int:
    """Wait until a signal comes or all workers have ended."""
    asked = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: asked.set())
    while not asked.is_set() and workers.running():
        time.sleep(LOOK_S)
    if asked.is_set():
        workers.terminate()
        workers.end()
        return 0
    return 0 if workers.ended_well() else 1
