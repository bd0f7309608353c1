"""What must be true of the dispatcher's state between two events. Tests check it after each event.

Each line is one law: a count equals the sum that it stands for, a bound holds, and what waits waits for something that
will happen.
"""

from __future__ import annotations

from gt.dispatcher.events import Peer
from gt.dispatcher.memory import is_coming
from gt.dispatcher.meshes import MESHES
from gt.dispatcher.plans import tensor_at
from gt.dispatcher.queues import item_nbytes
from gt.dispatcher.schedule import BESIDE, CREDITS, SHORT_US
from gt.dispatcher.session import (
    MAX_ID,
    QUEUE_ITEMS,
    QUEUE_NBYTES,
    STATS,
    Lost,
    Move,
    SentCall,
    Session,
    Tensor,
    Upload,
)
from gt.dispatcher.state import HELD_NBYTES, SESSIONS, State, Worker
from gt.dispatcher.switches import Stage
from gt.transport.messages import UPLOADS, WINDOW, Call, Fetch, Free, Keep, unpack_ids
from gt.transport.shared import SLOTS


def check_state(state: State) -> None:
    """Raise AssertionError, naming what is wrong."""
    assert not state.out
    assert not state.touched
    assert not state.news
    assert len(state.sessions) <= SESSIONS
    peers: dict[Peer, Session | Worker] = {s.peer: s for s in state.sessions.values() if s.peer is not None}
    for worker in state.workers.values():
        peers.update(dict.fromkeys(worker.connections, worker))
        _check_worker(state, worker)
    assert state.peers == peers
    assert state.links == {w.link: w for w in state.workers.values()}
    for session in state.sessions.values():
        _check_session(state, session)
    _check_claims(state)
    assert all(state.sessions[n] is s and s.wish is not None for n, s in state.wishes.items())
    homeless = {n: s for n, s in state.sessions.items() if s.waiting_since_s is not None}
    assert state.homeless == homeless
    held = sum(len(p) for s in state.sessions.values() for u in s.uploads.values() for _, p in u.held)
    assert state.held_nbytes == held <= HELD_NBYTES
    _check_programs(state)
    _check_shelves(state)
    _check_relocation(state)
    for question in state.questions.values():
        assert question.waiting, "a question that no worker has to answer"
        assert not question.session.closed
        assert all(state.workers.get(n) is w for n, w in question.waiting.items())


def _check_worker(state: State, worker: Worker) -> None:
    assert state.workers[worker.number] is worker
    lane = worker.lane
    sent = [c for s in worker.sessions.values() for c in _under_way(s) if worker.number in c.left]
    bulk, beside = [c for c in sent if not c.beside], [c for c in sent if c.beside]
    assert lane.calls == len(bulk) <= CREDITS
    assert lane.ahead_us == sum(c.cost_us for c in bulk)
    assert lane.long == sum(c.cost_us > SHORT_US for c in bulk)
    assert lane.beside == len(beside) <= BESIDE
    assert lane.beside_us == sum(c.cost_us for c in beside)
    assert all(len(c.plan.locals) == 1 for c in beside), "a call that several workers run went beside others"
    held = [t.parts.get(worker.number, 0) for s in worker.sessions.values() for t in s.tensors.values()]
    assert worker.nbytes == sum(held) >= 0
    moved = [s.moved[worker.number] for s in worker.sessions.values() if worker.number in s.moved]
    assert worker.away == sum(sum(m.away.values()) for m in moved)
    assert worker.leaving == sum(sum(m.leaving.values()) for m in moved)
    grants = [s.grant.get(worker.number, 0) for s in worker.sessions.values() if s.grant is not None]
    moving = state.relocation
    assert worker.reserved == sum(grants) + (
        sum(moving.copies.values()) if moving is not None and moving.there is worker else 0
    )
    assert not worker.memory or worker.on_device <= worker.memory
    for session in worker.sessions.values():
        assert session.workers[worker.number] is worker
        assert state.sessions[session.number] is session
    ready = {
        s.number for s in worker.sessions.values()
        if s.first is worker and s.head is not None and not (s.claims or _waits_for_memory(state, s))
    }  # fmt: skip
    assert {s.number for s in lane.ring} == ready == {s.number for s in worker.sessions.values() if s.ring is lane}
    assert len(lane.ring) == len(ready), "a session stands in the ring twice"
    claims = [s.number for s in worker.sessions.values() if lane in s.claims]
    assert sorted(s.number for s in lane.claims) == sorted(claims)
    assert lane.number == worker.number
    # (A program's estimate may have changed since, so there may be room; the next answer finds it.)
    waits_well = lane.calls >= (1 if lane.claims else 2)
    assert not lane.ring or waits_well, "a session waits for a worker that has nothing to do"


