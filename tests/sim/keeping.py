"""What named sessions of the simulation have kept and published, as a client must find it: whoever died when.

A shelf holds, for each name, the objects that may be there: one, if the last `gt.keep` has returned; the old one or the
new one, if the client died before it returned; none, if it was dropped. Who looks finds one of them, and that it is
then. A client does one thing at a time with a shelf.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import gt
from gt.dispatcher.session import Lost
from gt.errors import ArgumentError, GTError, LostError, OutOfMemory

from .oracle import Node

if TYPE_CHECKING:
    from .script import Thread

NAMES = ("a", "b")
NOTHING: list[Any] = []  #: That a name is not there. An object here has at least one tensor.


class Shelf:
    """What a session with a name keeps."""

    def __init__(self) -> None:
        #: By name: what may be there. The last one may have been asked for by a client that died.
        self.may_be: dict[str, list[list[Node]]] = {name: [NOTHING] for name in NAMES}
        self.user: Any = None  #: The thread that is at it.
        self.detached_s = 0.0  #: When the last client was gone.
        self.losses = 0  #: Workers that had died when something was last known to be there.
        self.lives = 0  #: How often it has ended.

    def ended(self) -> None:
        """Its lease is over, or its user was revoked."""
        self.lives += 1
        self.may_be = {name: [NOTHING] for name in NAMES}

    def turns_out(self, name: str, arrays: list[Any] | None) -> list[Node]:
        """Somebody has looked, and found these, or nothing: which of the objects that may be there it is."""
        for nodes in self.may_be[name]:
            found = [value_of(n) for n in nodes]
            if arrays is None and nodes is NOTHING:
                break
            if arrays is not None and len(found) == len(arrays) > 0:
                if all(map(same, found, arrays)):
                    break
        else:
            raise AssertionError(
                f"{name} is {arrays}; it may be {[[value_of(n) for n in o] for o in self.may_be[name]]}"
            )
        self.may_be[name] = [nodes]
        return nodes


def value_of(node: Node) -> Any:
    """What a value is if nothing fails; None if something does."""
    if node.data is not None:
        return node.data
    args = [value_of(a) for a in node.args]
    if node.bad or node.make is None or any(a is None for a in args):
        return None
    return node.make(*args)


def same(value: Any, array: Any) -> bool:
    return value is not None and value.shape == array.shape and np.allclose(value, array, rtol=1e-9, atol=1e-9)


class Published(NamedTuple):
    """Something that was published."""

    nodes: list[Node]
    owner: str
    to: list[str] | None  #: The users who may read it, besides its owner; None: all.


class Keeping:
    """What a thread does with the shelf of its session, and with what all have published."""

    def __init__(
        self, thread: Thread, shelf: Shelf | None, published: list[Published], losses: Callable[[], int],
        user: str = "", users: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.thread = thread
        self.shelf = shelf  #: None: its session has no name.
        self.user = user  #: "": there are no users.
        self.users = users
        self.published = published  #: Everything that was ever published.
        self.losses = losses  #: How many workers have died.
        self.held: Callable[[int], Any] = lambda id: None  #: What the dispatcher has under an id, and which workers.

    def act(self) -> bool:
        """Do one thing; False if there is nothing to do."""
        rng, shelf = self.thread.rng, self.shelf
        if shelf is None or rng.random() < 0.3:
            self.publish() if rng.random() < 0.5 else self.get()
            return True
        if shelf.user is not None:
            return False
        shelf.user = self.thread
        try:
            dice = rng.random()
            if dice < 0.45:
                self.keep(shelf, rng.choice(NAMES))
            elif dice < 0.55:
                self.drop(shelf, rng.choice(NAMES))
            elif dice < 0.65:
                self.look(shelf)
            else:
                self.recall(shelf, rng.choice(NAMES))
        finally:
            shelf.user = None
        return True

    def _chosen(self) -> tuple[list[Any], list[Node]]:
        found = [self.thread.pick() for _ in range(self.thread.rng.choice([1, 1, 2, 3]))]
        return [v.tensor for v in found], [self.thread.read(v) for v in found]

    def keep(self, shelf: Shelf, name: str) -> None:
        tensors, nodes = self._chosen()
        before, lives = shelf.may_be[name], shelf.lives
        shelf.may_be[name] = [*before, nodes]  # as long as this has not returned
        try:
            gt.keep(name, {"tensors": tensors, "count": len(tensors)})
        except GTError as e:
            if shelf.lives == lives:
                shelf.may_be[name] = before
            if not self._expected(e, nodes):
                raise
        else:
            assert all(n.data is not None for n in nodes), "something was kept before its call was done"
            shelf.may_be[name] = [nodes]
            shelf.losses = self.losses()

    def drop(self, shelf: Shelf, name: str) -> None:
        before = shelf.may_be[name]
        shelf.may_be[name] = [*before, NOTHING]
        try:
            gt.drop(name)
        except ArgumentError:
            shelf.may_be[name] = before
            shelf.turns_out(name, None)
        else:
            shelf.may_be[name] = [NOTHING]

    def look(self, shelf: Shelf) -> None:
        found = gt.kept()
        for name, may_be in shelf.may_be.items():
            assert name in found or NOTHING in may_be, f"{name} is gone"
            assert name not in found or may_be != [NOTHING], f"{name} was dropped, and is there"

    def recall(self, shelf: Shelf, name: str) -> None:
        try:
            found = gt.kept(name)["tensors"]
        except ArgumentError:
            shelf.turns_out(name, None)
        except GTError as e:
            if not self._expected(e):
                raise
        else:
            self._add(found, lambda arrays: shelf.turns_out(name, arrays))

    def publish(self) -> None:
        rng = self.thread.rng
        tensors, nodes = self._chosen()
        to = [rng.choice(self.users)] if self.users and rng.random() < 0.5 else None
        self.published.append(Published(nodes, self.user, to))
        try:
            gt.publish("both", {"tensors": tensors}, to=to)
        except GTError as e:
            if not self._expected(e, nodes):
                raise

    def get(self) -> None:
        rng = self.thread.rng
        owner = rng.choice(self.users) if self.users and rng.random() < 0.7 else self.user
        try:
            found = gt.get(f"{owner}/both" if owner != self.user else "both")["tensors"]
        except ArgumentError as e:
            if "nothing is published" not in str(e) and "other workers" not in str(e):
                raise
            return
        except GTError as e:
            if not self._expected(e):
                raise
            return

        def one_of(arrays: list[Any]) -> list[Node]:
            for each in self.published:
                values = [value_of(n) for n in each.nodes]
                mine = each.owner == self.user or each.to is None or self.user in each.to
                if each.owner == owner and mine and len(values) == len(arrays) and all(map(same, values, arrays)):
                    return each.nodes
            raise AssertionError(f"{owner} has not published {arrays} for {self.user}")

        self._add(found, one_of)

    def _add(self, tensors: list[Any], which: Callable[[list[Any]], list[Node]]) -> None:
        """Tensors that were taken are variables like others, and have the values of these nodes."""
        oracle = self.thread.oracle
        try:
            arrays = [t.numpy() for t in tensors]
        except GTError as e:
            if not self._expected(e):
                raise
            return
        known = which(arrays)
        for tensor, node, array in zip(tensors, known, arrays, strict=True):
            id = tensor._v.handle.id
            if id not in oracle.by_id:  # two may be one
                mine = oracle.by_id[id] = Node(node.make, ())
                mine.data = array
                there, workers = self.held(id)
                mine.workers, mine.lost = workers, type(there) is Lost
            if array.shape[0] in (6, 40):
                self.thread.add(tensor, oracle.by_id[id])

    def _expected(self, error: GTError, nodes: Sequence[Node] = ()) -> bool:
        """Whether this may happen, and is over with it. What an earlier call failed with is to be raised again."""
        if "an earlier call failed" in getattr(error, "__notes__", ()):
            return False
        lost = isinstance(error, LostError) and (self.losses() or "no worker has joined" in str(error))
        full = isinstance(error, OutOfMemory) and self.thread.limited
        if not (lost or full or any(n.poisoned or n.lost for n in nodes)):
            raise AssertionError(f"without a reason: {error}")
        return True
