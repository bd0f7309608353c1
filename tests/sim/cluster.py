"""A whole cluster in one process: dispatcher, workers and clients on in-memory channels.

Everything that could happen next is a move: a message arrives, a worker does its next piece of work, a
check is finished, time passes. A seed decides which move comes next, so that every order the network
could produce can be tried, and a failing one replays from its seed. Without a seed moves come in a
fixed, fair order.
"""

from __future__ import annotations

import math
import os
import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from gt import config
from gt.client.programs.pending import use
from gt.client.record import recorder as recording
from gt.client.session import connecting
from gt.client.session import session as sessions
from gt.dispatcher import events as ev
from gt.dispatcher.machine import Machine
from gt.dispatcher.plans import work_off
from gt.errors import ServerError
from gt.transport import messages
from gt.transport import messages as msg
from gt.transport.identity import User
from gt.transport.messages import VERSION, Refused, Share, WorkerHello, WorkerWelcome
from gt.worker import engines
from gt.worker.core import WorkerCore
from tests.worker.worker_building import Kernels

from .memory_groups import MemoryHub

TICK_S = 0.1


LOST: list[Any] = []  #: What arrives last from an end that died, instead of frames.


class Hang(AssertionError):
    """Somebody waits and nothing can happen any more."""


class Link:
    """One connection to the dispatcher: frames on their way in both directions."""

    local = True

    def __init__(self, cluster: Cluster, peer: bytes) -> None:
        self.cluster = cluster
        self.peer = peer
        self.up: deque[list[Any]] = deque()  # to the dispatcher
        self.down: deque[list[Any]] = deque()
        self.inbox: deque[list[Any]] = deque()  # arrived, not yet read
        self.closed = False  # by this end
        self.cut = False  # by the dispatcher

    # What a client session uses as its channel.

    def send(self, message: Any, payload: Any = None) -> None:
        if self.closed:
            return
        if self.cut:
            raise ServerError("the connection to the server is gone")
        self.up.append(messages.encode(message, None if payload is None else bytes(payload)))

    def send_all(self, messages: list[Any]) -> None:
        for message, payload in messages:
            self.send(message, payload)

    def receive(self, timeout_s: float = 0.0) -> Any:
        if self.inbox:
            return messages.decode(self.inbox.popleft())
        if self.cut and not self.down:
            raise ServerError("the connection to the server is gone")
        return None

    def wait(self, timeout_s: float) -> None:
        self.cluster.while_waiting(self)

    def leave(self) -> None:
        """The simulator is not forked."""

    def close(self) -> None:
        self.closed = True


class Interrupted(Kernels):
    """An engine whose kernels take time: other things may happen meanwhile."""

    def __init__(self, engine: Any, meanwhile: Callable[[], None]) -> None:
        super().__init__(engine)
        self._meanwhile = meanwhile

    def run(self, kernel: Any, op: Any, inplace: bool, *args: Any) -> Any:
        self._meanwhile()
        return kernel(*args)