def _check_claims(state: State) -> None:
    """Claims are made where there is no room, or where others wait; the oldest waits for calls under way."""
    claiming = [s for s in state.sessions.values() if s.claims]
    for s in claiming:
        assert s.head is not None
        assert s.ring is None
        assert [lane.number for lane in s.claims] == list(s.head.plan.locals)
    firsts = [s for s in claiming if all(lane.claims[0] is s for lane in s.claims)]
    assert bool(firsts) == bool(claiming), "claims wait for each other in a ring"
    for s in firsts:
        assert any(lane.calls >= 2 for lane in s.claims), "a session claims room on workers that have room"


def _check_meshes(state: State, s: Session) -> None:
    numbers = set(s.workers)
    assert all(state.workers[n] is w and s.number in w.sessions for n, w in s.workers.items())
    assert all(number in numbers for number, _ in s.orphans)
    assert len(s.meshes) <= MESHES
    for m in s.meshes.values():
        assert set(m.workers) <= numbers
    assert bool(s.place) == bool(numbers)
    assert not numbers or set(s.home.mesh.workers) <= numbers
    assert len(numbers) != 1 or (s.first is not None and s.home is s.first.layout)
    assert (s.wish is not None) == (s.number in state.wishes)
    assert len(numbers) <= 1 or s.offer is None


def _check_session(state: State, s: Session) -> None:
    assert not s.closed
    assert (s.peer is None) == (s.holds is not None or s.number in state.leaving)
    assert s.nbytes == sum(t.nbytes for t in s.tensors.values()) >= 0
    assert s.lost == sum(type(t) is Lost for t in s.tensors.values())
    for i, t in s.tensors.items():
        assert 0 < i <= max(s.call_mark, s.upload_mark) or (i > MAX_ID and s.switch is not None and s.switch.copied)
        assert t.nbytes == sum(t.parts.values())
        assert set(t.parts) <= set(s.workers), "a tensor is on a worker that is not its session's"
        if type(t) is Tensor:
            assert tuple(t.parts) == t.layout.mesh.workers
            assert len(s.workers) > 1 or t.layout is s.home, "on one worker there is one layout"
            assert t.parts == tensor_at(t.spec, t.layout).parts
        elif type(t) is Upload:
            assert s.uploads[i] is t, f"tensor {i} has no value, and there is no upload of it"
            assert not t.sink
        else:
            assert type(t) is Lost
    for key, u in s.uploads.items():
        assert 0 <= u.unacked <= SLOTS
        assert u.received <= u.total
        assert not u.complete
        assert not u.held or (not s.workers and s.waiting_since_s is not None)
        assert u.sink or s.tensors[key] is u
        assert (u.becomes is not None) == (bool(s.workers) and u.begun and not u.sink)
        assert u.begun or not u.sink, "lost before any of it was taken"
        assert tuple(u.shards) == tuple(u.parts), "bytes are counted for other workers than those that get them"
        waiting = {id(chunk): chunk.left for shard in u.shards.values() for chunk in shard.unacked}
        assert u.sink or u.unacked == len(waiting) + len(u.held) + u.slowed
        assert sum(waiting.values()) == sum(len(shard.unacked) for shard in u.shards.values())
    for d in s.fetches.values():
        assert set(d.shards) <= set(s.workers)
        assert d.held or not all(shard.whole for shard in d.shards.values()), "a fetch that is over"
        assert not d.held or d.after > s.done, "a fetch waits for a call that is done"
    _check_meshes(state, s)
    _check_switch(s)
    assert len(s.uploads) <= UPLOADS
    assert not s.workers or s.waiting_since_s is None
    usable = [w for w in state.workers.values() if w.usable]
    assert s.waiting_since_s is None or not usable, "a session waits for a worker though there is one"
    assert not s.shares_ring or len(s.workers) == 1

    assert list(s.sizes) == [*map(item_nbytes, s.queue)]
    assert s.queue_nbytes == sum(s.sizes) + sum(s.checking.values()) <= QUEUE_NBYTES
    assert len(s.queue) + len(s.fetches) <= QUEUE_ITEMS
    assert s.queued_calls == sum(type(i) is Call for i in s.queue)
    assert s.keeps == sum(type(i) is Keep for i in s.queue)
    assert s.queued_calls + len(s.sent) <= WINDOW
    assert list(s.sent) == sorted(s.sent)
    assert s.told == s.done == s.seq - len(s.sent)
    assert not s.sent or next(iter(s.sent.values())).left
    assert all(set(c.left) <= set(s.workers) for c in _under_way(s))
    assert (s.ring is not None) + bool(s.claims) + _waits_for_memory(state, s) == (s.head is not None)
    assert s.grant is None or s.head is not None
    _check_moved(s)
    assert s.no_worker is None
    assert 0 <= s.stats == sum(q.session is s for q in state.questions.values()) <= STATS
    if s.queue:
        _check_wait(state, s)
    else:
        assert s.head is None
        assert not s.blocked_on


