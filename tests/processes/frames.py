"""Mutated frames, in one process: a dispatcher and a worker as they are, and hostile connections to them.

    python -m tests.processes.frames [COUNT] [SEED]

Most frames were a message once and had some bytes changed, cut off, put in or exchanged with those of another; the rest
are messages of a liar (hostile.py). What comes out of decoding goes to the dispatcher, and what that sends goes to a
real worker. A user beside them, an ordinary client, compares results all the time. Afterwards nothing of the hostile
connections is left. 10,000,000 frames take some minutes; the suite sends 200,000.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from typing import Any

import numpy as np

import gt
from gt import config
from gt.dispatcher import events as ev
from gt.transport import messages as msg
from gt.transport.frames import FrameReader, head_of
from tests.sim.cluster import Cluster, using

from .hostile import Frames, Liar

PEERS = 4  #: Hostile connections at a time.
LIFE = 3000  #: Frames of one of them,
STUCK = 400  #: and of one that was asked for a program that it does not have: nothing of it runs any more.
ROUND = 100  #: Frames between two turns of the worker,
LOOK = 4000  #: and between two looks at the user, and at the dispatcher's state.
LIES = 12  #: One of so many frames is made anew by a liar.
CORPUS, FRESH = 600, 20  #: Frames that are mutated; so many of them are of a new connection.


class Siege:
    """See the file's header."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        limits = {"cache_bytes": 4 << 20, "worker_memory": 64 << 20, "engine": "numpy", "share_memory": False}
        self.cluster = Cluster(1, settings=config.replace(config.load(), **limits))
        self.cluster.run()
        self.user = self.cluster.client()
        with using(self.user):
            self.w = np.random.default_rng(1).integers(-9, 9, (6, 6)).astype(np.float64)
            self.kept = gt.from_numpy(self.w)
            self.check_user()
        self.seen: Counter[str] = Counter()
        self.peers: list[bytes] = []
        self.liars: dict[bytes, Liar] = {}
        self.corpus: list[Frames] = []
        self.next_peer = 0
        self.stream = FrameReader()

    def check_user(self) -> None:
        """The user's results are right, and its tensors are its own. To be called as the user."""
        step = self.rng.random() if hasattr(self, "seen") else 0.5
        got = (self.kept @ self.kept * step).numpy()
        assert np.array_equal(got, self.w @ self.w * step), "a result of the user is wrong"

    # --- hostile connections ---

    def let_in(self) -> None:
        self.next_peer += 1
        peer = b"hostile%d" % self.next_peer
        self.cluster.link(peer)
        liar = self.liars[peer] = Liar(self.rng, self.user.number)
        entrance = liar.entrance()
        for frames in entrance:
            self.deliver(peer, frames)
        self.cluster.run()
        self.peers.append(peer)
        fresh = [*entrance, *(liar.wrong() for _ in range(FRESH if len(self.corpus) == CORPUS else CORPUS))]
        self.corpus = ([[bytes(f) for f in frames] for frames in fresh] + self.corpus)[:CORPUS]

    def let_go(self, peer: bytes) -> None:
        self.peers.remove(peer)
        self.liars.pop(peer)
        if self.cluster.links.pop(peer, None) is not None:
            self.cluster._handle(ev.PeerLost(peer))

    def mutated(self) -> Frames:
        """Frames that were a message once."""
        rng = self.rng
        frames = self.corpus[int(rng.random() * len(self.corpus))]
        head = bytearray(frames[0])
        n = len(head)
        dice = rng.random()
        if dice < 0.7:  # some bytes are others
            for _ in range(1 + int(rng.random() * 3)):
                head[int(rng.random() * n)] = int(rng.random() * 256)
        elif dice < 0.78:  # or missing at the end,
            del head[int(rng.random() * n) :]
        elif dice < 0.86:  # or too many,
            head += rng.randbytes(1 + int(rng.random() * 9))
        elif dice < 0.94:  # or those of another message
            other = self.corpus[int(rng.random() * len(self.corpus))][0]
            at = int(rng.random() * n)
            head[at:] = other[at:]
        else:
            return [bytes(head), *frames[1:], rng.randbytes(int(rng.random() * 5))]
        return [bytes(head), *frames[1:]]

    def deliver(self, peer: bytes, frames: Frames) -> None:
        """What the dispatcher's loop does with what it reads. From a peer that was cut off it reads nothing."""
        if peer not in self.cluster.links:
            return
        try:
            decoded = msg.decode_all(frames)
        except msg.BadMessage as e:
            self.cluster._handle(ev.BadFramesCame(peer, str(e)))
            self.seen["not a message"] += 1
            return
        for message, payload in decoded:
            if type(message) is msg.Share:
                message = msg.Share(message.session, message.ring, message.fd, message.name, 0)
            self.cluster._handle(ev.MessageCame(peer, message, payload))
            self.seen[type(message).__name__] += 1

    def hear(self, peer: bytes) -> None:
        """What it is answered; a refusal is the end of the connection."""
        link = self.cluster.links.get(peer)
        if link is None:
            self.let_go(peer)
            return
        liar = self.liars[peer]
        while link.inbox:
            for message, _ in msg.decode_all(link.inbox.popleft()):
                liar.heard(message)
                self.seen["rejected"] += type(message) is msg.Rejected
                self.seen["done"] += type(message) is msg.CallDone

    # --- the run ---

    def run(self, count: int) -> None:
        rng, deliver = self.rng, self.deliver
        lives: Counter[bytes] = Counter()
        for k in range(count):
            while len(self.peers) < PEERS:
                self.let_in()
            peer = self.peers[k % PEERS]
            liar = self.liars[peer]
            frames = liar.wrong() if k % LIES == 0 and not liar.stuck else self.mutated()
            if k % 64 == 63:  # as bytes of a stream, cut anywhere
                self.through_stream(peer, frames)
            else:
                deliver(peer, frames)
            lives[peer] += 1
            if k % ROUND == ROUND - 1:
                self.cluster.run()
                for each in list(self.peers):
                    self.hear(each)
                    if each in self.peers and lives[each] > (STUCK if self.liars[each].stuck else LIFE):
                        self.let_go(each)
                        del lives[each]
            if k % LOOK == LOOK - 1:
                self.cluster.pass_time(0.1 if rng.random() < 0.9 else 4000.0)
                self.look()
        self.end()

    def through_stream(self, peer: bytes, frames: Frames) -> None:
        """The same over a Unix socket: what cannot be frames ends the connection."""
        data = head_of([*map(len, frames)]) + b"".join(frames)
        if self.rng.random() < 0.3:
            at = int(self.rng.random() * len(data))
            data = data[:at] + self.rng.randbytes(1) + data[at + 1 :]
        stream, cut = FrameReader(), int(self.rng.random() * len(data))
        try:
            found = [each for part in (data[:cut], data[cut:]) for each in stream.feed(part)]
        except msg.BadMessage:
            self.seen["not a stream"] += 1
            return
        for each in found:
            self.deliver(peer, [bytes(f) for f in each])

    def look(self) -> None:
        self.cluster.machine.invariants()
        with using(self.user):
            self.check_user()

    def end(self) -> None:
        """They are gone; nothing of them is left."""
        for peer in list(self.peers):
            self.let_go(peer)
        self.cluster.run()
        self.cluster.pass_time(4000.0)
        self.cluster.run()
        self.look()
        state, number = self.cluster.machine.state, self.user.number
        assert set(state.sessions) == {number}, list(state.sessions)
        (worker,) = self.cluster.workers
        assert set(worker.core.sessions) == {number}, worker.core.sessions
        assert not state.held_nbytes
        assert not state.questions


def main() -> None:
    count, seed = (*map(int, sys.argv[1:]), *([10_000_000, 0][len(sys.argv) - 1 :]))
    siege: Any = Siege(seed)
    begin_s = time.perf_counter()
    siege.run(count)
    seconds = time.perf_counter() - begin_s
    print(f"{count:,} frames in {seconds:.0f} s, {count / seconds:,.0f} per second; nothing came of them")
    for what, n in siege.seen.most_common():
        print(f"  {what:<16} {n:,}")


if __name__ == "__main__":
    main()
