"""`gt up --ray`: a server on this machine, and a worker on every GPU of a Ray cluster, as Ray actors.

Ray gives each actor its GPU. The actor starts the same worker process as `gt worker` does, with a key that is made for
these workers and revoked when `gt up` ends.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
from importlib import import_module
from typing import Any

from gt import config
from gt.command_line import Parser
from gt.errors import GTError, StartError
from gt.server import users
from gt.server.workers import how_many
from gt.transport.identity import WORKER, url

LOOK_S = 0.5  #: How often the server and the actors are looked at.
START_S = 120.0  #: How long Ray may take to place the actors, and they to start their workers.


def main(argv: list[str] | None = None) -> int:
    """Run a server with its workers until it is told to stop; returns the exit code."""
    p = Parser(prog="gt up", description="Start a server here, and workers on the machines of a cluster.")
    p.add_argument("--ray", action="store_true", required=True, help="workers are actors of a Ray cluster")
    p.add_argument("--ray-address", default="auto", help="address of the Ray cluster (default: the one that runs here)")
    p.add_argument("-p", "--port", type=int, default=12345, help="port of the server (default: %(default)s)")
    p.add_argument("--host", default="0.0.0.0", help="address to listen on (default: all of this machine)")
    p.add_argument(
        "--workers", default="auto", metavar="N", help="auto: one for each GPU, or one on each machine without GPUs"
    )
    args = p.parse_args(argv)
    stop = threading.Event()
    _stop_by_signal(stop)
    try:
        settings = config.load()
        count = 0 if args.workers == "auto" else how_many(args.workers, settings.engine, settings.device, "--workers")
        _up(args.ray_address, args.host, args.port, count, settings, stop)
    except (GTError, ValueError) as e:
        print(f"gt up: {e}", file=sys.stderr)
        return 2
    return 0


def _stop_by_signal(stop: threading.Event) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())


def _up(ray_address: str, host: str, port: int, count: int, settings: config.Config, stop: threading.Event) -> None:
    try:
        ray = import_module("ray")
    except ImportError:
        raise StartError("gt up --ray needs Ray: pip install 'gt[ray]'") from None
    try:
        ray.init(address=ray_address, log_to_driver=False, logging_level="error")
    except Exception as e:
        first = str(e).partition("\n")[0]
        raise StartError(f"cannot join a Ray cluster at {ray_address!r}: {first}; start one with: ray start") from None
    _stop_by_signal(stop)  # Ray has set its own
    home = config.home(settings)
    name = f"ray-{secrets.token_hex(4)}"
    actors: list[Any] = []
    server = subprocess.Popen([sys.executable, "-m", "gt.server", "--host", host, "-p", str(port)], stdout=-1)
    try:
        assert server.stdout is not None
        line = server.stdout.readline().decode()
        if not line.startswith("gt: serving on "):
            raise StartError("the server did not start; its own line says why")
        port = int(line.removeprefix("gt: serving on ").partition(",")[0].rpartition(":")[2])
        key = users.add(home, name, WORKER)
        actors = _start_actors(ray, url(f"{ray.util.get_node_ip_address()}:{port}", key), count, settings)
        print(line, end="", flush=True)
        print(f"gt: {len(actors)} workers as Ray actors", flush=True)
        while not stop.wait(LOOK_S) and server.poll() is None:
            ended = [said for said in ray.get([actor.ended.remote() for actor in actors]) if said]
            if ended:
                raise StartError(f"a worker has ended: {ended[0]}")
    finally:
        for actor in actors:
            ray.kill(actor)
        if name in {user.name for user in users.read(home).values()}:
            users.revoke(home, name)
        server.terminate()
        server.wait()
        ray.shutdown()


def _start_actors(ray: Any, server: str, count: int, settings: config.Config) -> list[Any]:
    """Actors that have each started a worker."""
    affinity = import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
    nodes = [node for node in ray.nodes() if node["Alive"]]
    gpus = {node["NodeID"]: int(node["Resources"].get("GPU", 0)) for node in nodes}
    device = settings.device or ("" if any(gpus.values()) else "cpu")
    needs = {"num_gpus": 1, "num_cpus": 0} if device != "cpu" else {"num_gpus": 0, "num_cpus": 1}
    remote = ray.remote(**needs)(_Worker)
    places: list[Any] = [
        affinity(node_id=node, soft=False) for node in gpus for _ in range(gpus[node] if device != "cpu" else 1)
    ]
    if count:
        places = ["SPREAD"] * count
    actors = [remote.options(scheduling_strategy=place).remote() for place in places]
    problem = ""
    try:
        said = ray.get([actor.start.remote(server, settings.engine, device) for actor in actors], timeout=START_S)
        problem = next((f"a worker did not start: {why}" for why in said if why), "")
    except Exception as e:
        problem = f"Ray did not start the workers within {START_S:g} s: {type(e).__name__}"
    if problem:
        for actor in actors:
            ray.kill(actor)
        raise StartError(problem)
    return actors


class _Worker:
    """The actor: it has the GPU, and a worker process that uses it. The process ends with the actor."""

    def start(self, server: str, engine: str, device: str) -> str:
        """Start the worker and wait until it has joined; returns why it has not."""
        command = [sys.executable, "-m", "gt.worker", "--engine", engine, "--parent", str(os.getpid())]
        command += ["--device", device] if device else []
        env = config.environment(server=server)  # the key is not among the arguments
        self.process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        assert self.process.stderr is not None
        self.said = ""  # its last line
        for line in self.process.stderr:
            self.said = line.decode(errors="replace").strip()
            if "joined" in self.said:
                threading.Thread(target=self._listen, daemon=True).start()
                return ""
        return self.said or "it ended"

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said = line.decode(errors="replace").strip()

    def ended(self) -> str:
        """Why the worker has ended; empty while it runs."""
        return "" if self.process.poll() is None else self.said or f"exit code {self.process.returncode}"
