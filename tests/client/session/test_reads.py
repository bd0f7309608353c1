"""What a loop reads together is fetched together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gt
from gt.client.session import transfers
from gt.client.session.session import Session
from gt.transport.messages import Cancel, Fetch
from tests.sim.cluster import Cluster


def fetches(sent: list[Any]) -> int:
    """The fetches since the last look."""
    count = sum(type(m) is Fetch for m in sent)
    sent.clear()
    return count


def input_of_ones(session: Session, n: int = 4) -> Any:
    """A tensor that no later program makes."""
    x = gt.ones(n)
    session.settle_value(x._v)
    return x


def results(x: Any, count: int = 3) -> list[Any]:
    return [(x * float(k + 1)).sum() for k in range(count)]


def test_from_the_second_round_on_they_come_with_the_first(session: Session, sent: list[Any]) -> None:
    x = input_of_ones(session)
    counts = []
    for _ in range(3):
        made = results(x)
        sent.clear()
        found, asked = [], []
        for r in made:
            found.append(r.item())
            asked.append(fetches(sent))
        assert found == [4.0, 8.0, 12.0]
        counts.append(asked)
    assert counts == [[1, 1, 1], [3, 0, 0], [3, 0, 0]]
    assert not session.transfers.fetches


def test_the_order_of_the_reads_may_change(session: Session, sent: list[Any]) -> None:
    x = input_of_ones(session)
    for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0)):
        made = results(x)
        assert [made[k].item() for k in order] == [4.0 * (k + 1) for k in order]
    assert not session.transfers.fetches


def test_what_was_not_read_is_not_fetched_ahead_again(session: Session, sent: list[Any]) -> None:
    x = input_of_ones(session)
    for _ in range(2):
        assert [r.item() for r in results(x)] == [4.0, 8.0, 12.0]
    counts = []
    for _ in range(3):
        made = results(x)
        sent.clear()
        assert made[0].item() == 4.0
        counts.append(fetches(sent))
    assert counts == [3, 1, 1]
    assert not any(type(m) is Cancel for m in sent)  # they had come
    assert not session.transfers.fetches


def test_what_is_not_alive_is_not_fetched(session: Session, sent: list[Any]) -> None:
    x = input_of_ones(session)
    for _ in range(2):
        assert [r.item() for r in results(x)] == [4.0, 8.0, 12.0]
    for kept in range(3):
        one = results(x)[kept]  # the others are gone when the program is sent
        sent.clear()
        assert one.item() == 4.0 * (kept + 1)
        assert fetches(sent) == 1
    made = results(x)
    session.settle_value(made[0]._v)
    del made[1]  # sent with the call, and freed since
    session.flush_frees()
    sent.clear()
    assert [r.item() for r in made] == [4.0, 12.0]
    assert fetches(sent) == 2


def test_a_value_that_was_read_may_be_changed(session: Session) -> None:
    x = input_of_ones(session)
    for _ in range(3):
        a, b = results(x, 2)
        assert a.item() == 4.0
        b += 1  # its old value is on its way
        assert b.item() == 9.0


def test_programs_that_take_turns_remember_each_their_own(session: Session, sent: list[Any]) -> None:
    x = input_of_ones(session)
    for k in range(3):
        losses = results(x, 2)
        assert losses[0].item() == 4.0
        norms = [(x * 2.0).max(), (x * 3.0).max()]
        assert [n.item() for n in norms] == [2.0, 3.0]
        sent.clear()
        assert losses[1].item() == 8.0
        assert fetches(sent) == (k == 0)
    assert not session.transfers.fetches


def test_many_programs_are_forgotten_again(session: Session) -> None:
    kept = []
    for n in range(1, 3 * transfers.CALLS):
        x = input_of_ones(session, n)
        for both in (True, False):
            made = results(x, 2)
            assert made[0].item() == n
            kept.append((2.0 * n, made[1]))
            if both:
                assert made[1].item() == 2.0 * n
    assert all(r.item() == wanted for wanted, r in kept)
    assert not session.transfers.fetches


def test_large_values_are_not_fetched_ahead(session: Session, sent: list[Any]) -> None:
    x = gt.ones(1024)
    for _ in range(3):
        small, large = x.sum(), x * 2.0
        sent.clear()
        assert small.item() == 1024.0
        assert fetches(sent) == 1
        np.testing.assert_array_equal(large.numpy(), np.full(1024, 2.0, np.float32))


def test_a_failed_call_is_told_once(cluster: Cluster, session: Session) -> None:
    x, rows = gt.ones(4, 4), gt.tensor([0, 1])
    for index in (rows, rows, gt.tensor([0, 7])):
        picked = x[index]
        a, b = picked.sum(), picked.max()
        if index is rows:
            assert (a.item(), b.item()) == (8.0, 1.0)
            continue
        with pytest.raises(IndexError, match="out of range"):
            a.item()
        with pytest.raises(IndexError, match="out of range"):
            b.item()
    assert (x.sum().item(), session.reported) == (16.0, 1)
    assert not session.transfers.fetches
