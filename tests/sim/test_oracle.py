"""What the oracle makes of values whose calls were sent before it was told of them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from gt.transport.messages import CallFailed, Failure

from .oracle import Node, Oracle

LOST = Failure("LostError", "the worker is gone")


@pytest.fixture
def oracle() -> Oracle:
    """Call 1 has made tensor 1; call 2 replaces it, and nothing is known of that. Both were sent."""
    oracle = Oracle()
    oracle.recorded(SimpleNamespace(owner="first", num=0), Node(lambda: np.ones(2), ()))
    oracle.sent(1, "first", (0,), 1)
    oracle.sent(2, "second", (0,), 2)
    for seq in (1, 2):
        oracle.placed(seq, b"w", None)
    return oracle


def told(oracle: Oracle) -> Node:
    """The oracle is told of what call 2 makes."""
    old = oracle.by_id[1]
    node = Node(lambda x: 2 * x, (old,))
    node.replaces = old
    return oracle.recorded(SimpleNamespace(owner=None, handle=SimpleNamespace(id=2)), node)


def test_its_call_is_still_under_way(oracle):
    node = told(oracle)
    assert oracle.calls[2].inputs == [oracle.by_id[1]]
    oracle.done_up_to(2)
    assert node.data.tolist() == [2, 2]


def test_its_call_is_done(oracle):
    oracle.done_up_to(2)
    assert told(oracle).data.tolist() == [2, 2]


def test_its_call_has_failed_and_kept_the_old_value(oracle):
    oracle.done_up_to(1)
    oracle.failed(CallFailed(0, 2, 2, LOST), False)
    node = told(oracle)
    assert (node.data.tolist(), node.taint, node.poisoned) == ([1, 1], 2, False)


def test_its_call_has_failed_and_there_was_nothing_to_keep(oracle):
    """What is computed from it fails with the call that lost the old value."""
    oracle.worker_lost(b"w", set(), True)
    for seq in (1, 2):
        oracle.failed(CallFailed(0, seq, 1, LOST), False)
    node = told(oracle)
    assert (node.poisoned, node.root) == (True, 1)
    oracle.recorded(SimpleNamespace(owner="third", num=0), Node(lambda x: x, (node,)))
    oracle.sent(3, "third", (0,), 3)
    with pytest.raises(AssertionError, match="root 2, not in"):
        oracle.failed(CallFailed(0, 3, 2, LOST), False)


def test_its_worker_was_lost_after_its_call(oracle):
    oracle.done_up_to(2)
    oracle.worker_lost(b"w", set(), False)
    assert told(oracle).lost


@pytest.mark.parametrize("ended", [True, False])
def test_a_call_that_its_worker_had_ended_may_have_run(oracle, ended):
    """The dispatcher tells of it when the calls before it have ended, which may be after the worker is gone."""
    oracle.recorded(SimpleNamespace(owner="third", num=0), Node(lambda x: x, (oracle.by_id[1],)))
    oracle.done_up_to(1)
    told(oracle)
    oracle.sent(3, "third", (0,), 3)
    oracle.placed(3, b"w", None)
    for seq in (2, 3) if ended else (2,):
        oracle.ended_on(seq, b"w")
    oracle.worker_lost(b"w", set(), True)
    assert oracle.by_id[3].lost
    oracle.done_up_to(2)
    if ended:
        oracle.done_up_to(3)
    else:
        with pytest.raises(AssertionError, match="call 3 ran on what"):
            oracle.done_up_to(3)
