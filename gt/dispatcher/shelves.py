"""Keeping: copies of a session's tensors on a shelf, by name; and how copies pass from one session to another.

Law 1: tensors pass from one session to another as copies, which the workers make (Copy). No two sessions share memory.
Law 2: keeping waits until all calls before it are done. If one of them has failed and the client did not know, nothing
       is kept.
Law 3: a name stands for one object, never for parts of two. The new one takes the place of the old one when all its
       copies are there; if one cannot be made, the old one stays.
Law 4: copies are counted when they are asked for, and can be used when they are there.
Law 5: what a session can make the dispatcher keep is bounded, by the numbers below.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gt.dispatcher import calls
from gt.dispatcher.limits import allowed, has_room, missing_text
from gt.dispatcher.plans import set_home
from gt.dispatcher.session import Lost, Session, Tensor, Upload, show_nbytes
from gt.dispatcher.shelf import Copying, Item, Shelf
from gt.dispatcher.state import SESSIONS, State, Worker
from gt.transport import messages as msg
from gt.transport.messages import Buffer, Failure

NAME = 100  #: Characters of a name.
ITEMS = 256  #: Names on one shelf,
FORM_NBYTES = 4 << 20  #: and bytes of their forms, with 64 more for each tensor.
READERS = 256  #: Users that something is published for.


def name_problem(name: str) -> str:
    """Why this cannot be a name; empty if it can. Names are shown in terminals."""
    if not 1 <= len(name) <= NAME or not name.isprintable():
        return f"a name must have 1 to {NAME} printable characters, got {name[:NAME]!r}"
    return ""


# --- shelves ---------------------------------------------------------------------------------


def add_shelf(state: State, owner: Session, name: str) -> Shelf:
    """A new shelf for a session, which has the name if it is not empty."""
    state.last_session += 1
    title = f"[{name}]" if name else f"[published by {owner.name}]"
    room = Session(state.last_session, None, title, user=owner.user)
    key = (owner.user.key if owner.user is not None else "", name or f"\0{owner.number}")
    shelf = state.shelves[key] = room.holds = owner.shelf = Shelf(key, name, room, client=owner)
    state.sessions[room.number] = room
    return shelf


def forget(state: State, shelf: Shelf, item: Item) -> None:
    """This is on the shelf no more."""
    room = shelf.room
    calls.free(state, room, calls.drop(state, room, item.ids), room.workers.values())


# --- keeping: the head of a session's queue --------------------------------------------------


def keep(state: State, session: Session, asked: msg.Keep) -> bool:
    """A client wants something kept. Returns whether that is dealt with; else it waits: for its turn, for calls, for
    uploads, for copies."""
    if _dealt_with(state, session, asked):
        state.keeping.pop(session.number, None)
        return True
    state.keeping[session.number] = session
    return False


def _dealt_with(state: State, session: Session, asked: msg.Keep) -> bool:
    if session.copying is not None:
        if not session.copying.over:
            return False
        session.copying = None
        return True
    shelf = session.shelf
    if session.sent or session.moving is not None or (shelf is not None and not shelf.turn_of(session)):
        return False
    try:
        ids = msg.unpack_ids(asked.ids)
    except ValueError:
        state.reject(session, "keep: a list of ids must be a multiple of 8 bytes long")
        return True
    missing = [i for i in ids if i not in session.tensors or i in session.coming]
    if missing:
        state.reject(session, f"keep: tensor {missing[0]} does not exist")
        return True
    tensors = [session.tensors[i] for i in ids]
    if any(type(t) is Upload for t in tensors):
        return False
    failure = _refusal(state, session, asked, [t for t in tensors if type(t) is Lost])
    if failure is None:
        room = (shelf or add_shelf(state, session, "")).room
        item = Item(asked.name, asked.form, range(room.upload_mark + 1, room.upload_mark + 1 + len(ids)), asked.readers)
        made = Copying(0, session, room, session, asked, item, item.ids)
        failure = begin(state, made, ids, [t for t in tensors if type(t) is Tensor])
        if failure is None and not made.over:
            session.copying = made
            return False
    if failure is not None:
        state.send(session.peer, msg.Kept(asked.request, error=failure))
    return True


def _refusal(state: State, session: Session, asked: msg.Keep, lost: Sequence[Lost]) -> Failure | None:
    """Why this is not kept."""
    shelf, what = session.shelf, "publish" if asked.published else "keep"
    problem = name_problem(asked.name)
    if not problem and asked.published and "/" in asked.name:
        problem = f"the name must not contain a slash, got {asked.name!r}"
    if not problem and asked.readers and session.user is None:
        problem = "this server has no users; leave out `to`"
    if not problem and not asked.published and (shelf is None or not shelf.name):
        problem = "this session has no name"
    if not problem and shelf is None and len(state.sessions) >= SESSIONS:
        problem = f"this server has {SESSIONS} sessions already"
    others = [] if shelf is None else [i for name, i in shelf.items(asked.published).items() if name != asked.name]
    both = others if shelf is None else [*others, *shelf.items(not asked.published).values()]
    count = len(asked.ids) // 8
    if not problem and (count > msg.KEPT_TENSORS or len(asked.readers) > READERS):
        problem = f"{count} tensors for {len(asked.readers)} users; the limits are {msg.KEPT_TENSORS} and {READERS}"
    if not problem and len(others) >= ITEMS:
        problem = f"a session can {what} at most {ITEMS} names"
    if not problem and sum(len(i.form) + 64 * len(i.ids) for i in both) + len(asked.form) + 64 * count > FORM_NBYTES:
        problem = f"names, numbers and texts take more than {FORM_NBYTES >> 20} MiB; keep large data as tensors"
    if problem:
        return Failure("ArgumentError", f"{what}: {problem}")
    if session.failed > asked.acked:
        return Failure("WorkerError", f"{what}: an earlier call has failed; what was kept before is unchanged")
    return lost[0].failure if lost else None


def _missing(asker: Session, worker: Worker, nbytes: int) -> str:
    if not allowed(asker, worker, nbytes):
        return missing_text(asker, worker, nbytes)
    free = show_nbytes(max(0, worker.memory - worker.on_device))
    of = show_nbytes(worker.memory)
    return f"{show_nbytes(nbytes)} on worker {worker.number}, which has {free} free of {of}"


# --- copies ----------------------------------------------------------------------------------


def begin(state: State, made: Copying, ids: Sequence[int], tensors: Sequence[Tensor]) -> Failure | None:
    """Ask the workers for copies of these tensors of the source. Returns why that cannot be."""
    source, target, first = made.source, made.target, made.ids.start
    need: dict[int, int] = {}
    for tensor in tensors:
        for number, nbytes in tensor.parts.items():
            need[number] = need.get(number, 0) + nbytes
    for number, nbytes in need.items():
        worker = state.workers[number]
        if not has_room(target, worker, nbytes):
            text = f"copies of {_missing(made.asker, worker, nbytes)}"
            if type(made.asked) is msg.Keep:
                text += "; the old object is kept until the new one is complete: gt.drop() frees it first"
            return Failure("OutOfMemory", text)
    for number in need:
        _move_in(state, target, state.workers[number])
    for i, tensor in zip(made.ids, tensors, strict=True):
        target.tensors[i] = tensor
        state.count(target, tensor)
    if made.ids:
        target.upload_mark = max(target.upload_mark, made.ids[-1])
        target.coming.update(made.ids)
    state.last_copy += 1
    made.number = state.last_copy
    made.left = list(need)
    state.copies[made.number] = made
    for number in need:
        # What a worker has of a tensor that others hold, an empty array, may be the rest of a failed call.
        mine = msg.pack_ids(i if number in t.parts else 0 for i, t in zip(ids, tensors, strict=True))
        state.send(state.workers[number].control, msg.Copy(target.number, made.number, source.number, mine, first))
    if not need:
        _end(state, made)
    return None


def _move_in(state: State, room: Session, worker: Worker) -> None:
    """A room has tensors on this worker. (The session of a client has that worker already.)"""
    if worker.number not in room.workers:
        room.workers[worker.number] = worker
        worker.sessions[room.number] = room
        set_home(room)


def copied(state: State, worker: Worker, answer: msg.Copied, _: Buffer | None = None) -> None:
    """A worker has made its copies, or could not."""
    made = state.copies.get(answer.request)
    if made is not None and worker.number in made.left:
        made.left.remove(worker.number)
        made.failure = made.failure or answer.error
        if not made.left:
            _end(state, made)


def worker_lost(state: State, worker: Worker) -> None:
    """A worker is gone; its sessions have lost what they had there."""
    for made in list(state.copies.values()):
        if worker.number in made.left:
            made.left.remove(worker.number)
            made.failure = made.failure or Failure("LostError", f"the worker that copied it ({worker}) is gone")
            if not made.left:
                _end(state, made)


def give_up_copies(state: State) -> bool:
    """Copies of sessions that have ended meanwhile, or for such, will not be made. Whether there were any."""
    given_up = [made for made in state.copies.values() if made.source.closed or made.target.closed]
    for made in given_up:
        made.failure = missing(made.asked)
        _end(state, made)
    return bool(given_up)


def missing(asked: msg.Keep | msg.Take) -> Failure:
    """The answer where there is nothing of a name; and, in the same words, where there is something for others."""
    if type(asked) is msg.Take and asked.published:
        name = f"{asked.owner}/{asked.name}" if asked.owner else asked.name
        return Failure("ArgumentError", f"get: nothing is published as {name!r} that you may read")
    return Failure("ArgumentError", f"kept: nothing is kept as {asked.name!r} in this session")


def _end(state: State, made: Copying) -> None:
    """All workers have answered, or the copies are of no use any more."""
    del state.copies[made.number]
    made.over = True
    target, asked, item = made.target, made.asked, made.item
    target.coming.difference_update(made.ids)
    spoilt = [t for i in made.ids if type(t := target.tensors.get(i)) is Lost]
    failure = made.failure or (spoilt[0].failure if spoilt else None)
    if failure is not None:
        if not target.closed:
            calls.free(state, target, calls.drop(state, target, made.ids), target.workers.values())
        state.send(made.asker.peer, msg.Kept(asked.request, error=failure))
    elif type(asked) is msg.Keep:
        shelf = target.holds
        assert shelf is not None
        if asked.published:
            _withdraw(state, shelf, asked.name)
        _replace(state, shelf, item, asked.published)
        state.send(made.asker.peer, msg.Kept(asked.request))
    else:
        thing = msg.Thing(item.name, "", item.form, specs_of(target, made.ids))
        state.send(made.asker.peer, msg.Kept(asked.request, (thing,), made.ids.start))


def _replace(state: State, shelf: Shelf, item: Item, published: bool) -> None:
    items = shelf.items(published)
    old = items.pop(item.name, None)
    items[item.name] = item
    if old is not None:
        forget(state, shelf, old)


def _withdraw(state: State, shelf: Shelf, name: str) -> None:
    """Of one user, a name is published once: what another session has published under it goes."""
    for other in state.shelves.values():
        if other is not shelf and other.key[0] == shelf.key[0] and name in other.published:
            forget(state, other, other.published.pop(name))


def specs_of(session: Session, ids: Iterable[int]) -> tuple[tuple[tuple[int, ...], str], ...]:
    """Shape and dtype of these tensors."""
    found = [session.tensors[i].spec for i in ids]
    return tuple((tuple(s.shape), s.dtype.name) for s in found)