class SimWorker:
    """A worker's core with its two connections."""

    def __init__(self, cluster: Cluster, number: int, settings: config.Config, engine: Any) -> None:
        if isinstance(engine, str):
            found = engines.load(engine, "cpu" if engine == "torch" else "")
        else:
            found = engine() if isinstance(engine, type) else engine
        self.engine: Any = Interrupted(found, self.meanwhile) if cluster.random is not None else found
        self.cluster = cluster
        self.stepping = False
        self.core = WorkerCore(self.engine, settings, network=cluster.hall.network)
        self.control = cluster.link(f"w{number}c".encode())
        self.results = cluster.link(f"w{number}r".encode())
        self.dead = False
        self.stopped_until = 0  #: It does nothing until so many moves have been made; see `stop_worker`.
        memory = settings.worker_memory or 1 << 40
        for link, control in ((self.control, True), (self.results, False)):
            about = (self.engine.name, "cpu", memory, "sim", number, "sim")
            link.send(WorkerHello(VERSION, settings.token, f"link{number}", control, *about))

    def step(self) -> bool:
        self.stepping = True
        try:
            out = self.core.step()
        finally:
            self.stepping = False
        self.tell(out)
        return out is not None

    def tell(self, out: Any) -> None:
        for message, payload in out or ():
            self.results.send(message, payload)

    def get_on(self) -> None:
        """Its device does something, and it looks what."""
        device = self.engine.engine
        device.done = min(device.marks, device.done + self.cluster.random.choice([1, 1, 4, 100]))
        self.step()

    def step_beside(self) -> None:
        """What another thread does while the runner computes."""
        self.tell(self.core.step(beside=True))

    def meanwhile(self) -> None:
        """The runner computes, away from the desk: messages come, other workers and the other thread work."""
        random = self.cluster.random
        if random is not None and self.core.desk.left and random.random() < 0.4:
            for _ in range(random.choice([1, 4, 20])):
                self.cluster.move()

    def copy(self) -> None:
        self.tell(self.core.copy())

    def move_tensors(self) -> None:
        self.tell(self.core.move())

    def read(self) -> None:
        message, payload = messages.decode(self.control.inbox.popleft())
        if isinstance(message, Refused):
            raise AssertionError(f"the dispatcher refused a worker: {message.text}")
        for answer, data in self.core.receive(message, payload):
            self.control.send(answer, data)


