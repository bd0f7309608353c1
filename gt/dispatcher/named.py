"""Sessions with a name: clients come and go, and what they keep stays.

Law 1: a name belongs to a user, and has one client at a time. A new one takes it over: the one before is told, and what
       it sends from then on changes nothing.
Law 2: the work of a client that is gone goes on: all that had arrived before is done, in order, and then its session
       ends. The next client with the name sees what is kept after that.
       What one client asks of what is kept, it asks in order, also if it has not waited for the answer (Ctrl-C).
Law 3: what is kept stays while there is a client, and for the lease after the last one is gone. What a session without
       a name has published stays for OTHERS_S.
Law 4: a client that takes over a name begins on the workers and with the meshes of the one before.
Law 5: what is not for a user to read is answered exactly like what does not exist.
"""

from __future__ import annotations

from gt.dispatcher import fetches, meeting, meshes, queues, shelves
from gt.dispatcher.events import Noted
from gt.dispatcher.limits import too_many
from gt.dispatcher.plans import set_home
from gt.dispatcher.session import MAX_ID, Lost, Session, Tensor
from gt.dispatcher.shelf import Copying, Item, Shelf, Waiting
from gt.dispatcher.shelves import name_problem, specs_of
from gt.dispatcher.state import SESSIONS, State, Worker
from gt.transport.identity import User
from gt.transport.messages import Buffer, Drop, Failure, Fetch, GetKept, Kept, Take, Thing

SHELVES = 64  #: Names of one user.
LISTED = 1000  #: What is published, in one answer.
QUESTIONS = 64  #: What a client asks of what is kept before the first is answered.
LEFT = Failure("LostError", "its client disconnected before the upload was complete")

# --- coming ----------------------------------------------------------------------------------


def problem(state: State, name: str, user: User | None) -> str:
    """Why a client cannot have a session of this name; empty if it can."""
    wrong = name_problem(name)
    if wrong:
        return f"session: {wrong}"
    key = user.key if user is not None else ""
    if (key, name) in state.shelves:
        return ""
    if sum(k == key for k, _ in state.shelves) >= SHELVES:
        return f"a user can have at most {SHELVES} named sessions"
    return f"this server has {SESSIONS} sessions already" if len(state.sessions) > SESSIONS - 2 else ""


def come(state: State, session: Session, name: str) -> None:
    """A client has a new session, and wants this name for it."""
    shelf = state.shelves.get((session.user.key if session.user is not None else "", name))
    if shelf is None:
        shelves.add_shelf(state, session, name)
        return
    if shelf.client is not None:
        old = shelf.client
        if old.peer is not None:
            text = (
                f"session {name!r} was opened by another client ({session.name!r}); this one is closed. To take it back"
            )
            state.refuse(old.peer, f"{text}, connect again: gt.connect(..., session={name!r})")
        leave(state, old)
    session.shelf, shelf.client = shelf, session
    note(state, shelf, f"is in use by session {session.number}")
    for number in (*shelf.workers, *(shelf.room.workers if shelf.room.tensors else ())):
        worker = state.workers.get(number)
        if worker is not None and worker.usable:
            session.workers[number] = worker
            worker.sessions[session.number] = session
    session.meshes = {name: m for name, m in shelf.meshes.items() if set(m.workers) <= set(session.workers)}
    set_home(session)


def note(state: State, shelf: Shelf, text: str) -> None:
    """A line for the log."""
    state.out.append(Noted(shelf.room.number, f"{shelf.name!r} {text}"))


# --- going -----------------------------------------------------------------------------------


def gone(state: State, session: Session) -> None:
    """A client is gone, however it went."""
    if session.shelf is not None and session.shelf.name:
        leave(state, session)
    else:
        state.close(session)


