"""What a client's values must be: the same operations on plain numpy, and what failures make of them.

The oracle never looks at results. It is told of each operation when the client records it, of each call
when the client sends it (which operations are in it is all it takes from there), and of what happens at
the dispatcher: a call is done or has failed, a worker is gone. From that it works out

- whether a call may fail: because one of its operations must, or because of what it was given;
- what a failed call leaves: results that replace an input keep its value, the others are poisoned;
- what is lost with a worker;
- which errors the client must have raised, and how often.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gt.dispatcher.session import Lost
from gt.transport.messages import CallFailed, Failure

Array = Any


class Node:
    """One value: what makes it, and what became of it."""

    __slots__ = (
        "args", "bad", "data", "group", "id", "lost", "make", "number", "poisoned", "replaces", "root", "seq", "taint",
        "workers",
    )  # fmt: skip

    def __init__(self, make: Callable[..., Array] | None, args: tuple[Node, ...], bad: str = "") -> None:
        self.make = make
        self.args = args
        self.bad = bad  #: The error that running this raises, if it does.
        self.replaces: Node | None = None  #: The value that was overwritten in place.
        self.group: Any = None  #: The pending program it was recorded in, and its number there.
        self.number = -1
        self.seq = 0  #: The call that makes it, once that is sent.
        self.workers: set[bytes] = set()  #: Who has it, or its call.
        self.id = 0
        self.data: Array = None  #: Set when its call is done, or has failed and kept the old value.
        self.poisoned = False
        self.lost = False
        self.taint = 0  #: The failed call that it was kept by.
        self.root = 0  #: Of a poisoned or tainted value: the call where the trouble began.

    def usable(self, acked: int) -> bool:
        return not (self.poisoned or self.lost or self.taint > acked)


class SentCall:
    """A call of the client."""

    def __init__(self, seq: int, group: Any, acked: int) -> None:
        self.seq = seq
        self.group = group
        self.nodes: list[Node] = []  #: Everything it runs, in order, as far as it was told of.
        self.inputs: list[Node] = []
        self.outputs: list[Node] = []
        self.acked = acked
        self.workers: set[bytes] = set()
        self.had: set[Node] = set()  #: Inputs that are lost since it was sent. Its workers had them when it ran.
        self.ended: set[bytes] = set()  #: Workers of its that have done their parts.
        self.lost = False  #: A worker of its was gone before it was done.
        self.refused: Failure | None = None  #: Why the dispatcher would not have it run.
        self.done = False
        self.root = 0  #: Set if it failed.
        self.torn = False  #: It failed, and nothing of it was kept.

    def add(self, output: Node) -> list[Node]:
        """It makes this. Returns what it runs for that and for nothing else, in order."""
        new: dict[int, Node] = {}
        left = [output]
        while left:
            node = left.pop()
            if id(node) not in new and node not in self.nodes:
                new[id(node)] = node
                node.seq = self.seq
                left += [a for a in node.args if a.group is self.group]
        self.nodes = sorted([*self.nodes, *new.values()], key=lambda n: n.number)
        self.inputs = [a for n in self.nodes for a in n.args if a.group is not self.group]
        return sorted(new.values(), key=lambda n: n.number)

    def kept_at(self, tensors: Mapping[int, Any]) -> bool:
        """Whether the dispatcher has a value for any of its results."""
        return any(n.id in tensors and type(tensors[n.id]) is not Lost for n in self.outputs)


class Oracle:
    """The oracle of one session."""

    def __init__(self) -> None:
        self.pending: dict[Any, dict[int, Node]] = {}  #: By pending program and number.
        self.by_id: dict[int, Node] = {}
        self.untold: dict[int, Node] = {}  #: By id, results of calls of which nothing was recorded so far.
        self.calls: dict[int, SentCall] = {}
        self.resolved = 0  #: Calls up to here are done or have failed.
        self.acked = 0  #: An error was raised when so many calls had been sent: what they left may be used.
        self.raises: dict[int, list[int]] = {}  #: By root: how many calls had been sent at each raise.
        self.short = False  #: Its tensors fill most of a worker's memory: a call may be refused for that.
        self.lonely = False  #: What needed a worker has just waited too long for one.

    # --- what the client does ---

    def node_of(self, value: Any) -> Node | None:
        """The node of a value of the client's, if it was told of before."""
        if value.owner is not None:
            return self.pending.get(value.owner, {}).get(value.num)
        return self.by_id.get(value.handle.id)

    def result(self, id: int) -> Node:
        """What has this id, told of or not."""
        return self.by_id.get(id) or self.untold[id]

    def recorded(self, value: Any, node: Node) -> Node:
        """The client's value is this."""
        if value.owner is not None:
            node.group, node.number = value.owner, value.num
            self.pending.setdefault(value.owner, {})[value.num] = node
        else:
            self.by_id[value.handle.id] = node
            blank = self.untold.pop(value.handle.id, None)
            if blank is not None:
                self._told_late(self.calls[blank.seq], blank, node)
        return node

    def _told_late(self, call: SentCall, blank: Node, node: Node) -> None:
        """The call that makes this value was sent, and may have failed, inside of the statement that records it, as
        `gt.shard_` does. What became of its result is known already; what makes it is known from now on."""
        call.outputs[call.outputs.index(blank)] = node
        node.group, node.number, node.id = call.group, blank.number, blank.id
        node.workers, node.lost = blank.workers, blank.lost
        new = call.add(node)
        if call.root:
            self._left(call, node)
        elif call.done:
            self._computed(call, new)

    def sent(self, seq: int, group: Any, numbers: tuple[int, ...], first: int) -> None:
        """The pending program `group` went off as call `seq`, and makes these of its results."""
        nodes = self.pending.pop(group, {})
        call = self.calls[seq] = SentCall(seq, group, self.acked)
        for i, number in enumerate(numbers, first):
            node = nodes.get(number)
            if node is not None:
                self.by_id[i] = node
                call.add(node)
            else:  # a step inside an operation, or a value that will be told of when its statement is over
                node = self.untold[i] = Node(None, ())
                node.number, node.seq = number, seq
            node.id = i
            call.outputs.append(node)

    def raised(self, root: int, seq: int) -> None:
        """The client raised the failure of call `root`, when it had sent `seq` calls."""
        before = self.raises.setdefault(root, [])
        since = before[-1] if before else 0
        news = [c for c in self.calls.values() if c.root == root and since < c.seq <= seq]
        assert news, f"the failure of call {root} was raised again, and nothing new had failed by it"
        before.append(seq)
        self.acked = seq

    def all_raised(self) -> None:
        """Every failed call was followed by an error."""
        for call in self.calls.values():
            if call.root:
                told = self.raises.get(call.root, [0])[-1]
                assert told >= call.seq, f"call {call.seq} failed (root {call.root}) and nothing was raised"

    # --- what happens at the dispatcher ---

    def placed(self, seq: int, worker: bytes, refused: Failure | None) -> None:
        """Call `seq` went to a worker, maybe one of several."""
        call = self.calls[seq]
        call.workers.add(worker)
        call.refused = refused
        for node in call.outputs:
            node.workers.add(worker)

    def ended_on(self, seq: int, worker: bytes) -> None:
        """A worker has done its part of call `seq`."""
        if seq in self.calls:
            self.calls[seq].ended.add(worker)

    def worker_lost(self, worker: bytes, outlived: set[int], several: bool) -> None:
        """A worker is gone; `outlived` are ids whose values others have too. Calls under way in which it has a part
        fail, and those that others compute from their results, if it was one of several that the client had."""
        gone: set[Node] = set()
        for i, node in (*self.by_id.items(), *self.untold.items()):
            if worker in node.workers and i not in outlived:
                node.lost = True
                gone.add(node)
        spoilt: set[Node] = set()
        for seq in range(self.resolved + 1, len(self.calls) + 1):
            call = self.calls[seq]
            if call.workers and call.workers == call.ended:  # the dispatcher tells of it behind the calls before it
                call.had |= gone.intersection(call.inputs)
            elif worker in call.workers or (several and call.workers and not spoilt.isdisjoint(call.inputs)):
                call.lost = True
                spoilt.update(call.outputs)
                for node in call.outputs:
                    node.lost = True
            elif call.workers:
                call.had |= gone.intersection(call.inputs)

    def done_up_to(self, seq: int) -> None:
        while self.resolved < seq:
            self.resolved += 1
            call = self.calls[self.resolved]
            if not call.done:
                self._succeeded(call)

    def _succeeded(self, call: SentCall) -> None:
        call.done = True
        for node in call.inputs:
            fine = node.usable(call.acked) or node in call.had
            assert fine, f"call {call.seq} ran on what call {node.root} had spoilt"
        self._computed(call, call.nodes)

    def _computed(self, call: SentCall, nodes: list[Node]) -> None:
        """A call has succeeded, and has run these."""
        for node in nodes:
            assert not node.bad, f"call {call.seq} was to fail: {node.bad}"
            assert node.make is not None
            node.data = node.make(*[a.data for a in node.args])

    def failed(self, message: CallFailed, torn: bool) -> None:
        """A call has failed. `torn`: some of its workers may have done their parts, so nothing of it is kept."""
        self.done_up_to(message.seq - 1)
        call = self.calls[message.seq]
        assert not call.done, f"call {call.seq} has failed twice"
        call.done = True
        self.resolved = message.seq
        call.root, call.torn = message.root, torn
        self._check_reason(call, message, torn)
        for node in call.outputs:
            self._left(call, node)

    def _left(self, call: SentCall, node: Node) -> None:
        """What a call that has failed leaves of a result: the value that it was to replace, or nothing."""
        old = self._origin(node, call)
        node.root = call.root
        if call.torn:
            node.lost = True
        if old is not None and not (old.poisoned or old.lost or call.torn):
            node.data, node.taint, node.lost = old.data, call.seq, False  # what others have is not lost with a worker
        else:
            node.poisoned = True

    def _check_reason(self, call: SentCall, message: CallFailed, torn: bool) -> None:
        kind, root = message.error.kind, message.root
        if not call.nodes:
            return  # all of it was a step inside an operation, sent while that waited: nothing is known of it here
        roots = set()
        if any(n.bad == kind for n in call.nodes):
            roots.add(call.seq)
        for node in call.inputs:
            if not node.usable(call.acked):
                roots.add(node.root or call.seq)
                if node.lost:
                    # With the worker went calls under way; the first of them may be named for all.
                    roots |= {call.seq, *(c.seq for c in self.calls.values() if c.root == c.seq)}
        if call.refused is not None and "set a new one" in call.refused.text:  # one loss is one error
            roots |= {call.seq, *(c.seq for c in self.calls.values() if c.root == c.seq)}
        if call.refused is not None and self.short and call.refused.kind == "OutOfMemory":
            roots.add(call.seq)
        if kind in ("LostError", "PeerFailed") and (self.lonely or call.lost or torn):
            roots |= {call.seq, *(c.seq for c in self.calls.values() if c.root == c.seq)}
        assert root in roots, f"call {call.seq} failed for no reason (root {root}, not in {roots}): {message.error}"

    @staticmethod
    def _origin(node: Node, call: SentCall) -> Node | None:
        """The value before the call that this one was written over."""
        old = node.replaces
        while old is not None and old.group is call.group:
            old = old.replaces
        return old

    def origins(self, ids: set[int]) -> set[int]:
        """What those of these values that calls under way make were written over, one call after the other."""
        found: set[int] = set()
        numbers = {id(node): i for i, node in self.by_id.items()}
        for call in sorted([c for c in self.calls.values() if c.seq > self.resolved], key=lambda c: -c.seq):
            for node in call.outputs:
                if node.id in ids or node.id in found:
                    found.add(numbers.get(id(self._origin(node, call)), 0))
        return found

    # --- what the client gets to see ---

    def check(self, node: Node, got: Array) -> None:
        """A fetch of this value gave that."""
        expected = node.data
        if expected is None:
            expected = self._foreseen(node)
        assert np.allclose(got, expected, rtol=1e-12, atol=1e-12, equal_nan=True), (
            f"fetched {got}, expected {expected} (call {node.seq})"
        )
        for seq in range(1, node.seq + 1):
            root = self.calls[seq].root
            told = self.raises.get(root, [0])[-1]
            assert not root or told >= seq, f"call {seq} failed, and a value that call {node.seq} made was fetched"

    def _foreseen(self, node: Node) -> Array:
        """A value that lay in a mailbox before the dispatcher heard of its call: that and all before it succeeded."""
        assert node.seq, "a fetch gave a value that does not exist"
        made: dict[Node, Array] = {}
        for seq in range(self.resolved + 1, node.seq + 1):
            call = self.calls[seq]
            for each in call.inputs:
                assert each.usable(call.acked), f"call {seq} ran on what call {each.root} had spoilt"
            for each in call.nodes:
                assert not each.bad, f"call {seq} was to fail ({each.bad}), and what comes behind it was fetched"
                assert each.make is not None
                made[each] = each.make(*[made.get(a, a.data) for a in each.args])
        return made[node]

    def check_error(self, nodes: list[Node], error: Exception) -> None:
        """A fetch of these values failed, and not by an earlier call's failure."""
        assert any(n.poisoned or n.lost for n in nodes), f"good values could not be fetched: {error!r}"