class Cluster:
    """See the file's header."""

    def __init__(
        self, workers: int = 1, seed: int | None = None, engine: Any = "numpy", settings: config.Config | None = None
    ) -> None:
        self.settings = settings or config.load()
        self.random = random.Random(seed) if seed is not None else None
        self.engine = engine
        self.machine = Machine(self.settings, self.settings.token)
        self.links: dict[bytes, Link] = {}
        self.workers: list[SimWorker] = []
        self.dead: list[SimWorker] = []
        self.zombies: list[SimWorker] = []  #: Workers that were given up, and do not know it yet.
        self.users: dict[str, User] = {}  #: By public key, those who may join; clients of nobody always may.
        self.user_of: dict[bytes, User] = {}  #: By connection.
        self.hall = MemoryHub()  #: where workers run collectives
        self.checks: deque[ev.CheckProgram | ev.MakePlan] = deque()
        self.solves: list[ev.Solve] = []
        self.now_s = 0.0
        self.moves = 0
        self.idle = 0
        self.counter = 0
        self._turn = 0
        self.watch: Callable[[Any, Any], None] | None = None  # sees every event and its actions
        #: What happens while a client waits at this link. Raises Hang if nothing can.
        self.while_waiting: Callable[[Link], None] = lambda link: self.move_or_hang()
        self.check_invariants = seed is not None
        self.quick_searches = 1.0  #: How soon a search for a plan ends, beside all else that can happen.
        self.refuse_rings = 0.0  # how often a worker cannot open what a client shares
        self._handle(ev.TimePassed(0.0))
        for _ in range(workers):
            self.add_worker()

    # --- parts ---

    def link(self, peer: bytes) -> Link:
        link = self.links[peer] = Link(self, peer)
        return link

    def add_worker(self, settings: config.Config | None = None) -> SimWorker:
        self.counter += 1
        worker = SimWorker(self, self.counter, settings or self.settings, self.engine)
        self.workers.append(worker)
        return worker

    def client(self, kind: Callable[..., Any] = sessions.Session, name: str = "", user: User | None = None) -> Any:
        self.counter += 1
        link = self.link(f"c{self.counter}".encode())
        if user is not None:
            self.user_of[link.peer] = user
        return kind(link, self.settings, name=name)

    def set_users(self, *users: User) -> None:
        """These may join from now on; sessions of others end."""
        self.users = {user.key: user for user in users}
        self._handle(ev.UsersChanged(self.users, ""))

    def kill_worker(self, worker: SimWorker) -> None:
        worker.dead = True
        self.hall.kill(self.number_of(worker))
        self.workers.remove(worker)
        self.dead.append(worker)
        links = [worker.control, worker.results]
        if self.random is not None and self.random.random() < 0.5:
            links.reverse()
        for link in links:
            self.kill_link(link)

    def stop_worker(self, worker: SimWorker, moves: int) -> None:
        """It does nothing for so many moves, or until nothing else can happen, and then goes on."""
        worker.stopped_until = self.moves + moves

    def give_up_worker(self, worker: SimWorker) -> None:
        """The dispatcher has not heard of it for too long. It goes on one day, and nothing that it does has an
        effect."""
        number = self.number_of(worker)
        self.workers.remove(worker)
        self.zombies.append(worker)
        for link in (worker.control, worker.results):
            link.closed = True
            link.up.clear()
            link.down.clear()
            if self.links.pop(link.peer, None) is not None:
                self._handle(ev.PeerLost(link.peer))
        self.hall.kill(number)  # the others hear that it is gone

    def number_of(self, worker: SimWorker) -> int:
        """What the dispatcher calls it; 0 if it has not heard of it."""
        peers = (worker.control.peer, worker.results.peer)
        return next((n for n, w in self.machine.state.workers.items() if w.control in peers or w.results in peers), 0)

    def kill_link(self, link: Link) -> None:
        """The process at this end died: some of what it had sent may still arrive, then the loss is noticed."""
        link.closed = True
        link.down.clear()
        link.inbox.clear()
        if self.random is not None:
            for _ in range(self.random.randrange(len(link.up) + 1)):
                link.up.pop()
        link.up.append(LOST)

    def end(self) -> None:
        """Nothing more happens: files of workers are closed, also of those that died."""
        for worker in (*self.workers, *self.dead):
            for session in worker.core.sessions.values():
                session.close()

    # --- moves ---

    def _possible(self) -> list[tuple[Callable[[Any], None], Any]]:
        moves: list[tuple[Callable[[Any], None], Any]] = []
        for link in self.links.values():
            if link.up:
                moves.append((self._deliver, link))
            if link.down:
                moves.append((self._deliver_down, link))
        for w in [*self.workers, *self.zombies] if self.zombies else self.workers:
            if w.stopped_until > self.moves:
                continue
            if w.control.inbox:
                moves.append((SimWorker.read, w))
            w.results.inbox.clear()
            if w.core.busy and not w.stepping:
                moves.append((SimWorker.step, w))
            if w.core.in_flight and not w.stepping and self.random is not None:
                moves.append((SimWorker.get_on, w))
            if w.core.has_short and w.core.desk.left:
                moves.append((SimWorker.step_beside, w))
            if not w.core.uploads._copies.empty():
                moves.append((SimWorker.copy, w))
            if not w.core.spilling._jobs.empty():
                moves.append((SimWorker.move_tensors, w))
        if self.checks:
            moves.append((self._checked, None))
        if self.solves and (not moves or self.random is None or self.random.random() < self.quick_searches):
            moves.append((self._solved, None))
        return moves

    def move(self) -> bool:
        """Do one of the things that can happen; False if there is none."""
        moves = self._possible()
        if not moves and any(w.stopped_until > self.moves for w in (*self.workers, *self.zombies)):
            for w in (*self.workers, *self.zombies):
                w.stopped_until = 0
            moves = self._possible()
        if not moves:
            return False
        self.moves += 1
        if self.random is not None:
            do, what = moves[int(self.random.random() * len(moves))]
            do(what)
            if self.random.random() < 0.02:
                self.pass_time(TICK_S)
        else:
            self._turn += 1
            do, what = moves[self._turn % len(moves)]
            do(what)
        self.idle = 0
        return True

    def move_or_hang(self) -> None:
        if self.move():
            return
        self.idle += 1
        self.pass_time(TICK_S * 10)
        if self.idle > 100:
            raise Hang("a client waits, and nothing can happen any more")

    def run(self) -> None:
        """Until nothing can happen."""
        while self.move():
            pass

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        self._handle(ev.TimePassed(self.now_s))

    def _deliver(self, link: Link) -> None:
        frames = link.up.popleft()
        if frames is LOST:
            self.links.pop(link.peer, None)
            self._handle(ev.PeerLost(link.peer))
            return
        user = self.user_of.get(link.peer)
        if user is not None and user.key not in self.users:  # nothing is read from a key that was revoked
            self.links.pop(link.peer, None)
            link.cut = True
            self._handle(ev.PeerLost(link.peer))
            return
        try:
            message, payload = msg.decode(frames)
        except msg.BadMessage as e:
            self._handle(ev.BadFramesCame(link.peer, str(e)))
        else:
            if isinstance(message, Share):
                pid = os.getpid()
                if self.random is not None and self.random.random() < self.refuse_rings:
                    pid = self.random.choice([0, 1, os.getppid()])
                message = msgspec.structs.replace(message, pid=pid)
            self._handle(ev.MessageCame(link.peer, message, payload, user))

    @staticmethod
    def _deliver_down(link: Link) -> None:
        link.inbox.append(link.down.popleft())

    def _checked(self, _: None = None) -> None:
        self._handle(work_off(self.checks.popleft()))

    def _solved(self, _: None = None) -> None:
        """A search is over, in any order. What was found is any plan: it need not be good."""
        rng = self.random or random.Random(0)
        self._handle(any_plan(self.solves.pop(rng.randrange(len(self.solves))), rng))

    def _handle(self, event: Any) -> None:
        actions = self.machine.handle(event)
        if self.watch is not None:
            self.watch(event, actions)
        for action in actions:
            if isinstance(action, ev.Send):
                link = self.links.get(action.peer)
                if isinstance(action.message, WorkerWelcome) and (link is None or link.closed):
                    self.hall.kill(action.message.worker)  # it died before it knew its number
                if link is not None and not link.closed:
                    data = None if action.payload is None else bytes(action.payload)
                    link.down.append(msg.encode(action.message, data))
            elif isinstance(action, ev.CheckProgram | ev.MakePlan):
                self.checks.append(action)
            elif isinstance(action, ev.Solve):
                self.solves.append(action)
            elif isinstance(action, ev.RecordLoop) and not action.on:
                self._handle(ev.LoopRecorded(action.number, ()))
            elif isinstance(action, ev.Disconnect):
                link = self.links.pop(action.peer, None)
                if link is not None:
                    link.cut = True
                    while link.down:
                        link.inbox.append(link.down.popleft())
        if self.check_invariants:
            self.machine.invariants()


