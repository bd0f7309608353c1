"""Functions are compared with torch on the numpy engine too, not only on torch's."""

from __future__ import annotations

from tests.sessions import session_fixture

session = session_fixture("numpy")
