"""An adversary at a real server: `python -m tests.processes.adversary`. Nothing comes of it.

    --ids 100000         ids of another user that are guessed (guesses.py)
    --messages 100000    false messages of a user, over the wire (hostile.py)
    --frames 1000000     mutated frames in this process (frames.py); 10,000,000 take some minutes
    --connections 3000   connections that are opened and say nothing, or half of something
    --keys 200           wrong and revoked keys that are tried

A server that other machines could reach, with two workers, users and a log. One user trains all the time and compares
every result with numpy's. Another user, and strangers without a key, do the above; strangers also knock at
every port on which a process of the server listens, send again what others have sent, and change its order. Then: no
process has ended, the user's results were right, the processes hold what they held before, and no key is in anything
that a process has written or shows in its command line. Prints a table; the exit code is 1 if something is wrong.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import gt
from gt.errors import ServerError
from gt.server import users
from gt.transport import connect
from gt.transport import messages as msg
from gt.transport.curve import new_pair
from gt.transport.identity import CLIENT, WORKER, Key, url
from gt.worker.run.tunnel import LOWER, home

from .frames import Siege
from .guesses import Guesser, Victim
from .hostile import USER, Attacker, ZmqPeer
from .running import (
    DEADLINE_S,
    Process,
    alive,
    answer,
    children,
    command,
    environment,
    exit_with,
    knock,
    open_files,
    until,
)
from .usage import Usage, usage_of

PEERS, BATCH = 6, 25
GREETING = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0"  #: How a connection of ZeroMQ begins; the name of a mechanism follows.
#: What strangers say. The last one is what a worker's door expects, without the proof.
SAYINGS = (
    b"", b"\0", b"GET / HTTP/1.1\r\n\r\n", GREETING + b"NULL".ljust(52, b"\0") + b"\x04\x26\x05READY" + bytes(64),
    GREETING + b"CURVE".ljust(52, b"\0") + b"\x04\xc8\x05HELLO" + bytes(194), bytes(4000), b"\xff" * 4000,
    b"GT-TUNNEL-1\n" + bytes(32 + 8 + 8 + 2 + 32), b"\x02\x00\x00\x00\x01" + b"\x7f" * 300,
)  # fmt: skip


#: Two workers meet, and each sends something large: what they need for that, they have from then on.
MESH = """
import gt
gt.mesh(x=2)
x = gt.shard(gt.ones(2, 1 << 16), {0: "x"})
assert x.numpy().sum() == x.sum().item() == 1 << 17
"""


class Lab:
    """The server, its users, and what its processes write."""

    def __init__(self, folder: Path, workers: int = 2, engine: str = "torch") -> None:
        self.folder, self.home = folder, folder / "home"
        self.keys = {name: users.add(self.home, name) for name in ("ada", "bob", "eve", "mallory")}
        self.keys["workers"] = users.add(self.home, "workers", WORKER)
        self.log, self.said = folder / "log", folder / "said"
        env = environment(
            GT_CONFIG_DIR=str(self.home), GT_INSTRUCTION_LOG=str(self.log), GT_VERBOSE="1", GT_AUTO_COMPILE="0",
            GT_WORKER_MEMORY=str(256 << 20), GT_CACHE_BYTES=str(16 << 20), GT_CACHE_DIR=str(folder / "cache"),
        )  # fmt: skip
        arguments = ["--host", "0.0.0.0", "-p", "0", "--workers", str(workers), "--engine", engine]
        with open(self.said, "wb") as said:
            self.server = Process(["-m", "gt.server", *arguments], env, stderr=said)
        line = self.server.line(deadline_s=4 * DEADLINE_S)
        assert line.startswith("gt: serving on "), line
        port = line.removeprefix("gt: serving on ").partition(",")[0].rpartition(":")[2]
        self.address = f"127.0.0.1:{port}"
        self.pids = self.processes()

    def processes(self) -> list[int]:
        """The server, its workers and the processes at their doors."""
        workers = children(self.server.pid)
        return [self.server.pid, *workers, *[door for worker in workers for door in children(worker)]]

    def usage(self) -> list[Usage]:
        return [usage_of(pid) for pid in self.pids]

    def greet(self, key: Key | None) -> msg.Message:
        with closing(connect(self.address, key)) as channel:
            channel.send(msg.Hello(msg.VERSION, "", "test"))
            return answer(channel)

    def secrets(self) -> list[str]:
        """All that must be in no output: secret keys in every form in which they are written."""
        found = [(self.home / "server.key").read_text().strip()]
        for key in self.keys.values():
            found += [key.secret.hex(), url("x", key).partition("-")[2], url("x", key).partition("-")[2][43:]]
        return found

    def leaked(self, *said: str) -> list[str]:
        """Which of the secrets are in the logs, in command lines, or in these texts."""
        shown = [command(pid).decode(errors="replace") for pid in self.pids]
        everything = "\n".join([*shown, *said, self.log.read_text(errors="replace"), self.said.read_text()])
        return [secret for secret in self.secrets() if secret in everything]

    def end(self) -> None:
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.server.popen.communicate()


# --- strangers -------------------------------------------------------------------------------------------------------


def listening(pids: list[int]) -> list[tuple[int, str, int]]:
    """Where processes listen: process, host, port. IPv6 addresses that stand for IPv4 ones are shown as those."""
    inodes: dict[str, int] = {}
    for pid in pids:
        for target in open_files(pid).values():
            if target.startswith("socket:["):
                inodes.setdefault(target[8:-1], pid)
    found = []
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                digits, _, port = fields[1].partition(":")
                raw = bytes.fromhex(digits)
                host = ".".join(str(b) for b in reversed(raw[-4:])) if any(raw) else "0.0.0.0"
                found.append((inodes[fields[9]], host, int(port, 16)))
    return sorted(set(found))


def knock_everywhere(lab: Lab, wait_s: float = 0.3) -> tuple[int, list[str]]:
    """Strangers at every port: how often, and what is open to other machines though it should not be."""
    doors = set(lab.pids) - {lab.server.pid} - set(children(lab.server.pid))
    problems, count = [], 0
    for pid, host, port in listening(lab.pids):
        if host == LOWER:
            continue  # it is for processes of the same account, such as this one
        if not host.startswith("127.") and pid != lab.server.pid and pid not in doors:
            problems.append(f"process {pid} listens on {host}:{port}")
        for said in SAYINGS:
            got = knock(f"{host if host != '0.0.0.0' else '127.0.0.1'}:{port}", said, wait_s)
            count += 1
            if len(got) > 200 and pid not in children(lab.server.pid):
                problems.append(f"{host}:{port} answered {got[:80]!r} to {said[:20]!r}")
    return count, problems


@contextmanager
def half_open(lab: Lab, count: int, rng: random.Random) -> Iterator[int]:
    """Connections to the server and to the doors that say nothing, or the beginning of something."""
    doors = set(lab.pids) - {lab.server.pid} - set(children(lab.server.pid))
    ports = [port for pid, _, port in listening(lab.pids) if pid == lab.server.pid or pid in doors]
    held = []
    try:
        for _ in range(count):
            with suppress(OSError):
                s = socket.create_connection(("127.0.0.1", rng.choice(ports)), 1.0)
                held.append(s)
                said = rng.choice(SAYINGS)
                s.sendall(said[: rng.randrange(len(said) + 1)])
        yield len(held)
    finally:
        for s in held:
            s.close()


class Between:
    """Somebody between a client and the server, who passes on frames, writes them down, and may exchange two."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.said = b""

    def pass_on(self, key: Key, exchange: bool) -> bool:
        """A client says hello through it and asks for statistics twenty times; whether all were answered."""
        host, _, port = self.address.rpartition(":")
        with socket.create_server(("127.0.0.1", 0)) as server:
            with closing(connect(f"127.0.0.1:{server.getsockname()[1]}", key)) as client, ExitStack() as ending:
                client.send(msg.Hello(msg.VERSION, "", "x"))
                near = ending.enter_context(server.accept()[0])
                far = ending.enter_context(socket.create_connection((host, int(port))))
                for s in (near, far):
                    s.settimeout(0.01)
                asked = got = 0
                held = b""
                until_s = time.monotonic() + DEADLINE_S
                while got < 20 and time.monotonic() < until_s:
                    try:
                        came = client.receive()
                    except ServerError:
                        return False
                    if came is not None:
                        got += isinstance(came[0], msg.Stats)
                        if asked < 20:
                            asked += 1
                            client.send(msg.GetStats(asked))
                    for source, sink in ((near, far), (far, near)):
                        try:
                            data = source.recv(65536)
                        except TimeoutError:
                            continue
                        except OSError:
                            return False
                        if not data:
                            return False  # one of them has hung up
                        if source is near:
                            self.said += data
                            if exchange and asked > 5:
                                data, held = (data + held, b"") if held else (b"", data)
                                if not data:
                                    client.send(msg.GetStats(99))  # so that there is a second one to exchange it with
                        with suppress(OSError):
                            sink.sendall(data)
                return got >= 20

    def repeat(self) -> bytes:
        """What was written down, on a connection of its own; what the server says to it."""
        return knock(self.address, self.said, 1.0)