def _waits_for_memory(state: State, s: Session) -> bool:
    """Whether the head of a session waits for memory, or for tensors that come back."""
    return s.number in state.memory_queue or (s.grant is not None and is_coming(s))


def _check_moved(s: Session) -> None:
    """What has moved is the session's, and is in one place. What is given its memory does not leave."""
    for number, moved in s.moved.items():
        named = [*moved.away, *moved.leaving, *moved.coming]
        assert named
        assert number in s.workers
        assert len(set(named)) == len(named)
        for i, nbytes in {**moved.away, **moved.leaving, **moved.coming}.items():
            assert 0 < s.tensors[i].parts[number] == nbytes
        if s.head is not None and s.grant is not None and s.head.refused is None:
            assert not {*moved.away, *moved.leaving} & {*s.head.inputs}


def _check_wait(state: State, s: Session) -> None:
    """The head of a queue waits for exactly one thing that can still happen."""
    item = s.queue[0]
    if s.blocked_on:
        assert type(item) is Call
        assert item.program == s.blocked_on
        assert state.programs.waiting[s.blocked_on][s.number] is s
        assert s.asked or any(e.hash == s.blocked_on and (not e.finished or e.planning) for e in state.programs)
    elif s.head is not None:
        assert s.head.call is (item.call if type(item) is Move else item)
        assert set(s.head.plan.locals) <= set(s.workers)
        assert s.head.plan.locals
    elif s.waiting_since_s is None:
        named = [item.id] if type(item) is Fetch else []
        if type(item) is Keep:
            assert state.keeping[s.number] is s
            waits = s.copying is not None or bool(s.sent) or (s.shelf is not None and not s.shelf.turn_of(s))
            assert waits or any(i in s.uploads for i in unpack_ids(item.ids)), "something waits for nothing to be kept"
            return
        if type(item) is Free:
            named = unpack_ids(item.ids)
        elif type(item) is Call:
            named = [*unpack_ids(item.inputs), *unpack_ids(item.frees)]
        uploading = any(i in s.uploads and not s.uploads[i].sink for i in named)
        to_move = s.switch is not None and s.switch.stage is Stage.READY and s.sent  # calls before it end first
        held = state.relocation is not None and state.relocation.holds(s)
        assert uploading or s.moving or to_move or held, f"{item} waits for nothing"


def _check_relocation(state: State) -> None:
    """A session that moves is on its old worker alone."""
    moving = state.relocation
    if moving is None:
        return
    s, here, there = moving.session, moving.here, moving.there
    assert state.sessions[s.number] is s
    assert list(s.workers.values()) == [here]
    assert state.workers[there.number] is there
    assert there.usable
    assert s.number not in there.sessions
    assert all(c.id in moving.copies and c.unacked >= 0 for c in moving.crossing.values())
    assert s.head is None or moving.held_s is None


