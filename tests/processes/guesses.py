"""Somebody guesses the ids of another user: each answer must be the one for an id that nobody has.

The victim is a client of raw messages: it has tensors, an upload that is under way, a program, something that it keeps,
and something that it has published for somebody else. For each guess the same message is sent twice, with an id of the
victim's and with one that does not exist; but for that id both answers must be the same.
"""

from __future__ import annotations

import random
import re
from collections import Counter, deque
from contextlib import closing
from typing import Any

import msgspec

from gt.program import Instruction, Program
from gt.transport import connect
from gt.transport import messages as msg
from gt.transport.identity import Key

from .hostile import ECHO, ZmqPeer
from .running import DEADLINE_S, answer

N = 8  #: Floats of a tensor.
SECRET = b"the victim's floats, 32 bytes...."[: 4 * N]
NAMES = ("weights", "exp1", "for bob")  #: What the victim keeps, the name of its session, what it has published.
BATCH = 50
LATER = ("keep", "take", "drop")  #: Guesses that may be answered after what was sent behind them.


def adding(times: int) -> Program:
    """A number is added so many times; each has another name."""
    code = tuple(Instruction("add", (k, ~0), {}) for k in range(times))
    return Program((((N,), "float32"),), "f", code, (len(code),), (), ())


class Victim:
    """See the file's header."""

    def __init__(self, address: str, key: Key) -> None:
        self.channel = connect(address, key)
        self.channel.send(msg.Hello(msg.VERSION, "", "victim", NAMES[1]))
        welcome = self.answer()
        assert isinstance(welcome, msg.Welcome), welcome
        self.number = welcome.session
        self.program = adding(7)
        self.tensors = [3, 4, 11]  #: The first two are uploaded, the last one is a result.
        self.upload = 20  #: This one is not complete,
        self.request = 77  #: and this fetch of it is not answered.
        for key_ in self.tensors[:2]:
            self.channel.send(msg.Chunk(0, key_, 0, 4 * N, (N,), "float32"), SECRET)
            assert isinstance(self.answer(), msg.ChunkAck)
        self.channel.send(msg.Define(self.program))
        self.channel.send(msg.Call(0, 1, self.program.hash(), msg.pack_ids([3]), (0.0,), 11, b"", 0))
        assert isinstance(self.answer(), msg.CallDone)
        self.channel.send(msg.Keep(1, NAMES[0], "form", msg.pack_ids([3]), 1))
        assert self.answer() == msg.Kept(1)
        self.channel.send(msg.Keep(2, NAMES[2], "form", msg.pack_ids([4]), 1, True, ("bob",)))
        assert self.answer() == msg.Kept(2)
        self.channel.send(msg.Chunk(0, self.upload, 0, 8 * N, (2 * N,), "float32"), SECRET)
        assert isinstance(self.answer(), msg.ChunkAck)
        self.channel.send(msg.Fetch(0, self.request, self.upload))

    def answer(self) -> msg.Message:
        return answer(self.channel)

    def unharmed(self) -> None:
        """Everything is as it was: what was uploaded, the half of an upload, what is kept."""
        self.channel.send(msg.Chunk(0, self.upload, 4 * N, 8 * N), SECRET)
        ((key, data),) = [(m.key, bytes(p or b"")) for m, p in (self.next(), self.next()) if isinstance(m, msg.Chunk)]
        assert data == 2 * SECRET, "the upload is another one"
        assert key == self.request
        for k, id in enumerate(self.tensors):
            self.channel.send(msg.Fetch(0, 100 + k, id))
            chunk, payload = self.next()
            assert isinstance(chunk, msg.Chunk), chunk
            assert bytes(payload or b"") == SECRET or id == 11, "a tensor is another one"
        self.channel.send(msg.Take(3, NAMES[0], 1000))
        kept = self.answer()
        assert isinstance(kept, msg.Kept), kept
        assert kept.error is None, kept
        self.channel.close()

    def next(self) -> tuple[msg.Message, Any]:
        got = self.channel.receive(DEADLINE_S)
        assert got is not None, "the victim gets no answer"
        return got


