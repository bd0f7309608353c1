"""The fixture `client`: a test that asks for it runs in a session of its own.

Use it in a conftest.py, by `from gt.testing import client` or by `pytest_plugins = ["gt.testing.fixtures"]`:

    def test_sum(client):
        assert gt.ones(3).sum().item() == 3

All tests of a process share one server: the one at GT_SERVER, or else a private one that ends with the process.
"""

from __future__ import annotations

import atexit
from collections.abc import Iterator

import pytest

from gt import config
from gt.client.programs.pending import in_use, use
from gt.client.session.connecting import adopt, connect, disconnect
from gt.client.session.session import Session
from gt.server.local import PrivateServer, start_private

_started: list[PrivateServer] = []  #: One entry, once a test has needed it.


def _address() -> tuple[str, str]:
    """The address of the server, and the token for joining it."""
    settings = config.load()
    if settings.server:
        return settings.server, settings.token
    if not _started or not _started[0].alive():
        _started[:] = [start_private(settings)]
        atexit.register(_started[0].close)
    return _started[0].address, _started[0].token


@pytest.fixture
def client() -> Iterator[Session]:
    """A session of its own for a test; the session before is the current one again afterwards."""
    address, token = _address()
    recorder, session = in_use(), adopt(None)
    try:
        yield connect(address, token)
    finally:
        disconnect()
        adopt(session)
        use(recorder)