def _check_shelves(state: State) -> None:
    rooms = {shelf.room.number: shelf for shelf in state.shelves.values()}
    assert rooms == {s.number: s.holds for s in state.sessions.values() if s.holds is not None}
    for key, shelf in state.shelves.items():
        room, client = shelf.room, shelf.client
        assert shelf.key == key
        assert not any((room.queue, room.sent, room.uploads, room.fetches, room.shelf))
        items = [*shelf.kept.values(), *shelf.published.values()]
        made = [c.ids for c in state.copies.values() if c.target is room]
        held = [i for ids in (*(item.ids for item in items), *made) for i in ids]
        assert sorted(held) == sorted(room.tensors), "a shelf has tensors that nobody has asked for, or has lost some"
        assert client is None or (client.shelf is shelf and client.peer is not None and not client.closed)
        assert all(state.leaving[n] is s and s.shelf is shelf for n, s in shelf.leaving.items())
        assert all(question.session is client for question in shelf.waiting)
        assert not shelf.answerable, "a question about a shelf waits for nobody"
        assert not shelf.waiting or room.number in state.answering
    waiting = [n for n, s in state.sessions.items() if s.queue and type(s.queue[0]) is Keep]
    assert sorted(state.keeping) == sorted(waiting)
    for s in state.leaving.values():
        assert s.queue or s.sent or s.moving is not None, "a session whose work is done, and whose client is gone"
    for made_ in state.copies.values():
        assert made_.left
        assert not made_.over
        assert not made_.source.closed
        assert not made_.target.closed
        assert set(made_.left) <= set(made_.target.workers)
        assert set(made_.ids) <= made_.target.coming
    coming = sum(len(s.coming) for s in state.sessions.values())
    assert coming == sum(len(c.ids) for c in state.copies.values())


def _under_way(s: Session) -> list[SentCall]:
    return [*s.sent.values(), *([s.moving] if s.moving is not None else [])]


def _check_switch(s: Session) -> None:
    switch = s.switch
    assert (s.moving is None) or (switch is not None and switch.copied is not None and not s.sent)
    assert not any(type(item) is Move for item in list(s.queue)[1:]), "a move behind something else"
    if switch is None:
        assert not (s.queue and type(s.queue[0]) is Move)
        return
    assert (switch.copied is not None) == (switch.stage is Stage.MOVING)
    if switch.copied is not None:
        assert s.moving is not None or type(s.queue[0]) is Move, "a session is to move, and does not"


def _check_programs(state: State) -> None:
    programs = state.programs
    entries = list(programs)
    assert programs.nbytes == sum(e.nbytes for e in entries)
    uses: dict[int, int] = {}
    texts: dict[bytes, int] = {}
    for s in state.sessions.values():
        heads = [s.head.plan] if s.head is not None else []
        held = s.switch.held if s.switch is not None else []
        for plan in [*heads, *held, *(c.plan for c in _under_way(s)), *s.orphans.values()]:
            uses[id(plan)] = uses.get(id(plan), 0) + 1
    for entry in entries:
        assert entry.latest is None or entry.latest.plan in entry.plans.values()
        for plan in entry.plans.values():
            assert plan.entry is entry
            assert plan.uses == uses.pop(id(plan), 0)
            for local in plan.locals.values():
                if local.hash != entry.hash:
                    texts[local.hash] = texts.get(local.hash, 0) + 1
    assert not uses, "a plan in use was forgotten"
    assert programs.local_counts() == texts
    if programs.nbytes > programs.limit_nbytes:
        spare = [e for e in entries if e.spare and e.hash != programs.last_used]
        assert not spare, "over the limit with programs to spare"
    known = {*(e.hash for e in entries), *texts}
    for worker in state.workers.values():
        assert worker.programs <= known, "a worker keeps a program that the dispatcher has forgotten"
    for waiters in programs.waiting.values():
        assert waiters
        assert all(not s.closed for s in waiters.values())
