"""Many clients on one server, with all kinds of work, that are killed and come back: `python -m tests.processes.load`.

    --minutes 10 --clients 32 --workers 4      how long, how many
    --kills 0.5                                clients that are killed with kill -9 per second; others take their place
    --unix                                     over a Unix socket: shared memory instead of keys, users and shares
    --compile                                  hot programs are compiled (GT_AUTO_COMPILE), as by default

Clients (load_client.py) compare all that they get with numpy's results. Some of them are greedy: they have calls at the
server at all times, two equal ones on each worker, and one on each whose user has a share of 2. What the
processes of the server hold (memory, threads, descriptors, stores, shared memory) is looked at from the end of the
first minute on. At the end all clients leave, their leases end, and nothing of them may be left. Prints a table;
the exit code is 1 if something is wrong. In less than a minute, shares of time and the growth of memory tell nothing.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gt.cli.asking import Asker
from gt.cli.top import overview
from gt.server import users
from gt.transport.identity import url

from .running import DEADLINE_S, Server, children, environment, exit_with, until
from .usage import Usage, jain, median, usage_of, usage_of_all

USERS = 4  #: Of the clients with mixed work.
JAIN = 0.95  #: At least this among equals,
SHARE = (1.8, 2.2)  #: and between these is what a user with share 2 gets, by what one with share 1 gets.
GROWTH = 1.1, 24 << 20  #: What memory may grow by from the first to the last fifth: this factor, and these bytes.
LEASE_S = 10.0
MEMORY = "256M"  #: Of a worker: tensors of idle sessions have to leave it now and then.
LOOK_S = 2.0  #: Between two looks at the processes.


@dataclass
class Place:
    """What a client does, again and again: if it is killed, another one does it."""

    name: str
    kind: str
    server: str  #: as the client connects to it
    popen: subprocess.Popen[bytes] | None = None
    started: int = 0
    killed: int = 0


@dataclass
class Look:
    """What there was at one time."""

    at_s: float
    server: Usage
    workers: Usage
    sessions: int
    tensors: int
    stored: int  #: tensors in the stores of workers, by their own count
    run_us: dict[str, int] = field(default_factory=dict)  #: device time of each greedy client
    idle: int = 0  #: greedy clients without a call at the server
    busy_us: dict[str, int] = field(default_factory=dict)  #: device time of each worker, for all its clients


class Load:
    """See the file's header."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self.args, self.folder = args, folder
        self.rng = random.Random(args.seed)
        self.short = args.minutes < 1  #: Then memory and shares are shown, and not judged.
        self.looks: list[Look] = []
        self.problems: list[str] = []
        home = folder / "home"
        self.output = folder / "output"
        self.output.mkdir()
        settings = {"GT_CONFIG_DIR": str(home), "GT_CACHE_DIR": str(folder / "cache"), "GT_SPILL_DIR": str(folder)}
        if not args.compile:
            settings["GT_AUTO_COMPILE"] = "0"
        each = args.workers if args.clients >= 4 * args.workers else 1  #: workers with greedy clients
        greedy = [("equal", 1)] * 2 * each + ([] if args.unix else [("double", 2)] * each)
        mixed = args.clients - len(greedy)
        keys = {}
        if not args.unix:
            names = [f"m{k}" for k in range(USERS)] + ["top"]
            keys = {name: users.add(home, name) for name in names}
            keys |= {f"{name}{k}": users.add(home, f"{name}{k}", share=share) for k, (name, share) in enumerate(greedy)}
        where = ["--address", f"ipc://{folder}/s"] if args.unix else ["--keys"]
        common = ["--engine", args.engine, "--workers", str(args.workers), "--lease", str(args.lease)]
        self.server = Server(*where, *common, "--memory", MEMORY, **settings)

        def address(user: str) -> str:
            return self.server.address if args.unix else url(self.server.address, keys[user])

        self.home = home
        self.top = address("top")
        self.greedy = [Place(f"{name}{k}", "greedy", address(f"{name}{k}")) for k, (name, _) in enumerate(greedy)]
        self.mixed = [Place(f"mixed{k}", "mixed", address(f"m{k % USERS}")) for k in range(mixed)]
        self.warm = Place("warm", "once", address("m0"))

    # --- clients ---

    def start(self, place: Place) -> None:
        command = ["-m", "tests.processes.load_client", place.kind, str(self.rng.getrandbits(40))]
        log = self.output / f"{place.name}-{place.started}"
        place.started += 1
        with open(log, "wb") as out, open(f"{log}.err", "wb") as err:
            place.popen = subprocess.Popen(
                [sys.executable, *command, str(self.args.workers), place.name],
                # A machine with so many processes is slow to answer.
                env=environment(GT_SERVER=place.server, GT_CONNECT_TIMEOUT="60", OMP_NUM_THREADS="1"),
                stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
            )  # fmt: skip

    def until_it_speaks(self, place: Place) -> None:
        """Its first line says on which worker it is."""
        log = self.output / f"{place.name}-0"
        until(lambda: "\n" in log.read_text(), f"{place.name} on a worker", 4 * DEADLINE_S)

    def ended(self, place: Place) -> bool:
        """Whether its client has ended by itself; that is a problem, unless it was asked to."""
        if place.popen is None or place.popen.poll() is None:
            return False
        if place.popen.returncode not in (0, -signal.SIGTERM):  # asked to leave before it could hear that
            said = Path(f"{self.output}/{place.name}-{place.started - 1}.err").read_text()
            self.problems.append(f"{place.name} ended with {place.popen.returncode}:\n{said[-3000:]}")
        place.popen = None
        return True

    def kill_one(self) -> None:
        place = self.rng.choice(self.mixed)
        if place.popen is not None and place.popen.poll() is None:
            place.popen.kill()
            place.popen.wait()
            place.popen = None
            place.killed += 1

    def lines(self) -> list[list[str]]:
        """What all clients have said. The last line of one that was killed may be incomplete."""
        found = []
        for path in self.output.iterdir():
            if not path.name.endswith(".err"):
                found += [words for line in path.read_text().split("\n")[:-1] if len(words := line.split()) == 3]
        return found

    def worker_of(self, place: Place) -> str:
        """The worker of a greedy client."""
        return (self.output / f"{place.name}-0").read_text().split()[1]

    # --- looking ---

    def overview(self) -> dict[str, Any]:
        with Asker(self.top, "", "top", DEADLINE_S) as asker:
            return overview(asker, 1)

    def look(self) -> Look:
        now = self.overview()
        workers = children(self.server.pid)
        doors = [door for worker in workers for door in children(worker)]
        run_us, idle = {}, 0
        for place in self.greedy:
            if place.popen is not None:
                mine = [s for s in now["sessions"].values() if s["name"].endswith(f"-{place.popen.pid}")]
                run_us[place.name] = sum(s["run_us"] for s in mine)
                idle += not any(s["queue"] for s in mine)
        return Look(
            time.monotonic(), usage_of(self.server.pid), usage_of_all([*workers, *doors]), len(now["sessions"]),
            sum(s["tensors"] for s in now["sessions"].values()), sum(w["tensors"] for w in now["workers"].values()),
            run_us, idle, {number: row.get("run_us", 0) for number, row in now["workers"].items()},
        )  # fmt: skip

    # --- the run ---

    def run(self) -> None:
        self.start(self.warm)
        assert self.warm.popen is not None
        self.warm.popen.wait(4 * DEADLINE_S)
        self.ended(self.warm)
        self.all_gone()
        before = self.look()
        for place in self.greedy:  # one after the other: they are spread evenly over the workers
            self.start(place)
            self.until_it_speaks(place)
        for place in self.mixed:
            self.start(place)
        begin_s = time.monotonic()
        end_s = begin_s + 60 * self.args.minutes
        first_s = begin_s + min(60.0, 12 * self.args.minutes)  # a fifth of a short run
        look_s = first_s
        kill_s = begin_s + 1.0
        while (now_s := time.monotonic()) < end_s:
            for place in [*self.greedy, *self.mixed]:
                if place.popen is None or (self.ended(place) and place.kind == "mixed"):
                    self.start(place)
            if now_s >= kill_s:
                self.kill_one()
                kill_s = now_s + self.rng.expovariate(self.args.kills) if self.args.kills else end_s
            if now_s >= look_s:
                self.looks.append(self.look())
                look_s = now_s + min(LOOK_S, self.args.minutes)
            time.sleep(0.02)  # what is next is due at a time: a kill, a look, the end
        self.looks.append(self.look())
        self.leave()
        self.all_gone()
        self.report(before, self.look())

    def leave(self) -> None:
        """All clients are asked to leave."""
        there = [place for place in [*self.greedy, *self.mixed] if place.popen is not None]
        for place in there:
            assert place.popen is not None
            place.popen.send_signal(signal.SIGTERM)
        for place in there:
            assert place.popen is not None
            place.popen.wait(8 * DEADLINE_S)
            self.ended(place)

    def all_gone(self) -> None:
        try:
            until(lambda: not self.overview()["sessions"], "the end of all sessions", self.args.lease + DEADLINE_S)
        except AssertionError as e:
            left = "\n".join(f"  {number} {row}" for number, row in self.overview()["sessions"].items())
            self.problems.append(f"{e}; there are\n{left}")

    # --- the report ---

    def row(self, what: str, shown: str, good: bool = True) -> None:
        print(f"{what:<46} {shown:<44} {'' if good else 'WRONG'}".rstrip(), flush=True)
        if not good:
            self.problems.append(f"{what}: {shown}")

    def report(self, before: Look, after: Look) -> None:
        args = self.args
        minutes = (self.looks[-1].at_s - self.looks[0].at_s) / 60
        print(f"{args.clients} clients, {args.workers} workers ({args.engine}), {args.minutes:g} minutes")
        print(f"looked at {len(self.looks)} times in the last {minutes:.1f} minutes")
        done: Counter[str] = Counter()
        checks: Counter[str] = Counter()
        for kind, n, _ in self.lines():
            done[kind] += 1
            checks[kind] += int(n)
        for kind in sorted(done):
            self.row(f"  {kind}", f"{done[kind]:,} times, {checks[kind]:,} results compared")
        wrong = [p for p in self.problems if "Wrong: " in p]
        self.row("results that were wrong", f"{len(wrong)} of {sum(checks.values()):,}", not wrong)
        others = len(self.problems) - len(wrong)
        self.row("clients that ended with an error", str(others), not others)
        self.row("clients killed", f"{sum(p.killed for p in self.mixed)}")
        self.report_usage(before, after)
        self.report_shares()

    def report_usage(self, before: Look, after: Look) -> None:
        fifth = max(1, len(self.looks) // 5)
        first, last = self.looks[:fifth], self.looks[-fifth:]
        for who in ("server", "workers"):
            for what in ("rss", "threads", "fds", "rings"):
                a, b = (median([getattr(getattr(each, who), what) for each in part]) for part in (first, last))
                start, end = (getattr(getattr(each, who), what) for each in (before, after))
                name = f"{who}: {'memory' if what == 'rss' else 'descriptors' if what == 'fds' else what}"
                if what == "rss":
                    shown = " ".join(f"{x / 2**20:,.0f}" for x in (start, a, b, end)) + " MiB"
                    good = self.short or max(b, end) <= GROWTH[0] * a + GROWTH[1]
                else:
                    shown = " ".join(f"{x:,.0f}" for x in (start, a, b, end))
                    # While clients come and go, there are now more of them and now fewer.
                    good = b <= 1.25 * a + 16 and end <= start
                self.row(f"{name} (start, first, last, end)", shown, good)
        for what in ("sessions", "tensors", "stored"):
            a, b = (median([getattr(each, what) for each in part]) for part in (first, last))
            start, end = getattr(before, what), getattr(after, what)
            name = f"{what if what != 'stored' else 'tensors in stores'} (start, first, last, end)"
            self.row(name, f"{start} {a} {b} {end}", end == 0 and b <= 1.5 * a + 200)

    def report_shares(self) -> None:
        first, last = self.looks[0].run_us, self.looks[-1].run_us
        used = {name: last[name] - first[name] for name in last if name in first}
        on = {place.name: self.worker_of(place) for place in self.greedy}
        for name in sorted(used, key=lambda name: on[name]):
            self.row(f"  device time of {name} on worker {on[name]}", f"{used[name] / 1e6:.1f} s")
        for worker, after_us in sorted(self.looks[-1].busy_us.items()):
            busy_s = (after_us - self.looks[0].busy_us.get(worker, 0)) / 1e6
            greedy_s = sum(used[name] for name in used if on[name] == worker) / 1e6
            self.row(f"  device time on worker {worker}, of it greedy", f"{busy_s:.1f} s, {greedy_s:.1f} s")
        idle, all_ = sum(look.idle for look in self.looks), len(self.looks) * len(self.greedy)
        self.row("  greedy clients that had no call at a look", f"{idle} of {all_}")
        # Time is shared by those on one worker. How much of it they have depends on what else that worker has to do.
        equal = [used[name] for name in used if name.startswith("equal")]
        self.row(f"Jain's index of {len(equal)} equal clients on all workers", f"{jain(equal):.4f}")
        for worker in sorted(set(on.values())):
            ones = [used[n] for n in used if on[n] == worker and n.startswith("equal")]
            twos = [used[n] for n in used if on[n] == worker and n.startswith("double")]
            if len(ones) > 1:
                good = self.short or jain(ones) >= JAIN
                self.row(f"Jain's index of {len(ones)} equal clients on worker {worker}", f"{jain(ones):.4f}", good)
            if ones and twos:
                ratio = (sum(twos) / len(twos)) / max(1, sum(ones) / len(ones))
                good = self.short or SHARE[0] <= ratio <= SHARE[1]
                self.row(f"share 2 by share 1 on worker {worker}", f"{ratio:.3f}", good)

    def end(self) -> None:
        for place in [*self.greedy, *self.mixed, self.warm]:
            if place.popen is not None:
                place.popen.kill()
                place.popen.wait()
        self.server.signal(signal.SIGTERM)
        try:
            code, _, said = self.server.end()
        finally:
            self.server.popen.kill()
        if code or said:
            self.problems.append(f"the server ended with {code} and said:\n{said[-3000:]}")


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="python -m tests.processes.load")
    p.add_argument("--minutes", type=float, default=10.0)
    p.add_argument("--clients", type=int, default=32)
    p.add_argument("--workers", type=int, default=4)
    p.add_argument("--kills", type=float, default=0.5)
    p.add_argument("--engine", default="torch")
    p.add_argument("--lease", type=float, default=LEASE_S)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--unix", action="store_true")
    p.add_argument("--compile", action="store_true")
    return p.parse_args(argv)


def run(args: argparse.Namespace) -> list[str]:
    """What is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        load = Load(args, Path(folder))
        try:
            load.run()
        finally:
            load.end()
    return load.problems


def main() -> None:
    exit_with(run(arguments()))


if __name__ == "__main__":
    main()