class Guesser:
    """A user of the same server with a session of its own."""

    def __init__(self, address: str, key: Key, victim: Victim, rng: random.Random) -> None:
        self.address, self.key, self.victim, self.rng = address, key, victim, rng
        self.guesses: Counter[str] = Counter()
        self.own = adding(3)
        self.came: deque[msg.Message] = deque()  #: Read, not yet looked at.
        self.join()

    def join(self) -> None:
        self.peer = ZmqPeer(self.address, self.key)
        self.peer.send(msg.encode(msg.Hello(msg.VERSION, "", "eve")))
        self.peer.send(msg.encode(msg.Define(self.own)))
        # Its calls are answered as soon as it has been checked.
        self.later(msg.Call(0, 1, self.own.hash(), msg.pack_ids([1]), (1.0,), 500, b"", 0), 1)

    def next(self) -> msg.Message:
        while not self.came:
            more = self.peer.receive(DEADLINE_S)
            assert more, "the server does not answer"
            self.came.extend(more)
        return self.came.popleft()

    def answers(self) -> list[msg.Message]:
        """What came before the answer to ECHO."""
        found: list[msg.Message] = []
        while True:
            m = self.next()
            if isinstance(m, msg.Rejected) and m.text.startswith("Welcome is not allowed"):
                return found
            found.append(m)

    def guess(self) -> tuple[str, Any, Any, Any, Any]:
        """A kind of guess, a message with an id of the victim's and one with an id that nobody has, and the two ids."""
        rng, victim = self.rng, self.victim
        session = rng.choice([0, victim.number])
        id, nobody = rng.choice([*victim.tensors, victim.upload]), rng.getrandbits(50) + 1000
        name, no_name = rng.choice(NAMES), f"n{rng.getrandbits(40)}"
        request = rng.choice([victim.request, 5])
        match rng.randrange(9):
            case 0:
                return "fetch", msg.Fetch(session, request, id), msg.Fetch(session, request, nobody), id, nobody
            case 1:
                # The call after a rejected one has the same number.
                made = msg.Call(session, 1, self.own.hash(), msg.pack_ids([id]), (1.0,), 500, b"", 0)
                return "call", made, msgspec.structs.replace(made, inputs=msg.pack_ids([nobody])), id, nobody
            case 2:
                one, two = (msg.Free(session, msg.pack_ids([i])) for i in (id, nobody))
                return "free", one, two, id, nobody
            case 3:
                one, two = (msg.Cancel(victim.number, r) for r in (victim.request, nobody))
                return "cancel", one, two, victim.request, nobody
            case 4:
                one, two = (msg.Chunk(session, i, 4 * N, 8 * N) for i in (victim.upload, nobody))
                return "upload", one, two, victim.upload, nobody
            case 5:
                one, two = (msg.ChunkAck(session, i, True) for i in (victim.upload, nobody))
                return "acknowledgement", one, two, victim.upload, nobody
            case 6:
                one, two = (msg.Keep(9, "mine", "form", msg.pack_ids([i]), 0, True) for i in (id, nobody))
                return "keep", one, two, id, nobody
            case 7:
                shared, owner = rng.random() < 0.7, rng.choice(["", "ada"])
                one, two = (msg.Take(9, n, 600, shared, owner) for n in (name, no_name))
                return "take", one, two, name, no_name
            case _:
                shared = rng.random() < 0.5
                one, two = (msg.Drop(9, n, shared) for n in (name, no_name))
                return "drop", one, two, name, no_name

    def later(self, message: Any, id: Any) -> list[str]:
        """The answer to a message that may be answered after others."""
        self.peer.send(msg.encode(message))
        while not isinstance(m := self.next(), (msg.Kept, msg.Rejected)):
            pass
        return _without([m], id)

    def run(self, count: int) -> None:
        """So many guesses."""
        done = 0
        while done < count:
            batch = [self.guess() for _ in range(min(BATCH, count - done))]
            for kind, one, two, id, nobody in [each for each in batch if each[0] in LATER]:
                said, expected = self.later(one, id), self.later(two, nobody)
                assert said == expected, f"{one}: answered {said}; one that does not exist: {expected}"
                self.guesses[kind] += 1
                done += 1
            batch = [each for each in batch if each[0] not in LATER]
            for _, one, two, _, _ in batch:
                for m in (one, two):
                    payload = SECRET if isinstance(m, msg.Chunk) else None
                    self.peer.send(msg.encode(m, payload))
                    self.peer.send(ECHO)
            for kind, one, _, id, nobody in batch:
                said, expected = (_without(self.answers(), i) for i in (id, nobody))
                assert said == expected, f"{one}: answered {said}; one that does not exist: {expected}"
                assert not any(each.startswith("Chunk(") for each in said), "bytes of the victim"
                self.guesses[kind] += 1
            done += len(batch)
            if done % 1000 < BATCH:
                self.guess_program()
                self.guess_session()

    def guess_program(self) -> None:
        """The name of the victim's program; a call of one that is not there waits for it."""
        said = []
        for name in (self.victim.program.hash(), self.rng.randbytes(16)):
            with closing(ZmqPeer(self.address, self.key)) as peer:
                peer.send(msg.encode(msg.Hello(msg.VERSION, "", "eve")))
                peer.send(msg.encode(msg.Chunk(0, 3, 0, 4 * N, (N,), "float32"), SECRET))
                peer.send(msg.encode(msg.Call(0, 1, name, msg.pack_ids([3]), (1.0,), 500, b"", 0)))
                peer.send(ECHO)
                mine, self.peer = self.peer, peer
                try:
                    # The upload may be acknowledged now or later.
                    found = [m for m in self.answers() if not isinstance(m, (msg.Welcome, msg.ChunkAck))]
                    said.append(_without(found, name))
                finally:
                    self.peer = mine
                    self.came.clear()
        assert said[0] == said[1], said
        self.guesses["program"] += 1

    def guess_session(self) -> None:
        """The name of the victim's session: every user has names of their own."""
        with closing(ZmqPeer(self.address, self.key)) as peer:
            peer.send(msg.encode(msg.Hello(msg.VERSION, "", "eve", NAMES[1])))
            peer.send(msg.encode(msg.GetKept(1)))
            found: list[msg.Message] = []
            while len(found) < 2:
                came = peer.receive(DEADLINE_S)
                assert came, found
                found += came
            welcome, kept = found
            assert isinstance(welcome, msg.Welcome), welcome
            assert (welcome.workers, welcome.meshes) == ((), ())
            assert kept == msg.Kept(1), kept
        self.guesses["session"] += 1

    def close(self) -> None:
        self.peer.close()


def _without(found: list[msg.Message], id: Any) -> list[str]:
    """Answers as text, without an id. Numbers are whole words: 3 is not a part of 31."""
    text = re.escape(repr(id) if isinstance(id, bytes) else str(id))
    return [re.sub(rf"(?<![0-9A-Za-z]){text}(?![0-9A-Za-z])", "ID", repr(m)) for m in found]
