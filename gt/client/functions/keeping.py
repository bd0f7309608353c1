"""Tensors that outlive their client, by name: kept for the next client of the same session, or published for others.

An object is taken apart as for a file (save.py): its tensors stay on the workers, the rest is written down as JSON.
What is kept or taken is a copy that the workers make; no tensor passes through this process.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from gt import dtypes
from gt.client.compat.arguments import shown
from gt.client.functions.creation import from_numpy
from gt.client.functions.save import put_together, taken_apart
from gt.client.programs.pending import RemoteId, Value
from gt.client.record.recorder import recorder
from gt.client.session.session import Session
from gt.client.tensor import Tensor
from gt.errors import ArgumentError, GTError, ServerError, StateError
from gt.program import Spec, spec
from gt.transport.messages import KEPT_TENSORS, Drop, GetKept, Keep, Kept, Take, Thing, pack_ids

__all__ = ["drop", "get", "keep", "kept", "publish", "published", "unpublish"]


def keep(name: str, obj: Any) -> None:
    """Keep an object under a name in this session, which must have a name itself: `gt.connect(..., session="exp1")`.
    The object stays when this client ends, is killed, or loses its connection. The next client of the session gets it
    back with `gt.kept(name)`.

    The object may be a tensor, a state_dict, or nested dicts, lists and plain values that contain tensors. It replaces
    what was kept under the name, all at once: whenever this client dies, the next one finds the old object or the new
    one. When `gt.keep` returns, it is the new one. Later changes of the tensors do not change what is kept.
    """
    _put("keep", _named("keep"), name, obj)


def kept(name: str | None = None) -> Any:
    """The object that is kept under a name in this session, with its tensors in the layouts that they had. Without a
    name: a dict of all names, with the shapes of their tensors.
    """
    session = _named("kept")
    if name is not None:
        return _take("kept", session, _name("kept", name))
    answer = _ask(session, GetKept)
    return {thing.name: _object("kept", thing, lambda k: repr(_specs(thing)[k])) for thing in answer.things}  # noqa: B023


def drop(name: str | None = None) -> None:
    """Stop keeping this object; without a name, stop keeping everything of this session."""
    session = _named("drop")
    text = "" if name is None else _name("drop", name)
    _ask(session, lambda request: Drop(request, text))


def publish(name: str, obj: Any, to: str | Sequence[str] | None = None) -> None:
    """Let others read an object: `gt.get("user/name")`. `to` lists the users who may; by default everyone on this
    server may.

    What they get is the object as it is now. It replaces what you had published under the name. It stays as long as
    this session; of a session with a name also for its lease (see `gt.connect`), of others for 30 s.
    """
    readers = [to] if isinstance(to, str) else [] if to is None else list(to)
    if any(not isinstance(user, str) or not user for user in readers) or (to is not None and not readers):
        raise ArgumentError(f"publish: to must be names of users, got {shown(to)}")
    if "/" in _name("publish", name):
        raise ArgumentError(f"publish: the name must not contain a slash, got {shown(name)}")
    _put("publish", _session("publish"), name, obj, True, tuple(readers))


def unpublish(name: str) -> None:
    """Let others no longer read this. Who has it already keeps a copy."""
    text = _name("unpublish", name)
    _ask(_session("unpublish"), lambda request: Drop(request, text, published=True))


def get(name: str) -> Any:
    """An object that somebody on this server has published: `gt.get("user/name")`, or `gt.get("name")` for one of your
    own. The tensors are copies: to change them changes nothing for others.
    """
    owner, slash, rest = _name("get", name).partition("/")
    return _take("get", _session("get"), rest if slash else owner, owner if slash else "", published=True)


def published() -> list[str]:
    """The names that `gt.get` can read now, yours and those of others."""
    answer = _ask(_session("published"), lambda request: GetKept(request, published=True))
    return [f"{thing.owner}/{thing.name}" if thing.owner else thing.name for thing in answer.things]


# --- the session -------------------------------------------------------------------------------------


def _session(do: str) -> Session:
    session: Session = recorder().session
    if session.on_paper:
        raise StateError(f"{do}: cannot be used inside gt.on_paper(), which uses no server")
    return session


def _named(do: str) -> Session:
    session = _session(do)
    if not session.name:
        where = "start a server with `gt serve`, and " if session.private is not None else ""
        raise StateError(f'{do}: this session has no name; {where}connect with gt.connect(address, session="exp1")')
    return session


def _name(do: str, name: Any) -> str:
    if not isinstance(name, str) or not name:
        raise ArgumentError(f"{do}: the name must be a str that is not empty, got {shown(name)}")
    return name


def _ask(session: Session, question: Callable[[int], Any]) -> Kept:
    answer = _answer(session, question)
    if answer.error is not None:
        session.raise_failures()  # of an earlier call, if that is why
        raise session.error_of(answer.error)
    return answer


def _answer(session: Session, question: Callable[[int], Any]) -> Kept:
    with session.lock:
        session.flush_frees()  # copies may need the memory
    return session.ask(question)


# --- objects -----------------------------------------------------------------------------------------


def _put(
    do: str, session: Session, name: str, obj: Any, published: bool = False, readers: tuple[str, ...] = ()
) -> None:
    name = _name(do, name)
    found: dict[str, Any] = {}
    form = taken_apart(obj, "", found, do)
    numbers: dict[Value, int] = {}  #: Each value once: tied weights are one tensor.
    names: dict[str, int] = {}
    for path, t in found.items():
        tensor = t if isinstance(t, Tensor) else from_numpy(t)
        names[path] = numbers.setdefault(tensor._v or tensor._read(), len(numbers))
    if len(numbers) > KEPT_TENSORS:
        raise ArgumentError(f"{do}: {len(numbers)} tensors; the limit is {KEPT_TENSORS}")
    text = json.dumps([form, names])
    for value in numbers:
        session.settle_value(value)
    ids = pack_ids(v.handle.id for v in numbers if v.handle is not None)
    while True:
        acked = session.acked
        answer = _answer(session, lambda request: Keep(request, name, text, ids, acked, published, readers))  # noqa: B023
        if answer.error is None:
            return
        session.raise_failures()  # of an earlier call, if that is why
        if session.acked == acked:
            raise session.error_of(answer.error)
        # It was refused for a failure that another thread has raised meanwhile: it is known now.


def _take(do: str, session: Session, name: str, owner: str = "", published: bool = False) -> Any:
    answer = _ask(session, lambda request: Take(request, name, _new_ids(session), published, owner))
    if answer.more:  # the tensors are on other workers than this session's
        with session.lock:
            session.transfers.stop_sharing()  # before they are asked for: as for a mesh of several workers
            session.meshes.several = True
        answer = _ask(session, lambda request: Take(request, name, _new_ids(session), published, owner, True))
    (thing,) = answer.things
    values = []
    for k, what in enumerate(_specs(thing)):
        value = Value(None, -1, what)
        value.handle = RemoteId(answer.first + k, session.dead)
        values.append(value)
    return _object(do, thing, lambda k: Tensor(values[k]))


def _new_ids(session: Session) -> int:
    """Ids for as many tensors as there can be; there are enough of them."""
    first = session.next_id
    session.next_id += KEPT_TENSORS
    return first


def _specs(thing: Thing) -> list[Spec]:
    return [spec(shape, dtypes.BY_NAME[dtype]) for shape, dtype in thing.specs]


def _object(do: str, thing: Thing, tensor: Callable[[int], Any]) -> Any:
    """The object that was taken apart. Another user may have written its form: nothing in it is executed."""
    try:
        form, names = json.loads(thing.form)
        return put_together(form, lambda path: tensor(names[path]), _Arrays(lambda path: tensor(names[path])))
    except GTError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        raise ServerError(f"{do}: what is stored as {thing.name!r} cannot be read") from None


class _Arrays(dict[str, Callable[[], Any]]):
    """The NumPy arrays of an object, by path: they were kept as tensors."""

    def __init__(self, tensor: Callable[[str], Any]) -> None:
        super().__init__()
        self._tensor = tensor

    def __missing__(self, path: str) -> Callable[[], Any]:
        found = self._tensor(path)
        return found.numpy if isinstance(found, Tensor) else lambda: _Told(found)


class _Told(str):
    """What is told of an array in a list of all names."""

    def copy(self) -> str:
        return str(self)
