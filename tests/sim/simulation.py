"""One simulated world: from a seed, clients, workers, what they do, and what goes wrong.

The clients' threads take turns: while one waits, the others act, messages arrive in any order that the links allow,
workers and clients die or join, the user presses Ctrl-C. In the end everything that is left must be what the oracle
says, and when all have left nothing of them may remain.
"""

from __future__ import annotations

import gc
import random
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import Any

import msgspec

import gt.client.functions.creation
import gt.client.programs.hosted
import gt.client.programs.pending
import gt.client.record.recorder
import gt.client.session.session
import gt.client.session.transfers
import gt.dispatcher.invariants
import gt.dispatcher.machine
import gt.dispatcher.memory
import gt.dispatcher.meshes
import gt.dispatcher.moves
import gt.dispatcher.queues
import gt.dispatcher.relocation
import gt.dispatcher.schedule
import gt.dispatcher.state
import gt.dispatcher.switches
import gt.dispatcher.uploads
import gt.transport.chunks
import gt.transport.messages
import gt.transport.shared
import gt.worker.calls
import gt.worker.fetches
import gt.worker.run.tiers
import gt.worker.uploads
from gt import config
from gt.client.session.timer import tick
from gt.client.session.transfers import Download
from gt.dispatcher.events import Decided, MessageCame, Noted, PeerLost, Send, TimePassed
from gt.dispatcher.session import Lost, Session
from gt.dispatcher.users import REVOKED
from gt.errors import GTError, ServerError
from gt.transport.identity import CLIENT, User
from gt.transport.messages import Call, CallDone, CallFailed, Chunk, ChunkAck, Refused, Rejected, Rename, unpack_ids
from gt.worker.engines import load
from gt.worker.run.outside import File

from .changes import Changes
from .cluster import Cluster, Hang, Link, SimWorker, using
from .keeping import Keeping, Published, Shelf
from .oracle import Oracle
from .script import BALLAST, HUGE, SPILLING, SimSession, Thread, Variable, told

#: Small, so that few bytes make many chunks and few calls fill a window.
LIMITS = {
    gt.transport.shared: {
        "PIECE": 56, "SLOTS": 5, "UPLOAD_SLOTS": 3, "LENT": 2, "LARGE": 80, "SMALL": 48, "BOXES": 2
    },
    gt.transport.messages: {"CHUNK": 48, "UPLOADS": 3},
    gt.client.session.transfers: {
        "PIECE": 56, "SLOTS": 5, "LENT": 2, "LARGE": 80, "SMALL": 48, "OFTEN": 2
    },
    gt.dispatcher.uploads: {"SLOTS": 5},
    gt.dispatcher.invariants: {"WINDOW": 6, "UPLOADS": 3, "SLOTS": 5, "SHORT_US": 400, "BESIDE": 2},
    gt.dispatcher.schedule: {"SHORT_US": 400, "BESIDE": 2, "BESIDE_US": 600, "BURST_US": 3000},
    gt.worker.calls: {"QUICK_US": 800},
    gt.worker.uploads: {"SLOTS": 5},
    gt.worker.run.tiers: {"STEPS": 1, "BUSY": 1e9, "SLOWER": 1e9},  # a graph is captured soon, and stays
    gt.worker.fetches: {"CHUNK": 48, "SLOTS": 5, "LARGE": 80, "SENDING_NBYTES": 500},
    gt.dispatcher.machine: {"WINDOW": 6},
    gt.dispatcher.queues: {"WINDOW": 6},
    gt.dispatcher.switches: {"RUNS": 2, "APART": 0, "COPY_RATE": 1e12},
    gt.dispatcher.timing: {"ENOUGH": 2, "WINDOW": 2, "WINDOW_US": 0, "WATCH": 1, "WATCH_S": 0.0},
    gt.dispatcher.moves: {"MOVE_NBYTES": 100},
    gt.dispatcher.memory: {"SLICE_S": 0.3, "RETRY_S": 0.3},
    gt.dispatcher.meshes: {"NOTE_S": 0.05},
    gt.dispatcher.relocation: {"REST_S": 0.0, "AT_ONCE": 2},
    gt.dispatcher.state: {"STAYS_S": 0.0},
    gt.transport.chunks: {"CHUNK": 48},
    gt.client.functions.constants: {"BY_VALUE_NBYTES": 64},
    # Every read asks the cluster: it is what is tested.
    gt.client.programs.pending: {"KEPT_NBYTES": -1, "WHOLE_NBYTES": -1},
    gt.client.programs.hosted: {"WHOLE_NBYTES": -1},
}  # fmt: skip
#: They ask for the time.
CLOCKED = (gt.client.session.session, gt.client.session.transfers, gt.client.record.recorder, gt.worker.calls)
TAKEN = "was opened by another client"
FAULTS = 0.03  #: Turns in which something goes wrong or a worker joins.
ENGINES: list[Any] = ["numpy"]  #: here, so that no import happens inside a world
load("numpy", "cpu")
if find_spec("torch") is not None:
    load("torch", "cpu")
    import gt.worker.engines.captures
    from tests.worker.pretend import Late

    ENGINES += ["torch", Late]
    LIMITS[gt.worker.engines.captures] = {"WATCHED": 1}