def leave(state: State, session: Session) -> None:
    """The client of a session with a name is gone. Its work goes on."""
    shelf = session.shelf
    assert shelf is not None
    assert session.peer is not None
    del state.peers[session.peer]
    session.peer = None
    shelf.let_go(session, state.now_s, state.settings.lease_s)
    shelf.leaving[session.number] = state.leaving[session.number] = session
    note(state, shelf, f"is detached; its lease ends in {state.settings.lease_s:g} s")
    for request, download in list(session.fetches.items()):
        fetches.cancel(state, session, request, download)
        del session.fetches[request]
    for k in reversed(range(len(session.queue))):
        if type(session.queue[k]) is Fetch:
            queues.unqueue(session, k)
    for upload in list(session.uploads.values()):
        if not upload.begun or upload.received < upload.total:
            if not upload.sink:
                state.lose_upload(session, upload, LEFT)
            session.uploads.pop(upload.key, None)  # what a worker has of it goes with the session
    session.offer = session.wish = None
    state.wishes.pop(session.number, None)
    for number in [n for n, q in state.questions.items() if q.session is session]:
        del state.questions[number]
    session.stats = 0
    queues.advance(state, session)


def look(state: State) -> bool:
    """Before an event is over: sessions that have finished their work end, and what waited for them goes on. Returns
    whether something has changed: then there may be more to do."""
    changed = shelves.give_up_copies(state)
    for session in list(state.leaving.values()):
        if session.blocked_on and not state.programs.knows(session.blocked_on, session):
            queues.clear(state, session)  # its client alone has the text of this program
        if not (session.queue or session.sent or session.moving is not None):
            state.close(session)
            changed = True
    for session in list(state.keeping.values()):
        before = session.queue[0]
        queues.advance(state, session)
        changed = changed or not session.queue or session.queue[0] is not before
    for shelf in list(state.shelves.values()) if state.answering else ():
        while shelf.answerable:
            question = shelf.waiting.popleft()
            _answer(state, question.session, question.asked)
            changed = True
        if not shelf.waiting:
            state.answering.discard(shelf.room.number)
    return changed


def time_passed(state: State) -> None:
    """Leases end. A shelf with nothing on it ends with its client."""
    for shelf in list(state.shelves.values()):
        if shelf.client is None and not shelf.leaving and (shelf.empty or state.now_s >= shelf.until_s):
            if not shelf.empty:
                note(state, shelf, "has ended: its lease is over")
            state.close(shelf.room)


# --- taking ----------------------------------------------------------------------------------


def asked(state: State, session: Session, asked: Take | Drop | GetKept, _: Buffer | None = None) -> None:
    """A client asks about its shelf, or about what is published. If something that was sent before may yet change what
    is kept, it is answered after that, and before what is sent later."""
    shelf = session.shelf
    if asked.published or shelf is None or not shelf.busy:
        _answer(state, session, asked)
    elif len(shelf.waiting) >= QUESTIONS:
        state.cut_off(session, f"too much queued: more than {QUESTIONS} questions about what is kept")
    else:
        shelf.waiting.append(Waiting(session, asked, session.kept + session.keeps))
        state.answering.add(shelf.room.number)


def _answer(state: State, session: Session, asked: Take | Drop | GetKept) -> None:
    match asked:
        case Take():
            _take(state, session, asked)
        case Drop():
            _drop(state, session, asked)
        case GetKept():
            _list(state, session, asked)


def _list(state: State, session: Session, asked: GetKept) -> None:
    """A client asks what there is."""
    if asked.published:
        found = [
            Thing(item.name, shelf.room.user.name if shelf.room.user is not None else "")
            for shelf in state.shelves.values() for item in shelf.published.values() if _may_read(session, shelf, item)
        ]  # fmt: skip
        state.send(session.peer, Kept(asked.request, tuple(found[:LISTED])))
    else:
        shelf = session.shelf
        items = shelf.kept.values() if shelf is not None else ()
        rows = [Thing(i.name, "", i.form, specs_of(shelf.room, i.ids)) for i in items if shelf is not None]
        state.send(session.peer, Kept(asked.request, tuple(rows)))


def _may_read(session: Session, shelf: Shelf, item: Item) -> bool:
    user = session.user
    if shelf.key[0] == (user.key if user is not None else ""):
        return True
    return user is not None and (not item.readers or user.name in item.readers)