# --- the run ---------------------------------------------------------------------------------------------------------


class Run:
    """See the file's header."""

    def __init__(self, args: argparse.Namespace, lab: Lab) -> None:
        self.args, self.lab = args, lab
        self.rng = random.Random(args.seed)
        self.problems: list[str] = []
        self.texts: list[str] = []  #: What was said to adversaries.
        self.kept = 0  #: Connections of strangers that gloo does not close, on loopback: see docs/security.md.

    def row(self, what: str, shown: str, good: bool = True) -> None:
        print(f"{what:<44} {shown:<52} {'' if good else 'WRONG'}".rstrip(), flush=True)
        if not good:
            self.problems.append(f"{what}: {shown}")

    def timed(self, what: str, action: Callable[[], str]) -> None:
        begin_s = time.monotonic()
        try:
            shown = action()
        except AssertionError as e:
            self.row(what, f"{e}"[:2000], False)
        else:
            self.row(what, f"{shown}; {time.monotonic() - begin_s:.1f} s")

    def run(self, user: Process) -> None:
        lab, victim = self.lab, int(user.line(deadline_s=4 * DEADLINE_S))
        mesh = Process(["-c", MESH], environment(GT_SERVER=url(lab.address, lab.keys["bob"])))
        assert mesh.end(4 * DEADLINE_S)[0] == 0, "a mesh of two workers"  # now the stores and gloo listen too
        before = lab.usage()
        self.timed("guessed ids", self.guess)
        self.timed("false messages of a user", lambda: self.lie(victim))
        self.timed("strangers at every port", self.knock)
        self.timed("half-open connections", self.hold_open)
        self.timed("frames sent again and exchanged", self.between)
        self.timed("wrong and revoked keys", self.try_keys)
        self.timed("flood of large messages", self.flood)
        (lab.folder / "stop").touch()
        code, steps, said = user.end(4 * DEADLINE_S)
        self.row("steps of the user, each compared", steps.strip(), code == 0 and int(steps or 0) >= 20)
        self.texts.append(said)
        if said:
            self.problems.append(f"the user said: {said[-2000:]}")
        ended = [pid for pid in lab.pids if not alive(pid)]
        self.row("processes that have ended", str(len(ended)), not ended and lab.processes() == lab.pids)
        if not ended:
            self.held(before)
            leaked = lab.leaked(*self.texts)
            self.row("secrets in logs, answers, command lines", str(len(leaked)), not leaked)

    def guess(self) -> str:
        lab = self.lab
        victim = Victim(lab.address, lab.keys["ada"])
        with closing(Guesser(lab.address, lab.keys["eve"], victim, self.rng)) as guesser:
            guesser.run(self.args.ids)
        victim.unharmed()
        return f"{sum(guesser.guesses.values()):,}, {len(guesser.guesses)} kinds"

    def lie(self, victim: int) -> str:
        lab, key = self.lab, self.lab.keys["eve"]
        with ExitStack() as ending:
            liars = [
                ending.enter_context(closing(Attacker(lambda: ZmqPeer(lab.address, key), self.rng, victim)))
                for _ in range(PEERS)
            ]
            for sent in range(0, self.args.messages, BATCH):
                liars[sent // BATCH % PEERS].attack(BATCH, wrong=sent // BATCH % 7 < 4)
            return f"{self.args.messages:,}, {sum(a.errors for a in liars):,} answered with an error"

    def knock(self) -> str:
        count, problems = knock_everywhere(self.lab)
        assert not problems, "; ".join(problems)
        ports = listening(self.lab.pids)
        self.kept = sum(host.startswith(home(0)[:8]) for _, host, _ in ports) * len(SAYINGS)
        return f"{count} at {len(ports)} ports, {sum(h.startswith('127.') for _, h, _ in ports)} of them on loopback"

    def hold_open(self) -> str:
        with half_open(self.lab, self.args.connections, self.rng) as held:
            for _ in range(5):
                welcome = self.lab.greet(self.lab.keys["bob"])
                assert isinstance(welcome, msg.Welcome), welcome
            env = environment(GT_SERVER=url(self.lab.address, self.lab.keys["bob"]), GT_CONNECT_TIMEOUT="30")
            code, _, err = Process(["-c", MESH], env).end(4 * DEADLINE_S)
            assert code == 0, err
        return f"{held:,} held; others join and work"

    def between(self) -> str:
        between = Between(self.lab.address)
        assert between.pass_on(self.lab.keys["bob"], exchange=False), "not even what nobody has changed passes"
        for _ in range(20):
            got = between.repeat()
            assert len(got) < 500, f"{len(got)} bytes were answered to what was sent again"
        exchanged = sum(between.pass_on(self.lab.keys["bob"], exchange=True) for _ in range(5))
        assert not exchanged, "messages in another order were accepted"
        return "20 repeated, 5 exchanged, none accepted"

    def try_keys(self) -> str:
        lab, key = self.lab, self.lab.keys["mallory"]
        gt.connect(url(lab.address, key))
        assert gt.ones(3).sum().item() == 3
        users.revoke(lab.home, "mallory")
        begin_s = time.monotonic()
        with suppress(ServerError):
            while True:
                gt.ones(2).sum().item()
        ended_s = time.monotonic() - begin_s
        assert ended_s < 5, f"a revoked key was of use for {ended_s:.1f} s"
        gt.disconnect()
        right = lab.keys["ada"]
        for k in range(self.args.keys):
            wrong = [
                key, Key(CLIENT, right.server, new_pair()[1]), Key(CLIENT, new_pair()[0], right.secret), None,
                Key(CLIENT, right.server, right.server),
            ][k % 5]  # fmt: skip
            try:
                got = lab.greet(wrong)
            except ServerError as e:
                self.texts.append(str(e))
            else:
                raise AssertionError(f"a wrong key was answered {got}")
        assert isinstance(lab.greet(lab.keys["workers"]), msg.Refused)
        return f"{self.args.keys} refused; a session of a revoked key ended after {ended_s:.2f} s"

    def flood(self) -> str:
        """As much as a user can send, without reading an answer."""
        lab, chunk = self.lab, bytes(msg.CHUNK)
        begin_s, sent = time.monotonic(), 0
        with closing(ZmqPeer(lab.address, lab.keys["eve"])) as peer:
            peer.socket.sndhwm = 100
            peer.send(msg.encode(msg.Hello(msg.VERSION, "", "eve")))
            while time.monotonic() < begin_s + self.args.flood_s:
                one = msg.Chunk(0, 1 + sent, 0, 1 << 40, (1 << 38,), "float32") if sent % 2 else msg.GetStats(sent)
                with suppress(Exception):
                    peer.socket.send_multipart(msg.encode(one, chunk if sent % 2 else None), flags=1)
                    sent += 1
        return f"{sent:,} in {self.args.flood_s:g} s"

    def held(self, before: list[Usage]) -> None:
        """What the processes hold is what they held; connections that were cut off may take a moment to close."""

        def settled() -> bool:
            now = self.lab.usage()
            return sum(u.fds for u in now) <= sum(u.fds for u in before) + self.kept and sum(
                u.threads for u in now
            ) <= sum(u.threads for u in before)

        with suppress(AssertionError):
            until(settled, "descriptors and threads as before")
        now = self.lab.usage()
        for what in ("fds", "threads"):
            a, b = sum(getattr(u, what) for u in before), sum(getattr(u, what) for u in now)
            each = [f"{getattr(u, what)}-{getattr(v, what)}" for u, v in zip(before, now, strict=True)]
            a += self.kept if what == "fds" else 0
            shown = f"{a} {b}" if b <= a else f"{a} {b}, by process {' '.join(each)}"
            name = f"descriptors before (with {self.kept} of gloo), after" if what == "fds" else "threads before, after"
            self.row(name, shown, b <= a)
        a, b = (max(u.rss for u in each[:1]) >> 20 for each in (before, now))
        self.row("memory of the server before and after", f"{a} MiB, {b} MiB", b < a + 150)


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="python -m tests.processes.adversary")
    p.add_argument("--ids", type=int, default=100_000)
    p.add_argument("--messages", type=int, default=100_000)
    p.add_argument("--frames", type=int, default=1_000_000)
    p.add_argument("--connections", type=int, default=3000)
    p.add_argument("--keys", type=int, default=200)
    p.add_argument("--flood-s", type=float, default=5.0)
    p.add_argument("--engine", default="torch")
    p.add_argument("--seed", type=int, default=0)
    return p.parse_args(argv)


def run(args: argparse.Namespace) -> list[str]:
    """What is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(Path(folder), engine=args.engine)
        user = Process(
            ["-c", USER, "", f"{folder}/stop", "1"], environment(GT_SERVER=url(lab.address, lab.keys["ada"]))
        )
        made = Run(args, lab)
        try:
            made.run(user)
        finally:
            user.popen.kill()
            user.popen.communicate()
            lab.end()
    if args.frames:
        siege = Siege(args.seed)
        made.timed("mutated frames", lambda: siege.run(args.frames) or f"{args.frames:,}")
    return made.problems


def main() -> None:
    exit_with(run(arguments()))


if __name__ == "__main__":
    main()
