"""What must be true of the dispatcher's state between two events. Tests ask after each step.

Each line is one law: a count that is kept equals the sum it stands for, a bound holds, and whoever waits
waits for something that is there to come.
"""

from __future__ import annotations

from gt.dispatcher.events import Peer
from gt.dispatcher.schedule import CREDITS
from gt.dispatcher.session import QUEUE_ITEMS, QUEUE_NBYTES, STATS, Session, item_nbytes
from gt.dispatcher.state import HELD_NBYTES, SESSIONS, State, Worker
from gt.transport.messages import UPLOADS, WINDOW, Call, Fetch, Free, unpack_ids
from gt.transport.shared import SLOTS


def check_state(state: State) -> None:
    """Raise AssertionError, naming what is wrong."""
    assert not state.out
    assert not state.touched
    assert not state.news
    assert len(state.sessions) <= SESSIONS
    peers: dict[Peer, Session | Worker] = {s.peer: s for s in state.sessions.values()}
    for worker in state.workers.values():
        peers.update({p: worker for p in (worker.control, worker.results) if p is not None})
        _check_worker(state, worker)
    assert state.peers == peers
    assert state.links == {w.link: w for w in state.workers.values()}
    for session in state.sessions.values():
        _check_session(state, session)
    homeless = {n: s for n, s in state.sessions.items() if s.waiting_since_s is not None}
    assert state.homeless == homeless
    held = sum(len(p) for s in state.sessions.values() for u in s.uploads.values() for _, p in u.held)
    assert state.held_nbytes == held <= HELD_NBYTES
    _check_programs(state)
    for question in state.questions.values():
        assert question.waiting, "a question that nobody has to answer"
        assert not question.session.closed
        assert all(state.workers.get(n) is w for n, w in question.waiting.items())


def _check_worker(state: State, worker: Worker) -> None:
    assert state.workers[worker.number] is worker
    lane = worker.lane
    sent = [c for s in worker.sessions.values() for c in s.sent.values() if not c.finished]
    assert lane.calls == len(sent) <= CREDITS
    assert lane.ahead_us == sum(c.cost_us for c in sent)
    assert worker.nbytes == sum(s.nbytes for s in worker.sessions.values()) >= 0
    assert not worker.memory or worker.nbytes <= worker.memory
    for session in worker.sessions.values():
        assert session.worker is worker
        assert state.sessions[session.number] is session
    ready = {s.number for s in worker.sessions.values() if s.head is not None}
    assert {s.number for s in lane.ring} == ready
    assert len(lane.ring) == len(ready), "a session stands in the ring twice"
    # (A program's estimate may have changed since, so there may be room; the next answer finds it.)
    assert not lane.ring or lane.calls >= 2, "somebody waits for a worker that has nothing to do"


def _check_session(state: State, s: Session) -> None:
    assert not s.closed
    assert state.peers[s.peer] is s
    assert s.nbytes == sum(t.nbytes for t in s.tensors.values()) >= 0
    for i, t in s.tensors.items():
        assert 0 < i <= max(s.call_mark, s.upload_mark)
        assert t.nbytes in (0, t.spec.nbytes)
        if t.lost is not None:
            assert t.layout is None
            assert t.nbytes == 0
        elif t.layout is None:
            assert i in s.uploads, f"tensor {i} is nowhere and nobody brings it"
        else:
            assert s.worker is not None
            assert t.layout is s.worker.layout
    for key, u in s.uploads.items():
        assert 0 <= u.unacked <= SLOTS
        assert u.received <= u.total
        assert not u.complete
        assert not u.held or (s.worker is None and s.waiting_since_s is not None)
        assert u.sink or key in s.tensors
    assert len(s.uploads) <= UPLOADS
    assert s.worker is None or s.waiting_since_s is None
    assert not s.sharing or (s.worker is not None and s.share is not None)

    assert list(s.sizes) == [*map(item_nbytes, s.queue)]
    assert s.queue_nbytes == sum(s.sizes) + sum(s.checking.values()) <= QUEUE_NBYTES
    assert len(s.queue) + len(s.fetches) <= QUEUE_ITEMS
    assert s.queued_calls == sum(type(i) is Call for i in s.queue)
    assert s.queued_calls + len(s.sent) <= WINDOW
    assert list(s.sent) == sorted(s.sent)
    assert s.told == s.done == s.seq - len(s.sent)
    assert not s.sent or (s.worker is not None and not next(iter(s.sent.values())).finished)
    assert not s.fetches or s.worker is not None
    assert s.enlisted == (s.head is not None)
    assert s.no_worker is None
    assert 0 <= s.stats == sum(q.session is s for q in state.questions.values()) <= STATS
    if s.queue:
        _check_wait(state, s)
    else:
        assert s.head is None
        assert not s.blocked_on


def _check_wait(state: State, s: Session) -> None:
    """The head of a queue waits for exactly one thing that can still happen."""
    item = s.queue[0]
    if s.blocked_on:
        assert type(item) is Call
        assert item.program == s.blocked_on
        assert state.programs.waiting[s.blocked_on][s.number] is s
        assert s.asked or any(e.hash == s.blocked_on and not e.finished for e in state.programs)
    elif s.head is not None:
        assert s.head.call is item
        assert s.worker is not None
    elif s.waiting_since_s is None:
        named = [item.id] if type(item) is Fetch else []
        if type(item) is Free:
            named = unpack_ids(item.ids)
        elif type(item) is Call:
            named = [*unpack_ids(item.inputs), *unpack_ids(item.frees)]
        assert any(i in s.uploads and not s.uploads[i].sink for i in named), f"{item} waits for nothing"


def _check_programs(state: State) -> None:
    programs = state.programs
    entries = list(programs)
    assert programs.nbytes == sum(e.nbytes for e in entries)
    uses: dict[bytes, int] = {}
    for s in state.sessions.values():
        for entry in [*([s.head.entry] if s.head is not None else []), *(c.entry for c in s.sent.values())]:
            uses[entry.hash] = uses.get(entry.hash, 0) + 1
    assert {e.hash: e.uses for e in entries if e.uses} == uses, "a program in use was forgotten"
    if programs.nbytes > programs.limit_nbytes:
        spare = [e for e in entries if e.finished and not e.uses and e.hash != programs.last_used]
        assert not spare, "over the limit with programs to spare"
    known = {e.hash for e in entries}
    for worker in state.workers.values():
        assert worker.programs <= known, "a worker keeps a program that the dispatcher has forgotten"
    for waiters in programs.waiting.values():
        assert waiters
        assert all(not s.closed for s in waiters.values())