def _find(state: State, session: Session, asked: Take) -> tuple[Shelf, Item] | None:
    """What a client asks for, if it exists and the client may read it."""
    if not asked.published:
        shelf = session.shelf
        item = shelf.kept.get(asked.name) if shelf is not None else None
        return (shelf, item) if shelf is not None and item is not None else None
    for shelf in state.shelves.values():
        item, owner = shelf.published.get(asked.name), shelf.room.user
        mine = shelf.key[0] == (session.user.key if session.user is not None else "")
        named = owner is not None and owner.name == asked.owner
        if item is not None and (named if asked.owner else mine) and _may_read(session, shelf, item):
            return shelf, item
    return None


def _take(state: State, session: Session, asked: Take) -> None:
    """A client wants what is kept or published under a name."""
    found = _find(state, session, asked)
    failure = shelves.missing(asked) if found is None else None
    if found is not None:
        shelf, item = found
        ids = range(asked.first, asked.first + len(item.ids))
        if not 0 < asked.first <= MAX_ID - len(ids) or any(i in session.tensors for i in ids):
            state.reject(session, f"take: ids must be new and above 0, got {asked.first}")
            return
        tensors = [shelf.room.tensors[i] for i in item.ids]
        lost = next((t for t in tensors if type(t) is Lost), None)
        good = [t for t in tensors if type(t) is Tensor]
        if lost is not None:
            failure = lost.failure
        else:
            needed = dict.fromkeys(number for t in good for number in t.parts)
            more = [state.workers[number] for number in needed if number not in session.workers]
            if more and session.workers and not asked.more:
                state.send(session.peer, Kept(asked.request, more=True))
                return
            failure = _move_in(state, session, more) if more else None
        if failure is None:
            made = Copying(0, shelf.room, session, session, asked, item, ids)
            failure = shelves.begin(state, made, item.ids, good)
    if failure is not None:
        state.send(session.peer, Kept(asked.request, error=failure))


def _move_in(state: State, session: Session, more: list[Worker]) -> Failure | None:
    """A session gets these workers too: what it takes is there. Returns why it cannot have them."""
    together = [*session.workers.values(), *more]
    text = too_many(session, len(together)) if session.user is not None else ""
    for k, worker in enumerate(together if len(together) > 1 else []):
        if not worker.peers:
            text = text or f"worker {worker.number} ({worker}) cannot run calls together with others"
        verdicts = [meeting.between(worker, other) for other in together[:k]]
        text = text or next((v for v in verdicts if v), "")
        if not text and None in verdicts:
            text = "its workers have not tried to reach each other yet; try again in a few seconds"
    if text:
        return Failure("ArgumentError", f"it is on other workers than this session: {text}")
    if state.relocation is not None and state.relocation.session is session:
        state.end_relocation("it gets more workers")
    if not session.workers:
        meshes.settle(state, session, more.pop(0))
    for worker in more:
        session.workers[worker.number] = worker
        worker.sessions[session.number] = session
    if len(session.workers) > 1:
        session.offer = None  # its client has given it up
    set_home(session)
    queues.advance(state, session)
    return None


def _drop(state: State, session: Session, asked: Drop) -> None:
    """A client wants something kept, or published, no longer."""
    shelf = session.shelf
    items = shelf.items(asked.published) if shelf is not None else {}
    if asked.published and asked.name:  # of any session of this user
        key = session.user.key if session.user is not None else ""
        shelf = next((s for s in state.shelves.values() if s.key[0] == key and asked.name in s.published), shelf)
        items = shelf.published if shelf is not None else {}
    if asked.name and asked.name not in items:
        what = "unpublish: nothing is published" if asked.published else "drop: nothing is kept"
        error = Failure("ArgumentError", f"{what} as {asked.name!r}")
        state.send(session.peer, Kept(asked.request, error=error))
        return
    for name in [asked.name] if asked.name else list(items):
        assert shelf is not None
        shelves.forget(state, shelf, items.pop(name))
    state.send(session.peer, Kept(asked.request))
