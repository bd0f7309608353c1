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

    def __init__(self, seq: int, group: Any, nodes: list[Node], outputs: list[Node], acked: int) -> None:
        self.seq = seq
        self.group = group
        self.nodes = nodes  #: Everything it runs, in order.
        self.outputs = outputs
        self.acked = acked
        self.inputs = [a for n in nodes for a in n.args if a.group is not group]
        self.workers: set[bytes] = set()
        self.lost = False  #: A worker of its was gone before it was done.
        self.refused: Failure | None = None  #: Why the dispatcher would not have it run.
        self.done = False
        self.root = 0  #: Set if it failed.

    def kept_at(self, tensors: Mapping[int, Any]) -> bool:
        """Whether the dispatcher has a value for any of its results."""
        return any(n.id in tensors and type(tensors[n.id]) is not Lost for n in self.outputs)


class Oracle:
    """The oracle of one session."""

    def __init__(self) -> None:
        self.pending: dict[Any, dict[int, Node]] = {}  #: By pending program and number.
        self.by_id: dict[int, Node] = {}
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

    def recorded(self, value: Any, node: Node) -> Node:
        """The client's value is this."""
        if value.owner is not None:
            node.group, node.number = value.owner, value.num
            self.pending.setdefault(value.owner, {})[value.num] = node
        else:
            self.by_id[value.handle.id] = node
        return node

    def sent(self, seq: int, group: Any, numbers: tuple[int, ...], first: int) -> None:
        """The pending program `group` went off as call `seq`, and makes these of its results."""
        nodes = self.pending.pop(group, {})
        outputs = []
        for i, number in enumerate(numbers):
            node = nodes.get(number)
            if node is not None:  # else it is a step inside an operation, or nothing that was told of
                self.by_id[first + i] = node
                node.id = first + i
                outputs.append(node)
        needed: dict[int, Node] = {}
        left = list(outputs)
        while left:
            node = left.pop()
            if id(node) not in needed:
                needed[id(node)] = node
                node.seq = seq
                left += [a for a in node.args if a.group is group]
        order = sorted(needed.values(), key=lambda n: n.number)
        self.calls[seq] = SentCall(seq, group, order, outputs, self.acked)

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

    def worker_lost(self, worker: bytes, outlived: set[int], several: bool) -> None:
        """A worker is gone; `outlived` are ids whose values others have too. If it was one of several that the client
        had, every call under way fails."""
        for i, node in self.by_id.items():
            if worker in node.workers and i not in outlived:
                node.lost = True
        for seq in range(self.resolved + 1, len(self.calls) + 1):
            call = self.calls[seq]
            if worker in call.workers or (several and call.workers):
                call.lost = True
                for node in call.outputs:
                    node.lost = True

    def done_up_to(self, seq: int) -> None:
        while self.resolved < seq:
            self.resolved += 1
            call = self.calls[self.resolved]
            if not call.done:
                self._succeeded(call)

    def _succeeded(self, call: SentCall) -> None:
        call.done = True
        for node in call.inputs:
            assert node.usable(call.acked), f"call {call.seq} ran on what call {node.root} had spoilt"
        for node in call.nodes:
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
        call.root = message.root
        self._check_reason(call, message, torn)
        kept = [(n, self._origin(n, call)) for n in call.outputs]
        for node, old in kept:
            node.root = message.root
            if torn:
                node.lost = True
            if old is not None and not (old.poisoned or old.lost or torn):
                node.data, node.taint = old.data, call.seq
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
        if call.refused is not None and "set a new one" in call.refused.text:
            roots.add(call.seq)
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