#: Moves of one world; it takes a few hundred, or tens of thousands where sessions move again and again.
BUDGET = 100_000


class Died(BaseException):
    """Unwinds what a client was doing when it was killed."""


class Clock:
    """Stands in for `time`. It moves when the cluster's does; calls take what the seed says."""

    def __init__(self, cluster: Cluster, rng: random.Random) -> None:
        self.cluster = cluster
        self.rng = rng
        self.ns = 0

    def monotonic(self) -> float:
        return self.cluster.now_s

    def thread_time_ns(self) -> int:
        return 0

    def perf_counter_ns(self) -> int:
        self.ns += int(self.rng.expovariate(1 / 300_000))
        return self.ns

    def sleep(self, seconds: float) -> None:
        raise Hang("a thread waits for another that is inside an op")


class Client:
    def __init__(self, session: SimSession, link: Link) -> None:
        self.session = session
        self.link = link
        self.oracle = session.oracle
        self.variables: list[Variable] = []
        self.threads: list[Thread] = []
        self.leaving = False
        self.dead = False
        self.several: set[bytes] = set()  #: Its workers, before the event at hand.


class World:
    """See the file's header."""

    def __init__(self, seed: int, check_always: bool = False, sharded: bool = False) -> None:
        rng = self.rng = random.Random(seed)
        self.sharded = sharded  #: Clients live on several workers, now on these, now on those.
        limited = rng.random()
        self.spilling = 0.4 < limited < 0.8  #: Each client needs more than half of a worker's memory.
        # A quarter of what is too much must be too much as well.
        limit = HUGE if sharded else 4 * HUGE
        settings = config.Config(
            server="", token="", engine="numpy", instruction_log="", debug_client=False, debug_worker=False,
            debug_compile=False, worker_timeout_s=15.0, connect_timeout_s=1e9,
            cache_bytes=rng.choice([1 << 11, 1 << 13, 1 << 20]),
            fake_memory=limit if limited < 0.2 else 0,
            worker_memory=limit if 0.2 < limited < 0.8 else 0,
            spill_memory=rng.choice([0, limit // 2, 1 << 30]),
            share_memory=rng.random() < 0.8,
            plan_after_s=rng.choice([0.0, 1e-9, 1e-9]) if sharded else 0.0,
            lease_s=[0.0, 1.0, 3600.0][seed % 3],
        )  # fmt: skip
        # torch's writes over donated memory, and a device says late what has failed; numpy's is faster.
        engine = ENGINES[[0, 1, 0, 2][seed % 4] % len(ENGINES)]
        workers = rng.choice([2, 3, 3, 4] if sharded else [1, 2, 2] if self.spilling else [0, 1, 2, 2, 3])
        self.most_workers = 4 if sharded else workers if self.spilling else 3
        #: What others must want more of a worker before a session leaves it. Mostly sessions leave whenever they can.
        self.margin = rng.choice([-100.0, -100.0, 0.5])
        self.cluster = Cluster(workers, rng.getrandbits(32), engine, settings)
        self.cluster.check_invariants = check_always or seed % 10 == 0
        self.cluster.watch = self.watch
        self.cluster.while_waiting = self.while_waiting
        self.cluster.refuse_rings = rng.choice([0.0, 0.0, 0.3, 1.0])
        self.cluster.quick_searches = rng.choice([1.0, 1.0, 0.1]) if sharded else 1.0
        self.heavy = int(0.6 * limit / 8 / BALLAST) if self.spilling else 0
        self.full = rng.choice([0.0, 0.0, 0.2])  #: How often the disk is full.
        self.clients: list[Client] = []
        self.by_peer: dict[bytes, Client] = {}
        self.by_link: dict[Link, Client] = {}
        self.by_number: dict[int, Client] = {}
        self.ticking = False
        self.to_come = rng.choice([2, 3]) if self.spilling else rng.choice([1, 2, 2, 3])
        #: Which part of the faults are deaths; how often a wait is interrupted.
        self.deadly_workers = rng.choice([0.0, 0.0, 0.1, 0.4])
        self.deadly_clients = rng.choice([0.0, 0.0, 0.1])
        self.impatient = rng.choice([0.0, 0.01, 0.04])
        self.blind = rng.choice([0.0, 0.0, 0.9])  #: How often a client does not look into a mailbox.
        self.names = rng.choice([(), ("p",), ("p", "p", "q", "")])  #: Of sessions; (): none has one.
        self.shelves = {name: Shelf() for name in self.names if name}
        self.published: list[Published] = []
        self.losses = 0  #: Workers that have died.
        self.changes = Changes()
        self.taken: set[bytes] = set()  #: Clients whose names others have taken over, or that were revoked.
        if self.names:
            self.deadly_clients = max(self.deadly_clients, 0.15)
        #: Which part of the faults are workers that stop for a while; some of them are given up.
        self.stopping = rng.choice([0.0, 0.0, 0.2])
        #: Users by the name of their sessions, and which part of the faults are revocations. Without users, nobody is.
        self.users: dict[str, User] = {}
        self.revoking = rng.choice([0.0, 0.0, 0.15])
        self.revocations = 0
        if self.revoking:
            for name in {**dict.fromkeys(self.names), "": None}:
                self.add_user(name)
            self.cluster.set_users(*self.users.values())

    # --- the run ---

    def run(self) -> None:
        while self.to_come or any(not c.leaving and not c.dead for c in self.clients):
            self.turn(waiting=False)
        self.cluster.run()
        self.cluster.pass_time(4000.0)  # leases end
        self.cluster.run()
        for _ in range(10):  # and shelves of sessions that had still work, or slow uploads before it, soon after it
            if self.cluster.machine.state.sessions:
                self.cluster.pass_time(1.0)
                self.cluster.run()
        self.nothing_left()

    def turn(self, waiting: bool) -> None:
        """Something happens: a thread acts, a message moves, something goes wrong."""
        if self.cluster.moves > BUDGET:
            raise Hang(f"{BUDGET} moves and no end")
        dice = self.rng.random()
        if dice < FAULTS * self.moving():
            self.fault(self.rng.random())
        elif dice < 0.06:
            self.tick()
        elif dice < 0.35 and self.act():
            pass
        elif not self.cluster.move():
            self.compare()
            if waiting:
                self.tick()
                self.cluster.move_or_hang()
            else:
                self.cluster.pass_time(0.01)

    def moving(self) -> int:
        """How much more goes wrong than usual while tensors move to other layouts, or to another worker."""
        if self.sharded and any(s.moving is not None for s in self.sessions()):
            return 6
        return 1 if self.cluster.machine.state.relocation is None else 3

    def note(self, what: str) -> None:
        """This happens; maybe while something moves."""
        self.changes.during(self.sessions(), what)
        if self.cluster.machine.state.relocation is not None:
            self.changes[f"{what} while a session moves to another worker"] += 1

    def sessions(self) -> Iterable[Session]:
        return self.cluster.machine.state.sessions.values()

    def fault(self, dice: float) -> None:
        workers = self.cluster.workers
        if dice < self.deadly_workers and workers:
            self.losses += 1
            self.note("a worker dies")
            self.cluster.kill_worker(workers[int(self.rng.random() * len(workers))])
        elif dice > 1 - self.deadly_clients and self.clients:
            self.note("a client dies")
            self.kill(self.clients[int(self.rng.random() * len(self.clients))])
        elif dice < self.deadly_workers + self.stopping and workers:
            self.note("a worker stops")
            self.stop(workers[int(self.rng.random() * len(workers))])
        elif dice > 1 - self.deadly_clients - self.revoking / 2 and self.users:
            self.note("a key is revoked")
            self.revoke(self.rng.choice(list(self.users)))
        elif dice > 1 - self.deadly_clients - self.revoking and self.users:
            self.limit(self.rng.choice(list(self.users)))
            self.cluster.set_users(*self.users.values())
        elif dice > 0.5 and len(workers) < self.most_workers:
            self.cluster.add_worker()

    def stop(self, worker: SimWorker) -> None:
        """A worker stops (SIGSTOP, a network that is cut), in the middle of a collective or anywhere."""
        self.cluster.stop_worker(worker, self.rng.choice([3, 30, 300]))
        if self.deadly_workers and self.rng.random() < 0.3:
            self.losses += 1
            self.cluster.give_up_worker(worker)

    def add_user(self, name: str) -> None:
        """The user of the sessions of this name gets a key, or a new one."""
        self.revocations += 1
        self.users[name] = User(f"user {name}", CLIENT, f"key {self.revocations}")
        self.limit(name)

    def limit(self, name: str) -> None:
        """A user may use more or less from now on: of the time of workers, and of uploads."""
        share, upload = self.rng.choice([1, 1, 4]), self.rng.choice([0, 100, 1000])
        self.users[name] = msgspec.structs.replace(self.users[name], share=share, upload=upload)

    def revoke(self, name: str) -> None:
        """A user's key is revoked: its sessions end, and what they have kept and published. It gets a new one."""
        self.add_user(name)
        gone = [c for c in self.clients if c.session.name == name]
        self.cluster.set_users(*self.users.values())
        if name in self.shelves:
            self.shelves[name].ended()
        number = self.cluster.machine.state.sessions
        assert not any(c.session.number in number and not c.dead for c in gone), "a session of a revoked key goes on"

    def while_waiting(self, link: Link) -> None:
        """One step of a client's wait."""
        client = self.by_link.get(link)
        if client is not None and not client.dead:
            if self.rng.random() < self.impatient and not client.leaving and not self.ticking:
                raise KeyboardInterrupt
            self.turn(waiting=True)
        elif client is None:
            self.turn(waiting=True)
        if client is not None and client.dead:
            raise Died

    def act(self) -> bool:
        """One thread does its next action; False if none can."""
        ready = [
            (c, t) for c in self.clients for t in c.threads
            if not (c.dead or c.leaving or t.busy or c.session.lock._is_owned())
        ]  # fmt: skip
        if self.to_come and self.rng.random() < 1 / (len(ready) + 1):
            self.to_come -= 1
            self.join()
            return True
        if not ready:
            return False
        client, thread = ready[int(self.rng.random() * len(ready))]
        if thread.left > 0:
            self.guarded(client, thread, thread.act)
            if thread.doing in ("mesh", "place", "save"):
                self.note(thread.doing)
        elif not any(t.left > 0 or t.busy for t in client.threads):
            client.leaving = True
            self.guarded(client, thread, lambda: self.leave(client))
        return True

    def guarded(self, client: Client, thread: Thread, action: Any) -> None:
        thread.busy = True
        try:
            with using(client.session, thread.recorder):
                action()
        except GTError as e:
            if not told(e) and not client.dead:
                raise
        except (KeyboardInterrupt, Died):
            pass
        finally:
            thread.busy = False

    def join(self) -> None:
        name = self.rng.choice(self.names) if self.names else ""
        try:
            session = self.cluster.client(SimSession, name, self.users.get(name))
        except ServerError as e:
            if TAKEN not in str(e) and not self.revoking:
                raise
            return
        session.seed = 1
        client = Client(session, session.channel)
        client.dead = client.link.peer in self.taken
        self.clients.append(client)
        self.by_link[client.link] = self.by_peer[client.link.peer] = self.by_number[session.number] = client
        for _ in range(self.rng.choice([1, 1, 2])):
            actions = self.rng.randrange(10, 70)
            thread = Thread(session, client.variables, self.rng, actions, self.sharded)
            client.threads.append(thread)
            if self.names:
                shelf = self.shelves.get(name)
                user, users = self.users.get(name), [u.name for u in self.users.values()]
                mine = user.name if user is not None else ""
                thread.keeping = Keeping(thread, shelf, self.published, lambda: self.losses, mine, users)
                thread.keeping.held = lambda id: self.where(session, id)
                if shelf is not None and not client.dead:
                    shelf.user = None  # whoever had it is dead
        if self.heavy:
            thread = client.threads[0]
            thread.heavy = self.heavy
            client.oracle.short = True
            thread.actions |= SPILLING

    def tick(self) -> None:
        """The clients' timers look around."""
        if self.ticking:
            return
        self.ticking = True  # a timer is no thread that Ctrl-C could reach
        for client in self.clients:
            session = client.session
            if not client.dead and not session.closed and not session.lock._is_owned():
                with suppress(Died), using(session, client.threads[0].recorder):
                    tick(session, self.cluster.now_s)
        self.ticking = False

    def where(self, session: SimSession, id: int) -> tuple[Any, set[bytes]]:
        """What the dispatcher has under an id, and the workers that hold it."""
        there = self.cluster.machine.state.sessions.get(session.number)
        tensor = there.tensors.get(id) if there is not None else None
        if there is None or tensor is None:
            return None, set()
        return tensor, {there.workers[n].control[:-1] for n in tensor.parts}

    def follow(self, client: Client) -> None:
        """A client with a name is dead: somebody comes after it."""
        if client.session.name and len(self.clients) < 8:
            self.to_come += 1

    def kill(self, client: Client) -> None:
        if not client.dead and not client.session.closed:
            client.dead = True
            self.follow(client)
            self.by_peer.pop(client.link.peer, None)
            self.by_number.pop(client.session.number, None)
            self.cluster.kill_link(client.link)
            if not any(t.busy for t in client.threads):
                client.variables.clear()
                for thread in client.threads:
                    thread.ballast.clear()

    def end(self) -> None:
        """Close what processes have open when they end."""
        for client in self.clients:
            client.session.close()
        self.cluster.end()

    # --- the end of a client ---

    def leave(self, client: Client) -> None:
        """Look at everything once more, let go of it, and go."""
        session, thread = client.session, client.threads[0]
        for var in list(client.variables):
            self.insist(lambda: thread.fetch_one(var))  # noqa: B023
        for var in thread.ballast:
            for _ in range(2):  # an earlier failure may be met, or the value may be spoilt itself
                with suppress(GTError):
                    thread.weigh(var)
                    break
        for each in client.threads:
            self.insist(each.recorder.settle)
        self.insist(lambda: session.wait(lambda: session.done == session.seq))
        self.insist(session.raise_failures)
        client.oracle.all_raised()
        var = None
        client.variables.clear()
        thread.ballast.clear()
        for each in client.threads:
            self.insist(each.recorder.settle)
        self.insist(lambda: session.wait(lambda: not session.transfers.uploads))
        session.flush_frees()
        try:
            session.wait(lambda: not self.held(session.number))
        except Hang:
            raise AssertionError(f"kept though nobody has them: {self.held(session.number)}") from None
        session.close()

    def held(self, number: int) -> list[Any]:
        """What dispatcher and workers hold for a session: tensors, transfers."""
        there = self.cluster.machine.state.sessions[number]
        found = [*there.tensors.items(), *there.uploads, *there.fetches]
        for worker in self.cluster.workers:
            if number in worker.core.sessions:
                has = worker.core.sessions[number]
                found += [*filter(None, has.store.entries), *has.uploads, *has.fetches, *has.sending, *has.backlog]
        return found

    def compare(self) -> None:
        """Nothing is under way: what the dispatcher thinks of each tensor is what its worker has."""
        state = self.cluster.machine.state
        known = {worker.control: n for n, worker in state.workers.items()}
        cores = {known[w.control.peer]: w.core for w in self.cluster.workers if w.control.peer in known}
        for session in state.sessions.values():
            for number in session.workers:
                core = cores.get(number)
                has = core.sessions.get(session.number) if core is not None else None
                # An upload may be there and not count yet: its user uploads too much.
                stored = {i: e for i, e in has.store.entries.items() if i and i not in session.uploads} if has else {}
                there = {i: e.spec.nbytes * (not e.poisoned) for i, e in stored.items()}
                known = {i: t for i, t in session.tensors.items() if t.layout is not None}
                thought = {i: t.parts.get(number, 0) for i, t in known.items()}
                for i, t in known.items():
                    if number not in t.layout.mesh.workers and i not in there:
                        del thought[i]  # it need not have anything there; it may have an empty array
                # It may count a value that a failed call was to keep and, its source being poisoned, could not.
                right = thought.keys() == there.keys() and all(there[i] <= n for i, n in thought.items())
                assert right, f"session {session.number}, worker {number}: thought {thought}, there is {there}"

    def insist(self, action: Any) -> None:
        """Again, until it is not an earlier failure that it meets."""
        while True:
            try:
                return action()
            except GTError as e:
                if not told(e):
                    raise

    def nothing_left(self) -> None:
        state = self.cluster.machine.state
        self.cluster.machine.invariants()
        assert not state.sessions
        assert not state.held_nbytes
        assert not state.homeless
        for worker in state.workers.values():
            assert not worker.nbytes
            assert not worker.sessions
            assert not worker.lane.calls
            assert not worker.lane.beside
        for each in self.cluster.workers:
            assert not each.core.sessions, "a worker keeps something of a session that has ended"

    # --- what the oracle is told ---

    def watch(self, event: Any, actions: list[Any]) -> None:
        if isinstance(event, MessageCame) and isinstance(event.message, CallDone):
            client = self.by_number.get(event.message.session)
            if client is not None:
                client.oracle.ended_on(event.message.seq, event.peer[:-1])
        if isinstance(event, PeerLost) and event.peer.startswith(b"w"):
            for client in self.clients:
                several = event.peer[:-1] in client.several
                client.oracle.worker_lost(event.peer[:-1], self.outlived(client) if several else set(), several)
        oracles: list[Oracle] = [c.oracle for c in self.clients]
        state = self.cluster.machine.state
        for client in self.clients:
            there = state.sessions.get(client.session.number)
            # What it sends fails, until it has heard of its loss.
            bereft = there is not None and there.bereft is not None
            client.oracle.lonely = bereft or (isinstance(event, TimePassed) and not state.workers)
        for action in actions:
            if isinstance(action, Send):
                self.watch_send(action.peer, action.message)
            elif isinstance(action, Noted):
                self.noted(action.text)
                self.moved(action)
            elif isinstance(action, Decided):
                self.changes.decided(action.text)
        for oracle in oracles:
            oracle.lonely = False
        for client in self.clients:  # not in sharded worlds alone: `gt.get` brings workers too
            there = state.sessions.get(client.session.number)
            client.several = {w.control[:-1] for w in there.workers.values()} if there is not None else set()

    def noted(self, text: str) -> None:
        """Something becomes of a session with a name."""
        now_s, lease_s = self.cluster.machine.state.now_s, self.cluster.settings.lease_s
        if "'" not in text:
            self.changes["a session " + re.sub(r"\d+", "N", re.sub(r": \d.*", "", text))] += 1
            return
        shelf = self.shelves.get(text.split("'")[1])
        if shelf is not None and "is detached" in text:
            shelf.detached_s = now_s
        elif shelf is not None and "has ended" in text:
            assert now_s >= shelf.detached_s + lease_s, "a lease has ended early"
            shelf.ended()

    def moved(self, noted: Noted) -> None:
        """Maybe a session is on another worker from now on."""
        client, there = self.by_number.get(noted.session), self.cluster.machine.state.sessions.get(noted.session)
        if client is not None and there is not None and noted.text.startswith("moves"):
            (worker,) = there.workers.values()
            for i, tensor in there.tensors.items():
                node = client.oracle.by_id.get(i) or client.oracle.untold.get(i)
                if type(tensor) is not Lost and node is not None:  # else its client does not know yet that it has it
                    node.workers = {worker.control[:-1]}

    def outlived(self, client: Client) -> set[int]:
        """Of a client that has just lost one of several workers: values of which others have all."""
        there = self.cluster.machine.state.sessions.get(client.session.number)
        good = {i for i, t in there.tensors.items() if type(t) is not Lost} if there is not None else set()
        # A call that went off with the same event has them under new names already.
        return good | client.oracle.origins(good)

    def torn(self, client: Client, seq: int) -> bool:
        """Whether nothing was kept of a call that failed, for one of its workers had died."""
        call = client.oracle.calls[seq]
        there = self.cluster.machine.state.sessions.get(client.session.number)
        dead = call.workers - {w.control.peer[:-1] for w in self.cluster.workers}
        return bool(dead) and there is not None and not call.kept_at(there.tensors)

    def renamed(self, client: Client, rename: Rename) -> None:
        """Values are on other workers from now on."""
        there = self.cluster.machine.state.sessions[client.session.number]
        for i in unpack_ids(rename.ids):
            if i in there.tensors:  # else a call went off with the same event, and has replaced it
                holders = [there.workers[n] for n in there.tensors[i].parts]
                client.oracle.result(i).workers = {w.control[:-1] for w in holders if w.control is not None}

    def crosses(self, client: Client, peer: bytes) -> bool:
        """Whether what is sent there is a copy of a tensor that this client has elsewhere."""
        there = self.cluster.machine.state.sessions.get(client.session.number)
        return there is not None and all(w.control != peer for w in there.workers.values())

    def watch_send(self, peer: bytes, message: Any) -> None:
        if peer.startswith(b"w"):
            client = self.by_number.get(getattr(message, "session", 0))
            if client is not None and isinstance(message, Rename):
                self.renamed(client, message)
            elif client is not None and isinstance(message, Call) and message.seq > 0:
                client.oracle.placed(message.seq, peer[:-1], message.refused)
            elif client is not None and isinstance(message, Chunk) and not self.crosses(client, peer):
                client.oracle.by_id[message.key].workers.add(peer[:-1])
            return
        if isinstance(message, Refused) and (TAKEN in message.text or message.text == REVOKED):
            self.taken.add(peer)
            if (client := self.by_peer.pop(peer, None)) is not None and not client.dead:
                client.dead = True
                self.follow(client)
                self.by_number.pop(client.session.number, None)
                if not any(t.busy for t in client.threads):
                    client.variables.clear()
            return
        if isinstance(message, (Rejected, Refused)):
            raise AssertionError(f"a client that did nothing wrong was told: {message.text}")
        client = self.by_peer.get(peer)
        if client is None:
            return
        if isinstance(message, CallDone):
            client.oracle.done_up_to(message.seq)
        elif isinstance(message, CallFailed):
            client.oracle.failed(message, self.torn(client, message.seq))
        elif isinstance(message, ChunkAck):
            node = client.oracle.by_id[message.key]
            if not node.workers:
                node.lost = True  # the dispatcher took it and passed it to nobody


@contextmanager
def _small_and_clocked(world: World) -> Iterator[None]:
    clock = Clock(world.cluster, world.rng)
    changes: list[tuple[Any, str, Any]] = [(m, name, n) for m, values in LIMITS.items() for name, n in values.items()]
    changes += [(m, "time", clock) for m in CLOCKED]
    look = Download.arrived
    changes.append((Download, "arrived", lambda t: t.done or (world.rng.random() >= world.blind and look(t))))
    changes.append((File, "room", lambda file, nbytes: world.rng.random() >= world.full))
    changes.append((gt.dispatcher.relocation, "MARGIN", world.margin))
    before = [(m, name, getattr(m, name)) for m, name, _ in changes]
    for m, name, value in changes:
        setattr(m, name, value)
    # Nothing may depend on when Python looks for cycles, least of all the replay of a seed.
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        for m, name, value in before:
            setattr(m, name, value)
        if collecting:
            gc.enable()


def simulate(seed: int, check_always: bool = False, sharded: bool = False) -> World:
    """Run the world of this seed to its end; raises what was wrong with it.

    The dispatcher's state is checked after every event of every tenth world, or of this one.
    """
    world = World(seed, check_always, sharded)
    with _small_and_clocked(world):
        try:
            world.run()
        finally:
            world.end()
    return world