def any_plan(job: ev.Solve, rng: random.Random) -> ev.PlanSolved:
    """Some layouts for the inputs of a program, on some mesh of the workers that there are."""
    if rng.random() < 0.1:
        return ev.PlanSolved(job.session, job.program, error="there is none")
    n = math.prod(size for _, size in job.most)
    axes = [(("x", k),) for k in range(1, n + 1)] + ([(("x", 2), ("y", n // 2))] if n > 2 and n % 2 == 0 else [])
    some = [job.most] if job.fixed else rng.sample(axes, rng.randint(1, min(3, len(axes))))
    plans = [ev.FoundPlan(each, _any_layouts(job, each, rng), {}, rng.choice([1.0, 1.0, 3.0])) for each in some]
    return ev.PlanSolved(job.session, job.program, tuple(plans), 2.0)


def _any_layouts(job: ev.Solve, axes: tuple[tuple[str, int], ...], rng: random.Random) -> tuple[str, ...]:
    names = [name for name, _ in axes]
    layouts = []
    for k, (shape, _) in enumerate(job.text.inputs):
        over = ",".join(rng.sample(names, rng.randrange(len(names) + 1)))
        split = f"[{shape[0]}@{over}]" if shape and over and shape[0] > 1 else "[]"
        layouts.append(job.pins.get(k, split))
    return tuple(layouts)


def recorder_of(session: sessions.Session) -> Any:
    """What `using` this session records with, if no other recorder was given."""
    return session.sim_recorder  # type: ignore[attr-defined]  # a mark that `using` leaves on it


@contextmanager
def using(session: sessions.Session, recorder: Any = None) -> Iterator[sessions.Session]:
    """Run the body as a client of this session: as the thread of that recorder, or as the only thread."""
    before = connecting.adopt(session)
    if recorder is None:
        recorder = getattr(session, "sim_recorder", None) or recording.new_recorder(session)
        session.sim_recorder = recorder  # type: ignore[attr-defined]  # see recorder_of
    old = use(recorder)
    try:
        yield session
    finally:
        use(old)
        connecting.adopt(before)
