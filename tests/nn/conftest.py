"""One client in a cluster of its own, in this process, with the torch engine: what comes out is compared with torch."""

from __future__ import annotations

from tests.sessions import session_fixture

session = session_fixture("torch", scope="module", autouse=True)
