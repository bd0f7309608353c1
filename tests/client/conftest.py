"""A client in a whole cluster of its own, in this process: numpy engine, fixed order, no timer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gt.client.session.session import Session
from tests.sessions import session_on
from tests.sim.cluster import Cluster


def in_turn(cluster: Cluster) -> Cluster:
    """Let several threads wait for this cluster: one at a time moves it."""
    lock, move = threading.Lock(), cluster.move_or_hang

    def move_alone() -> None:
        with lock:
            move()

    cluster.move_or_hang = move_alone  # type: ignore[method-assign]
    return cluster


def run_threads(*work: Callable[[], object]) -> None:
    """Do these in threads of their own, until all have ended."""
    threads = [threading.Thread(target=f) for f in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.fixture
def cluster() -> Cluster:
    return in_turn(Cluster())


@pytest.fixture
def session(cluster: Cluster) -> Iterator[Session]:
    """The session that the test's tensors belong to."""
    with session_on(cluster) as session:
        yield session


@pytest.fixture
def sent(session: Session, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every message the session sends."""
    messages: list[Any] = []
    send = session.channel.send

    def watch(message: Any, payload: Any = None) -> None:
        messages.append(message)
        send(message, payload)

    monkeypatch.setattr(session.channel, "send", watch)
    return messages
