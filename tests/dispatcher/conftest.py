"""A dispatcher in the hand of a test, with a worker and a client of it."""

from __future__ import annotations

import pytest
from dispatching import PLAIN, Client, FakeWorker, Hand


@pytest.fixture
def hand() -> Hand:
    return Hand()


@pytest.fixture
def worker(hand: Hand) -> FakeWorker:
    return hand.worker()


@pytest.fixture
def client(hand: Hand, worker: FakeWorker) -> Client:
    return hand.client()


@pytest.fixture
def x(client: Client, worker: FakeWorker) -> int:
    """A tensor of 8 floats on the worker, of a client that has defined PLAIN."""
    client.define(PLAIN)
    return client.upload(worker)
